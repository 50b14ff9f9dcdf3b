"""What an import says of itself: which events it made, and of every unit that it left out where that is and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from worker.cli import output
from worker.cli.sending_many import Outcome
from worker.domain.catalogue import Catalogue, LeftOut, Piece
from worker.domain.change import ChangeEvent
from worker.domain.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class MadeEvent:
    """One event of an import with its submission documents."""

    event: ChangeEvent = field(repr=False)
    units: int
    documents: tuple[dict[str, Any], ...] = field(repr=False)
    replaced: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything an import knows; `outcomes` is empty until documents were sent, in the order of the events."""

    manifest: Manifest = field(repr=False)
    catalogue: Catalogue = field(repr=False)
    pieces: tuple[Piece, ...] = ()
    made: tuple[MadeEvent, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    is_dry_run: bool = False

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return every gap and stray, by key, then locale."""
        found = (*self.catalogue.gaps, *self.catalogue.strays)
        return tuple(sorted(found, key=lambda one: (one.key, one.locale or "", one.reason)))

    @cached_property
    def _gaps(self) -> dict[str | None, Counter[str]]:
        """Return how many gaps and strays of each reason a locale has."""
        counted: dict[str | None, Counter[str]] = {}
        for one in self.left_out:
            counted.setdefault(one.locale, Counter())[one.reason] += 1
        return counted

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: without any text."""
        units = self.catalogue.units
        submitted = {key for piece in self.pieces for key in piece.keys}
        outcomes = iter(self.outcomes)
        return {
            "dry_run": self.is_dry_run,
            "units": len(units),
            "submitted_units": len(submitted),
            "events": [_event(made, outcomes) for made in self.made],
            "locales": [self._locale(place) for place in range(len(self.manifest.locales))],
            "left_out_units": [unit.key for unit in units if unit.key not in submitted],
            "left_out": [asdict(one) for one in self.left_out],
        }

    def lines(self) -> list[str]:
        """Return it for people: a table of the locales, a table of what was left out, and the events."""
        shown = self.to_json()
        rows = [
            (one["locale"], one["file"], one["complete"], one["incomplete"], one["submitted"], _counts(one["gaps"]))
            for one in shown["locales"]
        ]
        lines = output.table(("locale", "file", "complete", "incomplete", "submitted", "why"), rows, empty="")
        if self.left_out:
            head = ("incomplete or left out", "at", "why")
            lines += ["", *output.table(head, self._left_out_rows(), empty="")]
        lines.append("")
        lines += [_event_line(one) for one in shown["events"]]
        rest = len(shown["left_out_units"])
        lines.append(
            f"{shown['submitted_units']} of {shown['units']} units {'would go out' if self.is_dry_run else 'go out'}"
            + (f"; {rest} are incomplete and are not submitted" if rest else "")
        )
        return lines

    def _locale(self, place: int) -> dict[str, Any]:
        file = self.manifest.locales[place]
        gaps = self._gaps.get(file.locale, Counter())
        complete = sum(file.locale in unit.targets for unit in self.catalogue.units)
        return {
            "locale": file.locale,
            "file": file.file,
            "complete": complete,
            "incomplete": len(self.catalogue.units) - complete,
            "submitted": sum(len(piece.keys) for piece in self.pieces if file.locale in piece.targets),
            "gaps": dict(sorted(gaps.items())),
        }

    def _left_out_rows(self) -> Iterable[tuple[str, str, str]]:
        places = {unit.key: unit.place for unit in self.catalogue.units}
        by_key: dict[str, list[LeftOut]] = {}
        for one in self.left_out:
            by_key.setdefault(one.key, []).append(one)
        for key, found in by_key.items():
            placed = next((one for one in found if one.line is not None), None)
            place = places.get(key, "-") if placed is None else f"{placed.file}:{placed.line}"
            yield key, place, "; ".join(_why(reason, found) for reason in dict.fromkeys(one.reason for one in found))


def _why(reason: str, found: Sequence[LeftOut]) -> str:
    locales = [one.locale or "source" for one in found if one.reason == reason]
    return f"{reason}: {', '.join(locales)}"


def _counts(gaps: dict[str, int]) -> str | None:
    return ", ".join(f"{reason} {count}" for reason, count in gaps.items()) or None


def _event(made: MadeEvent, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    following = iter(outcomes)
    documents = [asdict(found) for _, found in zip(made.documents, following, strict=False)]
    return {
        "event_id": made.event.event_id,
        "plan_id": made.event.plan_id,
        "source_id": made.event.localization.source_id,
        "units": made.units,
        "locales": len(made.event.jobs),
        "replaced_results": made.replaced,
        "documents": documents,
    }


def _event_line(one: dict[str, Any]) -> str:
    states = sorted({document["state"] for document in one["documents"]})
    codes = sorted({document["code"] for document in one["documents"] if document["code"]})
    words = [" and ".join(states) or "not sent", *codes]
    replaced = f", {one['replaced_results']} replaced" if one["replaced_results"] else ""
    what = f"{output.counted(one['units'], 'unit')} in {output.counted(one['locales'], 'locale')}"
    return f"{one['event_id']}: {what}{replaced}; {', '.join(words)}"
