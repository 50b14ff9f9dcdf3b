"""A change event, the jobs it asks for and the plan they make. Every id here is derived from content alone.

A job is one (source text, target locale, versions) unit: a changed input is new work, an exact repeat is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.document import Document, Locale, Text, Token, parse_document, refusal
from worker.domain.locale import locale_identity
from worker.domain.text import text_sha256

EVENT_SCHEMA: Final = "locseal.change-event.v1"
MOST_LOCALES: Final = 250
MAX_SEQUENCE: Final = 2**53 - 1

MediaType = Literal["text/plain", "text/html", "text/markdown", "application/json"]
ContentType = Literal["headline", "cta", "marketing", "ui", "documentation", "seo", "legal", "commercial"]


def _array(value: object) -> object:
    """Take a JSON array where an unchangeable row of values is kept; the strict model refuses anything else."""
    return tuple(value) if isinstance(value, list) else value


class Provider(Document):
    """A translation or review provider: who, with which model, in which version."""

    id: Token
    model_id: Token
    model_version: Token


class Localization(Document):
    """The source text of a change, under which versions it is translated, and into which locales."""

    source_id: Token
    source_revision: Token
    source_text: Text
    source_locale: Locale
    media_type: MediaType
    content_type: ContentType
    glossary_version: Token
    policy_version: Token
    provider: Provider
    software_version: Token
    commercial_profile: Token | None
    target_locales: Annotated[tuple[Locale, ...], Field(min_length=1, max_length=MOST_LOCALES), BeforeValidator(_array)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.commercial_profile is not None) != (self.content_type == "commercial"):
            raise refusal("commercial.invalid", "commercial_profile")
        seen: set[str] = set()
        source = locale_identity(self.source_locale)
        for position, target in enumerate(self.target_locales):
            identity = locale_identity(target)
            if identity == source:
                raise refusal("locale.equals_source", f"target_locales.{position}")
            if identity in seen:
                raise refusal("locale.duplicate", f"target_locales.{position}")
            seen.add(identity)
        return self


@dataclass(frozen=True, kw_only=True)
class Job:
    """One unit of work: everything its id is derived from, and the id."""

    job_id: str
    site_id: str
    source_id: str
    source_revision: str
    source_sha256: str
    source_locale: str
    target_locale: str
    media_type: MediaType
    content_type: ContentType
    glossary_version: str
    policy_version: str
    provider: Provider
    software_version: str
    commercial_profile: str | None


class ChangeEvent(Document):
    """One change of one source text on one site, with the locales it must appear in."""

    schema_: Annotated[Literal["locseal.change-event.v1"], Field(alias="schema")]
    event_id: Token
    site_id: Token
    website_version: Token
    source_sequence: Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
    localization: Localization

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """Return the event as the JSON object it came as."""
        return self.to_json()

    @cached_property
    def text(self) -> str:
        """Return the canonical text, which is how an event is stored."""
        return canonical_text(self.document)

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the canonical event: equal exactly for equal events."""
        return sha256_hex(self.text)

    @cached_property
    def source_sha256(self) -> str:
        """Return the hash of the source text's UTF-8 bytes."""
        return text_sha256(self.localization.source_text)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs of the plan, sorted by job id."""
        return jobs_of(self)

    @cached_property
    def plan_id(self) -> str:
        """Return the id of the plan."""
        return plan_id_of(self.jobs)


def parse_change(value: object, *, path: str = "") -> ChangeEvent:
    """Return the change event in a parsed JSON value.

    `path` is where it stands in the message. Raises `Invalid` with `submission.invalid`, or a code of its own kind
    (`submission.locale.*`, `submission.text.invalid`, `submission.commercial.invalid`), and the member's path.
    """
    return parse_document(ChangeEvent, value, area="submission", path=path)


def jobs_of(event: ChangeEvent) -> tuple[Job, ...]:
    """Return one job for each target locale of an event, sorted by job id."""
    source = event.localization
    shared: dict[str, Any] = {
        "site_id": event.site_id,
        "source_id": source.source_id,
        "source_revision": source.source_revision,
        "source_sha256": event.source_sha256,
        "source_locale": source.source_locale,
        "media_type": source.media_type,
        "content_type": source.content_type,
        "glossary_version": source.glossary_version,
        "policy_version": source.policy_version,
        "software_version": source.software_version,
        "commercial_profile": source.commercial_profile,
    }
    provider = source.provider.to_json()
    jobs = [
        Job(
            job_id=job_id_of({**shared, "provider": provider, "target_locale": target}),
            provider=source.provider,
            target_locale=target,
            **shared,
        )
        for target in source.target_locales
    ]
    return tuple(sorted(jobs, key=lambda job: job.job_id))


def job_id_of(content: Mapping[str, Any]) -> str:
    """Return the id of a job: `job-` and the hash of its thirteen members, `provider` as its object."""
    return "job-" + hash_of(content)


def plan_id_of(jobs: Iterable[Job]) -> str:
    """Return the id of a plan: `plan-` and the hash of the array of its sorted job ids."""
    return "plan-" + hash_of(sorted(job.job_id for job in jobs))
