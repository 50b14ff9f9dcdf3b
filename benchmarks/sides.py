"""The sides of a comparison: what every side is, and the product as one. They have one turn after the other.

Each side has its own database and its own numbered Redis database on the same servers, and keeps its processes for the
whole run; while it is not its turn they are stopped by signal, so that none costs the others anything.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from benchmarks.answers import ANSWERS, STUB
from benchmarks.our_services import services_on
from benchmarks.peer_documents import DATABASE, KEYS
from benchmarks.servers import ROOT, Servers, cpu_seconds
from benchmarks.work import Event, Work
from worker.adapters.queue import open_queue
from worker.cli.local_fleet import Child
from worker.domain.messages import EVIDENCE_COLLECT
from worker.flow.accept_submission import accept_submission
from worker.store.engine import open_engine
from worker.store.schema_version import migrate

PATIENCE_SECONDS: Final = 120.0
TOLD: Final = """
CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('stored', NEW.event_id); RETURN NEW; END $$;
CREATE TRIGGER told AFTER INSERT ON deliveries FOR EACH ROW EXECUTE FUNCTION told();
"""


class Watch:
    """Waits for stored deliveries: PostgreSQL tells of each once it is committed, so nobody polls."""

    def __init__(self, url: str, children: Sequence[Child]) -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute("LISTEN stored")
        self._children = children

    def wait(self, event_ids: Sequence[str], seconds: float = PATIENCE_SECONDS) -> float:
        """Return the time (`time.perf_counter`) when the last of these deliveries was there; `SystemExit` if not."""
        missing = set(event_ids)
        until = time.monotonic() + seconds
        while missing:
            for notice in self._conn.notifies(timeout=1.0, stop_after=1):
                missing.discard(notice.payload)
            for child in self._children:
                if not child.is_running():
                    raise SystemExit(f"benchmarks: {child.name} ended: {child.log_text()[-2000:]}")
            if time.monotonic() > until:
                logs = "\n".join(f"{child.name}: {child.log_text()[-1500:]}" for child in self._children)
                raise SystemExit(f"benchmarks: {len(missing)} deliveries did not come in {seconds:g} s\n{logs}")
        return time.perf_counter()

    def close(self) -> None:
        """End the connection."""
        self._conn.close()


class Side:
    """One side. `name` is what tables call it."""

    name = ""
    number = 2  # of its Redis database

    def __init__(self, servers: Servers, *, processes: int = 2, stub_url: str = "") -> None:
        """Make its empty database."""
        self.servers = servers
        self.processes = processes
        self.stub_url = stub_url
        self.label = f"side {len(servers.kept)} {self.name}".replace(" ", "-").replace(",", "")
        self.database = self.label.lower()
        self.children: list[Child] = []
        self.create()

    def create(self) -> None:
        """Make the database."""
        self.servers.create_database(self.database)

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes and wait until they work."""
        raise NotImplementedError

    def spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start one process with variables of its own."""
        own = {
            "PYTHONPATH": str(ROOT),
            ANSWERS: str(self.servers.answers),
            KEYS: str(self.servers.directory / "keys"),
            DATABASE: self.servers.url(self.database),
            STUB: self.stub_url,
            **environment,
        }
        variables = [f"{key}={value}" for key, value in own.items()]
        child = self.servers.fleet.start(f"{self.label}-{name}", ["env", *variables, *command])
        self.children.append(child)
        return child

    def pause(self) -> None:
        """Stop all processes, but not within a transaction: what it locks would keep others waiting."""
        while True:
            for child in self.children:
                child.send(signal.SIGSTOP)
            if not self.is_in_transaction():
                return
            self.resume()
            time.sleep(0.005)

    def is_in_transaction(self) -> bool:
        """Tell whether some process of this side has a transaction open."""
        with psycopg.connect(self.servers.url(self.database), autocommit=True) as conn:
            found = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
                " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchone()
        return found != (0,)

    def resume(self) -> None:
        """Let all processes go on."""
        for child in self.children:
            child.send(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes of this side so far."""
        return sum(cpu_seconds(child.process.pid) for child in self.children)

    # --- work -------------------------------------------------------------------------------------------------------

    def seed(self, events: Sequence[Event]) -> None:
        """Put the rows of events into the database; no message yet."""
        raise NotImplementedError

    def send(self, event: Event) -> None:
        """Send what starts the work on an event."""
        raise NotImplementedError

    def watch(self) -> Watch:
        """Return what waits for this side's deliveries."""
        return Watch(self.servers.url(self.database), self.children)

    def check(self, work: Work) -> None:
        """Raise unless there is exactly one approval for each locale and one delivery for each event of the work."""
        with psycopg.connect(self.servers.url(self.database)) as conn:
            counts = [
                conn.execute(
                    f"SELECT count(*), count(DISTINCT {column}) FROM {table} WHERE {column} = ANY (%s)".encode(), (ids,)
                ).fetchone()
                for table, column, ids in (
                    ("approvals", "request_id", work.request_ids),
                    ("deliveries", "event_id", work.event_ids),
                )
            ]
        expected = [(len(work.request_ids),) * 2, (len(work.event_ids),) * 2]
        if counts != expected:
            raise SystemExit(f"benchmarks: {self.name} stored {counts}, expected {expected}")


@dataclass
class Kept:
    """A queue that keeps nothing: seeding wakes nobody."""

    def wake(self, message: str, **ids: str) -> bool:  # noqa: ARG002 - the port's signature
        """Take the message."""
        return True


class Ours(Side):
    """The product: shipped worker processes and beat on their defaults, publication left to a release run."""

    name = "locseal"

    def __init__(
        self,
        servers: Servers,
        *,
        processes: int = 2,
        stub_url: str = "",
        settings: Mapping[str, str] | None = None,
        has_beat: bool = True,
    ) -> None:
        """Make its migrated database; `settings` are `LOCSEAL_*` without the prefix. Without beat nothing is swept."""
        super().__init__(servers, processes=processes, stub_url=stub_url)
        self.number = servers.next_number()
        self.settings = dict(settings or {})
        self.has_beat = has_beat
        self.engine = open_engine(self.address())
        migrate(self.engine)
        self.tell()
        self.queue = open_queue(servers.broker_url(self.number))
        self._services = services_on(self.engine, servers.keys, Kept())

    def address(self) -> str:
        """Return the database's address as the product is given it."""
        return self.servers.url(self.database).replace("postgresql://", "postgresql+psycopg://")

    def tell(self) -> None:
        """Let the database tell of stored deliveries."""
        with psycopg.connect(self.servers.url(self.database), autocommit=True) as conn:
            conn.execute(TOLD)

    def environment(self) -> dict[str, str]:
        """Return the settings of this side's processes, as environment variables."""
        keys = self.servers.directory / "keys"
        policy = self.servers.directory / "policy.json"
        # The work ends in the outbox on all sides: nothing is sent to a CMS.
        policy.write_text(json.dumps({"default": {"publication": "guided"}}))
        chosen = {
            "DATABASE_URL": self.address(),
            "BROKER_URL": self.servers.broker_url(self.number),
            "STATE_DIR": str(self.servers.directory / "state"),
            "KEYS_PRIVATE_DIR": str(keys / "private"),
            "KEYS_TRUST_DIR": str(keys / "trust"),
            "POLICY_FILE": str(policy),
            "ALLOW_LOOPBACK_HTTP": "true",
            "CMS": json.dumps({"default": {"url": "http://127.0.0.1:9"}}),
            "PROVIDERS": json.dumps({"default": {"url": f"{self.stub_url or 'http://127.0.0.1:9'}/provider"}}),
            **self.settings,
        }
        return {f"LOCSEAL_{name}": value for name, value in chosen.items()}

    def start(self) -> None:
        """Start the worker processes and one beat."""
        app = "worker.app" if self.stub_url else "benchmarks.our_worker"
        celery = [sys.executable, "-m", "celery", "-A", app]
        for number in range(self.processes):
            node = ["--without-gossip", "--without-mingle", "--hostname", f"w{number}@%h"]
            self.spawn(f"worker-{number}", [*celery, "worker", *node], self.environment())
        if self.has_beat:
            self.spawn("beat", [*celery, "beat", "--pidfile", ""], self.environment())

    def seed(self, events: Sequence[Event]) -> None:
        """Take the events in through the product's own intake; the wakes are held back."""
        for one in events:
            answer = accept_submission(self._services, one.submission)
            if answer.state != "accepted":
                raise SystemExit(f"benchmarks: the intake refused an event: {answer}")

    def send(self, event: Event) -> None:
        """Send the wake that intake sends."""
        self.queue.wake(EVIDENCE_COLLECT, event_id=event.change.event_id)
