"""Queries of a replay to a predictor, and what follows from the answers.

The order and the backfill that plans with estimates use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.ports import RUN_TIME, Order, ReplayPredictor
from helios.simulate.core.events import put_anew
from helios.simulate.core.state import NEVER, EngineState
from helios.simulate.workload import Workload

LEAST_KEY = 1.0
"""Least key of which a logarithm is taken, such as one GPU second."""
LONGEST_ESTIMATE_S = 2**53  # beyond any run; keeps start + estimate within 64 bits


@dataclass(slots=True, eq=False, kw_only=True)
class JobKeys:
    """Queue keys and planned run times of the jobs of a replay.

    ``keys`` and ``plans`` are columns of the state. The order goes by ``believed_s``, the column ``reads`` of a
    prediction. Where jobs age, a key is ln(what the order returns) + submission / ``tau_s``, the ageing time of each
    job; None: they do not. ``ranked`` and ``planned`` are true where keys and plans need no prediction.
    """

    workload: Workload
    order: Order
    weights: NDArray[np.float64]
    keys: NDArray[np.float64]
    plans: NDArray[np.int64]
    believed_s: NDArray[np.float64]
    reads: int
    tau_s: NDArray[np.float64] | None
    ranked: bool
    planned: bool

    def predict(self, predictor: ReplayPredictor, jobs: NDArray[np.int64], now: int) -> None:
        """Fill in the missing keys and plans of ``jobs``.

        They are submitted ``now`` and are consecutive in the workload.
        """
        quantiles = self._checked(predictor.submitted(jobs, now), jobs)
        these = slice(int(jobs[0]), int(jobs[-1]) + 1)
        if not self.planned:
            self.plans[these] = self._planned(quantiles)
        if not self.ranked:
            self._believe(these, quantiles)
            self.rank(these)

    def queue_anew(
        self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return new keys and plans of pending ``jobs``.

        A job that was promoted for waiting keeps its key.
        """
        self._checked(quantiles, jobs)
        keys, plans = self.keys[jobs], self.plans[jobs]
        if not self.planned:
            plans = self._planned(quantiles)
        if not self.ranked:
            self._believe(jobs, quantiles)
            keys = np.where(np.isneginf(keys), keys, self._keys(jobs))
        return keys, plans

    def rank(self, these: slice) -> None:
        """Compute the keys of ``these`` jobs by the order."""
        self.keys[these] = self._keys(these)

    def _believe(self, jobs: slice | NDArray[np.int64], quantiles: NDArray[np.float64]) -> None:
        self.believed_s[jobs] = quantiles[:, self.reads]

    def age(self, jobs: NDArray[np.int64], tau_s: float) -> NDArray[np.float64]:
        """Set the ageing time of pending ``jobs`` and return their keys.

        A job that was promoted for waiting keeps its key.
        """
        if self.tau_s is not None:
            self.tau_s[jobs] = tau_s
        keys = self.keys[jobs]
        return np.where(np.isneginf(keys), keys, self._keys(jobs))

    def _keys(self, these: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        keys = self.order(
            submitted_s=self.workload.submitted_s[these],
            gpus=self.workload.order_gpus[these],
            run_time_s=self.believed_s[these],
        )
        if np.isnan(keys).any():
            raise UsageError(
                "the queue order goes by run time, and some jobs have none",
                hint="Give run_time_s for every job, or a predictor.",
            )
        if self.tau_s is None:
            return keys
        age_s = self.workload.submitted_s[these] - self.workload.submitted_s[0]
        aged: NDArray[np.float64] = np.log(np.maximum(keys, LEAST_KEY)) + age_s / self.tau_s[these]
        return aged

    def _planned(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.ceil(quantiles[:, : len(self.weights)] @ self.weights).clip(0, LONGEST_ESTIMATE_S).astype(np.int64)

    def _checked(self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        if quantiles.shape != (len(jobs), len(RUN_TIME)) or not np.isfinite(quantiles).all():
            raise UsageError(
                f"the predictor gave no finite prediction for job {self.workload.job_id[jobs[0]]} "
                "or one asked about with it"
            )
        return quantiles


class PendingIndex:
    """Positions of the jobs that wait, kept up to date while a replay goes on.

    Parameters
    ----------
    started_s : int64 array of shape (n_jobs,)
        Start of each job; ``NEVER`` where it has not started.
    """

    def __init__(self, started_s: NDArray[np.int64]) -> None:
        self._started_s, self._arrived = started_s, 0
        self._waiting = np.empty(0, dtype=np.int64)

    def waiting(self, arrived: int) -> NDArray[np.int64]:
        """Return the positions, ascending, of those of the first ``arrived`` jobs that wait."""
        jobs = self._waiting
        if arrived > self._arrived:
            jobs = np.concatenate((jobs, np.arange(self._arrived, arrived)))
            self._arrived = arrived
        self._waiting = jobs[self._started_s[jobs] == NEVER]
        return self._waiting


class PredictorQueries:
    """Queries to the predictor in the timeline of a replay.

    Before each query the predictor is given the jobs that have ended since the last.

    Attributes
    ----------
    due_s : int
        When to ask again about the pending jobs, s since the epoch. NEVER: not before the first submission, or not at
        all.
    """

    def __init__(
        self, state: EngineState, scores: JobKeys, predictor: ReplayPredictor, predict_again_s: int | None
    ) -> None:
        self.due_s = NEVER
        self._state, self._scores, self._predictor = state, scores, predictor
        self._again_s = predict_again_s
        self._told = 0
        self._index = PendingIndex(state.jobs["started_s"])

    def ask(self, these: slice, now: int) -> None:
        """Ask about jobs submitted ``now``, and about pending ones if that is due."""
        self._tell()
        if self._again_s is not None and now >= self.due_s:
            self.ask_again(now)
        elif self._again_s is not None and self.due_s == NEVER:
            self.due_s = now + self._again_s
        self._scores.predict(self._predictor, np.arange(these.start, these.stop), now)

    def ask_again(self, now: int) -> None:
        """Ask about all pending jobs and queue them anew by the answers."""
        self.due_s = now + (self._again_s or NEVER)
        self._tell()
        if len(jobs := self._index.waiting(int(self._state.clock["arrived"][0]))):
            running = self._state.ends[: self._state.clock["running"][0]].astype(np.int64)
            since_s = self._state.jobs["resumed_s"][running]
            quantiles = self._predictor.waiting(jobs, now, running=running, since_s=since_s)
            keys, plans = self._scores.queue_anew(quantiles, jobs)
            put_anew(self._state, jobs, keys, plans)

    def _tell(self) -> None:
        ended = int(self._state.clock["ended"][0])
        if ended > self._told:
            fresh = self._state.ended[self._told : ended].astype(np.int64)
            self._predictor.ended(fresh, self._state.jobs["ends_s"][fresh])
            self._told = ended
