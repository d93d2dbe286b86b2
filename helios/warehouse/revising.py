"""Rules for replacing the stored row of a job.

A later reading of a job replaces its stored row, as Slurm corrects its own records, and a stored row may have been
forged by a crafted job name. Two kinds of rows never replace the stored one: a row that knows less of the run, and a
row of a file where the live accounting has reported a job that had ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from helios.warehouse.bulk import Bulk, with_values
from helios.warehouse.keys import StringTable
from helios.warehouse.schema import JOB_KEY, coverage, jobs

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
