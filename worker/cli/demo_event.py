"""What the demo submits: one page of a real website in 27 finished locales, as an upstream pipeline would send it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from worker.domain.canonical import sha256_hex
from worker.domain.change import ChangeEvent, Job, parse_change

SITE_ID: Final = "demo-site"
EVENT_ID: Final = "demo-event-1"
LOW_CONFIDENCE: Final = frozenset({"ga-IE", "sr-Latn"})  # these get an independent second review
REFUSED: Final = {"fr-FR": "terminology.mismatch", "ja-JP": "placeholder.missing"}  # what `--fail` has refused
TRANSLATOR: Final = {"id": "demo-translator", "model_id": "translate-large", "model_version": "2026-10"}


def catalogue() -> dict[str, Any]:
    """Return the catalogue that comes with the product."""
    text = resources.files("worker.cli").joinpath("demo_data", "catalogue.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def demo_submission() -> tuple[ChangeEvent, dict[str, Any]]:
    """Return the change event and the submission document that holds it with all its results."""
    found = catalogue()
    document = {
        "schema": "locseal.change-event.v1",
        "event_id": EVENT_ID,
        "site_id": SITE_ID,
        "website_version": "2026.11",
        "source_sequence": 1,
        "localization": {
            "source_id": "admin.interface",
            "source_revision": "5.2.19",
            "source_text": found["source"],
            "source_locale": found["source_locale"],
            "media_type": found["media_type"],
            "content_type": "ui",
            "glossary_version": "glossary-1",
            "policy_version": "policy-1",
            "provider": TRANSLATOR,
            "software_version": "demo-pipeline-1",
            "commercial_profile": None,
            "target_locales": sorted(found["targets"]),
        },
    }
    event = parse_change(document)
    results = [_result(job, found["targets"][job.target_locale]) for job in event.jobs]
    return event, {"schema": "locseal.submission.v1", "event": document, "results": results}


def _result(job: Job, candidate: str) -> dict[str, Any]:
    low = job.target_locale in LOW_CONFIDENCE
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
        "provider": TRANSLATOR,
        "software_version": job.software_version,
        "candidate": candidate,
        "review_confidence": {"target_native": "low" if low else "high", "source_fidelity": "high"},
        "quality_profile": {"locale": job.target_locale, "version": "1", "sha256": sha256_hex("quality profile 1")},
        "commercial_review": None,
        "human_review_required": False,
        "independent_review_required": low,
    }
