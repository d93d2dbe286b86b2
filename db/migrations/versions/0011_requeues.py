"""List the runs of jobs that another run may follow, or that follow one.

Numbers of stored runs stay as they were read. Their next reading gives them the number in their job.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

JOB_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTERRUPTED = "('REQUEUED', 'PREEMPTED', 'NODE_FAIL', 'BOOT_FAIL', 'RESIZING')"

READERS = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'clusters' AND privilege_type = 'SELECT'
AND grantee NOT IN (current_user, 'PUBLIC') ORDER BY grantee"""


def upgrade() -> None:
    """Make the table, fill it, and let whoever reads the others read it."""
    op.create_table(
        "requeues",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("job_id", JOB_ID, nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_requeues_cluster_id_clusters"),
        sa.PrimaryKeyConstraint("cluster_id", "job_id", "submitted_at", name="pk_requeues"),
    )
    op.execute(
        "INSERT INTO requeues (cluster_id, job_id, submitted_at) "
        "SELECT DISTINCT cluster_id, job_id, submitted_at FROM jobs WHERE restart > 0 "
        f"OR state IN (SELECT name_id FROM names WHERE text IN {INTERRUPTED})"
    )
    if op.get_context().dialect.name == "postgresql":
        quote = op.get_context().dialect.identifier_preparer.quote
        for reader in list(op.get_bind().execute(sa.text(READERS)).scalars()):
            op.execute(f"GRANT SELECT ON requeues TO {quote(reader)}")


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("requeues")
