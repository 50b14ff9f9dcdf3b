"""Which plural categories a locale has (CLDR), and which of them whole numbers ever reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from babel.core import Locale, UnknownLocaleError
from langcodes import Language
from langcodes.tag_parser import LanguageTagError

CATEGORIES: Final = ("zero", "one", "two", "few", "many", "other")
_SAMPLE: Final = (*range(1001), 1_000_000, 2_000_000)
_EVERYDAY: Final = 1000


@dataclass(frozen=True, kw_only=True)
class PluralRules:
    """The categories of one locale with the whole numbers of a sample that fall into each."""

    numbers: Mapping[str, tuple[int, ...]]

    @property
    def categories(self) -> Collection[str]:
        """Return every category the locale has; `other` always."""
        return self.numbers.keys()

    def uncovered(self, category: str, explicit: Collection[int]) -> bool:
        """Tell whether everyday whole numbers of a category are left once explicit ones (`=1`) have their own text."""
        return any(number not in explicit for number in self.numbers[category] if number <= _EVERYDAY)

    def only_number(self, category: str) -> int | None:
        """Return the one whole number that a category stands for, or None where it stands for none or several."""
        numbers = self.numbers.get(category, ())
        return numbers[0] if len(numbers) == 1 else None


@lru_cache(maxsize=1024)
def plural_rules(locale: str, *, ordinal: bool = False) -> PluralRules | None:
    """Return the rules of a locale, or None where CLDR knows none for it."""
    found = _babel_locale(locale)
    if found is None:
        return None
    rule: Callable[[int], str] = found.ordinal_form if ordinal else found.plural_form
    tags = (found.ordinal_form if ordinal else found.plural_form).tags
    numbers: dict[str, list[int]] = {category: [] for category in CATEGORIES if category in tags or category == "other"}
    for number in _SAMPLE:
        numbers[rule(number)].append(number)
    return PluralRules(numbers={category: tuple(found) for category, found in numbers.items()})


def _babel_locale(tag: str) -> Locale | None:
    try:
        language = Language.get(tag)
    except LanguageTagError:
        return None
    if not language.language:
        return None
    for script, territory in ((True, True), (False, True), (True, False), (False, False)):
        parts = [language.language, language.script if script else None, language.territory if territory else None]
        try:
            return Locale.parse("_".join(part for part in parts if part))
        except (ValueError, UnknownLocaleError):
            continue
    return None
