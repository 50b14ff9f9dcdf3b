"""Checks of tags, attributes, links and code: the reader gets the same structure, and the same places to go to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from worker.domain.checks.pair import Pair
from worker.domain.checks.presence import UNSPACED
from worker.domain.checks.tags import Tag, torn_tags

_TRANSLATED: Final = frozenset(
    [
        "alt",
        "title",
        "placeholder",
        "label",
        "summary",
        "content",
        "value",
        "abbr",
        "download",
        "aria-label",
        "aria-description",
        "aria-placeholder",
        "aria-roledescription",
        "aria-valuetext",
        "data-label",
        "data-title",
        "lang",
        "xml:lang",
        "hreflang",
        "dir",
    ]
)
_LINKS: Final = frozenset({"href", "src", "action", "formaction", "poster", "cite", "srcset", "data"})
_INLINE: Final = frozenset(
    [
        "a",
        "abbr",
        "b",
        "cite",
        "code",
        "em",
        "i",
        "kbd",
        "label",
        "mark",
        "q",
        "s",
        "small",
        "span",
        "strong",
        "u",
        "var",
    ]
)
_PREFIXING: Final = frozenset(["ar", "ckb", "de", "fa", "he", "mt", "nl", "ur"])
_SUFFIXING: Final = frozenset(
    [
        "az",
        "bn",
        "de",
        "et",
        "eu",
        "fi",
        "hi",
        "hu",
        "hy",
        "ka",
        "kk",
        "kn",
        "ko",
        "ky",
        "lt",
        "lv",
        "ml",
        "mn",
        "mr",
        "nl",
        "ta",
        "te",
        "tk",
        "tr",
        "ug",
        "ur",
        "uz",
    ]
)
_UNSAFE: Final = re.compile(r"\s{0,20}(?:javascript|vbscript|data)\s{0,20}:", re.IGNORECASE)
_EVENT: Final = re.compile(r"on[a-z]{3,40}")


def check_tags(pair: Pair) -> Iterator[str]:
    """Yield missing, unknown, torn and unbalanced tags. Tags may change their order where they stay balanced."""
    before, after = pair.before, pair.after
    wanted = Counter((tag.name, tag.kind) for tag in before.tags)
    given = Counter((tag.name, tag.kind) for tag in after.tags)
    if torn_tags(after.prose) > torn_tags(before.prose) and (before.tags or pair.media_type == "text/html"):
        yield "markup.broken"
    if wanted - given:
        yield "markup.tag.missing"
    if given - wanted:
        yield "markup.tag.unknown"
    if not is_balanced(after.tags) and is_balanced(before.tags):
        yield "markup.tag.unbalanced"


def check_attributes(pair: Pair) -> Iterator[str]:
    """Yield changed attributes. Those that people read (`alt`, `title`, ...) must be there and may say anything."""
    wanted, given = _attributes(pair.before.tags), _attributes(pair.after.tags)
    shared = {tag.name for tag in pair.before.tags} & {tag.name for tag in pair.after.tags}
    changed = {name for (tag, name, _) in (wanted - given) + (given - wanted) if tag in shared}
    if changed - _LINKS:
        yield "markup.attribute.changed"


def check_glue(pair: Pair) -> Iterator[str]:
    """Yield `markup.space.lost` where words stick to inline tags that stood free, unless the language joins words so."""
    language = pair.target_locale.split("-")[0]
    if language in UNSPACED:
        return
    for kind, joining in (("open", _PREFIXING), ("close", _SUFFIXING)):
        before = sum(tag.is_glued for tag in pair.before.tags if tag.kind == kind and tag.name in _INLINE)
        after = sum(tag.is_glued for tag in pair.after.tags if tag.kind == kind and tag.name in _INLINE)
        if after > before and language not in joining:
            yield "markup.space.lost"


def check_targets(pair: Pair) -> Iterator[str]:
    """Yield links that lead elsewhere, and new ones that run scripts. The locale in an address may change."""
    before, after = pair.before, pair.after
    wanted = Counter(without_locale(link, pair) for link in (*before.targets, *_links(before.tags)))
    given = Counter(without_locale(link, pair) for link in (*after.targets, *_links(after.tags)))
    if given - wanted or (wanted - given and sum(given.values()) == sum(wanted.values())):
        yield "link.target.changed"
    if any(_UNSAFE.match(link) for link in given - wanted) or _handlers(after.tags) - _handlers(before.tags):
        yield "link.unsafe"


def check_addresses(pair: Pair) -> Iterator[str]:
    """Yield URLs and e-mail addresses of the prose that are gone or new."""
    for kind in ("url", "email"):
        wanted = {without_locale(one, pair) for one in getattr(pair.before, f"{kind}s")}
        given = {without_locale(one, pair) for one in getattr(pair.after, f"{kind}s")}
        if wanted - given:
            yield f"{kind}.missing"
        if given - wanted:
            yield f"{kind}.unknown"


def check_code(pair: Pair) -> Iterator[str]:
    """Yield changed code, and another sequence of heading levels."""
    if Counter(pair.before.code) != Counter(pair.after.code):
        yield "code.changed"
    if pair.before.headings != pair.after.headings:
        yield "markdown.structure.changed"


def is_balanced(tags: Sequence[Tag]) -> bool:
    """Tell whether every opened tag is closed, in turn, and every closing tag was opened."""
    opened: list[str] = []
    for tag in tags:
        if tag.kind == "open":
            opened.append(tag.name)
        elif tag.kind == "close" and (not opened or opened.pop() != tag.name):
            return False
    return not opened


def without_locale(address: str, pair: Pair) -> str:
    """Return an address with the locale segments of both sides made alike: `/en/help` and `/de/help`."""
    address = address.strip()
    if "/" not in address and "=" not in address:
        return address
    parts = re.split(r"([/?&=#.])", address)
    names = _names(pair.source_locale) | _names(pair.target_locale)
    return "".join("*" if part.lower().replace("_", "-") in names else part for part in parts)


def _names(locale: str) -> set[str]:
    parts = locale.lower().split("-")
    return {locale.lower(), parts[0], "-".join((parts[0], parts[-1]))}


def _attributes(tags: Sequence[Tag]) -> Counter[tuple[str, str, str]]:
    return Counter(
        (tag.name, name, "" if name in _TRANSLATED else value)
        for tag in tags
        for name, value in tag.attributes.items()
        if name not in _LINKS
    )


def _links(tags: Sequence[Tag]) -> Iterator[str]:
    return (value for tag in tags for name, value in tag.attributes.items() if name in _LINKS)


def _handlers(tags: Sequence[Tag]) -> Counter[str]:
    return Counter(name for tag in tags for name in tag.attributes if _EVENT.fullmatch(name))
