"""What a benchmark stands on: its own PostgreSQL (fsync on, default synchronous_commit), its own Redis, its own keys.

Everything lives in one directory and ends with it; nothing that happens to run on the machine is used.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from benchmarks.work import Work, make_keys, write_answers
from worker.cli.local_fleet import Child, LocalFleet, embedded_broker, free_port, installed_redis, wait_for

ROOT: Final = Path(__file__).parents[1]
SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_connections": "200",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "off",
    "listen_addresses": "127.0.0.1",
}


def server_programs() -> Path:
    """Return the directory of the newest installed PostgreSQL server's programs; `SystemExit` where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    found += [Path(on_path).resolve().parent] if on_path else []
    for place in found:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise SystemExit("benchmarks: install a PostgreSQL server (initdb and postgres)")


@dataclass(frozen=True)
class Spent:
    """What the servers counted so far; the difference of two is what happened between them. CPU in seconds."""

    statements: int
    commits: int
    wal_bytes: int
    messages: int
    postgres_cpu: float
    redis_cpu: float

    def __sub__(self, other: Spent) -> Spent:
        """Return what happened since the other."""
        return Spent(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))


class Servers:
    """PostgreSQL, Redis, keys and the stub's tables of one benchmark run. A context manager."""

    def __init__(self, *, is_tiny: bool = False) -> None:
        """Make the directory; nothing is started yet. `is_tiny` spares processes: for tests, not for figures."""
        self.is_tiny = is_tiny
        self.directory = Path(tempfile.mkdtemp(prefix="locseal-bench-"))
        self.directory.chmod(0o711)
        self.fleet = LocalFleet(
            directory=self.directory / "fleet", broker_program=installed_redis() or embedded_broker()
        )
        self.fleet.directory.chmod(0o711)
        self.answers = self.directory / "answers"
        self.answers.mkdir()
        self.keys = make_keys(self.directory / "keys")
        self.port = free_port()
        self.kept: dict[object, Any] = {}  # sides that stand still between parts, with what waits for them
        self._tables = 0
        self._numbers = iter(range(3, 16))
        self._stub_url = ""

    def __enter__(self) -> Self:
        """Start both servers."""
        try:
            self._start_postgres()
            self.fleet.start_broker()
            for name in ("BROKER_URL", "BROKER_PASSWORD_FILE"):  # each side has an address of its own
                del self.fleet.settings[name]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything and remove the directory."""
        self.close()

    def close(self) -> None:
        """Stop everything and remove the directory. Idempotent."""
        postgres = getattr(self, "postgres", None)
        if postgres is not None:
            postgres.send(signal.SIGINT)  # a quick stop, whoever is connected
        self.fleet.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- databases --------------------------------------------------------------------------------------------------

    def url(self, name: str) -> str:
        """Return the address of a database for libpq."""
        return f"postgresql://locseal@127.0.0.1:{self.port}/{name}"

    def create_database(self, name: str) -> None:
        """Make a database."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{name}"'.encode())

    def drop_database(self, name: str) -> None:
        """Drop a database, with whoever is still connected."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            conn.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    def broker_url(self, number: int) -> str:
        """Return the address of one of Redis's numbered databases. A secret."""
        return self.fleet.broker_url().rsplit("/", 1)[0] + f"/{number}"

    def next_number(self) -> int:
        """Return a numbered Redis database that no side has yet."""
        return next(self._numbers)

    # --- the stub's tables ------------------------------------------------------------------------------------------

    def publish_answers(self, work: Work) -> None:
        """Let every stub know what the reviewer will answer about this work."""
        self._tables += 1
        write_answers(self.keys, work, self.answers / f"{self._tables:06d}.json")

    def start_stub(self) -> str:
        """Start the stub as a server in a process of its own, once, and return its address."""
        if self._stub_url:
            return self._stub_url
        port = free_port()
        path = f"PYTHONPATH={ROOT}"
        command = ["env", path, sys.executable, "-m", "benchmarks.stub_server", str(self.answers), str(port)]
        child = self.fleet.start(f"stub-{port}", command)
        wait_for(lambda: "ready" in child.log_text(), child, "the stub")
        self._stub_url = f"http://127.0.0.1:{port}"
        return self._stub_url

    # --- what was spent ---------------------------------------------------------------------------------------------

    def spent(self, database: str) -> Spent:
        """Return what both servers counted so far for one database (WAL, messages and CPU: for all)."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            statements, commits, wal = conn.execute(
                "SELECT (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
                " WHERE d.datname = %(name)s), (SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database WHERE datname = %(name)s),"
                " pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')",
                {"name": database},
            ).fetchone() or (0, 0, 0)
        with self.fleet.broker_client() as client:
            pushed: Any = client.info("commandstats")
        return Spent(
            statements=int(statements),
            commits=int(commits),
            wal_bytes=int(wal),
            messages=int(pushed.get("cmdstat_lpush", {}).get("calls", 0)),
            postgres_cpu=cpu_seconds(self.postgres.process.pid),
            redis_cpu=cpu_seconds(self._broker().process.pid),
        )

    def _broker(self) -> Child:
        return next(child for child in self.fleet.children if child.name == "broker")

    def _start_postgres(self) -> None:
        programs = server_programs()
        home = self.directory / "postgres"
        home.mkdir()
        as_user: dict[str, Any] = {}
        prefix: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(home, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            prefix += ["--pdeathsig", "QUIT"]  # a change of user clears what the fleet set
        options = ["--auth=trust", "--username=locseal", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command: list[str | Path] = [programs / "initdb", "-D", home / "data", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **as_user)
        chosen = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        server: list[str | Path] = [
            programs / "postgres",
            "-D",
            home / "data",
            "-p",
            str(self.port),
            "-k",
            home,
            *chosen,
        ]
        self.postgres = self.fleet.start("postgres", [*prefix, *server])
        wait_for(self._answers, self.postgres, "PostgreSQL")
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def versions(self) -> dict[str, str]:
        """Return what ran: programs, libraries, the machine."""
        with psycopg.connect(self.url("postgres")) as conn, self.fleet.broker_client() as client:
            postgres = str((conn.execute("SHOW server_version").fetchone() or ("?",))[0])
            broker: Any = client.info("server")
        libraries = {name: version(name) for name in ("celery", "psycopg", "sqlalchemy", "redis", "cryptography")}
        return {
            "python": platform.python_version(),
            "postgresql": postgres.split(" ", maxsplit=1)[0],
            "redis-server": str(broker.get("redis_version", "?")),
            **libraries,
            "cores": str(os.cpu_count()),
            "kernel": platform.release(),
        }


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, its threads and all its descendants, those that ended among them."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            waiting += [int(child) for task in Path(f"/proc/{one}/task").iterdir() for child in _children(task)]
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return total


def rss_bytes(pid: int) -> int:
    """Return the resident memory of one process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()
