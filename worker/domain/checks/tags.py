"""Finds HTML and XML tags in a text, in one pass over it. It repairs nothing: what is no whole tag stays prose.

`html.parser` is not used: before the last patch releases of each Python it takes quadratic time on hostile input, and
what it makes of broken markup changed between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

MASK: Final = "\ufffc"
"""Stands where something was taken out of a text, so that its neighbours do not grow together."""

VOID: Final = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)
HTML: Final = VOID | frozenset(
    [
        "a",
        "abbr",
        "address",
        "article",
        "aside",
        "audio",
        "b",
        "bdi",
        "bdo",
        "big",
        "blockquote",
        "body",
        "button",
        "canvas",
        "caption",
        "center",
        "cite",
        "code",
        "colgroup",
        "data",
        "datalist",
        "dd",
        "del",
        "details",
        "dfn",
        "dialog",
        "div",
        "dl",
        "dt",
        "em",
        "fieldset",
        "figcaption",
        "figure",
        "font",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "html",
        "i",
        "iframe",
        "ins",
        "kbd",
        "label",
        "legend",
        "li",
        "main",
        "map",
        "mark",
        "menu",
        "meter",
        "nav",
        "noscript",
        "object",
        "ol",
        "optgroup",
        "option",
        "output",
        "p",
        "picture",
        "pre",
        "progress",
        "q",
        "rp",
        "rt",
        "ruby",
        "s",
        "samp",
        "script",
        "section",
        "select",
        "small",
        "span",
        "strike",
        "strong",
        "style",
        "sub",
        "summary",
        "sup",
        "svg",
        "table",
        "tbody",
        "td",
        "template",
        "textarea",
        "tfoot",
        "th",
        "thead",
        "time",
        "title",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
        "video",
    ]
)

# Possessive throughout: what was read is never tried again another way.
_TAG: Final = re.compile(
    r"""<(?P<close>/?+)(?P<name>[A-Za-z][A-Za-z0-9:._-]{0,63}+)(?=[\s/>])"""
    r"""(?P<rest>(?:[^<>"']++|"[^"]*+"|'[^']*+')*+)>"""
)
_ATTRIBUTE: Final = re.compile(r"""([^\s"'<>/=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s"'=<>`]++))?+""")
_TORN: Final = re.compile(r"</?+[A-Za-z]")
_HIDDEN: Final = re.compile(r"<!--|<!\[CDATA\[|<\?|<!(?=[A-Za-z])|<(?=script\b|style\b)", re.IGNORECASE)
_ENDS: Final = {"<!--": "-->", "<![cdata[": "]]>", "<?": "?>", "<!": ">"}
_SCRIPT_END: Final = re.compile(r"</(?:script|style)\s*+>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Tag:
    """One tag. `kind` of a void element is always `void`, however it was closed; names are lowercase."""

    name: str
    kind: Literal["open", "close", "void"]
    attributes: Mapping[str, str]
    is_glued: bool  # no space lies between its words and the word outside: `word<b>`, `</b>word`


def take_tags(text: str, *, every_name: bool) -> tuple[list[Tag], list[str], str]:
    """Return the tags, the hidden parts (comments, scripts, styles) and the text with a mask in place of each.

    With `every_name` any name is a tag; else only HTML elements and names with a dash or colon, so that a plain text
    may say `<your name>`.
    """
    text, hidden = _take_hidden(text) if every_name else (text, [])
    tags: list[Tag] = []

    def take(match: re.Match[str]) -> str:
        name = match["name"].lower()
        if name.endswith(":") or not (every_name or name in HTML or "-" in name or ":" in name):
            return match[0]
        attributes = {found[1].lower(): (found[2] or "").strip("\"'") for found in _ATTRIBUTE.finditer(match["rest"])}
        tags.append(Tag(name=name, kind=_kind(name, match), attributes=attributes, is_glued=_is_glued(match)))
        return MASK

    return tags, hidden, _TAG.sub(take, text)


def torn_tags(text: str) -> int:
    """Return how many tags begin in a text from which the whole tags were taken."""
    return sum(1 for _ in _TORN.finditer(text))


def _kind(name: str, match: re.Match[str]) -> Literal["open", "close", "void"]:
    if match["close"]:
        return "close"
    return "void" if name in VOID or match["rest"].endswith("/") else "open"


def _is_glued(match: re.Match[str]) -> bool:
    before, after = match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 1]
    outside, inside = (after, before) if match["close"] else (before, after)
    return outside.isalpha() and not inside.isspace()


def _take_hidden(text: str) -> tuple[str, list[str]]:
    """Cut out what no reader sees. An opening without an end hides nothing, and is looked for once per kind."""
    hidden: list[str] = []
    kept: list[str] = []
    endless: set[str] = set()
    place = 0
    while (start := _HIDDEN.search(text, place)) is not None:
        opening = start[0].lower()
        stop = -1 if opening in endless else _end(text, start, opening)
        if stop < 0:
            endless.add(opening)
            kept.append(text[place : start.end()])
            place = start.end()
            continue
        kept.extend((text[place : start.start()], MASK))
        hidden.append(text[start.start() : stop])
        place = stop
    kept.append(text[place:])
    return "".join(kept), hidden


def _end(text: str, start: re.Match[str], opening: str) -> int:
    if opening == "<":
        found = _SCRIPT_END.search(text, start.end())
        return found.end() if found else -1
    stop = text.find(_ENDS[opening], start.end())
    return -1 if stop < 0 else stop + len(_ENDS[opening])
