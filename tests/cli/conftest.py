"""The command line as people call it: arguments in, exit code, standard output and standard error out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from worker.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What one call of `locseal` did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.out)


@pytest.fixture
def locseal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `locseal` in this process, with its arguments where it looks for them."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["locseal", *arguments])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        written = capsys.readouterr()
        code = ended.value.code
        return Outcome(0 if code is None else int(code), written.out, written.err)

    return call
