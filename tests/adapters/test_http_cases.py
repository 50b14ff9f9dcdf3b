"""The field cases of outside calls, each told by its input file: what the peer does, and what must come of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import run_calls
from tests.builders import SITE, Keyring, acknowledgement_for, change_event, publication_for, request_for
from tests.rough_server import Answer, RoughServer, hangs_up, reply, says
from worker.adapters.cms.http import HttpCms
from worker.adapters.endpoint import Endpoint, SecretFile
from worker.adapters.http import HttpClient, retry_after_seconds
from worker.adapters.providers.http import HttpProvider
from worker.domain.delivery import CmsAnswer
from worker.domain.errors import ProviderFailure

CASES = Path(__file__).parent / "cases"
SCRIPTS = json.loads((CASES / "http_scripts.json").read_text())
WAITS = json.loads((CASES / "retry_after.json").read_text())
FASTER = 20  # the scripts' times are divided by this, so that a limit of 8 s ends after 0.4 s
TOTAL_SECONDS = SCRIPTS["limits"]["total_s"] / FASTER

KEYS = Keyring()
REQUEST = request_for(change_event(), "de")
DELIVERY = publication_for(KEYS, change_event())
OTHER = publication_for(KEYS, change_event(event_id="event-2"))
DELIVERY_ID = DELIVERY.document["delivery_id"]


def scripts(case: int, peer: str) -> list[Any]:
    found = [item["script"] for item in SCRIPTS["items"] if item["case"] == case and item["peer"] == peer]
    assert found
    return found


def endpoint(url: str, folder: Path) -> Endpoint:
    token = folder / "token"
    token.write_text("never-to-strangers")
    return Endpoint(url=url, credentials=SecretFile(token), allow_loopback_http=True)


def ask(url: str, folder: Path) -> object:
    async def asking(client: HttpClient) -> object:
        return await HttpProvider(client, endpoint(url, folder)).review(REQUEST, deadline_seconds=TOTAL_SECONDS)

    return run_calls(asking)


def deliver(url: str, folder: Path, *, times: int = 1) -> list[CmsAnswer]:
    async def delivering(client: HttpClient) -> list[CmsAnswer]:
        cms = HttpCms(client, endpoint(url, folder), site_id=SITE, trust=lambda: KEYS.trust("acknowledgement"))
        return [
            await cms.publish(DELIVERY, delivery_id=DELIVERY_ID, deadline_seconds=TOTAL_SECONDS) for _ in range(times)
        ]

    return run_calls(delivering, idle_seconds=0)


def acknowledgement(publication: Any) -> bytes:
    return reply(KEYS.sign("acknowledgement", acknowledgement_for(publication.document)).to_text().encode())


@contextlib.contextmanager
def peer(*answers: Answer) -> Iterator[RoughServer]:
    with RoughServer(*answers) as server:
        yield server


@pytest.mark.parametrize("script", [*scripts(83, "provider")], ids=lambda script: str(script[0]["status"]))
def test_83_a_redirect_is_not_followed(script: list[dict[str, Any]], tmp_path: Path) -> None:
    """Provider and CMS redirect: the call ends as a redirect, and the second stub is not even connected to."""
    with peer(says(reply())) as second:
        location = script[0]["location"].replace("http://SAME-HOST/other-port", f"{second.url}/other-port")
        for status in (script[0]["status"], 301, 308):
            with peer(says(reply(b"", status=status, headers=(f"Location: {location}",)))) as first:
                with pytest.raises(ProviderFailure) as caught:
                    ask(first.url, tmp_path)
                assert (caught.value.code, caught.value.retryable) == ("evidence.provider.redirect", False)
                [answer] = deliver(first.url, tmp_path)
                assert (answer.outcome, answer.code) == ("refused", "cms.delivery.redirect")
                assert len(first.requests) == 2
    assert second.connections == 0


@pytest.mark.parametrize("script", scripts(85, "provider"), ids=["body", "headers"])
def test_85_a_slow_peer_ends_at_the_total_limit_and_stops_nobody(script: list[dict[str, Any]], tmp_path: Path) -> None:
    """One byte at a time, in headers or body: the attempt is a time-out at the limit; a good peer is served meanwhile."""
    told = script[0]
    pace = told.get("pace") or told["headers_only_pace"]
    stop = threading.Event()
    whole = reply(b"x" * 64, length=told.get("content_length", 64))
    head, _, body = whole.partition(b"\r\n\r\n")
    at_once, slowly = (b"", whole) if "headers_only_pace" in told else (head + b"\r\n\r\n", body)

    def drip(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(at_once)
        for start in range(0, len(slowly), pace["bytes"]):
            connection.sendall(slowly[start : start + pace["bytes"]])
            if stop.wait(pace["every_s"] / FASTER):
                return

    with peer(drip) as slow, peer(says(reply(b'{"good":1}'))) as good:

        async def both(client: HttpClient) -> tuple[list[str], object, float]:
            began = time.monotonic()
            providers = [HttpProvider(client, endpoint(slow.url, tmp_path)) for _ in range(4)]
            calls = [asyncio.ensure_future(one.review(REQUEST, deadline_seconds=TOTAL_SECONDS)) for one in providers]
            served = await HttpProvider(client, endpoint(good.url, tmp_path)).review(REQUEST, deadline_seconds=5)
            still_open = sum(not call.done() for call in calls)
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert still_open == 4
            return [getattr(one, "code", "") for one in ended], served, time.monotonic() - began

        codes, served, took = run_calls(both)
        stop.set()
    assert codes == ["evidence.provider.timeout"] * 4
    assert served == {"good": 1}
    assert TOTAL_SECONDS * 0.9 <= took < TOTAL_SECONDS * 5


def test_89_an_accepted_delivery_without_answer_is_sent_again_as_it_was(tmp_path: Path) -> None:
    """The CMS accepts and closes; the second POST has the same key and the same bytes, and only it is acknowledged."""
    script = scripts(89, "cms")[0]
    assert [sorted(step) for step in script] == [
        ["accept_request", "close_without_response", "record"],
        ["ack", "status"],
    ]
    with peer(hangs_up(), says(acknowledgement(DELIVERY))) as server:
        first, second = deliver(server.url, tmp_path, times=2)
    assert (first.outcome, first.sent, second.outcome) == ("unavailable", True, "accepted")
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def test_89_an_idle_connection_closed_before_reuse_costs_nothing(tmp_path: Path) -> None:
    """A CMS that closes after each answer: two deliveries, two requests, two acknowledgements, no repeat of ours."""

    def answer_and_close(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(acknowledgement(DELIVERY))
        connection.shutdown(socket.SHUT_RDWR)

    with peer(answer_and_close) as server:
        answers = deliver(server.url, tmp_path, times=2)
    assert [answer.outcome for answer in answers] == ["accepted", "accepted"]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("script", "outcome", "code"),
    [
        (one, *expected)
        for one, expected in zip(
            scripts(91, "cms"),
            [
                ("unavailable", "cms.delivery.content_type"),
                ("unverifiable", "cms.delivery.answer_invalid"),
                ("unverifiable", "cms.acknowledgement.binding_mismatch"),
            ],
            strict=True,
        )
    ],
    ids=["html", "ok false", "other key"],
)
def test_91_a_status_of_200_alone_delivers_nothing(
    script: list[dict[str, Any]], outcome: str, code: str, tmp_path: Path
) -> None:
    """A page, a body that says no, or an acknowledgement of another delivery: not delivered, and still in doubt."""
    told = script[0]
    told_body = told.get("body", "").encode()
    data = acknowledgement(OTHER) if "ack" in told else reply(told_body, content_type=told["content_type"])
    with peer(says(data)) as server:
        [answer] = deliver(server.url, tmp_path)
    assert (answer.outcome, answer.code, answer.sent, answer.signed) == (outcome, code, True, None)


@pytest.mark.parametrize(
    "item", [item for item in WAITS["items"] if "header" in item], ids=lambda item: f"{item['status']} {item['header']}"
)
def test_73_the_wait_asked_for_is_kept_up_to_the_cap(item: dict[str, Any]) -> None:
    """The wait is never shorter than the header's nor than our own back-off, whatever the header holds."""
    now = datetime.fromisoformat(WAITS["now"]).timestamp()
    headers = () if item["header"] is None else (f"Retry-After: {item['header']}",)
    with peer(says(reply(b"", status=item["status"], headers=headers))) as server:

        async def asking(client: HttpClient) -> object:
            provider = HttpProvider(client, Endpoint(url=server.url, allow_loopback_http=True))
            return await provider.review(REQUEST, deadline_seconds=5)

        with pytest.raises(ProviderFailure) as caught:
            run_calls(asking, wall_clock=lambda: now)
    assert caught.value.retryable is True
    asked = caught.value.retry_after_seconds
    assert asked == retry_after_seconds(item["header"], now=now)
    wait = min(WAITS["cap_s"], max(WAITS["own_backoff_s"], asked or 0.0))
    shortest, longest = item["wait_s"]
    assert shortest <= wait <= longest
