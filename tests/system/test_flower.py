"""Flower, for real, beside real workers: a whole release shows up in it, no content does, and nothing can be changed."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from tests.builders import change_event, results_for, submission
from tests.system.conftest import QUICK, stage_on
from tests.system.facts import is_delivered
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import Child, LocalFleet, free_port, installed_redis, wait_for
from worker.cli.local_stage import LOCSEAL, Stage
from worker.domain.identifier import is_token

MARKER = "CANARY"
LOCALES = ["de", "fr-CA", "ja", "pt-BR", "sv"]
SECONDS = 90.0
pytestmark = pytest.mark.timeout(300)  # the first test starts the fleet and Flower
PASSWORD = "not-a-secret"


@dataclass(frozen=True, kw_only=True)
class Flower:
    """A Flower that runs."""

    url: str
    child: Child

    def get(self, path: str, *, user: str | None = f"ops:{PASSWORD}", body: bytes | None = None) -> tuple[int, str]:
        """Return the status and the text of a page, asked for as `ops` unless somebody else is named; POST with a body."""
        request = urllib.request.Request(f"{self.url}{path}", data=body)
        if user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks that its API shows."""
        status, found = self.get("/api/tasks?limit=1000")
        assert status == 200, found
        return list(json.loads(found).values())


def start_flower(fleet: LocalFleet) -> Flower:
    """Start Flower as the product runs it, and wait until it listens to the workers."""
    port = free_port()
    file = fleet.private_file("flower-password", PASSWORD)
    child = fleet.start("flower", [*LOCSEAL, "flower", "--port", str(port), "--password-file", file])
    flower = Flower(url=f"http://127.0.0.1:{port}", child=child)
    wait_for(lambda: flower.get("/healthcheck", user=None)[0] == 200, child, "Flower", SECONDS)
    # It hears nothing before it has subscribed; workers say every few seconds that they are there.
    wait_for(
        lambda: "flower_worker_online{" in flower.get("/metrics", user=None)[1], child, "the workers in it", SECONDS
    )
    return flower


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One fleet on SQLite for the tests of this file, which only look at it."""
    directory = tmp_path_factory.mktemp("watched") / "fleet"
    with LocalFleet(directory=directory, settings=dict(QUICK), broker_program=installed_redis()) as fleet:
        yield from stage_on(fleet, None)


@pytest.fixture(scope="module")
def flower(stage: Stage) -> Flower:
    """Flower beside a worker and beat, with one marked event delivered before its eyes."""
    fleet = stage.fleet
    fleet.wait_for_worker(fleet.start_worker())
    fleet.start_beat()
    watching = start_flower(fleet)
    event = change_event(
        site_id=SITE_ID, event_id="event-watched", source_text=f"{MARKER} source", target_locales=LOCALES
    )
    results = [
        result for locale in LOCALES for result in results_for(event, locales=[locale], candidate=f"{MARKER} {locale}")
    ]
    stage.submit(stage.sign(submission(event, results)))
    wait_for(lambda: is_delivered(stage), watching.child, "the delivery", SECONDS)
    return watching


def test_a_whole_release_shows_up_and_no_content(flower: Flower, stage: Stage) -> None:
    """Intake, evidence, delivery and sweeps: name, state, runtime, worker, and ids for arguments; texts and receipts nowhere."""
    whole = {"release.submit", "evidence.collect", "delivery.publish", "fleet.sweep"}  # a delivery is prepared in place

    def ended() -> set[str]:
        return {task["name"] for task in flower.tasks() if task["state"] == "SUCCESS"}

    wait_for(lambda: whole <= ended(), flower.child, "the tasks of the release", SECONDS)
    tasks = flower.tasks()
    assert {task["state"] for task in tasks} <= {"SUCCESS", "STARTED", "RECEIVED"}
    for task in tasks:
        assert (task["args"] or "", task["result"] or "None", task["exception"], task["traceback"]) == (
            "",
            "None",
            None,
            None,
        )
        for name, value in re.findall(r"(\w+)='([^']*)'", task["kwargs"] or ""):
            assert name in {"event_id", "document_sha256"}
            assert is_token(value)
        if task["state"] == "SUCCESS":
            assert task["runtime"] > 0
            assert task["worker"].startswith("worker@")
    shown = {(task["name"], task["kwargs"]) for task in tasks}
    assert ("delivery.publish", "event_id='event-watched'") in shown
    assert ("fleet.sweep", "") in shown
    pages = [f"/task/{task['uuid']}" for task in tasks] + [f"/api/task/info/{task['uuid']}" for task in tasks]
    pages += ["/tasks", "/workers", "/broker", "/api/workers", "/api/tasks", "/api/task/types", "/metrics"]
    pages.append(f"/worker/{tasks[0]['worker']}")
    with stage.engine.connect() as conn:
        receipts = list(conn.execute(text("SELECT receipt FROM receipts")).scalars())
    assert len(receipts) == len(LOCALES)
    broker_password = (stage.fleet.directory / "broker" / "password").read_text()
    for page in pages:
        status, content = flower.get(page)
        assert (page, status) == (page, 200)
        for secret in (MARKER, *receipts, broker_password, PASSWORD):
            assert secret not in content, page
    log = flower.child.log_text()
    assert (MARKER in log, PASSWORD in log, broker_password in log) == (False, False, False)


def test_nobody_gets_in_without_the_password_and_nobody_changes_anything(flower: Flower, stage: Stage) -> None:
    """Pages and API ask for the password; with it, shutdown, revoke, rate limits and new tasks are refused."""
    for page in ("/tasks", "/workers", "/api/tasks", "/api/workers", "/api/queues/length"):
        assert flower.get(page, user=None)[0] == 401
        assert flower.get(page, user="ops:wrong")[0] == 401
        assert flower.get(page, user="root:not-a-secret")[0] == 401
    worker = flower.tasks()[0]["worker"]
    for path in (
        f"/api/worker/shutdown/{worker}",
        f"/api/worker/pool/restart/{worker}",
        f"/api/worker/queue/cancel-consumer/{worker}?queue=evidence",
        f"/api/task/revoke/{flower.tasks()[0]['uuid']}?terminate=true",
        "/api/task/async-apply/fleet.sweep",
        "/api/task/send-task/fleet.sweep",
    ):
        assert flower.get(path, body=b"{}", user=None)[0] in {401, 403}, path
        assert flower.get(path, body=b"{}")[0] in {403, 405}, path
    assert [child.name for child in stage.fleet.children if not child.is_running()] == []


def test_its_metrics_name_tasks_and_workers_alone(flower: Flower) -> None:
    """What Prometheus scrapes without a password holds the labels worker, task and type, and known tasks only."""
    wait_for(lambda: 'task="delivery.publish",type="task-succeeded"' in scraped(flower), flower.child, "it", SECONDS)
    found = scraped(flower)
    labels = {label for given in re.findall(r"^flower_\w+\{(.*)\}", found, re.MULTILINE) for label in names(given)}
    assert labels <= {"worker", "task", "type", "le"}
    assert set(re.findall(r'task="([^"]*)"', found)) <= {
        "release.submit", "evidence.collect", "delivery.prepare", "delivery.publish", "fleet.sweep", "",
    }  # fmt: skip


def scraped(flower: Flower) -> str:
    return flower.get("/metrics", user=None)[1]


def names(given: str) -> list[str]:
    return re.findall(r'(\w+)="', given)


@pytest.mark.parametrize("password", ["", "one,two"])
def test_a_password_that_opens_it_is_refused(fleet: LocalFleet, password: str) -> None:
    """An empty one, or one that Flower would take for several users', ends the command before anything listens."""
    file = fleet.private_file("flower-password", password)
    child = fleet.start("flower", [*LOCSEAL, "flower", "--port", str(free_port()), "--password-file", file])
    assert child.process.wait(timeout=SECONDS) == 1
    assert "flower.password.invalid" in child.log_text()
