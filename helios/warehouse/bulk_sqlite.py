"""Bulk transport for SQLite: column lists, zipped into rows at the last moment, through ``executemany``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    Select,
    Table,
    TableClause,
    bindparam,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.sql.elements import ColumnElement

from helios.warehouse.bulk import Conflict, arrow_schema, with_values
from helios.warehouse.schema import JOB_KEY, jobs

# Rows held as Python objects at a time: few enough to stay in a core's cache (180,000 jobs/s read with 1,000 rows,
# 127,000 with 10,000).
ROWS_AT_A_TIME = 1_000


class SqliteBulk:
    """See :class:`helios.warehouse.bulk.Bulk`."""

    def insert(self, connection: Connection, table: Table, rows: pa.Table) -> int:
        """Add the rows whose key is not there yet; return how many were added."""
        if not len(rows):
            return 0
        return _execute(connection, _insert(table, with_values(rows)).on_conflict_do_nothing(), rows)

    @contextmanager
    def staged(self, connection: Connection, rows: pa.Table) -> Iterator[TableClause]:
        """Hand out rows of ``jobs`` as a table of the transaction, which is gone afterwards."""
        columns = [Column(name, jobs.c[name].type) for name in rows.column_names]
        incoming = Table("incoming", MetaData(), *columns, prefixes=["TEMPORARY"])
        incoming.create(connection)
        _execute(connection, _insert(incoming, rows), rows)
        yield incoming
        incoming.drop(connection)

    def upsert_jobs(self, connection: Connection, incoming: TableClause, conflict: Conflict) -> int:
        """Add staged rows to ``jobs``; return how many were added or, by the rule for those there, changed."""
        # Without a WHERE SQLite takes ON for a join's.
        chosen = select(*incoming.c).where(true())
        statement = insert(jobs).from_select([column.name for column in incoming.c], chosen)
        values, where = conflict(statement.excluded)
        upsert = statement.on_conflict_do_update(index_elements=JOB_KEY, set_=values, where=where)
        return connection.execute(upsert, execution_options={"preserve_rowcount": True}).rowcount

    def select(self, connection: Connection, query: Select[Any]) -> pa.Table:
        """Run a query of stored columns, whose parameters are numbers, and return its rows."""
        schema = arrow_schema(query)
        statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        return pa.Table.from_batches(_batches(_raw(connection).execute(str(statement)), schema), schema)

    def elements(self, array: str) -> ColumnElement[str]:
        """Return the SQL for the elements, as text, of a JSON array of texts."""
        return cast(ColumnElement[str], func.json_each(array).table_valued("value").c.value)


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.driver_connection)


def _insert(table: Table, rows: pa.Table) -> Insert:
    values = {name: _value(table.c[name], rows[name]) for name in rows.column_names}
    # Inline: else SQLAlchemy has every row return its constant key columns, and SQLite then counts no rows.
    return insert(table).values(values).inline()


def _value(column: Column[Any], values: pa.ChunkedArray) -> ColumnElement[Any]:
    # A bound value costs about 70 ns a row, and cluster, restart and GPUs are often the same throughout.
    if pa.types.is_integer(values.type) and values.null_count == 0:
        numbers = values.to_numpy()
        if (numbers == numbers[0]).all():
            return literal_column(str(numbers[0]), column.type)
    return bindparam(column.name, type_=column.type)


def _execute(connection: Connection, statement: Insert, rows: pa.Table) -> int:
    compiled: Any = statement.compile(dialect=connection.dialect)
    tuples = _tuples(rows.select(compiled.positiontup))
    return _raw(connection).executemany(str(compiled), tuples).rowcount


def _tuples(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    batches = rows.to_batches(max_chunksize=ROWS_AT_A_TIME)
    return chain.from_iterable(zip(*map(_objects, batch.columns), strict=True) for batch in batches)


def _objects(column: pa.Array) -> list[object]:
    if column.null_count == 0:
        return cast(list[object], column.to_numpy(zero_copy_only=False).tolist())
    objects = np.full(len(column), None, dtype=object)
    objects[column.is_valid().to_numpy(zero_copy_only=False)] = (
        column.drop_null().to_numpy(zero_copy_only=False).tolist()
    )
    return cast(list[object], objects.tolist())


def _batches(cursor: sqlite3.Cursor, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while rows := cursor.fetchmany(ROWS_AT_A_TIME):
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], schema=schema)
