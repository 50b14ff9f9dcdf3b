"""What is wrong with the key files of an installation, and what an operator should know about them. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from worker.adapters.key_files import (
    Finding,
    PrivateKeys,
    TrustSets,
    choose_signer,
    private_file,
    read_private,
    read_trust,
    trust_file,
)
from worker.domain.symptom import Examination, Symptom, found

THEIRS: Final = ("submission", "receipt:quality", "acknowledgement")  # whom a worker must trust to get anything done
OURS: Final = ("approval", "publication")  # what a worker signs
OLD_SECONDS: Final = 365 * 86_400.0  # a signer of ours is worth a warning from this age on


def check_keys(
    private_dir: Path, trust_dir: Path, wanted: Sequence[str], *, needed: Sequence[str]
) -> tuple[list[Finding], list[Finding]]:
    """Return (errors, warnings): an error stops a purpose, a warning is what an operator should know.

    `wanted` are the purposes that must have a signer here, `needed` those that somebody must be trusted for.
    """
    return _check(read_private(private_dir), read_trust(trust_dir), (private_dir, trust_dir), wanted, needed)


def examine_keys(private_dir: Path, trust_dir: Path, *, signs: Sequence[str] = OURS) -> Examination:
    """Return the keys that sign with their ages, and what is wrong with any key file.

    `signs` are the purposes that this process signs for; one that signs for none needs no private directory.
    """
    private, trusted = read_private(private_dir), read_trust(trust_dir)
    errors, warnings = _check(private, trusted, (private_dir, trust_dir), signs, THEIRS)
    errors = [one for one in errors if signs or one.code != "keys.private.missing"]
    symptoms = [
        Symptom(code=one.code, severity="error", what=f"{one.file}: {one.problem}", fix=one.fix) for one in errors
    ]
    symptoms += [
        Symptom(code=one.code, severity="warning", what=f"{one.file}: {one.problem}", fix=one.fix) for one in warnings
    ]
    if private_dir.is_dir() and private_dir.stat().st_mode & 0o077:
        what = f"{private_dir} can be entered or listed by others"
        symptoms.append(found("keys.directory.permissions", what, path=str(private_dir)))
    signers = []
    for purpose in OURS:
        signer = choose_signer(private, trusted, purpose)
        if signer is None:
            continue
        age_seconds = time.time() - private_file(private_dir, purpose, signer[0]).stat().st_mtime
        signers.append({"purpose": purpose, "kid": signer[0], "age_days": int(age_seconds // 86_400)})
        if age_seconds > OLD_SECONDS:
            what = f"the key {signer[0]} of {purpose} is {int(age_seconds // 86_400)} days old"
            symptoms.append(found("keys.signer.old", what, purpose=purpose))
    return Examination(facts={"signers": signers}, symptoms=tuple(symptoms))


def _check(
    private: PrivateKeys,
    trusted: TrustSets,
    directories: tuple[Path, Path],
    wanted: Sequence[str],
    needed: Sequence[str],
) -> tuple[list[Finding], list[Finding]]:
    private_dir, trust_dir = directories
    every = [*private.findings, *trusted.findings]
    errors = [one for one in every if one.code != "keys.file.unexpected"]
    warnings = [one for one in every if one.code == "keys.file.unexpected"]
    broken = {one.purpose for one in errors}
    for purpose in wanted:
        if purpose not in broken and choose_signer(private, trusted, purpose) is None:
            problem = f"holds no private key that the trust set of {purpose} has as active"
            fix = f"run `locseal keys generate {purpose}`"
            errors.append(_about("keys.signer.missing", purpose, private_dir, problem, fix))
    for purpose in needed:
        own = trusted.sets.get(purpose)
        if purpose not in broken and (own is None or not any(key.status == "active" for key in own.keys.values())):
            fix = "put the public keys of the other side there"
            problem = f"nobody is trusted for {purpose}"
            warnings.append(_about("keys.trust.nobody", purpose, trust_file(trust_dir, purpose), problem, fix))
    for purpose, held in private.keys.items():
        trust = trusted.sets.get(purpose)
        for kid in held:
            key = trust.keys.get(kid) if trust is not None else None
            file = private_file(private_dir, purpose, kid)
            if key is None and purpose not in broken:
                fix = "add its public half to the trust set, or delete the file"
                warnings.append(_about("keys.private.untrusted", purpose, file, "no trust set has this key", fix))
            elif key is not None and key.status != "active":
                fix = "delete the private file; the public key stays for what it signed before"
                warnings.append(_about(f"keys.private.{key.status}", purpose, file, f"the key is {key.status}", fix))
    return errors, warnings


def _about(code: str, purpose: str, file: Path, problem: str, fix: str) -> Finding:
    return Finding(code=code, purpose=purpose, file=str(file), problem=problem, fix=fix)
