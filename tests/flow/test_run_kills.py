"""Kill the fleet at every checkpoint of a guided release, and at random: it is repaired, and nothing is published twice.

The operator does what `locseal runs show` recommends: start, retry, resume what hangs, reconcile what may have gone out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Table

from tests.builders import Keyring
from tests.fake_cms import FakeCms
from tests.fakes import Crash, FixedPolicies, RecordingQueue
from tests.flow.releasing import Release
from worker.domain.delivery import CmsAnswer
from worker.domain.errors import RunConflict
from worker.domain.policy import SitePolicy
from worker.domain.signature import SignedDocument
from worker.flow.services import Services
from worker.store.schema import deliveries, delivery_permits, run_commands

Rows = Callable[[Table], list[dict[str, Any]]]
SOURCES = ["home", "about"]


@dataclass
class CountingCms(FakeCms):
    """A CMS that counts how often it published each delivery."""

    published: list[str] = field(default_factory=list)

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Take one delivery, and count it where it goes live."""
        if (self.sends[0] if self.sends else "accept") in {"accept", "lost"}:
            self.published.append(delivery_id)
        return await super().publish(delivery, delivery_id=delivery_id, deadline_seconds=deadline_seconds)


@dataclass
class Killer:
    """A `Services.checkpoint` that dies at the n-th checkpoint from now, or at a name; None lives on."""

    left: int | None = None
    name: str | None = None
    passed: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        """Pass a checkpoint, or die there."""
        self.passed.append(name)
        if self.left is not None:
            self.left -= 1
        if self.left == 0 or name == self.name:
            self.left = self.name = None
            raise Crash(name)


@pytest.fixture
def killer() -> Killer:
    """The checkpoints of `release`."""
    return Killer()


@pytest.fixture
def cms(keys: Keyring) -> CountingCms:
    """The CMS of `release`."""
    return CountingCms(keys=keys)


@pytest.fixture
def release(
    services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies, killer: Killer, cms: CountingCms
) -> Release:
    """A guided site with two approved events and a run."""
    policies.policy = SitePolicy(publication="guided")
    found = Release(services=services, queue=queue, keys=keys, cms=cms)
    found.approve(SOURCES)
    found.services = replace(services, checkpoint=killer)
    found.plan()
    return found


def act(release: Release, *, is_patient: bool) -> None:
    """Do what an operator does about a run as it stands; a patient one waits for a lease to end before resuming."""
    advice = release.view()["recommended_next"]
    if advice["id"] == "wait_for_step":
        release.live(2)
        if release.view()["recommended_next"]["id"] == "wait_for_step" and not is_patient:
            release.resume(force=True)
        elif release.view()["recommended_next"]["id"] == "wait_for_step":
            release.now += 301
            release.live(2)
            advice = release.view()["recommended_next"]
            if advice == "wait_for_step" or (advice["id"], advice["step_id"]) == ("wait_for_step", "publish"):
                release.resume()
    elif advice["id"] == "retry_step":
        release.retry(advice["step_id"])
    elif advice["id"] == "reconcile_step":
        release.now += 61
        try:
            release.reconcile()
        except RunConflict:  # a delivery is under a lease; it ends by itself
            release.now += 301
            release.live()
    elif advice["id"] == "execute_step":
        release.start()
    release.live(2)


def repair(release: Release, *, is_patient: bool) -> None:
    """Act until the run is complete."""
    for _ in range(60):
        if release.view()["state"]["status"] == "completed":
            return
        act(release, is_patient=is_patient)
    raise AssertionError(release.view()["state"])


def released(release: Release, cms: CountingCms, rows: Rows) -> None:
    """Hold the end: one publication for each event, every row settled, no permit and no command left open."""
    release.now += 301
    release.live(3)
    assert release.view()["state"]["status"] == "completed"
    assert {row["status"] for row in rows(deliveries)} == {"succeeded"}
    assert sorted(cms.published) == sorted(row["delivery_id"] for row in rows(deliveries))
    assert len({body for _, body in cms.requests}) == len(rows(deliveries)) >= len(SOURCES)
    assert rows(delivery_permits) == []
    assert {row["status"] for row in rows(run_commands)} <= {"succeeded"}


STEPS = ["preflight", "evidence", "prepare", "publish", "verify"]
EVERYWHERE = ["run.started", "run.claimed", "run.visited", "run.left"]
PLACES = [
    *((step, name) for step in STEPS for name in EVERYWHERE),
    ("publish", "run.permitted"),
    ("publish", "run.sending"),
    ("publish", "publish.claimed"),
    ("publish", "publish.answered"),
    ("publish", "publish.settled"),
    ("verify", "run.verified"),
]


def test_every_checkpoint_of_a_run_is_killed_at(release: Release, killer: Killer) -> None:
    """The table above holds every checkpoint that a guided release passes, sweeps and reconciling aside."""
    repair(release, is_patient=True)
    passed = {name for name in killer.passed if name.startswith(("run.", "publish."))}
    assert passed == {name for _, name in PLACES}


@pytest.mark.parametrize("is_patient", [True, False], ids=["patient", "forcing"])
@pytest.mark.parametrize(("step", "name"), PLACES)
def test_a_kill_anywhere_ends_the_same(
    release: Release, cms: CountingCms, killer: Killer, rows: Rows, step: str, name: str, is_patient: bool
) -> None:
    """Resume, retry, reconcile: the run completes, with one publication for each event."""
    release.until(step)
    killer.name = name
    with pytest.raises(Crash):
        release.start()
        release.live(3)
    release.queue.take()
    repair(release, is_patient=is_patient)
    released(release, cms, rows)


@pytest.mark.parametrize("seed", range(5))
def test_random_kills_never_publish_twice(
    release: Release, cms: CountingCms, killer: Killer, rows: Rows, seed: int
) -> None:
    """Twenty random kills, five times on each database, with lost answers and silent look-ups, over as many releases."""
    chance = random.Random(seed)
    kills = versions = 0
    while kills < 20:
        if release.view()["state"]["status"] == "completed":
            versions += 1
            release.version = f"2026.{versions + 10}"
            release.approve([f"home-{versions}", f"about-{versions}"])
            release.plan()
        killer.left = chance.randint(1, 12)
        cms.sends[:] = chance.choices(["accept", "lost", "timeout", "not_now"], weights=[4, 2, 2, 1], k=3)
        cms.lookups[:] = chance.choices(["truth", "silent"], weights=[3, 1], k=2)
        try:
            act(release, is_patient=chance.random() < 0.5)
        except Crash:
            kills += 1
            release.queue.take()
            release.now += chance.choice([1.0, 31.0, 61.0, 301.0])
        killer.left = None
    cms.sends.clear()
    cms.lookups.clear()
    repair(release, is_patient=True)
    released(release, cms, rows)
