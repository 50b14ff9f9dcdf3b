"""A claimed row that came to an end, on its way from its call to the settle. A value; nothing acts here."""

from __future__ import annotations

from dataclasses import dataclass

from worker.domain.review import Ending
from worker.flow.collecting.evidence_call import Guard
from worker.store.due_evidence import ClaimedRow


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A claimed row, its guard, and how its attempt ended. `is_pushed`: by an answer that had been handed in.

    `is_called` says that its provider was really called, and the call came to an end by itself.
    """

    row: ClaimedRow
    guard: Guard
    ending: Ending
    is_pushed: bool = False
    is_called: bool = False
