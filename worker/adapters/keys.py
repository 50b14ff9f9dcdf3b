"""The only holder of private keys, and the trust sets; both follow their files without a restart.

A broken file stops its own purpose with a stable code until it is mended, retryably: a fault of ours must never turn a
good submission into a rejection. Private key bytes never leave this module and `key_files`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.adapters.key_changes import generate_key, retire_key
from worker.adapters.key_files import Finding, choose_signer, read_private, read_trust
from worker.domain.errors import Blocked, Invalid, Unavailable
from worker.domain.signature import (
    PURPOSES,
    SignedDocument,
    TrustSet,
    detached,
    signing_input,
    verify_detached,
)

__all__ = ["FileKeys", "FileSigner", "Signer", "generate_key", "retire_key"]

RECHECK_SECONDS: Final = 1.0
# A file changed this short before it was read may change again without its times showing it: it is read again.
SETTLE_SECONDS: Final = 2.0


class Signer(Protocol):
    """Signs for one purpose. A KMS takes the place of a file by having this shape; whatever it raises is retryable."""

    @property
    def kid(self) -> str:
        """The id of its key, whose public half must be active in the purpose's trust set."""
        ...

    def sign(self, signing_input: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of these bytes. Called from many threads."""
        ...


@dataclass(frozen=True)
class FileSigner:
    """Signs with a key read from a file."""

    kid: str
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, signing_input: bytes) -> bytes:
        """Return the signature."""
        return self.key.sign(signing_input)


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """What the files said when they were last read."""

    fingerprint: object
    trust: Mapping[str, TrustSet]
    signers: Mapping[str, Signer]
    trust_faults: Mapping[str, Finding]
    signer_faults: Mapping[str, Finding]
    trust_missing: Finding | None  # the whole directory

    def trust_of(self, purpose: str) -> TrustSet:
        """Return a trust set, or raise what is wrong with it."""
        fault = self.trust_faults.get(purpose) or self.trust_missing
        if fault is not None:
            raise Unavailable(fault.code, fault.sentence())
        return self.trust.get(purpose) or TrustSet(purpose=purpose, keys={})


class FileKeys:
    """Keys from a private and a trust directory. Safe to share between threads; looks at the files once a second.

    `signers` take the place of private key files for their purposes.
    """

    def __init__(
        self,
        private_dir: Path,
        trust_dir: Path,
        *,
        signers: Mapping[str, Signer] | None = None,
        recheck_seconds: float = RECHECK_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._private_dir = private_dir
        self._trust_dir = trust_dir
        self._outside = dict(signers or {})
        self._recheck_seconds = recheck_seconds
        self._settle_nanoseconds = int(settle_seconds * 1e9)
        self._ticks = ticks
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._snapshot: _Snapshot | None = None
        self._checked_at = 0.0

    def trust(self, purpose: str) -> TrustSet:
        """Return the current trust set of a purpose; an empty one where no file was ever there.

        `Unavailable` (retryable) where the file is broken, has gone, or the whole directory is missing or empty.
        """
        _check_purpose(purpose)
        return self._current().trust_of(purpose)

    def sign(self, purpose: str, document: Mapping[str, Any]) -> SignedDocument:
        """Sign the canonical bytes of a document with the active key and verify at once.

        `Unavailable` (retryable) when there is no usable signer, when it fails, or when what it made does not verify.
        """
        _check_purpose(purpose)
        now = self._current()  # one look: the signer must be judged by the trust set it was chosen from
        trust = now.trust_of(purpose)
        fault = now.signer_faults.get(purpose)
        if fault is not None:
            raise Unavailable(fault.code, fault.sentence())
        signer = now.signers.get(purpose)
        if signer is None:
            raise Unavailable(
                "keys.signer.missing",
                f"no active key of {purpose} is held in {self._private_dir}; "
                f"run `locseal keys generate {purpose}`, or `locseal keys check` to see why",
            )
        unsigned = SignedDocument(document, "")
        to_sign = signing_input(purpose, signer.kid, unsigned.payload())
        try:
            signature = detached(to_sign, signer.sign(to_sign))
        except Exception:
            # The border to a KMS client, whose exceptions are not ours and may quote what was signed.
            raise Unavailable("keys.signer.failed", f"the signer of {purpose} failed; it will be tried again") from None
        try:
            verify_detached(trust, unsigned.payload(), signature, code="keys.signature.unverified")
        except Invalid as refusal:
            raise Unavailable(refusal.code, f"our own signature does not verify: {refusal.message}") from None
        return unsigned.signed(signature)

    def _current(self) -> _Snapshot:
        """Return what the files say, reading them again when they changed."""
        snapshot = self._snapshot
        if snapshot is not None and self._ticks() - self._checked_at < self._recheck_seconds:
            return snapshot
        if snapshot is not None and not self._lock.acquire(blocking=False):
            return snapshot  # another thread is looking; nobody waits for it but the very first
        if snapshot is None:
            self._lock.acquire()
        try:
            snapshot = self._snapshot
            if snapshot is None or self._ticks() - self._checked_at >= self._recheck_seconds:
                fingerprint = (_fingerprint(self._private_dir), _fingerprint(self._trust_dir))
                if snapshot is None or snapshot.fingerprint is None or snapshot.fingerprint != fingerprint:
                    snapshot = self._snapshot = self._read(fingerprint)
                self._checked_at = self._ticks()
            return snapshot
        finally:
            self._lock.release()

    def _read(self, fingerprint: tuple[_Fingerprint, _Fingerprint]) -> _Snapshot:
        """Read all files into a snapshot."""
        private, trusted = read_private(self._private_dir), read_trust(self._trust_dir)
        trust_faults = {found.purpose: found for found in trusted.findings if found.purpose is not None}
        self._seen |= trusted.sets.keys()
        for purpose in self._seen - trusted.sets.keys() - trust_faults.keys():
            trust_faults[purpose] = _missing(self._trust_dir, "the trust set has gone", purpose)
        signers: dict[str, Signer] = {}
        for purpose in PURPOSES:
            chosen = choose_signer(private, trusted, purpose)
            if chosen is not None:
                signers[purpose] = FileSigner(*chosen)
        signer_faults = {found.purpose: found for found in private.findings if found.purpose is not None}
        empty = not trusted.sets and not trust_faults
        newest = max((stamp for part in fingerprint for stamp in part.changed), default=0)
        return _Snapshot(
            fingerprint=fingerprint if newest <= time.time_ns() - self._settle_nanoseconds else None,
            trust=trusted.sets,
            signers=signers | self._outside,
            trust_faults=trust_faults,
            # A purpose whose signer stands outside needs no file, so a broken one does not stop it.
            signer_faults={one: found for one, found in signer_faults.items() if one not in self._outside},
            trust_missing=_missing(self._trust_dir, "there is no trust set") if empty else None,
        )


@dataclass(frozen=True)
class _Fingerprint:
    """What `stat` says of every file of a directory: cheap to take, and different after any change."""

    files: tuple[tuple[str, int, int, int, int, int], ...]
    changed: tuple[int, ...]


def _fingerprint(directory: Path) -> _Fingerprint:
    """Take the fingerprint of a directory; a missing one is empty."""
    files = []
    changed = []
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return _Fingerprint((), ())
    for name in names:
        try:
            facts = os.stat(directory / name)  # noqa: PTH116 - follows links, as the reading of trust does
        except OSError:
            files.append((name, 0, 0, 0, 0, 0))
            continue
        files.append((name, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_size, facts.st_mode))
        changed.append(max(facts.st_mtime_ns, facts.st_ctime_ns))
    return _Fingerprint(tuple(files), tuple(changed))


def _missing(directory: Path, problem: str, purpose: str | None = None) -> Finding:
    """Return the finding of trust that is not there."""
    return Finding(
        code="keys.trust.missing",
        purpose=purpose,
        file=str(directory),
        problem=problem,
        fix="mount it, or run `locseal keys generate`",
    )


def _check_purpose(purpose: str) -> None:
    """Refuse a word that is no purpose."""
    if purpose not in PURPOSES:
        raise Blocked("keys.purpose.unknown", f"purposes are {', '.join(PURPOSES)}")
