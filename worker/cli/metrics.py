"""`locseal metrics`: the state of the fleet for Prometheus, read from the database and Redis when it is asked for.

One process for the whole fleet is enough; two give the same answers. It takes no part in the work: a look costs the
same however many rows there are, its statements are cut off after two seconds, and an answer serves for five.
"""

from __future__ import annotations

import importlib.metadata
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from config.settings import load_settings
from worker.adapters.policies import FilePolicies
from worker.adapters.queue import open_queue
from worker.cli import output
from worker.cli.metric_parts import PARTS, Shown, Sources
from worker.cli.output import Refused
from worker.domain.errors import Blocked
from worker.store.reader import open_reader

KEPT_SECONDS: Final = 5.0  # an answer serves everybody who asks so soon after it
LONGEST_SECONDS: Final = 8.0  # parts that were not begun by then are left out; Prometheus waits ten
LISTEN: Final = "127.0.0.1:9750"

app = typer.Typer(help="Serve metrics.")


@app.command()
def metrics(
    listen: Annotated[str, typer.Option(help="HOST:PORT to serve on; port 0 picks a free one.")] = LISTEN,
    once: Annotated[bool, typer.Option("--once", help="Print them once and end.")] = False,
) -> None:
    """Serve the metrics of the fleet in Prometheus's text format, without TLS or a password: keep it on loopback."""
    host, port = _address(listen)
    settings = load_settings()
    engine = open_reader(settings.database())
    try:
        sources = Sources(
            engine=engine, policies=FilePolicies(settings.policy_file), queue=open_queue(), settings=settings
        )
        registry = CollectorRegistry()
        registry.register(FleetCollector(sources))
        if once:
            typer.echo(generate_latest(registry).decode(), nl=False)
        else:
            _serve(registry, host, port)
    finally:
        engine.dispose()


class FleetCollector(Collector):
    """Reads every part when Prometheus asks; safe to ask from many threads, which share one answer."""

    def __init__(self, sources: Sources, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._ticks = ticks
        self._lock = threading.Lock()
        self._kept: list[Metric] = []
        self._kept_at = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not ask the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all families, at most five seconds old. Never raises for what is away."""
        with self._lock:
            if not self._kept or self._ticks() - self._kept_at >= KEPT_SECONDS:
                self._kept = self._read()
                self._kept_at = self._ticks()
            return self._kept

    def _read(self) -> list[Metric]:
        began = self._ticks()
        families: list[Metric] = []
        is_up: dict[tuple[str, ...], float] = {}
        is_capped: dict[tuple[str, ...], float] = {}
        for name, part in PARTS.items():
            shown = Shown()
            try:
                if self._ticks() - began < LONGEST_SECONDS:
                    part(self._sources, shown)
                    families += shown.families
                    is_up[name,] = 1.0
            except Blocked:
                pass
            is_up.setdefault((name,), 0.0)
            is_capped[name,] = float(shown.is_capped)
        about = Shown()
        about.gauge("part_up", "1 where this part of the metrics could be read.", is_up, ("part",))
        about.gauge("part_capped", "1 where a count of this part is a lower bound.", is_capped, ("part",))
        about.gauge(
            "build_info", "The version that reads.", {(importlib.metadata.version("locseal"),): 1.0}, ("version",)
        )
        about.one("collect_seconds", "How long reading took.", self._ticks() - began)
        return families + about.families


def _serve(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as fault:
        raise Refused("metrics.listen.failed", f"cannot listen on {host}:{port} ({type(fault).__name__})") from None
    output.say(f"metrics: http://{host}:{server.server_port}/metrics")
    over.wait()
    server.shutdown()
    server.server_close()
    thread.join()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise typer.BadParameter("expected HOST:PORT, as in 127.0.0.1:9750", param_hint="--listen")
    return host.strip("[]"), int(port)
