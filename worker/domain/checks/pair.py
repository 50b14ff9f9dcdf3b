"""A source text and its translation, taken apart once and shared by all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from worker.domain.checks.anatomy import Anatomy, take_apart
from worker.domain.checks.icu import LOOKS_LIKE_ICU, IcuSyntaxError, Message, parse_icu


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One text and its translation. A JSON document is many pairs, one for each string in it.

    `only_number` is the number of a plural form that stands for one number only, and may say it in words. `number_name`
    names the argument that holds it, where that is known. `is_reading` is true for one reading of an ICU message.
    """

    source: str
    target: str
    source_locale: str
    target_locale: str
    media_type: str = "text/plain"
    content_type: str = "ui"
    only_number: int | None = None
    number_name: str = ""
    is_reading: bool = False

    @cached_property
    def before(self) -> Anatomy:
        """Return the parts of the source."""
        return take_apart(self.source, self.media_type)

    @cached_property
    def after(self) -> Anatomy:
        """Return the parts of the translation."""
        return take_apart(self.target, self.media_type)

    @cached_property
    def source_message(self) -> Message | None:
        """Return the source as an ICU message, or None where it is none with choices or typed arguments."""
        if LOOKS_LIKE_ICU.search(self.source) is None:
            return None
        try:
            return parse_icu(self.source)
        except IcuSyntaxError:
            return None

    @cached_property
    def target_message(self) -> Message | None:
        """Return the translation as an ICU message, or None where it cannot be read as one."""
        try:
            return parse_icu(self.target)
        except IcuSyntaxError:
            return None


Check = Callable[[Pair], Iterator[str]]
"""Yields the codes of what is wrong with a pair. Never raises, whatever the texts are."""
