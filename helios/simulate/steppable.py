"""Interface of a simulated cluster on which services are replayed.

Its clock goes on from one service cycle to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from helios.actions import JobAction, Outcome, Reorder, Result
from helios.simulate.core.state import NEVER
from helios.simulate.snapshot import Jobs, LazySnapshot, PendingRows, Predictions


class StopPoint(NamedTuple):
    """Moment at which a ``SteppableReplay`` stopped.

    Attributes
    ----------
    moment_s : int
        The moment, s since the epoch.
    before : bool
        True: before the ends and arrivals of ``moment_s``. False: after them, and before the pass that they make due.
    choice : bool
        Whether a job may start at it.
    """

    moment_s: int
    before: bool
    choice: bool


class SteppableReplay(Protocol):
    """Replay that stops wherever a service may have to decide.

    :class:`helios.simulate.SimCluster` describes each member in full.
    """

    @property
    def now_s(self) -> int:
        """The clock, s since the epoch."""
        ...

    @property
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """
        ...

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs that have ended, in order of time."""
        ...

    @property
    def started_s(self) -> Jobs:
        """Start of each job, s since the epoch.

        ``NEVER`` where it has not started.
        """
        ...

    @property
    def ended_s(self) -> Jobs:
        """End of each job, s since the epoch.

        Meaningless where it has not ended.
        """
        ...

    def go_on(
        self, *, asks_from_s: int = NEVER, alarm_s: int = NEVER, alarm_from_s: int = NEVER, before_s: int = NEVER
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        That is a moment at which jobs arrive or a job may start. None: nothing is left to happen.
        """
        ...

    def look(self, predictions: Predictions | None) -> LazySnapshot:
        """Return a snapshot with predictions in the rows of pending jobs."""
        ...

    def rows(self, jobs: Jobs, predictions: Predictions | None) -> PendingRows:
        """Return the rows of pending ``jobs``, given by position."""
        ...

    def waiting(self) -> Jobs:
        """Return the positions of the pending jobs, ascending."""
        ...

    def running(self) -> tuple[Jobs, Jobs]:
        """Return the running jobs and when each began to run.

        Jobs are positions, in no order. Times are in s since the epoch.
        """
        ...

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Apply actions and return an outcome for each job that they name."""
        ...

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that a new order names, and their urgencies.

        Jobs are positions; NOBODY (-1): there is no job of that id.
        """
        ...

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        ...
