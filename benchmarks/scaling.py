"""Parts `concurrency` and `scaling`: many calls in one worker process, and more worker processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.rounds import Turn, calls_setting, fresh_work, ready, summary, take_turn
from benchmarks.servers import Servers
from benchmarks.sides import Ours
from benchmarks.work import Work


def concurrency(
    servers: Servers, *, rounds: int, calls: int, events: int, locales: int, delay_seconds: float = 1.0
) -> dict[str, Any]:
    """Return what one worker process does with so many calls in flight to a slow provider, over HTTP, and its memory.

    `share` is the part of what so many slots could do at best: every slot a call of `delay_seconds`, one after another.
    """
    url = servers.start_stub()
    ceiling = asyncio.run(stub_rate(url, fresh_work(servers, 20, locales)))
    side, watch = ready(servers, Ours, processes=1, stub_url=url, settings=calls_setting(calls))
    turns = [take_turn(side, watch, fresh_work(servers, events, locales, delay_seconds)) for _ in range(rounds)]
    peak = peak_bytes(side.children[0].process.pid)
    best = [-(-turn.locales // calls) * delay_seconds for turn in turns]
    return {
        "calls": calls,
        "rate": summary(turn.rate for turn in turns),
        "share": summary(least / turn.seconds for least, turn in zip(best, turns, strict=True)),
        "peak_mib": peak / 2**20,
        "cpu_ms": summary(1000 * turn.cpu / turn.locales for turn in turns),
        "stub_ceiling": ceiling,
    }


def scaling(
    servers: Servers,
    *,
    rounds: int,
    processes: Sequence[int],
    events: int,
    locales: int,
    delay_seconds: float = 0.2,
    calls: int = 50,
) -> dict[str, Any]:
    """Return locales per second by number of worker processes of `calls` calls each; the fleets take turns."""
    fleets = {count: ready(servers, Ours, processes=count, settings=calls_setting(calls)) for count in processes}
    turns: dict[int, list[Turn]] = {count: [] for count in processes}
    for _ in range(rounds):
        for count, (side, watch) in fleets.items():
            turns[count].append(take_turn(side, watch, fresh_work(servers, events, locales, delay_seconds)))
    return {str(count): summary(turn.rate for turn in taken) for count, taken in turns.items()}


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory that a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("benchmarks: the kernel does not say how much memory a process had")


async def stub_rate(url: str, work: Work, *, connections: int = 16) -> float:
    """Return how many requests a second the stub answers when nothing else is done: its ceiling."""
    parts = urlsplit(url)
    bodies = [request.body for event in work.events for request in event.requests]

    async def ask(mine: Sequence[bytes]) -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for body in mine:
            head = f"POST /provider HTTP/1.1\r\nHost: stub\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    await ask(bodies[:1])  # reads the table
    began = time.perf_counter()
    await asyncio.gather(*(ask(bodies[place::connections]) for place in range(connections)))
    return len(bodies) / (time.perf_counter() - began)
