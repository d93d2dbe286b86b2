"""Bulk transport of data frames to and from SQLite and PostgreSQL.

Arrow tables have columns as they are stored (``schema.py``): 64-bit integers, doubles and text. Times are integers, and
missing values are null. Texts with few distinct values, such as user names, are stored once and referred to by number.

An ADBC driver was rejected for SQLite. It brings a second SQLite library into the process, and two of them release each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import sqlalchemy as sa
from pandas.api.types import pandas_dtype
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.types import TypeEngine

from helios.errors import FrameInvalid, NoSuchCluster, UsageError
from helios.model import JOBS, TIME, FrameKind, in_submission_order
from helios.private_files import require_cluster_name
from helios.warehouse.schema import JOB_KEY, clusters, jobs, names

T = TypeVar("T")

CHUNK = 20_000
"""Texts or numbers in one statement, a few MB of parameters."""

CLUSTERS = {
    "name": "str",
    "timezone": "object",
    "jobs": "int64",
    "gpu_jobs": "int64",
    "first_submitted_at": TIME,
    "last_submitted_at": TIME,
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

READ_BLOCK_BYTES = 4 << 20

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


class StringTable:
    """Numbers of texts, and texts of numbers, within one transaction.

    Parameters
    ----------
    connection : Connection
        The transaction. If it is rolled back, the numbers of new texts are lost.
    bulk : Bulk
        Transport to the same database.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk) -> None:
        self._connection = connection
        self._bulk = bulk
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text, which is stored if it is new."""
        unknown = list(dict.fromkeys(text for text in texts if text not in self._numbers))
        for chunk in _chunks(unknown):
            by_digest = {text_digest(text): text for text in chunk}
            digests = list(by_digest)
            self._bulk.insert(self._connection, names, pa.table({"digest": digests, "text": list(by_digest.values())}))
            elements = self._bulk.elements(json.dumps(digests))
            query = sa.select(names.c.digest, names.c.name_id).where(names.c.digest.in_(sa.select(elements)))
            self._numbers.update((by_digest[digest], number) for digest, number in self._connection.execute(query))
        return [self._numbers[text] for text in texts]

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the text of each number."""
        texts: dict[int, str] = {}
        for chunk in _chunks(list(numbers)):
            elements = sa.cast(self._bulk.elements(json.dumps(chunk)), sa.BigInteger)
            query = sa.select(names.c.name_id, names.c.text).where(names.c.name_id.in_(sa.select(elements)))
            texts.update((int(number), str(text)) for number, text in self._connection.execute(query))
        return texts


def text_digest(text: str) -> str:
    """Return the digest by which a text is found among the names."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _chunks(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


# Clusters.


def find_cluster_id(connection: sa.Connection, name: str) -> int:
    """Return the number of a known cluster.

    Raises
    ------
    NoSuchCluster
        There is none of that name; the hint names those that exist.
    """
    query = sa.select(clusters.c.cluster_id).where(clusters.c.name == name)
    cluster_id = connection.execute(query).scalar_one_or_none()
    if cluster_id is None:
        known = connection.execute(sa.select(clusters.c.name).order_by(clusters.c.name)).scalars().all()
        hint = f"Loaded are: {', '.join(known)}" if known else "Load some history first: helios trace load FILE"
        raise NoSuchCluster(f"No cluster {name!r} is in the warehouse.", hint=hint)
    return int(cluster_id)


def cluster_id_for_loading(connection: sa.Connection, *, name: str, timezone: str | None = None) -> int:
    """Return the number of a cluster, which is made if it is new.

    ``timezone`` is stored if none was known before.

    Raises
    ------
    UsageError
        It would be new, and its name is none, such as a path.
    """
    row = connection.execute(sa.select(clusters).where(clusters.c.name == name)).one_or_none()
    if row is None:
        new = {"name": require_cluster_name(name), "timezone": timezone}
        result = connection.execute(sa.insert(clusters).values(**new))
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])
    if row.timezone is None and timezone is not None:
        connection.execute(sa.update(clusters).where(clusters.c.name == name).values(timezone=timezone))
    return int(row.cluster_id)


def cluster_timezone(connection: sa.Connection, name: str) -> str | None:
    """Return the time zone of a cluster, None if either is unknown."""
    return connection.execute(sa.select(clusters.c.timezone).where(clusters.c.name == name)).scalar_one_or_none()


def known_clusters(*, counts: bool) -> sa.Select[tuple[object, ...]]:
    """Return the query of all clusters and the span of their history.

    The columns are those of ``CLUSTERS``, without the numbers of jobs unless ``counts``. The span comes from an index,
    whereas counting reads every job.
    """
    numbers = {"jobs": sa.func.count(), "gpu_jobs": sa.func.count(sa.case((jobs.c.gpus > 0, 1)))} if counts else {}
    submitted_at = jobs.c.submitted_at
    span = {"first_submitted_at": sa.func.min(submitted_at), "last_submitted_at": sa.func.max(submitted_at)}
    in_cluster = jobs.c.cluster_id == clusters.c.cluster_id
    columns = (
        sa.select(value).select_from(jobs).where(in_cluster).scalar_subquery().label(name)
        for name, value in (numbers | span).items()
    )
    return sa.select(clusters.c.name, clusters.c.timezone, *columns).order_by(clusters.c.name)


# Conversion of frames to stored columns and back.


def stored_time(time: datetime) -> int:
    """Return ``time`` as microseconds since 1970-01-01 UTC.

    Raises
    ------
    UsageError
        ``time`` has no time zone.
    """
    if time.tzinfo is None:
        raise UsageError(f"{time} has no time zone.", hint="Give one, for example UTC.")
    return (time - _EPOCH) // timedelta(microseconds=1)


def stored_jobs(jobs: pd.DataFrame, *, cluster_id: int, strings: StringTable) -> pa.Table:
    """Return a ``JOBS`` frame as stored columns.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    cluster_id : int
        Number of their cluster.
    strings : StringTable
        Numbers of the texts of category columns.

    Raises
    ------
    FrameInvalid
        A column is missing or of another type, or a job lacks its id or submit time.
    """
    JOBS.check(jobs)
    for name in ("job_id", "submitted_at"):
        if jobs[name].isna().any():
            raise FrameInvalid(f"{int(jobs[name].isna().sum()):,} jobs have no {name}, by which they are told apart")
    return stored_frame(JOBS, jobs, cluster_id, strings)


Types = FrameKind | Mapping[str, str]
"""A kind of frame, or the type of each column."""


def column_types(types: Types) -> Mapping[str, str]:
    """Return the declared type of each column."""
    return {column.name: column.dtype for column in types.columns} if isinstance(types, FrameKind) else types


def stored_frame(kind: FrameKind, frame: pd.DataFrame, cluster_id: int, strings: StringTable | None = None) -> pa.Table:
    """Return a frame of a cluster as stored columns.

    With ``strings`` category columns become numbers of texts, without it text.

    Raises
    ------
    FrameInvalid
        A column is missing or of another type.
    """
    kind.check(frame)
    columns = {column.name: stored_column(frame[column.name], column.dtype, strings) for column in kind.columns}
    return pa.table({"cluster_id": pa.array(np.full(len(frame), cluster_id))} | columns)


def stored_column(values: pd.Series, dtype: str, strings: StringTable | None = None) -> Any:
    """Return one declared column as an Arrow array in its stored type.

    With ``strings`` a category column becomes numbers of texts, without it text.
    """
    if dtype == "category" and strings:
        return _category_numbers(values, strings)
    if dtype in {"category", "str"}:
        return _escape_nul(pa.array(values.astype("str"), pa.string(), from_pandas=True))
    return pa.array(values, from_pandas=True).cast(pa.float64() if dtype == "float64" else pa.int64())


def frame_of(table: pa.Table, types: Types, strings: StringTable | None = None) -> pd.DataFrame:
    """Return stored columns as a frame with the given types.

    Besides the types of :class:`helios.model.Column`, ``object`` is text with None for a missing one. With ``strings``,
    stored numbers of texts become categories. Each column is dropped from the table once it is converted, so that the
    memory for a second copy is not needed unless the caller keeps ``table``.
    """
    series = {}
    for name, dtype in column_types(types).items():
        series[name] = _series(table[name], dtype, strings)
        table = table.drop_columns([name])
    # Arrow would keep the freed memory for its next table.
    pa.default_memory_pool().release_unused()
    return pd.DataFrame(series, copy=False)


def in_order(table: pa.Table) -> pa.Table:
    """Return stored jobs in submission order.

    They are ordered by submit time, natural order of ids, and restart. Ids are compared only for jobs with equal submit
    times, which takes a tenth of the time for 10^6 jobs.
    """
    submitted_us = table["submitted_at"].to_numpy()
    order = np.argsort(submitted_us, kind="stable")
    equals_next = np.diff(submitted_us[order]) == 0
    tied = np.flatnonzero(np.append(equals_next, False) | np.insert(equals_next, 0, False))
    keys = table.select(["submitted_at", "job_id", "restart"]).take(order[tied]).to_pandas()
    order[tied] = in_submission_order(keys.assign(position=order[tied]))["position"].to_numpy(dtype=np.int64)
    if np.array_equal(order, np.arange(len(order))):
        return table
    # Column by column, to save memory as in ``frame_of``.
    columns = {}
    for name in table.column_names:
        columns[name] = table[name].take(order)
        table = table.drop_columns([name])
    return pa.table(columns)


def _category_numbers(values: pd.Series, strings: StringTable) -> Any:
    codes = values.cat.codes.to_numpy()
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=0))
    # The additional last entry is for the code -1 of a missing value.
    numbers = np.zeros(len(values.cat.categories) + 1, dtype=np.int64)
    numbers[used] = strings.numbers([str(text).replace("\0", "\\x00") for text in values.cat.categories[used]])
    return pa.array(numbers[codes], mask=codes < 0)


def _escape_nul(texts: Any) -> Any:
    # PostgreSQL cannot store U+0000. It is escaped on both databases, so that both return the same text.
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        return pc.replace_substring(texts, "\0", "\\x00")
    return texts


def _series(column: pa.ChunkedArray, dtype: str, strings: StringTable | None) -> pd.Series:
    if dtype == "category":
        return _categories(column, strings)
    if dtype == "object":
        return pd.Series(column.to_pylist(), dtype=object)
    if dtype == TIME:
        return pd.Series(column.cast(pa.timestamp("us", "UTC")).to_pandas()).astype(pandas_dtype(TIME))
    if dtype == "str":
        return pd.Series(column.to_pandas(), dtype="str")
    return pd.Series(column.to_numpy()).astype(pandas_dtype(dtype))


def _categories(column: pa.ChunkedArray, strings: StringTable | None) -> pd.Series:
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    texts = encoded.dictionary.to_pylist()
    if strings:
        by_number = strings.texts(texts)
        texts = [by_number[number] for number in texts]
    order = np.argsort(np.array(texts, dtype=object), kind="stable")
    # The additional last entry is for a missing value.
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    rank[-1] = -1
    codes = rank[encoded.indices.fill_null(len(order)).to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index([texts[i] for i in order], dtype="str")))


# Bulk transport.

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
        rows = sa.select(*incoming.c).where(sa.true())
        statement = self.insert_into(jobs).from_select([column.name for column in incoming.c], rows)
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
            return _row_count(connection, insert.on_conflict_do_nothing())

    @contextmanager
    def staged(self, connection: sa.Connection, rows: pa.Table) -> Iterator[sa.TableClause]:
        """Provide rows of ``jobs`` as a temporary table of the transaction.

        The table is dropped when the block ends.
        """
        with _staged(connection, jobs, rows) as incoming:
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
        """Fill ``buffer`` with the next bytes, and return their number, 0 at the end."""
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


# Bulk transport for SQLite. Columns become rows of Python objects in small batches, passed to ``executemany``.


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
    # A bound value costs about 70 ns per row, and cluster, restart and GPUs are often equal in all rows.
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
