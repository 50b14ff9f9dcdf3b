"""What stands in requirements.lock: the packages the product runs with, those of its build, and a bill of materials.

    python config/deploy/lock.py runtime     the lock of the image: without what only tests and checks need
    python config/deploy/lock.py build       the lock of the tools that build the wheel
    python config/deploy/lock.py sbom        CycloneDX 1.6: every package with its hashes and what needs it

Reads the lock and pyproject.toml beside it and prints; needs nothing but Python. The same lock gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ("hatchling", "editables")
OURS: Final = "locseal"

_PIN: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?==(?P<version>[^ ;\\]+)( ; (?P<marker>[^\\]+?))? *\\?$"
)
_HASH: Final = re.compile(r"^ +--hash=(?P<kind>sha256):(?P<digest>[0-9a-f]{64})")
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package of the lock: its text as it stands there, its hashes, and which packages ask for it."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    asked_by: frozenset[str]
    text: str


def read_lock(text: str) -> tuple[Pin, ...]:
    """Return the pins of a lock; a package may have several, with markers. Raises `ValueError` for one without a hash."""
    pins: list[Pin] = []
    for block in re.split(r"\n(?=\S)", text.strip("\n")):
        lines = block.splitlines()
        head = _PIN.match(lines[0])
        if head is None:
            continue
        hashes = tuple(found["digest"] for line in lines if (found := _HASH.match(line)))
        if not hashes:
            raise ValueError(f"{head['name']} has no hash")
        asked = re.findall(r"^ +#(?: via)? +([A-Za-z0-9._-]+)", block, re.MULTILINE)
        pin = Pin(
            name=_normal(head["name"]),
            version=head["version"],
            marker=head["marker"],
            hashes=hashes,
            asked_by=frozenset(_normal(name) for name in asked),
            text=block,
        )
        pins.append(pin)
    return tuple(pins)


def reachable(pins: Sequence[Pin], roots: Iterable[str]) -> tuple[Pin, ...]:
    """Return the pins of these packages and of all that they need."""
    found: set[str] = set()
    fresh = {_normal(root) for root in roots}
    while fresh:
        found |= fresh
        fresh = {pin.name for pin in pins if pin.asked_by & found} - found
    return tuple(pin for pin in pins if pin.name in found)


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def runtime_roots(about: Mapping[str, Any]) -> list[str]:
    """Return the names of what the product itself depends on."""
    return [found[0] for one in about["dependencies"] if (found := _NAME.match(one))]


def bill(pins: Sequence[Pin], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bill of materials: packages of the image are required, the others excluded from it."""
    needed = {pin.name for pin in reachable(pins, runtime_roots(about))}
    own = f"pkg:pypi/{OURS}@{about['version']}"
    digest = sha256("".join(pin.text for pin in pins).encode()).hexdigest()
    direct = sorted(_purl(pin) for pin in pins if OURS in pin.asked_by)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": OURS,
                "version": about["version"],
                "purl": own,
                "licenses": [{"license": {"id": about["license"]}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": _purl(pin),
                "name": pin.name,
                "version": pin.version,
                "purl": _purl(pin),
                "scope": "required" if pin.name in needed else "excluded",
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": _purl(pin),
                        "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
                    }
                ],
            }
            for pin in pins
        ],
        "dependencies": [
            {"ref": own, "dependsOn": direct},
            *(
                {
                    "ref": _purl(pin),
                    "dependsOn": sorted(_purl(one) for one in pins if pin.name in one.asked_by),
                }
                for pin in pins
            ),
        ],
    }


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _lines(what: str) -> Iterator[str]:
    pins, about = read_lock((ROOT / "requirements.lock").read_text(encoding="utf-8")), project()
    if what == "sbom":
        yield json.dumps(bill(pins, about), indent=2)
        return
    roots = {"runtime": runtime_roots(about), "build": list(BUILD)}[what]
    yield from (pin.text for pin in reachable(pins, roots))


if __name__ == "__main__":
    if sys.argv[1:] not in (["runtime"], ["build"], ["sbom"]):
        sys.exit("say one of: runtime, build, sbom")
    sys.stdout.writelines(f"{line}\n" for line in _lines(sys.argv[1]))
