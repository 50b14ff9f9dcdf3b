"""How settings become adapters: the credential of an endpoint is read again for every call, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.settings import CmsEndpoint
from worker.bootstrap import _credentials

CMS = "https://cms.invalid"


def test_a_credential_follows_its_file_and_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new secret counts from the next call on, without a restart; an endpoint without one sends none."""
    token = tmp_path / "token"
    from_file = _credentials(CmsEndpoint(url=CMS, token_file=token))
    from_variable = _credentials(CmsEndpoint(url=CMS, token_variable="CMS_TOKEN"))
    assert from_file is not None
    assert from_variable is not None
    for secret in ("first", "second-one"):
        token.write_text(secret)
        monkeypatch.setenv("CMS_TOKEN", secret)
        assert from_file.header() == ("Authorization", f"Bearer {secret}")
        assert from_variable.header() == ("Authorization", f"Bearer {secret}")
    assert _credentials(CmsEndpoint(url=CMS)) is None
