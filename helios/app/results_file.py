"""Where a sweep writes down what it has: one line a cell, appended when it is done, never changed.

A killed run leaves whole lines and at most one torn one, which the next run takes away. Lines of other plans, histories
and versions of Helios may lie in the same file: each cell goes by its key.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from helios.app.cells import FIGURES, Cell, Told
from helios.errors import FileUnreadable, Misuse


class ResultsFile:
    """An open file of results, ours alone until it is closed.

    Attributes
    ----------
    known : dict
        What is known of each cell, by key: its figures, or why it failed the last time.
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._stream = stream
        self.known: dict[str, Told] = {}
        for number, line in enumerate(_whole_lines(stream), start=1):
            key, told = _read(line, path, number)
            if FIGURES in told or FIGURES not in self.known.get(key, {}):
                self.known[key] = told

    def has(self, key: str) -> bool:
        """Whether a cell was replayed; one that failed was not."""
        return FIGURES in self.known.get(key, {})

    def add(self, key: str, cell: Cell, told: Told) -> None:
        """Append a cell's line, and wait until the disk has it."""
        line = json.dumps({"key": key, "cell": cell.to_json(), **told}, sort_keys=True, allow_nan=False)
        self._stream.write(line.encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.known[key] = told


@contextmanager
def results_in(path: Path) -> Iterator[ResultsFile]:
    """Open a file of results, or make one.

    Raises
    ------
    Misuse
        It cannot be written, or another sweep is writing to it.
    FileUnreadable
        It holds something else.
    """
    try:
        stream = path.open("a+b")
    except OSError as reason:
        raise Misuse(f"Results cannot be written: {reason}", remedy="Choose another place: --out FILE") from reason
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            raise Misuse(
                f"Another sweep is writing to {path}.", remedy="Wait for it, or choose another place: --out FILE"
            ) from reason
        yield ResultsFile(path, stream)


def _whole_lines(stream: IO[bytes]) -> list[bytes]:
    """Return the lines of a file, and take away what stands after the last: a line that was being written."""
    stream.seek(0)
    written = stream.read()
    whole = written.rfind(b"\n") + 1
    if whole < len(written):
        stream.truncate(whole)
    stream.seek(0, os.SEEK_END)
    return written[:whole].splitlines()


def _read(line: bytes, path: Path, number: int) -> tuple[str, Told]:
    try:
        told: dict[str, Any] = json.loads(line)
        return str(told["key"]), {name: told[name] for name in told if name not in ("key", "cell")}
    except (ValueError, KeyError, TypeError) as reason:
        raise FileUnreadable(
            f"{path}, line {number}, is no result of a sweep.", remedy="Choose another file: --out FILE"
        ) from reason
