"""Add the best guess and the means to predictions.

Predictions that were stored before have none.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = ("typical_s", "mean_s", "truncated_mean_s")


def upgrade() -> None:
    """Add the columns."""
    for name in COLUMNS:
        op.add_column("predictions", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove the columns."""
    with op.batch_alter_table("predictions") as predictions:
        for name in COLUMNS:
            predictions.drop_column(name)
