"""`locseal audit`: read the whole database through and prove, offline, why every text went live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from worker.adapters.key_files import read_trust
from worker.cli import output
from worker.cli.installation import database
from worker.cli.output import Json, Refused
from worker.domain.audit.finding import MOST_KEPT, Finding, Tally
from worker.domain.identifier import is_token
from worker.domain.key import TrustSet
from worker.flow.audit_database import Progress as Report
from worker.flow.audit_database import audit_database
from worker.store.audit_pages import Scope, has_scope

app = typer.Typer(help="Prove that every row and every promise holds.")


@app.callback(invoke_without_command=True)
def audit(
    site: Annotated[str | None, typer.Option(help="Only the rows of one site.")] = None,
    event: Annotated[str | None, typer.Option(help="Only the rows of one change event.")] = None,
    trust: Annotated[
        Path | None,
        typer.Option(help="A trust directory: also say which kept keys are revoked or unknown there today."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify every row's validity, hash, signature and binding, and every promise. Changes nothing.

    Signatures are verified with the public keys that the database keeps, so no key file is needed. Exit code 0: clean;
    1: violations (or the database could not be read); 2: wrong usage. It may run beside a fleet at work.
    """
    for name, value in (("--site", site), ("--event", event)):
        if value is not None and not is_token(value):
            raise typer.BadParameter("expected 1 to 256 characters of A-Z a-z 0-9 _ . : -", param_hint=name)
    scope = Scope(site=site, event=event)
    today = None if trust is None else _trusted(trust)
    began = time.monotonic()
    with database() as engine:
        if not has_scope(engine, scope):
            raise Refused(
                "release.unknown", "the database knows no such site or event", allowed=["locseal releases list"]
            )
        with _bar(hidden=as_json) as progress:
            tally = audit_database(engine, scope=scope, trust=today, progress=progress)
    elapsed = time.monotonic() - began
    report = tally.to_json(elapsed_seconds=elapsed, site=site, event=event)
    output.put(report, as_json=as_json, lines=_lines(tally, elapsed))
    if tally.violation_count:
        raise typer.Exit(output.REFUSED)


def _trusted(directory: Path) -> Mapping[str, TrustSet]:
    """Return the trust sets of a directory; a broken one is refused, since its silence would look like an answer."""
    found = read_trust(directory)
    if found.findings:
        first = found.findings[0]
        raise Refused(first.code, first.sentence(), allowed=["locseal keys check"])
    return found.sets


def _lines(tally: Tally, elapsed: float) -> Iterator[str]:
    read = sum(tally.checked.values())
    yield from output.table(("area", "rows"), tally.checked.items(), empty="")
    yield ""
    for title, kept, count in (
        ("violations", tally.violations, tally.violation_count),
        ("notes", tally.notes, tally.note_count),
    ):
        if count:
            yield f"{count} {title}:"
            yield from output.table(("code", "row", "what"), map(_cells, kept), empty="")
            if count > MOST_KEPT:
                yield f"and {count - MOST_KEPT} more, counted by code with --json"
            yield ""
    verdict = "clean" if tally.violation_count == 0 else f"{tally.violation_count} violations"
    yield f"{verdict}: {read} rows in {elapsed:.1f} s"


def _cells(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.row_id, finding.sentence


@contextmanager
def _bar(*, hidden: bool) -> Iterator[Report]:
    """Lend what says how far the audit is: a bar on the terminal's standard error, else nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("counting", total=None)
        yield lambda area, done, total: bar.update(task, description=area, completed=done, total=total)
