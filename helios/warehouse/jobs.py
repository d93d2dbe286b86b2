"""Storage of history, predictions and decisions, and the load of a trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid
from helios.model import DECISIONS, JOBS, PREDICTIONS, REJECTS, TIME, Batch, FrameKind
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import column_types, stored_column, stored_jobs, stored_time
from helios.warehouse.keys import StringTable, cluster_id_for_loading
from helios.warehouse.revising import Revisions, revise


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A load, as recorded in ``loads``.

    Attributes
    ----------
    cluster : str
        Name of the cluster; made if it is new.
    path, format : str
        Where the file was, and its format.
    sha256 : str
        Hash of its content: the same content is not loaded twice into one cluster.
    timezone : str or None
        The zone assumed for times without one. None if it is unknown, or if every time had a UTC offset.
    live : bool
        Whether the rows come from the live accounting. No file outranks them.
    """

    cluster: str
    path: str
    sha256: str
    format: str
    timezone: str | None
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Results of a load.

    Attributes
    ----------
    load_id : int
        Number of the load in ``loads`` and ``rejects``.
    cluster : str
        Cluster of the jobs.
    rows_read : int
        Jobs and rejects: the sum of new, updated and unchanged jobs and of rejects.
    jobs_new, jobs_updated, jobs_unchanged : int
        Jobs that were not stored before; that were stored and changed; that were stored and stay as they are.
    rejects : dict of str to int
        Refused rows, counted by reason.
    already_loaded : bool
        Whether the same content was loaded before. Nothing was done then, and the figures are those of that load.
    notes : tuple of str
        Messages for people, in the order in which they arose.
    """

    load_id: int
    cluster: str
    rows_read: int
    jobs_new: int
    jobs_updated: int
    jobs_unchanged: int
    rejects: dict[str, int]
    already_loaded: bool
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Tally:
    new: int = 0
    updated: int = 0
    unchanged: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    watermark: pd.Timestamp | None = None
    revisions: Revisions = field(default_factory=Revisions)

    def count_batch(self, batch: Batch, *, new: int, updated: int) -> None:
        """Count a batch of which ``new`` jobs were added and ``updated`` replaced."""
        self.new += new
        self.updated += updated
        self.unchanged += len(batch.jobs) - new - updated
        self.rejects.update(batch.rejects["reason"].astype("str"))
        self.notes.update(dict.fromkeys(batch.notes))
        if len(batch.jobs):
            last = batch.jobs["submitted_at"].max()
            self.watermark = last if self.watermark is None else max(last, self.watermark)

    def as_columns(self) -> dict[str, object]:
        """Return the figures as columns of ``loads``."""
        return {
            "rows_read": self.new + self.updated + self.unchanged + self.rejects.total(),
            "jobs_new": self.new,
            "jobs_updated": self.updated,
            "jobs_unchanged": self.unchanged,
            "rejected": self.rejects.total(),
            "watermark": None if self.watermark is None else stored_time(self.watermark),
            "notes": json.dumps([*self.notes, *self.revisions.notes()]),
        }


def load(connection: sa.Connection, bulk: Bulk, batches: Iterable[Batch], trace: LoadedFile) -> LoadReport:
    """Store ``batches`` as part of the caller's transaction.

    ``batches`` is not read if the same content is loaded already.

    Raises
    ------
    FrameInvalid
        A batch lacks a declared column, or a job its id or submit time.
    """
    cluster_id = cluster_id_for_loading(connection, name=trace.cluster, timezone=trace.timezone)
    if (before := _load_of(connection, cluster_id, trace.sha256)) is not None:
        return _report(connection, before, cluster=trace.cluster, already_loaded=True)
    tally, strings = _Tally(), StringTable(connection, bulk)
    load_id = _begin(connection, cluster_id, trace)
    for batch in batches:
        rows = stored_jobs(batch.jobs, cluster_id=cluster_id, strings=strings)
        new = bulk.insert(connection, schema.jobs, rows)
        updated = 0
        if new < len(rows):
            known = _most_complete(rows, live=trace.live)
            updated = revise(connection, bulk, known, cluster_id=cluster_id, live=trace.live, revisions=tally.revisions)
        refused = {name: stored_column(batch.rejects[name], dtype) for name, dtype in column_types(REJECTS).items()}
        bulk.insert(connection, schema.rejects, pa.table({"load_id": [load_id] * len(batch.rejects)} | refused))
        tally.count_batch(batch, new=new, updated=updated)
    connection.execute(sa.update(schema.loads).where(schema.loads.c.load_id == load_id).values(tally.as_columns()))
    after = _load_of(connection, cluster_id, trace.sha256)
    assert after is not None
    return _report(connection, after, cluster=trace.cluster, already_loaded=False)


def reject_counts(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the query that counts the rejects of some loads by reason.

    The most frequent reason comes first.
    """
    reason, rows = schema.rejects.c.reason, sa.func.count().label("rows")
    counts = sa.select(reason, rows).join_from(schema.rejects, schema.loads).where(of)
    return counts.group_by(reason).order_by(rows.desc(), reason)


def _begin(connection: sa.Connection, cluster_id: int, trace: LoadedFile) -> int:
    row = {
        "cluster_id": cluster_id,
        "path": trace.path,
        "sha256": trace.sha256,
        "format": trace.format,
        "timezone": trace.timezone,
        "loaded_at": stored_time(datetime.now(UTC)),
    }
    made = connection.execute(sa.insert(schema.loads).values(row | _Tally().as_columns()))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def _most_complete(rows: pa.Table, *, live: bool) -> pa.Table:
    """Return the row of each job that knows most.

    Values that this row lacks come from the job's other rows, as if those had been loaded before. Not so for a ``live``
    accounting, where a missing value means that there is none.
    """
    key = list(schema.JOB_KEY)
    keys = rows.select(key).to_pandas()
    ended = rows["ended_at"].is_valid().to_numpy() | rows["run_time_s"].is_valid().to_numpy()
    keys["knows"] = 2 * ended.astype("int8") + rows["started_at"].is_valid().to_numpy()
    ranked = keys.sort_values("knows", ascending=False, kind="stable")
    best = ranked.drop_duplicates(key).index.sort_values().to_numpy()
    if live or len(best) == len(keys):
        return rows.take(best)
    several = ranked.duplicated(key, keep=False)
    single = ranked.index[~several].sort_values().to_numpy()
    # Arrow's types hold whole microseconds exactly, also in a column with missing values.
    repeated = rows.take(ranked.index[several].to_numpy()).to_pandas(types_mapper=pd.ArrowDtype)
    merged = repeated.groupby(key, sort=False).first().reset_index()
    return pa.concat_tables([rows.take(single), pa.Table.from_pandas(merged, schema=rows.schema, preserve_index=False)])


def _load_of(connection: sa.Connection, cluster_id: int, sha256: str) -> sa.Row[tuple[object, ...]] | None:
    same = (schema.loads.c.cluster_id == cluster_id) & (schema.loads.c.sha256 == sha256)
    return connection.execute(sa.select(schema.loads).where(same)).one_or_none()


def _report(
    connection: sa.Connection, row: sa.Row[tuple[object, ...]], *, cluster: str, already_loaded: bool
) -> LoadReport:
    return LoadReport(
        load_id=row.load_id,
        cluster=cluster,
        rows_read=row.rows_read,
        jobs_new=row.jobs_new,
        jobs_updated=row.jobs_updated,
        jobs_unchanged=row.jobs_unchanged,
        rejects={
            str(reason): int(rows)
            for reason, rows in connection.execute(reject_counts(schema.loads.c.load_id == row.load_id))
        },
        already_loaded=already_loaded,
        notes=tuple(json.loads(row.notes)),
    )


# Other rows of a cluster: loads, rejects, nodes, predictions, decisions.

LOADS = {
    "load_id": "int64",
    "path": "str",
    "sha256": "str",
    "format": "str",
    "timezone": "object",
    "loaded_at": TIME,
    "rows_read": "int64",
    "jobs_new": "int64",
    "jobs_updated": "int64",
    "jobs_unchanged": "int64",
    "rejected": "int64",
    "watermark": TIME,
}
REJECTS_OF_A_CLUSTER = {"line": "int64", "reason": "category", "text": "str", "path": "str"}
JOB_OF_A_PREDICTION = {name: JOBS.by_name[name].dtype for name in ("job_id", "submitted_at", "restart")}
PREDICTION_TYPES = {**JOB_OF_A_PREDICTION, "made_at": TIME, **column_types(PREDICTIONS)}
_NEVER_MISSING_IN_DECISIONS = ("decided_at", "service", "mode", "action", "target", "reason")


def select_columns(table: sa.Table, cluster_id: int, names: Iterable[str]) -> sa.Select[Any]:
    """Return the query of some columns of all rows of a cluster."""
    return sa.select(*(table.c[name] for name in names)).where(table.c.cluster_id == cluster_id)


def add_predictions(
    connection: sa.Connection, bulk: Bulk, cluster_id: int, frame: pd.DataFrame, *, made_at: datetime
) -> int:
    """Store predictions and return how many were new.

    A stored prediction for the same job and ``made_at`` stays as it is.

    Raises
    ------
    FrameInvalid
        A column is missing.
    """
    declared = {name: dtype for name, dtype in PREDICTION_TYPES.items() if name != "made_at"}
    for name, dtype in declared.items():
        if name not in frame:
            raise FrameInvalid(f"a predictions frame lacks its column {name!r}, of type {dtype}")
    columns = {name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype) for name, dtype in declared.items()}
    same = {"cluster_id": [cluster_id] * len(frame), "made_at": [stored_time(made_at)] * len(frame)}
    return bulk.insert(connection, schema.predictions, pa.table(same | columns))


def add_decisions(connection: sa.Connection, cluster_id: int, decisions: pd.DataFrame) -> None:
    """Append decisions to the audit log.

    Stored decisions are never changed.

    Raises
    ------
    FrameInvalid
        A column is not declared in ``DECISIONS``, or lacks values that are never missing.
    """
    types = column_types(DECISIONS)
    if unknown := sorted(set(decisions.columns) - set(types)):
        raise FrameInvalid(f"a decisions frame has no column {', '.join(unknown)}")
    _refuse_missing("decisions", decisions, _NEVER_MISSING_IN_DECISIONS)
    rows = _rows(decisions, {name: dtype for name, dtype in types.items() if name in decisions})
    if rows:
        connection.execute(sa.insert(schema.decisions), [{"cluster_id": cluster_id} | row for row in rows])


def decision_columns(cluster_id: int, target: str, *, since: datetime | None) -> sa.Select[Any]:
    """Return the query of decisions about one target.

    They come oldest first.
    """
    table = schema.decisions
    query = select_columns(table, cluster_id, DECISIONS.names).where(table.c.target == target)
    if since is not None:
        query = query.where(table.c.decided_at >= stored_time(since))
    return query.order_by(table.c.decided_at, table.c.decision_id)


def _refuse_missing(what: str, frame: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame or frame[name].isna().any():
            raise FrameInvalid(f"a {what} frame has rows without {name}, which is never missing")


def _rows(frame: pd.DataFrame, dtypes: Mapping[str, str]) -> list[dict[str, Any]]:
    columns = {name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype) for name, dtype in dtypes.items()}
    rows: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return rows


def replace_rows(
    connection: sa.Connection,
    cluster_id: int,
    table: sa.Table,
    kind: FrameKind,
    frame: pd.DataFrame,
    *,
    never_missing: Sequence[str],
    key: Sequence[str],
) -> None:
    """Store rows in place of those with the same key.

    Of several rows with one key, the last counts. A missing key value is stored as an empty text.

    Raises
    ------
    FrameInvalid
        A column is missing or of another type, or lacks values that are never missing.
    """
    _refuse_missing(kind.name, kind.check(frame), never_missing)
    for row in _rows(frame, column_types(kind)):
        named = {name: "" if row[name] is None else row[name] for name in key}
        chosen = [table.c.cluster_id == cluster_id, *(table.c[name] == value for name, value in named.items())]
        connection.execute(sa.delete(table).where(*chosen))
        connection.execute(sa.insert(table).values({"cluster_id": cluster_id} | row | named))
