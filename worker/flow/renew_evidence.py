"""Step: have the approvals of an unpublished event renewed, on an operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from worker.domain.errors import Blocked
from worker.domain.identifier import require_token
from worker.domain.messages import DELIVERY_PREPARE, EVIDENCE_COLLECT
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.events import find_event
from worker.store.operator_requests import once
from worker.store.renewals import reopen
from worker.store.unprepared import keep_unprepared


def renew_evidence(
    services: Services, event_id: str, *, every: bool = False, job_id: str | None = None, request_id: str
) -> dict[str, Any]:
    """Ask again, under a new revision, about each locale whose approval ended, ends within the lead or was revoked.

    `every` renews all of them, whatever they last; `job_id` only one. Returns `{"reopened": [...], "delivery_id": ...}`;
    with an open delivery that is not in doubt, that one goes on to be sendable until all new approvals are there, and
    is then closed as its successor is stored. The same `request_id` again gives the same answer and makes nothing.
    Raises `evidence.nothing_to_renew`, `evidence.event_ended`, `evidence.renewal.in_flight`, `cms.outcome_unknown`,
    `operator.request_id.collision`, and `Unavailable`. Safe to run concurrently with itself and everything else.
    """
    require_token(request_id, "operator.request_id.invalid", "request_id")
    arguments = {"event_id": event_id, "every": every, "job_id": job_id}

    def work(conn: Connection) -> tuple[dict[str, Any], bool]:
        def do() -> Mapping[str, Any]:
            event = find_event(conn, event_id)
            if event is None:
                raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
            policy = services.policies.for_site(event.site_id)
            done = reopen(conn, event_id, "renew", policy, job_id=job_id, every=every, now=services.now())
            if not done.reopened and done.delivery_id is None:
                raise Blocked(
                    "evidence.nothing_to_renew",
                    "every approval lasts longer than the lead, or is being asked for; --all renews them all the same",
                )
            if not done.reopened:
                keep_unprepared(conn, event_id, now=services.now())  # no row of it succeeds any more that would tell
            return {"reopened": [asdict(one) for one in done.reopened], "delivery_id": done.delivery_id}

        return once(conn, request_id, "evidence.renew", arguments, do, now=services.now())

    answer, is_new = writing(services.engine, work)
    services.checkpoint("renew_evidence.committed")
    if is_new:
        services.queue.wake(EVIDENCE_COLLECT if answer["reopened"] else DELIVERY_PREPARE, event_id=event_id)
    return answer
