"""`releases`, `rejections`, `deliveries` and `db` on a real SQLite file that the real flow has filled."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.builders import change_event, results_for, signed_submission
from tests.cli.conftest import Home
from tests.fake_cms import FakeCms
from tests.fakes import RecordingQueue
from worker.domain.errors import Blocked
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.store.engine import reading, writing
from worker.store.schema import deliveries, delivery_answers, delivery_history


def taken_in(home: Home, *, locales: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """Have an event accepted with results for all or some of its locales."""
    event = change_event(**changes)
    text = signed_submission(home.keys, event, results_for(event, locales=locales))
    assert accept_submission(home.services, text).state == "accepted"
    return event


def approved(home: Home, **changes: Any) -> dict[str, Any]:
    """Have an event accepted and all its locales approved by the in-process reviewer."""
    event = taken_in(home, **changes)
    assert collect_evidence(home.services, event["event_id"], ready=lambda _: None).failed == 0
    return event


def with_cms(home: Home, **behaviour: Any) -> tuple[Services, FakeCms]:
    cms = FakeCms(keys=home.keys, **behaviour)
    return replace(home.services, cms=lambda _site: cms), cms


# --- releases -------------------------------------------------------------------------------------------------------


def test_show_follows_an_event_to_its_publication(locseal: Callable[..., Any], home: Home) -> None:
    """Sentence, locales and next command at each step, from missing translations to the CMS's word."""

    def shown() -> Any:
        done = locseal("releases", "show", "event-1", "--json")
        assert (done.code, done.err) == (0, "")
        return done.json

    event = taken_in(home, locales=["de"])
    first = shown()
    assert first["waiting"].startswith("waiting for: de, quality receipt and fr-CA, a translation; since ")
    assert first["next"] == ["locseal submit FILE"]
    assert [(one["target_locale"], one["state"]) for one in first["locales"]] == [
        ("de", "due"),
        ("fr-CA", "untranslated"),
    ]
    accept_submission(home.services, signed_submission(home.keys, event, results_for(event)))
    collect_evidence(home.services, "event-1", ready=lambda _: None)
    ready = shown()
    assert ready["waiting"].startswith("waiting for: its delivery to be prepared; since ")
    assert [one["state"] for one in ready["locales"]] == ["approved", "approved"]
    assert [(one["kind"], one["state"], one["kid"]) for one in ready["documents"]] == [
        ("release", "accepted", "submission-1")
    ] * 2
    delivery_id = prepare_delivery(home.services, "event-1").delivery_id
    prepared = shown()
    assert prepared["waiting"].startswith("waiting for: the CMS to accept the delivery; since ")
    assert [(one["delivery_id"], one["status"]) for one in prepared["deliveries"]] == [(delivery_id, "pending")]
    services, _ = with_cms(home)
    assert publish_delivery(services, "event-1").status == "delivered"
    done = shown()
    assert (done["state"], done["next"]) == ("delivered", [])
    assert done["waiting"].startswith("published at ")
    text = locseal("releases", "show", "event-1")
    lines = text.out.splitlines()
    assert (text.code, lines[0], lines[1]) == (0, "event-1: delivered", done["waiting"])
    assert "Welcome" not in text.out + json.dumps([first, ready, prepared, done])


def test_a_guided_site_waits_for_a_run(
    locseal: Callable[..., Any], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's policy is read as the workers read it."""
    approved(home)
    prepare_delivery(home.services, "event-1")
    policy = home.directory / "policy.json"
    policy.write_text('{"default":{"publication":"guided"},"sites":{}}')
    monkeypatch.setenv("LOCSEAL_POLICY_FILE", str(policy))
    shown = locseal("releases", "show", "event-1", "--json").json
    assert "not before a release run publishes it" in shown["waiting"]
    assert shown["next"] == ["locseal runs list"]


def test_an_unknown_event_is_a_refusal(locseal: Callable[..., Any], home: Home) -> None:
    """It says where to look: it may have been rejected, or not sent."""
    refused = locseal("releases", "show", "event-9", "--json")
    assert refused.code == 1
    assert refused.json["error"]["code"] == "coordinator.event_id.unknown"
    assert refused.json["error"]["allowed"] == [
        "locseal releases list",
        "locseal rejections list",
        "locseal submit FILE --wait",
    ]


def test_list_in_pages(locseal: Callable[..., Any], home: Home) -> None:
    """Newest first; `next` is what the next page needs, and null on the last; filters are checked."""
    for number in range(5):
        taken_in(home, event_id=f"event-{number}", source_id=f"source-{number}")
    seen, before = [], []
    while True:
        page = locseal("releases", "list", "--limit", "2", *before, "--json").json
        seen += [one["event_id"] for one in page["events"]]
        if page["next"] is None:
            break
        before = ["--before", page["next"]]
    assert seen == ["event-4", "event-3", "event-2", "event-1", "event-0"]
    text = locseal("releases", "list", "--limit", "2").out.splitlines()
    assert text[0].split() == ["EVENT", "STATE", "APPROVED", "DELIVERY", "SITE", "VERSION", "CREATED"]
    assert text[1].split()[:5] == ["event-4", "open", "0/2", "-", "site-1"]
    assert text[3].startswith("more: --before ")
    assert locseal("releases", "list", "--state", "delivered").out == "no such change event\n"
    assert locseal("releases", "list", "--state", "gone").code == 2
    assert locseal("releases", "list", "--before", "x").code == 2
    assert locseal("releases", "list", "--limit", "0").code == 2


def test_watch_ends_with_the_event(locseal: Callable[..., Any], home: Home) -> None:
    """An ended event is one line, as text and as JSON."""
    approved(home)
    prepare_delivery(home.services, "event-1")
    publish_delivery(with_cms(home)[0], "event-1")
    watched = locseal("releases", "watch", "event-1")
    assert (watched.code, watched.out.count("\n")) == (0, 1)
    assert "  published at " in watched.out
    assert json.loads(locseal("releases", "watch", "event-1", "--json").out)["state"] == "delivered"


def test_show_says_of_each_locale_what_it_waits_for(locseal: Callable[..., Any], home: Home) -> None:
    """Why, until when, when it gives up, and the next command; of an approved one until when it stands."""
    event = taken_in(home, locales=["de"])
    shown = locseal("releases", "show", "event-1", "--json").json
    german, french = shown["locales"]
    assert german["waiting"].startswith("waiting for: de, quality receipt; since ")
    assert "; due now, as soon as a worker is free; gives up at " in german["waiting"]
    assert german["waiting"].endswith(" UTC")
    assert (french["waiting"], french["next"]) == ("waiting for: fr-CA, a translation", ["locseal submit FILE"])
    text = locseal("releases", "show", "event-1").out
    assert german["waiting"].partition(";")[0] in text
    accept_submission(home.services, signed_submission(home.keys, event, results_for(event)))
    collect_evidence(home.services, "event-1", ready=lambda _: None)
    german, french = locseal("releases", "show", "event-1", "--json").json["locales"]
    assert german["waiting"].startswith("approved until 20")
    assert (german["next"], french["next"]) == ([], [])


def test_list_by_locale_code_and_age(locseal: Callable[..., Any], home: Home) -> None:
    """Each filter alone; a span that is none is wrong usage."""
    taken_in(home, event_id="event-1", source_id="a", target_locales=["de"])
    taken_in(home, event_id="event-2", source_id="b", target_locales=["ja"])

    def listed(*options: str) -> list[str]:
        return [one["event_id"] for one in locseal("releases", "list", *options, "--json").json["events"]]

    assert listed("--locale", "ja") == ["event-2"]
    assert listed("--locale", "sv") == []
    assert listed("--code", "evidence.unavailable") == []
    assert listed("--newer-than", "1h") == ["event-2", "event-1"]
    assert listed("--older-than", "1h") == []
    assert locseal("releases", "list", "--older-than", "soon").code == 2


def test_watch_without_an_event_follows_all_open_ones(locseal: Callable[..., Any], home: Home) -> None:
    """It ends when none is left; filters and an event exclude each other."""
    approved(home)
    assert locseal("releases", "watch", "event-1", "--site", "site-1").code == 2
    prepare_delivery(home.services, "event-1")
    publish_delivery(with_cms(home)[0], "event-1")
    over = locseal("releases", "watch")
    assert (over.code, over.out) == (0, "no such event is open\n")
    assert locseal("releases", "watch", "--json").out == ""


def test_watch_draws_a_table_on_a_terminal(home: Home, locseal: Callable[..., Any]) -> None:
    """On a terminal the ended event is its sentence and a table with every locale."""
    approved(home)
    prepare_delivery(home.services, "event-1")
    publish_delivery(with_cms(home)[0], "event-1")
    ours, theirs = pty.openpty()
    start = "from worker.cli.main import run; run()"
    command = [sys.executable, "-c", start, "releases", "watch", "event-1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while chunk := os.read(ours, 65_536):
                seen += chunk
        os.close(ours)
        assert process.wait(timeout=60) == 0
    drawn = seen.decode()
    assert "event-1: delivered, 2 of 2 locales approved" in drawn
    assert "published at " in drawn
    assert "approved until 20" in drawn
    assert "WHAT IT WAITS FOR" in drawn


# --- rejections -----------------------------------------------------------------------------------------------------


def test_rejections_are_listed_and_shown(locseal: Callable[..., Any], home: Home) -> None:
    """Code, path, hash, size and count; never the document, unless it was kept and is asked for."""
    event = change_event(source_sequence=0)
    text = signed_submission(home.keys, event)
    for _ in range(2):
        accept_submission(home.services, text)
    keeping = replace(home.services, keep_rejected_bodies=True)
    accept_submission(keeping, '{"canary":1}')
    page = locseal("rejections", "list", "--json").json
    assert [(one["code"], one["path"], one["times"]) for one in page["rejections"]] == [
        ("submission.invalid", "", 1),
        ("submission.invalid", "event.source_sequence", 2),
    ]
    assert all("body" not in one for one in page["rejections"])
    newest, oldest = (str(one["rejection_id"]) for one in page["rejections"])
    first = locseal("rejections", "list", "--limit", "1", "--json").json
    rest = locseal("rejections", "list", "--limit", "1", "--before", first["next"], "--json").json
    assert [first["rejections"][0], rest["rejections"][0]] == page["rejections"]
    shown = locseal("rejections", "show", newest)
    assert "canary" not in shown.out
    assert "the document was kept: --body prints it" in shown.out
    assert '{"canary":1}' in locseal("rejections", "show", newest, "--body").out
    assert locseal("rejections", "show", newest, "--body", "--json").json["body"] == '{"canary":1}'
    unkept = locseal("rejections", "show", oldest, "--body", "--json").json
    assert (unkept["is_body_kept"], unkept["body"], unkept["size_bytes"]) == (False, None, len(text.encode()))
    refused = locseal("rejections", "show", "99")
    assert (refused.code, refused.err.split(":")[0]) == (1, "rejection.unknown")
    assert locseal("rejections", "list", "--before", "1.5,x").code == 2


# --- deliveries -----------------------------------------------------------------------------------------------------


def unknown_outcome(home: Home) -> tuple[Services, str]:
    """Bring an event's delivery to `cms.outcome_unknown`: sent, torn off, and no way to ask."""
    approved(home)
    delivery_id = prepare_delivery(home.services, "event-1").delivery_id
    assert delivery_id is not None
    services, _ = with_cms(home, has_lookup=False, sends=["lost"])
    with pytest.raises(Blocked) as caught:
        publish_delivery(services, "event-1")
    assert caught.value.code == "cms.delivery.failed"
    return services, delivery_id


def rows_of(home: Home, table: Any) -> list[dict[str, Any]]:
    with reading(home.engine) as conn:
        return [dict(row) for row in conn.execute(table.select()).mappings()]


def test_deliveries_are_listed_with_what_happens(locseal: Callable[..., Any], home: Home) -> None:
    """An unknown outcome waits for a word, and is found by code, state and doubt."""
    _, delivery_id = unknown_outcome(home)
    for arguments in (
        [],
        ["--state", "failed"],
        ["--code", "cms.outcome_unknown"],
        ["--in-doubt"],
        ["--site", "site-1"],
    ):
        page = locseal("deliveries", "list", *arguments, "--json").json
        assert [one["delivery_id"] for one in page["deliveries"]] == [delivery_id], arguments
    assert page["deliveries"][0]["waiting"].startswith("waiting for: an operator's word on what the CMS has; ")
    assert "payload" not in page["deliveries"][0]
    assert locseal("deliveries", "list", "--event", "event-9").out == "no such delivery\n"
    assert locseal("deliveries", "list", "--state", "gone").code == 2
    assert locseal("releases", "show", "event-1", "--json").json["next"] == [
        f"locseal deliveries reconcile {delivery_id}"
    ]


def test_an_operators_word_settles_an_unknown_outcome(locseal: Callable[..., Any], home: Home) -> None:
    """`--accepted` with a reason: delivered; who said so and why is kept; a second word is refused."""
    _, delivery_id = unknown_outcome(home)
    done = locseal(
        "deliveries", "reconcile", delivery_id, "--accepted", "--reason", "seen live", "--operator", "ada", "--json"
    )
    assert (done.code, done.json["status"], done.json["delivery_id"]) == (0, "delivered", delivery_id)
    (word,) = rows_of(home, delivery_answers)
    assert (word["kind"], word["outcome"]) == ("operator", "accepted")
    statement = json.loads(word["document"])
    assert (statement["operator"], statement["reason"]) == ("ada", "seen live")
    again = locseal("deliveries", "reconcile", delivery_id, "--closed", "--reason", "no")
    assert (again.code, again.err.split(":")[0]) == (1, "cms.delivery.outcome_known")
    assert len(rows_of(home, delivery_answers)) == 1


def test_a_closed_delivery_may_be_retried(locseal: Callable[..., Any], home: Home) -> None:
    """Retry is refused while the outcome is unknown, with the command that comes first; after `--closed` it goes."""
    _, delivery_id = unknown_outcome(home)
    refused = locseal("deliveries", "retry", "event-1", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "cms.outcome_unknown")
    assert refused.json["error"]["allowed"] == ["locseal deliveries reconcile DELIVERY"]
    assert rows_of(home, delivery_history) == []
    closed = locseal("deliveries", "reconcile", delivery_id, "--closed", "--reason", "asked them")
    assert (closed.code, closed.out) == (0, f"{delivery_id}: closed; next: locseal deliveries retry event-1\n")
    done = locseal("deliveries", "retry", "event-1", "--json")
    assert (done.code, done.json["status"]) == (0, "approved")
    assert [row["delivery_id"] for row in rows_of(home, delivery_history)] == [delivery_id]
    assert prepare_delivery(home.services, "event-1").status == "delivery_ready"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--accepted"],
        ["--accepted", "--reason", "  "],
        ["--accepted", "--closed", "--reason", "x"],
    ],
)
def test_a_word_without_a_reason_is_wrong_usage(locseal: Callable[..., Any], home: Home, arguments: list[str]) -> None:
    """An auditor will ask how somebody knew; two words at once are none."""
    _, delivery_id = unknown_outcome(home)
    assert locseal("deliveries", "reconcile", delivery_id, *arguments).code == 2
    assert rows_of(home, delivery_answers) == []


def test_what_cannot_be_retried_or_reconciled(locseal: Callable[..., Any], home: Home) -> None:
    """Unknown ids and deliveries that did not fail are refused with their state; nothing changes."""
    approved(home)
    delivery_id = prepare_delivery(home.services, "event-1").delivery_id
    before = rows_of(home, deliveries)
    codes = {
        ("retry", "event-9"): "coordinator.event_id.unknown",
        ("retry", "event-1"): "cms.delivery.not_failed",
        ("reconcile", "delivery-9"): "cms.delivery.unknown",
        ("reconcile", delivery_id): "cms.delivery.outcome_known",
    }
    for (verb, name), code in codes.items():
        refused = locseal("deliveries", verb, str(name), "--json")
        assert (refused.code, refused.json["error"]["code"]) == (1, code)
    assert rows_of(home, deliveries) == before


# --- db -------------------------------------------------------------------------------------------------------------


def test_upgrade_makes_the_database_and_is_repeatable(
    locseal: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it every command refuses and says so; after it the private file has the newest schema."""
    monkeypatch.setenv("LOCSEAL_STATE_DIR", str(tmp_path / "state"))
    refused = locseal("releases", "list")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.splitlines()[1] == "allowed: locseal db upgrade"
    assert locseal("db", "upgrade", "--json").json == {"database": "sqlite", "upgraded": True}
    assert locseal("db", "upgrade").out == "the database has the newest schema already\n"
    assert (tmp_path / "state" / "locseal.db").stat().st_mode & 0o777 == 0o600
    assert locseal("releases", "list").code == 0


def test_a_damaged_database_is_a_refusal_and_no_traceback(locseal: Callable[..., Any], home: Home) -> None:
    """A table that is gone: a stable code and where to look."""
    writing(home.engine, lambda conn: conn.exec_driver_sql("ALTER TABLE rejections RENAME TO elsewhere"))
    refused = locseal("rejections", "list")
    assert refused.code == 1
    assert refused.err.startswith("database.unavailable: ")
    assert "allowed: locseal doctor" in refused.err


def test_a_command_leaves_no_wake_behind_that_it_could_not_send(locseal: Callable[..., Any], home: Home) -> None:
    """With the broker away a retry still commits; the sweeper makes the wake good."""
    approved(home)
    prepare_delivery(home.services, "event-1")
    failed = update(deliveries).values(status="failed", last_error_code="cms.delivery.http_422")
    writing(home.engine, lambda conn: conn.execute(failed))
    assert isinstance(home.services.queue, RecordingQueue)
    assert locseal("deliveries", "retry", "event-1").code == 0
    assert rows_of(home, deliveries) == []
