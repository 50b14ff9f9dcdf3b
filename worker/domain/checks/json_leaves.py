"""Walks a JSON document and its translation side by side: same structure, and each string a pair of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from worker.domain.canonical import parse_strict
from worker.domain.checks.finding import Finding, finding
from worker.domain.checks.messages import missing_categories
from worker.domain.checks.pair import Pair
from worker.domain.checks.plurals import CATEGORIES, PluralRules, plural_rules
from worker.domain.errors import Invalid
from worker.domain.text import LONGEST_TEXT_BYTES

CheckLeaf = Callable[[Pair, str], Iterator[Finding]]

# A key that may stand in a path. Others are often the source text itself, and are named by their place.
_KEY: Final = re.compile(r"[A-Za-z0-9_:-]{1,64}")


def check_json(pair: Pair, check_leaf: CheckLeaf) -> Iterator[Finding]:
    """Yield the findings of a JSON document: of its structure, and what `check_leaf` yields for each string."""
    source, target = _parsed(pair.source), _parsed(pair.target)
    if source is None:
        yield finding("json.source_invalid")
    elif target is None:
        yield finding("json.invalid")
    else:
        yield from _Walk(pair, check_leaf, plural_rules(pair.target_locale)).compare(source[0], target[0], "$")


def _parsed(text: str) -> tuple[Any] | None:
    try:
        return (parse_strict(text, max_bytes=LONGEST_TEXT_BYTES),)
    except Invalid:
        return None


@dataclass(frozen=True)
class _Walk:
    """One walk through two documents. Its depth is bounded by the parser."""

    pair: Pair
    check_leaf: CheckLeaf
    rules: PluralRules | None

    def compare(self, source: Any, target: Any, path: str, *, only_number: int | None = None) -> Iterator[Finding]:
        if isinstance(source, str) and isinstance(target, str):
            yield from self.check_leaf(
                Pair(
                    source=source,
                    target=target,
                    source_locale=self.pair.source_locale,
                    target_locale=self.pair.target_locale,
                    content_type=self.pair.content_type,
                    only_number=only_number,
                ),
                path,
            )
        elif isinstance(source, dict) and isinstance(target, dict):
            yield from self._members(source, target, path)
        elif isinstance(source, list) and isinstance(target, list):
            if len(source) != len(target):
                yield finding("json.length.changed", path)
            for place, (before, after) in enumerate(zip(source, target, strict=False)):
                yield from self.compare(before, after, f"{path}[{place}]")
        elif type(source) is not type(target):
            yield finding("json.type.changed", path)
        elif source != target:
            yield finding("json.value.changed", path)

    def _members(self, source: Mapping[str, Any], target: Mapping[str, Any], path: str) -> Iterator[Finding]:
        groups = dict.fromkeys(_plural_groups(source))
        places = {key: place for place, key in enumerate(source)}
        for group in groups:
            yield from self._categories(group, target, path, places[f"{group}other"])
        for place, (key, before) in enumerate(source.items()):
            where = _step(path, key, place)
            group, category = _plural_of(key, groups)
            if key in target:
                # Each form of a plural is compared with the general one: languages share numbers out differently.
                original = before if category is None else source[f"{group}other"]
                yield from self.compare(original, target[key], where, only_number=self._only_number(category))
            elif category is None:
                yield finding("json.key.missing", where)
        for place, (key, after) in enumerate(target.items()):
            group, category = _plural_of(key, groups)
            if key not in source and category is None:
                yield finding("json.key.unknown", _step(path, key, place))
            elif key not in source:
                number = self._only_number(category)
                yield from self.compare(source[f"{group}other"], after, _step(path, key, place), only_number=number)

    def _categories(self, group: str, target: Mapping[str, Any], path: str, place: int) -> Iterator[Finding]:
        """Compare the forms that a plural has with those that the target's language needs."""
        given = [category for category in CATEGORIES if f"{group}{category}" in target]
        rules = plural_rules(self.pair.target_locale, ordinal=True) if group.endswith("_ordinal_") else self.rules
        for code in missing_categories(given, rules):
            yield finding(code, _step(path, f"{group}other", place))

    def _only_number(self, category: str | None) -> int | None:
        return self.rules.only_number(category) if category is not None and self.rules is not None else None


def _plural_groups(source: Mapping[str, Any]) -> list[str]:
    """Return the beginnings of the keys of plurals: `files_` for `files_one` and `files_other`, "" for `one`, `other`."""
    if {"one", "other"} <= source.keys() <= set(CATEGORIES):
        return [""]
    return [key.removesuffix("other") for key in source if key.endswith("_other") and f"{key[:-5]}one" in source]


def _plural_of(key: str, groups: Collection[str]) -> tuple[str, str | None]:
    """Return the plural that a key belongs to and its category, or None where it belongs to none."""
    start, underscore, category = key.rpartition("_")
    group = start + underscore
    return (group, category) if group in groups and category in CATEGORIES else ("", None)


def _step(path: str, key: str, place: int) -> str:
    """Return the path of a member. A key that could be content is named by its place: `$.*3`."""
    return f"{path}.{key}" if _KEY.fullmatch(key) else f"{path}.*{place}"
