"""One collector in a process: who may be it, how wakes reach it, and how calls are counted across its deaths."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.builders import Keyring, change_event, response_for
from tests.evidence_builders import ScriptedProvider, with_provider
from tests.fakes import Checkpoints, Crash
from tests.intake_builders import Rows, submit
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.services import Services
from worker.store.schema import evidence


def test_second_is_refused_and_wakes_the_first() -> None:
    """While one collects, another gets no inbox, and the first finds a wake in its own and may not leave."""
    collecting = Collecting()
    inbox = collecting.enter()
    assert inbox is not None
    assert collecting.enter() is None
    assert inbox.get_nowait() is None
    assert collecting.try_leave() is False
    assert collecting.take_wake() is True
    assert collecting.take_wake() is False
    assert collecting.try_leave() is True
    assert collecting.enter() is not None


def test_leaving_in_any_case_forgets_the_wake() -> None:
    """A collector that ends by a fault leaves the place free, and its successor starts without an old wake."""
    collecting = Collecting()
    inbox = collecting.enter()
    assert inbox is not None
    collecting.enter()
    collecting.leave(inbox)
    assert collecting.enter() is not None
    assert collecting.try_leave() is True


def test_who_left_does_not_put_out_its_successor() -> None:
    """A collector that ends after another began leaves that one alone: a third is still refused, and its wake is kept."""
    collecting = Collecting()
    first = collecting.enter()
    assert first is not None
    assert collecting.try_leave() is True
    assert collecting.enter() is not None
    collecting.leave(first)
    assert collecting.enter() is None
    assert collecting.take_wake() is True


def test_calls_are_counted_for_the_whole_process() -> None:
    """Places are what the bound leaves, and never fewer than none."""
    collecting = Collecting()
    assert collecting.free_places(2) == 2
    for _ in range(3):
        collecting.calls_began(1)
    assert collecting.free_places(2) == 0
    collecting.calls_ended(1)
    collecting.calls_ended(1)
    assert collecting.free_places(2) == 1


def test_calls_of_a_dead_collector_keep_their_places(
    services: Services, keys: Keyring, checkpoints: Checkpoints, rows: Rows
) -> None:
    """What a collector that died left open still counts, so its successor opens no more calls than allowed."""
    go_on, is_open = threading.Event(), 0
    most_open = 0

    async def answer(request: Any) -> Any:
        nonlocal is_open, most_open
        is_open += 1
        most_open = max(most_open, is_open)
        if request.document["target_locale"] == "fr":
            await asyncio.to_thread(go_on.wait, 30)
        is_open -= 1
        return response_for(keys, request)

    submit(services, keys, change_event(target_locales=["fr"]))
    submit(services, keys, change_event(event_id="e-2", source_id="s-2", target_locales=["de"]))
    asked = with_provider(services, ScriptedProvider(answer), concurrent_calls=2)
    checkpoints.crash_at = "collect.answered"
    with pytest.raises(Crash):
        collect_evidence(asked, None, ready=lambda _: None)
    checkpoints.crash_at = None
    submit(services, keys, change_event(event_id="e-3", source_id="s-3", target_locales=["it", "es", "nl"]))
    assert collect_evidence(asked, None, ready=lambda _: None) == Collected(claimed=3, approved=3)
    assert most_open == 2
    go_on.set()
    assert sorted(row["status"] for row in rows(evidence)) == ["leased"] * 2 + ["succeeded"] * 3
