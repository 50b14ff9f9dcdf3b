"""The fleet under fire: everything it stands on, four workers each behind proxies of its own, two beats, a supervisor.

All of it is started here and ends with it. Used by one thread, which must outlive it: the kernel kills the programs
of a thread that ends.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sqlalchemy.engine import make_url

from tests.chaos.plan import BEATS, SITES, WORKERS
from tests.chaos.proxy import Proxy, ProxyThread
from tests.system.own_postgres import OwnPostgres
from worker.cli.local_fleet import Child, FleetError, LocalFleet, installed_redis, wait_for
from worker.cli.local_stage import LOCSEAL, Stage, set_stage, wait_for_sandbox

Side = Literal["Redis", "PostgreSQL", "sandbox"]
FAKETIME: Final = Path("/usr/lib")
READY_SECONDS: Final = 120.0
REVIVE_SECONDS: Final = 0.5
COMMAND_SECONDS: Final = 120.0
SQLITE_WORKERS: Final = 2

# Deadlines that fit into short leases, so that faults of seconds outlast them. The rest is as shipped.
SETTINGS: Final = {
    "EVIDENCE_LEASE_SECONDS": "8",
    "PROVIDER_DEADLINE_SECONDS": "3",
    "VERIFIER_DEADLINE_SECONDS": "1",
    "SIGNER_DEADLINE_SECONDS": "1",
    "DELIVERY_LEASE_SECONDS": "8",
    "SEND_DEADLINE_SECONDS": "3",
    "LOOKUP_DEADLINE_SECONDS": "2",
    "MARGIN_SECONDS": "1",
    "INTAKE_WAIT_SECONDS": "10",
    "INTAKE_PAUSE_MAX_SECONDS": "2",
    "VISIBILITY_TIMEOUT_SECONDS": "40",
    "WORKER_THREADS": "6",
    "DATABASE_POOL_SIZE": "8",  # four workers and their overflow stay below the server's hundred
    "CONCURRENT_CALLS": "20",
    "BATCH_ROWS": "20",
    "SOFT_SHUTDOWN_SECONDS": "5",
    "GRACE_PERIOD_SECONDS": "10",
}
# A short run cannot wait for the bound as shipped, and its faults are shorter.
SHORT: Final = {
    "SWEEP_INTERVAL_SECONDS": "1",
    "RECOVERY_BOUND_SECONDS": "2",
    "EVIDENCE_LEASE_SECONDS": "5",
    "PROVIDER_DEADLINE_SECONDS": "2",
    "VERIFIER_DEADLINE_SECONDS": "0.5",
    "SIGNER_DEADLINE_SECONDS": "0.5",
    "DELIVERY_LEASE_SECONDS": "5",
    "SEND_DEADLINE_SECONDS": "2",
    "LOOKUP_DEADLINE_SECONDS": "1",
    "MARGIN_SECONDS": "0.5",
}

# libfaketime 0.9.10 breaks one of two things in Python 3.11: with a false monotonic clock every wait of `threading`
# lasts for ever, with the true one `time.sleep` fails (EINVAL). The second can be mended from outside.
CELERY_UNDER_FAKETIME: Final = """
import select, time
time.sleep = lambda seconds: select.select((), (), (), seconds)
from celery.__main__ import main
main()
"""


@dataclass(kw_only=True)
class Arena:
    """What faults are done to. `ended` counts programs that ended without a fault having asked for it."""

    fleet: LocalFleet
    stage: Stage
    postgres: OwnPostgres | None  # None: SQLite
    proxies: ProxyThread
    links: dict[tuple[str, Side], Proxy] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    doomed: set[str] = field(default_factory=set)  # programs that a fault ends, by name
    _revive_at: float = 0.0

    @property
    def workers(self) -> list[str]:
        """The names of the workers."""
        return [f"worker{number}" for number in range(1, (WORKERS if self.postgres else SQLITE_WORKERS) + 1)]

    @property
    def beats(self) -> list[str]:
        """The names of the beats."""
        return [f"beat{number}" for number in range(1, BEATS + 1)]

    def child(self, name: str) -> Child:
        """Return a program as it runs now, or ran last."""
        return next(child for child in self.fleet.children if child.name == name)

    def start_broker(self) -> None:
        """Start Redis again at its port; nothing of what it held is there any more."""
        self.fleet.children = [child for child in self.fleet.children if child.name != "broker"]
        broker = self.fleet.start_broker()
        self.fleet.children.remove(broker)
        self.fleet.children.insert(0, broker)  # it goes last when all end

    def start_fleet(self) -> None:
        """Start workers and beats, and wait until the workers take messages."""
        for name in self.workers:
            self.fleet.start_worker(name, settings=self._behind_proxies(name))
        for name in self.beats:
            self.fleet.start_beat(name)
        for name in self.workers:
            wait_for(
                lambda name=name: "worker.started" in self.child(name).log_text(), self.child(name), name, READY_SECONDS
            )

    def starts(self, name: str) -> int:
        """Return how often a worker has said so far that it takes messages."""
        return self.child(name).log_text().count('"worker.started"')

    def supervise(self) -> None:
        """Start again what ended, as systemd or Kubernetes would; call it often."""
        if time.monotonic() < self._revive_at:
            return
        self._revive_at = time.monotonic() + REVIVE_SECONDS
        for child in self.fleet.children:
            if child.is_running() or child.was_asked:
                continue
            if child.name in {"broker", "sandbox"} and child.name not in self.doomed:
                raise FleetError(f"{child.name} ended by itself; read {child.log}")
            if child.name not in self.doomed:
                self.ended[child.name] = self.ended.get(child.name, 0) + 1
            self.doomed.discard(child.name)
        self.fleet.revive()

    def restart_with_clock(self, name: str, offset_seconds: int) -> None:
        """Kill a worker and start it with a clock that is wrong by so much; 0 is the right time."""
        old = self.child(name)
        old.kill()
        self.fleet.children.remove(old)
        options = old.command[old.command.index("-A") :]
        self.fleet.start(name, [*_celery_with_clock(offset_seconds), *options], settings=old.settings)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `locseal` command as a user of this fleet."""
        return subprocess.run(
            [*LOCSEAL, *arguments],
            env=self.fleet.environment(),
            cwd=self.fleet.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )

    def _behind_proxies(self, worker: str) -> dict[str, str]:
        """Return the settings of a worker whose every connection goes through a proxy of its own."""
        redis_port = self._link(worker, "Redis", self.fleet.broker_port)
        sandbox_port = self._link(worker, "sandbox", make_url(self.stage.sandbox_url).port or 0)
        url = f"http://127.0.0.1:{sandbox_port}"
        settings = {
            "BROKER_URL": f"redis://127.0.0.1:{redis_port}/0",
            "PROVIDERS": json.dumps({"default": {"url": f"{url}/provider"}}),
            "CMS": json.dumps({"default": {"url": f"{url}/cms"}}),
        }
        if self.postgres is not None:
            port = self._link(worker, "PostgreSQL", self.postgres.port)
            settings["DATABASE_URL"] = make_url(self.postgres.url).set(port=port).render_as_string(hide_password=False)
        return settings

    def _link(self, worker: str, side: Side, target_port: int) -> int:
        proxy = self.proxies.open(f"{worker}-{side}", target_port=target_port)
        self.links[worker, side] = proxy
        return proxy.port


def _celery_with_clock(offset_seconds: int) -> list[str]:
    """Return what starts Celery with a wall clock that is wrong by so much; its monotonic clock stays right."""
    if offset_seconds == 0:
        return [sys.executable, "-m", "celery"]
    library = faketime_library()
    if library is None:
        raise FleetError("libfaketime is not installed (Debian: apt-get install faketime)")
    wrong = [f"LD_PRELOAD={library}", f"FAKETIME={offset_seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    return ["env", *wrong, sys.executable, "-c", CELERY_UNDER_FAKETIME]


def faketime_library() -> Path | None:
    """Return libfaketime for programs with threads, where this machine has it."""
    return next(iter(sorted(FAKETIME.glob("*/faketime/libfaketimeMT.so.1"))), None)


@contextlib.contextmanager
def arena(directory: Path, *, is_sqlite: bool, is_short: bool) -> Iterator[Arena]:
    """Lend a running arena; end all of it afterwards. Logs and an SQLite file stay in the directory."""
    with contextlib.ExitStack() as stack:
        postgres: OwnPostgres | None = None
        if not is_sqlite:
            postgres = OwnPostgres()
            stack.callback(postgres.close)
            postgres.start()
        proxies = stack.enter_context(ProxyThread())
        settings = {**SETTINGS, **(SHORT if is_short else {})}
        fleet = LocalFleet(directory=directory, settings=settings, broker_program=installed_redis())
        stack.enter_context(fleet)
        stage = set_stage(fleet, site_ids=SITES, database_url=postgres.url if postgres else None)
        stack.callback(stage.close)
        wait_for_sandbox(stage)
        found = Arena(fleet=fleet, stage=stage, postgres=postgres, proxies=proxies)
        stack.callback(lambda: _wake(found))
        found.start_fleet()
        yield found


def _wake(found: Arena) -> None:
    """Let nothing be stopped or silent any more, so that all can end."""
    for proxy in found.links.values():
        proxy.clear()
    for child in found.fleet.children:
        child.send(signal.SIGCONT)
