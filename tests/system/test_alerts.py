"""Alert rules and scrape configuration, judged by Prometheus's own tool; every alert fires in a test and has a paragraph."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import missing

ROOT = Path(__file__).parents[2]
RULES = ROOT / "config" / "deploy" / "prometheus"


def promtool(*arguments: str) -> str:
    """Run promtool beside the rules and return what it says; fail where it does."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool", "install the package `prometheus`")
    done = subprocess.run(["promtool", *arguments], cwd=RULES, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> list[str]:
    """Return the names of the alerts."""
    found = re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text())
    assert found
    return found


def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    """The scrape configuration, and the rules that it names."""
    assert f"{len(alerts())} rules found" in promtool("check", "config", "prometheus.yml")


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    """The unit tests of the rules pass, and each alert has one in which it fires and one of a healthy fleet."""
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")
    tests = (RULES / "alerts.test.yml").read_text()
    for name in alerts():
        assert f"eval_time: 3h, alertname: {name}, exp_alerts: []" in tests
        assert re.search(rf"alertname: {name}\n +exp_alerts:\n +- exp_labels", tests), name


def test_every_alert_has_its_paragraph() -> None:
    """The runbook that an alert names is a heading of the page, and no paragraph is about an alert that is gone."""
    runbooks = re.findall(r"runbook: docs/metrics.md#(\w+)", (RULES / "alerts.yml").read_text())
    assert runbooks == [name.lower() for name in alerts()]
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^### (Locseal\w+)$", page, re.MULTILINE) == alerts()
