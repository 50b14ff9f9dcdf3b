"""Every stable error code has its page in docs/runbook, no page is about nothing, and its commands exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest
import typer

from config.settings import Settings
from tests.runbook import AREAS, DOCS, INDEX, Page, index, pages
from worker.cli.main import app
from worker.domain.messages import WIRE
from worker.domain.symptom import RULES

ROOT: Final = DOCS.parent
CODE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
PAGES: Final = pages()
ROOT_COMMAND: Final[Any] = typer.main.get_command(app)

# What looks like a code and is none, by where it stands: names of log lines, checkpoints, spans, modules and files.
_CALLS: Final = re.compile(
    r"(log|.*\.critical)\.?(debug|info|warning|error|critical|log)?|.*checkpoint|.*attempt_span|.*tell_step|say|once"
    r"|.*config_from_object|resources\.files|.*joinpath|.*read_text|.*replace|.*set_attribute|self\._counted|self\._drop"
)
_FILE: Final = re.compile(r".*\.(conf|db|json|pem|sql|v1)|locseal\.(code|event_id|outcome|provider)|service\..*")
_NO_CODES: Final = {
    "celery.app.trace",
    "http.disconnect",
    "http11.send_request_headers.started",
    "redis.exceptions",
    "worker.app",
    "worker.started",
    "admin.interface",  # a source of the demo
    "delivery.look_up",  # spans
    "delivery.send",
    "queue.unreadable",
    "readiness.fresh",  # names of rows that the sweeper keeps
    "readiness.late",
    "placeholder.missing",  # what the demo's reviewer says
    "terminology.mismatch",
}
# Areas and tails that a code is put together from.
_PARTS: Final = {
    "cms.acknowledgement",
    "cms.delivery",
    "cms.lookup",
    "cms.delivery.waits_for_",
    "commercial.invalid",
    "evidence.checks",
    "evidence.provider",
    "http.status_",
    "http.json.invalid",  # becomes `….json_invalid` of the call
    "import.manifest",
    "import.po",
    "locale.duplicate",
    "locale.equals_source",
    "locale.invalid",
    "release.approval",
    "release.verifier",
    "sandbox.control",
    "text.invalid",
}
# Codes that are put together, and the file in which their tail stands.
_FAULTS: Final = ("timeout", "unreachable", "tls", "connection_lost", "body_too_large", "content_type")
_HTTP: Final = (*_FAULTS, "content_encoding", "json_invalid", "credentials", "redirect", "status_NNN")
FORMED: Final = {
    **{
        f"{area}.{fault}": "worker/adapters/http.py"
        for area in ("cms.delivery", "cms.lookup", "evidence.provider", "release.verifier")
        for fault in _HTTP
    },
    **{f"{area}.answer_invalid": "worker/adapters/cms/http.py" for area in ("cms.delivery", "cms.lookup")},
    **{f"{area}.signature_invalid": "worker/adapters/cms/http.py" for area in ("cms.delivery", "cms.lookup")},
    "cms.delivery.stale": "worker/adapters/cms/http.py",
    **{f"cms.delivery.waits_for_{reason}": "worker/domain/turn.py" for reason in ("older", "pause", "permit")},
    "evidence.CODE": "worker/adapters/providers/http.py",
    "evidence.checks.CODE": "worker/adapters/providers/checks.py",
    **{
        f"evidence.checks.{kind}_review_required": "worker/adapters/providers/checks.py" for kind in ("human", "second")
    },
    "http.status_NNN": "worker/adapters/sandbox/app.py",
    "lease_expired": "worker/domain/attempt.py",
    "plan_stale": "worker/domain/run_visit.py",
    "policy.locale.invalid": "worker/domain/document.py",
    **{f"release.{purpose}.receipt.rejected": "worker/domain/receipt.py" for purpose in ("quality", "human")},
    "release.independent.receipt.rejected": "worker/domain/receipt.py",
    **{
        f"release.verifier.{fault}": "worker/adapters/verifiers/http.py"
        for fault in ("answer_invalid", "binding_mismatch")
    },
    **{f"submission.locale.{fault}": "worker/domain/change.py" for fault in ("duplicate", "equals_source")},
    "submission.commercial.invalid": "worker/domain/change.py",
    "submission.locale.invalid": "worker/domain/document.py",
    "submission.text.invalid": "worker/domain/document.py",
    "superseded": "worker/domain/turn.py",
    "withdrawn": "worker/domain/turn.py",
}


def literals() -> Iterator[tuple[str, str]]:
    """Yield every literal that may be a code, with its file."""
    for path in sorted([*(ROOT / "worker").rglob("*.py"), *(ROOT / "tasks").glob("*.py")]):
        name = str(path.relative_to(ROOT))
        if name.startswith(("worker/domain/checks/", "worker/domain/audit/finding")):
            continue
        yield from ((found, name) for found in _of_tree(ast.parse(path.read_text(encoding="utf-8"))))


def _of_tree(tree: ast.AST) -> Iterator[str]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value)):
            continue
        above = parents[node]
        is_path = isinstance(above, ast.keyword) and above.arg == "path"
        if not is_path and not (isinstance(above, ast.Call) and _CALLS.fullmatch(ast.unparse(above.func))):
            yield node.value


@cache
def codes() -> dict[str, str]:
    """Return the codes of the product that the runbook is about, each with a file that has it."""
    elsewhere = set(RULES) | {code for code in _listed("import.md") if code.partition(".")[0] not in AREAS}
    found = {code: name for code, name in literals() if not _is_none(code) and code not in elsewhere}
    return found | FORMED | failures_of_steps()


def failures_of_steps() -> dict[str, str]:
    """Return the codes, without a dot, that steps of a release run fail with: `Ended(code="…", succeeded=False)`."""
    found = {}
    for path in [*(ROOT / "worker/flow/running").glob("*.py"), ROOT / "worker/domain/run_visit.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Ended":
                given = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                if given.get("succeeded") is False and isinstance(given.get("code"), str):
                    found[str(given["code"])] = str(path.relative_to(ROOT))
    return found


def _is_none(text: str) -> bool:
    return text in _NO_CODES or text in _PARTS or text in WIRE or _FILE.fullmatch(text) is not None


def _listed(page: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", (DOCS / page).read_text(encoding="utf-8")))


def test_every_code_has_its_page() -> None:
    """Those of doctor have theirs in docs/doctor.md, those of the checks and of an import likewise."""
    told = {code for page in PAGES for code in page.codes}
    assert {code: name for code, name in codes().items() if code not in told} == {}
    assert set(RULES) <= _listed("doctor.md")


def test_no_page_is_about_nothing() -> None:
    """A code on a page is one of the product; and what is put together has its tail in the file that is named."""
    known = codes().keys() | set(RULES)
    assert [code for page in PAGES for code in page.codes if code not in known] == []
    for code, name in FORMED.items():
        tail = re.split(r"\.|_NNN|waits_for_|_review_", code.removesuffix("_NNN"))[-1]
        text = (ROOT / name).read_text(encoding="utf-8")
        assert tail in text or "CODE" in code or tail == "required", code


def test_a_code_has_one_page() -> None:
    """And the first one names its file."""
    every = [code for page in PAGES for code in page.codes]
    assert len(every) == len(set(every))
    assert [page.name for page in PAGES if page.codes[0] != page.name] == []


def test_the_index_is_current() -> None:
    """`python -m tests.runbook` writes it."""
    assert INDEX.read_text(encoding="utf-8") == index(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_whole(page: Page) -> None:
    """Its four sections, settings that exist, and commands that the command line takes."""
    assert page.sections == ("What happened", "What it means for the release", "What to do", "See also")
    assert page.commands
    text = (DOCS / "runbook" / f"{page.name}.md").read_text(encoding="utf-8")
    for setting in re.findall(r"LOCSEAL_([A-Z_]+)", text):
        assert setting.lower() in Settings.model_fields, setting
    for command in page.commands:
        assert_command_exists(command)


def assert_command_exists(line: str) -> None:
    """Fail where `locseal` has not this command, its options and so many arguments; other programs are a few."""
    program, *words = shlex.split(line)
    if program != "locseal":
        assert program in {"celery", "chmod", "export"}, line
        return
    command: Any = ROOT_COMMAND
    while getattr(command, "list_commands", None) and words and words[0] in command.list_commands(None):
        command = command.get_command(None, words.pop(0))
    takes = [one for one in command.params if one.param_type_name == "argument"]
    options = {name: one for one in command.params for name in one.opts if one.param_type_name == "option"}
    given = 0
    while words:
        word = words.pop(0)
        if word == "--help":
            return
        if not word.startswith("-"):
            given += 1
            continue
        assert word in options, line
        if not options[word].is_flag and words and not words[0].startswith("-"):
            words.pop(0)
    needed = sum(one.required for one in takes)
    most = given if any(one.nargs == -1 for one in takes) else len(takes)
    assert needed <= given <= most, line


@pytest.mark.parametrize("line", ["locseal evidence reopen EVENT", "locseal audit --events EVENT", "locseal runs show"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    """A wrong name, a wrong option, a missing argument."""
    with pytest.raises(AssertionError):
        assert_command_exists(line)


def test_a_code_without_a_page_is_found() -> None:
    """Raised, returned, or named as a constant; but not what a log line is called."""
    tree = ast.parse(
        'LOST: Final = "a.lost"\nraise Blocked("b.gone", "…")\nlog.info("c.said")\nInvalid("d.x", path="e.f")'
    )
    assert set(_of_tree(tree)) == {"a.lost", "b.gone", "d.x"}
