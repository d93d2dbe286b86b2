"""Add estimates of starts, as they were made.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

GRANTED = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'predictions' AND privilege_type = :privilege
AND grantee NOT IN (current_user, 'PUBLIC') ORDER BY grantee"""
PRIVILEGES = {"SELECT": "SELECT", "INSERT": "INSERT, DELETE"}
"""Privileges that a role gets, by those that it has on the predictions."""


def upgrade() -> None:
    """Make the table, and let roles use it as they use the predictions."""
    op.create_table(
        "start_estimates",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("restart", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in ("p10_at", "p50_at", "p90_at")),
        sa.Column("horizon_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_start_estimates_cluster_id_clusters"),
        sa.PrimaryKeyConstraint(
            "cluster_id", "submitted_at", "job_id", "restart", "made_at", name="pk_start_estimates"
        ),
    )
    op.create_index("ix_start_estimates_cluster_id_made_at", "start_estimates", ["cluster_id", "made_at"])
    if op.get_context().dialect.name == "postgresql":
        quote = op.get_context().dialect.identifier_preparer.quote
        for privilege, granted in PRIVILEGES.items():
            roles = op.get_bind().execute(sa.text(GRANTED), {"privilege": privilege}).scalars()
            for role in list(roles):
                op.execute(f"GRANT {granted} ON start_estimates TO {quote(role)}")


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("start_estimates")
