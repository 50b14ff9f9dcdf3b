"""The review route `checks`, as the settings name it: gates in process, and what needs more is handed on or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import SettingsError, load_settings
from tests.builders import change_event, results_for, signed_submission
from tests.cli.conftest import Home
from tests.fakes import RecordingQueue
from worker.bootstrap import build_plant
from worker.domain.errors import Invalid
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.schema import approvals, evidence


@contextmanager
def routes(home: Home, monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any]) -> Iterator[Services]:
    monkeypatch.setenv("LOCSEAL_PROVIDERS", json.dumps(entries))
    plant = build_plant(load_settings(), worker_id="w-test", queue=RecordingQueue())
    try:
        yield replace(plant.services, engine=home.engine)
    finally:
        plant.services.engine.dispose()
        plant.close()


def collected(home: Home, services: Services, **changes: Any) -> list[tuple[str, str | None]]:
    """Submit one locale and collect; return the state and code of its evidence."""
    given = {name: changes.pop(name) for name in ("candidate", "confidence") if name in changes}
    event = change_event(target_locales=["de"], **changes)
    text = signed_submission(home.keys, event, results_for(event, **given))
    assert accept_submission(services, text).state == "accepted"
    collect_evidence(services, event["event_id"], ready=lambda _: None)
    with reading(home.engine) as conn:
        return [(row.status, row.last_error_code) for row in conn.execute(evidence.select())]


def test_a_good_text_is_approved_without_any_service(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route of the settings signs the quality receipt with this machine's key, and that verifies."""
    with routes(home, monkeypatch, {"default": {"kind": "checks"}}) as services:
        assert collected(home, services, source_text="Hi {name}", candidate="Hallo {name}") == [("succeeded", None)]
    with reading(home.engine) as conn:
        assert len(conn.execute(approvals.select()).all()) == 1


def test_a_lost_placeholder_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding that blocks fails the row at once with its code; rules from a file may allow it."""
    with routes(home, monkeypatch, {"default": {"kind": "checks"}}) as services:
        ((status, code),) = collected(home, services, source_text="Hi {name}", candidate="Hallo du")
    assert (status, str(code).startswith("evidence.checks.")) == ("failed", True)


@pytest.mark.parametrize(
    ("then", "expected"),
    [(None, ("failed", "evidence.checks.human_review_required")), ("people", ("succeeded", None))],
)
def test_legal_content_is_handed_on(
    home: Home, monkeypatch: pytest.MonkeyPatch, then: str | None, expected: tuple[str, str | None]
) -> None:
    """The checks never stand for a human; the route in `then` gives the receipt, and without one it is refused."""
    entry = {"kind": "checks"} if then is None else {"kind": "checks", "then": then}
    with routes(home, monkeypatch, {"default": entry, "people": {"kind": "local"}}) as services:
        assert collected(home, services, content_type="legal") == [expected]


@pytest.mark.parametrize(
    "entries",
    [
        {"default": {"kind": "checks", "then": "nobody"}},
        {"default": {"kind": "checks", "then": "default"}},
        {"default": {"kind": "checks", "always_then": True}},
        {"default": {"kind": "checks", "url": "https://reviews.example"}},
        {"default": {"kind": "local", "then": "default"}},
        {"default": {"kind": "checks", "rules_file": "/nowhere/rules.json"}},
    ],
)
def test_a_route_that_cannot_work_is_refused_at_start(
    home: Home, monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any]
) -> None:
    """No ring of routes, no member that the kind does not have, no file that is not there."""
    with pytest.raises(SettingsError), routes(home, monkeypatch, entries):
        pass


def test_wrong_rules_are_refused_at_start(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rule for a finding that there is not never passes unnoticed."""
    rules = tmp_path / "rules.json"
    rules.write_text('{"default": {"block": ["no.such.finding"]}}')
    with (
        pytest.raises(Invalid, match=r"checks\.policy\.invalid"),
        routes(home, monkeypatch, {"default": {"kind": "checks", "rules_file": str(rules)}}),
    ):
        pass
