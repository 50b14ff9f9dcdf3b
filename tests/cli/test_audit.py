"""`locseal audit` as people call it: exit codes, one JSON value, narrowing, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import update

from tests.builders import change_event, results_for, signed_submission
from tests.cli.conftest import Home
from tests.fake_cms import FakeCms
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.store.engine import writing
from worker.store.schema import deliveries

Locseal = Callable[..., Any]


def released(home: Home, **changes: Any) -> str:
    """Take an event to its publication and return its delivery's id."""
    services = replace(home.services, cms=lambda _site: FakeCms(keys=home.keys))
    event = change_event(**changes)
    assert accept_submission(services, signed_submission(home.keys, event, results_for(event))).state == "accepted"
    collect_evidence(services, event["event_id"], ready=lambda name: prepare_delivery(services, name))
    advance = publish_delivery(services, event["event_id"])
    assert (advance.status, advance.delivery_id is None) == ("delivered", False)
    return str(advance.delivery_id)


def test_a_clean_database_ends_with_0(locseal: Locseal, home: Home) -> None:
    """The report counts each area; without a terminal there is no bar, and nothing on standard error."""
    released(home)
    done = locseal("audit", "--json")
    assert (done.code, done.err) == (0, "")
    report = done.json
    assert (report["schema"], report["clean"], report["violations"], report["notes"]) == (
        "locseal.audit.v1",
        True,
        [],
        [],
    )
    assert (report["checked"]["delivery"], report["checked"]["approval"], report["checked"]["key"]) == (1, 2, 5)
    assert report["elapsed_seconds"] >= 0
    told = locseal("audit")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines()[-1].startswith("clean: ")


def test_violations_end_with_1(locseal: Locseal, home: Home) -> None:
    """Each with its code, its row and one sentence."""
    delivery_id = released(home)
    released(home, event_id="event-2", source_id="other")
    damaged = update(deliveries).where(deliveries.c.delivery_id == delivery_id).values(payload="{}")
    writing(home.engine, lambda conn: conn.execute(damaged))
    done = locseal("audit", "--json")
    assert (done.code, done.err) == (1, "")
    assert done.json["violations"] == [
        {
            "code": "audit.delivery.hash_mismatch",
            "row_id": delivery_id,
            "sentence": "the stored publication is not the one that was hashed",
        }
    ]
    assert (done.json["clean"], done.json["by_code"]) == (False, {"audit.delivery.hash_mismatch": 1})
    told = locseal("audit", "--event", "event-1")
    assert (told.code, told.out.splitlines()[-1].startswith("1 violations: ")) == (1, True)
    assert f"audit.delivery.hash_mismatch  {delivery_id}" in told.out
    narrowed = locseal("audit", "--event", "event-2", "--site", "site-1", "--json")
    assert (narrowed.code, narrowed.json["event"], narrowed.json["site"]) == (0, "event-2", "site-1")


def test_the_trust_directory_of_today_adds_notes(locseal: Locseal, home: Home) -> None:
    """A key that was revoked since is named, and is no violation of then."""
    released(home)
    trust = str(home.directory / "keys" / "trust")
    assert locseal("audit", "--trust", trust, "--json").json["notes"] == []
    home.keys.revoke("publication")
    home.keys.write(home.directory / "keys" / "private", home.directory / "keys" / "trust")
    done = locseal("audit", "--trust", trust, "--json")
    assert (done.code, [note["code"] for note in done.json["notes"]]) == (0, ["audit.key.revoked"])
    assert "1 notes:" in locseal("audit", "--trust", trust).out


def test_wrong_usage_ends_with_2_and_the_unknown_is_refused(locseal: Locseal, home: Home) -> None:
    """A name that is no token is wrong usage; one that nobody knows is refused, lest its silence look clean."""
    released(home)
    assert locseal("audit", "--event", "no such thing").code == 2
    assert locseal("audit", "--colour").code == 2
    unknown = locseal("audit", "--event", "event-9", "--json")
    assert (unknown.code, unknown.json["error"]["code"]) == (1, "release.unknown")
    missing = locseal("audit", "--trust", str(home.directory / "nowhere"), "--json")
    assert (missing.code, missing.json["error"]["code"]) == (1, "keys.trust.missing")
