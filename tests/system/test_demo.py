"""`locseal demo` as a user runs it: what it prints, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.cli.local_fleet import wait_for
from worker.cli.local_stage import LOCSEAL

SECONDS_ALLOWED = 15.0


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A directory that the demo takes for its temporary one, so that its leavings and processes can be found."""
    made = tmp_path / "tmp"
    made.mkdir()
    yield made
    for pid in processes_in(made):
        os.kill(pid, signal.SIGKILL)


def environment(room: Path) -> dict[str, str]:
    """A user's environment, with settings of a production fleet that the demo must not touch."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(room),
        "TMPDIR": str(room),
        "LOCSEAL_BROKER_URL": "redis://127.0.0.1:1/0",
        "LOCSEAL_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/none",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    }


def processes_in(room: Path) -> list[int]:
    """Return the processes whose command line or working directory is inside a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                where = (entry / "cmdline").read_bytes().decode(errors="replace") + str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(room) in where:
                found.append(int(entry.name))
    return found


def run(room: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOCSEAL, "demo", *options],
        env=environment(room),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_the_demo_delivers_and_leaves_nothing(room: Path) -> None:
    """27 approvals, one delivery, a verified acknowledgement, exit code 0, in time; no process and no file is left."""
    began = time.monotonic()
    found = run(room)
    elapsed = time.monotonic() - began
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("approval-") == 27
    assert "27 approvals, each verified" in found.stdout
    assert "delivery: delivery-" in found.stdout
    assert "acknowledgement: accepted by the CMS, signature verified" in found.stdout
    assert elapsed < SECONDS_ALLOWED
    assert (processes_in(room), list(room.iterdir())) == ([], [])


def test_the_demo_shows_what_a_refusal_needs(room: Path) -> None:
    """With `--fail` two locales are refused with their codes, the rest approved, nothing published; exit code 0."""
    found = run(room, "--fail", "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    shown = json.loads(found.stdout)
    assert (shown["status"], shown["approved"], shown["published"]) == ("waiting", 25, 0)
    assert shown["refused"] == {
        "fr-FR": "evidence.terminology.mismatch",
        "ja-JP": "evidence.placeholder.missing",
    }
    assert all("locseal evidence retry --job job-" in shown["needed"][locale][1] for locale in shown["refused"])
    assert (processes_in(room), list(room.iterdir())) == ([], [])


@pytest.mark.timeout(300)  # seven programs start, one after the other
def test_the_demo_stays_to_be_looked_at(room: Path) -> None:
    """With `--serve` Flower and the metrics show its release until Ctrl-C; then nothing of it is left."""
    log = room.parent / "served.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*LOCSEAL, "demo", "--serve"],
            env=environment(room),
            cwd="/",
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_for(lambda: "running until Ctrl-C" in log.read_text() or process.poll() is not None, None, "the demo", 100)
    said = log.read_text()
    flower = re.search(r"Flower: (http://127\.0\.0\.1:\d+)/tasks, user ops, password (\S+)", said)
    metrics = re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", said)
    assert flower is not None, said
    assert metrics is not None, said
    credentials = "Basic " + base64.b64encode(f"ops:{flower[2]}".encode()).decode()
    wait_for(lambda: "delivery.publish" in page(f"{flower[1]}/api/tasks", credentials), None, "its tasks", 100)
    assert 'locseal_events{state="open"} 0.0' in page(metrics[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert (processes_in(room), list(room.iterdir())) == ([], [])


def page(url: str, credentials: str = "") -> str:
    """Return what an address of the demo shows."""
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Authorization": credentials}), timeout=30
    ) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, {130}), (signal.SIGTERM, {130}), (signal.SIGKILL, {-9})])
def test_a_stopped_demo_leaves_no_process(room: Path, number: int, codes: set[int]) -> None:
    """However the demo is ended in the middle, what it had started ends with it."""
    process = subprocess.Popen(
        [*LOCSEAL, "demo"],
        env=environment(room),
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: len(processes_in(room)) >= 3, "the demo's processes")
    process.send_signal(number)
    assert process.wait(timeout=30) in codes
    until(lambda: processes_in(room) == [], "the end of the demo's processes")


def until(condition: Callable[[], bool], what: str) -> None:
    wait_for(condition, None, what)
