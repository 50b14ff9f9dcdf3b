"""The product's own Celery app with one part exchanged: the review provider is the stub in this process.

`celery -A benchmarks.our_worker worker`. Everything else (settings, tasks, steps, store, keys) is as it is shipped. With
the stub as a server nothing is exchanged, and `worker.app` runs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import worker.app as product
from benchmarks.answers import ANSWERS, Answers
from benchmarks.stub_provider import StubProvider
from config.settings import Settings
from worker.bootstrap import Plant, build_plant


def with_stub(settings: Settings, **parts: Any) -> Plant:
    """Build a process's plant with the stub as its one review route."""
    plant = build_plant(settings, **parts)
    stub = StubProvider(Answers(Path(os.environ[ANSWERS])))
    return replace(plant, services=replace(plant.services, providers={"default": stub}))


product.build_plant = with_stub  # type: ignore[attr-defined]
app = product.app
