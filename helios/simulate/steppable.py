"""What services are played on: a cluster made of arithmetic that goes on from one question to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from helios.actions import JobAction, Outcome, Reorder, Result
from helios.simulate.core.state import NEVER
from helios.simulate.snapshot import Jobs, LazySnapshot, PendingRows, Predictions


class StopPoint(NamedTuple):
    """Where a :class:`SteppableReplay` stopped.

    ``before`` the ends and arrivals of ``moment_s``, or after them and before their pass; there is a ``choice`` where
    something may start at it.
    """

    moment_s: int
    before: bool
    choice: bool


class SteppableReplay(Protocol):
    """A replay that stops where somebody is to be asked; :class:`helios.simulate.SimCluster` says what each means."""

    @property
    def now_s(self) -> int:
        """The clock, s since the epoch."""
        ...

    @property
    def arrived(self) -> int:
        """How many jobs were submitted so far: the first ones of the workload."""
        ...

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs that have ended, in order of time."""
        ...

    @property
    def started_s(self) -> Jobs:
        """Start of each job, s since the epoch; ``NEVER`` where it has not started."""
        ...

    @property
    def ended_s(self) -> Jobs:
        """End of each job; meaningless where it has not ended."""
        ...

    def go_on(
        self, *, asks_from_s: int = NEVER, alarm_s: int = NEVER, alarm_from_s: int = NEVER, before_s: int = NEVER
    ) -> StopPoint | None:
        """Let time pass up to the next moment at which jobs arrive, or somebody is to be asked; None: all is over."""
        ...

    def look(self, predictions: Predictions | None) -> LazySnapshot:
        """Look, with predictions already in the columns of the pending jobs."""
        ...

    def rows(self, jobs: Jobs, predictions: Predictions | None) -> PendingRows:
        """Look at pending ``jobs`` alone, by position."""
        ...

    def waiting(self) -> Jobs:
        """Return the pending jobs by position, ascending."""
        ...

    def running(self) -> tuple[Jobs, Jobs]:
        """Return the jobs that run by position, in no order, and since when, s since the epoch."""
        ...

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, and say what became of each job that an action names."""
        ...

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that an order names by position, NOBODY (-1) where there is none, and their urgencies."""
        ...

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position, NaN: of none; say how many jobs ended in each way."""
        ...
