"""What acting on a live cluster needs to remember: who writes, what stands, how far services may go, what was read.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JOB_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TABLES = ("leases", "standings", "memories", "modes", "turns", "coverage")


def upgrade() -> None:
    """Make the tables."""
    _leases()
    _standings()
    _memories()
    _modes()
    _turns()
    _coverage()


def downgrade() -> None:
    """Drop them; whatever stands changed on the cluster must be taken back first: helios pause."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _cluster(table: str) -> tuple[sa.Column[int], sa.ForeignKeyConstraint]:
    name = f"fk_{table}_cluster_id_clusters"
    return (
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name=name),
    )


def _leases() -> None:
    op.create_table(
        "leases",
        *_cluster("leases"),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", name="pk_leases"),
    )


def _standings() -> None:
    op.create_table(
        "standings",
        *_cluster("standings"),
        sa.Column("lever", sa.Text(), nullable=False),
        sa.Column("job_id", JOB_ID, nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.Column("admins", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "lever", "job_id", "mode", name="pk_standings"),
    )


def _memories() -> None:
    op.create_table(
        "memories",
        *_cluster("memories"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "name", name="pk_memories"),
    )


def _modes() -> None:
    op.create_table(
        "modes",
        sa.Column("mode_id", NUMBER, nullable=False),
        *_cluster("modes"),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("partitions", sa.Text(), nullable=True),
        sa.Column("percent", sa.Integer(), nullable=True),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("mode_id", name="pk_modes"),
    )


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("turn_id", NUMBER, nullable=False),
        *_cluster("turns"),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("pending", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("gpus_pending", sa.BigInteger(), nullable=False),
        sa.Column("gpus_running", sa.BigInteger(), nullable=False),
        sa.Column("acted", sa.Integer(), nullable=False),
        sa.Column("still", sa.Text(), nullable=True),
        sa.Column("counts", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("turn_id", name="pk_turns"),
    )
    op.create_index("ix_turns_cluster_id_taken_at", "turns", ["cluster_id", "taken_at"])


def _coverage() -> None:
    op.create_table(
        "coverage",
        *_cluster("coverage"),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "source", "started_at", name="pk_coverage"),
    )
