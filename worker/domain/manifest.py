"""What an import says beside its texts: site, version, source, provider, policy, confidence, and one file per locale.

From the manifest and the pieces of a catalogue come change events with their results, as a pipeline would send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from worker.domain.canonical import canonical_bytes, sha256_hex
from worker.domain.catalogue import EventPer, Incomplete, Piece, hashed_key
from worker.domain.change import EVENT_SCHEMA, MOST_LOCALES, ChangeEvent, ContentType, MediaType, Provider, parse_change
from worker.domain.document import Document, Hash, JsonObject, Locale, Token, parse_document, refusal
from worker.domain.errors import Invalid
from worker.domain.identifier import is_token
from worker.domain.result import RESULT_SCHEMA, Result, ReviewConfidence, parse_result
from worker.domain.submission import LONGEST_SUBMISSION_BYTES, SUBMISSION_SCHEMA
from worker.domain.text import LONGEST_TEXT_BYTES

AREA: Final = "import.manifest"
_ENVELOPE_BYTES: Final = 4096  # signature, schema and brackets around event and results

FileName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


def _array(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class QualityRules(Document):
    """The published rules that quality is judged by, but for their locale, which is the target's."""

    version: Token
    sha256: Hash


class SourceFile(Document):
    """The file that says which units there are."""

    file: FileName


class LocaleFile(Document):
    """One locale's file; what it does not say of itself, the manifest says for all."""

    locale: Locale
    file: FileName
    review_confidence: ReviewConfidence | None = None
    quality_profile: QualityRules | None = None
    commercial_review: JsonObject | None = None


class Manifest(Document):
    """The TOML document of an import."""

    format: Literal["po", "xliff", "json"]
    site_id: Token
    website_version: Token
    source_sequence: int
    event_id: Token | None = None
    source_id: Token
    source_revision: Token
    source_locale: Locale
    media_type: MediaType | None = None
    content_type: ContentType
    commercial_profile: Token | None = None
    glossary_version: Token
    policy_version: Token
    software_version: Token
    provider: Provider
    review_confidence: ReviewConfidence
    quality_profile: QualityRules | None = None
    commercial_review: JsonObject | None = None
    event_per: EventPer = "document"
    incomplete: Incomplete = "leave-units"
    xliff_without_state: Literal["incomplete", "translated"] = "incomplete"
    source: SourceFile | None = None
    locales: Annotated[tuple[LocaleFile, ...], BeforeValidator(_array), Field(min_length=1, max_length=MOST_LOCALES)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.format == "json" and self.source is None:
            raise refusal("invalid", "source")
        seen = set()
        for place, one in enumerate(self.locales):
            if one.locale in seen:
                raise refusal("locale.duplicate", f"locales.{place}.locale")
            seen.add(one.locale)
            if one.quality_profile is None and self.quality_profile is None:
                raise refusal("invalid", f"locales.{place}.quality_profile")
        return self

    def media_type_of(self, piece: Piece) -> MediaType:
        """Return the media type of a piece: JSON, or for a text what the manifest says (plain text by default)."""
        if piece.key is None and self.media_type not in {None, "application/json"}:
            raise Invalid(f"{AREA}.invalid", "a whole document is application/json", path="media_type")
        return "application/json" if piece.is_json else self.media_type or "text/plain"


def parse_manifest(value: object) -> Manifest:
    """Return the manifest in a parsed TOML value; `Invalid("import.manifest.…")` with the path of the member."""
    return parse_document(Manifest, value, area=AREA)


def event_of(manifest: Manifest, piece: Piece) -> ChangeEvent:
    """Return the change event of a piece: the same manifest and texts always give the same bytes.

    Raises `Invalid("import.document.too_large")` for texts beyond what an event may hold, else as `parse_change`.
    """
    for text in (piece.source_text, *piece.targets.values()):
        if len(text.encode()) > LONGEST_TEXT_BYTES:
            raise Invalid(
                "import.document.too_large", "a text has more than 2,000,000 bytes; import with one event per unit"
            )
    return parse_change(
        {
            "schema": EVENT_SCHEMA,
            "event_id": _event_id(manifest, piece.key),
            "site_id": manifest.site_id,
            "website_version": manifest.website_version,
            "source_sequence": manifest.source_sequence,
            "localization": {
                "source_id": _with_key(manifest.source_id, piece.key),
                "source_revision": manifest.source_revision,
                "source_text": piece.source_text,
                "source_locale": manifest.source_locale,
                "media_type": manifest.media_type_of(piece),
                "content_type": manifest.content_type,
                "glossary_version": manifest.glossary_version,
                "policy_version": manifest.policy_version,
                "provider": manifest.provider.to_json(),
                "software_version": manifest.software_version,
                "commercial_profile": manifest.commercial_profile,
                "target_locales": sorted(piece.targets),
            },
        },
        path="event",
    )


def _event_id(manifest: Manifest, key: str | None) -> str:
    own = manifest.event_id or f"{manifest.site_id}:{manifest.source_id}:{manifest.source_sequence}"
    return _with_key(own, key)


def _with_key(name: str, key: str | None) -> str:
    """Return `name:key` as long as that is a token, else the hash of both."""
    whole = name if key is None else f"{name}:{key}"
    return whole if is_token(whole) else hashed_key("import-", name, key)


def results_of(manifest: Manifest, event: ChangeEvent, piece: Piece) -> tuple[Result, ...]:
    """Return the finished result of every job of the event, sorted by job id."""
    files = {one.locale: one for one in manifest.locales}
    found: list[Result] = []
    for job in event.jobs:
        file, candidate = files[job.target_locale], piece.targets[job.target_locale]
        confidence = file.review_confidence or manifest.review_confidence
        rules = file.quality_profile or manifest.quality_profile
        is_low = "low" in (confidence.target_native, confidence.source_fidelity)
        is_legal = job.content_type == "legal"
        document: dict[str, Any] = {
            "schema": RESULT_SCHEMA,
            "job_id": job.job_id,
            "source_sha256": job.source_sha256,
            "target_sha256": sha256_hex(candidate),
            "source_locale": job.source_locale,
            "target_locale": job.target_locale,
            "content_type": job.content_type,
            "glossary_version": job.glossary_version,
            "policy_version": job.policy_version,
            "provider": job.provider.to_json(),
            "software_version": job.software_version,
            "candidate": candidate,
            "review_confidence": confidence.to_json(),
            "quality_profile": {"locale": job.target_locale, **(rules.to_json() if rules is not None else {})},
            "commercial_review": file.commercial_review or manifest.commercial_review,
            "human_review_required": is_legal,
            "independent_review_required": is_low and not is_legal,
        }
        found.append(parse_result(document, path=f"results.{len(found)}"))
    return tuple(found)


def submissions_of(
    event: ChangeEvent, results: tuple[Result, ...], *, replaced: Mapping[str, str], most_bytes: int | None = None
) -> tuple[dict[str, Any], ...]:
    """Return the submission documents of an event: one, or as many as its results need to stay within the size limit.

    `replaced` gives by job id the hash of a stored result; one that differs from ours is named in `replaces`.
    """
    limit = (most_bytes or LONGEST_SUBMISSION_BYTES) - _ENVELOPE_BYTES - len(event.text.encode())
    batches: list[list[dict[str, Any]]] = [[]]
    room = limit
    for result in results:
        document = dict(result.document)
        if replaced.get(result.job_id, result.sha256) != result.sha256:
            document["replaces"] = replaced[result.job_id]
        size = len(canonical_bytes(document)) + 1
        if size > room and batches[-1]:
            batches.append([])
            room = limit
        batches[-1].append(document)
        room -= size
    return tuple({"schema": SUBMISSION_SCHEMA, "event": dict(event.document), "results": batch} for batch in batches)
