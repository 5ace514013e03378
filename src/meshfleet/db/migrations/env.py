"""Alembic environment: runs the migrations on the connection and in the transaction of `migrate_schema`."""

from __future__ import annotations

from alembic import context

from meshfleet.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
