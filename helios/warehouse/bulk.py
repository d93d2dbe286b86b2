"""Bulk transport of data frames to and from SQLite and PostgreSQL.

Arrow tables hold columns as they are stored (``schema.py``): 64-bit integers, doubles and text, missing as null. An
ADBC driver was rejected for SQLite: it brings a second SQLite library into the process, and two of them lose each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).

In the database times become integers, and missing values become null. Texts with few distinct values, such as user
names, are stored once and referred to by number.
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
from helios.warehouse.schema import JOB_KEY, clusters, jobs, names

T = TypeVar("T")

# Texts in one statement: a few MB of parameters.
CHUNK = 20_000


class StringTable:
    """Numbers for texts and texts for numbers, within one transaction.

    Parameters
    ----------
    connection : Connection
        The transaction. If it is rolled back, the numbers of new texts are lost with it.
    bulk : Bulk
        Transport to the same database.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk) -> None:
        self._connection = connection
        self._bulk = bulk
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text, new or known."""
        unknown = list(dict.fromkeys(text for text in texts if text not in self._numbers))
        for chunk in _chunks(unknown):
            self._add(dict(zip(map(_digest, chunk), chunk, strict=True)))
        return [self._numbers[text] for text in texts]

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the text of each number."""
        found: dict[int, str] = {}
        for chunk in _chunks(list(numbers)):
            wanted = sa.cast(self._bulk.elements(json.dumps(chunk)), sa.BigInteger)
            rows = self._connection.execute(
                sa.select(names.c.name_id, names.c.text).where(names.c.name_id.in_(sa.select(wanted)))
            )
            found.update((int(number), str(text)) for number, text in rows)
        return found

    def _add(self, by_digest: dict[str, str]) -> None:
        digests = list(by_digest)
        self._bulk.insert(self._connection, names, pa.table({"digest": digests, "text": list(by_digest.values())}))
        wanted = self._bulk.elements(json.dumps(digests))
        query = sa.select(names.c.digest, names.c.name_id).where(names.c.digest.in_(sa.select(wanted)))
        self._numbers.update((by_digest[digest], number) for digest, number in self._connection.execute(query))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _chunks(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


# Clusters, by their name.

CLUSTERS = {
    "name": "str",
    "timezone": "object",
    "jobs": "int64",
    "gpu_jobs": "int64",
    "first_submitted_at": TIME,
    "last_submitted_at": TIME,
}


def find_cluster_id(connection: sa.Connection, name: str) -> int:
    """Return the number of a known cluster.

    Raises
    ------
    NoSuchCluster
        There is none of that name; the hint names those that exist.
    """
    found = connection.execute(sa.select(clusters.c.cluster_id).where(clusters.c.name == name)).scalar_one_or_none()
    if found is None:
        known = connection.execute(sa.select(clusters.c.name).order_by(clusters.c.name)).scalars().all()
        hint = f"Loaded are: {', '.join(known)}" if known else "Load some history first: helios trace load FILE"
        raise NoSuchCluster(f"No cluster {name!r} is in the warehouse.", hint=hint)
    return int(found)


def cluster_id_for_loading(connection: sa.Connection, *, name: str, timezone: str | None = None) -> int:
    """Return the number of a cluster, new or known.

    ``timezone`` is stored if none was known before.
    """
    found = connection.execute(sa.select(clusters).where(clusters.c.name == name)).one_or_none()
    if found is None:
        made = connection.execute(sa.insert(clusters).values(name=name, timezone=timezone))
        assert made.inserted_primary_key is not None
        return int(made.inserted_primary_key[0])
    if found.timezone is None and timezone is not None:
        connection.execute(sa.update(clusters).where(clusters.c.name == name).values(timezone=timezone))
    return int(found.cluster_id)


def cluster_timezone(connection: sa.Connection, name: str) -> str | None:
    """Return the time zone of a cluster.

    None if the cluster or its zone is not known.
    """
    return connection.execute(sa.select(clusters.c.timezone).where(clusters.c.name == name)).scalar_one_or_none()


def known_clusters(*, counts: bool) -> sa.Select[tuple[object, ...]]:
    """Return the query of all clusters and the span of their history.

    The columns are those of ``CLUSTERS``. The span comes from an index, whereas ``counts`` of jobs read every job.
    """
    sizes = {"jobs": sa.func.count(), "gpu_jobs": sa.func.count(sa.case((jobs.c.gpus > 0, 1)))} if counts else {}
    submitted_at = jobs.c.submitted_at
    ends = {"first_submitted_at": sa.func.min(submitted_at), "last_submitted_at": sa.func.max(submitted_at)}
    of_cluster = jobs.c.cluster_id == clusters.c.cluster_id
    columns = (
        sa.select(value).select_from(jobs).where(of_cluster).scalar_subquery().label(name)
        for name, value in (sizes | ends).items()
    )
    return sa.select(clusters.c.name, clusters.c.timezone, *columns).order_by(clusters.c.name)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stored_time(moment: datetime) -> int:
    """Return ``moment`` as microseconds since 1970-01-01 UTC.

    Raises
    ------
    UsageError
        ``moment`` has no time zone.
    """
    if moment.tzinfo is None:
        raise UsageError(f"{moment} has no time zone.", hint="Give one, for example UTC.")
    return (moment - _EPOCH) // timedelta(microseconds=1)


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

    With ``strings`` categories become numbers of names, else text.

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

    With ``strings`` categories become numbers of names, else text.
    """
    if dtype == "category" and strings:
        return _numbers(values, strings)
    if dtype in {"category", "str"}:
        return _without_nul(pa.array(values.astype("str"), pa.string(), from_pandas=True))
    return pa.array(values, from_pandas=True).cast(pa.float64() if dtype == "float64" else pa.int64())


def frame_of(table: pa.Table, types: Types, strings: StringTable | None = None) -> pd.DataFrame:
    """Return stored columns as a frame with the given types.

    Besides the types of :class:`helios.model.Column`, ``object`` is text with None for a missing one. With ``strings``,
    stored numbers of names become categories. A caller that keeps no table of its own needs the memory of one, not of
    two: each column is dropped once it is converted.
    """
    found = {}
    for name, dtype in column_types(types).items():
        found[name] = _series(table[name], dtype, strings)
        table = table.drop_columns([name])
    # Arrow keeps what is freed for its next table.
    pa.default_memory_pool().release_unused()
    return pd.DataFrame(found, copy=False)


def in_order(table: pa.Table) -> pa.Table:
    """Return stored jobs in submission order.

    They are ordered by submit time, natural order of ids, and restart. Ids are compared only for jobs submitted at the
    same time, which sorts 10^6 jobs in a tenth of the time.
    """
    submitted = table["submitted_at"].to_numpy()
    order = np.argsort(submitted, kind="stable")
    same = np.diff(submitted[order]) == 0
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    keys = table.select(["submitted_at", "job_id", "restart"]).take(order[tied]).to_pandas()
    order[tied] = in_submission_order(keys.assign(position=order[tied]))["position"].to_numpy(dtype=np.int64)
    if np.array_equal(order, np.arange(len(order))):
        return table
    # Column by column, for the same reason as in ``frame_of``.
    taken = {}
    for name in table.column_names:
        taken[name] = table[name].take(order)
        table = table.drop_columns([name])
    return pa.table(taken)


def _numbers(values: pd.Series, strings: StringTable) -> Any:
    codes = values.cat.codes.to_numpy()
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=0))
    # One slot more than there are categories: code -1, a missing value, reads the last.
    numbers = np.zeros(len(values.cat.categories) + 1, dtype=np.int64)
    numbers[used] = strings.numbers([str(text).replace("\0", "\\x00") for text in values.cat.categories[used]])
    return pa.array(numbers[codes], mask=codes < 0)


def _without_nul(texts: Any) -> Any:
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
    values = encoded.dictionary.to_pylist()
    if strings:
        by_number = strings.texts(values)
        values = [by_number[number] for number in values]
    return _sorted_categories(encoded.indices, values)


def _sorted_categories(indices: Any, texts: list[str]) -> pd.Series:
    order = np.argsort(np.array(texts, dtype=object), kind="stable")
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    rank[-1] = -1
    codes = rank[indices.fill_null(len(order)).to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index([texts[i] for i in order], dtype="str")))


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
