"""Telling that events became ready, after the commit that made them so. Not a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from worker.domain.errors import Blocked
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.readiness import ready_events

log = structlog.get_logger(__name__)

Ready = Callable[[str], None]


def tell_ready(services: Services, jobs: Mapping[str, str], ready: Ready) -> None:
    """Call `ready` with every ready event whose plan contains one of these jobs; `jobs` gives the site by job id.

    One read, in a transaction of its own, so that of two workers with the last two locales the later one sees both.
    Raises `Unavailable` where the read fails; what `ready` raises as `Blocked` concerns that event alone.
    """
    if not jobs:
        return
    accepted = {site_id: services.policies.for_site(site_id).accepted for site_id in set(jobs.values())}
    with reading(services.engine) as conn:
        found = ready_events(conn, jobs, accepted, now=services.now())
    services.checkpoint("collect.ready")
    for event_id in found:
        try:
            ready(event_id)
        except Blocked as failure:  # the sweeper tells it again
            log.warning("event.ready.blocked", event_id=event_id, code=failure.code)
