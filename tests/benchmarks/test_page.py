"""The tables of `docs/performance.md`: made from kept figures between intact markers, and honest about what is missed."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.__main__ import PAGE, PARTS, RESULTS
from benchmarks.report import MARK, Target, fill_page, tables, targets
from benchmarks.simulate import BEGIN, END
from benchmarks.simulate import PAGE as SCALE_PAGE

SHOWN = {"targets", "cost", *PARTS}


def test_every_table_has_its_markers() -> None:
    """The page has each table once, each marker is closed, and no marker is unknown."""
    text = PAGE.read_text()
    assert sorted(found[2] for found in MARK.finditer(text)) == sorted(SHOWN)
    assert len(re.findall(r"<!-- bench:", text)) == 2 * len(SHOWN)


def test_the_page_shows_the_kept_figures() -> None:
    """Filling the page from the kept figures changes nothing: nobody edited a table by hand."""
    kept = json.loads(RESULTS.read_text())
    assert fill_page(PAGE.read_text(), kept) == PAGE.read_text()


def test_every_part_has_figures() -> None:
    """Each part was measured, and says when, on which commit and with which versions."""
    kept = json.loads(RESULTS.read_text())
    assert kept.keys() == PARTS.keys()
    for found in kept.values():
        assert {"at", "commit", "load_before", "versions", "sizes", "figures"} <= found.keys()


def test_filling_changes_only_what_is_between_markers() -> None:
    """Prose stays, an old table goes, and filling twice is filling once."""
    page = "before\n<!-- bench:begin memory -->\nold\n<!-- bench:end memory -->\nafter\n"
    kept = json.loads(RESULTS.read_text())
    filled = fill_page(page, {"memory": kept["memory"]})
    assert filled.startswith("before\n<!-- bench:begin memory -->\n| process |")
    assert filled.endswith("<!-- bench:end memory -->\nafter\n")
    assert "old" not in filled
    assert fill_page(filled, {"memory": kept["memory"]}) == filled


def test_without_figures_nothing_is_claimed() -> None:
    """A target that was not measured is neither met nor missed."""
    assert "Not measured yet." in fill_page("<!-- bench:begin http -->\n<!-- bench:end http -->", {})
    rows = [one.row() for one in targets({})]
    assert {row[2] for row in rows} == {"not measured"}
    assert {row[3] for row in rows} == {"-"}
    assert tables({}).keys() == {"targets"}


@pytest.mark.parametrize(
    ("found", "is_floor", "verdict"),
    [(1.0, True, "yes"), (0.99, True, "**no**"), (1.0, False, "yes"), (1.01, False, "**no**")],
)
def test_a_target_is_met_exactly_up_to_its_bound(found: float, is_floor: bool, verdict: str) -> None:
    """What equals the bound is met, what is beyond it is not."""
    assert Target(what="x", found=found, bound=1.0, is_floor=is_floor).row()[3] == verdict


def test_the_simulation_has_its_markers() -> None:
    """The page on scale has the simulation's table, once."""
    text = SCALE_PAGE.read_text()
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert text.index(BEGIN) < text.index(END)
