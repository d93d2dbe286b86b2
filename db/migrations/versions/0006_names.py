"""Rename tables and columns as the code is named.

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
OLD_INDEX, NEW_INDEX = "ix_turns_cluster_id_taken_at", "ix_cycles_cluster_id_taken_at"
OLD_SEQUENCE, NEW_SEQUENCE = "turns_turn_id_seq", "cycles_cycle_id_seq"
ACTIONS = {"Restore": "Revert", "RestoreNodes": "RevertNodes", "Turn": "Cycle"}
STATES = {"turn": "cycle"}


def upgrade() -> None:
    """Rename tables, columns, the index, the sequence and values."""
    for old, new in TABLES.items():
        _rename_table(old, new)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            _rename_column(table, old, new)
    _rename_index(OLD_INDEX, NEW_INDEX)
    _rename_sequence(OLD_SEQUENCE, NEW_SEQUENCE)
    _rename_values(ACTIONS, STATES)


def downgrade() -> None:
    """Give everything its old name again."""
    _rename_values({new: old for old, new in ACTIONS.items()}, {new: old for old, new in STATES.items()})
    _rename_sequence(NEW_SEQUENCE, OLD_SEQUENCE)
    _rename_index(NEW_INDEX, OLD_INDEX)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            _rename_column(table, new, old)
    for old, new in TABLES.items():
        _rename_table(new, old)


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _rename_table(old: str, new: str) -> None:
    op.rename_table(old, new)
    if _on_postgresql():  # SQLite neither uses the names of these constraints nor can it change them
        for constraint in (f"pk_{old}", f"fk_{old}_cluster_id_clusters"):
            renamed = constraint.replace(old, new)
            op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT {constraint} TO {renamed}")


def _rename_column(table: str, old: str, new: str) -> None:
    # Alembic's own alter_column would copy the whole table on SQLite.
    op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")


def _rename_index(old: str, new: str) -> None:
    op.drop_index(old, table_name="cycles")
    op.create_index(new, "cycles", ["cluster_id", "taken_at"])


def _rename_sequence(old: str, new: str) -> None:
    if _on_postgresql():
        op.execute(f"ALTER SEQUENCE {old} RENAME TO {new}")


def _rename_values(actions: dict[str, str], states: dict[str, str]) -> None:
    decisions, memories = sa.table("decisions", sa.column("action")), sa.table("memories", sa.column("name"))
    for old, new in actions.items():
        op.execute(decisions.update().where(decisions.c.action == old).values(action=new))
    for old, new in states.items():
        op.execute(memories.update().where(memories.c.name == old).values(name=new))
