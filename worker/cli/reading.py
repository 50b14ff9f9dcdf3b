"""Reading a document that a command was given: a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def read_document(file: Path, *, longest_bytes: int) -> bytes:
    """Read a file, or standard input for `-`, no further than one byte beyond what may be taken."""
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(longest_bytes + 1)
        with file.open("rb") as opened:
            return opened.read(longest_bytes + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read ({error.strerror})") from None
