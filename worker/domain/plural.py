"""Gettext's numbered plural forms as one ICU text: which form is for which CLDR category, written so it can be undone.

A catalogue numbers its forms by the formula in its header; whoever reads a publication knows categories. A text with
plural forms is therefore handed on as `{n, plural, one {…} other {…}}`, where `n` is gettext's own name of the number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from gettext import c2py
from typing import Final

from worker.domain.checks.plurals import CATEGORIES, PluralRules

ARGUMENT: Final = "n"
LONGEST_HEADER: Final = 2000
MOST_EXPLICIT: Final = 4  # numbers that may be named one by one where a formula differs from CLDR
SOURCE_SELECTORS: Final[Mapping[str, int]] = {"one": 0, "other": 1}  # msgid and msgid_plural
EVERYDAY: Final = 1000  # a category without a number up to here is no matter of everyday texts
_HEADER: Final = re.compile(r"\s*nplurals\s*=\s*(\d{1,2})\s*;\s*plural\s*=\s*([^;]{1,1000})\s*;?\s*")
_MARKS: Final = re.compile(r"['{}#]+")


@dataclass(frozen=True, kw_only=True)
class PluralForms:
    """A `Plural-Forms` header: how many forms there are, and which one is for a number."""

    count: int
    choose: Callable[[int], int]


def parse_plural_forms(header: str) -> PluralForms | None:
    """Return the meaning of a `Plural-Forms` header, or None where it has none."""
    if len(header) > LONGEST_HEADER:  # the pattern is not meant for megabytes
        return None
    found = _HEADER.fullmatch(header)
    if found is None or not 1 <= int(found[1]) <= len(CATEGORIES):
        return None
    try:
        # The standard library's own reader: numbers, `n`, operators and brackets only, of bounded length and depth.
        return PluralForms(count=int(found[1]), choose=c2py(found[2].strip()))
    except (ValueError, RecursionError):
        return None


def selectors(forms: PluralForms, rules: PluralRules) -> dict[str, int] | None:
    """Return the form's index for each ICU selector of a locale, explicit numbers (`=0`) first, or None.

    None says that the header and CLDR cannot be brought together: the header has too few forms for the numbers of the
    locale, or its formula parts them differently (beyond a few numbers that are then named one by one).
    """
    everyday = [name for name, numbers in rules.numbers.items() if any(number <= EVERYDAY for number in numbers)]
    if forms.count < len(everyday):
        return None
    explicit: dict[str, int] = {}
    chosen: dict[str, int] = {}
    for name, numbers in rules.numbers.items():
        try:
            indexes = {number: forms.choose(number) for number in numbers}
        except ArithmeticError:
            return None
        if any(not 0 <= index < forms.count for index in indexes.values()):
            return None
        if not indexes:
            continue
        usual = Counter(indexes.values()).most_common(1)[0][0]
        others = {number: index for number, index in indexes.items() if index != usual}
        if len(others) > MOST_EXPLICIT:
            return None
        chosen[name] = usual
        explicit |= {f"={number}": index for number, index in sorted(others.items())}
    spare = set(range(forms.count)) - {*chosen.values(), *explicit.values()}
    silent = [name for name in rules.numbers if name not in chosen]  # fractions only: gettext counts whole things
    if len(spare) > 1 or (spare and not silent):
        return None  # a form would be lost
    for name in silent:
        if spare:
            chosen[name] = next(iter(spare))
        elif name == "other":  # ICU wants it; no whole number of the locale ever reaches it
            chosen[name] = forms.count - 1
    return explicit | {name: chosen[name] for name in CATEGORIES if name in chosen}


def plural_text(chosen: Mapping[str, int], texts: Sequence[str], rules: PluralRules | None = None) -> str:
    """Return the ICU text of the forms; selectors that only say what `other` says of rare numbers are left out."""
    other = texts[chosen["other"]]
    branches = []
    for name, index in chosen.items():
        numbers = rules.numbers.get(name, ()) if rules is not None and name != "other" else ()
        if numbers and min(numbers) > EVERYDAY and texts[index] == other:
            continue
        branches.append(f"{name} {{{quoted(texts[index])}}}")
    return f"{{{ARGUMENT}, plural, {' '.join(branches)}}}"


def quoted(text: str) -> str:
    """Return a text as ICU shows it: apostrophes doubled, runs with braces or number signs between apostrophes."""
    return _MARKS.sub(lambda run: _quoted_run(run[0]), text)


def _quoted_run(run: str) -> str:
    doubled = run.replace("'", "''")
    return doubled if run.strip("'") == "" else f"'{doubled}'"
