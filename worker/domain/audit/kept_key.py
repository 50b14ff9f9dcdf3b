"""The public keys that the database keeps, as the auditor's own trust: offline, years after the files have changed.

A kept key once verified what lies beside it, so it is judged as history: whether it was retired or revoked since says
nothing about then. What the trust directory says today, where it is given, becomes notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.canonical import canonical_text, parse_strict
from worker.domain.errors import Blocked, Invalid
from worker.domain.identifier import is_time
from worker.domain.key import PURPOSES, PublicKey, TrustSet, load_trust
from worker.domain.signature import SignedDocument, verify_detached

Verdict = Literal["sound", "missing", "invalid"]
AREA = "key"
LONGEST_JWK_BYTES = 1024 * 1024


class KeptKeys:
    """Every kept key by purpose and kid. Several may share a kid: a name can be used again after years."""

    def __init__(self, keys: Iterable[PublicKey] = (), *, trust: Mapping[str, TrustSet] | None = None) -> None:
        self._keys: dict[tuple[str, str], list[PublicKey]] = {}
        self._trust = trust
        for key in keys:
            self._keys.setdefault((key.purpose, key.kid), []).append(key)

    def verdict(self, purpose: str, payload: bytes, signature: object) -> Verdict:
        """Tell whether a kept key of this purpose signed exactly these bytes."""
        kid = kid_of(signature)
        candidates = self._keys.get((purpose, kid), []) if kid is not None else []
        if kid is not None and not candidates:
            return "missing"
        return "sound" if any(_signed(key, payload, signature) for key in candidates) else "invalid"

    def holds(self, purpose: str, kid: object) -> bool:
        """Tell whether a key of this name is kept."""
        return (purpose, kid) in self._keys

    def signature_findings(
        self, row: Row, purpose: str, payload: bytes, signature: object, kid: object
    ) -> Iterator[Finding]:
        """Yield what is wrong with a signature, and with the key id that its row repeats."""
        verdict = self.verdict(purpose, payload, signature)
        if verdict == "missing":
            yield row.breaks("key_missing", f"no public key of this name is kept for {purpose}")
        elif verdict == "invalid":
            yield row.breaks("signature_invalid", "the signature does not fit the stored bytes and a kept key")
        elif kid_of(signature) != kid:
            yield row.breaks("kid_mismatch", "the row names another key than its signature")

    def site_findings(self, row: Row, purpose: str, signature: object, site_id: str) -> Iterator[Finding]:
        """Yield that a key does not name the site it spoke for.

        A kept key names what it named when it was first kept; so without today's trust this is only a note.
        """
        if any(site_id in (key.sites or ()) for key in self._all(purpose, kid_of(signature))):
            return
        sentence = "the key, as it was first kept, does not name the site it spoke for"
        yield (
            row.notes("key_not_for_site", sentence)
            if self._trust is None
            else row.breaks(
                "key_not_for_site", "neither the kept key nor the trust directory names the site it spoke for"
            )
        )

    def reviewer_findings(self, row: Row, signature: object, provider_id: str) -> Iterator[Finding]:
        """Yield that an independent receipt was not made with a key of the reviewer it names; a note as above."""
        keys = self._all("receipt:independent", kid_of(signature))
        if any(provider_id in (key.providers or ()) for key in keys):
            return
        sentence = "the receipt's key, as it was first kept, does not name the reviewer"
        yield (
            row.notes("key_not_for_reviewer", sentence)
            if self._trust is None
            else row.breaks("key_not_for_reviewer", "neither the kept key nor the trust directory names the reviewer")
        )

    def _all(self, purpose: str, kid: str | None) -> list[PublicKey]:
        """Return the kept keys of a name and, where trust is given, the same keys as it has them today."""
        kept = self._keys.get((purpose, kid or ""), [])
        today = None if self._trust is None else _find(self._trust.get(purpose), {key.thumbprint for key in kept})
        return kept if today is None else [*kept, today]


def kid_of(signature: object) -> str | None:
    """Return the key id in the header of a well-formed detached JWS, or None for anything else."""
    if not isinstance(signature, str):
        return None
    try:
        return SignedDocument({}, signature).kid
    except Invalid:
        return None


def read_kept_key(
    row: Mapping[str, Any], trust: Mapping[str, TrustSet] | None
) -> tuple[PublicKey | None, list[Finding]]:
    """Return the key in a row of `public_keys` (None where it is none) and what there is to say about it."""
    about = row_of(AREA, row["purpose"], row["kid"], row["thumbprint"])
    try:
        jwk = parse_strict(row["jwk"], max_bytes=LONGEST_JWK_BYTES)
        is_exact = isinstance(jwk, dict) and canonical_text(jwk) == row["jwk"] and is_time(row["first_seen_at"])
        lasting = {name: value for name, value in jwk.items() if name not in {"status", "retired_at"}}
        (key,) = load_trust(row["purpose"], {"keys": [lasting]}).keys.values()
    except (Blocked, AttributeError, TypeError, ValueError):
        return None, [about.breaks("invalid", "the kept key is no public key of its purpose in canonical form")]
    if not is_exact or (key.kid, key.thumbprint) != (row["kid"], row["thumbprint"]):
        return None, [about.breaks("invalid", "the kept key is not the one that its row names")]
    return key, [] if trust is None else list(_today(about, key, trust.get(key.purpose)))


def overlap_findings(keys: Iterable[PublicKey]) -> Iterator[Finding]:
    """Yield every kept key that was used for two purposes."""
    owners: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: PURPOSES.index(key.purpose)):
        if owners.setdefault(key.thumbprint, key.purpose) != key.purpose:
            yield row_of(AREA, key.purpose, key.kid, key.thumbprint).breaks(
                "overlap", "the same public key is kept for two purposes"
            )


def _today(about: Row, key: PublicKey, trust: TrustSet | None) -> Iterator[Finding]:
    found = _find(trust, {key.thumbprint})
    if found is None:
        yield about.notes("untrusted", "the trust directory does not know this key today")
    elif found.status == "revoked":
        yield about.notes("revoked", "the key is revoked today; what it signed is listed as history only")


def _find(trust: TrustSet | None, thumbprints: set[str]) -> PublicKey | None:
    keys = () if trust is None else trust.keys.values()
    return next((key for key in keys if key.thumbprint in thumbprints), None)


def _signed(key: PublicKey, payload: bytes, signature: object) -> bool:
    lasting = replace(key, status="active", retired_at=None)
    try:
        verify_detached(
            TrustSet(purpose=key.purpose, keys={key.kid: lasting}), payload, signature, code="signature.invalid"
        )
    except Invalid:
        return False
    return True
