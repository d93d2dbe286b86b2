"""Predictions inside a replayed timeline: what has ended *there* teaches, nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS
from helios.predict.duration import DurationModel, HistoryPredictor, fit
from helios.predict.features import JobTable, events_of
from helios.predict.history import FEATURES, nothing_known, walk

FIRST_FIT_JOBS = 1_000


class OnlinePredictor:
    """A :class:`helios.ports.ReplayPredictor` that learns as the replay goes on.

    It begins with ``model``, or with shrinkage where there is none. With ``refit`` it trains anew when
    ``FIRST_FIT_JOBS`` jobs have ended (those of ``history`` included), and at every doubling after.

    Parameters
    ----------
    jobs : DataFrame
        The workload to be replayed, columns of ``JOBS``, in workload order; jobs are named by position.
        Times and states of a job are not looked at before its end is told; its run time is then its own.
    history : DataFrame, optional
        Earlier jobs, in submission order. They end as recorded, also while the replay runs.
    model : DurationModel, optional
        Trained on what ended before the replay opens.

    Attributes
    ----------
    source : int16 array of shape (len(jobs),)
        Which of ``sources`` predicted each job; -1: not asked yet.
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
        model: DurationModel | None = None,
        refit: bool = True,
        seed: int = 0,
        timezone: str = "UTC",
    ) -> None:
        table = JobTable.from_frame(_one_after_the_other(history, jobs), timezone=timezone)
        self._first = table.n - len(jobs)
        # The replay may submit a job at another moment than the record says.
        self._events = events_of(table)._replace(submitted_s=table.submitted_s.copy())
        self._history = nothing_known(self._events)
        recorded = table.ends()
        self._recorded = recorded[recorded < self._first]
        self._recorded_s = table.ended_s[self._recorded]
        self._next_recorded = 0
        self._told = np.empty(len(jobs), dtype=np.int64)
        self._told_s = np.empty(len(jobs), dtype=np.int64)
        self._n_told = self._next_told = 0
        self._learned = np.empty(table.n, dtype=np.int64)
        self._n_learned = 0
        self._seed, self._refit = seed, refit
        self._cluster = model.cluster if model else "replay"
        self._predictor: DurationModel | HistoryPredictor = model or HistoryPredictor()
        self._next_fit = max(FIRST_FIT_JOBS, 2 * model.jobs if model else 0)
        self.features = np.full((table.n, len(FEATURES)), np.nan, dtype=np.float32)
        self.sources = [HistoryPredictor().model_id] + ([model.model_id] if model else [])
        self.source = np.full(len(jobs), -1, dtype=np.int16)
        self._replay_history()

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Take note that ``jobs`` ended at ``ended_s`` (same length, ascending, s since the epoch)."""
        told = slice(self._n_told, self._n_told + len(jobs))
        self._told[told] = jobs
        self._told[told] += self._first
        self._told_s[told] = ended_s
        self._n_told = told.stop

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, submitted at ``now_s``; see ``ReplayPredictor``."""
        rows = jobs + self._first
        self._events.submitted_s[rows] = now_s
        ends, ends_s = self._due(now_s)
        self._note_learned(ends)
        walk(self._history, self._events, rows, ends, ends_s, 0, self.features)
        if self._refit and self._n_learned >= self._next_fit:
            self._fit(now_s)
        self.source[jobs] = len(self.sources) - 1
        return self._predictor.predict(self.features[rows])

    def _replay_history(self) -> None:
        rows = np.arange(self._first)
        self._next_recorded = walk(
            self._history, self._events, rows, self._recorded, self._recorded_s, 0, self.features
        )
        self._note_learned(self._recorded[: self._next_recorded])

    def _due(self, now_s: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what ended strictly before ``now_s`` and is not yet learned, ordered by time, then job."""
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
            timed = ends[~np.isnan(self._events.log_run[ends])]
            self._learned[self._n_learned : self._n_learned + len(timed)] = timed
            self._n_learned += len(timed)

    def _fit(self, now_s: int) -> None:
        self._predictor = fit(
            self._learned[: self._n_learned],
            features=self.features,
            groups=self._events.groups,
            submitted_s=self._events.submitted_s,
            log_run=self._events.log_run,
            cluster=self._cluster,
            trained_until=datetime.fromtimestamp(now_s, UTC),
            seed=self._seed,
        )
        self.sources.append(self._predictor.model_id)
        self._next_fit = 2 * self._n_learned


def _one_after_the_other(history: pd.DataFrame | None, jobs: pd.DataFrame) -> pd.DataFrame:
    if history is None or history.empty:
        return jobs
    return JOBS.conform(pd.concat([history, jobs], ignore_index=True))
