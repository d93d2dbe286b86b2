"""Storage of history, predictions, decisions and trials, load of a trace, and retention.

A later reading of a job replaces its stored row, as Slurm corrects its own records, and a stored row may have been
forged by a crafted job name. Two kinds of rows never replace the stored one: a row that knows less of the run, and a
row of a file where the live accounting has reported a job that had ended.

Decisions, cycles, predictions and the records of live readings are deleted once they are old. Jobs, nodes, models and
applied changes are deleted only with their whole cluster. SQLite uses the space again for new rows, so that the file
stops growing. VACUUM is not used: it would lock the database and need its size again on the disk.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid
from helios.model import DECISIONS, JOBS, PREDICTIONS, REJECTS, TIME, Batch, FrameKind, Mode
from helios.model.pools import MeasuredSpeed, TrialRun
from helios.warehouse import schema
from helios.warehouse.bulk import (
    Bulk,
    StringTable,
    cluster_id_for_loading,
    column_types,
    stored_column,
    stored_jobs,
    stored_time,
    with_values,
)
from helios.warehouse.engine import reading, writing
from helios.warehouse.schema import JOB_KEY, coverage, jobs

# Rows deleted in one transaction. It takes about 50 ms, which a control cycle that writes meanwhile can wait for.
BATCH = 5_000
# Shadow decisions are searched only in the last 30 days before their horizon, not every night in the whole audit log.
# Those that remain after a longer outage are deleted with the rest of the audit log.
SHADOWS_SEARCHED = timedelta(days=30)
# How helios.app.sync names its readings of the live accounting. Records of files that a person loaded are kept.
LIVE_READING = "sacct ____-__-__T__:__:__Z to ____-__-__T__:__:__Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Times before which rows are old.

    Attributes
    ----------
    audit, shadow : datetime
        For all decisions, and for those of services in shadow mode, which change nothing.
    cycles, predictions, readings : datetime
        For control cycles, for predictions (by the submission of their job), and for records of live readings with the
        rows that they rejected.
    """

    audit: datetime
    shadow: datetime
    cycles: datetime
    predictions: datetime
    readings: datetime


def count_rows(connection: sa.Connection, cluster_id: int) -> dict[str, int]:
    """Return a cluster's rows in each table, without empty ones."""
    tables = {table: _cluster_rows(table, cluster_id) for table in schema.metadata.sorted_tables}
    counts = {
        table.name: connection.execute(sa.select(sa.func.count()).select_from(table).where(chosen)).scalar_one()
        for table, chosen in tables.items()
        if chosen is not None and table is not schema.clusters
    }
    return {name: rows for name, rows in counts.items() if rows}


def remove_cluster(connection: sa.Connection, cluster_id: int) -> None:
    """Delete a cluster with all its rows.

    Texts that jobs refer to by number, such as names of users, stay: other clusters may have the same.
    """
    for table in reversed(schema.metadata.sorted_tables):
        if (chosen := _cluster_rows(table, cluster_id)) is not None:
            connection.execute(sa.delete(table).where(chosen))


def _cluster_rows(table: sa.Table, cluster_id: int) -> sa.ColumnElement[bool] | None:
    if table is schema.rejects:
        loads = sa.select(schema.loads.c.load_id).where(schema.loads.c.cluster_id == cluster_id)
        return table.c.load_id.in_(loads)
    return table.c.cluster_id == cluster_id if "cluster_id" in table.c else None


def forget(engine: sa.Engine, cluster_id: int, horizon: Horizon) -> dict[str, int]:
    """Delete the rows of a cluster that are older than ``horizon``.

    Each transaction deletes a bounded number of rows.

    Returns
    -------
    dict of str to int
        How many rows were deleted, by kind.
    """
    decisions, cycles, predictions = schema.decisions, schema.cycles, schema.predictions
    shadow = decisions.c.mode == Mode.SHADOW.value
    shadow &= decisions.c.decided_at >= stored_time(horizon.shadow - SHADOWS_SEARCHED)
    return {
        "decisions": _older(engine, cluster_id, decisions.c.decided_at, horizon.audit),
        "shadow decisions": _older(engine, cluster_id, decisions.c.decided_at, horizon.shadow, shadow),
        "cycles": _older(engine, cluster_id, cycles.c.taken_at, horizon.cycles),
        "predictions": _older(engine, cluster_id, predictions.c.submitted_at, horizon.predictions),
        "readings": _readings(engine, cluster_id, horizon.readings),
    }


def _older(
    engine: sa.Engine, cluster_id: int, at: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> int:
    chosen = [at.table.c.cluster_id == cluster_id, at < stored_time(before), *conditions]
    edge = oldest(cluster_id, at, before, *conditions).offset(BATCH - 1).limit(1)
    gone, more = 0, True
    while more:
        with writing(engine) as connection:
            last = connection.execute(edge).scalar_one_or_none()
            more = last is not None
            within = [at <= last] if more else []
            gone += connection.execute(sa.delete(at.table).where(*chosen, *within)).rowcount
    return gone


def oldest(
    cluster_id: int, at: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the query of the times of old rows."""
    chosen = [at.table.c.cluster_id == cluster_id, at < stored_time(before), *conditions]
    return sa.select(at).where(*chosen).order_by(at)


def _readings(engine: sa.Engine, cluster_id: int, before: datetime) -> int:
    gone, more = 0, True
    while more:
        with writing(engine) as connection:
            ids = _old_reading_ids(connection, cluster_id, before)
            more = len(ids) > 0
            connection.execute(sa.delete(schema.rejects).where(schema.rejects.c.load_id.in_(ids)))
            gone += connection.execute(sa.delete(schema.loads).where(schema.loads.c.load_id.in_(ids))).rowcount
    return gone


def _old_reading_ids(connection: sa.Connection, cluster_id: int, before: datetime) -> list[int]:
    loads = schema.loads
    of_cluster = loads.c.cluster_id == cluster_id
    # The number of the last load shows whether anything is new: see Warehouse.edition.
    newest = sa.select(sa.func.max(loads.c.load_id)).where(of_cluster).scalar_subquery()
    old = of_cluster & (loads.c.loaded_at < stored_time(before)) & loads.c.path.like(LIVE_READING)
    chosen = sa.select(loads.c.load_id).where(old, loads.c.load_id != newest).order_by(loads.c.load_id)
    return list(connection.execute(chosen.limit(BATCH // 10)).scalars())


MOST_READ = 20_000
"""Runs of a program that are read, the last ones; a model needs no more, and it takes a second."""
_US = 1_000_000
_PLAIN = tuple(
    field.name for field in fields(TrialRun) if field.name not in {"started_s", "parameters", "speeds", "metrics"}
)


class TrialStore:
    """Methods of ``Warehouse`` that concern trials.

    A pool may run anywhere, so its trials belong to a user and not to a cluster.
    """

    _engine: sa.Engine
    _bulk: Bulk

    def add_trial_runs(self, runs: Iterable[TrialRun], *, user: str) -> int:
        """Store runs of trials, and return how many were new.

        One that is stored already stays as it is.
        """
        rows = {(run.pool, run.number, run.attempt): _row(run, user) for run in runs}
        table = schema.trial_runs
        with writing(self._engine) as connection:
            known = sa.select(table.c.pool, table.c.number, table.c.attempt)
            for pool in {pool for pool, _, _ in rows}:
                for row in connection.execute(known.where(table.c.pool == pool)).all():
                    rows.pop((row.pool, row.number, row.attempt), None)
            if rows:
                connection.execute(sa.insert(table), list(rows.values()))
        return len(rows)

    def trial_runs(self, *, user: str, program: str | None = None) -> list[TrialRun]:
        """Return a user's runs of trials, oldest first.

        Of more than 20,000 only the last are returned.
        """
        table = schema.trial_runs
        query = sa.select(table).where(table.c.user == user)
        if program is not None:
            query = query.where(table.c.program == program)
        order = (table.c.started_at, table.c.pool, table.c.number, table.c.attempt)
        newest = query.order_by(*(column.desc() for column in order))
        with reading(self._engine) as connection:
            return [_run(row) for row in connection.execute(newest.limit(MOST_READ))][::-1]


def _row(run: TrialRun, user: str) -> dict[str, object]:
    speeds = [[list(speed.beside), speed.steps_per_s, speed.seconds] for speed in run.speeds]
    return {name: getattr(run, name) for name in _PLAIN} | {
        "user": user,
        "started_at": round(run.started_s * _US),
        "parameters": json.dumps(dict(run.parameters), default=str),
        "speeds": json.dumps(speeds),
        "metrics": json.dumps(dict(run.metrics)),
    }


def _run(row: sa.Row[tuple[object, ...]]) -> TrialRun:
    values = row._mapping
    return TrialRun(
        **{name: values[name] for name in _PLAIN},
        started_s=values["started_at"] / _US,
        parameters=json.loads(values["parameters"]),
        speeds=tuple(
            MeasuredSpeed(beside=tuple(beside), steps_per_s=steps, seconds=seconds)
            for beside, steps, seconds in json.loads(values["speeds"])
        ),
        metrics=json.loads(values["metrics"]),
    )


LIVE_SOURCE = "jobs"
"""Name of the source in ``coverage`` for times whose jobs were read from the live accounting."""
EXAMPLES = 3
_CORRECTED, _SUSPICIOUS, _KEPT = "corrected", "suspicious", "kept"


@dataclass(slots=True)
class Revisions:
    """Changes that the rows of a load made to stored jobs.

    Attributes
    ----------
    counts : Counter
        Finished jobs that were corrected, those of them that got another user or an earlier end, and rows of a file
        that contradict the live accounting.
    examples : dict of str to list of str
        Some of each, for a person.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: {_CORRECTED: [], _SUSPICIOUS: [], _KEPT: []})

    def notes(self) -> list[str]:
        """Return messages about the changes, for a person."""
        texts = {
            _CORRECTED: "jobs that had ended were corrected by this reading",
            _SUSPICIOUS: "of them have another user or an earlier end than before: look at them",
            _KEPT: "rows contradict what the live accounting said of their job, which is kept",
        }
        return [
            f"{self.counts[kind]:,} {text}, such as {'; '.join(self.examples[kind])}"
            for kind, text in texts.items()
            if self.counts[kind]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRule:
    """Which rows replace stored ones, in SQL.

    Attributes
    ----------
    live : bool
        Whether the new rows come from the live accounting. Nothing outranks them, and a value that they lack is
        removed. A value that a row of a file lacks stays as it is stored.
    names : sequence of str
        Columns that the new rows have.
    stretches : sequence of (int, int)
        Times for which the live accounting was read, as start and end in microseconds.
    """

    live: bool
    names: Sequence[str]
    stretches: Sequence[tuple[int, int]]

    def conflict(self, new: Any) -> tuple[dict[str, sa.ColumnElement[Any]], sa.ColumnElement[bool]]:
        """Return the values that ``new`` gives a stored job, and the condition.

        The job gets these values where the condition is true.
        """
        return self._values(new), sa.and_(self.differs(new), self.wins(new))

    def differs(self, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a row would change a stored value."""
        return sa.or_(*(jobs.c[name].is_distinct_from(value) for name, value in self._values(new).items()))

    def wins(self, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a row replaces a stored one that differs."""
        if self.live:
            return sa.true()
        before, now = _completeness(jobs.c), _completeness(new)
        return sa.or_(before < now, sa.and_(before == now, ~self.was_read_live()))

    def was_read_live(self) -> sa.ColumnElement[bool]:
        """Return the condition that the live accounting covered a finished job.

        The stored job had ended, and a part of its life lies in one of the ``stretches``.
        """
        until = sa.func.coalesce(jobs.c.ended_at, jobs.c.submitted_at)
        touched = [sa.and_(until >= first, jobs.c.submitted_at < last) for first, last in self.stretches]
        return sa.and_(_has_ended(jobs.c), sa.or_(sa.false(), *touched))

    def _values(self, new: Any) -> dict[str, sa.ColumnElement[Any]]:
        names = [name for name in self.names if name not in JOB_KEY]
        return {name: new[name] if self.live else sa.func.coalesce(new[name], jobs.c[name]) for name in names}


def revise(
    connection: sa.Connection, bulk: Bulk, rows: pa.Table, *, cluster_id: int, live: bool, revisions: Revisions
) -> int:
    """Replace stored jobs by those ``rows`` that win over them.

    Parameters
    ----------
    connection : Connection
        The caller's transaction.
    bulk : Bulk
        Transport to the same database.
    rows : Table
        Columns of jobs of one cluster as they are stored. Each row has the key of a stored job; no two have the same.
    cluster_id : int
        Number of the cluster.
    live : bool
        Whether the rows come from the live accounting.
    revisions : Revisions
        Counts the changes.

    Returns
    -------
    int
        How many stored jobs were changed.
    """
    if not len(rows):
        return 0
    filled = rows if live else with_values(rows)
    rule = RevisionRule(live=live, names=filled.column_names, stretches=_live_periods(connection, cluster_id))
    with bulk.staged(connection, filled) as incoming:
        _take_note(connection, incoming, rule, StringTable(connection, bulk), revisions)
        return bulk.upsert_jobs(connection, incoming, rule.conflict)


def _live_periods(connection: sa.Connection, cluster_id: int) -> list[tuple[int, int]]:
    query = sa.select(coverage.c.started_at, coverage.c.ended_at).where(
        coverage.c.cluster_id == cluster_id, coverage.c.source == LIVE_SOURCE
    )
    return [(int(first), int(last)) for first, last in connection.execute(query)]


def _has_ended(job: Any) -> sa.ColumnElement[bool]:
    return sa.or_(job.ended_at.is_not(None), job.run_time_s.is_not(None))


def _completeness(job: Any) -> sa.ColumnElement[int]:
    """Return the SQL expression for a row's completeness.

    It is 0 for nothing, 1 for the start and 2 for the end.
    """
    none, start, end = (sa.literal_column(number, sa.Integer) for number in "012")
    return sa.case((_has_ended(job), end), (job.started_at.is_not(None), start), else_=none)


def _take_note(
    connection: sa.Connection, incoming: sa.TableClause, rule: RevisionRule, strings: StringTable, revisions: Revisions
) -> None:
    missing = {
        name: sa.null().cast(column.type).label(name) for name, column in jobs.c.items() if name not in rule.names
    }
    new = sa.select(*incoming.c, *missing.values()).subquery("new").c
    other_user = new.user != jobs.c.user
    corrected = sa.and_(
        rule.differs(new), rule.wins(new), sa.or_(_has_ended(jobs.c), sa.func.coalesce(other_user, sa.false()))
    )
    suspicious = sa.or_(other_user, new.ended_at < jobs.c.ended_at)
    contradicted = sa.and_(rule.differs(new), ~rule.wins(new), rule.was_read_live(), _has_ended(new))
    kinds = {_CORRECTED: corrected, _SUSPICIOUS: sa.and_(corrected, suspicious), _KEPT: contradicted}
    same = sa.and_(*(new[name] == jobs.c[name] for name in JOB_KEY))
    counts = [sa.func.coalesce(sa.func.sum(sa.case((kind, 1), else_=0)), 0) for kind in kinds.values()]
    numbers = connection.execute(sa.select(*counts).where(same)).one()
    for (name, kind), number in zip(kinds.items(), map(int, numbers), strict=True):
        revisions.counts[name] += number
        if number and (room := EXAMPLES - len(revisions.examples[name])):
            shown = sa.select(jobs.c.job_id, jobs.c.user, jobs.c.ended_at, new.user.label("u"), new.ended_at.label("e"))
            query = shown.where(same, kind).order_by(jobs.c.submitted_at, jobs.c.job_id, jobs.c.restart).limit(room)
            revisions.examples[name] += [_example(*row, strings=strings) for row in connection.execute(query).all()]


def _example(job: str, user: int, ended_at: int, new_user: int, new_end: int, *, strings: StringTable) -> str:
    texts = strings.texts([number for number in (user, new_user) if number is not None])
    before, now = f"{_user(texts, user)} {_end(ended_at)}", f"{_user(texts, new_user)} {_end(new_end)}"
    return f"{job[:40]!a} (was: {before}; this row: {now})"


def _user(texts: dict[int, str], number: int | None) -> str:
    return "no user" if number is None else ascii(texts[number][:40])


def _end(ended_at: int | None) -> str:
    if ended_at is None:
        return "without an end"
    return f"until {datetime.fromtimestamp(ended_at // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


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
