"""The databases of the tests: real files, a real server, never a twin written by hand.

`engine` runs a test on both databases; `sqlite_engine` and `postgres_engine` on one. All are migrated and empty. A
missing PostgreSQL skips its half on a laptop and fails it where CI=true.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError

from worker.store.engine import open_engine
from worker.store.schema import metadata
from worker.store.schema_version import migrate

DEFAULT_POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"


def missing(service: str, reason: str) -> None:
    """Skip a test whose service is not there; fail it in CI, where it has to be."""
    sentence = f"{service} is not reachable: {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file that each test gets a copy of."""
    path = tmp_path_factory.mktemp("sqlite-template") / "locseal.db"
    engine = open_engine(f"sqlite:///{path}")
    migrate(engine)
    engine.dispose()  # the last connection writes the log back into the file
    return path


@pytest.fixture
def sqlite_engine(tmp_path: Path, sqlite_template: Path) -> Iterator[Engine]:
    """A migrated, empty SQLite file of this test's own."""
    path = tmp_path / "state" / "locseal.db"
    path.parent.mkdir(mode=0o700)
    shutil.copyfile(sqlite_template, path)
    path.chmod(0o600)
    engine = open_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def new_postgres_database() -> Iterator[Callable[[], URL]]:
    """A maker of empty databases on the test server; they are dropped when the session ends."""
    server = make_url(os.environ.get("LOCSEAL_TEST_POSTGRES", DEFAULT_POSTGRES))
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    made: list[str] = []

    def run(statement: str) -> None:
        try:
            with admin.connect() as conn:
                conn.execute(text(statement))
        except OperationalError as fault:
            missing("PostgreSQL", type(fault.orig).__name__)

    def make() -> URL:
        name = f"locseal_test_{os.getpid()}_{secrets.token_hex(4)}"
        run(f'CREATE DATABASE "{name}"')
        made.append(name)
        run(f'ALTER DATABASE "{name}" SET synchronous_commit = off')  # only tests may lose their last commits
        return server.set(database=name)

    yield make
    for name in made:
        run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    admin.dispose()


@pytest.fixture(scope="session")
def postgres_database(new_postgres_database: Callable[[], URL]) -> Iterator[Engine]:
    """One migrated database that the tests of this session share, one after the other."""
    engine = open_engine(new_postgres_database(), pool_size=20)
    try:
        migrate(engine)
        yield engine
    finally:
        engine.dispose()


@pytest.fixture
def postgres_engine(postgres_database: Engine) -> Engine:
    """The session's PostgreSQL database, emptied. DELETE, because truncating small tables is ten times slower."""
    with postgres_database.begin() as conn:
        conn.execute(text("; ".join(f"DELETE FROM {table.name}" for table in metadata.sorted_tables)))
    return postgres_database


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each database in turn: what holds on one must hold on the other."""
    name = "sqlite_engine" if request.param == "sqlite" else "postgres_engine"
    found: Engine = request.getfixturevalue(name)
    return found
