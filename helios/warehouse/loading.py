"""One trace file into the warehouse, all of it or nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa
from sqlalchemy import Connection, Row, func, insert, select, update

from helios.model import REJECTS, Batch
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading
from helios.warehouse.columns import stored_column, stored_jobs, stored_time
from helios.warehouse.names import NameBook
from helios.warehouse.revising import Revisions, revise


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What a load is recorded under.

    Attributes
    ----------
    cluster : str
        Name of the cluster; made if it is new.
    path, format : str
        Where the file was, and how it was read.
    sha256 : str
        Hash of its content: the same content is not loaded twice into one cluster.
    timezone : str or None
        The zone assumed for times without one; None: unknown, or every time had its own.
    live : bool
        Whether it is what a live accounting said, which no file outranks.
    """

    cluster: str
    path: str
    sha256: str
    format: str
    timezone: str | None
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load found and did.

    Attributes
    ----------
    load_id : int
        Names the load in ``loads`` and ``rejects``.
    cluster : str
        Loaded into.
    rows_read : int
        Jobs and rejects; new + updated + unchanged jobs + rejects is this number.
    jobs_new, jobs_updated, jobs_unchanged : int
        Not known before; known, and replaced by what this load says; nothing new about them.
    rejects : dict of str to int
        Rows that make no sense, counted by reason.
    already_loaded : bool
        True: this content was loaded before, nothing was done now, and the figures are those of that load.
    notes : tuple of str
        Things a person should be told, in the order they arose.
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

    def see(self, batch: Batch, *, new: int, updated: int) -> None:
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


def load(connection: Connection, bulk: Bulk, batches: Iterable[Batch], trace: TraceFile) -> LoadReport:
    """Store ``batches`` as part of the caller's transaction.

    ``batches`` is not touched if the same content is loaded already.

    Raises
    ------
    FrameInvalid
        A batch lacks a declared column, or a job its id or submit time.
    """
    cluster_id = cluster_id_for_loading(connection, name=trace.cluster, timezone=trace.timezone)
    if (before := _load_of(connection, cluster_id, trace.sha256)) is not None:
        return _report(connection, before, cluster=trace.cluster, already_loaded=True)
    tally, book = _Tally(), NameBook(connection, bulk)
    load_id = _begin(connection, cluster_id, trace)
    for batch in batches:
        rows = stored_jobs(batch.jobs, cluster_id=cluster_id, book=book)
        new = bulk.insert(connection, schema.jobs, rows)
        updated = 0
        if new < len(rows):
            known = _best_known(rows, live=trace.live)
            updated = revise(connection, bulk, known, cluster_id=cluster_id, live=trace.live, revisions=tally.revisions)
        _keep_rejects(connection, bulk, load_id, batch.rejects)
        tally.see(batch, new=new, updated=updated)
    connection.execute(update(schema.loads).where(schema.loads.c.load_id == load_id).values(tally.as_columns()))
    after = _load_of(connection, cluster_id, trace.sha256)
    assert after is not None
    return _report(connection, after, cluster=trace.cluster, already_loaded=False)


def reject_counts(connection: Connection, *, load_id: int) -> dict[str, int]:
    """Return the rejects of a load counted by reason, most frequent first."""
    rows = func.count().label("rows")
    reason = schema.rejects.c.reason
    query = (
        select(reason, rows).where(schema.rejects.c.load_id == load_id).group_by(reason).order_by(rows.desc(), reason)
    )
    return {str(found): int(number) for found, number in connection.execute(query)}


def _begin(connection: Connection, cluster_id: int, trace: TraceFile) -> int:
    row = {
        "cluster_id": cluster_id,
        "path": trace.path,
        "sha256": trace.sha256,
        "format": trace.format,
        "timezone": trace.timezone,
        "loaded_at": stored_time(datetime.now(UTC)),
    }
    made = connection.execute(insert(schema.loads).values(row | _Tally().as_columns()))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def _best_known(rows: pa.Table, *, live: bool) -> pa.Table:
    """Return one row for each job, the one that knows most of its run.

    What that row does not know comes from the job's other rows, as it would have if they had been loaded before; not
    from a ``live`` accounting, where it is not so.
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


def _keep_rejects(connection: Connection, bulk: Bulk, load_id: int, rejects: pd.DataFrame) -> None:
    columns = {column.name: stored_column(rejects[column.name], column.dtype) for column in REJECTS.columns}
    bulk.insert(connection, schema.rejects, pa.table({"load_id": [load_id] * len(rejects)} | columns))


def _load_of(connection: Connection, cluster_id: int, sha256: str) -> Row[tuple[object, ...]] | None:
    same = (schema.loads.c.cluster_id == cluster_id) & (schema.loads.c.sha256 == sha256)
    return connection.execute(select(schema.loads).where(same)).one_or_none()


def _report(connection: Connection, row: Row[tuple[object, ...]], *, cluster: str, already_loaded: bool) -> LoadReport:
    return LoadReport(
        load_id=row.load_id,
        cluster=cluster,
        rows_read=row.rows_read,
        jobs_new=row.jobs_new,
        jobs_updated=row.jobs_updated,
        jobs_unchanged=row.jobs_unchanged,
        rejects=reject_counts(connection, load_id=row.load_id),
        already_loaded=already_loaded,
        notes=tuple(json.loads(row.notes)),
    )
