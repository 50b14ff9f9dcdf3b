"""The audit: silent about everything the product does, exact about every kind of damage, and never stopped by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from tests.audited import audited
from tests.builders import NOW, Keyring, acknowledgement_for
from tests.fake_cms import FakeCms
from tests.flow.scene import Row, Scene
from worker.domain.approval import approval_id_of
from worker.domain.canonical import canonical_text, parse_strict, sha256_hex
from worker.domain.delivery import delivery_id_of
from worker.domain.evidence import EvidenceClaim, EvidenceKey
from worker.flow.audit_database import audit_database
from worker.flow.auditing.areas import NOT_AUDITED, areas
from worker.flow.publish_delivery import publish_delivery
from worker.store.audit_pages import Scope
from worker.store.engine import is_sqlite, reading
from worker.store.evidence import EvidenceStore
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_history,
    events,
    evidence,
    evidence_history,
    jobs,
    metadata,
    plan_jobs,
    public_keys,
    pushed_responses,
    receipts,
    rejections,
    release_runs,
    results,
    run_commands,
    setbacks,
    sources,
    submissions,
    withdrawals,
)


def found(scene: Scene, **options: Any) -> dict[str, int]:
    """Return how many rows each violation was found in."""
    return {code: len(ids) for code, ids in audited(scene.engine, **options).items()}


def flipped(value: str) -> str:
    """Return a text with one character in its middle changed."""
    place = len(value) // 2
    return value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]


def signature_flipped(value: str) -> str:
    """Return a detached JWS whose proof is another, well-formed one."""
    header, _, proof = value.split(".")
    return f"{header}..{('B' if proof[0] == 'A' else 'A') + proof[1:]}"


# --- clean ----------------------------------------------------------------------------------------------------------


def test_a_full_release_audits_clean(scene: Scene) -> None:
    """Whatever the product's own steps wrote holds; every row is counted once, and nothing is written."""
    tally = audit_database(scene.engine)
    assert (tally.violations, tally.notes, tally.by_code) == ([], [], {})
    counted = {area.name: len(scene.whole[area.stream.table]) for area in areas()}
    counted["publication_order"] = len(scene.rows(deliveries, status="succeeded"))
    assert tally.checked == {"key": len(scene.whole[public_keys]), **counted}
    assert (tally.checked["approval"], tally.checked["delivery"], tally.checked["answer"]) == (27, 15, 9)
    with reading(scene.engine) as conn:
        for table, rows in scene.whole.items():
            now = conn.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            assert [dict(row) for row in now] == rows


def test_every_table_is_audited() -> None:
    """A table is an area of the audit, or named as one that holds no promise."""
    read = {area.stream.table.name for area in areas()} | {"public_keys"}
    assert set(metadata.tables) - read <= NOT_AUDITED
    assert read & NOT_AUDITED == set()


def test_it_says_how_far_it_is(scene: Scene) -> None:
    """The rows read go up to the rows there are."""
    seen: list[tuple[str, int, int]] = []
    tally = audit_database(scene.engine, progress=lambda area, done, total: seen.append((area, done, total)))
    totals = {total for _, _, total in seen}
    assert totals == {sum(tally.checked.values())}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == seen[-1][2]


def test_it_can_be_narrowed(scene: Scene) -> None:
    """By event and by site only their rows are read, and only their damage is found."""
    scene.alter(deliveries, scene.delivery("event-1"), signature="a..b")
    scene.alter(deliveries, scene.delivery("legal"), signature="a..b")
    assert found(scene, scope=Scope(event="event-1")) == {"delivery.signature_invalid": 1}
    assert found(scene, scope=Scope(event="event-2")) == {}
    assert found(scene, scope=Scope(site="site-1")) == {"delivery.signature_invalid": 2}
    assert found(scene, scope=Scope(site="site-2")) == {}
    checked = audit_database(scene.engine, scope=Scope(event="event-1")).checked
    names = ("submission", "event", "plan", "job", "result", "evidence", "receipt", "approval", "delivery", "answer")
    assert [checked[name] for name in names] == [1, 1, 3, 3, 3, 3, 3, 3, 1, 1]
    assert (checked["rejection"], checked["run"]) == (0, 0)


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        ("submission", {"submission.key_missing": 19}),
        ("approval", {"approval.key_missing": 27}),
        ("publication", {"delivery.key_missing": 15}),
        ("acknowledgement", {"answer.key_missing": 8}),
    ],
)
def test_every_key_that_was_used_is_kept(scene: Scene, purpose: str, expected: dict[str, int]) -> None:
    """Without a kept key exactly what it signed cannot be verified any more."""
    scene.remove(public_keys, scene.row(public_keys, purpose=purpose))
    assert found(scene) == expected


def test_receipts_verify_with_kept_keys(scene: Scene) -> None:
    """All three purposes of receipts have their keys kept; a lost one is a note, as for a verifier elsewhere."""
    for purpose, count in (("receipt:quality", 27), ("receipt:human", 2), ("receipt:independent", 2)):
        scene.remove(public_keys, scene.row(public_keys, purpose=purpose))
        tally = audit_database(scene.engine)
        assert (tally.violation_count, tally.by_code) == (0, {"audit.receipt.key_not_kept": count})
        scene.restore()


def test_a_kept_key_must_be_one(scene: Scene) -> None:
    """A kept key that is damaged is named, and verifies nothing."""
    row = scene.row(public_keys, purpose="publication")
    scene.alter(public_keys, row, jwk=flipped(row["jwk"]))
    assert found(scene) == {"key.invalid": 1, "delivery.key_missing": 15}


def test_keys_exchanged_for_others_do_not_verify(scene: Scene) -> None:
    """Whoever puts a key of their own under our name gains nothing for what is stored already."""
    other = Keyring().trust("publication").keys["publication-1"]
    row = scene.row(public_keys, purpose="publication")
    values = {"jwk": canonical_text(dict(other.jwk)), "thumbprint": other.thumbprint}
    scene.alter(public_keys, row, **values)
    assert found(scene) == {"delivery.signature_invalid": 15}


def test_what_the_trust_directory_says_today_is_noted(scene: Scene) -> None:
    """A kept key that is revoked or unknown today is a note: what it signed is history, and stays verifiable."""
    keys = Keyring(sites=("site-1", "site-2"), providers=("reviewer", "quality-lab", "local-second-model"))
    trust = {
        purpose: scene.story.keys.trust(purpose)
        for purpose in ("submission", "approval", "acknowledgement", "evidence")
    }
    trust |= {f"receipt:{one}": scene.story.keys.trust(f"receipt:{one}") for one in ("quality", "human", "independent")}
    trust["publication"] = keys.trust("publication")
    tally = audit_database(scene.engine, trust=trust)
    assert (tally.violations, tally.by_code) == ([], {"audit.key.untrusted": 1})
    revoked = Keyring()
    revoked._jwks["approval"] = scene.story.keys.jwks("approval")
    revoked.revoke("approval")
    tally = audit_database(scene.engine, trust={**trust, "approval": revoked.trust("approval")})
    assert (tally.violations, tally.by_code) == ([], {"audit.key.untrusted": 1, "audit.key.revoked": 1})


# --- damage, one row at a time --------------------------------------------------------------------------------------

Change = Callable[[Scene], Any]
DAMAGE: dict[str, tuple[Change, dict[str, int]]] = {}


def damage(name: str, **expected: int) -> Callable[[Change], Change]:
    """Name a kind of damage and the violations it must lead to, and no others (`area__what=rows`)."""

    def keep(change: Change) -> Change:
        DAMAGE[name] = (change, {code.replace("__", "."): count for code, count in expected.items()})
        return change

    return keep


def column(name: str, table: Table, where: Mapping[str, Any], value: Callable[[Row], Row], **expected: int) -> None:
    """Name the damage of columns of one row."""
    damage(name, **expected)(lambda scene: scene.alter(table, row := scene.row(table, **where), **value(row)))


def gone(name: str, table: Table, where: Mapping[str, Any], **expected: int) -> None:
    """Name the loss of one row."""
    damage(name, **expected)(lambda scene: scene.remove(table, scene.row(table, **where)))


WAITING: Row = {"event_id": "waiting"}
FIRST: Row = {"event_id": "event-1"}

column("submission byte", submissions, WAITING, lambda r: {"body": flipped(r["body"])}, submission__hash_mismatch=1)
column("submission hash", submissions, WAITING, lambda _: {"document_sha256": "0" * 64}, submission__hash_mismatch=1)
column("submission kid", submissions, WAITING, lambda _: {"kid": "other"}, submission__kid_mismatch=1)
column("submission site", submissions, WAITING, lambda _: {"site_id": "site-2"}, submission__row_mismatch=1)
column("submission time", submissions, WAITING, lambda _: {"accepted_at": -1.0}, submission__row_invalid=1)
column(
    "submission kind",
    submissions,
    WAITING,
    lambda _: {"kind": "letter"},
    submission__kind_unknown=1,
    event__submission_missing=1,
)
gone("submission lost", submissions, WAITING, event__submission_missing=1)
gone("withdrawal document lost", submissions, {"kind": "withdrawal"}, withdrawal__submission_missing=1)
gone(
    "withdrawal lost",
    withdrawals,
    {"event_id": "withdrawn"},
    submission__withdrawal_missing=1,
    event__withdrawn_without_word=1,
)
column(
    "withdrawal unapplied",
    withdrawals,
    {"event_id": "withdrawn"},
    lambda _: {"applied_at": None},
    withdrawal__not_applied=1,
    event__withdrawn_without_word=1,
)
column("withdrawal time", withdrawals, {}, lambda _: {"received_at": -5.0}, withdrawal__row_invalid=1)
column("rejection code", rejections, {}, lambda _: {"code": "No Code"}, rejection__row_invalid=1)
column("source time", sources, {}, lambda _: {"created_at": -1.0}, source__row_invalid=1)

column("event byte", events, WAITING, lambda r: {"document": flipped(r["document"])}, event__hash_mismatch=1)
column(
    "event hash",
    events,
    WAITING,
    lambda _: {"event_sha256": "0" * 64},
    event__hash_mismatch=1,
    submission__event_mismatch=1,
)
column("event version", events, WAITING, lambda _: {"website_version": "1999.1"}, event__row_mismatch=1)
column(
    "event sequence", events, WAITING, lambda _: {"source_sequence": 7}, event__row_mismatch=1, event__not_superseded=1
)
column(
    "event plan",
    events,
    WAITING,
    lambda _: {"plan_id": "plan-x"},
    event__plan_mismatch=1,
    plan__event_missing=2,
)
column("event state", events, WAITING, lambda _: {"state": "asleep"}, event__state_invalid=1)
column("event delivered", events, WAITING, lambda _: {"state": "delivered"}, event__delivered_without_publication=1)
column("event superseded", events, WAITING, lambda _: {"state": "superseded"}, event__superseded_without_reason=1)
column("event withdrawn", events, WAITING, lambda _: {"state": "withdrawn"}, event__withdrawn_without_word=1)
column(
    "event published, then open",
    events,
    {"event_id": "legal"},
    lambda _: {"state": "open"},
    event__publication_unrecorded=1,
)
column(
    "event open again",
    events,
    {"event_id": "old"},
    lambda _: {"state": "open"},
    event__not_superseded=1,
    event__successor_invalid=1,
)
column(
    "event's successor",
    events,
    {"event_id": "old"},
    lambda _: {"superseded_by": "legal"},
    event__successor_invalid=1,
)
gone(
    "event lost",
    events,
    WAITING,
    submission__event_missing=1,
    plan__event_missing=2,
    evidence__event_missing=2,
)
gone(
    "published event lost",
    events,
    FIRST,
    submission__event_missing=1,
    plan__event_missing=3,
    evidence__event_missing=3,
    delivery__event_missing=1,
)
gone("plan short", plan_jobs, {}, event__plan_jobs_mismatch=1, job__unplanned=1)
column("plan locale", plan_jobs, {}, lambda _: {"target_locale": "xx"}, event__plan_jobs_mismatch=1)
column(
    "job result",
    jobs,
    {},
    lambda _: {"current_result_sha256": "0" * 64},
    job__result_missing=1,
    result__state_mismatch=1,
)
column("result byte", results, {}, lambda r: {"document": flipped(r["document"])}, result__hash_mismatch=1)
column("result replaced", results, {}, lambda _: {"replaced_at": NOW}, result__state_mismatch=1)


@damage("result target", result__row_mismatch=1, approval__target_mismatch=1)
def _(scene: Scene) -> None:
    scene.alter(results, _result_of(scene, "event-1"), target_sha256="0" * 64)


@damage("result lost", submission__result_missing=1, job__result_missing=1, evidence__result_missing=1)
def _(scene: Scene) -> None:
    scene.remove(results, _result_of(scene, "waiting"))


def _result_of(scene: Scene, event_id: str) -> Row:
    asked = scene.row(evidence, event_id=event_id)
    return scene.row(results, job_id=asked["job_id"])


@damage("job lost", event__job_missing=1, result__job_missing=1)
def _(scene: Scene) -> None:
    scene.remove(jobs, scene.row(jobs, job_id=_result_of(scene, "waiting")["job_id"]))


@damage("job locale", event__job_mismatch=1)
def _(scene: Scene) -> None:
    scene.alter(jobs, scene.row(jobs, job_id=_result_of(scene, "waiting")["job_id"]), target_locale="xx")


# evidence
column("evidence bounds", evidence, FIRST, lambda _: {"attempts": 6}, evidence__attempts_exceeded=1)
column("evidence bound", evidence, FIRST, lambda _: {"max_attempts": 21}, evidence__row_invalid=1)
column("evidence attempts", evidence, FIRST, lambda _: {"attempts": 3}, evidence__setbacks_mismatch=1)
column("evidence status", evidence, WAITING, lambda _: {"status": "leased"}, evidence__row_invalid=1)
column("evidence time", evidence, WAITING, lambda _: {"next_attempt_at": -1.0}, evidence__row_invalid=1)
column("evidence code", evidence, WAITING, lambda _: {"last_error_code": "Bad Code"}, evidence__row_invalid=1)
column("evidence revision", evidence, FIRST, lambda _: {"evidence_revision": "r9"}, evidence__request_mismatch=1)
column("evidence plan", evidence, FIRST, lambda _: {"plan_id": "plan-x"}, evidence__plan_mismatch=1)
column("evidence without approval", evidence, WAITING, lambda _: {"status": "succeeded"}, evidence__approval_missing=1)
column(
    "evidence undone",
    evidence,
    FIRST,
    lambda _: {"status": "pending"},
    evidence__setbacks_mismatch=1,
    approval__evidence_open=1,
)
gone("evidence lost", evidence, FIRST, approval__evidence_missing=1)

# receipts
column("receipt byte", receipts, {}, lambda r: {"receipt": flipped(r["receipt"])}, receipt__hash_mismatch=1)
column("receipt hash", receipts, {}, lambda _: {"receipt_sha256": "0" * 64}, receipt__hash_mismatch=1)
column("receipt kid", receipts, {}, lambda _: {"kid": "other"}, receipt__kid_mismatch=1)
column("receipt binding", receipts, {}, lambda r: {"binding": flipped(r["binding"])}, receipt__binding_mismatch=1)
column(
    "receipt purpose", receipts, {}, lambda _: {"purpose": "luck"}, receipt__row_invalid=1, approval__receipt_missing=1
)
gone("receipt lost", receipts, {}, approval__receipt_missing=1)


@damage("receipt exchanged", approval__receipt_mismatch=1, receipt__signature_invalid=1)
def _(scene: Scene) -> None:
    row = scene.row(receipts)
    forged = signature_flipped(row["receipt"])
    scene.alter(receipts, row, receipt=forged, receipt_sha256=sha256_hex(forged))


@damage("receipt beyond", approval__receipt_unexpected=1)
def _(scene: Scene) -> None:
    row = scene.row(receipts, request_id=scene.row(evidence, **FIRST)["request_id"])
    binding = row["binding"].replace('"purpose":"quality"', '"purpose":"human"')
    extra = {**row, "purpose": "human", "binding": binding}
    scene.damage(lambda conn: conn.execute(insert(receipts).values(**extra)))


# approvals
def _approval_of(scene: Scene, event_id: str) -> Row:
    return scene.row(approvals, request_id=scene.row(evidence, event_id=event_id)["request_id"])


def approval(name: str, value: Callable[[Row], Row], **expected: int) -> None:
    """Name the damage of columns of an approval of `event-1`."""
    damage(name, **expected)(lambda scene: scene.alter(approvals, row := _approval_of(scene, "event-1"), **value(row)))


approval("approval byte", lambda r: {"document": flipped(r["document"])}, approval__document_invalid=1)
approval(
    "approval signature", lambda r: {"signature": signature_flipped(r["signature"])}, approval__signature_invalid=1
)
approval("approval kid", lambda _: {"kid": "other"}, approval__kid_mismatch=1)
approval("approval term", lambda r: {"expires_at": r["expires_at"] + 9e6}, approval__row_mismatch=1)
approval("approval policy", lambda _: {"policy_sha256": "0" * 64}, approval__row_mismatch=1)
approval("approval site", lambda _: {"site_id": "site-2"}, approval__row_mismatch=1)
approval("approval revoked before the send", lambda _: {"revoked_at": NOW}, delivery__approval_revoked=1)
approval("approval revoked after the send", lambda _: {"revoked_at": NOW + 9999})


@damage("approval lost", delivery__approval_missing=1, evidence__approval_missing=1, receipt__approval_missing=1)
def _(scene: Scene) -> None:
    scene.remove(approvals, _approval_of(scene, "event-1"))


@damage(
    "approval for another text",
    approval__target_conflict=1,
    approval__result_missing=1,
    approval__evidence_missing=1,
    approval__receipt_missing=1,
)
def _(scene: Scene) -> None:
    row = _approval_of(scene, "event-1")
    other = parse_strict(row["document"], max_bytes=1_000_000)
    other |= {"target_sha256": "1" * 64, "result_sha256": "2" * 64, "request_id": "evidence-other"}
    other |= {"approved_at": row["approved_at"] + 1.0}
    other |= {"approval_id": approval_id_of(other)}
    signed = scene.story.keys.sign("approval", other)
    values = {name: other[name] for name in row if name in other}
    values |= {"document": canonical_text(other), "signature": signed.signature, "kid": signed.kid}
    scene.damage(lambda conn: conn.execute(insert(approvals).values(**values)))


# deliveries


def delivery(name: str, event_id: str, value: Callable[[Row], Row], **expected: int) -> None:
    """Name the damage of columns of a delivery."""
    column(name, deliveries, {"event_id": event_id}, value, **expected)


delivery("payload byte", "event-1", lambda r: {"payload": flipped(r["payload"])}, delivery__hash_mismatch=1)
delivery("payload hash", "event-1", lambda _: {"payload_sha256": "0" * 64}, delivery__hash_mismatch=1)
delivery(
    "delivery signature",
    "event-1",
    lambda r: {"signature": signature_flipped(r["signature"])},
    delivery__signature_invalid=1,
)
delivery("delivery kid", "event-1", lambda _: {"kid": "other"}, delivery__kid_mismatch=1)
delivery("delivery sequence", "legal", lambda _: {"source_sequence": 9}, delivery__row_mismatch=1)
delivery("delivery attempts", "event-1", lambda _: {"attempts": 9}, delivery__attempts_exceeded=1)
delivery("delivery attempt", "event-1", lambda _: {"attempts": 4}, delivery__setbacks_mismatch=1)
delivery("delivery lookups", "event-1", lambda _: {"lookups": -1}, delivery__row_invalid=1)
delivery("delivery error", "event-1", lambda _: {"last_error_code": "odd"}, delivery__row_invalid=1)
delivery("delivery doubt", "event-1", lambda _: {"in_doubt": True}, delivery__state_mismatch=1)
delivery("delivery unacknowledged", "event-1", lambda _: {"acknowledged_at": None}, delivery__state_mismatch=1)
delivery(
    "delivery undone",
    "event-1",
    lambda _: {"status": "failed"},
    delivery__setbacks_mismatch=1,
    delivery__state_mismatch=1,
    event__delivered_without_publication=1,
)
delivery("sent too late", "event-1", lambda _: {"sent_at": NOW + 3e6}, delivery__approval_expired=1)
delivery("sent too early", "event-1", lambda _: {"sent_at": NOW - 60}, delivery__approval_later=1)
delivery(
    "an old text after a newer one",
    "event-1",
    lambda _: {"acknowledged_at": NOW + 999},
    delivery__published_after_newer=1,
)
gone(
    "delivery lost",
    deliveries,
    FIRST,
    event__delivered_without_publication=1,
    answer__delivery_missing=1,
)
gone("acknowledgement lost", delivery_answers, {"kind": "acknowledgement"}, delivery__acknowledgement_missing=1)


@damage("a publication in only some locales", delivery__locales_mismatch=1)
def _(scene: Scene) -> None:
    _republish(scene, lambda document: document | {"localizations": document["localizations"][:-1]})


@damage("a publication under another id", delivery__id_mismatch=1)
def _(scene: Scene) -> None:
    _republish(scene, dict, delivery_id="delivery-forged")


@damage("a delivery's row under another id", delivery__row_mismatch=1)
def _(scene: Scene) -> None:
    scene.alter(deliveries, scene.delivery("refused"), delivery_id="delivery-other")
    sent = update(setbacks).where(setbacks.c.subject_id == scene.delivery("refused")["delivery_id"])
    scene.damage(lambda conn: conn.execute(sent.values(subject_id="delivery-other")))


@damage("a publication of another text", delivery__approval_mismatch=1)
def _(scene: Scene) -> None:
    entry = {"target_text": "Forged.", "target_sha256": sha256_hex("Forged.")}
    _republish(scene, lambda document: document | {"localizations": _first(document, entry)})


@damage("a publication whose text is not its hash", delivery__text_mismatch=1)
def _(scene: Scene) -> None:
    _republish(scene, lambda document: document | {"localizations": _first(document, {"target_text": "Forged."})})


@damage("a publication of another version", delivery__event_mismatch=1)
def _(scene: Scene) -> None:
    _republish(scene, lambda document: document | {"website_version": "1999.1"})


@damage("a publication without an approval", delivery__approval_missing=1)
def _(scene: Scene) -> None:
    _republish(scene, lambda document: document | {"localizations": _first(document, {"approval_id": "approval-x"})})


@damage("a publication that outlasts its approval", delivery__approval_mismatch=1)
def _(scene: Scene) -> None:
    entry = {"approval_expires_at": NOW + 9e6}
    _republish(scene, lambda document: document | {"localizations": _first(document, entry)})


def _first(document: Row, changes: Row) -> list[Row]:
    first, *others = document["localizations"]
    return [first | changes, *others]


def _republish(scene: Scene, change: Callable[[Row], Row], delivery_id: str | None = None) -> None:
    """Exchange the publication of `event-1` for one signed with our own key and acknowledged by the CMS's."""
    row = scene.delivery("event-1")
    document = change(parse_strict(row["payload"], max_bytes=1_000_000))
    document["delivery_id"] = delivery_id or delivery_id_of(document)
    signed = scene.story.keys.sign("publication", document)
    answer = scene.story.keys.sign("acknowledgement", acknowledgement_for(document))
    payload = canonical_text(document)
    values = {"payload": payload, "payload_sha256": sha256_hex(payload), "signature": signed.signature}
    kept = scene.row(delivery_answers, delivery_id=row["delivery_id"])
    said = {"document": canonical_text(dict(answer.document)), "signature": answer.signature}
    scene.alter(deliveries, row, delivery_id=document["delivery_id"], **values)
    scene.alter(delivery_answers, kept, delivery_id=document["delivery_id"], **said)


# answers
ACKNOWLEDGED: Row = {"kind": "acknowledgement"}
LOOKED_UP: Row = {"kind": "lookup"}
SAID: Row = {"kind": "operator"}
column("answer kid", delivery_answers, ACKNOWLEDGED, lambda _: {"kid": "other"}, answer__kid_mismatch=1)
column("answer time", delivery_answers, ACKNOWLEDGED, lambda _: {"answered_at": -1.0}, answer__row_invalid=1)
column("answer kind", delivery_answers, ACKNOWLEDGED, lambda _: {"kind": "letter"}, answer__kind_invalid=1)
column("answer bytes", delivery_answers, ACKNOWLEDGED, lambda _: {"document": "{ }"}, answer__document_invalid=1)
column("answer nonce", delivery_answers, LOOKED_UP, lambda _: {"nonce": "0" * 64}, answer__binding_mismatch=1)
column(
    "answer signature",
    delivery_answers,
    ACKNOWLEDGED,
    lambda r: {"signature": signature_flipped(r["signature"])},
    answer__signature_invalid=1,
)
column(
    "answer's word",
    delivery_answers,
    LOOKED_UP,
    lambda _: {"outcome": "absent"},
    answer__outcome_mismatch=1,
    delivery__acknowledgement_missing=1,
)
column(
    "answer about others",
    delivery_answers,
    ACKNOWLEDGED,
    lambda r: {"document": r["document"].replace("delivery-", "delivery-0")},
    answer__binding_mismatch=1,
    answer__signature_invalid=1,
)
column(
    "operator's word",
    delivery_answers,
    SAID,
    lambda r: {"document": r["document"].replace('"accepted"', '"closed"')},
    answer__binding_mismatch=1,
)
column(
    "operator's name",
    delivery_answers,
    SAID,
    lambda r: {"document": r["document"].replace('"ops"', '""')},
    answer__document_invalid=1,
)


# setbacks
@damage("setback lost", delivery__setbacks_mismatch=1)
def _(scene: Scene) -> None:
    scene.remove(setbacks, scene.row(setbacks, subject_id=scene.delivery("refused")["delivery_id"]))


@damage("setback of a review lost", evidence__setbacks_mismatch=1)
def _(scene: Scene) -> None:
    asked = scene.row(evidence, event_id="slow")
    scene.alter(evidence, asked, attempts=3)


@damage("setback of nobody", setback__subject_missing=1)
def _(scene: Scene) -> None:
    scene.alter(setbacks, scene.row(setbacks, outcome="released"), subject_id="nobody")


column("setback code", setbacks, {}, lambda _: {"code": "NO"}, setback__row_invalid=1)
column("setback outcome", setbacks, {"outcome": "released"}, lambda _: {"outcome": "lucky"}, setback__row_invalid=1)

# histories, inbox and runs
gone("response lost", pushed_responses, {}, submission__response_missing=1)
gone("handed document lost", submissions, {"kind": "evidence"}, response__submission_missing=1)
column("response time", pushed_responses, {}, lambda _: {"received_at": -1.0}, response__row_invalid=1)
column("history of evidence", evidence_history, {}, lambda _: {"row_json": "{}"}, evidence_history__unreadable=1)
column("history's id", evidence_history, {}, lambda _: {"request_id": "other"}, evidence_history__row_mismatch=1)
column(
    "history's attempts",
    evidence_history,
    {},
    lambda r: {"row_json": r["row_json"].replace('"attempts":0', '"attempts":7')},
    evidence_history__row_invalid=1,
)
column(
    "history's request",
    evidence_history,
    {},
    lambda r: {"row_json": r["row_json"].replace('"r1"', '"r8"')},
    evidence__request_mismatch=1,
)
column(
    "history of a delivery that may be live",
    delivery_history,
    {},
    lambda r: {"row_json": r["row_json"].replace('"in_doubt": false', '"in_doubt": true')},
    delivery_history__state_mismatch=1,
)
column("history's delivery", delivery_history, {}, lambda _: {"event_id": "x"}, delivery_history__row_mismatch=1)
column("run status", release_runs, {}, lambda _: {"status": "completed"}, run__row_mismatch=1)
column("run record", release_runs, {}, lambda r: {"document": r["document"][:-9]}, run__record_invalid=1)
column("run digest", release_runs, {}, lambda _: {"record_digest": "0" * 64}, run__row_mismatch=1)
column("run command", run_commands, {}, lambda _: {"max_attempts": 0}, run_command__row_invalid=1)
gone("run lost", release_runs, {}, run_command__run_missing=1)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_exactly(scene: Scene, name: str) -> None:
    """One damaged row leads to exactly these violations, in exactly so many rows, and stops nothing else."""
    change, expected = DAMAGE[name]
    change(scene)
    assert found(scene) == expected


def test_the_page_for_auditors_lists_every_code() -> None:
    """`docs/audit.md` names each violation that damage can lead to."""
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    listed = {f"{area}.{what}" for area, what in re.findall(r"`audit\.([a-z_]+)\.([a-z_]+)`", page)}
    expected = {code for _, codes in DAMAGE.values() for code in codes}
    assert expected - listed == set()


def test_all_damage_at_once_is_found_in_one_audit(scene: Scene) -> None:
    """A violation hides no other: damage in many places is found in one go, each in the row it stands in."""
    first, legal = scene.delivery("event-1"), scene.delivery("legal")
    asked, given = scene.row(evidence, **WAITING), _approval_of(scene, "unsure")
    scene.alter(deliveries, first, payload=flipped(first["payload"]))
    scene.alter(deliveries, legal, signature=signature_flipped(legal["signature"]))
    scene.alter(evidence, asked, attempts=6)
    scene.alter(approvals, given, signature=signature_flipped(given["signature"]))
    assert audited(scene.engine) == {
        "delivery.hash_mismatch": {first["delivery_id"]},
        "delivery.signature_invalid": {legal["delivery_id"]},
        "evidence.attempts_exceeded": {asked["request_id"]},
        "approval.signature_invalid": {given["approval_id"]},
    }


def test_two_publications_of_an_event_are_named(scene: Scene) -> None:
    """Where the index that forbids it is gone, a second open or acknowledged delivery of an event is found."""
    row, other = scene.delivery("refused"), scene.delivery("event-1")
    index = next(one for one in deliveries.indexes if one.name == "deliveries_one_per_event")
    scene.damage(index.drop)
    try:
        _second(scene, row, status="pending", attempts=0, last_error_code=None, sent_at=None)
        assert "event.deliveries_conflict" not in found(scene)  # the first one failed
        _second(scene, other, status="pending", attempts=0, sent_at=None, acknowledged_at=None)
        assert found(scene)["event.deliveries_conflict"] == 1
        _second(scene, scene.delivery("legal"))
        assert found(scene)["event.published_twice"] == 1
    finally:
        scene.restore()
        scene.damage(index.create)


def _second(scene: Scene, row: Row, **changes: Any) -> None:
    twin = {**row, "delivery_id": f"delivery-second-{row['event_id']}", **changes}
    scene.damage(lambda conn: conn.execute(insert(deliveries).values(**twin)))


# --- a fleet at work ------------------------------------------------------------------------------------------------


def test_work_in_flight_is_no_violation(scene: Scene) -> None:
    """Leases that are held, failed, handed back and expired, and a delivery in doubt, audit clean at every moment."""
    services, store = scene.story.step(), EvidenceStore(scene.engine)
    asked = scene.row(evidence, **WAITING)
    names = ("request_id", "event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")
    key = EvidenceKey(**{name: asked[name] for name in names})
    now = scene.story.now + 1_000.0

    def claim() -> EvidenceClaim:
        held = store.claim(key, worker_id="w-1", now=now, lease_seconds=30, max_attempts=5)
        assert held is not None
        assert found(scene) == {}
        return held

    store.fail(claim(), "evidence.unavailable", retryable=True, now=now)
    assert found(scene) == {}
    now += 60.0
    store.release(claim(), "evidence.drained", not_before=now, now=now)
    assert found(scene) == {}
    claim()
    now += 60.0
    claim()  # the first lease has expired
    assert len(scene.now(setbacks, subject_id=asked["request_id"])) == 3
    in_doubt = FakeCms(keys=scene.story.keys, sends=["timeout"], during_send=lambda: seen.append(found(scene)))
    seen: list[dict[str, int]] = []
    publish_delivery(replace(services, cms=lambda _site_id: in_doubt), "new")
    assert (seen, found(scene)) == ([{}], {})
    (row,) = scene.now(deliveries, event_id="new")
    assert (row["status"], row["in_doubt"]) == ("retry_wait", True)


# --- nothing stops it -----------------------------------------------------------------------------------------------


def test_bytes_that_are_no_text_stop_nothing(scene: Scene) -> None:
    """A text column of SQLite can hold anything; PostgreSQL refuses to store it."""
    if not is_sqlite(scene.engine):
        wrong = "UPDATE deliveries SET payload = convert_from(decode('7bff', 'hex'), 'UTF8')"
        with pytest.raises(DBAPIError), scene.engine.begin() as conn:
            conn.execute(text(wrong))
        assert found(scene) == {}
        return
    row = scene.delivery("event-1")
    broken = "UPDATE deliveries SET payload = CAST(x'7bff00' AS TEXT) WHERE delivery_id = :id"
    scene.damage(lambda conn: conn.execute(text(broken), {"id": row["delivery_id"]}))
    kinds = "UPDATE evidence SET attempts = 'many', created_at = 'then' WHERE request_id = :id"
    asked = scene.row(evidence, **WAITING)
    scene.damage(lambda conn: conn.execute(text(kinds), {"id": asked["request_id"]}))
    assert found(scene) == {"delivery.hash_mismatch": 1, "evidence.row_invalid": 1}


def test_findings_hold_no_content(scene: Scene) -> None:
    """Codes, ids and sentences: nothing of a text, a receipt or a signature, also where an id column was overwritten."""
    row = scene.row(results)
    scene.alter(results, row, job_id="Welcome back. Your cart", document=flipped(row["document"]))
    tally = audit_database(scene.engine)
    report = repr(tally.to_json(elapsed_seconds=0.0, site=None, event=None))
    assert tally.by_code["audit.result.hash_mismatch"] == 1
    assert f"?/{row['result_sha256']}" in {one.row_id for one in tally.violations}
    assert "Welcome" not in report
    assert "cart" not in report
