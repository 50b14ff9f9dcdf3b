"""`locseal submit FILE`: send a signed submission as it is, or sign one with this machine's submission key and send it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from worker.adapters.keys import FileKeys
from worker.cli import output
from worker.cli.keys import Directory, key_directories
from worker.cli.output import Json, Refused
from worker.cli.reading import read_document
from worker.cli.sending import WaitCommand, send
from worker.domain.canonical import parse_strict
from worker.domain.messages import RELEASE_SUBMIT
from worker.domain.signature import parse_signed
from worker.domain.submission import INVALID, LONGEST_SUBMISSION_BYTES, Submission, parse_submission

app = typer.Typer()

NOT_FOR_SITE = "submission.key.not_for_site"


@app.command(cls=WaitCommand)
def submit(
    file: Annotated[Path, typer.Argument(help="A submission, signed or not; - for standard input.", allow_dash=True)],
    wait: Annotated[
        float | None, typer.Option(help="Wait until it is accepted or rejected; 60 s where no number follows.", min=0)
    ] = None,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Send a submission: a change event with its finished translations.

    A signed file goes out byte for byte. An unsigned one is signed with the active submission key first. Either is
    checked here by the rules of intake, so most mistakes are told before anything is sent.
    """
    raw = read_document(file, longest_bytes=LONGEST_SUBMISSION_BYTES)
    value = parse_strict(raw, max_bytes=LONGEST_SUBMISSION_BYTES, code=INVALID)
    if isinstance(value, dict) and "signature" in value:
        parse_signed(raw, max_bytes=LONGEST_SUBMISSION_BYTES, code=INVALID)
        submission, text = parse_submission(value["document"]), raw.decode("utf-8")
    else:
        submission = parse_submission(value)
        text = sign_submission(FileKeys(*key_directories(keys)), submission, value)
    sent = send(RELEASE_SUBMIT, "submission", text, wait_seconds=wait)
    event_id = submission.event.event_id
    shown = {
        **sent.to_json(),
        "event_id": event_id,
        "plan_id": submission.plan_id,
        "locales": len(submission.jobs),
        "results": len(submission.results),
    }
    count = f"{len(submission.results)} of {len(submission.jobs)} locales translated"
    lines = [f"{sent.state}: {event_id}, {count}", f"document {sent.document_sha256}"]
    if sent.state == "sent":
        lines.append("not accepted yet; keep the file until it is, and send it again otherwise")
    lines.append(f"next: locseal releases show {event_id}")
    output.put(shown, as_json=as_json, lines=lines)


def sign_submission(holder: FileKeys, submission: Submission, document: dict[str, Any]) -> str:
    """Return the text of a submission signed with this machine's key; refuse a key that does not speak for its site."""
    signed = holder.sign("submission", document)
    if not holder.trust("submission").keys[signed.kid].speaks_for(submission.site_id):
        raise Refused(
            NOT_FOR_SITE,
            f"the submission key {signed.kid} does not speak for the site {submission.site_id}",
            allowed=[f"locseal keys generate submission --site {submission.site_id} --first"],
        )
    return signed.to_text()
