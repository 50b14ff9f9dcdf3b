"""The policy file as one document: everything that is wrong with it is told at once, with path and code."""

from __future__ import annotations

from typing import Any

import pytest

from worker.domain.errors import Invalid
from worker.domain.policy import Breaker, Limits, RoutePolicy, SitePolicy
from worker.domain.policy_file import InvalidPolicy, PolicyFile, read_policy_file


def faults(whole: Any, **options: Any) -> list[tuple[str, str]]:
    """Return (path, code) of every fault of a file that cannot be used."""
    with pytest.raises(InvalidPolicy) as refused:
        read_policy_file(whole, **options)
    assert refused.value.code == "policy.invalid"
    assert isinstance(refused.value, Invalid)
    return [(fault.path, fault.code) for fault in refused.value.faults]


def short_lease(policy: SitePolicy) -> None:
    """Refuse leases under 20 seconds, as settings do: a line for each."""
    short = [
        f"{name} must be longer"
        for name in ("evidence_lease_seconds", "delivery_lease_seconds")
        if getattr(policy, name) < 20
    ]
    if short:
        raise ValueError("\n".join(short))


def test_a_whole_file_is_understood() -> None:
    """Default, sites and providers, each with the members that the others leave out."""
    found = read_policy_file(
        {
            "default": {"required_locales": ["de", "fr-CA"], "review_deadline_seconds": 86_400},
            "sites": {"shop.example": {"publication": "guided", "review_limits": {"concurrent_calls": 4}}},
            "providers": {"lab": {"limits": {"calls_per_second": 2.5}, "breaker": {"opens_after_failures": 3}}},
        },
        defaults={"evidence_lease_seconds": 60.0},
    )
    default = SitePolicy(
        required_locales=frozenset({"de", "fr-CA"}), review_deadline_seconds=86_400.0, evidence_lease_seconds=60.0
    )
    shop = default.model_copy(update={"publication": "guided", "review_limits": Limits(concurrent_calls=4)})
    lab = RoutePolicy(limits=Limits(calls_per_second=2.5), breaker=Breaker(opens_after_failures=3))
    assert found == PolicyFile(default=default, sites={"shop.example": shop}, providers={"lab": lab})
    assert (found.for_site("shop.example"), found.for_site("blog")) == (shop, default)


def test_all_faults_are_told_at_once() -> None:
    """Each with its place, in the order of the file; what a site inherits from a wrong default is told once."""
    whole = {
        "default": {"approval_ttl_seconds": 0, "evidence_lease_seconds": 10, "required_locales": ["de", "de_CH"]},
        "sites": {
            "shop.example": {"publication": "never", "evidence_max_attempts": "5", "review_route": {"ui": "nobody"}},
            "a b": {},
            "blog": {"bogus": 1, "delivery_lease_seconds": 1},
            "wiki": [],
        },
        "providers": {
            "lab": {"breaker": {"open_seconds": 0}, "limits": {"concurrent_calls": 0}},
            "other": {},
        },
        "polices": {},
    }
    assert faults(whole, check=short_lease, routes=["lab", "default"]) == [
        ("polices", "policy.member.unknown"),
        ("default.approval_ttl_seconds", "policy.value.range"),
        ("default.required_locales", "policy.locale.invalid"),
        ("default.evidence_lease_seconds", "policy.lease.too_short"),
        ("sites.shop.example.publication", "policy.value.unknown"),
        ("sites.shop.example.evidence_max_attempts", "policy.value.type"),
        ("sites.shop.example.review_route.ui", "policy.route.unknown"),
        ("sites.?", "policy.name.invalid"),
        ("sites.blog.bogus", "policy.member.unknown"),
        ("sites.blog.delivery_lease_seconds", "policy.lease.too_short"),
        ("sites.wiki", "policy.value.type"),
        ("providers.lab.limits.concurrent_calls", "policy.value.range"),
        ("providers.lab.breaker.open_seconds", "policy.value.range"),
        ("providers.other", "policy.route.unknown"),
    ]


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ([], ("", "policy.value.type")),
        (None, ("", "policy.value.type")),
        ({"default": []}, ("default", "policy.value.type")),
        ({"sites": 1}, ("sites", "policy.value.type")),
        ({"providers": "lab"}, ("providers", "policy.value.type")),
        ({"providers": {"": {}}}, ("providers.?", "policy.name.invalid")),
        ({"default": {"review_deadline_seconds": 0.5}}, ("default.review_deadline_seconds", "policy.value.range")),
        ({"default": {"renewal_lead_seconds": True}}, ("default.renewal_lead_seconds", "policy.value.type")),
        (
            {"default": {"delivery_breaker": {"open_seconds": 60, "longest_open_seconds": 30}}},
            ("default.delivery_breaker.longest_open_seconds", "policy.value.range"),
        ),
    ],
)
def test_a_fault_has_its_place_and_code(whole: Any, expected: tuple[str, str]) -> None:
    """A file is never half understood."""
    assert faults(whole) == [expected]


def test_what_a_name_may_show() -> None:
    """A name that is no token is not repeated, whatever it holds."""
    assert faults({"default": {"\x1b[2J secret": 1}}) == [("default.?", "policy.member.unknown")]


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 259_200.0),
        ({"approval_ttl_seconds": 60}, 30.0),
        ({"renewal_lead_seconds": 10}, 10.0),
        ({"renewal_lead_seconds": 0}, 0.0),
    ],
)
def test_renewal_begins_at_most_half_a_life_before_the_end(settings: dict[str, Any], seconds: float) -> None:
    """However short an approval lasts, it is not renewed as soon as it was given; 0 leaves it to operators."""
    policy = read_policy_file({"default": settings}).default
    assert policy.renews_within_seconds == seconds


def test_the_digest_stays_the_same_with_the_new_members() -> None:
    """What approvals mean did not change, so those that stand go on to count."""
    changed = read_policy_file(
        {"default": {"required_locales": ["de"], "review_deadline_seconds": 60, "renewal_lead_seconds": 0}}
    ).default
    assert changed.sha256 == SitePolicy().sha256
