"""Statements that are built once in a process for each database: building one takes longer than most of them run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Dialect, Float, bindparam
from sqlalchemy.dialects import postgresql, sqlite

from worker.store.engine import Moment, is_sqlite

S = TypeVar("S")

NOW = "now"  # the bind parameter of a fixed time


def prepared(build: Callable[[Dialect, Moment], S]) -> Callable[[Connection, float | None], tuple[S, dict[str, float]]]:
    """Keep what a builder makes: call it with a connection and a time, get the statement and the time's parameter.

    The builder gets a dialect and a moment for `engine.clock`; everything else that changes must be a bind parameter.
    """

    @functools.cache
    def made(name: str, is_fixed: bool) -> S:
        dialect: Dialect = (sqlite if name == "sqlite" else postgresql).dialect()
        return build(dialect, bindparam(NOW, type_=Float) if is_fixed else None)

    @functools.wraps(build)
    def take(conn: Connection, now: float | None) -> tuple[S, dict[str, float]]:
        statement = made("sqlite" if is_sqlite(conn) else "postgresql", now is not None)
        return statement, {} if now is None else {NOW: float(now)}

    return take
