"""The sockets: every interface that has, or is meant to have, more than one implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from helios.model import Batch


class Source(Protocol):
    """A history file of one format, or a live accounting database."""

    def read(self) -> Iterator[Batch]:
        """Yield the history in stretches, oldest line first."""
        ...


class ReplayPredictor(Protocol):
    """Predicts run times inside a replayed timeline, from what has ended in that timeline.

    Jobs are named by their position in the replayed workload. Calls come in the order of time.
    """

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Take note that ``jobs`` ended at ``ended_s`` (same length, ascending, s since the epoch)."""
        ...

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, which are submitted at ``now_s``.

        Only jobs that ended strictly before ``now_s`` may be used.

        Returns
        -------
        array of shape (len(jobs), 3)
            p10, p50 and p90 of the run time, s, ascending in each row.
        """
        ...


class Order(Protocol):
    """A queue order: smaller keys first, ties by submit time, then job id."""

    def __call__(
        self, *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return one key for each job, from the run time the policy believes in (true or predicted)."""
        ...


class Progress(Protocol):
    """Hears how far a long piece of work is; the command line draws a bar, a test or a service nothing."""

    def __call__(self, stage: str, done: float) -> None:
        """Take note that ``stage`` (a phrase for a person) is done to the fraction ``done``, 0 to 1."""
        ...


def in_silence(stage: str, done: float) -> None:
    """Be a :class:`Progress` that tells nobody."""
