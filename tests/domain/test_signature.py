"""Detached signatures and trust sets: what verifies, and everything that must not."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import OKPKey

from worker.domain.canonical import canonical_bytes, canonical_text, parse_strict
from worker.domain.errors import Blocked, Invalid
from worker.domain.key import load_private, overlapping, private_jwk, public_jwk
from worker.domain.signature import (
    PURPOSES,
    TYP,
    SignedDocument,
    TrustSet,
    check_disjoint,
    load_trust,
    new_private_key,
    parse_signed,
    sign_detached,
    verify_detached,
)

CASES = Path(__file__).parent / "cases"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PAYLOAD = b'{"a":1}'
CODE = "some.signature.invalid"


def names_of(purpose: str) -> dict[str, list[str]]:
    if purpose in {"submission", "acknowledgement"}:
        return {"sites": ["www"]}
    return {"providers": ["reviewer"]} if purpose.startswith("receipt:") else {}


def trust_of(purpose: str = "approval", kid: str = "k1", key: Ed25519PrivateKey = KEY, **members: Any) -> TrustSet:
    return load_trust(purpose, {"keys": [public_jwk(key, kid, **names_of(purpose), **members)]})


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def signed_with(header: Any, *, key: Ed25519PrivateKey = KEY, payload: bytes = PAYLOAD, text: str | None = None) -> str:
    """Make a JWS with any header, correctly signed."""
    head = encoded((text if text is not None else json.dumps(header)).encode())
    return f"{head}..{encoded(key.sign(f'{head}.{encoded(payload)}'.encode()))}"


def refused(trust: TrustSet, signature: Any, payload: bytes = PAYLOAD, **when: float) -> str:
    """Assert that a signature is refused with the caller's code, and return the sentence."""
    with pytest.raises(Invalid) as caught:
        verify_detached(trust, payload, signature, code=CODE, **when)
    assert (caught.value.code, caught.value.path) == (CODE, "signature")
    return caught.value.message


HEADER = {"alg": "Ed25519", "kid": "k1", "typ": TYP["approval"]}


# --- what verifies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", PURPOSES)
def test_each_purpose_verifies_what_it_signed(purpose: str) -> None:
    """A signature verifies with its own purpose's trust set, and the key that made it is returned."""
    trust = trust_of(purpose)
    key = verify_detached(trust, PAYLOAD, sign_detached(purpose, "k1", KEY, PAYLOAD), code=CODE)
    assert key is trust.keys["k1"]
    assert (key.kid, key.purpose, key.status) == ("k1", purpose, "active")


@pytest.mark.parametrize("purpose", PURPOSES)
def test_no_purpose_verifies_for_another(purpose: str) -> None:
    """Even with the same key and kid trusted for both, a signature of one purpose is refused by every other."""
    signature = sign_detached(purpose, "k1", KEY, PAYLOAD)
    for other in PURPOSES:
        if other != purpose:
            assert refused(trust_of(other), signature) == "the signature was made for another purpose"


def test_every_purpose_has_a_type_of_its_own() -> None:
    """Eight purposes, eight `typ` values."""
    assert len(PURPOSES) == len(set(TYP.values())) == 8
    assert TYP["submission"] == "locseal-submission+jws"
    assert TYP["receipt:quality"] == "locseal-receipt-quality+jws"


@given(st.binary(max_size=300))
def test_any_bytes_are_signed_and_verified(payload: bytes) -> None:
    """Whatever the payload, its signature verifies, and not for one byte more."""
    signature = sign_detached("approval", "k1", KEY, payload)
    assert verify_detached(trust_of(), payload, signature, code=CODE).kid == "k1"
    assert refused(trust_of(), signature, payload + b"\n") == "the signature does not fit these bytes"


def test_another_library_verifies_our_signature() -> None:
    """joserfc, given the payload, accepts what we sign: a standard JWS with `Ed25519`."""
    header, _, proof = sign_detached("approval", "k1", KEY, PAYLOAD).split(".")
    key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": public_jwk(KEY, "k1")["x"]})
    read = jws.deserialize_compact(f"{header}.{encoded(PAYLOAD)}.{proof}", key, algorithms=["Ed25519"])
    assert (read.payload, read.headers()) == (PAYLOAD, HEADER)


def test_we_verify_another_librarys_signature() -> None:
    """A producer may write the header in any order and spacing."""
    key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", **{m: private_jwk(KEY, "k1")[m] for m in ("x", "d")}})
    header, _, proof = jws.serialize_compact(HEADER, PAYLOAD, key, algorithms=["Ed25519"]).split(".")
    assert verify_detached(trust_of(), PAYLOAD, f"{header}..{proof}", code=CODE).kid == "k1"
    spaced = signed_with(None, text='{ "typ": "locseal-approval+jws",\n "kid": "k1", "alg": "Ed25519" }')
    assert verify_detached(trust_of(), PAYLOAD, spaced, code=CODE).kid == "k1"


# --- what fails closed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        {**HEADER, "alg": "EdDSA"},
        {**HEADER, "alg": "none"},
        {**HEADER, "alg": "HS256"},
        {**HEADER, "alg": "ed25519"},
        {**HEADER, "alg": None},
        {**HEADER, "alg": ["Ed25519"]},
        {**HEADER, "kid": "k2"},
        {**HEADER, "kid": "K1"},
        {**HEADER, "kid": ""},
        {**HEADER, "kid": "k1\n"},
        {**HEADER, "kid": ["k1"]},
        {**HEADER, "kid": None},
        {**HEADER, "typ": "JWT"},
        {**HEADER, "typ": "LOCSEAL-APPROVAL+JWS"},
        {**HEADER, "typ": None},
        {**HEADER, "typ": {}},
        {**HEADER, "crit": []},
        {**HEADER, "crit": ["exp"]},
        {**HEADER, "b64": True},
        {**HEADER, "b64": False, "crit": ["b64"]},
        {**HEADER, "jwk": public_jwk(KEY, "k1")},
        {**HEADER, "jku": "https://keys.example/"},
        {**HEADER, "x5c": []},
        {**HEADER, "extra": 1},
        {"alg": "Ed25519", "kid": "k1"},
        {"alg": "Ed25519", "typ": TYP["approval"]},
        {"kid": "k1", "typ": TYP["approval"]},
        {},
        [],
        "Ed25519",
        None,
    ],
)
def test_any_other_header_is_refused(header: Any) -> None:
    """A correct signature under any header but exactly alg, kid and typ with our values is refused."""
    refused(trust_of(), signed_with(header))


@pytest.mark.parametrize(
    "text",
    [
        '{"alg":"Ed25519","kid":"k1","kid":"k1","typ":"locseal-approval+jws"}',
        '{"alg":"Ed25519","kid":"k0","kid":"k1","typ":"locseal-approval+jws"}',
        '\ufeff{"alg":"Ed25519","kid":"k1","typ":"locseal-approval+jws"}',
        '{"alg":"Ed25519","kid":"k1","typ":"locseal-approval+jws"} x',
        "[" * 400,
        "",
    ],
)
def test_a_header_that_is_no_strict_json_is_refused(text: str) -> None:
    """Repeated members, byte order marks, trailing text, deep nesting and nothing at all are refused."""
    refused(trust_of(), signed_with(None, text=text))


GOOD = sign_detached("approval", "k1", KEY, PAYLOAD)
HEAD, _, PROOF = GOOD.split(".")


@pytest.mark.parametrize(
    "signature",
    [
        "",
        ".",
        "..",
        "...",
        f"{HEAD}.{PROOF}",
        f"{HEAD}..",
        f"..{PROOF}",
        f"{HEAD}..{PROOF}.",
        f"{HEAD}...{PROOF}",
        f"{HEAD}.{encoded(PAYLOAD)}.{PROOF}",
        f"{HEAD}..{PROOF}==",
        f"{HEAD}=..{PROOF}",
        f"{HEAD}..{PROOF}\n",
        f" {HEAD}..{PROOF}",
        f"{HEAD}..{PROOF[:-1]}",
        f"{HEAD}..{PROOF[:-2]}",
        f"{HEAD}..{PROOF}AA",
        f"{HEAD}..{encoded(bytes(64))}",
        f"{HEAD}..{encoded(bytes(63))}",
        f"{HEAD}..{encoded(b'')}",
        f"{HEAD}..{'A' * 2000}",
        GOOD.replace(HEAD, HEAD + "A" * 2000),
        "é..é",
        None,
        7,
        GOOD.encode(),
        {"signature": GOOD},
    ],
)
def test_anything_that_is_no_detached_jws_is_refused(signature: Any) -> None:
    """An attached payload, padding, whitespace, other lengths, empty and all-zero proofs, and other types."""
    refused(trust_of(), signature)


def test_stray_trailing_bits_are_refused() -> None:
    """64 bytes end in four unused bits: each of the fifteen other last characters names the same bytes, and fails."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    group = alphabet.index(PROOF[-1]) // 16 * 16
    assert alphabet.index(PROOF[-1]) == group
    for last in alphabet[group + 1 : group + 16]:
        assert "detached compact JWS" in refused(trust_of(), f"{HEAD}..{PROOF[:-1]}{last}")


def test_another_alphabet_is_refused() -> None:
    """Base64 with + and / is not base64url."""
    payload = b"0"
    while not set("-_") & set(sign_detached("approval", "k1", KEY, payload).split(".")[2]):
        payload += b"0"
    signature = sign_detached("approval", "k1", KEY, payload)
    refused(trust_of(), signature.replace("-", "+").replace("_", "/"), payload)


@given(st.integers(0, 85), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"))
def test_no_other_proof_verifies(place: int, letter: str) -> None:
    """Any changed character of the proof is refused."""
    changed = PROOF[:place] + letter + PROOF[place + 1 :]
    if changed != PROOF:
        refused(trust_of(), f"{HEAD}..{changed}")


def test_what_was_verified_before_lends_nothing_to_anything_else() -> None:
    """After a signature verified, other bytes, another key or another standing of its key are refused as if it never had."""
    for _ in range(2):
        assert verify_detached(trust_of(), PAYLOAD, GOOD, code=CODE).kid == "k1"
    assert refused(trust_of(), GOOD, PAYLOAD + b" ") == "the signature does not fit these bytes"
    assert refused(trust_of(key=OTHER), GOOD) == "the signature does not fit these bytes"
    assert refused(trust_of(status="revoked"), GOOD, signed_at=1.0) == "the key is revoked"
    assert "retired" in refused(trust_of(status="retired", retired_at=1000), GOOD)
    for _ in range(2):  # nor is a refusal remembered as anything but a refusal
        refused(trust_of(), sign_detached("approval", "k1", OTHER, PAYLOAD))


def test_another_key_of_the_same_name_is_refused() -> None:
    """The kid only points at a key; the key decides."""
    assert refused(trust_of(key=OTHER), GOOD) == "the signature does not fit these bytes"


def test_a_key_that_strayed_into_another_set_verifies_nothing() -> None:
    """Even a trust set put together by hand does not lend a key to another purpose."""
    strayed = TrustSet(purpose="approval", keys=trust_of("publication").keys)
    assert refused(strayed, GOOD) == "the key belongs to another purpose"


def test_an_empty_trust_set_verifies_nothing() -> None:
    """No key, no trust."""
    empty = load_trust("approval", {"keys": []})
    assert refused(empty, GOOD) == "the signature names no key that is trusted for this purpose"


def test_no_refusal_quotes_what_it_refused() -> None:
    """Sentences hold neither kid nor payload."""
    for signature in (signed_with({**HEADER, "kid": "canary"}), signed_with({**HEADER, "canary": "canary"})):
        assert "canary" not in refused(trust_of(), signature, b"canary")


# --- rotation -------------------------------------------------------------------------------------------------------


def test_a_retired_key_verifies_only_what_was_signed_before() -> None:
    """Strictly before its time; at it, after it, or at an unknown time the signature is refused."""
    trust = trust_of(status="retired", retired_at=1000)
    assert verify_detached(trust, PAYLOAD, GOOD, code=CODE, signed_at=999.9).kid == "k1"
    for when in ({"signed_at": 1000.0}, {"signed_at": 1000.1}, {}):
        assert "retired" in refused(trust, GOOD, **when)


def test_a_revoked_key_verifies_nothing() -> None:
    """Not even what was signed long ago."""
    assert refused(trust_of(status="revoked"), GOOD, signed_at=1.0) == "the key is revoked"


def test_two_keys_verify_side_by_side() -> None:
    """Old and new signatures verify while both keys are active."""
    trust = load_trust("approval", {"keys": [public_jwk(KEY, "k1"), public_jwk(OTHER, "k2")]})
    assert list(trust.keys) == ["k1", "k2"]
    assert verify_detached(trust, PAYLOAD, GOOD, code=CODE).kid == "k1"
    assert verify_detached(trust, PAYLOAD, sign_detached("approval", "k2", OTHER, PAYLOAD), code=CODE).kid == "k2"


# --- field cases ----------------------------------------------------------------------------------------------------


def field_cases(case: int) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    whole = json.loads((CASES / "receipts_raw_bytes.json").read_text())
    return [item for item in whole["items"] if item["case"] == case], whole["keys"], whole["rotation"]


def test_field_case_77_signatures_are_over_exact_bytes() -> None:
    """Field case 77: a signature verifies the bytes it was made over; the same value in other bytes is refused."""
    items, keys, _ = field_cases(77)
    names = {item["name"]: item for item in items}
    signed_as = {
        "pretty-bytes-compact-signature": "compact",
        "escape-lower-case-hex-upper-signature": "escape-upper-case-hex",
        "one-integer-signature-of-one-point-zero": "one-point-zero",
        "escaped-utf8-raw-signature": "raw-utf8",
        "trailing-newline-not-signed": "compact",
    }
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(keys["rk-1"]["ed25519_seed_hex"]))
    trust = trust_of("receipt:quality", "rk-1", key)
    for item in items:
        signed = base64.b64decode(names[signed_as.get(item["name"], item["name"])]["body_b64"])
        body = base64.b64decode(item["body_b64"])
        # the case's own raw signature says which bytes were signed
        key.public_key().verify(base64.b64decode(item["ed25519_sig_b64"]), signed)
        signature = sign_detached("receipt:quality", "rk-1", key, signed)
        if item["expect"] == "accept":
            assert verify_detached(trust, body, signature, code=CODE).kid == "rk-1", item["name"]
        else:
            assert refused(trust, signature, body) == "the signature does not fit these bytes", item["name"]
    assert [item["expect"] for item in items].count("reject") == len(signed_as)


def test_field_case_77_spelling_is_no_part_of_a_document() -> None:
    """Field case 77 for our documents: every spelling of one document has the same signed bytes, kept as such."""
    items, _, _ = field_cases(77)
    names = {item["name"]: base64.b64decode(item["body_b64"]) for item in items}
    parsed = {name: canonical_bytes(parse_strict(body, max_bytes=10_000)) for name, body in names.items()}
    assert parsed["compact"] == parsed["pretty-with-newline"] == parsed["reversed-key-order"]
    assert parsed["raw-utf8"] == parsed["escaped-utf8-raw-signature"]
    assert parsed["escape-upper-case-hex"] == parsed["escape-lower-case-hex-upper-signature"]
    assert parsed["compact"] != parsed["raw-utf8"]


def test_field_case_79_absent_empty_and_zero_signatures() -> None:
    """Field case 79: an unsigned body is refused, however the signature is left out."""
    items, keys, _ = field_cases(79)
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(keys["rk-1"]["ed25519_seed_hex"]))
    trust = trust_of("receipt:quality", "rk-1", key)
    body = next(base64.b64decode(item["body_b64"]) for item in items if item["name"] == "unsigned")
    header = sign_detached("receipt:quality", "rk-1", key, body).split(".")[0]
    for signature in (None, "", "..", f"{header}..", f"{header}..{encoded(bytes(64))}"):
        refused(trust, signature, body)


def test_field_case_81_rotation() -> None:
    """Field case 81: both keys verify in the overlap; the old one only what existed before it was retired."""
    items, keys, rotation = field_cases(81)
    assert rotation["rk-1"]["retired"] == "2026-10-22T00:00:00Z"
    retired_at = 1_792_627_200.0
    private = {kid: Ed25519PrivateKey.from_private_bytes(bytes.fromhex(keys[kid]["ed25519_seed_hex"])) for kid in keys}
    names = {"providers": ["reviewer"]}
    trust = load_trust(
        "receipt:quality",
        {
            "keys": [
                public_jwk(private["rk-1"], "rk-1", status="retired", retired_at=retired_at, **names),
                public_jwk(private["rk-2"], "rk-2", **names),
            ]
        },
    )
    signed_at = {
        "second-key-in-overlap": retired_at - 60_000,
        "first-key-after-retire": retired_at + 1,
        "first-key-issued-before-retire-seen-after": retired_at - 2,
    }
    for item in items:
        body = base64.b64decode(item["body_b64"])
        signature = sign_detached("receipt:quality", item["key_id"], private[item["key_id"]], body)
        if item["expect"] == "accept":
            found = verify_detached(trust, body, signature, code=CODE, signed_at=signed_at[item["name"]])
            assert found.kid == item["key_id"]
        else:
            assert "retired" in refused(trust, signature, body, signed_at=signed_at[item["name"]])
    stranger = sign_detached("receipt:quality", "not-configured", private["not-configured"], b"{}")
    assert "no key" in refused(trust, stranger, b"{}")


# --- signed documents -----------------------------------------------------------------------------------------------


def test_a_signed_document_survives_the_wire() -> None:
    """Text, parsed again, is the same document, payload, kid and text; any spelling has the same payload."""
    document = {"b": ["é", 1.0], "a": {"n": None}}
    made = SignedDocument(document, "").signed(sign_detached("approval", "k1", KEY, canonical_bytes(document)))
    assert made.payload() == '{"a":{"n":null},"b":["é",1]}'.encode()
    assert made.to_text() == canonical_text(made.to_json())
    for text in (made.to_text(), made.to_text().encode(), json.dumps(made.to_json(), indent=2)):
        read = parse_signed(text, max_bytes=1000, code="submission.invalid")
        assert (read.payload(), read.signature, read.kid) == (made.payload(), made.signature, "k1")
        assert verify_detached(trust_of(), read.payload(), read.signature, code=CODE).kid == "k1"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], ""),
        ({}, ""),
        ({"document": {}}, ""),
        ({"signature": GOOD}, ""),
        ({"document": {}, "signature": GOOD, "more": 1}, ""),
        ({"document": [], "signature": GOOD}, "document"),
        ({"document": "{}", "signature": GOOD}, "document"),
        ({"document": {}, "signature": ""}, "signature"),
        ({"document": {}, "signature": None}, "signature"),
        ({"document": {}, "signature": GOOD + "="}, "signature"),
        ({"document": {}, "signature": f"{HEAD}.{encoded(b'{}')}.{PROOF}"}, "signature"),
    ],
)
def test_anything_else_is_no_signed_document(value: Any, path: str) -> None:
    """Exactly two members, an object and a detached JWS; else the caller's code and the member's path."""
    with pytest.raises(Invalid) as caught:
        parse_signed(json.dumps(value), max_bytes=10_000, code="submission.invalid")
    assert (caught.value.code, caught.value.path) == ("submission.invalid", path)


def test_a_signed_document_shows_nothing_of_itself() -> None:
    """Its representation, which ends up in logs, holds neither text nor signature."""
    assert repr(SignedDocument({"text": "canary"}, GOOD)) == "SignedDocument()"


def test_a_signature_without_a_header_names_no_key() -> None:
    """Asking for the kid of something malformed is Invalid."""
    with pytest.raises(Invalid) as caught:
        _ = SignedDocument({}, "x").kid
    assert caught.value.code == "signature.invalid"


# --- trust sets -----------------------------------------------------------------------------------------------------

PUBLIC = public_jwk(KEY, "k1")


def test_a_public_key_says_whom_it_speaks_for() -> None:
    """Submission keys name sites, receipt keys providers, the others nobody."""
    submission = trust_of("submission").keys["k1"]
    assert (submission.sites, submission.providers) == (frozenset({"www"}), None)
    assert submission.speaks_for("www")
    assert not submission.speaks_for("other")
    assert not submission.proves_for("www")
    receipt = trust_of("receipt:human").keys["k1"]
    assert (receipt.sites, receipt.providers) == (None, frozenset({"reviewer"}))
    assert receipt.proves_for("reviewer")
    assert not receipt.proves_for("other")
    assert not receipt.speaks_for("reviewer")
    assert not trust_of("approval").keys["k1"].speaks_for("www")


def test_the_thumbprint_is_that_of_rfc_8037() -> None:
    """RFC 8037, appendix A.3: the thumbprint of its example key."""
    jwk = {**PUBLIC, "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    key = load_trust("approval", {"keys": [jwk]}).keys["k1"]
    assert key.thumbprint == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


@pytest.mark.parametrize(
    ("purpose", "jwk", "path"),
    [
        ("approval", {**PUBLIC, "kid": None}, "keys[0].kid"),
        ("approval", {**PUBLIC, "kid": "a b"}, "keys[0].kid"),
        ("approval", {m: v for m, v in PUBLIC.items() if m != "kid"}, "keys[0].kid"),
        ("approval", {**PUBLIC, "kty": "RSA"}, "keys[0].kty"),
        ("approval", {**PUBLIC, "crv": "X25519"}, "keys[0].crv"),
        ("approval", {**PUBLIC, "alg": "EdDSA"}, "keys[0].alg"),
        ("approval", {**PUBLIC, "use": "enc"}, "keys[0].use"),
        ("approval", {**PUBLIC, "x": PUBLIC["x"] + "="}, "keys[0].x"),
        ("approval", {**PUBLIC, "x": PUBLIC["x"][:-2]}, "keys[0].x"),
        ("approval", {**PUBLIC, "x": 7}, "keys[0].x"),
        ("approval", private_jwk(KEY, "k1"), "keys[0].d"),
        ("approval", {**PUBLIC, "statuss": "revoked"}, "keys[0]"),
        ("approval", {**PUBLIC, "status": "gone"}, "keys[0].status"),
        ("approval", {**PUBLIC, "status": None}, "keys[0].status"),
        ("approval", {**PUBLIC, "status": "retired"}, "keys[0].retired_at"),
        ("approval", {**PUBLIC, "status": "retired", "retired_at": True}, "keys[0].retired_at"),
        ("approval", {**PUBLIC, "status": "retired", "retired_at": -1}, "keys[0].retired_at"),
        ("approval", {**PUBLIC, "retired_at": 5}, "keys[0].retired_at"),
        ("approval", {**PUBLIC, "status": "revoked", "retired_at": "x"}, "keys[0].retired_at"),
        ("approval", {**PUBLIC, "sites": ["www"]}, "keys[0].sites"),
        ("approval", {**PUBLIC, "providers": ["p"]}, "keys[0].providers"),
        ("submission", PUBLIC, "keys[0].sites"),
        ("submission", {**PUBLIC, "sites": []}, "keys[0].sites"),
        ("submission", {**PUBLIC, "sites": "www"}, "keys[0].sites"),
        ("submission", {**PUBLIC, "sites": ["a b"]}, "keys[0].sites"),
        ("acknowledgement", PUBLIC, "keys[0].sites"),
        ("receipt:quality", PUBLIC, "keys[0].providers"),
        ("receipt:independent", {**PUBLIC, "providers": [1]}, "keys[0].providers"),
        ("approval", "k1", "keys[0]"),
    ],
)
def test_a_wrong_key_spoils_its_trust_set(purpose: str, jwk: Any, path: str) -> None:
    """A key that is not exactly what the purpose needs is refused at load, naming the member."""
    with pytest.raises(Invalid) as caught:
        load_trust(purpose, {"keys": [jwk]})
    assert (caught.value.code, caught.value.path) == ("keys.trust.invalid", path)


@pytest.mark.parametrize("jwks", [None, [], {}, {"keys": {}}, {"keys": [], "more": 1}])
def test_what_is_no_jwks(jwks: Any) -> None:
    """A trust set is an object with exactly `keys`."""
    with pytest.raises(Invalid) as caught:
        load_trust("approval", jwks)
    assert caught.value.code == "keys.trust.invalid"


def test_an_unknown_purpose_has_no_trust_set() -> None:
    """A purpose is one of the eight."""
    with pytest.raises(Invalid) as caught:
        load_trust("receipts", {"keys": []})
    assert caught.value.code == "keys.trust.invalid"


@pytest.mark.parametrize(("second", "kid"), [(OTHER, "k1"), (KEY, "k2")])
def test_neither_a_kid_nor_a_key_stands_twice(second: Ed25519PrivateKey, kid: str) -> None:
    """One kid for two keys is ambiguous; one key under two kids would survive the revocation of one."""
    with pytest.raises(Invalid) as caught:
        load_trust("approval", {"keys": [PUBLIC, public_jwk(second, kid, status="revoked")]})
    assert (caught.value.code, caught.value.path) == ("keys.trust.invalid", "keys[1]")


def test_a_public_key_in_two_purposes_is_refused() -> None:
    """Whatever the kids and statuses are, the overlap has its stable code and names both purposes."""
    sets = [trust_of("approval"), trust_of("publication", "other", status="revoked"), trust_of("evidence", key=OTHER)]
    with pytest.raises(Blocked) as caught:
        check_disjoint(sets)
    assert (caught.value.code, caught.value.retryable) == ("keys.trust.overlap", False)
    assert overlapping(sets) == {"approval", "publication"}
    check_disjoint([sets[0], sets[2]])


# --- private keys ---------------------------------------------------------------------------------------------------


def test_a_private_key_survives_its_file() -> None:
    """What is written is read back."""
    key = new_private_key()
    kid, read = load_private(parse_strict(canonical_text(private_jwk(key, "k1")), max_bytes=1000))
    assert kid == "k1"
    assert read.private_bytes_raw() == key.private_bytes_raw()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"d": "AAAA"}, "d"),
        ({"d": None}, "d"),
        ({"x": public_jwk(OTHER, "k1")["x"]}, "x"),
        ({"kid": ""}, "kid"),
        ({"crv": "Ed448"}, "crv"),
        ({"status": "active"}, ""),
    ],
)
def test_a_damaged_private_key_is_refused(change: dict[str, Any], path: str) -> None:
    """A private key that is not whole is refused, and nothing of it is said."""
    with pytest.raises(Invalid) as caught:
        load_private({**private_jwk(KEY, "k1"), **change})
    assert (caught.value.code, caught.value.path) == ("keys.file.invalid", path)
    assert private_jwk(KEY, "k1")["d"] not in str(caught.value)
