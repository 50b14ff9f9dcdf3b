"""A real Prometheus beside a real fleet: it scrapes `locseal metrics` and Flower, and every query of the dashboard answers."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.system.conftest import QUICK, stage_on
from tests.system.facts import is_delivered
from tests.system.test_flower import start_flower
from worker.cli.demo_event import demo_submission
from worker.cli.local_fleet import Child, LocalFleet, free_port, installed_redis, wait_for
from worker.cli.local_stage import LOCSEAL, Stage

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "config" / "deploy"
SECONDS = 100.0
pytestmark = pytest.mark.timeout(400)  # the first test starts the fleet, Flower and Prometheus
RANGE = "60s"  # what Grafana would put for its own interval; Prometheus scrapes every three seconds here


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A fleet with a limit on its route, whose provider fails once, so that there is a breaker to look at."""
    directory = tmp_path_factory.mktemp("measured") / "fleet"
    settings = QUICK | {"MEASURE_INTERVAL_SECONDS": "0.5"}
    with LocalFleet(directory=directory, settings=settings, broker_program=installed_redis()) as fleet:
        policy = {"providers": {"default": {"limits": {"concurrent_calls": 20, "calls_per_second": 500.0}}}}
        fleet.settings["POLICY_FILE"] = str(fleet.private_file("policy.json", json.dumps(policy)))
        yield from stage_on(fleet, None)


@pytest.fixture(scope="module")
def metrics(stage: Stage) -> str:
    """The address of `locseal metrics`, once a whole release is delivered."""
    fleet = stage.fleet
    stage.control({"provider": {"fail_times": 1}})
    fleet.wait_for_worker(fleet.start_worker())
    fleet.start_beat()
    address = f"127.0.0.1:{free_port()}"
    child = fleet.start("metrics", [*LOCSEAL, "metrics", "--listen", address])
    wait_for(lambda: fetch(f"http://{address}/metrics") is not None, child, "the metrics", SECONDS)
    stage.submit(stage.sign(demo_submission()[1]))
    wait_for(lambda: is_delivered(stage), child, "the delivery", SECONDS)
    return address


@pytest.fixture(scope="module")
def prometheus(stage: Stage, metrics: str) -> tuple[str, Child]:
    """Prometheus with the configuration of config/deploy, at our ports and every three seconds; both targets are up."""
    program = shutil.which("prometheus")
    if program is None:
        missing("Prometheus", "install the package `prometheus`")
    fleet = stage.fleet
    flower = start_flower(fleet)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for ours, theirs in (
        ("127.0.0.1:9750", metrics),
        ("127.0.0.1:5555", flower.url.removeprefix("http://")),
        ("_interval: 15s", "_interval: 3s"),
        ("scrape_timeout: 10s", "scrape_timeout: 3s"),
        ("alerts.yml", str(DEPLOY / "prometheus" / "alerts.yml")),
    ):
        assert ours in config
        config = config.replace(ours, theirs)
    file = fleet.private_file("prometheus.yml", config)
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(program), f"--config.file={file}", f"--storage.tsdb.path={fleet.directory / 'prometheus'}"]
    child = fleet.start("prometheus", [*command, f"--web.listen-address={url.removeprefix('http://')}"])
    wait_for(lambda: len(answer(url, "up == 1")) == 2, child, "both targets", SECONDS)
    return url, child


def fetch(url: str) -> str | None:
    """Return what an address of ours answers, or None where it does not (yet)."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answered:
            return str(answered.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:  # 503 while it starts, 400 for a query that it does not accept
            return None if refused.code == 503 else refused.read().decode()
    except OSError:
        return None


def answer(url: str, query: str) -> list[dict[str, Any]]:
    """Return the series that a query gives now; fail where Prometheus does not accept it."""
    text = fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    if text is None:
        return []
    found = json.loads(text)
    assert found["status"] == "success", (query, found)
    return list(found["data"]["result"])


def value(url: str, query: str) -> float:
    """Return the one number that a query gives, -1 for none yet."""
    found = answer(url, query)
    return float(found[0]["value"][1]) if found else -1.0


def dashboard() -> list[tuple[str, str]]:
    """Return (title of the panel, query) of the whole dashboard."""
    panels = json.loads((DEPLOY / "grafana" / "fleet.json").read_text())["panels"]
    return [
        (panel["title"], one["expr"].replace("$__rate_interval", RANGE)) for panel in panels for one in panel["targets"]
    ]


def test_every_query_of_the_dashboard_gives_something(prometheus: tuple[str, Child]) -> None:
    """Each of them is accepted and gives at least one series from one release of 27 locales."""
    url, child = prometheus
    waiting = dict.fromkeys(dashboard())

    def answered() -> bool:
        for panel in [one for one in waiting if answer(url, one[1])]:
            del waiting[panel]
        return not waiting

    try:
        wait_for(answered, child, "the dashboard", SECONDS)
    finally:
        assert sorted(waiting) == []


def test_what_the_fleet_did_can_be_asked_for(prometheus: tuple[str, Child]) -> None:
    """27 locales approved, one delivery acknowledged, one call failed, and the calls that were timed."""
    url, child = prometheus
    wanted = {
        'locseal_attempts_total{work="evidence",outcome="succeeded"}': 27,
        'sum(locseal_attempts_total{work="evidence",outcome="retry_wait"})': 1,
        'locseal_attempts_total{work="delivery",outcome="succeeded"}': 1,
        'locseal_provider_calls_total{route="default",outcome="answered"}': 27,
        'locseal_provider_calls_total{route="default",outcome="fault"}': 1,
        'locseal_provider_call_seconds_count{route="default"}': 28,
        'locseal_cms_call_seconds_count{operation="publish"}': 1,
        'locseal_provider_calls_limit{route="default"}': 20,
        'locseal_events{state="open"}': 0,
        "sum(locseal_due_rows)": 0,
        'locseal_leases{queue="evidence",state="live"}': 0,
        "min(locseal_part_up)": 1,
        "max(locseal_part_capped)": 0,
    }
    for query, number in wanted.items():
        wait_for(lambda query=query, number=number: value(url, query) == number, child, query, SECONDS)  # type: ignore[misc]


def test_the_alerts_are_loaded_and_silent(prometheus: tuple[str, Child]) -> None:
    """All of them, evaluated without an error, and none fires about a fleet that just did its work."""
    url, child = prometheus
    names = re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())

    def rules() -> list[dict[str, Any]]:
        found = json.loads(fetch(f"{url}/api/v1/rules") or '{"data": {"groups": []}}')
        return [rule for group in found["data"]["groups"] for rule in group["rules"]]

    wait_for(
        lambda: bool(rules()) and all(rule["health"] != "unknown" for rule in rules()), child, "the rules", SECONDS
    )
    assert [(rule["name"], rule["health"]) for rule in rules()] == [(name, "ok") for name in names]
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def test_the_metrics_end_when_they_are_told_to(metrics: str, stage: Stage) -> None:
    """SIGTERM ends the command with exit code 0, and a second one on its port is refused with a code."""
    taken = stage.fleet.start("second", [*LOCSEAL, "metrics", "--listen", metrics])
    assert taken.process.wait(timeout=SECONDS) == 1
    assert "metrics.listen.failed" in taken.log_text()
    other = stage.fleet.start("third", [*LOCSEAL, "metrics", "--listen", "127.0.0.1:0"])
    wait_for(lambda: "/metrics" in other.log_text(), other, "the metrics", SECONDS)
    assert other.stop(seconds=SECONDS) == 0
    assert other.log_text().count("\n") == 1
