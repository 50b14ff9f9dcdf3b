"""Intake: the only messages that carry content, and so the only ones acknowledged after their commit."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, services
from worker.domain.acceptance import Acceptance
from worker.domain.messages import EVIDENCE_SUBMIT, RELEASE_SUBMIT, RELEASE_WITHDRAW
from worker.flow.accept_response import accept_response
from worker.flow.accept_submission import accept_submission
from worker.flow.withdraw_event import withdraw_event


@app.task(name=RELEASE_SUBMIT, base=FleetTask, acks_late=True)
def submit(submission: str) -> Acceptance:
    """Accept one signed submission, or record why it was refused."""
    return accept_submission(services(), submission)


@app.task(name=RELEASE_WITHDRAW, base=FleetTask, acks_late=True)
def withdraw(withdrawal: str) -> Acceptance:
    """Apply one signed withdrawal, or record why it was refused."""
    return withdraw_event(services(), withdrawal)


@app.task(name=EVIDENCE_SUBMIT, base=FleetTask, acks_late=True)
def respond(response: str) -> Acceptance:
    """Keep one signed response of a reviewer for the next claim, or record why it was refused."""
    return accept_response(services(), response)
