"""Receipt bindings, approvals, and stored approvals that are verified again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import (
    NOW,
    REVIEWER,
    SOURCE_TEXT,
    Keyring,
    approval_document,
    approval_for,
    change_event,
    receipt_for,
    request_for,
    response_for,
)
from worker.domain.approval import Approval, approval_id_of, build_approval, check_approval
from worker.domain.canonical import canonical_bytes, canonical_text, hash_of, sha256_hex
from worker.domain.change import Provider
from worker.domain.errors import Blocked
from worker.domain.evidence import Evidence, EvidenceRequest
from worker.domain.policy import SitePolicy
from worker.domain.receipt import PURPOSES, VerifiedReceipt, binding_for, receipt_sha256, rejected_code
from worker.domain.signature import verify_detached

KEYS = Keyring()
EVENT = change_event()
PLAIN = request_for(EVENT, "de")
LOW = request_for(EVENT, "de", confidence="low")
LEGAL = request_for(change_event(content_type="legal"), "de")
COMMERCIAL = request_for(change_event(content_type="commercial"), "de")
REVIEW = Provider(**REVIEWER)

NAMED_BY_THE_CONTRACT = {
    *("schema", "purpose", "request_id", "evidence_revision", "job_id", "result_sha256", "source_sha256"),
    *("target_sha256", "source_locale", "target_locale", "content_type", "glossary_version", "policy_version"),
    *("software_version", "provider", "review_confidence", "quality_profile", "commercial_profile"),
    *("commercial_review", "human_review_required", "independent_review_required"),
}


# --- bindings -------------------------------------------------------------------------------------------------------


def test_a_binding_names_everything_that_is_proved() -> None:
    """Exactly the members of the contract, as the request has them; the reviewer for an independent review alone."""
    for purpose in ("quality", "human"):
        document = binding_for(COMMERCIAL, purpose).document
        assert set(document) == NAMED_BY_THE_CONTRACT
        assert (document["schema"], document["purpose"]) == ("locseal.receipt-binding.v1", purpose)
        for name in NAMED_BY_THE_CONTRACT - {"schema", "purpose"}:
            assert document[name] == COMMERCIAL.document[name]
    independent = binding_for(LOW, "independent", REVIEW)
    assert set(independent.document) == NAMED_BY_THE_CONTRACT | {"reviewer"}
    assert independent.document["reviewer"] == REVIEWER


def test_a_binding_is_its_canonical_bytes() -> None:
    """The payload is what a reviewer signs, and its hash is over the same bytes."""
    binding = binding_for(PLAIN, "quality")
    assert binding.payload() == canonical_bytes(dict(binding.document))
    assert binding.sha256 == sha256_hex(binding.payload())


def test_no_two_questions_share_a_binding() -> None:
    """Another purpose, revision, result, reviewer or locale is another binding."""
    bindings = [
        binding_for(LOW, "quality"),
        binding_for(LOW, "human"),
        binding_for(LOW, "independent", REVIEW),
        binding_for(LOW, "independent", Provider(**REVIEWER | {"model_version": "other"})),
        binding_for(PLAIN, "quality"),
        binding_for(request_for(EVENT, "fr-CA"), "quality"),
        binding_for(request_for(EVENT, "de", revision="r2"), "quality"),
        binding_for(request_for(EVENT, "de", candidate="Hallo"), "quality"),
    ]
    assert len({binding.sha256 for binding in bindings}) == len(bindings)


def test_exactly_an_independent_receipt_names_its_reviewer() -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ValueError, match="reviewer"):
        binding_for(LOW, "independent")
    with pytest.raises(ValueError, match="reviewer"):
        binding_for(LOW, "quality", REVIEW)


def test_each_purpose_has_its_rejection() -> None:
    """The three codes of the contract."""
    assert [rejected_code(purpose) for purpose in PURPOSES] == [
        "release.quality.receipt.rejected",
        "release.human.receipt.rejected",
        "release.independent.receipt.rejected",
    ]


# --- approvals ------------------------------------------------------------------------------------------------------


def verified(**receipts: str) -> list[VerifiedReceipt]:
    """Return receipts as verified."""
    return [
        VerifiedReceipt(purpose=purpose, receipt_sha256=receipt_sha256(receipts[purpose]), kid="k")
        for purpose in PURPOSES
        if purpose in receipts
    ]


def approve(request: EvidenceRequest, evidence: Evidence, receipts: list[VerifiedReceipt], **options: Any) -> Any:
    """Build an approval at `NOW` for an hour."""
    given: dict[str, Any] = {"policy_sha256": "a" * 64, "approved_at": NOW, "ttl_seconds": 3600.0}
    return build_approval(request, evidence, receipts, **given | options)


def test_an_approval_carries_the_binding_and_hashes_and_no_receipt() -> None:
    """Everything that was bound, the receipts by hash, the policy and the two times; no receipt and no text."""
    evidence = Evidence(quality_receipt="CANARY-q", independent_receipt="CANARY-i", reviewer=REVIEW)
    document = approve(LOW, evidence, verified(quality="CANARY-q", independent="CANARY-i"))
    bound = {name: LOW.document[name] for name in NAMED_BY_THE_CONTRACT - {"schema", "purpose"}}
    rest = bound | {
        "schema": "locseal.approval.v1",
        "site_id": "site-1",
        "quality_receipt_sha256": sha256_hex("CANARY-q"),
        "human_receipt_sha256": None,
        "independent_receipt_sha256": sha256_hex("CANARY-i"),
        "reviewer": REVIEWER,
        "policy_sha256": "a" * 64,
        "approved_at": NOW,
        "expires_at": NOW + 3600.0,
    }
    assert document == rest | {"approval_id": f"approval-{hash_of(rest)}"}
    assert "CANARY" not in json.dumps(document)
    assert SOURCE_TEXT not in json.dumps(document)


def test_a_human_review_is_named_by_its_hash() -> None:
    """A legal text's approval has a human receipt and no reviewer."""
    document = approve(LEGAL, Evidence(quality_receipt="q", human_receipt="h"), verified(quality="q", human="h"))
    assert document["human_receipt_sha256"] == sha256_hex("h")
    assert (document["independent_receipt_sha256"], document["reviewer"]) == (None, None)


@pytest.mark.parametrize(
    "receipts",
    [
        [],
        verified(quality="q"),
        verified(human="h"),
        verified(quality="h", human="q"),
        verified(quality="q", human="h", independent="i"),
        verified(quality="q", human="h") * 2,
    ],
)
def test_exactly_the_receipts_of_the_evidence_must_have_verified(receipts: list[VerifiedReceipt]) -> None:
    """One missing, one too many or one of another purpose: no approval."""
    with pytest.raises(Blocked) as refused:
        approve(LEGAL, Evidence(quality_receipt="q", human_receipt="h"), receipts)
    assert refused.value.code == "release.approval.receipts"


@pytest.mark.parametrize("ttl_seconds", [0, -1, 31_536_001, float("nan")])
def test_an_approval_lasts_at_most_a_year(ttl_seconds: float) -> None:
    """Neither nothing nor more than 365 days."""
    with pytest.raises(Blocked) as refused:
        approve(PLAIN, Evidence(quality_receipt="q"), verified(quality="q"), ttl_seconds=ttl_seconds)
    assert refused.value.code == "release.approval.ttl"


def test_an_approval_lasts_a_year_at_the_longest() -> None:
    """The bound itself is allowed."""
    document = approve(PLAIN, Evidence(quality_receipt="q"), verified(quality="q"), ttl_seconds=31_536_000)
    assert document["expires_at"] - document["approved_at"] == 31_536_000


# --- stored approvals -----------------------------------------------------------------------------------------------

SIGNED = approval_for(KEYS, LOW)
TEXT = canonical_text(dict(SIGNED.document))
REPEATED = {
    "approval_id": SIGNED.document["approval_id"],
    "job_id": LOW.key.job_id,
    "result_sha256": LOW.key.result_sha256,
    "approved_at": NOW,
    "expires_at": NOW + 2_592_000,
}


def tampered(text: str, signature: str = SIGNED.signature, **repeated: Any) -> None:
    """Assert that a stored approval is refused as tampered with."""
    with pytest.raises(Blocked) as refused:
        check_approval(text, signature, KEYS.trust("approval"), repeated=REPEATED | repeated)
    assert (refused.value.code, refused.value.retryable) == ("release.approval.tampered", False)


def test_a_stored_approval_is_read_as_it_was_signed() -> None:
    """Integral times come back from their canonical form as the times they are."""
    approval = check_approval(TEXT, SIGNED.signature, KEYS.trust("approval"), repeated=REPEATED)
    assert isinstance(approval, Approval)
    assert approval.reviewer == REVIEW
    assert (approval.approved_at, approval.expires_at) == (NOW, NOW + 2_592_000)
    assert hash_of(approval.to_json()) == hash_of(SIGNED.document)


@pytest.mark.parametrize("request_", [PLAIN, LOW, LEGAL, COMMERCIAL])
def test_every_kind_of_approval_can_be_read_again(request_: EvidenceRequest) -> None:
    """Whatever content and reviews, a stored approval passes its own check; fractional times too."""
    signed = approval_for(KEYS, request_, approved_at=NOW + 0.123456)
    text = canonical_text(dict(signed.document))
    approval = check_approval(text, signed.signature, KEYS.trust("approval"), repeated={})
    assert approval.approved_at == NOW + 0.123456
    assert approval.request_id == request_.request_id


@pytest.mark.parametrize("name", sorted(approval_document(KEYS, COMMERCIAL)))
def test_a_change_of_any_member_is_noticed(name: str) -> None:
    """Each member is covered by id and signature."""
    document = dict(SIGNED.document)
    value = document[name]
    document[name] = value + 1 if isinstance(value, float) else "0" * 64
    tampered(canonical_text(document))


def test_a_consistent_forgery_lacks_the_signature() -> None:
    """Even with the id derived again, another content is not what was signed."""
    forged = dict(SIGNED.document) | {"expires_at": NOW * 2}
    forged["approval_id"] = approval_id_of(forged)
    text = canonical_text(forged)
    tampered(text, approval_id=forged["approval_id"], expires_at=NOW * 2)
    signature = KEYS.sign("publication", forged).signature  # a key of ours, of another purpose
    tampered(text, signature, approval_id=forged["approval_id"], expires_at=NOW * 2)


def test_other_bytes_for_the_same_content_are_noticed() -> None:
    """White space, order, a second document, no document: none is what was stored."""
    for text in (TEXT + " ", json.dumps(dict(SIGNED.document)), TEXT + TEXT, "", "null", "[]", TEXT[:-1]):
        tampered(text)


@pytest.mark.parametrize("name", sorted(REPEATED))
def test_a_column_that_disagrees_is_noticed(name: str) -> None:
    """What the row says beside the document is held against it."""
    tampered(TEXT, **{name: "other"})


def test_a_retired_key_still_proves_what_it_signed_before() -> None:
    """Rotation keeps approvals; revocation ends them."""
    keys = Keyring()
    signed = approval_for(keys, PLAIN)
    text = canonical_text(dict(signed.document))
    keys.retire("approval", retired_at=NOW + 1)
    check_approval(text, signed.signature, keys.trust("approval"), repeated={})
    keys.revoke("approval")
    with pytest.raises(Blocked) as refused:
        check_approval(text, signed.signature, keys.trust("approval"), repeated={})
    assert refused.value.code == "release.approval.tampered"


def test_current_means_unexpired_and_under_an_accepted_policy() -> None:
    """The end itself is no longer current."""
    policy = SitePolicy()
    approval = check_approval(TEXT, SIGNED.signature, KEYS.trust("approval"), repeated={})
    assert approval.is_current(NOW, policy.accepted)
    assert approval.is_current(approval.expires_at - 0.001, policy.accepted)
    assert not approval.is_current(approval.expires_at, policy.accepted)
    assert not approval.is_current(NOW, frozenset({"0" * 64}))


def test_the_builders_receipts_verify_for_their_binding_alone() -> None:
    """A receipt of the builders proves exactly one binding of one purpose."""
    binding = binding_for(LOW, "quality")
    receipt = receipt_for(KEYS, binding)
    assert (
        verify_detached(KEYS.trust("receipt:quality"), binding.payload(), receipt, code="x.y").kid
        == "receipt-quality-1"
    )
    for purpose, other in (("receipt:human", binding), ("receipt:quality", binding_for(PLAIN, "quality"))):
        with pytest.raises(Blocked):
            verify_detached(KEYS.trust(purpose), other.payload(), receipt, code="x.y")
    review = response_for(KEYS, LOW)["independent_model_review"]
    independent = binding_for(LOW, "independent", REVIEW)
    verify_detached(KEYS.trust("receipt:independent"), independent.payload(), review["receipt"], code="x.y")
