"""One signed submission of 27 locales becomes one acknowledged delivery, through real processes, whatever is lost."""

from __future__ import annotations

import pytest

from tests.system.facts import DONE, Facts, attempts, facts, is_delivered, published
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import Stage
from worker.store.engine import reading
from worker.store.recovery import read_recovery

BOUND_SECONDS = 1.0  # as the fleet's settings say
SLACK_SECONDS = 60.0  # an interval of half a second, and a machine that is busy


def is_found_again(stage: Stage, measured: list[float]) -> bool:
    """Note how long what the last sweep woke had been unwoken; tell whether it had been woken before, in vain."""
    with reading(stage.engine) as conn:
        measured.append(read_recovery(conn).found_unwoken_seconds)
    return measured[-1] >= BOUND_SECONDS


def test_a_submission_becomes_one_acknowledged_delivery(fleet: LocalFleet, stage: Stage, signed: str) -> None:
    """Without a sweep: 27 approvals on the first attempt each, one delivery, one publication, one POST."""
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    stage.submit(signed)
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_many_workers_two_beats_and_repeated_messages_change_nothing(
    fleet: LocalFleet, stage: Stage, signed: str
) -> None:
    """The same message three times at once, four workers and two beats: the same end, nothing asked or sent twice."""
    workers = [fleet.start_worker(f"worker{number}") for number in (1, 2, 3, 4)]
    for worker in workers:
        fleet.wait_for_worker(worker)
    for number in (1, 2):
        fleet.start_beat(f"beat{number}")
    for _ in range(3):
        stage.submit(signed)
    wait_for(lambda: is_delivered(stage), workers[0], "the delivery")
    wait_for(lambda: stage.fleet.broker_client().llen("intake") == 0, workers[0], "the intake queue")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


@pytest.mark.timeout(300)
def test_an_emptied_redis_costs_only_time(fleet: LocalFleet, stage: Stage, signed: str) -> None:
    """FLUSHALL between every two steps: the sweeper finds the work again, by its own measure within the bound."""
    intake = fleet.start_worker("intake", queues=["intake"])
    fleet.wait_for_worker(intake)
    stage.submit(signed)
    wait_for(lambda: len(attempts(stage)) == 27, intake, "the intake")
    broker = fleet.broker_client()
    broker.flushall()  # the wake for evidence is gone
    assert facts(stage).approvals == 0
    evidence = fleet.start_worker("evidence", queues=["evidence", "sweep"])
    fleet.start_beat()
    wait_for(lambda: facts(stage).approvals == 27, evidence, "the approvals", 100)
    broker.flushall()  # the wake to prepare is gone, and every binding
    measured: list[float] = []
    wait_for(lambda: is_found_again(stage, measured), evidence, "the lost wake", 100)
    assert BOUND_SECONDS <= measured[-1] < BOUND_SECONDS + SLACK_SECONDS
    rest = fleet.start_worker("rest", queues=["delivery"])
    wait_for(lambda: is_delivered(stage), rest, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_a_refused_locale_holds_the_whole_event(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """A locale that the provider refuses fails once; the others are approved, and nothing is delivered."""
    stage = sqlite_stage
    stage.control({"provider": {"refuse": {"fr-FR": "terminology.mismatch"}}})
    worker = fleet.start_worker()
    fleet.start_beat()
    fleet.wait_for_worker(worker)
    stage.submit(signed)
    wait_for(lambda: facts(stage).approvals == 26, worker, "the approvals")
    assert facts(stage) == Facts(approvals=26, deliveries=0, delivered=0, acknowledgements=0, leased=0, rejections=0)
    assert published(stage) == []
