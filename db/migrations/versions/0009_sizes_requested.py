"""Add the requested sizes to jobs, beside those that were allocated.

Of jobs that were stored before, CPUs and GPUs are those requested, and the new columns are unknown.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("nodes_requested", "cpus_requested", "gpus_requested")


def upgrade() -> None:
    """Add the columns."""
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove the columns."""
    for name in COLUMNS:
        op.drop_column("jobs", name)
