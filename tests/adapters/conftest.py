"""What the tests of the adapters share: one sandbox for a module, and a way to run calls of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from tests.builders import SITE
from worker.adapters.http import HttpClient
from worker.adapters.sandbox.server import SandboxThread

T = TypeVar("T")


def run_calls(calls: Callable[[HttpClient], Awaitable[T]], **options: object) -> T:
    """Run calls on a loop of their own with a client that is closed afterwards."""

    async def all_of_them() -> T:
        client = HttpClient(**options)
        try:
            return await calls(client)
        finally:
            await client.aclose()

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def _sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    with SandboxThread(tmp_path_factory.mktemp("sandbox") / "keys", sites=(SITE, "site-2")) as running:
        yield running


@pytest.fixture
def sandbox(_sandbox: SandboxThread) -> SandboxThread:
    """A running sandbox that behaves well and has seen nothing."""
    _sandbox.behave(provider={}, verifier={}, cms={}, lookup={}, reset=True)
    return _sandbox
