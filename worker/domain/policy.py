"""What one site asks of its releases: how they are published, how long an approval lasts, who reviews what.

Values only. Where policies are read from, and when they are read again, belongs to the adapters and the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field

from worker.domain.canonical import hash_of
from worker.domain.change import ContentType
from worker.domain.document import Document, Hash, Locale, Seconds, Token, parse_document

POLICY_SCHEMA: Final = "locseal.site-policy.v1"
DEFAULT_ROUTE: Final = "default"
LONGEST_APPROVAL_SECONDS: Final = 31_536_000  # 365 days

REVIEW_DEADLINE_SECONDS: Final = 1_209_600.0  # 14 days
RENEWAL_LEAD_SECONDS: Final = 259_200.0  # 3 days

Attempts = Annotated[int, Field(ge=1, le=20)]
LeaseSeconds = Annotated[Seconds, Field(gt=0, le=3600)]


@dataclass(frozen=True, kw_only=True)
class EvidenceLeases:
    """How long a lease on an evidence row lasts, in seconds: by site where it differs from the default."""

    default_seconds: float = 300.0
    by_site: Mapping[str, float] = field(default_factory=dict)

    def for_site(self, site_id: str | None) -> float:
        """Return the length for a site's row."""
        return self.by_site.get(site_id or "", self.default_seconds)


def _frozen(value: object) -> object:
    """Take a JSON array where a set is meant; anything else is left for the strict model to refuse."""
    return frozenset(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


class Limits(Document):
    """How much may be asked of one other side, counted over the whole fleet; null is no bound of the fleet's own."""

    concurrent_calls: Annotated[int, Field(ge=1, le=100_000)] | None = None
    calls_per_second: Annotated[Seconds, Field(gt=0, le=100_000)] | None = None


class Breaker(Document):
    """When calls to one other side stop because it is down, and when one call tries again. Durations in seconds."""

    opens_after_failures: Annotated[int, Field(ge=1, le=1000)] = 5
    open_seconds: Annotated[Seconds, Field(gt=0, le=3600)] = 5.0
    longest_open_seconds: Annotated[Seconds, Field(gt=0, le=3600)] = 60.0


class SitePolicy(Document):
    """The policy of one site. Frozen; every default is the product's own.

    `sha256` names what an approval was given under: only the members that say what an approval means are part of it
    (see `approval_terms`), so that tuning leases or attempts never makes standing approvals worthless.
    `required_locales` must be in every new event's plan; the source's own locale counts as there.
    `review_deadline_seconds` bounds "accepted, not yet", from the first such answer. Renewal begins
    `renewal_lead_seconds` before an approval ends (0: only on an operator's word).
    """

    publication: Literal["automatic", "guided"] = "automatic"
    reconciliation: Literal["operator", "fleet"] = "operator"  # who confirms what became of an interrupted publication
    approval_ttl_seconds: Annotated[int, Field(ge=1, le=LONGEST_APPROVAL_SECONDS)] = 2_592_000
    evidence_max_attempts: Attempts = 5
    evidence_lease_seconds: LeaseSeconds = 300.0
    delivery_max_attempts: Attempts = 5
    delivery_lease_seconds: LeaseSeconds = 300.0
    review_route: dict[ContentType | Literal["default"], Token] = Field(default_factory=dict)
    compatible_policies: Annotated[frozenset[Hash], BeforeValidator(_frozen)] = frozenset()
    required_locales: Annotated[frozenset[Locale], BeforeValidator(_frozen)] = frozenset()
    review_deadline_seconds: Annotated[Seconds, Field(ge=1, le=31_536_000)] = REVIEW_DEADLINE_SECONDS
    renewal_lead_seconds: Annotated[Seconds, Field(le=31_536_000)] = RENEWAL_LEAD_SECONDS
    review_limits: Limits = Limits()
    delivery_limits: Limits = Limits()
    delivery_breaker: Breaker = Breaker()

    @cached_property
    def approval_terms(self) -> Mapping[str, Any]:
        """Return the members that decide what an approval under this policy means."""
        return {
            "schema": POLICY_SCHEMA,
            "approval_ttl_seconds": self.approval_ttl_seconds,
            "review_route": {content_type: self.route(content_type) for content_type in get_args(ContentType)},
        }

    @cached_property
    def sha256(self) -> str:
        """Return the digest of the canonical JSON of `approval_terms`: the policy digest that approvals carry."""
        return hash_of(self.approval_terms)

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Return the policy digests whose approvals satisfy this policy: its own and the compatible ones."""
        return self.compatible_policies | {self.sha256}

    @property
    def renews_within_seconds(self) -> float:
        """Return how long before its end an approval is renewed, in seconds: the lead, at most half of its life."""
        return min(self.renewal_lead_seconds, self.approval_ttl_seconds / 2)

    def route(self, content_type: ContentType) -> str:
        """Return the name of the review route for a content type (`default` where none is named)."""
        return self.review_route.get(content_type) or self.review_route.get(DEFAULT_ROUTE, DEFAULT_ROUTE)


class RoutePolicy(Document):
    """What the fleet keeps to towards one review route, whatever site it works for."""

    limits: Limits = Limits()
    breaker: Breaker = Breaker()


def parse_policy(value: object) -> SitePolicy:
    """Return the policy a parsed JSON object describes; members left out take the defaults.

    Raises `Invalid("policy.invalid")` with the path of the offending member.
    """
    return parse_document(SitePolicy, value, area="policy")
