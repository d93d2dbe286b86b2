"""Reader of SQL dumps as ``mysqldump`` and its relatives write them.

A dump is read statement by statement. Texts within quotes are never taken for statements, so that no name of a job can
forge a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from helios.errors import FileUnreadable, FormatUnknown
from helios.ingest.delimited import DelimitedRows, one_array
from helios.ingest.job_rows import FileReading, Refused
from helios.ingest.lines import CHUNK_BYTES, REPLACED, Decoded, decode
from helios.ingest.parquet import RowValues
from helios.ingest.parse import Reason, without

LONGEST_STATEMENT = 1 << 30
"""Most bytes of one statement; mysqldump makes at most 16 MiB (max_allowed_packet allows 1 GiB)."""
_BEGINS = re.compile(rb"^(?:CREATE TABLE|INSERT INTO|DROP TABLE|-- (?:MySQL|MariaDB) dump)\b", re.MULTILINE)

_STRING = rb"'(?:[^'\\]++|\\.|'')*+'"
# A comment may hold a single quote, so it is an alternative of its own.
_STATEMENT = re.compile(
    rb"(?:[^'\"`;/#-]++|" + _STRING + rb"|\"(?:[^\"\\]++|\\.|\"\")*+\"|`[^`]*+`"
    rb"|--[^\n]*+\n|#[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/|[-/](?![-*]))*+;",
    re.DOTALL,
)
_COMMENTS = re.compile(rb"(?:\s++|--[^\n]*+\n|#[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+", re.DOTALL)
_NAME = rb"(?:[`\"]?[\w$-]++[`\"]?\.)?[`\"]?([\w$-]++)[`\"]?"
_CREATE = re.compile(rb"CREATE TABLE\s+(?:IF NOT EXISTS\s+)?" + _NAME + rb"\s*\(", re.IGNORECASE)
_COLUMN = re.compile(rb"^[ \t]*+[`\"]([^`\"\n]+)[`\"]\s", re.MULTILINE)
_INSERT = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?INTO\s+" + _NAME + rb"\s*(?:\(([^)]*)\)\s*)?VALUES\s*", re.IGNORECASE
)
_TEXT = r"'(?:[^'\\]++|\\.|'')*+'"
_VALUE = rf"(?:{_TEXT}|[^\s,()']++(?:\s*+{_TEXT})?+)"  # a number, NULL, 0x41, and _binary 'A'
_ANY_ROW = re.compile(rf"\s*+,?\s*+(\((?:[^'()]++|{_TEXT})*+\))", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}
_BINARY = re.compile(r"(?:0[xX]|[xX]')([0-9A-Fa-f]+)'?")


Rows = list[dict[str, Any]]


def fits(start: bytes) -> bool:
    """Return whether a file begins like a dump."""
    return _BEGINS.search(start) is not None


def star(table: str, pattern: str) -> str | None:
    """Return what the star of a pattern stands for in a table's name.

    None where the name does not fit.
    """
    if not fnmatchcase(table, pattern):
        return None
    before, _, after = pattern.partition("*")
    return table[len(before) : len(table) - len(after)]


def read_tables(path: Path, patterns: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, Rows]]:
    """Return the columns of all tables, and the rows of some.

    Those are read whose names fit one of the ``patterns``.
    """
    columns, rows = dict[str, list[str]](), dict[str, Rows]()
    with decode(path) as (_, text):
        for insert in _inserts(path, text, columns):
            if any(star(insert.table, pattern) is not None for pattern in patterns):
                values = (column.to_pylist() for column in insert.values(insert.names)[0])
                found = [dict(zip(insert.names, row, strict=True)) for row in zip(*values, strict=True)]
                rows.setdefault(insert.table, []).extend(found)
    return columns, rows


def read_dump(reading: FileReading, pattern: str, wanted: Sequence[str], *, cluster: str) -> Iterator[DelimitedRows]:
    """Yield the rows of the tables whose names fit ``pattern``.

    The "line" of a row is its number among them. What the star stands for is the column ``cluster``.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end, or has a statement beyond 1 GiB.
    """
    done, size, waiting, refused = 0, 0, list[dict[str, pa.Array]](), list[Refused]()
    with decode(reading.path) as (raw, text):
        for insert in _inserts(reading.path, text, {}):
            names = [each for each in insert.names if each in wanted]
            if (name := star(insert.table, pattern)) is None or not names:
                continue
            values, broken = insert.values(names)
            rows = len(values[0])
            refused += [Refused(done + size + rows + 1, Reason.WRONG_FIELD_COUNT, row) for row in broken]
            waiting.append({**dict(zip(names, values, strict=True)), cluster: pa.repeat(name, rows)})
            size += rows
            if size >= reading.rows_per_batch and size:
                yield _joined(waiting, refused, done, raw)
                done, size, waiting, refused = done + size, 0, [], []
        if size or refused:
            yield _joined(waiting, refused, done, raw)
        reading.tally[REPLACED] += text.replaced


def _joined(parts: list[dict[str, pa.Array]], refused: list[Refused], done: int, raw: IO[bytes]) -> DelimitedRows:
    names = dict.fromkeys(chain.from_iterable(parts))
    tables = [pa.table({name: found[name] for name in names if name in found}) for found in parts]
    table = pa.concat_tables(tables, promote_options="default")
    columns = {name: one_array(table.column(name)) for name in names}
    texts = RowValues.numbered(pa.RecordBatch.from_pydict(columns), after=done, bytes_read=raw.tell())
    return DelimitedRows(columns=columns, texts=texts, refused=refused, rejoined=0)


def _statements(path: Path, text: Decoded) -> Iterator[bytes]:
    """Yield the statements of a dump, without the comments before them."""
    rest, size = b"", CHUNK_BYTES
    while piece := text.read(size):
        rest = rest + piece if rest else piece
        at = 0
        while found := _STATEMENT.match(rest, at):
            comments = _COMMENTS.match(rest, at)
            yield rest[comments.end() if comments else at : found.end()]
            at = found.end()
        rest = rest[at:]
        if len(rest) > LONGEST_STATEMENT:
            raise FileUnreadable(f"{path} has a statement longer than 1 GiB.", hint="It is no dump of jobs.")
        size = max(CHUNK_BYTES, len(rest))  # so that a long statement is not searched again for every small piece
    ended = _COMMENTS.match(rest)
    if ended is None or ended.end() < len(rest):
        raise FileUnreadable(f"{path} ends within a statement.", hint="It was cut or damaged; export or copy it again.")


def _inserts(path: Path, text: Decoded, columns: dict[str, list[str]]) -> Iterator[_Insert]:
    """Yield the INSERTs of a dump, and set the columns of its tables."""
    for statement in _statements(path, text):
        if created := _CREATE.match(statement):
            columns[created[1].decode()] = [name.decode() for name in _COLUMN.findall(statement)]
        elif found := _INSERT.match(statement):
            table, listed = found[1].decode(), found[2]
            names = [name.strip(b'`" \n').decode() for name in listed.split(b",")] if listed else columns.get(table)
            if names is None:
                raise FormatUnknown(
                    f"The dump does not say which columns the table {table} has.",
                    hint="Dump it with its CREATE TABLE (without --no-create-info), or with --complete-insert.",
                )
            columns.setdefault(table, names)
            yield _Insert(table, names, statement[found.end() :].decode())


class _Insert(NamedTuple):
    table: str
    names: list[str]
    body: str

    def values(self, wanted: Sequence[str]) -> tuple[list[pa.Array], list[bytes]]:
        """Return the values of some columns, and the texts of broken rows.

        A row is broken that has not as many values as there are columns.
        """
        pattern = _row((*self.names,), (*wanted,))
        rows, broken, end = [], list[bytes](), 0
        while True:
            while row := pattern.match(self.body, end):
                rows.append(row.groups())
                end = row.end()
            other = _ANY_ROW.match(self.body, end)
            if other is None:
                break
            broken.append(other[1].encode())
            end = other.end()
        if "(" in (rest := self.body[end:]) and not rest.lstrip().upper().startswith("ON DUPLICATE"):
            broken.append(rest.encode())
        columns = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        return [_texts(pa.array(column, pa.string())) for column in columns], broken


@lru_cache
def _row(names: tuple[str, ...], wanted: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of a row, whose groups are the wanted values."""
    # Values that nobody wants become no strings, which halves the time.
    values = r"\s*+,\s*+".join(f"({_VALUE})" if name in wanted else _VALUE for name in names)
    return re.compile(rf"\s*+,?\s*+\(\s*+{values}\s*+\)", re.DOTALL)


def _texts(tokens: pa.Array) -> pa.Array:
    """Return the values of tokens, null for NULL and empty texts."""
    quoted = pc.starts_with(tokens, pattern="'")
    texts = pc.if_else(quoted, pc.utf8_slice_codeunits(tokens, 1, -1), without(tokens, "NULL"))
    odd = pc.match_substring_regex(tokens, r"\\|''.|^_\w+ |^(?:0[xX]|[xX]')[0-9A-Fa-f]")
    if pc.any(odd).as_py():
        changed = pa.array([_value(token) for token in tokens.filter(odd).to_pylist()], pa.string())
        texts = pc.replace_with_mask(texts, odd, changed)
    return without(texts, "")


def _value(token: str) -> str:
    if binary := _BINARY.fullmatch(token):
        digits = binary[1] if len(binary[1]) % 2 == 0 else f"0{binary[1]}"
        return bytes.fromhex(digits).decode("utf-8", errors="replace")
    text = token[token.index("'") + 1 : -1]
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else "'", text)
