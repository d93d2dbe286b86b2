"""Replacement of stored jobs by later rows of the same jobs.

A later row of a job replaces its stored row, because Slurm corrects its own records, and because a crafted job name may
have forged the stored row. Two kinds of rows never replace the stored one: a row that knows less of the run, and a row
of a file for a job whose end the live accounting has reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa

from helios.model import JOBS, TIME, Batch
from helios.warehouse import old_readings
from helios.warehouse.bulk import Bulk, arrow_schema, with_values
from helios.warehouse.columns import StringTable, stored_time
from helios.warehouse.job_sums import COLUMNS, SumChanges
from helios.warehouse.requeues import ColumnChange
from helios.warehouse.schema import JOB_KEY, SECOND_US, coverage, jobs

LIVE_SOURCE = "jobs"
"""Source in ``coverage`` of the periods whose jobs were read from the live accounting."""
EXAMPLES = 3
"""Most examples of one kind of change in the notes of a load."""
_CORRECTED, _SUSPICIOUS, _KEPT = "corrected", "suspicious", "kept"


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
class Tally:
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
        """Return what a stored job gets from ``new``, and when."""
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
        """Return the condition that a stored job's end was read live.

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
    connection: sa.Connection,
    bulk: Bulk,
    rows: pa.Table,
    *,
    cluster_id: int,
    live: bool,
    revisions: Revisions,
    sums: SumChanges,
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
    sums : SumChanges
        Updated with the shares of the changed jobs.

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
        before, after = _changed_shares(connection, incoming, rule)
        updated = bulk.upsert_jobs(connection, incoming, rule.conflict)
    sums.add(before, sign=-1)
    sums.add(after)
    return updated


def _changed_shares(
    connection: sa.Connection, incoming: sa.TableClause, rule: RevisionRule
) -> tuple[pa.Table, pa.Table]:
    """Return the shares of the jobs that staged rows change.

    They are the columns that sums are made of, before and after the change.
    """
    new = _all_columns(incoming, rule)
    values = rule.values(new)
    after = [values.get(name, jobs.c[name]).label(f"new_{name}") for name in COLUMNS]
    changed = sa.and_(*(new[name] == jobs.c[name] for name in JOB_KEY), rule.differs(new), rule.wins(new))
    query = sa.select(*(jobs.c[name] for name in COLUMNS), *after).where(changed)
    rows = connection.execute(query).all()  # SQLAlchemy writes no parameters into a comparison by IS NOT
    columns = list(zip(*rows, strict=True)) or [()] * (2 * len(COLUMNS))
    types = arrow_schema(query).types[: len(COLUMNS)]
    before, now = columns[: len(COLUMNS)], columns[len(COLUMNS) :]
    return _table(before, types), _table(now, types)


def _table(columns: Sequence[Sequence[Any]], types: Sequence[pa.DataType]) -> pa.Table:
    arrays = (pa.array(values, kind) for values, kind in zip(columns, types, strict=True))
    return pa.table(dict(zip(COLUMNS, arrays, strict=True)))


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
    new = _all_columns(incoming, rule)
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


def _all_columns(incoming: sa.TableClause, rule: RevisionRule) -> Any:
    """Return the columns of staged rows with those that have no value."""
    missing = [sa.null().cast(column.type).label(name) for name, column in jobs.c.items() if name not in rule.names]
    return sa.select(*incoming.c, *missing).subquery("new").c


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
        return f"{datetime.fromtimestamp(value // SECOND_US, UTC):%Y-%m-%d %H:%M:%S}"
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
    return f"{name} until {datetime.fromtimestamp(ended_at // SECOND_US, UTC):%Y-%m-%d %H:%M:%S}"
