"""The work W(R, L): R change events of L locales whose results are there already, the same documents for every side.

Per locale every side does: a durable lease (owner, token, expiry, bound on attempts), the provider's call, the check of
binding and Ed25519 receipt, and in one transaction the signed approval and the end of the lease. Per event exactly once:
the signed publication with all texts in the outbox.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from worker.adapters.keys import FileKeys, generate_key
from worker.domain.canonical import sha256_hex
from worker.domain.change import ChangeEvent, Job, parse_change
from worker.domain.evidence import EvidenceRequest, build_request
from worker.domain.receipt import binding_for
from worker.domain.result import parse_result

SITE: Final = "bench-site"
REVIEWER: Final = "bench-reviewer"
TEXT_BYTES: Final = 400
LOCALES: Final = tuple("ar bg cs da de el es et fi fr ga hr hu it ja ko lt lv nl pl pt ro sk sl sv".split())
TRANSLATOR: Final = {"id": "bench-translator", "model_id": "translate-large", "model_version": "2026-10"}
PURPOSES: Final = ("submission", "approval", "publication", "receipt:quality", "acknowledgement")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of the work: its signed submission, its parsed form, and what will be asked for each locale."""

    change: ChangeEvent
    submission: str
    requests: tuple[EvidenceRequest, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """W(R, L) with fresh ids: no two pieces of work share a text, a job or an event."""

    events: tuple[Event, ...]
    delay_seconds: float

    @cached_property
    def event_ids(self) -> list[str]:
        """Return the ids of the events, in order."""
        return [one.change.event_id for one in self.events]

    @cached_property
    def request_ids(self) -> list[str]:
        """Return the ids of all requests: one for each locale of each event."""
        return [request.request_id for one in self.events for request in one.requests]


def make_keys(directory: Path) -> FileKeys:
    """Make the keys of a benchmark, the reviewer's and the CMS's among them, and return their holder."""
    private, trust = directory / "private", directory / "trust"
    for purpose in PURPOSES:
        sites = (SITE,) if purpose in {"submission", "acknowledgement"} else ()
        providers = (REVIEWER,) if purpose.startswith("receipt") else ()
        generate_key(purpose, private_dir=private, trust_dir=trust, sites=sites, providers=providers)
    return FileKeys(private, trust)


def make_work(keys: FileKeys, events: int, locales: int, *, delay_seconds: float = 0.0) -> Work:
    """Return W(events, locales) for a provider that answers after `delay_seconds`."""
    salt = secrets.token_hex(6)
    made = tuple(_event(keys, f"{salt}-{number:06d}", LOCALES[:locales]) for number in range(events))
    return Work(events=made, delay_seconds=delay_seconds)


def write_answers(keys: FileKeys, work: Work, path: Path) -> None:
    """Write what the reviewer will answer, signed beforehand, so that no stub signs while something is measured."""
    receipts = {}
    for one in work.events:
        for request in one.requests:
            binding = binding_for(request, "quality")
            receipts[request.request_id] = keys.sign("receipt:quality", dict(binding.document)).signature
    path.with_suffix(".part").write_text(json.dumps({"delay_seconds": work.delay_seconds, "receipts": receipts}))
    path.with_suffix(".part").rename(path)


def _event(keys: FileKeys, name: str, locales: Sequence[str]) -> Event:
    document = {
        "schema": "locseal.change-event.v1",
        "event_id": f"event-{name}",
        "site_id": SITE,
        "website_version": "2026.11",
        "source_sequence": 1,
        "localization": {
            "source_id": f"text-{name}",
            "source_revision": "1",
            "source_text": _text("en", name),
            "source_locale": "en",
            "media_type": "text/plain",
            "content_type": "marketing",
            "glossary_version": "glossary-1",
            "policy_version": "policy-1",
            "provider": TRANSLATOR,
            "software_version": "bench-1",
            "commercial_profile": None,
            "target_locales": list(locales),
        },
    }
    change = parse_change(document)
    results = [_result(job, _text(job.target_locale, name)) for job in change.jobs]
    submission = {"schema": "locseal.submission.v1", "event": document, "results": results}
    return Event(
        change=change,
        submission=keys.sign("submission", submission).to_text(),
        requests=tuple(_requests(change, results)),
    )


def _requests(change: ChangeEvent, results: Iterable[dict[str, Any]]) -> Iterable[EvidenceRequest]:
    for job, result in zip(change.jobs, results, strict=True):
        yield build_request(change, job, parse_result(result), "r1")


def _text(locale: str, name: str) -> str:
    """Return a text of 400 bytes that no other locale or event has."""
    sentence = f"[{locale}] {name} Your cart is waiting, and delivery is free until Sunday. "
    return (sentence * (TEXT_BYTES // len(sentence) + 1))[: TEXT_BYTES - 1] + "."


def _result(job: Job, candidate: str) -> dict[str, Any]:
    return {
        "schema": "locseal.result.v1",
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
        "review_confidence": {"target_native": "high", "source_fidelity": "high"},
        "quality_profile": {"locale": job.target_locale, "version": "profile-1", "sha256": sha256_hex("profile-1")},
        "commercial_review": None,
        "human_review_required": False,
        "independent_review_required": False,
    }
