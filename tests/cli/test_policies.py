"""`locseal policy`: every fault of a file at once, and what holds for a site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Home
from worker.domain.policy import SitePolicy


def test_a_good_file_is_checked_with_the_digests(locseal: Callable[..., Any], home: Home, tmp_path: Path) -> None:
    """Exit 0, and the digest that approvals of each site will carry."""
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"sites": {"shop": {"approval_ttl_seconds": 60}}}))
    done = locseal("policy", "check", str(file), "--json")
    assert (done.code, done.json) == (
        0,
        {
            "valid": True,
            "default_sha256": SitePolicy().sha256,
            "sites": {"shop": SitePolicy(approval_ttl_seconds=60).sha256},
        },
    )
    assert "the policy file can be used" in locseal("policy", "check", str(file)).out


def test_a_bad_file_is_refused_with_every_fault(locseal: Callable[..., Any], home: Home, tmp_path: Path) -> None:
    """Exit 1; ranges, routes that the settings do not have and leases too short for the calls, all told together."""
    file = tmp_path / "policy.json"
    default = {"evidence_lease_seconds": 10, "delivery_lease_seconds": 1, "review_route": {"legal": "lawyers"}}
    file.write_text(json.dumps({"default": default, "sites": {"shop": {"evidence_max_attempts": 21}}}))
    done = locseal("policy", "check", str(file), "--json")
    assert done.code == 1
    assert done.json["error"]["code"] == "policy.invalid"
    assert [(one["path"], one["code"]) for one in done.json["error"]["details"]["faults"]] == [
        ("default.evidence_lease_seconds", "policy.lease.too_short"),
        ("default.delivery_lease_seconds", "policy.lease.too_short"),
        ("default.review_route.legal", "policy.route.unknown"),
        ("sites.shop.evidence_max_attempts", "policy.value.range"),
    ]
    for path in ("default.evidence_lease_seconds", "default.review_route.legal", "sites.shop.evidence_max_attempts"):
        assert path in locseal("policy", "check", str(file)).err


@pytest.mark.parametrize("text", ['{"default": {}, "default": {}}', "{", "\ufeff{}"])
def test_a_file_that_is_no_strict_json(locseal: Callable[..., Any], home: Home, tmp_path: Path, text: str) -> None:
    """One fault, for the file as a whole."""
    file = tmp_path / "policy.json"
    file.write_text(text)
    (fault,) = locseal("policy", "check", str(file), "--json").json["error"]["details"]["faults"]
    assert (fault["path"], fault["code"]) == ("", "policy.json.invalid")


def test_a_file_that_is_not_there_is_wrong_usage(locseal: Callable[..., Any], home: Home, tmp_path: Path) -> None:
    """Exit 2."""
    assert locseal("policy", "check", str(tmp_path / "none.json")).code == 2


def test_show_tells_what_holds_for_a_site(
    locseal: Callable[..., Any], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the settings, with the product's defaults filled in."""
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"sites": {"shop": {"publication": "guided", "required_locales": ["fr", "de"]}}}))
    monkeypatch.setenv("LOCSEAL_POLICY_FILE", str(file))
    shown = locseal("policy", "show", "shop", "--json").json
    assert (shown["policy"]["publication"], shown["policy"]["required_locales"]) == ("guided", ["de", "fr"])
    assert shown["policy_sha256"] == SitePolicy().sha256
    assert locseal("policy", "show", "blog", "--json").json["policy"]["publication"] == "automatic"
