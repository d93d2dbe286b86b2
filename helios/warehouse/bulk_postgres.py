"""Bulk transport for PostgreSQL: COPY, with Arrow's CSV writer and reader on this side."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.csv
from sqlalchemy import Connection, Select, Table, TableClause, Text, false, func, literal, select
from sqlalchemy import cast as sql_cast
from sqlalchemy import column as bare_column
from sqlalchemy import table as bare_table
from sqlalchemy.dialects.postgresql import JSON, Insert, insert
from sqlalchemy.sql.elements import ColumnElement

from helios.warehouse.bulk import Conflict, arrow_schema, with_values
from helios.warehouse.schema import JOB_KEY, jobs

READ_BLOCK_BYTES = 4 << 20


class PostgresBulk:
    """See :class:`helios.warehouse.bulk.Bulk`."""

    def insert(self, connection: Connection, table: Table, rows: pa.Table) -> int:
        """Add the rows whose key is not there yet; return how many were added."""
        if not len(rows):
            return 0
        filled = with_values(rows)
        with _staged(connection, table, filled) as incoming:
            return _row_count(connection, _inserted(table, incoming).on_conflict_do_nothing())

    @contextmanager
    def staged(self, connection: Connection, rows: pa.Table) -> Iterator[TableClause]:
        """Hand out rows of ``jobs`` as a table of the transaction, which is gone afterwards."""
        with _staged(connection, jobs, rows) as incoming:
            connection.exec_driver_sql("ANALYZE incoming")  # else it may join them by reading all jobs there are
            yield incoming

    def upsert_jobs(self, connection: Connection, incoming: TableClause, conflict: Conflict) -> int:
        """Add staged rows to ``jobs``; return how many were added or, by the rule for those there, changed."""
        statement = _inserted(jobs, incoming)
        values, where = conflict(statement.excluded)
        upsert = statement.on_conflict_do_update(index_elements=JOB_KEY, set_=values, where=where)
        return _row_count(connection, upsert)

    def select(self, connection: Connection, query: Select[Any]) -> pa.Table:
        """Run a query of stored columns, whose parameters are numbers, and return its rows."""
        statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        with _cursor(connection) as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as blocks:
            return _parsed(io.BufferedReader(_Blocks(blocks), READ_BLOCK_BYTES), arrow_schema(query))

    def elements(self, array: str) -> ColumnElement[str]:
        """Return the SQL for the elements, as text, of a JSON array of texts."""
        return cast(
            ColumnElement[str], func.json_array_elements_text(sql_cast(literal(array, Text()), JSON)).column_valued()
        )


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file to read from."""

    def __init__(self, blocks: Iterable[bytes | memoryview]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with what comes next; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


@contextmanager
def _cursor(connection: Connection) -> Iterator[Any]:
    raw = cast(Any, connection.connection.driver_connection)
    with raw.cursor() as cursor:
        yield cursor


@contextmanager
def _staged(connection: Connection, table: Table, rows: pa.Table) -> Iterator[TableClause]:
    """Copy ``rows`` into a temporary table with columns as ``table`` has them, and hand it out."""
    columns = [table.c[name] for name in rows.column_names]
    template = select(*columns).where(false())
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS {template.compile(dialect=connection.dialect)}"
    )
    with _cursor(connection) as cursor, cursor.copy("COPY incoming FROM STDIN (FORMAT csv)") as copy:
        for batch in rows.to_batches():
            copy.write(_as_csv(batch))
    yield bare_table("incoming", *(bare_column(column.name, column.type) for column in columns))
    connection.exec_driver_sql("DROP TABLE incoming")


def _inserted(table: Table, incoming: TableClause) -> Insert:
    return insert(table).from_select([column.name for column in incoming.c], select(incoming))


def _row_count(connection: Connection, statement: Insert) -> int:
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def _as_csv(rows: pa.RecordBatch) -> memoryview:
    written = pa.BufferOutputStream()
    pyarrow.csv.write_csv(rows, written, pyarrow.csv.WriteOptions(include_header=False))
    return memoryview(written.getvalue())


def _parsed(csv: io.BufferedReader, schema: pa.Schema) -> pa.Table:
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
