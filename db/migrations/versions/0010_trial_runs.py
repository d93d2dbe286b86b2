"""Add the runs of trials in training pools.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TEXTS = ("user", "program", "family", "device_kind", "device_model", "outcome", "parameters", "speeds", "metrics")
KNOWN_OR_NOT = (*("start_up_s", "progress", "peak_memory_mib", "memory_limit_mib", "utilization", "energy_j"),)


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "trial_runs",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in TEXTS),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in KNOWN_OR_NOT),
        sa.PrimaryKeyConstraint("pool", "number", "attempt", name="pk_trial_runs"),
    )
    op.create_index("ix_trial_runs_user_program_started_at", "trial_runs", ["user", "program", "started_at"])


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("trial_runs")
