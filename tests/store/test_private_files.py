"""The state directory and the SQLite files in it belong to the operator alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.conftest import missing
from worker.domain.errors import RunCorrupt
from worker.store.engine import open_engine
from worker.store.private_files import private_directory, private_file
from worker.store.schema_version import migrate


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refused(path: Path) -> str:
    """Open an engine on a path that must be refused, and return the reason."""
    with pytest.raises(RunCorrupt) as caught:
        open_engine(f"sqlite:///{path}")
    assert (caught.value.code, caught.value.retryable) == ("run.corrupt", False)
    return caught.value.message


def test_everything_is_made_private(tmp_path: Path, umask: int) -> None:
    """New directories are 0700, the file and what SQLite puts beside it 0600."""
    path = tmp_path / "a" / "b" / "locseal.db"
    engine = open_engine(f"sqlite:///{path}")
    try:
        migrate(engine)
        with engine.connect() as conn:
            conn.execute(text("SELECT count(*) FROM evidence"))
            beside = {one.name: mode(one) for one in path.parent.iterdir()}
    finally:
        engine.dispose()
    assert beside == {"locseal.db": 0o600, "locseal.db-wal": 0o600, "locseal.db-shm": 0o600}
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)


def test_an_own_directory_that_others_could_read_is_tightened(tmp_path: Path) -> None:
    """Reading and searching by others is taken away; the ancestors keep theirs."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "state"
    inner.mkdir(parents=True)
    outer.chmod(0o755)
    inner.chmod(0o755)
    open_engine(f"sqlite:///{inner}/locseal.db").dispose()
    assert (mode(outer), mode(inner)) == (0o755, 0o700)


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_could_write_is_refused(tmp_path: Path, bits: int) -> None:
    """Even with the sticky bit, and it is left as it is; no file is made."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(bits)
    assert "written" in refused(state / "locseal.db")
    assert mode(state) == bits
    assert list(state.iterdir()) == []


def test_an_ancestor_that_others_could_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    """Whoever may write an ancestor may exchange what is below, but not under a sticky bit."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "written" in refused(open_to_all / "state" / "locseal.db")
    assert list(open_to_all.iterdir()) == []
    open_to_all.chmod(0o1777)
    open_engine(f"sqlite:///{open_to_all}/state/locseal.db").dispose()


def test_a_symlink_anywhere_in_the_path_is_refused(tmp_path: Path) -> None:
    """In the ancestors, as the directory, as the file, also where it leads nowhere."""
    real = tmp_path / "real"
    (real / "state").mkdir(parents=True)
    (real / "state").chmod(0o700)
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "direct").symlink_to(real / "state")
    assert "symlink" in refused(tmp_path / "link" / "state" / "locseal.db")
    assert "symlink" in refused(tmp_path / "direct" / "locseal.db")
    (real / "state" / "locseal.db").symlink_to(tmp_path / "elsewhere.db")
    assert "regular" in refused(real / "state" / "locseal.db")
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("name", ["locseal.db", "locseal.db-wal", "locseal.db-shm", "locseal.db-journal"])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, name: str) -> None:
    """The database and what SQLite keeps beside it; it is not tightened, for others may hold it open already."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for bits in (0o640, 0o604, 0o610, 0o666):
        (state / name).touch()
        (state / name).chmod(bits)
        assert "open to group or others" in refused(state / "locseal.db")
        assert mode(state / name) == bits


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A directory or a pipe in the file's place."""
    state = tmp_path / "state"
    (state / "locseal.db").mkdir(parents=True)
    assert "regular" in refused(state / "locseal.db")
    (state / "locseal.db").rmdir()
    os.mkfifo(state / "locseal.db", 0o600)
    assert "regular" in refused(state / "locseal.db")
    (state / "file").touch(mode=0o600)
    assert "directory" in refused(state / "file" / "locseal.db")


def test_what_belongs_to_a_stranger_is_refused(tmp_path: Path) -> None:
    """The directory, a file in it, or an ancestor that is neither root's nor the operator's."""
    if os.geteuid() != 0:
        missing("root", "only root can give files away")
    state = tmp_path / "state"
    private_file(state / "locseal.db")
    os.chown(state / "locseal.db", 12345, 12345)
    assert "another user" in refused(state / "locseal.db")
    os.chown(state / "locseal.db", 0, 0)
    os.chown(state, 12345, 12345)
    assert "another user" in refused(state / "locseal.db")
    assert "another user" in refused(state / "below" / "locseal.db")


def test_a_directory_of_the_system_is_never_tightened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database right under the root of the file system would take everybody's way into it."""
    with pytest.raises(RunCorrupt) as caught:
        private_directory(Path("/"))
    assert caught.value.code == "run.corrupt"
    assert mode(Path("/")) & 0o005 == 0o005


def test_a_relative_path_is_taken_from_where_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks see the whole path, `..` included."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert private_file(Path("../state/locseal.db")) == tmp_path / "state" / "locseal.db"
    assert mode(tmp_path / "state" / "locseal.db") == 0o600


def test_a_private_file_is_opened_again(tmp_path: Path) -> None:
    """What was made once is found right the next time, with its content."""
    path = tmp_path / "state" / "locseal.db"
    private_file(path).write_text("kept")
    assert private_file(path).read_text() == "kept"
