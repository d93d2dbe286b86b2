"""Tables of the database that this version of Helios expects.

``db/migrations`` makes them. For a site's own SQL: times are integers, microseconds since 1970-01-01 UTC. Texts of
``jobs`` with few distinct values are stored once in ``names`` and referred to by number. Both make bulk loads and reads
several times faster (benchmarks/warehouse_load.py). The view ``jobs_readable`` shows the same rows with text and dates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    COVERAGE,
    CYCLES,
    DECISIONS,
    JOBS,
    NODE_EVENTS,
    NODE_TALLIES,
    NODES,
    PREDICTIONS,
    PROMOTIONS,
    TIME,
    FrameKind,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows automatically only where the key's type is spelled INTEGER, which still holds 64 bits.
Number = BigInteger().with_variant(Integer(), "sqlite")
# Job ids are compared byte by byte on both databases. A PostgreSQL locale would compare them differently and slower.
JobId = Text().with_variant(Text(collation="C"), "postgresql")

NEVER_MISSING = {"job_id", "restart", "submitted_at", "gpus"}
JOB_KEY = ("cluster_id", "submitted_at", "job_id", "restart")


# Stored type of each type of a frame's column. Categories of jobs are stored as numbers of names instead.
TYPES: Mapping[str, TypeEngine[Any]] = {
    "category": Text(),
    "str": Text(),
    "float64": Double(),
    "int32": Integer(),
    "int64": BigInteger(),
    TIME: BigInteger(),
}


def _columns(kind: FrameKind, *nullable: str) -> Iterator[Column[Any]]:
    """Yield the columns of a kind of frame.

    Columns named in ``nullable`` may have missing values.
    """
    for column in kind.columns:
        kept_as = JobId if column.name == "job_id" else TYPES[column.dtype]
        yield Column(column.name, kept_as, nullable=column.name in nullable)


def _cluster_column() -> Column[int]:
    return Column("cluster_id", Integer, ForeignKey("clusters.cluster_id"), nullable=False)


clusters = Table(
    "clusters",
    metadata,
    Column("cluster_id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("timezone", Text),
    UniqueConstraint("name"),
)

# Unique by digest, because a PostgreSQL index takes no text above 2,704 bytes and node lists can be longer.
names = Table(
    "names",
    metadata,
    Column("name_id", Number, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("digest"),
)

# No foreign keys: checking a dozen for each job would cost more than loading it, and names are never deleted.
jobs = Table(
    "jobs",
    metadata,
    Column("cluster_id", Integer, nullable=False),
    *(
        Column(
            column.name,
            BigInteger() if column.dtype == "category" else JobId if column.name == "job_id" else TYPES[column.dtype],
            nullable=column.name not in NEVER_MISSING,
        )
        for column in JOBS.columns
    ),
    PrimaryKeyConstraint(*JOB_KEY),
    sqlite_with_rowid=False,
)

loads = Table(
    "loads",
    metadata,
    Column("load_id", Integer, primary_key=True),
    _cluster_column(),
    Column("path", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("timezone", Text),
    Column("loaded_at", BigInteger, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    Column("jobs_new", BigInteger, nullable=False),
    Column("jobs_updated", BigInteger, nullable=False),
    Column("jobs_unchanged", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("watermark", BigInteger),
    Column("notes", Text, nullable=False),
    UniqueConstraint("cluster_id", "sha256"),
)

rejects = Table(
    "rejects",
    metadata,
    Column("reject_id", Number, primary_key=True),
    Column("load_id", Integer, ForeignKey("loads.load_id"), nullable=False),
    Column("line", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("text", Text, nullable=False),
    Index(None, "load_id", "line"),
)

nodes = Table(
    "nodes",
    metadata,
    _cluster_column(),
    *_columns(NODES, "cpus", "gpu_type", "memory_mib"),
    PrimaryKeyConstraint("cluster_id", "name", "partition"),
)

node_events = Table(
    "node_events",
    metadata,
    _cluster_column(),
    *_columns(NODE_EVENTS, "ended_at", "reason"),
    PrimaryKeyConstraint("cluster_id", "node", "started_at", "state"),
)

models = Table(
    "models",
    metadata,
    _cluster_column(),
    Column("model_id", Text, nullable=False),
    Column("trained_at", BigInteger, nullable=False),
    Column("trained_until", BigInteger, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    Column("features", Text, nullable=False),
    Column("scores", Text, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("manifest", Text),
    PrimaryKeyConstraint("cluster_id", "model_id"),
)

# Appended to, never changed. No foreign key to a model, because models are deleted one day and these rows stay.
promotions = Table(
    "promotions",
    metadata,
    Column("promotion_id", Number, primary_key=True),
    _cluster_column(),
    *_columns(PROMOTIONS, "model_id", "previous", "candidate"),
    Index(None, "cluster_id", "promotion_id"),
)

predictions = Table(
    "predictions",
    metadata,
    _cluster_column(),
    Column("submitted_at", BigInteger, nullable=False),
    Column("job_id", JobId, nullable=False),
    Column("restart", Integer, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    *_columns(PREDICTIONS, *PREDICTIONS.names),
    PrimaryKeyConstraint("cluster_id", "submitted_at", "job_id", "restart", "made_at"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("decision_id", Number, primary_key=True),
    _cluster_column(),
    *_columns(DECISIONS, "before", "after", "model_id", "outcome"),
    Index(None, "cluster_id", "decided_at"),
    Index(None, "cluster_id", "target", "decided_at"),
)

leases = Table(
    "leases",
    metadata,
    _cluster_column(),
    Column("domain", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text),
    Column("expires_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("cluster_id", "domain"),
)

applied_changes = Table(
    "applied_changes",
    metadata,
    _cluster_column(),
    *_columns(APPLIED_CHANGES, "value", "after"),
    PrimaryKeyConstraint("cluster_id", "setting", "job_id", "mode"),
)

applied_node_changes = Table(
    "applied_node_changes",
    metadata,
    _cluster_column(),
    *_columns(APPLIED_NODE_CHANGES, "value", "own", "after"),
    PrimaryKeyConstraint("cluster_id", "setting", "node", "mode"),
)

node_tallies = Table(
    "node_tallies",
    metadata,
    _cluster_column(),
    *_columns(NODE_TALLIES, "wanted"),
    PrimaryKeyConstraint("cluster_id", "taken_at", "pool"),
)

# State that the controllers need after a restart, as text in their own format.
memories = Table(
    "memories",
    metadata,
    _cluster_column(),
    Column("name", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("written_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("cluster_id", "name"),
)

modes = Table(
    "modes",
    metadata,
    Column("mode_id", Number, primary_key=True),
    _cluster_column(),
    Column("service", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("partitions", Text),
    Column("percent", Integer),
    Column("set_at", BigInteger, nullable=False),
    Column("set_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

cycles = Table(
    "cycles",
    metadata,
    Column("cycle_id", Number, primary_key=True),
    _cluster_column(),
    *_columns(CYCLES, "seconds", "suspended", "counts"),
    Index(None, "cluster_id", "taken_at"),
)

coverage = Table(
    "coverage",
    metadata,
    _cluster_column(),
    *_columns(COVERAGE),
    PrimaryKeyConstraint("cluster_id", "source", "started_at"),
)
