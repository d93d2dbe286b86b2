"""What is predicted of the jobs of a replay as it goes on, causally: taught by what has ended, asked as they come."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from helios.backlog import EVERY_S, EXPECTED, Reckoning
from helios.ports import ReplayPredictor
from helios.simulate import Predictions
from helios.simulate.playable import Playable
from helios.simulate.state import NEVER


class NamedPredictor(ReplayPredictor, Protocol):
    """A predictor that says who in it predicted: a model, or a fallback.

    Attributes
    ----------
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` predicted each job; -1: not asked yet. The same array all along.
    sources : list of str
        Model ids and fallbacks.
    """

    source: NDArray[np.int16]
    sources: list[str]


class Foresight:
    """Keeps what is predicted of each job, asked at its submission and again while it waits, and the longest backlog.

    Parameters
    ----------
    predict_again_s : int, optional
        Time between two questions about all that waits, s; None: there is none.
    reckoning : Reckoning, optional
        Of the backlog, each :data:`helios.backlog.EVERY_S`; None: nobody wants to know.

    Attributes
    ----------
    predictions : Predictions
        What is expected of each job now.
    """

    def __init__(
        self,
        cluster: Playable,
        predictor: NamedPredictor,
        predict_again_s: int | None,
        reckoning: Reckoning | None = None,
    ) -> None:
        self._cluster, self._predictor, self._period_s = cluster, predictor, predict_again_s
        self._reckoning = reckoning
        self._n_asked = self._n_told = self._n_reckoned = 0
        self._quantiles_s = np.full((len(cluster.started_s), 3), np.nan)
        self.predictions = Predictions(
            quantiles_s=self._quantiles_s, source=predictor.source, sources=predictor.sources
        )
        self._ask_s = self._look_s = NEVER

    @property
    def again_s(self) -> int:
        """When what waits is to be looked at again, s since the epoch; NEVER: not before a job came, or never."""
        return min(self._ask_s, self._look_s)

    def follow(self) -> None:
        """Predict what has arrived since the last time, now."""
        arrived, now_s = self._cluster.arrived, self._cluster.now_s
        if arrived == self._n_asked:
            return
        if self._n_asked == 0:
            self._ask_s = NEVER if self._period_s is None else now_s + self._period_s
            self._look_s = NEVER if self._reckoning is None else now_s + EVERY_S
        self._tell()
        jobs = np.arange(self._n_asked, arrived)
        self._quantiles_s[self._n_asked : arrived] = self._predictor.submitted(jobs, now_s)
        self._n_asked = arrived

    def look_again(self, now_s: int) -> NDArray[np.int64]:
        """Do what is due ``now_s``; return the jobs, of those that wait, of which something else is known."""
        jobs = self._cluster.waiting()
        anew = self._ask_again(jobs, now_s) if now_s >= self._ask_s else jobs[:0]
        return jobs if now_s >= self._look_s and self._reckon(jobs, now_s) else anew

    def _ask_again(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.int64]:
        self._ask_s = now_s + (self._period_s or NEVER)
        self._tell()
        if not len(jobs):
            return jobs
        source = self._predictor.source[jobs]
        running, since_s = self._cluster.running()
        quantiles_s = self._predictor.waiting(jobs, now_s, running=running, since_s=since_s)
        other = (quantiles_s != self._quantiles_s[jobs]).any(axis=1) | (source != self._predictor.source[jobs])
        self._quantiles_s[jobs] = quantiles_s
        anew: NDArray[np.int64] = jobs[other]
        return anew

    def _reckon(self, jobs: NDArray[np.int64], now_s: int) -> bool:
        """Look at the backlog before which ``jobs`` wait, and say whether the longest is another."""
        self._look_s = now_s + EVERY_S
        if self._reckoning is None:
            return False
        ended = self._cluster.ended[self._n_reckoned :]
        self._n_reckoned += len(ended)
        running, since_s = self._cluster.running()
        before_s = float(self.predictions.longest_backlog_s)
        after_s = self._reckoning.look(
            arrived=self._cluster.arrived,
            ended=(ended, self._cluster.ended_s[ended] - self._cluster.started_s[ended]),
            waiting=(jobs, self._quantiles_s[jobs] @ np.array(EXPECTED)),
            running=(running, now_s - since_s),
        )
        self.predictions.longest_backlog_s[...] = after_s
        return before_s != after_s

    def _tell(self) -> None:
        ended = self._cluster.ended
        if len(ended) > self._n_told:
            fresh = ended[self._n_told :].copy()
            self._predictor.ended(fresh, self._cluster.ended_s[fresh])
            self._n_told = len(ended)
