"""How Alembic runs our schema changes: on the connection, and inside the transaction, that `migrate` hands over."""

from __future__ import annotations

from alembic import context

from worker.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
