"""`locseal approvals`: what stands until when, and a revocation that shows first what it stops."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import change_event, job_for, results_for, signed_submission
from tests.cli.conftest import Home
from tests.fake_cms import FakeCms
from worker.domain.errors import Blocked
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.store.engine import reading
from worker.store.schema import approvals, deliveries

Run = Callable[..., Any]
EVENT = change_event()


@pytest.fixture
def prepared(home: Home) -> Home:
    """Two locales approved, and their delivery prepared."""
    accept_submission(home.services, signed_submission(home.keys, EVENT, results_for(EVENT)))
    collect_evidence(home.services, None, ready=lambda _: None)
    prepare_delivery(home.services, "event-1")
    return home


def stored(home: Home) -> dict[str, dict[str, Any]]:
    """Return the approvals by job."""
    with reading(home.engine) as conn:
        return {row["job_id"]: dict(row) for row in conn.execute(approvals.select()).mappings()}


def of(home: Home, locale: str) -> dict[str, Any]:
    return stored(home)[job_for(EVENT, locale).job_id]


def test_list_shows_state_and_end(locseal: Run, prepared: Home) -> None:
    """Filtered by event, job, site, state and end; in pages."""
    page = locseal("approvals", "list", "--json").json
    assert [(one["state"], one["target_locale"]) for one in page["approvals"]].count(("standing", "de")) == 1
    assert page["next"] is None
    first = locseal("approvals", "list", "--limit", "1", "--json").json
    rest = locseal("approvals", "list", "--limit", "1", "--before", first["next"], "--json").json
    assert first["approvals"] + rest["approvals"] == page["approvals"]
    [alone] = locseal("approvals", "list", "--job", job_for(EVENT, "de").job_id, "--json").json["approvals"]
    assert alone["approval_id"] == of(prepared, "de")["approval_id"]
    assert len(locseal("approvals", "list", "--event", "event-1", "--json").json["approvals"]) == 2
    assert locseal("approvals", "list", "--site", "elsewhere").out == "no such approval\n"
    assert locseal("approvals", "list", "--state", "expired").out == "no such approval\n"
    assert locseal("approvals", "list", "--expires-within", "29").out == "no such approval\n"
    assert len(locseal("approvals", "list", "--expires-within", "31", "--json").json["approvals"]) == 2
    assert locseal("approvals", "list", "--state", "good").code == 2


def test_revoke_shows_first_what_it_stops(locseal: Run, prepared: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a yes nothing happens; with one the approval never stands again, and the delivery is not sent."""
    approval = of(prepared, "de")["approval_id"]
    with reading(prepared.engine) as conn:
        delivery_id = conn.execute(deliveries.select()).mappings().one()["delivery_id"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    declined = locseal("approvals", "revoke", approval, "--reason", "wrong term")
    assert (declined.code, of(prepared, "de")["revoked_at"]) == (1, None)
    assert f"delivery {delivery_id} of event-1: stopped before it is sent" in declined.err
    assert "release.approval.not_confirmed" in declined.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    done = locseal("approvals", "revoke", approval, "--reason", "wrong term", "--operator", "ada")
    assert (done.code, done.out.splitlines()[0].strip()) == (0, f"{approval}: revoked")
    row = of(prepared, "de")
    assert (row["revoked_reason"], row["revoked_by"], row["revoked_at"] is not None) == ("wrong term", "ada", True)
    cms = FakeCms(keys=prepared.keys)
    with pytest.raises(Blocked, match=r"cms\.delivery\.approval_expired"):
        publish_delivery(replace(prepared.services, cms=lambda _site: cms), "event-1")
    assert cms.requests == []
    assert "locseal evidence renew event-1" in done.out


def test_with_json_it_has_to_be_meant(locseal: Run, prepared: Home) -> None:
    """Without --yes the refusal holds what would be stopped; with it, what was."""
    approval = of(prepared, "de")["approval_id"]
    asked = locseal("approvals", "revoke", approval, "--reason", "r", "--json")
    assert (asked.code, asked.json["error"]["code"]) == (1, "release.approval.not_confirmed")
    [stopped] = asked.json["error"]["details"]["deliveries"]
    assert (stopped["event_id"], stopped["is_live_perhaps"]) == ("event-1", False)
    assert of(prepared, "de")["revoked_at"] is None
    done = locseal("approvals", "revoke", approval, "--reason", "r", "--yes", "--json")
    assert (done.code, done.json["is_new"], done.json["approval"]["state"]) == (0, True, "revoked")
    assert done.json["deliveries"] == [stopped]


def test_a_revocation_is_sticky(locseal: Run, prepared: Home) -> None:
    """A second one changes neither its time, reason nor operator."""
    approval = of(prepared, "de")["approval_id"]
    locseal("approvals", "revoke", approval, "--reason", "first", "--operator", "ada", "--yes")
    before = of(prepared, "de")
    done = locseal("approvals", "revoke", approval, "--reason", "second", "--operator", "bob")
    assert (done.code, of(prepared, "de")) == (0, before)
    assert "was revoked before" in done.out


def test_refusals(locseal: Run, prepared: Home) -> None:
    """No reason is wrong usage; an unknown approval is a refusal."""
    assert locseal("approvals", "revoke", of(prepared, "de")["approval_id"]).code == 2
    assert locseal("approvals", "revoke", of(prepared, "de")["approval_id"], "--reason", " ").code == 2
    for extra in ((), ("--yes",)):
        done = locseal("approvals", "revoke", "approval-9", "--reason", "r", "--json", *extra)
        assert (done.code, done.json["error"]["code"]) == (1, "release.approval.unknown")


def test_a_revoked_text_may_be_replaced(locseal: Run, prepared: Home) -> None:
    """Refused while its approval stands; once that is revoked, the corrected translation takes its place."""
    [old] = results_for(EVENT, locales=["de"])
    digest = of(prepared, "de")["result_sha256"]
    [new] = results_for(EVENT, locales=["de"], candidate="Willkommen zurück.", replaces=digest)
    text = signed_submission(prepared.keys, EVENT, [new])
    assert accept_submission(prepared.services, text).code == "submission.result.approved"
    locseal("approvals", "revoke", of(prepared, "de")["approval_id"], "--reason", "wrong term", "--yes")
    assert accept_submission(prepared.services, text).state == "accepted"
    assert old["candidate"] != new["candidate"]
    states = {one["approval_id"]: one["state"] for one in locseal("approvals", "list", "--json").json["approvals"]}
    assert states[of(prepared, "de")["approval_id"]] == "revoked"
