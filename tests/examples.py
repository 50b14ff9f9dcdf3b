"""The full examples of the published contracts: one change, from its submission to the look-up of its delivery.

Signed with fixed keys that everybody can read in `examples/keys.json`, so nothing may ever trust them. Each page of
`docs/contracts/` shows its examples in a fence after `<!-- example: FILE -->`; `python -m tests.vectors` fills them in,
and `tests/architecture/test_published_contracts.py` fails while a file or a page differs.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests import builders
from tests.keyring import SITE, Keyring
from worker.domain.canonical import canonical_bytes, hash_of, sha256_hex
from worker.domain.change import Provider
from worker.domain.delivery import Lookup
from worker.domain.key import PURPOSES, private_jwk
from worker.domain.receipt import binding_for, receipt_sha256
from worker.domain.signature import SignedDocument, load_trust

CONTRACTS: Final = Path(__file__).parent.parent / "docs" / "contracts"
EXAMPLES: Final = CONTRACTS / "examples"
PROVIDERS: Final = ("reviewer", "quality-lab")
# file of a body -> (path it is posted to, file of its head); every head carries an invented bearer token
CALLS: Final = {
    "evidence-request.json": ("/reviews", "evidence-request.http"),
    "verification.json": ("/receipts", "verification.http"),
    "publication.json": ("/locseal/deliveries", "publication.http"),
    "lookup.json": ("/locseal/lookups", "lookup.http"),
}
HOST: Final = "vendor.example"
TOKEN: Final = "example-token"
_FENCE: Final = re.compile(r"(<!-- example: (\S+) -->\n```[a-z]+\n).*?^(```)$", re.DOTALL | re.MULTILINE)


class ExampleKeys(Keyring):
    """A key of each purpose, made from its name."""

    def __init__(self) -> None:
        """Make the keys and their trust sets."""
        super().__init__(providers=PROVIDERS)
        for purpose in PURPOSES:
            seed = hashlib.sha256(f"locseal example key: {purpose}".encode()).digest()
            self.private[purpose] = Ed25519PrivateKey.from_private_bytes(seed)
            self.kids[purpose] = f"example-{purpose.replace(':', '-')}"
            self._jwks[purpose] = self._public(purpose, [SITE], list(PROVIDERS))
            self._trust[purpose] = load_trust(purpose, self._jwks[purpose])

    def document(self) -> dict[str, Any]:
        """Return private keys and trust sets by purpose."""
        return {
            "note": "Everybody knows these keys. Check your signatures against them, and trust them nowhere.",
            "private": {purpose: private_jwk(self.private[purpose], self.kids[purpose]) for purpose in PURPOSES},
            "trust": {purpose: self.jwks(purpose) for purpose in PURPOSES},
        }


def documents() -> dict[str, Any]:
    """Return every example by its file: one story, in which each document names the ones before it."""
    keys = ExampleKeys()
    event = builders.change_event(event_id="hero-2026-02", target_locales=["de", "fr-CA"])
    results = [
        builders.result_for(builders.job_for(event, "de"), candidate="Willkommen zurück. Ihr Warenkorb wartet."),
        builders.result_for(
            builders.job_for(event, "fr-CA"), candidate="Bon retour. Votre panier vous attend.", confidence="low"
        ),
    ]
    request = builders.request_for(event, "fr-CA", result=results[1])
    response = builders.response_for(keys, request)
    binding = binding_for(request, "independent", Provider(**builders.REVIEWER))
    receipt = response["independent_model_review"]["receipt"]
    publication = builders.publication_for(keys, event, results=results)
    lookup = Lookup(
        delivery_id=publication.document["delivery_id"],
        payload_sha256=hash_of(publication.document),
        nonce=sha256_hex("a nonce is 32 random bytes"),
    )
    made: dict[str, Any] = {
        "keys.json": keys.document(),
        "submission.json": keys.sign("submission", builders.submission(event, results)),
        "withdrawal.json": keys.sign("submission", builders.withdrawal(event)),
        "evidence-request.json": dict(request.document),
        "evidence-response.json": response,
        "evidence-response-pushed.json": keys.sign("evidence", response),
        "receipt-binding.json": dict(binding.document),
        "verification.json": {
            "schema": "locseal.verification.v1",
            "purpose": "independent",
            "receipt": receipt,
            "binding": dict(binding.document),
        },
        "verification-answer.json": {
            "schema": "locseal.verification-answer.v1",
            "purpose": "independent",
            "binding_sha256": binding.sha256,
            "receipt_sha256": receipt_sha256(receipt),
            "verdict": "accepted",
            "kid": keys.kids["receipt:independent"],
        },
        "approval.json": keys.sign("approval", builders.approval_document(keys, request)),
        "publication.json": publication,
        "acknowledgement.json": keys.sign("acknowledgement", builders.acknowledgement_for(publication.document)),
        "lookup.json": lookup.document(),
        "lookup-answer.json": keys.sign("acknowledgement", builders.lookup_answer_for(lookup)),
    }
    return {file: one.to_json() if isinstance(one, SignedDocument) else one for file, one in made.items()}


def head_of(file: str, document: dict[str, Any]) -> str:
    """Return the request line and the headers with which the body in a file is posted."""
    path, _ = CALLS[file]
    body = canonical_bytes(document)
    inner = document.get("document", document)
    our_id = inner["binding"]["request_id"] if "binding" in inner else inner.get("delivery_id", inner.get("request_id"))
    lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", f"Idempotency-Key: {our_id}.{sha256_hex(body)}"]
    if path.startswith("/locseal"):
        lines.append(f"Locseal-Site-Id: {SITE}")
    return "\n".join(
        [
            *lines,
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            "Accept: application/json",
            "Accept-Encoding: identity",
            "User-Agent: locseal",
            f"Authorization: Bearer {TOKEN}",
            "",
        ]
    )


def texts() -> dict[Path, str]:
    """Return the exact text of every example file by its path."""
    made = documents()
    found = {
        EXAMPLES / file: json.dumps(document, ensure_ascii=False, indent=1) + "\n" for file, document in made.items()
    }
    return found | {EXAMPLES / head: head_of(file, made[file]) for file, (_, head) in CALLS.items()}


def page(text: str, examples: dict[Path, str]) -> str:
    """Return a page with the examples in its fences; KeyError where it names a file that is none."""
    return _FENCE.sub(lambda found: f"{found[1]}{examples[EXAMPLES / found[2]]}{found[3]}", text)
