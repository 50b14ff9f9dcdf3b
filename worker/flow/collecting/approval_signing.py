"""A verified answer becomes a signed approval, outside any transaction. Not a step; whatever fails, fails one row."""

from __future__ import annotations

from collections.abc import Iterable

from worker.domain.approval import build_approval
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceClaim
from worker.domain.key import PublicKey
from worker.domain.review import SIGNING_FAILED, Proof, Refused, Verified
from worker.flow.services import Services
from worker.store.approvals import StoredApproval, StoredReceipt
from worker.store.settlements import Success


def sign_approval(services: Services, claim: EvidenceClaim, verified: Verified, moment: float) -> Success | Refused:
    """Return the success with its signed approval, or the refusal of a row that cannot be signed for now.

    `moment` is the time of approval in seconds, read after the provider's answer.
    """
    policy = services.policies.for_site(verified.request.site_id)
    document = build_approval(
        verified.request,
        verified.evidence,
        [proof.verified for proof in verified.proofs],
        policy_sha256=policy.sha256,
        approved_at=moment,
        ttl_seconds=policy.approval_ttl_seconds,
    )
    try:
        signed = services.keys.sign("approval", document)
        kid = signed.kid
    except Exception:  # the border to whatever holds the key: its exceptions are not ours, and may quote the document
        return Refused(code=SIGNING_FAILED, retryable=True)
    approval = StoredApproval(
        approval_id=document["approval_id"],
        job_id=document["job_id"],
        site_id=document["site_id"],
        result_sha256=document["result_sha256"],
        target_sha256=document["target_sha256"],
        request_id=document["request_id"],
        policy_sha256=document["policy_sha256"],
        approved_at=document["approved_at"],
        expires_at=document["expires_at"],
        revoked_at=None,
        document=signed.payload().decode(),
        signature=signed.signature,
        kid=kid,
    )
    receipts = tuple(_receipt(claim.request_id, proof, moment) for proof in verified.proofs)
    return Success(claim=claim, approval=approval, receipts=receipts)


def keys_behind(services: Services, successes: Iterable[Success]) -> frozenset[PublicKey]:
    """Return the public keys that these successes were verified by, as far as they lie in our trust sets.

    A verifier elsewhere may hold keys that we do not have; its receipts name them, and that is all we know. The keys
    that may sign the publication come along, so that preparing it in this process costs no statement for them.
    """
    used = {("approval", one.approval.kid) for one in successes}
    used |= {
        (f"receipt:{receipt.purpose}", receipt.kid) for one in successes for receipt in one.receipts if receipt.kid
    }
    found: set[PublicKey] = set()
    for purpose, kid in used:
        try:
            key = services.keys.trust(purpose).keys.get(kid)
        except Blocked:  # the file broke since; what it said is kept with a later approval
            continue
        if key is not None:
            found.add(key)
    if found:
        found |= _publication_keys(services)
    return frozenset(found)


def _publication_keys(services: Services) -> set[PublicKey]:
    try:
        trusted = services.keys.trust("publication").keys.values()
    except Blocked:  # whoever prepares will keep the one it signs with
        return set()
    return {key for key in trusted if key.status == "active"}


def _receipt(request_id: str, proof: Proof, moment: float) -> StoredReceipt:
    return StoredReceipt(
        request_id=request_id,
        purpose=proof.binding.purpose,
        receipt=proof.receipt,
        receipt_sha256=proof.verified.receipt_sha256,
        kid=proof.verified.kid,
        binding=proof.binding.payload().decode(),
        verified_at=moment,
    )
