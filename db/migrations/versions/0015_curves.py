"""Add the metric of each run of a trial, and its curve.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = ("metric", "direction", "curve")


def upgrade() -> None:
    """Add the columns, which runs stored before do not have."""
    for name in COLUMNS:
        op.add_column("trial_runs", sa.Column(name, sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in COLUMNS:
        op.drop_column("trial_runs", name)
