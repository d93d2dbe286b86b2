"""Faults at every database statement and file operation of Helios' own: it fails there, or the process dies there.

A :class:`Faults` counts what happens within it and acts at one point, before that operation is done. To learn what a
death at *any* point leaves behind, one run is enough: ``at_each`` is called before each operation, and what lies on the
disk then is what the dead process would have left (:func:`copied`). ``python -m tests.faults SCENARIO FOLDER K`` really
dies, at operation ``K``.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

DATABASE, FILE = "database", "file"
_FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "tempfile.mkstemp"}
_DISK_FULL = "database or disk is full"
_IO_ERROR = "disk I/O error"


@dataclass(slots=True)
class Faults:
    """What happened, and what is done about it.

    Attributes
    ----------
    folder : Path, optional
        Only operations on files below it count; None: no file operation does.
    at_each : callable
        Called with the number and kind of each operation before it is done.
    seen : list of str
        Every operation so far, in words.
    """

    folder: Path | None = None
    at_each: Callable[[int, str], None] = lambda number, kind: None
    seen: list[str] = field(default_factory=list)
    _within: bool = False

    def happens(self, kind: str, words: str) -> None:
        """Take note of an operation, and do what is to be done before it."""
        if self._within:
            return
        self._within = True
        try:
            self.seen.append(f"{kind}: {words}")
            self.at_each(len(self.seen), kind)
        finally:
            self._within = False


class _Watch:
    """The faults that see what happens now; None: nobody counts."""

    current: Faults | None = None
    hooked = False  # an audit hook cannot be taken away again


@contextmanager
def counted(faults: Faults) -> Iterator[Faults]:
    """Have ``faults`` see every operation of the block."""
    if not _Watch.hooked:
        sys.addaudithook(_audit)
        _Watch.hooked = True
    connect, fsync = sqlite3.dbapi2.connect, os.fsync
    execute, copy, commit = psycopg.Cursor.execute, psycopg.Cursor.copy, psycopg.Connection.commit

    def connected(*arguments: Any, **options: Any) -> Any:
        return connect(*arguments, **({"factory": _Connection} | options))

    def synced(handle: int) -> None:
        _note(FILE, "fsync")
        fsync(handle)

    def executed(cursor: Any, query: Any, *rest: Any, **more: Any) -> Any:
        _note(DATABASE, str(query))
        return execute(cursor, query, *rest, **more)

    def copied_in(cursor: Any, statement: Any, *rest: Any, **more: Any) -> Any:
        _note(DATABASE, str(statement))
        return copy(cursor, statement, *rest, **more)

    def committed(connection: Any) -> None:
        _note(DATABASE, "COMMIT")
        commit(connection)

    with (
        mock.patch.object(sqlite3.dbapi2, "connect", connected),
        mock.patch.object(os, "fsync", synced),
        mock.patch.object(psycopg.Cursor, "execute", executed),
        mock.patch.object(psycopg.Cursor, "copy", copied_in),
        mock.patch.object(psycopg.Connection, "commit", committed),
    ):
        _Watch.current = faults
        try:
            yield faults
        finally:
            _Watch.current = None


def failing_at(number: int, *, folder: Path | None = None) -> Faults:
    """Return faults of which operation ``number`` fails: ENOSPC if it is odd, EIO if it is even."""

    def act(at: int, kind: str) -> None:
        if at == number:
            full = number % 2 == 1
            if kind == DATABASE:
                raise sqlite3.OperationalError(_DISK_FULL if full else _IO_ERROR)
            code = errno.ENOSPC if full else errno.EIO
            raise OSError(code, os.strerror(code))

    return Faults(folder=folder, at_each=act)


def dying_at(number: int, *, folder: Path | None = None) -> Faults:
    """Return faults of which operation ``number`` is where the process dies."""

    def act(at: int, _kind: str) -> None:
        if at == number:
            os._exit(137)

    return Faults(folder=folder, at_each=act)


def copied(folder: Path, to: Path) -> Path:
    """Copy what lies in a folder now, as a process that dies leaves it: its locks and shared memory go with it."""
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*-shm")))


def spread(number: int, some: int) -> list[int]:
    """Return at most ``some`` of 1 to ``number``, evenly spread, the first and the last among them."""
    if number <= some:
        return list(range(1, number + 1))
    return sorted({1 + round(step * (number - 1) / (some - 1)) for step in range(some)})


class _Cursor(sqlite3.Cursor):
    def execute(self, statement: str, *rest: Any) -> Any:
        _note(DATABASE, statement)
        return super().execute(statement, *rest)

    def executemany(self, statement: str, *rest: Any) -> Any:
        _note(DATABASE, statement)
        return super().executemany(statement, *rest)


class _Connection(sqlite3.Connection):
    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def commit(self) -> None:
        _note(DATABASE, "COMMIT")
        super().commit()


def _note(kind: str, words: str) -> None:
    if _Watch.current is not None:
        _Watch.current.happens(kind, words)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    faults = _Watch.current
    if faults is None or faults.folder is None or event not in _FILE_EVENTS:
        return
    if str(arguments[0]).startswith(str(faults.folder)) and not str(arguments[0]).endswith((".db", "-wal", "-shm")):
        faults.happens(FILE, f"{event} {arguments[0]}")


if __name__ == "__main__":
    from tests.contract.test_faults import SCENARIOS

    named, where, which = sys.argv[1:]
    with counted(dying_at(int(which))):
        SCENARIOS[named].act(f"sqlite:///{Path(where) / 'helios.db'}")
