"""Reader of records that are separated by counting their delimiters.

``sacct --parsable --delimiter=WORD`` neither quotes nor escapes. A delimiter that nobody could know when the fields
were written occurs in none of them. So the text between two delimiters is one field, whatever line breaks it holds,
and a fixed number of fields is one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from helios.errors import FileUnreadable
from helios.ingest.delimited import DelimitedRows, Dialect
from helios.ingest.job_rows import FileReading, Refused
from helios.ingest.lines import LONGEST_LINE_BYTES, REPLACED, Block, Decoded, RowTexts, decode
from helios.ingest.parse import Reason, without

_MARK = b"\0"
"""Replaces the delimiter while a block is read; NUL bytes of the file itself are replaced before."""
_SHOWN = b"|"
_REPLACEMENT = "\ufffd".encode()
_LARGEST_BLOCK_BYTES = 256 << 20
_NEWLINE = ord("\n")


def read_counted(reading: FileReading, dialect: Dialect, columns: Sequence[str]) -> Iterator[DelimitedRows]:
    """Yield the records of a file as rows.

    Only the ``columns`` asked for are read, as far as the file has them. The "line" of a row is the number of its
    record, counted from 1 with the header.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end, or a record does not begin where the one before it ends.
    """
    assert dialect.header is not None  # because the word between its fields is known from it
    wanted, header = dialect.wanted(columns), dialect.header.replace(dialect.separator, _MARK)
    with decode(reading.path) as (raw, text):
        first, rest = 1, b""
        for data, ended in _blocks(reading, dialect, text):
            rest += data
            marked = rest.replace(b"\r\n", b"\n")
            records = _Records(marked, dialect, ended=ended, first=first, path=reading.path)
            yield records.rows(wanted, header, bytes_read=raw.tell())
            first, rest = first + len(records.starts), marked[records.until :]
        reading.tally[REPLACED] += text.replaced


def counts_digest(path: Path, dialect: Dialect) -> str:
    """Return the SHA-256 of a file's text, independent of its delimiter.

    Two exports of the same records with different random delimiters have the same digest.
    """
    digest = sha256()
    with decode(path) as (_, text):
        for piece in _mark_delimiters(text, dialect.separator):
            digest.update(piece)
    return digest.hexdigest()


def _delimiters(dialect: Dialect) -> int:
    """Return the number of delimiters in one record."""
    return len(dialect.names) - (not dialect.closes)


def _blocks(reading: FileReading, dialect: Dialect, text: Decoded) -> Iterator[tuple[bytes, bool]]:
    """Yield a file's marked text in blocks.

    A block holds about ``rows_per_batch`` records. The flag is True for the last block.
    """
    parts: list[bytes] = []
    enough = reading.rows_per_batch * _delimiters(dialect)
    delimiters, size = 0, 0
    for piece in _mark_delimiters(text, dialect.separator):
        parts.append(piece)
        delimiters, size = delimiters + piece.count(_MARK), size + len(piece)
        if size > LONGEST_LINE_BYTES and delimiters < _delimiters(dialect):
            raise FileUnreadable(f"{reading.path} has a record longer than 64 MiB.", hint="It is no table of jobs.")
        if delimiters >= enough or size > _LARGEST_BLOCK_BYTES:
            yield b"".join(parts), False
            parts, delimiters, size = [], 0, 0
    yield b"".join(parts), True


def _mark_delimiters(text: Decoded, delimiter: bytes) -> Iterator[bytes]:
    """Yield a text with each delimiter replaced by ``_MARK``."""
    tail = b""  # because a delimiter may be cut in two by the end of a chunk
    while chunk := text.read():
        joined = (tail + chunk.replace(_MARK, _REPLACEMENT)).replace(delimiter, _MARK)
        kept = len(joined) - _cut_begin(joined, delimiter)
        tail = joined[kept:]
        yield joined[:kept]
    yield tail


def _cut_begin(text: bytes, word: bytes) -> int:
    """Return the length of the longest end of ``text`` that begins ``word``.

    A whole ``word`` does not count.
    """
    return next((count for count in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:count])), 0)


class _Records:
    """The complete records of a block of marked text.

    ``until`` is the position of the first record that is not complete.

    Raises
    ------
    FileUnreadable
        A record does not begin where the one before it ends.
    """

    def __init__(self, data: bytes, dialect: Dialect, *, ended: bool, first: int, path: Path) -> None:
        self.data, self.dialect, self.first = data, dialect, first
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        marks = np.flatnonzero(self.bytes == 0)
        each = _delimiters(dialect)
        self.marks = marks[: len(marks) // each * each].reshape(-1, each)
        if dialect.closes:  # records begin behind a closing mark and a newline
            nexts = np.minimum(self.marks[:, -1] + 2, len(data) + 1)
        else:  # a record's first field holds no newline, so the record begins after the last one before its first mark
            newlines = np.concatenate([[-1], np.flatnonzero(self.bytes == _NEWLINE)])
            nexts = newlines[np.searchsorted(newlines, marks[each::each]) - 1] + 1
        if not ended:
            # Only the next byte tells where a record ends, and a carriage return may have been cut from its newline.
            nexts = nexts[nexts + 1 < len(data)]
        elif len(nexts) < len(self.marks):
            nexts = np.append(nexts, len(data) + (not data.endswith(b"\n")))
        self.marks = self.marks[: len(nexts)]
        nexts = nexts[: len(self.marks)]
        self.ends = nexts - 1
        self.starts = np.concatenate([[0], nexts])[: len(nexts)].astype(np.int64)
        ending = np.append(self.bytes, np.uint8(_NEWLINE))[self.ends]
        broken = ending != _NEWLINE if dialect.closes else nexts <= self.marks[:, -1]
        if broken.any():
            raise FileUnreadable(
                f"{path}: record {first + int(np.argmax(broken)) + 1:,} does not begin where the one before it ends.",
                hint="The file was damaged, or files with different delimiters were joined; export it again.",
            )
        whole = min(int(nexts[-1]), len(data)) if len(nexts) else 0
        self.unfinished = data[whole:] if ended else b""
        self.until = len(data) if ended else whole

    def rows(self, wanted: list[str], header: bytes, *, bytes_read: int) -> DelimitedRows:
        """Return the records as rows, without repetitions of the header."""
        columns = self._columns(wanted)
        alike = np.flatnonzero(self.ends - self.starts == len(header))
        repeated = [at for at in alike.tolist() if self.data.startswith(header, int(self.starts[at]))]
        kept = np.delete(np.arange(len(self.starts), dtype=np.int64), repeated)
        refused = []
        if self.unfinished.strip():
            text = self.unfinished.replace(_MARK, _SHOWN)
            refused.append(Refused(self.first + len(self.starts), Reason.WRONG_FIELD_COUNT, text))
        block = Block(data=self.data.replace(_MARK, _SHOWN), first_line=self.first, bytes_read=bytes_read)
        return DelimitedRows(
            columns={name: texts.take(pa.array(kept)) for name, texts in columns.items()} if repeated else columns,
            texts=RowTexts(block=block, ends=self.ends, line=kept + self.first),
            refused=refused,
            rejoined=0,
        )

    def _columns(self, wanted: list[str]) -> dict[str, Any]:
        """Return the texts of each wanted column."""
        if not len(self.starts):
            return {name: pa.array([], pa.string()) for name in wanted}
        # Once the marks are removed, a record is its fields one after the other, and then the newline before the next
        # record. Arrow takes such text with an array of offsets, and no field is copied on its own.
        fields, each = len(self.dialect.names), _delimiters(self.dialect)
        begins = np.column_stack([self.starts, self.marks + 1, self.ends])[:, : fields + 1]
        marks_before = np.arange(len(begins))[:, None] * each + np.minimum(np.arange(fields + 1), each)
        bare = self.data.replace(_MARK, b"")
        offsets = np.append((begins - marks_before).ravel(), len(bare)).astype(np.int64)
        pieces = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(bare))
        found = {}
        for name in wanted:
            places = np.arange(self.dialect.names.index(name), len(offsets) - 1, fields + 1)
            found[name] = without(pieces.take(pa.array(places)).cast(pa.string()), "")
        return found
