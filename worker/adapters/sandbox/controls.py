"""How the sandbox is told to misbehave, and what it counts. One event loop uses it; nothing here is locked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from worker.domain.document import Document, parse_document
from worker.domain.errors import Invalid

Target = Literal["provider", "verifier", "cms", "lookup"]
TARGETS: Final[tuple[Target, ...]] = ("provider", "verifier", "cms", "lookup")
Rubbish = Literal["html", "text", "truncated", "duplicate", "other", "binding"]
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Times = Annotated[int, Field(ge=0, le=1_000_000_000)]


class Behaviour(Document):
    """What one target does. All defaults: it answers well and at once.

    Order of one call: wait while `hold`; wait `delay_seconds`; redirect; fail; refuse, "not yet" or stale; do the work;
    wait `answer_delay_seconds`; lose the answer; answer, or answer rubbish, or sign with a key that is not trusted.
    """

    hold: bool = False  # calls wait until a later control lets them go

    delay_seconds: Seconds = 0.0
    answer_delay_seconds: Seconds = 0.0
    fail_times: Times = 0  # the next so many calls fail
    fail_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0  # of the calls, evenly spread
    fail_status: Annotated[int, Field(ge=400, le=599)] = 503
    retry_after: Annotated[str, StringConstraints(pattern=r"^[ -~]{1,64}$")] | None = None  # with failures and 202
    redirect_to: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,512}$")] | None = None
    rubbish: Rubbish | None = None
    lose_answer_times: Times = 0  # the next so many answers are lost after the work was done
    wrong_key: bool = False
    lie_times: Times | None = None  # only the next so many answers are rubbish or wrongly signed; null: all
    refuse: dict[str, str] = Field(default_factory=dict)  # provider: locale -> code of a 422
    not_yet_times: Times = 0  # provider: 202 so often for each request
    by_hand: list[Literal["human", "independent", "quality"]] = Field(default_factory=list)  # provider: see `Controls`
    stale: bool = False  # cms: 409 stale for every delivery


class Controls:
    """The behaviour of each target and the counts since the last reset."""

    def __init__(self, **behaviours: Behaviour) -> None:
        self._behaviours: dict[str, Behaviour] = {target: Behaviour() for target in TARGETS} | behaviours
        self._fail_debt: Counter[str] = Counter()
        self._spent: Counter[tuple[str, str]] = Counter()
        self._not_yet: Counter[str] = Counter()
        self._finished: set[str] = set()
        self._changed = asyncio.Event()
        self.running: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """Forget all counts and what was put off; behaviours stay, and so do the calls that are running."""
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.arrivals: Counter[str] = Counter()  # provider calls by request, whatever became of them
        self.by_request: Counter[str] = Counter()  # those of them that were not failed
        self.awaited: dict[str, Mapping[str, Any]] = {}  # requests put off, without their texts

    def change(self, document: object) -> bool:
        """Set the behaviours that a control document names; return whether it asks for a reset.

        `{"provider": {"delay_seconds": 1}, "reset": true}`: a target named gets exactly this behaviour, with defaults
        for the rest; others stay. Raises `Invalid("sandbox.control.invalid")` and then changes nothing.
        """
        code = "sandbox.control.invalid"
        if not isinstance(document, dict) or document.keys() - {*TARGETS, "reset"}:
            raise Invalid(code, f"expected an object with some of {', '.join(TARGETS)}, reset")
        if not isinstance(document.get("reset", False), bool):
            raise Invalid(code, "expected true or false", path="reset")
        changed: dict[str, Behaviour] = {
            target: parse_document(Behaviour, document[target], area="sandbox.control", path=target)
            for target in TARGETS
            if target in document
        }
        self._behaviours |= changed
        for target in changed:
            self._fail_debt.pop(target, None)
            self._spent = Counter({key: count for key, count in self._spent.items() if key[0] != target})
        if "provider" in changed:
            self._not_yet.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        return bool(document.get("reset", False))

    def of(self, target: Target) -> Behaviour:
        """Return the behaviour of a target."""
        return self._behaviours[target]

    async def let_go(self, target: Target) -> Behaviour:
        """Wait while a target is held, and return how it behaves then."""
        while self.of(target).hold:
            await self._changed.wait()
        return self.of(target)

    def fails(self, target: Target) -> bool:
        """Tell whether this call fails, and count it."""
        behaviour = self.of(target)
        failing = self._spend(target, "fail_times", behaviour.fail_times)
        if not failing:
            self._fail_debt[target] += round(behaviour.fail_ratio * 1_000_000)
            failing = self._fail_debt[target] >= 1_000_000
            self._fail_debt[target] -= 1_000_000 if failing else 0
        return self._counted(f"{target}.failed", failing)

    def loses_answer(self, target: Target) -> bool:
        """Tell whether this answer is lost, and count it."""
        lost = self._spend(target, "lose_answer_times", self.of(target).lose_answer_times)
        return self._counted(f"{target}.lost", lost)

    def as_it_answers(self, target: Target, behaviour: Behaviour) -> Behaviour:
        """Return the behaviour of this one answer: honest once as many as asked for were lies. Counts the lie."""
        if behaviour.rubbish is None and not behaviour.wrong_key:
            return behaviour
        is_spent = behaviour.lie_times is not None and not self._spend(target, "lie_times", behaviour.lie_times)
        self._counted(f"{target}.lied", not is_spent)
        return behaviour.model_copy(update={"rubbish": None, "wrong_key": False}) if is_spent else behaviour

    def not_yet(self, request_id: str, need: Literal["human", "independent", "quality"]) -> bool:
        """Tell whether the provider has no answer yet to this request, and count it.

        So it is `not_yet_times` for each, and for what is reviewed `by_hand` (by what its flags call for) until the
        review is finished.
        """
        behaviour = self.of("provider")
        waiting = self._not_yet[request_id] < behaviour.not_yet_times
        waiting = waiting or (need in behaviour.by_hand and request_id not in self._finished)
        if waiting:
            self._not_yet[request_id] += 1
        return self._counted("provider.not_yet", waiting)

    def finish(self, request_id: str) -> None:
        """Note that the review of a request is finished: from now on the provider answers it."""
        self._finished.add(request_id)

    def begin(self, target: Target) -> None:
        """Count a call that arrived."""
        self.calls[target] += 1
        self.running[target] += 1
        self.peak[target] = max(self.peak[target], self.running[target])

    def end(self, target: Target) -> None:
        """Count a call that ended, however it did."""
        self.running[target] -= 1

    def state(self) -> dict[str, Any]:
        """Return behaviours and counts, for whoever asks."""
        return {
            "behaviour": {target: self.of(target).to_json() for target in TARGETS},
            "calls": {target: self.calls[target] for target in TARGETS},
            "running": {target: self.running[target] for target in TARGETS},
            "peak": {target: self.peak[target] for target in TARGETS},
            "faults": dict(self.faults),
        }

    def _spend(self, target: str, member: str, allowed: int) -> bool:
        if self._spent[target, member] >= allowed:
            return False
        self._spent[target, member] += 1
        return True

    def _counted(self, name: str, happened: bool) -> bool:
        self.faults[name] += int(happened)
        return happened
