"""What is published for other teams is what the code does: files, pages, limits, statuses, API documents."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from jsonschema import Draft7Validator
from openapi_spec_validator import validate

from config.settings import Settings
from tests.examples import CALLS, CONTRACTS, EXAMPLES, documents, head_of
from tests.vectors import left_over, texts
from worker.adapters.cms.http import DELIVERY, LOOKUP
from worker.adapters.cms.http import MAX_ANSWER_BYTES as CMS_BYTES
from worker.adapters.http import HttpAnswer
from worker.adapters.providers.http import MAX_ANSWER_BYTES as PROVIDER_BYTES
from worker.adapters.verifiers.http import MAX_ANSWER_BYTES as VERIFIER_BYTES
from worker.cli.asyncapi import asyncapi
from worker.cli.openapi import openapi
from worker.domain.contract import MODELS
from worker.domain.key import PURPOSES
from worker.domain.messages import WIRE
from worker.domain.receipt import BOUND_FIELDS
from worker.domain.signature import TYP
from worker.domain.submission import LONGEST_SUBMISSION_BYTES, LONGEST_WITHDRAWAL_BYTES

PAGES = {path.name: path.read_text(encoding="utf-8") for path in CONTRACTS.glob("*.md")}
LIMITS = {
    "evidence.md": ("provider_deadline_seconds", PROVIDER_BYTES),
    "receipt.md": ("verifier_deadline_seconds", VERIFIER_BYTES),
    "publication.md": ("send_deadline_seconds", CMS_BYTES),
    "lookup.md": ("lookup_deadline_seconds", CMS_BYTES),
}
OPERATIONS = {
    "evidence-request.json": "/provider",
    "verification.json": "/verifier",
    "publication.json": "/cms/deliveries",
    "lookup.json": "/cms/lookups",
}


def test_every_generated_file_and_page_is_current() -> None:
    """`python -m tests.vectors` would change nothing."""
    stale = [path.name for path, text in texts().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []
    assert left_over() == []


def test_every_example_is_shown_on_a_page_and_every_page_is_in_the_index() -> None:
    """No file is shown nowhere, and nothing leads nowhere."""
    shown = {file for text in PAGES.values() for file in re.findall(r"<!-- example: (\S+) -->", text)}
    assert shown == {path.name for path in EXAMPLES.iterdir()} - {"keys.json"}
    for name, text in PAGES.items():
        for target, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", text):
            assert not target or (CONTRACTS / target).exists(), (name, target)
            heads = {
                "#" + re.sub(r"[^a-z0-9]+", "-", head.lower())
                for head in re.findall(r"^#+ (.+)$", PAGES.get(target or name, ""), re.MULTILINE)
            }
            assert not anchor or anchor in heads, (name, anchor)
    assert {f"({name})" for name in PAGES if name != "README.md"} <= set(
        re.findall(r"\([a-z]+\.md\)", PAGES["README.md"])
    )


def test_each_document_and_its_members_stand_on_a_page() -> None:
    """Every schema name and every member of it can be read in words."""
    whole = "".join(PAGES.values())
    for name, models in MODELS.items():
        assert name == "locseal.signed-document" or f"`{name}`" in whole
        for field, info in (item for model in models for item in model.model_fields.items()):
            assert re.search(rf"\b{info.alias or field}\b", whole), (name, field)
    page = PAGES["receipt.md"]
    assert f"`{{schema, purpose, {', '.join(BOUND_FIELDS)}}}`" in page


def test_signatures_are_listed_with_their_types() -> None:
    """The table of signed documents names each purpose's `typ`."""
    text = PAGES["README.md"]
    for purpose in PURPOSES:
        short = TYP[purpose].removeprefix("locseal-receipt")
        assert f"`{TYP[purpose]}`" in text or f"`{short}`" in text
        assert f"`{purpose}`" in text


@pytest.mark.parametrize("page", sorted(LIMITS))
def test_limits_on_the_pages_are_those_of_the_code(page: str) -> None:
    """Deadline and answer size of a page, and those of its operation."""
    setting, answer_bytes = LIMITS[page]
    seconds = Settings.model_fields[setting].default
    assert f"| deadline | {seconds:g} s (`LOCSEAL_{setting.upper()}`) |" in PAGES[page]
    assert f"| answer | {answer_bytes:,} bytes |" in PAGES[page]
    limits = [one["post"]["x-locseal-limits"] for one in openapi()["paths"].values()]
    expected = {
        "deadline_seconds": seconds,
        "deadline_setting": f"LOCSEAL_{setting.upper()}",
        "answer_bytes": answer_bytes,
    }
    assert expected in limits


def test_limits_of_messages_are_those_of_the_code() -> None:
    """The most bytes of what travels in a message."""
    assert f"at most {LONGEST_SUBMISSION_BYTES:,} (32 MiB)" in PAGES["submission.md"]
    assert f"at most {LONGEST_WITHDRAWAL_BYTES:,} bytes" in PAGES["withdrawal.md"]


def test_the_table_of_statuses_is_the_clients() -> None:
    """Each row of "What follows" says of its statuses what `HttpAnswer.failure` does."""
    rows = re.findall(r"^\| (.+?) \| (yes|no)[^|]* \| `?([a-z_<>]+)", PAGES["README.md"], re.MULTILINE)
    told: dict[int, tuple[bool, str]] = {}
    for words, retried, code in rows:
        for first, last in re.findall(r"\b(\d{3})(?:-(\d{3}))?\b", words):
            for status in range(int(first), int(last or first) + 1):
                if code in {"redirect", "status_<number>"}:
                    told[status] = (retried == "yes", code.replace("<number>", str(status)))
    for status in (*range(201, 300), *range(300, 600)):
        failure = HttpAnswer(status=status).failure("a")
        expected = told.get(status, (False, f"status_{status}"))
        assert (failure.retryable, failure.code) == (expected[0], f"a.{expected[1]}"), status


def test_refusal_codes_stand_on_the_pages() -> None:
    """Every code of a refusal that the domain names for another team's document is explained to it."""
    source = Path(__file__).parents[2] / "worker"
    wanted = {
        "evidence.md": (r'"(evidence\.(?:response|quality|review|independent|human)[a-z_.]*)"', "domain/evidence.py"),
        "submission.md": (r'"(submission\.[a-z_.]+)"', "domain/submission.py", "domain/result.py"),
        "withdrawal.md": (r'"(withdrawal\.[a-z_.]+)"', "flow/withdraw_event.py", "store/withdrawals.py"),
    }
    for page, (pattern, *files) in wanted.items():
        codes = {code for file in files for code in re.findall(pattern, (source / file).read_text(encoding="utf-8"))}
        assert codes
        assert {code for code in codes if f"`{code}`" not in PAGES[page]} == set(), page


def test_the_cms_page_names_the_codes_of_a_refusal() -> None:
    """A 3xx after acceptance is a refusal: the page for CMS builders says so, with its code."""
    assert HttpAnswer(status=303).failure(DELIVERY).code == "cms.delivery.redirect"
    assert "| 3xx | refused: terminal, `cms.delivery.redirect` |" in PAGES["publication.md"]
    assert "then answers 303" in PAGES["publication.md"]
    assert LOOKUP == "cms.lookup"


# --- OpenAPI --------------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_valid() -> None:
    """By the validator of the OpenAPI initiative's own schema, references and examples included."""
    validate(openapi())


@pytest.mark.parametrize("file", sorted(CALLS))
def test_the_published_heads_fit_the_openapi_document(file: str) -> None:
    """Each example call carries every required header of its operation, in its pattern."""
    lines = head_of(file, documents()[file]).splitlines()[1:]
    sent = dict(line.split(": ", 1) for line in lines)
    operation = openapi()["paths"][OPERATIONS[file]]["post"]
    assert [parameter["name"] for parameter in operation["parameters"] if parameter["required"]] == [
        name for name in ("Idempotency-Key", "Locseal-Site-Id") if name in sent
    ]
    for parameter in operation["parameters"]:
        assert re.search(parameter["schema"]["pattern"], sent[parameter["name"]])


# --- AsyncAPI -------------------------------------------------------------------------------------------------------


def resolve(document: dict[str, Any], reference: str) -> Any:
    """Return what a reference inside a document points at; KeyError where nothing is there."""
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(value: Any) -> set[str]:
    """Return all references inside a value."""
    if isinstance(value, dict):
        mine = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return mine.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_the_asyncapi_document_is_valid() -> None:
    """By a model of the specification that takes no unknown member; every reference leads somewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the package's own models shadow a name of pydantic's
        from asyncapi3.models import AsyncAPI3

    document = asyncapi()
    AsyncAPI3.model_validate(document)
    assert references(document)
    for reference in references(document):
        assert resolve(document, reference) is not None
    for schema in document["components"]["schemas"].values():
        Draft7Validator.check_schema(schema)


def test_messages_and_queues_are_those_of_the_wire() -> None:
    """Every message of the wire is taken from its queue, and no other."""
    document = asyncapi()
    taken = {}
    for operation in document["operations"].values():
        channel = resolve(document, operation["channel"]["$ref"])
        (reference,) = operation["messages"]
        message = resolve(document, resolve(document, reference["$ref"])["$ref"])
        taken[message["name"]] = (channel["address"], tuple(message["payload"]["items"][1]["properties"])[1:])
    assert taken == WIRE


@pytest.mark.parametrize("message", sorted(WIRE))
def test_what_celery_sends_fits_the_asyncapi_document(message: str) -> None:
    """Headers and body as a producer makes them are valid; without an argument, or with an object, they are not."""
    document = asyncapi()
    described = document["components"]["messages"][message.replace(".", "_")]
    fields = {"version": 1, **dict.fromkeys(WIRE[message][1], "id-1")}
    with Celery(set_as_current=False) as app:
        made = app.amqp.as_task_v2("11111111-1111-4111-8111-111111111111", message, kwargs=fields)
    validators = [
        Draft7Validator({**described[part], "components": document["components"]}) for part in ("headers", "payload")
    ]
    headers, body = json.loads(json.dumps([made.headers, made.body]))
    assert validators[0].is_valid(headers)
    assert validators[1].is_valid(body)
    assert not validators[0].is_valid({**headers, "task": "another.message"})
    for name in fields:
        assert not validators[1].is_valid([body[0], {**fields, name: {}}, body[2]])
        assert not validators[1].is_valid([body[0], {k: v for k, v in fields.items() if k != name}, body[2]])
    assert not validators[1].is_valid([["positional"], fields, body[2]])
