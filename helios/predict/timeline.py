"""Predictions along a timeline of submissions, starts and ends.

Each question is answered from what came before it. The same kernels walk a recorded history, follow a replay, and serve
a live cluster.

p10 and p90 are read off the distribution at levels that move, so that each side is missed as often as it should be
(Gibbs and Candes 2021, arXiv:2106.00170). There is one offset for all jobs, one for jobs of new users, one for jobs of
a burst, and one for each user. A job teaches of a bound once it has run as long as the bound, whether it ended or not.
Learned from ends alone, all jobs would seem short.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit
from helios.ports import RUN_TIME
from helios.predict.causal_stats import (
    COLUMN,
    FEATURES,
    NEVER_S,
    REQUEST,
    USER,
    USER_SIZE,
    CausalStats,
    Events,
    _arrive,
    _describe,
    _describe_last,
    _describe_means,
    _describe_record,
    _learn,
    empty_stats,
)
from helios.predict.distribution import (
    GRID,
    GRID_WIDTH,
    N_JOB,
    N_THRESHOLD,
    THRESHOLDS,
    decide_splits,
    describe_pair_job,
    describe_thresholds,
    draw_thresholds,
    find_splits,
    height_before,
    lay_grid,
    place_after,
    pool,
    read_off,
    splice_tail,
    step_trees,
)
from helios.predict.job_table import JobTable, event_order
from helios.predict.past_runs import PastRuns, Samples, empty_past, note_end, note_start, renew_sample, take_samples
from helios.predict.scores import ALIKE_BURST_GAP_S, LOG_ALIKE_GAP, LOG_FEW, LOG_USER_GAP
from helios.predict.trees import MOST_LEAVES, parse_trees

PAIR_ROOM = 200_000
"""Jobs, the last ones, that a model can be trained on."""
GROUPS = ("all", "new user", "burst")
MISS = 0.1
"""How often a run time may lie below p10, and above p90."""
# Steps of the levels, in log-odds: of a group never smaller than STEP, at first FIRST_STEP / sqrt(jobs).
STEP, FIRST_STEP, USER_STEP = 0.02, 0.5, 0.05
# The n-th job of a burst weighs n ** power and at least so much, for known and unknown users. A thousand jobs at once
# are one event; with .1 for known users they moved the levels of all (docs/experiments.md).
BURST_POWER, LEAST_WEIGHT = -0.5, 0.02
STRANGERS_POWER, STRANGERS_LEAST = -0.25, 0.2
# Slurm lets a job outlive its limit by KillWait (30 s) and until its next check of limits.
GRACE_S = 60.0
CLOSE_TO_LIMIT = 0.01
"""Share of an obeyed limit that p90 may lie below it, and is taken to be the limit. Many runs end just there."""
# Runs are cut at the limit unless more than one in a hundred of about the last thousand ended jobs outlived its own.
OUTLIVED_BEFORE, OUTLIVED_AT_MOST, OUTLIVED_DECAY = 0.01, 0.01, 0.999

# Levels at which a job's distribution is kept until it has taught.
_KEPT = np.array(
    [
        *(0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.45),
        *(0.55, 0.7, 0.8, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999),
    ]
)
_LOW, _HIGH = 0, 1
_ODDS = np.log(MISS / (1.0 - MISS))


@dataclass(frozen=True, eq=False)
class Levels(Table):
    """Calibration of a predictor, without that of single users.

    It is kept with a model.

    Attributes
    ----------
    offsets, counts : float64 arrays of shape (2, len(GROUPS))
        Offsets of the levels of p10 and p90 in log-odds, and the jobs that each has learned from.
    outlived : float64 array of shape (1,)
        Share of the last ended jobs that outlived their time limit.
    """

    offsets: NDArray[np.float64]
    counts: NDArray[np.float64]
    outlived: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pairs(Table):
    """Pairs of jobs and thresholds that a model can be trained on.

    There is room for the last ``PAIR_ROOM`` jobs. Job ``n`` is in row ``n % room``.

    Attributes
    ----------
    threshold : float32 array of shape (room, THRESHOLDS)
    of_threshold : float32 array of shape (room, THRESHOLDS, N_THRESHOLD)
    of_job : float32 array of shape (room, N_JOB)
    """

    threshold: NDArray[np.float32]
    of_threshold: NDArray[np.float32]
    of_job: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Model(Table):
    """Trained parts of a predictor, for kernels.

    Attributes
    ----------
    forest : TreeEnsemble
        Without trees the untrained distribution is used.
    tail : float64 array of shape (2, k)
        Times, log1p s, and the share of the runs that outlast the first of them and outlast each.
    """

    forest: Any
    tail: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Heap(Table):
    """Priority queue of moments with an item each.

    Attributes
    ----------
    moment_s, item : int64 arrays of shape (n,)
    length : int64 array of shape (1,)
    """

    moment_s: NDArray[np.int64]
    item: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Waiting(Table):
    """What is kept of each job until it has taught the calibration.

    Attributes
    ----------
    level, bound : float32 arrays of shape (n, 2)
        Levels that p10 and p90 were read off at, and what was read, log1p s; NaN for a job without a prediction.
    kept : float32 array of shape (n, len(_KEPT))
        Times by which the job's run has ended at some levels.
    member : bool array of shape (n, len(GROUPS))
    weight : float32 array of shape (n,)
    of_user : float64 array of shape (n_users, 2)
    burst_last_s, burst_length : int64 arrays of shape (n_groups,)
    bounds : Heap
        When jobs reach their bounds, each as 2 x job + side.
    """

    level: NDArray[np.float32]
    bound: NDArray[np.float32]
    kept: NDArray[np.float32]
    member: NDArray[np.bool_]
    weight: NDArray[np.float32]
    of_user: NDArray[np.float64]
    burst_last_s: NDArray[np.int64]
    burst_length: NDArray[np.int64]
    bounds: Heap


@dataclass(frozen=True, eq=False)
class Scratch(Table):
    """Room for the answer to one question."""

    samples: Samples = field(default_factory=Samples)
    by_grid: NDArray[np.float64] = field(default_factory=lambda: np.zeros((6, GRID)))
    by_pairs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((6, THRESHOLDS)))
    of_grid: NDArray[np.float32] = field(default_factory=lambda: np.full((N_THRESHOLD, GRID_WIDTH), np.nan, np.float32))
    of_pairs: NDArray[np.float32] = field(default_factory=lambda: np.zeros((N_THRESHOLD, THRESHOLDS), dtype=np.float32))
    of_job: NDArray[np.float32] = field(default_factory=lambda: np.zeros(N_JOB, dtype=np.float32))
    at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))
    p: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))
    pairs_at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(THRESHOLDS))
    difference: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID + 1))
    stack: NDArray[np.int64] = field(default_factory=lambda: np.zeros((MOST_LEAVES, 3), dtype=np.int64))
    pooled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))


@dataclass(frozen=True, eq=False)
class State(Table):
    """Everything that a timeline has learned so far."""

    history: CausalStats
    past: PastRuns
    levels: Levels
    waiting: Waiting
    features: NDArray[np.float32]
    pairs: Pairs
    scratch: Scratch


def empty_levels() -> Levels:
    """Return the calibration before the first job."""
    shape = (2, len(GROUPS))
    return Levels(offsets=np.zeros(shape), counts=np.zeros(shape), outlived=np.array([OUTLIVED_BEFORE]))


def empty_state(events: Events, *, pairs: bool) -> State:
    """Return the state before the first job of ``events``.

    Parameters
    ----------
    pairs : bool
        Whether to keep what a model is trained on, 0.9 kB a job.
    """
    n, n_groups = len(events.submitted_s), int(events.groups.max(initial=-1)) + 1
    past = empty_past(events.groups)
    n_pairs = min(n, PAIR_ROOM) if pairs else 0
    return State(
        history=empty_stats(events),
        past=past,
        levels=empty_levels(),
        waiting=Waiting(
            level=np.full((n, 2), np.nan, dtype=np.float32),
            bound=np.full((n, 2), np.nan, dtype=np.float32),
            kept=np.zeros((n, len(_KEPT)), dtype=np.float32),
            member=np.zeros((n, len(GROUPS)), dtype=np.bool_),
            weight=np.ones(n, dtype=np.float32),
            of_user=np.zeros((len(past.user_count), 2)),
            burst_last_s=np.full(n_groups, np.iinfo(np.int64).min // 2),
            burst_length=np.zeros(n_groups, dtype=np.int64),
            bounds=_empty_heap(2 * n),
        ),
        features=np.full((n, len(FEATURES)), np.nan, dtype=np.float32),
        pairs=Pairs(
            threshold=np.zeros((n_pairs, THRESHOLDS), dtype=np.float32),
            of_threshold=np.zeros((n_pairs, THRESHOLDS, N_THRESHOLD), dtype=np.float32),
            of_job=np.zeros((n_pairs, N_JOB), dtype=np.float32),
        ),
        scratch=Scratch(),
    )


def _empty_heap(room: int) -> Heap:
    return Heap(*(np.zeros(length, dtype=np.int64) for length in (room, room, 1)))


@inline_jit
def _start(state: Any, events: Any, job: int, started_s: int) -> None:
    note_start(state.past, events.groups, job, started_s)
    waiting = state.waiting
    for side in range(2):
        if not np.isnan(waiting.bound[job, side]):
            reached_s = started_s + int(np.expm1(float(waiting.bound[job, side]))) + 1
            _push(waiting.bounds, reached_s, 2 * job + side)


@inline_jit
def _end(state: Any, events: Any, job: int, ended_s: int) -> None:
    log_run = events.log_run[job]
    _learn(state.history, events, job, ended_s)
    note_end(state.past, events.groups, job, ended_s, log_run)
    note_outlived(state.levels, log_run, float(events.request[job, COLUMN.log_limit]))


@inline_jit
def note_outlived(levels: Any, log_run: float, log_limit: float) -> None:
    """Count an ended job as one that obeyed or outlived its limit."""
    if np.isfinite(log_limit) and not np.isnan(log_run):
        over = log_run > np.log1p(np.expm1(log_limit) + GRACE_S)
        levels.outlived[0] = OUTLIVED_DECAY * levels.outlived[0] + (1.0 - OUTLIVED_DECAY) * over


@inline_jit
def _push(heap: Any, moment_s: int, item: int) -> None:
    """Add a moment to a heap."""
    place = heap.length[0]
    heap.length[0] += 1
    while place > 0:
        above = (place - 1) // 2
        if not _is_before(moment_s, item, heap, above):
            break
        heap.moment_s[place], heap.item[place] = heap.moment_s[above], heap.item[above]
        place = above
    heap.moment_s[place], heap.item[place] = moment_s, item


@inline_jit
def _pop(heap: Any) -> Any:
    """Remove the first moment, and return its item."""
    first = heap.item[0]
    heap.length[0] -= 1
    n = heap.length[0]
    moment_s, item, place = heap.moment_s[n], heap.item[n], 0
    while 2 * place + 1 < n:
        below = 2 * place + 1
        if below + 1 < n and _is_before(heap.moment_s[below + 1], heap.item[below + 1], heap, below):
            below += 1
        if not _is_before(heap.moment_s[below], heap.item[below], heap, n):
            break
        heap.moment_s[place], heap.item[place] = heap.moment_s[below], heap.item[below]
        place = below
    heap.moment_s[place], heap.item[place] = moment_s, item
    return first


@inline_jit
def _is_before(moment_s: int, item: int, heap: Any, place: int) -> Any:
    """Return whether a moment comes before the one at ``place`` of a heap."""
    return moment_s < heap.moment_s[place] or (moment_s == heap.moment_s[place] and item < heap.item[place])


@inline_jit
def _first_s(heap: Any) -> Any:
    """Return the first moment of a heap, ``NEVER_S`` if it is empty."""
    return heap.moment_s[0] if heap.length[0] > 0 else NEVER_S


@inline_jit
def _level(state: Any, groups: Any, job: int, side: int) -> Any:
    """Return the level of a bound of ``job`` now."""
    odds = _ODDS if side == _LOW else -_ODDS
    for group in range(len(GROUPS)):
        if state.waiting.member[job, group]:
            odds += state.levels.offsets[side, group]
    if groups[job, USER] >= 0:
        odds += state.waiting.of_user[state.past.ring_of[groups[job, USER]], side]
    return 1.0 / (1.0 + np.exp(-odds))


@inline_jit
def _calibrate(state: Any, events: Any, now: int) -> None:
    """Learn from the bounds that jobs have reached before ``now``."""
    waiting, past, levels = state.waiting, state.past, state.levels
    while _first_s(waiting.bounds) < now:
        moment_s, bound = waiting.bounds.moment_s[0], _pop(waiting.bounds)
        job, side = bound // 2, bound % 2
        level, then = _level(state, events.groups, job, side), float(waiting.level[job, side])
        if past.ended[job] and past.ended_s[job] <= moment_s:
            if np.isnan(past.log_run[job]):
                continue
            below = 1.0 if _share_at(waiting.kept[job], past.log_run[job]) < level else 0.0
        else:
            below = 0.0 if level <= then else (level - then) / (1.0 - then)
        missed = waiting.weight[job] * (below - (MISS if side == _LOW else 1.0 - MISS))
        for group in range(len(GROUPS)):
            if waiting.member[job, group]:
                levels.offsets[side, group] -= (
                    max(STEP, FIRST_STEP / np.sqrt(levels.counts[side, group] + 1.0)) * missed
                )
                levels.counts[side, group] += waiting.weight[job]
        if events.groups[job, USER] >= 0:
            waiting.of_user[past.ring_of[events.groups[job, USER]], side] -= USER_STEP * missed


@inline_jit
def _share_at(kept: Any, log_run: float) -> Any:
    """Return the level at which a kept distribution reaches a run time."""
    j = np.searchsorted(kept, log_run)
    if j == 0:
        return 0.0
    if j >= len(kept):
        return 1.0
    width = float(kept[j] - kept[j - 1])
    return _KEPT[j - 1] + (_KEPT[j] - _KEPT[j - 1]) * ((log_run - kept[j - 1]) / width if width > 0.0 else 0.5)


@inline_jit
def _note(state: Any, events: Any, job: int, now: int) -> None:
    """Note the groups and the weight of a submitted job."""
    waiting, row = state.waiting, state.features[job]
    known = events.groups[job, USER_SIZE] >= 0
    alike = events.groups[job, USER_SIZE] if known else events.groups[job, REQUEST]
    again = now - waiting.burst_last_s[alike] <= ALIKE_BURST_GAP_S
    waiting.burst_length[alike] = waiting.burst_length[alike] + 1 if again else 1
    waiting.burst_last_s[alike] = now
    n = float(waiting.burst_length[alike])
    waiting.weight[job] = max(n**BURST_POWER, LEAST_WEIGHT) if known else max(n**STRANGERS_POWER, STRANGERS_LEAST)
    member = waiting.member[job]
    member[0] = True
    member[1] = row[COLUMN.user_ended] < LOG_FEW
    member[2] = row[COLUMN.user_submission_gap] < LOG_USER_GAP or row[COLUMN.user_size_submission_gap] < LOG_ALIKE_GAP


@inline_jit
def distribute(scratch: Any, levels: Any, model: Any, row: Any) -> None:
    """Compute the distribution of a run time on the scratch grid.

    The scratch room has the job's samples.
    """
    ends = np.empty(len(model.forest.feature), dtype=np.int32)
    lay_out(scratch, model, row, ends)
    decide(scratch, model, row, ends)
    add_up(scratch, levels, model, row, ends)


@inline_jit
def lay_out(scratch: Any, model: Any, row: Any, ends: Any) -> None:
    """Lay the scratch grid and find the splits of the trees on it.

    All of it is the same for jobs of one user with the same request.
    """
    lay_grid(scratch.samples, row, scratch.at)
    describe_thresholds(scratch.at, scratch.samples, row, scratch.by_grid, scratch.of_grid)
    find_splits(model.forest, scratch.of_grid, ends)


@inline_jit
def decide(scratch: Any, model: Any, row: Any, ends: Any) -> bool:
    """Fill in how a job goes at splits on its own features.

    The result is whether that has changed.
    """
    describe_pair_job(scratch.samples, row, scratch.of_job)
    return decide_splits(model.forest, scratch.of_job, ends)


@inline_jit
def add_up(scratch: Any, levels: Any, model: Any, row: Any, ends: Any) -> None:
    """Compute the distribution on the scratch grid from where the splits lie."""
    if len(model.forest.root) > 0:
        step_trees(model.forest, ends, scratch.difference, scratch.stack)
        raw = 0.0
        for place in range(GRID):
            raw += scratch.difference[place]
            scratch.p[place] = 1.0 / (1.0 + np.exp(-raw))
        pool(scratch.p, scratch.pooled)
    else:
        scratch.p[:] = scratch.by_grid[5]
    splice_tail(scratch.at, scratch.p, model.tail)
    log_limit = float(row[COLUMN.log_limit])
    if np.isfinite(log_limit) and levels.outlived[0] <= OUTLIVED_AT_MOST:
        last = np.log1p(np.expm1(log_limit) + GRACE_S)
        for place in range(GRID):
            if scratch.at[place] >= last:
                scratch.p[place] = 1.0


@inline_jit
def cut_and_round(levels: Any, row: Any, out: Any) -> None:
    """Cut a prediction at an obeyed time limit, and round its interval.

    The grid is coarser than that. Run times are recorded in whole seconds, and a p10 of 1.0001 s misses every run of
    1 s.
    """
    log_limit = float(row[COLUMN.log_limit])
    if np.isfinite(log_limit) and levels.outlived[0] <= OUTLIVED_AT_MOST:
        last = np.expm1(log_limit) + GRACE_S
        for column in range(RUN_TIME.typical + 1):
            out[column] = min(out[column], last)
        if out[RUN_TIME.p90] >= (1.0 - CLOSE_TO_LIMIT) * np.expm1(log_limit):
            out[RUN_TIME.p90] = last
    out[RUN_TIME.p10] = min(np.rint(out[RUN_TIME.p10]), out[RUN_TIME.p50])
    out[RUN_TIME.p90] = max(np.rint(out[RUN_TIME.p90]), out[RUN_TIME.p50])


@inline_jit
def _within(level: float, side: int) -> float:
    return min(max(level, 0.0005), 0.45) if side == _LOW else min(max(level, 0.55), 0.9995)


@inline_jit
def level_by_features(levels: Any, row: Any, side: int) -> float:
    """Return the level of a bound, by a job's groups alone."""
    odds = (_ODDS if side == _LOW else -_ODDS) + levels.offsets[side, 0]
    if row[COLUMN.user_ended] < LOG_FEW:
        odds += levels.offsets[side, 1]
    if row[COLUMN.user_submission_gap] < LOG_USER_GAP or row[COLUMN.user_size_submission_gap] < LOG_ALIKE_GAP:
        odds += levels.offsets[side, 2]
    return _within(1.0 / (1.0 + np.exp(-odds)), side)


@inline_jit
def _answer(state: Any, events: Any, job: int, out: Any) -> tuple[float, float]:
    """Read off a prediction, and return the levels of its bounds.

    The distribution is in the scratch room.
    """
    scratch = state.scratch
    low = _within(_level(state, events.groups, job, _LOW), _LOW)
    high = _within(_level(state, events.groups, job, _HIGH), _HIGH)
    read_off(scratch.at, scratch.p, scratch.by_grid[5], low, high, out)
    cut_and_round(state.levels, state.features[job], out)
    return low, high


@inline_jit
def _submit(state: Any, events: Any, model: Any, job: int, predicts: bool, out: Any) -> None:  # noqa: PLR0917 - as above
    """Describe a submitted job, keep its pairs, predict it if asked."""
    scratch, now, row = state.scratch, events.submitted_s[job], state.features[job]
    _describe(state.history, events, job, row)
    take_samples(state.past, state.history, events.groups, events.nearness, job, now, scratch.samples)
    n_pairs = len(state.pairs.threshold)
    if n_pairs > 0:
        draw_thresholds(scratch.samples, row[COLUMN.user_last_1], job, scratch.pairs_at)
        describe_thresholds(scratch.pairs_at, scratch.samples, row, scratch.by_pairs, scratch.of_pairs)
        describe_pair_job(scratch.samples, row, state.pairs.of_job[job % n_pairs])
        for k in range(THRESHOLDS):
            state.pairs.threshold[job % n_pairs, k] = scratch.pairs_at[k]
            for feature in range(N_THRESHOLD):
                state.pairs.of_threshold[job % n_pairs, k, feature] = scratch.of_pairs[feature, k]
    _note(state, events, job, now)
    if predicts:
        distribute(state.scratch, state.levels, model, row)
        low, high = _answer(state, events, job, out)
        waiting = state.waiting
        waiting.level[job, _LOW], waiting.level[job, _HIGH] = low, high
        waiting.bound[job, _LOW], waiting.bound[job, _HIGH] = np.log1p(out[RUN_TIME.p10]), np.log1p(out[RUN_TIME.p90])
        place = 0
        for k in range(len(_KEPT)):
            place = place_after(scratch.p, _KEPT[k], place)
            waiting.kept[job, k] = height_before(scratch.p, scratch.at, _KEPT[k], place)
    _arrive(state.history, events, job)


@cached_jit
def predict_submitted(state: Any, events: Any, model: Any, jobs: Any, out: Any) -> None:
    """Predict jobs at their submission, in order.

    Every start and end before it must have been learned.

    Parameters
    ----------
    jobs : int64 array of shape (m,)
        Rows of ``events``.
    out : float64 array of shape (m, len(RUN_TIME))
    """
    for place in range(len(jobs)):
        _calibrate(state, events, events.submitted_s[jobs[place]])
        _submit(state, events, model, jobs[place], True, out[place])


@inline_jit
def pass_submitted(state: Any, events: Any, model: Any, job: int) -> None:
    """Note a submission that nobody asks about.

    Later predictions are the same as if it had been predicted, but for p10 and p90.
    """
    if len(state.pairs.threshold) > 0:
        _submit(state, events, model, job, False, np.empty(0))
    else:
        renew_sample(state.past, events.submitted_s[job])
        _arrive(state.history, events, job)


@dataclass(frozen=True, eq=False)
class Known(Table):
    """Starts and ends that are known and not yet learned.

    Attributes
    ----------
    starts, ends : Heap
        Jobs, by when they start and end.
    noted : bool array of shape (n,)
        Jobs whose start is known.
    run_s : int64 array of shape (n,)
        Run times; 0 where unknown.
    learned : int64 array of shape (1,)
        Ended jobs learned so far whose run time is known.
    """

    starts: Heap
    ends: Heap
    noted: NDArray[np.bool_]
    run_s: NDArray[np.int64]
    learned: NDArray[np.int64]


@cached_jit
def note_started(known: Any, jobs: Any, started_s: Any, before_s: int) -> None:
    """Note the starts of ``jobs`` as far as they are before ``before_s``."""
    for place in range(len(jobs)):
        if started_s[place] < before_s and not known.noted[jobs[place]]:
            known.noted[jobs[place]] = True
            _push(known.starts, started_s[place], jobs[place])


@cached_jit
def note_ended(known: Any, jobs: Any, ended_s: Any) -> None:
    """Note the ends of ``jobs``, and their starts if these are not known."""
    for place in range(len(jobs)):
        job = jobs[place]
        if not known.noted[job]:
            known.noted[job] = True
            _push(known.starts, ended_s[place] - known.run_s[job], job)
        _push(known.ends, ended_s[place], job)


@cached_jit
def learn_known(state: Any, events: Any, known: Any, now: int) -> None:
    """Learn what is known and happened strictly before ``now``."""
    while True:
        start_s, end_s = _first_s(known.starts), _first_s(known.ends)
        if min(start_s, end_s) >= now:
            return
        if start_s <= end_s:
            _start(state, events, _pop(known.starts), start_s)
        else:
            job = _pop(known.ends)
            _end(state, events, job, end_s)
            known.learned[0] += not np.isnan(events.log_run[job])


@cached_jit
def follow_submissions(  # noqa: PLR0917 - numba kernels are called by position
    state: Any,
    events: Any,
    model: Any,
    known: Any,
    jobs: Any,
    ended: Any,
    ended_s: Any,
    limits: tuple[int, int, int],
    told: Any,
    out: Any,
) -> bool:
    """Predict jobs that were submitted one after the other.

    Each is predicted from what had happened before it.

    Parameters
    ----------
    jobs, ended : int64 arrays
        Rows of ``events``, by their times in ``events.submitted_s`` and ``ended_s``.
    limits : tuple of int
        It stops before this place of ``jobs``, at this number of ended jobs, or at this time, s since the epoch.
    told : int64 array of shape (2,)
        How many of ``jobs`` are predicted and of ``ended`` noted; moved on.
    out : float64 array of shape (len(jobs), len(RUN_TIME))

    Returns
    -------
    bool
        Whether all are predicted.
    """
    while told[0] < len(jobs):
        first = told[0]
        now, end = events.submitted_s[jobs[first]], first + 1
        while end < len(jobs) and events.submitted_s[jobs[end]] == now:
            end += 1
        noted = told[1]
        while told[1] < len(ended) and ended_s[told[1]] <= now:
            told[1] += 1
        note_ended(known, ended[noted : told[1]], ended_s[noted : told[1]])
        learn_known(state, events, known, now)
        if end > limits[0] or known.learned[0] >= limits[1] or now >= limits[2]:
            return False
        predict_submitted(state, events, model, jobs[first:end], out[first:end])
        told[0] = end
    return True


@inline_jit
def _ask_again(state: Any, events: Any, model: Any, job: int, now: int, kept: Any, out: Any) -> None:  # noqa: PLR0917 - as above
    """Predict a submitted job again.

    ``kept`` is room for its features at submission, which stay as they are.
    """
    row = state.features[job]
    kept[:] = row
    _describe_means(state.history, events, job, row)
    _describe_last(state.history, events.groups[job], row)
    _describe_record(state.history, events, job, now, row)
    take_samples(state.past, state.history, events.groups, events.nearness, job, now, state.scratch.samples)
    distribute(state.scratch, state.levels, model, row)
    _answer(state, events, job, out)
    row[:] = kept


@cached_jit
def predict_waiting(state: Any, events: Any, model: Any, jobs: Any, now: int, out: Any) -> None:  # noqa: PLR0917 - as above
    """Predict submitted jobs again, as of ``now``.

    What came in with the submission (the user's other jobs, the time of day) stays as it was then.
    """
    _calibrate(state, events, now)
    kept = np.empty(state.features.shape[1], dtype=np.float32)
    for place in range(len(jobs)):
        _ask_again(state, events, model, jobs[place], now, kept, out[place])


@cached_jit
def _walk(  # noqa: PLR0917 - as above
    state: Any, events: Any, model: Any, recorded: Any, places: Any, jobs: Any, predicts: bool, out: Any, at_start: Any
) -> None:
    """Walk over recorded submissions, and predict them if asked to.

    Parameters
    ----------
    recorded : Recorded
    places : int64 array of shape (2,)
        First start and first end that are not yet learned; moved on.
    jobs : int64 array
        Submissions, in order.
    out : float64 array of shape (n, len(RUN_TIME))
        One row for each job of ``events``.
    at_start : float64 array of shape (n, len(RUN_TIME))
        New predictions of jobs that waited, as of their starts. Empty to make none.
    """
    for job in jobs:
        _catch_up(state, events, model, recorded, places, events.submitted_s[job], out, at_start)
        _calibrate(state, events, events.submitted_s[job])
        _submit(state, events, model, job, predicts, out[job])


@cached_jit
def _catch_up(  # noqa: PLR0917 - as above
    state: Any, events: Any, model: Any, recorded: Any, places: Any, now: int, out: Any, at_start: Any
) -> None:
    """Learn the recorded starts and ends strictly before ``now``."""
    kept = np.empty(state.features.shape[1], dtype=np.float32)
    starts, starts_s, ends, ends_s = recorded.starts, recorded.starts_s, recorded.ends, recorded.ends_s
    while True:
        start_s = starts_s[places[0]] if places[0] < len(starts) else NEVER_S
        end_s = ends_s[places[1]] if places[1] < len(ends) else NEVER_S
        if min(start_s, end_s) >= now:
            return
        if start_s > end_s:
            _end(state, events, ends[places[1]], end_s)
            places[1] += 1
            continue
        job = starts[places[0]]
        if len(at_start) > 0 and start_s > events.submitted_s[job] and not np.isnan(out[job, 0]):
            _calibrate(state, events, start_s)
            _ask_again(state, events, model, job, start_s, kept, at_start[job])
        _start(state, events, job, start_s)
        places[0] += 1


@cached_jit
def _describe_pair(state: Any, job: int, log_time: float, out: Any) -> None:
    scratch, row = state.scratch, state.features[job]
    scratch.pairs_at[:] = log_time
    describe_thresholds(scratch.pairs_at, scratch.samples, row, scratch.by_pairs, scratch.of_pairs)
    describe_pair_job(scratch.samples, row, scratch.of_job)
    out[:N_THRESHOLD], out[N_THRESHOLD:] = scratch.of_pairs[:, 0], scratch.of_job


class Recorded(NamedTuple):
    """Starts and ends as recorded, each in order of time.

    Attributes
    ----------
    starts, ends : int64 arrays
        Positions of jobs.
    starts_s, ends_s : int64 arrays
        When, s since the epoch.
    """

    starts: NDArray[np.int64]
    starts_s: NDArray[np.int64]
    ends: NDArray[np.int64]
    ends_s: NDArray[np.int64]


def recorded_events(table: JobTable, *, before: int | None = None) -> Recorded:
    """Return the starts and ends of the first jobs of ``table``.

    All jobs for None. Starts are as of :func:`started_s`. A job of which neither start nor run time is known has none.
    """
    begun_s = started_s(table)
    starts, ends = np.argsort(begun_s, kind="stable"), table.ends()
    starts = starts[((table.started_s != NEVER_S) | np.isfinite(table.run_time_s))[starts]]
    if before is not None:
        starts, ends = starts[starts < before], ends[ends < before]
    return Recorded(starts=starts, starts_s=begun_s[starts], ends=ends, ends_s=table.ended_s[ends])


def started_s(table: JobTable) -> NDArray[np.int64]:
    """Return the start of each job, s since the epoch.

    One that is not known, or makes no sense beside submission and end, is taken to be the submission.
    """
    known = (table.started_s != NEVER_S) & (table.started_s >= table.submitted_s) & (table.started_s <= table.ended_s)
    return np.where(known, table.started_s, table.submitted_s)


NO_TAIL = np.array([[50.0], [1.0]])
"""Tail beyond every run time."""


def untrained() -> Model:
    """Return the model that predicts by the untrained distribution of past runs."""
    return Model(forest=parse_trees(()), tail=NO_TAIL)


class Timeline:
    """Predictions for jobs of a table, each from what came before.

    Starts, ends and run times of a job are not used before they are learned.

    Parameters
    ----------
    table : JobTable
        The jobs; they are named by position, and are submitted in this order.
    pairs : bool
        Whether to keep what training needs.

    Attributes
    ----------
    model : Model
        At first the untrained distribution. It may be exchanged at any time.
    submissions : int
        Jobs submitted so far.
    """

    def __init__(self, table: JobTable, *, pairs: bool) -> None:
        # A replay may submit a job at another moment than the record says.
        self.events = replace(event_order(table), submitted_s=table.submitted_s.copy())
        self.state = empty_state(self.events, pairs=pairs)
        self.model = untrained()
        self.submissions = 0

    def learn(self, known: Known, now_s: int) -> None:
        """Learn what is known and happened strictly before ``now_s``."""
        learn_known(self.state, self.events, known, now_s)

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Return the predictions of ``jobs``, submitted at ``now_s``.

        The result has the shape (len(jobs), len(RUN_TIME)).
        """
        self.events.submitted_s[jobs] = now_s
        self.submissions = max(self.submissions, int(jobs[-1]) + 1)
        out = np.empty((len(jobs), len(RUN_TIME)))
        predict_submitted(self.state, self.events, self.model, jobs, out)
        return out

    def waiting(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Return new predictions of submitted ``jobs`` as of ``now_s``."""
        out = np.empty((len(jobs), len(RUN_TIME)))
        predict_waiting(self.state, self.events, self.model, jobs, now_s, out)
        return out

    def pair_features(self, job: int, log_time: float) -> NDArray[np.float32]:
        """Return the last job's features, paired with a threshold, log1p s.

        The result has the shape (len(PAIR_FEATURES),).
        """
        out = np.empty(N_THRESHOLD + N_JOB, dtype=np.float32)
        _describe_pair(self.state, job, log_time, out)
        return out


class RecordedWalk:
    """Walk over a recorded history, with the predictions of the time.

    Parameters
    ----------
    table : JobTable
        The history.
    before : int, optional
        Only the first jobs are walked over; None for all. The others may be submitted to ``timeline`` afterwards.
    at_start : bool
        Whether to predict jobs that waited again at their starts.
    pairs : bool
        As of :class:`Timeline`.

    Attributes
    ----------
    timeline : Timeline
    predicted : float64 array of shape (table.n, len(RUN_TIME))
        Predictions at submission; NaN where none was made.
    at_start : float64 array of the same shape, or empty
        Predictions as of the start; NaN where a job did not wait.
    """

    def __init__(
        self, table: JobTable, *, before: int | None = None, at_start: bool = False, pairs: bool = True
    ) -> None:
        self.timeline = Timeline(table, pairs=pairs)
        self.predicted = np.full((table.n, len(RUN_TIME)), np.nan)
        self.at_start = np.full((table.n if at_start else 0, len(RUN_TIME)), np.nan)
        self._recorded = recorded_events(table, before=before)
        self._places = np.zeros(2, dtype=np.int64)
        self._submitted_s = table.submitted_s[:before]

    def to(self, until_s: int, *, model: Model | None = None) -> None:
        """Walk on until ``until_s``, s since the epoch.

        Jobs are predicted if a model is given. Everything strictly before ``until_s`` is learned.
        """
        self.submit(int(np.searchsorted(self._submitted_s, until_s)), model=model)
        state, events, model, recorded, places = self._state()
        _catch_up(state, events, model, recorded, places, until_s, self.predicted, self.at_start)

    def submit(self, before: int, *, model: Model | None = None) -> None:
        """Walk on until the jobs before position ``before`` are submitted."""
        timeline = self.timeline
        if model is not None:
            timeline.model = model
        jobs = np.arange(timeline.submissions, before)
        state, events, own, recorded, places = self._state()
        _walk(state, events, own, recorded, places, jobs, model is not None, self.predicted, self.at_start)
        timeline.submissions = max(timeline.submissions, before)

    def _state(self) -> tuple[Any, ...]:
        timeline = self.timeline
        return timeline.state, timeline.events, timeline.model, self._recorded, self._places

    def branch(self, *, levels: Levels | None = None) -> RecordedWalk:
        """Return a copy to walk on with another model, without training.

        Parameters
        ----------
        levels : Levels, optional
            Calibration of the copy; None for the present one.
        """
        other = copy(self)
        other.timeline = copy(self.timeline)
        state = self.timeline.state
        no_pairs = Pairs(*(part[:0] for part in state.pairs))
        kept = replace(state, levels=levels or state.levels, pairs=no_pairs, scratch=Scratch())
        other.timeline.state = _copied(kept)
        other.predicted, other.at_start = self.predicted.copy(), self.at_start.copy()
        other._places = self._places.copy()
        return other

    def levels(self) -> Levels:
        """Return the calibration as it is now."""
        levels: Levels = _copied(self.timeline.state.levels)
        return levels

    def set_levels(self, levels: Levels) -> None:
        """Set the calibration from which the walk goes on."""
        for own, new in zip(self.timeline.state.levels, levels, strict=True):
            own[:] = new

    def known_events(self, run_s: NDArray[np.int64]) -> Known:
        """Return the recorded starts and ends that are not yet learned.

        There is room for those of all jobs. ``run_s`` are the run times of the jobs; 0 where unknown.
        """
        past, (start, end) = self.timeline.state.past, self._places
        starts, starts_s, ends, ends_s = self._recorded
        known = Known(
            starts=_empty_heap(len(run_s)),
            ends=_empty_heap(len(run_s)),
            noted=past.started_s != NEVER_S,
            run_s=run_s,
            learned=np.array([np.isfinite(past.log_run).sum()]),
        )
        note_started(known, starts[start:], starts_s[start:], NEVER_S)
        known.noted[ends[end:]] = True
        note_ended(known, ends[end:], ends_s[end:])
        return known


def _copied(value: Any) -> Any:
    """Return a copy of nested tables."""
    return value.copy() if isinstance(value, np.ndarray) else type(value)(*map(_copied, value))
