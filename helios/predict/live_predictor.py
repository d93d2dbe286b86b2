"""Predictions for a live queue, by a model or by shrinkage alone.

The statistics are those of :mod:`helios.predict.causal_stats` and :mod:`helios.predict.past_runs`, updated by the same
kernels. Here their arrays grow, so that new groups can be added, and submissions may come in any order. Each prediction
works on copies of the groups that it reads. So running and waiting jobs, which only this prediction knows, do not
change what was learned.
"""

from __future__ import annotations

import math
from datetime import datetime
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order
from helios.ports import RUN_TIME
from helios.predict.causal_stats import REQUEST, USER, USER_SIZE
from helios.predict.growing_coding import GrowingCoding
from helios.predict.job_table import REQUEST_COLUMNS, JobTable, distinct_requests, distinct_rows, job_events, job_traits
from helios.predict.live_history import NOBODY, LiveHistory, UnendedJobs, concat_unended
from helios.predict.similar_jobs import BASES, fallback_level
from helios.predict.timeline import started_s, untrained

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel


_UNENDED_COLUMNS = (
    "submitted_at",
    "started_at",
    *(name for name in REQUEST_COLUMNS if name not in {"account", "nodes", "memory_mib"}),
)
"""Columns that are read of jobs that have not ended, which are compared by size, limit, partition and name."""
_PREDICTION_NAMES = pd.Index(PREDICTIONS.names)
_PREDICTION_COLUMNS = [getattr(RUN_TIME, name.removesuffix("_s")) for name in PREDICTIONS.names[:-1]]
"""Columns of ``RunTime`` for those of ``PREDICTIONS``, all but the last."""
_UNKNOWN_S = np.iinfo(np.int64).min // 1_000_000


class LivePredictor:
    """Predictor for a live queue that learns from ended jobs.

    It never forgets a job. A long-lived process should replace it from time to time by a new one with the latest
    history. Threads may share it.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``, learned as by :meth:`learn`.
    model : DurationModel, optional
        None for shrinkage alone, which needs no training.
    timezone : str
        Zone of the cluster's local time.

    Attributes
    ----------
    model : DurationModel or None
        May be exchanged at any time.
    """

    def __init__(self, history: pd.DataFrame, *, model: DurationModel | None = None, timezone: str = "UTC") -> None:
        self.model = model
        self._zone = ZoneInfo(timezone)
        self._known_jobs: set[tuple[str, int, int]] = set()
        self._unlearned = JOBS.empty()
        self._history, self._coding = LiveHistory(), GrowingCoding()
        self._lock = Lock()
        self.learn(history)

    def learn(self, ended: pd.DataFrame) -> int:
        """Add jobs that have ended, each once.

        A job is learned by the first :meth:`predict` for a time after its end. All jobs added before that call are
        learned in the order of their ends. A job that is added later is learned as if it had ended after the others.
        As older jobs weigh less, it then weighs a little too much.

        Parameters
        ----------
        ended : DataFrame
            Columns of ``JOBS``, in any order. Jobs without an end are left out.

        Returns
        -------
        int
            Number of new jobs.

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        JOBS.check(ended)
        ended = ended[ended["ended_at"].notna()]
        with self._lock:
            new = ended[self._are_new(ended)]
            if len(new):
                frames = [self._unlearned, new] if len(self._unlearned) else [new]
                self._unlearned = in_submission_order(JOBS.conform(pd.concat(frames)))
        return len(new)

    def predict(self, pending: pd.DataFrame, *, now: datetime, running: pd.DataFrame | None = None) -> pd.DataFrame:
        """Predict run times of jobs as if submitted now, in this order.

        Jobs that ended since their submission are used. Nothing is stored about pending or running jobs.

        Parameters
        ----------
        pending : DataFrame
            Columns of ``QUEUE``. An array's record is predicted as one of its tasks.
        now : datetime
            Not before that of an earlier call, because learned jobs cannot be removed.
        running : DataFrame, optional
            Columns of ``QUEUE``. Users' running jobs are a feature.

        Returns
        -------
        DataFrame
            Columns of ``PREDICTIONS``, one row for each of ``pending``, with its index. ``source`` is the id of the
            model, or the past jobs that shrinkage used (``shrinkage: user+size``; see
            :data:`helios.predict.similar_jobs.BASES`).

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        if pending.empty:
            return PREDICTIONS.empty()
        predictions, features = self._predict(pending, running, now)
        return _predictions_frame(predictions, features, self.model, pending.index)

    def _are_new(self, jobs: pd.DataFrame) -> NDArray[np.bool_]:
        """Return which jobs were not known, and add these to the known ones."""
        keys = jobs["job_id"].tolist(), jobs["submitted_at"].astype("int64").tolist(), jobs["restart"].tolist()
        new = np.zeros(len(jobs), dtype=np.bool_)
        for row, key in enumerate(zip(*keys, strict=True)):
            new[row] = key not in self._known_jobs
            self._known_jobs.add(key)
        return new

    def _predict(
        self, pending: pd.DataFrame, running: pd.DataFrame | None, now: datetime
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return predictions, columns of ``RunTime``, and the features of the jobs."""
        local_time, now_s, model = now.astimezone(self._zone), math.floor(now.timestamp()), self.model
        columns, request_index = distinct_requests(QUEUE.arrays(pending, REQUEST_COLUMNS))
        with self._lock:
            self._learn_until(now_s)
            coding = self._coding.overlay()
            requests = JobTable.from_requests(
                columns, coding=coding, now_s=now_s, hour=float(local_time.hour), weekday=float(local_time.weekday())
            )
            groups = coding.groups(requests)
            frames = [frame for frame in (running, self._unlearned) if frame is not None and len(frame)]
            unended = [_unended_jobs(frame, requests, now_s, coding) for frame in frames]
            return self._history.predict(
                requests,
                groups,
                request_index,
                concat_unended(unended),
                now_s=now_s,
                model=model.kernel if model else untrained(),
                calibration=model.calibration if model else None,
            )

    def _learn_until(self, now_s: int) -> None:
        """Learn from the added jobs that ended strictly before ``now_s``."""
        jobs = self._unlearned
        if jobs.empty:
            return
        past = (_seconds(jobs["ended_at"].array) < now_s) & (_seconds(jobs["submitted_at"].array) < now_s)
        if past.any():
            table = JobTable.from_frame(jobs[past], coding=self._coding)
            events = job_events(table, groups=self._coding.groups(table))
            self._history.learn(events, started_s(table), table.ended_s)
            self._unlearned = jobs[~past]


def _predictions_frame(
    predictions: NDArray[np.float64], features: NDArray[np.float32], model: DurationModel | None, index: pd.Index[Any]
) -> pd.DataFrame:
    if model and model.trained:
        sources, codes = _sources(model.model_id), np.zeros(len(features), dtype=np.int8)
    else:
        sources, codes = _sources(*(f"shrinkage: {basis}" for basis in BASES)), fallback_level(features)
    values = predictions[:, _PREDICTION_COLUMNS]
    values[~np.isfinite(values).all(axis=1)] = np.nan  # a job with an infinite bound has no prediction
    # Setting the names last takes a third of the time of making a frame from single columns.
    frame = pd.DataFrame(values, index=index)
    source: Any = pd.Categorical.from_codes(codes, dtype=sources, validate=False)
    frame.insert(len(_PREDICTION_COLUMNS), len(_PREDICTION_COLUMNS), source)
    frame.columns = _PREDICTION_NAMES
    return frame


@lru_cache(maxsize=4)
def _sources(*names: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype="str"))


def _unended_jobs(jobs: pd.DataFrame, requests: JobTable, now_s: int, coding: GrowingCoding) -> UnendedJobs:
    """Return the jobs of a frame that have not ended.

    Features count the jobs of the users with ``requests`` that were submitted before. A running job that shares neither
    the user nor the size and limit with any request has no groups here, because groups take most of the time.
    """
    columns = QUEUE.arrays(jobs, _UNENDED_COLUMNS)
    submitted_s, since_s = _seconds(columns["submitted_at"]), _seconds(columns["started_at"])
    is_running = (since_s < now_s) & (since_s > _UNKNOWN_S)
    user, gpus, limit_s = coding.encode("user", columns["user"]), columns["gpus"], columns["time_limit_s"]
    same_user = _is_among(user, requests.user)
    is_similar = _is_among(gpus, requests.gpus) & (np.isnan(limit_s) | _is_among(limit_s, requests.time_limit_s))
    is_counted = same_user & (submitted_s < now_s)
    with_groups = np.flatnonzero(is_counted | (is_running & (same_user | is_similar)))
    groups, traits, request_index = NOBODY.groups[:0], NOBODY.traits[:0], np.full(len(jobs), -1)
    if len(with_groups):
        same_user = same_user[with_groups]
        names = pa.array(columns["name"]).to_pylist()
        own_names = [
            names[i] if same else None for i, same in zip(with_groups.tolist(), same_user.tolist(), strict=True)
        ]
        codes = {
            "user": np.where(same_user, user[with_groups], -1),
            "stem": coding.encode_names(own_names).stem,
            "partition": coding.encode("partition", columns["partition"])[with_groups],
            **{name: columns[name][with_groups] for name in ("gpus", "cpus", "time_limit_s")},
        }
        first, request_index[with_groups] = distinct_rows(*codes.values())
        table = JobTable.from_codes({name: values[first] for name, values in codes.items()}, now_s=now_s)
        groups, traits = coding.groups(table, levels=(REQUEST, USER, USER_SIZE)), job_traits(table)
    return UnendedJobs(
        groups=groups,
        traits=traits,
        submitted=request_index[is_counted],
        submitted_s=submitted_s[is_counted],
        running=request_index[is_running],
        since_s=since_s[is_running],
    )


def _is_among(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are among the wanted ones, faster for a single one."""
    return np.asarray(values == wanted[0] if len(wanted) == 1 else np.isin(values, wanted))


def _seconds(times: Any) -> NDArray[np.int64]:
    """Return times as s since the epoch, ``_UNKNOWN_S`` for unknown ones."""
    return np.asarray(times.asi8 // 1_000_000)
