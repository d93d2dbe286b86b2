"""Bulk transport of Arrow tables to and from SQLite and PostgreSQL.

Arrow tables hold columns as they are stored (``schema.py``): 64-bit integers, doubles and text, missing as null.
An ADBC driver was rejected for SQLite: it brings a second SQLite library into the process, and two of them lose each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.types import TypeEngine

from helios.warehouse.schema import JOB_KEY, jobs

Conflict = Callable[[Any], tuple[Mapping[str, sa.ColumnElement[Any]], sa.ColumnElement[bool]]]
"""Rule for the row of a job that is stored already.

Called with the columns of the new row, it returns the values that the stored row gets, and the condition under which
it gets them.
"""


class Bulk(Protocol):
    """What the warehouse needs of a database beyond SQLAlchemy Core.

    Each call is part of the caller's transaction.
    """

    insert_into: Callable[[sa.Table], Any]
    """Makes an ``INSERT`` of the database's dialect."""

    def insert(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
        """Add the rows whose key is not stored yet.

        Returns
        -------
        int
            How many rows were added.
        """
        ...

    def staged(self, connection: sa.Connection, rows: pa.Table) -> AbstractContextManager[sa.TableClause]:
        """Provide rows of ``jobs`` as a temporary table of the transaction.

        The table is dropped when the block ends.
        """
        ...

    def upsert_jobs(self, connection: sa.Connection, incoming: sa.TableClause, conflict: Conflict) -> int:
        """Add staged rows to ``jobs``, or change the stored ones by ``conflict``.

        Returns
        -------
        int
            How many rows were added or changed.
        """
        # Without a WHERE, SQLite parses the ON of ON CONFLICT as the condition of a join.
        chosen = sa.select(*incoming.c).where(sa.true())
        statement = self.insert_into(jobs).from_select([column.name for column in incoming.c], chosen)
        values, where = conflict(statement.excluded)
        upsert = statement.on_conflict_do_update(index_elements=JOB_KEY, set_=values, where=where)
        return _row_count(connection, upsert)

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


def _row_count(connection: sa.Connection, statement: PostgresInsert | SqliteInsert) -> int:
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def _arrow_type(sql_type: TypeEngine[Any]) -> pa.DataType:
    if isinstance(sql_type, (sa.BigInteger, sa.Integer)):
        return pa.int64()
    return pa.float64() if isinstance(sql_type, sa.Double) else pa.string()


# Bulk transport for PostgreSQL: COPY, with Arrow's CSV writer and reader in Helios.

READ_BLOCK_BYTES = 4 << 20


class PostgresBulk(Bulk):
    """Bulk transport for PostgreSQL (see ``Bulk``)."""

    insert_into = staticmethod(postgres_insert)

    def insert(self, connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
        """Add the rows whose key is not stored yet.

        Returns
        -------
        int
            How many rows were added.
        """
        if not len(rows):
            return 0
        filled = with_values(rows)
        with _staged(connection, table, filled) as incoming:
            rows_of = postgres_insert(table).from_select([column.name for column in incoming.c], sa.select(incoming))
            return _row_count(connection, rows_of.on_conflict_do_nothing())

    @contextmanager
    def staged(self, connection: sa.Connection, rows: pa.Table) -> Iterator[sa.TableClause]:
        """Provide rows of ``jobs`` as a temporary table of the transaction.

        The table is dropped when the block ends.
        """
        with _staged(connection, jobs, rows) as incoming:
            connection.exec_driver_sql("ANALYZE incoming")  # else the planner may scan all of jobs for the join
            yield incoming

    def select(self, connection: sa.Connection, query: sa.Select[Any]) -> pa.Table:
        """Run a query of stored columns and return its rows.

        Its parameters must be numbers, as they are written into the statement.
        """
        statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        with _cursor(connection) as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as blocks:
            return _parse_csv(io.BufferedReader(_Blocks(blocks), READ_BLOCK_BYTES), arrow_schema(query))

    def elements(self, array: str) -> sa.ColumnElement[str]:
        """Return the SQL expression for the elements of a JSON array of texts.

        Each element is text.
        """
        return cast(
            sa.ColumnElement[str],
            sa.func.json_array_elements_text(sa.cast(sa.literal(array, sa.Text()), JSON)).column_valued(),
        )


class _Blocks(io.RawIOBase):
    """A readable file made of blocks of bytes."""

    def __init__(self, blocks: Iterable[bytes | memoryview]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the next bytes.

        Returns how many were written to it, 0 at the end.
        """
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


@contextmanager
def _cursor(connection: sa.Connection) -> Iterator[Any]:
    raw = cast(Any, connection.connection.driver_connection)
    with raw.cursor() as cursor:
        yield cursor


@contextmanager
def _staged(connection: sa.Connection, table: sa.Table, rows: pa.Table) -> Iterator[sa.TableClause]:
    """Copy ``rows`` into a temporary table and provide it.

    Its columns have the types of those in ``table``. It is dropped when the block ends.
    """
    columns = [table.c[name] for name in rows.column_names]
    template = sa.select(*columns).where(sa.false())
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS {template.compile(dialect=connection.dialect)}"
    )
    with _cursor(connection) as cursor, cursor.copy("COPY incoming FROM STDIN (FORMAT csv)") as copy:
        for batch in rows.to_batches():
            written = pa.BufferOutputStream()
            pyarrow.csv.write_csv(batch, written, pyarrow.csv.WriteOptions(include_header=False))
            copy.write(memoryview(written.getvalue()))
    yield sa.table("incoming", *(sa.column(column.name, column.type) for column in columns))
    connection.exec_driver_sql("DROP TABLE incoming")


def _parse_csv(csv: io.BufferedReader, schema: pa.Schema) -> pa.Table:
    if not csv.peek(1):
        return schema.empty_table()
    with pyarrow.csv.open_csv(
        csv,
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, block_size=READ_BLOCK_BYTES),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        # COPY writes a missing text as nothing and an empty one as "".
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    ) as reader:
        return reader.read_all()


# Bulk transport for SQLite: columns become rows of Python objects at the last moment, passed to ``executemany``.

# Rows held as Python objects at a time when they are read: few enough to stay in a core's cache (180,000 jobs/s with
# 1,000 rows, 127,000 with 10,000).
ROWS_AT_A_TIME = 1_000
# The same when they are written, where a call for each column costs more: 10^6 jobs take 3.3 s of CPU time, and 3.8 s
# with 1,000.
WRITTEN_AT_A_TIME = 10_000
# Rows of one INSERT: 10^6 jobs take 3.2 s of CPU time with 200, and 5.3 s with one.
ROWS_OF_A_STATEMENT = 200


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

    @contextmanager
    def staged(self, connection: sa.Connection, rows: pa.Table) -> Iterator[sa.TableClause]:
        """Provide rows of ``jobs`` as a temporary table of the transaction.

        The table is dropped when the block ends.
        """
        columns = [sa.Column(name, jobs.c[name].type) for name in rows.column_names]
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
    values = {name: _value(table.c[name], rows[name]) for name in rows.column_names}
    # Without inline(), SQLAlchemy adds RETURNING for constant key columns, and SQLite then reports no row count.
    return sqlite_insert(table).values(values).inline()


def _value(column: sa.Column[Any], values: pa.ChunkedArray) -> sa.ColumnElement[Any]:
    # A bound value costs about 70 ns a row, and cluster, restart and GPUs are often the same in all rows.
    if pa.types.is_integer(values.type) and values.null_count == 0:
        numbers = values.to_numpy()
        if (numbers == numbers[0]).all():
            return sa.literal_column(str(numbers[0]), column.type)
    return sa.bindparam(column.name, type_=column.type)


def _execute(connection: sa.Connection, statement: SqliteInsert, rows: pa.Table) -> int:
    compiled: Any = statement.compile(dialect=connection.dialect)
    bound, raw = rows.select(compiled.positiontup), cast(sqlite3.Connection, connection.connection.driver_connection)
    before, _, rest = str(compiled).partition("VALUES ")
    row, bracket, after = rest.partition(")")
    most = min(ROWS_OF_A_STATEMENT, raw.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // bound.num_columns)
    whole, added = len(bound) // most * most, 0
    for some, count in ((bound.slice(0, whole), most), (bound.slice(whole), 1)):
        several = f"{before}VALUES {', '.join([row + bracket] * count)}{after}"
        added += raw.executemany(several, _values_of(some, count)).rowcount if len(some) else 0
    return added


def _values_of(rows: pa.Table, count: int) -> Iterator[list[object]]:
    """Yield the values of ``count`` rows at a time, row after row."""
    width = rows.num_columns
    for batch in rows.combine_chunks().to_batches(max_chunksize=WRITTEN_AT_A_TIME // count * count):
        values: list[object] = [None] * (width * len(batch))
        for place, column in enumerate(batch.columns):
            values[place::width] = _objects(column)
        for start in range(0, len(values), width * count):
            yield values[start : start + width * count]


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
