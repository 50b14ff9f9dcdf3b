"""The visit to `evidence`: is every locale of every event approved. Changes nothing; what lies idle is woken."""

from __future__ import annotations

from worker.domain.messages import EVIDENCE_COLLECT
from worker.domain.run_visit import Again, Ended, Ending
from worker.flow.running.work import Work
from worker.flow.services import Services
from worker.store.approvals import verify_approval
from worker.store.engine import reading
from worker.store.event_plans import choose_approvals, load_plan
from worker.store.run_facts import unapproved_events
from worker.store.views import find_event_view

STOPPED = frozenset({"failed", "lapsed", "unasked"})  # nothing happens to such a locale until an operator acts
LOOKED_AT = 50  # unapproved events that one visit asks why
WAITS = "run.waits_for_evidence"


def await_evidence(services: Services, work: Work) -> Ending:
    """End the step once every event is wholly approved, each approval verified again; hand it back until then.

    Ends with `evidence_stopped` where a locale of an event will not be approved unless an operator acts; see the
    event for which. A locale without a translation is waited for.
    """
    policy = services.policies.for_site(work.site_id)
    with reading(services.engine) as conn:
        missing = unapproved_events(conn, work.events, work.site_id, policy.accepted, now=services.now())
        for event_id in missing[:LOOKED_AT]:
            view = find_event_view(conn, event_id, accepted=policy.accepted, is_guided=True, now=services.now())
            if view is None or any(locale.state in STOPPED for locale in view.facts.locales):
                return Ended(code="evidence_stopped", succeeded=False)
    if missing:
        services.queue.wake(EVIDENCE_COLLECT, event_id=missing[0])
        return Again(code=WAITS)
    trust = services.keys.trust("approval")
    for event in work.events:
        with reading(services.engine) as conn:
            plan = load_plan(conn, event.event_id, now=services.now(), with_texts=False)
        if plan is None or plan.state == "delivered":  # its approvals may have expired since
            continue
        for approval in choose_approvals(plan, policy.accepted):
            if approval is None:  # it expired between the two reads
                return Again(code=WAITS)
            verify_approval(approval, trust)
    return Ended(code="all_approved", succeeded=True)
