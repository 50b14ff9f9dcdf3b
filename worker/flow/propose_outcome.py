"""Step: find out what became of an interrupted publication, and propose what to record. Moves nothing."""

from __future__ import annotations

from worker.flow.running.proposal import Proposal, propose
from worker.flow.services import Services


def propose_outcome(services: Services, run_id: str, step_id: str) -> Proposal:
    """Ask the CMS for every delivery of an interrupted run that is in doubt, keep its signed answers, and propose.

    All accepted: `effect_succeeded`; any without an answer that counts: `unresolved`; else `effect_absent`, and the
    restart skips what was accepted. Raises `RunConflict` where the step is not an interrupted mutating one of a
    localization run, or a delivery of the run is being sent right now; `RunNotFound`, `RunCorrupt`.
    """
    return propose(services, run_id, step_id)
