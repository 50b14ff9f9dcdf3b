"""Step: say where an event stands, with everything stored verified again. Reads only."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection

from worker.domain.delivery import Advance, AdvanceStatus
from worker.domain.errors import Blocked
from worker.domain.turn import APPROVAL_EXPIRED, GIVES_WAY, standing_status
from worker.flow.services import Services
from worker.store.approvals import verify_approval
from worker.store.coverage import has_current_approvals
from worker.store.engine import reading
from worker.store.event_plans import EventPlan, choose_approvals, load_plan
from worker.store.publications import StoredPublication, load_publication


def advance_event(services: Services, event_id: str) -> Advance:
    """Return where an event stands: waiting, approved, delivery_ready, delivered, superseded or withdrawn.

    `waiting` names the first job of the plan without a current approval; `approved` the approval where the plan has one
    job. Raises `cms.delivery.failed` for a failed delivery, `cms.delivery.approval_expired` for one that did not
    succeed and whose approvals are no longer current, a `….tampered` code where something stored is not what it was,
    and `Unavailable`. A delivered event is history: its approvals are verified, their expiry is not asked. Changes
    nothing; safe to run concurrently.
    """
    with reading(services.engine) as conn:
        plan = load_plan(conn, event_id, now=services.now(), with_texts=False)
        if plan is None:
            raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
        stored = load_publication(
            conn,
            event_id,
            publication_trust=services.keys.trust("publication"),
            approval_trust=services.keys.trust("approval"),
        )
        if stored is None or (plan.state == "open" and stored.delivery.last_error_code in GIVES_WAY):
            return _by_approvals(services, plan)
        return _by_delivery(conn, services, plan, stored)


def _by_delivery(conn: Connection, services: Services, plan: EventPlan, stored: StoredPublication) -> Advance:
    status = plan.state if plan.state != "open" else None
    status = status or standing_status(stored.delivery.status, stored.delivery.last_error_code)
    if status in {"delivered", "delivery_ready"} and stored.approvals_code is not None:
        raise Blocked(stored.approvals_code, "an approval of the delivery is not what was signed; audit the event")
    if status == "delivery_ready" and not has_current_approvals(conn, stored.approval_ids, now=services.now()):
        raise Blocked(APPROVAL_EXPIRED, "the approvals are no longer current; see locseal evidence renew")
    return Advance(
        status=cast("AdvanceStatus", status),
        event_id=plan.event_id,
        plan_id=plan.plan_id,
        delivery_id=stored.delivery.delivery_id,
    )


def _by_approvals(services: Services, plan: EventPlan) -> Advance:
    if plan.state != "open":
        return Advance(status=cast("AdvanceStatus", plan.state), event_id=plan.event_id, plan_id=plan.plan_id)
    chosen = choose_approvals(plan, services.policies.for_site(plan.site_id).accepted)
    trust = services.keys.trust("approval")
    for job, approval in zip(plan.jobs, chosen, strict=True):
        if approval is None:
            return Advance(
                status="waiting",
                event_id=plan.event_id,
                plan_id=plan.plan_id,
                job_id=job.job_id,
                target_locale=job.target_locale,
            )
        verify_approval(approval, trust)
    only = chosen[0] if len(chosen) == 1 else None
    return Advance(
        status="approved",
        event_id=plan.event_id,
        plan_id=plan.plan_id,
        job_id=only.job_id if only else None,
        target_locale=plan.jobs[0].target_locale if only else None,
        approval_id=only.approval_id if only else None,
    )
