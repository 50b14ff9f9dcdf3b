"""Wrong arguments, damaged rows, altered columns: each has its stable code, and nothing is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL

from tests.store.rows import HASH, contents, damage, key, refused, row
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceClaim
from worker.store.engine import is_sqlite, open_engine
from worker.store.evidence import EvidenceStore
from worker.store.schema_version import migrate

NOT_TOKENS = ["", "a\n", "\na", "a b", "a/b", "ä", "x" * 257, None, 1, True, b"a", ["a"], "a\x00", "\ud800", object()]
NOT_HASHES = ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", None, 1, b"a" * 64]
NOT_TIMES = [-1, -0.001, float("nan"), float("inf"), float("-inf"), True, False, "1", b"1", 10**400, [], 1j]
NOT_TIMES += [Decimal(1), Fraction(1)]


@pytest.fixture
def store(engine: Engine) -> EvidenceStore:
    return EvidenceStore(engine)


def claimed(store: EvidenceStore) -> EvidenceClaim:
    claim = store.claim(key(), worker_id="w-1", now=100.0, lease_seconds=10, max_attempts=3)
    assert claim is not None
    return claim


# --- arguments ------------------------------------------------------------------------------------------------------

CLAIM_ORDER: list[tuple[str, str, list[Any]]] = [
    ("request_id", "evidence.request_id.invalid", NOT_TOKENS),
    ("event_id", "coordinator.event_id.invalid", NOT_TOKENS),
    ("plan_id", "evidence.plan_id.invalid", NOT_TOKENS),
    ("job_id", "evidence.job_id.invalid", NOT_TOKENS),
    ("evidence_revision", "coordinator.evidence_revision.invalid", NOT_TOKENS),
    ("result_sha256", "evidence.result_sha256.invalid", NOT_HASHES),
    ("worker_id", "evidence.worker_id.invalid", NOT_TOKENS),
    ("now", "coordinator.time.invalid", NOT_TIMES),
    ("lease_seconds", "coordinator.time.invalid", [*NOT_TIMES, None]),
    ("lease_seconds", "evidence.lease.invalid", [0, 0.0, -0.0, 3600.0000001, 3601, 1e300]),
    ("max_attempts", "evidence.max_attempts.invalid", [0, -1, 21, 1.0, 3.0, True, "3", None, float("nan"), 10**400]),
]


def ask(store: EvidenceStore, **changed: Any) -> Any:
    """Claim with some arguments changed; those of the key by their own names."""
    names = ("request_id", "event_id", "plan_id", "job_id", "evidence_revision", "result_sha256")
    asked = key(**{name: value for name, value in changed.items() if name in names})
    rest = {name: value for name, value in changed.items() if name not in names}
    return store.claim(asked, **{"worker_id": "w", "now": 100.0, "lease_seconds": 10, "max_attempts": 3, **rest})


@pytest.mark.parametrize(("name", "code", "wrong"), CLAIM_ORDER, ids=[f"{n}-{c}" for n, c, _ in CLAIM_ORDER])
def test_each_argument_of_a_claim_has_its_code(
    store: EvidenceStore, engine: Engine, name: str, code: str, wrong: list[Any]
) -> None:
    """Whatever is passed, the end is the argument's stable code and nothing else."""
    for value in wrong:
        with refused(engine, code):
            ask(store, **{name: value})


def test_the_arguments_of_a_claim_are_judged_in_order(store: EvidenceStore, engine: Engine) -> None:
    """Of several wrong arguments the first in the contract's order gives the code."""
    wrong: dict[str, Any] = {}
    for name, code, values in reversed(CLAIM_ORDER):
        wrong[name] = values[0]
        with refused(engine, code):
            ask(store, **wrong)


def test_whole_numbers_and_bounds_are_right_arguments(store: EvidenceStore) -> None:
    """An int is a number, the bounds belong to the range, and 256 characters are a token."""
    asked = ask(store, now=0, lease_seconds=3600, max_attempts=1, worker_id="w" * 256, request_id="A-z_0.9:" * 32)
    assert (asked.lease_expires_at, asked.attempt, asked.max_attempts) == (3600.0, 1, 1)
    assert ask(store, request_id="x", job_id="j-2", lease_seconds=5e-324, now=0.0, max_attempts=20).max_attempts == 20


def test_a_lease_that_no_float_can_hold_is_refused(store: EvidenceStore, engine: Engine) -> None:
    """A lease that would end at the very time it begins would be a damaged row."""
    with refused(engine, "evidence.lease.invalid"):
        ask(store, now=1e18, lease_seconds=10)
    with refused(engine, "evidence.lease.invalid"):
        ask(store, now=100.0, lease_seconds=1e-300)
    with refused(engine, "evidence.lease.invalid"):
        ask(store, now=None, lease_seconds=1e-9)


def test_only_a_key_is_claimed(store: EvidenceStore, engine: Engine) -> None:
    """Anything but an EvidenceKey is refused before anything else is looked at."""
    for wrong in (None, "evidence-1", {}, object(), claimed(store)):
        with refused(engine, "evidence.request.invalid"):
            store.claim(wrong, worker_id="", now=-1, lease_seconds=0, max_attempts=0)  # type: ignore[arg-type]


CLAIM_FIELDS: list[tuple[str, str, list[Any]]] = [
    ("request_id", "evidence.request_id.invalid", NOT_TOKENS),
    ("lease_owner", "evidence.worker_id.invalid", NOT_TOKENS),
    ("lease_token", "evidence.lease_token.invalid", NOT_TOKENS),
    ("lease_expires_at", "coordinator.time.invalid", [*NOT_TIMES, None]),
    ("max_attempts", "evidence.max_attempts.invalid", [0, 21, True, 1.0, None]),
    ("attempt", "evidence.claim.invalid", [0, 21, True, 1.0, None]),
]


def settles(store: EvidenceStore, claim: Any, **changed: Any) -> list[Callable[[], None]]:
    """Return the three ways to settle a claim, with arguments changed where they have them."""
    now = {"now": changed.get("now", 101.0)}
    code = changed.get("code", "evidence.unavailable")
    return [
        lambda: store.succeed(claim, **now),
        lambda: store.fail(claim, code, retryable=True, **now),
        lambda: store.release(claim, code, not_before=200.0, **now),
    ]


@pytest.mark.parametrize(("name", "code", "wrong"), CLAIM_FIELDS, ids=[name for name, _, _ in CLAIM_FIELDS])
def test_each_field_of_a_claim_has_its_code(
    store: EvidenceStore, engine: Engine, name: str, code: str, wrong: list[Any]
) -> None:
    """A claim that was tampered with settles nothing."""
    claim = claimed(store)
    for value in wrong:
        for settle in settles(store, replace(claim, **{name: value})):
            with refused(engine, code):
                settle()


def test_only_a_claim_is_settled(store: EvidenceStore, engine: Engine) -> None:
    """Anything but an EvidenceClaim is refused first."""
    claimed(store)
    for wrong in (None, "evidence-1", {}, key()):
        for settle in settles(store, wrong, now=-1, code="No code"):
            with refused(engine, "evidence.claim.invalid"):
                settle()


def test_the_time_of_a_settle_is_judged(store: EvidenceStore, engine: Engine) -> None:
    """NaN, infinity, bools, texts and times before the epoch are no times."""
    claim = claimed(store)
    for wrong in NOT_TIMES:
        for settle in settles(store, claim, now=wrong):
            with refused(engine, "coordinator.time.invalid"):
                settle()
        with refused(engine, "coordinator.time.invalid"):
            store.fail(claim, "evidence.unavailable", retryable=True, not_before=wrong, now=101.0)
        with refused(engine, "coordinator.time.invalid"):
            store.fail(claim, "evidence.unavailable", retryable=False, not_before=wrong, now=101.0)
    for wrong in [*NOT_TIMES, None]:
        with refused(engine, "coordinator.time.invalid"):
            store.release(claim, "worker.drain", not_before=wrong, now=101.0)  # type: ignore[arg-type]


def test_a_failure_needs_a_stable_code_and_a_real_boolean(store: EvidenceStore, engine: Engine) -> None:
    """The code matches the pattern as a whole, and only True and False say whether it is retryable."""
    claim = claimed(store)
    wrong_codes = ["", "A", "1a", ".a", "a b", "a\n", "ä", "a" * 129, "a:b", None, 1, b"a"]
    for code in wrong_codes:
        with refused(engine, "evidence.failure.invalid"):
            store.fail(claim, code, retryable=True, not_before=-1.0, now=-1.0)  # type: ignore[arg-type]
        with refused(engine, "evidence.failure.invalid"):
            store.release(claim, code, not_before=-1.0, now=-1.0)  # type: ignore[arg-type]
    for retryable in (0, 1, None, "true", 1.0):
        with refused(engine, "evidence.failure.invalid"):
            store.fail(claim, "evidence.unavailable", retryable=retryable, now=101.0)  # type: ignore[arg-type]
    store.fail(claim, "a" * 128, retryable=True, now=101.0)
    assert row(engine)["last_error_code"] == "a" * 128


def test_the_arguments_of_an_approval_are_judged_in_order(store: EvidenceStore, engine: Engine) -> None:
    """Event, plan, job, result hash, time: the first that is wrong gives the code."""
    claimed(store)
    right: list[Any] = ["event-1", "plan-1", "job-1", HASH]
    codes = [
        ("coordinator.event_id.invalid", NOT_TOKENS),
        ("evidence.plan_id.invalid", NOT_TOKENS),
        ("evidence.job_id.invalid", NOT_TOKENS),
        ("evidence.result_sha256.invalid", NOT_HASHES),
    ]
    for place, (code, wrong) in enumerate(codes):
        for value in wrong:
            arguments = [*right[:place], value, *([None] * (3 - place))]
            with refused(engine, code):
                store.mark_approved(*arguments, now=-1.0)
    for value in NOT_TIMES:
        with refused(engine, "coordinator.time.invalid"):
            store.mark_approved(*right, now=value)


def test_statuses_need_an_event(store: EvidenceStore, engine: Engine) -> None:
    """What is no token is no event id."""
    for wrong in NOT_TOKENS:
        with refused(engine, "coordinator.event_id.invalid"):
            store.statuses(wrong)  # type: ignore[arg-type]


# --- damaged rows ---------------------------------------------------------------------------------------------------

DAMAGE_BOTH = [
    "event_id = ''",
    "event_id = 'a b'",
    "plan_id = 'a/b'",
    "job_id = 'ü'",
    "evidence_revision = ''",
    f"result_sha256 = '{'A' * 64}'",
    "result_sha256 = 'abc'",
    "status = 'done'",
    "status = ''",
    "max_attempts = 0",
    "max_attempts = 21",
    "attempts = -1",
    "attempts = 4",
    "next_attempt_at = -1",
    "created_at = -0.5",
    "updated_at = -1e300",
    "lease_owner = NULL",
    "lease_owner = 'a b'",
    "lease_token = NULL",
    "lease_token = ''",
    "lease_expires_at = NULL",
    "lease_expires_at = 100.0",
    "lease_expires_at = 99.0",
    "last_error_code = 'evidence.unavailable'",
    "status = 'pending'",
    "status = 'retry_wait'",
    "status = 'succeeded'",
    "status = 'failed'",
]
FREE = "lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL"
DAMAGE_BOTH += [
    f"status = 'pending', last_error_code = 'a', {FREE}",
    f"status = 'succeeded', last_error_code = 'a', {FREE}",
    f"status = 'retry_wait', last_error_code = 'A', {FREE}",
    f"status = 'failed', last_error_code = '', {FREE}",
    f"status = 'failed', last_error_code = 'a b', {FREE}",
    f"status = 'retry_wait', last_error_code = '{'a' * 129}', {FREE}",
]
DAMAGE_POSTGRES = [
    f"{name} = '{value}'"
    for name in ("next_attempt_at", "created_at", "updated_at", "lease_expires_at")
    for value in ("NaN", "Infinity")
]
DAMAGE_SQLITE = [
    "attempts = 1.5",
    "attempts = 'one'",
    "attempts = x'01'",
    "max_attempts = 'x'",
    "max_attempts = 3.5",
    "next_attempt_at = 'soon'",
    "created_at = x'00'",
    "updated_at = 9e999",
    "lease_expires_at = 9e999",
    "lease_expires_at = 'later'",
    "lease_token = x'6161'",
    "event_id = x'6576656e742d31'",
    "last_error_code = x'61'",
]


def every_operation(store: EvidenceStore, claim: EvidenceClaim) -> list[Callable[[], object]]:
    """Return every operation that reads the row of a claim."""
    other = replace(claim, lease_owner="w-9")
    return [
        lambda: store.claim(key(), worker_id="w", now=500.0, lease_seconds=10, max_attempts=3),
        lambda: store.claim(key(plan_id="other"), worker_id="w", now=500.0, lease_seconds=10, max_attempts=9),
        *settles(store, claim),
        *settles(store, other, now=500.0),
    ]


def test_a_damaged_row_stops_the_operation_and_is_left_as_it_is(store: EvidenceStore, engine: Engine) -> None:
    """Claims and settles refuse it before they judge binding, policy, owner or time; success is no exception."""
    claim = claimed(store)
    pristine = row(engine)
    assignments = DAMAGE_BOTH + (DAMAGE_SQLITE if is_sqlite(engine) else DAMAGE_POSTGRES)
    for assignment in assignments:
        damage(engine, assignment)
        for operation in every_operation(store, claim):
            with refused(engine, "evidence.state.invalid"):
                operation()
        restore(engine, pristine)
    store.succeed(claim, now=101.0)


def test_a_damaged_row_stops_what_reads_its_event(store: EvidenceStore, engine: Engine) -> None:
    """mark_approved changes none of the job's rows, and statuses shows none of the event's, when one is damaged."""
    claimed(store)
    sound = key("1", request_id="evidence-2", evidence_revision="r2")
    assert store.claim(sound, worker_id="w", now=100.0, lease_seconds=10, max_attempts=3) is not None
    pristine = row(engine)
    assignments = DAMAGE_BOTH + (DAMAGE_SQLITE if is_sqlite(engine) else DAMAGE_POSTGRES)
    for assignment in assignments:
        if assignment.startswith(("event_id", "plan_id", "job_id")):
            continue  # such a row is found by nobody who asks for the event
        damage(engine, assignment)
        with refused(engine, "evidence.state.invalid"):
            store.mark_approved("event-1", "plan-1", "job-1", HASH, now=101.0)
        with refused(engine, "evidence.state.invalid"):  # before the binding
            store.mark_approved("event-1", "plan-1", "job-1", "c" * 64, now=101.0)
        with refused(engine, "evidence.state.invalid"):
            store.statuses("event-1")
        restore(engine, pristine)
    assert len(store.statuses("event-1")) == 2


def test_a_damaged_succeeded_row_is_no_no_op(store: EvidenceStore, engine: Engine) -> None:
    """A settle that would be a no-op still judges the row that it reads."""
    claim = claimed(store)
    store.succeed(claim, now=101.0)
    damage(engine, "attempts = 7")
    for settle in settles(store, claim)[:2]:
        with refused(engine, "evidence.state.invalid"):
            settle()


def restore(engine: Engine, pristine: dict[str, Any]) -> None:
    """Put a damaged row back as it was."""
    names = [name for name in pristine if name != "request_id"]
    with engine.begin() as conn:
        conn.execute(
            text(
                f"UPDATE evidence SET {', '.join(f'{name} = :{name}' for name in names)} WHERE request_id = :request_id"
            ),
            pristine,
        )


# --- altered columns ------------------------------------------------------------------------------------------------

ALTERATIONS = [
    "ALTER TABLE evidence ADD COLUMN extra VARCHAR",
    "ALTER TABLE evidence RENAME COLUMN lease_token TO token",
    "ALTER TABLE evidence DROP COLUMN last_error_code",
    "ALTER TABLE evidence RENAME TO evidence_old",
]
ALTERATIONS_POSTGRES = [
    "ALTER TABLE evidence ALTER COLUMN attempts TYPE VARCHAR",
    "ALTER TABLE evidence ALTER COLUMN created_at TYPE NUMERIC",
    "ALTER TABLE evidence ALTER COLUMN request_id TYPE VARCHAR(80)",
    "ALTER TABLE evidence ALTER COLUMN lease_owner SET NOT NULL",
]


@pytest.fixture
def throwaway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Engine]]:
    """A maker of databases whose schema may be spoilt."""
    made: list[Engine] = []

    def make(dialect: str) -> Engine:
        if dialect == "sqlite":
            url: str | URL = f"sqlite:///{tmp_path}/spoilt-{len(made)}/locseal.db"
        else:
            url = request.getfixturevalue("new_postgres_database")()
        made.append(open_engine(url))
        migrate(made[-1])
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_a_database_with_other_columns_is_refused(throwaway: Callable[[str], Engine], dialect: str) -> None:
    """Every operation of a store opened on it says so; a change of a column's kind counts where kinds are enforced."""
    alterations = ALTERATIONS + (ALTERATIONS_POSTGRES if dialect == "postgresql" else [])
    claim = EvidenceClaim(
        request_id="evidence-1",
        lease_owner="w",
        lease_token="t",
        lease_expires_at=10.0,
        attempt=1,
        max_attempts=3,
    )
    for alteration in alterations:
        altered = throwaway(dialect)
        with altered.begin() as conn:
            conn.execute(text(alteration))
        store = EvidenceStore(altered)
        operations: list[Callable[[], object]] = [
            lambda store=store: store.claim(key(), worker_id="w", now=1.0, lease_seconds=10, max_attempts=3),
            *settles(store, claim),
            lambda store=store: store.mark_approved("event-1", "plan-1", "job-1", HASH, now=1.0),
            lambda store=store: store.statuses("event-1"),
        ]
        for operation in operations:
            for _ in range(2):  # also when asked again
                with pytest.raises(Blocked) as caught:
                    operation()
                assert (caught.value.code, caught.value.retryable) == ("evidence.state.schema_altered", False)


def test_the_columns_are_looked_at_once_per_store(store: EvidenceStore, engine: Engine) -> None:
    """The second operation of a store asks the database nothing but its own questions."""
    store.statuses("event-1")
    asked: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        store.statuses("event-1")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(asked) == 1


def test_a_database_that_cannot_answer_is_unavailable(tmp_path: Path) -> None:
    """A storage fault ends in one retryable code, and says nothing of what was to be written."""
    engine = open_engine(f"sqlite:///{tmp_path}/state/locseal.db")
    migrate(engine)
    store = EvidenceStore(engine)
    claimed(store)
    engine.dispose()
    for file in (tmp_path / "state").iterdir():
        file.unlink()
    with pytest.raises(Blocked) as caught:
        store.claim(key(), worker_id="w", now=1.0, lease_seconds=10, max_attempts=3)
    assert (caught.value.code, caught.value.retryable) == ("database.unavailable", True)
    assert "evidence-1" not in str(caught.value)
    assert list((tmp_path / "state").iterdir()) == []


LOSE_SQLITE = ["CREATE TRIGGER lose BEFORE UPDATE ON evidence BEGIN SELECT RAISE(IGNORE); END"]
LOSE_POSTGRES = [
    "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    "CREATE TRIGGER lose BEFORE UPDATE ON evidence FOR EACH ROW EXECUTE FUNCTION lose()",
]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_an_update_that_meets_no_row_is_a_lost_race(throwaway: Callable[[str], Engine], dialect: str) -> None:
    """The row count is the answer: a claim is lost and may be repeated, a settle is lost for good."""
    engine = throwaway(dialect)
    store = EvidenceStore(engine)
    claim = claimed(store)
    waiting = store.claim(key("2"), worker_id="w-1", now=100.0, lease_seconds=10, max_attempts=3)
    assert waiting is not None
    store.release(waiting, "worker.drain", not_before=100.0, now=100.0)
    with engine.begin() as conn:
        for statement in LOSE_SQLITE if dialect == "sqlite" else LOSE_POSTGRES:
            conn.execute(text(statement))
    with refused(engine, "evidence.claim.lost", retryable=True):
        store.claim(key("2"), worker_id="w-1", now=101.0, lease_seconds=10, max_attempts=3)
    for settle in settles(store, claim):
        with refused(engine, "evidence.finish_lost"):
            settle()


# --- at once --------------------------------------------------------------------------------------------------------


def test_many_workers_insert_and_claim_one_row(store: EvidenceStore, engine: Engine) -> None:
    """Of eight workers that claim the same new row at once, one gets it; the others get nothing, or a stable refusal."""
    start = threading.Barrier(8)
    outcomes: list[object] = []

    def work(number: int) -> None:
        start.wait()
        try:
            outcomes.append(store.claim(key(), worker_id=f"w-{number}", now=100.0, lease_seconds=10, max_attempts=3))
        except Blocked as refusal:
            outcomes.append(refusal.code)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [outcome for outcome in outcomes if isinstance(outcome, EvidenceClaim)]
    assert len(outcomes) == 8
    assert len(won) == 1
    assert {outcome for outcome in outcomes if not isinstance(outcome, EvidenceClaim)} <= {None, "evidence.claim.lost"}
    assert row(engine)["lease_token"] == won[0].lease_token
    assert row(engine)["attempts"] == 1


def test_many_request_ids_claim_one_binding(store: EvidenceStore, engine: Engine) -> None:
    """Of eight request ids for one new binding, one becomes its row; the others are refused by their own code."""
    start = threading.Barrier(8)
    outcomes: list[object] = []

    def work(number: int) -> None:
        start.wait()
        try:
            mine = key("1", request_id=f"evidence-{number}")
            claim = store.claim(mine, worker_id="w", now=100.0, lease_seconds=10, max_attempts=3)
            outcomes.append(claim.request_id if claim else None)
        except Blocked as refusal:
            outcomes.append(refusal.code)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("evidence.state.binding_mismatch") == 7
    assert len(contents(engine)["evidence"]) == 1
