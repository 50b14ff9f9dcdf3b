"""The visit to `preflight`: is what was frozen genuine, and could we sign and send it. Changes nothing."""

from __future__ import annotations

from worker.domain.canonical import hash_of
from worker.domain.errors import Blocked, Invalid
from worker.domain.run_visit import Ended, Ending, FrozenEvent, result_code
from worker.domain.signature import parse_signed, verify_detached
from worker.domain.submission import INVALID, LONGEST_SUBMISSION_BYTES
from worker.flow.running.work import Work
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.event_plans import EventPlan, load_plan, verified_change
from worker.store.submissions import release_bodies

SIGNATURE_INVALID = "submission.signature.invalid"
MOST_SUBMISSIONS = 50  # of one event that are looked through for one that vouches for it


def check_release(services: Services, work: Work) -> Ending:
    """Verify every frozen event against its submission and its plan, our own keys, and that the CMS is known.

    Ends the step with `preflight_passed`, or with the code of what does not hold. A database or a key file that cannot
    answer is raised.
    """
    for event in work.events:
        fault = _fault_of(services, event)
        if fault is not None:
            return Ended(code=result_code(fault), succeeded=False)
    for purpose in ("approval", "publication"):
        services.keys.sign(purpose, {"schema": "locseal.key-check.v1", "run_id": work.run_id})
    services.cms(work.site_id)
    answering = services.keys.trust("acknowledgement").keys.values()
    if not any(key.status == "active" and key.speaks_for(work.site_id) for key in answering):
        return Ended(code="cms_key_missing", succeeded=False)
    return Ended(code="preflight_passed", succeeded=True)


def _fault_of(services: Services, event: FrozenEvent) -> str | None:
    with reading(services.engine) as conn:
        plan = load_plan(conn, event.event_id, now=services.now(), with_texts=True)
        bodies = release_bodies(conn, event.event_id, most=MOST_SUBMISSIONS)
    if plan is None:
        return "release.event.missing"
    try:
        change = verified_change(plan)
    except Blocked as tampered:
        return tampered.code
    if (change.source_sha256, change.plan_id) != (event.source_sha256, event.plan_id):
        return "release.event.tampered"
    vouched = any(_vouches(services, body, accepted_at, plan) for body, accepted_at in bodies)
    return None if vouched else SIGNATURE_INVALID


def _vouches(services: Services, body: str, accepted_at: float, plan: EventPlan) -> bool:
    """Tell whether a kept submission is signed by a key of the site, and brought exactly this event."""
    try:
        signed = parse_signed(body, max_bytes=LONGEST_SUBMISSION_BYTES, code=INVALID)
        key = verify_detached(
            services.keys.trust("submission"),
            signed.payload(),
            signed.signature,
            code=SIGNATURE_INVALID,
            signed_at=accepted_at,
        )
    except Invalid:
        return False
    return key.speaks_for(plan.site_id) and hash_of(signed.document.get("event")) == plan.event_sha256
