"""The careful client against servers that drip, tear, lie, redirect and flood."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import ipaddress
import json
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.conftest import missing
from tests.rough_server import RoughServer, drips, hangs_up, reply, says
from worker.adapters.endpoint import Endpoint, SecretFile, SecretVariable
from worker.adapters.http import HttpAnswer, HttpClient, retry_after_seconds
from worker.domain.errors import Blocked, Invalid, ProviderFailure, Unavailable

AREA = "evidence.provider"
LIMIT = 64 * 1024
SECRET = "s3cret-never-shown"


def at(url: str, **more: object) -> Endpoint:
    return Endpoint(url=url, allow_loopback_http=True, **more)


def call(endpoint: Endpoint, *, body: bytes = b"{}", deadline: float = 5.0, **options: object) -> HttpAnswer:
    """Make one call on a loop of its own."""

    async def once() -> HttpAnswer:
        client = HttpClient(**options)
        try:
            return await client.post(
                endpoint,
                body,
                area=AREA,
                deadline_seconds=deadline,
                max_answer_bytes=LIMIT,
                headers={"Idempotency-Key": "r-1.abc"},
            )
        finally:
            await client.aclose()

    return asyncio.run(once())


def failure(endpoint: Endpoint, **options: object) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        call(endpoint, **options)
    return caught.value


def facts(error: ProviderFailure) -> tuple[str, bool, bool]:
    return error.code, error.retryable, error.sent


def test_one_post_carries_the_protocol_headers_and_the_exact_body() -> None:
    """A call sends the bytes it was given, once, asks for plain JSON, and returns the parsed answer."""
    with RoughServer(says(reply(b'{"a":[1,"x"]}'))) as server:
        answer = call(at(server.url + "/review"), body=b'{"text":"\xc3\xa9"}')
    assert answer == HttpAnswer(status=200, document={"a": [1, "x"]}, body=b'{"a":[1,"x"]}')
    assert len(server.requests) == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /review HTTP/1.1"
    assert body == b'{"text":"\xc3\xa9"}'
    sent = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines[1:]}
    assert sent == {
        "host": f"127.0.0.1:{server.port}",
        "content-length": "13",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": "locseal",
        "idempotency-key": "r-1.abc",
    }


@pytest.mark.parametrize("data", [reply(b"{}", length=4000), reply(b'{"a": "' + b"x" * 200 + b'"}')])
def test_a_dripping_body_or_header_ends_at_the_deadline(data: bytes) -> None:
    """A peer that sends a byte at a time holds a call no longer than its total deadline."""
    server = RoughServer()
    server.answers.append(drips(data, every_seconds=0.05, stop=server.stop))
    with server:
        began = time.monotonic()
        error = failure(at(server.url), deadline=0.3)
        took = time.monotonic() - began
    assert facts(error) == ("evidence.provider.timeout", True, True)
    assert 0.28 <= took < 2.0


def test_a_dripping_body_after_prompt_headers_ends_at_the_deadline() -> None:
    """Prompt headers do not lengthen the deadline of the body."""
    server = RoughServer()
    body = drips(b"x" * 400, every_seconds=0.05, stop=server.stop)

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(reply(b"", length=400))
        body(connection, request)

    server.answers.append(answer)
    with server:
        error = failure(at(server.url), deadline=0.3)
    assert facts(error) == ("evidence.provider.timeout", True, True)


def test_a_silent_peer_ends_at_the_deadline() -> None:
    """No answer at all is a time-out after sending."""
    with RoughServer(lambda _connection, _request: None) as server:
        assert facts(failure(at(server.url), deadline=0.2)) == ("evidence.provider.timeout", True, True)


def test_endless_interim_answers_end_at_the_deadline() -> None:
    """A flood of 1xx answers is no progress."""
    server = RoughServer()
    server.answers.append(drips(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100, every_seconds=0.002, stop=server.stop))
    with server:
        assert facts(failure(at(server.url), deadline=0.3)) == ("evidence.provider.timeout", True, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        reply(b'{"half":', length=400),
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":',
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 200_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "half headers", "half body", "half chunk", "two lengths", "no http", "endless header"],
)
def test_a_torn_answer_is_a_lost_connection_after_sending(data: bytes) -> None:
    """Whatever tears, the request may have been acted upon: retryable, and sent."""
    with RoughServer(hangs_up(data)) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.connection_lost", True, True)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (reply(b'{"a":1}', length=5), "evidence.provider.json_invalid"),
        (reply(b'{"a":1}'), {"a": 1}),
        (reply(b'{"a":1}', status=422), {"a": 1}),
    ],
    ids=["cut", "whole", "refusal"],
)
def test_what_a_peer_says_unasked_is_never_the_answer_of_another_call(first: bytes, outcome: object) -> None:
    """Bytes behind an answer end the connection: the next call gets what was said to it, over a new one."""
    with RoughServer(says(first + reply(b'{"smuggled":1}')), says(reply(b'{"b":2}'))) as server:

        async def twice() -> tuple[object, object]:
            client = HttpClient()
            found: list[object] = []
            for _ in range(2):
                try:
                    got = await client.post(
                        at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT
                    )
                    found.append(got.document)
                except ProviderFailure as error:
                    found.append(error.code)
            await client.aclose()
            return found[0], found[1]

        assert asyncio.run(twice()) == (outcome, {"b": 2})
    assert server.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_terminal_and_nobody_else_hears_of_the_call(status: int, tmp_path: Path) -> None:
    """No redirect is followed: the second server sees no credential, no key, no body, not even a connection."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    with RoughServer(says(reply())) as other:
        location = (f"Location: {other.url}/steal",)
        with RoughServer(says(reply(b"", status=status, headers=location))) as server:
            answer = call(at(server.url, credentials=SecretFile(token)))
    assert answer.status == status
    error = answer.failure(AREA)
    assert facts(error) == ("evidence.provider.redirect", False, True)
    assert other.connections == 0
    assert len(server.requests) == 1


def test_a_cookie_is_not_kept() -> None:
    """What one answer sets is not sent with the next request."""
    with RoughServer(says(reply(headers=("Set-Cookie: a=1; Path=/",)))) as server:

        async def twice() -> None:
            client = HttpClient()
            for _ in range(2):
                await client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
            await client.aclose()

        asyncio.run(twice())
    assert len(server.requests) == 2
    assert server.connections == 1
    assert b"cookie" not in server.requests[1].lower()


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"a":1,"a":1}', "json_invalid"),
        (b'{"x":{"a":1,"a":2}}', "json_invalid"),
        (b"[" * 5000 + b"]" * 5000, "json_invalid"),
        (b'{"a":NaN}', "json_invalid"),
        (b"\xef\xbb\xbf{}", "json_invalid"),
        (b'{"a":"\xff"}', "json_invalid"),
        (b"", "json_invalid"),
        (b"{} {}", "json_invalid"),
        (b'"' + b"x" * LIMIT + b'"', "body_too_large"),
    ],
    ids=["duplicate", "deep duplicate", "deep", "nan", "bom", "latin", "empty", "two values", "too large"],
)
def test_a_body_that_is_no_strict_json_is_retryable(body: bytes, fault: str) -> None:
    """An answer that cannot be parsed strictly says nothing, and may be asked for again."""
    with RoughServer(says(reply(body))) as server:
        assert facts(failure(at(server.url))) == (f"evidence.provider.{fault}", True, True)


def test_a_body_without_length_is_cut_off_at_the_limit() -> None:
    """Reading stops soon after the limit; the flood of a peer that sends for ever is never taken in."""
    taken = 0

    def flood(connection: socket.socket, _request: bytes) -> None:
        nonlocal taken
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        while True:
            connection.sendall(block)
            taken += 65536

    with RoughServer(flood) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.body_too_large", True, True)
    assert LIMIT < taken < 32 * 1024 * 1024


def test_a_declared_hundred_mebibytes_is_refused_unread() -> None:
    """A length beyond the limit ends the call before the body."""
    with RoughServer(says(reply(b"", length=100 * 1024 * 1024))) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.body_too_large", True, True)


def test_a_packed_body_is_refused_unopened() -> None:
    """A gzip bomb is never unpacked: we asked for plain bytes."""
    bomb = gzip.compress(b"[" + b"0," * 5_000_000 + b"0]")
    with RoughServer(says(reply(bomb, headers=("Content-Encoding: gzip",)))) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.content_encoding", True, True)


@pytest.mark.parametrize("content_type", ["", "text/html", "application/jsonp", "application/json; charset=latin-1"])
def test_another_content_type_is_no_answer(content_type: str) -> None:
    """A sign-in page with status 200 is no answer, even where its body would parse."""
    with RoughServer(says(reply(b"{}", content_type=content_type))) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.content_type", True, True)


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=UTF-8", 'application/problem+json;charset="utf-8"']
)
def test_json_types_are_accepted(content_type: str) -> None:
    """JSON under its own name or a `+json` name, in UTF-8, is read."""
    with RoughServer(says(reply(b"[]", content_type=content_type))) as server:
        assert call(at(server.url)).document == []


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *((status, True) for status in (408, 425, 429, 500, 501, 502, 503, 504, 599)),
        *((status, False) for status in (201, 204, 206, 400, 401, 403, 404, 409, 410, 413, 422, 451)),
    ],
)
def test_the_status_tells_whether_trying_again_can_help(status: int, retryable: bool) -> None:
    """408, 425, 429 and 5xx are retryable with the wait asked for; every other status is terminal."""
    with RoughServer(says(reply(b"", status=status, headers=("Retry-After: 7",)))) as server:
        error = call(at(server.url)).failure(AREA)
    assert facts(error) == (f"evidence.provider.status_{status}", retryable, True)
    assert error.retry_after_seconds == 7.0


def test_a_refusal_keeps_its_body_and_survives_a_torn_one() -> None:
    """The JSON of a 4xx is kept; a 4xx whose body tears or stalls is still that 4xx."""
    with RoughServer(says(reply(b'{"code":"x"}', status=422))) as server:
        assert call(at(server.url)).document == {"code": "x"}
    with RoughServer(hangs_up(reply(b'{"code"', status=422, length=99))) as server:
        assert call(at(server.url)) == HttpAnswer(status=422, fault="connection_lost")
    with RoughServer(says(reply(b"", status=422, length=99))) as server:
        assert call(at(server.url), deadline=0.2) == HttpAnswer(status=422, fault="connection_lost")
    with RoughServer(says(reply(b"<p>", status=404, content_type="text/html"))) as server:
        assert call(at(server.url)) == HttpAnswer(status=404, fault="content_type")


def test_a_closed_port_was_surely_not_sent() -> None:
    """A refused connection is retryable, and certain to have carried nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert facts(failure(at(f"http://127.0.0.1:{port}"))) == ("evidence.provider.unreachable", True, False)


def test_a_connection_that_is_never_accepted_was_surely_not_sent() -> None:
    """A deadline that passes while connecting is a time-out before sending."""
    with RoughServer(says(reply())) as server:
        # A plain server never finishes a TLS handshake: the client waits in vain before it may send.
        error = failure(Endpoint(url=f"https://127.0.0.1:{server.port}"), deadline=0.3)
    assert facts(error) == ("evidence.provider.timeout", True, False)
    assert server.requests == []


def test_an_unfinished_handshake_leaves_no_connection_open() -> None:
    """A deadline that ends a TLS handshake closes the socket, so that a hanging peer costs nothing afterwards."""
    with RoughServer(says(reply())) as server:

        async def once() -> bool:
            client = HttpClient()
            with pytest.raises(ProviderFailure):
                await client.post(
                    Endpoint(url=f"https://127.0.0.1:{server.port}"),
                    b"{}",
                    area=AREA,
                    deadline_seconds=0.2,
                    max_answer_bytes=LIMIT,
                )
            # The loop still runs: nothing but the client itself can have closed the socket.
            return await asyncio.to_thread(server.all_closed, 5.0)

        assert asyncio.run(once())


def test_an_ipv6_address_is_reached() -> None:
    """An IPv6 address works as an endpoint's host, brackets and all."""
    try:
        server = RoughServer(says(reply(b"[6]")), host="::1")
    except OSError:
        missing("the IPv6 loopback", "no socket can listen on ::1")
    with server:
        assert call(at(f"http://[::1]:{server.port}")).document == [6]
    assert f"host: [::1]:{server.port}\r\n".encode() in server.requests[0].lower()


def _certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Make a self-signed certificate for a host name or address, and a server context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback test")])
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        alternative = x509.DNSName(name)
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)
    return pem, context


def test_tls_with_the_right_name_and_a_trusted_issuer_works(tmp_path: Path) -> None:
    """An issuer from the configured file is trusted."""
    pem, context = _certificate(tmp_path, "127.0.0.1")
    with RoughServer(says(reply(b'{"ok":true}')), tls=context) as server:
        assert call(Endpoint(url=server.url), ca_file=pem).document == {"ok": True}


def test_tls_with_a_wrong_name_sends_nothing(tmp_path: Path) -> None:
    """A certificate for another name ends the call before the request, retryable."""
    pem, context = _certificate(tmp_path, "cms.example.org")
    with RoughServer(says(reply()), tls=context) as server:
        error = failure(Endpoint(url=server.url), ca_file=pem)
    assert facts(error) == ("evidence.provider.tls", True, False)
    assert server.requests == []


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_an_unusable_ca_file_is_refused_at_construction(tmp_path: Path, content: bytes | None) -> None:
    """A client is not made with issuers that cannot be read."""
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(Blocked) as caught:
        HttpClient(ca_file=tmp_path / "ca.pem")
    assert caught.value.code == "http.ca_file.unusable"


def test_tls_with_an_unknown_issuer_sends_nothing(tmp_path: Path) -> None:
    """Without the file, the system's issuers decide, and they do not know this one."""
    _, context = _certificate(tmp_path, "127.0.0.1")
    with RoughServer(says(reply()), tls=context) as server:
        assert facts(failure(Endpoint(url=server.url))) == ("evidence.provider.tls", True, False)
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://review.example.org/", "scheme"),
        ("ftp://review.example.org/", "scheme"),
        ("//review.example.org/", "scheme"),
        ("review", "host"),
        ("https://user:pw@review.example.org/", "credentials"),
        ("https://token@review.example.org/", "credentials"),
        ("https://review.example.org/?key=1", "query"),
        ("https://review.example.org/?", "query"),
        ("https://review.example.org/#top", "fragment"),
        ("https://review.example.org/#", "fragment"),
        ("https://", "host"),
        ("https://review.example.org:99999/", "host"),
        ("https://review.example.org:0/", "host"),
        ("https://[::1/", "host"),
        ("https://review.example.org/a b", "url"),
        ("https://review.example.org/\n", "url"),
        ("https://review.exämple.org/", "url"),
        ("https:\\\\review.example.org", "url"),
        ("", "url"),
        ("http://127.0.0.1.example.org/", "scheme"),
        ("http://localhost.example.org/", "scheme"),
        ("http://10.0.0.1/", "scheme"),
    ],
)
def test_an_endpoint_is_refused_at_construction(url: str, part: str) -> None:
    """Each bad address names its bad part, also where plain http to loopback is allowed, and never repeats it."""
    with pytest.raises(Invalid) as caught:
        at(url)
    assert (caught.value.code, caught.value.path) == ("http.endpoint.invalid", part)
    assert "pw" not in str(caught.value)
    assert "token" not in str(caught.value)


def test_plain_http_needs_loopback_and_leave() -> None:
    """Loopback over http is refused too unless it was allowed."""
    for url in ("http://127.0.0.1:80/", "http://localhost/", "http://[::1]:80/"):
        assert at(url).url == url
        with pytest.raises(Invalid):
            Endpoint(url=url)
    assert at("https://review.example.org/cms/").at("/deliveries").url == "https://review.example.org/cms/deliveries"
    assert "example" not in repr(at("https://review.example.org/cms/"))


def test_a_bearer_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    """A replaced secret counts from the next call on, without a restart."""
    token = tmp_path / "token"
    token.write_text("first\n")
    credentials = SecretFile(token)
    with RoughServer(says(reply())) as server:
        call(at(server.url, credentials=credentials))
        newer = tmp_path / "newer"
        newer.write_text("second\n")
        newer.replace(token)
        call(at(server.url, credentials=credentials))
    assert b"authorization: bearer first\r\n" in server.requests[0].lower()
    assert b"authorization: bearer second\r\n" in server.requests[1].lower()


@pytest.mark.parametrize("content", [None, b"", b"two words", b"a\r\nHost: evil", b"\xff\xfe", b"x" * 20_000])
def test_an_unusable_secret_sends_nothing(content: bytes | None, tmp_path: Path) -> None:
    """A missing, empty or malformed secret is retryable, and no request without it goes out."""
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with RoughServer(says(reply())) as server:
        error = failure(at(server.url, credentials=SecretFile(token)))
    assert facts(error) == ("evidence.provider.credentials", True, False)
    assert server.connections == 0


@pytest.mark.parametrize(
    "name", ["Host", "content-type", "Content-Length", "Idempotency-Key", "Locseal-Site-Id", "Transfer-Encoding"]
)
def test_credentials_cannot_replace_a_protocol_header(name: str, tmp_path: Path) -> None:
    """A configured header name that carries the protocol is refused, in any case; so is one that is no name."""
    for wrong in (name, name.upper(), name + "\r\nHost", name + ":", ""):
        with pytest.raises(Invalid) as caught:
            SecretFile(tmp_path / "token", header=wrong)
        assert caught.value.code == "http.credentials.header.invalid"


def test_a_secret_from_the_environment_under_a_header_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor's own header carries the secret as it stands; an unset variable is unavailable."""
    credentials = SecretVariable("REVIEW_KEY", header="X-Api-Key")
    with pytest.raises(Unavailable):
        credentials.header()
    monkeypatch.setenv("REVIEW_KEY", "abc")
    assert credentials.header() == ("X-Api-Key", "abc")


def test_no_failure_shows_address_header_or_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever fails, neither the exception nor what is chained to it nor a debug log holds content."""
    caplog.set_level("DEBUG")
    token = tmp_path / "token"
    token.write_text(SECRET)
    with RoughServer(hangs_up(b"HTTP/1.1 200 marker-answer\r\nX-Y: marker-answer\r\n\r\nmarker-answer")) as server:
        error = failure(at(server.url + "/marker-path", credentials=SecretFile(token)), body=b'"marker-body"')
    seen = repr(error) + str(error) + repr(error.__cause__) + repr(error.__context__) + repr(vars(error)) + caplog.text
    assert error.__cause__ is None
    assert error.__context__ is None
    for marker in (SECRET, "marker-", str(server.port)):
        assert marker not in seen


NOW = 1_792_567_620.0  # 2026-10-21T07:27:00Z


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        (None, None),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("0", None),
        ("-3", None),
        ("soon", None),
        ("7.5", None),
        ("1e3", None),
        ("٣", None),
        ("", None),
        ("7, 9", None),
        ("999999", 3600.0),
        ("9" * 200, 3600.0),
        ("9" * 5000, None),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 90.0),
        ("Wednesday, 21-Oct-26 07:28:30 GMT", 90.0),
        ("Wed, 21 Oct 2026 07:20:00 GMT", None),
        ("Wed, 21 Oct 2099 07:20:00 GMT", 3600.0),
        ("Wed, 99 Oct 2026 07:20:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_up_to_an_hour(value: str | None, wait: float | None) -> None:
    """Malformed, zero, negative and past waits are ignored; long ones end at 3600 seconds."""
    assert retry_after_seconds(value, now=NOW) == wait


def test_a_date_is_meant_by_the_clock_of_the_peer() -> None:
    """A peer whose clock is ten minutes ahead gets the wait it means; without its date our clock counts."""
    headers = ("Retry-After: Wed, 21 Oct 2026 07:38:30 GMT", "Date: Wed, 21 Oct 2026 07:37:00 GMT")
    with RoughServer(says(reply(b"", status=503, headers=headers))) as server:
        assert call(at(server.url), wall_clock=lambda: NOW).retry_after_seconds == 90.0
    with RoughServer(says(reply(b"", status=503, headers=headers[:1]))) as server:
        assert call(at(server.url), wall_clock=lambda: NOW).retry_after_seconds == 690.0


@pytest.mark.parametrize("idle_seconds", [0.0, 1e-9])
def test_without_idle_connections_each_call_has_its_own(idle_seconds: float) -> None:
    """A client that keeps nothing open never meets a connection that the peer closed while it idled."""
    with RoughServer(says(reply())) as server:

        async def thrice() -> None:
            client = HttpClient(idle_seconds=idle_seconds)
            for _ in range(3):
                await client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
            await client.aclose()

        asyncio.run(thrice())
    assert server.connections == 3


def test_no_more_connections_are_kept_than_allowed() -> None:
    """Of two calls at once only one connection stays; what waits for a place waits within its deadline."""
    met = threading.Barrier(2)

    def together(connection: socket.socket, _request: bytes) -> None:
        met.wait(5)
        connection.sendall(reply())

    with RoughServer(together) as server:

        async def pairs() -> None:
            client = HttpClient(idle_connections=1, concurrent_calls=2)
            for _ in range(2):
                await asyncio.gather(
                    *(
                        client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
                        for _ in range(2)
                    )
                )
            await client.aclose()

        asyncio.run(pairs())
    assert (len(server.requests), server.connections) == (4, 3)


def test_waiting_for_a_place_ends_at_the_deadline_unsent() -> None:
    """With every place taken by a silent peer, the next call is a time-out that surely sent nothing."""
    with RoughServer(lambda _connection, _request: None) as server:

        async def two() -> list[tuple[str, bool, bool]]:
            client = HttpClient(concurrent_calls=1)
            calls = [
                client.post(at(server.url), b"{}", area=AREA, deadline_seconds=seconds, max_answer_bytes=LIMIT)
                for seconds in (0.4, 0.2)
            ]
            failures = await asyncio.gather(*calls, return_exceptions=True)
            await client.aclose()
            return [facts(error) for error in failures if isinstance(error, ProviderFailure)]

        assert asyncio.run(two()) == [
            ("evidence.provider.timeout", True, True),
            ("evidence.provider.timeout", True, False),
        ]
    assert len(server.requests) == 1


def test_a_large_answer_within_the_limit_arrives_whole() -> None:
    """Two MiB come through unharmed, over plain sockets as fast as the peer can send."""
    text = "x" * (2 * 1024 * 1024)
    with RoughServer(says(reply(json.dumps(text).encode()))) as server:

        async def once() -> object:
            client = HttpClient()
            got = await client.post(
                at(server.url), b"{}", area=AREA, deadline_seconds=20, max_answer_bytes=4 * 1024 * 1024
            )
            await client.aclose()
            return got.document

        assert asyncio.run(once()) == text


def test_a_large_body_is_sent_whole() -> None:
    """Eight MiB reach a peer that reads at its own pace."""
    body = b'"' + b"y" * (8 * 1024 * 1024) + b'"'
    with RoughServer(says(reply())) as server:
        assert call(at(server.url), body=body, deadline=20).status == 200
    assert server.requests[0].partition(b"\r\n\r\n")[2] == body


def test_a_reset_connection_is_lost() -> None:
    """A peer that resets in place of an answer is a lost connection, and the call counts as sent."""

    def reset(connection: socket.socket, _request: bytes) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with RoughServer(reset) as server:
        assert facts(failure(at(server.url))) == ("evidence.provider.connection_lost", True, True)


def test_connecting_has_a_limit_of_its_own() -> None:
    """A handshake that hangs ends after the connect limit, long before a long deadline, and sent nothing."""
    with RoughServer(says(reply())) as server:
        began = time.monotonic()
        error = failure(Endpoint(url=f"https://127.0.0.1:{server.port}"), deadline=30.0, connect_seconds=0.2)
        took = time.monotonic() - began
    assert facts(error) == ("evidence.provider.timeout", True, False)
    assert took < 10


def test_a_connection_closed_while_idle_is_not_used_and_nothing_is_sent_twice() -> None:
    """A peer that closes after each answer costs a new connection, never a second request."""
    closed = threading.Semaphore(0)

    def answer_and_close(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(reply(json.dumps({"n": len(server.requests)}).encode()))
        connection.shutdown(socket.SHUT_RDWR)
        closed.release()

    with RoughServer(answer_and_close) as server:

        async def several() -> list[object]:
            client = HttpClient()
            found = []
            for _ in range(5):
                got = await client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
                found.append(got.document)
                await asyncio.to_thread(closed.acquire)
            await client.aclose()
            return found

        assert asyncio.run(several()) == [{"n": n} for n in range(1, 6)]
    assert len(server.requests) == 5


def test_a_reused_connection_that_closes_on_us_is_not_tried_again() -> None:
    """A request that meets a closing connection may have been acted upon: it is reported, not repeated."""
    with RoughServer(says(reply()), hangs_up()) as server:

        async def twice() -> ProviderFailure:
            client = HttpClient()
            await client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
            with pytest.raises(ProviderFailure) as caught:
                await client.post(at(server.url), b"{}", area=AREA, deadline_seconds=5, max_answer_bytes=LIMIT)
            await client.aclose()
            return caught.value

        assert facts(asyncio.run(twice())) == ("evidence.provider.connection_lost", True, True)
    assert (len(server.requests), server.connections) == (2, 1)
