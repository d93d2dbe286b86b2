"""Bulk transport by columns: one Arrow table in, one Arrow table out, on either kind of database.

Arrow tables hold columns as they are stored (``schema.py``): 64-bit integers, doubles and text, missing as null.
An ADBC driver was rejected for SQLite: it brings a second SQLite library into the process, and two of them lose each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

import pyarrow as pa
from sqlalchemy import BigInteger, Connection, Double, Integer, Select, Table, case, func, literal_column
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

from helios.warehouse.schema import JOB_KEY, jobs


class Bulk(Protocol):
    """What the warehouse needs of a database beyond SQLAlchemy Core. Each call is part of the caller's transaction."""

    def insert(self, connection: Connection, table: Table, rows: pa.Table) -> int:
        """Add the rows whose key is not there yet; return how many were added."""
        ...

    def improve_jobs(self, connection: Connection, rows: pa.Table) -> int:
        """Update the stored jobs that ``rows`` know more of; return how many were updated.

        Each row has the key of a stored job, and no two have the same.
        """
        ...

    def select(self, connection: Connection, query: Select[Any]) -> pa.Table:
        """Run a query of stored columns, whose parameters are numbers, and return its rows."""
        ...

    def elements(self, array: str) -> ColumnElement[str]:
        """Return the SQL for the elements, as text, of a JSON array of texts."""
        ...


class Conflict(TypedDict):
    """What an upsert of a job does when the job is there; arguments of ``on_conflict_do_update``."""

    index_elements: Sequence[str]
    set_: Mapping[str, ColumnElement[Any]]
    where: ColumnElement[bool]


def improvement(excluded: Any, names: Sequence[str]) -> Conflict:
    """Return the upsert rule: a row that knows more of the run wins, but erases nothing that it does not know.

    Parameters
    ----------
    excluded : columns
        The new row, as ``insert(jobs).excluded``.
    names : sequence of str
        Columns that the new rows have.
    """
    return Conflict(
        index_elements=JOB_KEY,
        set_={name: func.coalesce(excluded[name], jobs.c[name]) for name in names if name not in JOB_KEY},
        where=_knowledge(jobs.c) < _knowledge(excluded),
    )


def arrow_schema(query: Select[Any]) -> pa.Schema:
    """Return the Arrow schema of the rows of ``query``."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in query.selected_columns])


def with_values(rows: pa.Table) -> pa.Table:
    """Return ``rows`` without the columns that are missing altogether; traces rarely fill all of them."""
    return rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])


def _knowledge(job: Any) -> ColumnElement[int]:
    """Return how much a job's row knows of its run, in SQL: 0 nothing, 1 the start, 2 the end, 3 both."""
    ended = job.ended_at.is_not(None) | job.run_time_s.is_not(None)
    none, start, end = (literal_column(number, Integer) for number in "012")
    return case((ended, end), else_=none) + case((job.started_at.is_not(None), start), else_=none)


def _arrow_type(sql_type: TypeEngine[Any]) -> pa.DataType:
    if isinstance(sql_type, (BigInteger, Integer)):
        return pa.int64()
    return pa.float64() if isinstance(sql_type, Double) else pa.string()
