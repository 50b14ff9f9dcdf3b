"""Compares ICU messages: same arguments, same choices, and the plural categories that the target's language needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.domain.checks.icu import CHOICES, Choice, Message, arguments, choices
from worker.domain.checks.plurals import CATEGORIES, PluralRules, plural_rules


def compare_messages(source: Message, target: Message, target_locale: str) -> Iterator[str]:
    """Yield the codes of what differs between a source message and its translation."""
    wanted, given = _types(source), _types(target)
    if wanted.keys() - given.keys():
        yield "placeholder.missing"
    if given.keys() - wanted.keys():
        yield "placeholder.unknown"
    shared = wanted.keys() & given.keys()
    if any(given[name] - wanted[name] - {""} or wanted[name] - given[name] - {"", *CHOICES} for name in shared):
        yield "placeholder.type"
    rules = plural_rules(target_locale)
    if (
        rules is not None
        and len(rules.categories) > 1
        and any("plural" in wanted[name] and "plural" not in given[name] for name in shared)
    ):
        yield "plural.category.missing"
    before = {choice.name: choice for choice in choices(source) if choice.type == "select"}
    for choice in choices(target):
        if choice.type == "select":
            yield from _compare_select(before.get(choice.name), choice)
        else:
            ordinal = choice.type == "selectordinal"
            yield from missing_categories(choice.branches, plural_rules(target_locale, ordinal=ordinal))


def only_number(selector: str, rules: PluralRules | None) -> int | None:
    """Return the one whole number that a selector of a plural stands for, or None."""
    if selector.startswith("="):
        return int(selector[1:])
    return rules.only_number(selector) if rules is not None else None


def _types(message: Message) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, kind in arguments(message):
        found.setdefault(name, set()).add(kind)
    return found


def _compare_select(source: Choice | None, target: Choice) -> Iterator[str]:
    if "other" not in target.branches:
        yield "plural.category.missing"
    if source is not None and target.branches.keys() - source.branches.keys() - {"other"}:
        yield "icu.select.changed"


def missing_categories(selectors: Iterable[str], rules: PluralRules | None) -> Iterator[str]:
    """Yield what is wrong with the categories of one plural: none needed is missing, none is unknown to CLDR.

    Needed are `other` and what everyday whole numbers reach: not `many` of French (millions) or Czech (fractions).
    """
    given = set(selectors)
    if "other" not in given:
        yield "plural.category.missing"
    if rules is None:
        if any(not one.startswith("=") and one not in CATEGORIES for one in given):
            yield "plural.category.unknown"
        return
    explicit = {int(one[1:]) for one in given if one.startswith("=")}
    absent = [one for one in rules.categories if one not in given and one != "other"]
    if any(rules.uncovered(one, explicit) for one in absent) and "other" in given:
        yield "plural.category.missing"
    if any(not one.startswith("=") and one not in rules.categories for one in given):
        yield "plural.category.unknown"
