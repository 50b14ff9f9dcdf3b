"""Compares ICU messages: same arguments, same choices, and the plural categories that the target's language needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.domain.checks.icu import CHOICES, Argument, Choice, Message, arguments, choices
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
    before = {(choice.name, choice.type): choice for _, choice in choices(source)}
    for _, choice in choices(target):
        original = before.get((choice.name, choice.type))
        if choice.type == "select":
            yield from _compare_select(original, choice)
        else:
            yield from _compare_plural(original, choice, target_locale)


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


def _compare_plural(source: Choice | None, target: Choice, locale: str) -> Iterator[str]:
    rules = plural_rules(locale, ordinal=target.type == "selectordinal")
    yield from missing_categories(target.branches.keys(), rules)
    if source is not None and _says_number(source, source.branches.get("other", ())):
        for selector, branch in target.branches.items():
            single = selector.startswith("=") or (rules is not None and rules.only_number(selector) is not None)
            if not single and not _says_number(target, branch):
                yield "plural.count_hidden"
                break


def missing_categories(selectors: Iterable[str], rules: PluralRules | None) -> Iterator[str]:
    """Yield what is wrong with the categories of one plural: none needed is missing, none is unknown to CLDR."""
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
    if any(not rules.uncovered(one, ()) for one in absent):
        yield "plural.category.rare"
    if any(not one.startswith("=") and one not in rules.categories for one in given):
        yield "plural.category.unknown"


def _says_number(choice: Choice, branch: Message) -> bool:
    return any(isinstance(part, Argument) and part.name in {"#", choice.name} for part in branch) or any(
        isinstance(part, Choice) and any(_says_number(choice, inner) for inner in part.branches.values())
        for part in branch
    )
