"""`locseal metrics`: bounded series whatever there is, parts that fail alone, and a page that names every metric."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from config.settings import load_settings
from tests.cli.conftest import Home, Outcome
from tests.store.test_gauges import delivery_row, evidence_row
from worker.adapters.policies import FilePolicies
from worker.adapters.queue import open_queue
from worker.cli.metric_parts import Sources
from worker.cli.metrics import KEPT_SECONDS, FleetCollector
from worker.domain.measure import ATTEMPTS, PROVIDER_CALLS, PROVIDER_SECONDS, SUM, Series
from worker.store.engine import writing
from worker.store.measures import add_measures
from worker.store.schema import breakers, deliveries, evidence, limits, pauses, sweep_times

Run = Callable[..., Outcome]
Sample = tuple[str, tuple[tuple[str, str], ...]]
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SITES = 1000


def samples(text: str) -> dict[Sample, float]:
    """Return every sample of a text by its name and labels."""
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(found: Mapping[Sample, float], name: str, **labels: str) -> float:
    return found[f"locseal_{name}", tuple(sorted(labels.items()))]


def fill(home: Home, table: Any, rows: list[dict[str, Any]]) -> None:
    with home.engine.begin() as conn:
        conn.execute(insert(table), rows)


@pytest.fixture
def crowd(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A thousand sites that each wait, fail and are paused, forty review routes, and three hundred codes of providers."""
    sites = [f"site-{n}" for n in range(SITES)]
    routes = [f"route-{n}" for n in range(40)]
    guided = {site: {"publication": "guided"} for site in sites[:300]}
    bounds = {route: {"limits": {"concurrent_calls": 4, "calls_per_second": 2.0}} for route in routes}
    policy = home.directory / "policy.json"
    policy.write_text(json.dumps({"sites": guided, "providers": bounds}))
    monkeypatch.setenv("LOCSEAL_POLICY_FILE", str(policy))
    due = [evidence_row(n, site_id=site, provider=routes[n % 40]) for n, site in enumerate(sites)]
    lease = {"status": "leased", "lease_expires_at": 1.0}
    fill(home, evidence, [*due, *(evidence_row(5000 + n, provider=route, **lease) for n, route in enumerate(routes))])
    fill(home, deliveries, [delivery_row(n, site_id=site) for n, site in enumerate(sites)])
    state = {"is_open": True, "failures": 5, "generation": 1, "pause_seconds": 5.0, "updated_at": 1.0}
    sides = [("cms", site) for site in sites] + [("provider", route) for route in routes]
    fill(home, breakers, [{"kind": kind, "name": name, **state} for kind, name in sides])
    said = {"owner": "ops", "reason": "why", "paused_at": 1.0, "until_at": None}
    fill(home, pauses, [{"scope": "site", "name": site, **said} for site in sites])
    fill(home, limits, [{"kind": "provider", "name": route, "next_call_at": 1.0} for route in routes])
    swept = {"began_at": 1.0, "took_seconds": 0.5, "wakes": 3, "longest_unwoken_seconds": 4.0}
    fill(home, sweep_times, [{"name": "fleet", **swept}])
    counts = {
        Series(measure=ATTEMPTS, subject="evidence", outcome=outcome, part=f"evidence.code-{n}"): 1.0
        for n in range(300)
        for outcome in ("failed", "retry_wait")
    }
    for route in routes:
        counts[Series(measure=PROVIDER_CALLS, subject=route, outcome="answered")] = 1.0
        counts[Series(measure=PROVIDER_SECONDS, subject=route, part="0.1")] = 1.0
        counts[Series(measure=PROVIDER_SECONDS, subject=route, part=SUM)] = 0.07
    writing(home.engine, lambda conn: add_measures(conn, counts))
    return home


def test_a_thousand_sites_make_no_more_series(crowd: Home, locseal: Run) -> None:
    """Less than a thousand series in all, no site among them, and the counts by class are those of the thousand."""
    found = locseal("metrics", "--once")
    assert found.code == 0, found.err
    shown = samples(found.out)
    assert len(shown) < SITES
    assert not [text for (_, labels) in shown for _, text in labels if text.startswith("site-")]
    assert value(shown, "due_rows", queue="evidence", site_class="guided") == 300
    assert value(shown, "due_rows", queue="evidence", site_class="automatic") == 700
    assert value(shown, "due_rows", queue="delivery", site_class="guided") == 300
    assert value(shown, "leases", queue="evidence", state="expired") == 40
    assert value(shown, "breakers", kind="cms", state="open") == SITES
    assert value(shown, "pauses", scope="site") == SITES
    assert len([1 for name, _ in shown if name == "locseal_provider_calls_limit"]) == 21
    codes = {dict(labels)["code"] for name, labels in shown if name == "locseal_attempts_total"}
    assert len(codes) == 101
    assert value(shown, "attempts_total", work="evidence", outcome="failed", code="other") == 200
    assert value(shown, "provider_calls_total", route="other", outcome="answered") == 20
    assert value(shown, "provider_call_seconds_bucket", route="other", le="0.1") == 20
    assert value(shown, "provider_call_seconds_count", route="other") == 20


def test_a_part_that_fails_is_named_and_the_rest_shown(home: Home, locseal: Run, monkeypatch: Any) -> None:
    """Redis is away and the policy file is broken: both are said, and due work is shown, of a class nobody knows."""
    policy = home.directory / "policy.json"
    policy.write_text("{")
    monkeypatch.setenv("LOCSEAL_POLICY_FILE", str(policy))
    fill(home, evidence, [evidence_row(1)])
    shown = samples(locseal("metrics", "--once").out)
    down = {dict(labels)["part"] for (name, labels), up in shown.items() if name == "locseal_part_up" and up == 0}
    assert down == {"queue", "limits"}
    assert value(shown, "due_rows", queue="evidence", site_class="unknown") == 1
    assert "locseal_queue_messages" not in {name for name, _ in shown}


def test_a_table_that_is_missing_costs_its_part_alone(home: Home, locseal: Run) -> None:
    """The part that reads it is down, and the command still answers."""
    with home.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE measures")
    shown = samples(locseal("metrics", "--once").out)
    assert value(shown, "part_up", part="measures") == 0
    assert value(shown, "part_up", part="work") == 1


def test_an_answer_serves_for_some_seconds(home: Home) -> None:
    """Many that ask at once cost one look; the next look comes when the answer is old."""
    now = [100.0]
    settings = load_settings()
    sources = Sources(
        engine=home.engine, policies=FilePolicies(settings.policy_file), queue=open_queue(), settings=settings
    )
    collector = FleetCollector(sources, ticks=lambda: now[0])
    answers: list[Any] = []
    askers = [threading.Thread(target=lambda: answers.append(collector.collect())) for _ in range(5)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(60)
    assert len({id(answer) for answer in answers}) == 1
    now[0] += KEPT_SECONDS - 0.1
    assert collector.collect() is answers[0]
    now[0] += 0.1
    assert collector.collect() is not answers[0]


@pytest.mark.parametrize("address", ["9750", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":9750"])
def test_an_address_that_is_none_is_refused(home: Home, locseal: Run, address: str) -> None:
    """HOST:PORT, both of them; exit code 2."""
    found = locseal("metrics", "--listen", address)
    assert found.code == 2
    assert "HOST:PORT" in found.err


def test_the_page_names_every_metric_and_nothing_else(crowd: Home, locseal: Run) -> None:
    """The table of docs/metrics.md holds the name and the labels of each family."""
    families = {}
    for family in text_string_to_metric_families(locseal("metrics", "--once").out):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for one in family.samples for label in one.labels} - {"le"}
        families[name] = ", ".join(sorted(labels))
    # These two have no samples here: no CMS was called, and Redis is away.
    families |= {"locseal_cms_calls_total": "operation, outcome", "locseal_cms_call_seconds": "operation"}
    families["locseal_queue_messages"] = "queue"
    rows = re.findall(r"^\| `(locseal_[a-z0-9_]+)` \| ([a-z_, `]*)\|", PAGE.read_text(), re.MULTILINE)
    assert {name: ", ".join(sorted(re.findall(r"[a-z_]+", labels))) for name, labels in rows} == families
