"""Predictions for a live queue, by a model or by shrinkage alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from helios.predict.explain import BASES, fallback_level
from helios.predict.job_table import ASKED, JobTable, distinct_requests, distinct_rows, event_order, nearness
from helios.predict.live_history import NO_GROUPS, Categories, LiveHistory, Unended, join_unended
from helios.predict.timeline import started_s, untrained

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel

_UNENDED = ("submitted_at", "started_at", *(name for name in ASKED if name not in {"account", "nodes", "memory_mib"}))
"""Columns that are read of jobs that have not ended: they are compared by size, limit, partition and name."""
_COLUMNS = pd.Index(PREDICTIONS.names)
_NUMBERS = [getattr(RUN_TIME, name.removesuffix("_s")) for name in PREDICTIONS.names[:-1]]
_UNKNOWN_S = np.iinfo(np.int64).min // 1_000_000


class LivePredictor:
    """Predictor for a live queue, which learns from ended jobs.

    It never forgets, so a long-lived process should replace it by a new one with the latest history from time to time.
    Threads may share it.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``, learned as by :meth:`learn`.
    model : DurationModel, optional
        None for shrinkage alone, which serves from the first job.
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
        self._told: set[tuple[str, int, int]] = set()
        self._not_yet_past = JOBS.empty()
        self._history, self._vocabulary = LiveHistory(), Categories()
        self._lock = Lock()
        self.learn(history)

    def learn(self, ended: pd.DataFrame) -> int:
        """Add jobs that have ended.

        A job that was added before counts once.

        A job is learned by the first :meth:`predict` for a time after its end. Jobs added before that call are learned
        in the order of their ends, in whatever order they were added. A job that is added later is learned then, as if
        it had ended after all known ones. As older jobs weigh less, it then counts a little more than it should.

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
        over = ended[ended["ended_at"].notna()]
        with self._lock:
            fresh = over[self._are_new(over)]
            if len(fresh):
                both = [self._not_yet_past, fresh] if len(self._not_yet_past) else [fresh]
                self._not_yet_past = in_submission_order(JOBS.conform(pd.concat(both)))
        return len(fresh)

    def predict(self, pending: pd.DataFrame, *, now: datetime, running: pd.DataFrame | None = None) -> pd.DataFrame:
        """Predict run times of jobs as if submitted now, in this order.

        Jobs that ended while they waited are used. The call stores nothing about pending or running jobs.

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
            Columns of ``PREDICTIONS``, one row for each of ``pending``, with its index. ``source`` is the model's id,
            or which past jobs shrinkage rests on (``shrinkage: user+size``; see :data:`helios.predict.explain.BASES`).

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        if pending.empty:
            return PREDICTIONS.empty()
        found, features = self._predict(pending, running, now)
        return _as_frame(found, features, self.model, pending.index)

    def _are_new(self, jobs: pd.DataFrame) -> NDArray[np.bool_]:
        names = jobs["job_id"].tolist(), jobs["submitted_at"].astype("int64").tolist(), jobs["restart"].tolist()
        new = np.zeros(len(jobs), dtype=np.bool_)
        for row, key in enumerate(zip(*names, strict=True)):
            new[row] = key not in self._told
            self._told.add(key)
        return new

    def _predict(
        self, pending: pd.DataFrame, running: pd.DataFrame | None, now: datetime
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return predictions, columns of ``RunTime``, and the features of the jobs."""
        local, now_s, model = now.astimezone(self._zone), math.floor(now.timestamp()), self.model
        requests, kind = distinct_requests(QUEUE.arrays(pending, ASKED))
        with self._lock:
            self._learn_until(now_s)
            vocabulary = self._vocabulary.aside()
            asked = JobTable.from_requests(
                requests, coding=vocabulary, now_s=now_s, hour=float(local.hour), weekday=float(local.weekday())
            )
            groups = vocabulary.groups(asked)
            frames = [frame for frame in (running, self._not_yet_past) if frame is not None and len(frame)]
            unended = [_unended(frame, asked, now_s, vocabulary) for frame in frames]
            return self._history.predict(
                asked,
                groups,
                kind,
                join_unended(unended),
                now_s=now_s,
                model=model.kernel if model else untrained(),
                levels=model.levels if model else None,
            )

    def _learn_until(self, now_s: int) -> None:
        """Learn from the jobs that ended strictly before a moment."""
        told = self._not_yet_past
        if told.empty:
            return
        past = (_seconds(told["ended_at"].array) < now_s) & (_seconds(told["submitted_at"].array) < now_s)
        if past.any():
            table = JobTable.from_frame(told[past], coding=self._vocabulary)
            events = event_order(table, groups=self._vocabulary.groups(table))
            self._history.learn(events, started_s(table), table.ended_s)
            self._not_yet_past = told[~past]


def _seconds(times: Any) -> NDArray[np.int64]:
    """Return times in s since the epoch, ``_UNKNOWN_S`` for unknown ones."""
    return np.asarray(times.asi8 // 1_000_000)


def _unended(jobs: pd.DataFrame, asked: JobTable, now_s: int, vocabulary: Categories) -> Unended:
    """Return the jobs of a frame that have not ended.

    Features need those of the users who ask, submitted before. Of running jobs, those with neither the user nor the
    request of any job asked about count as running alone, and their groups are left out, which take most of the time.
    """
    columns = QUEUE.arrays(jobs, _UNENDED)
    submitted_s, since_s = _seconds(columns["submitted_at"]), _seconds(columns["started_at"])
    begun = (since_s < now_s) & (since_s > _UNKNOWN_S)
    user, gpus, limit_s = vocabulary.codes("user", columns["user"]), columns["gpus"], columns["time_limit_s"]
    own = _is_among(user, asked.user)
    alike = _is_among(gpus, asked.gpus) & (np.isnan(limit_s) | _is_among(limit_s, asked.time_limit_s))
    theirs = own & (submitted_s < now_s)
    needed = np.flatnonzero(theirs | (begun & (own | alike)))
    groups, near, kind = NO_GROUPS, np.empty((0, 4)), np.full(len(jobs), -1)
    if len(needed):
        names, own = pa.array(columns["name"]).to_pylist(), own[needed]
        named = [names[row] if is_own else None for row, is_own in zip(needed.tolist(), own.tolist(), strict=True)]
        known = {
            "user": np.where(own, user[needed], -1),
            "stem": vocabulary.name_codes(named).stem,
            "partition": vocabulary.codes("partition", columns["partition"])[needed],
            **{name: columns[name][needed] for name in ("gpus", "cpus", "time_limit_s")},
        }
        first, kind[needed] = distinct_rows(*known.values())
        table = JobTable.from_codes({name: values[first] for name, values in known.items()}, now_s=now_s)
        groups, near = vocabulary.groups(table, levels=(REQUEST, USER, USER_SIZE)), nearness(table)
    return Unended(groups, near, kind[theirs], submitted_s[theirs], kind[begun], since_s[begun])


def _is_among(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are among the wanted ones, at once if there is one."""
    return np.asarray(values == wanted[0] if len(wanted) == 1 else np.isin(values, wanted))


def _as_frame(
    found: NDArray[np.float64], features: NDArray[np.float32], model: DurationModel | None, index: pd.Index[Any]
) -> pd.DataFrame:
    if model and model.trained:
        sources, codes = _sources(model.model_id), np.zeros(len(features), dtype=np.int8)
    else:
        sources, codes = _sources(*(f"shrinkage: {basis}" for basis in BASES)), fallback_level(features)
    known = found[:, _NUMBERS]
    known[~np.isfinite(known).all(axis=1)] = np.nan  # no prediction: a bound beyond every number
    # Names that are set last take a third of the time of a frame from single columns.
    frame = pd.DataFrame(known, index=index)
    source: Any = pd.Categorical.from_codes(codes, dtype=sources, validate=False)
    frame.insert(len(_NUMBERS), len(_NUMBERS), source)
    frame.columns = _COLUMNS
    return frame


@lru_cache(maxsize=4)
def _sources(*names: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype="str"))


# Remaining run time of a running job: its prediction, given that it has not ended.
#
# The run time T has a distribution through the three predicted quantiles, whose log-odds of having ended are piecewise
# linear in log T: one line below the median, one from there to p90 (a log-logistic in two pieces, so that every
# quantile of T given T > t has a closed form), and beyond p90 a third whose slope is the same for every job. There it
# is a Pareto law: the remaining time is proportional to the elapsed time, so that a job far beyond its prediction is
# expected neither to end at once nor to run for ever.

TAIL_SLOPE = 0.8
"""Growth of log T by log-odds beyond p90. Half of the jobs far beyond run for another 2**0.8 - 1 = 0.74 of their time.

Best of .6, .8 and 1 on Venus and Philly, where no limits end jobs. On KTH-SP2 and SDSC-BLUE it makes no difference
(benchmarks/remaining.py evaluates the same logs). A plain log-logistic, which keeps the slope below p90, covers 67 % of
Philly's running jobs, and this one 76 %.
"""
LEAST_SLOPE = 0.01
"""Least slope of the other two lines. Quantiles may coincide (mostly at a time limit), but a line needs a slope."""
LIMIT_GRACE_S = 60.0
"""Longest time that a job outlasts its limit, s. 41 % of SDSC-BLUE's running jobs outlast it, by 27 to 58 s.

Slurm looks for jobs past their limit every 30 s and gives them another 30 s (``KillWait``) to end.
"""
CHANCES = (0.1, 0.5, 0.9)
"""Probabilities of the quantiles, in the order of their columns."""

_SHORTEST_S = 1.0
_LOG_ODDS_P90 = np.log(9.0)

Floats = NDArray[np.float64]


def remaining_run_time(
    quantiles_s: Floats,
    elapsed_s: Floats,
    *,
    limit_s: Floats | None = None,
    chances: Sequence[float | Floats] = CHANCES,
) -> Floats:
    """Return quantiles of running jobs' remaining run time.

    The jobs have run for ``elapsed_s`` and not ended.

    Parameters
    ----------
    quantiles_s : float64 array of shape (n, 3)
        p10, p50, p90 of the whole run time as predicted at submission, s, ascending; below 1 s they count as 1 s. With
        NaN, no prediction, the result is NaN too.
    elapsed_s : float64 array of shape (n,)
        Time run so far, s; a negative one (clocks differ) counts as 0.
    limit_s : float64 array of shape (n,), optional
        Time limits, s; NaN or infinite for none. No time remains beyond ``LIMIT_GRACE_S`` after it.
    chances : sequence of float or float64 arrays of shape (n,)
        Probabilities of the k quantiles; with uniform random numbers the result is drawn from the distribution.

    Returns
    -------
    float64 array of shape (n, k)
        s, ascending in each row and not negative. At 0 s elapsed they are ``quantiles_s``, except that p10 and p90 are
        at least 2 % away from p50. Their sum with ``elapsed_s`` never falls as time passes.
    """
    elapsed_s = np.maximum(np.asarray(elapsed_s, dtype=np.float64), 0.0)
    odds = _Odds(quantiles_s)
    # The log of 0 s elapsed is -inf, as it should be. NaN, no prediction, stays NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_survival = -np.logaddexp(0.0, odds.at(np.log(elapsed_s)))
    total_s = np.stack([odds.run_time(log_survival + np.log1p(-np.asarray(chance))) for chance in chances], axis=-1)
    remaining_s = total_s - elapsed_s[:, None]
    if limit_s is not None:
        left_s = np.maximum(np.where(np.isnan(limit_s), np.inf, limit_s) + LIMIT_GRACE_S - elapsed_s, 0.0)
        remaining_s = np.minimum(remaining_s, left_s[:, None])
    return remaining_s


class _Odds:
    """Log-odds of having ended by a time, for each of n jobs.

    They are three straight lines in log time, and have an inverse.
    """

    def __init__(self, quantiles_s: Floats) -> None:
        low, self._median, high = np.log(np.maximum(quantiles_s, _SHORTEST_S)).T
        self._below = np.maximum((self._median - low) / _LOG_ODDS_P90, LEAST_SLOPE)
        self._above = np.maximum((high - self._median) / _LOG_ODDS_P90, LEAST_SLOPE)

    def at(self, log_time: Floats) -> Floats:
        past = log_time - self._median
        beyond = past - self._above * _LOG_ODDS_P90
        odds = np.where(past < 0, past / self._below, past / self._above)
        return np.asarray(np.where(beyond > 0, _LOG_ODDS_P90 + beyond / TAIL_SLOPE, odds))

    def run_time(self, log_survival: Floats) -> Floats:
        """Return the run times, s, that jobs exceed with a log probability."""
        odds = np.log(-np.expm1(log_survival)) - log_survival
        within = odds * np.where(odds < 0, self._below, self._above)
        beyond = self._above * _LOG_ODDS_P90 + TAIL_SLOPE * (odds - _LOG_ODDS_P90)
        return np.asarray(np.exp(self._median + np.where(odds > _LOG_ODDS_P90, beyond, within)))
