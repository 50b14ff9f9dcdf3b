"""A release run as people look at it: its view, who works at it, and where the events it froze stand. Read only."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Engine

from worker.domain.attempt import FAILED
from worker.domain.policy import SitePolicy
from worker.domain.run_visit import EVIDENCE, FrozenEvent, frozen_events
from worker.domain.run_waiting import ExecutorFacts, RunFacts
from worker.domain.waiting import waiting_sentence
from worker.store.engine import read_clock, reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import CommandFacts, commands_of
from worker.store.run_facts import delivery_standings, moved_sources, unapproved_events
from worker.store.runs import RunStore
from worker.store.views import find_event_view


def report_run(
    engine: Engine, run_id: str, policy_of: Callable[[str], SitePolicy], *, now: float | None = None
) -> RunFacts:
    """Return a run with everything that decides what it waits for; raise as `RunStore.get` does."""
    view = RunStore(engine, workspace_fingerprint=workspace_fingerprint(engine), now=now).get(run_id)
    frozen = frozen_events(view)
    site_id = view["immutable"]["input"]["channel"]
    step_id = view["recommended_next"]["step_id"]
    with reading(engine) as conn:
        at = read_clock(conn, now)
        commands = [one for one in commands_of(conn, run_id, now=at) if one.step_id == step_id]
        is_waiting = step_id == EVIDENCE and bool(commands)
        first = _first_waiting(conn, frozen, site_id, policy_of(site_id), at) if is_waiting else None
        is_open = bool(frozen) and view["state"]["status"] != "completed"
        return RunFacts(
            view=view,
            executor=_executor(commands[-1] if commands else None),
            standings=delivery_standings(conn, frozen, now=at) if frozen else (),
            moved=moved_sources(conn, site_id, frozen) if is_open else (),
            waiting_event=first[0] if first else None,
            waiting_sentence=first[1] if first else None,
            now=at,
        )


def _executor(command: CommandFacts | None) -> ExecutorFacts:
    if command is None:
        return ExecutorFacts(state="none")
    if command.is_visited:
        return ExecutorFacts(state="visited", owner=command.lease_owner, until=command.lease_expires_at)
    is_last = command.attempts >= command.max_attempts
    if command.status == FAILED or (command.lease_owner is not None and is_last):
        return ExecutorFacts(state="dead", owner=command.lease_owner, code=command.code)
    if command.next_attempt_at <= command.now:
        return ExecutorFacts(state="due", code=command.code)
    return ExecutorFacts(state="waiting", until=command.next_attempt_at, code=command.code)


def _first_waiting(
    conn: Connection, frozen: tuple[FrozenEvent, ...], site_id: str, policy: SitePolicy, now: float
) -> tuple[str, str] | None:
    missing = unapproved_events(conn, frozen, site_id, policy.accepted, now=now)
    if not missing:
        return None
    view = find_event_view(
        conn, missing[0], accepted=policy.accepted, is_guided=policy.publication == "guided", now=now
    )
    return None if view is None else (missing[0], waiting_sentence(view.facts))
