"""Add sums over jobs by day and month, and indexes of the jobs that are long or have no end.

``Warehouse.upgrade`` fills the table, since the rules of the sums are not those of a migration.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

KEY = ("cluster_id", "level", "begins_at", "partition", "account", "user", "size")
SMALL = {"cluster_id", "level", "size"}
COUNTS = ("submitted", "finished", "failed", "timed_out", "gpus_unknown", "waits", "wait_ms", "started", "ended")
SUMS = ("present", "with_gpus", "with_nodes", "gpu_ms", "cpu_ms", "node_ms", "lost_gpu_ms", "lost_cpu_ms")
QUEUED = ("queued_gpu_ms", "queued_cpu_ms")
DISTRIBUTIONS = ("wait", "run_time", "over_asked")
INDEXES = {
    "unended": ("submitted_at, cluster_id, state, started_at, run_time_s", "ended_at IS NULL"),
    "long": ("ended_at, submitted_at, cluster_id", "ended_at - submitted_at > 86400000000"),
    "odd": (
        "submitted_at, cluster_id",
        "submitted_at - started_at > 86400000000 OR started_at > ended_at OR started_at = ended_at AND run_time_s > 0 "
        "OR ended_at - submitted_at > 8640000000000",
    ),
}
GRANTED = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'jobs' AND privilege_type = :privilege
AND grantee NOT IN (current_user, 'PUBLIC') ORDER BY grantee"""
PRIVILEGES = {
    "SELECT": ("SELECT ON job_sums",),
    # Who adds jobs lists requeued runs too, which 0011 forgot.
    "INSERT": ("INSERT, UPDATE, DELETE ON job_sums", "INSERT ON requeues"),
}
"""Privileges that a role gets, by those that it has on the jobs."""


def upgrade() -> None:
    """Make the table and the indexes, and let roles use it as they use the jobs."""
    op.create_table(
        "job_sums",
        *(sa.Column(name, sa.Integer() if name in SMALL else sa.BigInteger(), nullable=False) for name in KEY),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in (*COUNTS, *SUMS, *QUEUED)),
        *(sa.Column(name, sa.Text(), nullable=False) for name in DISTRIBUTIONS),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_job_sums_cluster_id_clusters"),
        sa.PrimaryKeyConstraint(*KEY, name="pk_job_sums"),
        sqlite_with_rowid=False,
    )
    for name, (columns, condition) in INDEXES.items():
        op.execute(f"CREATE INDEX ix_jobs_{name} ON jobs ({columns}) WHERE {condition}")
    if op.get_context().dialect.name == "postgresql":
        quote = op.get_context().dialect.identifier_preparer.quote
        for privilege, granted in PRIVILEGES.items():
            roles = op.get_bind().execute(sa.text(GRANTED), {"privilege": privilege}).scalars()
            for role in list(roles):
                for what in granted:
                    op.execute(f"GRANT {what} TO {quote(role)}")


def downgrade() -> None:
    """Drop the table and the indexes."""
    for name in INDEXES:
        op.execute(f"DROP INDEX ix_jobs_{name}")
    op.drop_table("job_sums")
