"""`locseal import`: real and hostile files in, signed submissions and a complete report out, or nothing at all."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import func, select

from tests.cli.conftest import Broker, Home
from worker.cli.sending_many import Outcome, send_all
from worker.domain.canonical import sha256_hex
from worker.domain.catalogue import Reason, hashed_key
from worker.domain.errors import Unavailable
from worker.domain.manifest import parse_manifest
from worker.domain.messages import RELEASE_SUBMIT
from worker.flow.accept_submission import accept_submission
from worker.store.engine import reading
from worker.store.results import current_results
from worker.store.schema import evidence, jobs, results, submissions

ADMIN = Path(__file__).parents[1] / "data" / "django-admin"
SECRET = "Geheimnis"

Locseal = Callable[..., Any]


def manifest(
    place: Path, locales: Sequence[tuple[str, str]], *, kind: str = "po", source: str = "", **changes: Any
) -> str:
    """Write a manifest and return its path."""
    values: dict[str, Any] = {
        "format": kind,
        "site_id": "site-1",
        "website_version": "2026.11",
        "source_sequence": 1,
        "source_id": "admin",
        "source_revision": "5.2",
        "source_locale": "en",
        "content_type": "ui",
        "glossary_version": "g-1",
        "policy_version": "p-1",
        "software_version": "s-1",
        **changes,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += [
        'provider = { id = "translator", model_id = "m", model_version = "1" }',
        'review_confidence = { target_native = "high", source_fidelity = "high" }',
        f'quality_profile = {{ version = "1", sha256 = "{"a" * 64}" }}',
    ]
    if source:
        lines.append(f'source = {{ file = "{source}" }}')
    for locale, file in locales:
        lines += ["[[locales]]", f'locale = "{locale}"', f'file = "{file}"']
    path = place / "import.toml"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def admin(tmp_path: Path) -> str:
    """A manifest of the 27 real files."""
    files = sorted((ADMIN / "po").glob("*.po"))
    return manifest(tmp_path, [(file.stem, str(file)) for file in files])


def po(place: Path, locale: str, **texts: str) -> tuple[str, str]:
    """Write a PO file and return its line of a manifest; a text of `~` makes its entry fuzzy."""
    lines = [f'msgid ""\nmsgstr "Language: {locale}\\n"\n']
    for source, target in texts.items():
        lines.append(("#, fuzzy\n" if target == "~" else "") + f'msgid "{source}"\nmsgstr "{target}"\n')
    (place / f"{locale}.po").write_text("\n".join(lines))
    return locale, f"{locale}.po"


def accept(home: Home, broker: Broker) -> list[Any]:
    """Take in what was sent, as a worker would."""
    return [accept_submission(home.services, message["submission"]) for message in broker.take()]


def count(home: Home, table: Any) -> int:
    with reading(home.engine) as conn:
        return int(conn.execute(select(func.count()).select_from(table)).scalar_one())


# --- the real files -------------------------------------------------------------------------------------------------


def test_all_27_files_become_one_event(locseal: Locseal, home: Home, broker: Broker, admin: str) -> None:
    """The strings that all locales have go out as one document, and are exactly those of the published catalogue."""
    done = locseal("import", admin, "--json")
    assert (done.code, done.err) == (0, "")
    (event,) = done.json["events"]
    assert (event["event_id"], event["units"], event["locales"]) == ("site-1:admin:1", 131, 27)
    assert (done.json["units"], done.json["submitted_units"], len(done.json["left_out_units"])) == (236, 131, 105)
    (message,) = broker.take()
    assert event["documents"] == [{"document_sha256": sha256_hex(message["submission"]), "state": "sent", "code": None}]
    assert accept_submission(home.services, message["submission"]).state == "accepted"
    assert (count(home, jobs), count(home, results), count(home, evidence)) == (27, 27, 27)

    known = json.loads((ADMIN / "catalogue.json").read_text())
    said = json.loads(message["submission"])["document"]
    sent = {one["target_locale"]: json.loads(one["candidate"]) for one in said["results"]}
    ours = json.loads(said["event"]["localization"]["source_text"])
    theirs = json.loads(known["source"])
    assert sorted(ours.values()) == sorted(theirs.values())
    key_of = {text: key for key, text in ours.items()}
    for locale, text in known["targets"].items():
        expected = {key_of[theirs[key]]: target for key, target in json.loads(text).items()}
        assert sent[locale] == expected, locale


def test_all_27_files_become_an_event_for_each_string(locseal: Locseal, home: Home, broker: Broker, admin: str) -> None:
    """Each string goes out in the locales that have it; every event is accepted, plurals among them."""
    done = locseal("import", admin, "--event-per", "unit", "--incomplete", "leave-locales", "--json")
    assert done.code == 0
    assert (len(done.json["events"]), done.json["submitted_units"]) == (236, 236)
    messages = [message["submission"] for message in broker.take()]
    assert len(messages) == 236
    plurals = [text for text in messages if "admin:po-plural-" in text]
    assert len(plurals) == 5
    taken = [accept_submission(home.services, text) for text in [*plurals, *messages[::20]]]
    assert {(one.state, one.code) for one in taken} == {("accepted", None)}
    locales = {one["locale"]: one for one in done.json["locales"]}
    assert locales["de-DE"]["gaps"] == {"missing": 36, "untranslated": 5}
    assert (locales["de-DE"]["complete"], locales["de-DE"]["submitted"]) == (195, 195)
    assert locales["ar"]["gaps"] == {"missing": 36, "text.not_nfc": 4}
    assert sum(one["submitted"] for one in locales.values()) == 5180


def test_a_dry_run_needs_neither_keys_nor_broker(
    locseal: Locseal, home: Home, admin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports the same, and signs, sends and writes nothing."""
    done = locseal("import", admin, "--dry-run", "--keys", str(tmp_path / "none"), "--json")
    assert (done.code, done.json["dry_run"], done.json["submitted_units"]) == (0, True, 131)
    assert done.json["events"][0]["documents"] == []
    assert count(home, submissions) == 0


# --- reports --------------------------------------------------------------------------------------------------------


def test_the_report_says_what_is_left_out(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """By locale and by unit, with the place where it stands."""
    locales = [po(tmp_path, "de", A="A-de", B="~"), po(tmp_path, "fr", A="A-fr")]
    done = locseal("import", manifest(tmp_path, locales))
    key = hashed_key("po-", None, "B", None)
    assert done.code == 0
    assert done.out.splitlines() == [
        "LOCALE  FILE   COMPLETE  INCOMPLETE  SUBMITTED  WHY",
        "de      de.po  1         1           1          fuzzy 1",
        "fr      fr.po  1         1           1          missing 1",
        "",
        f"{'INCOMPLETE OR LEFT OUT':{len(key)}}  AT       WHY",
        f"{key}  de.po:8  fuzzy: de; missing: fr",
        "",
        "site-1:admin:1: 1 unit in 2 locales; sent",
        "1 of 2 units go out; 1 are incomplete and are not submitted",
    ]
    assert len(broker.take()) == 1


def test_what_is_incomplete_may_be_refused(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """Then nothing is sent; the refusal carries the whole report and says what would be allowed."""
    locales = [po(tmp_path, "de", A="A-de", B="~"), po(tmp_path, "fr", A="A-fr", B="B-fr")]
    path = manifest(tmp_path, locales, incomplete="refuse")
    refused = locseal("import", path, "--json")
    error = refused.json["error"]
    assert (refused.code, error["code"]) == (1, "import.incomplete")
    assert [(one["locale"], one["file"], one["line"], one["reason"]) for one in error["details"]["left_out"]] == [
        ("de", "de.po", 8, "fuzzy")
    ]
    said = locseal("import", path)
    assert said.out == ""
    assert said.err.splitlines()[-3:] == [
        "import.incomplete: something is incomplete, and this import was told to refuse that",
        "allowed: --incomplete leave-units",
        "allowed: --incomplete leave-locales",
    ]
    assert broker.take() == []
    assert locseal("import", path, "--incomplete", "leave-locales").code == 0  # an option wins over the manifest
    (message,) = broker.take()
    said_event = json.loads(message["submission"])["document"]["event"]
    assert said_event["localization"]["target_locales"] == ["fr"]


def test_nothing_complete_is_a_refusal(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """An import that would send nothing does not look as if it had."""
    refused = locseal("import", manifest(tmp_path, [po(tmp_path, "de", A="~")]), "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "import.nothing_complete")
    assert broker.take() == []


# --- other formats --------------------------------------------------------------------------------------------------


def test_key_value_json(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """Nested keys are joined; plurals are objects with the categories of each locale."""
    (tmp_path / "en.json").write_text('{"home": {"title": "Hi"}, "days_one": "a day", "days_other": "days"}')
    (tmp_path / "pl.json").write_text(
        '{"home": {"title": "Cześć"}, "days_one": "1", "days_few": "2", "days_many": "3", "days_other": "4", "x": "y"}'
    )
    done = locseal("import", manifest(tmp_path, [("pl", "pl.json")], kind="json", source="en.json"), "--json")
    assert [(one["key"], one["reason"]) for one in done.json["left_out"]] == [("x", "source.unknown")]
    (message,) = broker.take()
    document = json.loads(message["submission"])["document"]
    source = '{"days":{"one":"a day","other":"days"},"home.title":"Hi"}'
    target = '{"days":{"few":"2","many":"3","one":"1","other":"4"},"home.title":"Cześć"}'
    assert document["event"]["localization"]["source_text"] == source
    assert document["results"][0]["candidate"] == target
    assert accept_submission(home.services, message["submission"]).state == "accepted"


def test_xliff_in_two_versions(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """The two versions of a format mix, since both say the same of a unit."""
    (tmp_path / "de.xlf").write_text(
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="app" source-language="en" '
        'target-language="de"><body><trans-unit id="u"><source>Go <x id="1"/></source><target state="final">Los '
        '<x id="1"/></target></trans-unit></body></file></xliff>'
    )
    (tmp_path / "fr.xlf").write_text(
        '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="fr"><file id="app">'
        '<unit id="u"><segment state="final"><source>Go <x id="1"/></source><target>Vas-y <x id="1"/></target>'
        "</segment></unit></file></xliff>".replace('<x id="1"/>', "<x id='1'/>")
    )
    path = manifest(tmp_path, [("de", "de.xlf"), ("fr", "fr.xlf")], kind="xliff", event_per="unit")
    done = locseal("import", path, "--json")
    assert [one["event_id"] for one in done.json["events"]] == ["site-1:admin:1:app:u"]
    (message,) = broker.take()
    document = json.loads(message["submission"])["document"]
    assert document["event"]["localization"]["media_type"] == "text/plain"
    assert sorted(one["candidate"] for one in document["results"]) == ['Los <x id="1"/>', 'Vas-y <x id="1"/>']
    assert accept_submission(home.services, message["submission"]).state == "accepted"


# --- corrections ----------------------------------------------------------------------------------------------------


def test_a_corrected_translation_replaces_the_stored_one(
    locseal: Locseal, home: Home, broker: Broker, tmp_path: Path
) -> None:
    """Without `--replace` intake keeps the first; with it the new one is current; again changes nothing more."""
    path = manifest(tmp_path, [po(tmp_path, "de", A="falsch"), po(tmp_path, "fr", A="juste")])
    assert locseal("import", path).code == 0
    assert [one.state for one in accept(home, broker)] == ["accepted"]
    po(tmp_path, "de", A="richtig")
    locseal("import", path)
    assert [(one.state, one.code) for one in accept(home, broker)] == [("rejected", "submission.result.conflict")]
    done = locseal("import", path, "--replace", "--json")
    assert [one["replaced_results"] for one in done.json["events"]] == [1]
    (message,) = broker.take()
    said = {one["target_locale"]: one for one in json.loads(message["submission"])["document"]["results"]}
    assert ("replaces" in said["de"], "replaces" in said["fr"]) == (True, False)
    assert accept_submission(home.services, message["submission"]).state == "accepted"
    with reading(home.engine) as conn:
        current = current_results(conn, [said["de"]["job_id"], said["fr"]["job_id"], "job-none"])
        kept = conn.execute(select(func.count()).select_from(results)).scalar_one()
    assert current.keys() == {said["de"]["job_id"], said["fr"]["job_id"]}
    assert current[said["de"]["job_id"]] != said["de"]["replaces"]
    assert kept == 3
    assert [one["replaced_results"] for one in locseal("import", path, "--replace", "--json").json["events"]] == [0]
    assert [one.state for one in accept(home, broker)] == ["accepted"]


def test_the_same_import_is_the_same_document(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """A repeat is an exact repeat for intake."""
    path = manifest(tmp_path, [po(tmp_path, "de", A="a", B="b")], event_per="unit")
    locseal("import", path)
    locseal("import", path)
    sent = [message["submission"] for message in broker.take()]
    assert len(sent) == 4
    assert sent[:2] == sent[2:]


# --- hostile and mistaken input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "path"),
    [
        (f'msgid "A"\nmsgstr "{SECRET}"\nmsgid "A"\nmsgstr "{SECRET}"\n', "import.po.duplicate", "fr.po:3"),
        (f'msgid "A"\nmsgstr {SECRET}\n', "import.po.invalid", "fr.po:2"),
        (b'msgid "A"\nmsgstr "\xe9"\n', "import.po.encoding", "fr.po:2"),
        (None, "import.file.unreadable", "fr.po"),
    ],
)
def test_one_bad_file_stops_the_whole_import(
    locseal: Locseal,
    home: Home,
    broker: Broker,
    tmp_path: Path,
    content: str | bytes | None,
    code: str,
    path: str,
) -> None:
    """Nothing of the good files is sent, and nothing of the bad one is shown."""
    file = tmp_path / "fr.po"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    used = manifest(tmp_path, [po(tmp_path, "de", A="a"), ("fr", "fr.po")])
    refused = locseal("import", used, "--json")
    assert (refused.code, refused.json["error"]["code"], refused.json["error"]["path"]) == (1, code, path)
    assert SECRET not in refused.out + refused.err
    assert broker.take() == []


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (f"a = 1\nb = {SECRET}\n", "import.toml:2"),
        (f'a = "1"\na = "{SECRET}"\n', "import.toml:2"),
        (b'a = 1\n\xff = "x"\n', "import.toml:2"),
        ("a = " + "[" * 100_000, "import.toml"),
        (f'format = "{SECRET}"\n', "format"),
        ("", "format"),
    ],
)
def test_a_bad_manifest_is_refused_with_its_place(
    locseal: Locseal, home: Home, broker: Broker, tmp_path: Path, content: str | bytes, path: str
) -> None:
    """Bad TOML by its line, a wrong member by its name."""
    file = tmp_path / "import.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = locseal("import", str(file), "--json")
    error = refused.json["error"]
    assert (refused.code, error["code"], error["path"]) == (1, "import.manifest.invalid", path)
    assert SECRET not in refused.out + refused.err
    assert broker.take() == []


def test_wrong_usage_is_exit_code_2(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """A missing manifest and a word that no option has."""
    path = manifest(tmp_path, [po(tmp_path, "de", A="a")])
    assert locseal("import", str(tmp_path / "none.toml")).code == 2
    assert locseal("import", path, "--event-per", "locale").code == 2
    assert locseal("import", path, "--incomplete", "drop").code == 2
    assert locseal("import").code == 2
    assert broker.take() == []


def test_a_key_of_another_site_signs_nothing(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """As `locseal submit` would: intake would refuse it, so it is not sent."""
    path = manifest(tmp_path, [po(tmp_path, "de", A="a")], site_id="site-9")
    refused = locseal("import", path, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "submission.key.not_for_site")
    assert broker.take() == []


def test_without_a_broker_the_import_says_so(locseal: Locseal, home: Home, tmp_path: Path) -> None:
    """Nothing listens at the broker's address: retryable, and repeating is free."""
    refused = locseal("import", manifest(tmp_path, [po(tmp_path, "de", A="a")]), "--json")
    error = refused.json["error"]
    assert (refused.code, error["code"], error["retryable"]) == (1, "queue.unavailable", True)


# --- waiting --------------------------------------------------------------------------------------------------------


class Intake:
    """A queue with a worker behind it that takes documents in at once, or loses its first messages."""

    def __init__(self, home: Home, *, loses: int = 0, is_up: bool = True) -> None:
        self.home, self.loses, self.is_up = home, loses, is_up
        self.sent: list[str] = []

    def submit(self, message: str, field: str, text: str) -> None:
        assert (message, field) == (RELEASE_SUBMIT, "submission")
        if not self.is_up:
            raise Unavailable("queue.unavailable", "Redis did not take the message")
        self.sent.append(text)
        if len(self.sent) > self.loses:
            accept_submission(self.home.services, text)


def texts_of(locseal: Locseal, broker: Broker, tmp_path: Path, **changes: Any) -> list[str]:
    path = manifest(tmp_path, [po(tmp_path, "de", A="a", B="b")], event_per="unit", **changes)
    assert locseal("import", path).code == 0
    return [message["submission"] for message in broker.take()]


def send(texts: Sequence[str], queue: Any, *, wait: float | None = 60.0) -> tuple[list[Outcome], int]:
    """Send by a clock that moves with each sleep; return outcomes and how many were settled."""
    now = [0.0]
    settled = [0]

    def settle() -> None:
        settled[0] += 1

    def sleep(seconds: float) -> None:
        now[0] += seconds

    found = send_all(
        RELEASE_SUBMIT,
        "submission",
        texts,
        wait_seconds=wait,
        settled=settle,
        queue=queue,
        sleep=sleep,
        ticks=lambda: now[0],
    )
    return list(found), settled[0]


def test_waiting_for_all_documents_together(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """Each is sent once, lost ones again after a while; what was accepted before is not sent."""
    texts = texts_of(locseal, broker, tmp_path)
    digests = [sha256_hex(text) for text in texts]
    queue = Intake(home, loses=1)
    accepted = [Outcome(document_sha256=digest, state="accepted") for digest in digests]
    assert send(texts, queue) == (accepted, 2)
    assert queue.sent == [*texts, texts[0]]
    assert send(texts, queue) == (accepted, 2)
    assert len(queue.sent) == 3


def test_waiting_ends(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """What nobody took in is `sent`; without waiting all is."""
    texts = texts_of(locseal, broker, tmp_path)
    queue = Intake(home, loses=100)
    unseen = [Outcome(document_sha256=sha256_hex(text), state="sent") for text in texts]
    assert send(texts, queue, wait=30.0) == (unseen, 0)
    assert len(queue.sent) == 4
    assert send(texts, queue, wait=None) == (unseen, 2)


def test_a_rejection_ends_the_waiting_for_its_document_alone(
    locseal: Locseal, home: Home, broker: Broker, tmp_path: Path
) -> None:
    """Its code is told; an earlier rejection of the same document is no answer to this try."""
    first = texts_of(locseal, broker, tmp_path)
    assert [one.state for one in send(first, Intake(home))[0]] == ["accepted", "accepted"]
    again = texts_of(locseal, broker, tmp_path, source_revision="other")
    queue = Intake(home)
    for _ in range(2):
        found, settled = send(again, queue)
        assert [(one.state, one.code) for one in found] == [("rejected", "submission.event.collision")] * 2
        assert settled == 2
    assert len(queue.sent) == 4


def test_a_broker_that_fails_stops_the_sending(locseal: Locseal, home: Home, broker: Broker, tmp_path: Path) -> None:
    """The failure is retryable and says that repeating is free."""
    texts = texts_of(locseal, broker, tmp_path)
    for wait in (None, 5.0):
        with pytest.raises(Unavailable) as fault:
            send(texts, Intake(home, is_up=False), wait=wait)
        assert fault.value.code == "queue.unavailable"
        assert fault.value.message.endswith("the same command again is free")
    assert count(home, submissions) == 0


def test_import_waits_and_refuses_what_nobody_took_in(
    locseal: Locseal, home: Home, broker: Broker, tmp_path: Path
) -> None:
    """No worker runs: exit code 1 with the report, and the messages lie in the queue."""
    path = manifest(tmp_path, [po(tmp_path, "de", A="a")])
    refused = locseal("import", path, "--wait", "0.3", "--json")
    error = refused.json["error"]
    assert (refused.code, error["code"]) == (1, "submission.not_seen")
    assert [one["state"] for one in error["details"]["events"][0]["documents"]] == ["sent"]
    assert [one.state for one in accept(home, broker)] == ["accepted"]
    done = locseal("import", path, "--wait", "0.3", "--json")
    assert (done.code, done.json["events"][0]["documents"][0]["state"]) == (0, "accepted")
    assert broker.take() == []


# --- the page about it ----------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "import.md"


def test_the_page_names_every_reason() -> None:
    """Its table has each reason once, in the order of the product, and no other."""
    text = PAGE.read_text()
    table = text[text.index("| reason | meaning |") :].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)) == get_args(Reason)


def test_the_manifest_of_the_page_is_one() -> None:
    """The example is taken as it stands."""
    found = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    said = parse_manifest(tomllib.loads(found[1]))
    assert [one.locale for one in said.locales] == ["de-DE", "ga-IE"]
