"""Repair of rows broken by newlines or separators inside a field.

Slurm writes job names and comments as they are: ``sacct --parsable2`` neither quotes nor escapes. So a name with a
newline becomes two lines, and a name with a bar becomes two fields.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from helios.ingest.job_rows import Refused
from helios.ingest.lines import LONGEST_BROKEN_ROW_LINES
from helios.ingest.parse import Reason

LONGEST_QUOTED_ROW_LINES = 4_096
"""Larger than ``LONGEST_BROKEN_ROW_LINES``, because closing quotes say where such a row ends; nothing is guessed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a file separates its fields.

    Attributes
    ----------
    names : tuple of str
        Column names in the order of the file.
    separator : bytes
        Text between fields. :func:`read_rows` needs one byte, and :func:`helios.ingest.sacct.read_counted` a word.
    squeezed : bool
        Whether any number of blanks and tabs is one separator.
    quoted : bool
        Whether fields may be quoted as in CSV.
    comment : bytes, optional
        Lines that begin with this byte are skipped.
    header : bytes, optional
        The line of column names. It is skipped wherever it occurs, as files are often concatenated.
    free_text : tuple of int
        Positions of columns that may hold separators and newlines, the likeliest first.
    begins_row : callable
        Whether a line with too few fields looks like the beginning of a row, and not like the continuation of one.
    plausible : callable
        Whether the fields of a repaired row look right.
    prepare : callable, optional
        Changes the lines of a block before they are divided; it keeps their number.
    closes : bool
        Whether a separator follows the last field too, as ``sacct --parsable`` writes it. It is for records that are
        counted. Where it does not (``--parsable2``), a record begins after the last newline before its first separator,
        so that its first field can hold no newline.
    """

    names: tuple[str, ...]
    separator: bytes
    squeezed: bool = False
    quoted: bool = False
    comment: bytes | None = None
    header: bytes | None = None
    free_text: tuple[int, ...] = ()
    begins_row: Callable[[Sequence[str]], bool] = lambda _: False
    plausible: Callable[[Sequence[str]], bool] = lambda _: True
    prepare: Callable[[bytes], bytes] | None = None
    closes: bool = False

    @property
    def last_is_free_text(self) -> bool:
        """Whether the last field may hold a newline."""
        return len(self.names) - 1 in self.free_text

    def wanted(self, columns: Sequence[str]) -> list[str]:
        """Return those of ``columns`` that the file has, each once."""
        return [name for name in dict.fromkeys(columns) if name in self.names]

    def may_continue(self, line: bytes) -> bool:
        """Return whether ``line`` has too few fields."""
        return not self.squeezed and line.count(self.separator) < len(self.names) - 1

    def split(self, text: str) -> list[str]:
        """Return the fields of a row."""
        if self.squeezed:
            return text.split()
        if self.quoted and '"' in text:
            return _split_quoted(text, self.separator.decode())
        return text.split(self.separator.decode())


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return column names without repetition.

    A repeated name and an empty one become ``#`` and their position.
    """
    return tuple(name if name and name not in names[:place] else f"#{place}" for place, name in enumerate(names))


@dataclass(slots=True)
class Repaired:
    """Rows made from odd lines.

    Attributes
    ----------
    lines : list of int
        Number of the first line of each row.
    fields : list of list of str
        Fields of each row.
    texts : dict of int to bytes
        Text of each row that was broken over several lines, by the number of its first line.
    refused : list of Refused
        Lines that could not be repaired.
    rejoined : int
        Rows that were joined from several lines or from too many fields.
    """

    lines: list[int] = field(default_factory=list)
    fields: list[list[str]] = field(default_factory=list)
    texts: dict[int, bytes] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    rejoined: int = 0


def repair(runs: Iterable[tuple[int, list[bytes]]], dialect: Dialect, *, first_line: int) -> Repaired:
    """Make rows from runs of consecutive odd lines.

    Parameters
    ----------
    runs : iterable of (int, list of bytes)
        Position of the first line in the block, and the lines.
    dialect : Dialect
        How the lines separate their fields.
    first_line : int
        Line number of position 0.
    """
    repaired = Repaired()
    for start, lines in runs:
        run, position = _Run(lines, dialect), 0
        while position < len(lines):
            number = first_line + start + position
            has_nul = b"\0" in lines[position]
            found = None if has_nul else run.row_at(position)
            if found is None:
                reason = Reason.NUL_BYTE if has_nul else Reason.WRONG_FIELD_COUNT
                repaired.refused.append(Refused(number, reason, lines[position]))
                position += 1
                continue
            repaired.lines.append(number)
            repaired.fields.append(found.fields)
            repaired.rejoined += found.rejoined
            if found.lines > 1:
                repaired.texts[number] = b"\n".join(lines[position : position + found.lines])
            position += found.lines
    return repaired


class _Row(NamedTuple):
    lines: int
    fields: list[str]
    rejoined: bool


class _Run:
    """Consecutive odd lines of a block.

    It finds the row that begins at one of them, in time linear in the lines that it joins.
    """

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
        """Return how many lines from ``position`` on continue the row before.

        They continue its last field. Returns 0 where there are too many of them.
        """
        count = 0
        for line in self.lines[position : position + LONGEST_BROKEN_ROW_LINES]:
            begins = self.dialect.begins_row(self.dialect.split(line.decode()))
            if b"\0" in line or begins or not self.dialect.may_continue(line):
                break
            count += 1
        return count if count < LONGEST_BROKEN_ROW_LINES - 1 else 0

    def _joined(self, position: int, count: int) -> str | None:
        quoted = self.dialect.quoted and b'"' in self.lines[position]
        most = LONGEST_QUOTED_ROW_LINES if quoted else LONGEST_BROKEN_ROW_LINES
        if count > most or position + count > len(self.lines):
            return None
        lines = self.lines[position : position + count]
        if any(b"\0" in line for line in lines):
            return None
        decoded = [line.decode() for line in lines]
        if not quoted and any(self.dialect.begins_row(self.dialect.split(text)) for text in decoded[1:]):
            return None
        return "\n".join(decoded)


def _rejoined(fields: list[str], dialect: Dialect) -> list[str] | None:
    """Return the fields with the surplus joined into one free-text column.

    The first free-text column is taken for which the row looks right. None where there is no such column.
    """
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
