"""`locseal health`: whether this worker is alive, and whether what a worker needs is there. For the platform's probes.

Exit code 0 says yes, 1 no, 2 wrong settings or usage. `live` reads one file and asks nobody; it is run all the time, so
what only `ready` needs is imported there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from config.settings import load_settings
from worker.cli import output
from worker.cli.output import Json
from worker.domain.errors import Blocked

app = typer.Typer(help="Tell the platform whether a worker is alive and ready.", no_args_is_help=True)

OK: Final = "ok"
UNFINISHED: Final = "health.check.unfinished"
NOT_LIVE: Final = "health.not_live"
SCHEMA: Final = frozenset({"database.unmigrated", "database.too_new"})  # it answers, and cannot be used
SQLITE: Final = "sqlite:///"

Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=60, help="Longest wait for all checks together.")]


@app.command()
def live(as_json: Json = False) -> None:
    """Tell whether the worker of these settings is alive: it has touched its heartbeat lately. Asks nobody."""
    settings = load_settings()
    try:
        age = max(0.0, time.time() - settings.heartbeat().stat().st_mtime)
    except OSError:
        raise output.Refused(NOT_LIVE, "there is no heartbeat: no worker with these settings has run here") from None
    if age > settings.liveness_seconds:
        what = f"the last heartbeat is {age:.0f} s old, more than {settings.liveness_seconds:g} s"
        raise output.Refused(NOT_LIVE, what, details={"age_seconds": round(age, 1)})
    output.put({"live": True, "age_seconds": round(age, 1)}, as_json=as_json, lines=[f"alive {age:.0f} s ago"])


@app.command()
def ready(seconds: Seconds = 10.0, as_json: Json = False) -> None:
    """Tell whether the database answers, has the schema of this version, and the broker answers."""
    from worker.adapters.queue import open_queue

    settings = load_settings()
    url, _ = settings.database(), settings.broker()  # wrong settings are no answer of the other side
    found = _together({"migrations": lambda: _check_schema(url), "broker": open_queue().ping}, seconds)
    answers = found["migrations"] in {OK, *SCHEMA}
    checks = {"database": OK if answers else found["migrations"], **found}
    value: dict[str, Any] = {"ready": all(code == OK for code in checks.values()), "checks": checks}
    output.put(value, as_json=as_json, lines=[f"{name}: {code}" for name, code in checks.items()])
    if not value["ready"]:
        raise typer.Exit(output.REFUSED)


def _check_schema(url: str) -> None:
    from worker.store.engine import open_engine
    from worker.store.schema_version import check_schema

    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():  # a probe makes no file
        raise Blocked("database.unmigrated", "there is no database yet; run `locseal db upgrade`")
    engine = open_engine(url, pool_size=1)
    try:
        check_schema(engine)
    finally:
        engine.dispose()


def _together(checks: Mapping[str, Callable[[], None]], seconds: float) -> dict[str, str]:
    """Return for each check `ok`, the code of its refusal, or that it was not finished in time; waits no longer."""
    found = dict.fromkeys(checks, UNFINISHED)

    def run(name: str, check: Callable[[], None]) -> None:
        try:
            check()
            found[name] = OK
        except Blocked as fault:
            found[name] = fault.code

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in checks.items()]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found)
