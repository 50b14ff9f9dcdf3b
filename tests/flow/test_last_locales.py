"""The last two locales of an event, settled at the same moment by two workers: one delivery, told at once (SPEC 9)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.builders import Keyring, change_event
from tests.intake_builders import Rows, submit
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Services
from worker.store.schema import approvals, deliveries

ROUNDS = 100


def test_two_last_locales_make_one_delivery_every_time(services: Services, keys: Keyring, rows: Rows) -> None:
    """In each of 100 rounds both settles begin together; the event is ready for somebody and has one delivery."""
    together = threading.Barrier(2, timeout=30)
    prepared: list[str] = []

    def meet(name: str) -> None:
        if name in {"collect.claimed", "collect.signed"}:  # both have a row before either asks for another
            together.wait()

    def prepare(event_id: str) -> None:
        prepared.append(event_id)
        prepare_delivery(services, event_id)

    def worker(name: str) -> Callable[[str], Collected]:
        def collect(event_id: str) -> Collected:
            # One place, and a drain from the first answer on: exactly one row each.
            claimed = threading.Event()

            def checkpoint(at: str) -> None:
                if at == "collect.answered":
                    claimed.set()
                meet(at)

            mine = replace(
                services,
                worker_id=name,
                concurrent_calls=1,
                collecting=Collecting(),
                checkpoint=checkpoint,
                draining=claimed.is_set,
            )
            return collect_evidence(mine, event_id, ready=prepare)

        return collect

    with ThreadPoolExecutor(2) as threads:
        for turn in range(ROUNDS):
            event_id = f"event-{turn}"
            submit(services, keys, change_event(event_id=event_id, source_id=event_id, target_locales=["de", "fr"]))
            both = [threads.submit(worker(name), event_id) for name in ("w-1", "w-2")]
            assert [one.result() for one in both] == [Collected(claimed=1, approved=1)] * 2
            assert event_id in prepared
    assert len(rows(approvals)) == 2 * ROUNDS
    assert sorted(row["event_id"] for row in rows(deliveries)) == sorted(f"event-{turn}" for turn in range(ROUNDS))
