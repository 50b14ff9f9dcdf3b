"""`locseal keys`: what each command writes, shows and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.adapters.keys import FileKeys


@pytest.fixture
def keys(tmp_path: Path, locseal: Callable[..., Any]) -> Callable[..., Any]:
    """Call `locseal keys … --keys DIR`."""

    def call(*arguments: str) -> Any:
        return locseal("keys", *arguments, "--keys", str(tmp_path / "keys"))

    return call


def holder(tmp_path: Path) -> FileKeys:
    return FileKeys(tmp_path / "keys" / "private", tmp_path / "keys" / "trust")


def test_generate_makes_a_key_that_signs(keys: Callable[..., Any], tmp_path: Path) -> None:
    """The JSON holds the public facts and the files; the key works; the secret is nowhere in the output."""
    made = keys("generate", "approval", "--kid", "a-1", "--json")
    assert (made.code, made.err) == (0, "")
    private = tmp_path / "keys" / "private" / "approval.a-1.jwk"
    assert made.json["private_file"] == str(private)
    assert (made.json["kid"], made.json["typ"]) == ("a-1", "locseal-approval+jws")
    assert sorted(made.json["public"]) == ["alg", "crv", "kid", "kty", "status", "use", "x"]
    assert json.loads(private.read_text())["d"] not in made.out
    assert holder(tmp_path).sign("approval", {}).kid == "a-1"


@pytest.mark.parametrize("word", ["receipt:quality", "receipt-quality"])
def test_a_purpose_is_taken_in_both_spellings(keys: Callable[..., Any], tmp_path: Path, word: str) -> None:
    """With a colon as in documents, or with a dash as in file names."""
    assert keys("generate", word, "--provider", "lab", "--kid", "q").code == 0
    assert holder(tmp_path).trust("receipt:quality").keys["q"].providers == {"lab"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "approvals"],
        ["generate", "submission"],
        ["generate", "receipt:human", "--site", "www"],
        ["generate", "approval", "--site", "www"],
        ["retire", "approvals", "a"],
        ["retire", "approval", "a", "--after", "-1"],
        ["check", "--signs", "approvals"],
    ],
)
def test_wrong_usage_writes_nothing(keys: Callable[..., Any], tmp_path: Path, arguments: list[str]) -> None:
    """Unknown purposes and names that do not belong to the purpose are exit code 2."""
    assert keys(*arguments).code == 2
    assert not (tmp_path / "keys").exists()


def test_list_shows_which_key_signs(keys: Callable[..., Any]) -> None:
    """Each key with its purpose, status, whom it speaks for, and whether it signs, is held, or is only trusted."""
    keys("generate", "submission", "--site", "www", "--site", "shop", "--kid", "s-1")
    keys("generate", "approval", "--kid", "a-1")
    keys("generate", "approval", "--kid", "a-2", "--first")
    keys("retire", "approval", "a-1", "--revoke")
    listed = keys("list", "--json").json
    assert [(one["kid"], one["status"], one["signs"], one["held"]) for one in listed["keys"]] == [
        ("s-1", "active", True, True),
        ("a-2", "active", True, True),
        ("a-1", "revoked", False, True),
    ]
    assert listed["broken"] == []
    lines = keys("list").out.splitlines()
    assert lines[1].split() == ["submission", "s-1", "active", "signs", "shop,", "www"]
    assert lines[3].split() == ["approval", "a-1", "revoked", "held", "-"]


def test_list_of_nothing_says_so(keys: Callable[..., Any], tmp_path: Path) -> None:
    """No key is a sentence, not an empty page."""
    assert keys("list").out == f"no trusted key in {tmp_path / 'keys' / 'trust'}\n"


def test_retire_sets_a_time_and_revoke_none(keys: Callable[..., Any], tmp_path: Path) -> None:
    """A retired key keeps what it signed before; an unknown one is a refusal."""
    keys("generate", "approval", "--kid", "a-1")
    retired = keys("retire", "approval", "a-1", "--after", "60", "--json")
    key = holder(tmp_path).trust("approval").keys["a-1"]
    assert (retired.code, key.status) == (0, "retired")
    assert key.retired_at == retired.json["retired_at"]
    refused = keys("retire", "approval", "a-9")
    assert refused.code == 1
    assert refused.err.startswith("keys.kid.unknown: ")
    assert keys("retire", "approval", "a-1", "--revoke").out.startswith("a-1 of approval is revoked")
    assert holder(tmp_path).trust("approval").keys["a-1"].retired_at is None


def test_check_passes_when_all_is_in_order(keys: Callable[..., Any]) -> None:
    """Both signers of a worker, somebody trusted for all that it waits for, private files closed: exit code 0."""
    keys("generate", "approval")
    keys("generate", "publication")
    missing = keys("check", "--json")
    assert (missing.code, missing.json["good"], missing.json["errors"]) == (0, True, [])
    assert [(one["code"], one["purpose"]) for one in missing.json["warnings"]] == [
        ("keys.trust.nobody", "submission"),
        ("keys.trust.nobody", "receipt:quality"),
        ("keys.trust.nobody", "acknowledgement"),
    ]
    keys("generate", "submission", "--site", "www")
    keys("generate", "receipt:quality", "--provider", "lab")
    keys("generate", "acknowledgement", "--site", "www")
    assert keys("check", "--json").json == {"good": True, "errors": [], "warnings": []}
    assert keys("check").code == 0


def test_check_reports_each_finding_with_its_fix(keys: Callable[..., Any], tmp_path: Path) -> None:
    """Permissions, overlap, a missing signer, a key nobody trusts, a retired key's private file: all in one report."""
    for purpose in ("approval", "publication", "evidence"):
        keys("generate", purpose, "--kid", f"{purpose}-1")
    private, trust = tmp_path / "keys" / "private", tmp_path / "keys" / "trust"
    (private / "approval.approval-1.jwk").chmod(0o640)
    jwks = json.loads((trust / "publication.jwks.json").read_text())
    (trust / "acknowledgement.jwks.json").write_text(json.dumps({"keys": [jwks["keys"][0] | {"sites": ["www"]}]}))
    (private / "evidence.evidence-1.jwk").rename(private / "evidence.evidence-2.jwk")
    keys("generate", "submission", "--site", "www", "--kid", "s-1")
    keys("retire", "submission", "s-1")
    keys("generate", "receipt:human", "--provider", "lab", "--kid", "h-1")
    (trust / "receipt-human.jwks.json").write_text('{"keys":[]}')
    report = keys("check", "--json")
    assert report.code == 1
    assert report.json["good"] is False
    assert [(one["code"], one["purpose"]) for one in report.json["errors"]] == [
        ("keys.file.permissions", "approval"),
        ("keys.file.invalid", "evidence"),
        ("keys.trust.overlap", "acknowledgement"),
        ("keys.trust.overlap", "publication"),
    ]
    assert [(one["code"], one["purpose"]) for one in report.json["warnings"]] == [
        ("keys.trust.nobody", "submission"),
        ("keys.trust.nobody", "receipt:quality"),
        ("keys.private.untrusted", "receipt:human"),
        ("keys.private.retired", "submission"),
    ]
    assert "chmod 600" in report.json["errors"][0]["fix"]
    text = keys("check")
    assert (text.code, text.out.count("\n")) == (1, 9)
    assert text.out.endswith("the keys cannot be used as they are\n")


def test_check_misses_the_signers_that_are_asked_for(keys: Callable[..., Any]) -> None:
    """A producer's machine needs a submission key and nothing else."""
    keys("generate", "submission", "--site", "www")
    assert keys("check", "--signs", "submission").code == 0
    report = keys("check", "--json")
    assert [(one["code"], one["purpose"]) for one in report.json["errors"]] == [
        ("keys.signer.missing", "approval"),
        ("keys.signer.missing", "publication"),
    ]


def test_check_of_no_directory_says_what_to_do(keys: Callable[..., Any]) -> None:
    """Missing directories are findings with a fix."""
    report = keys("check", "--json")
    assert report.code == 1
    assert [one["code"] for one in report.json["errors"]] == [
        "keys.private.missing",
        "keys.trust.missing",
        "keys.signer.missing",
        "keys.signer.missing",
    ]


def test_the_settings_name_the_directories(
    locseal: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --keys the two settings are used."""
    monkeypatch.setenv("LOCSEAL_KEYS_PRIVATE_DIR", str(tmp_path / "p"))
    monkeypatch.setenv("LOCSEAL_KEYS_TRUST_DIR", str(tmp_path / "t"))
    assert locseal("keys", "generate", "approval", "--kid", "a-1").code == 0
    assert (tmp_path / "p" / "approval.a-1.jwk").exists()
    assert (tmp_path / "t" / "approval.jwks.json").exists()
