"""The frame of the command line: what is listed, what each kind of end looks like, and that nothing leaks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.builders import change_event, signed_submission
from tests.cli.conftest import Home
from tests.delivery_builders import approved_event
from worker.cli import main, output
from worker.domain.errors import Blocked, Invalid, Unavailable
from worker.flow.accept_submission import accept_submission
from worker.flow.prepare_delivery import prepare_delivery
from worker.store.engine import writing
from worker.store.schema import deliveries


def test_help_lists_the_installed_commands(locseal: Callable[..., Any]) -> None:
    """Help is exit code 0 and names each command that this installation has, with what it does."""
    shown = locseal("--help")
    assert shown.code == 0
    for name, (module, _, about) in main.COMMANDS.items():
        installed = (Path(main.__file__).parent / f"{module}.py").exists()
        assert (f"  {name} " in shown.out and about[:20] in shown.out) == installed, name


SERVING = ("metrics", "flower")  # Prometheus and a browser have formats of their own


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["keys"], ["keys", "nothing"], ["keys", "list", "--nothing"]])
def test_wrong_usage_is_exit_code_2(locseal: Callable[..., Any], arguments: list[str]) -> None:
    """No command, an unknown one, an unknown option."""
    ended = locseal(*arguments)
    assert ended.code == 2
    assert "Usage: locseal" in ended.err + ended.out


def test_every_installed_command_loads_and_speaks_json(locseal: Callable[..., Any]) -> None:
    """Each command's help works, is not cut short, and each leaf has `--json` but the two that serve somebody else."""

    def leaves(words: list[str]) -> None:
        shown = locseal(*words, "--help")
        assert shown.code == 0, words
        assert "completion" not in shown.out, words
        if "Commands:" in shown.out:
            assert "..." not in shown.out.split("Commands:\n", 1)[1], words
            for line in shown.out.split("Commands:\n", 1)[1].splitlines():
                if line.startswith("  ") and line[2] != " ":
                    leaves([*words, line.split()[0]])
        else:
            assert ("--json" in shown.out) != (words[0] in SERVING), words

    for name, (module, _, _) in main.COMMANDS.items():
        if (Path(main.__file__).parent / f"{module}.py").exists():
            leaves([name])


def test_a_refusal_is_exit_code_1_with_what_is_allowed(locseal: Callable[..., Any], tmp_path: Path) -> None:
    """A refusal stands on standard error: code and sentence, then the commands that would do; no traceback."""
    ended = locseal("keys", "retire", "approval", "a-1", "--keys", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"keys.trust.missing: there is no {tmp_path}/trust/approval.jwks.json\nallowed: locseal keys check\n"
    )


def test_a_refusal_in_json_is_one_value_on_standard_output(locseal: Callable[..., Any], tmp_path: Path) -> None:
    """The same facts for a program."""
    ended = locseal("keys", "retire", "approval", "a-1", "--json", "--keys", str(tmp_path))
    assert (ended.code, ended.err) == (1, "")
    assert ended.json == {
        "error": {
            "code": "keys.trust.missing",
            "message": f"there is no {tmp_path}/trust/approval.jwks.json",
            "retryable": False,
            "allowed": ["locseal keys check"],
        }
    }


def test_a_retryable_refusal_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """People are told that trying again may help, and where to look."""
    output.refusal(Unavailable("database.unavailable", "the database cannot answer"), as_json=False)
    assert capsys.readouterr().err == (
        "database.unavailable: the database cannot answer\n"
        "trying again may help\n"
        "allowed: locseal doctor\n"
        "allowed: locseal db upgrade\n"
    )


def test_an_invalid_input_names_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    """The offending field is shown, for people and for programs; its value is not known here at all."""
    error = Invalid("submission.locale.invalid", "no such locale", path="event.localization")
    output.refusal(error, as_json=False)
    assert capsys.readouterr().err.startswith("submission.locale.invalid: no such locale (at event.localization)\n")
    output.refusal(error, as_json=True)
    assert json.loads(capsys.readouterr().out)["error"]["path"] == "event.localization"


def test_the_longest_prefix_decides_what_is_allowed() -> None:
    """A code with advice of its own does not get that of its area; an unknown area gets none."""
    assert output.allowed_after(Blocked("cms.outcome_unknown")) == ("locseal deliveries reconcile DELIVERY",)
    assert output.allowed_after(Blocked("keys.signer.missing"))[0] == "locseal keys generate PURPOSE"
    assert output.allowed_after(Blocked("nothing.known")) == ()
    assert output.allowed_after(output.Refused("keys.x", "", allowed=["locseal db upgrade"])) == ("locseal db upgrade",)


def test_wrong_settings_are_exit_code_2(locseal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt setting is named, with the nearest one, and without its value."""
    monkeypatch.setenv("LOCSEAL_KEYS_PRIVATE_DI", "canary")
    ended = locseal("keys", "list")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("settings.invalid: LOCSEAL_KEYS_PRIVATE_DI is no setting")
    assert "LOCSEAL_KEYS_PRIVATE_DIR" in ended.err
    assert "canary" not in ended.err


def test_a_fault_of_the_program_shows_a_place_and_no_content(program: Callable[..., Any], tmp_path: Path) -> None:
    """An unexpected exception ends in one sentence with its kind and the line of ours; its message stays unsaid."""
    # a fault that no rule of ours foresees, in the standard library under our own code
    fault = "import pathlib, worker.cli.keys\ndef odd(self): raise LookupError('canary')\npathlib.Path.iterdir = odd"
    ended = program("keys", "list", "--keys", str(tmp_path), "--json", before=fault)
    assert ended.code == 1
    error = ended.json["error"]
    assert error["code"] == "locseal.fault"
    assert re.fullmatch(
        r"an unexpected LookupError in key_files\.py, line \d+; this is a fault of the program", error["message"]
    )
    assert "canary" not in ended.out + ended.err
    assert "Traceback" not in ended.err


def test_standard_output_is_the_answer_alone(program: Callable[..., Any], home: Home) -> None:
    """A log line (here of a wake that a dead broker did not take) goes to standard error, never between the JSON."""
    accept_submission(home.services, signed_submission(home.keys, change_event()))
    refused = program("deliveries", "retry", "event-1", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "cms.delivery.not_failed")
    assert refused.err == ""
    approved_event(home.services, home.keys, event_id="event-2", source_id="b")
    prepare_delivery(home.services, "event-2")
    failed = update(deliveries).values(status="failed", last_error_code="cms.delivery.http_422")
    writing(home.engine, lambda conn: conn.execute(failed))
    done = program("deliveries", "retry", "event-2", "--json")
    assert (done.code, done.json["status"]) == (0, "approved")
    assert "wake.lost" in done.err


def test_json_is_asked_for_only_before_a_double_dash() -> None:
    """What stands after `--` is an argument."""
    assert output.wants_json(["keys", "list", "--json"])
    assert not output.wants_json(["keys", "--", "--json"])


def test_what_could_drive_a_terminal_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and overrides of the writing direction are shown as replacement characters."""
    output.say("a\x1b[2Jb\u202ec")
    assert capsys.readouterr().out == "a\ufffd[2Jb\ufffdc\n"


def test_tables_are_aligned_and_never_cut() -> None:
    """Columns are as wide as their widest cell; an empty table is its sentence."""
    assert output.table(("id", "state"), [("a" * 100, "open"), ("b", None)], empty="none") == [
        "ID" + " " * 98 + "  STATE",
        "a" * 100 + "  open",
        "b" + " " * 99 + "  -",
    ]
    assert output.table(("id",), [], empty="no rows") == ["no rows"]


def test_times_are_utc() -> None:
    """Times are ISO 8601 in UTC; no time is None."""
    assert output.moment(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert output.moment(None) is None
