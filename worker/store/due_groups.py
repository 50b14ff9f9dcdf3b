"""Which sites and review routes have evidence due, and how long until a rate lets some of it begin."""

from __future__ import annotations

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Connection,
    Integer,
    Select,
    case,
    func,
    literal_column,
    select,
    true,
)

from worker.domain.breaker import PROVIDER
from worker.domain.limits import FleetLimits, refilled_at
from worker.store import limits
from worker.store.breakers import is_shut_off, open_names
from worker.store.claimable import names
from worker.store.conditions import is_waiting
from worker.store.engine import Bind, Moment, clock, is_sqlite, json_rows, read_clock
from worker.store.pauses import is_all_paused, paused_names
from worker.store.schema import evidence


def seconds_to_refill(conn: Connection, kept: FleetLimits, *, now: float | None) -> float | None:
    """Return in how many seconds a rate lets a row begin that is due now; None where no rate is what keeps rows back.

    A bound on open calls may keep it back all the same, or another worker be faster.
    """
    nobody = json_rows([])
    groups = due_groups(conn, now)
    due = conn.execute(select(*groups.c), {"blocked_sites": nobody, "blocked_providers": nobody}).all()
    at = read_clock(conn, now)
    saved = limits.saved_of(conn)
    waits = []
    for site_id, route in due:
        rates = (
            (kept.rates.get(route), saved.get((limits.PROVIDER, route), 0.0)),
            (kept.rate_of_site(site_id), saved.get((limits.SITE, site_id), 0.0)),
        )
        waits.append(max([refilled_at(rate, since) - at for rate, since in rates if rate is not None], default=0.0))
    return min([wait for wait in waits if wait > 0], default=None)


def due_groups(bind: Bind, now: Moment, *, with_probes: bool = False) -> CTE:
    """Return (site_id, provider) of the groups with something due that nothing keeps back, found by jumps along the index.

    `with_probes` adds those whose route is closed and may be tried. Whoever executes binds `blocked_sites` and
    `blocked_providers`.
    """
    e = evidence.alias("waiting")
    waits = is_waiting(e)
    site = _waiting_sites()
    first_route = select(func.min(e.c.provider)).where(waits, e.c.site_id == site.c.site_id).scalar_subquery()
    routes = select(site.c.site_id, first_route.label("provider")).where(
        site.c.site_id.is_not(None),
        site.c.site_id.not_in(names(bind, "blocked_sites")),
        site.c.site_id.not_in(paused_names("site", clock(bind, now))),
        ~is_all_paused(clock(bind, now)),
    )
    route = routes.cte("routes", recursive=True)
    of_route = (waits, e.c.site_id == route.c.site_id)
    next_route = select(func.min(e.c.provider)).where(*of_route, e.c.provider > route.c.provider).scalar_subquery()
    route = route.union_all(select(route.c.site_id, next_route).where(route.c.provider.is_not(None)))
    of_group = (waits, e.c.site_id == route.c.site_id, e.c.provider == route.c.provider)
    first_due = select(func.min(e.c.next_attempt_at)).where(*of_group).scalar_subquery()
    sound = route.c.provider.not_in(open_names(PROVIDER))
    may_be_called = ~is_shut_off(PROVIDER, route.c.provider, clock(bind, now)) if with_probes else sound
    return (
        select(route.c.site_id, route.c.provider)
        .where(
            route.c.provider.is_not(None),
            route.c.provider.not_in(names(bind, "blocked_providers")),
            route.c.provider.not_in(paused_names("provider", clock(bind, now))),
            may_be_called,
            first_due <= clock(bind, now),
        )
        .cte("groups")
    )


def due_sites(bind: Bind, now: Moment, route: BindParameter[str]) -> CTE:
    """Return (site_id) of the sites with something due on one route, held or not; found by jumps along the index."""
    e = evidence.alias("waiting")
    site = _waiting_sites()
    of_route = (is_waiting(e), e.c.site_id == site.c.site_id, e.c.provider == route)
    first_due = select(func.min(e.c.next_attempt_at)).where(*of_route).scalar_subquery()
    return select(site.c.site_id).where(site.c.site_id.is_not(None), first_due <= clock(bind, now)).cte("due_sites")


def first_of_each(bind: Bind, groups: CTE, first: Select[tuple[str]]) -> Select[tuple[str]]:
    """Return the request ids that `first`, which names columns of `groups`, gives for each of them."""
    if is_sqlite(bind):
        f = evidence.alias("f")
        ids = first.correlate(groups).scalar_subquery()
        return select(f.c.request_id).select_from(groups.join(f, f.c.request_id.in_(ids)))
    rows = first.correlate(groups).lateral("first")
    return select(rows.c.request_id).select_from(groups.join(rows, true()))


def share_of(most: int, groups: CTE) -> ColumnElement[int]:
    """Return how many rows of each of these groups make at most so many in all, but one each at least."""
    number = select(func.count()).select_from(groups).scalar_subquery()
    each = literal_column(str(most), Integer) // func.nullif(number, 0)
    return case((each > 1, each), else_=1)


def _waiting_sites() -> CTE:
    """Return (site_id) of the sites with something waiting, and a last row that is null."""
    e = evidence.alias("waiting")
    waits = is_waiting(e)
    sites = select(select(func.min(e.c.site_id)).where(waits).scalar_subquery().label("site_id"))
    site = sites.cte("sites", recursive=True)
    next_site = select(func.min(e.c.site_id)).where(waits, e.c.site_id > site.c.site_id).scalar_subquery()
    return site.union_all(select(next_site).where(site.c.site_id.is_not(None)))
