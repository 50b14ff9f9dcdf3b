"""What a receipt verifier answers about one receipt. Asking, and what follows from the answer, belong to the adapters."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from worker.domain.document import Document, Hash, Token
from worker.domain.receipt import Purpose

VERIFICATION_SCHEMA: Final = "locseal.verification.v1"
ANSWER_SCHEMA: Final = "locseal.verification-answer.v1"


class VerificationAnswer(Document):
    """What a verifier says about one receipt and one binding, both named by their hashes."""

    schema_: Annotated[Literal["locseal.verification-answer.v1"], Field(alias="schema")]
    purpose: Purpose
    binding_sha256: Hash
    receipt_sha256: Hash
    verdict: Literal["accepted", "rejected"]
    kid: Token
