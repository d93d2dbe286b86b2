"""Scalars of TensorBoard's event files.

TensorBoard and TensorFlow are too heavy to depend on for three kinds of messages. A file is a sequence of TFRecords
(length, its CRC, data, its CRC; little endian), each an ``Event`` of tensorflow/core/util/event.proto with a
``Summary`` of tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from helios.training.pool.reports import LARGEST_STEP, LONGEST_NAME, MOST_METRICS, GrowingFile, Report

LARGEST_EVENT = 1 << 16
"""Bytes of an event; larger ones are images, graphs and histograms, and are passed over."""
MOST_FILES = 64
DEEPEST = 4
"""Levels of folders in which event files are looked for."""
MOST_ENTRIES = 10_000
"""Files and folders that one call looks at."""


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 - the loop is the algorithm
        table.append(value)
    return tuple(table)


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of bytes as TFRecords store it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventReader:
    """Reader of the scalars in the TensorBoard event files of a folder.

    Attributes
    ----------
    skipped_lines : int
        Events that were damaged; a file is not read on after one, since nothing says where the next begins.
    problem : str
        Why a file is not read. Empty where all are, or there are none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped_lines = 0
        self.problem = ""
        self._files: dict[Path, GrowingFile] = {}
        self._damaged: set[Path] = set()

    @property
    def place(self) -> int:
        """How much of all files the calls have read."""
        return sum(file.place for file in self._files.values())

    def read(self) -> list[Report]:
        """Return the new reports since the last call."""
        self.problem = ""
        for path in _event_files(self.folder):
            if path not in self._files and len(self._files) < MOST_FILES:
                self._files[path] = GrowingFile(path)
        reports: list[Report] = []
        for path, file in self._files.items():
            if path not in self._damaged:
                reports += self._reports(path, file)
        return reports

    def _reports(self, path: Path, file: GrowingFile) -> Iterator[Report]:
        data, jump = file.read(skip=False)
        self.problem = file.problem or self.problem
        if jump:
            self._report_damage(path)
            return
        place = 0
        while len(data) - place >= 12:
            length, crc = struct.unpack_from("<QI", data, place)
            if masked_crc(data[place : place + 8]) != crc:
                self._report_damage(path)
                return
            end = place + 12 + length + 4
            if length > LARGEST_EVENT:
                if end > len(data):
                    file.skip(end - len(data))
                place = min(end, len(data))
                continue
            if end > len(data):
                break
            event = data[place + 12 : end - 4]
            (crc,) = struct.unpack_from("<I", data, end - 4)
            if masked_crc(event) != crc:
                self._report_damage(path)
                return
            place = end
            with suppress(ValueError, IndexError, struct.error):  # fields of a later release
                report = parse_event(event)
                if report is not None:
                    yield report
        file.unread(len(data) - place)

    def _report_damage(self, path: Path) -> None:
        self._damaged.add(path)
        self.skipped_lines += 1
        self.problem = f"{path.name} is damaged"


def _event_files(folder: Path) -> list[Path]:
    """Return event files below a folder, links not followed."""
    found, left, folders = [], MOST_ENTRIES, [(folder, 0)]
    while folders and left > 0:
        place, depth = folders.pop()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                left -= 1
                if left <= 0:
                    break
                if entry.is_dir(follow_symlinks=False) and depth < DEEPEST:
                    folders.append((Path(entry.path), depth + 1))
                elif ".tfevents." in entry.name and entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
    return sorted(found)


def parse_event(event: bytes) -> Report | None:
    """Return the scalars of an event, or None.

    Raises
    ------
    ValueError, IndexError, struct.error
        It is no event.
    """
    time_s, step = 0.0, 0
    metrics: dict[str, float] = {}
    not_finite: list[str] = []
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes):
            (time_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for inner, summary in _fields(value):
                if inner == 1 and isinstance(summary, bytes):
                    name, scalar = _summary_value(summary)
                    if scalar is None or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
                        continue
                    if math.isfinite(scalar):
                        metrics[name] = scalar
                    else:
                        not_finite.append(name)
    if not metrics and not not_finite:
        return None
    return Report(
        step=step if step <= LARGEST_STEP else None,
        metrics=dict(list(metrics.items())[:MOST_METRICS]),
        not_finite=tuple(not_finite[:MOST_METRICS]),
        time_s=time_s if math.isfinite(time_s) else None,
    )


def _summary_value(data: bytes) -> tuple[str, float | None]:
    """Return name and scalar of a ``Summary.Value``."""
    name, scalar = "", None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor_scalar(value)
    return name, scalar


def _tensor_scalar(data: bytes) -> float | None:
    """Return the value of a ``TensorProto`` without dimensions, or None."""
    kind, content, listed = 0, b"", b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and value:  # a shape with dimensions
            return None
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6) and isinstance(value, bytes):
            listed = value
    form = {1: "<f", 2: "<d"}.get(kind)
    raw = content or listed
    if form is None or len(raw) != struct.calcsize(form):
        return None
    scalar: float = struct.unpack(form, raw)[0]
    return scalar


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer message.

    Raises
    ------
    ValueError, IndexError
        It is none.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("groups are not read")
        if place + length > len(data):
            raise ValueError("a field is longer than the message")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number is too long")
