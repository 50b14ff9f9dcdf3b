"""When a worker counts as stalled: work waits that it may take, and it has taken none of its kind for too long.

A pause, an open breaker, a full limit or a broker that takes no message is never a stall: what may not be taken, or was
not asked for, is not seen as waiting. A process that was itself held up begins to count anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

WorkKind = Literal["evidence", "delivery", "runs", "intake", "sweep"]  # named like the queues that bring it

# Of these the database shows nothing before a message was taken: they wait while messages lie in their queue.
QUEUED: Final[frozenset[WorkKind]] = frozenset({"intake", "sweep"})

STALLED: Final = "worker.stalled"
EXIT_CODE: Final = 70  # of a worker that ends for a fault of its own: EX_SOFTWARE


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the looks so far have shown: since when work of each kind waits without a claim. Monotonic seconds."""

    looked_at: float = 0.0
    waiting_since: Mapping[WorkKind, float] = field(default_factory=lambda: MappingProxyType({}))


def after_look(
    watch: Watch,
    *,
    waiting: Collection[WorkKind],
    claimed_at: Mapping[WorkKind, float],
    now: float,
    longest_gap_seconds: float,
) -> Watch:
    """Return the watch after one more look, which saw work of these kinds waiting; a claim since then begins anew.

    Nothing is concluded over a gap: between two looks further apart than `longest_gap_seconds` this process stood still.
    """
    before = watch.waiting_since if now - watch.looked_at <= longest_gap_seconds else {}
    since = {kind: max(before.get(kind, now), claimed_at[kind]) for kind in waiting}
    return Watch(looked_at=now, waiting_since=since)


def stalled_kind(watch: Watch, *, stall_seconds: float) -> WorkKind | None:
    """Return the kind of work that has waited for longest without a claim, where that is too long; else None."""
    longest = min(watch.waiting_since.items(), key=lambda item: item[1], default=None)
    if longest is None or watch.looked_at - longest[1] < stall_seconds:
        return None
    return longest[0]
