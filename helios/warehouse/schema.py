"""Tables of the database that this version of Helios expects.

``db/migrations`` makes them. Times are integers, microseconds since 1970-01-01 UTC. Texts of ``jobs`` with few distinct
values are stored once in ``names`` and referred to by number. Both make bulk loads and reads several times faster
(benchmarks/warehouse_load.py). For SQL by hand, the view ``jobs_readable`` shows the same rows with text and dates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from helios import model
from helios.metrics.job_sums import DISTRIBUTIONS, LONGEST_SPAN_US, MEASURES
from helios.model import TIME, FrameKind

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows automatically only where the key's type is spelled INTEGER, which still holds 64 bits.
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Job ids are compared byte by byte on both databases. A PostgreSQL locale would compare them differently and slower.
JobId = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
"""Times are stored in microseconds."""
NEVER_MISSING = {"job_id", "restart", "submitted_at"}
JOB_KEY = ("cluster_id", "submitted_at", "job_id", "restart")


# Stored type of each type of a frame's column, except that categories of jobs are stored as numbers of names.
TYPES: Mapping[str, TypeEngine[Any]] = {
    "category": sa.Text(),
    "str": sa.Text(),
    "float64": sa.Double(),
    "int32": sa.Integer(),
    "int64": sa.BigInteger(),
    TIME: sa.BigInteger(),
}


def _columns(
    kind: FrameKind, *nullable: str, category: TypeEngine[Any] = TYPES["category"]
) -> Iterator[sa.Column[Any]]:
    """Yield the table columns of a kind of frame.

    Categories are stored as ``category``. Columns named in ``nullable`` may have missing values.
    """
    for column in kind.columns:
        sql_type = JobId if column.name == "job_id" else category if column.dtype == "category" else TYPES[column.dtype]
        yield sa.Column(column.name, sql_type, nullable=column.name in nullable)


def _not_null(sql_type: type[TypeEngine[Any]], *names: str) -> Iterator[sa.Column[Any]]:
    """Yield columns of one type that are never missing."""
    yield from (sa.Column(name, sql_type, nullable=False) for name in names)


def _cluster_column() -> sa.Column[int]:
    return sa.Column("cluster_id", sa.Integer, sa.ForeignKey("clusters.cluster_id"), nullable=False)


def _cluster_table(name: str, *columns: sa.Column[Any] | sa.Index, key: tuple[str, ...], **options: Any) -> sa.Table:
    """Return a table with the cluster and ``key`` as key."""
    key_of_cluster = sa.PrimaryKeyConstraint("cluster_id", *key)
    return sa.Table(name, metadata, _cluster_column(), *columns, key_of_cluster, **options)


def _numbered_table(name: str, number: str, *columns: sa.Column[Any] | sa.Index) -> sa.Table:
    """Return a table whose rows are numbered as they are appended."""
    return sa.Table(name, metadata, sa.Column(number, Number, primary_key=True), _cluster_column(), *columns)


clusters = sa.Table(
    "clusters",
    metadata,
    sa.Column("cluster_id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("timezone", sa.Text),
    sa.UniqueConstraint("name"),
)

# Unique by digest, because a PostgreSQL index takes no text above 2,704 bytes and node lists can be longer.
names = sa.Table(
    "names",
    metadata,
    sa.Column("name_id", Number, primary_key=True),
    *_not_null(sa.Text, "digest", "text"),
    sa.UniqueConstraint("digest"),
)

# No foreign keys, because checking a dozen for each job would cost more than loading it, and names are never deleted.
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("cluster_id", sa.Integer, nullable=False),
    *_columns(model.JOBS, *(set(model.JOBS.names) - NEVER_MISSING), category=sa.BigInteger()),
    sa.PrimaryKeyConstraint(*JOB_KEY),
    sqlite_with_rowid=False,
)


def _index_of_some(name: str, condition: sa.ColumnElement[bool], *columns: str) -> sa.ColumnElement[bool]:
    """Add an index of the jobs that meet a condition, and return the condition."""
    condition = condition.self_group()
    sa.Index(name, *(jobs.c[column] for column in columns), sqlite_where=condition, postgresql_where=condition)
    return condition


# Jobs that a moment may lie in long after their submission, of which there are few.
IS_UNENDED = _index_of_some(
    "ix_jobs_unended", jobs.c.ended_at.is_(None), "submitted_at", "cluster_id", "state", "started_at", "run_time_s"
)
IS_LONG = _index_of_some(
    "ix_jobs_long",
    jobs.c.ended_at - jobs.c.submitted_at > sa.literal_column(str(DAY_US)),
    *("ended_at", "submitted_at", "cluster_id"),
)
# Those that ``JobArrays.are_settled`` leaves out of sums, apart from those without an end.
IS_ODD = _index_of_some(
    "ix_jobs_odd",
    (jobs.c.submitted_at - jobs.c.started_at > sa.literal_column(str(DAY_US)))
    | (jobs.c.started_at > jobs.c.ended_at)
    | ((jobs.c.started_at == jobs.c.ended_at) & (jobs.c.run_time_s > sa.literal_column("0")))
    | (jobs.c.ended_at - jobs.c.submitted_at > sa.literal_column(str(LONGEST_SPAN_US))),
    *("submitted_at", "cluster_id"),
)


def in_cluster_by_index(cluster_id: int) -> sa.ColumnElement[bool]:
    """Return the condition that jobs are of a cluster.

    It is for queries by one of the indexes above. As a sum it hides from SQLite the primary key, which that would scan
    for a lack of statistics.
    """
    return jobs.c.cluster_id + sa.literal_column("0") == cluster_id


# Sums over jobs, as helios.metrics.job_sums makes them. Each level is of days or months, and of all groups or of those
# of one column; the other columns are then ALL_GROUPS. Groups are numbers of names, 0 for none.
job_sums = _cluster_table(
    "job_sums",
    *_not_null(sa.Integer, "level"),
    *_not_null(sa.BigInteger, "begins_at", "partition", "account", "user"),
    *_not_null(sa.Integer, "size"),
    *_not_null(sa.BigInteger, *MEASURES),
    *_not_null(sa.Text, *DISTRIBUTIONS),
    key=("level", "begins_at", "partition", "account", "user", "size"),
    sqlite_with_rowid=False,
)

# The runs of ``jobs`` that another run of their job may follow, or that follow one.
requeues = _cluster_table(
    "requeues",
    sa.Column("job_id", JobId, nullable=False),
    *_not_null(sa.BigInteger, "submitted_at"),
    key=("job_id", "submitted_at"),
)

loads = sa.Table(
    "loads",
    metadata,
    sa.Column("load_id", sa.Integer, primary_key=True),
    _cluster_column(),
    *_not_null(sa.Text, "path", "sha256", "format"),
    sa.Column("timezone", sa.Text),
    *_not_null(sa.BigInteger, "loaded_at", "rows_read", "jobs_new", "jobs_updated", "jobs_unchanged", "rejected"),
    sa.Column("watermark", sa.BigInteger),
    sa.Column("notes", sa.Text, nullable=False),
    sa.UniqueConstraint("cluster_id", "sha256"),
)

rejects = sa.Table(
    "rejects",
    metadata,
    sa.Column("reject_id", Number, primary_key=True),
    sa.Column("load_id", sa.Integer, sa.ForeignKey("loads.load_id"), nullable=False),
    *_columns(model.REJECTS),
    sa.Index(None, "load_id", "line"),
)

nodes = _cluster_table("nodes", *_columns(model.NODES, "cpus", "gpu_type", "memory_mib"), key=("name", "partition"))

node_events = _cluster_table(
    "node_events", *_columns(model.NODE_EVENTS, "ended_at", "reason"), key=("node", "started_at", "state")
)

models = _cluster_table(
    "models",
    *_not_null(sa.Text, "model_id"),
    *_not_null(sa.BigInteger, "trained_at", "trained_until", "jobs"),
    *_not_null(sa.Text, "features", "scores", "artifact"),
    sa.Column("manifest", sa.Text),
    key=("model_id",),
)

# Rows are added and never changed. They have no foreign key to a model, because models are deleted before them.
promotions = _numbered_table(
    "promotions",
    "promotion_id",
    *_columns(model.PROMOTIONS, "model_id", "previous", "candidate"),
    sa.Index(None, "cluster_id", "promotion_id"),
)

predictions = _cluster_table(
    "predictions",
    *_not_null(sa.BigInteger, "submitted_at"),
    sa.Column("job_id", JobId, nullable=False),
    *_not_null(sa.Integer, "restart"),
    *_not_null(sa.BigInteger, "made_at"),
    *_columns(model.PREDICTIONS, *model.PREDICTIONS.names),
    key=("submitted_at", "job_id", "restart", "made_at"),
)

# Estimates of starts of waiting jobs, as they were made.
start_estimates = _cluster_table(
    "start_estimates",
    *_columns(model.START_ESTIMATES, "p10_at", "p50_at", "p90_at"),
    sa.Index(None, "cluster_id", "made_at"),
    key=("submitted_at", "job_id", "restart", "made_at"),
)

_USE_KEY = ("submitted_at", "job_id", "restart", "source")
_NEVER_MISSING_IN_USE = {*_USE_KEY, "quality", "node", "gpu"}

job_use = _cluster_table(
    "job_use",
    *_columns(model.JOB_USE, *(set(model.JOB_USE.names) - _NEVER_MISSING_IN_USE)),
    key=_USE_KEY,
    sqlite_with_rowid=False,
)
gpu_use = _cluster_table(
    "gpu_use",
    *_columns(model.GPU_USE, *(set(model.GPU_USE.names) - _NEVER_MISSING_IN_USE)),
    key=(*_USE_KEY, "node", "gpu"),
    sqlite_with_rowid=False,
)

decisions = _numbered_table(
    "decisions",
    "decision_id",
    *_columns(model.DECISIONS, "before", "after", "model_id", "outcome"),
    sa.Index(None, "cluster_id", "decided_at"),
    sa.Index(None, "cluster_id", "target", "decided_at"),
)

leases = _cluster_table(
    "leases",
    *_not_null(sa.Text, "domain"),
    *_not_null(sa.BigInteger, "token"),
    sa.Column("holder", sa.Text),
    *_not_null(sa.BigInteger, "expires_at"),
    key=("domain",),
)

applied_changes = _cluster_table(
    "applied_changes", *_columns(model.APPLIED_CHANGES, "value", "after"), key=("setting", "job_id", "mode")
)

applied_node_changes = _cluster_table(
    "applied_node_changes",
    *_columns(model.APPLIED_NODE_CHANGES, "value", "own", "after"),
    key=("setting", "node", "mode"),
)

node_tallies = _cluster_table("node_tallies", *_columns(model.NODE_TALLIES, "wanted"), key=("taken_at", "pool"))

# State that the controllers need after a restart, as text in their own format.
memories = _cluster_table(
    "memories",
    *_not_null(sa.Text, "name", "text"),
    *_not_null(sa.BigInteger, "written_at"),
    key=("name",),
)

modes = _numbered_table(
    "modes",
    "mode_id",
    *_not_null(sa.Text, "service", "mode"),
    sa.Column("partitions", sa.Text),
    sa.Column("percent", sa.Integer),
    *_not_null(sa.BigInteger, "set_at"),
    *_not_null(sa.Text, "set_by", "reason"),
)

cycles = _numbered_table(
    "cycles",
    "cycle_id",
    *_columns(model.CYCLES, "seconds", "suspended", "counts"),
    sa.Index(None, "cluster_id", "taken_at"),
)

coverage = _cluster_table("coverage", *_columns(model.COVERAGE), key=("source", "started_at"))

# Of a user, not of a cluster: a pool may run anywhere. Parameters, speeds (with what is known of other sizes),
# metrics and placement are JSON.
trial_runs = sa.Table(
    "trial_runs",
    metadata,
    *_not_null(sa.Text, "pool"),
    *_not_null(sa.Integer, "number", "attempt"),
    *_not_null(sa.Text, "user", "program", "family", "device_kind", "device_model", "outcome"),
    *_not_null(sa.Text, "parameters", "speeds", "metrics"),
    *_not_null(sa.BigInteger, "started_at"),
    *_not_null(sa.Double, "seconds"),
    *(
        sa.Column(name, sa.Double)
        for name in ("start_up_s", "progress", "peak_memory_mib", "memory_limit_mib", "utilization", "energy_j")
    ),
    sa.Column("placement", sa.Text),
    *(sa.Column(name, sa.Text) for name in ("metric", "direction", "curve")),
    sa.PrimaryKeyConstraint("pool", "number", "attempt"),
    sa.Index(None, "user", "program", "started_at"),
)
