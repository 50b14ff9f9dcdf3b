"""Approvals that end before they are used: renewed by themselves or on a word, and what becomes of an open delivery."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import NOW, Keyring, job_for
from tests.evidence_builders import ScriptedProvider, good
from tests.fakes import Checkpoints, Crash, FixedPolicies, RecordingQueue
from tests.flow.renewing import GUIDED, POLICY, TTL, Fleet, new_fleet
from tests.intake_builders import Everything, Rows
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.policy import SitePolicy
from worker.flow.advance_event import advance_event
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.renew_evidence import renew_evidence
from worker.flow.renew_expiring import Renewed, renew_expiring
from worker.flow.retry_evidence import retry_evidence
from worker.flow.revoke_approval import revoke_approval
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.schema import approvals, deliveries, events, evidence, operator_requests


@pytest.fixture
def fleet(services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies) -> Fleet:
    """A fleet whose approvals last a thousand seconds."""
    return new_fleet(services, queue, keys, policies)


def renew(fleet: Fleet, request_id: str = "op-1", **options: Any) -> dict[str, Any]:
    """Give the operator's word."""
    return renew_evidence(fleet.born(), "event-1", request_id=request_id, **options)


def refused(fleet: Fleet, **options: Any) -> str:
    """Return the code of a refused word."""
    with pytest.raises(Blocked) as refusal:
        renew(fleet, **options)
    return refusal.value.code


def revisions(rows: Rows) -> list[tuple[str, str]]:
    """Return (revision, status) of the evidence rows, in order."""
    return sorted((row["evidence_revision"], row["status"]) for row in rows(evidence))


def outcomes(rows: Rows) -> list[tuple[str, str | None]]:
    """Return (status, code) of the deliveries in the order in which they were prepared."""
    ordered = sorted(rows(deliveries), key=lambda row: (row["created_at"], row["status"] != "failed"))
    return [(row["status"], row["last_error_code"]) for row in ordered]


def half_reviewed(fleet: Fleet) -> None:
    """Have `de` approved while `fr-CA` is still with its reviewer."""

    def answer(request: EvidenceRequest) -> Any:
        return (
            good(fleet.keys)(request)
            if request.document["target_locale"] == "de"
            else NotYet(retry_after_seconds=400.0)
        )

    fleet.provider = ScriptedProvider(answer)
    fleet.submit()
    fleet.live()


def on_hold(fleet: Fleet) -> str:
    """Have an event of a guided site prepared, which nobody publishes; return its delivery."""
    fleet.policies.policy = GUIDED
    fleet.submit()
    fleet.live()
    return str(prepare_delivery(fleet.born(), "event-1").delivery_id)


# --- by itself ---------------------------------------------------------------------------------------------------------


def test_an_approval_is_renewed_before_it_ends(fleet: Fleet, rows: Rows) -> None:
    """While another locale is still with its reviewer: a new revision and a new approval; the old one is kept."""
    half_reviewed(fleet)
    fleet.pass_time(499)
    assert revisions(rows) == [("r1", "retry_wait"), ("r1", "succeeded")]
    fleet.pass_time(61)
    assert revisions(rows) == [("r1", "retry_wait"), ("r1", "succeeded"), ("r2", "succeeded")]
    assert sorted(row["expires_at"] for row in rows(approvals)) == [NOW + TTL, NOW + 560 + TTL]
    fleet.provider = ScriptedProvider(good(fleet.keys))
    fleet.pass_time(440)  # the first approval is over by now
    assert advance_event(fleet.born(), "event-1").status == "delivered"
    [publication] = fleet.cms.ledger.values()
    named = {one["approval_expires_at"] for one in publication["localizations"]}
    assert named == {NOW + 560 + TTL, NOW + 1000 + TTL}


def test_a_lead_of_zero_leaves_it_to_operators(fleet: Fleet, rows: Rows) -> None:
    """Nothing is renewed by itself; the event waits for a word."""
    half_reviewed(fleet)
    fleet.policies.policy = POLICY.model_copy(update={"renewal_lead_seconds": 0.0})
    fleet.pass_time(900)
    fleet.pass_time(900)
    assert ("r2", "succeeded") not in revisions(rows)
    assert advance_event(fleet.born(), "event-1").target_locale == "de"


def test_what_expired_while_the_fleet_was_down_is_renewed_too(fleet: Fleet, rows: Rows) -> None:
    """The lead is a beginning, not a window."""
    half_reviewed(fleet)
    fleet.pass_time(10 * TTL)
    assert ("r2", "succeeded") in revisions(rows)


def test_what_was_revoked_is_not_renewed_by_itself(fleet: Fleet, rows: Rows) -> None:
    """An operator took it back; only an operator asks again."""
    half_reviewed(fleet)
    [approval] = rows(approvals)
    revoke_approval(fleet.born(), approval["approval_id"], reason="wrong term", operator="ada")
    fleet.pass_time(600)
    assert revisions(rows) == [("r1", "retry_wait"), ("r1", "succeeded")]
    assert [one["target_locale"] for one in renew(fleet)["reopened"]] == ["de"]
    fleet.live()
    assert ("r2", "succeeded") in revisions(rows)


def test_a_renewal_that_failed_is_not_repeated_by_itself(fleet: Fleet, rows: Rows) -> None:
    """One refusal, and then it waits for an operator: no provider is asked for ever."""
    half_reviewed(fleet)
    fleet.provider = ScriptedProvider(good(fleet.keys, quality_receipt=""))
    for _ in range(5):
        fleet.pass_time(300)
    assert [one for one in revisions(rows) if one[0] != "r1"] == [("r2", "failed")]


@pytest.mark.parametrize("state", ["superseded", "withdrawn", "delivered"])
def test_an_event_that_ended_is_not_renewed(fleet: Fleet, engine: Engine, rows: Rows, state: str) -> None:
    """Nobody needs its approvals any more."""
    half_reviewed(fleet)
    writing(engine, lambda conn: conn.execute(update(events).values(state=state)))
    fleet.pass_time(900)
    assert len(rows(evidence)) == 2


def test_two_sweeps_renew_once(fleet: Fleet, rows: Rows) -> None:
    """One look a minute, whoever looks; a second finds the turn taken."""
    half_reviewed(fleet)
    fleet.now += 600
    assert renew_expiring(fleet.born()) == Renewed(is_turn=True, renewed=("event-1",))
    assert renew_expiring(fleet.born()) == Renewed(is_turn=False)
    fleet.now += 60
    assert renew_expiring(fleet.born()) == Renewed(is_turn=True)  # it is being asked for
    assert revisions(rows).count(("r2", "pending")) == 1


def test_an_expired_delivery_is_followed_after_a_renewal(fleet: Fleet, rows: Rows) -> None:
    """A guided delivery whose approvals ended is closed; new approvals come by themselves and make a new revision."""
    first = on_hold(fleet)
    fleet.pass_time(TTL + 1)
    with pytest.raises(Blocked, match=r"cms\.delivery\.approval_expired"):
        publish_delivery(fleet.born(), "event-1")
    assert outcomes(rows) == [("failed", "cms.delivery.approval_expired")]
    fleet.pass_time(61)
    fleet.pass_time(1)
    assert outcomes(rows) == [("failed", "cms.delivery.approval_expired"), ("pending", None)]
    assert prepare_delivery(fleet.born(), "event-1").delivery_id != first


def test_an_open_delivery_is_never_renewed_by_itself(fleet: Fleet, rows: Rows) -> None:
    """It speaks for the event until an operator says otherwise."""
    on_hold(fleet)
    fleet.pass_time(700)
    assert revisions(rows) == [("r1", "succeeded")] * 2


# --- on a word ---------------------------------------------------------------------------------------------------------


def test_an_open_delivery_gives_way_to_its_successor(fleet: Fleet, rows: Rows) -> None:
    """Until every new approval is there the old one stays as it is; then one transaction closes it and stores the next."""
    first = on_hold(fleet)
    fleet.now += 600
    answer = renew(fleet)
    assert (answer["delivery_id"], [one["evidence_revision"] for one in answer["reopened"]]) == (first, ["r2", "r2"])
    assert outcomes(rows) == [("pending", None)]
    assert prepare_delivery(fleet.born(), "event-1").delivery_id == first  # nothing is renewed yet
    fleet.live()
    assert outcomes(rows) == [("failed", "cms.delivery.renewed"), ("pending", None)]
    second = prepare_delivery(fleet.born(), "event-1")
    assert (second.status, second.delivery_id != first) == ("delivery_ready", True)
    assert advance_event(fleet.born(), "event-1").delivery_id == second.delivery_id
    [row] = [row for row in rows(deliveries) if row["delivery_id"] == second.delivery_id]
    expiries = {one["approval_expires_at"] for one in json.loads(row["payload"])["localizations"]}
    assert (expiries, row["renewal_asked_at"]) == ({NOW + 600 + TTL}, None)
    fleet.live()
    assert len(rows(deliveries)) == 2


def test_the_old_delivery_may_still_be_sent_while_it_is_renewed(fleet: Fleet, rows: Rows) -> None:
    """What is published meanwhile is published: the renewal's rows are closed, and no successor follows."""
    first = on_hold(fleet)
    fleet.now += 600
    renew(fleet)
    fleet.queue.take()
    fleet.policies.policy = POLICY
    assert publish_delivery(fleet.born(), "event-1").status == "delivered"
    fleet.pass_time(20)
    assert [row["delivery_id"] for row in rows(deliveries)] == [first]
    closed = [row["last_error_code"] for row in rows(evidence) if row["evidence_revision"] == "r2"]
    assert closed == ["evidence.delivered"] * 2
    assert list(fleet.cms.ledger) == [first]


def test_a_renewal_that_is_incomplete_changes_nothing(fleet: Fleet, rows: Rows) -> None:
    """One locale's new review is refused: the old delivery stays, and a retry of that locale completes it."""
    first = on_hold(fleet)
    fleet.now += 600
    renew(fleet)

    def answer(request: EvidenceRequest) -> Any:
        changes = {"quality_receipt": ""} if request.document["target_locale"] == "de" else {}
        return good(fleet.keys, **changes)(request)

    fleet.provider = ScriptedProvider(answer)
    fleet.live()
    fleet.pass_time(20)
    assert outcomes(rows) == [("pending", None)]
    fleet.provider = ScriptedProvider(good(fleet.keys))
    retry_evidence(fleet.born(), event_id="event-1", job_id=None, request_id="op-2")
    fleet.pass_time(20)
    assert outcomes(rows) == [("failed", "cms.delivery.renewed"), ("pending", None)]
    assert revisions(rows)[2:] == [("r2", "succeeded"), ("r2", "succeeded"), ("r3", "succeeded")]
    assert prepare_delivery(fleet.born(), "event-1").delivery_id != first


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"status": "leased", "lease_owner": "w", "lease_token": "t", "in_doubt": True}, "evidence.renewal.in_flight"),
        ({"status": "retry_wait", "in_doubt": True}, "evidence.renewal.in_flight"),
        ({"status": "failed", "in_doubt": True, "last_error_code": "cms.outcome_unknown"}, "cms.outcome_unknown"),
    ],
    ids=["on its way", "in doubt", "unknown"],
)
def test_a_delivery_that_may_be_live_is_not_renewed(
    fleet: Fleet, engine: Engine, everything: Everything, values: dict[str, Any], code: str
) -> None:
    """Refused, and nothing is written."""
    on_hold(fleet)
    fleet.now += 600
    if values["status"] == "leased":
        values = values | {"lease_expires_at": fleet.now + 100, "attempts": 1}
    moments = {"sent_at": NOW, "doubt_since_at": NOW}
    writing(engine, lambda conn: conn.execute(update(deliveries).values(**values, **moments)))
    before = everything()
    assert refused(fleet) == code
    assert everything() == before


def test_a_delivery_that_falls_in_doubt_during_its_renewal_is_kept(
    fleet: Fleet, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """No more evidence is asked for, and no successor takes its place while nobody knows."""
    on_hold(fleet)
    fleet.now += 600
    renew(fleet)
    doubt = {"status": "retry_wait", "in_doubt": True, "sent_at": NOW, "doubt_since_at": NOW}
    later_on = {"next_attempt_at": fleet.now + 5000}
    writing(engine, lambda conn: conn.execute(update(deliveries).values(**doubt, **later_on)))
    fleet.live()
    assert revisions(rows)[2:] == [("r2", "pending")] * 2
    assert [row["status"] for row in rows(deliveries)] == ["retry_wait"]


@pytest.mark.parametrize("state", ["superseded", "withdrawn", "delivered"])
def test_an_event_that_ended_refuses_the_word(fleet: Fleet, engine: Engine, everything: Everything, state: str) -> None:
    """`evidence.event_ended`, and nothing is written."""
    half_reviewed(fleet)
    writing(engine, lambda conn: conn.execute(update(events).values(state=state)))
    before = everything()
    assert refused(fleet) == "evidence.event_ended"
    assert everything() == before


def test_approvals_that_last_are_left_alone_unless_all_are_wanted(
    fleet: Fleet, rows: Rows, everything: Everything
) -> None:
    """`evidence.nothing_to_renew`; with `every` each locale is asked about again."""
    on_hold(fleet)
    before = everything()
    assert refused(fleet) == "evidence.nothing_to_renew"
    assert everything() == before
    assert len(renew(fleet, every=True)["reopened"]) == 2


def test_a_word_is_taken_once(fleet: Fleet, everything: Everything, queue: RecordingQueue) -> None:
    """The same request id: the same answer, nothing written, nobody woken; for another command it is refused."""
    on_hold(fleet)
    fleet.now += 600
    first = renew(fleet)
    queue.take()
    before = everything()
    fleet.now += 10
    assert renew(fleet) == first
    assert (everything(), queue.take()) == (before, [])
    assert refused(fleet, every=True) == "operator.request_id.collision"
    assert refused(fleet, request_id="op-2") == "evidence.nothing_to_renew"  # all of it is being asked for
    assert everything() == before


def test_one_job_alone_may_be_renewed(fleet: Fleet, rows: Rows) -> None:
    """The others keep their approvals; the successor names both kinds."""
    on_hold(fleet)
    fleet.now += 600
    job = job_for(json.loads(rows(events)[0]["document"]), "de")
    assert [one["target_locale"] for one in renew(fleet, job_id=job.job_id)["reopened"]] == ["de"]
    fleet.live()
    [row] = [row for row in rows(deliveries) if row["status"] == "pending"]
    expiries = [one["approval_expires_at"] for one in json.loads(row["payload"])["localizations"]]
    assert expiries == [NOW + 600 + TTL, NOW + TTL]


def test_a_policy_that_no_longer_accepts_them_is_a_reason(fleet: Fleet, rows: Rows) -> None:
    """The approvals stand, but not for this site's policy any more: a word has them given again under the new one."""
    half_reviewed(fleet)
    fleet.policies.policy = SitePolicy(approval_ttl_seconds=TTL + 1)
    fleet.live()
    assert ("r2", "succeeded") not in revisions(rows)
    renew(fleet)
    fleet.live()
    assert ("r2", "succeeded") in revisions(rows)


def test_an_unknown_event_is_refused(fleet: Fleet, rows: Rows) -> None:
    """And its request id stays free."""
    assert refused(fleet) == "coordinator.event_id.unknown"
    assert rows(operator_requests) == []


@pytest.mark.parametrize("name", ["renew_evidence.committed", "collect.settled", "prepare.signed", "prepare.committed"])
def test_a_crash_during_a_renewal_ends_the_same(fleet: Fleet, rows: Rows, checkpoints: Checkpoints, name: str) -> None:
    """One old and one new delivery, whoever finishes it; at no time are there two open ones or none."""
    on_hold(fleet)
    fleet.now += 600
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        renew(fleet)
        fleet.live()
    fleet.queue.take()
    checkpoints.crash_at = None
    assert len([row for row in rows(deliveries) if row["status"] != "failed"]) == 1
    renew(fleet)
    fleet.pass_time(301)
    fleet.pass_time(11)
    assert outcomes(rows) == [("failed", "cms.delivery.renewed"), ("pending", None)]
