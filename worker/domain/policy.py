"""What one site asks of its releases: how they are published, how long an approval lasts, who reviews what.

Values only. Where policies are read from, and when they are read again, belongs to the adapters and the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field

from worker.domain.canonical import hash_of
from worker.domain.change import ContentType
from worker.domain.document import Document, Hash, Seconds, Token, parse_document

POLICY_SCHEMA: Final = "locseal.site-policy.v1"
DEFAULT_ROUTE: Final = "default"
LONGEST_APPROVAL_SECONDS: Final = 31_536_000  # 365 days

Attempts = Annotated[int, Field(ge=1, le=20)]
LeaseSeconds = Annotated[Seconds, Field(gt=0, le=3600)]


def _frozen(value: object) -> object:
    """Take a JSON array where a set is meant; anything else is left for the strict model to refuse."""
    return frozenset(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


class SitePolicy(Document):
    """The policy of one site. Frozen; every default is the product's own.

    `sha256` names what an approval was given under: only the members that say what an approval means are part of it
    (see `approval_terms`), so that tuning leases or attempts never makes standing approvals worthless.
    """

    publication: Literal["automatic", "guided"] = "automatic"
    approval_ttl_seconds: Annotated[int, Field(ge=1, le=LONGEST_APPROVAL_SECONDS)] = 2_592_000
    evidence_max_attempts: Attempts = 5
    evidence_lease_seconds: LeaseSeconds = 300.0
    delivery_max_attempts: Attempts = 5
    delivery_lease_seconds: LeaseSeconds = 300.0
    review_route: dict[ContentType | Literal["default"], Token] = Field(default_factory=dict)
    compatible_policies: Annotated[frozenset[Hash], BeforeValidator(_frozen)] = frozenset()

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

    def route(self, content_type: ContentType) -> str:
        """Return the name of the review route for a content type (`default` where none is named)."""
        return self.review_route.get(content_type) or self.review_route.get(DEFAULT_ROUTE, DEFAULT_ROUTE)


def parse_policy(value: object) -> SitePolicy:
    """Return the policy a parsed JSON object describes; members left out take the defaults.

    Raises `Invalid("policy.invalid")` with the path of the offending member.
    """
    return parse_document(SitePolicy, value, area="policy")
