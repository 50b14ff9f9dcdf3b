"""How every command speaks: plain aligned text for people, one JSON value for programs, and refusals that help.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage. With `--json` standard output holds exactly one JSON value, also
for a refusal (`{"error": …}`); sentences for people go to standard error then. Nothing is cut to the terminal's width.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from worker.domain.errors import Blocked, Invalid

DONE: Final = 0
REFUSED: Final = 1
WRONG_USAGE: Final = 2

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]

# What would be allowed after a refusal, by the longest prefix of its code. The state itself is in the sentence.
_ALLOWED: Final = {
    "keys.": ("locseal keys check",),
    "keys.signer.missing": ("locseal keys generate PURPOSE", "locseal keys check"),
    "database.": ("locseal doctor", "locseal db upgrade"),
    "database.too_new": ("locseal doctor",),
    "database.unmigrated": ("locseal db upgrade",),
    "evidence.state.schema_altered": ("locseal db upgrade",),
    "queue.": ("locseal doctor",),
    "submission.": ("locseal rejections list",),
    "withdrawal.": ("locseal releases show EVENT",),
    "evidence.renewal.in_flight": ("locseal releases watch EVENT",),
    "evidence.event_has_delivery": ("locseal evidence renew EVENT",),
    "evidence.": ("locseal releases show EVENT",),
    "evidence.request.": ("locseal rejections list",),
    "evidence.response.": ("locseal rejections list",),
    "release.approval.unknown": ("locseal approvals list",),
    "cms.outcome_unknown": ("locseal deliveries reconcile DELIVERY",),
    "cms.delivery.": ("locseal deliveries list", "locseal releases show EVENT"),
    "release.unknown": ("locseal releases list",),
    "rejection.unknown": ("locseal rejections list",),
    "run.": ("locseal runs list",),
    "hold.": ("locseal hold list --all",),
    "hold.name.unknown": ("locseal releases list",),
}


class Refused(Blocked):
    """A refusal of the command line itself: `code`, a sentence with the state, and the commands that would do."""

    def __init__(self, code: str, message: str, *, allowed: Sequence[str] = (), details: object = None) -> None:
        super().__init__(code, message)
        self.allowed = tuple(allowed)
        self.details = details


def say(text: str = "") -> None:
    """Print one line for people on standard output."""
    typer.echo(_printable(text))


def note(text: str) -> None:
    """Print one line for people on standard error, so that it never mixes with JSON."""
    typer.echo(_printable(text), err=True)


def put(value: Any, *, as_json: bool, lines: Iterable[str] = ()) -> None:
    """Print a value as JSON, or its lines for people."""
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=False))
        return
    for line in lines:
        say(line)


def put_line(value: Any) -> None:
    """Print a text as a line, or anything else as JSON on one line."""
    typer.echo(_printable(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> list[str]:
    """Return rows as aligned lines under a head; `empty` is the sentence where there is none."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not cells:
        return [empty]
    widths = [max(len(line[place]) for line in [list(columns), *cells]) for place in range(len(columns))]
    lines = [[name.upper() for name in columns], *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def moment(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in UTC with seconds, or None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 event, 2 events."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def allowed_after(error: Blocked) -> tuple[str, ...]:
    """Return the commands that would be allowed after a refusal."""
    if isinstance(error, Refused) and error.allowed:
        return error.allowed
    known = [prefix for prefix in _ALLOWED if error.code.startswith(prefix)]
    return _ALLOWED[max(known, key=len)] if known else ()


def refusal(error: Blocked, *, as_json: bool) -> None:
    """Print a refusal: its code, its sentence, whether trying again helps, and what would be allowed."""
    allowed = allowed_after(error)
    path = error.path if isinstance(error, Invalid) else ""
    if as_json:
        shown: dict[str, object] = {
            "code": error.code,
            "message": error.message,
            "retryable": error.retryable,
            "allowed": list(allowed),
        }
        if path:
            shown["path"] = path
        if isinstance(error, Refused) and isinstance(error.details, Mapping):
            shown["details"] = dict(error.details)
        put({"error": shown}, as_json=True)
        return
    where = f" (at {path})" if path else ""
    note(f"{error.code}: {error.message or 'refused'}{where}")
    if error.retryable:
        note("trying again may help")
    for command in allowed:
        note(f"allowed: {command}")


def wants_json(arguments: Sequence[str] | None = None) -> bool:
    """Tell whether a command line asks for JSON, before anything of it was parsed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return "--json" in (given[: given.index("--")] if "--" in given else given)


def _printable(text: str) -> str:
    """Replace what could drive a terminal: values come from outside, even where the rules say tokens."""
    return "".join(mark if mark.isprintable() or mark == "\n" else "\N{REPLACEMENT CHARACTER}" for mark in text)
