"""Spans of time and the operator's name, as commands take them."""

from __future__ import annotations

import getpass
import re
from typing import Final

import typer

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def span_seconds(text: str) -> float | None:
    """Return a span such as 30m, 2h or 90d in seconds, or None where the text is none."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    return None if found is None else int(found[1]) * UNITS[found[2]]


def required_span(text: str, option: str) -> float:
    """Return a span in seconds; refuse any other text, naming the option."""
    found = span_seconds(text)
    if found is None:
        raise typer.BadParameter("expected a span such as 12h or 90d", param_hint=option)
    return found


def said_by(owner: str | None) -> str:
    """Return who gives a command: the named owner, else the name of whoever is logged in, as a token."""
    return owner or re.sub(r"[^A-Za-z0-9_.:-]", "-", getpass.getuser())
