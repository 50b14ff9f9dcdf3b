"""Tokens, hashes and times."""

from __future__ import annotations

from typing import Any

import pytest

from worker.domain.errors import Invalid
from worker.domain.identifier import is_hash, is_time, is_token, require_hash, require_time, require_token

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("value", ["a", "A-Z_0.9:x", "-", ".", "x" * 256])
def test_tokens(value: str) -> None:
    """One to 256 of the allowed characters are a token."""
    assert is_token(value)
    assert require_token(value, "a.b") == value


@pytest.mark.parametrize(
    "value", ["", "x" * 257, "a\n", "\na", "a b", "a/b", "ä", "a\u0000", "٣", None, 7, b"a", ["a"]]
)
def test_no_tokens(value: Any) -> None:
    """Anything else is refused with the caller's code and path; a trailing newline fails."""
    assert not is_token(value)
    with pytest.raises(Invalid) as caught:
        require_token(value, "evidence.request_id.invalid", "key.request_id")
    assert (caught.value.code, caught.value.path) == ("evidence.request_id.invalid", "key.request_id")


def test_hashes() -> None:
    """64 lowercase hex digits are a hash."""
    assert is_hash(HEX)
    assert require_hash(HEX, "a.b") == HEX


@pytest.mark.parametrize("value", ["", HEX[:-1], HEX + "0", HEX.upper(), HEX + "\n", "g" * 64, None, 7, b"0" * 64])
def test_no_hashes(value: Any) -> None:
    """Other lengths, cases, digits and types are refused with the caller's code and path."""
    assert not is_hash(value)
    with pytest.raises(Invalid) as caught:
        require_hash(value, "a.hash.invalid", "x")
    assert (caught.value.code, caught.value.path) == ("a.hash.invalid", "x")


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.5, 1.8e9, -0.0])
def test_times(value: float) -> None:
    """Finite numbers from zero on are times, and become floats."""
    assert is_time(value)
    assert require_time(value) == value
    assert isinstance(require_time(value), float)


@pytest.mark.parametrize(
    "value", [True, False, -1, -0.1, float("nan"), float("inf"), float("-inf"), 10**400, "1", None, b"1", 1j]
)
def test_no_times(value: Any) -> None:
    """A bool is never a number; nor is anything negative, endless or of another type."""
    assert not is_time(value)
    with pytest.raises(Invalid) as caught:
        require_time(value)
    assert caught.value.code == "coordinator.time.invalid"
