"""What `locseal demo --serve` starts beside the demo: Flower and the metrics, on loopback, for as long as one looks."""

from __future__ import annotations

import secrets
import socket
import time
import urllib.error
import urllib.request
from typing import Final

from rich.console import Console

from worker.cli.flower import PORT as FLOWER_PORT
from worker.cli.flower import USER
from worker.cli.local_fleet import FleetError, LocalFleet, free_port, wait_for
from worker.cli.local_stage import LOCSEAL

METRICS_PORT: Final = 9750
LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 5.0


def start_watching(fleet: LocalFleet) -> list[str]:
    """Start Flower and the metrics, wait until they answer, and return the lines that tell people where."""
    flower_port, metrics_port = _port(FLOWER_PORT), _port(METRICS_PORT)
    password = secrets.token_urlsafe(12)
    password_file = fleet.private_file("flower-password", password)
    flower = fleet.start("flower", [*LOCSEAL, "flower", "--port", str(flower_port), "--password-file", password_file])
    address = f"127.0.0.1:{metrics_port}"
    metrics = fleet.start("metrics", [*LOCSEAL, "metrics", "--listen", address])
    wait_for(lambda: _answers(f"http://127.0.0.1:{flower_port}/healthcheck"), flower, "Flower")
    wait_for(lambda: _answers(f"http://{address}/metrics"), metrics, "the metrics")
    return [
        f"Flower: http://127.0.0.1:{flower_port}/tasks, user {USER}, password {password}",
        f"metrics: http://{address}/metrics",
    ]


def stay(fleet: LocalFleet, console: Console) -> None:
    """Stay until interrupted; raise `FleetError` when a part of the fleet ends by itself."""
    console.print("running until Ctrl-C")
    while True:
        ended = next((child for child in fleet.children if not child.is_running()), None)
        if ended is not None:
            raise FleetError(f"{ended.name} ended unexpectedly; read {ended.log}")
        time.sleep(LOOK_SECONDS)


def _port(wanted: int) -> int:
    """Return a port of the loopback interface if it is free now, else another one that is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - an address of our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
