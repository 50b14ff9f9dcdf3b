"""Whether the installed files are those we shipped, in an environment with the libraries we were tried with.

`worker`, `tasks` and `config` are common names: another package in the same environment may overwrite them, and a
directory of that name may stand before them on the path. The wheel's RECORD holds the hash of each file.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

from worker.domain.symptom import Examination, Symptom, found

NAME: Final = "locseal"
OURS: Final = ("worker", "tasks", "config")
SHOWN: Final = ("celery", "kombu", "redis", "sqlalchemy", "psycopg", "flower")
MOST_NAMES: Final = 5  # of files in one sentence


def examine_package() -> Examination:
    """Return the versions that run here, and what is wrong with our files or the libraries beside them."""
    facts = {"locseal": _version(NAME), "python": platform.python_version()}
    facts |= {name: _version(name) for name in SHOWN}
    try:
        own = distribution(NAME)
    except PackageNotFoundError:
        missing = found("package.version.unsupported", "Locseal runs without being installed")
        return Examination(facts=facts, symptoms=(missing,))
    symptoms = [*_unsupported(own), *_shared(distributions())]
    root = Path(str(own.locate_file("")))
    if is_editable(own):
        symptoms.append(found("package.editable", "Locseal is installed from a checkout (editable)"))
    else:
        symptoms += altered_files(own)
        symptoms += _shadowed(root)
    return Examination(facts=facts, symptoms=tuple(symptoms))


def is_editable(own: Distribution) -> bool:
    """Tell whether a distribution is a checkout that is run where it lies."""
    said: dict[str, Any] = json.loads(own.read_text("direct_url.json") or "{}")
    return bool(said.get("dir_info", {}).get("editable"))


def altered_files(own: Distribution) -> Iterator[Symptom]:
    """Yield one symptom that names the files of a distribution whose bytes are not those in its RECORD, if any."""
    names = []
    for file in own.files or ():
        if file.hash is None or file.hash.mode != "sha256":
            continue
        try:
            digest = hashlib.sha256(Path(str(own.locate_file(file))).read_bytes()).digest()
        except OSError:
            names.append(f"{file} (missing)")
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            names.append(str(file))
    if names:
        yield found("package.file.altered", f"{len(names)} files are not those that were installed: {_named(names)}")


def _shared(installed: Iterable[Distribution]) -> Iterator[Symptom]:
    """Yield a symptom for each other distribution that has files in our packages."""
    for one in installed:
        name = str(one.metadata["Name"])
        if name == NAME:
            continue
        claimed = [str(file) for file in one.files or () if file.parts and file.parts[0] in OURS]
        if claimed:
            yield found("package.file.shared", f"the package {name} has files of ours: {_named(claimed)}")


def _shadowed(root: Path) -> Iterator[Symptom]:
    """Yield a symptom for each package of ours that Python would take from elsewhere."""
    for package in OURS:
        spec = importlib.util.find_spec(package)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if origin is None or origin.resolve() != (root / package / "__init__.py").resolve():
            yield found("package.shadowed", f"`import {package}` takes {origin}, not what was installed")


def _unsupported(own: Distribution) -> Iterator[Symptom]:
    """Yield a symptom for each library that is missing or outside the range that our package asks for."""
    for text in own.requires or ():
        asked = Requirement(text)
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        there = _version(asked.name)
        if there is None or not asked.specifier.contains(there, prereleases=True):
            what = f"{asked.name}{asked.specifier} is needed, {there or 'nothing'} is installed"
            yield found("package.version.unsupported", what)


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
