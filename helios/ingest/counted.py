"""Reader of records that are separated by counting their delimiters.

``sacct --parsable --delimiter=WORD`` neither quotes nor escapes. A delimiter that nobody could know when the fields
were written occurs in none of them. So the text between two delimiters is one field, whatever line breaks it holds,
and a fixed number of fields is one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FileUnreadable
from helios.ingest.checks import Reason
from helios.ingest.delimited import DelimitedRows
from helios.ingest.job_rows import FileReading, Refused
from helios.ingest.lines import LONGEST_LINE_BYTES, REPLACED, Block, Decoded, RowTexts, decode

_MARK = b"\0"
"""Replaces the delimiter while a block is read; NUL bytes of the file itself are replaced before."""
_SHOWN = b"|"
_REPLACEMENT = "\ufffd".encode()
_LARGEST_BLOCK_BYTES = 256 << 20
_NEWLINE = ord("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How a file separates its fields and records.

    Attributes
    ----------
    names : tuple of str
        Column names in the order of the file.
    delimiter : bytes
        Text between two fields.
    closes : bool
        Whether a delimiter follows the last field too (``--parsable``). Where it does not (``--parsable2``), a record
        begins after the last newline before its first delimiter, so that its first field can hold no newline.
    header : bytes
        The line of column names. It is skipped wherever it occurs, as files are often concatenated.
    """

    names: tuple[str, ...]
    delimiter: bytes
    closes: bool
    header: bytes

    @property
    def delimiters(self) -> int:
        """Number of delimiters in one record."""
        return len(self.names) - (not self.closes)


def read_counted(reading: FileReading, form: Counted, columns: Sequence[str]) -> Iterator[DelimitedRows]:
    """Yield the records of a file as rows.

    Only the ``columns`` asked for are read, as far as the file has them. The "line" of a row is the number of its
    record, counted from 1 with the header.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end, or a record does not begin where the one before it ends.
    """
    wanted = [name for name in dict.fromkeys(columns) if name in form.names]
    header = form.header.replace(form.delimiter, _MARK)
    with decode(reading.path) as (raw, text):
        first, rest = 1, b""
        for data, ended in _blocks(reading, form, text):
            rest += data
            marked = rest.replace(b"\r\n", b"\n")
            records = _Records(marked, form, ended=ended, first=first, path=reading.path)
            yield records.rows(wanted, header, bytes_read=raw.tell())
            first, rest = first + len(records.starts), marked[records.until :]
        reading.tally[REPLACED] += text.replaced


def counts_digest(path: Path, form: Counted) -> str:
    """Return the SHA-256 of a file's text, independent of its delimiter.

    Two exports of the same records with different random delimiters have the same digest.
    """
    digest = sha256()
    with decode(path) as (_, text):
        for piece in _marked(text, form):
            digest.update(piece)
    return digest.hexdigest()


def _blocks(reading: FileReading, form: Counted, text: Decoded) -> Iterator[tuple[bytes, bool]]:
    """Yield a file's marked text in blocks.

    A block holds about ``rows_per_batch`` records. The flag is True for the last block.
    """
    parts: list[bytes] = []
    enough = reading.rows_per_batch * form.delimiters
    delimiters, size = 0, 0
    for piece in _marked(text, form):
        parts.append(piece)
        delimiters, size = delimiters + piece.count(_MARK), size + len(piece)
        if size > LONGEST_LINE_BYTES and delimiters < form.delimiters:
            raise FileUnreadable(f"{reading.path} has a record longer than 64 MiB.", hint="It is no table of jobs.")
        if delimiters >= enough or size > _LARGEST_BLOCK_BYTES:
            yield b"".join(parts), False
            parts, delimiters, size = [], 0, 0
    yield b"".join(parts), True


def _marked(text: Decoded, form: Counted) -> Iterator[bytes]:
    """Yield a text with each delimiter replaced by ``_MARK``."""
    tail = b""  # because a delimiter may be cut in two by the end of a chunk
    while chunk := text.read():
        joined = (tail + chunk.replace(_MARK, _REPLACEMENT)).replace(form.delimiter, _MARK)
        kept = len(joined) - _cut_begin(joined, form.delimiter)
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

    def __init__(self, data: bytes, form: Counted, *, ended: bool, first: int, path: Path) -> None:
        self.data, self.form, self.first = data, form, first
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        marks = np.flatnonzero(self.bytes == 0)
        each = form.delimiters
        self.marks = marks[: len(marks) // each * each].reshape(-1, each)
        nexts = self._behind_marks() if form.closes else self._behind_newlines(marks[each::each])
        if not ended:
            # Only the next byte tells where a record ends, and a carriage return may have been cut from its newline.
            nexts = nexts[nexts + 1 < len(data)]
        elif len(nexts) < len(self.marks):
            nexts = np.append(nexts, len(data) + (not data.endswith(b"\n")))
        self.marks = self.marks[: len(nexts)]
        nexts = nexts[: len(self.marks)]
        self.ends = nexts - 1
        self.starts = np.concatenate([[0], nexts])[: len(nexts)].astype(np.int64)
        broken = self._at(self.ends) != _NEWLINE if form.closes else nexts <= self.marks[:, -1]
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

    def _behind_marks(self) -> NDArray[np.int64]:
        """Return where records begin that follow a closing mark and a newline."""
        return np.minimum(self.marks[:, -1] + 2, len(self.data) + 1)

    def _behind_newlines(self, marks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the records begin whose first marks are at ``marks``.

        The first field of such a record holds no newline. So it begins after the last newline before its first mark.
        """
        newlines = np.concatenate([[-1], np.flatnonzero(self.bytes == _NEWLINE)])
        return newlines[np.searchsorted(newlines, marks) - 1] + 1

    def _at(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.append(self.bytes, np.uint8(_NEWLINE))[places]

    def _columns(self, wanted: list[str]) -> dict[str, Any]:
        """Return the texts of each wanted column."""
        if not len(self.starts):
            return {name: pa.array([], pa.string()) for name in wanted}
        # Once the marks are removed, a record is its fields one after the other, and then the newline before the next
        # record. Arrow takes such text with an array of offsets, and no field is copied on its own.
        fields, each = len(self.form.names), self.form.delimiters
        begins = np.column_stack([self.starts, self.marks + 1, self.ends])[:, : fields + 1]
        marks_before = np.arange(len(begins))[:, None] * each + np.minimum(np.arange(fields + 1), each)
        bare = self.data.replace(_MARK, b"")
        offsets = np.append((begins - marks_before).ravel(), len(bare)).astype(np.int64)
        pieces = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(bare))
        found = {}
        for name in wanted:
            places = np.arange(self.form.names.index(name), len(offsets) - 1, fields + 1)
            chosen = pieces.take(pa.array(places)).cast(pa.string())
            found[name] = pc.if_else(pc.equal(chosen, ""), pa.scalar(None, pa.string()), chosen)
        return found
