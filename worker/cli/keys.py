"""`locseal keys`: make, list, retire and check keys. Prints public facts and file names, never a private key."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from config.settings import load_settings
from worker.adapters.key_changes import MadeKey, generate_key, retire_key
from worker.adapters.key_checks import OURS, THEIRS, check_keys
from worker.adapters.key_files import Finding, choose_signer, read_private, read_trust
from worker.cli import output
from worker.cli.output import Json
from worker.domain.key import NAMES_PROVIDERS, NAMES_SITES, PURPOSES, PublicKey
from worker.domain.signature import TYP

# Workers see a change within a second and may be signing: what they signed after the key was retired would be worth
# nothing, and an approval like that stops its event. A minute also bears clocks that differ a little.
RETIRE_AFTER_SECONDS: Final = 60.0

app = typer.Typer(help="Make, list, retire and check keys.", no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--keys", help="Directory with `private` and `trust`. Default: the settings' two directories."),
]
Purpose = Annotated[str, typer.Argument(help=f"One of {', '.join(PURPOSES)}.")]


@app.command()
def generate(
    purpose: Purpose,
    kid: Annotated[str | None, typer.Option(help="Name of the key. Default: made from the public key.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Site the key may speak for; repeat for several.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Provider id of a reviewer's key; repeatable.")] = None,
    first: Annotated[bool, typer.Option("--first", help="Sign with it at once; the others stay trusted.")] = False,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Make a key: the private half in a new private file, the public half in the trust set."""
    purpose = _purpose(purpose)
    _check_names(purpose, "--site", purpose in NAMES_SITES, site)
    _check_names(purpose, "--provider", purpose in NAMES_PROVIDERS, provider)
    private_dir, trust_dir = key_directories(keys)
    made = generate_key(
        purpose,
        private_dir=private_dir,
        trust_dir=trust_dir,
        kid=kid,
        sites=site or (),
        providers=provider or (),
        first=first,
    )
    output.put(_made(made), as_json=as_json, lines=_made_lines(made))


@app.command("list")
def show(keys: Directory = None, as_json: Json = False) -> None:
    """List the trusted keys of every purpose, and which of them signs."""
    private_dir, trust_dir = key_directories(keys)
    private, trusted = read_private(private_dir), read_trust(trust_dir)
    listed = []
    for purpose in PURPOSES:
        signer = choose_signer(private, trusted, purpose)
        trust = trusted.sets.get(purpose)
        for key in trust.keys.values() if trust is not None else ():
            held = key.kid in private.keys.get(purpose, {})
            listed.append(_listed(key, held=held, signs=signer is not None and signer[0] == key.kid))
    rows = [
        (
            one["purpose"],
            one["kid"],
            one["status"],
            "signs" if one["signs"] else "held" if one["held"] else "-",
            _for(one),
        )
        for one in listed
    ]
    lines = output.table(("purpose", "kid", "status", "private", "for"), rows, empty=f"no trusted key in {trust_dir}")
    broken = [found for found in trusted.findings if found.purpose is not None]
    if broken:
        lines.append(f"{len(broken)} trust sets cannot be used; see locseal keys check")
    output.put({"keys": listed, "broken": [_finding(found) for found in broken]}, as_json=as_json, lines=lines)


@app.command()
def retire(
    purpose: Purpose,
    kid: Annotated[str, typer.Argument(help="Name of the key.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust nothing that it ever signed.")] = False,
    after: Annotated[
        float,
        typer.Option(min=0, help="Seconds from now until it counts as retired; signatures under way still count."),
    ] = RETIRE_AFTER_SECONDS,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Retire a key (what it signed before stays good), or revoke it (nothing does)."""
    _, trust_dir = key_directories(keys)
    purpose = _purpose(purpose)
    status: Literal["retired", "revoked"] = "revoked" if revoke else "retired"
    at = None if revoke else time.time() + after
    retire_key(purpose, kid, trust_dir=trust_dir, status=status, at=at)
    shown = {"purpose": purpose, "kid": kid, "status": status, "retired_at": at}
    since = f" from {output.moment(at)}" if at is not None else ""
    output.put(shown, as_json=as_json, lines=[f"{kid} of {purpose} is {status}{since}; workers see it within a second"])


@app.command()
def check(
    signs: Annotated[
        list[str] | None, typer.Option(help=f"Purpose that must have a signer; repeatable. Default: {', '.join(OURS)}.")
    ] = None,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Check permissions, owners, overlaps and signers; say for each finding what is wrong and how to mend it."""
    private_dir, trust_dir = key_directories(keys)
    wanted = [_purpose(purpose) for purpose in signs or OURS]
    errors, warnings = check_keys(private_dir, trust_dir, wanted, needed=THEIRS if signs is None else ())
    lines = [f"{found.code}: {found.sentence()}" for found in errors]
    lines += [f"warning: {found.code}: {found.sentence()}" for found in warnings]
    lines.append("the keys cannot be used as they are" if errors else "the keys are in order")
    shown = {"good": not errors, "errors": list(map(_finding, errors)), "warnings": list(map(_finding, warnings))}
    output.put(shown, as_json=as_json, lines=lines)
    raise typer.Exit(output.REFUSED if errors else output.DONE)


def key_directories(keys: Path | None) -> tuple[Path, Path]:
    """Return the private and the trust directory."""
    if keys is not None:
        return keys / "private", keys / "trust"
    settings = load_settings()
    return settings.private_keys(), settings.trusted_keys()


def _purpose(word: str) -> str:
    """Accept a purpose as it is written, or with `-` for `:` as in file names."""
    known = {purpose.replace(":", "-"): purpose for purpose in PURPOSES}
    purpose = known.get(word.replace(":", "-"))
    if purpose is None:
        raise typer.BadParameter(f"purposes are {', '.join(PURPOSES)}")
    return purpose


def _check_names(purpose: str, option: str, needed: bool, names: list[str] | None) -> None:
    """Refuse a key that could speak for nobody, or names whom it cannot speak for."""
    if needed and not names:
        raise typer.BadParameter(f"a key of {purpose} says whom it speaks for: add {option}")
    if names and not needed:
        raise typer.BadParameter(f"keys of {purpose} take no {option}")


def _finding(found: Finding) -> dict[str, str | None]:
    """Return a finding as JSON."""
    return {
        "code": found.code,
        "purpose": found.purpose,
        "file": found.file,
        "problem": found.problem,
        "fix": found.fix,
    }


def _listed(key: PublicKey, *, held: bool, signs: bool) -> dict[str, object]:
    """Return a key as JSON."""
    return {
        "purpose": key.purpose,
        "kid": key.kid,
        "status": key.status,
        "retired_at": key.retired_at,
        "thumbprint": key.thumbprint,
        "sites": sorted(key.sites) if key.sites is not None else None,
        "providers": sorted(key.providers) if key.providers is not None else None,
        "held": held,
        "signs": signs,
    }


def _for(one: dict[str, object]) -> str:
    """Return what a listed key may speak for."""
    names = one["sites"] or one["providers"]
    return ", ".join(names) if isinstance(names, list) else "-"


def _made(made: MadeKey) -> dict[str, object]:
    """Return a new key as JSON: its public half only."""
    return {
        "purpose": made.purpose,
        "kid": made.kid,
        "typ": TYP[made.purpose],
        "thumbprint": made.thumbprint,
        "private_file": str(made.private_file),
        "trust_file": str(made.trust_file),
        "public": dict(made.public),
    }


def _made_lines(made: MadeKey) -> list[str]:
    """Return what to know and do about a new key."""
    return [
        f"made {made.kid} for {made.purpose}",
        f"  private half: {made.private_file} (never copy it to another purpose or machine without need)",
        f"  public half:  {made.trust_file} (give this file to whoever verifies)",
        f"  signatures:   alg Ed25519, kid {made.kid}, typ {TYP[made.purpose]}",
    ]
