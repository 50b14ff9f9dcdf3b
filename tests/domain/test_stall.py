"""When a worker counts as stalled."""

from __future__ import annotations

from worker.domain.stall import Watch, WorkKind, after_look, stalled_kind

NEVER: dict[WorkKind, float] = {"evidence": 0.0, "delivery": 0.0, "runs": 0.0, "intake": 0.0, "sweep": 0.0}


def looks(
    *seen: tuple[float, tuple[WorkKind, ...]], claimed_at: dict[WorkKind, float] = NEVER, gap: float = 20.0
) -> Watch:
    """Return the watch after looks at these times, each with the kinds of work that waited."""
    watch = Watch()
    for at, waiting in seen:
        watch = after_look(watch, waiting=waiting, claimed_at=claimed_at, now=at, longest_gap_seconds=gap)
    return watch


def test_work_that_waits_without_a_claim_is_a_stall() -> None:
    """Seen at every look for the whole time, and no claim: a stall; a moment less, none."""
    nearly = looks((100, ("evidence",)), (110, ("evidence",)), (129, ("evidence",)))
    whole = looks((100, ("evidence",)), (110, ("evidence",)), (130, ("evidence",)))
    assert stalled_kind(nearly, stall_seconds=30) is None
    assert stalled_kind(whole, stall_seconds=30) == "evidence"


def test_a_claim_begins_the_count_anew() -> None:
    """A claim of that kind counts from its own time; one of another kind does not help."""
    seen = ((100.0, ("evidence",)), (115.0, ("evidence",)), (130.0, ("evidence",)))
    assert stalled_kind(looks(*seen, claimed_at={**NEVER, "evidence": 101}), stall_seconds=30) is None
    assert stalled_kind(looks(*seen, claimed_at={**NEVER, "delivery": 129}), stall_seconds=30) == "evidence"


def test_a_look_that_sees_nothing_ends_the_count() -> None:
    """Paused, taken by others, or not asked for in between: what waits later has waited only since then."""
    watch = looks((100, ("evidence",)), (115, ()), (130, ("evidence",)))
    assert watch.waiting_since == {"evidence": 130}
    assert stalled_kind(watch, stall_seconds=30) is None


def test_a_process_that_stood_still_concludes_nothing() -> None:
    """Between two looks far apart anything may have happened: a process that was frozen does not end itself for it."""
    watch = looks((100, ("evidence",)), (1000, ("evidence",)))
    assert stalled_kind(watch, stall_seconds=30) is None
    assert watch.waiting_since == {"evidence": 1000}


def test_the_longest_wait_is_named() -> None:
    """Of two kinds that wait too long, the one that waits longer is the reason."""
    watch = looks((100, ("runs",)), (110, ("runs", "delivery")), (120, ("runs", "delivery")))
    assert stalled_kind(watch, stall_seconds=5) == "runs"


def test_no_look_is_no_stall() -> None:
    """A worker that was just started is not stalled."""
    assert stalled_kind(Watch(), stall_seconds=0.001) is None
