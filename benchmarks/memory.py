"""Part `memory`: whether a worker process grows with what it has done, and whether an audit grows with what it reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.rounds import fresh_work, ready
from benchmarks.servers import ROOT, Servers, rss_bytes
from benchmarks.sides import Ours
from worker.domain.messages import RELEASE_SUBMIT

AUDIT: Final = (sys.executable, "-c", "from worker.cli.main import run; run()", "audit", "--json")


def memory(
    servers: Servers,
    *,
    locales: int,
    marks: Sequence[int],
    audits: Sequence[int],
    in_hand: int = 40,
    settings: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the resident memory of one worker process after so many locales (`marks`), in MiB, and audits' peaks.

    The process does everything: intake by message, evidence over HTTP, delivery. `in_hand` events are under way at
    once. `audits` says after how many locales `locseal audit` reads the whole database in a process of its own; its
    largest memory is kept.
    """
    # Of a fleet that did nothing else: settings of their own keep it apart from other parts'.
    side, watch = ready(servers, Ours, processes=1, stub_url=servers.start_stub(), settings=settings or {})
    side.resume()
    resident: dict[str, float] = {}
    audited: dict[str, float] = {}
    done = 0
    while done < max(marks):
        work = fresh_work(servers, in_hand, locales)
        for event in work.events:
            side.queue.submit(RELEASE_SUBMIT, "submission", event.submission)
        watch.wait(work.event_ids)
        side.check(work)
        before, done = done, done + len(work.request_ids)
        if any(before < mark <= done for mark in marks):
            resident[str(done)] = rss_bytes(side.children[0].process.pid) / 2**20
        if any(before < mark <= done for mark in audits):
            audited[str(done)] = audit_peak(side) / 2**20
    side.pause()
    return {"resident_mib": resident, "audit_peak_mib": audited}


def audit_peak(side: Ours) -> int:
    """Return the largest resident memory of an audit of everything, in bytes."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **side.environment()}
    process = subprocess.Popen(AUDIT, stdout=subprocess.DEVNULL, env=environment, cwd=side.servers.directory)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"benchmarks: the audit ended with {process.returncode}")
    return used.ru_maxrss * 1024
