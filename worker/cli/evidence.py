"""`locseal evidence`: ask again about what failed, have approvals renewed, and hand in a finished review."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from worker.adapters.keys import FileKeys
from worker.cli import output
from worker.cli.installation import services
from worker.cli.keys import Directory, key_directories
from worker.cli.output import Json
from worker.cli.reading import read_document
from worker.cli.sending import WaitCommand, send
from worker.domain.canonical import parse_strict
from worker.domain.errors import Invalid
from worker.domain.evidence import LONGEST_RESPONSE_BYTES, RESPONSE_MEMBERS
from worker.domain.messages import EVIDENCE_SUBMIT
from worker.domain.signature import SignedDocument, parse_signed
from worker.flow.accept_response import INVALID
from worker.flow.renew_evidence import renew_evidence
from worker.flow.retry_evidence import retry_evidence

app = typer.Typer(help="Retry, renew or hand in evidence.", no_args_is_help=True)

Job = Annotated[str | None, typer.Option(help="Only this job (one locale).")]
RequestId = Annotated[
    str | None,
    typer.Option(help="Names this command: sent again under the same id, it does nothing more. Made by default."),
]


@app.command()
def retry(
    event: Annotated[str | None, typer.Argument(help="The event's id; may be left out with --job.")] = None,
    job: Job = None,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Ask again about locales whose evidence failed, each under a new revision; the failed rows stay as history."""
    if event is None and job is None:
        raise typer.BadParameter("name an event, or a job with --job")
    named = request_id or _new_id()
    with services() as used:
        answer = retry_evidence(used, event_id=event, job_id=job, request_id=named)
    _put(answer, named, as_json=as_json)


@app.command()
def renew(
    event: Annotated[str, typer.Argument(help="The event's id.")],
    job: Job = None,
    every: Annotated[bool, typer.Option("--all", help="Renew every locale, however long its approval lasts.")] = False,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Have approvals given again that ended, end soon or were revoked; an unsent delivery then gives way to a new one."""
    named = request_id or _new_id()
    with services() as used:
        answer = renew_evidence(used, event, every=every, job_id=job, request_id=named)
    lines = []
    if answer["delivery_id"] is not None:
        lines.append(f"delivery {answer['delivery_id']} stays sendable until its successor is prepared")
    _put(answer, named, as_json=as_json, more=lines)


@app.command(cls=WaitCommand)
def submit(
    file: Annotated[Path, typer.Argument(help="A response, signed or not; - for standard input.", allow_dash=True)],
    wait: Annotated[
        float | None, typer.Option(help="Wait until it is accepted or rejected; 60 s where no number follows.", min=0)
    ] = None,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Hand in the finished response to an evidence request, in place of the provider's own answer.

    A signed file goes out byte for byte. An unsigned one is signed with this machine's active `evidence` key first. Its
    receipts are verified like those of an answer that was asked for.
    """
    raw = read_document(file, longest_bytes=LONGEST_RESPONSE_BYTES)
    value = parse_strict(raw, max_bytes=LONGEST_RESPONSE_BYTES, code=INVALID)
    if isinstance(value, dict) and "signature" in value:
        signed, text = parse_signed(raw, max_bytes=LONGEST_RESPONSE_BYTES, code=INVALID), raw.decode("utf-8")
    else:
        if not isinstance(value, dict) or value.keys() != RESPONSE_MEMBERS:
            raise Invalid(INVALID, f"a response has exactly the members {', '.join(sorted(RESPONSE_MEMBERS))}")
        signed = FileKeys(*key_directories(keys)).sign("evidence", value)
        text = signed.to_text()
    request_id = _request_id(signed)
    sent = send(EVIDENCE_SUBMIT, "response", text, wait_seconds=wait)
    lines = [f"{sent.state}: the response to {request_id}", f"document {sent.document_sha256}"]
    if sent.state == "sent":
        lines.append("not accepted yet; keep the file until it is, and send it again otherwise")
    output.put({**sent.to_json(), "request_id": request_id}, as_json=as_json, lines=lines)


def _request_id(signed: SignedDocument) -> str:
    return str(signed.document.get("request_id", ""))


def _new_id() -> str:
    return f"operator-{secrets.token_hex(8)}"


def _put(answer: dict[str, Any], request_id: str, *, as_json: bool, more: list[str] | None = None) -> None:
    """Print what is asked about again, and the id under which the command may be repeated for nothing."""
    rows = [(one["event_id"], one["target_locale"], one["evidence_revision"]) for one in answer["reopened"]]
    lines = output.table(("event", "locale", "revision"), rows, empty="no locale had to be asked about again")
    events = dict.fromkeys(one["event_id"] for one in answer["reopened"])
    lines += [*(more or ()), f"request id {request_id}", *(f"next: locseal releases show {one}" for one in events)]
    output.put({**answer, "request_id": request_id}, as_json=as_json, lines=lines)
