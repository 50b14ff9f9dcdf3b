"""The hand-written peers stay what a reader believes them to be: short, and without anything of the product's steps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("name", "bound"), [("bare_loop.py", 120), ("plain_celery.py", 200)])
def test_a_peer_stays_short(name: str, bound: int) -> None:
    """The bare loop has fewer than 120 lines, both ways of plain Celery together fewer than 200."""
    assert len((BENCHMARKS / name).read_text().splitlines()) < bound


@pytest.mark.parametrize("name", ["bare_loop.py", "plain_celery.py", "peer_documents.py"])
def test_a_peer_uses_nothing_of_the_product_but_names(name: str) -> None:
    """A peer writes its own SQL and signs by itself; only the names of the bound members come from the product."""
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse((BENCHMARKS / name).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"worker", "tasks", "config"}
        for alias in node.names
    }
    assert imported <= {"worker.domain.receipt.BOUND_FIELDS"}


def test_both_ways_of_celery_are_there() -> None:
    """Plain Celery has a task for each locale and a task for each event."""
    tree = ast.parse((BENCHMARKS / "plain_celery.py").read_text())
    tasks = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "app.task" for one in node.decorator_list)
    }
    assert tasks == {"review", "review_event"}
