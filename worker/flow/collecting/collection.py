"""One collector's work in hand, from the claim to the events that became ready. Not a step; the step makes one.

    claimed -> (call open) -> answered -> settled -> asked whether ready

A fault of the database keeps what is in hand where it is, to be tried again after a pause while its leases last. A
process that drains hands back what it has not asked about, and wakes another for it.
"""

from __future__ import annotations

from worker.domain.errors import Unavailable
from worker.domain.limits import FleetLimits
from worker.domain.messages import EVIDENCE_COLLECT
from worker.domain.review import Collected, Reused, Verified
from worker.flow.collecting.answered import Answered
from worker.flow.collecting.claimed_requests import open_requests
from worker.flow.collecting.evidence_call import HANDED_BACK, Guard
from worker.flow.collecting.open_calls import Call, OpenCalls
from worker.flow.collecting.ready_events import Ready, tell_ready
from worker.flow.collecting.settlement import settle_answers
from worker.flow.services import Services
from worker.store.due_evidence import ClaimedRow, claim_due
from worker.store.due_groups import seconds_to_refill
from worker.store.engine import reading

FIRST_PAUSE_SECONDS = 0.05  # between tries while the database is away; doubles
LONGEST_PAUSE_SECONDS = 2.0
LONGEST_REFILL_SECONDS = 10.0  # a rate that allows the next call later than this is left to the sweeper
SHORTEST_REFILL_SECONDS = 0.01  # of a wait that is over already: one more round, and then a claim
REFILL_SLICE_SECONDS = 1.0  # so that a drain is seen


class Collection:
    """One collector's work in hand. Used by its own thread alone."""

    def __init__(self, services: Services, event_id: str | None, ready: Ready, calls: OpenCalls) -> None:
        self._services, self._event_id, self._ready, self._calls = services, event_id, ready, calls
        self._done = Collected()
        self._handed_back: str | None = None  # an event with rows that another worker may take at once
        self._is_more_due = True  # a claim may find something
        self._is_bounded = False  # the last claim kept to limits
        self._refill_at: float | None = None  # when a rate lets a due row begin, by this process's own clock
        self._claimed: list[tuple[ClaimedRow, Guard]] = []  # not loaded yet
        self._answered: list[Answered] = []  # not settled yet
        self._jobs: dict[str, str] = {}  # site id by job id: settled, and readiness not asked yet

    def run(self) -> Collected:
        """Go round until no row is due and no call is open. Raises `Unavailable` with nothing left in hand."""
        pause = 0.0
        while True:
            try:
                self._settle()
                self._fill()
                self._tell_ready()
                pause = 0.0
            except Unavailable:
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                self._let_go()
                if not self._has_work():
                    raise
            wait = pause or self._seconds_to_refill()
            if self._has_work() or (wait and not self._services.draining()):
                self._answered += self._calls.gather(has_company=bool(self._answered), pause_seconds=wait)
            elif self._services.draining() or self._services.collecting.try_leave():
                self._wake_another()
                return self._done
            self._is_more_due |= self._services.collecting.take_wake() or self._is_refilled()

    def _has_work(self) -> bool:
        return bool(self._claimed or self._answered or self._calls.waiting)

    def _settle(self) -> None:
        if not self._answered:
            return
        settled = settle_answers(self._services, self._answered)
        # A bound may have room now, and a route that was tried may be open again.
        self._is_more_due |= self._is_bounded or any(one.row.permit is not None for one in self._answered)
        self._handed_back = next(
            (one.row.key.event_id for one in self._answered if one.ending == HANDED_BACK), self._handed_back
        )
        done = [one.row for one in self._answered if isinstance(one.ending, Verified | Reused)]
        self._jobs |= {row.key.job_id: row.site_id for row in done}
        self._answered = []
        self._done = self._done.plus(approved=len(settled.approved), failed=len(settled.failed))

    def _tell_ready(self) -> None:
        tell_ready(self._services, self._jobs, self._ready)
        self._jobs = {}

    def _fill(self) -> None:
        """Put a call into every free place, as long as rows are due."""
        while True:
            self._begin()
            places = min(self._services.batch_rows, self._calls.free_places())
            if not (places and self._is_more_due) or self._services.draining():
                return
            limits = self._services.policies.limits()
            leases = self._services.policies.evidence_leases()
            began = self._services.monotonic()
            rows = claim_due(
                self._services.engine,
                worker_id=self._services.worker_id,
                limit=places,
                lease_seconds=leases.default_seconds,
                site_leases=leases.by_site,
                preferred_event_id=self._event_id,
                now=self._services.now(),
                probe_seconds=self._services.deadlines.longest_review_seconds,
                limits=limits,
            )
            self._services.claimed("evidence")
            self._is_more_due = len(rows) == places
            self._is_bounded = limits.is_any
            self._claimed = [
                (row, Guard.of_lease(self._services, began=began, seconds=leases.for_site(row.site_id))) for row in rows
            ]
            self._done = self._done.plus(claimed=len(rows))
            self._services.checkpoint("collect.claimed")
            had_waited = self._refill_at is not None and began >= self._refill_at
            self._await_refill(limits, is_in_vain=had_waited and not rows, is_short=not self._is_more_due)

    def _await_refill(self, limits: FleetLimits, *, is_in_vain: bool, is_short: bool) -> None:
        """Remember when a rate lets a due row begin that this claim left.

        A claim that waited for that in vain ends the waiting: another worker was faster, or the row may not be claimed
        after all, and the sweeper wakes what is left. One that came before its time says nothing.
        """
        self._refill_at = None
        if is_in_vain or not (limits.has_rates and is_short):
            return
        with reading(self._services.engine) as conn:
            seconds = seconds_to_refill(conn, limits, now=self._services.now())
        if seconds is not None and seconds <= LONGEST_REFILL_SECONDS:
            self._refill_at = self._services.monotonic() + seconds

    def _seconds_to_refill(self) -> float:
        """Return how long to sleep for a rate that refills, at most; 0 where nothing waits for one."""
        if self._refill_at is None or self._answered:
            return 0.0
        left = self._refill_at - self._services.monotonic()
        return min(max(SHORTEST_REFILL_SECONDS, left), REFILL_SLICE_SECONDS)

    def _is_refilled(self) -> bool:
        return self._refill_at is not None and self._services.monotonic() >= self._refill_at

    def _begin(self) -> None:
        if not self._claimed:
            return
        if self._services.draining():
            self._answered += [Answered(row=row, guard=guard, ending=HANDED_BACK) for row, guard in self._claimed]
            self._claimed = []
            return
        opened = open_requests(self._services, [row for row, _ in self._claimed])
        asked: list[Call] = []
        for row, guard in self._claimed:
            request_id = row.key.request_id
            ending = opened.endings.get(request_id)
            if ending is not None:
                self._answered.append(Answered(row=row, guard=guard, ending=ending))
            else:
                request, pushed = opened.requests[request_id], opened.pushed.get(request_id)
                asked.append(Call(row=row, guard=guard, request=request, pushed=pushed))
        if asked:
            self._calls.begin(asked)
        self._claimed = []

    def _let_go(self) -> None:
        """Drop what can no longer be settled: its lease is over by this process's own clock, or the process's time is."""
        is_cut = self._services.cut()
        self._claimed = [(row, guard) for row, guard in self._claimed if not (is_cut or guard.is_over())]
        self._answered = [one for one in self._answered if not (is_cut or one.guard.is_over())]

    def _wake_another(self) -> None:
        if self._handed_back is not None:
            self._services.queue.wake(EVIDENCE_COLLECT, event_id=self._handed_back)
