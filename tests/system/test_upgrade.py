"""An upgrade under way: workers of an earlier commit and of the next version, on one database and one Redis.

The earlier commit is the first whose workers go on when a later version has expanded their database; all those since
must get on with it. A contraction in a later revision is the time to name a later commit here.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.system.facts import attempts, facts, is_delivered, published
from tests.system.test_start import ended, lines
from worker.cli.demo_event import demo_submission
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage
from worker.domain.change import parse_change
from worker.flow.audit_database import audit_database
from worker.store.schema_version import migrate

ROOT = Path(__file__).parents[2]
PACKAGES = ("worker", "tasks", "config")
MIGRATIONS = Path("worker", "store", "migrations")
LONG = 120.0

EXPANSION = """
from alembic import op
revision = "9001"
down_revision = "{newest}"
serves_from = "{newest}"
def upgrade():
    op.execute("ALTER TABLE evidence ADD COLUMN later VARCHAR")
    op.execute("ALTER TABLE deliveries ADD COLUMN later VARCHAR")
    op.execute("CREATE TABLE later (name VARCHAR NOT NULL, PRIMARY KEY (name))")
"""
CONTRACTION = """
from alembic import op
revision = "9002"
down_revision = "9001"
serves_from = "9002"
def upgrade():
    op.execute("ALTER TABLE evidence DROP COLUMN later")
"""


def git(*words: str) -> bytes:
    """Return what git answers about this repository."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, *words], capture_output=True, check=False)
    if done.returncode != 0:
        missing("the repository's history", done.stderr.decode().strip())
    return done.stdout


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier commit, which runs in this environment."""
    tree = tmp_path_factory.mktemp("previous")
    commit = git("log", "--diff-filter=A", "--format=%H", "--", "worker/store/schema_version.py").decode().split()[-1]
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *PACKAGES))) as archive:
        archive.extractall(tree, filter="data")
    return tree


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source as it is here, and an expansion that nothing here knows."""
    return next_version(tmp_path_factory.mktemp("later"), {"9001_expand.py": EXPANSION})


def next_version(tree: Path, migrations: Mapping[str, str]) -> Path:
    """Return our source with further migrations."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    versions = tree / MIGRATIONS / "versions"
    newest = max(path.name[:4] for path in versions.glob("[0-9]*.py"))
    for name, text in migrations.items():
        (versions / name).write_text(text.format(newest=newest), encoding="utf-8")
    return tree


def worker_of(fleet: LocalFleet, tree: Path, name: str, *queues: str) -> Child:
    """Start a worker on some queues, with the packages of a tree instead of the installed ones.

    It gets no setting that its version does not know: those are given once the last old worker is gone.
    """
    known = (tree / "config" / "settings.py").read_text(encoding="utf-8")
    unknown = [part for key in fleet.settings if key.lower() not in known for part in ("-u", f"LOCSEAL_{key}")]
    options = ["--without-gossip", "--without-mingle", "--hostname", f"{name}@%h", "--queues", ",".join(queues)]
    command = [sys.executable, "-m", "celery", "-A", "worker.app", "worker", *options]
    return fleet.start(name, ["env", *unknown, f"PYTHONPATH={tree}", *command])


def text_number(sequence: int) -> dict[str, Any]:
    """Return the demo's submission as another text of its source, so that everything is reviewed anew."""
    document = demo_submission()[1]
    localization = document["event"]["localization"]
    other = {**localization, "source_text": localization["source_text"] + f"<!-- {sequence} -->"}
    event = {**document["event"], "event_id": f"text-{sequence}", "source_sequence": sequence, "localization": other}
    jobs = {job.target_locale: job for job in parse_change(event).jobs}
    results = [
        {**one, "job_id": jobs[one["target_locale"]].job_id, "source_sha256": jobs[one["target_locale"]].source_sha256}
        for one in document["results"]
    ]
    return {**document, "event": event, "results": results}


def release(stage: Stage, sequence: int, workers: Sequence[Child]) -> None:
    """Have one event published by some workers."""
    for worker in workers:
        wait_for(lambda worker=worker: "worker.started" in worker.log_text(), worker, "the worker", LONG)  # type: ignore[misc]
    stage.submit(stage.sign(text_number(sequence)))
    wait_for(lambda: facts(stage).delivered == sequence, workers[0], "the delivery", LONG)


def both_worked(first: Child, second: Child) -> None:
    """Wait until one worker has said that it took in, prepared and published, and the other that it collected."""

    def done(worker: Child) -> set[str]:
        return {line["task"] for line in lines(worker, "task.done")}

    wait_for(lambda: done(first) == {"release.submit", "delivery.prepare", "delivery.publish"}, first, "its part", LONG)
    wait_for(lambda: "evidence.collect" in done(second), second, "its part", LONG)


@pytest.mark.timeout(600)
def test_two_versions_release_together(
    fleet: LocalFleet, postgres_stage: Stage, previous: Path, later: Path, tmp_path: Path
) -> None:
    """On the expanded database each does the half of a release that the other did before; a contraction ends that."""
    stage = postgres_stage
    migrate(stage.engine, later / MIGRATIONS)

    old = worker_of(fleet, previous, "old", "intake", "delivery")
    new = worker_of(fleet, later, "new", "evidence", "sweep")
    release(stage, 1, (old, new))
    both_worked(old, new)
    for worker in (old, new):
        worker.stop(LONG)

    old = worker_of(fleet, previous, "old-again", "evidence", "sweep")
    new = worker_of(fleet, later, "new-again", "intake", "delivery")
    release(stage, 2, (old, new))
    both_worked(new, old)

    assert is_delivered(stage)
    assert attempts(stage) == [1] * 54
    assert [posts for _, posts in published(stage)] == [1, 1]
    assert audit_database(stage.engine).violations == []

    newest = next_version(tmp_path / "newest", {"9001_expand.py": EXPANSION, "9002_contract.py": CONTRACTION})
    migrate(stage.engine, newest / MIGRATIONS)
    assert "database.too_new" in ended(worker_of(fleet, previous, "too-late", "sweep"))
