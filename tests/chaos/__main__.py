"""`python -m tests.chaos`: run a fleet under random faults and report; exit code 1 on any violation (`make chaos`)."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import structlog

from tests.chaos.arena import faketime_library
from tests.chaos.outage import simulate_outage
from tests.chaos.plan import GAP_SECONDS
from tests.chaos.report import to_json, to_markdown
from tests.chaos.run import Options, run_chaos


def main() -> int:
    """Run, print the report as Markdown, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=100, help="change events of five locales (default 100)")
    parser.add_argument("--faults", type=int, default=31, help="faults (default 31: each kind once)")
    parser.add_argument("--seed", type=int, default=None, help="of the plan (default: by the time)")
    parser.add_argument("--gap", type=float, default=GAP_SECONDS, help="mean seconds from fault to fault")
    parser.add_argument("--sqlite", action="store_true", help="two workers on one SQLite file, and no PostgreSQL")
    parser.add_argument("--outage-locales", type=int, default=1000, help="of the simulated outage; 0: none")
    parser.add_argument("--bound-trials", type=int, default=None, help="measure the recovery bound so often")
    parser.add_argument("--report", type=Path, default=None, help="directory for report.json and report.md")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a good run too")
    given = parser.parse_args()
    if not given.sqlite and faketime_library() is None:
        parser.error("libfaketime is not installed (Debian: apt-get install faketime)")
    signal.signal(signal.SIGTERM, _stop)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed = int(time.time()) % 1_000_000 if given.seed is None else given.seed
    options = Options(
        events=given.events,
        faults=given.faults,
        seed=seed,
        is_sqlite=given.sqlite,
        gap_seconds=given.gap,
        bound_trials=given.bound_trials,
    )
    directory = Path(tempfile.mkdtemp(prefix="locseal-chaos-")).resolve()
    is_good = False
    try:
        _say(f"seed {seed}; {options.command}")
        outage = simulate_outage(directory, locales=given.outage_locales) if given.outage_locales else None
        report = to_json(run_chaos(options, directory / "fleet", _say), outage)
        is_good = not report["violations"]
        _write(report, given.report)
    finally:
        if is_good and not given.keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            _say(f"logs: {directory}")
        if not is_good:
            _say(f"not good; again: {options.command}")
    return 0 if is_good else 1


def _write(report: dict[str, object], directory: Path | None) -> None:
    markdown = to_markdown(report)
    print(markdown)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        (directory / "report.md").write_text(markdown, encoding="utf-8")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
