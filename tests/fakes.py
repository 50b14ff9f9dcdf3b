"""Doubles of the ports that face the outside, for steps that run on a real database. No double of the database itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine, event

from worker.domain.limits import FleetLimits
from worker.domain.policy import EvidenceLeases, RoutePolicy, SitePolicy
from worker.domain.policy_file import PolicyFile


class Crash(BaseException):
    """The process dies here. No `except Exception` catches it."""


@dataclass
class RecordingQueue:
    """Satisfies `flow.services.Queue`: keeps what was sent, in order; `is_up` False loses it like a dead broker."""

    sent: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    is_up: bool = True

    def wake(self, message: str, **ids: str) -> bool:
        """Record one message."""
        if self.is_up:
            self.sent.append((message, ids))
        return self.is_up

    def take(self) -> list[tuple[str, dict[str, str]]]:
        """Return what was sent since the last time."""
        taken, self.sent = self.sent, []
        return taken


@dataclass
class FixedPolicies:
    """Satisfies `flow.services.Policies`: one policy for all sites, but for those in `sites`."""

    policy: SitePolicy = field(default_factory=SitePolicy)
    sites: Mapping[str, SitePolicy] = field(default_factory=dict)
    routes: Mapping[str, RoutePolicy] = field(default_factory=dict)

    def for_site(self, site_id: str) -> SitePolicy:
        """Return the site's policy."""
        return self.sites.get(site_id, self.policy)

    def for_provider(self, route: str) -> RoutePolicy:
        """Return the route's policy."""
        return self.routes.get(route, RoutePolicy())

    def evidence_leases(self) -> EvidenceLeases:
        """Return the leases of these policies."""
        return PolicyFile(default=self.policy, sites=self.sites).evidence_leases

    def limits(self) -> FleetLimits:
        """Return the bounds of these policies."""
        return PolicyFile(default=self.policy, sites=self.sites, providers=self.routes).limits


@dataclass
class Checkpoints:
    """A `Services.checkpoint` that keeps the names it passed and dies at `crash_at`."""

    crash_at: str | None = None
    passed: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        """Pass a checkpoint, or die there."""
        self.passed.append(name)
        if name == self.crash_at:
            raise Crash(name)


@dataclass
class Counted:
    """The SQL that ran: statements without BEGIN, COMMIT, ROLLBACK, SET and PRAGMA, and the number of commits."""

    statements: list[str] = field(default_factory=list)
    commits: int = 0


@contextmanager
def counting(engine: Engine) -> Iterator[Counted]:
    """Count what runs on an engine inside the block, over all threads."""
    counted, lock = Counted(), threading.Lock()

    def ran(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.split(None, 1)[0].upper() not in {"BEGIN", "COMMIT", "ROLLBACK", "SET", "PRAGMA"}:
            with lock:
                counted.statements.append(statement)

    def committed(_conn: object) -> None:
        with lock:
            counted.commits += 1

    event.listen(engine, "before_cursor_execute", ran)
    event.listen(engine, "commit", committed)
    try:
        yield counted
    finally:
        event.remove(engine, "before_cursor_execute", ran)
        event.remove(engine, "commit", committed)
