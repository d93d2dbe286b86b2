"""Conversion between data frames and stored columns.

Times become integers, and missing values become null. Texts with few distinct values, such as user names, are stored
once and referred to by number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid, NoSuchCluster, UsageError
from helios.model import JOBS, TIME, FrameKind, in_submission_order
from helios.warehouse.bulk import Bulk
from helios.warehouse.schema import clusters, jobs, names

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
