"""What `locseal metrics` shows, part by part: each reads one thing and says it as Prometheus families.

A part that cannot be read is left out and named by `locseal_part_up`; the others go on. Labels are bounded: queues,
classes, states and outcomes are closed sets, routes and codes are kept up to a number, and a site is never a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from config.settings import Settings
from worker.adapters.policies import FilePolicies
from worker.adapters.queue import CeleryQueue
from worker.domain import measure
from worker.domain.errors import Unavailable
from worker.domain.measure import MOST_ROUTES, Series, histogram_of, names_within
from worker.store import gauges
from worker.store.engine import read_clock, reading
from worker.store.gauges import Counted, Due
from worker.store.measures import read_measures
from worker.store.recovery import read_recovery

QUEUES: Final = ("evidence", "delivery", "runs")
CLASSES: Final = ("automatic", "guided")
UNKNOWN_CLASS: Final = "unknown"  # while the policy file cannot be read
SCOPES: Final = ("all", "site", "provider")
BREAKER_STATES: Final = ("open", "troubled", "closed")
REJECTIONS_SECONDS: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the parts read."""

    engine: Any  # the store's; only the store knows its kind
    policies: FilePolicies
    queue: CeleryQueue
    settings: Settings


class Shown:
    """Families as they are filled, and which parts stopped counting at a bound."""

    def __init__(self) -> None:
        self.families: list[Metric] = []
        self.is_capped = False

    def gauge(self, name: str, about: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...]) -> None:
        """Add a gauge with its values by labels."""
        family = GaugeMetricFamily(f"locseal_{name}", about, labels=labels)
        for given, value in sorted(values.items()):
            family.add_metric(given, value)
        self.families.append(family)

    def one(self, name: str, about: str, value: float) -> None:
        """Add a gauge without labels."""
        self.gauge(name, about, {(): value}, ())

    def counted(self, name: str, about: str, label: str, found: Counted) -> None:
        """Add a gauge with one label."""
        self.gauge(name, about, {(key,): value for key, value in found.counts.items()}, (label,))
        self.is_capped |= found.is_capped


def work(sources: Sources, shown: Shown) -> None:
    """Show what is due and what is leased."""
    with reading(sources.engine) as conn:
        now = read_clock(conn, None)
        due, is_capped = gauges.due_work(conn, now=now)
        leased, is_held_capped = gauges.leases(conn, now=now)
    shown.is_capped |= is_capped or is_held_capped
    rows: dict[tuple[str, ...], float] = {(queue, name): 0 for queue in QUEUES for name in CLASSES}
    ages = dict(rows)
    for one, name in _by_class(sources.policies, due):
        key = (one.queue, name)
        rows[key] = rows.get(key, 0) + one.rows
        ages[key] = max(ages.get(key, 0), now - one.oldest_at)
    labels = ("queue", "site_class")
    shown.gauge(
        "due_rows", "Rows that are due and not leased, held back or not; capped: at least so many.", rows, labels
    )
    shown.gauge("due_oldest_age_seconds", "Since when the oldest of them is due; 0 where nothing is.", ages, labels)
    held: dict[tuple[str, ...], float] = {(queue, state): 0 for queue in QUEUES for state in ("live", "expired")}
    routes = dict.fromkeys(sources.settings.providers, 0.0)
    for lease in leased:
        held[lease.queue, "live"] += lease.live
        held[lease.queue, "expired"] += lease.expired
        if lease.route is not None:
            routes[lease.route] = routes.get(lease.route, 0) + lease.live
    about = "Leases; an expired one waits for the sweeper to take it away."
    shown.gauge("leases", about, held, ("queue", "state"))
    about = "Calls to a review route that the fleet has open: live leases on its rows."
    shown.gauge("provider_calls_open", about, _by_route(routes), ("route",))


def releases(sources: Sources, shown: Shown) -> None:
    """Show events, deliveries and runs by state."""
    with reading(sources.engine) as conn:
        events = gauges.open_events(conn)
        deliveries = gauges.open_deliveries(conn)
        runs = gauges.runs_by_status(conn)
        poisoned = gauges.quarantined(conn)
    shown.counted("events", "Change events that are not delivered, superseded or withdrawn.", "state", events)
    about = "Deliveries that are not over: prepared, sending, in_doubt, or outcome_unknown, which wait for a person."
    shown.counted("deliveries", about, "state", deliveries)
    shown.counted("runs", "Release runs by status.", "status", runs)
    shown.counted("quarantined", "Rows that failed since their leases ran out too often.", "work", poisoned)


def approvals(sources: Sources, shown: Shown) -> None:
    """Show the approvals that end soon."""
    with reading(sources.engine) as conn:
        found = gauges.expiring(conn, now=read_clock(conn, None))
    about = "Approvals that end within 24 hours: of open events, which need them, and of ended ones, which do not."
    shown.counted("approvals_expiring", about, "event", found)


def holds(sources: Sources, shown: Shown) -> None:
    """Show pauses and breakers."""
    with reading(sources.engine) as conn:
        now = read_clock(conn, None)
        pauses = gauges.pauses_by_scope(conn, now=now)
        breakers = gauges.breaker_states(conn)
    shown.gauge("pauses", "Pauses in force.", {(scope,): pauses.get(scope, 0) for scope in SCOPES}, ("scope",))
    states: dict[tuple[str, ...], float] = {(k, s): 0 for k in ("provider", "cms") for s in BREAKER_STATES}
    routes: dict[str, float] = {}
    for (kind, name, state), count in breakers.items():
        states[kind, state] += count
        if kind == "provider":
            routes[name] = float(state == "open")
    about = "Breakers of sides that ever failed: open, troubled (closed, with faults counted) or closed."
    shown.gauge("breakers", about, states, ("kind", "state"))
    shown.gauge("provider_breaker_open", "1 while calls to a review route are stopped.", _by_route(routes), ("route",))


def limits(sources: Sources, shown: Shown) -> None:
    """Show the bounds on calls to review routes."""
    with reading(sources.engine) as conn:
        waits = gauges.rate_waits(conn, now=read_clock(conn, None))
    kept = sources.policies.limits()
    bounds = {name: float(bound) for name, bound in kept.routes.items()}
    shown.gauge("provider_calls_limit", "Most calls to a route that may be open.", _by_route(bounds), ("route",))
    rates = _by_route(kept.rates)
    shown.gauge("provider_rate_limit", "Most calls to a route that may begin in a second.", rates, ("route",))
    about = "Seconds until the rate of a route lets the next call begin."
    shown.gauge("provider_rate_wait_seconds", about, _by_route(waits), ("route",))


def sweeper(sources: Sources, shown: Shown) -> None:
    """Show how soon what was lost is found again: the bound, what the last whole sweep measured, what waits now."""
    with reading(sources.engine) as conn:
        found = read_recovery(conn)
    if found.sweep_age_seconds is not None and found.sweep_took_seconds is not None:
        shown.one("sweep_age_seconds", "Since the last whole sweep began.", found.sweep_age_seconds)
        shown.one("sweep_seconds", "How long it took.", found.sweep_took_seconds)
        about = "The longest that anything it woke had been without a wake: the recovery that was really measured."
        shown.one("recovery_seconds", about, found.found_unwoken_seconds)
    waits: dict[tuple[str, ...], float] = {(kind,): seconds for kind, seconds in found.unwoken_seconds.items()}
    shown.gauge("unwoken_seconds", "The longest that anything due is without a wake now.", waits, ("kind",))
    about = "Within so many seconds a sweep wakes again what was not woken; the setting of this process."
    shown.one("recovery_bound_seconds", about, sources.settings.recovery_bound_seconds)


def intake(sources: Sources, shown: Shown) -> None:
    """Show what intake refused of late."""
    with reading(sources.engine) as conn:
        found = gauges.recent_rejections(conn, now=read_clock(conn, None), within=REJECTIONS_SECONDS)
    shown.is_capped |= found.is_capped
    about = "Documents that intake refused within the last hour; one sent again counts once."
    shown.one("rejections_recent", about, found.counts["rejections"])


def measures(sources: Sources, shown: Shown) -> None:
    """Show what workers counted and timed since the database was made."""
    with reading(sources.engine) as conn:
        rows = read_measures(conn)
    _count(
        shown,
        "attempts",
        "Attempts that ended, by how and why; look-ups of deliveries count, too.",
        rows,
        measure.ATTEMPTS,
        {"work": "subject", "outcome": "outcome", "code": "part"},
    )
    for calls, seconds, name, label, about in (
        (measure.PROVIDER_CALLS, measure.PROVIDER_SECONDS, "provider", "route", "review routes"),
        (measure.CMS_CALLS, measure.CMS_SECONDS, "cms", "operation", "a CMS"),
    ):
        _count(
            shown,
            f"{name}_calls",
            f"Calls to {about} by outcome.",
            rows,
            calls,
            {label: "subject", "outcome": "outcome"},
        )
        family = HistogramMetricFamily(
            f"locseal_{name}_call_seconds", f"How long calls to {about} took.", labels=[label]
        )
        for subject in sorted({one.subject for one in rows if one.measure == seconds}):
            parts = {one.part: value for one, value in rows.items() if (one.measure, one.subject) == (seconds, subject)}
            shape = histogram_of(parts)
            family.add_metric([subject], list(shape.buckets), shape.seconds)
        shown.families.append(family)


def queue(sources: Sources, shown: Shown) -> None:
    """Show how many messages wait in Redis."""
    depths: dict[tuple[str, ...], float] = {(name,): depth for name, depth in sources.queue.depths().items()}
    about = "Messages in Redis that no worker has taken; wakes only, but for intake, where they are the work."
    shown.gauge("queue_messages", about, depths, ("queue",))


PARTS: Final = {
    "work": work,
    "releases": releases,
    "approvals": approvals,
    "holds": holds,
    "limits": limits,
    "sweeper": sweeper,
    "intake": intake,
    "measures": measures,
    "queue": queue,
}


def _count(
    shown: Shown, name: str, about: str, rows: Mapping[Series, float], kind: str, labels: Mapping[str, str]
) -> None:
    family = CounterMetricFamily(f"locseal_{name}", about, labels=list(labels))
    for series, value in rows.items():
        if series.measure == kind:
            family.add_metric([getattr(series, member) for member in labels.values()], value)
    shown.families.append(family)


def _by_class(policies: FilePolicies, due: Iterable[Due]) -> Iterator[tuple[Due, str]]:
    for one in due:
        try:
            yield one, policies.for_site(one.site_id).publication
        except Unavailable:
            yield one, UNKNOWN_CLASS


def _by_route(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Return values by route; of more routes than are shown, the highest of the rest stands for them."""
    shown = names_within(values, MOST_ROUTES)
    found: dict[tuple[str, ...], float] = {}
    for name, value in values.items():
        found[shown[name],] = max(found.get((shown[name],), value), value)
    return found
