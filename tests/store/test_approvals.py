"""Stored approvals: which ones stand, which one is chosen, and that none is used that is not what was signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from tests.builders import NOW, Keyring, approval_for, change_event, job_for, request_for, result_for
from tests.intake_builders import approve
from worker.domain.canonical import canonical_text
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.store.approvals import (
    StoredApproval,
    StoredReceipt,
    choose,
    insert_approvals,
    standing_approvals,
    verify_approval,
)
from worker.store.engine import reading, writing
from worker.store.schema import approvals

EVENT = change_event(target_locales=["de", "fr"])
JOB = job_for(EVENT, "de").job_id
DAY = 86_400.0


@pytest.fixture
def keys() -> Keyring:
    """Fresh keys."""
    return Keyring()


def stored(keys: Keyring, locale: str = "de", **options: Any) -> StoredApproval:
    """Return a signed approval as the settle stores it."""
    signed = approval_for(keys, request_for(EVENT, locale), **options)
    document = signed.document
    return StoredApproval(
        **{name: document[name] for name in StoredApproval.__dataclass_fields__ if name in document},
        revoked_at=None,
        document=canonical_text(document),
        signature=signed.signature,
        kid=keys.kids["approval"],
    )


def find(engine: Engine, *job_ids: str, now: float | None = NOW) -> dict[str, tuple[StoredApproval, ...]]:
    """Return what stands for jobs."""
    with reading(engine) as conn:
        return standing_approvals(conn, job_ids, now=now)


def test_what_was_inserted_is_found_and_verifies(engine: Engine, keys: Keyring) -> None:
    """Approvals come back exactly as they were signed, by job, and verify; other jobs are absent."""
    both = [stored(keys, "de", approved_at=NOW + 0.123456), stored(keys, "fr")]
    writing(engine, lambda conn: insert_approvals(conn, both))
    found = find(engine, JOB, job_for(EVENT, "fr").job_id, "job-unknown", now=NOW + 1)
    assert found == {one.job_id: (one,) for one in both}
    approval = verify_approval(found[JOB][0], keys.trust("approval"))
    assert (approval.job_id, approval.approved_at, approval.expires_at) == (
        JOB,
        NOW + 0.123456,
        NOW + 0.123456 + 2_592_000,
    )


def test_floats_survive_the_way_in(engine: Engine, keys: Keyring) -> None:
    """Whatever the time, an approval that was stored verifies, and its columns are the signed times."""
    for step in range(40):
        one = stored(keys, approved_at=NOW + step * 1_234.567_891_3, ttl_seconds=1 + step * 777.777_7)
        one = replace(one, request_id=one.request_id)
        writing(engine, lambda conn: conn.execute(approvals.delete()))
        writing(engine, lambda conn: insert_approvals(conn, [one]))  # noqa: B023
        [found] = find(engine, JOB, now=one.approved_at)[JOB]
        assert (found.approved_at, found.expires_at) == (one.approved_at, one.expires_at)
        verify_approval(found, keys.trust("approval"))


@pytest.mark.parametrize(
    ("now", "stands"), [(NOW, True), (NOW + DAY - 0.001, True), (NOW + DAY, False), (NOW + 2 * DAY, False)]
)
def test_approval_stands_until_it_expires(engine: Engine, keys: Keyring, now: float, stands: bool) -> None:
    """An approval stands before `expires_at`, and no longer at it."""
    writing(engine, lambda conn: insert_approvals(conn, [stored(keys, ttl_seconds=DAY)]))
    assert (JOB in find(engine, JOB, now=now)) is stands


def test_revoked_approval_does_not_stand(engine: Engine, keys: Keyring) -> None:
    """A revoked approval is found no more, whenever it would have expired."""
    approve(engine, keys, request_for(EVENT, "de"), revoked_at=NOW - 1)
    assert find(engine, JOB) == {}


def test_database_clock_judges_expiry(engine: Engine, keys: Keyring) -> None:
    """Without a fixed time the database's own clock says what stands."""
    approve(engine, keys, request_for(EVENT, "de"), approved_at=1_000.0, ttl_seconds=DAY)
    approve(engine, keys, request_for(EVENT, "fr"), approved_at=9e9)
    assert find(engine, JOB, job_for(EVENT, "fr").job_id, now=None).keys() == {job_for(EVENT, "fr").job_id}


def test_longest_lasting_that_fits_is_chosen(engine: Engine, keys: Keyring) -> None:
    """Of several approvals the one of the right result and an accepted policy that lasts longest is chosen."""
    other_policy = SitePolicy(approval_ttl_seconds=9_999_999)
    short = stored(keys, ttl_seconds=DAY)
    request = request_for(change_event(target_locales=["de"], event_id="event-2"), "de")
    long = approve(engine, keys, request, ttl_seconds=3 * DAY)
    another = request_for(change_event(target_locales=["de"], event_id="event-3"), "de")
    approve(engine, keys, another, policy=other_policy)
    changed = result_for(job_for(EVENT, "de"), candidate="x")
    approve(engine, keys, request_for(EVENT, "de", result=changed), ttl_seconds=9 * DAY)
    writing(engine, lambda conn: insert_approvals(conn, [short]))
    standing = find(engine, JOB)[JOB]
    assert len(standing) == 4
    accepted = frozenset({SitePolicy().sha256})
    chosen = choose(standing, result_sha256=short.result_sha256, accepted=accepted)
    assert chosen is not None
    assert chosen.approval_id == long
    assert choose(standing, result_sha256="0" * 64, accepted=accepted) is None
    assert choose(standing, result_sha256=short.result_sha256, accepted=frozenset()) is None


def edited(**changes: Any) -> Callable[[StoredApproval], StoredApproval]:
    """Return a tampering with the document's members."""

    def edit(one: StoredApproval) -> StoredApproval:
        return replace(one, document=canonical_text(json.loads(one.document) | changes))

    return edit


@pytest.mark.parametrize(
    "tamper",
    [
        lambda one: replace(one, approval_id="approval-" + "0" * 64),
        lambda one: replace(one, job_id="job-" + "0" * 64),
        lambda one: replace(one, site_id="site-2"),
        lambda one: replace(one, result_sha256="0" * 64),
        lambda one: replace(one, target_sha256="0" * 64),
        lambda one: replace(one, request_id="evidence-" + "0" * 64),
        lambda one: replace(one, policy_sha256="0" * 64),
        lambda one: replace(one, approved_at=one.approved_at - 1),
        lambda one: replace(one, expires_at=one.expires_at + 1),
        lambda one: replace(one, kid="approval-2"),
        lambda one: replace(one, document=one.document + " "),
        lambda one: replace(one, document="{"),
        lambda one: replace(one, document="[]"),
        lambda one: replace(one, signature="a..b"),
        edited(expires_at=NOW + 9e8),
        edited(human_review_required=True),
        edited(extra=1),
    ],
)
def test_tampering_is_found(keys: Keyring, tamper: Callable[[StoredApproval], StoredApproval]) -> None:
    """Any column, member, byte or signature that is not what was signed is `release.approval.tampered`."""
    one = stored(keys)
    verify_approval(one, keys.trust("approval"))
    with pytest.raises(Blocked) as refusal:
        verify_approval(tamper(one), keys.trust("approval"))
    assert (refusal.value.code, refusal.value.retryable) == ("release.approval.tampered", False)


def test_approval_of_another_signer_is_tampering(keys: Keyring) -> None:
    """A well-formed approval signed by a key that is not ours is refused."""
    with pytest.raises(Blocked) as refusal:
        verify_approval(stored(Keyring()), keys.trust("approval"))
    assert refusal.value.code == "release.approval.tampered"


def test_expired_approval_still_verifies(keys: Keyring) -> None:
    """History is verified without regard to expiry."""
    assert verify_approval(stored(keys, approved_at=1.0, ttl_seconds=1.0), keys.trust("approval")).expires_at == 2.0


def test_second_approval_of_a_request_is_refused(engine: Engine, keys: Keyring) -> None:
    """One request is approved at most once; the database says so, and nothing of the second is stored."""
    first, second = stored(keys), stored(keys, approved_at=NOW + 1)
    writing(engine, lambda conn: insert_approvals(conn, [first]))
    with pytest.raises(IntegrityError):
        writing(engine, lambda conn: insert_approvals(conn, [second]))
    assert find(engine, JOB) == {JOB: (first,)}


def test_records_show_no_content_when_printed(keys: Keyring) -> None:
    """Neither an approval's document nor a receipt appears in a record's printed form."""
    one = stored(keys)
    receipt = StoredReceipt(
        request_id="r", purpose="quality", receipt="marker", receipt_sha256="s", kid=None, binding="mark", verified_at=1
    )
    assert one.document not in repr(one)
    assert one.signature not in repr(one)
    assert "mark" not in repr(receipt)
