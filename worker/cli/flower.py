"""`locseal flower`: Flower as the product means it: read-only, behind a password, in a bounded memory, on loopback.

Flower is told everything on its own command line; its password travels in the environment, which no other user can
read. It listens to the events of the workers through Redis and knows nothing of the database.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from config.settings import load_settings
from worker.cli import output
from worker.cli.output import Refused

USER: Final = "ops"
PORT: Final = 5555
OPTIONS: Final = (
    "--read_only",
    "--max_tasks=5000",  # of some 2 KiB each
    "--max_workers=100",
    "--purge_offline_workers=600",
    "--persistent=False",
    "--tasks_columns=name,state,kwargs,received,started,runtime,worker,uuid",
    f"--conf={os.devnull}",  # not whatever lies as flowerconfig.py in this directory
)
_WEAKENING: Final = ("FLOWER_UNAUTHENTICATED_API", "FLOWER_DEBUG", "FLOWER_AUTH")

app = typer.Typer(help="Watch the workers in Flower.")


@app.command()
def flower(
    address: Annotated[
        str, typer.Option(help="Where it listens; on anything but loopback, put TLS before it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = PORT,
    password_file: Annotated[
        Path | None, typer.Option(help="File with the password of `ops`; without it one is made up and printed.")
    ] = None,
) -> None:
    """Run Flower, read-only and behind a password, until interrupted. `/metrics` and `/healthcheck` need no password."""
    load_settings()  # what is wrong with them is said here, in our words
    password = _read(password_file) if password_file is not None else secrets.token_urlsafe(18)
    if password_file is None:
        output.say(f"Flower: http://{address}:{port}, user {USER}, password {password}")
    sys.stdout.flush()
    os.execve(sys.executable, flower_command(address, port), flower_environment(os.environ, password))  # noqa: S606


def flower_command(address: str, port: int) -> list[str]:
    """Return the command that runs Flower."""
    celery = [sys.executable, "-m", "celery", "-A", "worker.app"]
    return [*celery, "flower", f"--address={address}", f"--port={port}", *OPTIONS]


def flower_environment(environment: Mapping[str, str], password: str) -> dict[str, str]:
    """Return the environment for Flower: with the password, and without what would open it."""
    kept = {name: value for name, value in environment.items() if name not in _WEAKENING}
    return {**kept, "FLOWER_BASIC_AUTH": f"{USER}:{password}"}


def _read(file: Path) -> str:
    try:
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise Refused("flower.password.unreadable", "the password file cannot be read") from None
    if not password or "," in password:
        raise Refused("flower.password.invalid", "the password must not be empty or hold a comma")
    return password
