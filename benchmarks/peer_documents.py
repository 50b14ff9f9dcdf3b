"""What both hand-written peers sign and check, as lean as it can be, and the tables they keep it in.

The documents have the members of the product's own, so every side hashes, signs and stores the same bytes per locale.
The canonical form is `json.dumps` with sorted keys, which is quicker and equal for these documents.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from worker.domain.receipt import BOUND_FIELDS

KEYS: Final = "BENCH_KEYS"  # the directory of the benchmark's keys
DATABASE: Final = "BENCH_DATABASE"
LEASE_SECONDS: Final = 300
TABLES: Final = """
CREATE TABLE work (
    request_id text PRIMARY KEY, event_id text NOT NULL, locale text NOT NULL, document text NOT NULL,
    state text NOT NULL DEFAULT 'pending', attempts int NOT NULL DEFAULT 0, max_attempts int NOT NULL DEFAULT 5,
    owner text, token text, expires_at timestamptz, position bigserial
);
CREATE INDEX work_due ON work (position) WHERE state = 'pending';
CREATE INDEX work_by_event ON work (event_id);
CREATE TABLE approvals (
    approval_id text PRIMARY KEY, request_id text NOT NULL UNIQUE, event_id text NOT NULL, locale text NOT NULL,
    document text NOT NULL, signature text NOT NULL, receipt text NOT NULL
);
CREATE INDEX approvals_by_event ON approvals (event_id);
CREATE TABLE deliveries (
    event_id text PRIMARY KEY, delivery_id text NOT NULL, payload text NOT NULL, signature text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


class Approval(NamedTuple):
    """A signed approval as it is stored, with the text that the delivery needs."""

    approval_id: str
    request_id: str
    event_id: str
    locale: str
    document: str
    signature: str
    receipt: str
    text: str


def connect() -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection of its own in autocommit; statements are prepared from their second use on."""
    return psycopg.connect(os.environ[DATABASE], autocommit=True, prepare_threshold=1)


class Notary:
    """Checks receipts and signs approvals and publications."""

    def __init__(self) -> None:
        directory = Path(os.environ[KEYS])
        self._approval = _private(directory, "approval")
        self._publication = _private(directory, "publication")
        self._receipt = _public(directory, "receipt-quality")

    def approve(self, request_id: str, event_id: str, document: str, receipt: str) -> Approval:
        """Return the signed approval of one locale; raise where the receipt does not prove exactly this request."""
        asked = json.loads(document)
        if asked["request_id"] != request_id:
            raise ValueError("the stored request is another one")
        bound = {name: asked[name] for name in BOUND_FIELDS}
        binding = _canonical({"schema": "locseal.receipt-binding.v1", "purpose": "quality", **bound})
        header, _, proof = receipt.split(".")
        kid, key = self._receipt
        if json.loads(_decoded(header))["kid"] != kid:
            raise ValueError("the receipt names another key")
        key.verify(_decoded(proof), header.encode() + b"." + _encoded(binding))
        now = time.time()
        statement = {
            "schema": "locseal.approval.v1",
            "site_id": "bench-site",
            **bound,
            "quality_receipt_sha256": hashlib.sha256(receipt.encode()).hexdigest(),
            "approved_at": now,
            "expires_at": now + 2_592_000,
        }
        approval_id = "approval-" + hashlib.sha256(_canonical(statement)).hexdigest()
        text, signature = _signed(self._approval, {**statement, "approval_id": approval_id})
        locale = asked["target_locale"]
        return Approval(approval_id, request_id, event_id, locale, text, signature, receipt, asked["target_text"])

    def publish(self, event_id: str, locales: list[tuple[str, str, str]]) -> tuple[str, str, str, str]:
        """Return (event id, delivery id, payload, signature) of an event from (locale, approval id, text) of each."""
        entries = [
            {
                "locale": locale,
                "target_text": text,
                "target_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "approval_id": approval_id,
            }
            for locale, approval_id, text in sorted(locales)
        ]
        document = {"schema": "locseal.publication.v1", "event_id": event_id, "localizations": entries}
        delivery_id = "delivery-" + hashlib.sha256(_canonical(document)).hexdigest()
        payload, signature = _signed(self._publication, {**document, "delivery_id": delivery_id})
        return event_id, delivery_id, payload, signature


def _signed(key: tuple[bytes, Ed25519PrivateKey], document: dict[str, Any]) -> tuple[str, str]:
    payload = _canonical(document)
    header, private = key
    proof = private.sign(header + b"." + _encoded(payload))
    return payload.decode(), f"{header.decode()}..{_encoded(proof).decode()}"


def _private(directory: Path, name: str) -> tuple[bytes, Ed25519PrivateKey]:
    (path,) = (directory / "private").glob(f"{name}.*.jwk")
    jwk = json.loads(path.read_text())
    header = _canonical({"alg": "Ed25519", "kid": jwk["kid"], "typ": f"locseal-{name}+jws"})
    return _encoded(header), Ed25519PrivateKey.from_private_bytes(_decoded(jwk["d"]))


def _public(directory: Path, name: str) -> tuple[str, Ed25519PublicKey]:
    (jwk,) = json.loads((directory / "trust" / f"{name}.jwks.json").read_text())["keys"]
    return jwk["kid"], Ed25519PublicKey.from_public_bytes(_decoded(jwk["x"]))


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
