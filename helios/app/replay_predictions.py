"""Predictions along a replay, each from what was known then.

Only ended jobs are learned from, and each job is predicted as it comes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.ports import RUN_TIME, ReplayPredictor
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.simulate import LongestWaits, Predictions
from helios.simulate.ageing import EVERY_S
from helios.simulate.core.state import NEVER
from helios.simulate.simulated_cluster import SimulatedCluster


class NamedPredictor(ReplayPredictor, Protocol):
    """Predictor that says which model or fallback made each prediction.

    Attributes
    ----------
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` predicted each job; -1: not predicted yet. The array object stays the same.
    sources : list of str
        Model ids and fallbacks.
    """

    source: NDArray[np.int16]
    sources: list[str]


@cached_jit
def _take_anew(run_times: Any, jobs: Any, predicted: Any, source: Any, before: Any) -> Any:
    """Take new predictions, and return the jobs whose predictions have changed.

    ``before`` is what predicted them before.
    """
    anew, n = np.empty(len(jobs), dtype=np.int64), 0
    for place in range(len(jobs)):
        job, other = jobs[place], source[jobs[place]] != before[place]
        for column in range(run_times.shape[1]):
            other |= run_times[job, column] != predicted[place, column]
            run_times[job, column] = predicted[place, column]
        if other:
            anew[n] = job
            n += 1
    return anew[:n]


class ReplayPredictions:
    """Predictions of a replay, and the own order's longest wait.

    A job is predicted at its submission, and again while it waits.

    Parameters
    ----------
    cluster : SimulatedCluster
    predictor : NamedPredictor
    predict_again_s : int, optional
        Time between two predictions of all pending jobs, s; None: they are not predicted again.
    own_order : LongestWaits, optional
        Longest wait so far of these jobs under the site's own order; None: not known.

    Attributes
    ----------
    predictions : Predictions
        What is predicted of each job now.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        predictor: NamedPredictor,
        predict_again_s: int | None,
        own_order: LongestWaits | None = None,
    ) -> None:
        self._cluster, self._predictor, self._period_s = cluster, predictor, predict_again_s
        self._own_order = own_order
        self._n_predicted = self._n_reported = 0
        self._run_times = np.full((len(cluster.started_s), len(RUN_TIME)), np.nan)
        self.predictions = Predictions(run_times=self._run_times, source=predictor.source, sources=predictor.sources)
        self._predict_at_s = self._own_order_at_s = NEVER

    @property
    def is_begun(self) -> bool:
        """Whether a job has been predicted."""
        return self._n_predicted > 0

    def due_s(self) -> dict[str, int]:
        """Return the times of the next updates, as ``advance_to_decision`` takes them."""
        again_every_s = self._period_s or NEVER
        return {"before_s": self._own_order_at_s, "again_s": self._predict_at_s, "again_every_s": again_every_s}

    def put_off(self, again_s: int) -> None:
        """Put the next predictions of pending jobs off, as nobody waited."""
        self._predict_at_s = again_s

    def follow(self) -> None:
        """Predict the jobs that have arrived since the last call."""
        arrived, now_s = self._cluster.arrived, self._cluster.now_s
        if arrived == self._n_predicted:
            return
        if self._n_predicted == 0:
            self._predict_at_s = NEVER if self._period_s is None else now_s + self._period_s
            self._follow_own_order(now_s)
        jobs = np.arange(self._n_predicted, arrived)
        self._run_times[self._n_predicted : arrived] = self._submitted(jobs)
        self._n_predicted = arrived

    def _submitted(self, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Predict each of consecutive ``jobs`` from what was known when it was submitted."""
        submitted_s = self._cluster.submitted_s[jobs]
        if isinstance(self._predictor, ReplayTrainedPredictor):
            ended, ended_s = self._unreported()
            run_times, told = self._predictor.follow(jobs, submitted_s, ended=ended, ended_s=ended_s)
            self._n_reported += told
            return run_times
        rows = []
        for moment_s in np.unique(submitted_s).tolist():
            self._report_ended(moment_s)
            rows.append(self._predictor.submitted(jobs[submitted_s == moment_s], moment_s))
        return np.concatenate(rows)

    def update_due(self, now_s: int) -> NDArray[np.int64]:
        """Make the updates that are due at ``now_s``.

        Returns the pending jobs whose predictions or longest wait under the site's own order changed.
        """
        jobs = self._cluster.waiting()
        anew = self._predict_again(jobs, now_s) if now_s >= self._predict_at_s else jobs[:0]
        return jobs if now_s >= self._own_order_at_s and self._follow_own_order(now_s) else anew

    def _predict_again(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.int64]:
        self._predict_at_s = now_s + (self._period_s or NEVER)
        self._report_ended()
        if not len(jobs):
            return jobs
        source = self._predictor.source[jobs]
        running, since_s = self._cluster.running()
        run_times = self._predictor.waiting(jobs, now_s, running=running, since_s=since_s)
        anew: NDArray[np.int64] = _take_anew(self._run_times, jobs, run_times, self._predictor.source, source)
        return anew

    def _follow_own_order(self, now_s: int) -> bool:
        """Update the longest own wait, and return whether it changed."""
        if self._own_order is None:
            return False
        self._own_order_at_s = now_s + EVERY_S
        before_s, after_s = float(self.predictions.longest_own_wait_s), float(self._own_order.at(now_s))
        self.predictions.longest_own_wait_s[...] = after_s
        return before_s != after_s

    def _report_ended(self, until_s: int = NEVER) -> None:
        fresh, ended_s = self._unreported()
        n = int(np.searchsorted(ended_s, until_s, side="right"))
        if n:
            self._predictor.ended(fresh[:n], ended_s[:n])
            self._n_reported += n

    def _unreported(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ended jobs unknown to the predictor, and their ends."""
        fresh = self._cluster.ended[self._n_reported :].copy()
        return fresh, self._cluster.ended_s[fresh]
