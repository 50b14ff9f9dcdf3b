"""The figures as tables of `docs/performance.md`, between markers that are filled anew; the rest of the page is prose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Figures = Mapping[str, Any]
PER_LOCALE: Final = ("Celery per locale, threads", "Celery per locale, prefork")
PER_EVENT: Final = ("Celery per event, threads", "Celery per event, prefork")
OURS: Final = "locseal"
MARK: Final = re.compile(r"(<!-- bench:begin ([a-z]+) -->\n).*?(<!-- bench:end \2 -->)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One line of what must be reached: what was found, against a bound that it must not fall below or exceed."""

    what: str
    found: float | None
    bound: float
    is_floor: bool
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Tell whether the bound was kept."""
        if self.found is None:
            return False
        return self.found >= self.bound if self.is_floor else self.found <= self.bound

    def row(self) -> tuple[str, ...]:
        """Return the line of the table."""
        sign = "at least" if self.is_floor else "at most"
        found = "not measured" if self.found is None else f"{self.found:.3g}{self.unit}"
        verdict = "-" if self.found is None else ("yes" if self.is_met else "**no**")
        return self.what, f"{sign} {self.bound:g}{self.unit}", found, verdict


def fill_page(page: str, kept: Figures) -> str:
    """Return the page with every marked table made from the kept figures; a table without figures says so."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{tables(kept).get(found[2], 'Not measured yet.')}\n{found[3]}"

    return MARK.sub(fill, page)


def tables(kept: Figures) -> dict[str, str]:
    """Return the text of each marked table that there are figures for."""
    makers: dict[str, Callable[[Figures], str]] = {
        "throughput": throughput_table,
        "http": throughput_table,
        "cost": cost_table,
        "latency": latency_table,
        "concurrency": concurrency_table,
        "scaling": scaling_table,
        "sqlite": sqlite_table,
        "growth": growth_table,
        "memory": memory_table,
        "phases": phases_table,
    }
    made = {"targets": table(("what", "must", "is", "met"), (one.row() for one in targets(kept)))}
    for name, make in makers.items():
        source = "throughput" if name == "cost" else name
        if source in kept:
            made[name] = f"{make(kept[source]['figures'])}\n\n{origin(kept[source])}"
    return made


def targets(kept: Figures) -> list[Target]:
    """Return every target with what was found for it."""
    return [
        *_throughput_targets(_figures(kept, "throughput")),
        *_latency_targets(_figures(kept, "latency")),
        *_concurrency_targets(_figures(kept, "concurrency")),
        *_growth_targets(_figures(kept, "growth"), _figures(kept, "memory")),
        _scaling_target(_figures(kept, "scaling")),
        Target(
            what="SQLite alone, locales a second",
            found=_at(_figures(kept, "sqlite"), "rate", "median"),
            bound=1000,
            is_floor=True,
        ),
    ]


def _throughput_targets(found: Figures) -> Iterable[Target]:
    def ratio(delay: str, names: Sequence[str]) -> float | None:
        ours = _at(found, delay, OURS, "rate", "median")
        theirs = [rate for name in names if (rate := _at(found, delay, name, "rate", "median")) is not None]
        return ours / max(theirs) if ours is not None and theirs else None

    yield Target(what="throughput, 0 ms, of Celery per locale", found=ratio("0 ms", PER_LOCALE), bound=5, is_floor=True)
    yield Target(what="throughput, 0 ms, of Celery per event", found=ratio("0 ms", PER_EVENT), bound=0.6, is_floor=True)
    yield Target(
        what="throughput, 20 ms, of Celery per event", found=ratio("20 ms", PER_EVENT), bound=1.3, is_floor=True
    )


def _latency_targets(found: Figures) -> Iterable[Target]:
    for delay in ("0 ms", "20 ms"):
        ours = _at(found, delay, OURS, "p50")
        for names, title, bound in ((PER_LOCALE, "per locale", 0.6), (PER_EVENT, "per event", 1.6)):
            theirs = [one for name in names if (one := _at(found, delay, name, "p50")) is not None]
            ratio = ours / min(theirs) if ours is not None and theirs else None
            yield Target(what=f"latency p50, {delay}, of Celery {title}", found=ratio, bound=bound, is_floor=False)
        tail = _at(found, delay, OURS, "p99")
        spread = tail / ours if ours and tail is not None else None
        yield Target(what=f"latency p99 of p50, {delay}", found=spread, bound=3, is_floor=False)
    after, before = _at(found, "after idleness", OURS, "p50"), _at(found, "0 ms", OURS, "p50")
    ratio = after / before if after is not None and before else None
    yield Target(what="latency p50 after 2 s of idleness, of p50", found=ratio, bound=2, is_floor=False)


def _concurrency_targets(found: Figures) -> Iterable[Target]:
    share = _at(found, "share", "median")
    yield Target(
        what="1 s provider, 500 calls in one process: part of the possible", found=share, bound=0.9, is_floor=True
    )
    peak = _at(found, "peak_mib")
    yield Target(what="its memory", found=peak, bound=250, is_floor=False, unit=" MiB")


def _growth_targets(found: Figures, memory: Figures) -> Iterable[Target]:
    for question in ("claim", "sweep", "list"):
        for kind in ("due", "done"):
            small, large = (_at(found, question, kind, size, "median") for size in ("1000", "1000000"))
            speed = small / large if small is not None and large else None
            title = f"{question} with 1e6 rows {kind}: speed of that with 1e3"
            yield Target(what=title, found=speed, bound=0.9, is_floor=True)
    peaks = [*memory.get("audit_peak_mib", {}).values()]
    ratio = peaks[-1] / peaks[0] if len(peaks) > 1 else None
    yield Target(what="audit's memory, largest of smallest database", found=ratio, bound=1.1, is_floor=False)
    resident = [*memory.get("resident_mib", {}).values()]
    grown = 100 * (resident[-1] / resident[0] - 1) if len(resident) > 1 else None
    yield Target(what="memory from the 20,000th to the last locale", found=grown, bound=2, is_floor=False, unit=" %")


def _scaling_target(found: Figures) -> Target:
    one, two = _at(found, "1", "median"), _at(found, "2", "median")
    ratio = two / one if one and two is not None else None
    return Target(what="two worker processes of one (200 ms, 50 calls each)", found=ratio, bound=1.7, is_floor=True)


# --- the tables -----------------------------------------------------------------------------------------------------


def throughput_table(found: Figures) -> str:
    """Return locales a second of each side for each delay, with the spread."""
    names = next(iter(found.values())).keys()
    rows = [(name, *(spread(found[delay][name]["rate"]) for delay in found)) for name in names]
    return table(("side", *(f"{delay}: locales/s (min to max)" for delay in found)), rows)


def cost_table(found: Figures) -> str:
    """Return what a locale costs each side with the provider that answers at once."""
    columns = {
        "cpu_ms": ("CPU ms", ".2f"),
        "postgres_cpu_ms": ("PostgreSQL CPU ms", ".2f"),
        "redis_cpu_ms": ("Redis CPU ms", ".3f"),
        "statements": ("statements", ".2f"),
        "commits": ("commits", ".2f"),
        "wal_bytes": ("WAL bytes", ".0f"),
        "messages": ("messages", ".2f"),
    }
    sides = next(iter(found.values()))
    rows = [(name, *(format(one[key], shape) for key, (_, shape) in columns.items())) for name, one in sides.items()]
    return table(("side, per locale", *(title for title, _ in columns.values())), rows)


def latency_table(found: Figures) -> str:
    """Return p50 and p99 of each side."""
    rows = [
        (delay, name, f"{one['p50']:.1f}", f"{one['p99']:.1f}", f"{one['min']:.1f} to {one['max']:.1f}", str(one["n"]))
        for delay, sides in found.items()
        for name, one in sides.items()
    ]
    return table(("provider", "side", "p50 ms", "p99 ms", "min to max", "events"), rows)


def concurrency_table(found: Figures) -> str:
    """Return what one process did with many calls."""
    rows = [
        ("calls in flight", str(found["calls"])),
        ("locales/s", spread(found["rate"])),
        ("part of the possible", spread(found["share"], ".2f")),
        ("peak resident memory", f"{found['peak_mib']:.0f} MiB"),
        ("CPU ms a locale", spread(found["cpu_ms"], ".2f")),
        ("the stub's own ceiling, answers/s", f"{found['stub_ceiling']:.0f}"),
    ]
    return table(("one worker process, HTTP provider of 1 s", "measured"), rows)


def scaling_table(found: Figures) -> str:
    """Return locales a second by number of processes."""
    rows = [(count, spread(one), f"{one['median'] / found['1']['median']:.2f}") for count, one in found.items()]
    return table(("worker processes", "locales/s", "of one"), rows)


def sqlite_table(found: Figures) -> str:
    """Return locales a second on SQLite."""
    return table(
        ("SQLite alone", "locales/s", "CPU ms a locale"),
        [("one worker process", spread(found["rate"]), spread(found["cpu_ms"], ".2f"))],
    )


def growth_table(found: Figures) -> str:
    """Return milliseconds of each question by kind and number of rows."""
    rows = []
    for question, kinds in found.items():
        for kind, sizes in kinds.items():
            rows.append((question, kind, *(spread(one, ".1f") for one in sizes.values())))
    sizes = next(iter(next(iter(found.values())).values()))
    return table(("question, ms", "rows are", *(f"{int(size):,} rows" for size in sizes)), rows)


def memory_table(found: Figures) -> str:
    """Return resident memory by locales done, and the audits' peaks."""
    rows = [("worker process", f"{int(done):,}", f"{size:.1f}") for done, size in found["resident_mib"].items()]
    rows += [("audit of all", f"{int(done):,}", f"{size:.1f}") for done, size in found["audit_peak_mib"].items()]
    return table(("process", "locales done", "MiB"), rows)


def phases_table(found: Figures) -> str:
    """Return what each phase costs a locale."""
    rows = [(name, *(f"{value:.0f}" for value in used.values())) for name, used in found.items()]
    sums = [sum(used[key] for used in found.values()) for key in ("wall_us", "cpu_us", "postgres_cpu_us")]
    rows.append(("all", *(f"{value:.0f}" for value in sums)))
    return table(("up to the checkpoint, per locale", "wall us", "CPU us", "PostgreSQL CPU us"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def spread(found: Figures, shape: str = ".0f") -> str:
    """Return a median with its smallest and largest value and their number."""
    median, least, most = (format(found[key], shape) for key in ("median", "min", "max"))
    return f"{median} ({least} to {most}, n={found['n']})"


def origin(found: Figures) -> str:
    """Return when, on what and from which commit figures are."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if name != "cores")
    sizes = ", ".join(f"{name} {value}" for name, value in found["sizes"].items() if name != "sides")
    return (
        f"{found['at']}, commit {found['commit']}, {found['versions']['cores']} cores, load before {found['load_before']:g}, "
        f"{found['seconds']:.0f} s; {sizes}; {versions}."
    )


def _figures(kept: Figures, name: str) -> Figures:
    found: Figures = kept.get(name, {}).get("figures", {})
    return found


def _at(found: Figures, *path: str) -> float | None:
    one: Any = found
    for name in path:
        if not isinstance(one, Mapping) or name not in one:
            return None
        one = one[name]
    return float(one)
