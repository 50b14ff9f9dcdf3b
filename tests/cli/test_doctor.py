"""`locseal doctor` on installations that are really sick: servers with bad settings, wrong permissions, altered files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.cli.conftest import Broker, Home, Outcome
from tests.conftest import missing
from worker.adapters.flower_checks import examine_flower
from worker.cli.local_fleet import LocalFleet, embedded_broker, free_port, installed_redis, wait_for
from worker.domain.breaker import BreakerState
from worker.domain.hold import Pause
from worker.domain.symptom import RULES, Examination, by_weight, found
from worker.store.engine import open_engine, writing
from worker.store.pauses import pause
from worker.store.schema import breakers
from worker.store.schema_version import migrate

ROOT = Path(__file__).parents[2]
NO_FLOWER = ("--flower", "http://127.0.0.1:1")


@pytest.fixture
def doctor(locseal: Callable[..., Outcome]) -> Callable[..., dict[str, Any]]:
    """Run `locseal doctor --json` and return what it said, its exit code under `exit`."""

    def run(*arguments: str) -> dict[str, Any]:
        sys.modules.pop("config.celeryconfig", None)
        done = locseal("doctor", "--json", *NO_FLOWER, *arguments)
        assert done.err == ""
        return {**done.json, "exit": done.code, "by_code": {one["code"]: one for one in done.json["symptoms"]}}

    return run


@pytest.fixture(scope="session")
def sick_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that evicts, keeps nothing, is nearly full and lets anybody in."""
    program = installed_redis()
    if program is None and os.environ.get("CI") == "true":
        missing("Redis", "redis-server is not installed")
    port = free_port()
    with LocalFleet(directory=tmp_path_factory.mktemp("sick-redis")) as fleet:
        bad = ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "1mb", "--save", "", "--appendonly", "no"]
        child = fleet.start("redis", [program or embedded_broker(), "--bind", "127.0.0.1", "--port", str(port), *bad])
        wait_for(lambda: "eady to accept connections" in child.log_text(), child, "Redis", 60)
        yield port


def test_a_sound_installation(home: Home, broker: Broker, doctor: Callable[..., dict[str, Any]]) -> None:
    """Migrated, with keys in order, a broker as it should be: what is left to say is that no worker runs."""
    told = doctor()
    assert {code for code, one in told["by_code"].items() if one["severity"] == "error"} == {
        "fleet.workers.none",
        "fleet.unswept",
    }
    assert told["facts"]["database"]["schema"] == "newest"
    assert told["facts"]["broker"]["policy"] == "noeviction"
    assert [one["purpose"] for one in told["facts"]["keys"]["signers"]] == ["approval", "publication"]
    assert told["facts"]["versions"]["locseal"] == "0.1.0"
    assert (told["exit"], told["healthy"]) == (1, False)


def test_a_sick_redis(home: Home, sick_redis: int, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It would delete messages, forgets at a restart and is full; each says so with a command that mends it."""
    monkeypatch.setenv("LOCSEAL_BROKER_URL", f"redis://127.0.0.1:{sick_redis}/0")
    told = doctor()["by_code"]
    assert told["broker.eviction"]["severity"] == "error"
    assert "allkeys-lru" in told["broker.eviction"]["what"]
    assert told["broker.eviction"]["command"] == "redis-cli CONFIG SET maxmemory-policy noeviction"
    assert {"broker.persistence.off", "broker.memory.high"} <= told.keys()


def test_the_commands_mend_it(
    home: Home, sick_redis: int, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a symptom, run as it is printed, takes the symptom away."""
    client = shutil.which("redis-cli")
    if client is None:
        missing("redis-cli", "it is not installed")
    monkeypatch.setenv("LOCSEAL_BROKER_URL", f"redis://127.0.0.1:{sick_redis}/0")
    command = doctor()["by_code"]["broker.eviction"]["command"]
    assert "broker.eviction" in doctor()["by_code"]
    words = [*command.split()[:1], "-p", str(sick_redis), *command.split()[1:]]
    undo = [*words[:-1], "allkeys-lru"]
    subprocess.run(words, check=True, capture_output=True)
    try:
        assert "broker.eviction" not in doctor()["by_code"]
    finally:
        subprocess.run(undo, check=True, capture_output=True)


def test_a_broker_that_refuses_us(
    home: Home, broker: Broker, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong password is told from a broker that is away, and stands nowhere in what is printed."""
    (tmp_path / "wrong").write_text("hunter2-CANARY")
    monkeypatch.setenv("LOCSEAL_BROKER_PASSWORD_FILE", str(tmp_path / "wrong"))
    told = doctor()
    assert "broker.credentials.refused" in told["by_code"]
    assert "hunter2-CANARY" not in json.dumps(told)


def test_everything_is_gone(home: Home, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither broker nor database answers: both are named, with host and port and without a password."""
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", "postgresql+psycopg://w:hunter2-CANARY@127.0.0.1:1/x")
    told = doctor()
    assert {"database.unavailable", "broker.unavailable"} <= told["by_code"].keys()
    assert "127.0.0.1:1/x" in told["by_code"]["database.unavailable"]["what"]
    assert told["exit"] == 1
    assert "hunter2-CANARY" not in json.dumps(told)


def test_servers_that_never_answer(home: Home, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take the connection and say nothing: doctor ends at its deadline and names what it could not finish."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        monkeypatch.setenv("LOCSEAL_DATABASE_URL", f"postgresql+psycopg://w@127.0.0.1:{port}/x?connect_timeout=60")
        monkeypatch.setenv("LOCSEAL_BROKER_URL", f"redis://127.0.0.1:{port}/0")
        monkeypatch.setenv("LOCSEAL_BROKER_TIMEOUT_SECONDS", "60")
        told = doctor("--seconds", "2")
    unfinished = [one["what"] for one in told["symptoms"] if one["code"] == "doctor.check.unfinished"]
    assert sorted(one.split()[3] for one in unfinished) == ["broker", "database"]
    assert told["exit"] == 1


def test_settings_that_are_refused(locseal: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis Cluster, and a misspelt name: said as symptoms, exit code 2, without the values."""
    monkeypatch.setenv("LOCSEAL_BROKER_URL", "redis+cluster://:hunter2-CANARY@r:1/0")
    done = locseal("doctor", "--json")
    assert done.code == 2
    assert [one["code"] for one in done.json["symptoms"]] == ["settings.invalid"]
    assert "names a Redis Cluster" in done.json["symptoms"][0]["what"]
    assert "hunter2-CANARY" not in done.out + done.err


def test_a_visibility_timeout_within_the_leases(
    home: Home, broker: Broker, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than intake may wait, but not longer than a lease: a warning, with the setting to change."""
    monkeypatch.setenv("LOCSEAL_VISIBILITY_TIMEOUT_SECONDS", "500")
    monkeypatch.setenv("LOCSEAL_DELIVERY_LEASE_SECONDS", "600")
    told = doctor()["by_code"]["broker.visibility.short"]
    assert (told["severity"], told["command"]) == ("warning", "export LOCSEAL_VISIBILITY_TIMEOUT_SECONDS=1800")


def test_keys_that_are_open_old_or_shared(home: Home, broker: Broker, doctor: Callable[..., Any]) -> None:
    """A private key that others may read, a directory they may list, an old key, and one key for two purposes."""
    private, trust = home.directory / "keys" / "private", home.directory / "keys" / "trust"
    before = doctor()["by_code"]
    assert not {code for code in before if code.startswith("keys.")} & {
        "keys.file.permissions",
        "keys.directory.permissions",
        "keys.signer.old",
        "keys.trust.overlap",
    }
    private.chmod(0o755)
    for path in private.glob("approval.*.jwk"):
        os.utime(path, (time.time(), time.time() - 400 * 86_400))
    told = doctor()["by_code"]
    assert told["keys.directory.permissions"]["command"] == f"chmod 700 {private}"
    assert "400 days" in told["keys.signer.old"]["what"]
    next(private.glob("publication.*.jwk")).chmod(0o644)
    shutil.copyfile(trust / "approval.jwks.json", trust / "evidence.jwks.json")
    told = doctor()["by_code"]
    assert told["keys.file.permissions"]["severity"] == "error"
    assert told["keys.trust.overlap"]["severity"] == "error"


def test_pauses_and_breakers(home: Home, broker: Broker, doctor: Callable[..., Any]) -> None:
    """What waits on purpose is a note with the command that ends it; an open breaker a warning that names the side."""
    by_ops = Pause(scope="site", name="site-1", owner="ops", reason="launch")
    writing(home.engine, lambda conn: pause(conn, by_ops, now=None))
    opened = {name: getattr(BreakerState(), name) for name in BreakerState.__dataclass_fields__} | {
        "is_open": True,
        "open_until_at": time.time() + 600,
        "reason": "provider.unavailable",
    }
    row = breakers.insert().values(kind="provider", name="lawyers", updated_at=0.0, **opened)
    writing(home.engine, lambda conn: conn.execute(row))
    told = doctor()["by_code"]
    assert (told["pause.active"]["severity"], told["pause.active"]["command"]) == (
        "note",
        "locseal resume --site site-1",
    )
    assert told["breaker.open"]["what"].startswith("lawyers: provider closed until")


def test_a_clock_that_is_off(
    home: Home, broker: Broker, doctor: Callable[..., Any], postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database on PostgreSQL whose clock is minutes away from ours: an error with how far and which way."""
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", postgres_engine.url.render_as_string(hide_password=False))
    assert "database.clock.wrong" not in doctor()["by_code"]
    with time_machine.travel(time.time() + 300, tick=True):
        told = doctor()["by_code"]["database.clock.wrong"]
    assert "behind this machine's" in told["what"]


def test_a_database_that_is_not_migrated(
    home: Home, broker: Broker, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file is made by looking; the command is named; after it the symptom is gone."""
    monkeypatch.setenv("LOCSEAL_STATE_DIR", str(tmp_path / "new"))
    assert doctor()["by_code"]["database.unmigrated"]["command"] == "locseal db upgrade"
    assert not (tmp_path / "new").exists()
    engine = open_engine(f"sqlite:///{tmp_path / 'new' / 'locseal.db'}")
    migrate(engine)
    engine.dispose()
    assert "database.unmigrated" not in doctor()["by_code"]


def test_a_role_that_owns_everything(
    home: Home,
    broker: Broker,
    doctor: Callable[..., Any],
    new_postgres_database: Callable[[], URL],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that could delete approvals is warned about; `--strict` makes a warning count."""
    url = new_postgres_database()
    engine = open_engine(url)
    migrate(engine)
    engine.dispose()
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", url.render_as_string(hide_password=False))
    told = doctor("--strict")
    assert "approvals" in told["by_code"]["database.rights.broad"]["what"]
    assert told["exit"] == 1


def test_a_worker_says_it_at_its_start_and_shows_what_is_not_read(
    home: Home, sick_redis: int, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker of two queues logs each symptom once it has started, misses no key it does not sign with, and reads on."""
    address = f"redis://127.0.0.1:{sick_redis}/0"
    subprocess.run(["redis-cli", "-p", str(sick_redis), "CONFIG", "SET", "maxmemory", "50mb"], check=True)
    shutil.rmtree(home.directory / "keys" / "private")
    with LocalFleet(directory=tmp_path / "fleet") as fleet:
        fleet.settings |= {"BROKER_URL": address, "STATE_DIR": str(home.directory)}
        worker = fleet.start_worker(queues=["intake", "sweep"])
        fleet.wait_for_worker(worker)
        wait_for(lambda: "broker.eviction" in worker.log_text(), worker, "the symptoms", 60)
        lines = [json.loads(line) for line in worker.log_text().splitlines() if "doctor.symptom" in line]
        monkeypatch.setenv("LOCSEAL_BROKER_URL", address)
        wait_for(lambda: "fleet.workers.none" not in doctor()["by_code"], worker, "the worker's answer", 90)
        told = [one["what"].split()[5].rstrip(";") for one in doctor()["symptoms"] if one["code"] == "queue.unconsumed"]
        assert worker.is_running()
    by_code = {line["code"]: line for line in lines}
    assert (by_code["broker.eviction"]["level"], by_code["broker.eviction"]["severity"]) == ("error", "error")
    assert by_code["broker.eviction"]["fix"] == "redis-cli CONFIG SET maxmemory-policy noeviction"
    assert not {code for code in by_code if code.startswith(("keys.private", "keys.signer", "fleet.", "flower."))}
    assert sorted(told) == ["delivery", "evidence", "runs"]


def test_flower_that_anybody_can_read(tmp_path: Path, broker: Broker, home: Home) -> None:
    """A real Flower on every address without a password: both are told, and none of it once it has ended."""
    with LocalFleet(directory=tmp_path / "flower") as fleet:
        fleet.settings |= {
            name: os.environ[f"LOCSEAL_{name}"] for name in ("BROKER_URL", "BROKER_PASSWORD_FILE", "STATE_DIR")
        }
        port = free_port()
        everywhere = "--address=0.0.0.0"
        command = [sys.executable, "-m", "celery", "-A", "worker.app", "flower", "--persistent=False", everywhere]
        child = fleet.start("flower", [*command, f"--port={port}"])
        at = f"http://127.0.0.1:{port}"
        wait_for(lambda: bool(examine_flower(at).facts["is_running"]), child, "Flower", 90)
        told = examine_flower(at)
    assert {one.code for one in told.symptoms} == {"flower.open", "flower.everywhere"}
    assert examine_flower(at) == Examination(facts={"place": at, "is_running": False})


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(place.glob("*.whl"))


def test_files_that_another_package_overwrote(wheel: Path, tmp_path: Path, home: Home, broker: Broker) -> None:
    """An installed wheel is as it was shipped, until another package brings a `tasks` of its own over ours."""
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)

    def told() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from worker.cli.main import run; run()", "doctor", "--json", *NO_FLOWER],
            env={**os.environ, "PYTHONPATH": str(target)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return {one["code"]: one for one in json.loads(done.stdout)["symptoms"]}

    sound = told()
    assert [one for code, one in sound.items() if code.startswith("package.")] == []
    (target / "tasks" / "__init__.py").write_text('"""Somebody else\'s."""\n')
    other = target / "celery_helpers-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-helpers\nVersion: 1.0\n")
    (other / "RECORD").write_text("tasks/__init__.py,,\n")
    sick = told()
    assert "tasks/__init__.py" in sick["package.file.altered"]["what"]
    assert "celery-helpers" in sick["package.file.shared"]["what"]


def test_people_read_what_to_do(home: Home, locseal: Callable[..., Outcome]) -> None:
    """Without `--json`: each symptom with its severity and code, what mends it, and the command on a line of its own."""
    sys.modules.pop("config.celeryconfig", None)
    done = locseal("doctor", *NO_FLOWER)
    assert done.code == 1
    assert "error broker.unavailable: 127.0.0.1:1/0 did not answer" in done.out
    assert "note package.editable" in done.out
    assert done.out.splitlines()[-1].split(",")[0].endswith("errors")


def test_the_worst_comes_first() -> None:
    """Errors, then warnings, then notes; each rule has a sentence, and a command's blanks are filled."""
    some = [found("package.editable", "x"), found("broker.eviction", "x"), found("breaker.open", "x")]
    assert [one.severity for one in by_weight(some)] == ["error", "warning", "note"]
    assert found("queue.unconsumed", "x", queue="intake").command == "celery -A worker.app worker --queues intake"
    assert all(rule.fix for rule in RULES.values())
