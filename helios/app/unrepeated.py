"""A predictor for drawn weeks, which meets each job once, however often its week was drawn.

The second time that a week is laid down, a predictor that had seen the first would know these very jobs: on Venus its
rank correlation is .46 on them, .20 on jobs that it has not met (benchmarks/sweep.py), and what orders by predictions
would look better than it is. So copies teach nothing, and a copy is believed to run as long as its first was.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.ports import ReplayPredictor


class Unrepeated:
    """A :class:`helios.ports.ReplayPredictor` before one that knows the first of each job only.

    Parameters
    ----------
    inner : ReplayPredictor
        Names jobs by their position among the first ones.
    first : int64 array of shape (n_jobs,)
        For each job of the workload the position there of the one that it is a copy of; its own where it is none.
    """

    def __init__(self, inner: ReplayPredictor, first: NDArray[np.int64]) -> None:
        self._inner = inner
        self._first = first
        self._is_first = first == np.arange(len(first))
        self._position = np.cumsum(self._is_first) - 1
        self._said = np.full((len(first), 3), np.nan)

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Tell the first ones' ends; see ``ReplayPredictor``."""
        known = self._is_first[jobs]
        self._inner.ended(self._position[jobs[known]], ended_s[known])

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the first ones, and repeat for copies what was said of theirs; see ``ReplayPredictor``."""
        new = jobs[self._is_first[jobs]]
        if len(new):
            self._said[new] = self._inner.submitted(self._position[new], now_s)
        return self._said[self._first[jobs]]

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],
        since_s: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Predict the first ones again; of copies nothing is learned while they wait; see ``ReplayPredictor``."""
        quantiles = self._said[self._first[jobs]]
        new, known = self._is_first[jobs], self._is_first[running]
        if new.any():
            quantiles[new] = self._inner.waiting(
                self._position[jobs[new]], now_s, running=self._position[running[known]], since_s=since_s[known]
            )
        return quantiles
