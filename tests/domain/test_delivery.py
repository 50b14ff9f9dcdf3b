"""Publications, and what a CMS may say about them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import (
    NOW,
    SITE,
    Keyring,
    acknowledgement_for,
    change_event,
    lookup_answer_for,
    parsed,
    publication_for,
)
from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.delivery import (
    Advance,
    ApprovedLocale,
    CmsAnswer,
    Lookup,
    Publication,
    build_publication,
    check_acknowledgement,
    check_lookup_answer,
    delivery_id_of,
    reverify_delivery,
)
from worker.domain.document import parse_document
from worker.domain.errors import Blocked, Invalid

KEYS = Keyring()
EVENT = parsed(change_event(target_locales=["zh-Hant", "de", "zh", "fr-CA"], source_sequence=7))
ENTRIES = [
    ApprovedLocale(
        locale=locale,
        target_text=f"text of {locale}",
        target_sha256=sha256_hex(f"text of {locale}"),
        approval_id=f"approval-{locale}",
        approval_expires_at=NOW + 100.5,
    )
    for locale in EVENT.localization.target_locales
]


def test_a_publication_holds_all_locales_in_order_and_nothing_else() -> None:
    """Exactly the members of the contract, and an id that is derived from all the rest."""
    document = build_publication(EVENT, ENTRIES)
    rest = {
        "schema": "locseal.publication.v1",
        "event_id": "event-1",
        "site_id": SITE,
        "website_version": "2026.02",
        "plan_id": EVENT.plan_id,
        "source_id": "home.hero",
        "source_revision": "rev-1",
        "source_sequence": 7,
        "source_sha256": EVENT.source_sha256,
        "localizations": [
            {
                "locale": locale,
                "target_text": f"text of {locale}",
                "target_sha256": sha256_hex(f"text of {locale}"),
                "approval_id": f"approval-{locale}",
                "approval_expires_at": NOW + 100.5,
            }
            for locale in ("de", "fr-CA", "zh", "zh-Hant")
        ],
    }
    assert document == rest | {"delivery_id": f"delivery-{hash_of(rest)}"}
    assert delivery_id_of(document) == document["delivery_id"]
    assert parse_document(Publication, document, area="cms.delivery").to_json() == document


def test_preparing_again_gives_the_same_bytes() -> None:
    """The order in which locales were approved does not show."""
    assert canonical_text(build_publication(EVENT, ENTRIES)) == canonical_text(
        build_publication(EVENT, reversed(ENTRIES))
    )


@pytest.mark.parametrize(
    "entries",
    [
        [],
        ENTRIES[:-1],
        [*ENTRIES, ENTRIES[0]],
        [*ENTRIES[:-1], replace(ENTRIES[-1], locale="it")],
        [*ENTRIES, replace(ENTRIES[-1], locale="it")],
    ],
)
def test_a_change_is_never_published_in_other_locales_than_its_own(entries: list[ApprovedLocale]) -> None:
    """None missing, none twice, none besides."""
    with pytest.raises(Blocked) as refused:
        build_publication(EVENT, entries)
    assert refused.value.code == "cms.delivery.locales"


def test_a_text_that_is_not_the_approved_one_is_not_published() -> None:
    """The hash that was approved is held against the text that would go out."""
    with pytest.raises(Blocked) as refused:
        build_publication(EVENT, [*ENTRIES[:-1], replace(ENTRIES[-1], target_text="other")])
    assert refused.value.code == "cms.delivery.text_mismatch"


# --- stored deliveries ----------------------------------------------------------------------------------------------

SIGNED = publication_for(KEYS, change_event())
PAYLOAD = canonical_text(dict(SIGNED.document))
DELIVERY_ID = SIGNED.document["delivery_id"]


def again(payload: str = PAYLOAD, signature: str = SIGNED.signature, **options: Any) -> dict[str, Any]:
    """Verify a stored delivery again."""
    given = {"delivery_id": DELIVERY_ID, "payload_sha256": sha256_hex(payload)} | options
    return reverify_delivery(payload, signature, KEYS.trust("publication"), **given)


def tampered(*arguments: Any, **options: Any) -> None:
    """Assert that a stored delivery is refused as tampered with."""
    with pytest.raises(Blocked) as refused:
        again(*arguments, **options)
    assert (refused.value.code, refused.value.retryable) == ("cms.delivery.tampered", False)


def test_a_stored_delivery_is_what_was_signed() -> None:
    """Bytes, hash, id, shape, texts and signature agree."""
    assert again() == SIGNED.document


def changed(**changes: Any) -> str:
    """Return the canonical text of another publication whose id is derived again."""
    document = dict(SIGNED.document) | changes
    document["delivery_id"] = delivery_id_of(document)
    return canonical_text(document)


def test_any_change_of_the_bytes_is_noticed() -> None:
    """By the stored hash, or by the form, or by the id."""
    tampered(payload_sha256="0" * 64)
    tampered(delivery_id="delivery-" + "0" * 64)
    for payload in ("", "null", "{}", PAYLOAD + " ", PAYLOAD[:-1], PAYLOAD.replace("event-1", "event-2")):
        tampered(payload)


@pytest.mark.parametrize(
    "payload",
    [
        changed(website_version="other"),
        changed(localizations=SIGNED.document["localizations"][:1]),
        changed(localizations=SIGNED.document["localizations"][::-1]),
        changed(localizations=SIGNED.document["localizations"][:1] * 2),
        changed(localizations=[SIGNED.document["localizations"][0] | {"target_text": "other"}]),
        changed(note=1),
    ],
)
def test_a_consistent_forgery_lacks_the_signature(payload: str) -> None:
    """Even with hash and id derived again, other content is not what was signed."""
    tampered(payload, delivery_id=json.loads(payload)["delivery_id"])


@pytest.mark.parametrize(
    "localizations",
    [
        SIGNED.document["localizations"][::-1],
        SIGNED.document["localizations"][:1] * 2,
        [SIGNED.document["localizations"][0] | {"target_text": "other"}],
    ],
)
def test_not_even_our_own_signature_makes_a_wrong_publication_right(localizations: list[Any]) -> None:
    """Locales out of order or twice, or a text of another hash, are refused although signed."""
    payload = changed(localizations=localizations)
    document = dict(SIGNED.document) | {"localizations": localizations}
    document["delivery_id"] = delivery_id_of(document)
    tampered(payload, KEYS.sign("publication", document).signature, delivery_id=document["delivery_id"])


def test_a_retired_key_still_proves_a_delivery_signed_before() -> None:
    """History is read with the time of signing."""
    keys = Keyring()
    signed = publication_for(keys, change_event())
    keys.retire("publication", retired_at=NOW + 1)
    payload = canonical_text(dict(signed.document))
    given = {"delivery_id": signed.document["delivery_id"], "payload_sha256": sha256_hex(payload)}
    trust = keys.trust("publication")
    assert reverify_delivery(payload, signed.signature, trust, **given, signed_at=NOW) == signed.document
    with pytest.raises(Blocked, match=r"cms\.delivery\.tampered"):
        reverify_delivery(payload, signed.signature, trust, **given, signed_at=NOW + 1)


# --- the answers of a CMS -------------------------------------------------------------------------------------------

BOUND = {"site_id": SITE, "delivery_id": DELIVERY_ID, "payload_sha256": sha256_hex(PAYLOAD)}
LOOKUP = Lookup(delivery_id=DELIVERY_ID, payload_sha256=sha256_hex(PAYLOAD), nonce="nonce-1")


def test_an_acknowledgement_names_exactly_this_delivery() -> None:
    """Site, delivery and payload hash, with status accepted."""
    check_acknowledgement(acknowledgement_for(SIGNED.document), **BOUND)


@pytest.mark.parametrize(
    ("name", "value"),
    [("site_id", "site-2"), ("delivery_id", "delivery-1"), ("payload_sha256", "0" * 64)],
)
def test_an_acknowledgement_of_something_else_is_a_mismatch(name: str, value: str) -> None:
    """It is well-formed, and about something else."""
    with pytest.raises(Invalid) as refused:
        check_acknowledgement(acknowledgement_for(SIGNED.document, **{name: value}), **BOUND)
    assert (refused.value.code, refused.value.path) == ("cms.acknowledgement.binding_mismatch", name)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "ok",
        {},
        {"ok": True},
        acknowledgement_for(SIGNED.document, status="absent"),
        acknowledgement_for(SIGNED.document, status=None),
        acknowledgement_for(SIGNED.document, schema="locseal.lookup-answer.v1"),
        acknowledgement_for(SIGNED.document, note=""),
        acknowledgement_for(SIGNED.document, payload_sha256=5),
        lookup_answer_for(LOOKUP),
    ],
)
def test_what_is_no_acknowledgement_is_invalid(document: object) -> None:
    """A look-up's answer is none either."""
    with pytest.raises(Invalid) as refused:
        check_acknowledgement(document, **BOUND)
    assert refused.value.code == "cms.acknowledgement.invalid"


def test_a_look_up_asks_about_one_delivery_with_a_nonce() -> None:
    """The document that is sent."""
    assert LOOKUP.document() == {
        "schema": "locseal.lookup.v1",
        "delivery_id": DELIVERY_ID,
        "payload_sha256": sha256_hex(PAYLOAD),
        "nonce": "nonce-1",
    }


@pytest.mark.parametrize("status", ["accepted", "absent"])
def test_a_look_up_is_answered_accepted_or_absent(status: str) -> None:
    """The answer repeats nonce, delivery and payload hash."""
    assert check_lookup_answer(lookup_answer_for(LOOKUP, status=status), LOOKUP, site_id=SITE) == status


@pytest.mark.parametrize(
    ("name", "value"),
    [("site_id", "site-2"), ("delivery_id", "delivery-1"), ("payload_sha256", "0" * 64), ("nonce", "nonce-2")],
)
def test_an_answer_to_another_look_up_is_a_mismatch(name: str, value: str) -> None:
    """An older answer has another nonce, so it cannot be replayed."""
    with pytest.raises(Invalid) as refused:
        check_lookup_answer(lookup_answer_for(LOOKUP, **{name: value}), LOOKUP, site_id=SITE)
    assert (refused.value.code, refused.value.path) == ("cms.lookup.binding_mismatch", name)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        lookup_answer_for(LOOKUP, status="unknown"),
        lookup_answer_for(LOOKUP, note=1),
        lookup_answer_for(LOOKUP, nonce=None),
        acknowledgement_for(SIGNED.document),
    ],
)
def test_what_is_no_answer_to_a_look_up_is_invalid(document: object) -> None:
    """An acknowledgement is none either."""
    with pytest.raises(Invalid) as refused:
        check_lookup_answer(document, LOOKUP, site_id=SITE)
    assert refused.value.code == "cms.lookup.invalid"


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_an_outcome_shows_only_the_members_that_apply() -> None:
    """Schema, status and event always; the others where they are known."""
    assert Advance(status="waiting", event_id="e", plan_id="p", job_id="j", target_locale="de").to_json() == {
        "schema": "locseal.outcome.v1",
        "status": "waiting",
        "event_id": "e",
        "plan_id": "p",
        "job_id": "j",
        "target_locale": "de",
    }
    assert Advance(status="delivered", event_id="e", plan_id="p", delivery_id="d").to_json() == {
        "schema": "locseal.outcome.v1",
        "status": "delivered",
        "event_id": "e",
        "plan_id": "p",
        "delivery_id": "d",
    }


def test_no_text_shows_in_repr() -> None:
    """What carries texts or signatures can be logged without showing them."""
    assert "text of" not in repr(ENTRIES[0])
    assert SIGNED.signature not in repr(CmsAnswer(outcome="accepted", signed=SIGNED, kid="k"))
