"""Decompression of history files and their division into blocks of lines.

Compression and UTF-16 are recognised by the first bytes. A file is never held in memory as a whole.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from helios.errors import FileUnreadable, FileUnwritable, FormatUnknown

CHUNK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20
HEAD_BYTES = 64 << 10
# Most lines over which a row broken by newlines inside a field is searched for.
LONGEST_BROKEN_ROW_LINES = 64

REPLACED = "bytes that are no UTF-8 were read as Latin-1"

_COMPRESSIONS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda raw: io.BufferedReader(pa.CompressedInputStream(raw, "zstd")),
}
"""What opens a compressed file, by its first bytes."""
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
_LONGEST_MAGIC = 8
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""First bytes of a text that PowerShell's > wrote, or a spreadsheet as Unicode text."""

LATIN_1 = "helios-latin-1"
"""Error handler that reads bytes that are no UTF-8 as Latin-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some complete lines, each ended by a newline.

    Attributes
    ----------
    data : bytes
        The lines, without carriage returns before newlines.
    first_line : int
        Number of the first line in the decompressed file, from 1.
    bytes_read : int
        Bytes of the (compressed) file consumed so far.
    replaced : int
        Bytes that were no UTF-8 and are read as Latin-1.
    """

    data: bytes
    first_line: int
    bytes_read: int
    replaced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTexts:
    """Original texts of the rows of a block.

    Attributes
    ----------
    block : Block
        The lines that were read.
    ends : array of shape (n_lines,)
        Position of the end of each line in ``block.data``.
    line : array of shape (n_rows,)
        Line of each row (its first, if it was broken over several).
    whole : dict of int to bytes
        Text of each row that was broken over several lines, by its line.
    prefix : bytes
        Put before each text.
    """

    block: Block
    ends: NDArray[np.int64]
    line: NDArray[np.int64]
    whole: dict[int, bytes] = field(default_factory=dict)
    prefix: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Size of what is held in memory for the texts."""
        return len(self.block.data)

    def at(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return the texts of the rows at positions ``rows``."""
        return [self.prefix + self._text(line) for line in self.line[rows].tolist()]

    def fingerprints(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a hash of the text of the rows at positions ``rows``.

        It differs between processes.
        """
        return np.array([hash(text) for text in self.at(rows)], dtype=np.int64)

    def _text(self, line: int) -> bytes:
        if line in self.whole:
            return self.whole[line]
        position = line - self.block.first_line
        start = int(self.ends[position - 1]) + 1 if position else 0
        return self.block.data[start : self.ends[position]]


def head(path: Path) -> bytes:
    """Return the first decompressed bytes of a file, at most ``HEAD_BYTES``.

    Raises
    ------
    FileUnreadable
        It cannot be opened or decompressed.
    FormatUnknown
        It is an archive of files.
    """
    with _opened(path) as (_, plain):
        start = _without_mark(plain.read(HEAD_BYTES)).replace(b"\r\n", b"\n")
    for magic, name in _ARCHIVES.items():
        if start.startswith(magic):
            raise FormatUnknown(f"{path} is {name}.", hint="Unpack it, and load the file inside.")
    return start


def blocks(path: Path, *, lines_per_block: int, continues: Callable[[bytes], bool]) -> Iterator[Block]:
    """Yield the file in blocks of about ``lines_per_block`` lines.

    Parameters
    ----------
    path : Path
        The file, compressed or plain.
    lines_per_block : int
        About how many lines a block has.
    continues : callable
        Whether a line may continue the row before it. A block is never cut before such a line, unless more than
        ``LONGEST_BROKEN_ROW_LINES`` of them follow each other.

    Raises
    ------
    FileUnreadable
        The file cannot be read or decompressed to its end, or has a line beyond 64 MiB.
    """
    first_line = 1
    with _opened(path) as (raw, plain):
        for data in _cuts(_chunks(path, plain), lines_per_block, continues):
            unix = data.replace(b"\r\n", b"\n") if b"\r" in data else data  # the search alone is much faster
            text = unix if unix.isascii() else unix.decode("utf-8", errors=LATIN_1).encode()
            replaced = len(text) - len(unix)  # each such byte has two in UTF-8
            yield Block(data=text, first_line=first_line, bytes_read=raw.tell(), replaced=replaced)
            first_line += data.count(b"\n")


def _read_as_latin_1(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error(LATIN_1, _read_as_latin_1)


class Decoded:
    """Decoded text of a file.

    Bytes that are no UTF-8 are read as Latin-1. So one wrongly encoded name does not make the rest of the file
    unreadable.

    Attributes
    ----------
    replaced : int
        How many such bytes there were so far, once all is read.
    """

    def __init__(self, plain: IO[bytes]) -> None:
        self._plain = plain
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors=LATIN_1)
        self.replaced, self._has_begun = 0, False

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        """Return about ``size`` bytes, none at the end."""
        while size:
            chunk = self._plain.read(size)
            text = self._decoder.decode(chunk, final=not chunk).encode()
            self.replaced += len(text) - len(chunk)  # each such byte has two in UTF-8
            if not self._has_begun:
                self.replaced += len(_UTF8_MARK) * chunk.startswith(_UTF8_MARK)
                self._has_begun = True
            if text or not chunk:
                return text
        return b""


@contextmanager
def decode(path: Path) -> Iterator[tuple[IO[bytes], Decoded]]:
    """Open a file as one text.

    Yields the file as it is stored, whose position tells how much was read, and its decompressed text.

    Raises
    ------
    FileUnreadable
        The file cannot be opened, or not decompressed to its end.
    """
    with _opened(path) as (raw, plain):
        yield raw, Decoded(plain)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the stored (compressed) file, in hex digits."""
    try:
        with path.open("rb") as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()
    except OSError as reason:
        raise _unreadable(path, reason) from reason


def file_size(path: Path) -> int:
    """Return the size of the stored (compressed) file, in bytes."""
    try:
        return path.stat().st_size
    except (OSError, ValueError) as reason:
        raise _unreadable(path, reason) from reason


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    try:
        with path.open("rb") as raw, decompressed(raw) as plain:
            is_utf16 = plain.peek(2)[:2] in _UTF16_MARKS  # type: ignore[attr-defined]  # because all of these can peek
            yield raw, (_Utf16AsUtf8(plain) if is_utf16 else plain)  # type: ignore[misc]  # because only read is used
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as reason:
        raise _unreadable(path, reason) from reason


@contextmanager
def decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the decompressed content of an open file.

    It is the file itself where that is plain.
    """
    start = raw.read(_LONGEST_MAGIC)
    raw.seek(0)
    for magic, opener in _COMPRESSIONS.items():
        if start.startswith(magic):
            with opener(raw) as plain:
                yield plain
            return
    yield raw


class _Utf16AsUtf8:
    """A text in UTF-16 with a byte order mark, read as UTF-8."""

    def __init__(self, plain: IO[bytes]) -> None:
        self._plain = plain
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")

    def read(self, size: int) -> bytes:
        """Return about ``size`` bytes, none at the end."""
        while chunk := self._plain.read(size):
            if text := self._decoder.decode(chunk):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", "replace")


@contextmanager
def created(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, compressed where its name ends in ``.gz``.

    The same content always gives the same bytes.

    Raises
    ------
    FileUnwritable
        It cannot be written.
    """
    try:
        with path.open("wb") as raw:
            if path.suffix != ".gz":
                yield raw
                return
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                yield packed  # type: ignore[misc]  # because GzipFile is an IO[bytes] in all but name
    except OSError as reason:
        raise FileUnwritable(f"{path} cannot be written: {reason.strerror or reason}.") from reason


def _unreadable(path: Path, reason: Exception) -> FileUnreadable:
    if isinstance(reason, OSError) and reason.strerror:
        return FileUnreadable(f"{path} cannot be read: {reason.strerror}.", hint="Check the path and its permissions.")
    return FileUnreadable(
        f"{path} cannot be decompressed to its end: {reason}.", hint="It was cut or damaged; export or copy it again."
    )


def _chunks(path: Path, plain: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed file in chunks, with a newline at its end."""
    since_newline, last = 0, b"\n"
    while chunk := plain.read(CHUNK_BYTES):
        last = chunk[-1:]
        since_newline = 0 if b"\n" in chunk else since_newline + len(chunk)
        if since_newline > LONGEST_LINE_BYTES:
            raise FileUnreadable(f"{path} has a line longer than 64 MiB.", hint="It is no table of jobs.")
        yield chunk
    if last != b"\n":
        yield b"\n"


def _cuts(chunks: Iterable[bytes], lines: int, continues: Callable[[bytes], bool]) -> Iterator[bytes]:
    waiting, newlines = [], 0
    for number, chunk in enumerate(chunks):
        waiting.append(chunk if number else _without_mark(chunk))
        newlines += chunk.count(b"\n")
        if newlines > lines + LONGEST_BROKEN_ROW_LINES:
            *whole, rest = _cut(b"".join(waiting), lines, continues, spare=LONGEST_BROKEN_ROW_LINES)
            yield from whole
            waiting, newlines = [rest], rest.count(b"\n")
    yield from filter(None, _cut(b"".join(waiting), lines, continues, spare=0))


def _cut(data: bytes, lines: int, continues: Callable[[bytes], bool], *, spare: int) -> Iterator[bytes]:
    """Yield pieces of ``data`` of ``lines`` lines each.

    A piece is cut off only while more than ``spare`` lines follow it. The last piece is the rest, which may be empty.
    """
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
    start, last = 0, lines
    while last + spare < len(ends):
        latest = min(last + LONGEST_BROKEN_ROW_LINES, len(ends) - 1)
        while last < latest and continues(data[ends[last - 1] : ends[last] - 1]):
            last += 1
        yield data[start : ends[last - 1]]
        start = int(ends[last - 1])
        last += lines
    yield data[start:]


def _without_mark(data: bytes) -> bytes:
    return data.removeprefix(_UTF8_MARK)
