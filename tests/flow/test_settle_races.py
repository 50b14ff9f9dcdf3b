"""A settle against whatever else wants the same job at the same moment: one of them wins whole, never both in part."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, text, update

from tests.builders import NOW, Keyring, change_event, job_for, result_for, results_for
from tests.intake_builders import Rows, submit
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.services import Services
from worker.store.engine import is_sqlite, reading, writing
from worker.store.schema import approvals, events, evidence, jobs, receipts, results


def ignore(_event_id: str) -> None:
    """Do nothing with a ready event."""


def test_settle_sees_the_result_that_was_replaced_while_it_waited(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """A settle that waited for the job's lock judges the job as it is then, not as it was when the wait began."""
    submit(services, keys, change_event(target_locales=["de"]))
    signed, locked = threading.Event(), threading.Event()

    def meet(name: str) -> None:
        if name == "collect.signed":
            signed.set()
            assert locked.wait(30)

    def replace_result(conn: Any) -> None:
        conn.execute(update(jobs).values(current_result_sha256="f" * 64))
        locked.set()
        while not is_sqlite(engine) and not waits_for_a_lock(engine):
            pass

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(collect_evidence, replace(services, checkpoint=meet), None, ready=ignore)
        assert signed.wait(30)
        writing(engine, replace_result)
        assert done.result() == Collected(claimed=1)
    assert [(row["status"], row["updated_at"]) for row in rows(evidence)] == [("leased", NOW)]
    assert (rows(approvals), rows(receipts)) == ([], [])


def waits_for_a_lock(engine: Engine) -> bool:
    """Tell whether a transaction of this database waits for another's lock (PostgreSQL)."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with reading(engine) as conn:
        return bool(conn.execute(text(query)).scalar_one())


def test_replacement_and_settle_never_both_win(services: Services, keys: Keyring, rows: Rows) -> None:
    """In 25 races either the old result is approved and stays current, or it is replaced and never approved."""
    together = threading.Barrier(2, timeout=30)

    def meet(name: str) -> None:
        if name == "collect.signed":
            together.wait()

    for turn in range(25):
        event = change_event(event_id=f"e-{turn}", source_id=f"s-{turn}", target_locales=["de"])
        submit(services, keys, event)
        [old] = [row["current_result_sha256"] for row in rows(jobs) if row["job_id"] == job_for(event, "de").job_id]
        new = result_for(job_for(event, "de"), candidate=f"neu {turn}", replaces=old)
        # One row each and no second claim, so that the replacing result is not collected too.
        claimed = threading.Event()

        def checkpoint(name: str, claimed: threading.Event = claimed) -> None:
            if name == "collect.answered":
                claimed.set()
            meet(name)

        mine = replace(services, checkpoint=checkpoint, collecting=Collecting(), draining=claimed.is_set)
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(collect_evidence, mine, None, ready=ignore)
            together.wait()
            answer = submit(services, keys, event, [new])
            collected = done.result()
        [job] = [row for row in rows(jobs) if row["job_id"] == job_for(event, "de").job_id]
        approved = {row["result_sha256"] for row in rows(approvals) if row["job_id"] == job["job_id"]}
        if answer.state == "accepted":
            assert (collected.approved, approved) == (0, set())
            assert job["current_result_sha256"] != old
            assert collect_evidence(services, None, ready=ignore) == Collected(claimed=1, approved=1)
        else:
            assert answer.state == "rejected"
            assert (answer.code, collected.approved, approved) == ("submission.result.approved", 1, {old})
            assert job["current_result_sha256"] == old


def test_two_events_settle_one_job_at_once(services: Services, keys: Keyring, rows: Rows) -> None:
    """Two workers that each bring evidence of the same job for their own event both succeed, and nothing is stuck."""
    together = threading.Barrier(2, timeout=30)
    first = change_event(target_locales=["de", "fr"])
    second = change_event(event_id="event-2", source_sequence=2, target_locales=["de", "fr"], website_version="2")
    submit(services, keys, first, results_for(first))
    submit(services, keys, second, results_for(second))
    writing(services.engine, lambda conn: conn.execute(update(events).values(state="open")))
    writing(services.engine, lambda conn: conn.execute(update(evidence).values(status="pending", last_error_code=None)))

    def worker(name: str) -> Collected:
        passed: set[str] = set()
        answered = threading.Event()  # a drain from then on, so that a collector claims exactly once

        def meet(at: str) -> None:
            if at == "collect.answered":
                answered.set()
            if at in {"collect.claimed", "collect.signed"} - passed:
                passed.add(at)
                together.wait()

        mine = replace(services, worker_id=name, concurrent_calls=2, collecting=Collecting(), checkpoint=meet)
        return collect_evidence(replace(mine, draining=answered.is_set), None, ready=ignore)

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(worker, ["w-1", "w-2"]))
    assert [one.claimed for one in done] == [2, 2]
    assert {row["status"] for row in rows(evidence)} == {"succeeded"}
    assert {row["job_id"] for row in rows(approvals)} == {job_for(first, one).job_id for one in ("de", "fr")}
    assert len(rows(results)) == 2
