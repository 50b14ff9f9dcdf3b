"""The command `locseal`: a table of sub-commands, each loaded when it is called, and the one place where errors end.

A command module is `worker/cli/<module>.py` with a Typer `app`; this table names it. Modules translate arguments, call
the flow or the store, print through `output`, and raise `Blocked`; nobody prints a traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import typer
from typer.core import TyperGroup

from config import logs
from config.settings import SettingsError
from worker.cli import output
from worker.domain.errors import Blocked

# command -> (module, attribute, what it does)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "demo": ("demo", "app", "Run everything once on this machine and show what happens."),
    "submit": ("submit", "app", "Send a signed submission, or sign and send one."),
    "import": ("imports", "app", "Read PO, XLIFF or JSON into a submission."),
    "check": ("check", "app", "Check translations against their sources."),
    "releases": ("releases", "app", "See and withdraw change events."),
    "evidence": ("evidence", "app", "Retry, renew or hand in evidence."),
    "approvals": ("approvals", "app", "See and revoke approvals."),
    "deliveries": ("deliveries", "app", "See, retry and reconcile deliveries."),
    "quarantine": ("quarantine", "app", "See and release work that its workers died of."),
    "rejections": ("rejections", "app", "See what intake refused."),
    "runs": ("runs", "app", "Guided release runs of a website version."),
    "audit": ("audit", "app", "Prove that every row and every promise holds."),
    "prune": ("prune", "app", "Remove what is old and nobody needs."),
    "hold": ("holds", "app", "Legal holds: what may not be removed."),
    "pause": ("pauses", "pause_app", "Stop new work: all, one site or one provider."),
    "resume": ("pauses", "resume_app", "Let paused work go on."),
    "breakers": ("breakers", "app", "See which providers and CMSs are left alone."),
    "policy": ("policies", "app", "Check the policy file, and see what holds for a site."),
    "keys": ("keys", "app", "Make, list, retire and check keys."),
    "db": ("database", "app", "Look after the database."),
    "health": ("health", "app", "Tell the platform whether a worker is alive and ready."),
    "doctor": ("doctor", "app", "Check this machine, the database and the broker."),
    "sandbox": ("sandbox", "app", "A provider, verifier and CMS to play with."),
    "schemas": ("schemas", "app", "Write the JSON Schemas and API documents of this version."),
    "metrics": ("metrics", "app", "Serve metrics."),
    "flower": ("flower", "app", "Watch the workers in Flower."),
}


class LazyGroup(TyperGroup):
    """A group whose sub-commands are imported when they are called, so that `locseal keys` needs no database."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands that this installation has."""
        del ctx
        return [name for name, (module, _, _) in COMMANDS.items() if _exists(module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import one command; None where there is none of that name."""
        del ctx
        found = COMMANDS.get(cmd_name)
        if found is None or not _exists(found[0]):
            return None
        module, attribute, about = found
        command = typer.main.get_command(getattr(importlib.import_module(f"worker.cli.{module}"), attribute))
        command.name = cmd_name
        command.short_help = about
        return _plain(command)


app = typer.Typer(
    cls=LazyGroup,
    name="locseal",
    help="Take finished website translations to the CMS, each with a verified, signed approval.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print the values of variables, which may be customer text
    rich_markup_mode=None,
)


@app.callback()
def _locseal() -> None:
    """Make `app` a group even while it has no command of its own."""


def run() -> None:
    """Run the command line of this process and end it with its exit code. The entry point of the package."""
    logs.set_up("WARNING", "console")  # to standard error: standard output is the command's answer alone
    sys.excepthook = say_fault
    call()


def call() -> None:
    """Run the command line in `sys.argv` and raise `SystemExit` with its exit code; leaves the process as it is."""
    as_json = output.wants_json()
    try:
        # The command itself and not `app()`, which would put Typer's own hook, with its traceback, in place of ours.
        typer.main.get_command(app)(prog_name="locseal")
    except Blocked as error:
        output.refusal(error, as_json=as_json)
        sys.exit(output.REFUSED)
    except SettingsError as error:
        output.refusal(output.Refused("settings.invalid", str(error)), as_json=as_json)
        sys.exit(output.WRONG_USAGE)


def _plain(command: Any) -> Any:
    """Let a command and all below it print plain help, which a terminal of any width and `grep` can read.

    Typer's options for shell completion go too: they complete `locseal`, and would stand in the help of each command.
    """
    command.rich_markup_mode = None
    command.params = [one for one in command.params if one.name not in {"install_completion", "show_completion"}]
    for below in getattr(command, "commands", {}).values():
        below.short_help = _first_sentence(below.help or "")  # whole: click's own cut ends within a word's meaning
        _plain(below)
    return command


def _first_sentence(text: str) -> str:
    """Return how a help text begins, up to its first stop, semicolon or colon, as one sentence on one line."""
    return re.split(r"[.;:](?:\s|$)", " ".join(text.split()), maxsplit=1)[0] + "."


def _exists(module: str) -> bool:
    """Tell whether a command's module is installed."""
    return importlib.util.find_spec(f"worker.cli.{module}") is not None


def say_fault(kind: type[BaseException], _error: BaseException, trace: TracebackType | None) -> None:
    """Say where a fault of ours happened, without its message, which may hold anything."""
    frames = traceback.extract_tb(trace)
    ours = next((frame for frame in reversed(frames) if Path(__file__).parents[1].name in frame.filename), None)
    where = f" in {Path(ours.filename).name}, line {ours.lineno}" if ours is not None else ""
    error = output.Refused("locseal.fault", f"an unexpected {kind.__name__}{where}; this is a fault of the program")
    output.refusal(error, as_json=output.wants_json())
