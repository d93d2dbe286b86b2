"""Bulk transport of data frames to and from SQLite and PostgreSQL.

Arrow tables have columns as they are stored (``schema.py``): 64-bit integers, doubles and text. Times are integers, and
missing values are null. Texts with few distinct values, such as user names, are stored once and referred to by number.

An ADBC driver was rejected for SQLite. It brings a second SQLite library into the process, and two of them release each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.types import TypeEngine

from helios.model import TIME
from helios.warehouse.schema import JOB_KEY, jobs

CLUSTERS = {
    "name": "str",
    "timezone": "object",
    "jobs": "int64",
    "gpu_jobs": "int64",
    "first_submitted_at": TIME,
    "last_submitted_at": TIME,
}

Conflict = Callable[[Any], tuple[Mapping[str, sa.ColumnElement[Any]], sa.ColumnElement[bool]]]
"""Rule for a new row of a stored job.

Called with the columns of the new row, it returns the values that the stored row gets, and the condition under which
it gets them.
"""


class Bulk(Protocol):
    """Interface to what databases do differently in SQLAlchemy Core, or too slowly.

    Each call is part of the caller's transaction.
    """

    insert_into: Callable[[sa.Table], Any]
    """Makes an ``INSERT`` of the dialect of the database."""

    def insert(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
        """Add the rows whose key is not stored yet.

        Returns
        -------
        int
            How many rows were added.
        """
        ...

    def staged(
        self, connection: sa.Connection, rows: pa.Table, *, table: sa.Table = jobs
    ) -> AbstractContextManager[sa.TableClause]:
        """Provide rows with columns of a table as a temporary table of the transaction.

        The temporary table is dropped when the block ends.
        """
        ...

    def replace(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> None:
        """Store rows of all columns in place of those with the same key."""
        if not len(rows):
            return
        with self.staged(connection, rows, table=table) as incoming:
            statement = self.insert_into(table).from_select(rows.column_names, sa.select(*incoming.c).where(sa.true()))
            key = [column.name for column in table.primary_key]
            values = {name: statement.excluded[name] for name in rows.column_names if name not in key}
            connection.execute(statement.on_conflict_do_update(index_elements=key, set_=values))

    def upsert_jobs(self, connection: sa.Connection, incoming: sa.TableClause, conflict: Conflict) -> int:
        """Add staged rows to ``jobs``, or change the stored ones by ``conflict``.

        Returns
        -------
        int
            How many rows were added or changed.
        """
        # Without a WHERE, SQLite parses the ON of ON CONFLICT as the condition of a join.
        rows = sa.select(*incoming.c).where(sa.true())
        statement = self.insert_into(jobs).from_select([column.name for column in incoming.c], rows)
        values, where = conflict(statement.excluded)
        upsert = statement.on_conflict_do_update(index_elements=JOB_KEY, set_=values, where=where)
        return row_count(connection, upsert)

    def select(self, connection: sa.Connection, query: sa.Select[Any]) -> pa.Table:
        """Run a query of stored columns and return its rows.

        Its parameters must be numbers, as they are written into the statement.
        """
        ...

    def elements(self, array: str) -> sa.ColumnElement[str]:
        """Return the SQL expression for the elements of a JSON array of texts.

        Each element is text.
        """
        ...


def arrow_schema(query: sa.Select[Any]) -> pa.Schema:
    """Return the Arrow schema of the rows of ``query``."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in query.selected_columns])


def with_values(rows: pa.Table) -> pa.Table:
    """Return ``rows`` without the columns that have no value at all.

    Few traces fill all columns, and an empty column costs time in a bulk load.
    """
    return rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])


def row_count(connection: sa.Connection, statement: PostgresInsert | SqliteInsert) -> int:
    """Execute an insert and return the number of rows it wrote."""
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def _arrow_type(sql_type: TypeEngine[Any]) -> pa.DataType:
    if isinstance(sql_type, (sa.BigInteger, sa.Integer)):
        return pa.int64()
    return pa.float64() if isinstance(sql_type, sa.Double) else pa.string()
