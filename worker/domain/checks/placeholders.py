"""Finds placeholders, whatever wrote them, and compares those of a translation with those of its source.

Known are printf (`%s`, `%1$d`, `%(name)s`, `%@`), braces (`{}`, `{0}`, `{name}`, `{name:>8}`), `{{ name }}`,
`${name}` and `%{name}`. ICU messages with choices are read by `icu`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from worker.domain.checks.tags import MASK

Kind = Literal["printf", "named", "brace", "double", "dollar", "percent"]

# No space flag: `5 % des` is a percentage, and `%(name) read` has lost its `s`.
_TIGHT: Final = r"[-+#0]*+(?:\*|\d{1,4}+)?(?:\.\d{1,4}+)?(?:hh|h|ll|l|q|L|z|j|t)?"
# Not after a digit: `100%ig`, `50%-os`, `20%de` are percentages.
_ANY: Final = re.compile(
    rf"""
    (?P<escape>%%)
  | %\((?P<named>[^()\s]{{1,100}}+)\)(?P<named_type>{_TIGHT}[diouxXeEfFgGcrsa])
  | %(?P<index>\d{{1,2}}+)\$(?P<index_type>{_TIGHT}[diouxXeEfFgGcsSp@a])
  | %\{{(?P<percent>\w{{1,100}}+)\}}
  | \$\{{\s{{0,9}}+(?P<dollar>[^{{}}\s]{{1,100}}+)\s{{0,9}}+\}}
  | \{{\{{\s{{0,9}}+(?P<double>[^{{}}\s][^{{}}\n]{{0,99}}+)\}}\}}
  | \{{\s{{0,9}}+(?P<brace>(?:[^\W\d]\w{{0,99}}+|\d{{1,4}}+)(?:\.\w{{1,64}}+|\[\w{{1,64}}+\]|-\w{{1,64}}+){{0,8}}+)?+
      (?:![rsa])?+(?::[^{{}}\s]{{0,50}}+)?+\s{{0,9}}+(?P<shut>\}})
  | (?<!\d)%(?P<plain>{_TIGHT}[diouxXeEfFgGcsSp@a])
    """,
    re.VERBOSE,
)
_TORN_NAME: Final = re.compile(r"%\s?+\([^()\n]{1,100}+\)|%\d{1,2}+\s?+\$|%\s\w{0,20}+\(|\{\{?+%|%\{")
_COUNTS: Final = re.compile(r"(?:^|_)(?:n|num|number|count|counter|cnt|total|amount|quantity|size|len|length)(?:$|_)")
_INTEGER: Final = frozenset("diouxX")
_REAL: Final = frozenset("eEfFgG")


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """One placeholder: its kind, the name or position it stands for, and the conversion of a printf one."""

    kind: Kind
    key: str
    conversion: str = ""


def take_placeholders(text: str) -> tuple[list[Placeholder], str]:
    """Return the placeholders in order and the text with a mask in place of each. Escapes (`%%`) stay."""
    found: list[Placeholder] = []
    positions = {"printf": 0, "brace": 0}

    def position(kind: str) -> str:
        positions[kind] += 1
        return str(positions[kind])

    def take(match: re.Match[str]) -> str:
        if match["escape"] is not None:
            return match[0]
        if match["named"] is not None:
            found.append(Placeholder(kind="named", key=match["named"], conversion=match["named_type"][-1]))
        elif match["index"] is not None:
            found.append(Placeholder(kind="printf", key=match["index"], conversion=match["index_type"][-1]))
        elif match["plain"] is not None:
            found.append(Placeholder(kind="printf", key=position("printf"), conversion=match["plain"][-1]))
        elif match["percent"] is not None:
            found.append(Placeholder(kind="percent", key=match["percent"]))
        elif match["dollar"] is not None:
            found.append(Placeholder(kind="dollar", key=match["dollar"]))
        elif match["double"] is not None:
            found.append(Placeholder(kind="double", key=" ".join(match["double"].split())))
        else:
            found.append(Placeholder(kind="brace", key=match["brace"] or f"#{position('brace')}"))
        return MASK

    return found, _ANY.sub(take, text)


def compare_placeholders(
    source: Sequence[Placeholder],
    target: Sequence[Placeholder],
    *,
    only_number: int | None = None,
    number_name: str = "",
) -> Iterator[str]:
    """Yield the codes of what is missing, unknown, or of another type or order.

    A name counts once however often it is used. With `only_number` the text is a plural form for that number alone: it
    may say the number in words, and of nothing (0) it need not say anything.
    """
    wanted = {(one.kind, one.key): one for one in source}
    given = {(one.kind, one.key): one for one in target}
    missing = wanted.keys() - given.keys()
    if only_number == 0:
        missing = set()
    elif only_number is not None:
        missing = missing - _count_of(wanted, missing, number_name)
    unknown = given.keys() - wanted.keys()
    if missing:
        yield "placeholder.missing"
    if unknown:
        yield "placeholder.unknown"
    shared = wanted.keys() & given.keys()
    if not any(_differs(wanted[key].conversion, given[key].conversion) for key in shared):
        return
    changed = [key for key in shared if _type(wanted[key].conversion) != _type(given[key].conversion)]
    before = Counter(_type(wanted[key].conversion) for key in changed)
    after = Counter(_type(given[key].conversion) for key in changed)
    swapped = before == after and all(kind == "printf" for kind, _ in changed)
    yield "placeholder.order" if swapped else "placeholder.type"


def torn_placeholders(prose: str) -> int:
    """Return how many placeholders begin in a text from which the whole ones were taken."""
    return sum(1 for _ in _TORN_NAME.finditer(prose))


def _count_of(
    wanted: dict[tuple[Kind, str], Placeholder], missing: set[tuple[Kind, str]], name: str
) -> set[tuple[Kind, str]]:
    """Return the missing placeholder that holds the number: by its name, else by its type, else the only one there is."""
    named = {key for key in wanted if key[1] == name or _COUNTS.search(key[1].lower())}
    typed = {key for key, one in wanted.items() if one.conversion in _INTEGER}
    number = named or typed or (set(wanted) if len(wanted) == 1 else set())
    return missing & number


def _differs(wanted: str, given: str) -> bool:
    # Any value can be written as a string, so a number may become `s`, never the other way.
    return _type(wanted) != _type(given) and not (given in {"s", "@"} and _type(wanted) in {"integer", "real"})


def _type(conversion: str) -> str:
    if conversion in _INTEGER:
        return "integer"
    return "real" if conversion in _REAL else conversion
