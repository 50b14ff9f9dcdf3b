"""What a check found, and every code it may use. Never the text: a finding names its place, nothing of its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning")

CODES: Final[dict[str, Severity]] = {
    # the document
    "json.source_invalid": "error",
    "json.invalid": "error",
    "json.key.missing": "error",
    "json.key.unknown": "error",
    "json.type.changed": "error",
    "json.value.changed": "error",
    "json.length.changed": "error",
    # the text as a whole
    "text.empty": "error",
    "text.incomplete": "error",
    "text.unexpected": "warning",
    "text.untranslated": "error",
    "text.partly_untranslated": "warning",
    "length.growth": "warning",
    "length.shrink": "warning",
    "space.leading": "warning",
    "space.trailing": "warning",
    # characters
    "character.control": "error",
    "character.bidi": "error",
    "character.invisible": "error",
    "character.replacement": "error",
    "character.private_use": "warning",
    "script.wrong": "error",
    "script.mixed": "error",
    # placeholders and messages
    "placeholder.missing": "error",
    "placeholder.unknown": "error",
    "placeholder.type": "error",
    "placeholder.order": "error",
    "placeholder.broken": "error",
    "icu.syntax": "error",
    "icu.apostrophe": "error",
    "icu.select.changed": "error",
    "plural.category.missing": "error",
    "plural.category.unknown": "warning",
    # markup, links, code
    "markup.broken": "error",
    "markup.tag.missing": "error",
    "markup.tag.unknown": "error",
    "markup.tag.unbalanced": "error",
    "markup.attribute.changed": "error",
    "markup.space.lost": "warning",
    "markdown.structure.changed": "warning",
    "code.changed": "error",
    "link.target.changed": "error",
    "link.unsafe": "error",
    "url.missing": "error",
    "url.unknown": "error",
    "email.missing": "error",
    "email.unknown": "error",
    # figures and pairs
    "number.changed": "error",
    "number.missing": "warning",
    "number.unknown": "warning",
    "bracket.unbalanced": "warning",
    "quote.unbalanced": "warning",
}
"""Every code with its severity, in the order in which findings at one place are told. docs/checks.md explains each."""

_RANK: Final = {code: rank for rank, code in enumerate(CODES)}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing a reviewer would have to look at. `path` is `$` for the whole text, `$.menu.title` for a JSON leaf."""

    code: str
    severity: Severity
    path: str


def finding(code: str, path: str = "$") -> Finding:
    """Return the finding of a known code; another code is a programming error (KeyError)."""
    return Finding(code=code, severity=CODES[code], path=path)


def rank(code: str) -> int:
    """Return the place of a code in the catalogue."""
    return _RANK[code]
