"""Bulk transport for SQLite.

Columns become rows of Python objects in small batches, passed to ``executemany``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from helios.warehouse.bulk import Bulk, arrow_schema, with_values
from helios.warehouse.schema import jobs

ROWS_PER_READ = 1_000
"""Rows that are Python objects at a time in reading, few enough for a core's cache.

180,000 jobs/s with 1,000 rows, 127,000 with 10,000.
"""
ROWS_PER_WRITE = 10_000
"""Rows that are Python objects at a time in writing, where a call for each column costs more.

10^6 jobs take 3.3 s of CPU time with 10,000 rows, 3.8 s with 1,000.
"""
ROWS_PER_STATEMENT = 200
"""Rows of one INSERT. 10^6 jobs take 3.2 s of CPU time with 200 rows, 5.3 s with one."""


class SqliteBulk(Bulk):
    """Bulk transport for SQLite (see ``Bulk``)."""

    insert_into = staticmethod(sqlite_insert)

    def insert(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
        """Add the rows whose key is not stored yet.

        Returns
        -------
        int
            How many rows were added.
        """
        if not len(rows):
            return 0
        return _execute(connection, _insert(table, with_values(rows)).on_conflict_do_nothing(), rows)

    def replace(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> None:
        """Store rows of all columns in place of those with the same key."""
        if len(rows):
            _execute(connection, _insert(table, with_values(rows)).prefix_with("OR REPLACE"), rows)

    @contextmanager
    def staged(self, connection: sa.Connection, rows: pa.Table, *, table: sa.Table = jobs) -> Iterator[sa.TableClause]:
        """Provide rows with columns of a table as a temporary table of the transaction.

        The temporary table is dropped when the block ends.
        """
        columns = [sa.Column(name, table.c[name].type) for name in rows.column_names]
        incoming = sa.Table("incoming", sa.MetaData(), *columns, prefixes=["TEMPORARY"])
        incoming.create(connection)
        _execute(connection, _insert(incoming, rows), rows)
        yield incoming
        incoming.drop(connection)

    def select(self, connection: sa.Connection, query: sa.Select[Any]) -> pa.Table:
        """Run a query of stored columns and return its rows.

        Its parameters must be numbers, as they are written into the statement.
        """
        schema = arrow_schema(query)
        statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        cursor = cast(sqlite3.Connection, connection.connection.driver_connection).execute(str(statement))
        return pa.Table.from_batches(_batches(cursor, schema), schema)

    def elements(self, array: str) -> sa.ColumnElement[str]:
        """Return the SQL expression for the elements of a JSON array of texts.

        Each element is text.
        """
        return cast(sa.ColumnElement[str], sa.func.json_each(array).table_valued("value").c.value)


def _insert(table: sa.Table, rows: pa.Table) -> SqliteInsert:
    *names, last = rows.column_names
    # One column is bound even if all are constant, since the rows are counted by it.
    values = {name: _value(table.c[name], rows[name]) for name in names}
    values[last] = sa.bindparam(last, type_=table.c[last].type)
    # Without inline(), SQLAlchemy adds RETURNING for constant key columns, and SQLite then reports no row count.
    return sqlite_insert(table).values(values).inline()


def _value(column: sa.Column[Any], values: pa.ChunkedArray) -> sa.ColumnElement[Any]:
    # A bound value costs about 70 ns per row. Cluster, restart and GPUs are often equal in all rows, and a source of
    # use leaves most columns unknown.
    if values.null_count == len(values):
        return sa.null()
    if pa.types.is_integer(values.type) and values.null_count == 0:
        numbers = values.to_numpy()
        if (numbers == numbers[0]).all():
            return sa.literal_column(str(numbers[0]), column.type)
    return sa.bindparam(column.name, type_=column.type)


def _execute(connection: sa.Connection, statement: SqliteInsert, rows: pa.Table) -> int:
    """Insert ``rows`` with several rows per statement, and return how many were added."""
    compiled: Any = statement.compile(dialect=connection.dialect)
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    rows = rows.select(compiled.positiontup)
    head, _, values_and_tail = str(compiled).partition("VALUES ")
    values, bracket, tail = values_and_tail.partition(")")
    n_per_statement = min(ROWS_PER_STATEMENT, driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // rows.num_columns)
    n_grouped, n_added = len(rows) // n_per_statement * n_per_statement, 0
    for part, n in ((rows.slice(0, n_grouped), n_per_statement), (rows.slice(n_grouped), 1)):
        if len(part):
            sql = f"{head}VALUES {', '.join([values + bracket] * n)}{tail}"
            n_added += driver.executemany(sql, _parameters(part, n)).rowcount
    return n_added


def _parameters(rows: pa.Table, n: int) -> Iterator[list[object]]:
    """Yield the values of ``n`` rows at a time, row after row."""
    width = rows.num_columns
    for batch in rows.combine_chunks().to_batches(max_chunksize=ROWS_PER_WRITE // n * n):
        values: list[object] = [None] * (width * len(batch))
        for position, column in enumerate(batch.columns):
            values[position::width] = _objects(column)
        for start in range(0, len(values), width * n):
            yield values[start : start + width * n]


def _objects(column: pa.Array) -> list[object]:
    if column.null_count == 0:
        return cast(list[object], column.to_numpy(zero_copy_only=False).tolist())
    objects = np.full(len(column), None, dtype=object)
    objects[column.is_valid().to_numpy(zero_copy_only=False)] = (
        column.drop_null().to_numpy(zero_copy_only=False).tolist()
    )
    return cast(list[object], objects.tolist())


def _batches(cursor: sqlite3.Cursor, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while rows := cursor.fetchmany(ROWS_PER_READ):
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], schema=schema)
