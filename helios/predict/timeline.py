"""Predictions along a timeline of submissions, starts and ends.

Each prediction uses only what happened before it. The same kernels process a recorded history, a replay, and a live
cluster.

The bounds p10 and p90 are two quantiles of the predicted distribution. Their levels are adjusted online, so that each
bound is missed as often as it should be (adaptive conformal inference; Gibbs and Candes 2021, arXiv:2106.00170). There
is one offset for all jobs, one for jobs of new users, one for jobs of a burst, and one for each user. The offsets learn
from a bound once the job has run as long as the bound, whether it has ended or not. Learned from ended jobs alone, all
jobs would seem short.
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
    count_end,
    count_submission,
    describe_job,
    describe_last_runs,
    describe_means,
    describe_outcomes,
    empty_stats,
)
from helios.predict.distribution import (
    GRID,
    GRID_WIDTH,
    N_JOB,
    N_THRESHOLD,
    THRESHOLDS,
    add_trees,
    choose_grid,
    describe_pair_job,
    describe_thresholds,
    draw_thresholds,
    extend_tail,
    interpolate_at,
    place_job_splits,
    place_threshold_splits,
    pool_violators,
    read_prediction,
    search_from,
)
from helios.predict.job_table import JobTable, job_events
from helios.predict.past_runs import PastRuns, Samples, empty_past, note_end, note_start, renew_sample, take_samples
from helios.predict.scores import BURST_GAP_S, LOG_BURST_GAP, LOG_FEW, LOG_USER_GAP
from helios.predict.trees import MOST_LEAVES, parse_trees

PAIR_ROOM = 200_000
"""Number of the last jobs that a model can be trained on."""
GROUPS = ("all", "new user", "burst")
"""Groups of jobs with a calibration offset of their own. A job can be in several."""
MISS = 0.1
"""Target share of run times below p10, and of those above p90."""
# Steps of the offsets, in log-odds. The step of a group is FIRST_STEP / sqrt(jobs), and at least STEP.
STEP, FIRST_STEP, USER_STEP = 0.02, 0.5, 0.05
# Weight in the calibration of the n-th job of a burst: n ** power, and at least the second number. A thousand jobs
# submitted at once are one event. With a least weight of .1 they moved the offsets of all jobs
# (docs/research/experiments.md).
BURST_POWER, LEAST_WEIGHT = -0.5, 0.02
UNKNOWN_USER_POWER, UNKNOWN_USER_LEAST_WEIGHT = -0.25, 0.2
# Slurm lets a job outlive its limit by KillWait (30 s) and until its next check of limits.
GRACE_S = 60.0
CLOSE_TO_LIMIT = 0.01
"""A p90 that lies below an enforced limit by at most this share is set to the limit, where many runs end."""
# Limits count as enforced while at most this share of the last thousand or so ended jobs outlived theirs.
OUTLIVED_BEFORE, OUTLIVED_AT_MOST, OUTLIVED_DECAY = 0.01, 0.01, 0.999
# Levels of the quantiles that are kept of a job's predicted distribution.
_QUANTILE_LEVELS = np.array(
    [
        *(0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.45),
        *(0.55, 0.7, 0.8, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999),
    ]
)
_LOW, _HIGH = 0, 1
"""The sides of an interval, and columns of arrays with one entry per side."""
_MISS_LOG_ODDS = np.log(MISS / (1.0 - MISS))

NO_TAIL = np.array([[50.0], [1.0]])
"""Tail without effect, because it begins beyond every run time."""


class Timeline:
    """Predictor of the jobs of a table, each from what came before.

    Starts, ends and run times of a job are not used before they are learned.

    Parameters
    ----------
    table : JobTable
        The jobs, in the order of their submission. Methods take positions in it.
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
        self.events = replace(job_events(table), submitted_s=table.submitted_s.copy())
        self.state = empty_state(self.events, pairs=pairs)
        self.model = untrained()
        self.submissions = 0

    def learn(self, unlearned: UnlearnedEvents, now_s: int) -> None:
        """Learn what is known and happened strictly before ``now_s``."""
        learn_events(self.state, self.events, unlearned, now_s)

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
        """Return the features of the last predicted job and a threshold.

        ``log_time`` is the threshold, log1p s. The result has the shape (len(PAIR_FEATURES),).
        """
        out = np.empty(N_THRESHOLD + N_JOB, dtype=np.float32)
        _describe_pair(self.state, job, log_time, out)
        return out


class RecordedWalk:
    """Walk over a recorded history that predicts jobs as it goes.

    Parameters
    ----------
    table : JobTable
        The history.
    before : int, optional
        Number of the first jobs to walk over; None for all. The others may be submitted to ``timeline`` afterwards.
    at_start : bool
        Whether jobs that waited are predicted again at their starts.
    pairs : bool
        As in :class:`Timeline`.

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
        self._next = np.zeros(2, dtype=np.int64)
        self._submitted_s = table.submitted_s[:before]

    def to(self, until_s: int, *, model: Model | None = None) -> None:
        """Continue to ``until_s``, s since the epoch.

        Jobs are predicted if a model is given. Everything that happened strictly before ``until_s`` is learned.
        """
        self.submit(int(np.searchsorted(self._submitted_s, until_s)), model=model)
        _catch_up(*self._kernel_arguments(), until_s, self.predicted, self.at_start)

    def submit(self, before: int, *, model: Model | None = None) -> None:
        """Continue until the jobs before position ``before`` are submitted."""
        timeline = self.timeline
        if model is not None:
            timeline.model = model
        jobs = np.arange(timeline.submissions, before)
        _walk_recorded(*self._kernel_arguments(), jobs, model is not None, self.predicted, self.at_start)
        timeline.submissions = max(timeline.submissions, before)

    def _kernel_arguments(self) -> tuple[Any, Any, Any, Any, Any]:
        timeline = self.timeline
        return timeline.state, timeline.events, timeline.model, self._recorded, self._next

    def branch(self, *, calibration: Calibration | None = None) -> RecordedWalk:
        """Return a copy that continues on its own and keeps nothing for training.

        Parameters
        ----------
        calibration : Calibration, optional
            Calibration of the copy; None for the present one.
        """
        state = self.timeline.state
        no_pairs = Pairs(*(array[:0] for array in state.pairs))
        state = replace(state, calibration=calibration or state.calibration, pairs=no_pairs, scratch=Scratch())
        other = copy(self)
        other.timeline = copy(self.timeline)
        other.timeline.state = _deep_copy(state)
        other.predicted, other.at_start = self.predicted.copy(), self.at_start.copy()
        other._next = self._next.copy()
        return other

    def calibration(self) -> Calibration:
        """Return a copy of the present calibration."""
        calibration: Calibration = _deep_copy(self.timeline.state.calibration)
        return calibration

    def set_calibration(self, calibration: Calibration) -> None:
        """Replace the present calibration."""
        for old, new in zip(self.timeline.state.calibration, calibration, strict=True):
            old[:] = new

    def unlearned_events(self, run_s: NDArray[np.int64]) -> UnlearnedEvents:
        """Return the recorded starts and ends that are not yet learned.

        The result has room for the events of all jobs. ``run_s`` are the run times of all jobs, 0 where unknown.
        """
        past, (start, end) = self.timeline.state.past, self._next
        starts, starts_s, ends, ends_s = self._recorded
        unlearned = UnlearnedEvents(
            starts=_empty_heap(len(run_s)),
            ends=_empty_heap(len(run_s)),
            start_known=past.started_s != NEVER_S,
            run_s=run_s,
            learned=np.array([np.isfinite(past.log_run).sum()]),
        )
        note_started(unlearned, starts[start:], starts_s[start:], NEVER_S)
        unlearned.start_known[ends[end:]] = True
        note_ended(unlearned, ends[end:], ends_s[end:])
        return unlearned


def _deep_copy(value: Any) -> Any:
    """Return a copy of nested tables."""
    return value.copy() if isinstance(value, np.ndarray) else type(value)(*map(_deep_copy, value))


class RecordedEvents(NamedTuple):
    """Recorded starts and ends, each in order of time.

    Attributes
    ----------
    starts, ends : int64 arrays
        Positions of the jobs that start and that end.
    starts_s, ends_s : int64 arrays
        Times, s since the epoch.
    """

    starts: NDArray[np.int64]
    starts_s: NDArray[np.int64]
    ends: NDArray[np.int64]
    ends_s: NDArray[np.int64]


def recorded_events(table: JobTable, *, before: int | None = None) -> RecordedEvents:
    """Return starts and ends of the first ``before`` jobs, or all.

    Starts are those of :func:`started_s`. A job has none if neither its start nor its run time is known.
    """
    starts_s = started_s(table)
    starts, ends = np.argsort(starts_s, kind="stable"), table.ends()
    has_start = (table.started_s != NEVER_S) | np.isfinite(table.run_time_s)
    starts = starts[has_start[starts]]
    if before is not None:
        starts, ends = starts[starts < before], ends[ends < before]
    return RecordedEvents(starts=starts, starts_s=starts_s[starts], ends=ends, ends_s=table.ended_s[ends])


def started_s(table: JobTable) -> NDArray[np.int64]:
    """Return the start of each job, s since the epoch.

    A start that is unknown, before the submission or after the end is replaced by the submission.
    """
    is_known = (
        (table.started_s != NEVER_S) & (table.started_s >= table.submitted_s) & (table.started_s <= table.ended_s)
    )
    return np.where(is_known, table.started_s, table.submitted_s)


@dataclass(frozen=True, eq=False)
class Calibration(Table):
    """Calibration of the bounds, without the offsets of single users.

    It is stored with a model.

    Attributes
    ----------
    offsets, counts : float64 arrays of shape (2, len(GROUPS))
        Offsets of the levels of p10 and p90, log-odds, and the number of jobs that each has learned from.
    outlived : float64 array of shape (1,)
        Share of the last ended jobs that outlived their time limit.
    """

    offsets: NDArray[np.float64]
    counts: NDArray[np.float64]
    outlived: NDArray[np.float64]


def empty_calibration() -> Calibration:
    """Return the calibration before the first job."""
    shape = (2, len(GROUPS))
    return Calibration(offsets=np.zeros(shape), counts=np.zeros(shape), outlived=np.array([OUTLIVED_BEFORE]))


@dataclass(frozen=True, eq=False)
class Model(Table):
    """Trained parts of a predictor, for kernels.

    Attributes
    ----------
    forest : TreeEnsemble
        Without trees the untrained distribution is used.
    tail : float64 array of shape (2, k)
        Times, log1p s, and for each the share that outlasts it of the runs that outlast the first.
    """

    forest: Any
    tail: NDArray[np.float64]


def untrained() -> Model:
    """Return the model that uses the untrained distribution of past runs."""
    return Model(forest=parse_trees(()), tail=NO_TAIL)


@dataclass(frozen=True, eq=False)
class Heap(Table):
    """Priority queue of items by time.

    Attributes
    ----------
    time_s, item : int64 arrays of shape (n,)
    length : int64 array of shape (1,)
    """

    time_s: NDArray[np.int64]
    item: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PendingBounds(Table):
    """Predicted bounds that the calibration has not yet learned from.

    Attributes
    ----------
    level, bound : float32 arrays of shape (n, 2)
        Levels at which p10 and p90 of each job were read, and their values, log1p s; NaN without a prediction.
    quantiles : float32 array of shape (n, len(_QUANTILE_LEVELS))
        Quantiles of each job's predicted distribution, log1p s.
    in_group : bool array of shape (n, len(GROUPS))
    weight : float32 array of shape (n,)
        Weight of each job, less in a long burst.
    user_offsets : float64 array of shape (n_users, 2)
        Offsets of single users, log-odds.
    burst_last_s, burst_length : int64 arrays of shape (n_groups,)
        Last submission and length of each group's present burst.
    due : Heap
        Times at which jobs reach their bounds. An item is 2 x job + side.
    """

    level: NDArray[np.float32]
    bound: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    in_group: NDArray[np.bool_]
    weight: NDArray[np.float32]
    user_offsets: NDArray[np.float64]
    burst_last_s: NDArray[np.int64]
    burst_length: NDArray[np.int64]
    due: Heap


@dataclass(frozen=True, eq=False)
class Pairs(Table):
    """Pairs of jobs and thresholds that a model can be trained on.

    The last ``PAIR_ROOM`` jobs are kept. Job ``n`` is in row ``n % room``.

    Attributes
    ----------
    threshold : float32 array of shape (room, THRESHOLDS)
    threshold_features : float32 array of shape (room, THRESHOLDS, N_THRESHOLD)
    job_features : float32 array of shape (room, N_JOB)
    """

    threshold: NDArray[np.float32]
    threshold_features: NDArray[np.float32]
    job_features: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Scratch(Table):
    """Buffers for one prediction, which the kernels reuse.

    Attributes
    ----------
    samples : Samples
    grid, cdf : float64 arrays of shape (GRID,)
        Times, log1p s, and the predicted probability that the run has ended by each.
    grid_cdfs, threshold_cdfs : float64 arrays of shapes (6, GRID), (6, THRESHOLDS)
        Untrained distributions at the times of the grid and at the thresholds for training.
    grid_features, threshold_features : float32 arrays of N_THRESHOLD rows
    job_features : float32 array of shape (N_JOB,)
    thresholds : float64 array of shape (THRESHOLDS,)
        Thresholds for training, log1p s.
    raw_steps, stack, pool_weights
        Intermediate results of :mod:`helios.predict.distribution`.
    """

    samples: Samples = field(default_factory=Samples)
    grid_cdfs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((6, GRID)))
    threshold_cdfs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((6, THRESHOLDS)))
    grid_features: NDArray[np.float32] = field(
        default_factory=lambda: np.full((N_THRESHOLD, GRID_WIDTH), np.nan, np.float32)
    )
    threshold_features: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((N_THRESHOLD, THRESHOLDS), dtype=np.float32)
    )
    job_features: NDArray[np.float32] = field(default_factory=lambda: np.zeros(N_JOB, dtype=np.float32))
    grid: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))
    cdf: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))
    thresholds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(THRESHOLDS))
    raw_steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID + 1))
    stack: NDArray[np.int64] = field(default_factory=lambda: np.zeros((MOST_LEAVES, 3), dtype=np.int64))
    pool_weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))


@dataclass(frozen=True, eq=False)
class State(Table):
    """Everything that a timeline has learned so far.

    ``features`` has a row for each job, of its last description.
    """

    history: CausalStats
    past: PastRuns
    calibration: Calibration
    pending: PendingBounds
    features: NDArray[np.float32]
    pairs: Pairs
    scratch: Scratch


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
        calibration=empty_calibration(),
        pending=PendingBounds(
            level=np.full((n, 2), np.nan, dtype=np.float32),
            bound=np.full((n, 2), np.nan, dtype=np.float32),
            quantiles=np.zeros((n, len(_QUANTILE_LEVELS)), dtype=np.float32),
            in_group=np.zeros((n, len(GROUPS)), dtype=np.bool_),
            weight=np.ones(n, dtype=np.float32),
            user_offsets=np.zeros((len(past.user_count), 2)),
            burst_last_s=np.full(n_groups, np.iinfo(np.int64).min // 2),
            burst_length=np.zeros(n_groups, dtype=np.int64),
            due=_empty_heap(2 * n),
        ),
        features=np.full((n, len(FEATURES)), np.nan, dtype=np.float32),
        pairs=Pairs(
            threshold=np.zeros((n_pairs, THRESHOLDS), dtype=np.float32),
            threshold_features=np.zeros((n_pairs, THRESHOLDS, N_THRESHOLD), dtype=np.float32),
            job_features=np.zeros((n_pairs, N_JOB), dtype=np.float32),
        ),
        scratch=Scratch(),
    )


@dataclass(frozen=True, eq=False)
class UnlearnedEvents(Table):
    """Starts and ends that are known and not yet learned.

    Attributes
    ----------
    starts, ends : Heap
        Jobs by the times of their starts and ends.
    start_known : bool array of shape (n,)
        Whether a start of the job is in ``starts`` or learned.
    run_s : int64 array of shape (n,)
        Run times, s; 0 where unknown.
    learned : int64 array of shape (1,)
        Number of learned ends with a known run time.
    """

    starts: Heap
    ends: Heap
    start_known: NDArray[np.bool_]
    run_s: NDArray[np.int64]
    learned: NDArray[np.int64]


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
    for i in range(len(jobs)):
        _calibrate(state, events, events.submitted_s[jobs[i]])
        _submit(state, events, model, jobs[i], True, out[i])


@inline_jit
def pass_submitted(state: Any, events: Any, model: Any, job: int) -> None:
    """Process a submission without a prediction.

    Later predictions are the same as if it had been predicted, except for p10 and p90.
    """
    if len(state.pairs.threshold) > 0:
        _submit(state, events, model, job, False, np.empty(0))
    else:
        renew_sample(state.past, events.submitted_s[job])
        count_submission(state.history, events, job)


@inline_jit
def _submit(state: Any, events: Any, model: Any, job: int, predicts: bool, out: Any) -> None:  # noqa: PLR0917 - kernels are called by position
    """Describe a submitted job, keep its pairs, and predict it if ``predicts``."""
    scratch, pending, features = state.scratch, state.pending, state.features[job]
    now = events.submitted_s[job]
    describe_job(state.history, events, job, features)
    take_samples(state.past, state.history, events.groups, events.traits, job, now, scratch.samples)
    if len(state.pairs.threshold) > 0:
        _keep_pairs(state, job, features)
    _set_burst_weight(pending, events, job, now)
    pending.in_group[job, 0] = True
    pending.in_group[job, 1] = features[COLUMN.user_ended] < LOG_FEW
    pending.in_group[job, 2] = _is_in_burst(features)
    if predicts:
        compute_distribution(scratch, state.calibration, model, features)
        low, high = _read_prediction(state, events, job, out)
        pending.level[job, _LOW], pending.level[job, _HIGH] = low, high
        pending.bound[job, _LOW], pending.bound[job, _HIGH] = np.log1p(out[RUN_TIME.p10]), np.log1p(out[RUN_TIME.p90])
        i = 0
        for k in range(len(_QUANTILE_LEVELS)):
            i = search_from(scratch.cdf, _QUANTILE_LEVELS[k], i)
            pending.quantiles[job, k] = interpolate_at(scratch.cdf, scratch.grid, _QUANTILE_LEVELS[k], i)
    count_submission(state.history, events, job)


@inline_jit
def _keep_pairs(state: Any, job: int, features: Any) -> None:
    """Draw thresholds for a job, and keep the pairs for training."""
    scratch, pairs = state.scratch, state.pairs
    row = job % len(pairs.threshold)
    draw_thresholds(scratch.samples, features[COLUMN.user_last_1], job, scratch.thresholds)
    describe_thresholds(
        scratch.thresholds, scratch.samples, features, scratch.threshold_cdfs, scratch.threshold_features
    )
    describe_pair_job(scratch.samples, features, pairs.job_features[row])
    for k in range(THRESHOLDS):
        pairs.threshold[row, k] = scratch.thresholds[k]
        for feature in range(N_THRESHOLD):
            pairs.threshold_features[row, k, feature] = scratch.threshold_features[feature, k]


@inline_jit
def _set_burst_weight(pending: Any, events: Any, job: int, now: int) -> None:
    """Count a submitted job in its burst, and set its weight."""
    user_known = events.groups[job, USER_SIZE] >= 0
    group = events.groups[job, USER_SIZE] if user_known else events.groups[job, REQUEST]
    continues = now - pending.burst_last_s[group] <= BURST_GAP_S
    pending.burst_length[group] = pending.burst_length[group] + 1 if continues else 1
    pending.burst_last_s[group] = now
    n = float(pending.burst_length[group])
    if user_known:
        pending.weight[job] = max(n**BURST_POWER, LEAST_WEIGHT)
    else:
        pending.weight[job] = max(n**UNKNOWN_USER_POWER, UNKNOWN_USER_LEAST_WEIGHT)


@inline_jit
def _is_in_burst(features: Any) -> Any:
    """Return whether a job follows soon on another of its user."""
    return (
        features[COLUMN.user_submission_gap] < LOG_USER_GAP or features[COLUMN.user_size_submission_gap] < LOG_BURST_GAP
    )


@cached_jit
def follow_submissions(  # noqa: PLR0917 - numba kernels are called by position
    state: Any,
    events: Any,
    model: Any,
    unlearned: Any,
    jobs: Any,
    ended: Any,
    ended_s: Any,
    limits: tuple[int, int, int],
    progress: Any,
    out: Any,
) -> bool:
    """Predict jobs in the order of their submission, and learn ends in between.

    Parameters
    ----------
    jobs, ended : int64 arrays
        Rows of ``events``, ordered by ``events.submitted_s`` and by ``ended_s``.
    limits : tuple of int
        Stop before this position in ``jobs``, at this number of learned ends, or at this time, s since the epoch.
    progress : int64 array of shape (2,)
        How many of ``jobs`` are predicted and how many of ``ended`` are noted; updated.
    out : float64 array of shape (len(jobs), len(RUN_TIME))

    Returns
    -------
    bool
        Whether all are predicted.
    """
    while progress[0] < len(jobs):
        first = progress[0]
        now, end = events.submitted_s[jobs[first]], first + 1
        while end < len(jobs) and events.submitted_s[jobs[end]] == now:
            end += 1
        first_end = progress[1]
        while progress[1] < len(ended) and ended_s[progress[1]] <= now:
            progress[1] += 1
        note_ended(unlearned, ended[first_end : progress[1]], ended_s[first_end : progress[1]])
        learn_events(state, events, unlearned, now)
        if end > limits[0] or unlearned.learned[0] >= limits[1] or now >= limits[2]:
            return False
        predict_submitted(state, events, model, jobs[first:end], out[first:end])
        progress[0] = end
    return True


@cached_jit
def _walk_recorded(  # noqa: PLR0917 - as above
    state: Any,
    events: Any,
    model: Any,
    recorded: Any,
    next_event: Any,
    jobs: Any,
    predicts: bool,
    out: Any,
    at_start: Any,
) -> None:
    """Process recorded submissions, and predict them if ``predicts``.

    Parameters
    ----------
    recorded : RecordedEvents
    next_event : int64 array of shape (2,)
        Positions of the first start and the first end that are not yet learned; updated.
    jobs : int64 array
        Submissions, in order.
    out : float64 array of shape (n, len(RUN_TIME))
        One row for each job of ``events``.
    at_start : float64 array of shape (n, len(RUN_TIME))
        New predictions of jobs that waited, as of their starts. Empty to make none.
    """
    for job in jobs:
        _catch_up(state, events, model, recorded, next_event, events.submitted_s[job], out, at_start)
        _calibrate(state, events, events.submitted_s[job])
        _submit(state, events, model, job, predicts, out[job])


@cached_jit
def _catch_up(  # noqa: PLR0917 - as above
    state: Any, events: Any, model: Any, recorded: Any, next_event: Any, now: int, out: Any, at_start: Any
) -> None:
    """Learn the recorded starts and ends strictly before ``now``.

    The arguments are those of ``_walk_recorded``.
    """
    submitted_features = np.empty(state.features.shape[1], dtype=np.float32)
    starts, starts_s, ends, ends_s = recorded.starts, recorded.starts_s, recorded.ends, recorded.ends_s
    while True:
        start_s = starts_s[next_event[0]] if next_event[0] < len(starts) else NEVER_S
        end_s = ends_s[next_event[1]] if next_event[1] < len(ends) else NEVER_S
        if min(start_s, end_s) >= now:
            return
        if start_s > end_s:
            _end(state, events, ends[next_event[1]], end_s)
            next_event[1] += 1
            continue
        job = starts[next_event[0]]
        if len(at_start) > 0 and start_s > events.submitted_s[job] and not np.isnan(out[job, 0]):
            _calibrate(state, events, start_s)
            _predict_again(state, events, model, job, start_s, submitted_features, at_start[job])
        _start(state, events, job, start_s)
        next_event[0] += 1


@cached_jit
def predict_waiting(state: Any, events: Any, model: Any, jobs: Any, now: int, out: Any) -> None:  # noqa: PLR0917 - as above
    """Predict submitted jobs again, as of ``now``.

    What was known of the submission itself (the user's other jobs, the time of day) stays as it was then.
    """
    _calibrate(state, events, now)
    submitted_features = np.empty(state.features.shape[1], dtype=np.float32)
    for i in range(len(jobs)):
        _predict_again(state, events, model, jobs[i], now, submitted_features, out[i])


@inline_jit
def _predict_again(state: Any, events: Any, model: Any, job: int, now: int, submitted_features: Any, out: Any) -> None:  # noqa: PLR0917 - as above
    """Predict a submitted job again, without changing its features.

    ``submitted_features`` is a buffer for them.
    """
    features = state.features[job]
    submitted_features[:] = features
    describe_means(state.history, events, job, features)
    describe_last_runs(state.history, events.groups[job], features)
    describe_outcomes(state.history, events, job, now, features)
    take_samples(state.past, state.history, events.groups, events.traits, job, now, state.scratch.samples)
    compute_distribution(state.scratch, state.calibration, model, features)
    _read_prediction(state, events, job, out)
    features[:] = submitted_features


@cached_jit
def _describe_pair(state: Any, job: int, log_time: float, out: Any) -> None:
    scratch, features = state.scratch, state.features[job]
    scratch.thresholds[:] = log_time
    describe_thresholds(
        scratch.thresholds, scratch.samples, features, scratch.threshold_cdfs, scratch.threshold_features
    )
    describe_pair_job(scratch.samples, features, scratch.job_features)
    out[:N_THRESHOLD], out[N_THRESHOLD:] = scratch.threshold_features[:, 0], scratch.job_features


@cached_jit
def note_started(unlearned: Any, jobs: Any, started_s: Any, before_s: int) -> None:
    """Note the starts of ``jobs`` that lie before ``before_s``."""
    for i in range(len(jobs)):
        if started_s[i] < before_s and not unlearned.start_known[jobs[i]]:
            unlearned.start_known[jobs[i]] = True
            _push(unlearned.starts, started_s[i], jobs[i])


@cached_jit
def note_ended(unlearned: Any, jobs: Any, ended_s: Any) -> None:
    """Note the ends of ``jobs``, and their starts if these are not known."""
    for i in range(len(jobs)):
        job = jobs[i]
        if not unlearned.start_known[job]:
            unlearned.start_known[job] = True
            _push(unlearned.starts, ended_s[i] - unlearned.run_s[job], job)
        _push(unlearned.ends, ended_s[i], job)


@cached_jit
def learn_events(state: Any, events: Any, unlearned: Any, now: int) -> None:
    """Learn what is known and happened strictly before ``now``."""
    while True:
        start_s, end_s = _first_s(unlearned.starts), _first_s(unlearned.ends)
        if min(start_s, end_s) >= now:
            return
        if start_s <= end_s:
            _start(state, events, _pop(unlearned.starts), start_s)
        else:
            job = _pop(unlearned.ends)
            _end(state, events, job, end_s)
            unlearned.learned[0] += not np.isnan(events.log_run[job])


@inline_jit
def _start(state: Any, events: Any, job: int, started_s: int) -> None:
    note_start(state.past, events.groups, job, started_s)
    pending = state.pending
    for side in range(2):
        if not np.isnan(pending.bound[job, side]):
            reached_s = started_s + int(np.expm1(float(pending.bound[job, side]))) + 1
            _push(pending.due, reached_s, 2 * job + side)


@inline_jit
def _end(state: Any, events: Any, job: int, ended_s: int) -> None:
    log_run = events.log_run[job]
    count_end(state.history, events, job, ended_s)
    note_end(state.past, events.groups, job, ended_s, log_run)
    note_outlived(state.calibration, log_run, float(events.request[job, COLUMN.log_limit]))


@inline_jit
def note_outlived(calibration: Any, log_run: float, log_limit: float) -> None:
    """Update the share of jobs that outlived their limits with an ended job."""
    if np.isfinite(log_limit) and not np.isnan(log_run):
        has_outlived = log_run > np.log1p(np.expm1(log_limit) + GRACE_S)
        calibration.outlived[0] = OUTLIVED_DECAY * calibration.outlived[0] + (1.0 - OUTLIVED_DECAY) * has_outlived


@inline_jit
def compute_distribution(scratch: Any, calibration: Any, model: Any, features: Any) -> None:
    """Compute the distribution of a job's run time on the scratch grid.

    ``scratch.samples`` must be those of the job.
    """
    split_at = np.empty(len(model.forest.feature), dtype=np.int32)
    prepare_grid(scratch, model, features, split_at)
    update_job_splits(scratch, model, features, split_at)
    compute_cdf(scratch, calibration, model, features, split_at)


@inline_jit
def prepare_grid(scratch: Any, model: Any, features: Any, split_at: Any) -> None:
    """Choose the scratch grid and find the splits of the trees on it.

    The result is the same for all jobs of one user with the same request.

    Parameters
    ----------
    split_at : int32 array of shape (n_splits,)
        As of :func:`helios.predict.distribution.place_threshold_splits`.
    """
    choose_grid(scratch.samples, features, scratch.grid)
    describe_thresholds(scratch.grid, scratch.samples, features, scratch.grid_cdfs, scratch.grid_features)
    place_threshold_splits(model.forest, scratch.grid_features, split_at)


@inline_jit
def update_job_splits(scratch: Any, model: Any, features: Any, split_at: Any) -> bool:
    """Find the splits on the job's features, and whether any moved."""
    describe_pair_job(scratch.samples, features, scratch.job_features)
    return place_job_splits(model.forest, scratch.job_features, split_at)


@inline_jit
def compute_cdf(scratch: Any, calibration: Any, model: Any, features: Any, split_at: Any) -> None:
    """Compute the distribution on the scratch grid from the split positions."""
    if len(model.forest.root) > 0:
        add_trees(model.forest, split_at, scratch.raw_steps, scratch.stack)
        raw = 0.0
        for i in range(GRID):
            raw += scratch.raw_steps[i]
            scratch.cdf[i] = 1.0 / (1.0 + np.exp(-raw))
        pool_violators(scratch.cdf, scratch.pool_weights)
    else:
        scratch.cdf[:] = scratch.grid_cdfs[5]
    extend_tail(scratch.grid, scratch.cdf, model.tail)
    log_limit = float(features[COLUMN.log_limit])
    if np.isfinite(log_limit) and calibration.outlived[0] <= OUTLIVED_AT_MOST:
        last = np.log1p(np.expm1(log_limit) + GRACE_S)
        for i in range(GRID):
            if scratch.grid[i] >= last:
                scratch.cdf[i] = 1.0


@inline_jit
def _read_prediction(state: Any, events: Any, job: int, out: Any) -> tuple[float, float]:
    """Read a prediction off the grid, and return its bounds' levels."""
    scratch = state.scratch
    low = _clamp_level(_job_bound_level(state, events.groups, job, _LOW), _LOW)
    high = _clamp_level(_job_bound_level(state, events.groups, job, _HIGH), _HIGH)
    read_prediction(scratch.grid, scratch.cdf, scratch.grid_cdfs[5], low, high, out)
    clip_and_round(state.calibration, state.features[job], out)
    return low, high


@inline_jit
def clip_and_round(calibration: Any, features: Any, out: Any) -> None:
    """Cut a prediction at an enforced time limit, and round its interval.

    The grid is too coarse for either. Run times are recorded in whole seconds, so that a p10 of 1.0001 s would miss
    every run of 1 s.
    """
    log_limit = float(features[COLUMN.log_limit])
    if np.isfinite(log_limit) and calibration.outlived[0] <= OUTLIVED_AT_MOST:
        last = np.expm1(log_limit) + GRACE_S
        for column in range(RUN_TIME.typical + 1):
            out[column] = min(out[column], last)
        if out[RUN_TIME.p90] >= (1.0 - CLOSE_TO_LIMIT) * np.expm1(log_limit):
            out[RUN_TIME.p90] = last
    out[RUN_TIME.p10] = min(np.rint(out[RUN_TIME.p10]), out[RUN_TIME.p50])
    out[RUN_TIME.p90] = max(np.rint(out[RUN_TIME.p90]), out[RUN_TIME.p50])


@inline_jit
def _calibrate(state: Any, events: Any, now: int) -> None:
    """Learn from the bounds that jobs have reached before ``now``."""
    pending, past, calibration = state.pending, state.past, state.calibration
    while _first_s(pending.due) < now:
        time_s, bound = pending.due.time_s[0], _pop(pending.due)
        job, side = bound // 2, bound % 2
        level, level_then = _job_bound_level(state, events.groups, job, side), float(pending.level[job, side])
        # Whether the run time is below the bound at the present level, or how probably if the job still runs.
        if past.ended[job] and past.ended_s[job] <= time_s:
            if np.isnan(past.log_run[job]):
                continue
            below = 1.0 if _level_at(pending.quantiles[job], past.log_run[job]) < level else 0.0
        else:
            below = 0.0 if level <= level_then else (level - level_then) / (1.0 - level_then)
        error = pending.weight[job] * (below - (MISS if side == _LOW else 1.0 - MISS))
        for group in range(len(GROUPS)):
            if pending.in_group[job, group]:
                step = max(STEP, FIRST_STEP / np.sqrt(calibration.counts[side, group] + 1.0))
                calibration.offsets[side, group] -= step * error
                calibration.counts[side, group] += pending.weight[job]
        if events.groups[job, USER] >= 0:
            pending.user_offsets[past.ring_index[events.groups[job, USER]], side] -= USER_STEP * error


@inline_jit
def _level_at(quantiles: Any, log_run: float) -> Any:
    """Return the level at which a job's kept quantiles reach a run time."""
    i = np.searchsorted(quantiles, log_run)
    if i == 0:
        return 0.0
    if i >= len(quantiles):
        return 1.0
    width = float(quantiles[i] - quantiles[i - 1])
    share = (log_run - quantiles[i - 1]) / width if width > 0.0 else 0.5
    return _QUANTILE_LEVELS[i - 1] + (_QUANTILE_LEVELS[i] - _QUANTILE_LEVELS[i - 1]) * share


@inline_jit
def _job_bound_level(state: Any, groups: Any, job: int, side: int) -> Any:
    """Return the present level of a bound of ``job``."""
    log_odds = _MISS_LOG_ODDS if side == _LOW else -_MISS_LOG_ODDS
    for group in range(len(GROUPS)):
        if state.pending.in_group[job, group]:
            log_odds += state.calibration.offsets[side, group]
    if groups[job, USER] >= 0:
        log_odds += state.pending.user_offsets[state.past.ring_index[groups[job, USER]], side]
    return 1.0 / (1.0 + np.exp(-log_odds))


@inline_jit
def bound_level(calibration: Any, features: Any, side: int) -> float:
    """Return the level of a bound without the offset of the user."""
    log_odds = (_MISS_LOG_ODDS if side == _LOW else -_MISS_LOG_ODDS) + calibration.offsets[side, 0]
    if features[COLUMN.user_ended] < LOG_FEW:
        log_odds += calibration.offsets[side, 1]
    if _is_in_burst(features):
        log_odds += calibration.offsets[side, 2]
    return _clamp_level(1.0 / (1.0 + np.exp(-log_odds)), side)


@inline_jit
def _clamp_level(level: float, side: int) -> float:
    return min(max(level, 0.0005), 0.45) if side == _LOW else min(max(level, 0.55), 0.9995)


def _empty_heap(room: int) -> Heap:
    return Heap(*(np.zeros(length, dtype=np.int64) for length in (room, room, 1)))


@inline_jit
def _push(heap: Any, time_s: int, item: int) -> None:
    """Add an item to a heap."""
    i = heap.length[0]
    heap.length[0] += 1
    while i > 0:
        parent = (i - 1) // 2
        if not _is_before(time_s, item, heap, parent):
            break
        heap.time_s[i], heap.item[i] = heap.time_s[parent], heap.item[parent]
        i = parent
    heap.time_s[i], heap.item[i] = time_s, item


@inline_jit
def _pop(heap: Any) -> Any:
    """Remove the first item, and return it."""
    first = heap.item[0]
    heap.length[0] -= 1
    n = heap.length[0]
    time_s, item, i = heap.time_s[n], heap.item[n], 0
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _is_before(heap.time_s[child + 1], heap.item[child + 1], heap, child):
            child += 1
        if not _is_before(heap.time_s[child], heap.item[child], heap, n):
            break
        heap.time_s[i], heap.item[i] = heap.time_s[child], heap.item[child]
        i = child
    heap.time_s[i], heap.item[i] = time_s, item
    return first


@inline_jit
def _is_before(time_s: int, item: int, heap: Any, i: int) -> Any:
    """Return whether an item comes before the one at ``i`` of a heap."""
    return time_s < heap.time_s[i] or (time_s == heap.time_s[i] and item < heap.item[i])


@inline_jit
def _first_s(heap: Any) -> Any:
    """Return the time of the first item, ``NEVER_S`` for an empty heap."""
    return heap.time_s[0] if heap.length[0] > 0 else NEVER_S
