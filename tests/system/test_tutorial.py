"""The tutorial works as it is written: its files and commands, in order, in an empty directory, as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from worker.cli.local_fleet import free_port

PAGE: Final = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
PORTS: Final = ("REDIS_PORT", "REVIEWER_PORT", "CMS_PORT")
LONGEST_SECONDS: Final = 400.0


def files() -> dict[str, str]:
    """Return the files that the tutorial has its reader write, by name."""
    return dict(re.findall(r"<!-- file: ([a-z.]+) -->\n```[a-z]+\n(.*?)```", PAGE, re.DOTALL))


def script() -> str:
    """Return all commands in their order as one script that stops at the first that fails."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    ports = " ".join(f"{name}={free_port()}" for name in PORTS)
    assert commands[0].startswith(f"export {PORTS[0]}=")
    return "\n".join(
        ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", f"export {ports}", *commands[1:]]
    )


@pytest.mark.timeout(460)
def test_the_tutorial_ends_with_a_proven_publication(tmp_path: Path) -> None:
    """Every command succeeds; both languages are live at the reader's own CMS, and the audit is clean."""
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCSEAL_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", script()],
        cwd=tmp_path,
        env={**kept, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=LONGEST_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # as it should be: all that it started has ended
                os.killpg(run.pid, signal.SIGKILL)
    logs = "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(tmp_path.glob("*.log")))
    assert run.returncode == 0, said + logs
    live = json.loads((tmp_path / "live" / "cart.json").read_text(encoding="utf-8"))
    texts = {one["locale"]: json.loads(one["target_text"])["cart.hello"] for one in live["localizations"]}
    assert texts == {"de": "Willkommen zurück, {name}!", "fr": "Bon retour, {name} !"}
    assert "cart-1" in said
