"""Rename the service packing to node_fill_order.

Packing is to mean trials that share a GPU. The name changes in every column that names services, in the JSON texts of
cycles and of what control remembers, and in the row-level security that ``helios db grant`` has written. Reasons and
other texts for a person stay as they were.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OLD, NEW = "packing", "node_fill_order"
TABLES = ("modes", "decisions", "applied_changes", "applied_node_changes")
TEXTS = {"cycles": "counts", "memories": "text"}


def upgrade() -> None:
    """Give the service its new name."""
    _rename(OLD, NEW)


def downgrade() -> None:
    """Give the service its old name again."""
    _rename(NEW, OLD)


def _rename(old: str, new: str) -> None:
    for name in TABLES:
        table = sa.table(name, sa.column("service"))
        op.execute(table.update().where(table.c.service == old).values(service=new))
    for name, text in TEXTS.items():
        table = sa.table(name, sa.column(text))
        column = table.c[text]
        # A text may hold another JSON text, in which quotation marks are escaped.
        for mark in ('"', '\\"'):
            before, after = f"{mark}{old}{mark}", f"{mark}{new}{mark}"
            op.execute(
                table.update()
                .where(column.contains(before, autoescape=True))
                .values({column: sa.func.replace(column, before, after)})
            )
    if op.get_bind().dialect.name == "postgresql":
        _rename_in_policies(f"'{old}'", f"'{new}'")


def _rename_in_policies(old: str, new: str) -> None:
    bind = op.get_bind()
    quote = bind.dialect.identifier_preparer.quote
    here = "FROM pg_policies WHERE schemaname = current_schema()"
    query = f"SELECT schemaname, tablename, policyname, qual, with_check {here}"
    for schema, table, policy, qual, with_check in bind.exec_driver_sql(query).all():
        clauses = {"USING": qual, "WITH CHECK": with_check}
        renamed = [f"{word} ({text.replace(old, new)})" for word, text in clauses.items() if text and old in text]
        if renamed:
            bind.exec_driver_sql(f"ALTER POLICY {quote(policy)} ON {quote(schema)}.{quote(table)} {' '.join(renamed)}")
