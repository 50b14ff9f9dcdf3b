"""What a step gets in tests: a real database (each of both), keys of its own, local reviewers, a queue that records.

`services` is frozen; a test that needs something else says `replace(services, ...)`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select
from sqlalchemy.engine import URL

from tests.audited import story_services, tell
from tests.builders import NOW, Keyring
from tests.fakes import Checkpoints, FixedPolicies, RecordingQueue
from tests.flow.scene import Scene
from worker.adapters.calls import CallLoop
from worker.adapters.providers.local import LocalProvider
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.canonical import canonical_bytes
from worker.domain.receipt import PURPOSES
from worker.domain.signature import sign_detached
from worker.flow.services import Cms, Deadlines, Services
from worker.store.engine import open_engine, reading
from worker.store.schema import metadata
from worker.store.schema_version import migrate


@pytest.fixture
def keys() -> Keyring:
    """Fresh keys for `site-1` and `site-2`, for this test to retire or revoke."""
    return Keyring(sites=("site-1", "site-2"), providers=("reviewer", "quality-lab", "local-second-model"))


@pytest.fixture
def queue() -> RecordingQueue:
    """The queue of `services`."""
    return RecordingQueue()


@pytest.fixture
def policies() -> FixedPolicies:
    """The policies of `services`."""
    return FixedPolicies()


@pytest.fixture
def checkpoints() -> Checkpoints:
    """The checkpoints of `services`; set `crash_at` to die there."""
    return Checkpoints()


@pytest.fixture
def calls() -> Iterator[CallLoop]:
    """A real call loop that ends with the test."""
    loop = CallLoop()
    yield loop
    loop.close()


def no_cms(site_id: str) -> Cms:
    """Refuse to know a CMS; tests of deliveries bring one."""
    raise AssertionError("this test has no CMS")


@pytest.fixture
def services(
    engine: Engine,
    keys: Keyring,
    queue: RecordingQueue,
    policies: FixedPolicies,
    checkpoints: Checkpoints,
    calls: CallLoop,
) -> Services:
    """Services around a real database at the fixed time `NOW`, with in-process reviewers that sign for real."""

    def sign(purpose: str, document: Mapping[str, Any]) -> str:
        return sign_detached(purpose, keys.kids[purpose], keys.private[purpose], canonical_bytes(document))

    return Services(
        engine=engine,
        worker_id="w-test",
        policies=policies,
        providers={"default": LocalProvider(sign)},
        verifiers={purpose: JwsVerifier(keys.trust) for purpose in PURPOSES},
        cms=no_cms,
        keys=keys,
        queue=queue,
        calls=calls,
        deadlines=Deadlines(),
        now=lambda: NOW,
        checkpoint=checkpoints,
    )


@pytest.fixture
def at(services: Services) -> Callable[[float], Services]:
    """The same services at another fixed time: `at(NOW + 5)`."""
    return lambda now: replace(services, now=lambda: now)


@pytest.fixture
def rows(engine: Engine) -> Callable[[Table], list[dict[str, Any]]]:
    """A reader of whole tables, in the order of their primary keys."""

    def read(table: Table) -> list[dict[str, Any]]:
        with reading(engine) as conn:
            found = conn.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            return [dict(row) for row in found]

    return read


@pytest.fixture
def everything(engine: Engine) -> Callable[[], dict[str, list[tuple[Any, ...]]]]:
    """A reader of the whole database, to show that nothing changed."""

    def read() -> dict[str, list[tuple[Any, ...]]]:
        with reading(engine) as conn:
            return {
                table.name: [tuple(row) for row in conn.execute(select(table).order_by(*table.primary_key.columns))]
                for table in metadata.sorted_tables
            }

    return read


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[Scene]:
    """One story for this module on each database."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("audit") / "locseal.db"
        shutil.copyfile(sqlite_template, path)
        path.chmod(0o600)
        engine = open_engine(f"sqlite:///{path}")
    else:
        make: Callable[[], URL] = request.getfixturevalue("new_postgres_database")
        engine = open_engine(make())
        migrate(engine)
    keys = Keyring(sites=("site-1", "site-2"), providers=("reviewer", "quality-lab", "local-second-model"))
    calls = CallLoop()
    story = tell(story_services(engine, keys, calls), keys)

    with reading(engine) as conn:
        whole = {
            table: [dict(row) for row in conn.execute(select(table).order_by(*table.primary_key.columns)).mappings()]
            for table in metadata.sorted_tables
        }
    yield Scene(engine=engine, story=story, whole=whole)
    calls.close()
    engine.dispose()


@pytest.fixture
def scene(told: Scene) -> Iterator[Scene]:
    """The story, put back after the test."""
    yield told
    told.restore()
