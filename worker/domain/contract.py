"""The documents on the wire as JSON Schemas, for other languages. Published with the product, generated from models.

Documents that intake and delivery parse come from their own models. Those that are judged by hand, because the order
of their refusals is contract, have a model here that says the same; only their schemas use it. A schema cannot say
everything (canonical locales, NFC, what follows from content type): the models and `vectors.json` do.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from worker.domain.approval import Approval
from worker.domain.change import ChangeEvent, ContentType, MediaType, Provider
from worker.domain.delivery import Acknowledgement, LookupAnswer, LookupQuestion, Publication
from worker.domain.document import Document, Hash, JsonObject, Locale, Text, Token
from worker.domain.evidence import LONGEST_RECEIPT
from worker.domain.receipt import Purpose
from worker.domain.result import QualityProfile, Result, ReviewConfidence
from worker.domain.submission import SubmissionDocument, Withdrawal
from worker.domain.verification import VerificationAnswer

Receipt = Annotated[str, Field(min_length=1, max_length=LONGEST_RECEIPT)]


class _Bound(Document):
    """What an evidence request and a receipt binding share."""

    request_id: Token
    evidence_revision: Token
    job_id: Token
    result_sha256: Hash
    source_sha256: Hash
    target_sha256: Hash
    source_locale: Locale
    target_locale: Locale
    content_type: ContentType
    glossary_version: Token
    policy_version: Token
    software_version: Token
    provider: Provider
    review_confidence: ReviewConfidence
    quality_profile: QualityProfile
    commercial_profile: Token | None
    commercial_review: JsonObject | None
    human_review_required: bool
    independent_review_required: bool


class EvidenceRequestDocument(_Bound):
    """What a review provider is asked: everything that is bound, and the two texts."""

    schema_: Annotated[Literal["locseal.evidence-request.v1"], Field(alias="schema")]
    event_id: Token
    plan_id: Token
    media_type: MediaType
    source_text: Text
    target_text: Text


class IndependentReviewDocument(Document):
    """The review of another model than the one that translated."""

    schema_: Annotated[Literal["locseal.independent-review.v1"], Field(alias="schema")]
    provider: Provider
    receipt: Receipt


class EvidenceResponseDocument(Document):
    """What a review provider answers; the further reviews are null unless they are called for."""

    schema_: Annotated[Literal["locseal.evidence-response.v1"], Field(alias="schema")]
    request_id: Token
    result_sha256: Hash
    quality_receipt: Receipt
    human_review_receipt: Receipt | None
    independent_model_review: IndependentReviewDocument | None


class QualityOrHumanBindingDocument(_Bound):
    """What a quality or a human receipt proves: exactly the canonical bytes of this document."""

    schema_: Annotated[Literal["locseal.receipt-binding.v1"], Field(alias="schema")]
    purpose: Literal["quality", "human"]


class IndependentBindingDocument(_Bound):
    """What the receipt of an independent review proves: exactly the canonical bytes of this document."""

    schema_: Annotated[Literal["locseal.receipt-binding.v1"], Field(alias="schema")]
    purpose: Literal["independent"]
    reviewer: Provider


class VerificationDocument(Document):
    """What a verifier is asked: whether this receipt proves exactly this binding, which has the same purpose."""

    schema_: Annotated[Literal["locseal.verification.v1"], Field(alias="schema")]
    purpose: Purpose
    receipt: Annotated[str, Field(max_length=LONGEST_RECEIPT)]
    binding: QualityOrHumanBindingDocument | IndependentBindingDocument


class SignedEnvelope(Document):
    """A document with the detached signature over its canonical bytes."""

    document: dict[str, Any]
    signature: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+\.\.[A-Za-z0-9_-]+$")]


def binding_model(purpose: Purpose) -> type[Document]:
    """Return the model of the binding of one purpose."""
    return IndependentBindingDocument if purpose == "independent" else QualityOrHumanBindingDocument


MODELS: Final[dict[str, tuple[type[Document], ...]]] = {
    "locseal.acknowledgement.v1": (Acknowledgement,),
    "locseal.approval.v1": (Approval,),
    "locseal.change-event.v1": (ChangeEvent,),
    "locseal.evidence-request.v1": (EvidenceRequestDocument,),
    "locseal.evidence-response.v1": (EvidenceResponseDocument,),
    "locseal.independent-review.v1": (IndependentReviewDocument,),
    "locseal.lookup-answer.v1": (LookupAnswer,),
    "locseal.lookup.v1": (LookupQuestion,),
    "locseal.publication.v1": (Publication,),
    "locseal.receipt-binding.v1": (QualityOrHumanBindingDocument, IndependentBindingDocument),
    "locseal.result.v1": (Result,),
    "locseal.signed-document": (SignedEnvelope,),
    "locseal.submission.v1": (SubmissionDocument,),
    "locseal.verification-answer.v1": (VerificationAnswer,),
    "locseal.verification.v1": (VerificationDocument,),
    "locseal.withdrawal.v1": (Withdrawal,),
}
"""Every document on the wire by its schema name; the envelope, which has none, by a name of its own."""


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document by its schema name; KeyError for an unknown one."""
    schemas = [model.model_json_schema(by_alias=True, mode="validation") for model in MODELS[name]]
    body = schemas[0] if len(schemas) == 1 else _either(schemas)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body, "title": name}


def definitions(template: str) -> dict[str, Any]:
    """Return the schemas of all documents and their parts by class name, referring to each other by a template.

    `template` is where a definition stands in the document that will hold it, as `#/components/schemas/{model}`.
    """
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation") for kinds in MODELS.values() for model in kinds
    ]
    _, whole = models_json_schema(models, by_alias=True, ref_template=template)
    found: dict[str, Any] = whole["$defs"]
    return found


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    for schema in schemas:
        definitions |= schema.pop("$defs", {})
    return {"oneOf": schemas, "$defs": definitions}
