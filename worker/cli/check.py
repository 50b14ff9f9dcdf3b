"""`locseal check`: what the review route `checks` would find, without a fleet. Prints codes and places, never texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from worker.adapters.catalogues.files import read_bounded
from worker.adapters.catalogues.po import read_po
from worker.adapters.catalogues.reading import Reading
from worker.cli import output
from worker.cli.output import Json
from worker.domain.change import ContentType
from worker.domain.checks.finding import Finding
from worker.domain.checks.gate import check_text, run_checks
from worker.domain.checks.pair import Pair
from worker.domain.checks.policy import CheckPolicy
from worker.domain.locale import canonical_locale
from worker.domain.text import LONGEST_TEXT_BYTES, require_text

app = typer.Typer(help="Check translations against their sources.", no_args_is_help=True)

From = Annotated[str, typer.Option("--from", help="Locale of the sources.")]
Content = Annotated[ContentType, typer.Option("--content-type", help="Says which findings block.")]

MEDIA_TYPES: Final = {".html": "text/html", ".htm": "text/html", ".md": "text/markdown", ".json": "application/json"}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The findings about one locale, which of them block, and how many units are unfinished and were left out."""

    locale: str
    findings: Sequence[Finding]
    blocking: Sequence[Finding]
    units: int
    unfinished: int


@app.command()
def pair(
    source: Annotated[Path, typer.Argument(help="File with the source text; its ending says the media type.")],
    target: Annotated[Path, typer.Argument(help="File with the translation.")],
    to: Annotated[str, typer.Option("--to", help="Locale of the translation.")],
    source_locale: From = "en",
    content_type: Content = "ui",
    as_json: Json = False,
) -> None:
    """Check one text or document: plain text, HTML, Markdown or JSON. Exits with 1 where something blocks."""
    found = run_checks(
        source_text=_text(source),
        target_text=_text(target),
        source_locale=canonical_locale(source_locale, "check.locale.invalid", "--from"),
        target_locale=canonical_locale(to, "check.locale.invalid", "--to"),
        media_type=MEDIA_TYPES.get(source.suffix.lower(), "text/plain"),
        content_type=content_type,
    )
    blocking = CheckPolicy().blocking(content_type, found)
    _show([Checked(locale=to, findings=found, blocking=blocking, units=1, unfinished=0)], as_json=as_json)


@app.command()
def po(
    files: Annotated[list[Path], typer.Argument(help="Gettext files named by their locale: `de-DE.po`.")],
    source_locale: From = "en",
    content_type: Content = "ui",
    as_json: Json = False,
) -> None:
    """Check the finished entries of gettext files. A place is the line of the entry. Exits with 1 where one blocks."""
    canonical_locale(source_locale, "check.locale.invalid", "--from")
    _show([_po_file(file, source_locale, content_type) for file in files], as_json=as_json)


def _po_file(file: Path, source_locale: str, content_type: ContentType) -> Checked:
    locale = canonical_locale(file.stem, "check.locale.invalid", file.name)
    reading = Reading(
        name=file.name, area="import.po", locale=locale, source_locale=source_locale, stateless_is_translated=True
    )
    entries = read_po(read_bounded(file, file.name), reading).entries
    found: list[Finding] = []
    unfinished = 0
    for entry in entries:
        if entry.gap is not None or entry.source is None or entry.target is None:
            unfinished += 1
            continue
        texts = Pair(
            source=entry.source,
            target=entry.target,
            source_locale=source_locale,
            target_locale=locale,
            content_type=content_type,
        )
        found.extend(check_text(texts, f"{file.name}:{entry.line}"))
    blocking = CheckPolicy().blocking(content_type, found)
    return Checked(
        locale=locale, findings=found, blocking=blocking, units=len(entries) - unfinished, unfinished=unfinished
    )


def _show(checked: Sequence[Checked], *, as_json: bool) -> None:
    output.put([_listed(one) for one in checked], as_json=as_json, lines=_lines(checked))
    if any(one.blocking for one in checked):
        raise typer.Exit(output.REFUSED)


def _listed(one: Checked) -> dict[str, object]:
    findings = [{"code": found.code, "severity": found.severity, "path": found.path} for found in one.findings]
    return {
        "locale": one.locale,
        "units": one.units,
        "unfinished": one.unfinished,
        "blocking": len(one.blocking),
        "counts": dict(sorted(Counter(found.code for found in one.findings).items())),
        "findings": findings,
    }


def _lines(checked: Sequence[Checked]) -> Iterator[str]:
    rows = [(found.path, found.severity, found.code) for one in checked for found in one.findings]
    yield from output.table(("place", "severity", "code"), rows, empty="nothing found")
    yield ""
    counts = [
        (one.locale, one.units, one.unfinished, len(one.findings), len(one.blocking), _told(one)) for one in checked
    ]
    yield from output.table(("locale", "units", "unfinished", "findings", "blocking", "codes"), counts, empty="")


def _told(one: Checked) -> str:
    return ", ".join(f"{code} {count}" for code, count in sorted(Counter(f.code for f in one.findings).items())) or "-"


def _text(file: Path) -> str:
    data = read_bounded(file, file.name, most_bytes=LONGEST_TEXT_BYTES)
    return require_text(data.decode("utf-8", "surrogateescape"), "check.text.invalid", file.name)
