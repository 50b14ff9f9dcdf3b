"""Which findings block which content. Everything else is told and passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from worker.domain.change import ContentType
from worker.domain.checks.finding import CODES, Finding, Severity
from worker.domain.document import Document, parse_document


def _frozen(value: object) -> object:
    return frozenset(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


def _known(codes: frozenset[str]) -> frozenset[str]:
    if not codes <= CODES.keys():
        raise ValueError("name only codes of docs/checks.md")
    return codes


Codes = Annotated[frozenset[str], BeforeValidator(_frozen), AfterValidator(_known)]
Severities = Annotated[frozenset[Severity], BeforeValidator(_frozen)]

ERRORS: Final[frozenset[Severity]] = frozenset({"error"})
FIGURES: Final = frozenset({"number.missing", "number.unknown"})
_FIGURES_BIND: Final[tuple[ContentType, ...]] = ("legal", "commercial")


class CheckRule(Document):
    """What blocks one type of content: findings of these severities, these codes too, and never those."""

    severities: Severities = ERRORS
    block: Codes = frozenset()
    allow: Codes = frozenset()

    def blocks(self, found: Finding) -> bool:
        """Tell whether a finding blocks. `allow` wins."""
        return found.code not in self.allow and (found.severity in self.severities or found.code in self.block)


class CheckPolicy(Document):
    """The rule of each content type; `default` for those that have none of their own."""

    default: CheckRule = CheckRule()
    rules: dict[ContentType, CheckRule] = Field(default_factory=dict)

    def rule(self, content_type: ContentType) -> CheckRule:
        """Return the rule of a content type. Figures also block where they bind: in legal and commercial content."""
        if content_type in self.rules:
            return self.rules[content_type]
        if content_type in _FIGURES_BIND:
            return self.default.model_copy(update={"block": self.default.block | FIGURES})
        return self.default

    def blocking(self, content_type: ContentType, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return the findings that block a text of this content type, in their order."""
        rule = self.rule(content_type)
        return tuple(found for found in findings if rule.blocks(found))


def parse_check_policy(value: object) -> CheckPolicy:
    """Return the policy of a parsed JSON or TOML object; raises `Invalid("checks.policy.invalid")` with the path."""
    return parse_document(CheckPolicy, value, area="checks.policy")
