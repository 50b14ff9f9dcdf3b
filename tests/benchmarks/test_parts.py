"""Each part of `make bench` runs: on servers of its own, at a size that says nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS, RESULTS
from tests.conftest import missing
from worker.cli.local_fleet import installed_redis

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_each_part_runs_and_counts_its_work() -> None:
    """Every part ends well, having checked that each locale was approved and each event delivered once; nothing is kept."""
    if installed_redis() is None:
        missing("Redis", "redis-server is not installed")
    before = RESULTS.read_bytes()
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--size", "tiny", "--dry"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("LOCSEAL_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = {}
    decoder, text = json.JSONDecoder(), ended.stdout
    while text.strip():
        one, end = decoder.raw_decode(text.lstrip())
        found |= one
        text = text.lstrip()[end:]
    assert found.keys() == PARTS.keys()
    assert all(one["figures"] for one in found.values())
    assert RESULTS.read_bytes() == before


def test_an_unknown_part_is_refused() -> None:
    """A part that is not there ends the program with a sentence, before any server is started."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nosuch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 2
    assert "no such part: nosuch; there are throughput" in ended.stderr
