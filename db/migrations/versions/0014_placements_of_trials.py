"""Record on how many devices of each node a trial ran.

Trials of older releases ran on one device, and have no value.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("trial_runs", sa.Column("placement", sa.Text(), nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("trial_runs", "placement")
