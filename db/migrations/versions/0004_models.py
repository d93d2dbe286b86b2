"""Models as records: what each was made of, and every decision about which of them is in charge.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Give the models that there are a place for their manifest, and make the table of promotions."""
    op.add_column("models", sa.Column("manifest", sa.Text(), nullable=True))
    op.create_table(
        "promotions",
        sa.Column("promotion_id", Number, nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("promoted_at", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("previous", sa.Text(), nullable=True),
        sa.Column("candidate", sa.Text(), nullable=True),
        sa.Column("promoted_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_promotions_cluster_id_clusters"),
        sa.PrimaryKeyConstraint("promotion_id", name="pk_promotions"),
    )
    op.create_index("ix_promotions_cluster_id_promotion_id", "promotions", ["cluster_id", "promotion_id"])


def downgrade() -> None:
    """Drop both; the newest model is in charge again."""
    op.drop_index("ix_promotions_cluster_id_promotion_id", table_name="promotions")
    op.drop_table("promotions")
    op.drop_column("models", "manifest")
