"""Everything a local fleet stands on: its keys, its database and a sandbox to talk to. For the demo and system tests."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.adapters.key_changes import generate_key
from worker.adapters.keys import FileKeys
from worker.adapters.queue import CeleryQueue, open_queue
from worker.adapters.sandbox.keys import SandboxKeys
from worker.cli.local_fleet import Child, LocalFleet, free_port, wait_for
from worker.domain.messages import RELEASE_SUBMIT
from worker.store.engine import open_engine
from worker.store.private_files import private_directory
from worker.store.schema_version import migrate

OURS: Final = ("submission", "approval", "publication")
CONTROL_SECONDS: Final = 10.0
LOCSEAL: Final = (sys.executable, "-c", "from worker.cli.main import run; run()")


@dataclass(kw_only=True)
class Stage:
    """A fleet with what it stands on. The fleet owns the processes; closing the stage closes the rest."""

    fleet: LocalFleet
    engine: Any  # the store's; only the store knows its kind
    keys: FileKeys
    queue: CeleryQueue
    sandbox: Child
    sandbox_url: str

    def submit(self, text: str) -> None:
        """Send a signed submission as a producer does."""
        self.queue.submit(RELEASE_SUBMIT, "submission", text)

    def sign(self, document: Mapping[str, Any]) -> str:
        """Return the exact text of a signed submission."""
        return self.keys.sign("submission", document).to_text()

    def control(self, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Tell the sandbox how to behave, if asked to, and return its behaviours, counts and publications."""
        body = None if change is None else json.dumps(change).encode()
        request = urllib.request.Request(  # noqa: S310 - an address of our own
            f"{self.sandbox_url}/control", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=CONTROL_SECONDS) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
        return found

    def close(self) -> None:
        """Close the database connections of this process."""
        self.engine.dispose()


def set_stage(
    fleet: LocalFleet,
    *,
    site_ids: Sequence[str],
    database_url: str | None = None,
    sandbox_options: Sequence[str] = (),
) -> Stage:
    """Start the broker and the sandbox, make keys and an up-to-date database, and point the fleet's settings at them.

    Starts no worker and no beat. Does not wait for the sandbox; `wait_for_sandbox` does.
    """
    fleet.start_broker()
    state = private_directory(Path(fleet.settings["STATE_DIR"]))
    private_dir, trust_dir = state / "keys" / "private", state / "keys" / "trust"
    for purpose in OURS:
        sites = site_ids if purpose == "submission" else ()
        generate_key(purpose, private_dir=private_dir, trust_dir=trust_dir, sites=sites)
    sandbox_dir = fleet.directory / "sandbox"
    for path in SandboxKeys(sandbox_dir, sites=site_ids).trust_dir.glob("*.jwks.json"):
        shutil.copyfile(path, trust_dir / path.name)
    port = free_port()
    named = [part for site_id in site_ids for part in ("--site", site_id)]
    options: list[str | Path] = ["--dir", sandbox_dir, "--port", str(port), *named, *sandbox_options]
    options += ["--publication-trust", trust_dir / "publication.jwks.json"]
    sandbox = fleet.start("sandbox", [*LOCSEAL, "sandbox", "--json", *options])
    url = f"http://127.0.0.1:{port}"
    fleet.settings |= {
        "ALLOW_LOOPBACK_HTTP": "true",
        "PROVIDERS": json.dumps({"default": {"url": f"{url}/provider"}}),
        "CMS": json.dumps({"default": {"url": f"{url}/cms"}}),
    }
    if database_url is not None:
        fleet.settings["DATABASE_URL"] = database_url
    engine = open_engine(database_url or f"sqlite:///{state / 'locseal.db'}")
    try:
        migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return Stage(
        fleet=fleet,
        engine=engine,
        keys=FileKeys(private_dir, trust_dir),
        queue=open_queue(fleet.broker_url()),
        sandbox=sandbox,
        sandbox_url=url,
    )


def wait_for_sandbox(stage: Stage) -> None:
    """Wait until the sandbox takes connections."""
    wait_for(lambda: '"ready"' in stage.sandbox.log_text(), stage.sandbox, "the sandbox")
