"""Add what jobs used, as measured.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

KEY = ("cluster_id", "submitted_at", "job_id", "restart", "source")
BUSY = (
    *("utilization", "utilization_p95", "utilization_max", "idle_share", "longest_idle_s"),
    *("gpu_memory_peak_mib", "gpu_memory_total_mib", "power_w", "energy_j"),
)
OF_JOBS = (
    *("samples", "covered_s", "gpus_measured", *BUSY, "utilization_later", "cpu_s", "memory_peak_mib"),
    *("memory_limit_mib", "is_mig", "is_shared", "is_interactive"),
)
GRANTED = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'jobs' AND privilege_type = :privilege
AND grantee NOT IN (current_user, 'PUBLIC') ORDER BY grantee"""
PRIVILEGES = {"SELECT": "SELECT", "INSERT": "INSERT, UPDATE, DELETE"}
"""Privileges that a role gets, by those that it has on the jobs."""


def upgrade() -> None:
    """Make the tables, and let roles use them as they use the jobs."""
    texts = [sa.Column("busy_means", sa.Text()), sa.Column("quality", sa.Text(), nullable=False)]
    _create("job_use", KEY, *texts, *(sa.Column(name, sa.Double()) for name in OF_JOBS))
    _create("gpu_use", (*KEY, "node", "gpu"), *(sa.Column(name, sa.Double()) for name in BUSY))
    if op.get_context().dialect.name == "postgresql":
        quote = op.get_context().dialect.identifier_preparer.quote
        for privilege, granted in PRIVILEGES.items():
            roles = op.get_bind().execute(sa.text(GRANTED), {"privilege": privilege}).scalars()
            for role in list(roles):
                op.execute(f"GRANT {granted} ON job_use, gpu_use TO {quote(role)}")


def _create(name: str, key: tuple[str, ...], *columns: sa.Column[object]) -> None:
    job_id = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    types = {"cluster_id": sa.Integer(), "submitted_at": sa.BigInteger(), "job_id": job_id, "restart": sa.Integer()}
    op.create_table(
        name,
        *(sa.Column(column, types.get(column, sa.Text()), nullable=False) for column in key),
        *columns,
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name=f"fk_{name}_cluster_id_clusters"),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("gpu_use")
    op.drop_table("job_use")
