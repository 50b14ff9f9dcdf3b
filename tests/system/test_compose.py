"""docker-compose.yml, without an engine: its own commands run here as processes, and make the whole path."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from tests.conftest import missing
from tests.system.conftest import QUICK
from worker.adapters.keys import FileKeys
from worker.cli.demo_event import demo_submission
from worker.cli.local_fleet import Child, LocalFleet, free_port, wait_for
from worker.cli.local_stage import LOCSEAL

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def commands() -> dict[str, list[str]]:
    """Return the command of each service, as compose would run it."""
    found: dict[str, list[str]] = {}
    service = ""
    for line in COMPOSE.splitlines():
        if match := re.fullmatch(r"  ([a-z-]+):", line):
            service = match[1]
        elif match := re.fullmatch(r"    command: (\[.*\])", line):
            found[service] = json.loads(match[1].replace("$$", "$"))
    return found


def as_process(command: list[str], places: dict[str, str]) -> list[str]:
    """Return a command of the image as one of this environment: its programs, our places for its paths and ports."""
    programs = {"locseal": list(LOCSEAL), "celery": [sys.executable, "-m", "celery"], "sh": ["sh"]}
    parts = [*programs[command[0]], *command[1:]]
    for place, ours in places.items():
        parts = [part.replace(place, ours) for part in parts]
    return parts


def test_every_service_of_the_issue_is_there() -> None:
    """Redis without eviction, PostgreSQL, migration, a worker for each queue, beat, Flower, metrics and the sandbox."""
    services = commands()
    assert set(services) == {
        "redis", "sandbox", "keys", "migrate", "worker-intake", "worker-evidence", "worker-delivery", "worker-sweep", "beat",
        "flower", "metrics", "prometheus",
    }  # fmt: skip
    assert "  postgres:\n    image: postgres:" in COMPOSE
    consumed = [re.findall(r"--queues (\S+)", services[name][2])[0] for name in services if name.startswith("worker-")]
    assert sorted(",".join(consumed).split(",")) == ["delivery", "evidence", "intake", "runs", "sweep"]
    assert "--maxmemory-policy noeviction" in services["redis"][2]
    assert services["flower"][:2] == ["locseal", "flower"]  # read-only and bounded by itself
    assert "--password-file" in services["flower"]
    published = re.findall(r"ports: (\[.*\])", COMPOSE)
    assert published == ['["127.0.0.1:5555:5555", "127.0.0.1:9090:9090"]']
    assert "    profiles: [monitoring]" in COMPOSE[COMPOSE.index("\n  prometheus:") :]


def test_secrets_come_from_files_and_services_come_back() -> None:
    """No password stands in the file; what should always run is restarted; workers get time to stop."""
    assert re.findall(r"(?i)password: *[^.\s{\[]", COMPOSE) == []
    assert COMPOSE.count("    file: ./secrets/") == 3
    assert COMPOSE.count("restart: unless-stopped") == 5  # the application, redis, postgres, sandbox, prometheus
    assert "stop_grace_period: 120s" in COMPOSE
    assert 'LOCSEAL_GRACE_PERIOD_SECONDS: "120"' in COMPOSE


def test_workers_and_beat_are_probed() -> None:
    """Every worker is asked whether it is alive and ready, beat whether what it needs is there."""
    worker, beat = COMPOSE.index("x-worker:"), COMPOSE.index("  beat:")
    assert '"locseal health live && locseal health ready"' in COMPOSE[worker : COMPOSE.index("services:", worker)]
    assert 'test: ["CMD", "locseal", "health", "ready"]' in COMPOSE[beat : COMPOSE.index("\n  flower:", beat)]


def test_replicas_per_queue_and_confinement() -> None:
    """Compose reads as many workers of each queue as it is told; every service is confined as far as it can be."""
    read = yaml.safe_load(config({"EVIDENCE_WORKERS": "5"}))["services"]
    replicas = {name: int(one["deploy"]["replicas"]) for name, one in read.items() if name.startswith("worker-")}
    assert replicas == {"worker-intake": 1, "worker-evidence": 5, "worker-delivery": 1, "worker-sweep": 1}
    for name, one in read.items():
        assert one["read_only"] is True, name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        if name not in {"redis", "postgres"}:
            image = "prom/prometheus:v2.53.5" if name == "prometheus" else "locseal:0.1.0"
            assert (one["cap_drop"], one["image"]) == (["ALL"], image), name
        assert "privileged" not in one, name
    nodes = [one["command"] for name, one in read.items() if name.startswith("worker-")]
    assert all("random/uuid" in node[2] for node in nodes)  # no two replicas of one name


def config(environment: dict[str, str] | None = None) -> str:
    """Return the whole file as compose understands it (`docker compose config` or docker-compose)."""
    clients = [["docker", "compose"], ["docker-compose"]]
    for client in clients:
        program = shutil.which(client[0])
        if program and subprocess.run([*client, "version"], capture_output=True, check=False).returncode == 0:
            found = subprocess.run(
                [*client, "-f", ROOT / "docker-compose.yml", "config"],
                env=os.environ | (environment or {}),
                capture_output=True,
                text=True,
                check=False,
            )
            assert found.returncode == 0, found.stderr
            return found.stdout
    missing("a compose client", "neither `docker compose` nor docker-compose is installed")
    raise AssertionError


@pytest.fixture
def fleet(tmp_path: Path, broker_program: Path | None) -> LocalFleet:
    """A fleet with nothing started."""
    return LocalFleet(directory=tmp_path / "fleet", settings=dict(QUICK), broker_program=broker_program)


def test_the_commands_make_the_whole_path(
    fleet: LocalFleet, tmp_path: Path, new_postgres_database: Callable[[], URL]
) -> None:
    """Sandbox, keys, migration, workers, beat and Flower by their own commands: 27 locales are delivered."""
    services = commands()
    sandbox_port, flower_port, metrics_port = str(free_port()), str(free_port()), str(free_port())
    places = {
        "8750": sandbox_port,
        "0.0.0.0": "127.0.0.1",  # noqa: S104 - what is replaced
        "/sandbox": str(tmp_path / "sandbox"),
        "/keys": str(tmp_path / "keys"),
        "/run/secrets/flower_password": str(tmp_path / "flower"),
        "exec celery": f"exec {sys.executable} -m celery",
        "locseal ": " ".join([LOCSEAL[0], "-c", f"'{LOCSEAL[2]}'", ""]),
    }
    (tmp_path / "flower").write_text("letmein\n")
    url = new_postgres_database().render_as_string(hide_password=False)

    def start(name: str) -> Child:
        return fleet.start(name, as_process(services[name], places))

    def run(name: str) -> None:
        child = start(name)
        assert child.process.wait(timeout=60) == 0, child.log_text()

    with fleet:
        fleet.start_broker()
        fleet.settings |= {
            "DATABASE_URL": url,
            "KEYS_PRIVATE_DIR": str(tmp_path / "keys" / "private"),
            "KEYS_TRUST_DIR": str(tmp_path / "keys" / "trust"),
            "ALLOW_LOOPBACK_HTTP": "true",
            "PROVIDERS": json.dumps({"default": {"url": f"http://127.0.0.1:{sandbox_port}/provider"}}),
            "CMS": json.dumps({"default": {"url": f"http://127.0.0.1:{sandbox_port}/cms"}}),
        }
        sandbox = start("sandbox")
        wait_for(lambda: "ready" in sandbox.log_text(), sandbox, "the sandbox")
        run("keys")
        run("migrate")
        workers = [start(name) for name in services if name.startswith("worker-")]
        start("beat")
        flower = fleet.start("flower", [*as_process(services["flower"], places), "--port", flower_port])
        metrics = as_process(services["metrics"], places)
        measured = fleet.start("metrics", [*metrics, "--listen", f"127.0.0.1:{metrics_port}"])
        for worker in workers:
            fleet.wait_for_worker(worker)
        keys = FileKeys(tmp_path / "keys" / "private", tmp_path / "keys" / "trust")
        signed = tmp_path / "signed.json"
        signed.write_text(keys.sign("submission", demo_submission()[1]).to_text())
        submitted = fleet.start("submit", [*LOCSEAL, "submit", signed, "--wait"])
        assert submitted.process.wait(timeout=60) == 0, submitted.log_text()
        engine = create_engine(url)
        wait_for(lambda: _delivered(engine) == 1, workers[2], "the delivery")
        engine.dispose()
        wait_for(lambda: _status(flower_port, "/healthcheck", None) == 200, flower, "Flower")
        assert _status(flower_port, "/api/tasks", None) == 401
        assert _status(flower_port, "/api/tasks", "ops:wrong") == 401
        assert _status(flower_port, "/api/tasks", "ops:letmein") == 200
        assert _status(flower_port, "/api/worker/shutdown/x", "ops:letmein", method="POST") in {403, 404, 405}
        wait_for(lambda: _status(metrics_port, "/metrics", None) == 200, measured, "the metrics")
        assert all(worker.is_running() for worker in workers)


def _delivered(engine: object) -> int:
    with engine.connect() as conn:  # type: ignore[attr-defined]
        return int(conn.execute(text("SELECT count(*) FROM deliveries WHERE status = 'succeeded'")).scalar_one())


def _status(port: str, path: str, credentials: str | None, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    if credentials is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0
