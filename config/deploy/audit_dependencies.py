"""Ask whether a locked package has a known vulnerability, with pip-audit, and never pass in silence.

    python config/deploy/audit_dependencies.py [--tolerant] [--osv-url URL]

Not every package index has an advisory service behind it, and pip-audit then finds "no known vulnerabilities" in packages
it could not ask about. So one package is asked about first. Exit code 0: all were asked about and none is known to be
vulnerable; 1: some are, or some could not be asked about; 3: there is nobody to ask (0 with `--tolerant`, and a line that
says so).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PROBE: Final = "certifi==2024.7.4"  # a version that every advisory service has heard of
CLEAN, SICK, UNASKED = 0, 1, 3


def ask(requirements: Path, options: list[str]) -> list[dict[str, Any]] | None:
    """Return what pip-audit says of each package of a file; None where its service did not answer."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--disable-pip", "--no-deps"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    try:
        said: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return said


def main() -> int:
    """Audit the lock and print what was found; return the exit code."""
    parser = argparse.ArgumentParser(description="Audit the locked packages.")
    parser.add_argument("--tolerant", action="store_true", help="end with 0 where there is nobody to ask")
    parser.add_argument("--osv-url", help="ask this OSV service instead of the package index's")
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    given = parser.parse_args()
    options = ["--vulnerability-service", "osv", "--osv-url", given.osv_url] if given.osv_url else []
    with tempfile.TemporaryDirectory() as place:
        probe = Path(place) / "probe.txt"
        probe.write_text(f"{PROBE}\n", encoding="utf-8")
        first = ask(probe, options)
    found = None if first is None or any("skip_reason" in one for one in first) else ask(given.lock, options)
    if found is None:
        _say("NOT AUDITED: no advisory service answers here. Run `make audit-deps` where one does.")
        return CLEAN if given.tolerant else UNASKED
    sick = [one for one in found if one.get("vulns")]
    skipped = [one for one in found if "skip_reason" in one]
    for one in sick:
        for vulnerability in one["vulns"]:
            fixed = ", ".join(vulnerability.get("fix_versions", [])) or "none yet"
            _say(f"VULNERABLE: {one['name']} {one['version']}: {vulnerability['id']} (fixed in: {fixed})")
    for one in skipped:
        _say(f"NOT AUDITED: {one['name']}: the service does not know it")
    _say(f"{len(found)} packages: {len(sick)} vulnerable, {len(skipped)} not audited")
    return SICK if sick or skipped else CLEAN


def _say(text: str) -> None:
    sys.stdout.write(f"audit-deps: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
