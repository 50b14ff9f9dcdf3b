"""The policy file as one document: the default policy, what each site changes of it, what is kept to for each route.

Everything that is wrong with it is found in one look, each fault with the path of the member and a stable code. A
policy holds no content, so names and rules may be shown. Reading the file belongs to the adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from worker.domain.document import Document, join_path
from worker.domain.errors import Invalid
from worker.domain.identifier import is_token
from worker.domain.limits import FleetLimits
from worker.domain.policy import EvidenceLeases, RoutePolicy, SitePolicy

INVALID: Final = "policy.invalid"
MEMBERS: Final = ("default", "sites", "providers")
LONGEST_NAME: Final = 64  # characters of a member name that are shown

Check = Callable[[SitePolicy], None]
"""Refuses a policy that this installation cannot keep, with a `ValueError`: a line for each fault."""

# What a library's error is about -> our code; all other kinds are the wrong type of value.
_KINDS: Final = {
    "extra_forbidden": "policy.member.unknown",
    "missing": "policy.member.missing",
    "literal_error": "policy.value.unknown",
    "string_pattern_mismatch": "policy.value.unknown",
    "greater_than": "policy.value.range",
    "greater_than_equal": "policy.value.range",
    "less_than": "policy.value.range",
    "less_than_equal": "policy.value.range",
    "finite_number": "policy.value.range",
}


@dataclass(frozen=True, kw_only=True)
class PolicyFault:
    """One thing that is wrong: where, a stable code, and the rule in words."""

    path: str
    code: str
    rule: str


class InvalidPolicy(Invalid):
    """A policy file that cannot be used; `faults` holds all that is wrong with it, in the order of the file."""

    def __init__(self, faults: Iterable[PolicyFault]) -> None:
        self.faults = tuple(faults)
        first = self.faults[0]
        more = f" and {len(self.faults) - 1} more" if len(self.faults) > 1 else ""
        super().__init__(INVALID, f"{first.code}: {first.rule}{more}", path=first.path)


@dataclass(frozen=True, kw_only=True)
class PolicyFile:
    """A whole policy file, every part of it checked."""

    default: SitePolicy = field(default_factory=SitePolicy)
    sites: Mapping[str, SitePolicy] = field(default_factory=dict)
    providers: Mapping[str, RoutePolicy] = field(default_factory=dict)

    @property
    def limits(self) -> FleetLimits:
        """Return the bounds on open calls to review providers."""
        routes = {name: policy.limits.concurrent_calls for name, policy in self.providers.items()}
        rates = {name: policy.limits.calls_per_second for name, policy in self.providers.items()}
        return FleetLimits(
            routes={name: bound for name, bound in routes.items() if bound is not None},
            rates={name: rate for name, rate in rates.items() if rate is not None},
            sites={name: policy.review_limits.concurrent_calls for name, policy in self.sites.items()},
            other_sites=self.default.review_limits.concurrent_calls,
            site_rates={name: policy.review_limits.calls_per_second for name, policy in self.sites.items()},
            other_sites_rate=self.default.review_limits.calls_per_second,
        )

    @property
    def evidence_leases(self) -> EvidenceLeases:
        """Return how long a lease on an evidence row lasts, by site."""
        own = {name: policy.evidence_lease_seconds for name, policy in self.sites.items()}
        default = self.default.evidence_lease_seconds
        return EvidenceLeases(
            default_seconds=default, by_site={name: seconds for name, seconds in own.items() if seconds != default}
        )

    def for_site(self, site_id: str) -> SitePolicy:
        """Return the policy of a site: its own, or the default."""
        return self.sites.get(site_id, self.default)


def read_policy_file(
    whole: object,
    *,
    defaults: Mapping[str, Any] | None = None,
    check: Check = lambda _policy: None,
    routes: Iterable[str] | None = None,
) -> PolicyFile:
    """Return the policies that a parsed policy file describes, or raise `InvalidPolicy` with all its faults.

    `defaults` stand for what the file leaves out. `routes` are the review routes that there are, where that is known: a
    policy that names another is at fault.
    """
    faults: list[PolicyFault] = []
    if not isinstance(whole, dict):
        raise InvalidPolicy([_fault("", "policy.value.type", "the file holds an object")])
    faults += [
        _fault(_shown(name), "policy.member.unknown", f"the file holds {', '.join(MEMBERS)}")
        for name in whole
        if name not in MEMBERS
    ]
    parts: dict[str, dict[str, Any]] = {}
    for name in MEMBERS:
        part = whole.get(name, {})
        if not isinstance(part, dict):
            faults.append(_fault(name, "policy.value.type", "this member is an object"))
        parts[name] = part if isinstance(part, dict) else {}
    base = {**(defaults or {}), **parts["default"]}
    known = None if routes is None else frozenset(routes)
    default = _site(base, "default", check, known, faults)
    sites = {}
    for site_id, entry in parts["sites"].items():
        if _is_entry("sites", site_id, entry, faults):
            path = f"sites.{site_id}"
            own: list[PolicyFault] = []
            sites[site_id] = _site({**base, **entry}, path, check, known, own)
            # What the site takes over from a default that is wrong was told there.
            faults += [one for one in own if _member(one.path, path) in {"", *entry}]
    providers = {}
    for route, entry in parts["providers"].items():
        if _is_entry("providers", route, entry, faults):
            providers[route] = _parsed(RoutePolicy, entry, f"providers.{route}", faults) or RoutePolicy()
            if known is not None and route not in known:
                faults.append(_fault(f"providers.{route}", "policy.route.unknown", "no provider has this name"))
    if faults:
        raise InvalidPolicy(dict.fromkeys(faults))
    return PolicyFile(default=default, sites=sites, providers=providers)


SETS: Final = frozenset({"required_locales", "compatible_policies"})  # JSON arrays that mean sets
ModelT = TypeVar("ModelT", bound=Document)


def _site(
    value: Mapping[str, Any], path: str, check: Check, routes: frozenset[str] | None, faults: list[PolicyFault]
) -> SitePolicy:
    own: list[PolicyFault] = []
    policy = _parsed(SitePolicy, value, path, own)
    if policy is None:  # go on with what is sound, to find what else is wrong
        sound = SitePolicy.model_fields.keys() - {_member(one.path, path) for one in own}
        policy = SitePolicy.model_validate({name: part for name, part in value.items() if name in sound})
    faults += own
    try:
        check(policy)
    except ValueError as refused:
        for rule in str(refused).splitlines():
            name, _, _ = rule.partition(" ")
            at = name if name in SitePolicy.model_fields else ""
            faults.append(_fault(join_path(path, at), "policy.lease.too_short", rule))
    if policy.delivery_breaker.longest_open_seconds < policy.delivery_breaker.open_seconds:
        at = f"{path}.delivery_breaker.longest_open_seconds"
        faults.append(_fault(at, "policy.value.range", "must not be shorter than open_seconds"))
    for content_type, route in sorted(policy.review_route.items()):
        if routes is not None and route not in routes:
            at = f"{path}.review_route.{content_type}"
            faults.append(_fault(at, "policy.route.unknown", "no provider of the settings has this name"))
    return policy


def _member(path: str, prefix: str) -> str:
    """Return the name of the member right below a prefix; names of members hold no dot."""
    return path[len(prefix) + 1 :].partition(".")[0]


def _is_entry(part: str, name: object, entry: object, faults: list[PolicyFault]) -> bool:
    if not is_token(name):
        faults.append(_fault(join_path(part, _shown(name)), "policy.name.invalid", "the name must be a token"))
        return False
    if not isinstance(entry, dict):
        faults.append(_fault(f"{part}.{name}", "policy.value.type", "this member is an object"))
        return False
    return True


def _parsed(model: type[ModelT], value: object, path: str, faults: list[PolicyFault]) -> ModelT | None:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            context = detail.get("ctx", {})
            ours = detail["type"] == "locseal"
            code = f"policy.{context['kind']}" if ours else _KINDS.get(detail["type"], "policy.value.type")
            rule = "this value is not allowed here" if ours else str(detail["msg"])
            # A set has no positions: the index of an item says where it came up while hashing, not where it stands.
            at = [part for part in detail["loc"] if not (isinstance(part, int) and detail["loc"][0] in SETS)]
            faults.append(_fault(join_path(path, *map(_shown, at)), code, rule))
    return None


def _shown(name: object) -> str:
    """Return a member name or place as it may stand in a path."""
    if isinstance(name, int):
        return str(name)
    return name[:LONGEST_NAME] if isinstance(name, str) and is_token(name) else "?"


def _fault(path: str, code: str, rule: str) -> PolicyFault:
    return PolicyFault(path=path, code=code, rule=rule)
