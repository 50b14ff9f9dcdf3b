"""The laws of the fleet that can be read off the source: one sender, no Celery retry or ETA, two exception borders."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SENDER = ROOT / "worker" / "adapters" / "queue.py"
MODULES = sorted(path for package in ("worker", "tasks", "config") for path in (ROOT / package).rglob("*.py"))

SENDING = {"delay", "apply_async", "send_task", "si", "signature", "apply", "publish_task"}
PLANNING = {
    "countdown",
    "eta",
    "link",
    "link_error",
    "max_retries",
    "autoretry_for",
    "retry_backoff",
    "task_always_eager",
}
FANNING = {"chain", "chord", "group", "chunks", "AsyncResult", "GroupResult"}
UNSAFE = {"pickle", "marshal", "shelve", "dill"}

# Where `except Exception` may stand: the task border, and the borders to a provider, a broker and a signer that are not
# ours; each says so where it stands.
BORDERS = {
    "tasks/border.py",
    "worker/adapters/keys.py",
    "worker/adapters/queue.py",
    "worker/flow/collecting/approval_signing.py",
    "worker/flow/cms_call.py",
    "worker/flow/collecting/evidence_call.py",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


@pytest.mark.parametrize("path", [path for path in MODULES if path != SENDER], ids=name_of)
def test_only_the_queue_adapter_sends(path: Path) -> None:
    """No module but `adapters/queue.py` calls anything of Celery that sends a message."""
    sent = [name for name, _ in calls(ast.parse(path.read_text())) if name in SENDING]
    assert sent == []


def test_the_sender_sends() -> None:
    """The ban above looks for what the one sender really does."""
    assert [name for name, _ in calls(ast.parse(SENDER.read_text())) if name in SENDING] == ["send_task"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_retry_eta_chain_or_chord(path: Path) -> None:
    """Back-off lives in the database: no module uses Celery's retry, ETA, countdown, link, chain or chord."""
    tree = ast.parse(path.read_text())
    keywords = {word.arg for _, call in calls(tree) for word in call.keywords if word.arg in PLANNING}
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "celery"
        for alias in node.names
    }
    retried = [
        ast.unparse(call.func)
        for name, call in calls(tree)
        if name == "retry" and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in {"self", "task"}
    ]
    assert (keywords, imported & FANNING, retried) == (set(), set(), [])


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_serializer_that_can_run_code(path: Path) -> None:
    """Nothing imports pickle or its like."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & UNSAFE


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_broad_excepts_stand_at_the_borders_only(path: Path) -> None:
    """`except Exception` (or wider) stands only where HOUSE allows it; `except: pass` nowhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type is not None else "BaseException"
        if caught in {"Exception", "BaseException"} and not _raises_again(node):
            assert name_of(path) in BORDERS, f"{name_of(path)}:{node.lineno}"


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))
