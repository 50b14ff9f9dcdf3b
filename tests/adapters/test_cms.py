"""The CMS port: one contract for the fake and the real client, then every answer a CMS may give and what it means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.adapters.conftest import run_calls
from tests.builders import (
    NOW,
    SITE,
    Keyring,
    acknowledgement_for,
    change_event,
    lookup_answer_for,
    publication_for,
)
from tests.outside import FakeCms
from tests.rough_server import RoughServer, hangs_up, reply, says
from worker.adapters.cms.http import HttpCms
from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.adapters.sandbox.server import SandboxThread
from worker.domain.canonical import sha256_hex
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.errors import Unavailable
from worker.domain.signature import SignedDocument

KEYS = Keyring()
DELIVERY = publication_for(KEYS, change_event())
ID = DELIVERY.document["delivery_id"]
SHA = sha256_hex(DELIVERY.payload())
LOOKUP = Lookup(delivery_id=ID, payload_sha256=SHA, nonce="nonce-1")

Act = Callable[[Any], Any]


def over_http(url: str, act: Act, *, keys: Any = KEYS, **options: Any) -> Any:
    """Do something with a client of one endpoint."""

    async def acting(client: HttpClient) -> Any:
        cms = HttpCms(
            client,
            Endpoint(url=url, allow_loopback_http=True),
            site_id=options.pop("site_id", SITE),
            trust=lambda: keys.trust("acknowledgement"),
            **options,
        )
        return await act(cms)

    return run_calls(acting, idle_seconds=0)


def publish(delivery: SignedDocument = DELIVERY, *, deadline: float = 5.0) -> Act:
    return lambda cms: cms.publish(delivery, delivery_id=delivery.document["delivery_id"], deadline_seconds=deadline)


def look_up(lookup: Lookup = LOOKUP, *, deadline: float = 5.0) -> Act:
    return lambda cms: cms.look_up(lookup, deadline_seconds=deadline)


class Fake:
    """The fake behind the words of the contract."""

    def __init__(self) -> None:
        self.cms = FakeCms(KEYS)

    def act(self, act: Act) -> CmsAnswer:
        return asyncio.run(act(self.cms))

    def bend(self, *words: str) -> None:
        self.cms.script[:] = words
        self.cms.lookup_script[:] = words if set(words) <= {"lost", "wrong_key"} else ()

    def published(self) -> list[str]:
        return [entry["delivery_id"] for entry in self.cms.ledger.to_json()["publications"]]


class Real:
    """The sandbox and the real client behind the same words."""

    BEHAVIOUR: ClassVar = {
        "lost": {"lose_answer_times": 1},
        "not_now": {"fail_times": 1, "fail_status": 429, "retry_after": "7"},
        "refused": {"fail_times": 1, "fail_status": 422},
        "stale": {"stale": True},
        "wrong_key": {"wrong_key": True},
    }

    def __init__(self, sandbox: SandboxThread) -> None:
        self.sandbox = sandbox

    def act(self, act: Act) -> CmsAnswer:
        answer: CmsAnswer = over_http(self.sandbox.listening.cms_url, act, keys=self.sandbox.sandbox.keys)
        return answer

    def bend(self, *words: str) -> None:
        behaviour: dict[str, Any] = {}
        for word in words:
            behaviour |= self.BEHAVIOUR[word]
        self.sandbox.behave(cms=behaviour, lookup=behaviour if set(words) <= {"lost", "wrong_key"} else {})

    def published(self) -> list[str]:
        return [entry["delivery_id"] for entry in self.sandbox.state()["publications"]]


@pytest.fixture(params=["fake", "real"])
def cms(request: pytest.FixtureRequest, sandbox: SandboxThread) -> Fake | Real:
    """Either CMS."""
    return Fake() if request.param == "fake" else Real(sandbox)


def test_an_accepted_delivery_comes_back_signed(cms: Fake | Real) -> None:
    """The acknowledgement names the delivery and its bytes, and the key that signed it; a repeat publishes nothing new."""
    for _ in range(2):
        answer = cms.act(publish())
        assert (answer.outcome, answer.code) == ("accepted", "")
        assert answer.signed is not None
        assert answer.signed.document == acknowledgement_for(DELIVERY.document)
        assert answer.kid == answer.signed.kid
    assert cms.published() == [ID]


def test_other_bytes_under_a_known_id_are_refused(cms: Fake | Real) -> None:
    """An id means one payload for ever."""
    cms.act(publish())
    other = SignedDocument({**DELIVERY.document, "website_version": "other"}, DELIVERY.signature)
    assert cms.act(publish(other)).outcome == "refused"
    assert cms.published() == [ID]


def test_a_lost_answer_leaves_doubt_that_a_look_up_ends(cms: Fake | Real) -> None:
    """The text is live though nobody heard of it: the call is unavailable and sent, the look-up says accepted."""
    cms.bend("lost")
    answer = cms.act(publish())
    assert (answer.outcome, answer.sent, answer.signed) == ("unavailable", True, None)
    cms.bend()
    found = cms.act(look_up())
    assert found.outcome == "accepted"
    assert found.signed is not None
    assert found.signed.document == lookup_answer_for(LOOKUP)
    assert cms.published() == [ID]


def test_an_unknown_delivery_is_absent_in_so_many_words(cms: Fake | Real) -> None:
    """Absence is a signed answer to exactly this question, and the same bytes may then be sent."""
    found = cms.act(look_up())
    assert found.outcome == "absent"
    assert found.signed is not None
    assert found.signed.document == lookup_answer_for(LOOKUP, status="absent")
    assert cms.published() == []
    assert cms.act(publish()).outcome == "accepted"
    other = Lookup(delivery_id=ID, payload_sha256="3" * 64, nonce="nonce-2")
    assert cms.act(look_up(other)).outcome == "absent"


@pytest.mark.parametrize(
    ("word", "outcome", "sent", "wait"),
    [
        ("not_now", "unavailable", False, 7.0),
        ("refused", "refused", True, None),
        ("stale", "stale", True, None),
    ],
)
def test_a_definite_no_publishes_nothing(
    cms: Fake | Real, word: str, outcome: str, sent: bool, wait: float | None
) -> None:
    """Refusals, staleness and "not now" are told apart, and nothing is live after any of them."""
    cms.bend(word)
    answer = cms.act(publish())
    assert (answer.outcome, answer.sent, answer.retry_after_seconds) == (outcome, sent, wait)
    assert answer.code.startswith("cms.delivery.")
    assert cms.published() == []


def test_older_text_never_replaces_newer(cms: Fake | Real) -> None:
    """A delivery with a lower sequence of the same source is stale; another source is not touched by it."""
    newer = publication_for(KEYS, change_event(event_id="event-2", source_sequence=2))
    other = publication_for(KEYS, change_event(event_id="event-3", source_id="home.foot"))
    assert cms.act(publish(newer)).outcome == "accepted"
    assert cms.act(publish()).outcome == "stale"
    assert cms.act(publish(other)).outcome == "accepted"
    assert cms.published() == [newer.document["delivery_id"], other.document["delivery_id"]]


def test_an_answer_by_an_untrusted_key_is_no_answer(cms: Fake | Real) -> None:
    """Whatever was published, an acknowledgement or look-up answer signed by nobody we trust is unverifiable."""
    cms.bend("wrong_key")
    assert cms.act(publish()).outcome == "unverifiable"
    assert cms.act(look_up()).outcome == "unverifiable"


# --- the real client alone ------------------------------------------------------------------------------------------


def signed(
    document: dict[str, Any], *, keys: Keyring = KEYS, purpose: str = "acknowledgement", status: int = 200
) -> bytes:
    return reply(keys.sign(purpose, document).to_text().encode(), status=status)


def acknowledged(**changes: Any) -> bytes:
    return signed(acknowledgement_for(DELIVERY.document, **changes))


def facts(answer: CmsAnswer) -> tuple[str, bool, str]:
    return answer.outcome, answer.sent, answer.code


@pytest.mark.parametrize(
    ("data", "outcome", "sent", "code"),
    [
        (acknowledged(), "accepted", True, ""),
        (acknowledged(delivery_id="delivery-other"), "unverifiable", True, "cms.acknowledgement.binding_mismatch"),
        (acknowledged(payload_sha256="4" * 64), "unverifiable", True, "cms.acknowledgement.binding_mismatch"),
        (acknowledged(site_id="site-9"), "unverifiable", True, "cms.acknowledgement.binding_mismatch"),
        (acknowledged(status="queued"), "unverifiable", True, "cms.acknowledgement.invalid"),
        (acknowledged(more=1), "unverifiable", True, "cms.acknowledgement.invalid"),
        (signed({"ok": True}), "unverifiable", True, "cms.acknowledgement.invalid"),
        (
            signed(acknowledgement_for(DELIVERY.document), keys=Keyring()),
            "unverifiable",
            True,
            "cms.delivery.signature_invalid",
        ),
        (
            signed(acknowledgement_for(DELIVERY.document), purpose="publication"),
            "unverifiable",
            True,
            "cms.delivery.signature_invalid",
        ),
        (
            reply(json.dumps(acknowledgement_for(DELIVERY.document)).encode()),
            "unverifiable",
            True,
            "cms.delivery.answer_invalid",
        ),
        (reply(b'{"ok":false,"error":"quota"}'), "unverifiable", True, "cms.delivery.answer_invalid"),
        (reply(b"<html>sign in</html>", content_type="text/html"), "unavailable", True, "cms.delivery.content_type"),
        (reply(b'{"document":{},"document":{}}'), "unavailable", True, "cms.delivery.json_invalid"),
        (reply(b'"' + b"x" * 300_000 + b'"'), "unavailable", True, "cms.delivery.body_too_large"),
        (reply(b"", status=201), "unavailable", True, "cms.delivery.status_201"),
        (reply(b"", status=202), "unavailable", True, "cms.delivery.status_202"),
        (reply(b"", status=204), "unavailable", True, "cms.delivery.status_204"),
        (reply(b"", status=302, headers=("Location: /x",)), "refused", True, "cms.delivery.redirect"),
        (reply(b"", status=400), "refused", True, "cms.delivery.status_400"),
        (reply(b"", status=404), "refused", True, "cms.delivery.status_404"),
        (reply(b"", status=408), "unavailable", True, "cms.delivery.status_408"),
        (reply(b'{"status":"stale"}', status=409), "stale", True, "cms.delivery.stale"),
        (reply(b'{"status":"conflict"}', status=409), "refused", True, "cms.delivery.status_409"),
        (reply(b'{"status":"stale","x":1}', status=409), "refused", True, "cms.delivery.status_409"),
        (reply(b'{"status":"stale","status":"stale"}', status=409), "refused", True, "cms.delivery.status_409"),
        (reply(b"version mismatch", status=409, content_type="text/plain"), "refused", True, "cms.delivery.status_409"),
        (reply(b"", status=425), "unavailable", False, "cms.delivery.status_425"),
        (reply(b"", status=429), "unavailable", False, "cms.delivery.status_429"),
        (reply(b"", status=500), "unavailable", True, "cms.delivery.status_500"),
        (reply(b"", status=503), "unavailable", True, "cms.delivery.status_503"),
        (acknowledged().replace(b"200 Said", b"203 Said"), "unavailable", True, "cms.delivery.status_203"),
    ],
    ids=lambda value: value[9:12].decode() if isinstance(value, bytes) else None,
)
def test_every_answer_to_a_publication_means_one_thing(data: bytes, outcome: str, sent: bool, code: str) -> None:
    """Only a verified acknowledgement of these bytes counts; everything else is told apart by what it leaves open."""
    with RoughServer(says(data)) as server:
        answer = over_http(server.url, publish())
    assert facts(answer) == (outcome, sent, code)
    assert (answer.signed is not None) == (outcome == "accepted")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("data", "outcome", "code"),
    [
        (signed(lookup_answer_for(LOOKUP)), "accepted", ""),
        (signed(lookup_answer_for(LOOKUP, status="absent")), "absent", ""),
        (signed(lookup_answer_for(LOOKUP, nonce="nonce-2")), "unverifiable", "cms.lookup.binding_mismatch"),
        (signed(lookup_answer_for(LOOKUP, delivery_id="other")), "unverifiable", "cms.lookup.binding_mismatch"),
        (signed(lookup_answer_for(LOOKUP, payload_sha256="5" * 64)), "unverifiable", "cms.lookup.binding_mismatch"),
        (signed(lookup_answer_for(LOOKUP, site_id="site-9")), "unverifiable", "cms.lookup.binding_mismatch"),
        (signed(lookup_answer_for(LOOKUP), keys=Keyring()), "unverifiable", "cms.lookup.signature_invalid"),
        (acknowledged(), "unverifiable", "cms.lookup.invalid"),
        (reply(b'{"status":"absent"}'), "unverifiable", "cms.lookup.answer_invalid"),
        (reply(b"", status=404), "unavailable", "cms.lookup.status_404"),
        (signed(lookup_answer_for(LOOKUP, status="absent"), status=404), "unavailable", "cms.lookup.status_404"),
        (reply(b"", status=501), "unavailable", "cms.lookup.status_501"),
        (reply(b"", status=204), "unavailable", "cms.lookup.status_204"),
        (reply(b'{"status":"stale"}', status=409), "unavailable", "cms.lookup.status_409"),
        (reply(b"", status=307, headers=("Location: /x",)), "unavailable", "cms.lookup.redirect"),
        (reply(b"", status=429), "unavailable", "cms.lookup.status_429"),
        (reply(b"absent"), "unavailable", "cms.lookup.json_invalid"),
    ],
    ids=lambda value: value[9:12].decode() if isinstance(value, bytes) else None,
)
def test_every_answer_to_a_look_up_means_one_thing(data: bytes, outcome: str, code: str) -> None:
    """A look-up never refuses a delivery and never believes an unsigned answer."""
    with RoughServer(says(data)) as server:
        answer = over_http(server.url, look_up())
    assert (answer.outcome, answer.code) == (outcome, code)
    assert (answer.signed is not None) == (outcome in ("accepted", "absent"))


@pytest.mark.parametrize("act", [publish(deadline=0.3), look_up(deadline=0.3)], ids=["publish", "look_up"])
def test_silence_and_torn_connections_leave_doubt(act: Act) -> None:
    """After the request left, only the other side knows; a refused connection is certain to have carried nothing."""
    with RoughServer(lambda _connection, _request: None) as server:
        answer = over_http(server.url, act)
        assert (answer.outcome, answer.sent, answer.code.rpartition(".")[2]) == ("unavailable", True, "timeout")
    with RoughServer(hangs_up()) as server:
        answer = over_http(server.url, act)
        assert (answer.outcome, answer.sent, answer.code.rpartition(".")[2]) == ("unavailable", True, "connection_lost")
        assert len(server.requests) == 1
    answer = over_http(server.url, act)
    assert (answer.outcome, answer.sent, answer.code.rpartition(".")[2]) == ("unavailable", False, "unreachable")


def test_a_409_whose_reason_tore_off_leaves_doubt() -> None:
    """Whether it said stale cannot be known, so it may be asked again."""
    with RoughServer(hangs_up(reply(b'{"status":"sta', status=409, length=18))) as server:
        assert facts(over_http(server.url, publish())) == ("unavailable", True, "cms.delivery.status_409")


def test_the_bytes_sent_are_the_bytes_stored_every_time() -> None:
    """Each send has the same body and the same key; each connection is used once, so none can close on a request."""
    with RoughServer(says(reply(b"", status=503)), says(acknowledged())) as server:

        async def twice(cms: HttpCms) -> list[CmsAnswer]:
            return [await cms.publish(DELIVERY, delivery_id=ID, deadline_seconds=5) for _ in range(2)]

        first, second = over_http(server.url + "/cms/", twice)
    assert (first.outcome, second.outcome) == ("unavailable", "accepted")
    heads, bodies = zip(*(request.split(b"\r\n\r\n", 1) for request in server.requests), strict=True)
    stored = DELIVERY.to_text().encode()
    assert bodies == (stored, stored)
    assert heads[0] == heads[1]
    assert heads[0].startswith(b"POST /cms/deliveries HTTP/1.1\r\n")
    assert f"idempotency-key: {ID}.{sha256_hex(stored)}\r\n".encode() in heads[0].lower()
    assert b"locseal-site-id: site-1\r\n" in heads[0].lower()
    assert server.connections == 2


def test_a_key_must_speak_for_the_site() -> None:
    """A trusted key of another site acknowledges nothing here."""
    keys = Keyring(sites=["site-2"])
    with RoughServer(says(signed(acknowledgement_for(DELIVERY.document), keys=keys))) as server:
        assert facts(over_http(server.url, publish(), keys=keys)) == (
            "unverifiable",
            True,
            "cms.delivery.signature_invalid",
        )


def test_a_key_retired_while_the_call_went_on_still_counts() -> None:
    """What was signed before the retirement verifies; what can only have been signed after it does not."""
    keys = Keyring()
    data = signed(acknowledgement_for(DELIVERY.document), keys=keys)
    keys.retire("acknowledgement", retired_at=NOW)
    with RoughServer(says(data)) as server:
        assert over_http(server.url, publish(), keys=keys, wall_clock=lambda: NOW - 1).outcome == "accepted"
        assert over_http(server.url, publish(), keys=keys, wall_clock=lambda: NOW).outcome == "unverifiable"


def test_our_own_trust_away_leaves_doubt() -> None:
    """A good acknowledgement that we cannot check just now is no refusal and no success."""

    class Broken:
        def trust(self, _purpose: str) -> Any:
            raise Unavailable("keys.trust.missing")

    with RoughServer(says(acknowledged())) as server:
        assert facts(over_http(server.url, publish(), keys=Broken())) == ("unavailable", True, "keys.trust.missing")
        assert facts(over_http(server.url, look_up(), keys=Broken())) == ("unavailable", True, "keys.trust.missing")


def test_promises_are_what_the_configuration_says() -> None:
    """Look-up is assumed, idempotency is not."""
    with RoughServer(says(reply())) as server:

        async def promises(cms: HttpCms) -> tuple[bool, bool]:
            return cms.has_lookup, cms.is_idempotent

        assert over_http(server.url, promises) == (True, False)
        assert over_http(server.url, promises, has_lookup=False, is_idempotent=True) == (False, True)
