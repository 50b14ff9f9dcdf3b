"""Keys as they stand in files: public keys with what they may speak for, and private keys. No file is read here.

A trust set is a JWKS of one purpose with our own members: `status` (active, retired with `retired_at`, revoked), and
`sites` or `providers` where the purpose names them. What a key's signature proves is `domain.signature`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from joserfc.jwk import OKPKey

from worker.domain.errors import Blocked, Invalid
from worker.domain.identifier import is_time, is_token

PURPOSES: Final = (
    "submission",
    "approval",
    "publication",
    "receipt:quality",
    "receipt:human",
    "receipt:independent",
    "evidence",
    "acknowledgement",
)
ALG: Final = "Ed25519"  # RFC 9864; the polymorphic `EdDSA` is refused, so an algorithm has exactly one name
NAMES_SITES: Final = frozenset({"submission", "acknowledgement"})
NAMES_PROVIDERS: Final = frozenset({"receipt:quality", "receipt:human", "receipt:independent"})
KEY_BYTES: Final = 32
TRUST_INVALID: Final = "keys.trust.invalid"

_JWK_MEMBERS = {"kty", "crv", "x", "kid", "alg", "use", "key_ops", "status", "retired_at", "sites", "providers"}
_B64URL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """One trusted key of one purpose.

    `active` verifies everything, `retired` only what was signed before `retired_at`, `revoked` nothing. `sites` and
    `providers` are None where the purpose does not name them.
    """

    kid: str
    purpose: str
    jwk: Mapping[str, Any] = field(hash=False)
    status: Literal["active", "retired", "revoked"]
    retired_at: float | None
    sites: frozenset[str] | None
    providers: frozenset[str] | None
    thumbprint: str  # RFC 7638, of the public key alone
    key: Ed25519PublicKey = field(repr=False, compare=False)  # parsed once; verifying never parses again

    def raw(self) -> bytes:
        """Return the 32 bytes of the public key."""
        return self.key.public_bytes_raw()

    def speaks_for(self, site_id: str) -> bool:
        """Tell whether this key may speak for a site."""
        return self.sites is not None and site_id in self.sites

    def proves_for(self, provider_id: str) -> bool:
        """Tell whether this key belongs to a review provider."""
        return self.providers is not None and provider_id in self.providers


@dataclass(frozen=True, kw_only=True)
class TrustSet:
    """The keys of one purpose by `kid`, in the order of the JWKS."""

    purpose: str
    keys: Mapping[str, PublicKey] = field(hash=False)


def new_private_key() -> Ed25519PrivateKey:
    """Make a fresh random key."""
    return Ed25519PrivateKey.generate()


def public_jwk(key: Ed25519PrivateKey | Ed25519PublicKey, kid: str, **members: Any) -> dict[str, Any]:
    """Return the trust form of a key: a public JWK with `status` active, and our own members where given."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    x = base64url(public.public_bytes_raw()).decode("ascii")
    return {"kty": "OKP", "crv": "Ed25519", "alg": ALG, "use": "sig", "kid": kid, "x": x, "status": "active"} | members


def private_jwk(key: Ed25519PrivateKey, kid: str) -> dict[str, Any]:
    """Return the private JWK that a key file holds. Handle with care: this is the secret itself."""
    x = base64url(key.public_key().public_bytes_raw()).decode("ascii")
    d = base64url(key.private_bytes_raw()).decode("ascii")
    return {"kty": "OKP", "crv": "Ed25519", "alg": ALG, "use": "sig", "kid": kid, "x": x, "d": d}


def load_private(jwk: object) -> tuple[str, Ed25519PrivateKey]:
    """Return (kid, key) of a private JWK; `Invalid("keys.file.invalid")` names the member, never its value."""
    code = "keys.file.invalid"
    if not isinstance(jwk, dict) or jwk.keys() - {"kty", "crv", "alg", "use", "key_ops", "kid", "x", "d"}:
        raise Invalid(code, "expected a private JWK without other members")
    kid, _ = _check_okp(jwk, code, "")
    seed = from_base64url(jwk.get("d"))
    if seed is None or len(seed) != KEY_BYTES:
        raise Invalid(code, "expected 32 bytes in base64url", path="d")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    if key.public_key().public_bytes_raw() != from_base64url(jwk["x"]):
        raise Invalid(code, "the public part does not belong to the private one", path="x")
    return kid, key


def load_trust(purpose: str, jwks: object) -> TrustSet:
    """Read a JWKS as the trust set of a purpose; `Invalid("keys.trust.invalid")` names the offending member.

    Unknown members are refused, since a misspelt `status` must not trust a revoked key. One public key under two
    names is refused too: revoking one of them would leave the other.
    """
    if purpose not in PURPOSES:
        raise Invalid(TRUST_INVALID, "no such purpose")
    if not isinstance(jwks, dict) or jwks.keys() != {"keys"} or not isinstance(jwks["keys"], list):
        raise Invalid(TRUST_INVALID, "expected an object with exactly `keys`, a list")
    keys: dict[str, PublicKey] = {}
    seen: set[str] = set()
    for index, jwk in enumerate(jwks["keys"]):
        key = _load_public(purpose, jwk, f"keys[{index}]")
        if key.kid in keys or key.thumbprint in seen:
            raise Invalid(TRUST_INVALID, "the same kid or the same public key twice", path=f"keys[{index}]")
        keys[key.kid] = key
        seen.add(key.thumbprint)
    return TrustSet(purpose=purpose, keys=keys)


def overlapping(sets: Iterable[TrustSet]) -> frozenset[str]:
    """Return the purposes that share a public key with another purpose."""
    owners: dict[str, set[str]] = {}
    for trust in sets:
        for key in trust.keys.values():
            owners.setdefault(key.thumbprint, set()).add(trust.purpose)
    return frozenset(purpose for found in owners.values() if len(found) > 1 for purpose in found)


def check_disjoint(sets: Iterable[TrustSet]) -> None:
    """Refuse trust sets of which two hold the same public key (`keys.trust.overlap`)."""
    shared = overlapping(sets)
    if shared:
        raise Blocked("keys.trust.overlap", f"one public key serves {' and '.join(sorted(shared))}; give each its own")


def _load_public(purpose: str, jwk: object, path: str) -> PublicKey:
    """Read one member of a JWKS."""
    if not isinstance(jwk, dict):
        raise Invalid(TRUST_INVALID, "expected a JWK", path=path)
    if "d" in jwk:
        raise Invalid(TRUST_INVALID, "a trust file holds a private key; remove and replace it", path=f"{path}.d")
    if jwk.keys() - _JWK_MEMBERS:
        raise Invalid(TRUST_INVALID, "a JWK with an unknown member", path=path)
    kid, okp = _check_okp(jwk, TRUST_INVALID, f"{path}.")
    status = jwk.get("status", "active")
    if status not in ("active", "retired", "revoked"):
        raise Invalid(TRUST_INVALID, "expected active, retired or revoked", path=f"{path}.status")
    retired_at = jwk.get("retired_at")
    if not (is_time(retired_at) if status == "retired" else retired_at is None):
        raise Invalid(TRUST_INVALID, "a retired key, and no other, has a time here", path=f"{path}.retired_at")
    return PublicKey(
        kid=kid,
        purpose=purpose,
        jwk=jwk,
        status=status,
        retired_at=None if retired_at is None else float(retired_at),
        sites=_names(jwk, "sites", path, required=purpose in NAMES_SITES),
        providers=_names(jwk, "providers", path, required=purpose in NAMES_PROVIDERS),
        thumbprint=okp.thumbprint(),
        key=Ed25519PublicKey.from_public_bytes(from_base64url(jwk["x"]) or b""),
    )


def _check_okp(jwk: Mapping[str, Any], code: str, prefix: str) -> tuple[str, OKPKey]:
    """Check the members that public and private keys share."""
    allowed = {"kty": ("OKP",), "crv": ("Ed25519",), "alg": (ALG, None), "use": ("sig", None)}
    for member, values in allowed.items():
        if jwk.get(member) not in values:
            raise Invalid(code, f"expected {values[0]}", path=f"{prefix}{member}")
    if not is_token(jwk.get("kid")):
        raise Invalid(code, "every key needs a kid, a token", path=f"{prefix}kid")
    raw = from_base64url(jwk.get("x"))
    if raw is None or len(raw) != KEY_BYTES:
        raise Invalid(code, "expected 32 bytes in base64url", path=f"{prefix}x")
    return jwk["kid"], OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": jwk["x"]})  # any 32 bytes will do


def _names(jwk: Mapping[str, Any], member: str, path: str, *, required: bool) -> frozenset[str] | None:
    """Read the sites or providers that a key may speak for."""
    names = jwk.get(member)
    if not required:
        if member in jwk:
            raise Invalid(TRUST_INVALID, "keys of this purpose do not name them", path=f"{path}.{member}")
        return None
    if not isinstance(names, list) or not names or not all(is_token(name) for name in names):
        raise Invalid(TRUST_INVALID, "expected a non-empty list of tokens", path=f"{path}.{member}")
    return frozenset(names)


def base64url(data: bytes) -> bytes:
    """Return unpadded base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def from_base64url(text: object) -> bytes | None:
    """Decode unpadded base64url, or return None. Stray trailing bits fail: they would give one value two texts."""
    if not isinstance(text, str) or _B64URL.fullmatch(text) is None:
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return data if base64url(data).decode("ascii") == text else None
