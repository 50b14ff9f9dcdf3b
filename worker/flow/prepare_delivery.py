"""Step: once every locale of an event is approved, sign its publication and store it as the event's one delivery."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection

from worker.domain.delivery import Advance, AdvanceStatus, build_publication
from worker.domain.errors import Blocked
from worker.domain.messages import DELIVERY_PUBLISH
from worker.domain.policy import SitePolicy
from worker.flow.services import Services
from worker.flow.signed_publication import sign_publication
from worker.flow.tracing.deliveries import tell_prepared
from worker.store.approvals import StoredApproval
from worker.store.deliveries import end_renewal, insert_delivery, lock_event, replace_renewed
from worker.store.engine import reading, writing
from worker.store.event_plans import EventPlan, approved_locales, choose_approvals, load_plan, verified_change
from worker.store.public_keys import keep_public_keys
from worker.store.readiness import ready_events

COLLISION = "cms.delivery.idempotency_collision"


def prepare_delivery(services: Services, event_id: str) -> Advance:
    """Prepare the delivery of an event whose every locale is approved, exactly once, whoever comes first.

    Returns `delivery_ready` with the delivery's id, the same when called again; `waiting` with the first job that
    lacks a current approval; or the state the event ended in. An unsent delivery whose renewal is complete is closed,
    and its successor stored, in one transaction. Raises `cms.delivery.idempotency_collision` where the
    event's delivery holds other bytes, `cms.delivery.failed` where an earlier one forbids another, a `….tampered` code
    where something stored is not what it was, and `Unavailable`. Signs outside the transaction. Safe to run
    concurrently with itself: the loser discards its bytes.
    """
    for _look in range(2):  # a second look where somebody else moved the event between reading and writing
        with reading(services.engine) as conn:
            plan = load_plan(conn, event_id, now=services.now(), with_texts=True)
        if plan is None:
            raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
        answer = _prepare(services, plan)
        if answer is not None:
            return answer
    raise Blocked(
        "cms.delivery.failed",
        "an earlier delivery of the event failed, and these bytes do not follow it by themselves; "
        "see locseal deliveries retry",
    )


def _prepare(services: Services, plan: EventPlan) -> Advance | None:
    """Return where the event stands, or None where nothing was stored for a reason that a second look may tell."""
    if plan.state != "open":
        return _stands(plan, plan.state, plan.spoken_id)
    began, policy = services.monotonic(), services.policies.for_site(plan.site_id)
    is_renewed = plan.is_renewing and _is_complete(services, plan, policy)
    chosen: list[StoredApproval] = []
    found = choose_approvals(plan, policy.accepted, is_renewed=is_renewed)
    for job, approval in zip(plan.jobs, found, strict=True):
        if approval is None:
            return Advance(
                status="waiting",
                event_id=plan.event_id,
                plan_id=plan.plan_id,
                job_id=job.job_id,
                target_locale=job.target_locale,
            )
        chosen.append(approval)
    change = verified_change(plan)
    locales = approved_locales(plan, change, chosen, services.keys.trust("approval"))
    publication = build_publication(change, locales)
    delivery_id = publication["delivery_id"]
    if plan.spoken_id is not None and (plan.spoken_id == delivery_id or not is_renewed):
        if plan.spoken_id != delivery_id:
            raise Blocked(COLLISION, "the event's delivery holds other bytes; see locseal evidence renew")
        if is_renewed:
            writing(services.engine, lambda conn: end_renewal(conn, delivery_id))
        return _stands(plan, "delivery_ready", delivery_id)
    prepared, keys = sign_publication(services, plan, publication, max_attempts=policy.delivery_max_attempts)
    services.checkpoint("prepare.signed")
    approval_ids = [approval.approval_id for approval in chosen]

    def work(conn: Connection) -> bool:
        if lock_event(conn, plan.event_id) != "open":
            return False
        if plan.spoken_id is not None:
            is_stored = replace_renewed(conn, plan.spoken_id, prepared, approval_ids, now=services.now())
        else:
            is_stored = insert_delivery(conn, prepared, approval_ids, now=services.now())
        if is_stored and keys:  # once in a process
            keep_public_keys(conn, keys, now=services.now())
        return is_stored

    if not writing(services.engine, work):
        return None
    services.collecting.keep(keys)
    services.checkpoint("prepare.committed")
    tell_prepared(services, plan.event_id, delivery_id, began=began)
    if policy.publication == "automatic":
        services.queue.wake(DELIVERY_PUBLISH, event_id=plan.event_id)
    return _stands(plan, "delivery_ready", delivery_id)


def _is_complete(services: Services, plan: EventPlan, policy: SitePolicy) -> bool:
    """Tell whether every locale that was asked about again has its new approval."""
    with reading(services.engine) as conn:
        accepted = {plan.site_id: policy.accepted}
        return plan.event_id in ready_events(conn, [plan.jobs[0].job_id], accepted, now=services.now())


def _stands(plan: EventPlan, status: str, delivery_id: str | None) -> Advance:
    return Advance(
        status=cast("AdvanceStatus", status), event_id=plan.event_id, plan_id=plan.plan_id, delivery_id=delivery_id
    )
