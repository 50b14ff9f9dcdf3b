"""The sandbox's own keys: made once into a directory, with the trust sets that Locseal must hold to believe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.adapters.key_changes import generate_key
from worker.adapters.key_files import choose_signer, read_private, read_trust, trust_file
from worker.domain.canonical import canonical_bytes
from worker.domain.errors import Blocked
from worker.domain.signature import SignedDocument, TrustSet, new_private_key, sign_detached

PROVIDER_ID: Final = "sandbox-review"
REVIEWER_ID: Final = "sandbox-second-model"
PURPOSES: Final = ("receipt:quality", "receipt:human", "receipt:independent", "evidence", "acknowledgement")

_PROVIDERS: Final = {
    "receipt:quality": (PROVIDER_ID,),
    "receipt:human": (PROVIDER_ID,),
    "receipt:independent": (REVIEWER_ID,),
}


class SandboxKeys:
    """Signs what a reviewer and a CMS sign. The keys of a directory stay the same over restarts."""

    def __init__(self, directory: Path, *, sites: Iterable[str]) -> None:
        """Load the keys of a directory, making what is missing.

        Layout: `private/`, readable by the owner alone, and `trust/`, whose files Locseal must trust. The
        acknowledgement key speaks for the named sites only (`sandbox.site.unknown` where an older key names others).
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.trust_dir = directory / "trust"
        private_dir = directory / "private"
        wanted = frozenset(sites)
        for purpose in PURPOSES:
            if not trust_file(self.trust_dir, purpose).exists():
                generate_key(
                    purpose,
                    private_dir=private_dir,
                    trust_dir=self.trust_dir,
                    kid=f"sandbox-{purpose.rpartition(':')[2]}-1",
                    sites=wanted if purpose == "acknowledgement" else (),
                    providers=_PROVIDERS.get(purpose, ()),
                )
        private, trusted = read_private(private_dir), read_trust(self.trust_dir)
        self._own: dict[str, tuple[str, Ed25519PrivateKey]] = {}
        self._trust: dict[str, TrustSet] = {}
        for purpose in PURPOSES:
            signer = choose_signer(private, trusted, purpose)
            if signer is None:
                raise Blocked(
                    "sandbox.keys.unusable", f"{directory} holds no usable key of {purpose}; give another --dir"
                )
            self._own[purpose], self._trust[purpose] = signer, trusted.sets[purpose]
        kid, _ = self._own["acknowledgement"]
        missing = wanted - (self._trust["acknowledgement"].keys[kid].sites or frozenset())
        if missing:
            raise Blocked(
                "sandbox.site.unknown",
                f"the key in {directory} does not speak for {sorted(missing)}; give another --dir",
            )
        # Same names, other keys: what these sign must never verify.
        self._wrong = {purpose: (kid, new_private_key()) for purpose, (kid, _) in self._own.items()}

    def trust(self, purpose: str) -> TrustSet:
        """Return the trust set of one of our purposes."""
        return self._trust[purpose]

    def receipt(self, purpose: str, binding: Mapping[str, Any], *, wrong_key: bool = False) -> str:
        """Return a receipt: the detached signature over a binding."""
        return self._sign(purpose, binding, wrong_key)

    def hand_in(self, document: Mapping[str, Any], *, wrong_key: bool = False) -> SignedDocument:
        """Return a signed response, as a provider hands it in by itself."""
        return SignedDocument(document, self._sign("evidence", document, wrong_key))

    def acknowledge(self, document: Mapping[str, Any], *, wrong_key: bool = False) -> SignedDocument:
        """Return a signed answer of the CMS."""
        return SignedDocument(document, self._sign("acknowledgement", document, wrong_key))

    def _sign(self, purpose: str, document: Mapping[str, Any], wrong_key: bool) -> str:
        kid, key = (self._wrong if wrong_key else self._own)[purpose]
        return sign_detached(purpose, kid, key, canonical_bytes(document))
