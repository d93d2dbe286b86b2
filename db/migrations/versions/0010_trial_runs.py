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


READERS = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'clusters' AND privilege_type = 'SELECT'
AND grantee NOT IN (current_user, 'PUBLIC') ORDER BY grantee"""


def upgrade() -> None:
    """Make the table, which whoever reads the others may read."""
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
    if op.get_context().dialect.name == "postgresql":
        quote = op.get_context().dialect.identifier_preparer.quote
        for reader in list(op.get_bind().execute(sa.text(READERS)).scalars()):
            op.execute(f"GRANT SELECT ON trial_runs TO {quote(reader)}")


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("trial_runs")
