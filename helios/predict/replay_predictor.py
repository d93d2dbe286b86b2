"""Predictions inside a replay.

Only jobs that have ended in the replay are learned from.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS
from helios.predict.bursts import BurstUpdate
from helios.predict.calibration import calibrate_again, calibrate_submitted, empty_intervals, learn_ends
from helios.predict.causal_stats import COLUMN, FEATURES, NEVER_S, empty_stats, refresh_features, replay_events
from helios.predict.duration import DurationModel, HistoryPredictor, fit
from helios.predict.job_table import JobTable, event_order

FIRST_FIT_JOBS = 1_000


class Forecaster(Protocol):
    """Interface for predicting run times from features alone."""

    @property
    def model_id(self) -> str:
        """Name of the predictor in its predictions."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return p10, p50 and p90 of the run time, s, for each row of ``FEATURES``."""
        ...


class UserLast:
    """Baseline that repeats the user's last ended job.

    For a user without one it predicts the mean of all jobs.
    """

    model_id = "user_last"

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the same number three times for each row of ``FEATURES``, s."""
        last = features[:, COLUMN.user_last_1].astype(np.float64)
        run_s = np.expm1(np.where(np.isnan(last), features[:, COLUMN.global_mean], last))
        return np.repeat(run_s[:, None], 3, axis=1)


class ReplayTrainedPredictor:
    """``ReplayPredictor`` that learns during the replay.

    It begins with ``model``, or with shrinkage without a model. With ``refit`` it trains anew when ``FIRST_FIT_JOBS``
    jobs have ended (those of ``history`` included), and at every doubling after. With ``refit_every_s`` it also does so
    when that time has passed since the last training, as a nightly task would.

    Parameters
    ----------
    jobs : DataFrame
        The workload to be replayed, columns of ``JOBS``, in workload order; jobs are named by position.
        Times and states of a job are not used before :meth:`ended` is called for it. Its run time is then the recorded
        one.
    history : DataFrame, optional
        Earlier jobs, in submission order. They end as recorded, also while the replay runs.
    model : DurationModel or another Forecaster, optional
        Trained on jobs that ended before the replay begins.
    refit_every_s : int, optional
        Longest time that a model serves, s. None to train anew at doublings only.

    Attributes
    ----------
    source : int16 array of shape (len(jobs),)
        Which of ``sources`` predicted each job; -1 for a job without a prediction so far.
    sources : list of str
        "shrinkage", then model ids.

    Raises
    ------
    FrameInvalid
        Jobs are not in submission order, or a job of ``history`` was submitted after the first of ``jobs``.
    """

    def __init__(
        self,
        jobs: pd.DataFrame,
        *,
        history: pd.DataFrame | None = None,
        model: Forecaster | None = None,
        refit: bool = True,
        refit_every_s: int | None = None,
        seed: int = 0,
        timezone: str = "UTC",
    ) -> None:
        table = JobTable.from_frame(_one_after_the_other(history, jobs), timezone=timezone)
        self._first = table.n - len(jobs)
        # The replay may submit a job at another moment than the record says.
        self._events = event_order(table)._replace(submitted_s=table.submitted_s.copy())
        self._history = empty_stats(self._events)
        recorded = table.ends()
        self._recorded = recorded[recorded < self._first]
        self._recorded_s = table.ended_s[self._recorded]
        self._next_recorded = 0
        self._told = np.empty(len(jobs), dtype=np.int64)
        self._told_s = np.empty(len(jobs), dtype=np.int64)
        self._n_told = self._next_told = 0
        self._learned = np.empty(table.n, dtype=np.int64)
        self._n_learned = 0
        self._known_log_run = np.full(table.n, np.nan)
        self._siblings = BurstUpdate(self._events.groups)
        taught = model if isinstance(model, DurationModel) else None
        self._seed, self._refit, self._refit_every_s = seed, refit, refit_every_s
        self._fitted_s = int(taught.trained_until.timestamp()) if taught else None
        self._cluster = taught.cluster if taught else "replay"
        self._trust = taught.trust if taught else 1.0
        self._predictor: Forecaster = model or HistoryPredictor()
        self._intervals = empty_intervals(self._events.groups, start=taught.calibration if taught else None)
        self._next_fit = max(FIRST_FIT_JOBS, 2 * taught.jobs if taught else 0)
        self.features = np.full((table.n, len(FEATURES)), np.nan, dtype=np.float32)
        self.sources = [HistoryPredictor().model_id] + ([model.model_id] if model else [])
        self.source = np.full(len(jobs), -1, dtype=np.int16)
        self._replay_history()

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Add that ``jobs`` ended at ``ended_s``.

        Both have the same length. Times ascend, s since the epoch.
        """
        told = slice(self._n_told, self._n_told + len(jobs))
        self._told[told] = jobs
        self._told[told] += self._first
        self._told_s[told] = ended_s
        self._n_told = told.stop

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, submitted at ``now_s``.

        See ``ReplayPredictor``.
        """
        rows = jobs + self._first
        self._events.submitted_s[rows] = now_s
        ends, ends_s = self._due(now_s)
        self._note_learned(ends)
        replay_events(self._history, self._events, rows, ends, ends_s, 0, self.features)
        if self._refit and self._is_outgrown(now_s):
            self._fit(now_s)
        self.source[jobs] = len(self.sources) - 1
        quantiles = self._predictor.predict(self.features[rows])
        calibrate_submitted(self._intervals, rows, now_s, self.features[rows], quantiles)
        return quantiles

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],
        since_s: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Predict again ``jobs`` that still wait at ``now_s``.

        See ``ReplayPredictor``.

        Jobs that have ended since their submission are used, and the ages of running jobs of the same burst. Features
        for the training of later models stay as they were at submission.
        """
        rows = jobs + self._first
        ends, ends_s = self._due(now_s)
        self._note_learned(ends)
        as_submitted = self.features[rows]
        refresh_features(self._history, self._events, rows, now_s, ends, ends_s, 0, self.features)
        as_of_now = self.features[rows]
        self.features[rows] = as_submitted
        self.source[jobs] = len(self.sources) - 1
        quantiles = self._predictor.predict(as_of_now)
        calibrate_again(self._intervals, rows, as_of_now, quantiles)
        since = np.full(len(self._known_log_run), NEVER_S)
        since[running + self._first] = since_s
        return self._siblings.revised(
            quantiles,
            rows,
            now_s=now_s,
            submitted_s=self._events.submitted_s,
            since_s=since,
            log_run=self._known_log_run,
        )

    def _is_outgrown(self, now_s: int) -> bool:
        """Return whether a new training is due, by ended jobs or by time."""
        if self._n_learned >= self._next_fit:
            return True
        if self._refit_every_s is None or self._fitted_s is None:
            return False
        return now_s >= self._fitted_s + self._refit_every_s

    def _replay_history(self) -> None:
        rows = np.arange(self._first)
        self._next_recorded = replay_events(
            self._history, self._events, rows, self._recorded, self._recorded_s, 0, self.features
        )
        self._note_learned(self._recorded[: self._next_recorded])

    def _due(self, now_s: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ends strictly before ``now_s`` that are not yet learned.

        They are ordered by time, then job.
        """
        told = self._next_told
        self._next_told += int(np.searchsorted(self._told_s[told : self._n_told], now_s))
        recorded = self._next_recorded
        self._next_recorded += int(np.searchsorted(self._recorded_s[recorded:], now_s))
        ends = np.concatenate((self._recorded[recorded : self._next_recorded], self._told[told : self._next_told]))
        ends_s = np.concatenate(
            (self._recorded_s[recorded : self._next_recorded], self._told_s[told : self._next_told])
        )
        if len(ends) < 2:
            return ends, ends_s
        order = np.lexsort((ends, ends_s))
        return ends[order], ends_s[order]

    def _note_learned(self, ends: NDArray[np.int64]) -> None:
        if len(ends):
            learn_ends(self._intervals, ends, self._events.log_run)
            self._known_log_run[ends] = self._events.log_run[ends]
            timed = ends[~np.isnan(self._events.log_run[ends])]
            self._learned[self._n_learned : self._n_learned + len(timed)] = timed
            self._n_learned += len(timed)

    def _fit(self, now_s: int) -> None:
        grown = fit(
            self._learned[: self._n_learned],
            features=self.features,
            groups=self._events.groups,
            submitted_s=self._events.submitted_s,
            log_run=self._events.log_run,
            cluster=self._cluster,
            trained_until=datetime.fromtimestamp(now_s, UTC),
            seed=self._seed,
        )
        self._predictor = replace(grown, trust=self._trust)
        self.sources.append(self._predictor.model_id)
        self._fitted_s = now_s
        self._next_fit = 2 * self._n_learned


def _one_after_the_other(history: pd.DataFrame | None, jobs: pd.DataFrame) -> pd.DataFrame:
    if history is None or history.empty:
        return jobs
    return JOBS.conform(pd.concat([history, jobs], ignore_index=True))
