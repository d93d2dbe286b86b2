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

# What jobs_readable shows: columns as they are, as dates, and as the names that numbers stand for.
PLAIN = ("job_id", "restart", "array_job_id", "array_task_id", "het_job_id", "het_job_offset", "name")
NAMED = ("user", "group", "account", "qos", "partition", "state", "exit_code")
TIMES = ("submitted_at", "eligible_at", "started_at", "ended_at")
SIZES = ("run_time_s", "time_limit_s", "nodes", "cpus", "gpus")
LATER = ("gpu_type", "memory_mib", "tres_requested", "tres_allocated", "node_list")
TEXTS = {*NAMED, *LATER} - {"memory_mib"}


GRANTED = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_name = 'jobs_readable' AND privilege_type = 'SELECT' AND grantee != current_user ORDER BY grantee"""


def upgrade() -> None:
    """Add the columns, also to the view for people."""
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.Double(), nullable=True))
    readers = _drop_view()
    _make_view((*PLAIN, *NAMED, *TIMES, *SIZES, *COLUMNS, *LATER), readers)


def downgrade() -> None:
    """Remove the columns."""
    readers = _drop_view()
    for name in COLUMNS:
        op.drop_column("jobs", name)
    _make_view((*PLAIN, *NAMED, *TIMES, *SIZES, *LATER), readers)


def _drop_view() -> list[str]:
    """Drop the view and return the roles that could read it."""
    readers: list[str] = []
    if op.get_context().dialect.name == "postgresql":
        readers = list(op.get_bind().execute(sa.text(GRANTED)).scalars())
    op.execute("DROP VIEW jobs_readable")
    return readers


def _make_view(columns: tuple[str, ...], readers: list[str]) -> None:
    shown = ", ".join(_shown(column) for column in columns)
    op.execute(
        f"CREATE VIEW jobs_readable AS SELECT clusters.name AS cluster, {shown} "
        "FROM jobs JOIN clusters ON clusters.cluster_id = jobs.cluster_id"
    )
    quote = op.get_context().dialect.identifier_preparer.quote
    for reader in readers:
        op.execute(f"GRANT SELECT ON jobs_readable TO {quote(reader)}")


def _shown(column: str) -> str:
    if column in TEXTS:
        return f'(SELECT text FROM names WHERE name_id = jobs."{column}") AS "{column}"'
    if column in TIMES and op.get_context().dialect.name == "postgresql":
        return f"to_timestamp(jobs.{column} / 1000000.0) AS {column}"
    if column in TIMES:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', jobs.{column} / 1000000.0, 'unixepoch') AS {column}"
    return f"jobs.{column}"
