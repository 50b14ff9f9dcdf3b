"""What a run must have kept: the list of violations, empty for a good run."""

from __future__ import annotations

from collections import Counter

from tests.chaos.run import Outcome


def violations(outcome: Outcome) -> list[str]:
    """Return one sentence for each promise that was broken, with the rows it was broken for."""
    return [*_lost(outcome), *_published(outcome), *_calls(outcome), *_audited(outcome), *_locked(outcome)]


def lost(outcome: Outcome) -> list[str]:
    """Return the events that did not end: not accepted, or still waiting after the quiet."""
    ended = {event_id for event_id, end in outcome.ends.items() if end.state != "waiting"}
    return [one.event_id for one in outcome.plan.events if one.event_id not in ended]


def end_counts(outcome: Outcome) -> Counter[str]:
    """Return how many events ended how."""
    return Counter(end.state for end in outcome.ends.values())


def _lost(outcome: Outcome) -> list[str]:
    found = []
    if missing := lost(outcome):
        found.append(f"{len(missing)} events did not end: {_some(missing)}")
    unsettled = [one.sending.event_id for one in outcome.kept if not one.is_settled]
    if unsettled:
        found.append(f"{len(unsettled)} documents were neither accepted nor refused: {_some(unsettled)}")
    refused = [one for one in outcome.kept if one.state == "rejected" and one.sending.kind == "event"]
    if refused:
        found.append(f"{len(refused)} sound submissions were refused: {_some(f'{one.code}' for one in refused)}")
    if len(outcome.done) != len(outcome.plan.faults):
        found.append(f"only {len(outcome.done)} of {len(outcome.plan.faults)} faults were done")
    return found


def _published(outcome: Outcome) -> list[str]:
    seen = outcome.publications
    assert seen is not None
    told = (
        (seen.twice, "published twice"),
        (seen.partial, "published with other locales or texts than were sent"),
        (seen.overwritten, "published after a newer text of their source"),
        (seen.unrecorded, "live at the CMS and not published by the database"),
        (seen.missing, "published by the database and not live at the CMS"),
    )
    found = [f"{len(events)} events {what}: {_some(events)}" for events, what in told if events]
    verdicts = outcome.sandbox.get("verdicts", {})
    refused = [verdict for verdict in ("stale", "conflict") if verdicts.get(verdict)]
    return [*found, *(f"the CMS refused {verdicts[verdict]} deliveries as {verdict}" for verdict in refused)]


def _calls(outcome: Outcome) -> list[str]:
    over = [request for request, calls in outcome.calls.items() if calls.counted > calls.max_attempts]
    unclaimed = [
        request for request, calls in outcome.calls.items() if calls.arrivals > calls.attempts + calls.handed_back
    ]
    unknown = sorted(outcome.sandbox.get("arrivals", {}).keys() - outcome.calls.keys())
    told = (
        (over, "revisions were asked for more often than max_attempts"),
        (unclaimed, "revisions were asked for more often than claimed"),
        (unknown, "revisions were asked for that the database does not know"),
    )
    return [f"{len(requests)} {what}: {_some(requests)}" for requests, what in told if requests]


def _audited(outcome: Outcome) -> list[str]:
    count = outcome.audit["violation_count"]
    codes = ", ".join(sorted({one["code"] for one in outcome.audit["violations"]}))
    return [f"locseal audit found {count} violations: {codes}"] if count else []


def _locked(outcome: Outcome) -> list[str]:
    found = list(outcome.user_faults)
    if outcome.locked:
        found.append(f'"database is locked" stands in {", ".join(outcome.locked)}')
    return found


def _some(names: object) -> str:
    every = list(names)  # type: ignore[call-overload]
    return ", ".join(str(name) for name in every[:5]) + (", ..." if len(every) > 5 else "")
