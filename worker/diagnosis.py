"""The whole installation, looked at from all sides at once: what `locseal doctor` and a starting worker say.

Each side is examined in a thread of its own, and nobody waits longer than the deadline: what has not answered by then
is a symptom itself. Nothing is changed, and nothing is made that is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from config.settings import Settings, SettingsError
from worker.adapters.broker_checks import examine_broker
from worker.adapters.flower_checks import DEFAULT, examine_flower
from worker.adapters.key_checks import OURS, examine_keys
from worker.adapters.package_checks import examine_package
from worker.domain.errors import Blocked
from worker.domain.symptom import Examination, Symptom, by_weight, found
from worker.store.checkup import examine_database
from worker.store.engine import open_engine

log = structlog.get_logger(__name__)

DEADLINE_SECONDS: Final = 15.0  # for everything together; a connection that is swallowed takes 10
# What the worker of a queue signs for: evidence approves, delivery publishes, a run's preflight tries both keys.
SIGNED: Final = {"evidence": ("approval",), "delivery": ("publication",), "runs": ("approval", "publication")}
LOCAL: Final = frozenset({None, "", "localhost", "127.0.0.1", "::1"})

Examine = Callable[[], Examination]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found, the worst first, and the facts of each side by its name."""

    facts: Mapping[str, Mapping[str, Any]]
    symptoms: tuple[Symptom, ...]


def diagnose(
    settings: Settings,
    *,
    flower: str | None = DEFAULT,
    queues: Collection[str] | None = None,
    seconds: float = DEADLINE_SECONDS,
) -> Diagnosis:
    """Examine the installation that these settings describe; takes at most `seconds`, whatever does not answer.

    With `queues`, those of one worker, it is the short form: only the keys that such a worker signs with are missed, and
    neither other workers nor Flower are asked.
    """
    is_short = queues is not None
    signs = OURS if queues is None else sorted({purpose for queue in queues for purpose in SIGNED.get(queue, ())})
    sides: dict[str, Examine] = {
        "versions": examine_package,
        "database": lambda: _database(settings, looks_at_fleet=not is_short),
        "broker": lambda: _broker(settings, asks_workers=not is_short),
        "keys": lambda: examine_keys(settings.private_keys(), settings.trusted_keys(), signs=signs),
    }
    if flower is not None and not is_short:
        sides["flower"] = lambda: examine_flower(flower)
    answers = _together(sides, seconds)
    symptoms = [one for answer in answers.values() if answer is not None for one in answer.symptoms]
    symptoms += [
        found("doctor.check.unfinished", f"looking at the {name} was not finished within {seconds:g} s")
        for name, answer in answers.items()
        if answer is None
    ]
    facts = {name: answer.facts for name, answer in answers.items() if answer is not None}
    return Diagnosis(facts=facts, symptoms=by_weight(symptoms))


def say_symptoms(settings: Settings, queues: Collection[str] = tuple(SIGNED)) -> threading.Thread:
    """Diagnose in the short form beside a starting worker of these queues and log each symptom; returns at once."""

    def work() -> None:
        for one in diagnose(settings, queues=queues).symptoms:
            say = {"error": log.error, "warning": log.warning, "note": log.info}[one.severity]
            say("doctor.symptom", code=one.code, severity=one.severity, message=one.what, fix=one.command or one.fix)

    thread = threading.Thread(target=work, name="doctor", daemon=True)
    thread.start()
    return thread


def _together(sides: Mapping[str, Examine], seconds: float) -> dict[str, Examination | None]:
    """Examine all sides at once and return what each said; None for one that has not answered in time, or failed."""
    answers: dict[str, Examination | None] = dict.fromkeys(sides)
    ended = threading.Semaphore(0)

    def work(name: str, examine: Examine) -> None:
        try:
            answers[name] = examine()
        finally:
            ended.release()

    for name, examine in sides.items():
        threading.Thread(target=work, args=(name, examine), name=f"doctor-{name}", daemon=True).start()
    timer = threading.Timer(seconds, ended.release, [len(sides)])
    timer.daemon = True
    timer.start()
    for _ in sides:
        ended.acquire()
    timer.cancel()
    return dict(answers)


def _broker(settings: Settings, *, asks_workers: bool) -> Examination:
    try:
        urls = [urlsplit(one) for one in settings.broker().split(";")]
    except SettingsError as refusal:
        return Examination(symptoms=(_refused(refusal),))
    place = ";".join(f"{one.netloc.rpartition('@')[2]}{one.path}" for one in urls)
    answer = examine_broker(place, asks_workers=asks_workers)
    symptoms = [*answer.symptoms]
    if settings.broker_is_open():
        symptoms.append(found("broker.open", f"{place} has neither password nor TLS"))
    elif any(one.scheme == "redis" and one.hostname not in LOCAL for one in urls):
        symptoms.append(found("broker.tls.missing", f"the connection to {place} is not encrypted"))
    longest = max(settings.evidence_lease_seconds, settings.delivery_lease_seconds)
    if settings.visibility_timeout_seconds <= longest:
        what = (
            f"Redis hands messages out again after {settings.visibility_timeout_seconds} s, leases last {longest:g} s"
        )
        symptoms.append(found("broker.visibility.short", what, seconds=str(int(3 * longest))))
    return Examination(facts=answer.facts, symptoms=tuple(symptoms))


def _database(settings: Settings, *, looks_at_fleet: bool) -> Examination:
    try:
        url = settings.database()
    except SettingsError as refusal:
        return Examination(symptoms=(_refused(refusal),))
    parts = urlsplit(url)
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path.replace('//', '/', 1)}"
    if parts.scheme == "sqlite" and not Path(url.removeprefix("sqlite:///")).exists():
        return Examination(facts={"place": place}, symptoms=(found("database.unmigrated", "there is no database yet"),))
    try:
        engine = open_engine(url, pool_size=1)
        try:
            return examine_database(
                engine, place=place, is_local=parts.hostname in LOCAL, looks_at_fleet=looks_at_fleet
            )
        finally:
            engine.dispose()
    except Blocked as fault:
        if fault.code == "database.unavailable":
            symptom = found(fault.code, f"{place}: {fault.message}")
        else:
            symptom = Symptom(code=fault.code, severity="error", what=fault.message, fix="see the sentence")
        return Examination(facts={"place": place}, symptoms=(symptom,))


def _refused(refusal: SettingsError) -> Symptom:
    return Symptom(code="settings.invalid", severity="error", what=str(refusal), fix="correct the setting")
