"""What a private file on disk must look like before anything is read from it or written to it.

A state directory holds customer text and leases, so it is 0700 and its files are 0600 whatever the umask, and nobody
but root or the operator may be able to exchange any part of its path. These are the rules of the SQLite files of the
engine; nothing here knows a database.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from worker.domain.errors import RunCorrupt

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077  # every right of group and others
OTHERS_WRITE = 0o022
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")  # of the files that SQLite puts beside its own


def private_directory(path: Path) -> Path:
    """Create or check a state directory and return its absolute path.

    Missing parts are created 0700. An own directory that others could only read is tightened to 0700. Raises
    `RunCorrupt`, having changed nothing that already existed, when a part of the path is a symlink,
    is not a directory, belongs to a stranger, or could be exchanged by others.
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow the symlinks refused below
    for part in [*reversed(whole.parents), whole]:
        if part != Path(whole.root):
            _make_directory(part)
        _check_directory(part, is_state=part == whole)
    return whole


def private_file(path: Path) -> Path:
    """Create or check one private file in a private directory and return its absolute path.

    Raises `RunCorrupt` when it is a symlink, no regular file, not the operator's, or open to others.
    """
    whole = private_directory(path.parent) / path.name
    try:
        descriptor = os.open(whole, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    except FileExistsError:
        check_private_file(whole)
    else:
        try:
            os.fchmod(descriptor, FILE_MODE)  # the umask may have taken the owner's own rights away
        finally:
            os.close(descriptor)
    return whole


def check_private_database(path: Path) -> None:
    """Refuse an SQLite file whose directory, or any file that belongs to it, is not the operator's alone by now."""
    whole = private_directory(path.parent) / path.name
    for suffix in ("", *SQLITE_SUFFIXES):
        check_private_file(whole.with_name(whole.name + suffix))


def check_private_file(path: Path) -> None:
    """Refuse an existing file that is not the operator's alone; a missing one is fine."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise _unsafe(path, "is not a regular file")
    if found.st_uid != os.geteuid():
        raise _unsafe(path, "belongs to another user")
    if found.st_mode & OTHERS:
        raise _unsafe(path, "is open to group or others; make it 0600")


def _make_directory(part: Path) -> None:
    try:
        part.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        return
    except OSError as fault:
        raise _unsafe(part, f"cannot be created ({fault.strerror})") from None
    part.chmod(DIRECTORY_MODE)


def _check_directory(part: Path, *, is_state: bool) -> None:
    found = part.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _unsafe(part, "is a symlink or no directory")
    owners = {os.geteuid()} if is_state else {0, os.geteuid()}
    if found.st_uid not in owners:
        raise _unsafe(part, "belongs to another user")
    if found.st_mode & OTHERS_WRITE and (is_state or not found.st_mode & stat.S_ISVTX):
        raise _unsafe(part, "can be written by group or others")
    if is_state and found.st_mode & OTHERS:
        if len(part.parts) <= 2:  # "/" or "/var": tightening it would lock everybody else out of the machine
            raise _unsafe(part, "is a directory of the system; use a directory of its own")
        part.chmod(DIRECTORY_MODE)


def _unsafe(path: Path, why: str) -> RunCorrupt:
    return RunCorrupt(f"{path} {why}")
