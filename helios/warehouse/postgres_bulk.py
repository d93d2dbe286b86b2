"""Bulk transport for PostgreSQL by COPY, with Arrow's CSV writer and reader."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql import insert as postgres_insert

from helios.warehouse.bulk import Bulk, arrow_schema, row_count, with_values
from helios.warehouse.schema import jobs

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
        with _staged(connection, table, with_values(rows)) as incoming:
            insert = postgres_insert(table).from_select([column.name for column in incoming.c], sa.select(incoming))
            return row_count(connection, insert.on_conflict_do_nothing())

    @contextmanager
    def staged(self, connection: sa.Connection, rows: pa.Table, *, table: sa.Table = jobs) -> Iterator[sa.TableClause]:
        """Provide rows with columns of a table as a temporary table of the transaction.

        The temporary table is dropped when the block ends.
        """
        with _staged(connection, table, rows) as incoming:
            connection.exec_driver_sql("ANALYZE incoming")  # without it the planner may scan all jobs for the join
            yield incoming

    def select(self, connection: sa.Connection, query: sa.Select[Any]) -> pa.Table:
        """Run a query of stored columns and return its rows.

        Its parameters must be numbers, as they are written into the statement.
        """
        statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        with _cursor(connection) as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as blocks:
            return _parse_csv(io.BufferedReader(_BlockReader(blocks), READ_BLOCK_BYTES), arrow_schema(query))

    def elements(self, array: str) -> sa.ColumnElement[str]:
        """Return the SQL expression for the elements of a JSON array of texts.

        Each element is text.
        """
        return cast(
            sa.ColumnElement[str],
            sa.func.json_array_elements_text(sa.cast(sa.literal(array, sa.Text()), JSON)).column_valued(),
        )


class _BlockReader(io.RawIOBase):
    """Readable file of blocks of bytes."""

    def __init__(self, blocks: Iterable[bytes | memoryview]) -> None:
        self._blocks = iter(blocks)
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the next bytes, and return their number."""
        if not self._block:
            self._block = memoryview(next(self._blocks, b""))
        part = self._block[: len(buffer)]
        buffer[: len(part)] = part
        self._block = self._block[len(part) :]
        return len(part)


@contextmanager
def _cursor(connection: sa.Connection) -> Iterator[Any]:
    raw = cast(Any, connection.connection.driver_connection)
    with raw.cursor() as cursor:
        yield cursor


@contextmanager
def _staged(connection: sa.Connection, table: sa.Table, rows: pa.Table) -> Iterator[sa.TableClause]:
    """Copy ``rows`` into a temporary table with the column types of ``table``.

    The temporary table is dropped when the block ends.
    """
    columns = [table.c[name] for name in rows.column_names]
    template = sa.select(*columns).where(sa.false())
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS {template.compile(dialect=connection.dialect)}"
    )
    with _cursor(connection) as cursor, cursor.copy("COPY incoming FROM STDIN (FORMAT csv)") as copy:
        for batch in rows.to_batches():
            csv = pa.BufferOutputStream()
            pyarrow.csv.write_csv(batch, csv, pyarrow.csv.WriteOptions(include_header=False))
            copy.write(memoryview(csv.getvalue()))
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
