"""Site policies and their digests."""

from __future__ import annotations

from typing import Any

import pytest

from worker.domain.errors import Invalid
from worker.domain.policy import SitePolicy, parse_policy


def test_the_defaults_are_the_products() -> None:
    """A site without settings publishes by itself, with the numbers of the contract."""
    policy = parse_policy({})
    assert policy == SitePolicy()
    assert policy.publication == "automatic"
    assert policy.approval_ttl_seconds == 2_592_000
    assert (policy.evidence_max_attempts, policy.evidence_lease_seconds) == (5, 300.0)
    assert (policy.delivery_max_attempts, policy.delivery_lease_seconds) == (5, 300.0)
    assert policy.route("legal") == "default"


@pytest.mark.parametrize(
    "settings",
    [
        {"publication": "guided"},
        {"approval_ttl_seconds": 1},
        {"approval_ttl_seconds": 31_536_000},
        {"evidence_max_attempts": 1, "delivery_max_attempts": 20},
        {"evidence_lease_seconds": 0.5, "delivery_lease_seconds": 3600},
        {"review_route": {"legal": "lawyers", "default": "lab"}},
        {"compatible_policies": ["a" * 64, "b" * 64]},
    ],
)
def test_settings_within_their_bounds_are_taken(settings: dict[str, Any]) -> None:
    """Both ends of every bound are allowed."""
    policy = parse_policy(settings)
    for name, value in settings.items():
        assert getattr(policy, name) == (frozenset(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"publication": "manual"}, "publication"),
        ({"approval_ttl_seconds": 0}, "approval_ttl_seconds"),
        ({"approval_ttl_seconds": 31_536_001}, "approval_ttl_seconds"),
        ({"approval_ttl_seconds": 5.5}, "approval_ttl_seconds"),
        ({"evidence_max_attempts": 0}, "evidence_max_attempts"),
        ({"evidence_max_attempts": 21}, "evidence_max_attempts"),
        ({"delivery_max_attempts": True}, "delivery_max_attempts"),
        ({"evidence_lease_seconds": 0}, "evidence_lease_seconds"),
        ({"evidence_lease_seconds": 3600.5}, "evidence_lease_seconds"),
        ({"delivery_lease_seconds": float("inf")}, "delivery_lease_seconds"),
        ({"delivery_lease_seconds": True}, "delivery_lease_seconds"),
        ({"delivery_lease_seconds": "300"}, "delivery_lease_seconds"),
        ({"review_route": {"legl": "lawyers"}}, "review_route.legl"),
        ({"review_route": {"legal": "two words"}}, "review_route.legal"),
        ({"review_route": []}, "review_route"),
        ({"compatible_policies": ["a"]}, "compatible_policies"),
        ({"compatible_policies": "a" * 64}, "compatible_policies"),
        ({"compatible_policies": [1]}, "compatible_policies"),
        ({"approval_ttl": 5}, "approval_ttl"),
    ],
)
def test_settings_outside_their_bounds_and_misspelt_ones_are_refused(settings: dict[str, Any], path: str) -> None:
    """A policy is never half understood."""
    with pytest.raises(Invalid) as refused:
        parse_policy(settings)
    assert refused.value.code == "policy.invalid"
    assert refused.value.path.startswith(path)


def test_a_route_is_named_by_content_type_or_by_default() -> None:
    """Content without a route of its own goes to the default one."""
    policy = parse_policy({"review_route": {"legal": "lawyers", "default": "lab"}})
    assert (policy.route("legal"), policy.route("ui")) == ("lawyers", "lab")
    assert parse_policy({"review_route": {"legal": "lawyers"}}).route("ui") == "default"


def test_the_digest_names_what_an_approval_means() -> None:
    """Who reviews and how long it lasts; not how work is leased, retried or published."""
    digest = SitePolicy().sha256
    same = [
        {"publication": "guided"},
        {"evidence_max_attempts": 7, "evidence_lease_seconds": 60},
        {"delivery_max_attempts": 7, "delivery_lease_seconds": 60},
        {"compatible_policies": ["a" * 64]},
        {"review_route": {"default": "default", "ui": "default"}},
    ]
    other = [{"approval_ttl_seconds": 60}, {"review_route": {"legal": "lawyers"}}, {"review_route": {"default": "lab"}}]
    assert {parse_policy(settings).sha256 for settings in same} == {digest}
    assert len({digest, *(parse_policy(settings).sha256 for settings in other)}) == 4


def test_approvals_under_compatible_policies_are_accepted_too() -> None:
    """The policy's own digest always is."""
    policy = parse_policy({"compatible_policies": ["a" * 64]})
    assert policy.accepted == {policy.sha256, "a" * 64}
    assert SitePolicy().accepted == {SitePolicy().sha256}
