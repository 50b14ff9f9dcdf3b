"""From a path to the entries of a file: bounded reading, and the reader of its format."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from worker.adapters.catalogues.keyvalue import read_keyvalue
from worker.adapters.catalogues.po import read_po
from worker.adapters.catalogues.reading import LONGEST_FILE_BYTES, Reading
from worker.adapters.catalogues.xliff import read_xliff
from worker.domain.catalogue import CatalogueFile
from worker.domain.errors import Invalid
from worker.domain.manifest import LocaleFile, Manifest

READERS: Final[Mapping[str, Callable[[bytes, Reading], CatalogueFile]]] = {
    "po": read_po,
    "xliff": read_xliff,
    "json": read_keyvalue,
}


def read_bounded(path: Path, name: str, *, most_bytes: int = LONGEST_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file, no more than a limit.

    Raises `Invalid` with `import.file.unreadable` or `import.file.too_large` and the name as its path. A pipe or a
    device is refused without being read, so that nothing hangs.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise Invalid("import.file.unreadable", "this is no regular file", path=name)
            data = opened.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        kind = error.strerror if isinstance(error, OSError) else "impossible name"
        raise Invalid("import.file.unreadable", f"the file cannot be read ({kind})", path=name) from None
    if len(data) > most_bytes:
        raise Invalid("import.file.too_large", f"the file is larger than {most_bytes} bytes", path=name)
    return data


def read_source(directory: Path, manifest: Manifest) -> CatalogueFile | None:
    """Return the entries of the source file, or None where the manifest names none. Raises as `read_locale`."""
    if manifest.source is None:
        return None
    reading = _reading(manifest, manifest.source.file, manifest.source_locale)
    return _read(directory, replace(reading, is_source=True), manifest)


def read_locale(directory: Path, manifest: Manifest, file: LocaleFile, source: CatalogueFile | None) -> CatalogueFile:
    """Return the entries of one locale's file.

    Raises `Invalid` with a code of the format (`import.po.…`, `import.xliff.…`, `import.json.…`) and the path
    `name:line`, or `import.file.…`.
    """
    reading = _reading(manifest, file.file, file.locale)
    return _read(directory, reading if source is None else replace(reading, plurals=source.plurals), manifest)


def _reading(manifest: Manifest, name: str, locale: str) -> Reading:
    return Reading(
        name=name,
        area=f"import.{manifest.format}",
        locale=locale,
        source_locale=manifest.source_locale,
        stateless_is_translated=manifest.xliff_without_state == "translated",
    )


def _read(directory: Path, reading: Reading, manifest: Manifest) -> CatalogueFile:
    return READERS[manifest.format](read_bounded(directory / reading.name, reading.name), reading)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
