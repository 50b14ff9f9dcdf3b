"""A website version released step by step on the fleet: what each step finds, what it sends, and what stays untouched."""

from __future__ import annotations

import pytest

from tests.builders import Keyring
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from tests.flow.releasing import Release
from worker.domain.policy import SitePolicy
from worker.flow.services import Services


@pytest.fixture
def release(services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies) -> Release:
    """A guided site with two approved events, and nothing planned."""
    policies.policy = SitePolicy(publication="guided")
    found = Release(services=services, queue=queue, keys=keys, cms=FakeCms(keys=keys))
    found.approve(["home", "about"])
    return found


def test_a_release_runs_step_by_step(release: Release) -> None:
    """Each start is one step; both events are published once, in the publish step and not before."""
    release.live(3)
    assert release.cms.requests == []
    release.plan()
    results = []
    for step in ("preflight", "evidence", "prepare", "publish", "verify"):
        assert release.start()["recommended_next"]["step_id"] == step
        release.live(4)
        results.append(release.step(step))
        if step == "prepare":
            assert release.cms.requests == []
    assert results == [
        ("succeeded", "preflight_passed"),
        ("succeeded", "all_approved"),
        ("succeeded", "all_prepared"),
        ("succeeded", "all_acknowledged"),
        ("succeeded", "all_confirmed"),
    ]
    assert sorted(release.publications().values()) == [1, 1]
    assert release.view()["state"]["status"] == "completed"
