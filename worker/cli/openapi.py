"""The three HTTP contracts (review provider, receipt verifier, CMS) as one OpenAPI document, made from what the code uses.

Schemas come from the models, limits from the adapters, deadlines from the settings. The pages in `docs/contracts/` say
the same in words; the sandbox serves it.
"""

from __future__ import annotations

from typing import Any, Final

from config.settings import Settings
from worker.adapters.cms.http import MAX_ANSWER_BYTES as CMS_ANSWER_BYTES
from worker.adapters.providers.http import MAX_ANSWER_BYTES as PROVIDER_ANSWER_BYTES
from worker.adapters.verifiers.http import MAX_ANSWER_BYTES as VERIFIER_ANSWER_BYTES
from worker.domain.contract import definitions
from worker.domain.errors import ERROR_CODE
from worker.domain.identifier import HASH, TOKEN

VERSION: Final = "1"  # of the wire: every schema name ends in it
_SECTION: Final = "#/components/schemas/"
_ABOUT: Final = (
    "What Locseal asks of a review provider, a receipt verifier and a CMS. Locseal is the client of all three. The "
    "paths are those of the sandbox (`locseal sandbox`); live endpoints are configured whole, and only `/deliveries` "
    "and `/lookups` are added to the CMS's. Every call is one POST of canonical JSON that is never repeated by itself, "
    "and no redirect is ever followed. README.md beside this file has the rules that all of them share."
)


def openapi() -> dict[str, Any]:
    """Return the document (OpenAPI 3.1)."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Locseal: review provider, receipt verifier, CMS",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "http://127.0.0.1:8750", "description": "The sandbox, as `locseal sandbox` starts it"}],
        "security": [{}, {"token": []}],
        "paths": {
            "/provider": {"post": _review()},
            "/verifier": {"post": _verify()},
            "/cms/deliveries": {"post": _deliver()},
            "/cms/lookups": {"post": _look_up()},
        },
        "components": {
            "schemas": _schemas(),
            "responses": _responses(),
            "headers": {
                "RetryAfter": {
                    "description": "Seconds or an HTTP date by your own clock; more than an hour counts as an hour.",
                    "schema": {"type": "string"},
                }
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Sent where the endpoint is configured with a `token_file` or a `token_variable`.",
                }
            },
        },
    }


def _review() -> dict[str, Any]:
    return {
        "operationId": "review",
        "summary": "Review one locale of a change",
        "description": "Page evidence.md. The same key with the same body is the same question: answer it the same.",
        "parameters": [_key("evidence-", "the request id")],
        "requestBody": _body("EvidenceRequestDocument"),
        "responses": {
            "200": _json("The review is done.", "EvidenceResponseDocument"),
            "202": {
                "description": "Accepted, not yet: asked again later, and no attempt is counted. A body is not read.",
                "headers": _RETRY_AFTER,
            },
            **_classes(
                {
                    "4XX": _json(
                        "Refused; terminal, but for 408, 425 and 429. `code` names why, under `evidence.`.", "Refusal"
                    )
                }
            ),
        },
        "x-locseal-limits": _limits("provider", PROVIDER_ANSWER_BYTES),
    }


def _verify() -> dict[str, Any]:
    return {
        "operationId": "verify",
        "summary": "Say whether a receipt proves a binding",
        "description": "Page receipt.md. Only for receipts that Locseal cannot verify by itself.",
        "parameters": [_key("evidence-", "the request id of the binding")],
        "requestBody": _body("VerificationDocument"),
        "responses": {
            "200": _json("The verdict; a rejected receipt is a 200 too.", "VerificationAnswer"),
            **_classes({"4XX": _json("Refused; terminal, but for 408, 425 and 429. The body is not used.", "Refusal")}),
        },
        "x-locseal-limits": _limits("verifier", VERIFIER_ANSWER_BYTES),
    }


def _deliver() -> dict[str, Any]:
    conflict = {
        "type": "object",
        "properties": {"status": {"type": "string"}},
        "examples": [{"status": "stale"}],
    }
    return {
        "operationId": "deliver",
        "summary": "Publish all locales of a change, once",
        "description": "Page publication.md. Idempotent on the delivery id: a repeat is acknowledged again.",
        "parameters": [_key("delivery-", "the delivery id"), _SITE],
        "requestBody": _body("SignedPublication"),
        "responses": {
            "200": _json("Accepted: these bytes are live, or will be without anybody asking.", "SignedAcknowledgement"),
            "409": {
                "description": 'Exactly `{"status":"stale"}`: newer text of this source is live, and the delivery is '
                "closed as superseded. Anything else is a refusal like every other 4xx.",
                "content": {"application/json": {"schema": conflict}},
            },
            "425": {"$ref": "#/components/responses/NotTaken"},
            "429": {"$ref": "#/components/responses/NotTaken"},
            **_classes({"4XX": _json("Refused for good, but for 408: nothing was published.", "Refusal")}),
        },
        "x-locseal-limits": _limits("send", CMS_ANSWER_BYTES),
    }


def _look_up() -> dict[str, Any]:
    return {
        "operationId": "lookUp",
        "summary": "Say what became of a delivery",
        "description": "Page lookup.md. `absent` is a promise: an earlier request is not accepted any more.",
        "parameters": [_key("delivery-", "the delivery id"), _SITE],
        "requestBody": _body("LookupQuestion"),
        "responses": {
            "200": _json("What became of it, signed.", "SignedLookupAnswer"),
            **_classes({"4XX": _json("No answer: asked again later, whatever the status.", "Refusal")}),
        },
        "x-locseal-limits": _limits("lookup", CMS_ANSWER_BYTES),
    }


_RETRY_AFTER: Final = {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}}
_SITE: Final = {
    "name": "Locseal-Site-Id",
    "in": "header",
    "required": True,
    "description": "The site that the call is about. A look-up's document names none, but its answer has to.",
    "schema": {"type": "string", "pattern": f"^{TOKEN.pattern}$"},
}


def _key(prefix: str, what: str) -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": True,
        "description": f"{what[0].upper()}{what[1:]}, a dot, and the SHA-256 of the body's bytes as sent.",
        "schema": {"type": "string", "pattern": f"^{prefix}{HASH.pattern}\\.{HASH.pattern}$"},
    }


def _body(schema: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": {"$ref": _SECTION + schema}}}}


def _json(description: str, schema: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _SECTION + schema}}},
    }


def _classes(refused: dict[str, Any]) -> dict[str, Any]:
    """Return the classes of statuses that every operation shares, around its own word for a refusal."""
    return {
        "3XX": {"$ref": "#/components/responses/NeverFollowed"},
        "408": {"$ref": "#/components/responses/TryAgain"},
        **refused,
        "5XX": {"$ref": "#/components/responses/TryAgain"},
    }


def _responses() -> dict[str, Any]:
    return {
        "NeverFollowed": {"description": "A redirect is never followed; it is a definite refusal (but for a look-up)."},
        "NotTaken": {
            "description": "Not now, and certainly not taken: the delivery is sent again.",
            "headers": _RETRY_AFTER,
        },
        "TryAgain": {
            "description": "Asked again after a pause. A delivery is in doubt after it, and is looked up first.",
            "headers": _RETRY_AFTER,
        },
    }


def _limits(deadline: str, answer_bytes: int) -> dict[str, Any]:
    setting = f"{deadline}_deadline_seconds"
    return {
        "deadline_seconds": Settings.model_fields[setting].default,
        "deadline_setting": f"LOCSEAL_{setting.upper()}",
        "answer_bytes": answer_bytes,
    }


def _schemas() -> dict[str, Any]:
    found = definitions(_SECTION + "{model}")
    signature = found.pop("SignedEnvelope")["properties"]["signature"]
    for name in ("Publication", "Acknowledgement", "LookupAnswer"):
        found[f"Signed{name}"] = {
            "type": "object",
            "properties": {"document": {"$ref": _SECTION + name}, "signature": signature},
            "required": ["document", "signature"],
            "additionalProperties": False,
            "description": "The document with a detached JWS over its RFC 8785 bytes.",
        }
    found["Refusal"] = {
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "pattern": f"^{ERROR_CODE.pattern}$",
                "description": "A stable code; never prose.",
            }
        },
    }
    used = ("Evidence", "Independent", "QualityOrHuman", "Verification", "Publi", "Signed", "Acknowledge", "Lookup")
    parts = ("Provider", "QualityProfile", "ReviewConfidence", "Refusal")
    return {name: found[name] for name in sorted(found) if name.startswith(used) or name in parts}
