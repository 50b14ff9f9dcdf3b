"""Migrations from nothing give exactly the schema, on both databases, whoever runs them and however often."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, text
from sqlalchemy.engine import URL

from worker.domain.errors import Blocked
from worker.store.engine import is_sqlite, open_engine, reading
from worker.store.schema import SUBMISSION_STATUS, metadata
from worker.store.schema_version import MIGRATIONS, check_schema, is_migrated, migrate, schema_standing

MakeUrl = Callable[[], URL]

# Such an index is compared as text.
pytestmark = pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    """A maker of empty databases of one kind."""
    if request.param == "postgresql":
        found: MakeUrl = request.getfixturevalue("new_postgres_database")
        return found
    numbers = iter(range(10))
    return lambda: URL.create("sqlite", database=str(tmp_path / f"empty-{next(numbers)}" / "locseal.db"))


def plain(sql: str | None) -> str:
    return re.sub(r"\s+", " ", sql or "").replace("( ", "(").replace(" )", ")").strip()


def shape(engine: Engine) -> dict[str, Any]:
    """Return everything about a database's tables, indexes and views that a migration decides."""
    with reading(engine) as conn:
        found = inspect(conn)
        tables = {
            table: {
                "columns": {
                    one["name"]: (repr(one["type"]), one["nullable"], one["default"])
                    for one in found.get_columns(table)
                },
                "order": [one["name"] for one in found.get_columns(table)],
                "primary key": found.get_pk_constraint(table)["constrained_columns"],
                "unique": sorted(
                    (one["name"] or "", one["column_names"]) for one in found.get_unique_constraints(table)
                ),
            }
            for table in found.get_table_names()
            if table != "alembic_version"
        }
        if is_sqlite(engine):
            wanted = "SELECT name, sql FROM sqlite_master WHERE type IN ('index', 'view') AND sql IS NOT NULL"
        else:
            wanted = (
                "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' UNION ALL"
                " SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'"
            )
        others = {name: plain(sql) for name, sql in conn.execute(text(wanted)) if "alembic" not in name}
    return {"tables": tables, "indexes and views": others}


def test_the_migrated_schema_is_the_schema(new_database: MakeUrl) -> None:
    """Tables, columns, kinds, keys, indexes with their conditions, and the view: equal to `store.schema`."""
    migrated, made = open_engine(new_database()), open_engine(new_database())
    try:
        migrate(migrated)
        with made.begin() as conn:
            metadata.create_all(conn)
            conn.execute(text(SUBMISSION_STATUS))
        assert set(shape(migrated)["tables"]) == set(metadata.tables)
        assert "submission_status" in shape(migrated)["indexes and views"]
        assert shape(migrated) == shape(made)
    finally:
        migrated.dispose()
        made.dispose()


def test_a_migrated_database_is_left_alone(new_database: MakeUrl) -> None:
    """The second call asks for the version and writes nothing."""
    engine = open_engine(new_database())
    try:
        assert not is_migrated(engine)
        migrate(engine)
        assert is_migrated(engine)
        asked: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
        migrate(engine)
        assert not [one for one in asked if not one.startswith(("SELECT", "PRAGMA"))]
        assert len(asked) <= 4
    finally:
        engine.dispose()


def test_many_processes_migrate_at_once(new_database: MakeUrl) -> None:
    """Two processes and four threads meet an empty database at the same time; all of them find it migrated after."""
    url = new_database()
    script = "import sys; from worker.store.engine import *; from worker.store.schema_version import *; e = open_engine(sys.argv[1]); migrate(e); e.dispose()"
    address = url.render_as_string(hide_password=False)
    others = [subprocess.Popen([sys.executable, "-c", script, address], stderr=subprocess.PIPE) for _ in range(2)]
    faults: list[BaseException] = []

    def work() -> None:
        mine = open_engine(url)
        try:
            migrate(mine)
            assert is_migrated(mine)
        except BaseException as fault:
            faults.append(fault)
        finally:
            mine.dispose()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    endings = [(other.communicate()[1], other.returncode) for other in others]
    assert faults == []
    assert [code for _, code in endings] == [0, 0], endings


def test_migrations_keep_what_is_stored(engine: Engine) -> None:
    """Migrating a database that is in use changes no row."""
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO sources (site_id, source_id, created_at) VALUES ('s', 'x', 1)"))
    migrate(engine)
    with reading(engine) as conn:
        assert conn.execute(text("SELECT site_id, source_id, created_at FROM sources")).all() == [("s", "x", 1.0)]


def later_version(directory: Path, serves_from: str, change: str) -> Path:
    """Return migrations as a later version has them: ours, and one more that makes a change."""
    found = directory / f"later-{serves_from}"
    shutil.copytree(MIGRATIONS, found)
    newest = max(path.name[:4] for path in (found / "versions").glob("[0-9]*.py"))
    (found / "versions" / "9001_later.py").write_text(
        f'from alembic import op\nrevision = "9001"\ndown_revision = "{newest}"\nserves_from = "{serves_from}"\n'
        f'def upgrade():\n    op.execute("{change}")\n'
    )
    return found


def test_a_database_that_a_later_version_expanded_serves_on(new_database: MakeUrl, tmp_path: Path) -> None:
    """A worker works on it, takes it for migrated, and leaves it as it is."""
    engine = open_engine(new_database())
    try:
        migrate(engine)
        migrate(engine, later_version(tmp_path, "0002", "ALTER TABLE events ADD COLUMN later VARCHAR"))
        expanded = shape(engine)
        assert "later" in expanded["tables"]["events"]["order"]
        assert schema_standing(engine) == "newer"
        assert is_migrated(engine)
        check_schema(engine)
        migrate(engine)
        assert shape(engine) == expanded
    finally:
        engine.dispose()


@pytest.mark.parametrize("word", ["9001", None])
def test_a_database_that_a_later_version_contracted_is_refused(
    new_database: MakeUrl, tmp_path: Path, word: str | None
) -> None:
    """Neither to work on nor to migrate, with a code of its own; also where the database does not say what it serves."""
    engine = open_engine(new_database())
    try:
        migrate(engine, later_version(tmp_path, "9001", "DROP TABLE sweeps"))
        if word is None:
            with engine.begin() as conn:
                conn.execute(text("DELETE FROM installation WHERE name = 'serves_from'"))
        assert not is_migrated(engine)
        with pytest.raises(Blocked) as on_check:
            check_schema(engine)
        with pytest.raises(Blocked) as on_migrate:
            migrate(engine)
        assert (on_check.value.code, on_migrate.value.code) == ("database.too_new", "database.too_new")
        assert "sweeps" not in shape(engine)["tables"]
    finally:
        engine.dispose()


def test_an_older_database_is_refused_until_it_is_upgraded(new_database: MakeUrl, tmp_path: Path) -> None:
    """A worker of a later version says so and changes nothing; the upgrade then brings it there."""
    engine = open_engine(new_database())
    older = tmp_path / "older"
    shutil.copytree(MIGRATIONS, older)
    head = max((older / "versions").glob("[0-9]*.py"))
    head.unlink()
    first = older / "versions" / "0001_initial.py"
    first.write_text(first.read_text() + '\nserves_from = "0001"\n')
    try:
        migrate(engine, older)
        before = shape(engine)
        with pytest.raises(Blocked) as refusal:
            check_schema(engine)
        assert refusal.value.code == "database.unmigrated"
        assert shape(engine) == before
        migrate(engine)
        check_schema(engine)
        assert shape(engine) != before
    finally:
        engine.dispose()


def test_every_migration_says_which_versions_it_serves() -> None:
    """Each one since the second names itself or an earlier one, and never an earlier one than the migration before."""
    said = {}
    for path in sorted((MIGRATIONS / "versions").glob("[0-9]*.py")):
        own = path.name[:4]
        found = re.findall(r'^serves_from = "(\d{4})"', path.read_text(encoding="utf-8"), re.MULTILINE)
        if own != "0001":
            assert len(found) == 1, path.name
            said[own] = found[0]
    assert said
    assert all(served <= own for own, served in said.items())
    assert list(said.values()) == sorted(said.values())
