"""Checks a plural entry of gettext: its forms follow the file's own rule, and each is checked as a text."""

from __future__ import annotations

import gettext
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from worker.domain.checks.finding import Finding, finding
from worker.domain.checks.pair import Pair

_HEADER: Final = re.compile(r"\s*nplurals\s*=\s*(\d{1,2})\s*;\s*plural\s*=\s*([^;]{1,900})", re.DOTALL)
_SAMPLE: Final = 1001


@dataclass(frozen=True, kw_only=True)
class FormRule:
    """The rule of a file: how many forms there are, and which whole numbers each stands for."""

    forms: int
    numbers: Mapping[int, tuple[int, ...]]

    def only_number(self, form: int) -> int | None:
        """Return the one whole number that a form stands for, or None where it stands for none or several."""
        numbers = self.numbers.get(form, ())
        return numbers[0] if len(numbers) == 1 else None


def form_rule(header: str) -> FormRule | None:
    """Return the rule of a `Plural-Forms` header, or None where it has none that gettext would take."""
    found = _HEADER.match(header)
    if found is None or not 0 < int(found[1]) <= 20:
        return None
    try:
        rule: Callable[[int], int] = gettext.c2py(found[2])
        reached = [rule(number) for number in range(_SAMPLE)]
    except (ValueError, RecursionError, ArithmeticError):
        return None
    forms = int(found[1])
    if max(reached) >= forms:
        return None
    numbers = {form: tuple(number for number, one in enumerate(reached) if one == form) for form in range(forms)}
    return FormRule(forms=forms, numbers=numbers)


def check_plural_entry(
    pair: Pair,
    forms: Mapping[int, str],
    rule: FormRule,
    check_text: Callable[[Pair, str], Iterator[Finding]],
    path: str,
) -> Iterator[Finding]:
    """Yield the findings of one entry. `pair.source` is its plural text (`msgid_plural`); `pair.target` is not looked at.

    A form for a single number may say it in words; every other form must show it.
    """
    if forms.keys() != set(range(rule.forms)):
        yield finding("plural.form.count", path)
    for form, text in sorted(forms.items()):
        yield from check_text(replace(pair, target=text, only_number=rule.only_number(form)), f"{path}[{form}]")
