"""Reader of JSON lists of jobs, one object at a time.

Memory use does not grow with the file. Each object becomes one or more flat records of texts, named as a table's
columns are. From there on the JSON formats are read like all others: a record that makes no sense is refused and
counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ijson
import numpy as np
import pyarrow as pa

from helios.errors import FileUnreadable
from helios.ingest.delimited import DelimitedRows
from helios.ingest.job_rows import FileReading, Refused
from helios.ingest.lines import REPLACED, Block, Decoded, RowTexts, decode, head
from helios.ingest.parse import Reason

Fields = Mapping[str, str | None]
"""One record: texts by the name of their column. None means unknown."""

# A record takes about 2 kB while it waits for its batch.
RECORDS_PER_BATCH = 20_000
LARGEST_RECORD = 16 << 20
"""Characters and values (as 16 characters each) of one object without its steps."""
_VALUE_SIZE = 16
MOST_LINES_BEFORE = 20
"""Most lines before the JSON, such as warnings that a shell wrote into the same file."""
LINES_BEFORE = "lines before the JSON, as warnings leave them, were skipped"
_LARGEST_BATCH = 64 << 20
UNREAD = frozenset({"steps"})
"""Members of an object that are skipped: a Slurm job may have 40,000 steps (the default of MaxStepCount)."""
_BELOW_THE_OBJECT = 2
_BEGINS: dict[str, Callable[[], Any]] = {"start_map": dict, "start_array": list}
_ENDS = frozenset({"end_map", "end_array"})
DEEPEST_RECORD = 64
"""Most levels of nested objects and lists; sacct prints 9."""
LONGEST_NUMBER = 4_000
"""Most digits of a number. Python converts at most 4,300, and with more ijson 3.6 ends the whole process."""
_DIGITS = re.compile(rb"[0-9]{%d}" % LONGEST_NUMBER)
_LAST_DIGITS = re.compile(rb"[0-9]*\Z")
_LAST_BACKSLASH = re.compile(rb"\\\Z")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


class _Record(NamedTuple):
    number: int
    fields: Fields
    text: bytes
    reason: Reason | None


def lines_before(start: bytes) -> int:
    """Return how many lines come before the JSON of a file.

    ``start`` is the beginning of the file. 0 where no JSON follows soon.
    """
    lines = start.split(b"\n", MOST_LINES_BEFORE + 1)[: MOST_LINES_BEFORE + 1]
    return next((at for at, line in enumerate(lines) if line.lstrip()[:1] in (b"{", b"[")), 0)


def without_lines_before(start: bytes) -> bytes:
    """Return the beginning of a file from its JSON on."""
    return start.split(b"\n", count)[count] if (count := lines_before(start)) else start


def read_records(
    reading: FileReading,
    prefix: str,
    records_of: Callable[[Mapping[str, Any]], Sequence[Fields] | None],
    names: Iterable[str],
    *,
    errors: list[Any] | None = None,
) -> Iterator[DelimitedRows]:
    """Yield the objects of a JSON list as rows.

    The "line" of a row is the number of its record in the file, from 1.

    Parameters
    ----------
    reading : FileReading
        The file, and about how many rows to yield at once.
    prefix : str
        Where the objects are: ``item`` for a list, ``jobs.item`` for the list called ``jobs``, nothing for one object
        after the other.
    records_of : callable
        Returns the records of one object, or None where it is not understood.
    names : iterable of str
        Columns to return.
    errors : list, optional
        Receives the entries of the list ``errors`` beside that of the objects.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end, or is not valid JSON.
    """
    names = tuple(names)
    reading.tally[LINES_BEFORE] += (before := lines_before(head(reading.path)))
    with decode(reading.path) as (raw, text):
        events = ijson.basic_parse(_Bounded(text, lines_before=before), multiple_values=True)
        objects = _wrap_errors(_items(events, prefix, errors), reading.path)
        records = _number_records(objects, records_of)
        while batch := list(_batch(records, min(reading.rows_per_batch, RECORDS_PER_BATCH))):
            yield _rows(batch, names, raw.tell())
        reading.tally[REPLACED] += text.replaced


def _batch(records: Iterator[_Record], most: int) -> Iterator[_Record]:
    size = 0
    for record in islice(records, most):
        yield record
        size += len(record.text)
        if size > _LARGEST_BATCH:
            return


def value_at(record: Any, *path: str) -> Any:
    """Return the value at ``path`` in nested objects, or None.

    None where a member on the path is missing.
    """
    for name in path:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


def as_text(value: Any) -> str | None:
    """Return a JSON value as the text of a table's field.

    None and empty strings become None; lists, objects and booleans become JSON.
    """
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value, default=str) if isinstance(value, (bool, list, dict)) else str(value)


class _Bounded:
    """A text whose reading stops at an overlong number or string.

    The JSON parser holds each number and each string in memory as a whole.

    Raises
    ------
    ValueError
        A number has ``LONGEST_NUMBER`` digits or more, or a string is larger than ``LARGEST_RECORD``.
    """

    def __init__(self, text: Decoded, *, lines_before: int = 0) -> None:
        self._text = text
        self._lines_before = lines_before
        self._inside = False  # whether the text read so far ends inside a string
        self._open = b""  # trailing digits or backslash, which the next piece may continue
        self._length = 0  # bytes of the open string so far

    def read(self, size: int) -> bytes:
        piece = self._text.read(size)
        while self._lines_before and piece:
            *skipped, piece = piece.split(b"\n", self._lines_before)
            self._lines_before -= len(skipped)
            piece = self._text.read(size) if self._lines_before or not piece else piece
        # Only the beginning and the end of a string matter here, so escaped characters (as quotes) are removed.
        *before, last = _ESCAPED.sub(b"", self._open + piece).split(b'"')
        outside = b'"'.join([*before, last][self._inside :: 2])
        if _DIGITS.search(outside):
            raise ValueError(f"a number of {LONGEST_NUMBER:,} digits or more")
        self._inside ^= len(before) % 2 > 0
        going_on = (_LAST_BACKSLASH if self._inside else _LAST_DIGITS).search(last)
        self._open = going_on.group() if going_on else b""
        self._length = (0 if before else self._length) + len(last) if self._inside else 0
        if self._length > LARGEST_RECORD:
            raise ValueError(f"a string of more than {LARGEST_RECORD >> 20} MiB")
        return piece


def _items(events: Iterator[tuple[str, Any]], prefix: str, errors: list[Any] | None = None) -> Iterator[Any]:
    """Yield the values of a list from a parser's events.

    The entries of the list ``errors`` beside it are added to ``errors``.

    A value that breaks a bound is replaced by a text that names the bound. The builder of ijson itself has no bounds:
    with 195 KiB of nested brackets it took 4.9 GiB.
    """
    way = prefix.split(".")[:-1]
    the_list = [*zip(["", *way], ["start_map"] * len(way), strict=False), (way[-1] if way else "", "start_array")]
    the_list = the_list if prefix else []
    around: list[tuple[str, str]] = []  # every open object and list: its name in its parent, and its kind
    key = ""
    for event, value in events:
        if event == "map_key":
            key = value
        elif event in _ENDS:
            around.pop()
        elif around == the_list:
            yield _build_value(event, events) if event in _BEGINS else value
        elif errors is not None and key == "errors" and around == the_list[:-1] and event == "start_array":
            found = _build_value(event, events)
            errors += found if isinstance(found, list) else [found]
        elif event in _BEGINS:
            around.append((key if around and around[-1][1] == "start_map" else "", event))


def _build_value(begin: str, events: Iterator[tuple[str, Any]]) -> Any:
    """Return the object or list that begins with the event ``begin``.

    Returns a text that names the bound where the value is too large or too deep. Members in ``UNREAD`` are skipped.
    """
    whole: Any = _BEGINS[begin]()
    containers, key, depth, left = [whole], "", 1, LARGEST_RECORD
    unread, broken = 0, ""  # depth of the open value that is skipped, and the bound that was broken
    for event, value in events:
        if event in _ENDS:
            if depth == unread:
                unread = 0
            elif not (unread or broken):
                containers.pop()
            depth -= 1
            if not depth:
                return broken or whole
            continue
        if event == "map_key":
            key, left = value, left - len(value)
            continue
        begins = event in _BEGINS
        depth += begins
        if unread or broken:
            continue
        left -= _VALUE_SIZE + (len(value) if event == "string" else 0)
        if left < 0 or depth > DEEPEST_RECORD:
            broken = f"longer than {LARGEST_RECORD >> 20} MiB" if left < 0 else f"more than {DEEPEST_RECORD} levels"
            whole, containers = None, []
        elif begins and depth == _BELOW_THE_OBJECT and key in UNREAD and isinstance(whole, dict):
            unread = depth
        else:
            kept = _BEGINS[event]() if begins else value
            if isinstance(containers[-1], dict):
                containers[-1][key] = kept
            else:
                containers[-1].append(kept)
            containers += [kept] * begins
    raise ijson.IncompleteJSONError("it ends within an object")


def _wrap_errors(objects: Iterator[Any], path: Path) -> Iterator[Any]:
    read = 0
    try:
        for item in objects:
            read += 1
            yield item
    except (ijson.JSONError, ValueError) as reason:
        said = str(reason).partition("\n")[0].strip()
        raise FileUnreadable(
            f"{path} is no JSON behind job {read:,}: {said}.", hint="It was cut or damaged; export or copy it again."
        ) from reason


def _number_records(
    objects: Iterator[Any], records_of: Callable[[Mapping[str, Any]], Sequence[Fields] | None]
) -> Iterator[_Record]:
    number = 0
    for item in objects:
        found = records_of(item) if isinstance(item, Mapping) else None
        for fields in [{}] if found is None else found:
            number += 1
            reason = Reason.UNREADABLE_RECORD if found is None else _flaw(fields)
            written = json.dumps(item if found is None else fields, default=str, ensure_ascii=reason is not None)
            yield _Record(number, fields, written.encode(), reason)


def _flaw(fields: Fields) -> Reason | None:
    joined = "".join(filter(None, fields.values()))
    if "\0" in joined:
        return Reason.NUL_BYTE
    try:
        joined.encode()
    except UnicodeEncodeError:  # JSON can hold single surrogates (half of a pair)
        return Reason.INVALID_UTF8
    return None


def _rows(records: list[_Record], names: tuple[str, ...], bytes_read: int) -> DelimitedRows:
    good = [record for record in records if record.reason is None]
    data = b"".join(record.text + b"\n" for record in records)
    return DelimitedRows(
        columns={name: pa.array([record.fields.get(name) or None for record in good], pa.string()) for name in names},
        texts=RowTexts(
            block=Block(data=data, first_line=records[0].number, bytes_read=bytes_read),
            ends=np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")),
            line=np.array([record.number for record in good], dtype=np.int64),
        ),
        refused=[Refused(record.number, record.reason, record.text) for record in records if record.reason],
        rejoined=0,
    )
