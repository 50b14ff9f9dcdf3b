"""The rules of the audit that no damage of a real database reaches alone: findings, kept keys, reviews, terms, order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import NOW, Keyring, approval_document, change_event, request_for
from worker.domain.approval import approval_id_of
from worker.domain.audit.approval import BesideApprovals, approval_findings, derived_approval, stood_at
from worker.domain.audit.delivery import SourceOrder
from worker.domain.audit.finding import MOST_KEPT, Finding, Tally, judged, row_of
from worker.domain.audit.kept_key import KeptKeys, overlap_findings, read_kept_key
from worker.domain.audit.plain import setback_findings
from worker.domain.canonical import canonical_text
from worker.domain.errors import Invalid
from worker.domain.key import PublicKey, load_trust

Row = dict[str, Any]


def codes(findings: Iterator[Finding]) -> list[str]:
    return [one.code.removeprefix("audit.") for one in findings]


def kept(keys: Keyring, purpose: str) -> PublicKey:
    return next(iter(keys.trust(purpose).keys.values()))


def key_row(key: PublicKey, **changes: Any) -> Row:
    row = {"purpose": key.purpose, "kid": key.kid, "thumbprint": key.thumbprint, "first_seen_at": 1.0}
    return {**row, "jwk": canonical_text(dict(key.jwk)), **changes}


# --- findings -------------------------------------------------------------------------------------------------------


def test_a_row_is_named_by_its_key_and_by_nothing_else() -> None:
    """Tokens and numbers stand as they are; what is neither could be content."""
    assert row_of("job", "job-1").row_id == "job-1"
    assert row_of("receipt", "evidence-1", "quality").row_id == "evidence-1/quality"
    assert row_of("answer", 7).row_id == "7"
    assert row_of("job", "Dear customer", None, b"x").row_id == "?/?/?"


@pytest.mark.parametrize(
    "fault", [KeyError("secret"), TypeError("secret"), ValueError("secret"), Invalid("a.b", "secret")]
)
def test_a_rule_that_stumbles_is_a_finding(fault: Exception) -> None:
    """What it had found before stays; the fault's own words never show."""

    def rule() -> Iterator[Finding]:
        yield row_of("job", "job-1").breaks("row_invalid", "a sentence")
        raise fault

    found = list(judged(row_of("job", "job-1"), rule))
    assert [one.code for one in found] == ["audit.job.row_invalid", "audit.job.unreadable"]
    assert "secret" not in repr(found)


def test_a_tally_keeps_a_bounded_list_and_counts_all() -> None:
    """Violations and notes are counted apart."""
    tally, about = Tally(), row_of("job", "job-1")
    tally.add(about.breaks("unplanned", "a sentence") for _ in range(MOST_KEPT + 5))
    tally.add([about.notes("opaque", "a sentence")])
    assert (tally.violation_count, len(tally.violations), tally.note_count) == (MOST_KEPT + 5, MOST_KEPT, 1)
    assert tally.by_code == {"audit.job.unplanned": MOST_KEPT + 5, "audit.job.opaque": 1}


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_that_was_retired_or_revoked_when_it_was_kept_still_verifies_history() -> None:
    """Its state then is no part of what it proves."""
    keys = Keyring()
    signed = keys.sign("approval", {"a": 1})
    keys.retire("approval", retired_at=5.0)
    key, findings = read_kept_key(key_row(kept(keys, "approval")), None)
    assert (findings, key is not None) == ([], True)
    assert key is not None
    assert KeptKeys([key]).verdict("approval", signed.payload(), signed.signature) == "sound"
    assert KeptKeys([key]).verdict("approval", b"other", signed.signature) == "invalid"
    assert KeptKeys([key]).verdict("publication", signed.payload(), signed.signature) == "missing"
    assert KeptKeys([key]).verdict("approval", signed.payload(), "no signature") == "invalid"
    assert KeptKeys([key]).verdict("approval", signed.payload(), None) == "invalid"


def test_two_kept_keys_may_share_a_name() -> None:
    """A kid used again after years: what either signed verifies."""
    old, new = Keyring(), Keyring()
    both = KeptKeys([kept(old, "approval"), kept(new, "approval")])
    for keys in (old, new):
        signed = keys.sign("approval", {"a": 1})
        assert both.verdict("approval", signed.payload(), signed.signature) == "sound"


@pytest.mark.parametrize(
    "changes",
    [{"jwk": "{}"}, {"jwk": "[1]"}, {"jwk": None}, {"kid": "other"}, {"thumbprint": "x"}, {"first_seen_at": -1}],
)
def test_a_damaged_kept_key_verifies_nothing(changes: Row) -> None:
    """Whatever is wrong with its row."""
    key, findings = read_kept_key(key_row(kept(Keyring(), "approval"), **changes), None)
    assert (key, [one.code for one in findings]) == (None, ["audit.key.invalid"])


def test_a_public_key_of_two_purposes_is_named() -> None:
    """It stands for the later purpose in the order of the specification."""
    key = kept(Keyring(), "approval")
    (twin,) = load_trust("publication", {"keys": [dict(key.jwk)]}).keys.values()
    assert codes(overlap_findings([twin, key])) == ["key.overlap"]
    assert codes(overlap_findings([key])) == []


def test_sites_and_reviewers_of_a_kept_key_are_notes_without_the_trust_of_today() -> None:
    """A kept key names what it named at first; today's entry of the same key counts too, where it is given."""
    keys = Keyring(sites=["site-1"], providers=["reviewer"])
    signed = keys.sign("submission", {})
    receipt = keys.sign("receipt:independent", {}).signature
    key, review = kept(keys, "submission"), kept(keys, "receipt:independent")
    about = row_of("submission", "x")
    wider = load_trust("submission", {"keys": [{**key.jwk, "sites": ["site-1", "site-2"]}]})
    for trust, site, expected in (
        (None, "site-1", []),
        (None, "site-2", [False]),
        ({"submission": wider}, "site-2", []),
        ({"submission": wider}, "site-3", [True]),
    ):
        found = KeptKeys([key], trust=trust).site_findings(about, "submission", signed.signature, site)
        assert [one.is_violation for one in found] == expected
    for trust, provider, expected in ((None, "reviewer", []), (None, "other", [False]), ({}, "other", [True])):
        found = KeptKeys([review], trust=trust).reviewer_findings(about, receipt, provider)
        assert [one.is_violation for one in found] == expected


# --- attempts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "attempts", "ended", "latest", "is_sound"),
    [
        ("pending", 0, 0, 0, True),
        ("pending", 1, 0, 0, False),
        ("retry_wait", 2, 2, 2, True),
        ("retry_wait", 2, 1, 1, False),
        ("failed", 5, 5, 5, True),
        ("failed", 4, 5, 5, False),
        ("leased", 2, 1, 1, True),
        ("leased", 2, 2, 2, True),  # a look-up is no attempt
        ("succeeded", 1, 0, 0, True),
        ("succeeded", 1, 1, 1, True),  # answered by another row's approval
        ("succeeded", 3, 1, 1, False),
        ("succeeded", 2, 1, 3, False),
    ],
)
def test_attempts_are_those_that_ended(status: str, attempts: int, ended: int, latest: int, is_sound: bool) -> None:
    """Each attempt leaves a setback, but for the one that succeeded or is under way."""
    row = {"status": status, "attempts": attempts}
    assert (codes(setback_findings(row_of("evidence", "e"), row, ended, latest)) == []) is is_sound


# --- approvals ------------------------------------------------------------------------------------------------------


def approval_row(keys: Keyring, document: Row) -> Row:
    document = {**document, "approval_id": approval_id_of(document)}
    signed = keys.sign("approval", document)
    names = ("approval_id", "job_id", "site_id", "request_id", "result_sha256", "target_sha256", "policy_sha256")
    return {
        **{name: document[name] for name in (*names, "approved_at", "expires_at")},
        "revoked_at": None,
        "document": canonical_text(document),
        "signature": signed.signature,
        "kid": "approval-1",
    }


def beside(document: Row) -> BesideApprovals:
    hashes = {one: document[f"{one}_receipt_sha256"] for one in ("quality", "human", "independent")}
    return BesideApprovals(
        receipts={
            (document["request_id"], one): frozenset([found]) for one, found in hashes.items() if found is not None
        },
        targets={(document["job_id"], document["result_sha256"]): document["target_sha256"]},
        evidence={document["request_id"]: "succeeded"},
        conflicting=frozenset(),
    )


@pytest.mark.parametrize(
    ("event", "changes", "expected"),
    [
        ({}, {}, []),
        ({"content_type": "legal"}, {}, []),
        ({"confidence": "low"}, {}, []),
        ({"content_type": "legal"}, {"human_receipt_sha256": None}, ["approval.review_missing"]),
        ({"confidence": "low"}, {"independent_receipt_sha256": None, "reviewer": None}, ["approval.review_missing"]),
        ({"confidence": "low"}, {"reviewer": None}, ["approval.review_missing"]),
        ({}, {"human_receipt_sha256": "0" * 64}, ["approval.review_missing"]),
        ({}, {"expires_at": NOW}, ["approval.term_invalid"]),
        ({}, {"expires_at": NOW + 40_000_000}, ["approval.term_invalid"]),
    ],
)
def test_an_approval_signed_by_us_must_still_keep_the_rules(event: Row, changes: Row, expected: list[str]) -> None:
    """A valid signature over a document that breaks a rule of approvals is no excuse."""
    keys = Keyring()
    options = {name: value for name, value in event.items() if name == "confidence"}
    made = change_event(**{name: value for name, value in event.items() if name != "confidence"})
    document = {**approval_document(keys, request_for(made, **options)), **changes}
    kept_keys = KeptKeys([kept(keys, "approval")])
    assert codes(approval_findings(approval_row(keys, document), beside(document), kept_keys)) == expected


def test_an_approval_whose_id_is_not_its_hash_is_none() -> None:
    """Nor is one that is no approval at all."""
    document = approval_document(Keyring(), request_for(change_event()))
    assert derived_approval(canonical_text(document)) == document
    assert derived_approval(canonical_text({**document, "site_id": "site-9"})) is None
    assert [derived_approval(text) for text in (None, "{}", "[]", "{", "1")] == [None] * 5


@pytest.mark.parametrize(
    ("moment", "revoked_at", "expected"),
    [
        (NOW, None, None),
        (NOW - 1, None, "later"),
        (NOW + 100, None, "expired"),
        (NOW + 99, None, None),
        (NOW + 50, NOW + 49, "revoked"),
        (NOW + 50, NOW + 50, None),
        (NOW + 50, "then", "revoked"),
    ],
)
def test_an_approval_stands_from_its_time_to_its_end(moment: float, revoked_at: object, expected: str | None) -> None:
    """At the moment of the send; a revocation that came after it undoes nothing."""
    signed = {"approved_at": NOW, "expires_at": NOW + 100}
    assert stood_at({"revoked_at": revoked_at}, signed, moment) == expected


# --- order ----------------------------------------------------------------------------------------------------------


def test_an_older_text_after_a_newer_one_is_named_in_its_own_row() -> None:
    """Sequences fall, sources do not mix, and every text that came too late is found, not only the first."""
    order = SourceOrder()
    walk = [
        ("a", 4, 40.0),
        ("a", 3, 45.0),
        ("a", 2, 39.0),
        ("a", 1, 41.0),
        ("b", 9, 1.0),
        ("b", 8, 1.0),
        ("b", 7, None),
    ]
    late = []
    for source, sequence, at in walk:
        row = {"site_id": "s", "source_id": source, "delivery_id": f"{source}-{sequence}", "acknowledged_at": at}
        late += [one.row_id for one in order.findings(row)]
    assert late == ["a-3", "a-1"]
