"""An index by which what was done about one job or node is found without reading the whole audit.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INDEX = "ix_decisions_cluster_id_target_decided_at"


def upgrade() -> None:
    """Make the index; a year of a busy audit takes about a minute."""
    op.create_index(INDEX, "decisions", ["cluster_id", "target", "decided_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index(INDEX, table_name="decisions")
