"""Orders to a pool, through a file of its folder.

The nodes of a pool share its folder and nothing else, so there are neither signals nor sockets. The file is appended to
and never changed. Each run reads all of it, so that what a killed pool did not get to is carried out by the next.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.errors import FileUnwritable
from helios.lines_file import LinesFile, try_lock
from helios.private_files import open_private
from helios.training.model import TrialState
from helios.training.pool.reports import GrowingFile, PlainFile

if TYPE_CHECKING:
    from helios.training.pool.attempts import Attempts
    from helios.training.pool.notes import Notes
    from helios.training.pool.state import Records
    from helios.training.pool.trials import SweepTrials

FILE = "orders.jsonl"
STOP, RETRY = "stop", "retry"
MAY_RUN_AGAIN = frozenset({TrialState.FAILED, TrialState.DIVERGED})
"""States after which a trial may be run again: those without a result."""
LONGEST_ORDER = 1 << 16
"""Bytes of a line, of some ten thousand trials."""
MOST_READ = 1 << 20
"""Bytes of the file in which orders that wait are looked for."""
_LOCK_S = 5.0
"""How long somebody else may write an order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOrder:
    """What somebody wants of a pool.

    Attributes
    ----------
    what : str
        ``stop`` or ``retry``.
    numbers : tuple of int
        Trials. Empty for the pool, or for all that have failed.
    who : str
        Account that gave it.
    place : int
        Where its line ends in the file, which no other order has.
    """

    what: str
    numbers: tuple[int, ...]
    who: str
    place: int


def give_order(folder: Path, what: str, numbers: Sequence[int], *, who: str) -> None:
    """Append an order for the pool of a folder.

    Raises
    ------
    FileUnwritable
        It cannot be written.
    """
    line = json.dumps({"order": what, "numbers": list(numbers), "who": who, "at_s": round(time.time(), 3)}).encode()
    hint = "Only the account that runs a pool may order it. Make room where its disk is full."
    try:
        handle = open_private(folder / FILE)
        try:
            until_s = time.monotonic() + _LOCK_S
            while not try_lock(handle):
                if time.monotonic() > until_s:
                    raise FileUnwritable(f"Another command writes to {folder / FILE}.", hint="Try it again.")
                time.sleep(0.05)
            file = LinesFile(handle)
            file.skip()
            file.append(line + b"\n")
        finally:
            os.close(handle)
    except OSError as reason:
        raise FileUnwritable(f"{folder / FILE} cannot be written: {reason.strerror}", hint=hint) from reason


def size_of_orders(folder: Path) -> int:
    """Return the size of the file, 0 where there is none."""
    with suppress(OSError):
        return (folder / FILE).stat().st_size
    return 0


def waiting_orders(folder: Path, records: Records, *, owner: int) -> list[PoolOrder]:
    """Return the orders on trials that no run has carried out yet."""
    written, waiting = b"", []
    with suppress(OSError), closing(PlainFile(folder / FILE, owner=owner)) as file:
        written = os.pread(file.handle, MOST_READ, 0)
    for _, order in _parse_lines(written.split(b"\n")[:-1], 0):
        if order is None:
            continue
        trials = [records.trials[number] for number in order.numbers if number in records.trials]
        open_ = any(not trial.ended and trial.order <= order.place for trial in trials)
        if order.place > records.orders if order.what == RETRY else open_:
            waiting.append(order)
    return waiting


class Orders:
    """Reads the orders in the folder of a sweep and carries them out."""

    def __init__(self, *, trials: SweepTrials, attempts: Attempts, notes: Notes) -> None:
        self._trials, self._attempts, self._notes = trials, attempts, notes
        self._file, self._half = GrowingFile(trials.source.folder / FILE), b""
        self._retries: list[PoolOrder] = []
        self._stops: dict[int, PoolOrder] = {}

    def take(self) -> str:
        """Carry out new orders, and return who wants the pool to stop.

        Empty for nobody. A pool stops for orders that were given since it began. Nothing is carried out while it cannot
        be recorded.
        """
        stopped_by = ""
        for order in self._read():
            if order.what == RETRY:
                self._retries.append(order)
            elif order.numbers:
                self._stops |= dict.fromkeys(order.numbers, order)
            elif order.place > self._trials.state.orders_before:
                stopped_by = order.who
        if self._retries:
            self._trials.report_to_search()
        while self._retries and not self._trials.state.problem and not self._trials.unreported:
            self._retry(self._retries.pop(0))
        for number, order in list(self._stops.items()):
            self._stop(number, order)
        return stopped_by

    def _read(self) -> list[PoolOrder]:
        new, jump = self._file.read(skip=False)
        if self._file.problem:
            self._notes.note(f"Orders are not read: {self._file.problem}")
        if jump:
            self._half = b""
        if not new:
            return []
        place = self._file.place - len(new) - len(self._half)
        *lines, self._half = (self._half + new).split(b"\n")
        orders = []
        for line, order in _parse_lines(lines, place):
            if order is not None:
                orders.append(order)
            else:
                self._notes.note(f"A line of {FILE} is no order and was skipped, such as {line[:60]!r}", key=FILE)
        if len(self._half) > LONGEST_ORDER:
            self._half = b""
        return orders

    def _retry(self, order: PoolOrder) -> None:
        """Have failed trials run again, unless another pool has done so."""
        state = self._trials.state
        with state.exclusive():
            if order.place <= state.orders:
                return
            failed = [trial.number for trial in state.trials.values() if trial.state is TrialState.FAILED]
            for number in order.numbers or failed:
                record = state.trials.get(number)
                if record is not None and record.state in MAY_RUN_AGAIN and record.order < order.place:
                    self._trials.run_again(record, order)
                    self._notes.publish({"event": "retried", **self._trials.identify(number), "who": order.who})
            state.append({"orders": order.place}, lasting=False)

    def _stop(self, number: int, order: PoolOrder) -> None:
        """End a trial of this pool for good."""
        record, state = self._trials.state.trials.get(number), self._trials.state
        if record is None or not state.is_mine(record):
            return
        if record.ended or record.order > order.place:
            del self._stops[number]
        elif (attempt := self._attempts.running.get(self._trials.pool_number(record))) is not None:
            if not attempt.stopped:
                reason = f"stopped by {order.who}"
                asked = {"event": "asked", **self._trials.identify(number), "request": "stop", "reason": reason}
                self._notes.publish(asked)
                attempt.stop(self._trials.sweep.grace_s, why=reason)
        elif self._trials.pool_number(record) in self._trials.waiting and not state.problem:
            self._trials.withdraw(record, reason=f"stopped by {order.who}")


def _parse_lines(lines: Iterable[bytes], place: int) -> Iterator[tuple[bytes, PoolOrder | None]]:
    """Yield each line and its order, None where it is none.

    The first line begins at a place of the file.
    """
    for line in lines:
        place += len(line) + 1
        yield line, _parse(line, place)


def _parse(line: bytes, place: int) -> PoolOrder | None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, Mapping) or entry.get("order") not in {STOP, RETRY}:
        return None
    numbers, who = entry.get("numbers"), entry.get("who")
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        return None
    if not isinstance(who, str) or not who.isprintable() or not 0 < len(who) <= 100:
        return None
    return PoolOrder(what=entry["order"], numbers=tuple(numbers), who=who, place=place)
