"""Intake: the only messages that carry content, and so the only ones acknowledged after their commit."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, services
from worker.domain.messages import RELEASE_SUBMIT, RELEASE_WITHDRAW
from worker.flow.accept_submission import accept_submission
from worker.flow.withdraw_event import withdraw_event


@app.task(name=RELEASE_SUBMIT, base=FleetTask, acks_late=True)
def submit(submission: str) -> None:
    """Accept one signed submission, or record why it was refused."""
    accept_submission(services(), submission)


@app.task(name=RELEASE_WITHDRAW, base=FleetTask, acks_late=True)
def withdraw(withdrawal: str) -> None:
    """Apply one signed withdrawal, or record why it was refused."""
    withdraw_event(services(), withdrawal)
