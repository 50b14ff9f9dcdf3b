"""What happens when, all from one seed: the faults of a run and the texts that producers send meanwhile. Values only.

The same seed, counts and mode give the same plan. What the fleet makes of it depends on the machine's timing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.builders import change_event, result_for, submission, withdrawal
from worker.domain.change import parse_change

SITES: Final = ("site-a", "site-b", "site-c")
SITE_WEIGHTS: Final = (6, 3, 1)
LOCALES: Final = "ar cs da de el es fi fr it ja ko nl pl pt-BR sv tr".split()
LOCALES_OF_AN_EVENT: Final = 5
RECENT_SOURCES: Final = 12  # newer texts come for one of the last so many sources of a site
GAP_SECONDS: Final = 4.0  # on average, from the beginning of one fault to that of the next

Lane = Literal["processes", "servers", "links", "outside"]
WORKERS: Final = 4
BEATS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fault. Faults of one lane follow each other; those of different lanes may coincide."""

    name: str
    lane: Lane
    seconds: float = 0.0  # how long it lasts, in a run of full length
    least_seconds: float = 0.0  # in the shortest
    needs_postgres: bool = False


KINDS: Final = (
    Kind(name="worker killed", lane="processes"),
    Kind(name="worker stopped beyond its leases", lane="processes", seconds=10.0, least_seconds=6.0),
    Kind(name="worker asked to end", lane="processes"),
    Kind(name="worker clock ten minutes wrong", lane="processes", seconds=15.0, needs_postgres=True),
    Kind(name="beat killed", lane="processes"),
    Kind(name="beat stopped", lane="processes", seconds=6.0),
    Kind(name="beat asked to end", lane="processes"),
    Kind(name="Redis flushed", lane="servers"),
    Kind(name="Redis killed and restarted", lane="servers"),
    Kind(name="Redis away for 20 s", lane="servers", seconds=20.0),
    Kind(name="Redis frozen for 20 s", lane="servers", seconds=20.0),
    Kind(name="PostgreSQL connections killed", lane="servers", needs_postgres=True),
    Kind(name="PostgreSQL restarted", lane="servers", seconds=2.0, needs_postgres=True),
    Kind(name="Redis link slow", lane="links", seconds=5.0),
    Kind(name="Redis link cut", lane="links", seconds=3.0),
    Kind(name="Redis link half-open", lane="links", seconds=6.0),
    Kind(name="PostgreSQL link slow", lane="links", seconds=5.0, needs_postgres=True),
    Kind(name="PostgreSQL link cut", lane="links", seconds=3.0, needs_postgres=True),
    Kind(name="PostgreSQL link half-open", lane="links", seconds=6.0, needs_postgres=True),
    Kind(name="sandbox link slow", lane="links", seconds=5.0),
    Kind(name="sandbox link cut", lane="links", seconds=3.0),
    Kind(name="sandbox link half-open", lane="links", seconds=6.0),
    Kind(name="provider slow", lane="outside", seconds=6.0),
    Kind(name="provider failing", lane="outside", seconds=5.0),
    Kind(name="provider lying", lane="outside", seconds=3.0),
    Kind(name="provider losing answers", lane="outside", seconds=3.0),
    Kind(name="provider not ready yet", lane="outside", seconds=4.0),
    Kind(name="CMS slow", lane="outside", seconds=6.0),
    Kind(name="CMS failing", lane="outside", seconds=5.0),
    Kind(name="CMS lying", lane="outside", seconds=3.0),
    Kind(name="CMS losing answers", lane="outside", seconds=3.0),
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the plan. `number` is its own chance: which worker, which way to lie, which sign of the clock."""

    index: int
    kind: Kind
    starts_at: float  # seconds from the beginning; later where its lane is not free
    seconds: float
    number: int


@dataclass(frozen=True, kw_only=True)
class Sending:
    """One document that a producer sends. `targets` are the texts' hashes by locale, of a change event."""

    kind: Literal["event", "withdrawal"]
    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    at: float  # seconds from the beginning
    document: dict[str, Any]
    targets: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole run."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    sendings: tuple[Sending, ...]

    @property
    def events(self) -> tuple[Sending, ...]:
        """The change events among what is sent."""
        return tuple(one for one in self.sendings if one.kind == "event")


def make_plan(*, seed: int, events: int, faults: int, is_sqlite: bool, gap_seconds: float, scale: float) -> Plan:
    """Return the plan of a run. `scale` shortens the faults; the last event is sent about when the last fault begins."""
    seconds = faults * gap_seconds
    return Plan(
        seed=seed,
        seconds=seconds,
        faults=tuple(_faults(random.Random(f"faults {seed}"), faults, is_sqlite, gap_seconds, scale)),
        sendings=tuple(_sendings(random.Random(f"texts {seed}"), events, seconds)),
    )


def _faults(chance: random.Random, count: int, is_sqlite: bool, gap_seconds: float, scale: float) -> list[Fault]:
    """Return faults in which every kind comes about equally often: one shuffled round of all kinds after the other."""
    kinds = [kind for kind in KINDS if not (is_sqlite and kind.needs_postgres)]
    order: list[Kind] = []
    while len(order) < count:
        order += chance.sample(kinds, len(kinds))
    moments = sorted(chance.uniform(0, count * gap_seconds) for _ in range(count))
    return [
        Fault(
            index=index,
            kind=kind,
            starts_at=at,
            seconds=max(kind.least_seconds, kind.seconds * scale),
            number=chance.randrange(1_000_000),
        )
        for index, (kind, at) in enumerate(zip(order, moments, strict=False))
    ]


@dataclass
class _Source:
    source_id: str
    sequences: list[int]
    text: str
    revision: str
    locales: Sequence[str]
    content_type: str


def _sendings(chance: random.Random, count: int, seconds: float) -> list[Sending]:
    """Return steady submissions: new sources, newer and late older texts, the same text again, and withdrawals."""
    known: dict[str, list[_Source]] = {site: [] for site in SITES}
    found: list[Sending] = []
    for number in range(count):
        site_id = chance.choices(SITES, SITE_WEIGHTS)[0]
        at = seconds * (number + chance.random()) / count
        source, sequence = _next_text(chance, known[site_id], number)
        event = _event(number, site_id, source, sequence, at)
        found.append(event)
        if chance.random() < 0.08:
            later = at + chance.uniform(-0.5, 4.0)  # some overtake their event
            document = withdrawal({"event_id": event.event_id, "site_id": site_id})
            found.append(
                Sending(
                    kind="withdrawal",
                    event_id=event.event_id,
                    site_id=site_id,
                    source_id=event.source_id,
                    source_sequence=sequence,
                    at=max(0.0, later),
                    document=document,
                    targets={},
                )
            )
    return sorted(found, key=lambda one: one.at)


def _next_text(chance: random.Random, known: list[_Source], number: int) -> tuple[_Source, int]:
    recent = known[-RECENT_SOURCES:]
    what = chance.random()
    if not recent or what < 0.6:
        source = _Source(
            source_id=f"source-{number}",
            sequences=[2],
            text=f"Text {number}: your cart is waiting.",
            revision=f"rev-{number}",
            locales=tuple(chance.sample(LOCALES, LOCALES_OF_AN_EVENT)),
            content_type=chance.choices(["ui", "marketing", "documentation", "legal"], [10, 5, 4, 1])[0],
        )
        known.append(source)
        return source, 2
    source = chance.choice(recent)
    newest = source.sequences[-1]
    if what < 0.66 and newest - 1 not in source.sequences:
        source.sequences.insert(-1, newest - 1)  # an older text that comes late
        return _Source(**{**vars(source), "text": f"Late {number}.", "revision": f"rev-{number}"}), newest - 1
    source.sequences.append(newest + 2)
    if what < 0.92:
        source.text, source.revision = f"Newer text {number}: your cart is empty.", f"rev-{number}"
    return source, newest + 2  # else the same text again, under a new event


def _event(number: int, site_id: str, source: _Source, sequence: int, at: float) -> Sending:
    document = change_event(
        event_id=f"event-{number}",
        site_id=site_id,
        source_sequence=sequence,
        source_id=source.source_id,
        source_revision=source.revision,
        source_text=source.text,
        content_type=source.content_type,
        target_locales=sorted(source.locales),
    )
    results = [
        result_for(
            job,
            candidate=f"[{job.target_locale}] {source.text}",
            confidence="low" if job.target_locale in {"ja", "tr"} else "high",
        )
        for job in parse_change(document).jobs
    ]
    return Sending(
        kind="event",
        event_id=str(document["event_id"]),
        site_id=site_id,
        source_id=source.source_id,
        source_sequence=sequence,
        at=at,
        document=submission(document, results),
        targets={result["target_locale"]: result["target_sha256"] for result in results},
    )
