"""`locseal quarantine`: what the fleet gave up because its workers died of it, and letting a successor of it follow."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer

from worker.cli import output
from worker.cli.installation import Limit, database, services
from worker.cli.output import Json, Refused, moment
from worker.domain.quarantine import Suspect
from worker.flow.reconcile_delivery import reconcile_delivery
from worker.flow.resume_run import resume_run
from worker.flow.retry_delivery import retry_delivery
from worker.flow.retry_evidence import retry_evidence
from worker.flow.retry_run import retry_run
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.quarantine_views import find_quarantined, list_quarantined

app = typer.Typer(help="See and release work that its workers died of.", no_args_is_help=True)

PAGE: Final = 100


@app.command("list")
def show_list(
    site: Annotated[str | None, typer.Option(help="Only one site.")] = None,
    limit: Limit = PAGE,
    as_json: Json = False,
) -> None:
    """List what is quarantined, the newest first: the suspect step, and whose leases ran out when."""
    with database() as engine, reading(engine) as conn:
        found = list_quarantined(conn, site_id=site, limit=limit)
    rows = [
        (
            one.row_id,
            one.event_id or one.run_id,
            one.site_id,
            f"{one.step}: {one.doing}",
            _expiries(one),
            moment(one.since),
        )
        for one in found
    ]
    columns = ("id", "event or run", "site", "suspect step", "leases that ran out", "since")
    lines = output.table(columns, rows, empty="nothing is quarantined")
    lines += [f"once the cause is mended: {_release(one)}" for one in found[:1]]
    listed = [{**asdict(one), "release": _release(one)} for one in found]
    output.put({"quarantined": listed}, as_json=as_json, lines=lines)


@app.command()
def release(
    row: Annotated[str, typer.Argument(help="The id in the list.")],
    as_json: Json = False,
) -> None:
    """Let a successor follow: evidence under a new revision, a run's step as a new attempt, a delivery anew.

    A delivery is in doubt, so the CMS is asked first; what it has is not sent again.
    """
    with services() as used:
        with reading(used.engine) as conn:
            found = find_quarantined(conn, row)
        if found is None:
            raise Refused(
                "quarantine.unknown", "nothing of this id is quarantined", allowed=["locseal quarantine list"]
            )
        done = _released(used, found)
    shown = f"locseal runs show {found.run_id}" if found.run_id else f"locseal releases show {found.event_id}"
    output.put({"id": row, "kind": found.kind, "outcome": done}, as_json=as_json, lines=[done, f"next: {shown}"])


def _released(used: Services, found: Suspect) -> str:
    name = f"release-{found.row_id}"
    if found.kind == "evidence":
        answer = retry_evidence(used, event_id=found.event_id, job_id=found.job_id, request_id=name)
        return f"asked about again under revision {answer['reopened'][0]['evidence_revision']}"
    if found.kind == "delivery":
        if reconcile_delivery(used, found.row_id).status == "delivered":
            return "the CMS has it: the event is delivered, and nothing is sent again"
        retry_delivery(used, str(found.event_id))
        return "the CMS does not have it: the fleet prepares it anew"
    step_id = found.doing.rpartition(" ")[2]
    resume_run(used, str(found.run_id), request_id=name)
    retry_run(used, str(found.run_id), step_id, request_id=f"retry-{found.row_id}")
    return f"the step {step_id} was started again"


def _expiries(one: Suspect) -> str:
    return ", ".join(f"{expiry.worker_id} at {moment(expiry.at)}" for expiry in one.expiries)


def _release(one: Suspect) -> str:
    return f"locseal quarantine release {one.row_id}"
