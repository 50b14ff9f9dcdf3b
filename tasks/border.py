"""The border every task stands behind: check the message, run the step, and let no exception out.

A task that ended in an exception would have its text and traceback in Celery's events and logs, and a late-ack
message would be dropped with it. So a failure is logged by its code; what it left undone is found by the sweeper.
Intake alone waits: its content exists nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Final

import structlog
from celery import Task
from celery.exceptions import Reject

from worker.adapters.inbox import raw_body
from worker.app import intake_pauses, services, vitals
from worker.domain.acceptance import message_bytes
from worker.domain.errors import Blocked, Invalid
from worker.domain.messages import WIRE, check_fields
from worker.domain.stall import QUEUED
from worker.flow.reject_message import reject_message

log = structlog.get_logger(__name__)

UNEXPECTED_TRIES: Final = 3


class FleetTask(Task):  # type: ignore[misc]
    """A task whose body runs only for a well-formed message, and whose exceptions end here."""

    abstract = True
    typing = False  # the wire's arguments are judged below, with a code, not by Python's call rules
    Request = "worker.adapters.inbox:IdRequest"
    Strategy = "worker.adapters.inbox:careful_strategy"

    def __call__(self, *args: object, **fields: object) -> None:
        """Run one message: the body if it is well-formed, else record its rejection."""
        work: Callable[[], object]
        queue = WIRE[self.name][0]
        if queue in QUEUED:
            vitals.claimed(queue)
        try:
            problem: Invalid | None = getattr(self.request, "problem", None)
            if problem is not None:
                raise problem
            work = partial(self.run, **check_fields(self.name, args, fields))
        except Invalid as refusal:
            work = partial(self._reject, refusal, fields)
        if self.acks_late:
            self._until_committed(work, fields)
        else:
            self._once(work)

    def _reject(self, refusal: Invalid, fields: dict[str, Any]) -> None:
        received = getattr(self.request, "received", None)
        body = message_bytes(fields) if received is None else raw_body(received)
        reject_message(services(), message=self.name, body=body, code=refusal.code, path=refusal.path)

    def run_here(self, **ids: str) -> None:
        """Do in this thread, at once, what a message with these ids would ask for; never raises. Not for intake."""
        self._once(partial(self.run, **ids))

    def _run(self, work: Callable[[], object]) -> None:
        """Run the work and log what it says became of the message: ids, states, codes and counts of a small result."""
        with services().traces.arriving(getattr(self.request, "traceparent", None)):
            result = work()
        known = vars(result) if is_dataclass(result) and not isinstance(result, type) else {}
        shown = {name: value for name, value in known.items() if value and name != "schema"}
        # A sweep out of turn, or a wake for what another took, changed nothing: no line for people.
        level = logging.INFO if shown.keys() - {"is_turn"} else logging.DEBUG
        log.log(level, "task.done", task=self.name, **shown)

    def _once(self, work: Callable[[], object]) -> None:
        try:
            self._run(work)
        except Blocked as failure:
            log.warning("task.blocked", task=self.name, code=failure.code, retryable=failure.retryable)
        except Exception as error:  # the task border: the sweeper finds the work again, and the log says where
            log.error("task.failed", task=self.name, exc_info=error)

    def _until_committed(self, work: Callable[[], object], fields: dict[str, Any]) -> None:
        """Run intake until it has committed; after a bounded wait, or when the process drains, hand it back to Redis.

        A `Blocked` is about a part of ours (what is wrong with the content was recorded and did not raise), so it is
        waited out. Anything else is tried a few times and then recorded as a rejection: it must not circle for ever.
        """
        unexpected = 0
        for pause in intake_pauses():
            try:
                self._run(work)
            except Blocked as failure:
                log.warning("intake.waiting", task=self.name, code=failure.code, pause_seconds=pause)
            except Exception as error:  # the task border: a fault of ours must neither lose nor repeat a submission
                log.error("task.failed", task=self.name, exc_info=error)
                unexpected += 1
                if unexpected == UNEXPECTED_TRIES:
                    work = partial(self._reject, Invalid("message.processing.failed"), fields)
            else:
                return
            if vitals.wait_for_drain(pause):
                break
        raise Reject(reason="intake is handed back", requeue=True)
