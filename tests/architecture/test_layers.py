"""The shape of the house: who may import whom, how large a module is, what every module says about itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("worker", "tasks", "config")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MIGRATIONS = ROOT / "worker" / "store" / "migrations"


# Soft limits give way to a reason; each of these has its own bound.
LONGER = {
    "worker/store/schema.py": (680, "the whole schema on one page"),
    "config/settings.py": (400, "every knob of one process, each with its unit, default and bounds"),
    "worker/store/leases.py": (400, "the machine in one place: every transition of a leased row"),
    "worker/store/evidence.py": (350, "the public surface of SPEC 4 with its order of argument checks"),
    "worker/adapters/sandbox/app.py": (340, "three small services that share one misbehaviour"),
    "worker/domain/run_record.py": (310, "one document with all its checks"),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_import_contracts_hold() -> None:
    """Dependencies point inward, steps do not import each other, config is a leaf: the contracts of pyproject.toml."""
    found = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]


@pytest.mark.parametrize("module", ["worker.app", "tasks.intake", "tasks.evidence", "tasks.delivery", "tasks.sweep"])
def test_importing_an_entry_point_reads_no_configuration(module: str) -> None:
    """Importing the app or a task reads no settings and opens nothing: it works with settings that are refused."""
    code = f"import {module}, sys; assert 'config.celeryconfig' not in sys.modules; print('imported')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LOCSEAL_BATCH_ROWS": "none", "LOCSEAL_NO_SUCH_SETTING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, found.stdout.strip()) == (0, "imported"), found.stderr[-2000:]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_lives_in_it(path: Path) -> None:
    """Every module has a docstring; an `__init__.py` has nothing else."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), name_of(path)
    if path.name == "__init__.py":
        assert len(tree.body) == 1, f"{name_of(path)} holds more than its docstring"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_stays_small(path: Path) -> None:
    """At most 300 lines a module, 120 a step of the flow (its `services.py` apart); migrations are written once."""
    lines = len(path.read_text().splitlines())
    is_step = path.parent == ROOT / "worker" / "flow" and path.name != "services.py"
    limit, _ = LONGER.get(name_of(path), (120 if is_step else 300, ""))
    if MIGRATIONS not in path.parents:
        assert lines <= limit, f"{name_of(path)} has {lines} lines"


@pytest.mark.parametrize("path", sorted((ROOT / "tasks").glob("*.py")), ids=name_of)
def test_a_task_only_translates(path: Path) -> None:
    """A task's body is its docstring and at most five statements."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any("app.task" in ast.unparse(d) for d in node.decorator_list):
            assert ast.get_docstring(node), node.name
            assert len(node.body) - 1 <= 5, f"{node.name} does more than translate"


def test_the_contract_names_every_step() -> None:
    """The contract that keeps steps apart lists exactly the modules that are steps."""
    steps = set()
    for path in (ROOT / "worker" / "flow").glob("*.py"):
        if any(
            isinstance(node, ast.FunctionDef) and node.name == path.stem for node in ast.parse(path.read_text()).body
        ):
            steps.add(f"worker.flow.{path.stem}")
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    listed = next(contract["modules"] for contract in contracts if contract["name"] == "No step imports another")
    assert set(listed) == steps


@pytest.mark.parametrize("path", sorted((ROOT / "worker" / "flow").glob("*.py")), ids=name_of)
def test_a_step_has_one_public_function(path: Path) -> None:
    """A file of the flow that is named by a verb holds one public function of that name."""
    tree = ast.parse(path.read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    if path.stem in functions:
        assert functions == [path.stem]


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=name_of)
def test_a_test_says_what_should_be_true(path: Path) -> None:
    """Every test has a docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert ast.get_docstring(node), f"{name_of(path)}: {node.name}"
