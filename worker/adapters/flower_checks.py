"""Whether a Flower on this machine shows the fleet to everybody. Asks for pages without a password; changes nothing."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from worker.domain.symptom import Examination, Symptom, found

DEFAULT: Final = "http://127.0.0.1:5555"
SECONDS: Final = 2.0
# What must ask for a password: the pages, and the API that could stop workers.
PAGES: Final = ("/workers", "/api/workers")
LISTENS: Final = "0A"  # the state in /proc/net/tcp
EVERYWHERE: Final = {"00000000", "0" * 32}


def examine_flower(url: str = DEFAULT, *, tables: tuple[Path, ...] | None = None) -> Examination:
    """Return whether Flower answers at a URL, and what anybody could see there. No Flower is nothing wrong."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 5555
    answers = {page: _status(host, port, f"{parts.path.rstrip('/')}{page}") for page in PAGES}
    if all(status is None for status in answers.values()):
        return Examination(facts={"place": url, "is_running": False})
    return Examination(
        facts={"place": url, "is_running": True}, symptoms=tuple(_judged(url, port, answers, tables or _TABLES))
    )


_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def _judged(url: str, port: int, answers: dict[str, int | None], tables: tuple[Path, ...]) -> Iterator[Symptom]:
    opened = [page for page, status in answers.items() if status == http.client.OK]
    if opened:
        yield found("flower.open", f"{url} shows {' and '.join(opened)} without a password")
    if listens_everywhere(port, tables):
        yield found("flower.everywhere", f"port {port} is open on every address of this machine")


def _status(host: str, port: int, page: str) -> int | None:
    """Return the status of a page asked for without credentials; None where nothing answers HTTP."""
    asked = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        asked.request("GET", page)
        return asked.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        asked.close()


def listens_everywhere(port: int, tables: tuple[Path, ...]) -> bool:
    """Tell whether anything on this machine (Linux) listens at a port on all its addresses."""
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == LISTENS and int(number, 16) == port and address in EVERYWHERE:
                return True
    return False
