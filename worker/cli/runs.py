"""`locseal runs`: release one website version step by step, see where it stands, and repair what was interrupted."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Final

import typer

from config.settings import load_settings
from worker.cli import output
from worker.cli.installation import database, policy_of, services
from worker.cli.output import Json, Refused
from worker.cli.run_report import answers_table, list_lines, report_json, report_lines
from worker.domain.errors import RunConflict
from worker.domain.run import CONFIRMATION
from worker.domain.run_record import OUTCOMES
from worker.domain.run_waiting import RunFacts
from worker.flow.plan_run import plan_run
from worker.flow.propose_outcome import propose_outcome
from worker.flow.reconcile_run import reconcile_run
from worker.flow.resume_run import ALIVE, resume_run
from worker.flow.retry_run import retry_run
from worker.flow.running.attempt import STALE
from worker.flow.start_run import start_run
from worker.store.installation import workspace_fingerprint
from worker.store.run_views import report_run
from worker.store.runs import PAGE, RunStore

app = typer.Typer(help="Release a website version step by step; repair what was interrupted.", no_args_is_help=True)

LOOK_SECONDS: Final = 1.0

Run = Annotated[str, typer.Argument(help="The run's id.")]
Step = Annotated[str, typer.Argument(help="The step's id.")]
RequestId = Annotated[
    str | None, typer.Option(help="8 to 128 characters; the same request is done once. Default: a fresh one.")
]


@app.command()
def plan(
    site: Annotated[str, typer.Argument(help="The site's id.")],
    version: Annotated[str, typer.Argument(help="The website version.")],
    as_json: Json = False,
) -> None:
    """Freeze the current events of a website version into a run of five steps."""
    with services() as used:
        run_id = plan_run(used, site, version)["run_id"]
    _show(run_id, as_json=as_json)


@app.command()
def start(
    run: Run,
    step: Annotated[str | None, typer.Argument(help="The step. Default: the next one.")] = None,
    request_id: RequestId = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until the step has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Start the next step on the fleet."""
    with services() as used:
        _naming(run, lambda: start_run(used, run, request_id=_request(request_id), step_id=step))
    _show(run, as_json=as_json, watch=watch)


@app.command("list")
def show_list(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most runs to show.")] = PAGE,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with database() as engine:
        rows = RunStore(engine, workspace_fingerprint=workspace_fingerprint(engine)).list(limit=limit)
    output.put({"runs": rows}, as_json=as_json, lines=list_lines(rows))


@app.command()
def show(
    run: Run,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again whenever it changes, while a step runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a run: its steps, its timeline, what it waits for, and the one command to run next."""
    _show(run, as_json=as_json, watch=watch)


@app.command()
def resume(
    run: Run,
    force: Annotated[bool, typer.Option("--force", help="Also where the worker is still alive.")] = False,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Mark the running step as interrupted, after its worker died. Permits to send are withdrawn with it."""
    with services() as used:
        _naming(run, lambda: resume_run(used, run, request_id=_request(request_id), force=force))
    _show(run, as_json=as_json)


@app.command()
def retry(
    run: Run,
    step: Step,
    request_id: RequestId = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until the step has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Try a failed step, or an interrupted read-only one, again on the fleet."""
    with services() as used:
        _naming(run, lambda: retry_run(used, run, step, request_id=_request(request_id)))
    _show(run, as_json=as_json, watch=watch)


@app.command()
def reconcile(
    run: Run,
    step: Step = "publish",
    outcome: Annotated[str | None, typer.Option(help=f"{', '.join(OUTCOMES)}. Default: what the answers say.")] = None,
    confirm: Annotated[str | None, typer.Option(help=f"The word {CONFIRMATION}, for scripts.")] = None,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Ask the CMS what became of an interrupted publication, and record it once you have typed the word."""
    if outcome is not None and outcome not in OUTCOMES:
        raise typer.BadParameter(f"outcomes are {', '.join(OUTCOMES)}", param_hint="--outcome")
    with services() as used:
        proposal = _naming(run, lambda: propose_outcome(used, run, step))
        chosen = outcome or proposal.outcome
        if not as_json:
            for line in answers_table(proposal.told):
                output.say(line)
            output.say()
            output.say(f"the answers say: {proposal.outcome}")
        if confirm is None:
            if as_json:
                raise Refused(
                    "run.unconfirmed",
                    f"the answers say {proposal.outcome}; nothing was recorded",
                    allowed=[f"locseal runs reconcile {run} {step} --confirm {CONFIRMATION}"],
                    details={"outcome": proposal.outcome, "answers": [vars(one) for one in proposal.told]},
                )
            confirm = typer.prompt(f"to record {chosen}, type {CONFIRMATION}", default="", show_default=False)
        reconcile_run(
            used,
            run,
            step,
            request_id=_request(request_id),
            outcome=chosen,
            confirmation=confirm or "",
            words=proposal.words,
        )
    _show(run, as_json=as_json, more={"reconciled": chosen, "answers": [vars(one) for one in proposal.told]})


def _show(run_id: str, *, as_json: bool, watch: bool = False, more: dict[str, Any] | None = None) -> None:
    """Print where a run stands; while watching, again whenever that changes, until no step runs."""
    settings = load_settings()
    shown: RunFacts | None = None
    with database(settings) as engine:
        while True:
            facts = report_run(engine, run_id, lambda site_id: policy_of(settings, site_id))
            if shown is None or _changed(shown, facts):
                if shown is not None and not as_json:
                    output.say()
                output.put({**report_json(facts), **(more or {})}, as_json=as_json, lines=report_lines(facts))
                shown = facts
            if not watch or facts.view["state"]["status"] != "running":
                return
            time.sleep(LOOK_SECONDS)


def _changed(before: RunFacts, after: RunFacts) -> bool:
    return (before.view["record_digest"], before.standings, before.executor.state, before.waiting_sentence) != (
        after.view["record_digest"],
        after.standings,
        after.executor.state,
        after.waiting_sentence,
    )


def _request(given: str | None) -> str:
    return given or f"cli-{secrets.token_hex(12)}"


def _naming(run_id: str, act: Any) -> Any:
    """Do something with a run; where that is refused, say what would be allowed."""
    try:
        return act()
    except RunConflict as refused:
        allowed = {
            STALE: ("locseal runs plan SITE VERSION",),
            ALIVE: (f"locseal runs show {run_id} --watch", f"locseal runs resume {run_id} --force"),
        }.get(refused.code, (f"locseal runs show {run_id}",))
        raise Refused(refused.code, refused.message, allowed=allowed) from None
