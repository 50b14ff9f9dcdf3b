"""The rules of a bounded attempt, for evidence and deliveries alike. Pure: no row is read or moved in here.

pending      in: the row is inserted · out: claim, close, mark approved · moved by intake and the workers
leased       in: claim · out: succeed, fail, release (by the holder of the token), expire (by anybody, once it ran out)
retry_wait   in: a retryable failure, a release, an expiry · out: claim when due, close, mark approved
succeeded    in: succeed, mark approved · out: never
failed       in: a terminal failure, exhaustion, close · out: mark approved (evidence), reconcile (deliveries)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from worker.domain.errors import Invalid, is_error_code
from worker.domain.identifier import is_hash, is_time, is_token, require_time

PENDING: Final = "pending"
LEASED: Final = "leased"
RETRY_WAIT: Final = "retry_wait"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STATUSES: Final = (PENDING, LEASED, RETRY_WAIT, SUCCEEDED, FAILED)

MOST_ATTEMPTS: Final = 20
LONGEST_LEASE_SECONDS: Final = 3600.0
LONGEST_WAIT_SECONDS: Final = 3600.0

LEASE_EXPIRED: Final = "lease_expired"  # the error of an attempt whose lease ran out


def backoff_seconds(attempts: int) -> float:
    """Return how long a row waits after its n-th attempt failed: 5, 10, 20, ... at most 3600 seconds."""
    return float(min(LONGEST_WAIT_SECONDS, 5 * 2.0 ** (attempts - 1)))


def due_after(attempts: int, now: float, not_before: float | None = None) -> float:
    """Return when a failed attempt may be repeated; `not_before` may only lengthen the wait, up to 3600 seconds."""
    due = now + backoff_seconds(attempts)
    return due if not_before is None else max(due, min(not_before, now + LONGEST_WAIT_SECONDS))


def spread_wait(attempts: int, *, jitter: float, retry_after_seconds: float | None = None) -> float:
    """Return how long the fleet waits after the n-th attempt failed: the formula or what was asked for, in seconds.

    `jitter` (0 to 0.5) is the random share added to the formula; two fifths of it are added to what was asked for, so
    that rows which were told the same wait do not come back in the same second. Never more than an hour.
    """
    formula = backoff_seconds(min(max(attempts, 1), MOST_ATTEMPTS)) * (1.0 + jitter)
    asked = (retry_after_seconds or 0.0) * (1.0 + 0.4 * jitter)
    return min(LONGEST_WAIT_SECONDS, max(formula, asked))


def is_attempts_bound(value: object) -> bool:
    """Tell whether a value may bound a row's attempts: a true integer 1..20."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ATTEMPTS


def require_attempts_bound(value: object, code: str = "evidence.max_attempts.invalid") -> int:
    """Return the value if it may bound a row's attempts, else raise `Invalid(code)`."""
    if not is_attempts_bound(value):
        raise Invalid(code, f"expected an integer 1 to {MOST_ATTEMPTS}")
    assert isinstance(value, int)
    return value


def require_lease_seconds(value: object, code: str = "evidence.lease.invalid") -> float:
    """Return a lease's length in seconds, 0 < s <= 3600; raise `coordinator.time.invalid` where it is no duration."""
    seconds = require_time(value)
    if not 0 < seconds <= LONGEST_LEASE_SECONDS:
        raise Invalid(code, "a lease lasts more than 0 and at most 3600 seconds")
    return seconds


def is_sound(row: Mapping[Any, Any], *, tokens: Iterable[str], hashes: Iterable[str]) -> bool:
    """Tell whether a stored row is one that the machine can have written.

    `tokens` and `hashes` name the columns that identify the row. A row that is not sound is never moved.
    """
    if not all(is_token(row[name]) for name in tokens) or not all(is_hash(row[name]) for name in hashes):
        return False
    attempts, bound = row["attempts"], row["max_attempts"]
    if not is_attempts_bound(bound) or not isinstance(attempts, int) or isinstance(attempts, bool):
        return False
    if not 0 <= attempts <= bound:
        return False
    if not all(is_time(row[name]) for name in ("next_attempt_at", "created_at", "updated_at")):
        return False
    return _is_lease_sound(row) and _is_error_sound(row)


def _is_lease_sound(row: Mapping[Any, Any]) -> bool:
    lease = (row["lease_owner"], row["lease_token"], row["lease_expires_at"])
    if row["status"] != LEASED:
        return row["status"] in STATUSES and lease == (None, None, None)
    owner, token, expires_at = lease
    return is_token(owner) and is_token(token) and is_time(expires_at) and expires_at > row["next_attempt_at"]


def _is_error_sound(row: Mapping[Any, Any]) -> bool:
    code = row["last_error_code"]
    return code is None or (is_error_code(code) and row["status"] in {RETRY_WAIT, FAILED})
