"""The command line as people call it: arguments in, exit code, standard output and standard error out."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine
from structlog.testing import capture_logs

from config.settings import load_settings
from tests.builders import Keyring
from tests.fakes import RecordingQueue
from worker.bootstrap import build_plant
from worker.cli.local_fleet import LocalFleet
from worker.cli.main import call
from worker.flow.services import Services
from worker.store.engine import open_engine


@dataclass(frozen=True)
class Outcome:
    """What one call of `locseal` did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.out)


@pytest.fixture
def locseal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `locseal` in this process, with its arguments where it looks for them; logs go nowhere."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["locseal", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended, capture_logs():
            call()
        written = capsys.readouterr()
        code = ended.value.code
        return Outcome(0 if code is None else int(code), written.out, written.err)

    return run


@pytest.fixture
def program() -> Callable[..., Outcome]:
    """Run `locseal` as a program of its own, the way people start it; `before` is Python that runs first."""

    def run(*arguments: str, before: str = "") -> Outcome:
        start = f"{before}\nfrom worker.cli.main import run\nrun()"
        done = subprocess.run(
            [sys.executable, "-c", start, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@dataclass(frozen=True)
class Home:
    """One installation on this machine: its directory, keys, database, and the services the flow runs on."""

    directory: Path
    keys: Keyring
    engine: Engine
    services: Services


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A migrated installation with keys for `site-1`, in-process reviewers and no broker (nothing listens there)."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    shutil.copyfile(sqlite_template, state / "locseal.db")
    (state / "locseal.db").chmod(0o600)
    keys = Keyring(providers=("reviewer", "quality-lab", "local-second-model"))
    keys.write(state / "keys" / "private", state / "keys" / "trust")
    monkeypatch.setenv("LOCSEAL_STATE_DIR", str(state))
    monkeypatch.setenv("LOCSEAL_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("LOCSEAL_PROVIDERS", '{"default":{"kind":"local"}}')
    sys.modules.pop("config.celeryconfig", None)  # it is computed from the settings once in a process
    engine = open_engine(f"sqlite:///{state / 'locseal.db'}")
    plant = build_plant(load_settings(), worker_id="w-test", queue=RecordingQueue())
    yield Home(directory=state, keys=keys, engine=engine, services=replace(plant.services, engine=engine))
    plant.close()
    engine.dispose()
    sys.modules.pop("config.celeryconfig", None)


@dataclass(frozen=True)
class Broker:
    """A real broker of this session's own."""

    client: redis.Redis

    def take(self) -> list[dict[str, Any]]:
        """Take what lies in the intake queue: the name and arguments of each message, oldest first."""
        taken = []
        while raw := self.client.rpop("intake"):
            message = json.loads(raw)
            _, arguments, _ = json.loads(base64.b64decode(message["body"]))
            taken.append({"task": message["headers"]["task"], **arguments})
        return taken


@pytest.fixture(scope="session")
def broker_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """The broker's process."""
    with LocalFleet(directory=tmp_path_factory.mktemp("broker")) as fleet:
        fleet.start_broker()
        yield fleet


@pytest.fixture
def broker(broker_fleet: LocalFleet, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """An empty broker that the settings of `home` point at."""
    client = broker_fleet.broker_client()
    client.flushall()
    monkeypatch.setenv("LOCSEAL_BROKER_URL", broker_fleet.settings["BROKER_URL"])
    monkeypatch.setenv("LOCSEAL_BROKER_PASSWORD_FILE", broker_fleet.settings["BROKER_PASSWORD_FILE"])
    yield Broker(client)
    client.close()
