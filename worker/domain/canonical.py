"""Strict JSON in, canonical bytes out: the only module that parses foreign JSON or calls the libraries that write it.

`parse_strict` accepts only what `canonical_bytes` can write back, and `parse_strict(canonical_bytes(x))` is `x`: so a
document that was hashed or signed can always be read again. Whatever the input is, the one exception is `Invalid`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final, NoReturn

import orjson
import rfc8785

from worker.domain.errors import Invalid

JSON_INVALID: Final = "coordinator.json.invalid"
MAX_DEPTH: Final = 64
MAX_INTEGER: Final = 2**53 - 1
# A bound on brackets and commas, so that 32 MiB of "[],[],…" cannot become gigabytes of Python lists. The largest
# legitimate document (250 results) has about 20,000.
MAX_MARKS: Final = 1_000_000
_EXPONENT_FROM: Final = 1e21  # from here on RFC 8785 writes an exponent
_LEAST_PLAIN: Final = 1e-4  # a smaller fraction is spelt in more than one way
_INTEGER_CHARACTERS: Final = 17  # a sign and sixteen digits
MAX_NUMBER_CHARACTERS: Final = 128  # longer literals carry no more precision, and digits cost quadratic time

# Matches a string up to its end, or up to the end of the input when it is not closed, so one pass stays linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b"[]{},")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class _RefusedError(ValueError):
    """Carries a sentence out of the decoder's hooks; never leaves this module."""


def parse_strict(data: bytes | str, *, max_bytes: int, code: str = JSON_INVALID) -> Any:
    """Parse untrusted JSON and return plain dicts, lists, strings, numbers, booleans and None.

    Refused with `Invalid(code)`: more than `max_bytes` of UTF-8 (judged before parsing), a byte order mark, bytes that
    are not UTF-8, repeated keys at any depth, NaN and infinities, integers beyond 2^53 - 1, nesting deeper than 64,
    lone surrogates, anything after the value. A number without a fraction is an int however it was written, so `1.0`,
    `1` and `-0` have the values of their canonical forms.
    """
    return _parse(_bytes_of(data, max_bytes, code), code)[0]


def parse_canonical(data: bytes | str, *, max_bytes: int, code: str = JSON_INVALID) -> Any:
    """Parse as `parse_strict` does, and refuse with `Invalid(code)` what `canonical_bytes` would not write like that."""
    raw = _bytes_of(data, max_bytes, code)
    value, is_canonical = _parse(raw, code)
    if not is_canonical and canonical_bytes(value) != raw:
        raise Invalid(code, "the JSON is not canonical")
    return value


def read_written(raw: bytes) -> Any:
    """Return the value of bytes that `canonical_bytes` returned in this process: unchecked, so for no others."""
    return orjson.loads(raw)


def canonical_bytes(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a value; `Invalid(coordinator.json.invalid)` when it has none.

    Values of ours are written by a fast library, which is held to the reference for all that `_is_plain` lets through;
    the rest goes to the reference itself (a request of a locale: 6 us against 90, eight times a locale).
    """
    written = exact_bytes(value)
    if written is not None and _is_plain(value):
        return written
    try:
        return rfc8785.dumps(value)
    except (ValueError, TypeError, RecursionError):
        # The library's messages quote the value, so the cause is cut off.
        raise Invalid(JSON_INVALID, "the value has no canonical JSON form") from None


def exact_bytes(value: Any) -> bytes | None:
    """Return bytes that tell values apart by their types too (`1.0` from `1`), but NaN not from None; None for no JSON.

    For comparing in this process; nothing of this form is kept or signed.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return None


def canonical_text(value: Any) -> str:
    """Return the canonical bytes as text, which is how documents are stored."""
    return canonical_bytes(value).decode("utf-8")


def sha256_hex(data: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of the UTF-8 bytes of a text, as 64 lowercase hex digits."""
    if isinstance(data, str):
        try:
            data = data.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid(JSON_INVALID, "the text holds a lone surrogate") from None
    return hashlib.sha256(data).hexdigest()


def hash_of(value: Any) -> str:
    """Return the SHA-256 of the canonical bytes of a value."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def _is_plain(value: Any) -> bool:
    """Tell whether both libraries write a value alike: exact JSON types, ASCII names, safe integers, short fractions.

    Names beyond ASCII sort differently by UTF-16; a float that is whole, or that needs an exponent, is spelt differently.
    """
    waiting = [value]
    for one in waiting:  # grows as it goes
        kind = type(one)
        if kind is str or one is None or kind is bool:
            continue
        if kind is dict:
            if not "".join(one).isascii():
                return False
            waiting.extend(one.values())
        elif kind is list or kind is tuple:
            waiting.extend(one)
        elif kind is int:
            if not -MAX_INTEGER <= one <= MAX_INTEGER:
                return False
        elif kind is not float or not _LEAST_PLAIN <= abs(one) <= MAX_INTEGER or one.is_integer():
            return False
    return True


def _bytes_of(data: object, max_bytes: int, code: str) -> bytes:
    """Return the input as bytes within the limit."""
    if isinstance(data, str):
        if len(data) > max_bytes:  # a character is at least one byte, so nothing needs encoding first
            raise Invalid(code, f"the input is larger than {max_bytes} bytes")
        try:
            data = data.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid(code, "the text holds a lone surrogate") from None
    if not isinstance(data, bytes):
        raise Invalid(code, "the input is neither bytes nor text")
    if len(data) > max_bytes:
        raise Invalid(code, f"the input is larger than {max_bytes} bytes")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Invalid(code, "the input begins with a byte order mark")
    return data


def _parse(raw: bytes, code: str) -> tuple[Any, bool]:
    """Return the value, and whether the bytes were found to be canonical on the way; false says nothing."""
    try:
        _check_marks(raw)
        known = _read_canonical(raw)
        if known is not None:
            return known, True
        text = raw.decode("utf-8")
        value = _DECODER.decode(text)
        if _SURROGATE_ESCAPE.search(text) is not None:
            _check_surrogates(value)
    except _RefusedError as refusal:
        raise Invalid(code, str(refusal)) from None
    except ValueError:
        # Decoder errors quote their input position and sometimes their input: the sentence is ours alone.
        raise Invalid(code, "the input is not strict JSON in UTF-8") from None
    return value, False


def _read_canonical(raw: bytes) -> Any:
    """Return the value of bytes that are canonical already, and None for all others (and for `null`).

    Nearly all that is read was written here: a text that a fast library reads, and writes back byte for byte, repeats
    no name and spells nothing in another way (a result: 9 us against 35).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if _is_plain(value) and exact_bytes(value) == raw else None


def _check_marks(raw: bytes) -> None:
    """Bound the nesting and the number of values before any of them exists."""
    opening = raw.count(b"[") + raw.count(b"{")
    if opening <= MAX_DEPTH and raw.count(b",") <= MAX_MARKS:
        return  # nearly every document: even counting the marks inside its texts it cannot be too deep
    marks = _STRING.sub(b"", raw).translate(None, _NOT_MARKS)
    if len(marks) > MAX_MARKS:
        raise _RefusedError("the JSON has too many values")
    depth = 0
    for mark in marks.replace(b",", b""):
        if mark in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _RefusedError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
        else:
            depth -= 1


def _check_surrogates(value: Any) -> None:
    """Refuse strings that have no UTF-8 form; they can only come from escapes."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            one.encode("utf-8")  # UnicodeEncodeError is a ValueError
        elif isinstance(one, dict):
            waiting.extend(one.keys())
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, refusing a repeated key whichever value would win."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _RefusedError("an object repeats a key")
    return made


def _integer(literal: str) -> int:
    """Read an integer literal without handing long digit strings to `int`."""
    number = int(literal) if len(literal) <= _INTEGER_CHARACTERS else MAX_INTEGER + 1
    if abs(number) > MAX_INTEGER:
        raise _RefusedError("an integer is beyond 2^53 - 1")
    return number


def _number(literal: str) -> int | float:
    """Read a literal with a fraction or an exponent as the number that its canonical form names."""
    if len(literal) > MAX_NUMBER_CHARACTERS:
        raise _RefusedError("a number has too many digits")
    number = float(literal)
    # Between the two bounds the canonical form is an integer literal, which could not be read again.
    if not math.isfinite(number) or MAX_INTEGER < abs(number) < _EXPONENT_FROM:
        raise _RefusedError("a number is beyond 2^53 - 1")
    return int(number) if number.is_integer() and abs(number) <= MAX_INTEGER else number


def _constant(_literal: str) -> NoReturn:
    """Refuse NaN and the infinities, which are no JSON."""
    raise _RefusedError("NaN and infinities are no JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
