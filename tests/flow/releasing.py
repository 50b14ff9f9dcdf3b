"""A guided release in tests: a site that is published by runs only, and a fleet of one process at a time.

A process takes messages until none is left; a dead one is followed by another that knows nothing of it. Time passes
only where a test says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select

from tests.builders import NOW, Keyring
from tests.delivery_builders import approved_event
from tests.fake_cms import FakeCms
from tests.fakes import RecordingQueue
from worker.domain.errors import Blocked
from worker.flow.plan_run import plan_run
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.propose_outcome import Proposal, propose_outcome
from worker.flow.publish_delivery import publish_delivery
from worker.flow.reconcile_run import reconcile_run
from worker.flow.resume_run import resume_run
from worker.flow.retry_run import retry_run
from worker.flow.run_step import run_step
from worker.flow.services import Services
from worker.flow.start_run import start_run
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.runs import RunStore
from worker.store.schema import deliveries

SITE, VERSION = "site-1", "2026.02"


@dataclass
class Release:
    """One website version on its way, the fleet that takes it there, and the operator who says when."""

    services: Services
    queue: RecordingQueue
    keys: Keyring
    cms: FakeCms
    now: float = NOW
    run_id: str = ""
    version: str = VERSION
    requests: int = 0
    visits: list[Any] = field(default_factory=list)

    def born(self) -> Services:
        """Return a fresh process: nothing but the database and the outside has a memory."""
        return replace(self.services, now=lambda: self.now, cms=lambda _site_id: self.cms)

    def approve(self, sources: Sequence[str]) -> None:
        """Have an event of each source submitted and wholly approved."""
        for source in sources:
            approved_event(
                self.born(), self.keys, event_id=f"event-{source}", source_id=source, website_version=self.version
            )
        self.queue.take()

    def plan(self) -> str:
        """Freeze the website version into a run."""
        self.run_id = plan_run(self.born(), SITE, self.version)["run_id"]
        return self.run_id

    def request(self) -> str:
        """Return a request id that was not used yet."""
        self.requests += 1
        return f"request-{self.requests:04d}"

    def start(self, step_id: str | None = None) -> dict[str, Any]:
        """Start the next step."""
        return start_run(self.born(), self.run_id, request_id=self.request(), step_id=step_id)

    def retry(self, step_id: str) -> dict[str, Any]:
        """Retry a step."""
        return retry_run(self.born(), self.run_id, step_id, request_id=self.request())

    def resume(self, *, force: bool = False) -> dict[str, Any]:
        """Interrupt what runs."""
        return resume_run(self.born(), self.run_id, request_id=self.request(), force=force)

    def propose(self) -> Proposal:
        """Ask the CMS what became of the publication."""
        return propose_outcome(self.born(), self.run_id, "publish")

    def reconcile(self, outcome: str | None = None) -> dict[str, Any]:
        """Confirm the proposed outcome, or another one."""
        proposal = self.propose()
        return reconcile_run(
            self.born(),
            self.run_id,
            "publish",
            request_id=self.request(),
            outcome=outcome or proposal.outcome,
            confirmation="RECONCILE",
            words=proposal.words,
        )

    def live(self, rounds: int = 1, *, seconds: float = 31.0) -> None:
        """Let a process sweep and take every message, some rounds long; time passes before each but the first."""
        for number in range(rounds):
            self.now += seconds if number else 0.0
            process = self.born()
            sweep_fleet(process)
            self.drain(process)

    def drain(self, process: Services) -> None:
        """Let a process take every message."""
        while self.queue.sent:
            message, ids = self.queue.sent.pop(0)
            try:
                if message == "run.step":
                    self.visits.append(run_step(process, ids["run_id"], ids["step_id"], ids["attempt_id"]))
                elif message == "delivery.prepare":
                    prepare_delivery(process, ids["event_id"])
                elif message == "delivery.publish":
                    publish_delivery(process, ids["event_id"])
            except Blocked:
                pass  # the task border logs it; the sweeper finds the work again

    def step(self, step_id: str) -> tuple[str, str | None]:
        """Return state and result code of a step."""
        found = next(step for step in self.view()["state"]["steps"] if step["id"] == step_id)
        return found["state"], found["result_code"]

    def view(self) -> dict[str, Any]:
        """Return the run as people see it."""
        workspace = workspace_fingerprint(self.services.engine)
        return RunStore(self.services.engine, workspace_fingerprint=workspace, now=self.now).get(self.run_id)

    def until(self, step_id: str) -> None:
        """Take the release up to, and not into, a step; a run that has begun elsewhere is left for a new one."""
        if not self.run_id or self.view()["state"]["status"] != "planned" or self.step("preflight")[0] != "pending":
            self.plan()
        for one in ("preflight", "evidence", "prepare", "publish", "verify"):
            if one == step_id:
                return
            self.start(one)
            self.live(6)
            assert self.step(one)[0] == "succeeded", self.step(one)

    def publications(self) -> dict[str, int]:
        """Return how often each delivery arrived at the CMS."""
        sent: dict[str, int] = {}
        for delivery_id, _ in self.cms.requests:
            sent[delivery_id] = sent.get(delivery_id, 0) + 1
        return sent

    def by_event(self) -> dict[str, str]:
        """Return the state of the newest delivery of each event."""
        wanted = select(deliveries.c.event_id, deliveries.c.status).order_by(deliveries.c.created_at)
        with reading(self.services.engine) as conn:
            return {row.event_id: row.status for row in conn.execute(wanted)}
