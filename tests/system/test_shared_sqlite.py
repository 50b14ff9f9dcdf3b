"""Two worker processes on one SQLite file, and users beside them: nobody ever meets "database is locked"."""

from __future__ import annotations

import subprocess

from tests.builders import change_event, results_for, submission
from tests.system.facts import attempts, facts, published, started
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage
from worker.domain.hold import Pause
from worker.store.engine import reading, writing
from worker.store.pauses import pause, pauses_in_force, resume

LOCALES = ["de", "es", "fr", "it", "ja"]
EVENTS = 20
SECONDS = 90.0


def locseal(fleet: LocalFleet, *arguments: str) -> str:
    """Run a command as a user does, and return what it printed; it must be done."""
    found = subprocess.run(
        [*LOCSEAL, *arguments],
        env=fleet.environment(),
        cwd=fleet.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def write_and_read(stage: Stage) -> None:
    """Change something that no work depends on, and look, as commands of operators do."""
    held = Pause(scope="site", name="another-site", owner="ops", reason="contention", until_at=None)
    writing(stage.engine, lambda conn: pause(conn, held, now=None))
    with reading(stage.engine) as conn:
        assert [one.name for one in pauses_in_force(conn, now=None)] == ["another-site"]
    assert writing(stage.engine, lambda conn: resume(conn, "site", "another-site", now=None))


def test_two_processes_share_one_sqlite_file(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """20 events of 5 locales are taken in, collected and sent by two processes while users write and read all the time.

    Every locale is asked once, every event published once, each command is done at its first try, and no log speaks of
    a busy or locked database.
    """
    stage = sqlite_stage
    workers = [started(fleet, name, CONCURRENT_CALLS="8", BATCH_ROWS="8") for name in ("first", "second")]
    beat = fleet.start_beat()
    for number in range(EVENTS):
        event = change_event(
            site_id=SITE_ID, event_id=f"event-{number}", source_id=f"source-{number}", target_locales=LOCALES
        )
        stage.submit(stage.sign(submission(event, results_for(event))))
    commands = [["releases", "list", "--json"], ["audit", "--json"]]
    said: list[str] = []

    def is_done() -> bool:
        write_and_read(stage)
        if len(said) < len(commands):
            said.append(locseal(fleet, *commands[len(said)]))
        return len(said) == len(commands) and facts(stage).delivered == EVENTS

    wait_for(is_done, None, "the deliveries", SECONDS)
    seen = facts(stage)
    assert (seen.approvals, seen.deliveries, seen.rejections) == (5 * EVENTS, EVENTS, 0)
    assert attempts(stage) == [1] * (5 * EVENTS)
    assert [posts for _, posts in published(stage)] == [1] * EVENTS
    for child in (*workers, beat):
        log = child.log_text()
        assert child.is_running()
        for word in ("locked", "database.busy", "database.unavailable", "SQLITE_BUSY"):
            assert word not in log, f"{child.name}: {word}"
    assert all('"task": "release.submit"' in worker.log_text() for worker in workers)  # both worked
