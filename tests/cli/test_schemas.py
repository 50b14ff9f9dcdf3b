"""`locseal schemas`, from this tree and from the wheel that a user installs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples import CONTRACTS
from worker.cli.schemas import published
from worker.domain.contract import MODELS

ROOT = Path(__file__).parents[2]
SHARED = "/share/locseal/contracts/"


def files_below(directory: Path) -> dict[str, str]:
    """Return the text of every file by its path below a directory."""
    return {
        str(path.relative_to(directory)): path.read_text(encoding="utf-8")
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_every_published_document_is_written(locseal: Callable[..., Any], tmp_path: Path) -> None:
    """A schema of each document and the two API documents, byte for byte those of `docs/contracts/`."""
    ended = locseal("schemas", "--out", str(tmp_path / "new" / "dir"), "--json")
    assert (ended.code, ended.err) == (0, "")
    found = files_below(tmp_path / "new" / "dir")
    assert ended.json == {"out": str(tmp_path / "new" / "dir"), "files": sorted(found)}
    assert set(found) == {"asyncapi.json", "openapi.json", *(f"schemas/{name}.schema.json" for name in MODELS)}
    assert found == {name: (CONTRACTS / name).read_text(encoding="utf-8") for name in found}


def test_a_second_time_changes_nothing_and_other_files_stay(locseal: Callable[..., Any], tmp_path: Path) -> None:
    """Writing again writes the same; what else is there is left alone."""
    (tmp_path / "own.txt").write_text("mine")
    assert locseal("schemas", "--out", str(tmp_path)).code == 0
    first = files_below(tmp_path)
    ended = locseal("schemas", "--out", str(tmp_path))
    assert ended.out.splitlines() == [str(tmp_path / name) for name in sorted(published())]
    assert files_below(tmp_path) == first
    assert first["own.txt"] == "mine"


def test_a_place_that_cannot_be_written_is_refused(locseal: Callable[..., Any], tmp_path: Path) -> None:
    """A file where the directory should be: a code and a sentence, no traceback."""
    (tmp_path / "taken").write_text("a file")
    ended = locseal("schemas", "--out", str(tmp_path / "taken"), "--json")
    assert ended.code == 1
    assert ended.json["error"]["code"] == "schemas.out.unwritable"
    assert (tmp_path / "taken").read_text() == "a file"


def test_without_a_place_it_is_wrong_usage(locseal: Callable[..., Any]) -> None:
    """`--out` is required: nothing is written where nobody asked for it."""
    assert locseal("schemas").code == 2


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product's wheel, unpacked."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (built,) = directory.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(directory / "installed")
    return directory / "installed"


def test_the_wheel_holds_all_that_is_published(wheel: Path) -> None:
    """Pages, schemas, API documents, examples and vectors are below `share/locseal/contracts/`, as they are here."""
    held = {
        path.rpartition(SHARED)[2]: text
        for path, text in ((str(path), path.read_text(encoding="utf-8")) for path in wheel.glob("*.data/**/*.*"))
        if SHARED in path
    }
    assert held == files_below(CONTRACTS)


def test_the_installed_command_writes_the_same(wheel: Path, tmp_path: Path) -> None:
    """From the wheel's own modules, without this tree."""
    command = "import worker.cli.main as main; assert 'installed' in main.__file__; main.run()"
    ended = subprocess.run(
        [sys.executable, "-c", command, "schemas", "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert files_below(tmp_path / "out") == published()
