"""The visit by which the fleet reconciles an interrupted publication itself, where the site's policy lets it.

Only signed answers count: with one of them missing it asks again later, and an operator may be quicker.
"""

from __future__ import annotations

from worker.domain.canonical import sha256_hex
from worker.domain.errors import RunConflict
from worker.domain.run import CONFIRMATION
from worker.domain.run_visit import Again, Ended, Ending
from worker.flow.running.outcome import record_outcome
from worker.flow.running.proposal import SENDING, propose
from worker.flow.running.work import Work
from worker.flow.services import Services

PREFIX = "reconcile-"
WAITS = "run.waits_for_cms"


def reconciliation_of(run_id: str, request_id: str) -> str:
    """Return the id of the command that follows a resume."""
    return f"{PREFIX}{sha256_hex(f'{run_id}:{request_id}')[:40]}"


def is_reconciliation(attempt_id: str) -> bool:
    """Tell whether a command reconciles, and does not execute a step."""
    return attempt_id.startswith(PREFIX)


def reconcile_by_answers(services: Services, work: Work) -> Ending:
    """Record what the CMS's signed answers say, once there is one for every delivery; the code is the outcome.

    Ends with `reconciled_otherwise` where the step is no longer one to reconcile.
    """
    try:
        proposal = propose(services, work.run_id, work.step_id)
    except RunConflict as refused:
        return Again(code=WAITS) if refused.code == SENDING else Ended(code="reconciled_otherwise", succeeded=True)
    if proposal.outcome == "unresolved":
        return Again(code=WAITS)
    try:
        record_outcome(
            services,
            work.run_id,
            work.step_id,
            request_id=work.attempt_id,
            outcome=proposal.outcome,
            confirmation=CONFIRMATION,
            words=proposal.words,
        )
    except RunConflict:  # an operator was quicker, or a delivery was claimed to be asked about; the next visit sees
        return Again(code=WAITS)
    return Ended(code=proposal.outcome, succeeded=True)
