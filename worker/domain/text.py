"""The rules every text keeps: Unicode NFC, no NUL, at most 2,000,000 UTF-8 bytes. Texts are refused, never rewritten.

NFC is not reversible: rewriting a text would change what somebody signed, reviewed or approved.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid

LONGEST_TEXT_BYTES: Final = 2_000_000


def text_fault(value: str) -> str | None:
    """Return why a string is no sound text (`nul`, `length`, `nfc`, `unicode`), or None."""
    if "\x00" in value:
        return "nul"
    if value.isascii():  # such a text is NFC, and as long in bytes as in characters
        return "length" if len(value) > LONGEST_TEXT_BYTES else None
    if len(value) > LONGEST_TEXT_BYTES:
        return "length"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return "unicode"
    if size > LONGEST_TEXT_BYTES:
        return "length"
    return None if unicodedata.is_normalized("NFC", value) else "nfc"


def require_text(value: object, code: str, path: str = "") -> str:
    """Return the text as it is, or raise `Invalid` with this code and path."""
    if not isinstance(value, str) or text_fault(value):
        raise Invalid(code, "the text must be Unicode NFC without NUL, at most 2,000,000 UTF-8 bytes", path=path)
    return value


def text_sha256(text: str) -> str:
    """Return the hash of a text: SHA-256 over its own UTF-8 bytes, as they are."""
    return sha256_hex(text)
