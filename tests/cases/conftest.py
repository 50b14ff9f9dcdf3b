"""The field cases: scenarios that broke systems like ours (README.md lists them all and what holds each).

Cases of processes run on the fleets of `tests/system`, cases of single steps on the services of `tests/flow`.
"""

from __future__ import annotations

from tests.flow.conftest import at, calls, checkpoints, everything, keys, policies, queue, rows, services
from tests.system.conftest import broker_program, fleet, postgres_stage, signed, sqlite_stage, stage

__all__ = [
    "at",
    "broker_program",
    "calls",
    "checkpoints",
    "everything",
    "fleet",
    "keys",
    "policies",
    "postgres_stage",
    "queue",
    "rows",
    "services",
    "signed",
    "sqlite_stage",
    "stage",
]
