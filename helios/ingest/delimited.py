"""Reader of lines of separated fields as columns of ``JOBS``.

Regular lines are parsed in whole blocks by Arrow. A line is odd if it has the wrong number of separators, a quote, a
stray carriage return or a NUL byte. Odd lines are handled one by one: repaired where there is exactly one way to do so,
and otherwise refused with a reason.

The readers of all formats of text share the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from helios.ingest.job_rows import FileReading, JobRows, Refused, RunKeys
from helios.ingest.lines import REPLACED, Block, RowTexts, blocks
from helios.ingest.parse import (
    NOT_A_TIME,
    CheckResults,
    Instants,
    Mask,
    Reason,
    category,
    durations,
    instants,
    job_states,
    numbers,
    strings,
    unset_epoch,
)
from helios.ingest.repair import Dialect, Repaired, repair

MIB_PER_GIB = 1024.0
LONGEST_EXAMPLE = 60
"""Most characters of a text that was not understood in a message."""
Values = TypeVar("Values")


_NEWLINE = ord("\n")


class Translation:
    """One batch of rows while it is translated into columns of ``JOBS``.

    Each method that reads a field refuses the rows whose text it does not understand. Of several fields the first that
    the file has is read; a field that it does not have is unknown in every row.

    Attributes
    ----------
    rows : DelimitedRows
        The texts.
    reading : FileReading
        The pass over the file.
    jobs : dict of str to array
        The columns so far.
    results : CheckResults
        Check result of each row.
    runs : RunKeys, optional
        See :meth:`note_runs`.
    remarks : dict of str to array
    unnamed : array, optional
        See :class:`JobRows`.
    """

    def __init__(self, rows: DelimitedRows, reading: FileReading) -> None:
        self.rows = rows
        self.reading = reading
        self.jobs: dict[str, Any] = {}
        self.results = CheckResults(len(rows))
        self.runs: RunKeys | None = None
        self.remarks: dict[str, Mask] = {}
        self.unnamed: Mask | None = None

    def texts(self, *fields: str) -> pa.Array:
        """Return the texts of a field."""
        found = self.rows.column(*fields)
        return pa.nulls(len(self.rows), pa.string()) if found is None else found

    def numbers(self, *fields: str) -> NDArray[np.float64]:
        """Return the numbers of a field, NaN where unknown."""
        return self._floats(fields, numbers, Reason.UNREADABLE_NUMBER)

    def durations(self, *fields: str, bare_unit_s: float) -> NDArray[np.float64]:
        """Return Slurm durations in s, NaN where unknown.

        A bare number counts ``bare_unit_s`` seconds.
        """
        return self._floats(fields, partial(durations, bare_unit_s=bare_unit_s), Reason.UNREADABLE_DURATION)

    def times(self, *fields: str, not_before: Instants | None = None) -> Instants:
        """Return the times of a field, in UTC.

        ``not_before`` is the event before; it tells which of two equal local times is meant.
        """
        found = self.reading.clock.read(self.texts(*fields), not_before=not_before)
        return self._accept(found, Reason.UNREADABLE_TIME, *fields)

    def read_times(self, fields: Mapping[str, Sequence[str]]) -> None:
        """Set columns of times from their fields.

        They are given in the order of the events.
        """
        before: Instants | None = None
        for name, sources in fields.items():
            if self.rows.column(*sources) is not None:
                self.jobs[name] = self.times(*sources, not_before=before)
                before = self.jobs[name] if before is None else np.fmax(before, self.jobs[name])
        self.remarks |= unset_epoch(self.jobs)

    def instants(self, seconds: NDArray[np.float64]) -> Instants:
        """Return seconds since the epoch as times."""
        return self._accept(instants(seconds), Reason.UNREADABLE_TIME)

    def read_states(self, texts: pa.Array) -> None:
        """Set the column ``state`` from its texts."""
        self.jobs["state"] = self._accept(job_states(texts), Reason.UNKNOWN_STATE, "state", "jobstate")

    def read_strings(self, **fields: str) -> None:
        """Set columns of texts that hardly repeat."""
        self.jobs |= {name: strings(self.texts(field)) for name, field in fields.items()}

    def read_categories(self, **fields: str) -> None:
        """Set columns of texts that repeat."""
        self.jobs |= {name: category(self.texts(field)) for name, field in fields.items()}

    def _floats(
        self, fields: Sequence[str], read: Callable[[pa.Array], tuple[NDArray[np.float64], Mask]], reason: Reason
    ) -> NDArray[np.float64]:
        texts = self.rows.column(*fields)
        return np.full(len(self.rows), np.nan) if texts is None else self._accept(read(texts), reason, *fields)

    def _accept(self, found: tuple[Values, Mask], reason: Reason, *fields: str) -> Values:
        """Return the read values, and refuse failed rows."""
        values, bad = found
        self.refuse(bad, reason, *fields)
        return values

    def refuse(self, bad: Mask, reason: Reason, *fields: str) -> None:
        """Refuse rows, and keep the first text of their field as an example.

        Of several ``fields`` the first that the file has counts.
        """
        self.results.refuse(bad, reason)
        if reason not in self.reading.not_understood and bad.any():
            at, name = int(np.argmax(bad)), self.rows.name(*fields)
            if name and (text := self.rows.columns[name][at].as_py()) is not None:
                line = self.rows.texts.line[at]
                self.reading.not_understood[reason] = f"{text[:LONGEST_EXAMPLE]!r} in {name} on line {line:,}"

    def is_in(self, states: tuple[str, ...]) -> Mask:
        """Return the rows in one of ``states``, shape (n_rows,)."""
        return np.asarray(self.jobs["state"].isin(states))

    def note_runs(self, **keys: Any) -> None:
        """Record which rows have an id and times.

        They tell the runs of a requeued job apart, whatever else is wrong with a row and however its start is
        completed later. Without a call, those of the finished translation do. ``keys`` are further ones of ``RunKeys``.
        """
        started = self.jobs.get("started_at", np.full(len(self.rows), NOT_A_TIME))
        self.runs = RunKeys(known=self.results.accepted, started=started, **keys)

    def run_time_s(self) -> NDArray[np.float64]:
        """Return end less start, s."""
        lasted: NDArray[np.float64] = (self.jobs["ended_at"] - self.jobs["started_at"]) / np.timedelta64(1, "s")
        return lasted

    def draft(
        self,
        *,
        skipped: Mask | None = None,
        clusters: frozenset[str] = frozenset(),
        asked: NDArray[np.float64] | None = None,
    ) -> JobRows:
        """Return the translated rows.

        The arguments are described at :class:`JobRows`. With ``skipped`` None, no row is skipped.
        """
        if self.runs is None:
            self.note_runs()
        assert self.runs is not None
        return JobRows(
            jobs=self.jobs,
            runs=self.runs,
            results=self.results,
            skipped=np.zeros(len(self.rows), dtype=np.bool_) if skipped is None else skipped,
            refused=self.rows.refused,
            texts=self.rows.texts,
            clusters=clusters,
            remarks=self.remarks,
            unnamed=self.unnamed,
            asked=asked,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedRows:
    """Rows of one block.

    Attributes
    ----------
    columns : dict of str to pyarrow.StringArray
        By the dialect's names; null where the field is empty. Only the columns asked for.
    texts : RowTexts
        Line and original text of each row.
    refused : list of Refused
        Lines that could not be made into rows.
    rejoined : int
        Rows that were joined from several lines or from too many fields.
    """

    columns: dict[str, pa.Array]
    texts: RowTexts
    refused: list[Refused]
    rejoined: int

    def __len__(self) -> int:
        return len(self.texts.line)

    def column(self, *names: str) -> pa.Array | None:
        """Return the first of the columns ``names`` that exists, or None."""
        return self.columns.get(self.name(*names) or "")

    def name(self, *names: str) -> str | None:
        """Return the first of ``names`` that is a column, or None."""
        return next((name for name in names if name in self.columns), None)


def read_rows(reading: FileReading, dialect: Dialect, columns: Sequence[str]) -> Iterator[DelimitedRows]:
    """Yield the rows of a file, one block at a time.

    Only the ``columns`` asked for are read, as far as the dialect has them.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end.
    """
    wanted = dialect.wanted(columns)
    for block in blocks(reading.path, lines_per_block=reading.rows_per_batch, continues=dialect.may_continue):
        reading.tally[REPLACED] += block.replaced
        yield _rows(replace(block, data=dialect.prepare(block.data)) if dialect.prepare else block, dialect, wanted)


def _rows(block: Block, dialect: Dialect, wanted: list[str]) -> DelimitedRows:
    ends = np.flatnonzero(np.frombuffer(block.data, dtype=np.uint8) == _NEWLINE)
    lines = _DelimitedLines(data=block.data, ends=ends, dialect=dialect, quotes_enclose=True)
    columns = lines.parsed(wanted)
    if columns is None:
        lines = _DelimitedLines(data=block.data, ends=ends, dialect=dialect, quotes_enclose=False)
        columns = lines.parsed(wanted) or {}
    repaired = repair(lines.runs(lines.is_odd), dialect, first_line=block.first_line)
    line = np.flatnonzero(lines.regular) + block.first_line
    if repaired.fields:
        columns, line = _with(columns, line, repaired, dialect)
    texts = RowTexts(block=block, ends=ends, line=line, whole=repaired.texts)
    return DelimitedRows(columns=columns, texts=texts, refused=repaired.refused, rejoined=repaired.rejoined)


@dataclass(kw_only=True)
class _DelimitedLines:
    """The lines of a block, classified as regular, odd or ignored.

    Blank lines, comments and headers are ignored.

    Attributes
    ----------
    data : bytes
        The lines.
    ends : array of shape (n_lines,)
        Position of the newline of each line.
    dialect : Dialect
        How the lines separate their fields.
    quotes_enclose : bool
        Whether an even number of quotes is taken to enclose fields; otherwise a line with a quote is odd.
    """

    data: bytes
    ends: NDArray[np.int64]
    dialect: Dialect
    quotes_enclose: bool

    def __post_init__(self) -> None:
        self.starts = np.concatenate([[0], self.ends[:-1] + 1]).astype(np.int64)
        self.separators = self._separators()
        self.within_quotes = self._within_quotes()
        self.nothing = self._nothing() & ~self.within_quotes
        self.is_odd = (self._odd() | self.within_quotes) & ~self.nothing
        if self.dialect.last_is_free_text:
            # A newline in the last field of a row leaves a first line that has all separators and looks complete.
            self.is_odd |= np.append(self.is_odd[1:] & ~self.is_odd[:-1], False) & ~self.nothing
        self.regular: Mask = ~self.is_odd & ~self.nothing

    def parsed(self, wanted: list[str]) -> dict[str, pa.Array] | None:
        """Return the columns of the regular lines.

        None where quotes turn out not to enclose fields.
        """
        try:
            columns = _parsed(self.only(self.regular), self.dialect, wanted)
        except pa.ArrowInvalid:
            if not (self.dialect.quoted and self.quotes_enclose):
                raise
            return None
        expected = int(self.regular.sum())
        return columns if all(len(column) == expected for column in columns.values()) else None

    def only(self, chosen: Mask) -> bytes:
        """Return the chosen lines alone, ready for Arrow's CSV parser.

        Several blanks between fields become one, where the dialect allows several.
        """
        kept = self.data
        if not chosen.all():
            kept = b"".join(self.data[self.starts[run[0]] : self.ends[run[-1]] + 1] for run in _runs(chosen))
        return _squeezed(kept) if self.dialect.squeezed else kept

    def runs(self, chosen: Mask) -> Iterator[tuple[int, list[bytes]]]:
        """Yield each run of consecutive chosen lines.

        Each item is the position of the first line and the texts of the lines.
        """
        for run in _runs(chosen):
            yield int(run[0]), [self.data[self.starts[i] : self.ends[i]] for i in run.tolist()]

    def _nothing(self) -> Mask:
        # A line of blanks has no field at all, which is one fewer than no separator.
        nothing: Mask = (self.ends == self.starts) | (self.separators < 0)
        first = np.frombuffer(self.data, dtype=np.uint8)[self.starts]
        if self.dialect.comment:
            nothing |= first == ord(self.dialect.comment)
        if self.dialect.header and self.dialect.header in self.data:
            for position in np.flatnonzero(self.ends - self.starts == len(self.dialect.header)):
                nothing[position] |= self.data.startswith(self.dialect.header, int(self.starts[position]))
        return nothing

    def _within_quotes(self) -> Mask:
        # Such a line may look like a row, but it is a part of a quoted field that began on an earlier line.
        if not (self.dialect.quoted and self.dialect.free_text and self.quotes_enclose):
            return np.zeros(len(self.ends), dtype=np.bool_)
        quotes = self._count_of(b'"')
        return (np.cumsum(quotes) - quotes) % 2 > 0

    def _odd(self) -> Mask:
        odd: Mask = self.separators != len(self.dialect.names) - 1
        for suspect in (b"\r", b"\0"):
            odd |= self._count_of(suspect) > 0
        if self.dialect.quoted:
            quotes = self._count_of(b'"')
            odd |= quotes % 2 > 0 if self.quotes_enclose else quotes > 0
        return odd

    def _separators(self) -> NDArray[np.int64]:
        data = np.frombuffer(self.data, dtype=np.uint8)
        found = data == ord(self.dialect.separator)
        if self.dialect.squeezed:
            found |= data == ord("\t")
            found = _field_starts(data, found)
        elif self.dialect.quoted and self.quotes_enclose and b'"' in self.data:
            quotes = np.cumsum(data == ord('"'))
            before_line = np.concatenate([[0], quotes[self.ends[:-1]]])
            found &= (quotes - np.repeat(before_line, np.diff(self.ends, prepend=-1))) % 2 == 0
        until = np.searchsorted(np.flatnonzero(found), self.ends)
        return np.diff(until, prepend=0) - int(self.dialect.squeezed)

    def _count_of(self, byte: bytes) -> NDArray[np.int64]:
        if byte not in self.data:
            return np.zeros(len(self.ends), dtype=np.int64)
        places = np.flatnonzero(np.frombuffer(self.data, dtype=np.uint8) == ord(byte))
        return np.bincount(np.searchsorted(self.ends, places), minlength=len(self.ends))


def _runs(chosen: Mask) -> Iterator[NDArray[np.int64]]:
    positions = np.flatnonzero(chosen)
    edges = np.flatnonzero(np.diff(positions) > 1) + 1
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(positions)], strict=True):
        if end > start:
            yield positions[start:end]


def _field_starts(data: NDArray[np.uint8], blank: Mask) -> Mask:
    after_gap = np.concatenate([[True], (blank | (data == _NEWLINE))[:-1]])
    starts: Mask = ~blank & (data != _NEWLINE) & after_gap
    return starts


def _squeezed(lines: bytes) -> bytes:
    """Return lines with one space between fields and none around them."""
    data = np.frombuffer(lines.replace(b"\t", b" "), dtype=np.uint8)
    blank = data == ord(" ")
    gap = blank | (data == _NEWLINE)
    before = np.concatenate([[True], gap[:-1]])
    line_ends_next = np.append(data[1:] == _NEWLINE, True)
    kept = bytes(data[~(blank & before)])
    return kept.replace(b" \n", b"\n") if (blank & line_ends_next).any() else kept


def _parsed(lines: bytes, dialect: Dialect, wanted: list[str]) -> dict[str, pa.Array]:
    if not lines or not wanted:
        return {name: pa.array([], pa.string()) for name in wanted}
    names = [str(position) for position in range(len(dialect.names))]
    chosen = {name: str(dialect.names.index(name)) for name in wanted}
    table = pa_csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa_csv.ReadOptions(column_names=names, block_size=max(1 << 20, len(lines) // 8)),
        parse_options=pa_csv.ParseOptions(
            delimiter=dialect.separator.decode(),
            quote_char='"' if dialect.quoted and b'"' in lines else False,
            escape_char=False,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(chosen.values()),
            strings_can_be_null=True,
            null_values=[""],
            check_utf8=False,
        ),
    )
    return {name: one_array(table.column(place)) for name, place in chosen.items()}


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _with(
    columns: dict[str, pa.Array], line: NDArray[np.int64], repaired: Repaired, dialect: Dialect
) -> tuple[dict[str, pa.Array], NDArray[np.int64]]:
    """Return columns and lines with the repaired rows inserted in order."""
    line = np.concatenate([line, np.array(repaired.lines, dtype=np.int64)])
    order = np.argsort(line, kind="stable")
    merged = {}
    for name, texts in columns.items():
        place = dialect.names.index(name)
        odd = pa.array([fields[place] or None for fields in repaired.fields], pa.string())
        merged[name] = pa.concat_arrays([texts, odd]).take(pa.array(order))
    return merged, line[order]
