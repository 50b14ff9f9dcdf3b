"""Step: ask again about locales whose evidence failed, on an operator's word and under a new revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from worker.domain.errors import Blocked
from worker.domain.identifier import require_token
from worker.domain.messages import EVIDENCE_COLLECT
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.events import find_event
from worker.store.operator_requests import once
from worker.store.renewals import events_with_failed, reopen


def retry_evidence(services: Services, *, event_id: str | None, job_id: str | None, request_id: str) -> dict[str, Any]:
    """Reopen the failed evidence of an event, of one job of it, or of a job in every open event that contains it.

    Returns `{"reopened": [...]}`, one entry for each row that was made; the failed rows stay as history. The same
    `request_id` again gives the same answer and makes nothing. Raises `evidence.nothing_failed` where there is nothing
    to reopen, `evidence.event_ended`, `evidence.event_has_delivery`, `operator.request_id.collision`, and
    `Unavailable`. Safe to run concurrently with itself and everything else.
    """
    require_token(request_id, "operator.request_id.invalid", "request_id")
    arguments = {"event_id": event_id, "job_id": job_id}

    def work(conn: Connection) -> tuple[dict[str, Any], bool]:
        def do() -> Mapping[str, Any]:
            named = [event_id] if event_id is not None else list(events_with_failed(conn, job_id or ""))
            reopened = [one for name in named for one in _reopen(services, conn, name, job_id)]
            if not reopened:
                raise Blocked("evidence.nothing_failed", "no failed evidence is there to reopen; see locseal releases")
            return {"reopened": reopened}

        return once(conn, request_id, "evidence.retry", arguments, do, now=services.now())

    answer, is_new = writing(services.engine, work)
    services.checkpoint("retry_evidence.committed")
    if is_new:
        for name in dict.fromkeys(one["event_id"] for one in answer["reopened"]):
            services.queue.wake(EVIDENCE_COLLECT, event_id=name)
    return answer


def _reopen(services: Services, conn: Connection, event_id: str, job_id: str | None) -> list[dict[str, Any]]:
    event = find_event(conn, event_id)
    if event is None:
        raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
    policy = services.policies.for_site(event.site_id)
    done = reopen(conn, event_id, "retry", policy, job_id=job_id, now=services.now())
    return [asdict(one) for one in done.reopened]
