"""A finished translation of one job, with what the pipeline declares about its review.

Nothing declared is trusted that can be derived: bound members, hashes and flags are all held against the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from worker.domain.canonical import canonical_bytes, canonical_text, sha256_hex
from worker.domain.change import ChangeEvent, ContentType, Job, Provider
from worker.domain.document import Document, Hash, JsonObject, Locale, Text, Token, join_path, parse_document, refusal
from worker.domain.errors import Invalid
from worker.domain.text import text_sha256

RESULT_SCHEMA: Final = "locseal.result.v1"
LONGEST_COMMERCIAL_REVIEW_BYTES: Final = 32_768  # canonical; every request, binding and approval repeats it
Confidence = Literal["high", "low"]

BOUND_TO_JOB: Final = (
    "job_id",
    "source_locale",
    "target_locale",
    "content_type",
    "glossary_version",
    "policy_version",
    "provider",
    "software_version",
)
"""The members of a result that repeat its job's, beside the two text hashes."""


class ReviewConfidence(Document):
    """How sure the pipeline is of its own translation."""

    target_native: Confidence
    source_fidelity: Confidence


class QualityProfile(Document):
    """The published rules that a quality review judges by."""

    locale: Locale
    version: Token
    sha256: Hash


class Result(Document):
    """A finished translation. `replaces` names the result it takes the place of, and is no part of its hash."""

    schema_: Annotated[Literal["locseal.result.v1"], Field(alias="schema")]
    job_id: Token
    source_sha256: Hash
    target_sha256: Hash
    source_locale: Locale
    target_locale: Locale
    content_type: ContentType
    glossary_version: Token
    policy_version: Token
    provider: Provider
    software_version: Token
    candidate: Text
    review_confidence: ReviewConfidence
    quality_profile: QualityProfile
    commercial_review: JsonObject | None
    human_review_required: bool
    independent_review_required: bool
    replaces: Hash | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.commercial_review is not None) != (self.content_type == "commercial"):
            raise refusal("commercial.invalid", "commercial_review")
        if (
            self.commercial_review is not None
            and len(canonical_bytes(self.commercial_review)) > LONGEST_COMMERCIAL_REVIEW_BYTES
        ):
            raise refusal("commercial.invalid", "commercial_review")
        return self

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """Return the result as the JSON object it came as, without `replaces`."""
        return self.model_dump(mode="json", by_alias=True, exclude={"replaces"})

    @cached_property
    def text(self) -> str:
        """Return the canonical text without `replaces`, which is how a result is stored."""
        return canonical_text(self.document)

    @cached_property
    def sha256(self) -> str:
        """Return the `result_sha256`: the hash of the canonical result without `replaces`."""
        return sha256_hex(self.text)


def parse_result(value: object, *, path: str = "") -> Result:
    """Return the result in a parsed JSON value.

    `path` is where it stands in the message. Raises `Invalid` with `submission.invalid`, or a code of its own kind
    (`submission.locale.invalid`, `submission.text.invalid`, `submission.commercial.invalid`), and the member's path.
    """
    return parse_document(Result, value, area="submission", path=path)


def result_sha256(result: Result) -> str:
    """Return the hash by which a result is known everywhere."""
    return result.sha256


def check_result(job: Job, event: ChangeEvent, result: Result, *, path: str = "") -> None:
    """Check a result against its job and the event's source text.

    Raises `Invalid` with the member's path: `submission.result.mismatch` for a bound member,
    `submission.result.hash_mismatch` for a text hash, `submission.result.flags_mismatch` for a review flag.
    """
    for name in BOUND_TO_JOB:
        if getattr(result, name) != getattr(job, name):
            raise Invalid(
                "submission.result.mismatch", "the result was made for another job", path=join_path(path, name)
            )
    # The job's hash was derived from the event's own text, so this holds the result against the text itself.
    hashes = {"source_sha256": event.source_sha256, "target_sha256": text_sha256(result.candidate)}
    for name, derived in hashes.items():
        if getattr(result, name) != derived:
            raise Invalid(
                "submission.result.hash_mismatch", "the declared hash is not the text's", path=join_path(path, name)
            )
    for name, derived_flag in review_flags(result).items():
        if getattr(result, name) is not derived_flag:
            raise Invalid(
                "submission.result.flags_mismatch",
                "the flag does not follow from content type and confidence",
                path=join_path(path, name),
            )


def review_flags(result: Result) -> dict[str, bool]:
    """Return the two review flags as they follow from the content type and the confidences."""
    legal = result.content_type == "legal"
    confidence = result.review_confidence
    low = "low" in (confidence.target_native, confidence.source_fidelity)
    return {"human_review_required": legal, "independent_review_required": not legal and low}
