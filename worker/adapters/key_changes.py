"""Making, retiring and revoking keys: the only writer of key files.

A trust set is replaced as a whole, under a lock on its directory, so readers and other writers never see half of it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from worker.adapters.key_files import FILE_NAME, MAX_TRUST_BYTES, private_file, read_trust_file, trust_file
from worker.domain.canonical import canonical_text, parse_strict, sha256_hex
from worker.domain.errors import Blocked
from worker.domain.identifier import require_token
from worker.domain.key import PURPOSES, load_trust, new_private_key, private_jwk, public_jwk

MAX_FILE_KID: Final = 200  # a file name holds 255 bytes


@dataclass(frozen=True, kw_only=True)
class MadeKey:
    """A key that was just made: its public facts and where its halves are."""

    purpose: str
    kid: str
    thumbprint: str
    private_file: Path
    trust_file: Path
    public: Mapping[str, Any]


def generate_key(
    purpose: str,
    *,
    private_dir: Path,
    trust_dir: Path,
    kid: str | None = None,
    sites: Iterable[str] = (),
    providers: Iterable[str] = (),
    first: bool = False,
) -> MadeKey:
    """Make a key: its private half into a new file of mode 0600, its public half into the purpose's trust set.

    It becomes the signer at once when `first` is set or the set was empty; else when the keys before it are retired.
    Safe to run concurrently: the trust set is replaced atomically under a lock. `Blocked` when anything is refused.
    """
    if purpose not in PURPOSES:
        raise Blocked("keys.purpose.unknown", f"purposes are {', '.join(PURPOSES)}")
    key = new_private_key()
    kid = kid or f"{FILE_NAME[purpose]}-{sha256_hex(key.public_key().public_bytes_raw())[:12]}"
    require_token(kid, "keys.kid.invalid")
    if len(kid) > MAX_FILE_KID:
        raise Blocked("keys.kid.invalid", f"a kid in a file name has at most {MAX_FILE_KID} characters")
    names = {"sites": sorted(set(sites)), "providers": sorted(set(providers))}
    public = public_jwk(key, kid, **{member: value for member, value in names.items() if value})
    load_trust(purpose, {"keys": [public]})  # refuses missing or unexpected names before anything is written
    private_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    trust_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = private_file(private_dir, purpose, kid)
    with _changing(trust_dir, purpose) as keys:
        if any(known["kid"] == kid for known in keys):
            raise Blocked("keys.kid.taken", "the trust set has a key of this kid; choose another")
        _write_new(path, canonical_text(private_jwk(key, kid)))
        keys.insert(0 if first else len(keys), public)
    thumbprint = load_trust(purpose, {"keys": [public]}).keys[kid].thumbprint
    return MadeKey(
        purpose=purpose,
        kid=kid,
        thumbprint=thumbprint,
        private_file=path,
        trust_file=trust_file(trust_dir, purpose),
        public=public,
    )


def retire_key(
    purpose: str, kid: str, *, trust_dir: Path, status: Literal["retired", "revoked"], at: float | None = None
) -> None:
    """Mark a trusted key retired (from `at`, seconds) or revoked. A revoked key stays so (`keys.kid.revoked`)."""
    if purpose not in PURPOSES:
        raise Blocked("keys.purpose.unknown", f"purposes are {', '.join(PURPOSES)}")
    if not trust_file(trust_dir, purpose).exists():
        raise Blocked("keys.trust.missing", f"there is no {trust_file(trust_dir, purpose)}")
    with _changing(trust_dir, purpose) as keys:
        found = next((known for known in keys if known["kid"] == kid), None)
        if found is None:
            raise Blocked("keys.kid.unknown", "the trust set has no such key; `locseal keys list` shows them")
        if found.get("status") == "revoked" and status != "revoked":
            raise Blocked("keys.kid.revoked", "a revoked key stays revoked")
        found.pop("retired_at", None)
        found["status"] = status
        if status == "retired":
            found["retired_at"] = at


@contextmanager
def _changing(directory: Path, purpose: str) -> Iterator[list[dict[str, Any]]]:
    """Lend the keys of a trust set to be changed, then put the new set in the old one's place at once."""
    path = trust_file(directory, purpose)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jwks = parse_strict(read_trust_file(path), max_bytes=MAX_TRUST_BYTES) if path.exists() else {"keys": []}
        load_trust(purpose, jwks)
        yield jwks["keys"]
        load_trust(purpose, jwks)
        _replace(path, canonical_text(jwks) + "\n")
        os.fsync(lock)
    finally:
        os.close(lock)


def _write_new(path: Path, text: str) -> None:
    """Make a whole file appear that must not exist yet, readable by its owner alone from its first moment."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)  # 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(name)  # unlike a rename it never takes the place of another file
    except FileExistsError:
        raise Blocked("keys.kid.taken", f"{path.name} exists; choose another kid") from None
    finally:
        Path(name).unlink()


def _replace(path: Path, text: str) -> None:
    """Put a new file in the place of an old one; a reader sees one or the other."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
