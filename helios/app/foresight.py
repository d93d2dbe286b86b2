"""What is predicted of the jobs of a replay as it goes on, causally: taught by what has ended, asked as they come."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
    """Keeps what is predicted of each job: asked at its submission, and again while it waits.

    Parameters
    ----------
    predict_again_s : int, optional
        Time between two questions about all that waits, s; None: there is none.

    Attributes
    ----------
    predictions : Predictions
        What is expected of each job now.
    again_s : int
        When what waits is to be asked about again, s since the epoch; NEVER: not before a job was submitted, or never.
    """

    def __init__(self, cluster: Playable, predictor: NamedPredictor, predict_again_s: int | None) -> None:
        self._cluster, self._predictor, self._period_s = cluster, predictor, predict_again_s
        self._n_asked = self._n_told = 0
        self._quantiles_s = np.full((len(cluster.started_s), 3), np.nan)
        self.predictions = Predictions(
            quantiles_s=self._quantiles_s, source=predictor.source, sources=predictor.sources
        )
        self.again_s = NEVER

    def follow(self) -> None:
        """Predict what has arrived since the last time, now."""
        arrived, now_s = self._cluster.arrived, self._cluster.now_s
        if arrived == self._n_asked:
            return
        if self._period_s is not None and self.again_s == NEVER:
            self.again_s = now_s + self._period_s
        self._tell()
        jobs = np.arange(self._n_asked, arrived)
        self._quantiles_s[self._n_asked : arrived] = self._predictor.submitted(jobs, now_s)
        self._n_asked = arrived

    def ask_again(self, now_s: int) -> NDArray[np.int64]:
        """Predict all that waits again, as of ``now_s``; return the jobs of which something else is expected."""
        self.again_s = now_s + (self._period_s or NEVER)
        self._tell()
        jobs = self._cluster.waiting()
        if not len(jobs):
            return jobs
        source = self._predictor.source[jobs]
        running, since_s = self._cluster.running()
        quantiles_s = self._predictor.waiting(jobs, now_s, running=running, since_s=since_s)
        other = (quantiles_s != self._quantiles_s[jobs]).any(axis=1) | (source != self._predictor.source[jobs])
        self._quantiles_s[jobs] = quantiles_s
        anew: NDArray[np.int64] = jobs[other]
        return anew

    def _tell(self) -> None:
        ended = self._cluster.ended
        if len(ended) > self._n_told:
            fresh = ended[self._n_told :].copy()
            self._predictor.ended(fresh, self._cluster.ended_s[fresh])
            self._n_told = len(ended)
