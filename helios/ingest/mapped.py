"""Reader of any table whose columns a map names.

Text with separators, Parquet, SQL dumps and JSON are read as columns of texts. From there on all are translated alike:
into columns of ``JOBS``, or into sacct's fields, which are then read as those of sacct.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest import column_map, parquet, sacct, sql_dump
from helios.ingest.column_map import COUNTS, DURATION_UNITS, EPOCH_UNITS, TIMES, ColumnMap, ColumnSource, Lookup
from helios.ingest.delimited import DelimitedRows, Translation, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.json_records import as_text, read_records
from helios.ingest.lines import LATIN_1, REPLACED, head
from helios.ingest.parse import (
    NOT_A_TIME,
    Instants,
    Mask,
    Reason,
    category,
    distinct_texts,
    durations,
    has_utc_offset,
    instants,
    known_values,
    numbers,
    spans,
    strings,
    unset_epoch,
    without,
)
from helios.ingest.repair import Dialect, distinct_names
from helios.model import JOBS, JobState
from helios.model.gpu_parts import Places, places

_SEPARATORS = (",", ";", "\t", "|")
_NOTHING = pa.scalar(None, pa.string())
_UNFINISHED = (JobState.PENDING.value, JobState.RUNNING.value, JobState.SUSPENDED.value)
_STATES = tuple(JobState)[:12]
"""Base states in the order of slurm.h ``enum job_states``."""
_FIRST_ENDED = _STATES.index(JobState.COMPLETED)
_STATE_FLAGS = {
    0x080000: JobState.REVOKED,
    0x2000: JobState.RESIZING,
    **dict.fromkeys((0x400, 0x800, 0x1000, 0x100000, 0x200000), JobState.REQUEUED),
}
"""Flags of slurm.h ``JOB_STATE_FLAGS`` that slurmdbd writes in place of a base state that has ended."""
_TRES = {1: "cpu", 2: "mem", 3: "energy", 4: "node", 5: "billing", 6: "fs/disk", 7: "vmem", 8: "pages"}
"""Names of slurmdbd's fixed TRES (slurmdb.h ``tres_types_t``)."""
_NOT_SET = str(2**64 - 2)
"""slurm.h NO_VAL64, as for energy that was not measured."""
_CLUSTER = "*"
"""Column of what the star stands for in the name of a dump's table."""
_TRES_TABLE = "tres_table"

REJOINED = "rows broken by a newline or a separator in a field were put together again"
NOT_KEPT = "rows were left out, as the map says (keep)"
RUN_TIME_DIFFERS = "jobs have a run time other than end minus start: it is kept as it was recorded"


def layout(columns: ColumnMap, path: Path) -> Layout:
    """Return how a file is read by a map."""
    read = _reader(path)
    return Layout(
        fits=lambda _: True,
        drafts=partial(drafts, columns=columns, read=read),
        local_times=lambda start: columns.has_local_times and (read is _read_parquet or not has_utc_offset(start)),
        apart=read is _read_sql,
    )


def _reader(path: Path) -> Callable[[FileReading, ColumnMap, _Tables], Iterator[DelimitedRows]]:
    start = head(path)
    if parquet.fits(start):
        return _read_parquet
    if start.lstrip()[:1] in (b"{", b"["):
        return _read_json
    return _read_sql if sql_dump.fits(start) else _read_text


class MappedTexts(NamedTuple):
    """Rows of a table by the names of a map.

    Attributes
    ----------
    texts : dict of str to pyarrow.Array
        Values of each column, null where missing.
    times : dict of str to array
        Those of ``TIMES`` that it has, ``datetime64[us]`` in UTC.
    kept : array of bool
        Rows whose times were understood and that the map keeps.
    refused : int
        Lines that could not be made into rows.
    """

    texts: dict[str, pa.Array]
    times: dict[str, Instants]
    kept: Mask
    refused: int


def read_texts(reading: FileReading, columns: ColumnMap) -> Iterator[MappedTexts]:
    """Yield a table of any columns, not translated but for its times.

    Raises as :func:`drafts`.
    """
    tables = _Tables(columns, reading)
    for rows in _reader(reading.path)(reading, columns, tables):
        yield _MappedRows(rows, reading, columns, tables).as_texts()


def drafts(
    reading: FileReading,
    *,
    columns: ColumnMap,
    read: Callable[[FileReading, ColumnMap, _Tables], Iterator[DelimitedRows]],
) -> Iterator[JobRows]:
    """Yield a file as translated rows.

    Raises
    ------
    FormatUnknown
        It is no table.
    UsageError
        It lacks a column that the map names.
    FileUnreadable
        It cannot be read to its end.
    """
    tables = _Tables(columns, reading)
    for rows in read(reading, columns, tables):
        yield _MappedRows(rows, reading, columns, tables).translated()


def _read_text(reading: FileReading, columns: ColumnMap, _: _Tables) -> Iterator[DelimitedRows]:
    line = head(reading.path).partition(b"\n")[0]
    header = line.decode("utf-8", errors="replace")
    choices = [(next(csv.reader([header], delimiter=separator), []), separator) for separator in _SEPARATORS]
    names, separator = max(choices, key=lambda choice: (len({*choice[0]} & {*columns.wanted}), len(choice[0])))
    columns.check_columns(reading.path, names)
    distinct = distinct_names([name.strip() for name in names])
    needed = [distinct.index(name) for name in _identity(columns) if name in distinct]
    name = columns.sources.get("name") or columns.sources.get("jobname")
    free = [distinct.index(each) for each in name.column if each in distinct] if name else []
    dialect = Dialect(
        names=distinct,
        separator=separator.encode(),
        quoted=True,
        header=line,
        free_text=(*free, *needed[:1]),
        plausible=lambda fields: all(fields[place] and separator not in fields[place] for place in needed),
    )
    for rows in read_rows(reading, dialect, columns.wanted):
        reading.tally[REJOINED] += rows.rejoined
        yield rows


def _identity(columns: ColumnMap) -> list[str]:
    """Return the columns of the id and the submission."""
    return [name for each in columns.needed for name in columns.sources[each].alternatives[0][1::2]]


def _read_parquet(reading: FileReading, columns: ColumnMap, _: _Tables) -> Iterator[DelimitedRows]:
    with parquet.open_parquet(reading.path) as file:
        schema = file.schema_arrow
        columns.check_columns(reading.path, schema.names)
        known = [name for name in columns.wanted if name in schema.names]
        for name in known:
            if pa.types.is_nested(schema.field(name).type):
                raise FormatUnknown(
                    f"{reading.path} has lists in its column {name} ({schema.field(name).type}).",
                    hint="Leave it out of the map.",
                )
        for texts in parquet.read_batches(file, reading, known):
            found = {name: _as_texts(texts.batch.column(name), reading) for name in known}
            yield DelimitedRows(columns=found, texts=texts, refused=[], rejoined=0)


def _as_texts(column: pa.Array, reading: FileReading) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us", tz="UTC" if column.type.tz else None), safe=False)
    if pa.types.is_floating(column.type):  # pandas makes floats of whole numbers beside missing ones
        whole = pc.cast(column, pa.int64(), safe=False)
        column = whole if pc.all(pc.equal(pc.cast(whole, column.type), column)).as_py() else column
    texts = pc.cast(column, pa.string(), safe=False)
    if not parquet.is_utf8(texts):
        stored = pc.cast(texts, pa.binary())
        read = [None if each is None else each.decode("utf-8", errors=LATIN_1) for each in stored.to_pylist()]
        texts = pa.array(read, pa.string())
        reading.tally[REPLACED] += pc.sum(pc.subtract(pc.binary_length(texts), pc.binary_length(stored))).as_py()
    return without(pc.replace_substring(texts, "\0", "\ufffd"), "")


def _read_json(reading: FileReading, columns: ColumnMap, _: _Tables) -> Iterator[DelimitedRows]:
    seen: dict[str, None] = {}

    def records_of(item: Mapping[str, Any]) -> list[dict[str, str | None]]:
        document = item.get("_source", item)  # as Elasticsearch wraps what it stores
        seen.update(dict.fromkeys(document))
        return [{name: as_text(document.get(name)) for name in columns.wanted}]

    prefix = "item" if head(reading.path).lstrip()[:1] == b"[" else ""
    for number, rows in enumerate(read_records(reading, prefix, records_of, columns.wanted)):
        if not number:
            columns.check_columns(reading.path, list(seen))
        yield rows


def _read_sql(reading: FileReading, columns: ColumnMap, tables: _Tables) -> Iterator[DelimitedRows]:
    pattern = columns.keys.table
    fitting = [table for table in tables.columns if pattern and sql_dump.star(table, pattern) is not None]
    if not fitting:
        what = f"no table {pattern}" if pattern else "tables, and the map names none of them"
        raise FormatUnknown(
            f"{reading.path} is a dump with {what}.",
            hint=f'Write table = "NAME" at the top of the map. It has: {", ".join(tables.columns)}',
        )
    for table in fitting:
        columns.check_columns(reading.path, tables.columns[table])
    yield from sql_dump.read_dump(reading, str(pattern), columns.wanted, cluster=_CLUSTER)


class _Tables:
    """Other tables of a dump, in which values are looked up."""

    def __init__(self, columns: ColumnMap, reading: FileReading) -> None:
        self._reading, self._names = reading, dict[tuple[str, str, str], dict[str, str | None]]()
        self.columns, self._found = dict[str, list[str]](), dict[str, sql_dump.Rows]()
        if sql_dump.fits(head(reading.path)):
            patterns = [_TRES_TABLE, *(source.lookup.table for source in columns.sources.values() if source.lookup)]
            self.columns, self._found = sql_dump.read_tables(reading.path, patterns)
        own = {id_: "/".join(filter(None, names)) for id_, *names in self._rows(_TRES_TABLE, "id", "type", "name")}
        self.tres = {str(number): name for number, name in _TRES.items()} | own | columns.keys.tres

    def names(self, table: str, key: str, value: str) -> dict[str, str | None]:
        """Return the values of a table by key."""
        if (table, key, value) not in self._names:
            if table not in self._found:
                self._reading.tally[f"tables are not in the dump, so that names are unknown: {table}"] = 1
            self._names[table, key, value] = dict(self._rows(table, key, value))
        return self._names[table, key, value]

    def _rows(self, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
        for row in self._found.get(table, []):
            if missing := [name for name in names if name not in row]:
                raise FormatUnknown(
                    f"The table {table} of the dump has no column {missing[0]}, in which a name is looked up.",
                    hint=f"Its columns are: {', '.join(row)}",
                )
            yield tuple(row[name] for name in names)


class _MappedRows(Translation):
    """Translation of rows by a map."""

    def __init__(self, rows: DelimitedRows, reading: FileReading, columns: ColumnMap, tables: _Tables) -> None:
        super().__init__(rows, reading)
        self._map, self._tables = columns, tables

    def translated(self) -> JobRows:
        """Return the rows, translated."""
        skipped = self._skipped()
        cluster = self.rows.column(_CLUSTER) if "*" in (self._map.keys.table or "") else None
        if self._map.is_sacct:
            found = {name: texts for name in self._map.sources if (texts := self._texts(name)) is not None}
            if cluster is not None:
                found.setdefault("cluster", cluster)
            draft = sacct.translate(replace(self.rows, columns=found), self.reading)
            draft.skipped[skipped] = True
            draft.remarks.update(self.remarks)
            return draft
        self._read_texts()
        self._read_times()
        self.note_runs(cluster=cluster)
        self._read_numbers()
        self._complete_run()
        clusters = [] if cluster is None else pc.unique(cluster).to_pylist()
        return self.draft(skipped=skipped, clusters=frozenset(clusters))

    def as_texts(self) -> MappedTexts:
        """Return the rows as texts and times."""
        kept = ~self._skipped()
        self._read_times()
        found = {name: texts for name in self._map.sources if (texts := self._texts(name)) is not None}
        return MappedTexts(found, self.jobs, kept & self.results.accepted, len(self.rows.refused))

    def _skipped(self) -> Mask:
        skipped = np.zeros(len(self.rows), dtype=np.bool_)
        for name, values in self._map.keys.keep.items():
            kept = pc.is_in(self.rows.columns[name], value_set=pa.array([str(value) for value in values]))
            skipped |= ~kept.to_numpy(zero_copy_only=False)
        self.reading.tally[NOT_KEPT] += int(skipped.sum())
        return skipped

    def _given(self, names: Collection[str]) -> Iterator[tuple[str, ColumnSource, pa.Array]]:
        """Yield those of some columns that are given, with their sources and texts."""
        for name in JOBS.names:
            if name in names and name in self._map.sources and (texts := self._texts(name)) is not None:
                yield name, self._map.sources[name], texts

    def _texts(self, name: str) -> pa.Array | None:
        """Return the texts of a column of the map.

        None where the file has none of its sources.
        """
        source = self._map.sources[name]
        choices = (self._alternative(source, parts) for parts in source.alternatives)
        found = [texts for texts in choices if texts is not None]
        if not found:
            return None
        texts = pc.coalesce(*found)
        if source.lookup:
            texts = self._looked_up(texts, source.lookup)
        if source.values:
            texts = _replaced(texts, lambda text: source.values.get(text.removesuffix(".0"), text))
        if source.unit == column_map.TRES_IDS:
            return self._named_tres(texts)
        worded = {column_map.SLURM_STATE: _state, column_map.WAIT_STATUS: _exit_code}.get(source.unit)
        return _replaced(texts, worded) if worded else texts

    def _alternative(self, source: ColumnSource, parts: list[str]) -> pa.Array | None:
        found = [self.rows.column(name) for name in parts[1::2]]
        if any(texts is None for texts in found):
            return None
        if not found:
            return pa.repeat(pa.scalar(parts[0]), len(self.rows))
        unknown = _spellings(source.missing)
        known = [known_values(texts, unknown=unknown) for texts in found]
        if source.column:
            return known[0]
        pieces = [*chain.from_iterable(zip(map(pa.scalar, parts[::2]), known, strict=False)), pa.scalar(parts[-1])]
        return known_values(pc.binary_join_element_wise(*pieces, ""), unknown=unknown)

    def _looked_up(self, texts: pa.Array, lookup: Lookup) -> pa.Array:
        clusters, found = self.rows.column(_CLUSTER), pa.nulls(len(texts), pa.string())
        clusters = pa.repeat("", len(texts)) if clusters is None else clusters
        for cluster in pc.unique(clusters).to_pylist():
            names = self._tables.names(lookup.table.replace("*", cluster), lookup.key, lookup.value)
            found = pc.if_else(pc.equal(clusters, cluster), _replaced(texts, names.get), found)
        return found

    def _named_tres(self, texts: pa.Array) -> pa.Array:
        """Return TRES lists with names in place of numbers, as sacct prints them."""
        nameless = set[str]()

        def named(text: str) -> str:
            amounts = dict(entry.split("=", 1) for entry in text.split(",") if "=" in entry)
            nameless.update(amounts.keys() - self._tables.tres.keys())
            known = {self._tables.tres[number]: amounts[number] for number in amounts.keys() - nameless}
            measured = sorted((name, amount) for name, amount in known.items() if amount != _NOT_SET)
            return ",".join(f"{name}={amount}{'M' * (name == 'mem')}" for name, amount in measured)

        found = _replaced(texts, named)
        for number in sorted(nameless):
            rows = pc.fill_null(pc.match_substring_regex(texts, rf"(^|,){re.escape(number)}="), False)
            note = f"jobs hold the TRES {number}, which nothing names: it was left out ([tres] of a map names it)"
            self.remarks[note] = self.remarks.get(note, False) | np.asarray(rows)
        return found

    def _read_texts(self) -> None:
        for name, source, texts in self._given(JOBS.by_name.keys() - {*TIMES, *COUNTS}):
            if name == "state":
                self.read_states(known_values(texts))
                continue
            found = self._amounts(texts, source).texts(name) if source.tres or source.gres else texts
            self.jobs[name] = (strings if JOBS.by_name[name].dtype == "str" else category)(found)

    def _amounts(self, texts: pa.Array, source: ColumnSource) -> sacct.DistinctColumn[sacct.Tres]:
        found = sacct.tres_lists(texts) if source.tres else sacct.gres_lists(texts)
        self.refuse(found.unreadable, Reason.UNREADABLE_TRES, *source.column)
        return found

    def _read_times(self) -> None:
        before: Instants | None = None
        for name, source, texts in self._given(TIMES):
            if source.unit in EPOCH_UNITS:
                ticks = self._accept(numbers(texts), Reason.UNREADABLE_TIME, *source.column)
                found = instants(ticks / EPOCH_UNITS[source.unit])
            else:
                written, bad = _parsed_times(texts, source.unit) if source.unit else (texts, _are_numbers(texts))
                self.refuse(bad, Reason.UNREADABLE_TIME, *source.column)
                found = self.reading.clock.read(pc.if_else(pa.array(bad), _NOTHING, written), not_before=before)
            times = self._accept(found, Reason.UNREADABLE_TIME, *source.column)
            self.jobs[name] = times
            before = times if before is None else np.fmax(before, times)
        self.remarks |= unset_epoch(self.jobs)

    def _read_numbers(self) -> None:
        for name, source, texts in self._given(COUNTS):
            if name == "gpus" and (source.tres or source.gres):
                values = self._gpus(self._amounts(texts, source))
            elif source.tres or source.gres:
                values = self._amounts(texts, source).floats(column_map.TRES_NAMES[source.tres or "gres/gpu"])
            elif name in column_map.DURATIONS:
                seconds = durations(texts, bare_unit_s=DURATION_UNITS[source.unit])
                values = self._accept(seconds, Reason.UNREADABLE_DURATION, *source.column)
            else:
                values = self._accept(numbers(texts), Reason.UNREADABLE_NUMBER, *source.column)
                values = values * {**column_map.COUNT_UNITS, **column_map.MEMORY_UNITS}[source.unit]
            if source.times:
                values = values * self.numbers(source.times)
            if name == "restart":
                values = np.nan_to_num(values)
                self.refuse((values != np.floor(values)) | (values < 0), Reason.UNREADABLE_NUMBER, *source.column)
            self.jobs[name] = values

    def _gpus(self, found: sacct.DistinctColumn[sacct.Tres]) -> NDArray[np.float64]:
        """Return GPUs with their parts, and keep which rows name none."""
        amounts = {name: found.floats(name) for name in ("gpus", "shards", "mps")}
        self.unnamed = np.logical_and.reduce([np.isnan(values) for values in amounts.values()])
        return sacct.with_shares(amounts, self._places, self.remarks)

    def _places(self, rows: NDArray[np.int64]) -> Places:
        """Return what is known of the nodes of some rows."""
        given = {name: texts for name, _, texts in self._given(("node_list", "partition"))}
        nothing = pa.nulls(len(self.rows), pa.string())
        chosen = [given.get(name, nothing).take(pa.array(rows)).to_pylist() for name in ("node_list", "partition")]
        return places(self.reading.site, *chosen)

    def _complete_run(self) -> None:
        """Set start, end and run time, of which two give the third."""
        nowhere, unknown = np.full(len(self.rows), NOT_A_TIME), np.full(len(self.rows), np.nan)
        start, end = self.jobs.get("started_at", nowhere), self.jobs.get("ended_at", nowhere)
        recorded = self.jobs.get("run_time_s", unknown)
        over = ~self.is_in(_UNFINISHED) if "state" in self.jobs else np.ones(len(self.rows), dtype=np.bool_)
        end = np.where(np.isnat(end), start + spans(recorded), end)
        end = np.where(over, end, NOT_A_TIME)
        start = np.where(np.isnat(start) & (recorded > 0), end - spans(recorded), start)
        held = (end - start) / np.timedelta64(1, "s")
        self.remarks[RUN_TIME_DIFFERS] = over & (np.abs(held - recorded) > sacct.ROUNDING_S)
        self.jobs |= {
            "started_at": start,
            "ended_at": end,
            "run_time_s": np.where(over, np.where(np.isnan(recorded), held, recorded), np.nan),
        }


def _spellings(values: Sequence[str | float]) -> pa.Array:
    """Return the texts that some values may have in a file."""
    return pa.array([text for value in values for text in (str(value), f"{value}.0")], pa.string())


def _replaced(texts: pa.Array, change: Callable[[str], str | None]) -> pa.Array:
    """Return changed texts, each distinct one changed once."""
    codes, distinct = distinct_texts(texts)
    changed = pa.array([*map(change, distinct), None], pa.string())
    return without(changed.take(pa.array(np.where(codes < 0, len(distinct), codes))), "")


def _are_numbers(texts: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, r"^\s*[-+]?\d+(\.\d*)?\s*$"), False))


def _parsed_times(texts: pa.Array, form: str) -> tuple[pa.Array, Mask]:
    """Return times in ISO 8601, and where a text is none."""
    known = known_values(texts)
    read = pd.to_datetime(pd.Series(known.to_pandas()), format=form, errors="coerce", utc="%z" in form)
    bad = np.asarray(read.isna()) & known.is_valid().to_numpy(zero_copy_only=False)
    zone = "UTC" if "%z" in form else None
    naive = read.dt.tz_localize(None) if zone else read
    moments = pa.array(naive.to_numpy().astype("datetime64[us]"), pa.timestamp("us"))
    return pc.cast(pc.cast(moments, pa.timestamp("us", tz=zone)), pa.string()), bad


def _state(text: str) -> str:
    """Return the word for one of slurmdbd's numbers.

    It is the base state, or the flag that stands for it where that has not ended.
    """
    if not (text := text.removesuffix(".0")).isdecimal():
        return text
    number = int(text)
    flags = [state for flag, state in _STATE_FLAGS.items() if number & flag]
    base = number & 0xFF
    if JobState.REVOKED in flags or (flags and base < _FIRST_ENDED):
        return flags[0]
    return _STATES[base] if base < len(_STATES) else text


def _exit_code(text: str) -> str:
    """Return the exit code and the signal of a wait status."""
    status = int(text) if text.isdecimal() else -1
    return f"{status >> 8 & 0xFF}:{status & 0x7F}" if status >= 0 else text
