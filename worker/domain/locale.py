"""Which language tags may name a locale: BCP 47, well-formed, registered, in canonical form. Nothing is mapped.

A tag that is not in canonical form is refused instead of rewritten, and no locale ever stands in for another: the
target of a translation is exactly what was signed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

from worker.domain.errors import Invalid

LONGEST_TAG: Final = 128
_SHAPE: Final = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_REGISTERED_EXTENSIONS: Final = ("t", "u")  # the singletons that IANA has given away


def locale_fault(tag: str) -> str | None:
    """Return why a tag names no locale (`malformed`, `unregistered`, `not_canonical`), or None."""
    # The cache must not be filled by junk of any length.
    if len(tag) > LONGEST_TAG or _SHAPE.fullmatch(tag) is None:
        return "malformed"
    return _judge(tag)


@lru_cache(maxsize=4096)
def _judge(tag: str) -> str | None:
    try:
        given = Language.get(tag, normalize=False)
        canonical = Language.get(tag, normalize=True)
    except LanguageTagError:
        return "malformed"
    if not canonical.is_valid():
        return "unregistered"
    singletons = [extension[0] for extension in canonical.extensions or ()]
    if any(singleton not in _REGISTERED_EXTENSIONS for singleton in singletons):
        return "unregistered"
    # The library sorts variants when it prints a tag; RFC 5646 keeps their order, so both sides are printed alike
    # and the case of the tag itself is judged apart.
    if canonical.extlangs or canonical.to_tag() != given.to_tag() or singletons != sorted(singletons):
        return "not_canonical"
    return None if tag == _in_standard_case(tag) else "not_canonical"


def _in_standard_case(tag: str) -> str:
    """Write a tag as RFC 5646 section 2.1.1 does: all lowercase, but `Latn` and `BR` before any singleton."""
    parts = tag.lower().split("-")
    for position, part in enumerate(parts[1:], start=1):
        if len(part) == 1:
            break
        if part.isalpha() and len(part) == 4:
            parts[position] = part.title()
        elif part.isalpha() and len(part) == 2:
            parts[position] = part.upper()
    return "-".join(parts)


def canonical_locale(tag: object, code: str, path: str = "") -> str:
    """Return the tag as it is when it is a canonical locale, or raise `Invalid` with this code and path."""
    if not isinstance(tag, str):
        raise Invalid(code, "a locale is a BCP 47 tag, a string", path=path)
    fault = locale_fault(tag)
    if fault:
        raise Invalid(code, f"the locale is {fault.replace('_', ' ')}; send a canonical BCP 47 tag", path=path)
    return tag


def locale_identity(tag: str) -> str:
    """Return the key under which two canonical tags are the same locale: `de` and `de-Latn`, variants in any order."""
    return Language.get(tag, normalize=True).simplify_script().to_tag()
