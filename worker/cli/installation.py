"""What a command works on: the settings, the database behind them, the policies, and services for those that act.

Commands that only read open the database and nothing else, so they work while the broker, a provider or a key is out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from config.settings import Settings, load_settings
from worker.adapters.policies import FilePolicies
from worker.adapters.queue import open_queue
from worker.bootstrap import build_plant
from worker.domain.policy import SitePolicy
from worker.flow.services import Services
from worker.store.engine import open_engine
from worker.store.schema_version import check_schema

PAGE: Final = 50

Limit = Annotated[int, typer.Option(min=1, max=1000, help="Most rows to show.")]
Before = Annotated[str | None, typer.Option(help="Go on behind the last row of a page: the `next` it printed.")]


@contextmanager
def database(settings: Settings | None = None) -> Iterator[Any]:
    """Lend the engine of this installation's database; refuse one that this version may not work on (see `check_schema`).

    An engine is passed on to the store unseen (hence `Any`): its library is the store's business alone.
    """
    settings = settings or load_settings()
    engine = open_engine(settings.database(), pool_size=1)
    try:
        check_schema(engine)
        yield engine
    finally:
        engine.dispose()


@contextmanager
def services() -> Iterator[Services]:
    """Lend the services of this installation to a command that acts, under an owner name of its own."""
    settings = load_settings()
    owner = f"cli-{socket.gethostname().split('.')[0][:64]}-{os.getpid()}"
    plant = build_plant(settings, worker_id=owner, queue=open_queue())
    try:
        plant.check()
        yield plant.services
    finally:
        plant.close()


def policy_of(settings: Settings, site_id: str) -> SitePolicy:
    """Return the policy of a site as the workers read it."""
    return FilePolicies(settings.policy_file).for_site(site_id)


def page_key(at: float, last: object) -> str:
    """Return the key of a page's last row, exact to the last bit, as `--before` takes it."""
    return f"{at!r},{last}"


def read_page_key(text: str | None) -> tuple[float, str] | None:
    """Return the key in a `--before`, or None without one."""
    if text is None:
        return None
    at, _, last = text.partition(",")
    try:
        return float(at), last
    except ValueError:
        raise typer.BadParameter("expected the `next` that a page printed", param_hint="--before") from None
