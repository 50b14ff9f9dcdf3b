"""The border of every task: bad messages are recorded, no exception gets out, intake alone waits."""

from __future__ import annotations

import pytest
from celery.exceptions import Reject
from sqlalchemy import Engine, text

from tasks.delivery import prepare, publish
from tasks.evidence import collect
from tasks.intake import submit, withdraw
from tasks.sweep import sweep
from tests.builders import Keyring, change_event, results_for, signed_submission
from worker.app import app, vitals
from worker.domain.messages import WIRE


def rejections(engine: Engine) -> list[tuple[str, str, str]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(text("SELECT message, code, path FROM rejections"))]


def count(engine: Engine, table: str) -> int:
    with engine.connect() as conn:
        return int(conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def drop_database(engine: Engine) -> None:
    """Make every statement of the tasks fail, as a database that is away does."""
    with engine.begin() as conn:
        for table in ("rejections", "submissions"):
            conn.execute(text(f"ALTER TABLE {table} RENAME TO {table}_away"))


def test_tasks_are_the_wire_and_only_intake_acknowledges_late() -> None:
    """The tasks have the names of the wire; of them only intake is acknowledged after its commit."""
    tasks = {task.name: task for task in (submit, withdraw, collect, prepare, publish, sweep)}
    assert set(tasks) == set(WIRE) - {"evidence.submit", "run.step"}
    assert {name for name, task in tasks.items() if task.acks_late} == {"release.submit", "release.withdraw"}


def test_a_submission_is_taken_in(here: Engine, keyring: Keyring) -> None:
    """A signed submission is committed with its event and evidence rows; the task returns nothing."""
    event = change_event()
    assert submit(version=1, submission=signed_submission(keyring, event, results_for(event))) is None
    assert [count(here, table) for table in ("submissions", "events", "evidence", "rejections")] == [1, 1, 2, 0]


@pytest.mark.parametrize(
    ("task", "fields", "expected"),
    [
        (submit, {"version": 2, "submission": "{}"}, ("release.submit", "message.version.unknown", "version")),
        (submit, {"version": 1, "submission": {}}, ("release.submit", "submission.invalid", "submission")),
        (collect, {"version": 1, "event_id": 5}, ("evidence.collect", "message.field.invalid", "event_id")),
        (sweep, {"version": 1, "now": 5}, ("fleet.sweep", "message.field.unknown", "now")),
    ],
)
def test_a_bad_message_is_recorded(here: Engine, task: object, fields: dict[str, object], expected: object) -> None:
    """A bad message of any kind leaves one rejection with its code and path, and nothing else."""
    assert task(**fields) is None  # type: ignore[operator]
    assert rejections(here) == [expected]
    assert [count(here, table) for table in ("submissions", "events", "evidence", "deliveries")] == [0, 0, 0, 0]


def test_positional_arguments_are_recorded(here: Engine) -> None:
    """Positional arguments are refused, however well they would fit."""
    assert collect("event-1") is None
    assert rejections(here) == [("evidence.collect", "message.arguments.positional", "")]


@pytest.mark.parametrize("task", [collect, prepare, publish])
def test_a_wake_for_nothing_ends_quietly(here: Engine, task: object) -> None:
    """A wake that names an unknown event changes nothing and raises nothing."""
    assert task(version=1, event_id="no-such-event") is None  # type: ignore[operator]
    assert [count(here, table) for table in ("events", "evidence", "deliveries", "rejections")] == [0, 0, 0, 0]


@pytest.mark.parametrize(("queues", "prepared"), [(["evidence"], 0), (["evidence", "delivery"], 1)])
def test_who_takes_deliveries_prepares_what_it_made_ready(
    here: Engine, keyring: Keyring, monkeypatch: pytest.MonkeyPatch, queues: list[str], prepared: int
) -> None:
    """A worker that was given the queue of deliveries stores the delivery in place; another leaves it to a message."""
    monkeypatch.setenv("LOCSEAL_PROVIDERS", '{"default": {"kind": "local"}}')
    event = change_event()
    submit(version=1, submission=signed_submission(keyring, event, results_for(event)))
    chosen = app.amqp.queues._consume_from  # Celery has no way to ask for all queues again
    app.amqp.queues.select(queues)
    try:
        collect(version=1, event_id="event-1")
    finally:
        app.amqp.queues._consume_from = chosen
    assert [count(here, table) for table in ("approvals", "deliveries")] == [2, prepared]


def test_intake_is_handed_back_when_the_database_stays_away(here: Engine, keyring: Keyring) -> None:
    """While the database is away intake waits, and after the bound its message goes back to the queue."""
    event = change_event()
    signed = signed_submission(keyring, event, results_for(event))
    drop_database(here)
    with pytest.raises(Reject) as handed_back:
        submit(version=1, submission=signed)
    assert handed_back.value.requeue is True
    assert count(here, "submissions_away") == 0


def test_a_drain_ends_the_wait(here: Engine, keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to stop hands waiting intake back at once, whatever the pause."""
    monkeypatch.setenv("LOCSEAL_INTAKE_PAUSE_SECONDS", "60")
    monkeypatch.setenv("LOCSEAL_INTAKE_PAUSE_MAX_SECONDS", "60")
    monkeypatch.setenv("LOCSEAL_INTAKE_WAIT_SECONDS", "200")
    event = change_event()
    signed = signed_submission(keyring, event, results_for(event))
    drop_database(here)
    vitals.begin_drain(seconds=60)
    with pytest.raises(Reject) as handed_back:
        submit(version=1, submission=signed)
    assert handed_back.value.requeue is True


@pytest.mark.parametrize("task", [collect, prepare, publish])
def test_other_tasks_end_when_the_database_is_away(here: Engine, task: object) -> None:
    """A task whose work the database will find again ends without an exception when it cannot do it now."""
    with here.begin() as conn:
        for table in ("events", "evidence", "deliveries"):
            conn.execute(text(f"ALTER TABLE {table} RENAME TO {table}_away"))
    assert task(version=1, event_id="event-1") is None  # type: ignore[operator]
