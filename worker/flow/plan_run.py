"""Step: freeze the current events of one website version into a release run."""

from __future__ import annotations

from typing import Any

from worker.domain.errors import RunConflict
from worker.domain.run_plan import MAX_EVENTS_IN_INPUT
from worker.domain.run_visit import snapshots_of_release
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_facts import current_events
from worker.store.run_rows import second
from worker.store.runs import RunStore


def plan_run(services: Services, site_id: str, website_version: str) -> dict[str, Any]:
    """Make a run that releases the current events of a website version, and return its view.

    Current is the newest event of each source that was not withdrawn, if it belongs to the version; delivered ones are
    part of it, and will be skipped. Raises `RunConflict` where the version has no event or more than a run holds,
    `release.event.tampered` where a stored text is not what was accepted. Each call makes a new run.
    """
    now = services.now()
    with reading(services.engine) as conn:
        events = current_events(conn, site_id, website_version, most=MAX_EVENTS_IN_INPUT + 1)
        generated_at = second(conn, now)
    if not events:
        raise RunConflict("there is no current event of this website version; see locseal releases list")
    if len(events) > MAX_EVENTS_IN_INPUT:
        raise RunConflict(f"a run releases at most {MAX_EVENTS_IN_INPUT} events; release a smaller website version")
    workspace = workspace_fingerprint(services.engine)
    given, plan = snapshots_of_release(
        site_id, website_version, events, workspace_fingerprint=workspace, generated_at=generated_at
    )
    store = RunStore(services.engine, workspace_fingerprint=workspace, now=now)
    return store.create(input_snapshot=given, plan_snapshot=plan)
