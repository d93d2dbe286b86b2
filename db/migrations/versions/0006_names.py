"""Tables and columns under the names that the rest of Helios has: cycles, applied changes, domains, settings.

Nothing is copied: tables are renamed with their rows, rights and policies. Texts that control remembers keep their
keys; who reads them knows the old ones.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = {"standings": "applied_changes", "node_standings": "applied_node_changes", "turns": "cycles"}
COLUMNS = {
    "leases": {"office": "domain"},
    "applied_changes": {"lever": "setting", "admins": "overridden"},
    "applied_node_changes": {"lever": "setting", "admins": "overridden"},
    "cycles": {"turn_id": "cycle_id", "still": "suspended"},
}
INDEXES = {
    ("turns", "ix_turns_cluster_id_taken_at"): ("cycles", "ix_cycles_cluster_id_taken_at", ["cluster_id", "taken_at"])
}
ACTIONS = {"Restore": "Revert", "RestoreNodes": "RevertNodes", "Turn": "Cycle"}
STATES = {"turn": "cycle"}


def upgrade() -> None:
    """Rename."""
    for old, new in TABLES.items():
        _rename_table(old, new)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}"))
    for (_, old_index), (table, index, columns) in INDEXES.items():
        op.drop_index(old_index, table_name=table)
        op.create_index(index, table, columns)
    _rename_values(ACTIONS, STATES)


def downgrade() -> None:
    """Give everything its old name again."""
    _rename_values({new: old for old, new in ACTIONS.items()}, {new: old for old, new in STATES.items()})
    for (_, old_index), (table, index, columns) in INDEXES.items():
        op.drop_index(index, table_name=table)
        op.create_index(old_index, table, columns)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}"))
    for old, new in TABLES.items():
        _rename_table(new, old)


def _rename_table(old: str, new: str) -> None:
    op.rename_table(old, new)
    if op.get_bind().dialect.name == "postgresql":
        # SQLite neither uses the names of these constraints nor can it change them.
        for constraint in (f"pk_{old}", f"fk_{old}_cluster_id_clusters"):
            renamed = constraint.replace(old, new)
            op.execute(sa.text(f"ALTER TABLE {new} RENAME CONSTRAINT {constraint} TO {renamed}"))


def _rename_values(actions: dict[str, str], states: dict[str, str]) -> None:
    decisions, memories = sa.table("decisions", sa.column("action")), sa.table("memories", sa.column("name"))
    for old, new in actions.items():
        op.execute(decisions.update().where(decisions.c.action == old).values(action=new))
    for old, new in states.items():
        op.execute(memories.update().where(memories.c.name == old).values(name=new))
