"""Storage and deletion of history, predictions, decisions and trials.

A later row of a job replaces its stored row, because Slurm corrects its own records, and because a crafted job name may
have forged the stored row. Two kinds of rows never replace the stored one: a row that knows less of the run, and a row
of a file for a job whose end the live accounting has reported.

Decisions, cycles, predictions and the records of live readings are deleted once they are old. Jobs, nodes, models and
applied changes are deleted only with their whole cluster. SQLite uses the free space for new rows, so that the file
stops growing. VACUUM is not used, because it would lock the database and need as much space again on the disk.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid, NothingUnderstood
from helios.model import DECISIONS, JOBS, PREDICTIONS, REJECTS, TIME, Batch, FrameKind, Mode
from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.warehouse import old_readings, schema
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
from helios.warehouse.requeues import ColumnChange, RunNumbers
from helios.warehouse.schema import JOB_KEY, coverage, jobs

LIVE_SOURCE = "jobs"
"""Source in ``coverage`` of the periods whose jobs were read from the live accounting."""
EXAMPLES = 3
"""Most examples of one kind of change in the notes of a load."""

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
CLUSTER_REJECTS = {"line": "int64", "reason": "category", "text": "str", "path": "str"}
PREDICTION_TYPES = {
    **{name: JOBS.by_name[name].dtype for name in ("job_id", "submitted_at", "restart")},
    "made_at": TIME,
    **column_types(PREDICTIONS),
}
_NEVER_MISSING_IN_DECISIONS = ("decided_at", "service", "mode", "action", "target", "reason")

MOST_RUNS_READ = 20_000
"""Most runs of a program that are read, the last ones. A model needs no more, and reading them takes a second."""
_US = 1_000_000
_TRIAL_COLUMNS = tuple(
    field.name for field in fields(TrialRun) if field.name not in {"started_s", "parameters", "speeds", "metrics"}
)
"""Fields of ``TrialRun`` that are stored as they are."""

DELETE_BATCH = 5_000
"""Rows deleted in one transaction, in about 50 ms. A control cycle that wants to write can wait for that long."""
# Shadow decisions are searched only in the last 30 days before their horizon, not every night in the whole audit log.
# Those that remain after a longer outage are deleted with the rest of the audit log.
SHADOW_SEARCH_SPAN = timedelta(days=30)
# LIKE pattern of the paths under which helios.app.sync records readings of the live accounting. Records of files that a
# person loaded are kept.
LIVE_READING = "sacct ____-__-__T__:__:__Z to ____-__-__T__:__:__Z"

_CORRECTED, _SUSPICIOUS, _KEPT = "corrected", "suspicious", "kept"

# Load of a trace.


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
    cluster_id = cluster_id_for_loading(connection, name=trace.cluster, timezone=trace.timezone)
    if (earlier := _find_load(connection, cluster_id, trace.sha256)) is not None:
        was_understood = earlier.rows_read == 0 or earlier.rejected < earlier.rows_read
        noted = old_readings.read_note(connection, cluster_id)
        is_old = noted is not None and earlier.loaded_at < noted["upgraded"]
        if was_understood and not (trace.again or is_old):
            return _load_report(connection, earlier, cluster=trace.cluster, already_loaded=True), None
        # Where not one row was understood, perhaps it is now.
        _remove_load(connection, earlier.load_id)
        trace = replace(trace, again=trace.again or is_old)
    tally, strings = _Tally(revisions=Revisions(lists_changes=trace.again)), StringTable(connection, bulk)
    load_id = _insert_load(connection, cluster_id, trace)
    runs = RunNumbers(connection, bulk, cluster_id=cluster_id, strings=strings)
    failure = None
    try:
        for batch in batches:
            rows = runs.numbered(stored_jobs(batch.jobs, cluster_id=cluster_id, strings=strings))
            new = bulk.insert(connection, schema.jobs, rows)
            updated = 0
            if new < len(rows):
                rows = _most_complete(rows, live=trace.live)
                updated = revise(
                    connection, bulk, rows, cluster_id=cluster_id, live=trace.live, revisions=tally.revisions
                )
            types = column_types(REJECTS).items()
            rejects = {name: stored_column(batch.rejects[name], dtype) for name, dtype in types}
            bulk.insert(connection, schema.rejects, pa.table({"load_id": [load_id] * len(batch.rejects)} | rejects))
            tally.count_batch(batch, new=new, updated=updated)
    except NothingUnderstood as reason:
        if not tally.rejects:
            raise
        failure = reason
    connection.execute(sa.update(schema.loads).where(schema.loads.c.load_id == load_id).values(tally.as_columns()))
    old_readings.forget_if_loaded(connection, cluster_id)
    finished = _find_load(connection, cluster_id, trace.sha256)
    assert finished is not None
    report = _load_report(connection, finished, cluster=trace.cluster, already_loaded=False)
    return replace(report, changes=tally.revisions.changes | runs.changes), failure


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
    made = connection.execute(sa.insert(schema.loads).values(row | _Tally().as_columns()))
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


# Replacement of stored jobs.


@dataclass(slots=True)
class Revisions:
    """Changes that the rows of a load made to stored jobs.

    Attributes
    ----------
    counts : Counter
        Ended jobs that were corrected (``_CORRECTED``), those of them that got another user or an earlier end
        (``_SUSPICIOUS``), and rows of a file that contradict the live accounting (``_KEPT``).
    examples : dict of str to list of str
        Up to ``EXAMPLES`` of each, as text.
    lists_changes : bool
        Whether to count the changes of each column.
    changes : dict of str to ColumnChange
        These, by column.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: {_CORRECTED: [], _SUSPICIOUS: [], _KEPT: []})
    lists_changes: bool = False
    changes: dict[str, ColumnChange] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return messages for people about the changes."""
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


@dataclass(slots=True)
class _Tally:
    """Running figures of a load."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRule:
    """SQL conditions under which new rows replace stored jobs.

    Attributes
    ----------
    live : bool
        Whether the new rows come from the live accounting. Then they always win, and a value that they lack is removed.
        A value that a row of a file lacks stays as it is stored.
    names : sequence of str
        Columns of the new rows.
    live_periods : sequence of (int, int)
        Periods for which the live accounting was read, as start and end in microseconds.
    misread : condition
        Which stored jobs have times that an older Helios read wrongly. They get those of the new row, also none.
    """

    live: bool
    names: Sequence[str]
    live_periods: Sequence[tuple[int, int]]
    misread: sa.ColumnElement[bool] = field(default_factory=sa.false)

    def conflict(self, new: Any) -> tuple[dict[str, sa.ColumnElement[Any]], sa.ColumnElement[bool]]:
        """Return the values that a stored job gets from ``new``, and the condition for it."""
        return self.values(new), sa.and_(self.differs(new), self.wins(new))

    def differs(self, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that ``new`` would change a stored value."""
        return sa.or_(*(jobs.c[name].is_distinct_from(value) for name, value in self.values(new).items()))

    def wins(self, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that ``new`` replaces a stored row that differs."""
        if self.live:
            return sa.true()
        stored_completeness, completeness = _completeness(jobs.c), _completeness(new)
        is_equal = stored_completeness == completeness
        return sa.or_(
            stored_completeness < completeness, sa.and_(sa.or_(is_equal, self.misread), ~self.was_read_live())
        )

    def was_read_live(self) -> sa.ColumnElement[bool]:
        """Return the condition that the live accounting has reported the end of a stored job.

        The job has ended, and a part of its time from submission to end lies in one of the ``live_periods``.
        """
        ended_at = sa.func.coalesce(jobs.c.ended_at, jobs.c.submitted_at)
        overlaps = [sa.and_(ended_at >= start, jobs.c.submitted_at < end) for start, end in self.live_periods]
        return sa.and_(_has_ended(jobs.c), sa.or_(sa.false(), *overlaps))

    def values(self, new: Any) -> dict[str, sa.ColumnElement[Any]]:
        """Return the values that a stored job gets from ``new``."""
        names = [name for name in self.names if name not in JOB_KEY]
        if self.live:
            return {name: new[name] for name in names}
        known = {name: sa.func.coalesce(new[name], jobs.c[name]) for name in names}
        times = [name for name in ("started_at", "ended_at", "run_time_s") if name in known]
        return known | {name: sa.case((self.misread, new[name]), else_=known[name]) for name in times}


def revise(
    connection: sa.Connection, bulk: Bulk, rows: pa.Table, *, cluster_id: int, live: bool, revisions: Revisions
) -> int:
    """Replace stored jobs by the ``rows`` that win by ``RevisionRule``.

    Parameters
    ----------
    connection : Connection
        The caller's transaction.
    bulk : Bulk
        Transport to the same database.
    rows : Table
        Stored columns of jobs of one cluster. Each row has the key of a stored job, and no two have the same key.
    cluster_id : int
        Number of the cluster.
    live : bool
        Whether the rows come from the live accounting.
    revisions : Revisions
        Updated with the changes.

    Returns
    -------
    int
        How many stored jobs were changed.
    """
    if not len(rows):
        return 0
    strings, again = StringTable(connection, bulk), revisions.lists_changes
    rows = rows if live or again else with_values(rows)
    rule = RevisionRule(
        live=live,
        names=rows.column_names,
        live_periods=_live_periods(connection, cluster_id),
        misread=old_readings.has_misread_times(connection) if again else sa.false(),
    )
    with bulk.staged(connection, rows) as incoming:
        _record_revisions(connection, incoming, rule, strings, revisions)
        if revisions.lists_changes:
            _record_changes(connection, incoming, rule, strings, revisions)
        return bulk.upsert_jobs(connection, incoming, rule.conflict)


def _live_periods(connection: sa.Connection, cluster_id: int) -> list[tuple[int, int]]:
    query = sa.select(coverage.c.started_at, coverage.c.ended_at).where(
        coverage.c.cluster_id == cluster_id, coverage.c.source == LIVE_SOURCE
    )
    return [(int(start), int(end)) for start, end in connection.execute(query)]


def _has_ended(job: Any) -> sa.ColumnElement[bool]:
    return sa.or_(job.ended_at.is_not(None), job.run_time_s.is_not(None))


def _completeness(job: Any) -> sa.ColumnElement[int]:
    """Return the SQL expression for what a row knows of the run.

    It is 2 with the end, 1 with the start, and 0 with neither.
    """
    nothing, start, end = (sa.literal_column(number, sa.Integer) for number in "012")
    return sa.case((_has_ended(job), end), (job.started_at.is_not(None), start), else_=nothing)


def _record_revisions(
    connection: sa.Connection, incoming: sa.TableClause, rule: RevisionRule, strings: StringTable, revisions: Revisions
) -> None:
    """Count the changes that staged rows will make, with examples."""
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
    same_job = sa.and_(*(new[name] == jobs.c[name] for name in JOB_KEY))
    sums = [sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0) for condition in kinds.values()]
    counts = connection.execute(sa.select(*sums).where(same_job)).one()
    for (kind, condition), count in zip(kinds.items(), map(int, counts), strict=True):
        revisions.counts[kind] += count
        if count and (room := EXAMPLES - len(revisions.examples[kind])):
            pairs = sa.select(jobs.c.job_id, jobs.c.user, jobs.c.ended_at, new.user.label("u"), new.ended_at.label("e"))
            query = pairs.where(same_job, condition)
            query = query.order_by(jobs.c.submitted_at, jobs.c.job_id, jobs.c.restart).limit(room)
            revisions.examples[kind] += [_example(*row, strings=strings) for row in connection.execute(query).all()]


def _record_changes(
    connection: sa.Connection, incoming: sa.TableClause, rule: RevisionRule, strings: StringTable, revisions: Revisions
) -> None:
    """Count the columns that staged rows will change, with an example of each."""
    new, order = incoming.c, (jobs.c.submitted_at, jobs.c.job_id, jobs.c.restart)
    replaced = sa.and_(*(new[name] == jobs.c[name] for name in JOB_KEY), rule.wins(new))
    values = rule.values(new)
    differs = {name: jobs.c[name].is_distinct_from(value) for name, value in values.items()}
    sums = [sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0) for condition in differs.values()]
    for name, count in zip(differs, map(int, connection.execute(sa.select(*sums).where(replaced)).one()), strict=True):
        if not count:
            continue
        first = sa.select(jobs.c.job_id, jobs.c[name], values[name].label("after")).where(replaced, differs[name])
        job_id, before, after = connection.execute(first.order_by(*order).limit(1)).one()
        texts = strings.texts([value for value in (before, after) if value is not None]) if _is_text(name) else {}
        shown = " -> ".join(_shown(name, value, texts) for value in (before, after))
        change = ColumnChange(jobs=count, example=f"{job_id[:40]!a} ({shown})")
        revisions.changes[name] = revisions.changes[name] + change if name in revisions.changes else change


def _is_text(name: str) -> bool:
    return JOBS.by_name[name].dtype == "category"


def _shown(name: str, value: Any, texts: Mapping[int, str]) -> str:
    """Return a stored value as text."""
    if value is None:
        return "unknown"
    if JOBS.by_name[name].dtype == TIME:
        return f"{datetime.fromtimestamp(value // _US, UTC):%Y-%m-%d %H:%M:%S}"
    return (
        ascii(texts[value][:40]) if _is_text(name) else f"{value:g}" if isinstance(value, float) else f"{value!s:.40}"
    )


def _example(job_id: str, user: int, ended_at: int, new_user: int, new_ended_at: int, *, strings: StringTable) -> str:
    texts = strings.texts([number for number in (user, new_user) if number is not None])
    before, after = _user_and_end(texts, user, ended_at), _user_and_end(texts, new_user, new_ended_at)
    return f"{job_id[:40]!a} (was: {before}; this row: {after})"


def _user_and_end(texts: dict[int, str], user: int | None, ended_at: int | None) -> str:
    name = "no user" if user is None else ascii(texts[user][:40])
    if ended_at is None:
        return f"{name} without an end"
    return f"{name} until {datetime.fromtimestamp(ended_at // _US, UTC):%Y-%m-%d %H:%M:%S}"


# Other rows of a cluster: loads, rejects, nodes, predictions, decisions.


def select_columns(table: sa.Table, cluster_id: int, names: Iterable[str]) -> sa.Select[Any]:
    """Return the query of some columns of all rows of a cluster."""
    return sa.select(*(table.c[name] for name in names)).where(table.c.cluster_id == cluster_id)


def add_predictions(
    connection: sa.Connection, bulk: Bulk, cluster_id: int, frame: pd.DataFrame, *, made_at: datetime
) -> int:
    """Store predictions and return how many were new.

    A stored prediction of the same job and ``made_at`` stays as it is.

    Raises
    ------
    FrameInvalid
        A column is missing.
    """
    types = {name: dtype for name, dtype in PREDICTION_TYPES.items() if name != "made_at"}
    for name, dtype in types.items():
        if name not in frame:
            raise FrameInvalid(f"a predictions frame lacks its column {name!r}, of type {dtype}")
    constants = {"cluster_id": [cluster_id] * len(frame), "made_at": [stored_time(made_at)] * len(frame)}
    return bulk.insert(connection, schema.predictions, pa.table(constants | _stored_columns(frame, types)))


def add_decisions(connection: sa.Connection, cluster_id: int, decisions: pd.DataFrame) -> None:
    """Append decisions to the audit log, whose rows are never changed.

    Raises
    ------
    FrameInvalid
        A column is not declared in ``DECISIONS``, or lacks values that are never missing.
    """
    types = column_types(DECISIONS)
    if unknown := sorted(set(decisions.columns) - set(types)):
        raise FrameInvalid(f"a decisions frame has no column {', '.join(unknown)}")
    _refuse_missing("decisions", decisions, _NEVER_MISSING_IN_DECISIONS)
    columns = _stored_columns(decisions, {name: dtype for name, dtype in types.items() if name in decisions})
    if rows := pa.table(columns).to_pylist():
        connection.execute(sa.insert(schema.decisions), [{"cluster_id": cluster_id} | row for row in rows])


def decision_columns(cluster_id: int, target: str, *, since: datetime | None) -> sa.Select[Any]:
    """Return the query of the decisions about one target, oldest first."""
    table = schema.decisions
    query = select_columns(table, cluster_id, DECISIONS.names).where(table.c.target == target)
    if since is not None:
        query = query.where(table.c.decided_at >= stored_time(since))
    return query.order_by(table.c.decided_at, table.c.decision_id)


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
    for row in pa.table(_stored_columns(frame, column_types(kind))).to_pylist():
        key_values = {"cluster_id": cluster_id} | {name: "" if row[name] is None else row[name] for name in key}
        connection.execute(sa.delete(table).filter_by(**key_values))
        connection.execute(sa.insert(table).values(row | key_values))


def _refuse_missing(what: str, frame: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame or frame[name].isna().any():
            raise FrameInvalid(f"a {what} frame has rows without {name}, which is never missing")


def _stored_columns(frame: pd.DataFrame, types: Mapping[str, str]) -> dict[str, Any]:
    return {name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype) for name, dtype in types.items()}


# Trials.


class TrialStore:
    """Methods of ``Warehouse`` that concern trials.

    A pool may run anywhere, so its trials belong to a user and not to a cluster.
    """

    _engine: sa.Engine
    _bulk: Bulk

    def add_trial_runs(self, runs: Iterable[TrialRun], *, user: str) -> int:
        """Store runs of trials, and return how many were new.

        A stored run stays as it is.
        """
        rows = {(run.pool, run.number, run.attempt): _trial_row(run, user) for run in runs}
        table = schema.trial_runs
        with writing(self._engine) as connection:
            keys = sa.select(table.c.pool, table.c.number, table.c.attempt)
            for pool in {pool for pool, _, _ in rows}:
                for row in connection.execute(keys.where(table.c.pool == pool)).all():
                    rows.pop((row.pool, row.number, row.attempt), None)
            if rows:
                connection.execute(sa.insert(table), list(rows.values()))
        return len(rows)

    def trial_runs(self, *, user: str, program: str | None = None) -> list[TrialRun]:
        """Return a user's last 20,000 runs of trials, oldest first."""
        table = schema.trial_runs
        query = sa.select(table).where(table.c.user == user)
        if program is not None:
            query = query.where(table.c.program == program)
        order = (table.c.started_at, table.c.pool, table.c.number, table.c.attempt)
        newest = query.order_by(*(column.desc() for column in order))
        with reading(self._engine) as connection:
            return [_trial_run(row) for row in connection.execute(newest.limit(MOST_RUNS_READ))][::-1]


def _trial_row(run: TrialRun, user: str) -> dict[str, object]:
    speeds = [[list(speed.beside), speed.steps_per_s, speed.seconds] for speed in run.speeds]
    return {name: getattr(run, name) for name in _TRIAL_COLUMNS} | {
        "user": user,
        "started_at": round(run.started_s * _US),
        "parameters": json.dumps(dict(run.parameters), default=str),
        "speeds": json.dumps(speeds),
        "metrics": json.dumps(dict(run.metrics)),
    }


def _trial_run(row: sa.Row[tuple[object, ...]]) -> TrialRun:
    values = row._mapping
    return TrialRun(
        **{name: values[name] for name in _TRIAL_COLUMNS},
        started_s=values["started_at"] / _US,
        parameters=json.loads(values["parameters"]),
        speeds=tuple(
            MeasuredSpeed(beside=tuple(beside), steps_per_s=steps, seconds=seconds)
            for beside, steps, seconds in json.loads(values["speeds"])
        ),
        metrics=json.loads(values["metrics"]),
    )


# Deletion of a cluster, and of old rows.


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
    """Return the number of a cluster's rows in each table, without empty ones."""
    conditions = {table: _in_cluster(table, cluster_id) for table in schema.metadata.sorted_tables}
    counts = {
        table.name: connection.execute(sa.select(sa.func.count()).select_from(table).where(condition)).scalar_one()
        for table, condition in conditions.items()
        if condition is not None and table is not schema.clusters
    }
    return {name: rows for name, rows in counts.items() if rows}


def remove_cluster(connection: sa.Connection, cluster_id: int) -> None:
    """Delete a cluster with all its rows.

    Texts that jobs refer to by number, such as names of users, stay, because other clusters may refer to them too.
    """
    for table in reversed(schema.metadata.sorted_tables):
        if (condition := _in_cluster(table, cluster_id)) is not None:
            connection.execute(sa.delete(table).where(condition))


def forget(engine: sa.Engine, cluster_id: int, horizon: Horizon) -> dict[str, int]:
    """Delete the rows of a cluster that are older than ``horizon``.

    Each transaction deletes a bounded number of rows.

    Returns
    -------
    dict of str to int
        How many rows were deleted, by kind.
    """
    decisions, cycles, predictions = schema.decisions, schema.cycles, schema.predictions
    is_shadow = decisions.c.mode == Mode.SHADOW.value
    is_shadow &= decisions.c.decided_at >= stored_time(horizon.shadow - SHADOW_SEARCH_SPAN)
    return {
        "decisions": _delete_older(engine, cluster_id, decisions.c.decided_at, horizon.audit),
        "shadow decisions": _delete_older(engine, cluster_id, decisions.c.decided_at, horizon.shadow, is_shadow),
        "cycles": _delete_older(engine, cluster_id, cycles.c.taken_at, horizon.cycles),
        "predictions": _delete_older(engine, cluster_id, predictions.c.submitted_at, horizon.predictions),
        "readings": _delete_readings(engine, cluster_id, horizon.readings),
    }


def _delete_older(
    engine: sa.Engine, cluster_id: int, time: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> int:
    """Delete a cluster's rows whose column ``time`` is older, in batches, and return their number."""
    is_older = [time.table.c.cluster_id == cluster_id, time < stored_time(before), *conditions]
    last_of_batch = select_older(cluster_id, time, before, *conditions).offset(DELETE_BATCH - 1).limit(1)
    deleted, has_more = 0, True
    while has_more:
        with writing(engine) as connection:
            last = connection.execute(last_of_batch).scalar_one_or_none()
            has_more = last is not None
            in_batch = [time <= last] if has_more else []
            deleted += connection.execute(sa.delete(time.table).where(*is_older, *in_batch)).rowcount
    return deleted


def select_older(
    cluster_id: int, time: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the query of the values of the column ``time`` that are older, oldest first."""
    is_older = [time.table.c.cluster_id == cluster_id, time < stored_time(before), *conditions]
    return sa.select(time).where(*is_older).order_by(time)


def _delete_readings(engine: sa.Engine, cluster_id: int, before: datetime) -> int:
    deleted, has_more = 0, True
    while has_more:
        with writing(engine) as connection:
            ids = _old_reading_ids(connection, cluster_id, before)
            has_more = len(ids) > 0
            connection.execute(sa.delete(schema.rejects).where(schema.rejects.c.load_id.in_(ids)))
            deleted += connection.execute(sa.delete(schema.loads).where(schema.loads.c.load_id.in_(ids))).rowcount
    return deleted


def _old_reading_ids(connection: sa.Connection, cluster_id: int, before: datetime) -> list[int]:
    loads = schema.loads
    in_cluster = loads.c.cluster_id == cluster_id
    # The last load is kept: Warehouse.edition returns its number.
    newest = sa.select(sa.func.max(loads.c.load_id)).where(in_cluster).scalar_subquery()
    is_old = in_cluster & (loads.c.loaded_at < stored_time(before)) & loads.c.path.like(LIVE_READING)
    query = sa.select(loads.c.load_id).where(is_old, loads.c.load_id != newest).order_by(loads.c.load_id)
    return list(connection.execute(query.limit(DELETE_BATCH // 10)).scalars())


def _in_cluster(table: sa.Table, cluster_id: int) -> sa.ColumnElement[bool] | None:
    """Return the condition that a row belongs to a cluster.

    None for a table without clusters.
    """
    if table is schema.rejects:
        loads = sa.select(schema.loads.c.load_id).where(schema.loads.c.cluster_id == cluster_id)
        return table.c.load_id.in_(loads)
    return table.c.cluster_id == cluster_id if "cluster_id" in table.c else None
