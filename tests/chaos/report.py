"""The report of a run: one JSON object, and the same as a section of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.chaos.plan import KINDS
from tests.chaos.recovery import median
from tests.chaos.run import Outcome
from tests.chaos.verdict import end_counts, lost, violations

SCHEMA = "locseal.chaos.v1"


def to_json(outcome: Outcome, outage: dict[str, Any] | None) -> dict[str, Any]:
    """Return everything that a run showed."""
    seen = outcome.publications
    assert seen is not None
    most = max(outcome.calls.values(), key=lambda one: one.counted, default=None)
    return {
        "schema": SCHEMA,
        "command": outcome.options.command,
        "seed": outcome.options.seed,
        "database": "SQLite" if outcome.options.is_sqlite else "PostgreSQL",
        "violations": violations(outcome),
        "seconds": {"under_fire": round(outcome.chaos_seconds, 1), "until_quiet": round(outcome.quiet_seconds, 1)},
        "faults": {"total": len(outcome.done), "by_kind": _by_kind(outcome)},
        "events": {
            "sent": len(outcome.plan.events),
            "locales_each": 5,
            "by_state": dict(sorted(end_counts(outcome).items())),
            "failed_by_code": dict(
                sorted(Counter(end.code for end in outcome.ends.values() if end.state == "failed").items())
            ),
        },
        "documents": {
            "sent": len(outcome.kept),
            "sent_again": sum(max(0, one.times - 1) for one in outcome.kept),
            "withdrawals": dict(
                Counter(one.code or one.state for one in outcome.kept if one.sending.kind == "withdrawal")
            ),
        },
        "lost": len(lost(outcome)),
        "published": seen.live,
        "published_twice": len(seen.twice),
        "partial": len(seen.partial),
        "overwritten_by_older": len(seen.overwritten),
        "audit": {
            "violations": outcome.audit["violation_count"],
            "rows": sum(outcome.audit["checked"].values()),
            "seconds": outcome.audit["elapsed_seconds"],
        },
        "provider_calls": {
            "arrivals": sum(one.arrivals for one in outcome.calls.values()),
            "revisions": len(outcome.calls),
            "revisions_by_counted_calls": dict(sorted(Counter(one.counted for one in outcome.calls.values()).items())),
            "most_of_one_revision": 0 if most is None else most.counted,
            "max_attempts": 0 if most is None else most.max_attempts,
        },
        "deliveries": {
            "posts": sum(outcome.sandbox["posts"].values()),
            "verdicts": outcome.sandbox["verdicts"],
            "reconciled_by_operator": outcome.reconciled,
        },
        "misbehaviour": dict(sorted(outcome.sandbox["faults"].items())),
        "ended_by_themselves": outcome.ended_by_themselves,
        "user_commands": outcome.user_commands,
        "recovery_bound_seconds": [round(one, 2) for one in outcome.bound_seconds],
        "outage": outage,
    }


def _by_kind(outcome: Outcome) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        these = [
            (one, recovery)
            for one, recovery in zip(outcome.done, outcome.recoveries, strict=True)
            if one.fault.kind == kind
        ]
        if these:
            found[kind.name] = {
                "count": len(these),
                "median_seconds": median(one.ended_at - one.began_at for one, _ in these),
                "median_first_progress_seconds": median(recovery.first for _, recovery in these),
                "median_half_moving_seconds": median(recovery.half for _, recovery in these),
                "median_all_moving_seconds": median(recovery.all for _, recovery in these),
            }
    return found


def to_markdown(report: dict[str, Any]) -> str:
    """Return the report as a section of a page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    events, calls = report["events"], report["provider_calls"]
    yield f"`{report['command']}` on {report['database']}, seed {report['seed']}:"
    yield (
        f"{report['seconds']['under_fire']:.0f} s under fire, quiet {report['seconds']['until_quiet']:.0f} s after the"
        " last fault."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| faults | {report['faults']['total']} |"
    yield f"| events of {events['locales_each']} locales | {events['sent']} |"
    for state, count in events["by_state"].items():
        yield f"| – {state} | {count} |"
    for code, count in events["failed_by_code"].items():
        yield f"| – – `{code}` | {count} |"
    for name in ("lost", "published_twice", "partial", "overwritten_by_older"):
        yield f"| {name.replace('_', ' ')} | {report[name]} |"
    yield f"| audit violations | {report['audit']['violations']} in {report['audit']['rows']} rows |"
    yield (
        f"| provider calls | {calls['arrivals']} for {calls['revisions']} revisions; at most"
        f" {calls['most_of_one_revision']} counted of one, {calls['max_attempts']} allowed |"
    )
    yield f"| documents sent again by producers | {report['documents']['sent_again']} |"
    yield f"| reconciled by the operator | {report['deliveries']['reconciled_by_operator']} |"
    told = ", ".join(f"{name} {count}" for name, count in report["misbehaviour"].items() if count)
    yield f"| answers of the sandbox that misbehaved | {told or 'none'} |"
    if report["ended_by_themselves"]:
        yield f"| programs that ended by themselves | {sum(report['ended_by_themselves'].values())} |"
    if report["recovery_bound_seconds"]:
        found = ", ".join(f"{one:g}" for one in report["recovery_bound_seconds"])
        yield f"| work without a message was found after | {found} s |"
    if report["user_commands"]:
        yield f"| commands run by users meanwhile | {report['user_commands']} |"
    yield ""
    yield "| fault | times | lasted, s | first progress, s | half moving again, s | all moving again, s |"
    yield "|---|---|---|---|---|---|"
    for name, one in report["faults"]["by_kind"].items():
        numbers = (
            one["median_seconds"],
            one["median_first_progress_seconds"],
            one["median_half_moving_seconds"],
            one["median_all_moving_seconds"],
        )
        yield f"| {name} | {one['count']} | {' | '.join('–' if n is None else f'{n:.1f}' for n in numbers)} |"
    if report["outage"] is not None:
        outage = report["outage"]
        yield ""
        yield (
            f"An outage of {outage['outage_seconds']:.0f} s of the review provider, simulated on {outage['locales']}"
            f" locales: {outage['approved']} approved {outage['approved_after_seconds']:.0f} s after it without an"
            f" operator, at most {outage['most_attempts']} attempts each, {outage['calls_during']} calls during it."
        )
    if report["violations"]:
        yield ""
        yield "**Violations**"
        yield ""
        yield from (f"- {one}" for one in report["violations"])
