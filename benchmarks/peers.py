"""The hand-written peers as sides of a comparison: plain Celery in its two ways and two pools, the bare loop in its two."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import psycopg
from celery import Celery

from benchmarks.peer_documents import TABLES
from benchmarks.servers import Servers
from benchmarks.sides import TOLD, Side
from benchmarks.work import Event


class Peer(Side):
    """A hand-written peer: its own lean tables."""

    def __init__(self, servers: Servers, *, processes: int = 2, stub_url: str = "") -> None:
        """Make its tables."""
        super().__init__(servers, processes=processes, stub_url=stub_url)
        with psycopg.connect(servers.url(self.database), autocommit=True) as conn:
            conn.execute(TABLES)
            conn.execute(TOLD)

    def seed(self, events: Sequence[Event]) -> None:
        """Copy the rows in."""
        with (
            psycopg.connect(self.servers.url(self.database)) as conn,
            conn.cursor().copy("COPY work (request_id, event_id, locale, document) FROM STDIN") as copy,
        ):
            for one in events:
                for request in one.requests:
                    locale = request.document["target_locale"]
                    copy.write_row((request.request_id, one.change.event_id, locale, request.body.decode()))


class BareLoop(Peer):
    """The bare claim loop; it finds its rows by itself."""

    mode = "flow"
    name = "bare loop"

    def start(self) -> None:
        """Start the loops."""
        for number in range(self.processes):
            self.spawn(str(number), [sys.executable, "-m", "benchmarks.bare_loop", self.mode], {})

    def send(self, event: Event) -> None:
        """Send nothing."""


class LockstepLoop(BareLoop):
    """The bare loop in batches of 50."""

    mode = "lockstep"
    name = "bare loop, lockstep"


class PlainCelery(Peer):
    """Plain Celery; `task` and `pool` are the two ways and the two pools."""

    task = "review"
    pool = "threads"

    def start(self) -> None:
        """Start two processes of 16 threads each, or one of prefork with two children."""
        self._app = Celery("sender", broker=self.servers.broker_url(self.number), set_as_current=False)
        self._app.conf.update(task_default_queue=self.database, task_ignore_result=True)
        base = [sys.executable, "-m", "celery", "-A", "benchmarks.plain_celery", "worker", "--loglevel", "WARNING"]
        base += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        broker = {"BENCH_BROKER": self.servers.broker_url(self.number), "BENCH_QUEUE": self.database}
        if self.pool == "prefork":
            self.spawn(
                "0", [*base, "--pool", "prefork", "--concurrency", str(self.processes), "--hostname", "p@%h"], broker
            )
        else:
            for number in range(self.processes):
                own = ["--pool", "threads", "--concurrency", "16", "--hostname", f"t{number}@%h"]
                self.spawn(str(number), [*base, *own], broker)

    def send(self, event: Event) -> None:
        """Send one message for the event, or one for each of its locales."""
        name = f"benchmarks.plain_celery.{self.task}"
        ids = [event.change.event_id] if self.task == "review_event" else [one.request_id for one in event.requests]
        with self._app.producer_or_acquire() as producer:
            for one in ids:
                self._app.send_task(name, args=[one], queue=self.database, producer=producer)


class PerLocaleThreads(PlainCelery):
    """One task per locale, 16 threads in each process."""

    name = "Celery per locale, threads"


class PerLocalePrefork(PlainCelery):
    """One task per locale, forked children."""

    name, pool = "Celery per locale, prefork", "prefork"


class PerEventThreads(PlainCelery):
    """One task per event, 16 threads in each process."""

    name, task = "Celery per event, threads", "review_event"


class PerEventPrefork(PlainCelery):
    """One task per event, forked children."""

    name, task, pool = "Celery per event, prefork", "review_event", "prefork"
