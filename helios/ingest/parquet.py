"""Reader and writer of Parquet files with the columns of ``JOBS``.

It is the one layout that holds everything Helios knows of a job, for moving history from one warehouse to another.
Cluster and time zone are in the file's metadata. Files of others are read too, if their columns have the same names;
``job_id`` and ``submitted_at`` are needed, and a column that is left out is unknown.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from helios.errors import FileUnreadable, FormatUnknown
from helios.ingest.job_rows import FileReading, JobRows, Layout, RunKeys
from helios.ingest.lines import Block, RowTexts, created, decompressed, file_size
from helios.ingest.parse import (
    NOT_A_TIME,
    CheckResults,
    Instants,
    Reason,
    category,
    instants,
    job_states,
    strings,
    without,
)
from helios.model import JOBS, TIME

MAGIC = b"PAR1"
CLUSTER, ZONE = b"helios.cluster", b"helios.timezone"
ROWS_PER_GROUP = 100_000
NEEDED = ("job_id", "submitted_at")
_STORED = {
    "category": pa.dictionary(pa.int32(), pa.string()),
    "str": pa.string(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    TIME: pa.timestamp("us", tz="UTC"),
}
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_LARGEST_INT32 = 2**31 - 1


def fits(start: bytes) -> bool:
    """Return whether a file begins as Parquet does."""
    return start.startswith(MAGIC)


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield a file in batches of rows.

    The "line" of a row is its number, from 1.

    Raises
    ------
    FormatUnknown
        It is no Parquet file, lacks a column, or has one of the wrong type.
    FileUnreadable
        It cannot be read to its end.
    """
    with open_parquet(reading.path) as file:
        schema = file.schema_arrow
        if missing := [name for name in NEEDED if name not in schema.names]:
            raise FormatUnknown(
                f"{reading.path} is not a table of jobs: it has no column {' and no '.join(missing)}.",
                hint=f"Columns that Helios reads: {', '.join(JOBS.names)}",
            )
        _refuse_types(reading.path, schema)
        unknown = [name for name in schema.names if name not in JOBS.by_name]
        reading.tally[f"columns that Helios does not know were ignored: {', '.join(unknown[:10])}"] += len(unknown)
        known = [name for name in JOBS.names if name in schema.names]
        clusters = frozenset(filter(None, [_metadata(schema, CLUSTER)]))
        for texts in read_batches(file, reading, known):
            yield _draft(texts, reading, clusters)


def read_batches(file: pq.ParquetFile, reading: FileReading, columns: list[str]) -> Iterator[RowValues]:
    """Yield some columns of a file in batches of rows."""
    size, total, done = file_size(reading.path), max(1, file.metadata.num_rows), 0
    for batch in file.iter_batches(batch_size=reading.rows_per_batch, columns=columns):
        yield RowValues.numbered(batch, after=done, bytes_read=size * (done + len(batch)) // total)
        done += len(batch)


def own_zone(path: Path) -> str | None:
    """Return the time zone that the file's metadata names, or None."""
    try:
        with open_parquet(path) as file:
            return _metadata(file.schema_arrow, ZONE)
    except (FormatUnknown, FileUnreadable):  # said again, with its reason, when the rows are read
        return None


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda _: False, own_zone=own_zone)


def write_parquet(jobs: pd.DataFrame, path: Path, *, cluster: str, timezone: str) -> None:
    """Write jobs with all columns.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    cluster, timezone : str
        Written into the file's metadata, and read again by :func:`drafts`.

    Raises
    ------
    FileUnwritable
        The file cannot be written.
    """
    # A dictionary is stored whole: names of users who are not in these jobs must not be in it.
    named = [column.name for column in JOBS.columns if column.dtype == "category"]
    categories: dict[str, Any] = {name: jobs[name].cat.remove_unused_categories() for name in named}
    schema = pa.schema([(column.name, _STORED[column.dtype]) for column in JOBS.columns])
    table = pa.Table.from_pandas(JOBS.check(jobs).assign(**categories), schema=schema, preserve_index=False)
    table = table.replace_schema_metadata({CLUSTER: cluster.encode(), ZONE: timezone.encode()})
    with created(path) as file:
        pq.write_table(table, file, row_group_size=ROWS_PER_GROUP, compression="zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValues(RowTexts):
    """Rows that are no lines of a file, as text on request."""

    batch: pa.RecordBatch

    @classmethod
    def numbered(cls, batch: pa.RecordBatch, *, after: int, bytes_read: int) -> RowValues:
        """Return rows whose lines are their numbers, from ``after`` + 1."""
        return cls(
            block=Block(data=b"", first_line=1, bytes_read=bytes_read),
            ends=np.empty(0, dtype=np.int64),
            line=np.arange(after, after + len(batch), dtype=np.int64) + 1,
            batch=batch,
        )

    @property
    def size_bytes(self) -> int:
        """Size of the rows in memory.

        Translation needs about as much again.
        """
        return int(self.batch.nbytes)

    def at(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return the rows at positions ``rows`` as JSON."""
        return [self._json(int(row)) for row in rows]

    def fingerprints(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a hash of the values of the rows at positions ``rows``."""
        try:
            values = self.batch.take(pa.array(rows)).to_pandas()
        except UnicodeDecodeError:
            return RowTexts.fingerprints(self, rows)
        hashes: NDArray[np.int64] = pd.util.hash_pandas_object(values, index=False).to_numpy().view(np.int64)
        return hashes

    def _json(self, row: int) -> bytes:
        try:
            values = self.batch.slice(row, 1).to_pylist()[0]
        except (UnicodeDecodeError, ValueError, OverflowError):  # a text that is no UTF-8, a time beyond Python's
            return f"row {row} of a batch, which is no text".encode()
        known = {name: value for name, value in values.items() if value is not None}
        return json.dumps(known, default=str).encode()


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file, unpacked where it is compressed."""
    try:
        with path.open("rb") as raw, decompressed(raw) as plain:
            if plain.read(len(MAGIC)) != MAGIC:
                raise FormatUnknown(
                    f"{path} is not Parquet: it does not begin with PAR1.",
                    hint="Load it without --format, which detects it.",
                )
            plain.seek(0)
            with _seekable(plain, raw) as file:
                yield pq.ParquetFile(file)
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError) as reason:
        if isinstance(reason, OSError) and reason.strerror:
            raise FileUnreadable(
                f"{path} cannot be read: {reason.strerror}.", hint="Check the path and its permissions."
            ) from reason
        raise FileUnreadable(
            f"{path} cannot be read as Parquet: {str(reason).partition(chr(10))[0]}.",
            hint="It was cut or damaged; export or copy it again.",
        ) from reason


@contextmanager
def _seekable(plain: IO[bytes], raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a file, unpacked where it is compressed."""
    if plain is raw:
        yield plain
        return
    with TemporaryFile() as copy:
        shutil.copyfileobj(plain, copy)
        copy.seek(0)
        yield copy


def _refuse_types(path: Path, schema: pa.Schema) -> None:
    """Raise FormatUnknown for a column of a wrong type."""
    types = pa.types
    allowed: dict[str, tuple[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
        "times": ("timestamps", (types.is_timestamp,)),
        "texts": ("texts", (types.is_string, types.is_large_string, types.is_integer)),
        "numbers": ("numbers", (types.is_integer, types.is_floating, types.is_decimal)),
    }
    for name in JOBS.names:
        if name in schema.names:
            stored = schema.field(name).type
            value = stored.value_type if types.is_dictionary(stored) else stored
            wanted, checks = allowed[_kind(name)]
            if not types.is_null(value) and not any(check(value) for check in checks):
                raise FormatUnknown(
                    f"{path} is not a table of jobs: its column {name} is of {stored}, and {wanted} are needed.",
                    hint=f"Times are timestamps; {', '.join(NEEDED)} are needed, other columns may be left out.",
                )


def _kind(name: str) -> str:
    dtype = JOBS.by_name[name].dtype
    return "times" if dtype == TIME else "texts" if dtype in {"str", "category"} else "numbers"


def _metadata(schema: pa.Schema, key: bytes) -> str | None:
    return (schema.metadata or {}).get(key, b"").decode("utf-8", errors="replace") or None


def _draft(texts: RowValues, reading: FileReading, clusters: frozenset[str]) -> JobRows:
    results = CheckResults(len(texts.line))
    jobs: dict[str, Any] = {}
    for name in texts.batch.schema.names:
        column = texts.batch.column(name)
        if _kind(name) == "times":
            jobs[name] = _times(column, reading, results)
        elif _kind(name) == "numbers":
            jobs[name] = _numbers(name, column, results)
        elif name == "state":
            jobs[name], bad = job_states(_texts(column, results))
            results.refuse(bad, Reason.UNKNOWN_STATE)
        else:
            read = strings if JOBS.by_name[name].dtype == "str" else category
            jobs[name] = read(_texts(column, results))
    started = jobs.setdefault("started_at", np.full(len(texts.line), NOT_A_TIME))
    if "run_time_s" not in jobs and "ended_at" in jobs:
        jobs["run_time_s"] = (jobs["ended_at"] - started) / np.timedelta64(1, "s")
    return JobRows(
        jobs=jobs,
        runs=RunKeys(known=results.accepted, started=started),
        results=results,
        skipped=np.zeros(len(texts.line), dtype=np.bool_),
        refused=[],
        texts=texts,
        clusters=clusters,
    )


def _times(column: pa.Array, reading: FileReading, results: CheckResults) -> Instants:
    if pa.types.is_null(column.type):
        return np.full(len(column), NOT_A_TIME)
    if column.type.tz is None:  # of another program; the zone is the cluster's own, as with other files
        found, bad = reading.clock.read(pc.cast(column, pa.string()))
    else:
        ticks = pc.cast(pc.cast(column, pa.int64()), pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        found, bad = instants(ticks / _PER_SECOND[column.type.unit])
    results.refuse(bad, Reason.UNREADABLE_TIME)
    return found


def _texts(column: pa.Array, results: CheckResults) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts = pc.cast(column, pa.string())
    if not is_utf8(texts):
        values = texts.cast(pa.binary()).to_pylist()
        bad = np.array([value is not None and not _decodes(value) for value in values], dtype=np.bool_)
        results.refuse(bad, Reason.INVALID_UTF8)
        texts = pa.array([None if wrong else value for value, wrong in zip(values, bad, strict=True)], pa.string())
    nul = pc.fill_null(pc.match_substring(texts, "\0"), False)
    results.refuse(nul.to_numpy(zero_copy_only=False), Reason.NUL_BYTE)
    return without(texts, "")


def is_utf8(texts: pa.Array) -> bool:
    """Return whether all texts are valid."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _numbers(name: str, column: pa.Array, results: CheckResults) -> NDArray[Any]:
    values: NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    # UNLIMITED is the one number that may be infinite.
    results.refuse(np.isinf(values) & ((name != "time_limit_s") | (values < 0)), Reason.UNREADABLE_NUMBER)
    if name != "restart":
        return values
    values = np.nan_to_num(values)
    bad = (values != np.floor(values)) | (values < 0) | (values > _LARGEST_INT32)
    results.refuse(bad, Reason.UNREADABLE_NUMBER)
    whole: NDArray[np.int32] = np.where(bad, 0, values).astype(np.int32)
    return whole
