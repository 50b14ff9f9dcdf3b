"""Policies from a file: defaults, overrides, changes without a restart, and what stops work instead of guessing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worker.adapters.policies import FilePolicies
from worker.domain.errors import Unavailable
from worker.domain.policy import SitePolicy


class Clock:
    """Ticks that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, value: Any) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1_000_000))


def test_without_a_file_every_site_has_the_defaults() -> None:
    """No file means the product's defaults, with the leases of the settings."""
    policies = FilePolicies(None, defaults={"evidence_lease_seconds": 20.0})
    assert policies.for_site("any") == SitePolicy(evidence_lease_seconds=20.0)


def test_a_site_overrides_the_default(tmp_path: Path) -> None:
    """A site's entry changes members of the file's default; others stay, also for sites that are not named."""
    path = tmp_path / "policy.json"
    write(path, {"default": {"evidence_max_attempts": 3}, "sites": {"shop": {"publication": "guided"}}})
    policies = FilePolicies(path)
    assert policies.for_site("shop") == SitePolicy(evidence_max_attempts=3, publication="guided")
    assert policies.for_site("blog") == SitePolicy(evidence_max_attempts=3)


def test_a_change_is_seen_without_a_restart(tmp_path: Path) -> None:
    """The file is looked at once a second, and a broken one stops work until it is mended."""
    path, ticks = tmp_path / "policy.json", Clock()
    write(path, {})
    policies = FilePolicies(path, ticks=ticks)
    assert policies.for_site("shop").publication == "automatic"
    write(path, {"default": {"publication": "guided"}})
    assert policies.for_site("shop").publication == "automatic"
    ticks.now = 1.0
    assert policies.for_site("shop").publication == "guided"
    write(path, '{"default": {')
    ticks.now = 2.0
    with pytest.raises(Unavailable) as refusal:
        policies.for_site("shop")
    assert (refusal.value.code, refusal.value.retryable) == ("policy.unavailable", True)
    write(path, {"default": {"approval_ttl_seconds": 60}})
    ticks.now = 3.0
    assert policies.for_site("shop").approval_ttl_seconds == 60


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        '{"default": {}, "default": {}}',
        {"defaults": {}},
        {"default": []},
        {"default": {"publication": "never"}},
        {"default": {"unknown": 1}},
        {"default": {"approval_ttl_seconds": 31_536_001}},
        {"sites": {"a b": {}}},
        {"sites": {"shop": 1}},
        {"sites": {"shop": {"evidence_lease_seconds": 10}}},
    ],
)
def test_a_file_that_cannot_be_used_stops_every_site(tmp_path: Path, value: Any) -> None:
    """A broken file, an unknown member or a lease that the process cannot keep is no policy for anybody."""

    def check(policy: SitePolicy) -> None:
        if policy.evidence_lease_seconds < 20:
            raise ValueError("evidence_lease_seconds must exceed the calls under it")

    path = tmp_path / "policy.json"
    write(path, value)
    policies = FilePolicies(path, check=check)
    for site in ("shop", "blog"):
        with pytest.raises(Unavailable) as refusal:
            policies.for_site(site)
        assert refusal.value.code == "policy.unavailable"


def test_a_missing_file_stops_every_site(tmp_path: Path) -> None:
    """A file that is configured and not there is a fault, not a default."""
    with pytest.raises(Unavailable, match="LOCSEAL_POLICY_FILE"):
        FilePolicies(tmp_path / "none.json").for_site("shop")
