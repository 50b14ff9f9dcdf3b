"""`locseal doctor`: look at this installation from all sides and say what is wrong and what mends it. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from config.settings import SettingsError, load_settings
from worker.adapters.flower_checks import DEFAULT
from worker.cli import output
from worker.cli.output import Json
from worker.diagnosis import DEADLINE_SECONDS, Diagnosis, diagnose
from worker.domain.symptom import Symptom

app = typer.Typer(help="Check this machine, the database and the broker.")


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
    flower: Annotated[str, typer.Option(help="Where Flower runs on this machine; plain http.")] = DEFAULT,
    seconds: Annotated[float, typer.Option(min=1, max=300, help="Longest wait for everything.")] = DEADLINE_SECONDS,
    as_json: Json = False,
) -> None:
    """Check versions, database, broker, queues, keys, Flower and our own files.

    Exit code 0: nothing is wrong, or warnings only; 1: an error was found (with --strict: or a warning); 2: wrong
    usage, or settings that cannot be used.
    """
    try:
        settings = load_settings()
    except SettingsError as refusal:
        symptoms = tuple(
            Symptom(code="settings.invalid", severity="error", what=line, fix="correct or unset the setting")
            for line in str(refusal).splitlines()
        )
        _put(Diagnosis(facts={}, symptoms=symptoms), as_json=as_json)
        raise typer.Exit(output.WRONG_USAGE) from None
    found = diagnose(settings, flower=flower, seconds=seconds)
    _put(found, as_json=as_json)
    failing = {"error", "warning"} if strict else {"error"}
    is_sick = any(one.severity in failing for one in found.symptoms)
    raise typer.Exit(output.REFUSED if is_sick else output.DONE)


def _put(found: Diagnosis, *, as_json: bool) -> None:
    counts = Counter(one.severity for one in found.symptoms)
    shown = {
        "healthy": not counts["error"],
        "counts": {severity: counts[severity] for severity in ("error", "warning", "note")},
        "symptoms": [asdict(one) for one in found.symptoms],
        "facts": {name: dict(facts) for name, facts in found.facts.items()},
    }
    output.put(shown, as_json=as_json, lines=_lines(found))


def _lines(found: Diagnosis) -> Iterator[str]:
    for name, facts in found.facts.items():
        said = ", ".join(f"{key} {_value(value)}" for key, value in facts.items() if value not in (None, [], {}))
        if said:
            yield f"{name + ':':10}{said}"
    for one in found.symptoms:
        yield ""
        yield f"{one.severity} {one.code}: {one.what}"
        yield f"  mend: {one.fix}"
        if one.command is not None:
            yield f"  run:  {one.command}"
    counts = Counter(one.severity for one in found.symptoms)
    yield ""
    yield ", ".join(output.counted(counts[severity], severity) for severity in ("error", "warning", "note"))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_value(item)}" for key, item in value.items()) + ")"
    if isinstance(value, list):
        return "(" + "; ".join(_value(item) for item in value) + ")"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
