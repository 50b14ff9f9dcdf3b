"""The pages about security and operations say what is there: tests that exist, every code of doctor, every setting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from worker.domain.symptom import RULES

ROOT = Path(__file__).parents[2]
THREATS = (ROOT / "docs" / "threat-model.md").read_text()
DOCTOR = (ROOT / "docs" / "doctor.md").read_text()


def test_every_claim_of_the_threat_model_names_tests_that_exist() -> None:
    """Each row of each table ends in tests; each of them is a test of that file."""
    rows = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| could")]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.split(" | ")[-1])
        assert named, row
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text())
            tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in tests, f"{file}::{name}"


def test_every_part_has_its_attacker() -> None:
    """Redis, the database, its role, a provider, a worker, a producer's key, the CMS, and what is in between."""
    parts = re.findall(r"^## Only (.+)$", THREATS, re.MULTILINE)
    assert parts == [
        "Redis",
        "the database",
        "the database role of a worker",
        "a review provider",
        "a worker",
        "a producer's key",
        "the CMS",
        "the network in between, or another user of the machine",
    ]


def test_the_page_of_doctor_lists_every_code() -> None:
    """With its severity; and no code that is none."""
    listed = dict(re.findall(r"^\| `([a-z_.]+)` \| (error|warning|note) \|", DOCTOR, re.MULTILINE))
    assert listed == {code: rule.severity for code, rule in RULES.items()}
