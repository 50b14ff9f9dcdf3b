"""`locseal pause` and `locseal resume`: stop new work of all, of one site or of one provider, and let it go on.

A pause is a row that every claim reads. What a worker has in hand goes on; so do look-ups of deliveries in doubt.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from worker.cli import output
from worker.cli.installation import database
from worker.cli.output import Json, moment
from worker.cli.spans import said_by, span_seconds
from worker.domain.hold import Pause, Scope
from worker.store.engine import read_clock, reading, writing
from worker.store.pauses import held_by, pause, pauses_in_force, resume

pause_app = typer.Typer(help="Stop new work: all, one site or one provider.")
resume_app = typer.Typer(help="Let paused work go on.")

Site = Annotated[str | None, typer.Option(help="Only this site.")]
Provider = Annotated[str | None, typer.Option(help="Only this review route.")]


@pause_app.command()
def stop(
    site: Site = None,
    provider: Provider = None,
    reason: Annotated[str, typer.Option(help="Why, in one line; shown with everything that waits for it.")] = "",
    until: Annotated[str | None, typer.Option(help="When it ends by itself: 30m, 2h, or 2026-12-01T12:10.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who says so; the name you are logged in by if left out.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the pauses in force and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Pause; a second time replaces reason and end. Times without a zone are UTC."""
    scope, name = _scope(site, provider)
    with database() as engine:
        if not show:
            with reading(engine) as conn:
                now = read_clock(conn, None)
            wanted = Pause(
                scope=scope, name=name, owner=said_by(owner), reason=reason.strip(), until_at=_until(until, now)
            )
            writing(engine, lambda conn: pause(conn, wanted, now=None))
        with reading(engine) as conn:
            found = pauses_in_force(conn, now=None)
    lines = [f"{one.scope} {one.name}".strip() + f": {one.said(_shown)}" for one in found]
    output.put({"pauses": [asdict(one) for one in found]}, as_json=as_json, lines=lines or ["nothing is paused"])


@resume_app.command()
def go_on(
    site: Site = None,
    provider: Provider = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how much would run; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Take a pause away, and say how much may run at once; the next sweep wakes it."""
    scope, name = _scope(site, provider)
    with database() as engine:
        with reading(engine) as conn:
            held = held_by(conn, scope, name, now=None)
            is_paused = any((one.scope, one.name) == (scope, name) for one in pauses_in_force(conn, now=None))
        if not dry_run:
            is_paused = writing(engine, lambda conn: resume(conn, scope, name, now=None))
    what = f"{scope} {name}".strip()
    would = "would run" if dry_run else "may run now"
    locales, sends = output.counted(held.evidence, "locale"), output.counted(held.deliveries, "delivery", "deliveries")
    lines = [f"{what}: {locales} and {sends} {would}"]
    if not is_paused:
        held, lines = type(held)(evidence=0, deliveries=0), [f"{what}: no pause was in force; nothing changes"]
    answer = {"scope": scope, "name": name, "was_paused": is_paused, "dry_run": dry_run, **asdict(held)}
    output.put(answer, as_json=as_json, lines=lines)


def _scope(site: str | None, provider: str | None) -> tuple[Scope, str]:
    if site is not None and provider is not None:
        raise typer.BadParameter("name a site or a provider, not both")
    if site is not None:
        return "site", site
    return ("all", "") if provider is None else ("provider", provider)


def _until(text: str | None, now: float) -> float | None:
    """Return the end of a pause in seconds: a duration from now, or a time."""
    if text is None:
        return None
    span = span_seconds(text)
    if span is not None:
        return now + span
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("expected 30m, 2h or 2026-12-01T12:10", param_hint="--until") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _shown(seconds: float) -> str:
    return moment(seconds) or ""
