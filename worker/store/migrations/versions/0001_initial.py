"""The first schema."""

from __future__ import annotations

from alembic import op

from worker.store.schema import SUBMISSION_STATUS, metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table, index and view."""
    metadata.create_all(op.get_bind())
    op.execute(SUBMISSION_STATUS)
