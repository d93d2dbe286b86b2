"""Load of a trace into the warehouse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa

from helios.errors import NothingUnderstood
from helios.metrics.job_sums import STATES
from helios.model import REJECTS, Batch
from helios.warehouse import old_readings, schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, cluster_timezone
from helios.warehouse.columns import StringTable, column_types, stored_column, stored_jobs, stored_time
from helios.warehouse.job_sums import SumChanges, rebuild
from helios.warehouse.requeues import ColumnChange, RunNumbers
from helios.warehouse.revisions import Revisions, Tally, revise
from helios.warehouse.schema import JOB_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """File or live reading that is loaded, as recorded in ``loads``.

    Attributes
    ----------
    cluster : str
        Name of the cluster; made if it is new.
    path, format : str
        Where the file was, and its format.
    sha256 : str
        Hash of its content. The same content is not loaded twice into one cluster.
    timezone : str or None
        The zone assumed for times without one. None if it is unknown, or if every time had a UTC offset.
    live : bool
        Whether the rows come from the live accounting. No file replaces them.
    again : bool
        Whether to load content that was loaded before once more, and to list what changes.
    """

    cluster: str
    path: str
    sha256: str
    format: str
    timezone: str | None
    live: bool = False
    again: bool = False


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
        Number of rows, which is the sum of new, updated and unchanged jobs and of rejects.
    jobs_new, jobs_updated, jobs_unchanged : int
        Jobs that were not stored; that were stored and are changed; that were stored and are not changed.
    rejects : dict of str to int
        Refused rows, counted by reason.
    already_loaded : bool
        Whether the same content was loaded before. Then nothing was done, and the figures are those of that load.
    notes : tuple of str
        Messages for people, in the order in which they arose.
    changes : dict of str to ColumnChange
        What changed in stored jobs, by column, where content was to be loaded again.
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
    changes: dict[str, ColumnChange] = field(default_factory=dict)


def load(
    connection: sa.Connection, bulk: Bulk, batches: Iterable[Batch], trace: LoadedFile
) -> tuple[LoadReport, NothingUnderstood | None]:
    """Store ``batches`` as part of the caller's transaction.

    ``batches`` is not read if the same content was loaded before. Where no row of it was understood, its rejects are
    stored, and the error is returned to be raised after the transaction.

    Raises
    ------
    FrameInvalid
        A batch lacks a declared column, or a job its id or submit time.
    """
    zone_before = cluster_timezone(connection, trace.cluster)
    cluster_id = cluster_id_for_loading(connection, name=trace.cluster, timezone=trace.timezone)
    if zone_before is None and trace.timezone not in {None, "UTC"}:
        rebuild(connection, bulk, cluster_id)  # its days begin at other times
    if (earlier := _find_load(connection, cluster_id, trace.sha256)) is not None:
        was_understood = earlier.rows_read == 0 or earlier.rejected < earlier.rows_read
        noted = old_readings.read_note(connection, cluster_id)
        is_old = noted is not None and earlier.loaded_at < noted["upgraded"]
        if was_understood and not (trace.again or is_old):
            return _load_report(connection, earlier, cluster=trace.cluster, already_loaded=True), None
        # Where not one row was understood, perhaps it is now.
        _remove_load(connection, earlier.load_id)
        trace = replace(trace, again=trace.again or is_old)
    tally, strings = Tally(revisions=Revisions(lists_changes=trace.again)), StringTable(connection, bulk)
    load_id = _insert_load(connection, cluster_id, trace)
    strings.numbers([state.value for states in STATES.values() for state in states])
    sums = SumChanges(connection, bulk, cluster_id=cluster_id)
    runs = RunNumbers(connection, bulk, cluster_id=cluster_id, strings=strings)
    failure = None
    try:
        for batch in batches:
            rows = runs.numbered(stored_jobs(batch.jobs, cluster_id=cluster_id, strings=strings))
            new = _insert_jobs(connection, bulk, rows, sums)
            updated = 0
            if new < len(rows):
                rows = _most_complete(rows, live=trace.live)
                updated = revise(
                    connection,
                    bulk,
                    rows,
                    cluster_id=cluster_id,
                    live=trace.live,
                    revisions=tally.revisions,
                    sums=sums,
                )
            types = column_types(REJECTS).items()
            rejects = {name: stored_column(batch.rejects[name], dtype) for name, dtype in types}
            bulk.insert(connection, schema.rejects, pa.table({"load_id": [load_id] * len(batch.rejects)} | rejects))
            tally.count_batch(batch, new=new, updated=updated)
    except NothingUnderstood as reason:
        if not tally.rejects:
            raise
        failure = reason
    sums.write()
    connection.execute(sa.update(schema.loads).where(schema.loads.c.load_id == load_id).values(tally.as_columns()))
    old_readings.forget_if_loaded(connection, cluster_id)
    finished = _find_load(connection, cluster_id, trace.sha256)
    assert finished is not None
    report = _load_report(connection, finished, cluster=trace.cluster, already_loaded=False)
    return replace(report, changes=tally.revisions.changes | runs.changes), failure


def _insert_jobs(connection: sa.Connection, bulk: Bulk, rows: pa.Table, sums: SumChanges) -> int:
    """Add the jobs that are not stored yet, and return their number."""
    attempt = connection.begin_nested()
    new = bulk.insert(connection, schema.jobs, rows)
    if new in {0, len(rows)}:
        attempt.commit()
        added = rows.slice(0, new)
    else:  # which of them are new can only be told before they are stored
        attempt.rollback()
        key = list(JOB_KEY)
        with bulk.staged(connection, rows.select(key)) as incoming:
            same = sa.and_(*(incoming.c[name] == schema.jobs.c[name] for name in key))
            known = bulk.select(connection, sa.select(*(schema.jobs.c[name] for name in key)).where(same))
        keys = pd.MultiIndex.from_frame(rows.select(key).to_pandas())
        is_new = ~(keys.isin(pd.MultiIndex.from_frame(known.to_pandas())) | keys.duplicated())
        added = rows.filter(pa.array(is_new))
        bulk.insert(connection, schema.jobs, added)
    sums.add(added)
    return new


def _remove_load(connection: sa.Connection, load_id: int) -> None:
    connection.execute(sa.delete(schema.rejects).where(schema.rejects.c.load_id == load_id))
    connection.execute(sa.delete(schema.loads).where(schema.loads.c.load_id == load_id))


def reject_counts(condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the query that counts the rejects of the chosen loads by reason.

    The most frequent reason comes first.
    """
    reason, rows = schema.rejects.c.reason, sa.func.count().label("rows")
    counts = sa.select(reason, rows).join_from(schema.rejects, schema.loads).where(condition)
    return counts.group_by(reason).order_by(rows.desc(), reason)


def _insert_load(connection: sa.Connection, cluster_id: int, trace: LoadedFile) -> int:
    row = {
        "cluster_id": cluster_id,
        "path": trace.path,
        "sha256": trace.sha256,
        "format": trace.format,
        "timezone": trace.timezone,
        "loaded_at": stored_time(datetime.now(UTC)),
    }
    made = connection.execute(sa.insert(schema.loads).values(row | Tally().as_columns()))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def _most_complete(rows: pa.Table, *, live: bool) -> pa.Table:
    """Return one row for each job, the most complete one.

    Values that it lacks come from the other rows of the job, as if those had been loaded before. This does not hold for
    ``live`` rows, where a missing value means that there is none.
    """
    key = list(JOB_KEY)
    ranked = rows.select(key).to_pandas()
    has_ended = rows["ended_at"].is_valid().to_numpy() | rows["run_time_s"].is_valid().to_numpy()
    ranked["completeness"] = 2 * has_ended.astype("int8") + rows["started_at"].is_valid().to_numpy()
    ranked = ranked.sort_values("completeness", ascending=False, kind="stable")
    best = ranked.drop_duplicates(key).index.sort_values().to_numpy()
    if live or len(best) == len(ranked):
        return rows.take(best)
    is_repeated = ranked.duplicated(key, keep=False)
    single = ranked.index[~is_repeated].sort_values().to_numpy()
    # Arrow's types hold whole microseconds exactly, also in a column with missing values.
    repeated = rows.take(ranked.index[is_repeated].to_numpy()).to_pandas(types_mapper=pd.ArrowDtype)
    merged = repeated.groupby(key, sort=False).first().reset_index()
    return pa.concat_tables([rows.take(single), pa.Table.from_pandas(merged, schema=rows.schema, preserve_index=False)])


def _find_load(connection: sa.Connection, cluster_id: int, sha256: str) -> sa.Row[tuple[object, ...]] | None:
    same = (schema.loads.c.cluster_id == cluster_id) & (schema.loads.c.sha256 == sha256)
    return connection.execute(sa.select(schema.loads).where(same)).one_or_none()


def _load_report(
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
