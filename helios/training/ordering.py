"""Orders that a person gives to a pool from another terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helios.errors import UsageError
from helios.ports import Progress
from helios.training.pool.orders import MAY_RUN_AGAIN, RETRY, STOP, give_order, size_of_orders
from helios.training.pool.provenance import own_name
from helios.training.status import PoolStatus, read_status

WAIT_S = 10.0
"""How long to wait until a running pool has carried out an order; it looks several times a second."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrder:
    """What was ordered, and what became of it so far.

    Attributes
    ----------
    trials : tuple of int
        Empty where the pool is to stop.
    running : bool
        Whether the pool ran when it was seen last.
    done : bool
        Whether it was seen to be carried out.
    """

    folder: str
    order: str
    trials: tuple[int, ...]
    running: bool
    done: bool

    @property
    def in_words(self) -> str:
        """The order and its outcome as a sentence."""
        names = f"trial{'s' * (len(self.trials) > 1)} {', '.join(map(str, self.trials[:10]))}"
        names += f" and {len(self.trials) - 10:,} more" if len(self.trials) > 10 else ""
        if not self.trials:
            done, open_ = "The pool stops.", "The pool was told to stop, and has not answered yet."
        elif self.order == STOP:
            done, open_ = f"Stopped: {names}.", f"Told to stop: {names}."
        else:
            done, open_ = f"To be run again: {names}.", f"To be run again: {names}."
        if self.done:
            return done
        return open_ if self.running else f"{open_} The next run of the pool does it: helios pool run"

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        return asdict(self)


def order_pool(folder: Path, what: str, numbers: Sequence[int], *, progress: Progress) -> GivenOrder:
    """Give an order to a pool, and wait for it a little.

    Raises
    ------
    UsageError
        There is nothing to do, or a trial cannot be stopped or run again.
    FileUnwritable
        The order cannot be written.
    """
    status, numbers = read_status(folder), [*dict.fromkeys(numbers)]
    trials = _check(status, what, numbers)
    give_order(folder, what, numbers, who=own_name())
    place, running, done = size_of_orders(folder), bool(status.live), False
    until_s = time.monotonic() + (WAIT_S if running else 0.0)
    while not done and time.monotonic() < until_s:
        progress("Waiting for the pool", 1.0 - (until_s - time.monotonic()) / WAIT_S)
        time.sleep(_LOOK_S)
        status = read_status(folder)
        done = _is_done(status, what, trials, place)
        running = bool(status.live)
        if not running:
            break
    return GivenOrder(folder=str(folder), order=what, trials=tuple(trials), running=running, done=done)


def _check(status: PoolStatus, what: str, numbers: Sequence[int]) -> list[int]:
    """Return the trials that an order is of."""
    chosen = [status.trial(number) for number in numbers]
    if what == STOP:
        if not numbers and not status.live:
            raise UsageError(f"No pool runs in {status.folder}.", hint="Give the numbers of trials to end these.")
        for trial in chosen:
            if trial.ended:
                raise UsageError(f"Trial {trial.number} has ended: {trial.state}.", hint="See it: helios pool show")
        return list(numbers)
    for trial in chosen:
        if trial.state not in MAY_RUN_AGAIN:
            raise UsageError(
                f"Trial {trial.number} cannot be run again, since it is {trial.state}.",
                hint="Those that failed or diverged can: helios pool status",
            )
    found = list(numbers) or [trial.number for trial in status.failed]
    if not found:
        raise UsageError(f"No trial of {status.folder.name} has failed.", hint="Name those that diverged by number.")
    return found


def _is_done(status: PoolStatus, what: str, trials: Sequence[int], place: int) -> bool:
    if what == RETRY:
        return status.records.orders >= place
    if trials:
        return all(status.trial(number).ended for number in trials)
    return not status.live or all(shown.get("hold") for shown in status.live.values())
