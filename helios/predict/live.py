"""Predictions for a live queue: what a model, or shrinkage alone, makes of jobs that wait now."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS, PREDICTIONS, in_submission_order

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel
    from helios.predict.features import JobTable
    from helios.predict.memory import Memory
    from helios.predict.vocabulary import Vocabulary


class LivePredictor:
    """Predicts the jobs of a queue again and again, and learns of each job that ends, without starting over.

    It never forgets: whoever keeps it for long makes a new one of the latest history now and then. Threads may share
    it.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``; learned as :meth:`learn` does.
    model : DurationModel, optional
        None: shrinkage alone, which serves from the first job.
    timezone : str
        Zone of the cluster's local time.

    Attributes
    ----------
    model : DurationModel or None
        May be exchanged at any time.
    """

    def __init__(self, history: pd.DataFrame, *, model: DurationModel | None = None, timezone: str = "UTC") -> None:
        self.model = model
        self._timezone = timezone
        self._told: set[tuple[str, int, int]] = set()
        self._not_yet_past = JOBS.empty()
        self._known: tuple[Memory, Vocabulary] | None = None
        self._lock = Lock()
        self.learn(history)

    def learn(self, ended: pd.DataFrame) -> int:
        """Take note of jobs that have ended; those that it was told of before count once.

        A job teaches from the first :meth:`predict` for a moment after its end. Jobs told before that moment are
        learned in the order of their ends, however they were told; one that is told later is learned then, as if it
        had ended after all that were known: older jobs weigh less, so that it counts a little more than it should.

        Parameters
        ----------
        ended : DataFrame
            Columns of ``JOBS``, in any order. Jobs without an end are left out.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        JOBS.check(ended)
        over = ended[ended["ended_at"].notna()]
        with self._lock:
            fresh = over[self._are_new(over)]
            if len(fresh):
                both = [self._not_yet_past, fresh] if len(self._not_yet_past) else [fresh]
                self._not_yet_past = in_submission_order(JOBS.conform(pd.concat(both)))
        return len(fresh)

    def predict(self, pending: pd.DataFrame, *, now: datetime, running: pd.DataFrame | None = None) -> pd.DataFrame:
        """Predict run times of jobs as if they were submitted now, in this order: what ended while they waited counts.

        Nothing is remembered of them, or of what runs.

        Parameters
        ----------
        pending : DataFrame
            Columns of ``QUEUE``. An array's record is predicted as one of its tasks.
        now : datetime
            Not before that of an earlier call: what has been learned stays learned.
        running : DataFrame, optional
            Columns of ``QUEUE``: what users have running is a feature.

        Returns
        -------
        DataFrame
            Columns of ``PREDICTIONS``, one row for each of ``pending``, with its index. ``source`` is the model's id,
            or which past jobs shrinkage rests on (``shrinkage: user+size``; see :data:`helios.predict.basis.BASES`).

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        if pending.empty:
            return PREDICTIONS.empty()
        return _as_frame(self._features(pending, running, now), self.model, pending.index)

    def _are_new(self, jobs: pd.DataFrame) -> NDArray[np.bool_]:
        names = jobs["job_id"].tolist(), jobs["submitted_at"].astype("int64").tolist(), jobs["restart"].tolist()
        new = np.zeros(len(jobs), dtype=np.bool_)
        for row, key in enumerate(zip(*names, strict=True)):
            new[row] = key not in self._told
            self._told.add(key)
        return new

    def _features(self, pending: pd.DataFrame, running: pd.DataFrame | None, now: datetime) -> NDArray[np.float32]:
        from helios.predict.features import events_of  # noqa: PLC0415 - numba takes a while

        moment = pd.Timestamp(now).floor("s")
        with self._lock:
            memory, vocabulary = self._as_of(moment)
            vocabulary = vocabulary.aside()
            asked = _as_if_submitted(pending, moment.tz_convert(self._timezone), vocabulary)
            groups = vocabulary.groups(asked)
            unended = [
                _unended(frame, asked=asked, vocabulary=vocabulary)
                for frame in (running, self._not_yet_past)
                if frame is not None and len(frame)
            ]
            return memory.describe(
                events_of(asked, groups=groups),
                unended=np.concatenate([groups[:0], *(of_some for of_some, _ in unended)]),
                unended_submitted_s=np.concatenate([asked.submitted_s[:0], *(when_s for _, when_s in unended)]),
                now_s=int(moment.timestamp()),
            )

    def _as_of(self, moment: pd.Timestamp) -> tuple[Memory, Vocabulary]:
        """Learn what ended strictly before ``moment``; return all that is known then."""
        from helios.predict.features import JobTable, events_of  # noqa: PLC0415 - numba takes a while
        from helios.predict.memory import Memory  # noqa: PLC0415 - likewise
        from helios.predict.vocabulary import Vocabulary  # noqa: PLC0415 - likewise

        if self._known is None:
            self._known = Memory(), Vocabulary()
        told, (memory, vocabulary) = self._not_yet_past, self._known
        if told.empty:
            return memory, vocabulary
        past = ((told["ended_at"] < moment) & (told["submitted_at"] < moment)).to_numpy()
        if past.any():
            table = JobTable.from_frame(told[past], coding=vocabulary)
            memory.learn(events_of(table, groups=vocabulary.groups(table)), table.ended_s)
            self._not_yet_past = told[~past]
        return memory, vocabulary


def _as_if_submitted(pending: pd.DataFrame, moment: pd.Timestamp, vocabulary: Vocabulary) -> JobTable:
    """Return the jobs of ``pending`` as submitted at ``moment``, by the cluster's clock."""
    from helios.predict.features import JobTable  # noqa: PLC0415 - numba takes a while

    return JobTable.from_queue(
        pending,
        submitted_s=np.full(len(pending), int(moment.timestamp())),
        hour=float(moment.hour),
        weekday=float(moment.weekday()),
        coding=vocabulary,
    )


def _unended(
    jobs: pd.DataFrame, *, asked: JobTable, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return groups and times of submission of those ``jobs`` that count when the jobs ``asked`` are described.

    They were submitted before them, by the same users: features tell of nobody else's unended jobs.
    """
    from helios.predict.features import JobTable  # noqa: PLC0415 - numba takes a while

    submitted_s = jobs["submitted_at"].array.to_numpy(dtype="datetime64[us]").astype(np.int64) // 1_000_000
    theirs = np.isin(vocabulary.codes("user", jobs["user"].array), asked.user) & (submitted_s < asked.submitted_s[0])
    table = JobTable.from_queue(
        jobs, rows=theirs, submitted_s=submitted_s[theirs], hour=np.nan, weekday=np.nan, coding=vocabulary
    )
    return vocabulary.groups(table), table.submitted_s


def _as_frame(features: NDArray[np.float32], model: DurationModel | None, index: pd.Index[Any]) -> pd.DataFrame:
    from helios.predict.basis import BASES, basis_of  # noqa: PLC0415 - numba takes a while
    from helios.predict.calibration import calibrated_alone, nothing_learned  # noqa: PLC0415 - likewise
    from helios.predict.duration import HistoryPredictor  # noqa: PLC0415 - likewise

    predictor = model or HistoryPredictor()
    if model:
        sources, codes = _sources(model.model_id), np.zeros(len(features), dtype=np.int8)
    else:
        sources, codes = _sources(*(f"{predictor.model_id}: {basis}" for basis in BASES)), basis_of(features)
    learned = (model.calibration if model else None) or nothing_learned()
    quantiles = calibrated_alone(features, predictor.predict(features), learned)
    quantiles[~np.isfinite(quantiles).all(axis=1)] = np.nan  # no prediction: a bound beyond every number
    columns = *quantiles.T, pd.Categorical.from_codes(codes, dtype=sources)
    return pd.DataFrame(dict(zip(PREDICTIONS.names, columns, strict=True)), index=index)


@lru_cache(maxsize=4)
def _sources(*names: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype="str"))
