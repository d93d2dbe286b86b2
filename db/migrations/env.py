"""Alembic's door to the warehouse: runs migrations on the connection that Helios hands over, and says nothing."""

from __future__ import annotations

from alembic import context

from helios.warehouse.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
# SQLite's own driver rules would otherwise leave half a migration behind: all of it, or nothing.
with context.begin_transaction():
    context.run_migrations()
