"""Wait bound inside a replay.

Jobs that have waited longer than the bound go to the front, first come, first served. An order by predicted run time
starves jobs that are predicted to be long. A bound that depends on nothing but waiting holds whatever is predicted; one
by a score would fail where the score is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.jit import kernel
from helios.simulate.core.queue import push, remove
from helios.simulate.core.state import NEVER, EngineState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitBound:
    """Wait bound as a step function of time.

    A job that has waited longer goes to the front of its queue.

    Parameters
    ----------
    at_s : int64 array of shape (n_steps,)
        When each bound comes into force, s since the epoch, ascending. Before the first no job is promoted.
    patience_s : int64 array of shape (n_steps,)
        The bound from then on, s; not negative. A job is promoted once it has waited longer.

    Raises
    ------
    UsageError
        The arrays differ in length, times descend, or a bound is negative.
    """

    at_s: NDArray[np.int64]
    patience_s: NDArray[np.int64]

    def __post_init__(self) -> None:
        descends = (self.at_s[1:] < self.at_s[:-1]).any()
        if self.at_s.shape != self.patience_s.shape or descends or (self.patience_s < 0).any():
            raise UsageError(
                "The bounds on waiting are not a step function of time.",
                hint="Give as many bounds, none negative, as times, and the times in ascending order.",
            )

    @classmethod
    def constant(cls, patience_s: int) -> WaitBound:
        """Return a bound that is the same at all times."""
        return cls(at_s=np.array([-NEVER]), patience_s=np.array([patience_s]))


@kernel
def promote_overdue(state: EngineState, partition: int, now: int) -> None:
    """Move the jobs that have waited longer than the bound to the front.

    Jobs become overdue in the order in which they were submitted, so each is checked once.
    """
    home, patience_s = state.partitions[partition], _patience_s(state, now)
    while home.next_turn < home.end_turn:
        job = state.turns[home.next_turn]
        if now - state.jobs[job].submitted_s <= patience_s:
            return
        if state.jobs[job].started_s == NEVER:
            remove(state, job)
            state.pending[job].key = -np.inf
            push(state, job)
        home.next_turn += 1


@kernel
def _patience_s(state: EngineState, now: int) -> int:
    clock, guard = state.clock[0], state.guard
    while clock.bounds < len(guard) and guard[clock.bounds].at_s <= now:
        clock.bounds += 1
    return int(guard[clock.bounds - 1].patience_s) if clock.bounds > 0 else NEVER
