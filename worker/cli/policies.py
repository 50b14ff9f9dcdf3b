"""`locseal policy`: check a policy file before it goes live, with all its faults at once, and see what holds for a site."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from config.settings import load_settings
from worker.adapters.policies import read_file
from worker.bootstrap import lease_check, policy_defaults
from worker.cli import output
from worker.cli.output import Json, Refused
from worker.domain.policy_file import INVALID, InvalidPolicy, PolicyFile

app = typer.Typer(help="Check the policy file, and see what holds for a site.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="The file; the one of the settings where none is given.")] = None,
    as_json: Json = False,
) -> None:
    """Check a policy file as the workers read it; every fault is told, with its path and code."""
    found = _read(file)
    digests = {site_id: policy.sha256 for site_id, policy in sorted(found.sites.items())}
    shown = {"valid": True, "default_sha256": found.default.sha256, "sites": digests}
    rows = [("(default)", found.default.sha256), *digests.items()]
    lines = ["the policy file can be used", *output.table(("site", "policy digest"), rows, empty="")]
    output.put(shown, as_json=as_json, lines=lines)


@app.command()
def show(
    site: Annotated[str, typer.Argument(help="The site's id.")],
    file: Annotated[Path | None, typer.Option(help="Another file than the one of the settings.")] = None,
    as_json: Json = False,
) -> None:
    """Show the whole policy of a site, defaults included, and the digest that its approvals carry."""
    policy = _read(file).for_site(site)
    members = policy.to_json() | {
        "compatible_policies": sorted(policy.compatible_policies),
        "required_locales": sorted(policy.required_locales),
    }
    shown = {"site_id": site, "policy_sha256": policy.sha256, "policy": members}
    rows = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in members.items()]
    lines = [f"{site}: policy {policy.sha256}", *output.table(("member", "value"), rows, empty="")]
    output.put(shown, as_json=as_json, lines=lines)


def _read(file: Path | None) -> PolicyFile:
    settings = load_settings()
    path = file if file is not None else settings.policy_file
    try:
        return read_file(
            path,
            defaults=policy_defaults(settings),
            check=lease_check(settings),
            routes=settings.providers or None,  # without any, this machine does not know the routes
        )
    except InvalidPolicy as refusal:
        for fault in refusal.faults:
            output.note(f"{fault.path or '(file)'}: {fault.code}: {fault.rule}")
        raise Refused(
            INVALID,
            f"the policy file has {len(refusal.faults)} faults" if len(refusal.faults) > 1 else "the file has a fault",
            allowed=["mend the file", "locseal policy check FILE"],
            details={"faults": [asdict(fault) for fault in refusal.faults]},
        ) from None
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read ({error.strerror})") from None
