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
    REJECTS,
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


def _columns(kind: FrameKind, *nullable: str, category: TypeEngine[Any] = TYPES["category"]) -> Iterator[Column[Any]]:
    """Yield the columns of a kind of frame, with its categories stored as ``category``.

    Columns named in ``nullable`` may have missing values.
    """
    for column in kind.columns:
        kept_as = JobId if column.name == "job_id" else category if column.dtype == "category" else TYPES[column.dtype]
        yield Column(column.name, kept_as, nullable=column.name in nullable)


def _filled(kept_as: type[TypeEngine[Any]], *names: str) -> Iterator[Column[Any]]:
    """Yield columns of one type that are never missing."""
    yield from (Column(name, kept_as, nullable=False) for name in names)


def _cluster_column() -> Column[int]:
    return Column("cluster_id", Integer, ForeignKey("clusters.cluster_id"), nullable=False)


def _of_cluster(name: str, *columns: Column[Any], key: tuple[str, ...]) -> Table:
    """Return a table whose rows are told apart by their cluster and ``key``."""
    return Table(name, metadata, _cluster_column(), *columns, PrimaryKeyConstraint("cluster_id", *key))


def _numbered(name: str, number: str, *columns: Column[Any] | Index) -> Table:
    """Return a table whose rows are numbered as they are appended."""
    return Table(name, metadata, Column(number, Number, primary_key=True), _cluster_column(), *columns)


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
    *_filled(Text, "digest", "text"),
    UniqueConstraint("digest"),
)

# No foreign keys: checking a dozen for each job would cost more than loading it, and names are never deleted.
jobs = Table(
    "jobs",
    metadata,
    Column("cluster_id", Integer, nullable=False),
    *_columns(JOBS, *(set(JOBS.names) - NEVER_MISSING), category=BigInteger()),
    PrimaryKeyConstraint(*JOB_KEY),
    sqlite_with_rowid=False,
)

loads = Table(
    "loads",
    metadata,
    Column("load_id", Integer, primary_key=True),
    _cluster_column(),
    *_filled(Text, "path", "sha256", "format"),
    Column("timezone", Text),
    *_filled(BigInteger, "loaded_at", "rows_read", "jobs_new", "jobs_updated", "jobs_unchanged", "rejected"),
    Column("watermark", BigInteger),
    Column("notes", Text, nullable=False),
    UniqueConstraint("cluster_id", "sha256"),
)

rejects = Table(
    "rejects",
    metadata,
    Column("reject_id", Number, primary_key=True),
    Column("load_id", Integer, ForeignKey("loads.load_id"), nullable=False),
    *_columns(REJECTS),
    Index(None, "load_id", "line"),
)

nodes = _of_cluster("nodes", *_columns(NODES, "cpus", "gpu_type", "memory_mib"), key=("name", "partition"))

node_events = _of_cluster(
    "node_events", *_columns(NODE_EVENTS, "ended_at", "reason"), key=("node", "started_at", "state")
)

models = _of_cluster(
    "models",
    *_filled(Text, "model_id"),
    *_filled(BigInteger, "trained_at", "trained_until", "jobs"),
    *_filled(Text, "features", "scores", "artifact"),
    Column("manifest", Text),
    key=("model_id",),
)

# Appended to, never changed. No foreign key to a model, because models are deleted one day and these rows stay.
promotions = _numbered(
    "promotions",
    "promotion_id",
    *_columns(PROMOTIONS, "model_id", "previous", "candidate"),
    Index(None, "cluster_id", "promotion_id"),
)

predictions = _of_cluster(
    "predictions",
    *_filled(BigInteger, "submitted_at"),
    Column("job_id", JobId, nullable=False),
    *_filled(Integer, "restart"),
    *_filled(BigInteger, "made_at"),
    *_columns(PREDICTIONS, *PREDICTIONS.names),
    key=("submitted_at", "job_id", "restart", "made_at"),
)

decisions = _numbered(
    "decisions",
    "decision_id",
    *_columns(DECISIONS, "before", "after", "model_id", "outcome"),
    Index(None, "cluster_id", "decided_at"),
    Index(None, "cluster_id", "target", "decided_at"),
)

leases = _of_cluster(
    "leases",
    *_filled(Text, "domain"),
    *_filled(BigInteger, "token"),
    Column("holder", Text),
    *_filled(BigInteger, "expires_at"),
    key=("domain",),
)

applied_changes = _of_cluster(
    "applied_changes", *_columns(APPLIED_CHANGES, "value", "after"), key=("setting", "job_id", "mode")
)

applied_node_changes = _of_cluster(
    "applied_node_changes", *_columns(APPLIED_NODE_CHANGES, "value", "own", "after"), key=("setting", "node", "mode")
)

node_tallies = _of_cluster("node_tallies", *_columns(NODE_TALLIES, "wanted"), key=("taken_at", "pool"))

# State that the controllers need after a restart, as text in their own format.
memories = _of_cluster("memories", *_filled(Text, "name", "text"), *_filled(BigInteger, "written_at"), key=("name",))

modes = _numbered(
    "modes",
    "mode_id",
    *_filled(Text, "service", "mode"),
    Column("partitions", Text),
    Column("percent", Integer),
    *_filled(BigInteger, "set_at"),
    *_filled(Text, "set_by", "reason"),
)

cycles = _numbered(
    "cycles", "cycle_id", *_columns(CYCLES, "seconds", "suspended", "counts"), Index(None, "cluster_id", "taken_at")
)

coverage = _of_cluster("coverage", *_columns(COVERAGE), key=("source", "started_at"))
