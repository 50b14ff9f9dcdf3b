"""The publication a CMS receives, what it may answer, and the outcome of advancing an event. No sending, no storage.

A publication is built once, signed, stored, and from then on only re-verified: what is stored is what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from pydantic import Field

from worker.domain.canonical import MAX_INTEGER, canonical_text, hash_of, parse_strict, sha256_hex
from worker.domain.document import Document, Hash, Locale, Seconds, Text, Token, parse_document
from worker.domain.errors import Blocked, Invalid
from worker.domain.signature import verify_detached
from worker.domain.text import text_sha256

if TYPE_CHECKING:
    from worker.domain.change import ChangeEvent
    from worker.domain.signature import SignedDocument, TrustSet

PUBLICATION_SCHEMA: Final = "locseal.publication.v1"
ACKNOWLEDGEMENT_SCHEMA: Final = "locseal.acknowledgement.v1"
LOOKUP_SCHEMA: Final = "locseal.lookup.v1"
LOOKUP_ANSWER_SCHEMA: Final = "locseal.lookup-answer.v1"
OUTCOME_SCHEMA: Final = "locseal.outcome.v1"

TAMPERED: Final = "cms.delivery.tampered"
ACKNOWLEDGEMENT_INVALID: Final = "cms.acknowledgement.invalid"
ACKNOWLEDGEMENT_MISMATCH: Final = "cms.acknowledgement.binding_mismatch"
LOOKUP_INVALID: Final = "cms.lookup.invalid"
LOOKUP_MISMATCH: Final = "cms.lookup.binding_mismatch"

LONGEST_DELIVERY_BYTES: Final = 1024 * 1024 * 1024  # our own bytes: 250 texts of 2,000,000 bytes, escapes included


class PublishedLocale(Document):
    """One locale of a publication: its approved text, and the approval that lets it go live."""

    locale: Locale
    target_text: Text
    target_sha256: Hash
    approval_id: Token
    approval_expires_at: Seconds


class Publication(Document):
    """The payload for the CMS: every locale of one change event, and nothing else."""

    schema_: Annotated[Literal["locseal.publication.v1"], Field(alias="schema")]
    event_id: Token
    site_id: Token
    website_version: Token
    plan_id: Token
    source_id: Token
    source_revision: Token
    source_sequence: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    source_sha256: Hash
    localizations: Annotated[list[PublishedLocale], Field(min_length=1, max_length=250)]
    delivery_id: Token


class Acknowledgement(Document):
    """The signed word of a CMS that it accepted exactly these bytes."""

    schema_: Annotated[Literal["locseal.acknowledgement.v1"], Field(alias="schema")]
    site_id: Token
    delivery_id: Token
    payload_sha256: Hash
    status: Literal["accepted"]


class LookupQuestion(Document):
    """What we ask a CMS about a delivery whose outcome is unknown."""

    schema_: Annotated[Literal["locseal.lookup.v1"], Field(alias="schema")]
    delivery_id: Token
    payload_sha256: Hash
    nonce: Token


class LookupAnswer(Document):
    """The signed answer of a CMS to one look-up."""

    schema_: Annotated[Literal["locseal.lookup-answer.v1"], Field(alias="schema")]
    site_id: Token
    delivery_id: Token
    payload_sha256: Hash
    nonce: Token
    status: Literal["accepted", "absent"]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One look-up: which delivery, which bytes, and the nonce that only its own answer repeats."""

    delivery_id: str
    payload_sha256: str
    nonce: str

    def document(self) -> dict[str, Any]:
        """Return the JSON object that is sent."""
        return {
            "schema": LOOKUP_SCHEMA,
            "delivery_id": self.delivery_id,
            "payload_sha256": self.payload_sha256,
            "nonce": self.nonce,
        }


@dataclass(frozen=True, kw_only=True)
class CmsAnswer:
    """What one request to a CMS came to.

    accepted, absent  a verified signed answer (`signed`, `kid`); absent only ever answers a look-up
    stale             409 that says stale
    refused           a definite refusal: a redirect, or a 4xx that is no "not now"; terminal
    unavailable       may be tried again; `sent` is False when it is certain that nothing was accepted (no byte left us,
                      or a definite 425 or 429), and True when the outcome is unknown
    unverifiable      parsed, but a wrong binding or a bad signature: terminal, and the outcome is unknown
    """

    outcome: Literal["accepted", "absent", "stale", "refused", "unavailable", "unverifiable"]
    code: str = ""
    sent: bool = True
    signed: SignedDocument | None = field(default=None, repr=False)
    kid: str | None = None
    retry_after_seconds: float | None = None


AdvanceStatus = Literal["waiting", "approved", "delivery_ready", "delivered", "superseded", "withdrawn"]


@dataclass(frozen=True, kw_only=True)
class Advance:
    """Where an event stands after a step. Members that do not apply are None and stay out of `to_json`."""

    status: AdvanceStatus
    event_id: str
    plan_id: str | None = None
    job_id: str | None = None
    target_locale: str | None = None
    approval_id: str | None = None
    delivery_id: str | None = None
    schema: str = OUTCOME_SCHEMA

    def to_json(self) -> dict[str, str]:
        """Return the outcome document, without the members that do not apply."""
        members = {
            "schema": self.schema,
            "status": self.status,
            "event_id": self.event_id,
            "plan_id": self.plan_id,
            "job_id": self.job_id,
            "target_locale": self.target_locale,
            "approval_id": self.approval_id,
            "delivery_id": self.delivery_id,
        }
        return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ApprovedLocale:
    """What a publication needs of one job: its locale, its text, and the approval that stands for it."""

    locale: str
    target_text: str = field(repr=False)
    target_sha256: str
    approval_id: str
    approval_expires_at: float


def build_publication(event: ChangeEvent, localizations: Iterable[ApprovedLocale]) -> dict[str, Any]:
    """Return the publication of an event, with the `delivery_id` that is derived from all the rest.

    The localizations must be exactly the event's target locales, each once, each text matching its hash; anything else
    is `Blocked("cms.delivery.locales")` or `Blocked("cms.delivery.text_mismatch")`: a change is never published in
    only some of its locales.
    """
    entries = sorted(localizations, key=lambda entry: entry.locale)
    if [entry.locale for entry in entries] != sorted(event.localization.target_locales):
        raise Blocked("cms.delivery.locales", "a publication holds exactly the locales of its event")
    if any(text_sha256(entry.target_text) != entry.target_sha256 for entry in entries):
        raise Blocked("cms.delivery.text_mismatch", "a stored text does not match its hash; audit the event")
    document: dict[str, Any] = {
        "schema": PUBLICATION_SCHEMA,
        "event_id": event.event_id,
        "site_id": event.site_id,
        "website_version": event.website_version,
        "plan_id": event.plan_id,
        "source_id": event.localization.source_id,
        "source_revision": event.localization.source_revision,
        "source_sequence": event.source_sequence,
        "source_sha256": event.source_sha256,
        "localizations": [
            {
                "locale": entry.locale,
                "target_text": entry.target_text,
                "target_sha256": entry.target_sha256,
                "approval_id": entry.approval_id,
                "approval_expires_at": entry.approval_expires_at,
            }
            for entry in entries
        ],
    }
    return {**document, "delivery_id": delivery_id_of(document)}


def delivery_id_of(document: Mapping[str, Any]) -> str:
    """Return the id of a publication: `delivery-` and the hash of every member but the id itself."""
    return "delivery-" + hash_of({name: value for name, value in document.items() if name != "delivery_id"})


def reverify_delivery(
    payload: str,
    signature: str,
    trust: TrustSet,
    *,
    delivery_id: str,
    payload_sha256: str,
    signed_at: float | None = None,
) -> dict[str, Any]:
    """Return a stored publication after checking everything that was stored with it; expiry is not judged here.

    `signed_at` is when it was signed (seconds), which a key retired since needs. Raises
    `Blocked("cms.delivery.tampered")` when bytes, hash, id, shape or signature do not agree.
    """
    if sha256_hex(payload) != payload_sha256:
        raise _tampered("its bytes do not match the stored hash")
    document = _stored(payload)
    if document.get("delivery_id") != delivery_id or delivery_id_of(document) != delivery_id:
        raise _tampered("its id is not derived from its content")
    verify_detached(trust, payload.encode(), signature, code=TAMPERED, signed_at=signed_at)
    return document


def _stored(payload: str) -> dict[str, Any]:
    """Parse a stored publication: a valid one, in exactly its canonical bytes."""
    document = parse_strict(payload, max_bytes=LONGEST_DELIVERY_BYTES, code=TAMPERED)
    try:
        parse_document(Publication, document, area="cms.delivery")
    except Invalid as refused:
        raise _tampered(f"it is no publication at {refused.path}") from None
    if canonical_text(document) != payload:
        raise _tampered("its bytes are not canonical")
    entries = document["localizations"]
    locales = [entry["locale"] for entry in entries]
    if locales != sorted(set(locales)):
        raise _tampered("its locales are not in order")
    if any(text_sha256(entry["target_text"]) != entry["target_sha256"] for entry in entries):
        raise _tampered("a text does not match its hash")
    return cast("dict[str, Any]", document)


def _tampered(what: str) -> Blocked:
    return Blocked(TAMPERED, f"the stored delivery was changed: {what}; audit the event")


def check_acknowledgement(document: object, *, site_id: str, delivery_id: str, payload_sha256: str) -> None:
    """Check that a verified document acknowledges exactly this delivery.

    Raises `Invalid("cms.acknowledgement.invalid")` for what is no acknowledgement, and
    `Invalid("cms.acknowledgement.binding_mismatch")` for one of another site, delivery or payload.
    """
    try:
        answer = parse_document(Acknowledgement, document, area="cms.acknowledgement")
    except Invalid as refused:
        raise Invalid(ACKNOWLEDGEMENT_INVALID, "the answer is no acknowledgement", path=refused.path) from None
    expected = {"site_id": site_id, "delivery_id": delivery_id, "payload_sha256": payload_sha256}
    _require_same(answer, expected, ACKNOWLEDGEMENT_MISMATCH)


def check_lookup_answer(document: object, lookup: Lookup, *, site_id: str) -> Literal["accepted", "absent"]:
    """Return what a verified document answers to exactly this look-up.

    Raises `Invalid("cms.lookup.invalid")` for what is no answer to a look-up, and
    `Invalid("cms.lookup.binding_mismatch")` for an answer about another site, delivery, payload or nonce.
    """
    try:
        answer = parse_document(LookupAnswer, document, area="cms.lookup")
    except Invalid as refused:
        raise Invalid(LOOKUP_INVALID, "the answer is no answer to a look-up", path=refused.path) from None
    expected = {
        "site_id": site_id,
        "delivery_id": lookup.delivery_id,
        "payload_sha256": lookup.payload_sha256,
        "nonce": lookup.nonce,
    }
    _require_same(answer, expected, LOOKUP_MISMATCH)
    return answer.status


def _require_same(answer: Document, expected: Mapping[str, str], code: str) -> None:
    for name, value in expected.items():
        if getattr(answer, name) != value:
            raise Invalid(code, "the signed answer is about something else", path=name)
