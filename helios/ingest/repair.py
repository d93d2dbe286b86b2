"""Rows that newlines or separators inside a field broke, put together again where there is one way to.

Slurm writes job names and comments as they are: ``sacct --parsable2`` neither quotes nor escapes, so a name
with a newline is two lines, and a name with a bar is two fields.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from helios.ingest.check import Reason
from helios.ingest.draft import Refused
from helios.ingest.stream import LONGEST_BROKEN_ROW_LINES

LONGEST_QUOTED_ROW_LINES = 4_096
"""Quotes say where a row ends, so that it may be longer than one that must be guessed."""


def _nothing_looks_so(_: Sequence[str]) -> bool:
    return False


def _all_looks_right(_: Sequence[str]) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a file separates its fields.

    Attributes
    ----------
    names : tuple of str
        Column names in the order of the file.
    separator : bytes
        One byte between fields.
    squeezed : bool
        Whether any number of blanks and tabs is one separator.
    quoted : bool
        Whether fields may be quoted as in CSV.
    comment : bytes, optional
        Lines that begin with this byte are no rows.
    header : bytes, optional
        The line of column names; it is no row wherever it stands, as files are often concatenated.
    free_text : tuple of int
        Positions of columns that may hold separators and newlines, the likeliest first.
    begins_row : callable
        Whether the fields of a line with too few of them look like the beginning of a row, not like the
        continuation of one.
    plausible : callable
        Whether the fields of a row put together again look right.
    """

    names: tuple[str, ...]
    separator: bytes
    squeezed: bool = False
    quoted: bool = False
    comment: bytes | None = None
    header: bytes | None = None
    free_text: tuple[int, ...] = ()
    begins_row: Callable[[Sequence[str]], bool] = _nothing_looks_so
    plausible: Callable[[Sequence[str]], bool] = _all_looks_right

    @property
    def last_is_free_text(self) -> bool:
        """Whether a newline in the last field is to be expected."""
        return len(self.names) - 1 in self.free_text

    def may_continue(self, line: bytes) -> bool:
        """Return whether ``line`` has too few fields to be a row of its own."""
        return not self.squeezed and line.count(self.separator) < len(self.names) - 1

    def split(self, text: str) -> list[str]:
        """Return the fields of a row."""
        if self.squeezed:
            return text.split()
        if self.quoted and '"' in text:
            return _split_quoted(text, self.separator.decode())
        return text.split(self.separator.decode())


@dataclass(slots=True)
class Repaired:
    """Rows made from odd lines: their first lines, fields and, where broken, their text; and what was refused."""

    lines: list[int] = field(default_factory=list)
    fields: list[list[str]] = field(default_factory=list)
    texts: dict[int, bytes] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    rejoined: int = 0


def repair(runs: Iterable[tuple[int, list[bytes]]], dialect: Dialect, *, first_line: int) -> Repaired:
    """Make rows of runs of neighbouring odd lines.

    Parameters
    ----------
    runs : iterable of (int, list of bytes)
        Position of the first line in the block, and the lines.
    first_line : int
        Line number of position 0.
    """
    repaired = Repaired()
    for position, lines in runs:
        _repair_run(lines, dialect, first_line + position, repaired)
    return repaired


def _repair_run(lines: list[bytes], dialect: Dialect, number: int, repaired: Repaired) -> None:
    run = _Run(lines, dialect)
    position = 0
    while position < len(lines):
        reason, _ = _decoded(lines[position])
        found = None if reason else run.row_at(position)
        if found is None:
            reason = reason or Reason.WRONG_FIELD_COUNT
            repaired.refused.append(Refused(number + position, reason, lines[position]))
            position += 1
            continue
        _accept(repaired, number + position, lines[position : position + found.lines], found)
        position += found.lines


class _Row(NamedTuple):
    lines: int
    fields: list[str]
    rejoined: bool


class _Run:
    """Neighbouring odd lines; finds the row that begins at one of them, in time linear in what it joins."""

    def __init__(self, lines: list[bytes], dialect: Dialect) -> None:
        self.lines = lines
        self.dialect = dialect
        self.needed = len(dialect.names)
        self.separators_before = [0, *accumulate(line.count(dialect.separator) for line in lines)]

    def row_at(self, position: int) -> _Row | None:
        count = self._lines_of_row(position)
        text = self._joined(position, count)
        if text is None:
            return None
        fields = self.dialect.split(text)
        if len(fields) > self.needed:
            rejoined = _rejoined(fields, self.dialect)
            return None if rejoined is None else _Row(count, rejoined, True)
        whole = len(fields) == self.needed and (count == 1 or self.dialect.plausible(fields))
        return _Row(count, fields, count > 1) if whole else None

    def _lines_of_row(self, position: int) -> int:
        if not self.dialect.free_text:
            return 1
        if self.dialect.quoted and b'"' in self.lines[position]:
            return self._lines_until_quotes_close(position)
        enough = self.separators_before[position] + self.needed - 1
        count = max(1, bisect_left(self.separators_before, enough) - position)
        if self.dialect.last_is_free_text:
            count += self._lines_of_name(position + count)
        return count

    def _lines_until_quotes_close(self, position: int) -> int:
        quotes = 0
        for count, line in enumerate(self.lines[position : position + LONGEST_QUOTED_ROW_LINES], start=1):
            quotes += line.count(b'"')
            if quotes % 2 == 0:
                return count
        return 1

    def _lines_of_name(self, position: int) -> int:
        """Return how many lines go on with the last field of the row before; of too many, none does."""
        count = 0
        for line in self.lines[position : position + LONGEST_BROKEN_ROW_LINES]:
            reason, text = _decoded(line)
            goes_on = self.dialect.may_continue(line) and not self.dialect.begins_row(self.dialect.split(text))
            if reason is not None or not goes_on:
                break
            count += 1
        return count if count < LONGEST_BROKEN_ROW_LINES - 1 else 0

    def _joined(self, position: int, count: int) -> str | None:
        quoted = self.dialect.quoted and b'"' in self.lines[position]
        most = LONGEST_QUOTED_ROW_LINES if quoted else LONGEST_BROKEN_ROW_LINES
        if count > most or position + count > len(self.lines):
            return None
        lines = self.lines[position : position + count]
        decoded = [_decoded(line) for line in lines]
        if any(reason for reason, _ in decoded):
            return None
        if not quoted and any(self.dialect.begins_row(self.dialect.split(text)) for _, text in decoded[1:]):
            return None
        return "\n".join(text for _, text in decoded)


def _accept(repaired: Repaired, line: int, lines: list[bytes], found: _Row) -> None:
    repaired.lines.append(line)
    repaired.fields.append(found.fields)
    repaired.rejoined += found.rejoined
    if len(lines) > 1:
        repaired.texts[line] = b"\n".join(lines)


def _decoded(line: bytes) -> tuple[Reason | None, str]:
    if b"\0" in line:
        return Reason.NUL_BYTE, ""
    try:
        return None, line.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.INVALID_UTF8, ""


def _rejoined(fields: list[str], dialect: Dialect) -> list[str] | None:
    """Return the fields with the surplus given back to the first free-text column where the row looks right."""
    surplus, separator = len(fields) - len(dialect.names), dialect.separator.decode()
    for place in dialect.free_text:
        until = place + surplus + 1
        candidate = [*fields[:place], separator.join(fields[place:until]), *fields[until:]]
        if dialect.plausible(candidate):
            return candidate
    return None


def _split_quoted(text: str, separator: str) -> list[str]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        return []
    return rows[0] if len(rows) == 1 else []
