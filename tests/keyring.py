"""Fresh keys for every purpose, made for one test and trusted nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.domain.key import NAMES_PROVIDERS, NAMES_SITES, PURPOSES, private_jwk, public_jwk
from worker.domain.signature import (
    SignedDocument,
    TrustSet,
    load_trust,
    new_private_key,
    sign_detached,
    verify_detached,
)

SITE = "site-1"


class Keyring:
    """One fresh active key for every purpose, and the trust sets that go with them. Satisfies `flow.services.Keys`."""

    def __init__(
        self, *, sites: Sequence[str] = (SITE,), providers: Sequence[str] = ("reviewer", "quality-lab")
    ) -> None:
        """Make the keys; submission and acknowledgement keys name the sites, receipt keys the providers."""
        self.private = {purpose: new_private_key() for purpose in PURPOSES}
        self.kids = {purpose: f"{purpose.replace(':', '-')}-1" for purpose in PURPOSES}
        self._jwks = {purpose: self._public(purpose, list(sites), list(providers)) for purpose in PURPOSES}
        self._trust = {purpose: load_trust(purpose, jwks) for purpose, jwks in self._jwks.items()}

    def _public(self, purpose: str, sites: list[str], providers: list[str]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        if purpose in NAMES_SITES:
            members["sites"] = sites
        if purpose in NAMES_PROVIDERS:
            members["providers"] = providers
        return {"keys": [public_jwk(self.private[purpose], self.kids[purpose], **members)]}

    def sign(self, purpose: str, document: Mapping[str, Any]) -> SignedDocument:
        """Sign the canonical bytes of a document for a purpose."""
        unsigned = SignedDocument(document, "")
        signature = sign_detached(purpose, self.kids[purpose], self.private[purpose], unsigned.payload())
        verify_detached(self._trust[purpose], unsigned.payload(), signature, code="signature.invalid")
        return SignedDocument(document, signature)

    def trust(self, purpose: str) -> TrustSet:
        """Return the trust set of a purpose."""
        return self._trust[purpose]

    def jwks(self, purpose: str) -> dict[str, Any]:
        """Return the JWKS of a purpose."""
        return self._jwks[purpose]

    def retire(self, purpose: str, *, retired_at: float) -> None:
        """Retire the key of a purpose as of a time."""
        self._mark(purpose, {"status": "retired", "retired_at": retired_at})

    def revoke(self, purpose: str) -> None:
        """Revoke the key of a purpose."""
        self._mark(purpose, {"status": "revoked"})

    def _mark(self, purpose: str, members: dict[str, Any]) -> None:
        keys = [
            {name: value for name, value in jwk.items() if name != "retired_at"} for jwk in self._jwks[purpose]["keys"]
        ]
        self._jwks[purpose] = {"keys": [jwk | members for jwk in keys]}
        self._trust[purpose] = load_trust(purpose, self._jwks[purpose])

    def write(self, private_dir: Path, trust_dir: Path) -> None:
        """Write private keys and trust sets as the files that `adapters.keys.FileKeys` reads."""
        private_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        trust_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for purpose in PURPOSES:
            name, kid = purpose.replace(":", "-"), self.kids[purpose]
            path = private_dir / f"{name}.{kid}.jwk"
            path.touch(mode=0o600)
            path.write_text(json.dumps(private_jwk(self.private[purpose], kid)))
            path.chmod(0o600)
            (trust_dir / f"{name}.jwks.json").write_text(json.dumps(self._jwks[purpose]))
