"""The sandbox serves the published OpenAPI document, and our own clients call as the published heads say.

Schemathesis makes the requests: what the schemas allow, once it is hashed and signed as the pages say, is answered as
documented; what they do not allow is refused as documented and publishes nothing. Seeded, so every run is the same.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import APIOperation

from tests.adapters.conftest import run_calls
from tests.builders import SITE, Keyring
from tests.examples import CALLS, EXAMPLES, HOST, TOKEN, documents
from tests.rough_server import RoughServer, reply, says
from worker.adapters.cms.http import HttpCms
from worker.adapters.endpoint import Endpoint, SecretFile
from worker.adapters.http import HttpClient
from worker.adapters.providers.http import HttpProvider
from worker.adapters.sandbox.server import SandboxThread
from worker.adapters.verifiers.http import HttpVerifier
from worker.cli.openapi import openapi
from worker.domain.canonical import sha256_hex
from worker.domain.delivery import Lookup, delivery_id_of
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import EvidenceKey, EvidenceRequest, request_id_of
from worker.domain.receipt import ReceiptBinding
from worker.domain.signature import SignedDocument

load_all_checks()
NAMED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "negative_data_rejection",
)
PATHS = ("/provider", "/verifier", "/cms/deliveries", "/cms/lookups")
LOCALES = ("de", "en-GB", "fr-CA", "sr-Latn", "zh-Hant-TW")
KEYS = Keyring()
EXAMPLES_EACH = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    """A sandbox of one site that verifies no signature of ours."""
    with SandboxThread(tmp_path_factory.mktemp("sandbox") / "keys", sites=(SITE,)) as running:
        yield running


def operation(server: SandboxThread, path: str) -> APIOperation:
    """Return one operation of the published document, served by the sandbox."""
    config = schemathesis.Config.from_dict({"base-url": server.listening.url})
    return schemathesis.openapi.from_dict(openapi(), config=config)[path]["POST"]


def each(found: APIOperation, mode: GenerationMode, attempt: Callable[[Case], object]) -> None:
    """Attempt a few generated requests; the first that fails ends it."""
    run = settings(
        max_examples=EXAMPLES_EACH,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(found.as_strategy(generation_mode=mode))(attempt))
    run()


# --- what a schema cannot say: texts are NFC, locales canonical, hashes and ids derived -----------------------------


def sound(text: str) -> str:
    """Return a text that keeps the rules of texts."""
    return unicodedata.normalize("NFC", text.replace("\0", "0"))


def name_locales(bound: dict[str, Any]) -> None:
    """Put real locales where any string may stand."""
    bound.update(
        source_locale="en", target_locale="fr-CA", quality_profile={**bound["quality_profile"], "locale": "fr-CA"}
    )
    if bound["commercial_review"] is not None:
        bound["commercial_review"] = {"claims": ["price"]}


def make_request(body: dict[str, Any]) -> str:
    """Make an evidence request what its schema alone cannot, and return its id."""
    name_locales(body)
    for text, digest in (("source_text", "source_sha256"), ("target_text", "target_sha256")):
        body[text] = sound(body[text])
        body[digest] = sha256_hex(body[text])
    unbound = {"schema", "request_id", "source_text", "target_text"}
    body["request_id"] = request_id_of({name: value for name, value in body.items() if name not in unbound})
    return str(body["request_id"])


def make_verification(body: dict[str, Any]) -> str:
    """Make a verification ask about the purpose of its binding."""
    name_locales(body["binding"])
    body["purpose"] = body["binding"]["purpose"]
    body["binding"]["request_id"] = "evidence-" + sha256_hex(body["binding"]["request_id"])
    return str(body["binding"]["request_id"])


def make_publication(body: dict[str, Any]) -> str:
    """Make a publication of this site, with locales in order, and sign it."""
    document = body["document"]
    document["site_id"] = SITE
    document["localizations"] = document["localizations"][: len(LOCALES)]
    for locale, entry in zip(LOCALES, document["localizations"], strict=False):
        text = sound(entry["target_text"])
        entry.update(
            locale=locale,
            target_text=text,
            target_sha256=sha256_hex(text),
            approval_expires_at=min(entry["approval_expires_at"], 4e9),
        )
    document["delivery_id"] = delivery_id_of(document)
    body["signature"] = KEYS.sign("publication", document).signature
    return str(document["delivery_id"])


def make_lookup(body: dict[str, Any]) -> str:
    """Make a look-up ask about an id of ours."""
    body["delivery_id"] = "delivery-" + sha256_hex(body["delivery_id"])
    return str(body["delivery_id"])


MAKERS = dict(zip(PATHS, (make_request, make_verification, make_publication, make_lookup), strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_what_the_schema_allows_is_taken_and_answered_as_documented(server: SandboxThread, path: str) -> None:
    """Hashed, signed and named as the pages say, every valid request gets a 200 (a 409 for older text) that fits."""
    found = operation(server, path)
    statuses = []

    def attempt(case: Case) -> None:
        our_id = MAKERS[path](case.body)
        sent = requests.Request(**case.as_transport_kwargs(base_url=server.listening.url)).prepare().body
        case.headers = {"Idempotency-Key": f"{our_id}.{sha256_hex(sent)}", "Locseal-Site-Id": SITE}
        answer = case.call()
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=[CHECKS.get_one(name) for name in NAMED])

    each(found, GenerationMode.POSITIVE, attempt)
    assert len(statuses) >= EXAMPLES_EACH / 2
    assert set(statuses) <= ({200, 409} if path == "/cms/deliveries" else {200})
    assert 200 in statuses


@pytest.mark.parametrize("path", PATHS)
def test_what_the_schema_forbids_is_refused_as_documented(server: SandboxThread, path: str) -> None:
    """Every request that breaks the contract is refused with a status that is documented, and publishes nothing."""
    server.behave(reset=True)
    statuses = []

    def attempt(case: Case) -> None:
        answer = case.call()
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=[CHECKS.get_one(name) for name in NAMED])

    each(operation(server, path), GenerationMode.NEGATIVE, attempt)
    assert len(statuses) >= EXAMPLES_EACH / 2
    assert {status // 100 for status in statuses} == {4}
    assert server.state()["publications"] == []


# --- the published heads are what our clients send ------------------------------------------------------------------


def read(file: str) -> dict[str, Any]:
    """Return an example."""
    document: dict[str, Any] = documents()[file]
    return document


async def ask_provider(client: HttpClient, endpoint: Endpoint) -> object:
    """Ask for the review of the example."""
    document = read("evidence-request.json")
    names = ("request_id", "event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")
    key = EvidenceKey(**{name: document[name] for name in names})
    provider = HttpProvider(client, Endpoint(url=f"{endpoint.url}/reviews", **_as(endpoint)))
    return await provider.review(EvidenceRequest(key=key, site_id=SITE, document=document), deadline_seconds=10)


async def ask_verifier(client: HttpClient, endpoint: Endpoint) -> object:
    """Ask about the receipt of the example."""
    document = read("verification.json")
    verifier = HttpVerifier(client, Endpoint(url=f"{endpoint.url}/receipts", **_as(endpoint)))
    binding = ReceiptBinding(purpose="independent", document=document["binding"])
    return await verifier.verify(document["receipt"], binding, deadline_seconds=10)


async def send_publication(client: HttpClient, endpoint: Endpoint) -> object:
    """Send the publication of the example."""
    signed = read("publication.json")
    delivery = SignedDocument(signed["document"], signed["signature"])
    return await _cms(client, endpoint).publish(
        delivery, delivery_id=delivery.document["delivery_id"], deadline_seconds=10
    )


async def ask_cms(client: HttpClient, endpoint: Endpoint) -> object:
    """Look up the delivery of the example."""
    document = read("lookup.json")
    names = ("delivery_id", "payload_sha256", "nonce")
    return await _cms(client, endpoint).look_up(Lookup(**{name: document[name] for name in names}), deadline_seconds=10)


def _cms(client: HttpClient, endpoint: Endpoint) -> HttpCms:
    at = Endpoint(url=f"{endpoint.url}/locseal", **_as(endpoint))
    return HttpCms(client, at, site_id=SITE, trust=lambda: KEYS.trust("acknowledgement"))


def _as(endpoint: Endpoint) -> dict[str, Any]:
    return {"credentials": endpoint.credentials, "allow_loopback_http": True}


CALLERS = {
    "evidence-request.json": ask_provider,
    "verification.json": ask_verifier,
    "publication.json": send_publication,
    "lookup.json": ask_cms,
}


@pytest.mark.parametrize("file", sorted(CALLS))
def test_our_clients_send_the_published_head_and_body(file: str, tmp_path: Path) -> None:
    """Byte for byte the same headers, in any order, and the canonical body that the idempotency key names."""
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    with RoughServer(says(reply(b"{}", status=503))) as rough:
        endpoint = Endpoint(url=rough.url.rstrip("/"), credentials=SecretFile(secret), allow_loopback_http=True)

        async def call(client: HttpClient) -> None:
            with contextlib.suppress(ProviderFailure):  # how a review or a verification says that it was refused
                await CALLERS[file](client, endpoint)

        run_calls(call)
        (sent,) = rough.requests
    head, _, body = sent.partition(b"\r\n\r\n")
    published = (EXAMPLES / CALLS[file][1]).read_text(encoding="utf-8").splitlines()
    lines = head.decode().splitlines()
    assert lines[0] == published[0]
    assert sorted(line for line in lines[1:] if not line.startswith("Host: ")) == sorted(
        line for line in published[1:] if not line.startswith("Host: ")
    )
    assert f"Host: {HOST}" in published
    key = next(line for line in published if line.startswith("Idempotency-Key: "))
    assert key.endswith(f".{sha256_hex(body)}")
