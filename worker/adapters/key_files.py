"""Key files: how private keys and trust sets lie on disk, and every rule that makes one unusable.

    <private>/<purpose, ':' as '-'>.<kid>.jwk     one private JWK, readable by its owner alone
    <trust>/<purpose, ':' as '-'>.jwks.json       the trust set of one purpose

The first active key of a trust set whose private half is held here signs. So rotation is one atomic replacement of one
file, and nothing is ever signed with a key that we would not accept ourselves. Nothing here caches (`keys` does) or
writes (`key_changes` does).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.domain.canonical import parse_strict
from worker.domain.errors import Blocked, Invalid
from worker.domain.key import PURPOSES, TRUST_INVALID, TrustSet, load_private, load_trust, overlapping

BY_FILE_NAME: Final = {purpose.replace(":", "-"): purpose for purpose in PURPOSES}
FILE_NAME: Final = {purpose: name for name, purpose in BY_FILE_NAME.items()}
MAX_PRIVATE_BYTES: Final = 16 * 1024
MAX_TRUST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with the key files: a stable code, the file, what is wrong, and how to mend it."""

    code: str
    purpose: str | None  # None: the file belongs to no purpose, so it stops none
    file: str
    problem: str
    fix: str

    def sentence(self) -> str:
        """Return the finding as one sentence for people. It names files, never their content."""
        return f"{self.file}: {self.problem}; {self.fix}"


@dataclass(frozen=True, kw_only=True)
class PrivateKeys:
    """The private keys that may be used, by purpose and kid, and what is wrong with the others."""

    keys: Mapping[str, Mapping[str, Ed25519PrivateKey]]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class TrustSets:
    """The trust sets that may be used, by purpose, and what is wrong with the others."""

    sets: Mapping[str, TrustSet]
    findings: tuple[Finding, ...]


def trust_file(directory: Path, purpose: str) -> Path:
    """Return the path of a purpose's trust set."""
    return directory / f"{FILE_NAME[purpose]}.jwks.json"


def private_file(directory: Path, purpose: str, kid: str) -> Path:
    """Return the path of a private key."""
    return directory / f"{FILE_NAME[purpose]}.{kid}.jwk"


def read_private(directory: Path) -> PrivateKeys:
    """Read every private key file. A file that breaks a rule is not used and becomes a finding."""
    keys: dict[str, dict[str, Ed25519PrivateKey]] = {}
    findings: list[Finding] = []
    for name in _names(directory, findings, "keys.private.missing"):
        stem, _, rest = name.partition(".")
        purpose = BY_FILE_NAME.get(stem)
        if purpose is None or not rest.endswith(".jwk"):
            fix = f"move it away, or name it <purpose>.<kid>.jwk (purposes: {', '.join(BY_FILE_NAME)})"
            findings.append(_finding("keys.file.unexpected", None, directory / name, "is no private key file", fix))
            continue
        try:
            kid, key = load_private(parse_strict(_read_private(directory / name), max_bytes=MAX_PRIVATE_BYTES))
            if rest != f"{kid}.jwk":
                raise Blocked("keys.file.invalid", "its kid is not the one in its name")
        except Blocked as refusal:
            findings.append(_private_finding(refusal, purpose, directory / name))
        else:
            keys.setdefault(purpose, {})[kid] = key
    return PrivateKeys(keys=keys, findings=tuple(findings))


def read_trust(directory: Path) -> TrustSets:
    """Read every trust set. A broken one, and sets that share a public key, are not used and become findings."""
    sets: dict[str, TrustSet] = {}
    findings: list[Finding] = []
    for name in _names(directory, findings, "keys.trust.missing"):
        purpose = BY_FILE_NAME.get(name.removesuffix(".jwks.json")) if name.endswith(".jwks.json") else None
        path = directory / name
        if purpose is None:
            fix = f"move it away, or name it <purpose>.jwks.json (purposes: {', '.join(BY_FILE_NAME)})"
            findings.append(_finding("keys.file.unexpected", None, path, "is no trust set", fix))
            continue
        try:
            sets[purpose] = load_trust(purpose, parse_strict(read_trust_file(path), max_bytes=MAX_TRUST_BYTES))
        except Blocked as refusal:
            where = f" at {refusal.path}" if isinstance(refusal, Invalid) and refusal.path else ""
            code = refusal.code if refusal.code.startswith("keys.") else TRUST_INVALID
            fix = "chmod o-w it" if code == "keys.trust.permissions" else "repair the file or restore the last good one"
            findings.append(_finding(code, purpose, path, f"{refusal.message}{where}", fix))
    for purpose in sorted(overlapping(sets.values())):
        del sets[purpose]
        problem = "holds a public key that another purpose holds too"
        fix = "give each purpose a key of its own"
        findings.append(_finding("keys.trust.overlap", purpose, trust_file(directory, purpose), problem, fix))
    return TrustSets(sets=sets, findings=tuple(findings))


def choose_signer(private: PrivateKeys, trusted: TrustSets, purpose: str) -> tuple[str, Ed25519PrivateKey] | None:
    """Return (kid, key) of the purpose's signer: the first active trusted key that we hold. None: there is none."""
    held = private.keys.get(purpose, {})
    trust = trusted.sets.get(purpose)
    for key in trust.keys.values() if trust is not None else ():
        own = held.get(key.kid)
        if own is not None and key.status == "active" and own.public_key().public_bytes_raw() == key.raw():
            return key.kid, own
    return None


def _names(directory: Path, findings: list[Finding], missing: str) -> list[str]:
    """List a directory; that it cannot be read is a finding of its own."""
    try:
        return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        problem = f"cannot be read ({errno.errorcode.get(error.errno or 0, 'unknown')})"
        findings.append(_finding(missing, None, directory, problem, "mount it, or run `locseal keys generate`"))
        return []


def _read_private(path: Path) -> bytes:
    """Read a private key file. All rules are judged on the opened file, so that no swap can come between."""
    try:
        # NONBLOCK: opening a named pipe must not hang.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Blocked("keys.file.symlink", "is a symbolic link") from None
        raise Blocked("keys.file.unreadable", "cannot be opened") from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise Blocked("keys.file.invalid", "is no regular file")
        if facts.st_uid != os.geteuid():
            raise Blocked("keys.file.owner", "belongs to another user")
        if facts.st_mode & 0o077:
            raise Blocked("keys.file.permissions", "is open to group or others")
        return os.read(handle, MAX_PRIVATE_BYTES + 1)
    finally:
        os.close(handle)


def read_trust_file(path: Path) -> bytes:
    """Read a trust set. Links are followed: trust is public, and mounted configuration consists of links."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o002:
                raise Blocked("keys.trust.permissions", "everybody may write it")
            return file.read(MAX_TRUST_BYTES + 1)
    except OSError:
        raise Blocked("keys.trust.unreadable", "cannot be read") from None


def _private_finding(refusal: Blocked, purpose: str, path: Path) -> Finding:
    """Return the finding of a refused private key file."""
    where = f" at {refusal.path}" if isinstance(refusal, Invalid) and refusal.path else ""
    code = refusal.code if refusal.code.startswith("keys.") else "keys.file.invalid"
    fix = {
        "keys.file.permissions": f"chmod 600 {path}; if others could have read it, revoke the key and make another",
        "keys.file.owner": f"chown {path} to the user that runs the worker",
        "keys.file.symlink": "put the file itself there",
        "keys.file.unreadable": f"let the user that runs the worker read {path}",
    }.get(code, "restore the file, or make another key with `locseal keys generate`")
    return _finding(code, purpose, path, f"{refusal.message}{where}", fix)


def _finding(code: str, purpose: str | None, path: Path, problem: str, fix: str) -> Finding:
    """Return a finding about a file."""
    return Finding(code=code, purpose=purpose, file=str(path), problem=problem, fix=fix)
