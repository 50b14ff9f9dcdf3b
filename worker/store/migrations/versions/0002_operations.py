"""What operations need beside the work: workers that announced their end, what workers measured, runs by status.

Only new tables and an index, so that workers of the version before go on beside the new ones while the fleet is replaced.
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

CREATE INDEX release_runs_by_status ON release_runs (status)
"""


def upgrade() -> None:
    """Create every table and index."""
    auto_id = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGSERIAL"
    for statement in DDL.replace("{AUTO_ID}", auto_id).split(";\n\n"):
        op.execute(statement)
