"""Predictions for a live queue, by a model or by shrinkage alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.model import JOBS, PREDICTIONS, in_submission_order
from helios.ports import RUN_TIME
from helios.predict.causal_stats import (
    _BURST,
    _LAST_SUBMIT_S,
    _SUBMITTED,
    _UNENDED,
    _UNENDED_SUM_S,
    BURST_GAP_S,
    FEATURES,
    LEVELS,
    NEVER_S,
    REQUEST_FEATURES,
    USER,
    CausalStats,
    Events,
    empty_stats,
    replay_events,
)
from helios.predict.explain import BASES, fallback_level
from helios.predict.job_table import Categories, JobTable, event_order
from helios.predict.live_runs import LiveRuns, more_room
from helios.predict.timeline import started_s, untrained

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel


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
        self._timezone = timezone
        self._told: set[tuple[str, int, int]] = set()
        self._not_yet_past = JOBS.empty()
        self._memory, self._runs, self._vocabulary = OnlineStats(), LiveRuns(), Categories()
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
        moment = pd.Timestamp(now).floor("s")
        model = self.model
        with self._lock:
            self._learn_until(moment)
            memory, vocabulary = self._memory, self._vocabulary.aside()
            local = moment.tz_convert(self._timezone)
            asked = JobTable.from_queue(
                pending,
                submitted_s=np.full(len(pending), int(moment.timestamp())),
                hour=float(local.hour),
                weekday=float(local.weekday()),
                coding=vocabulary,
            )
            groups = vocabulary.groups(asked)
            frames = [frame for frame in (running, self._not_yet_past) if frame is not None and len(frame)]
            unended = [_unended(frame, asked=asked, vocabulary=vocabulary) for frame in frames]
            events, now_s = event_order(asked, groups=groups), int(moment.timestamp())
            features, history = memory.describe(
                events,
                unended=np.concatenate([groups[:0], *(of_some for of_some, _ in unended)]),
                unended_submitted_s=np.concatenate([asked.submitted_s[:0], *(when_s for _, when_s in unended)]),
                now_s=now_s,
            )
            begun = [_running(frame, now_s, vocabulary) for frame in frames]
            found = self._runs.predict(
                events,
                features,
                history,
                running=[events for events, _ in begun],
                since_s=np.concatenate([np.empty(0, dtype=np.int64), *(since_s for _, since_s in begun)]),
                now_s=now_s,
                model=model.kernel if model else untrained(),
                levels=model.levels if model else None,
            )
        return found, features

    def _learn_until(self, moment: pd.Timestamp) -> None:
        """Learn from the jobs that ended strictly before ``moment``."""
        told = self._not_yet_past
        past = ((told["ended_at"] < moment) & (told["submitted_at"] < moment)).to_numpy()
        if past.any():
            table = JobTable.from_frame(told[past], coding=self._vocabulary)
            groups = self._vocabulary.groups(table)
            events = event_order(table, groups=groups)
            self._memory.learn(events, table.ended_s)
            self._runs.learn(events, started_s(table), table.ended_s)
            self._not_yet_past = told[~past]


def _unended(
    jobs: pd.DataFrame, *, asked: JobTable, vocabulary: Categories
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return groups and submission times of unended jobs that features need.

    They were submitted before the jobs ``asked``, by the same users, because features do not use other users' unended
    jobs.
    """
    submitted_s = jobs["submitted_at"].array.to_numpy(dtype="datetime64[us]").astype(np.int64) // 1_000_000
    theirs = np.isin(vocabulary.codes("user", jobs["user"].array), asked.user) & (submitted_s < asked.submitted_s[0])
    table = JobTable.from_queue(
        jobs, rows=theirs, submitted_s=submitted_s[theirs], hour=np.nan, weekday=np.nan, coding=vocabulary
    )
    return vocabulary.groups(table), table.submitted_s


def _running(frame: pd.DataFrame, now_s: int, vocabulary: Categories) -> tuple[Events, NDArray[np.int64]]:
    """Return the jobs whose start is known and past, and their starts."""
    since_s = frame["started_at"].array.to_numpy(dtype="datetime64[us]").astype(np.int64) // 1_000_000
    begun = frame["started_at"].notna().to_numpy() & (since_s < now_s)
    table = JobTable.from_queue(
        frame, rows=begun, submitted_s=since_s[begun], hour=np.nan, weekday=np.nan, coding=vocabulary
    )
    return event_order(table, groups=vocabulary.groups(table)), since_s[begun]


def _as_frame(
    found: NDArray[np.float64], features: NDArray[np.float32], model: DurationModel | None, index: pd.Index[Any]
) -> pd.DataFrame:
    if model and model.trained:
        sources, codes = _sources(model.model_id), np.zeros(len(features), dtype=np.int8)
    else:
        sources, codes = _sources(*(f"shrinkage: {basis}" for basis in BASES)), fallback_level(features)
    known = found[:, [getattr(RUN_TIME, name.removesuffix("_s")) for name in PREDICTIONS.names[:-1]]]
    known[~np.isfinite(known).all(axis=1)] = np.nan  # no prediction: a bound beyond every number
    columns = *known.T, pd.Categorical.from_codes(codes, dtype=sources)
    return pd.DataFrame(dict(zip(PREDICTIONS.names, columns, strict=True)), index=index)


@lru_cache(maxsize=4)
def _sources(*names: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype="str"))


# Statistics of ended jobs that a live predictor extends, and queries without changing them.
#
# The sums are those of :mod:`helios.predict.causal_stats`, and its kernels update them. Here they have room for new
# groups and accept submissions in any order. A query works on a small copy of its groups, so that what it assumes
# (running and waiting jobs) is discarded with the copy.

_ROOM = 1024
_NO_JOBS = np.empty(0, dtype=np.int64)
# A submission without a group. Ends before it are learned, and it changes nothing itself.
_NOBODY = Events(
    submitted_s=np.array([NEVER_S]),
    log_run=np.full(1, np.nan),
    limit_share=np.full(1, np.nan),
    failed=np.full(1, np.nan),
    request=np.zeros((1, len(REQUEST_FEATURES)), dtype=np.float32),
    nearness=np.zeros((1, 4)),
    groups=np.full((1, len(LEVELS)), -1, dtype=np.int32),
)


class OnlineStats:
    """``CausalStats`` that grows with new groups.

    It has ended jobs only.
    """

    def __init__(self) -> None:
        # One empty group and user, the initial value of every new group.
        self._blank = empty_stats(replace(_NOBODY, groups=np.zeros_like(_NOBODY.groups)))
        self._history = _padded(self._blank, groups=_ROOM, users=_ROOM)
        self._n_groups = self._n_users = 0
        self._submissions: dict[int, NDArray[np.int64]] = {}

    def learn(self, events: Events, ended_s: NDArray[np.int64]) -> None:
        """Add jobs that have ended.

        Older submissions may come after younger ones. Ends count in the order of the calls, and those of one call by
        their time, then by row.

        Parameters
        ----------
        events : Events
            In submission order.
        ended_s : int64 array, s since the epoch
        """
        self._make_room(events.groups)
        _submit(self._history.counts, events.groups, events.submitted_s)
        order = np.argsort(ended_s, kind="stable")
        with_nobody = Events(*_joined(_NOBODY, events))
        unread = np.empty((1, len(FEATURES)), dtype=np.float32)
        replay_events(self._history, with_nobody, np.zeros(1, dtype=np.int64), order + 1, ended_s[order], 0, unread)
        for user, submitted_s in _by_group(events.groups[:, USER], events.submitted_s):
            earlier = self._submissions.get(user, _NO_JOBS)
            self._submissions[user] = np.sort(np.concatenate((earlier, submitted_s)))

    def describe(
        self, asked: Events, *, unended: NDArray[np.int32], unended_submitted_s: NDArray[np.int64], now_s: int
    ) -> tuple[NDArray[np.float32], CausalStats]:
        """Return the features of jobs submitted now, and their users' statistics.

        The statistics kept here are not changed.

        Parameters
        ----------
        asked : Events
            Unknown group numbers are new groups.
        unended : int32 array of shape (n, len(LEVELS))
            Groups of jobs that have been submitted and have not ended.
        unended_submitted_s : int64 array of shape (n,)
            Submission of these jobs, s since the epoch.

        Returns
        -------
        features : float32 array of shape (len(asked.submitted_s), len(FEATURES))
        users : CausalStats
            Its rings are those of the users in ``asked``, by their group numbers.
        """
        numbers = np.unique(asked.groups[asked.groups >= 0])
        near = _renumbered(asked.groups, numbers)
        history = self._copy_of(numbers, users=np.unique(near[near[:, USER] >= 0, USER]))
        others = _renumbered(unended, numbers)
        _submit(history.counts, others, unended_submitted_s)
        self._count_bursts(history, numbers, others[:, USER], unended_submitted_s, now_s)
        features = np.empty((len(near), len(FEATURES)), dtype=np.float32)
        replay_events(history, replace(asked, groups=near), np.arange(len(near)), _NO_JOBS, _NO_JOBS, 0, features)
        ring_of = np.full(int(numbers.max(initial=-1)) + 1, -1, dtype=np.int32)
        ring_of[numbers] = history.ring_of
        return features, replace(history, ring_of=ring_of)

    def _make_room(self, groups: NDArray[np.int32]) -> None:
        users = np.unique(groups[groups[:, USER] >= 0, USER])
        n_groups, n_users = max(self._n_groups, int(groups.max(initial=-1)) + 1), self._n_users + len(users)
        # One more than needed, because the row after the last one stands for unknown groups.
        more_groups = more_room(len(self._history.sums), n_groups + 1)
        more_users = more_room(len(self._history.rings), n_users + 1)
        if more_groups or more_users:
            more = _padded(self._blank, groups=more_groups, users=more_users)
            self._history = CausalStats(*_joined(self._history, more))
        fresh = users[self._history.ring_of[users] < 0]
        self._history.ring_of[fresh] = np.arange(self._n_users, self._n_users + len(fresh), dtype=np.int32)
        self._n_groups, self._n_users = n_groups, self._n_users + len(fresh)

    def _copy_of(self, numbers: NDArray[np.int32], *, users: NDArray[np.int32]) -> CausalStats:
        """Return a copy of the groups ``numbers``, renumbered by position.

        ``users`` are such positions.
        """
        rows = np.minimum(numbers, self._n_groups)
        rings = self._history.ring_of[rows[users]]
        rings = np.where(rings < 0, self._n_users, rings)
        ring_of = np.full(len(rows), -1, dtype=np.int32)
        ring_of[users] = np.arange(len(users), dtype=np.int32)
        return CausalStats(
            sums=self._history.sums[rows],
            counts=self._history.counts[rows],
            rings=self._history.rings[rings],
            ring_of=ring_of,
            ring_length=self._history.ring_length[rings],
        )

    def _count_bursts(
        self,
        history: CausalStats,
        numbers: NDArray[np.int32],
        users: NDArray[np.int32],
        submitted_s: NDArray[np.int64],
        now_s: int,
    ) -> None:
        """Set how many jobs each user has submitted in a row.

        The count of other groups is never read.
        """
        unended = dict(_by_group(users, submitted_s))
        lately = (history.ring_of >= 0) & (history.counts[:, _LAST_SUBMIT_S] >= now_s - BURST_GAP_S)
        for user in np.flatnonzero(lately).tolist():
            known = self._submissions.get(int(numbers[user]), _NO_JOBS)
            times = np.sort(np.concatenate((known, unended.get(user, _NO_JOBS))))
            apart = np.flatnonzero(np.diff(times) > BURST_GAP_S)
            history.counts[user, _BURST] = len(times) - (apart[-1] + 1 if len(apart) else 0)


def _padded(blank: CausalStats, *, groups: int, users: int) -> CausalStats:
    """Return empty statistics of so many groups and users."""
    return CausalStats(
        sums=np.repeat(blank.sums, groups, axis=0),
        counts=np.repeat(blank.counts, groups, axis=0),
        rings=np.repeat(blank.rings, users, axis=0),
        ring_of=np.full(groups, -1, dtype=np.int32),
        ring_length=np.repeat(blank.ring_length, users),
    )


def _joined(first: Any, second: Any) -> list[Any]:
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]


def _renumbered(groups: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return groups as positions in ``numbers``, which ascend.

    -1 for no group, and for a group that is not in ``numbers``.
    """
    if not len(numbers):
        return np.full_like(groups, -1)
    found = np.minimum(np.searchsorted(numbers, groups), len(numbers) - 1)
    return np.where(numbers[found] == groups, found, -1).astype(np.int32)


def _by_group(groups: NDArray[np.int32], values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the values of each group but -1."""
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], first[1:]) if len(found) else []
    return [(group, part) for group, part in zip(found.tolist(), parts, strict=True) if group >= 0]


@cached_jit
def _submit(counts: Any, groups: Any, submitted_s: Any) -> None:
    for job in range(len(groups)):
        for group in groups[job]:
            if group < 0:
                continue
            count = counts[group]
            count[_SUBMITTED] += 1
            count[_UNENDED] += 1
            count[_UNENDED_SUM_S] += submitted_s[job]
            count[_LAST_SUBMIT_S] = max(count[_LAST_SUBMIT_S], submitted_s[job])


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


def remaining_run_time(quantiles_s: Floats, elapsed_s: Floats, *, limit_s: Floats | None = None) -> Floats:
    """Return p10, p50 and p90 of running jobs' remaining run time.

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

    Returns
    -------
    float64 array of shape (n, 3)
        s, ascending in each row and not negative. At 0 s elapsed they are ``quantiles_s``, except that p10 and p90 are
        at least 2 % away from p50. Their sum with ``elapsed_s`` never falls as time passes.
    """
    elapsed_s = np.maximum(np.asarray(elapsed_s, dtype=np.float64), 0.0)
    odds = _Odds(quantiles_s)
    # The log of 0 s elapsed is -inf, as it should be. NaN, no prediction, stays NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_survival = -np.logaddexp(0.0, odds.at(np.log(elapsed_s)))
    total_s = np.stack([odds.run_time(log_survival + np.log1p(-chance)) for chance in CHANCES], axis=-1)
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
