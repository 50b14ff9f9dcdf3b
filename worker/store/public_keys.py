"""The public keys behind what is stored, so that an auditor can verify it years after a key was rotated away."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, String, select

from worker.domain.canonical import canonical_text
from worker.domain.key import PublicKey
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import public_keys
from worker.store.upserts import insert_into


def keep_public_keys(conn: Connection, keys: Sequence[PublicKey], *, now: float | None) -> None:
    """Keep keys that something was verified by, in one statement; those already kept stay as they are."""
    columns = ["purpose", "kid", "thumbprint", "jwk"]
    source = row_source(conn, "used", dict.fromkeys(columns, String), "used")
    rows = [
        {
            "purpose": key.purpose,
            "kid": key.kid,
            "thumbprint": key.thumbprint,
            "jwk": canonical_text(dict(key.jwk)),
        }
        for key in sorted(keys, key=lambda key: (key.purpose, key.kid, key.thumbprint))
    ]
    conn.execute(
        insert_into(conn, public_keys)
        .from_select(
            [*columns, "first_seen_at"],
            select(*(source.c[name] for name in columns), clock(conn, now)).order_by(source.c.purpose, source.c.kid),
        )
        .on_conflict_do_nothing(),
        {"used": json_rows(rows)},
    )
