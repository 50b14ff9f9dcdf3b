"""`make bench`: runs the parts, keeps their figures in `benchmarks/results.json` and fills `docs/performance.md`.

make bench                                     everything, about half an hour
make bench ARGS="throughput --rounds 3"        some parts
make bench ARGS="--size tiny --dry latency"    as the tests run it: small, and nothing is written
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.embedded import embedded
from benchmarks.growth import growth
from benchmarks.latency import latency
from benchmarks.memory import memory
from benchmarks.peers import BareLoop, LockstepLoop, PerEventPrefork, PerEventThreads, PerLocaleThreads
from benchmarks.phases import phases
from benchmarks.report import fill_page
from benchmarks.scaling import concurrency, scaling
from benchmarks.servers import ROOT, Servers
from benchmarks.sides import Ours
from benchmarks.throughput import throughput
from config.logs import set_up

RESULTS: Final = ROOT / "benchmarks" / "results.json"
PAGE: Final = ROOT / "docs" / "performance.md"
BRIEF_SIDES: Final = (Ours, PerLocaleThreads, PerEventThreads, PerEventPrefork, BareLoop, LockstepLoop)
HTTP_SIDES: Final = (Ours, PerLocaleThreads, PerEventThreads, BareLoop)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: what it runs, and with which sizes. `rounds` names the size that `--rounds` sets."""

    run: Callable[..., dict[str, Any]]
    full: dict[str, Any]
    short: dict[str, Any]
    brief: dict[str, Any]
    tiny: dict[str, Any]
    rounds: str = "rounds"


W: Final = {"events": 40, "locales": 24}
OWN: Final = {"LOG_LEVEL": "INFO"}  # the default; named, so that the fleet is one of its own
SMALL: Final = {"events": 2, "locales": 3, "rounds": 1}
PARTS: Final = {
    "throughput": Part(
        run=throughput,
        full={**W, "rounds": 7, "delays": [0.0, 0.02]},
        short={**W, "rounds": 5, "delays": [0.0, 0.02]},
        brief={**W, "rounds": 3, "delays": [0.0, 0.02], "sides": BRIEF_SIDES},
        tiny={**SMALL, "delays": [0.0], "sides": (Ours, PerEventThreads, BareLoop), "processes": 1},
    ),
    "http": Part(
        run=throughput,
        full={**W, "rounds": 5, "delays": [0.0, 0.02], "sides": HTTP_SIDES, "is_http": True},
        short={**W, "rounds": 3, "delays": [0.0, 0.02], "sides": HTTP_SIDES, "is_http": True},
        brief={**W, "rounds": 2, "delays": [0.0], "sides": HTTP_SIDES, "is_http": True},
        tiny={**SMALL, "delays": [0.0], "sides": (Ours,), "is_http": True, "processes": 1},
    ),
    "latency": Part(
        run=latency,
        full={"locales": 24, "events": {0.0: 500, 0.02: 500, 1.0: 60}, "idle_events": 20},
        short={"locales": 24, "events": {0.0: 200, 0.02: 100, 1.0: 8}, "idle_events": 10},
        brief={"locales": 24, "events": {0.0: 80, 0.02: 60, 1.0: 4}, "idle_events": 8, "sides": BRIEF_SIDES[:3]},
        tiny={
            "locales": 3,
            "events": {0.0: 2},
            "idle_events": 1,
            "idle_seconds": 0.1,
            "sides": (Ours,),
            "processes": 1,
        },
        rounds="idle_events",
    ),
    "concurrency": Part(
        run=concurrency,
        full={"calls": 500, "events": 250, "locales": 24, "rounds": 3},
        short={"calls": 500, "events": 250, "locales": 24, "rounds": 1},
        brief={"calls": 500, "events": 125, "locales": 24, "rounds": 1},
        tiny={**SMALL, "calls": 50, "delay_seconds": 0.05},
    ),
    "scaling": Part(
        run=scaling,
        full={**W, "rounds": 5, "processes": [1, 2, 4]},
        short={**W, "rounds": 3, "processes": [1, 2, 4]},
        brief={**W, "rounds": 2, "processes": [1, 2, 4]},
        tiny={**SMALL, "processes": [1], "delay_seconds": 0.01},
    ),
    "sqlite": Part(
        run=embedded, full={**W, "rounds": 5}, short={**W, "rounds": 5}, brief={**W, "rounds": 3}, tiny=SMALL
    ),
    "growth": Part(
        run=growth,
        full={"sizes": [1_000, 100_000, 1_000_000], "repeats": 40},
        short={"sizes": [1_000, 100_000, 1_000_000], "repeats": 25},
        brief={"sizes": [1_000, 100_000, 1_000_000], "repeats": 15},
        tiny={"sizes": [240], "kinds": ("due",), "repeats": 1},
        rounds="repeats",
    ),
    "memory": Part(
        run=memory,
        full={
            "locales": 24,
            "marks": [20_000, 40_000, 60_000, 80_000, 100_000],
            "audits": [2_000, 20_000, 50_000],
            "settings": OWN,
        },
        short={"locales": 24, "marks": [20_000, 60_000, 100_000], "audits": [2_000, 20_000], "settings": OWN},
        brief={"locales": 24, "marks": [4_000, 8_000], "audits": [2_000, 8_000], "settings": OWN},
        tiny={"locales": 3, "marks": [6, 12], "audits": [], "in_hand": 2},
        rounds="locales",
    ),
    "phases": Part(
        run=phases,
        full={**W, "rounds": 5},
        short={**W, "rounds": 3},
        brief={**W, "rounds": 2},
        tiny=SMALL,
    ),
}


def main(arguments: list[str]) -> None:
    """Run the named parts (all by default) on servers of their own and keep what they found."""
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one or more of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="how often each side has its turn")
    parser.add_argument("--size", choices=["full", "short", "brief", "tiny"], default="full", help="how much is run")
    parser.add_argument("--dry", action="store_true", help="print the figures and write nothing")
    parser.add_argument("--page", action="store_true", help="fill the page from the kept figures and run nothing")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.parts) - PARTS.keys())
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    set_up("ERROR", "json")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are stopped then, too
    if not chosen.page:
        with Servers(is_tiny=chosen.size == "tiny") as servers:
            versions = servers.versions()
            for name in chosen.parts or PARTS:
                run_part(servers, name, chosen, versions)
    if not chosen.dry:
        PAGE.write_text(fill_page(PAGE.read_text(), kept()))


def run_part(servers: Servers, name: str, chosen: argparse.Namespace, versions: dict[str, str]) -> None:
    """Run one part, print its figures and keep them."""
    part = PARTS[name]
    sizes = dict(getattr(part, chosen.size))
    if chosen.rounds is not None:
        sizes[part.rounds] = chosen.rounds
    began, load = time.monotonic(), os.getloadavg()[0]
    figures = part.run(servers, **sizes)
    found = {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "load_before": round(load, 2),
        "seconds": round(time.monotonic() - began, 1),
        "versions": versions,
        "sizes": {key: plain(value) for key, value in sizes.items()},
        "figures": figures,
    }
    print(json.dumps({name: found}, indent=1), flush=True)
    if not chosen.dry:
        RESULTS.write_text(json.dumps({**kept(), name: found}, indent=1) + "\n")


def plain(value: object) -> object:
    """Return a size as JSON can hold it: sides by their names."""
    if isinstance(value, (list, tuple)):
        return [getattr(one, "name", one) for one in value]
    return {str(key): one for key, one in value.items()} if isinstance(value, dict) else value


def kept() -> dict[str, Any]:
    """Return the figures of all parts that were ever kept."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def commit() -> str:
    """Return the commit that was measured, with a plus where the product was changed since."""
    here = Path(ROOT)
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", "worker", "tasks", "config"], cwd=here, check=False
    )
    return (head.stdout.strip() or "unknown") + ("+" if changed.returncode else "")


if __name__ == "__main__":
    main(sys.argv[1:])
