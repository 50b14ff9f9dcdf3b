"""`locseal approvals`: see what was approved until when, and revoke an approval, which nothing undoes."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Annotated, Any

import typer

from worker.cli import output
from worker.cli.installation import PAGE, Before, Limit, database, page_key, read_page_key, services
from worker.cli.output import Json, Refused, moment
from worker.flow.revoke_approval import revoke_approval
from worker.store.approval_views import STATES, Consequence, consequence_of_revoking, list_approvals
from worker.store.engine import reading

app = typer.Typer(help="See and revoke approvals.", no_args_is_help=True)

DAY_SECONDS = 86_400.0


@app.command("list")
def show_list(
    event: Annotated[str | None, typer.Option(help="Only those of one event's locales.")] = None,
    job: Annotated[str | None, typer.Option(help="Only one job.")] = None,
    site: Annotated[str | None, typer.Option(help="Only one site.")] = None,
    state: Annotated[str | None, typer.Option(help=f"Only one state: {', '.join(STATES)}.")] = None,
    expires_within: Annotated[
        float | None, typer.Option(min=0, help="Only those that end within so many days.")
    ] = None,
    limit: Limit = PAGE,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """List approvals, those that last longest first."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"states are {', '.join(STATES)}", param_hint="--state")
    with database() as engine, reading(engine) as conn:
        found = list_approvals(
            conn,
            limit=limit,
            before=read_page_key(before),
            event_id=event,
            job_id=job,
            site_id=site,
            state=state,
            expires_within_seconds=None if expires_within is None else expires_within * DAY_SECONDS,
        )
    following = page_key(found[-1].expires_at, found[-1].approval_id) if len(found) == limit else None
    rows = [
        (one.approval_id, one.state, one.target_locale, one.site_id, moment(one.approved_at), moment(one.expires_at))
        for one in found
    ]
    columns = ("approval", "state", "locale", "site", "approved", "expires")
    lines = output.table(columns, rows, empty="no such approval")
    if following is not None:
        lines.append(f"more: --before {following}")
    output.put({"approvals": [asdict(one) for one in found], "next": following}, as_json=as_json, lines=lines)


@app.command()
def revoke(
    approval: Annotated[str, typer.Argument(help="The approval's id.")],
    reason: Annotated[str, typer.Option(help="Why; kept for auditors.")],
    operator: Annotated[str | None, typer.Option(help="Who says so. Default: the user running this.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Needed with --json.")] = False,
    as_json: Json = False,
) -> None:
    """Revoke an approval for ever. Shows first which unpublished deliveries that stops, and asks."""
    if not reason.strip():
        raise typer.BadParameter("say why: --reason TEXT", param_hint="--reason")
    if not yes:
        _ask(approval, as_json=as_json)
    with services() as used:
        done, is_new = revoke_approval(used, approval, reason=reason, operator=operator or getpass.getuser())
    revoked = done.approval
    lines = [
        f"{approval}: revoked"
        if is_new
        else f"{approval}: was revoked before, at {moment(revoked.revoked_at)} by {revoked.revoked_by}",
        *_stopped(done),
        *(f"next: locseal evidence renew {event_id}" for event_id in done.events),
    ]
    output.put({**_json(done), "is_new": is_new}, as_json=as_json, lines=lines)


def _ask(approval: str, *, as_json: bool) -> None:
    """Show what would be stopped and have it confirmed; nothing is revoked otherwise."""
    with database() as engine, reading(engine) as conn:
        found = consequence_of_revoking(conn, approval)
    if found is None:
        raise Refused("release.approval.unknown", "there is no such approval", allowed=["locseal approvals list"])
    if found.approval.revoked_at is not None:
        return  # it is revoked, and stays so
    if as_json:
        raise Refused(
            "release.approval.not_confirmed",
            "nothing was revoked; this is what it would stop",
            allowed=[f"locseal approvals revoke {approval} --reason TEXT --yes --json"],
            details=_json(found),
        )
    until = moment(found.approval.expires_at)
    output.note(
        f"{approval}: {found.approval.target_locale} of {found.approval.site_id}, {found.approval.state}, {until}"
    )
    for line in _stopped(found):
        output.note(line)
    if not typer.confirm("Revoke it for ever?", err=True):
        raise Refused(
            "release.approval.not_confirmed",
            "nothing was revoked",
            allowed=[f"locseal approvals revoke {approval} --reason TEXT --yes"],
        )


def _stopped(found: Consequence) -> list[str]:
    lines = []
    for one in found.deliveries:
        effect = "on its way or in doubt: it is not called back" if one.is_live_perhaps else "stopped before it is sent"
        lines.append(f"delivery {one.delivery_id} of {one.event_id}: {effect}")
    if not found.deliveries:
        lines.append("no unpublished delivery names it")
    held = [event_id for event_id in found.events if event_id not in {one.event_id for one in found.deliveries}]
    lines += [f"event {event_id} waits for a renewal of {found.approval.target_locale}" for event_id in held]
    if found.other_approval_ids:
        lines.append(f"of the same text these stand on: {', '.join(found.other_approval_ids)}")
    return lines


def _json(found: Consequence) -> dict[str, Any]:
    return {
        "approval": asdict(found.approval),
        "deliveries": [asdict(one) for one in found.deliveries],
        "events": list(found.events),
        "other_approval_ids": list(found.other_approval_ids),
    }
