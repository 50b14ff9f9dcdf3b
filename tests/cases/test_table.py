"""The table of field cases names tests that exist; and a case that is held by one setting (65)."""

from __future__ import annotations

import re
from pathlib import Path

from celery import Celery

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`((?:\w+/)*)(test_\w+\.py)(?:::(\w+))?")


def test_the_table_names_tests_that_exist() -> None:
    """Every file and every (beginning of a) test that README.md names is there."""
    named = NAMED.findall((TESTS / "cases" / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 70
    for folder, file, test in named:
        text = (TESTS / (folder or "cases/") / file).read_text(encoding="utf-8")
        assert f"def {test}" in text, f"{folder}{file}::{test}"


def test_65_a_dead_holder_of_kombus_lock_holds_nobody_up_for_long() -> None:
    """Whoever is killed while handing unacknowledged intake back blocks that for 30 s and not for kombu's 5 minutes."""
    app = Celery(set_as_current=False)
    app.config_from_object("config.celeryconfig")
    assert app.conf.broker_transport_options["unacked_mutex_expire"] == 30
