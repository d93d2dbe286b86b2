"""Statistics and past runs of ended jobs, with arrays that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit
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
from helios.predict.job_table import JobTable, distinct_rows, request_events
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
    update_job_splits,
)

if TYPE_CHECKING:
    pass

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
NOBODY = Events(
    submitted_s=np.array([NEVER_S]),
    log_run=np.full(1, np.nan),
    limit_share=np.full(1, np.nan),
    failed=np.full(1, np.nan),
    request=np.zeros((1, len(stats.REQUEST_FEATURES)), dtype=np.float32),
    traits=np.zeros((1, 4)),
    groups=np.full((1, len(LEVELS)), -1, dtype=np.int32),
)
# Each array has one row, the initial value of all new rows.
_BLANK_STATS = stats.empty_stats(replace(NOBODY, groups=np.zeros_like(NOBODY.groups)))
_BLANK_PAST = blank_past(1, 1, 1, 1, 1)


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


_NO_UNENDED_JOBS = UnendedJobs(NOBODY.groups[:0], NOBODY.traits[:0], *[_NO_JOBS] * 4)


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
        self._groups, self._traits = (np.repeat(row, _FIRST_ROWS, axis=0) for row in (NOBODY.groups, NOBODY.traits))
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
        with_nobody = Events(*map(np.concatenate, zip(NOBODY, events, strict=True)))
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
        unended_groups = np.concatenate((_renumber(unended.groups, local.numbers), NOBODY.groups))
        unended_traits = np.concatenate((unended.traits, NOBODY.traits))
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
        """Copy the local groups' statistics, with jobs that have not ended.

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
        """Set the length of each user's last burst of jobs.

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
    """Replace group numbers by local ones in place, and return them.

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
    """Add submissions to the counts of their groups, except for bursts."""
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
