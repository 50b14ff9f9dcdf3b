"""What a step gets in tests: a real database (each of both), keys of its own, local reviewers, a queue that records.

`services` is frozen; a test that needs something else says `replace(services, ...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select

from tests.builders import NOW, Keyring
from tests.fakes import Checkpoints, FixedPolicies, RecordingQueue
from worker.adapters.calls import CallLoop
from worker.adapters.providers.local import LocalProvider
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.canonical import canonical_bytes
from worker.domain.receipt import PURPOSES
from worker.domain.signature import sign_detached
from worker.flow.services import Cms, Deadlines, Services
from worker.store.engine import reading
from worker.store.schema import metadata


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
