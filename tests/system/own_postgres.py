"""A PostgreSQL server of a test's own, which the test may stop; the shared one must not be."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.conftest import missing
from worker.cli.local_fleet import free_port, wait_for


def server_programs() -> Path:
    """Return the directory of the newest installed server's programs; skip or fail the test where there is none."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for place in found:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    missing("A PostgreSQL server to stop", "neither initdb nor postgres is installed")
    raise AssertionError


class OwnPostgres:
    """One server in a directory of its own. `start` and `crash` may be called again and again; `close` removes it."""

    def __init__(self) -> None:
        self._programs = server_programs()
        self._directory = Path(tempfile.mkdtemp(prefix="locseal-postgres-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(self._directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"postgresql+psycopg://locseal@127.0.0.1:{self.port}/postgres"
        options = ["--auth=trust", "--username=locseal", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command = [self._programs / "initdb", "-D", self._directory / "data", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._as_user)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["-p", str(self.port), "-k", str(self._directory), "-c", "fsync=off"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._directory / "data", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_user,
            )
        wait_for(self._answers, None, "PostgreSQL")

    def crash(self) -> None:
        """End the server at once, with every connection; what was committed is there after the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=10)
            self._process = None

    def close(self) -> None:
        """End the server and remove its directory."""
        self.crash()
        shutil.rmtree(self._directory)

    def _answers(self) -> bool:
        try:
            psycopg.connect(f"postgresql://locseal@127.0.0.1:{self.port}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
