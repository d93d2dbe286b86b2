"""What acting on nodes needs to remember: a lease for each office, what stands changed of nodes, and counts of them.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OF_JOBS = "jobs"
TABLES = ("node_standings", "node_tallies")


def upgrade() -> None:
    """Give the leases that there are to the office of jobs, and make the tables."""
    kept = [{**lease, "office": OF_JOBS} for lease in _leases_there_are()]
    op.drop_table("leases")
    op.bulk_insert(_leases(sa.Column("office", sa.Text(), nullable=False), key=("cluster_id", "office")), kept)
    _node_standings()
    _node_tallies()


def downgrade() -> None:
    """Drop them; whatever stands changed of nodes must be taken back first: helios pause."""
    for table in reversed(TABLES):
        op.drop_table(table)
    of_jobs = [lease for lease in _leases_there_are() if lease["office"] == OF_JOBS]
    op.drop_table("leases")
    kept = [{name: value for name, value in lease.items() if name != "office"} for lease in of_jobs]
    op.bulk_insert(_leases(key=("cluster_id",)), kept)


def _cluster(table: str) -> tuple[sa.Column[int], sa.ForeignKeyConstraint]:
    name = f"fk_{table}_cluster_id_clusters"
    return (
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name=name),
    )


def _leases_there_are() -> list[dict[str, Any]]:
    # SQLite cannot change a primary key in place: the few rows are taken out and put back.
    return [dict(row._mapping) for row in op.get_bind().execute(sa.text("SELECT * FROM leases"))]


def _leases(*more: sa.Column[Any], key: tuple[str, ...]) -> sa.Table:
    return op.create_table(
        "leases",
        *_cluster("leases"),
        *more,
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*key, name="pk_leases"),
    )


def _node_standings() -> None:
    op.create_table(
        "node_standings",
        *_cluster("node_standings"),
        sa.Column("lever", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("own", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.Column("admins", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "lever", "node", "mode", name="pk_node_standings"),
    )


def _node_tallies() -> None:
    op.create_table(
        "node_tallies",
        *_cluster("node_tallies"),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("busy", sa.Integer(), nullable=False),
        sa.Column("asleep", sa.Integer(), nullable=False),
        sa.Column("falling_asleep", sa.Integer(), nullable=False),
        sa.Column("waking", sa.Integer(), nullable=False),
        sa.Column("by_helios", sa.Integer(), nullable=False),
        sa.Column("wanted", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "taken_at", "pool", name="pk_node_tallies"),
    )
