"""A whole release with TLS to Redis and PostgreSQL, a user of its own for each process, and no right too many."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from config.settings import load_settings
from tests.conftest import missing
from tests.system.conftest import QUICK, stage_on
from tests.system.secured import Authority, SecuredFleet, SecuredPostgres
from worker.cli.demo_event import SITE_ID, demo_submission
from worker.cli.local_fleet import free_port, installed_redis, wait_for
from worker.cli.local_stage import Stage
from worker.cli.main import call
from worker.store.checkup import EVIDENCE_OF_RECORD
from worker.store.engine import open_engine
from worker.store.schema import metadata

# What was signed or hashed: not even its own role may change it.
SIGNED = [
    ("submissions", "body"),
    ("approvals", "document"),
    ("approvals", "signature"),
    ("receipts", "receipt"),
    ("public_keys", "jwk"),
    ("deliveries", "payload"),
    ("deliveries", "signature"),
    ("results", "document"),
    ("events", "document"),
    ("setbacks", "code"),
    ("delivery_answers", "document"),
]
OTHERS = [
    ("reader", "UPDATE jobs SET updated_at = 0"),
    ("reader", "DELETE FROM approvals"),
    ("producer", "SELECT body FROM submissions"),
    ("producer", "SELECT * FROM events"),
    ("scaler", "SELECT event_id FROM evidence"),
    ("scaler", "SELECT document FROM results"),
    ("operator", "DELETE FROM approvals"),
    ("operator", "DELETE FROM legal_holds"),
    ("pruner", "DELETE FROM approvals"),
    ("pruner", "DELETE FROM submissions"),
    ("pruner", "UPDATE legal_holds SET released_at = 0"),
    ("operator", "UPDATE approvals SET document = ''"),
    ("operator", "DROP TABLE pauses"),
]
pytestmark = pytest.mark.timeout(300)  # many processes start here, one after the other
LONG = 90.0  # seconds for a step, on a machine that is very busy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA that both servers are certified by."""
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(scope="module")
def postgres(authority: Authority) -> Iterator[SecuredPostgres]:
    """The database server with its roles."""
    server = SecuredPostgres(authority)
    try:
        server.start()
        server.make_roles()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def stage(authority: Authority, postgres: SecuredPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Broker, sandbox and keys; the database migrated and granted by its owner; the settings are the worker's."""
    program = installed_redis()
    if program is None:
        missing("Redis", "redis-server is not installed")
    fleet = SecuredFleet(
        directory=tmp_path_factory.mktemp("secured") / "fleet",
        settings=dict(QUICK),
        broker_program=program,
        authority=authority,
    )
    for role, password in postgres.passwords.items():
        (fleet.directory / f"{role}_password").write_text(password)
    with fleet:
        owner = (
            postgres.address("owner").replace("locseal_owner@", f"locseal_owner:{postgres.passwords['owner']}@")
            + f"?sslmode=verify-full&sslrootcert={authority.ca}"
        )
        for found in stage_on(fleet, owner):
            fleet.settings |= {"DATABASE_CA_FILE": str(authority.ca)} | of_role(found, postgres, "worker")
            locseal(found, "db", "upgrade", settings=of_role(found, postgres, "owner"))
            locseal(found, "db", "grant", settings=of_role(found, postgres, "owner"))
            yield found


def of_role(stage: Stage, postgres: SecuredPostgres, role: str, host: str = "127.0.0.1") -> dict[str, str]:
    """Return the settings by which a role reaches the database."""
    return {
        "DATABASE_URL": postgres.address(role, host),
        "DATABASE_PASSWORD_FILE": str(stage.fleet.directory / f"{role}_password"),
    }


def locseal(stage: Stage, *arguments: str, settings: Mapping[str, str], code: int = 0) -> str:
    """Run a command in this process with settings of its own, check how it ends, and return what it printed."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        for name, value in {**stage.fleet.settings, **settings}.items():
            patch.setenv(f"LOCSEAL_{name}", value)
        patch.setattr(sys, "argv", ["locseal", *arguments])
        sys.modules.pop("config.celeryconfig", None)  # computed from the settings once in a process
        with pytest.raises(SystemExit) as ended, capture_logs():
            call()
    sys.modules.pop("config.celeryconfig", None)
    assert (ended.value.code or 0) == code, said.getvalue()
    return said.getvalue()


def doctor(stage: Stage, code: int = 0, **settings: str) -> dict[str, Any]:
    """Return what `locseal doctor` says, by code."""
    said = locseal(stage, "doctor", "--json", "--flower", "http://127.0.0.1:1", settings=settings, code=code)
    return {one["code"]: one["what"] for one in json.loads(said)["symptoms"]}


def test_a_release_with_the_least_rights(stage: Stage, postgres: SecuredPostgres) -> None:
    """Submitted as the producer, worked off as the worker: delivered, and the producer sees that it was accepted."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    worker = fleet.start_worker()
    fleet.start_beat()
    wait_for(lambda: "worker.started" in worker.log_text(), worker, "the worker", LONG)
    signed = fleet.directory / "signed.json"
    signed.write_text(stage.sign(demo_submission()[1]))
    as_producer = fleet.broker_settings("producer") | of_role(stage, postgres, "reader")
    locseal(stage, "submit", str(signed), settings=as_producer)
    with postgres.connect("reader") as reader:

        def delivered() -> bool:
            counted = reader.execute("SELECT count(*) FROM deliveries WHERE status = 'succeeded'").fetchone()
            return counted == (1,)

        wait_for(delivered, worker, "the delivery", LONG)
    with postgres.connect("producer") as producer:
        states = producer.execute("SELECT state FROM submission_status").fetchall()
    assert states == [("accepted",)]


def test_flower_sees_the_workers_with_its_own_user(stage: Stage) -> None:
    """Its user may listen and ask, and that is enough: the worker shows with its queues."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "worker.app",
        "flower",
        f"--port={port}",
        "--basic-auth=ops:letmein",
    ]
    flower = fleet.start("flower", command, settings=fleet.broker_settings("flower"))

    def seen() -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/workers?refresh=1")
        request.add_header("Authorization", "Basic " + base64.b64encode(b"ops:letmein").decode())
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return any(
                    {one["name"] for one in worker.get("active_queues", [])} >= {"intake", "evidence"}
                    for worker in json.load(answer).values()
                )
        except OSError:
            return False

    wait_for(seen, flower, "Flower to see the worker", LONG)
    flower.stop()


def test_people_have_the_rights_they_need(stage: Stage, postgres: SecuredPostgres) -> None:
    """An auditor reads, an operator holds and revokes, prune removes: each as its own role."""
    locseal(stage, "audit", settings=of_role(stage, postgres, "reader"))
    as_operator = of_role(stage, postgres, "operator")
    with postgres.connect("reader") as reader:
        approval = reader.execute("SELECT approval_id FROM approvals LIMIT 1").fetchone()
    assert approval is not None
    locseal(stage, "approvals", "revoke", approval[0], "--reason", "trial", "--yes", settings=as_operator)
    locseal(stage, "hold", "place", "--site", SITE_ID, "--reason", "trial", settings=as_operator)
    locseal(stage, "prune", "--older-than", "7d", "--apply", settings=of_role(stage, postgres, "pruner"))


def test_nobody_was_refused_anything(stage: Stage, postgres: SecuredPostgres) -> None:
    """In all of that neither Redis nor PostgreSQL denied a command, and doctor has nothing to say about rights or TLS."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    refused = [line for line in fleet.redis_cli("admin", "ACL", "LOG").splitlines() if line]
    assert refused == [], "\n".join(refused)
    assert "permission denied" not in postgres.log_text()
    told = doctor(stage)
    assert not {code for code in told if code.startswith(("database.", "broker.rights", "broker.tls", "broker.cred"))}


def test_a_redis_user_can_do_no_more_than_it_needs(stage: Stage) -> None:
    """A producer sends and reads nothing; Flower sends nothing; a worker neither empties nor configures Redis."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    refused = {
        "producer": [
            ["RPOP", "intake"],
            ["LRANGE", "intake", "0", "-1"],
            ["LPUSH", "evidence", "x"],
            ["HGETALL", "unacked"],
            ["PUBLISH", "/0.celery.pidbox", "x"],
            ["FLUSHALL"],
            ["CONFIG", "GET", "*"],
            ["KEYS", "*"],
        ],
        "flower": [["LPUSH", "intake", "x"], ["RPOP", "intake"], ["DEL", "evidence"], ["FLUSHDB"], ["ACL", "LIST"]],
        "scaler": [["RPOP", "intake"], ["LRANGE", "intake", "0", "-1"], ["LLEN", "evidence"], ["LPUSH", "intake", "x"]],
        "worker": [["FLUSHALL"], ["CONFIG", "SET", "maxmemory", "1"], ["ACL", "LIST"], ["SHUTDOWN"], ["KEYS", "*"]],
    }
    for user, commands in refused.items():
        for command in commands:
            assert "NOPERM" in fleet.redis_cli(user, *command), (user, command)
        assert fleet.redis_cli(user, "PING").strip() == "PONG"
    counting = "return redis.call(redis.call('type', KEYS[1]).ok == 'zset' and 'zcard' or 'llen', KEYS[1])"
    assert fleet.redis_cli("scaler", "EVAL", counting, "1", "intake").strip() == "0"  # as KEDA asks
    fleet.redis_cli("admin", "ACL", "LOG", "RESET")


def test_without_tls_certificate_or_password_nobody_gets_in(stage: Stage, postgres: SecuredPostgres) -> None:
    """Redis has no port in the clear and no user without a password; PostgreSQL refuses a connection without TLS."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    plain = subprocess.run(
        ["redis-cli", "-p", str(fleet.broker_port), "PING"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "PONG" not in plain.stdout
    fleet.passwords["nobody"] = "wrong"
    assert "WRONGPASS" in fleet.redis_cli("nobody", "PING")
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(
            f"postgresql://locseal_worker:{postgres.passwords['worker']}@127.0.0.1:{postgres.port}/postgres"
            "?sslmode=disable"
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_ca_and_another_name_are_refused(
    stage: Stage, postgres: SecuredPostgres, tmp_path: Path, host: str
) -> None:
    """A server that another CA certified, or whose certificate has another name, is not talked to; doctor says so."""
    fleet = stage.fleet
    assert isinstance(fleet, SecuredFleet)
    others = str(Authority(tmp_path, "other").ca)
    ca = others if host == "127.0.0.1" else str(fleet.authority.ca)
    told = doctor(
        stage,
        code=1,
        BROKER_CA_FILE=ca,
        DATABASE_CA_FILE=ca,
        **fleet.broker_settings("worker", host),
        **of_role(stage, postgres, "worker", host),
    )
    assert {"broker.tls.refused", "database.unavailable"} <= told.keys()
    engine = open_engine(
        load_settings(
            database_url=postgres.address("worker", host),
            database_password_file=fleet.directory / "worker_password",
            database_ca_file=ca,
        ).database()
    )
    try:
        with pytest.raises(OperationalError, match="certificate"), engine.connect():
            pass
    finally:
        engine.dispose()


def test_a_worker_takes_nothing_away_from_an_audit(stage: Stage, postgres: SecuredPostgres) -> None:
    """Its role can neither drop, alter, empty nor remove from what proves a release, nor change what was signed."""
    refused = [f"DELETE FROM {table}" for table in EVIDENCE_OF_RECORD]
    refused += [f"TRUNCATE {table}" for table in EVIDENCE_OF_RECORD]
    refused += [f"DROP TABLE {table}" for table in metadata.tables]
    refused += [f"ALTER TABLE {table} ADD COLUMN x int" for table in metadata.tables]
    refused += [f"UPDATE {table} SET {column} = NULL" for table, column in SIGNED]
    refused += [
        "CREATE TABLE x (y int)",
        "DELETE FROM deliveries",
        "INSERT INTO pauses VALUES ('all', '', 'w', 'w', 0)",
        "DELETE FROM pauses",
        "UPDATE legal_holds SET released_at = 0",
        "INSERT INTO prunings SELECT * FROM prunings",
        "UPDATE approvals SET revoked_at = NULL",
        "UPDATE alembic_version SET version_num = 'x'",
        "CREATE ROLE x",
        "COPY approvals TO PROGRAM 'cat'",
        "SET session_replication_role = replica",
    ]
    with postgres.connect("worker") as worker:
        for statement in refused:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(statement)  # type: ignore[arg-type]
    for role, statement in OTHERS:
        with postgres.connect(role) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement)  # type: ignore[arg-type]


def test_every_table_is_of_the_owner(postgres: SecuredPostgres, stage: Stage) -> None:
    """Tables of this version are granted: the worker may read and add to each, and owns none."""
    with postgres.connect("worker") as worker:
        rows = worker.execute(
            "SELECT relname, pg_get_userbyid(relowner), has_table_privilege(oid, 'SELECT') FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"
        ).fetchall()
    assert {name for name, _, _ in rows} == {*metadata.tables, "alembic_version"}
    assert {(owner, reads) for _, owner, reads in rows} == {("locseal_owner", True)}
