"""Predictions for a live queue, by a model or by shrinkage alone.

The statistics are those of :mod:`helios.predict.causal_stats` and :mod:`helios.predict.past_runs`, updated by the same
kernels. Here their arrays grow, so that new groups can be added, and submissions may come in any order. Each prediction
works on copies of the groups that it reads. So running and waiting jobs, which only this prediction knows, do not
change what was learned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import compress, repeat
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order
from helios.ports import RUN_TIME
from helios.predict import causal_stats as stats
from helios.predict.causal_stats import (
    COLUMN,
    FEATURES,
    LEVELS,
    NEVER_S,
    REQUEST,
    USER,
    USER_FAMILY,
    USER_SIZE,
    CausalStats,
    Events,
)
from helios.predict.distribution import read_prediction
from helios.predict.explain import BASES, fallback_level
from helios.predict.job_table import (
    LEVEL_COLUMNS,
    REQUEST_COLUMNS,
    JobNameFamilies,
    JobTable,
    NameCodes,
    distinct_requests,
    distinct_rows,
    group_members,
    grouping_columns,
    job_events,
    job_traits,
    request_events,
)
from helios.predict.past_runs import (
    PastRuns,
    blank_all_sample_state,
    blank_past,
    note_end,
    note_start,
    note_starts,
    take_samples,
)
from helios.predict.timeline import (
    Calibration,
    Model,
    Scratch,
    bound_level,
    clip_and_round,
    compute_cdf,
    empty_calibration,
    note_outlived,
    prepare_grid,
    started_s,
    untrained,
    update_job_splits,
)

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

_RINGS = {
    USER_SIZE: ("key_runs", "key_count"),
    USER: ("user_starts", "user_count"),
    REQUEST: ("request_starts", "request_count"),
}
"""Ring buffers of ``PastRuns`` and their counts, by the level of their groups."""
_FIRST_ROWS = 1024
"""Rows of a new array, before it grows."""
_NO_JOBS = np.empty(0, dtype=np.int64)
# A submission without a group. To process it changes no statistics.
_NOBODY = Events(
    submitted_s=np.array([NEVER_S]),
    log_run=np.full(1, np.nan),
    limit_share=np.full(1, np.nan),
    failed=np.full(1, np.nan),
    request=np.zeros((1, len(stats.REQUEST_FEATURES)), dtype=np.float32),
    traits=np.zeros((1, 4)),
    groups=np.full((1, len(LEVELS)), -1, dtype=np.int32),
)
# Each array has one row, the initial value of all new rows.
_BLANK_STATS = stats.empty_stats(replace(_NOBODY, groups=np.zeros_like(_NOBODY.groups)))
_BLANK_PAST = blank_past(1, 1, 1, 1, 1)

_DIGITS = re.compile(r"\d+")
_CACHED_LISTS = 64
_FEW_NAMES = 50
"""Number of names below which pandas is slower than a loop."""

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
            :data:`helios.predict.explain.BASES`).

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
    groups, traits, request_index = _NOBODY.groups[:0], _NOBODY.traits[:0], np.full(len(jobs), -1)
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


# Statistics and past runs of ended jobs, with arrays that grow.


class UnendedJobs(NamedTuple):
    """Jobs that have been submitted and have not ended.

    Attributes
    ----------
    groups : int32 array of shape (n_requests, len(LEVELS))
        Groups of the distinct requests of these jobs.
    traits : float64 array of shape (n_requests, 4)
        As in ``Events``.
    submitted : int64 array of shape (n,)
        Requests of the jobs that features count as submitted.
    submitted_s : int64 array of shape (n,)
        Submissions of these jobs, s since the epoch.
    running : int64 array of shape (n_running,)
        Requests of the running jobs; -1 where no prediction reads the groups of the job.
    since_s : int64 array of shape (n_running,)
        Starts of the running jobs, s since the epoch.
    """

    groups: NDArray[np.int32]
    traits: NDArray[np.float64]
    submitted: NDArray[np.int64]
    submitted_s: NDArray[np.int64]
    running: NDArray[np.int64]
    since_s: NDArray[np.int64]


_NO_UNENDED_JOBS = UnendedJobs(_NOBODY.groups[:0], _NOBODY.traits[:0], *[_NO_JOBS] * 4)


def concat_unended(parts: Sequence[UnendedJobs]) -> UnendedJobs:
    """Return the jobs of all parts."""
    total = parts[0] if parts else _NO_UNENDED_JOBS
    for part in parts[1:]:
        first = len(total.groups)
        submitted, running = (np.where(index < 0, -1, index + first) for index in (part.submitted, part.running))
        pairs: Any = zip(total, part._replace(submitted=submitted, running=running), strict=True)
        total = UnendedJobs(*map(np.concatenate, pairs))
    return total


class _LocalGroups(NamedTuple):
    """The groups that one prediction reads, numbered from 0.

    Attributes
    ----------
    numbers : int32 array of shape (n_groups,)
        Their numbers in the history, ascending.
    members : mapping of int to int32 array
        Those of each level of ``_RINGS``, by local number.
    ring_index : int32 array of shape (n_groups,)
        Position in ``members`` of their level, -1 for groups without a ring.
    """

    numbers: NDArray[np.int32]
    members: Mapping[int, NDArray[np.int32]]
    ring_index: NDArray[np.int32]


class LiveHistory:
    """``CausalStats`` and ``PastRuns`` of the ended jobs of a live cluster.

    Attributes
    ----------
    calibration : Calibration
        Only the share of jobs that outlived their limits is learned here.
    """

    def __init__(self) -> None:
        self.calibration = empty_calibration()
        self._scratch = Scratch()
        self._n = self._n_groups = self._n_stems = 0
        self._n_rings = dict.fromkeys(_RINGS, 0)
        self._groups, self._traits = (np.repeat(row, _FIRST_ROWS, axis=0) for row in (_NOBODY.groups, _NOBODY.traits))
        self._past = blank_past(*[_FIRST_ROWS] * 5)
        self._stats = CausalStats(*(np.repeat(row, _FIRST_ROWS, axis=0) for row in _BLANK_STATS))
        self._submissions: dict[int, NDArray[np.int64]] = {}  # of ended jobs, by group of the user

    def learn(self, events: Events, started_s: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Add jobs that have ended.

        A later call may have older submissions. Ends count in the order of the calls, and within a call by time, then
        by row.

        Parameters
        ----------
        events : Events
            In submission order.
        started_s, ended_s : int64 arrays, s since the epoch
        """
        self._add_groups(events.groups)
        self._n_stems = max(self._n_stems, int(events.traits[:, 3].max(initial=-1.0)) + 1)
        self._learn_stats(events, ended_s)
        self._learn_past(events, started_s, ended_s)

    def _learn_stats(self, events: Events, ended_s: NDArray[np.int64]) -> None:
        _count_submissions(self._stats.counts, events.groups, events.submitted_s)
        for user, submitted_s in _split_by_group(events.groups[:, USER], events.submitted_s):
            earlier = self._submissions.get(user, _NO_JOBS)
            self._submissions[user] = np.sort(np.concatenate((earlier, submitted_s)))
        # The submission of nobody comes after all ends, so that the kernel learns all of them.
        order = np.argsort(ended_s, kind="stable")
        with_nobody = Events(*map(np.concatenate, zip(_NOBODY, events, strict=True)))
        nobody, unread = np.zeros(1, dtype=np.int64), np.empty((1, len(FEATURES)), dtype=np.float32)
        stats.replay_events(self._stats, with_nobody, nobody, order + 1, ended_s[order], 0, unread)

    def _learn_past(self, events: Events, started_s: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        timed = np.flatnonzero(np.isfinite(events.log_run))
        rows = self._write_rows(events.groups[timed], events.traits[timed])
        by_start, by_end = (rows[np.argsort(times_s[timed], kind="stable")] for times_s in (started_s, ended_s))
        times_s = np.zeros((2, len(self._groups)), dtype=np.int64)
        times_s[0, rows], times_s[1, rows] = started_s[timed], ended_s[timed]
        log_run, log_limit = np.zeros(len(self._groups)), np.full(len(self._groups), np.nan)
        log_run[rows], log_limit[rows] = events.log_run[timed], events.request[timed, COLUMN.log_limit]
        _learn(self._past, self._groups, self.calibration, by_start, by_end, times_s, log_run, log_limit)
        self._n += len(rows)

    def predict(
        self,
        requests: JobTable,
        groups: NDArray[np.int32],
        request_index: NDArray[np.int64],
        unended: UnendedJobs,
        *,
        now_s: int,
        model: Model,
        calibration: Calibration | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Predict the run times of jobs as if submitted now.

        The call does not change what was learned.

        Parameters
        ----------
        requests : JobTable
            Distinct requests of the jobs.
        groups : int32 array of shape (requests.n, len(LEVELS))
            Groups of the requests. Unknown numbers are new groups.
        request_index : int64 array of shape (n_jobs,)
            Position in ``requests`` of each job's.
        unended : UnendedJobs
            Other jobs.
        calibration : Calibration, optional
            Calibration of the intervals; None for that of this object.

        Returns
        -------
        predictions : float64 array of shape (n_jobs, len(RUN_TIME))
        features : float32 array of shape (n_jobs, len(FEATURES))
        """
        events = request_events(requests, groups=groups.copy())
        if len(request_index) > 1:
            events, request_index = self._merge_new_names(events, request_index, unended)
        local = _number_locally(events.groups)
        # Jobs whose groups are not read have the request -1: the last one, which has no groups.
        unended_groups = np.concatenate((_renumber(unended.groups, local.numbers), _NOBODY.groups))
        unended_traits = np.concatenate((unended.traits, _NOBODY.traits))
        history = self._local_stats(local, unended_groups[unended.submitted], unended.submitted_s, now_s)
        features = np.empty((len(request_index), len(FEATURES)), dtype=np.float32)
        _describe_requests(history, events, request_index, features)

        running_rows = self._write_rows(unended_groups[unended.running], unended_traits[unended.running])
        request_rows = self._write_rows(events.groups, events.traits, after=len(running_rows))
        past = self._local_past(local)
        past.started_s[self._n : request_rows[-1] + 1] = NEVER_S
        past.ended[self._n : request_rows[-1] + 1] = False
        calibration = replace(calibration or self.calibration, outlived=self.calibration.outlived)
        by_start, by_request = np.argsort(unended.since_s, kind="stable"), np.argsort(request_index, kind="stable")
        predictions = np.empty((len(request_index), len(RUN_TIME)))
        _predict(
            past,
            history,
            self._groups,
            self._traits,
            calibration,
            model,
            self._scratch,
            running_rows[by_start],
            unended.since_s[by_start],
            features,
            request_index,
            by_request,
            request_rows,
            now_s,
            predictions,
        )
        return predictions, features

    def _merge_new_names(
        self, events: Events, request_index: NDArray[np.int64], unended: UnendedJobs
    ) -> tuple[Events, NDArray[np.int64]]:
        """Merge requests that differ only in names without history.

        No job of such a name, stem or family has ended, so that their groups are empty. At these levels only sums over
        ended jobs are read. A stem that no other job has is equally far from every job.

        Parameters
        ----------
        events : Events
            One entry per request.
        request_index : int64 array
            Position in ``events`` of each job's request.

        Returns
        -------
        events, request_index
            The same with fewer entries.
        """
        groups, traits = events.groups.copy(), events.traits.copy()
        name_groups, stems = groups[:, USER_FAMILY:], traits[:, 3]
        # A number that no other group has, because groups of users have counts too.
        name_groups[name_groups >= self._n_groups] = groups.max() + 1
        stems[(stems >= self._n_stems) & ~np.isin(stems, unended.traits[:, 3])] = -2.0
        first, inverse = distinct_rows(events.request, traits, groups)
        events = replace(events, traits=traits, groups=groups)
        return Events(*(array[first] for array in events)), inverse[request_index]

    def _write_rows(
        self, groups: NDArray[np.int32], traits: NDArray[np.float64], *, after: int = 0
    ) -> NDArray[np.int64]:
        """Write groups and traits of jobs into free rows, and return the rows.

        ``after`` is the number of rows to leave free before them.
        """
        rows = self._n + after + np.arange(len(groups))
        needed = self._n + after + len(groups)
        self._past = _grow_table(
            self._past, _BLANK_PAST, dict.fromkeys(("started_s", "log_run", "ended", "ended_s"), needed)
        )
        self._groups, self._traits = _grow(self._groups, needed, -1), _grow(self._traits, needed, 0.0)
        self._groups[rows], self._traits[rows] = groups, traits
        return rows

    def _add_groups(self, groups: NDArray[np.int32]) -> None:
        """Make room for all groups, and assign rings to new ones."""
        self._n_groups = max(self._n_groups, int(groups.max(initial=-1)) + 1)
        # The row after the last one stays blank and stands for unknown groups.
        ring_index, n_rows = _grow(self._past.ring_index, self._n_groups + 1, -1), dict[str, int]()
        for level, names in _RINGS.items():
            numbers = np.unique(groups[:, level])
            new = numbers[(numbers >= 0) & (ring_index[numbers] < 0)]
            ring_index[new] = np.arange(self._n_rings[level], self._n_rings[level] + len(new), dtype=np.int32)
            self._n_rings[level] += len(new)
            n_rows |= dict.fromkeys(names, self._n_rings[level] + 1)
        self._past = replace(_grow_table(self._past, _BLANK_PAST, n_rows), ring_index=ring_index)
        n_rows = dict.fromkeys(("sums", "counts"), self._n_groups + 1)
        n_rows |= dict.fromkeys(("rings", "ring_length"), self._n_rings[USER] + 1)
        self._stats = replace(_grow_table(self._stats, _BLANK_STATS, n_rows), ring_index=ring_index)

    def _ring_rows(self, numbers: NDArray[np.int32], level: int) -> NDArray[np.int32]:
        """Return the ring of each group, or the blank one after the last."""
        rings = self._past.ring_index[np.minimum(numbers, self._n_groups)]
        return np.where(rings < 0, self._n_rings[level], rings)

    def _local_stats(
        self, local: _LocalGroups, unended_groups: NDArray[np.int32], submitted_s: NDArray[np.int64], now_s: int
    ) -> CausalStats:
        """Return a copy of the local groups' statistics, with jobs that have not ended.

        ``unended_groups`` are the local groups of these jobs, and ``submitted_s`` their submissions.
        """
        rows, rings = (
            np.minimum(local.numbers, self._n_groups),
            self._ring_rows(local.numbers[local.members[USER]], USER),
        )
        history = CausalStats(
            sums=self._stats.sums[rows],
            counts=self._stats.counts[rows],
            rings=self._stats.rings[rings],
            ring_index=local.ring_index,
            ring_length=self._stats.ring_length[rings],
        )
        _count_submissions(history.counts, unended_groups, submitted_s)
        self._set_bursts(history, local, unended_groups[:, USER], submitted_s, now_s)
        return history

    def _local_past(self, local: _LocalGroups) -> PastRuns:
        """Return the past runs with copies of the rings of local groups."""
        past = self._past
        rings = {name: getattr(past, name).copy() for name in ("all_starts", "all_count")}
        for level, names in _RINGS.items():
            rows = self._ring_rows(local.numbers[local.members[level]], level)
            rings |= {name: getattr(past, name)[rows] for name in names}
        return replace(past, ring_index=local.ring_index, all_sample_state=blank_all_sample_state(), **rings)

    def _set_bursts(
        self,
        history: CausalStats,
        local: _LocalGroups,
        unended_users: NDArray[np.int32],
        submitted_s: NDArray[np.int64],
        now_s: int,
    ) -> None:
        """Set the length of the last burst of each user, of ended and other jobs.

        That of other groups is never read.

        Parameters
        ----------
        unended_users, submitted_s : arrays of equal length
            Users and submissions of jobs that have not ended.
        """
        users = local.members[USER]
        recent = users[history.counts[users, stats.LAST_SUBMIT_S] >= now_s - stats.BURST_GAP_S]
        if not len(recent):
            return
        order = np.lexsort((submitted_s, unended_users))
        unended_users, submitted_s = unended_users[order], submitted_s[order]
        first, end = np.searchsorted(unended_users, recent), np.searchsorted(unended_users, recent, side="right")
        for user, low, high in zip(recent.tolist(), first.tolist(), end.tolist(), strict=True):
            ended_submissions_s = self._submissions.get(int(local.numbers[user]), _NO_JOBS)
            history.counts[user, stats.BURST_LENGTH] = _last_burst(ended_submissions_s, submitted_s[low:high])


def _number_locally(groups: NDArray[np.int32]) -> _LocalGroups:
    """Replace the numbers of ``groups`` by local ones, in place, and return the groups.

    ``groups`` has the shape (n, len(LEVELS)).
    """
    numbers = np.unique(groups[groups >= 0])
    groups[:] = _renumber(groups, numbers)
    # The additional last entry is for the number -1 of no group.
    levels = np.full(len(numbers) + 1, -1)
    levels[groups] = np.arange(len(LEVELS))
    members = {level: np.flatnonzero(levels[:-1] == level).astype(np.int32) for level in _RINGS}
    ring_index = np.full(len(numbers), -1, dtype=np.int32)
    for positions in members.values():
        ring_index[positions] = np.arange(len(positions), dtype=np.int32)
    return _LocalGroups(numbers, members, ring_index)


def _grow_table(table: Any, blank: Any, n_rows: Mapping[str, int]) -> Any:
    """Return a table whose arrays have at least so many rows."""
    too_short = {name: n for name, n in n_rows.items() if n > len(getattr(table, name))}
    grown = {name: _grow(getattr(table, name), n, getattr(blank, name)[0]) for name, n in too_short.items()}
    return replace(table, **grown) if grown else table


def _grow(values: NDArray[Any], needed: int, blank: Any) -> NDArray[Any]:
    """Return an array with at least ``needed`` rows.

    It grows by at least half, so that it is rarely copied.
    """
    if needed <= len(values):
        return values
    more = max(needed - len(values), len(values) // 2)
    return np.concatenate((values, np.full((more, *values.shape[1:]), blank, dtype=values.dtype)))


def _renumber(groups: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return groups as positions in the ascending ``numbers``, -1 for others."""
    if not len(numbers):
        return np.full_like(groups, -1)
    positions = np.minimum(np.searchsorted(numbers, groups), len(numbers) - 1)
    return np.where(numbers[positions] == groups, positions, -1).astype(np.int32)


def _split_by_group(groups: NDArray[np.int32], values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the values of each group, without -1."""
    order = np.argsort(groups, kind="stable")
    distinct, first = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], first[1:]) if len(distinct) else []
    return [(group, part) for group, part in zip(distinct.tolist(), parts, strict=True) if group >= 0]


@cached_jit
def _last_burst(ended_s: Any, unended_s: Any) -> int:
    """Return the length of the last burst of submissions in two ascending arrays.

    They are the submissions of ended jobs and of others.
    """
    n_ended, n_unended, length, later_s = len(ended_s), len(unended_s), 0, 0
    while n_ended + n_unended > 0:
        if n_unended == 0 or (n_ended > 0 and ended_s[n_ended - 1] > unended_s[n_unended - 1]):
            n_ended -= 1
            submitted_s = ended_s[n_ended]
        else:
            n_unended -= 1
            submitted_s = unended_s[n_unended]
        if length > 0 and later_s - submitted_s > stats.BURST_GAP_S:
            break
        later_s = submitted_s
        length += 1
    return length


@cached_jit
def _count_submissions(counts: Any, groups: Any, submitted_s: Any) -> None:
    """Add submissions in any order to the counts of their groups, except for bursts."""
    for job in range(len(groups)):
        for group in groups[job]:
            if group < 0:
                continue
            count = counts[group]
            count[stats.N_SUBMITTED] += 1
            count[stats.N_UNENDED] += 1
            count[stats.UNENDED_SUM_S] += submitted_s[job]
            count[stats.LAST_SUBMIT_S] = max(count[stats.LAST_SUBMIT_S], submitted_s[job])


@cached_jit
def _describe_requests(history: Any, events: Any, request_index: Any, features: Any) -> None:
    """Fill in the features of jobs that are submitted in order.

    ``request_index`` has each job's row of ``events``.
    """
    first_job = np.full(len(events.groups), -1)
    for job in range(len(request_index)):
        request, row = request_index[job], features[job]
        if first_job[request] < 0:
            first_job[request] = job
            stats.describe_job(history, events, request, row)
        else:
            # Only submissions were added since the first job of the request.
            row[:] = features[first_job[request]]
            stats.describe_activity(history, events.groups[request], events.submitted_s[request], row)
        stats.count_submission(history, events, request)


@cached_jit
def _learn(  # noqa: PLR0917 - numba kernels are called by position
    past: Any, groups: Any, calibration: Any, by_start: Any, by_end: Any, times_s: Any, log_run: Any, log_limit: Any
) -> None:
    for job in by_start:
        note_start(past, groups, job, times_s[0, job])
    for job in by_end:
        note_end(past, groups, job, times_s[1, job], log_run[job])
        note_outlived(calibration, log_run[job], log_limit[job])


@cached_jit
def _predict(  # noqa: PLR0917 - as above
    past: Any,
    history: Any,
    groups: Any,
    traits: Any,
    calibration: Any,
    model: Any,
    scratch: Any,
    running_rows: Any,
    since_s: Any,
    features: Any,
    request_index: Any,
    by_request: Any,
    request_rows: Any,
    now: int,
    out: Any,
) -> None:
    """Predict jobs, ordered by request so that equal parts are computed once.

    Parameters
    ----------
    running_rows, since_s : int64 arrays
        Rows of ``groups`` and ``traits`` of running jobs, ordered by start, and their starts.
    by_request : int64 array
        Jobs ordered by request.
    request_rows : int64 array
        Rows of ``groups`` and ``traits`` of the requests.
    """
    note_starts(past, groups, running_rows, since_s)
    split_at = np.empty(len(model.forest.feature), dtype=np.int32)
    low, high, previous = 0.0, 0.0, -1
    for job in by_request:
        row = features[job]
        changed = previous < 0 or request_index[job] != request_index[previous]
        if changed:
            take_samples(past, history, groups, traits, request_rows[request_index[job]], now, scratch.samples)
            prepare_grid(scratch, model, row, split_at)
        changed |= update_job_splits(scratch, model, row, split_at)
        if changed:
            compute_cdf(scratch, calibration, model, row, split_at)
        job_low, job_high = bound_level(calibration, row, 0), bound_level(calibration, row, 1)
        if changed or job_low != low or job_high != high:
            low, high = job_low, job_high
            read_prediction(scratch.grid, scratch.cdf, scratch.grid_cdfs[5], low, high, out[job])
            clip_and_round(calibration, row, out[job])
        else:
            out[job] = out[previous]
        previous = job


# Codes and group numbers that do not change when jobs are added.
#
# For a whole history, :func:`helios.predict.job_table.job_groups` factorizes the columns. In a live predictor a new
# user must not change the numbers of the groups that were learned from.


class Codes:
    """Codes of values, numbered in the order in which values first appear."""

    def __init__(self, known: Mapping[Hashable, int] | None = None) -> None:
        self._known = {} if known is None else known
        self._new: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._new)

    def overlay(self) -> Codes:
        """Return an object that starts with these codes.

        New values in it do not change this object, which must not be an overlay itself.
        """
        return Codes(self._new)

    def encode(self, values: Iterable[Hashable]) -> list[int]:
        """Return the code of each value, the next free one for a new value."""
        known, new, first = self._known, self._new, len(self._known)
        if not known:
            return [new.setdefault(value, len(new)) for value in values]
        return [known[value] if value in known else new.setdefault(value, first + len(new)) for value in values]


class GrowingCoding:
    """``Coding`` of a growing history, with numbers of groups.

    Known values and groups keep their numbers. The groups of all levels are numbered together, from 0.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Codes] = {}
        self._names, self._stems, self._groups = Codes(), Codes(), Codes()
        self._families = JobNameFamilies()
        self._name_stems: list[int] = []  # stem of each name, by their codes
        self._is_overlay = False
        self._category_lists: dict[int, tuple[pd.Index[Any], list[Any]]] = {}  # by id of the index

    @property
    def n_groups(self) -> int:
        """Number of groups so far."""
        return len(self._groups)

    def overlay(self) -> GrowingCoding:
        """Return an object that starts with these codes.

        New values in it do not change this object, which must not be an overlay itself.
        """
        other = GrowingCoding()
        other._columns = {name: codes.overlay() for name, codes in self._columns.items()}
        other._names, other._stems, other._groups = self._names.overlay(), self._stems.overlay(), self._groups.overlay()
        other._families = self._families.overlay()
        other._name_stems, other._is_overlay, other._category_lists = self._name_stems, True, self._category_lists
        return other

    def encode(self, name: str, column: Any) -> NDArray[np.int32]:
        """See ``Coding``."""
        categories = self._category_list(column.categories)
        codes = self._columns.setdefault(name, Codes())
        if len(column) > len(categories):
            # The additional last entry is for the code -1 of a missing value.
            category_codes = np.array([*codes.encode(categories), -1], dtype=np.int32)
            return np.asarray(category_codes[column.codes])
        positions = column.codes.tolist()
        present = iter(codes.encode(categories[position] for position in positions if position >= 0))
        return np.array([-1 if position < 0 else next(present) for position in positions], dtype=np.int32)

    def _category_list(self, categories: pd.Index[Any]) -> list[Any]:
        """Return categories as a list, which is cached because frames often share them."""
        cached = self._category_lists.get(id(categories))
        if cached is None or cached[0] is not categories:
            if len(self._category_lists) >= _CACHED_LISTS:
                self._category_lists.clear()
            cached = self._category_lists[id(categories)] = (categories, categories.tolist())
        return cached[1]

    def encode_names(self, names: Any, user: NDArray[np.int32] | None = None) -> NameCodes:
        """See ``Coding``.

        Without ``user`` there are no families.
        """
        texts = list(names)
        codes = np.full((3, len(texts)), -1, dtype=np.int32)
        rows = [row for row, text in enumerate(texts) if isinstance(text, str)]
        if rows:
            texts = [texts[row] for row in rows]
            name_codes = self._names.encode(texts)
            codes[:2, rows] = name_codes, self._encode_stems(name_codes, texts)
            if user is not None and len(texts) < _FEW_NAMES:
                codes[2, rows] = [self._families.code(*job) for job in zip(user[rows].tolist(), texts, strict=True)]
            elif user is not None:
                position, uniques = pd.factorize(np.array(texts, dtype=object))
                codes[2, rows] = self._families.codes(user[rows], position.astype(np.int32), list(uniques))
        return NameCodes(*codes)

    def groups(self, table: JobTable, *, levels: Sequence[int] = range(len(LEVELS))) -> NDArray[np.int32]:
        """Return the number of each job's group at each of ``LEVELS``, -1 for none.

        The result has the shape (table.n, len(LEVELS)).

        Parameters
        ----------
        table : JobTable
            Encoded by this object.
        levels : sequence of int
            Positions of the levels that are needed. The others stay -1.
        """
        columns = {name: values.tolist() for name, values in grouping_columns(table).items()}
        members = group_members(table, [LEVELS[level] for level in levels])
        groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
        for level in levels:
            name = LEVELS[level]
            keys = zip(repeat(level, table.n), *(columns[column] for column in LEVEL_COLUMNS[name]), strict=True)
            member = members[name]
            if member is None:
                groups[:, level] = self._groups.encode(keys)
            elif member.any():
                groups[member, level] = self._groups.encode(compress(keys, member))
        return groups

    def _encode_stems(self, name_codes: list[int], names: list[str]) -> list[int]:
        """Return the code of each name's stem, which is computed for new names alone."""
        known = self._name_stems
        new = {code: name for code, name in zip(name_codes, names, strict=True) if code >= len(known)}
        new_stems = dict(zip(new, self._stems.encode(_DIGITS.sub("", name) for name in new.values()), strict=True))
        stems = [known[code] if code < len(known) else new_stems[code] for code in name_codes]
        if not self._is_overlay:
            known.extend(new_stems.values())  # in the order of the codes of new names
        return stems


# Remaining run time of a running job, from its prediction and its age.
#
# The run time T has a distribution through the three predicted quantiles, whose log-odds of having ended are piecewise
# linear in log T: one line below the median, one from there to p90 (a log-logistic in two pieces, so that every
# quantile of T given T > t has a closed form), and beyond p90 a third whose slope is the same for every job. There it
# is a Pareto law: the remaining time is proportional to the elapsed time, so that a job far beyond its prediction is
# expected neither to end at once nor to run for ever.


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
