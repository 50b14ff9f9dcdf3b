"""`locseal import MANIFEST`: make signed submissions of translators' files (PO, XLIFF, JSON) and send them.

Everything is read, judged, built and signed before the first byte is sent: a file that cannot be read stops it all.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from worker.adapters.catalogues.files import read_bounded, read_locale, read_source
from worker.adapters.keys import FileKeys
from worker.cli import output
from worker.cli.import_report import MadeEvent, Report
from worker.cli.installation import database
from worker.cli.keys import Directory, key_directories
from worker.cli.output import Json, Refused
from worker.cli.sending import WaitCommand
from worker.cli.sending_many import REJECTED, SENT, send_all
from worker.cli.submit import sign_submission
from worker.domain.catalogue import Catalogue, EventPer, Incomplete, Piece, gather, pieces
from worker.domain.change import ChangeEvent
from worker.domain.errors import Invalid
from worker.domain.manifest import Manifest, event_of, parse_manifest, results_of, submissions_of
from worker.domain.messages import RELEASE_SUBMIT
from worker.domain.result import Result
from worker.domain.submission import parse_submission
from worker.store.engine import reading
from worker.store.results import current_results

LONGEST_MANIFEST_BYTES: Final = 1024 * 1024
_LINE: Final = re.compile(r"at line (\d+)")

app = typer.Typer()


@app.command("import", cls=WaitCommand)
def import_(
    manifest: Annotated[Path, typer.Argument(help="The TOML file that names site, versions, provider and files.")],
    event_per: Annotated[
        str | None, typer.Option(help="document: one event of all strings (JSON). unit: one event for each string.")
    ] = None,
    incomplete: Annotated[
        str | None,
        typer.Option(
            help="leave-units: only what every locale has. leave-locales: only locales that are complete. "
            "refuse: nothing at all unless everything is complete."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read, judge and report; sign and send nothing.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let results that differ from stored ones take their place.")
    ] = False,
    wait: Annotated[
        float | None, typer.Option(help="Wait until all is accepted or rejected; 60 s where no number follows.", min=0)
    ] = None,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Send the translations in PO, XLIFF or JSON files; report what is incomplete and is therefore not submitted."""
    said = _manifest(manifest, {"event_per": event_per, "incomplete": incomplete})
    catalogue = _catalogue(manifest.parent, said, as_json=as_json)
    report = Report(manifest=said, catalogue=catalogue, is_dry_run=dry_run)
    try:
        found = pieces(catalogue, event_per=said.event_per, incomplete=said.incomplete)
    except Invalid as fault:
        _refuse(report, fault.code, fault.message, as_json=as_json, allowed=_ways_out(fault.code))
    made, texts = _made(said, found, replace=replace, keys=None if dry_run else FileKeys(*key_directories(keys)))
    report = Report(manifest=said, catalogue=catalogue, pieces=found, made=made, is_dry_run=dry_run)
    if not dry_run:
        with _progress("sent" if wait is None else "accepted", len(texts), as_json=as_json) as step:
            outcomes = send_all(RELEASE_SUBMIT, "submission", texts, wait_seconds=wait, settled=step)
        report = Report(manifest=said, catalogue=catalogue, pieces=found, made=made, outcomes=outcomes)
        _check_outcomes(report, waited=wait is not None, as_json=as_json)
    output.put(report.to_json(), as_json=as_json, lines=report.lines())


def _manifest(path: Path, options: Mapping[str, str | None]) -> Manifest:
    """Read the manifest; options of the command line win over its members."""
    if not path.exists():
        raise typer.BadParameter(f"there is no {path}")
    data = read_bounded(path, path.name, most_bytes=LONGEST_MANIFEST_BYTES)
    try:
        value = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid("import.manifest.invalid", "the manifest is not UTF-8", path=f"{path.name}:{line}") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:  # the message may quote the file
        line_found = _LINE.search(str(error))
        where = f"{path.name}:{line_found[1]}" if line_found is not None else path.name
        raise Invalid("import.manifest.invalid", "the manifest is no TOML", path=where) from None
    given = {name: option for name, option in options.items() if option is not None}
    for name, allowed in (("event_per", EventPer), ("incomplete", Incomplete)):
        words = get_args(allowed)
        if name in given and given[name] not in words:
            raise typer.BadParameter(f"expected {', '.join(words)}", param_hint=f"--{name.replace('_', '-')}")
    return parse_manifest(value | given)


def _catalogue(directory: Path, manifest: Manifest, *, as_json: bool) -> Catalogue:
    source = read_source(directory, manifest)
    files = []
    with _progress("read", len(manifest.locales), as_json=as_json) as step:
        for file in manifest.locales:
            files.append(read_locale(directory, manifest, file, source))
            step()
    return gather(files, source)


def _made(
    manifest: Manifest, found: Sequence[Piece], *, replace: bool, keys: FileKeys | None
) -> tuple[tuple[MadeEvent, ...], list[str]]:
    """Return the events with their documents, checked by the rules of intake, and the signed texts of all documents."""
    built: list[tuple[Piece, ChangeEvent, tuple[Result, ...]]] = []
    for piece in found:
        event = event_of(manifest, piece)
        built.append((piece, event, results_of(manifest, event, piece)))
    stored = _stored([job.job_id for _, event, _ in built for job in event.jobs]) if replace else {}
    made, texts = [], []
    for piece, event, results in built:
        documents = submissions_of(event, results, replaced=stored)
        for document in documents:
            submission = parse_submission(document)
            if keys is not None:
                texts.append(sign_submission(keys, submission, document))
        replaced = sum("replaces" in result for document in documents for result in document["results"])
        made.append(MadeEvent(event=event, units=len(piece.keys), documents=documents, replaced=replaced))
    return tuple(made), texts


def _stored(job_ids: Sequence[str]) -> dict[str, str]:
    with database() as engine, reading(engine) as conn:
        return current_results(conn, job_ids)


def _check_outcomes(report: Report, *, waited: bool, as_json: bool) -> None:
    """Refuse, with the whole report, where intake rejected a document or did not answer in time."""
    rejected = [one for one in report.outcomes if one.state == REJECTED]
    if rejected:
        sentence = f"intake rejected {len(rejected)} of {len(report.outcomes)} documents; they are kept as rejections"
        allowed = ["locseal rejections list"]
        if any(one.code == "submission.result.conflict" for one in rejected):
            allowed.append("the same command with --replace")
        _refuse(report, rejected[0].code or "submission.invalid", sentence, as_json=as_json, allowed=allowed)
    unseen = sum(one.state == SENT for one in report.outcomes)
    if waited and unseen:
        sentence = f"{unseen} of {len(report.outcomes)} documents are sent, but not accepted yet; sending again is free"
        _refuse(
            report,
            "submission.not_seen",
            sentence,
            as_json=as_json,
            allowed=["the same command again", "locseal doctor"],
        )


def _ways_out(code: str) -> list[str]:
    if code == "import.incomplete":
        return ["--incomplete leave-units", "--incomplete leave-locales"]
    return ["--incomplete leave-locales", "--event-per unit"]


def _refuse(report: Report, code: str, sentence: str, *, as_json: bool, allowed: Sequence[str]) -> NoReturn:
    """Show the report (to people on standard error), then refuse."""
    if not as_json:
        for line in report.lines():
            output.note(line)
    raise Refused(code, sentence, allowed=allowed, details=report.to_json())


@contextmanager
def _progress(word: str, total: int, *, as_json: bool) -> Iterator[Any]:
    """Show a bar on standard error while a person looks on; lend the function that moves it by one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = as_json or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as progress:
        bar = progress.add_task(word, total=total)
        yield lambda: progress.advance(bar)
