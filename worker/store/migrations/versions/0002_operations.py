"""What operations need beside the work: workers that announced their end, what workers and sweeps measured, events found
ready, and indexes that find what sweeps and operators look for.

Only new tables and indexes, so that workers of the version before go on beside the new ones while the fleet is replaced.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
serves_from = "0002"  # workers of 0001 accepted no other schema than their own

DDL = """
CREATE TABLE drains (
    worker_id VARCHAR NOT NULL, announced_at FLOAT NOT NULL, PRIMARY KEY (worker_id)
);

CREATE TABLE measures (
    measure VARCHAR NOT NULL, subject VARCHAR NOT NULL, outcome VARCHAR NOT NULL, part VARCHAR NOT NULL,
    value FLOAT NOT NULL, PRIMARY KEY (measure, subject, outcome, part)
);

CREATE INDEX release_runs_by_status ON release_runs (status);

CREATE INDEX evidence_succeeded ON evidence (updated_at, request_id) WHERE status = 'succeeded';

CREATE INDEX evidence_quarantined ON evidence (updated_at) WHERE last_error_code = 'evidence.quarantined';

CREATE INDEX deliveries_quarantined ON deliveries (updated_at) WHERE last_error_code = 'cms.delivery.quarantined';

CREATE TABLE ready_events (
    event_id VARCHAR NOT NULL, found_at FLOAT NOT NULL, PRIMARY KEY (event_id)
);

CREATE TABLE sweep_times (
    name VARCHAR NOT NULL, began_at FLOAT NOT NULL, took_seconds FLOAT NOT NULL, wakes INTEGER NOT NULL,
    longest_unwoken_seconds FLOAT NOT NULL, PRIMARY KEY (name)
)
"""


def upgrade() -> None:
    """Create every table and index."""
    auto_id = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGSERIAL"
    for statement in DDL.replace("{AUTO_ID}", auto_id).split(";\n\n"):
        op.execute(statement)
