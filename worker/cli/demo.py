"""`locseal demo`: everything once, for real, on this machine, and nothing left behind.

Starts an embedded Valkey, a sandbox, a worker and beat as processes of their own in a private directory, submits one
signed event of 27 locales, and shows what becomes of it. It uses no service that happens to run here. Exit code 0 when
it showed what it promises (with `--fail`: two locales refused and nothing published), 1 when it did not.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from worker.cli import output
from worker.cli.demo_event import EVENT_ID, REFUSED, SITE_ID, demo_submission
from worker.cli.demo_watch import start_watching, stay
from worker.cli.local_fleet import FleetError, LocalFleet
from worker.cli.local_stage import Stage, set_stage, wait_for_sandbox
from worker.cli.output import Json, Refused
from worker.domain.change import ChangeEvent
from worker.domain.delivery import check_acknowledgement
from worker.domain.signature import SignedDocument, parse_signed, verify_detached
from worker.store.answers import answers_about
from worker.store.approvals import StoredApproval, standing_approvals, verify_approval
from worker.store.deliveries import Delivery, find_delivery, verify_delivery
from worker.store.engine import reading
from worker.store.evidence import EvidenceStore

SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1

app = typer.Typer(help="Run everything once on this machine and show what happens.")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the database says about the demo's event at one moment."""

    approvals: dict[str, StoredApproval]  # by locale
    refused: dict[str, str]  # code by locale
    delivery: Delivery | None


@app.command()
def demo(
    fail: Annotated[bool, typer.Option("--fail", help="Have the provider refuse two locales.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the private directory with database and logs.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Stay afterwards, with Flower and metrics, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Submit one signed event of 27 locales to a fleet of its own and show what becomes of it."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    directory = Path(tempfile.mkdtemp(prefix="locseal-demo-")).resolve()
    shown: list[dict[str, Any]] = []

    def show(answer: dict[str, Any]) -> None:
        output.put(answer, as_json=as_json)
        shown.append(answer)

    try:
        with _ended_by_signals():
            _run(directory, console, fail=fail, serve=serve, show=show)
    except FleetError as error:
        shown.clear()  # its logs say why
        raise Refused("demo.failed", str(error)) from None
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        raise typer.Exit(130) from None
    finally:
        if shown and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            console.print(f"database, keys and logs: {directory}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo like Ctrl-C, so that whatever was started is stopped.

    Python drops what a handler raises inside a finalizer, so an interrupt that got lost is raised again at the end.
    """
    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt


def _run(directory: Path, console: Console, *, fail: bool, serve: bool, show: Callable[[dict[str, Any]], None]) -> None:
    began = time.monotonic()
    refused = REFUSED if fail else {}
    # A review takes a moment and nine run at once, so that there is something to watch.
    options = ["--delay", "0.2"]
    options += [part for locale, code in refused.items() for part in ("--refuse", f"{locale}={code}")]
    with LocalFleet(directory=directory, settings={"CONCURRENT_CALLS": "9"}) as fleet:
        console.print("starting: embedded Valkey, sandbox, worker, beat")
        stage = set_stage(fleet, site_ids=[SITE_ID], sandbox_options=options)
        try:
            worker = fleet.start_worker()
            fleet.start_beat()
            event, document = demo_submission()
            text = stage.sign(document)
            wait_for_sandbox(stage)
            fleet.wait_for_worker(worker)
            watched = start_watching(fleet) if serve else []
            console.print(f"ready after {time.monotonic() - began:.1f} s; submitting {EVENT_ID}, {len(text):,} bytes")
            stage.submit(text)
            seen = _watch(stage, event, console, refused=len(refused))
            if fail:
                show(_show_refusal(stage, seen, event, console, began))
            else:
                show(_show_publication(stage, seen, console, began))
            for line in watched:
                console.print(line)
            if serve:
                stay(fleet, console)
        finally:
            stage.close()


# --- watching -------------------------------------------------------------------------------------------------------


def _watch(stage: Stage, event: ChangeEvent, console: Console, *, refused: int) -> Seen:
    """Show the progress until the event is delivered, or as many locales as expected are refused."""
    total = len(event.jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("approved", total=total)

        def look() -> Seen | None:
            seen = _look(stage, event)
            waits = "" if len(seen.approvals) < total else f", delivery {_state(seen.delivery)}"
            failed = f", refused {len(seen.refused)}" if seen.refused else ""
            progress.update(bar, completed=len(seen.approvals), description=f"approved{failed}{waits}")
            if refused:
                return seen if len(seen.refused) == refused and len(seen.approvals) == total - refused else None
            return seen if seen.delivery is not None and seen.delivery.status == "succeeded" else None

        return _until(look, stage)


def _until(look: Callable[[], Seen | None], stage: Stage) -> Seen:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended = next((child for child in stage.fleet.children if not child.is_running()), None)
        if ended is not None:
            raise FleetError(f"{ended.name} ended unexpectedly; read {ended.log}")
        seen = look()
        if seen is not None:
            return seen
        time.sleep(LOOK_SECONDS)
    raise FleetError(f"not done after {SECONDS:g} s; read the logs in {stage.fleet.directory / 'logs'}")


def _look(stage: Stage, event: ChangeEvent) -> Seen:
    locales = {job.job_id: job.target_locale for job in event.jobs}
    with reading(stage.engine) as conn:
        standing = standing_approvals(conn, locales, now=None)
        delivery = find_delivery(conn, event.event_id)
    rows = EvidenceStore(stage.engine).statuses(event.event_id)
    return Seen(
        approvals={locales[job_id]: found[0] for job_id, found in standing.items()},
        refused={locales[row.job_id]: row.last_error_code or "" for row in rows if row.status == "failed"},
        delivery=delivery,
    )


def _state(delivery: Delivery | None) -> str:
    return "is being prepared" if delivery is None else delivery.status


# --- showing --------------------------------------------------------------------------------------------------------


def _show_publication(stage: Stage, seen: Seen, console: Console, began: float) -> dict[str, Any]:
    """Print the approvals, the delivery and its acknowledgement, each verified again from what is stored."""
    if seen.delivery is None:
        raise FleetError("there is no delivery")
    trust = stage.keys.trust("approval")
    approved = {locale: verify_approval(found, trust) for locale, found in sorted(seen.approvals.items())}
    verify_delivery(seen.delivery, stage.keys.trust("publication"))
    kid = _verified_acknowledgement(stage, seen.delivery)
    published = stage.control()["publications"]
    if [one["delivery_id"] for one in published] != [seen.delivery.delivery_id]:
        raise FleetError("the CMS did not publish exactly this delivery")
    elapsed = round(time.monotonic() - began, 1)
    rows = [(locale, found.approval_id, output.moment(found.expires_at)) for locale, found in approved.items()]
    for line in output.table(("locale", "approval", "until"), rows, empty="no approvals"):
        console.print(line)
    console.print(f"{len(rows)} approvals, each verified")
    console.print(f"delivery: {seen.delivery.delivery_id}")
    console.print(f"acknowledgement: accepted by the CMS, signature verified (key {kid}); published once")
    console.print(f"elapsed: {elapsed} s")
    return {
        "status": "delivered",
        "event_id": EVENT_ID,
        "approvals": {locale: found.approval_id for locale, found in approved.items()},
        "delivery_id": seen.delivery.delivery_id,
        "acknowledgement": {"status": "accepted", "verified": True, "kid": kid},
        "elapsed_seconds": elapsed,
    }


def _verified_acknowledgement(stage: Stage, delivery: Delivery) -> str:
    """Return the kid that signed the CMS's stored acknowledgement of exactly these bytes."""
    with reading(stage.engine) as conn:
        kept = answers_about(conn, delivery.delivery_id)
    accepted = next((one for one in kept if one.kind == "acknowledgement" and one.outcome == "accepted"), None)
    if accepted is None or accepted.signature is None:
        raise FleetError("no signed acknowledgement was kept")
    signed: SignedDocument = parse_signed(
        f'{{"document":{accepted.document},"signature":"{accepted.signature}"}}',
        max_bytes=1_000_000,
        code="demo.acknowledgement.invalid",
    )
    key = verify_detached(
        stage.keys.trust("acknowledgement"),
        signed.payload(),
        signed.signature,
        code="demo.acknowledgement.invalid",
        signed_at=accepted.answered_at,
    )
    check_acknowledgement(
        signed.document,
        site_id=SITE_ID,
        delivery_id=delivery.delivery_id,
        payload_sha256=delivery.payload_sha256,
    )
    return key.kid


def _show_refusal(stage: Stage, seen: Seen, event: ChangeEvent, console: Console, began: float) -> dict[str, Any]:
    """Print which locales were refused and what would be needed, and show that nothing was published."""
    published = stage.control()["publications"]
    if published or seen.delivery is not None:
        raise FleetError("something was published although two locales were refused")
    elapsed = round(time.monotonic() - began, 1)
    console.print(f"{len(seen.approvals)} of {len(event.jobs)} locales approved")
    jobs = {job.target_locale: job.job_id for job in event.jobs}
    needed = {}
    for locale, code in sorted(seen.refused.items()):
        console.print(f"{locale}: refused by the provider with {code}")
        needed[locale] = [
            "submit a corrected result of this job that names the refused one in `replaces`",
            f"or, when the provider has changed its mind: locseal evidence retry --job {jobs[locale]}",
        ]
        for line in needed[locale]:
            console.print(f"  {line}")
    waiting = ", ".join(sorted(seen.refused))
    console.print(f"nothing was published: {event.event_id} is waiting for: {waiting}")
    console.print(f"elapsed: {elapsed} s")
    return {
        "status": "waiting",
        "event_id": event.event_id,
        "approved": len(seen.approvals),
        "refused": dict(sorted(seen.refused.items())),
        "needed": needed,
        "published": 0,
        "elapsed_seconds": elapsed,
    }
