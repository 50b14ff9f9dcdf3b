"""Valid inputs and plans of release runs, and small drivers, for the tests of the machine and of its store."""

from __future__ import annotations

from typing import Any

WORKSPACE = "a" * 64
AT = "2026-01-02T03:04:05Z"
SECOND = 1_767_323_045.0  # AT, in seconds since the epoch
RUN_ID = "rr-20260102T030405Z-0123456789ab"

Json = dict[str, Any]


def software_input(**changes: Any) -> Json:
    """Return a valid software input."""
    return {
        "channel": "stable",
        "repo_versions": {"site": "1.2.3", "api": "0.1.0-rc.1"},
        "online": True,
        "remote_tags": False,
        "public_catalog": False,
        "include_migrations": True,
        "workspace_fingerprint": WORKSPACE,
        **changes,
    }


def localization_input(**changes: Any) -> Json:
    """Return a valid localization input of two sources."""
    return {
        "channel": "site:one",
        "website_version": "2026.11",
        "events": {
            "home": {"event_id": "e-1", "source_sequence": 1, "source_sha256": "b" * 64, "plan_id": "plan-1"},
            "about": {"event_id": "e-2", "source_sequence": 7, "source_sha256": "c" * 64, "plan_id": "plan-2"},
        },
        "workspace_fingerprint": WORKSPACE,
        **changes,
    }


def step(step_id: str, **changes: Any) -> Json:
    """Return a valid planned step."""
    return {
        "id": step_id,
        "title": f"Title of {step_id}",
        "detail": f"Detail of {step_id}",
        "command": None,
        "cwd": None,
        "mutating": False,
        "repo": None,
        "status": "planned",
        **changes,
    }


def software_plan(**changes: Any) -> Json:
    """Return a valid plan for `software_input`: a read-only step, a mutating one, a read-only one."""
    return {
        "generated_at": AT,
        "target_channel": "stable",
        "status": "ready",
        "units": [{"repo": "api", "target_version": "0.1.0-rc.1"}, {"repo": "site", "target_version": "1.2.3"}],
        "compatibility": [],
        "dry_run_steps": [step("check"), step("publish", mutating=True), step("verify")],
        "notes": [],
        "gate_findings": [],
        "recommended_action": None,
        "source_preflight_ready": True,
        **changes,
    }


def localization_plan(**changes: Any) -> Json:
    """Return a valid plan for `localization_input`."""
    units = [
        {"source_id": "home", "event_id": "e-1", "plan_id": "plan-1"},
        {"source_id": "about", "event_id": "e-2", "plan_id": "plan-2"},
    ]
    return software_plan(target_channel="site:one", units=units) | changes
