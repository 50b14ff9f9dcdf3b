"""The sandbox: stable keys, exact contracts, controls that count, five hundred slow calls, and its command."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import run_calls
from tests.builders import SITE, Keyring, change_event, publication_for, request_for
from worker.adapters.cms.http import HttpCms
from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.adapters.key_files import read_private, read_trust
from worker.adapters.providers.http import HttpProvider
from worker.adapters.sandbox.certificate import certificate_for
from worker.adapters.sandbox.controls import Controls
from worker.adapters.sandbox.keys import PURPOSES, SandboxKeys
from worker.adapters.sandbox.ledger import Ledger
from worker.adapters.sandbox.server import SandboxThread
from worker.domain.canonical import sha256_hex
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.errors import Blocked, Invalid, ProviderFailure
from worker.domain.evidence import judge_response
from worker.domain.signature import parse_signed, verify_detached

REQUEST = request_for(change_event(), "de")
LOCSEAL = (sys.executable, "-c", "from worker.cli.main import run; run()")


def send(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """POST as any program would, and return status and parsed body."""
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read() or b"null")


def test_keys_are_made_once_and_found_again(tmp_path: Path) -> None:
    """A second start finds the same keys; private halves are for the owner alone; trust names sites and providers."""
    first = SandboxKeys(tmp_path / "s", sites=[SITE])
    second = SandboxKeys(tmp_path / "s", sites=[SITE])
    assert first.trust_dir == tmp_path / "s" / "trust"
    for purpose in PURPOSES:
        assert first.trust(purpose) == second.trust(purpose)
    trusted, private = read_trust(first.trust_dir), read_private(tmp_path / "s" / "private")
    assert trusted.findings == ()
    assert private.findings == ()
    assert set(trusted.sets) == set(private.keys) == set(PURPOSES)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "s" / "private").iterdir()} == {0o600}
    assert trusted.sets["acknowledgement"].keys["sandbox-acknowledgement-1"].sites == {SITE}
    assert trusted.sets["receipt:independent"].keys["sandbox-independent-1"].providers == {"sandbox-second-model"}


def test_keys_of_other_sites_are_refused(tmp_path: Path) -> None:
    """A directory made for one site does not silently fail every acknowledgement of another."""
    SandboxKeys(tmp_path / "s", sites=[SITE])
    with pytest.raises(Blocked) as caught:
        SandboxKeys(tmp_path / "s", sites=[SITE, "site-9"])
    assert caught.value.code == "sandbox.site.unknown"


def test_controls_refuse_what_they_do_not_know_and_change_nothing() -> None:
    """A misspelt control is refused as a whole, with the path of the member."""
    controls = Controls()
    before = controls.state()
    for document, path in (
        ({"provider": {"delay_secs": 1}}, "provider.delay_secs"),
        ({"provider": {"delay_seconds": 1.0}, "cms": {"fail_ratio": 2}}, "cms.fail_ratio"),
        ({"providers": {}}, ""),
        ({"reset": "yes"}, "reset"),
        ([], ""),
    ):
        with pytest.raises(Invalid) as caught:
            controls.change(document)
        assert (caught.value.code, caught.value.path) == ("sandbox.control.invalid", path)
        assert controls.state() == before


def test_a_ratio_of_failures_is_spread_evenly() -> None:
    """A quarter means every fourth call, not a matter of luck."""
    controls = Controls()
    controls.change({"provider": {"fail_ratio": 0.25, "fail_times": 2}})
    assert [controls.fails("provider") for _ in range(10)] == [True] * 2 + [False, False, False, True] * 2
    assert controls.fails("verifier") is False


def test_absence_is_a_promise_to_the_ledger() -> None:
    """What arrived before "absent" was answered is not published afterwards; what arrives after it is."""
    delivery = publication_for(Keyring(), change_event())
    delivery_id, payload = delivery.document["delivery_id"], sha256_hex(delivery.payload())
    ledger = Ledger()
    early = ledger.arrive(delivery_id)
    assert ledger.look_up(delivery_id, payload) == "absent"
    assert ledger.accept(delivery, early) == "void"
    assert ledger.accept(delivery, ledger.arrive(delivery_id)) == "accepted"
    assert ledger.look_up(delivery_id, payload) == "accepted"
    assert ledger.to_json()["posts"] == {delivery_id: 2}
    assert len(ledger.to_json()["publications"]) == 1


def test_counts_and_publications_are_shown(sandbox: SandboxThread) -> None:
    """Every call and every publication is counted, by target and by request; a reset forgets them."""
    delivery = publication_for(Keyring(), change_event())

    async def calls(client: HttpClient) -> None:
        provider = HttpProvider(client, Endpoint(url=sandbox.listening.provider_url, allow_loopback_http=True))
        for _ in range(3):
            await provider.review(REQUEST, deadline_seconds=5)
        cms = HttpCms(
            client,
            Endpoint(url=sandbox.listening.cms_url, allow_loopback_http=True),
            site_id=SITE,
            trust=lambda: sandbox.sandbox.keys.trust("acknowledgement"),
        )
        for _ in range(2):
            await cms.publish(delivery, delivery_id=delivery.document["delivery_id"], deadline_seconds=5)

    run_calls(calls)
    state = sandbox.state()
    assert state["calls"] == {"provider": 3, "verifier": 0, "cms": 2, "lookup": 0}
    assert state["requests"] == {REQUEST.request_id: 3}
    assert state["posts"] == {delivery.document["delivery_id"]: 2}
    assert state["publications"] == [
        {
            "delivery_id": delivery.document["delivery_id"],
            "event_id": "event-1",
            "site_id": SITE,
            "source_id": "home.hero",
            "source_sequence": 1,
            "payload_sha256": sha256_hex(delivery.payload()),
            "target_sha256": {entry["locale"]: entry["target_sha256"] for entry in delivery.document["localizations"]},
        }
    ]
    sandbox.behave(reset=True)
    assert sandbox.state()["publications"] == []
    assert sandbox.state()["calls"]["provider"] == 0


def test_not_yet_is_counted_for_each_request(sandbox: SandboxThread) -> None:
    """Each request hears "not yet" as often as set, then gets its answer."""
    sandbox.behave(provider={"not_yet_times": 2, "retry_after": "3"})
    other = request_for(change_event(), "fr-CA")

    async def calls(client: HttpClient) -> list[float | None]:
        provider = HttpProvider(client, Endpoint(url=sandbox.listening.provider_url, allow_loopback_http=True))
        found = []
        for request in (REQUEST, other, REQUEST, REQUEST, other, other):
            answer = await provider.review(request, deadline_seconds=5)
            found.append(getattr(answer, "retry_after_seconds", None))
        return found

    assert run_calls(calls) == [3.0, 3.0, 3.0, None, 3.0, None]


def test_every_arrival_of_a_request_is_counted(sandbox: SandboxThread) -> None:
    """A call that is failed or put off was an arrival too; `requests` counts those that were not failed."""
    sandbox.behave(provider={"fail_times": 1, "not_yet_times": 1})

    async def calls(client: HttpClient) -> list[str]:
        provider = HttpProvider(client, Endpoint(url=sandbox.listening.provider_url, allow_loopback_http=True))
        found = []
        for _ in range(3):
            try:
                found.append(type(await provider.review(REQUEST, deadline_seconds=5)).__name__)
            except ProviderFailure as failure:
                found.append(failure.code)
        return found

    assert run_calls(calls) == ["evidence.provider.status_503", "NotYet", "dict"]
    state = sandbox.state()
    assert (state["arrivals"], state["requests"]) == ({REQUEST.request_id: 3}, {REQUEST.request_id: 2})


@pytest.mark.parametrize("lie", [{"rubbish": "text"}, {"rubbish": "binding"}, {"wrong_key": True}])
def test_as_many_answers_as_asked_for_are_lies(sandbox: SandboxThread, lie: dict[str, Any]) -> None:
    """With `lie_times` 2 a CMS lies about two look-ups and is honest from the third on; the lies are counted."""
    sandbox.behave(lookup={**lie, "lie_times": 2})
    lookup = Lookup(delivery_id="delivery-1", payload_sha256="0" * 63 + "1", nonce="n")

    async def calls(client: HttpClient) -> list[str]:
        cms = HttpCms(
            client,
            Endpoint(url=sandbox.listening.cms_url, allow_loopback_http=True),
            site_id=SITE,
            trust=lambda: sandbox.sandbox.keys.trust("acknowledgement"),
        )
        return [(await cms.look_up(lookup, deadline_seconds=5)).outcome for _ in range(3)]

    found = run_calls(calls)
    assert "absent" not in found[:2]
    assert found[2] == "absent"
    assert sandbox.state()["faults"]["lookup.lied"] == 2


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("provider", b"{}", "request.invalid"),
        ("provider", b"{", "request.invalid"),
        ("provider", REQUEST.body, "idempotency_key.mismatch"),
        ("verifier", b'{"schema":"x"}', "verification.invalid"),
        ("cms/deliveries", b"{}", "delivery.invalid"),
        ("cms/lookups", b"{}", "lookup.invalid"),
    ],
)
def test_what_breaks_the_contract_is_refused(sandbox: SandboxThread, path: str, body: bytes, code: str) -> None:
    """A request that a vendor would not understand is a 422 with a code, and publishes nothing."""
    assert send(f"{sandbox.listening.url}/{path}", body) == (422, {"code": code})
    assert sandbox.state()["publications"] == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_text": "other"}, "request.text_mismatch"),
        ({"evidence_revision": "r9"}, "request.id_mismatch"),
    ],
)
def test_a_changed_request_is_refused(sandbox: SandboxThread, changes: dict[str, str], code: str) -> None:
    """The provider checks what the request binds: its id and its texts."""
    body = json.dumps({**REQUEST.document, **changes}).encode()
    key = f"{REQUEST.request_id}.{sha256_hex(body)}"
    assert send(sandbox.listening.provider_url, body, **{"Idempotency-Key": key}) == (422, {"code": code})


def test_a_publication_is_verified_where_the_trust_set_is_given(tmp_path: Path) -> None:
    """With our trust set, the CMS refuses what we did not sign, and follows a change of the file."""
    keys, others = Keyring(), Keyring()
    trust = tmp_path / "publication.jwks.json"
    trust.write_text(json.dumps(others.jwks("publication")))
    delivery = publication_for(keys, change_event())
    with SandboxThread(tmp_path / "s", sites=[SITE], publication_trust=trust) as running:

        async def publish(client: HttpClient) -> CmsAnswer:
            cms = HttpCms(
                client,
                Endpoint(url=running.listening.cms_url, allow_loopback_http=True),
                site_id=SITE,
                trust=lambda: running.sandbox.keys.trust("acknowledgement"),
            )
            return await cms.publish(delivery, delivery_id=delivery.document["delivery_id"], deadline_seconds=5)

        assert run_calls(publish).outcome == "refused"
        assert running.state()["publications"] == []
        trust.write_text(json.dumps(keys.jwks("publication")))
        assert run_calls(publish).outcome == "accepted"


def test_an_earlier_request_is_void_after_absent_was_answered(sandbox: SandboxThread) -> None:
    """A delivery that still waits inside the CMS when its absence is promised is not published by that request."""
    delivery = publication_for(Keyring(), change_event())
    delivery_id = delivery.document["delivery_id"]
    sandbox.behave(cms={"hold": True})
    lookup = Lookup(delivery_id=delivery_id, payload_sha256=sha256_hex(delivery.payload()), nonce="n")

    async def race(client: HttpClient) -> tuple[CmsAnswer, CmsAnswer]:
        cms = HttpCms(
            client,
            Endpoint(url=sandbox.listening.cms_url, allow_loopback_http=True),
            site_id=SITE,
            trust=lambda: sandbox.sandbox.keys.trust("acknowledgement"),
        )
        sending = asyncio.ensure_future(cms.publish(delivery, delivery_id=delivery_id, deadline_seconds=30))
        while not sandbox.sandbox.ledger.posts[delivery_id]:
            await asyncio.to_thread(sandbox.state)
        found = await cms.look_up(lookup, deadline_seconds=30)
        await asyncio.to_thread(sandbox.behave, cms={})
        return found, await sending

    found, sent = run_calls(race)
    assert (found.outcome, sent.outcome, sent.code) == ("absent", "unavailable", "cms.delivery.status_503")
    assert sandbox.state()["publications"] == []


def test_five_hundred_calls_are_in_flight_at_once(sandbox: SandboxThread) -> None:
    """A provider that takes its time holds up nobody: all calls wait together, on both sides."""
    sandbox.behave(provider={"hold": True})

    async def calls(client: HttpClient) -> int:
        provider = HttpProvider(client, Endpoint(url=sandbox.listening.provider_url, allow_loopback_http=True))
        waiting = asyncio.gather(*(provider.review(REQUEST, deadline_seconds=60) for _ in range(500)))
        while sandbox.sandbox.controls.running["provider"] < 500:
            await asyncio.to_thread(sandbox.state)
        await asyncio.to_thread(sandbox.behave, provider={})
        return sum(isinstance(answer, dict) for answer in await waiting)

    assert run_calls(calls) == 500
    assert sandbox.state()["peak"]["provider"] == 500


def test_it_serves_https_under_a_certificate_that_callers_can_trust(tmp_path: Path) -> None:
    """With TLS names, all of it is https; the certificate stays the same until the names change."""
    names = ["127.0.0.1", "sandbox.test"]

    async def ask(client: HttpClient) -> object:
        provider = HttpProvider(client, Endpoint(url=running.listening.provider_url))
        return await provider.review(REQUEST, deadline_seconds=10)

    with SandboxThread(tmp_path / "s", sites=[SITE], tls_names=names) as running:
        assert running.listening.url.startswith("https://127.0.0.1:")
        assert isinstance(run_calls(ask, ca_file=running.listening.ca_file), dict)
        assert running.state()["calls"]["provider"] == 1
        with pytest.raises(ProviderFailure) as caught:
            run_calls(ask)
        assert caught.value.code == "evidence.provider.tls"
    certificate, key = certificate_for(tmp_path / "s" / "tls", names)
    before = certificate.read_bytes()
    assert certificate_for(tmp_path / "s" / "tls", names[::-1])[0].read_bytes() == before
    assert certificate_for(tmp_path / "s" / "tls", names[:1])[0].read_bytes() != before
    assert key.stat().st_mode & 0o777 == 0o600


def test_control_is_for_this_machine_alone(sandbox: SandboxThread) -> None:
    """Another host name, another content type or a misspelt document is refused."""
    url = sandbox.listening.control_url
    assert send(url, b"{}", Host="evil.example.org")[0] == 403
    assert send(url, b"{}", **{"Content-Type": "text/plain"})[0] == 415
    assert send(url, b'{"cms":{"stale":"yes"}}') == (422, {"code": "sandbox.control.invalid", "path": "cms.stale"})
    assert send(url, b'{"cms":{"stale":true}}')[1]["behaviour"]["cms"]["stale"] is True


def test_an_address_in_use_is_refused(sandbox: SandboxThread, tmp_path: Path) -> None:
    """A port that is taken is a refusal with a code, not a traceback."""
    port = sandbox.listening.url.rpartition(":")[2]
    found = subprocess.run(
        [*LOCSEAL, "sandbox", "--json", "--port", port, "--dir", str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 1
    assert json.loads(found.stdout)["error"]["code"] == "sandbox.address.unavailable"


def test_the_command_says_where_it_listens_and_serves(tmp_path: Path) -> None:
    """`locseal sandbox --port 0 --json` prints one line once it takes connections, behaves as its options say, and ends."""
    options = ["--port", "0", "--dir", str(tmp_path / "s"), "--site", SITE, "--refuse", "de=terms.missing"]
    with subprocess.Popen(
        [*LOCSEAL, "sandbox", "--json", *options],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert (ready["status"], ready["sites"]) == ("ready", [SITE])
            assert Path(ready["trust_dir"], "acknowledgement.jwks.json").exists()

            async def refused(client: HttpClient) -> str:
                provider = HttpProvider(client, Endpoint(url=ready["provider"], allow_loopback_http=True))
                with pytest.raises(ProviderFailure) as caught:
                    await provider.review(REQUEST, deadline_seconds=10)
                return caught.value.code

            assert run_calls(refused) == "evidence.terms.missing"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_review_by_hand_is_put_off_until_it_is_handed_out(sandbox: SandboxThread) -> None:
    """202 for what needs that review, its id on the desk; finished, it is signed for `evidence` and answered at once."""
    legal = request_for(change_event(content_type="legal"), "de")
    sandbox.behave(provider={"by_hand": ["human"], "retry_after": "60"}, reset=True)

    def ask(request: Any) -> tuple[int, Any]:
        key = {"Idempotency-Key": f"{request.request_id}.{sha256_hex(request.body)}"}
        return send(sandbox.listening.provider_url, request.body, **key)

    desk = f"{sandbox.listening.url}/responses"
    try:
        assert ask(REQUEST)[0] == 200
        with urllib.request.urlopen(
            urllib.request.Request(
                sandbox.listening.provider_url,
                data=legal.body,
                headers={
                    "Content-Type": "application/json",
                    "Idempotency-Key": f"{legal.request_id}.{sha256_hex(legal.body)}",
                },
            ),
            timeout=10,
        ) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (202, "60")
        with urllib.request.urlopen(desk, timeout=10) as answer:
            assert json.load(answer) == {"requests": [legal.request_id]}
        status, handed = send(f"{desk}/{legal.request_id}", b"")
        assert status == 200
        signed = parse_signed(json.dumps(handed), max_bytes=1_000_000, code="response.invalid")
        trust = sandbox.sandbox.keys.trust("evidence")
        verify_detached(trust, signed.payload(), signed.signature, code="response.invalid")
        assert judge_response(legal, dict(signed.document)).human_receipt is not None
        assert ask(legal) == (200, dict(signed.document))
        assert send(f"{desk}/evidence-9", b"")[0] == 404
    finally:
        sandbox.behave(provider={})
