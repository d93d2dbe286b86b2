"""The first schema: clusters, jobs, nodes, and what Helios reads, learns and decides.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JOB_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TABLES = ("clusters", "names", "jobs", "loads", "rejects", "nodes", "node_events", "models", "predictions", "decisions")

# What jobs_readable shows of each column of jobs: as it is, as a date, or as the name a number stands for.
PLAIN = ["job_id", "restart", "array_job_id", "array_task_id", "het_job_id", "het_job_offset", "name"]
NAMED = ["user", "group", "account", "qos", "partition", "state", "exit_code"]
TIMES = ["submitted_at", "eligible_at", "started_at", "ended_at"]
SIZES = ["run_time_s", "time_limit_s", "nodes", "cpus", "gpus"]
LATER = ["gpu_type", "memory_mib", "tres_requested", "tres_allocated", "node_list"]
TEXTS = {*NAMED, *LATER} - {"memory_mib"}


def upgrade() -> None:
    """Make every table, and the view for people."""
    _clusters()
    _names()
    _jobs()
    _loads()
    _rejects()
    _nodes()
    _node_events()
    _models()
    _predictions()
    _decisions()
    op.execute(_jobs_readable(op.get_context().dialect.name))


def downgrade() -> None:
    """Drop everything, the history included."""
    op.execute("DROP VIEW jobs_readable")
    for table in reversed(TABLES):
        op.drop_table(table)


def _jobs_readable(dialect: str) -> str:
    shown = [_shown(column, dialect) for column in (*PLAIN, *NAMED, *TIMES, *SIZES, *LATER)]
    return (
        f"CREATE VIEW jobs_readable AS SELECT clusters.name AS cluster, {', '.join(shown)} "
        "FROM jobs JOIN clusters ON clusters.cluster_id = jobs.cluster_id"
    )


def _shown(column: str, dialect: str) -> str:
    if column in TEXTS:
        return f'(SELECT text FROM names WHERE name_id = jobs."{column}") AS "{column}"'
    if column in TIMES and dialect == "postgresql":
        return f"to_timestamp(jobs.{column} / 1000000.0) AS {column}"
    if column in TIMES:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', jobs.{column} / 1000000.0, 'unixepoch') AS {column}"
    return f"jobs.{column}"


def _clusters() -> None:
    op.create_table(
        "clusters",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", name="pk_clusters"),
        sa.UniqueConstraint("name", name="uq_clusters_name"),
    )


def _names() -> None:
    op.create_table(
        "names",
        sa.Column("name_id", NUMBER, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name_id", name="pk_names"),
        sa.UniqueConstraint("digest", name="uq_names_digest"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("job_id", JOB_ID, nullable=False),
        sa.Column("restart", sa.Integer(), nullable=False),
        sa.Column("array_job_id", sa.Text(), nullable=True),
        sa.Column("array_task_id", sa.Text(), nullable=True),
        sa.Column("het_job_id", sa.Text(), nullable=True),
        sa.Column("het_job_offset", sa.Double(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("user", sa.BigInteger(), nullable=True),
        sa.Column("group", sa.BigInteger(), nullable=True),
        sa.Column("account", sa.BigInteger(), nullable=True),
        sa.Column("qos", sa.BigInteger(), nullable=True),
        sa.Column("partition", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("eligible_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("run_time_s", sa.Double(), nullable=True),
        sa.Column("time_limit_s", sa.Double(), nullable=True),
        sa.Column("nodes", sa.Double(), nullable=True),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_type", sa.BigInteger(), nullable=True),
        sa.Column("memory_mib", sa.Double(), nullable=True),
        sa.Column("tres_requested", sa.BigInteger(), nullable=True),
        sa.Column("tres_allocated", sa.BigInteger(), nullable=True),
        sa.Column("node_list", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "submitted_at", "job_id", "restart", name="pk_jobs"),
        sqlite_with_rowid=False,
    )


def _loads() -> None:
    op.create_table(
        "loads",
        sa.Column("load_id", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=True),
        sa.Column("loaded_at", sa.BigInteger(), nullable=False),
        sa.Column("rows_read", sa.BigInteger(), nullable=False),
        sa.Column("jobs_new", sa.BigInteger(), nullable=False),
        sa.Column("jobs_updated", sa.BigInteger(), nullable=False),
        sa.Column("jobs_unchanged", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("watermark", sa.BigInteger(), nullable=True),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("load_id", name="pk_loads"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_loads_cluster_id_clusters"),
        sa.UniqueConstraint("cluster_id", "sha256", name="uq_loads_cluster_id_sha256"),
    )


def _rejects() -> None:
    op.create_table(
        "rejects",
        sa.Column("reject_id", NUMBER, nullable=False),
        sa.Column("load_id", sa.Integer(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("reject_id", name="pk_rejects"),
        sa.ForeignKeyConstraint(["load_id"], ["loads.load_id"], name="fk_rejects_load_id_loads"),
    )
    op.create_index("ix_rejects_load_id_line", "rejects", ["load_id", "line"])


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=True),
        sa.Column("memory_mib", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "name", "partition", name="pk_nodes"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_nodes_cluster_id_clusters"),
    )


def _node_events() -> None:
    op.create_table(
        "node_events",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "node", "started_at", "state", name="pk_node_events"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_node_events_cluster_id_clusters"),
    )


def _models() -> None:
    op.create_table(
        "models",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("trained_at", sa.BigInteger(), nullable=False),
        sa.Column("trained_until", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("features", sa.Text(), nullable=False),
        sa.Column("scores", sa.Text(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "model_id", name="pk_models"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_models_cluster_id_clusters"),
    )


def _predictions() -> None:
    op.create_table(
        "predictions",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("job_id", JOB_ID, nullable=False),
        sa.Column("restart", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("p10_s", sa.Double(), nullable=True),
        sa.Column("p50_s", sa.Double(), nullable=True),
        sa.Column("p90_s", sa.Double(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "submitted_at", "job_id", "restart", "made_at", name="pk_predictions"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_predictions_cluster_id_clusters"),
    )


def _decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("decision_id", NUMBER, nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decisions"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.cluster_id"], name="fk_decisions_cluster_id_clusters"),
    )
    op.create_index("ix_decisions_cluster_id_decided_at", "decisions", ["cluster_id", "decided_at"])
