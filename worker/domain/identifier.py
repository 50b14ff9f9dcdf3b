"""Tokens, hashes and times: the three kinds of plain value that every document and row is made of.

Every pattern is matched against the whole string, so a trailing newline fails. A bool is never a number.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeGuard

from worker.domain.errors import Invalid

TOKEN: Final = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
HASH: Final = re.compile(r"[0-9a-f]{64}")


def is_token(value: object) -> TypeGuard[str]:
    """Tell whether a value is an identifier token."""
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def is_hash(value: object) -> TypeGuard[str]:
    """Tell whether a value is a SHA-256 as 64 lowercase hex digits."""
    return isinstance(value, str) and HASH.fullmatch(value) is not None


def is_time(value: object) -> TypeGuard[int | float]:
    """Tell whether a value is a time or duration in seconds: a finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:  # an int too large for a float
        return False


def require_token(value: object, code: str, path: str = "") -> str:
    """Return the value if it is a token, else raise `Invalid(code)`."""
    if not is_token(value):
        raise Invalid(code, "expected 1 to 256 characters of A-Z a-z 0-9 _ . : -", path=path)
    return value


def require_hash(value: object, code: str, path: str = "") -> str:
    """Return the value if it is a hash, else raise `Invalid(code)`."""
    if not is_hash(value):
        raise Invalid(code, "expected a SHA-256 as 64 lowercase hex digits", path=path)
    return value


def require_time(value: object, code: str = "coordinator.time.invalid", path: str = "") -> float:
    """Return the value as float seconds if it is a time, else raise `Invalid(code)`."""
    if not is_time(value):
        raise Invalid(code, "expected a finite number of seconds >= 0", path=path)
    return float(value)
