"""Step: read the whole database and hold every row, and every promise, against what was signed. Changes nothing.

It takes an engine in place of services: an auditor has the database alone, with no broker, provider or private key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Engine

from worker.domain.audit.finding import Tally
from worker.domain.audit.kept_key import AREA, KeptKeys, overlap_findings, read_kept_key
from worker.domain.key import PublicKey, TrustSet
from worker.flow.auditing.areas import areas
from worker.store.audit_pages import Scope, Stream, count_rows, pages
from worker.store.schema import public_keys

Progress = Callable[[str, int, int], None]  # the area, rows read so far, rows in all


def audit_database(
    engine: Engine,
    *,
    scope: Scope | None = None,
    trust: Mapping[str, TrustSet] | None = None,
    progress: Progress = lambda _area, _done, _total: None,
) -> Tally:
    """Return what an audit found, with the rows of each area counted; nothing found stops it.

    `trust` is what the trust directory says today, by purpose; without it nothing is said of it. Signatures are
    verified with the keys that the database keeps. Memory stays constant but for the kept keys. Raises `Unavailable`.
    Safe beside a fleet at work: each page is one snapshot.
    """
    scope = scope or Scope()
    every = areas()
    kept_stream = Stream(table=public_keys)
    total = count_rows(engine, kept_stream, Scope()) + sum(count_rows(engine, area.stream, scope) for area in every)
    tally, done = Tally(), 0
    keys: list[PublicKey] = []
    for _, rows in pages(engine, kept_stream, Scope()):
        for row in rows:
            key, findings = read_kept_key(row, trust)
            tally.add(findings)
            if key is not None:
                keys.append(key)
        done += len(rows)
        tally.count(AREA, len(rows))
        progress(AREA, done, total)
    tally.add(overlap_findings(keys))
    kept = KeptKeys(keys, trust=trust)
    for area in every:
        tally.count(area.name, 0)
        for conn, rows in pages(engine, area.stream, scope):
            tally.add(area.judge(conn, rows, kept))
            done += len(rows)
            tally.count(area.name, len(rows))
            progress(area.name, done, total)
    return tally
