"""`locseal submit` and `locseal releases withdraw`: what reaches the queue, byte for byte, and what never does."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import change_event, parsed, results_for, signed_submission, submission
from tests.cli.conftest import Broker, Home
from worker.cli.sending import send
from worker.domain.canonical import canonical_text, sha256_hex
from worker.domain.errors import Blocked
from worker.flow.accept_submission import accept_submission
from worker.flow.withdraw_event import withdraw_event


@pytest.fixture
def event() -> dict[str, Any]:
    return change_event()


def written(home: Home, text: str | bytes, name: str = "submission.json") -> str:
    file = home.directory / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


def test_a_signed_file_goes_out_byte_for_byte(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any]
) -> None:
    """Whatever its spelling, the message holds the file's exact text; intake accepts it."""
    text = json.dumps(json.loads(signed_submission(home.keys, event, results_for(event))), indent=1) + "\n"
    done = locseal("submit", written(home, text), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "document_sha256": sha256_hex(text),
        "state": "sent",
        "at": None,
        "event_id": "event-1",
        "plan_id": parsed(event).plan_id,
        "locales": 2,
        "results": 2,
    }
    (message,) = broker.take()
    assert message == {"task": "release.submit", "version": 1, "submission": text}
    assert accept_submission(home.services, message["submission"]).state == "accepted"


def test_an_unsigned_file_is_signed_with_the_submission_key(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any]
) -> None:
    """The same file gives the same document each time, so a repeat is a repeat for intake too."""
    file = written(home, json.dumps(submission(event, results_for(event, locales=["de"])), indent=2))
    said = locseal("submit", file).out.splitlines()
    assert said[0] == "sent: event-1, 1 of 2 locales translated"
    assert said[-1] == "next: locseal releases show event-1"
    locseal("submit", file)
    first, second = broker.take()
    assert first == second
    assert accept_submission(home.services, first["submission"]).state == "accepted"
    document = json.loads(first["submission"])["document"]
    assert document == submission(event, results_for(event, locales=["de"]))


def test_standard_input_is_a_file(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads the document from standard input."""
    text = signed_submission(home.keys, event)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert locseal("submit", "-").code == 0
    assert [message["submission"] for message in broker.take()] == [text]


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (lambda event: event.update(source_sequence=0), "submission.invalid", "event.source_sequence"),
        (lambda event: event.update(extra=1), "submission.invalid", "event.extra"),
        (
            lambda event: event["localization"].update(target_locales=["de", "de"]),
            "submission.locale.duplicate",
            "event.localization.target_locales.1",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(
    locseal: Callable[..., Any],
    home: Home,
    broker: Broker,
    event: dict[str, Any],
    change: Callable[[dict[str, Any]], None],
    code: str,
    path: str,
) -> None:
    """A document that intake would refuse is refused here with the same code and path, signed or not."""
    change(event)
    for text in (json.dumps(submission(event)), signed_submission(home.keys, event)):
        refused = locseal("submit", written(home, text), "--json")
        assert refused.code == 1
        assert (refused.json["error"]["code"], refused.json["error"].get("path", "")) == (code, path)
    assert broker.take() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a":1,"a":1}', b"\xff", '{"document":{},"signature":"x"}'])
def test_what_is_no_document_is_not_sent(
    locseal: Callable[..., Any], home: Home, broker: Broker, text: str | bytes
) -> None:
    """Bad JSON and bad envelopes are `submission.invalid`."""
    refused = locseal("submit", written(home, text), "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "submission.invalid")
    assert broker.take() == []


def test_a_missing_file_is_wrong_usage(locseal: Callable[..., Any], home: Home, broker: Broker) -> None:
    """A file that cannot be read is exit code 2."""
    assert locseal("submit", str(home.directory / "none.json")).code == 2
    assert broker.take() == []


def test_a_key_of_another_site_signs_nothing(locseal: Callable[..., Any], home: Home, broker: Broker) -> None:
    """Intake would refuse it, so it is not sent; the refusal names the command that helps."""
    event = change_event(site_id="site-9")
    refused = locseal("submit", written(home, json.dumps(submission(event))))
    assert refused.code == 1
    assert refused.err.splitlines() == [
        "submission.key.not_for_site: the submission key submission-1 does not speak for the site site-9",
        "allowed: locseal keys generate submission --site site-9 --first",
    ]
    assert broker.take() == []


def test_without_a_submission_key_an_unsigned_file_is_refused(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any], tmp_path: Path
) -> None:
    """The refusal says how to make one; a signed file needs no key of this machine."""
    keys = tmp_path / "other"
    (keys / "trust").mkdir(parents=True)
    (keys / "trust" / "approval.jwks.json").write_text(json.dumps(home.keys.jwks("approval")))
    refused = locseal("submit", written(home, json.dumps(submission(event))), "--keys", str(keys))
    assert refused.code == 1
    assert refused.err.startswith("keys.signer.missing: no active key of submission is held in ")
    assert locseal("submit", written(home, signed_submission(home.keys, event)), "--keys", str(keys)).code == 0
    assert len(broker.take()) == 1


def test_a_dead_broker_is_a_retryable_refusal(locseal: Callable[..., Any], home: Home, event: dict[str, Any]) -> None:
    """Nothing was taken, so the producer keeps the file and tries again."""
    refused = locseal("submit", written(home, signed_submission(home.keys, event)), "--json")
    assert refused.code == 1
    assert (refused.json["error"]["code"], refused.json["error"]["retryable"]) == ("queue.unavailable", True)


def test_waiting_ends_when_it_is_accepted(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any]
) -> None:
    """What was accepted before is not sent again; `--wait` may stand alone or with seconds, before or after the file."""
    text = signed_submission(home.keys, event)
    accept_submission(home.services, text)
    file = written(home, text)
    for arguments in (["--wait", file], [file, "--wait"], [file, "--wait", "5"], ["--wait", "0.5", file]):
        done = locseal("submit", *arguments, "--json")
        assert (done.code, done.json["state"], done.json["document_sha256"]) == (0, "accepted", sha256_hex(text))
    assert broker.take() == []


def test_waiting_gives_up_and_says_what_is_free(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any]
) -> None:
    """Sent once, not seen: a refusal, since the command did not do what was asked; sending again is free."""
    refused = locseal("submit", written(home, signed_submission(home.keys, event)), "--wait", "0", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "submission.not_seen")
    assert len(broker.take()) == 1


class Taking:
    """A queue whose other end takes each message in at once."""

    def __init__(self, take: Callable[[str], Any]) -> None:
        self.sent: list[str] = []
        self._take = take

    def submit(self, _message: str, _member: str, text: str) -> None:
        self.sent.append(text)
        self._take(text)


def test_a_rejection_ends_the_waiting_with_its_code(home: Home, event: dict[str, Any]) -> None:
    """A rejection of an earlier try is no answer; the one that follows is, and afterwards an acceptance wins."""
    home.keys.revoke("submission")
    text = signed_submission_unverified(home, event)
    home.keys.write(home.directory / "keys" / "private", home.directory / "keys" / "trust")
    queue: Any = Taking(lambda sent: accept_submission(home.services, sent))
    for tries in (1, 2):
        with pytest.raises(Blocked) as caught:
            send("release.submit", "submission", text, wait_seconds=5, queue=queue, sleep=lambda _: None)
        assert caught.value.code == "submission.signature.invalid"
        assert len(queue.sent) == tries


def signed_submission_unverified(home: Home, event: dict[str, Any]) -> str:
    """Sign with a key that is revoked by now."""
    from worker.domain.signature import SignedDocument, sign_detached

    unsigned = SignedDocument(submission(event), "")
    signature = sign_detached(
        "submission", home.keys.kids["submission"], home.keys.private["submission"], unsigned.payload()
    )
    return unsigned.signed(signature).to_text()


def test_a_message_is_sent_again_while_nobody_has_seen_it(home: Home, event: dict[str, Any]) -> None:
    """A broker that loses the first message costs only time: the second is taken in."""
    text = signed_submission(home.keys, event)
    queue: Any = Taking(lambda sent: None if len(queue.sent) < 2 else accept_submission(home.services, sent))
    ticks = iter(range(0, 10_000, 7))
    done = send(
        "release.submit",
        "submission",
        text,
        wait_seconds=120,
        queue=queue,
        sleep=lambda _: None,
        ticks=lambda: float(next(ticks)),
    )
    assert (done.state, queue.sent) == ("accepted", [text, text])


def test_a_withdrawal_is_signed_and_sent(
    locseal: Callable[..., Any], home: Home, broker: Broker, event: dict[str, Any]
) -> None:
    """The site comes from the database; the flow accepts what was sent."""
    accept_submission(home.services, signed_submission(home.keys, event))
    done = locseal("releases", "withdraw", "event-1", "--json")
    assert (done.code, done.json["state"]) == (0, "sent")
    (message,) = broker.take()
    assert (message["task"], message["version"]) == ("release.withdraw", 1)
    assert json.loads(message["withdrawal"])["document"] == {
        "schema": "locseal.withdrawal.v1",
        "event_id": "event-1",
        "site_id": "site-1",
    }
    assert withdraw_event(home.services, message["withdrawal"]).state == "accepted"
    assert locseal("releases", "show", "event-1", "--json").json["state"] == "withdrawn"


def test_an_unknown_event_is_withdrawn_only_with_its_site(
    locseal: Callable[..., Any], home: Home, broker: Broker
) -> None:
    """A withdrawal may overtake its event, but somebody has to say whose event it is."""
    refused = locseal("releases", "withdraw", "event-9")
    assert (refused.code, refused.err.split(":")[0]) == (1, "coordinator.event_id.unknown")
    assert broker.take() == []
    assert locseal("releases", "withdraw", "event-9", "--site", "site-1").code == 0
    (message,) = broker.take()
    assert message["withdrawal"] == canonical_text(json.loads(message["withdrawal"]))
