"""What operations need beside the work: ends that were announced, what was measured, what was found and may be removed.

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

CREATE INDEX evidence_quarantined ON evidence (updated_at) WHERE {POISON};

CREATE INDEX deliveries_quarantined ON deliveries (updated_at) WHERE last_error_code = 'cms.delivery.quarantined';

CREATE TABLE unprepared_events (
    event_id VARCHAR NOT NULL, looked_at FLOAT NOT NULL, PRIMARY KEY (event_id)
);

CREATE INDEX unprepared_events_by_look ON unprepared_events (looked_at, event_id);

CREATE TABLE sweep_times (
    name VARCHAR NOT NULL, began_at FLOAT NOT NULL, took_seconds FLOAT NOT NULL, wakes INTEGER NOT NULL,
    longest_unwoken_seconds FLOAT NOT NULL, PRIMARY KEY (name)
);

CREATE TABLE legal_holds (
    hold_id VARCHAR NOT NULL, scope VARCHAR NOT NULL, name VARCHAR NOT NULL, reason VARCHAR NOT NULL,
    owner VARCHAR NOT NULL, placed_at FLOAT NOT NULL, released_at FLOAT, released_by VARCHAR,
    release_reason VARCHAR, PRIMARY KEY (hold_id)
);

CREATE INDEX legal_holds_by_name ON legal_holds (scope, name);

CREATE TABLE prunings (
    pruning_id VARCHAR NOT NULL, owner VARCHAR NOT NULL, before_at FLOAT NOT NULL, kinds VARCHAR NOT NULL,
    states VARCHAR NOT NULL, site_id VARCHAR, removed TEXT NOT NULL, cursor_at FLOAT, cursor_id VARCHAR,
    started_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, ended_at FLOAT, PRIMARY KEY (pruning_id)
);

CREATE TABLE pruned_events (
    pruning_id VARCHAR NOT NULL, event_id VARCHAR NOT NULL, removed TEXT NOT NULL, pruned_at FLOAT NOT NULL,
    PRIMARY KEY (pruning_id, event_id)
);

CREATE INDEX pruned_events_by_event ON pruned_events (event_id);

CREATE INDEX run_commands_succeeded ON run_commands (updated_at, attempt_id) WHERE status = 'succeeded';

CREATE TABLE event_traces (
    event_id VARCHAR NOT NULL, traceparent VARCHAR NOT NULL, began_at FLOAT NOT NULL, PRIMARY KEY (event_id)
)
"""


def upgrade() -> None:
    """Create every table and index."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    auto_id = "INTEGER" if is_sqlite else "BIGSERIAL"
    poison = "status = 'failed'" if is_sqlite else "last_error_code = 'evidence.quarantined'"
    for statement in DDL.replace("{AUTO_ID}", auto_id).replace("{POISON}", poison).split(";\n\n"):
        op.execute(statement)
