"""Replay of a workload on a simulated cluster.

:func:`replay` checks the options and drives the compiled core, :mod:`helios.simulate.core`. Where the order or the
backfill needs predictions, or keys age, it stops the core and queues the pending jobs anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import Backfill
from helios.errors import UsageError
from helios.model import STEP_S
from helios.ports import RUN_TIME, Order, ReplayPredictor
from helios.simulate.ageing import Ageing, WaitBound
from helios.simulate.cluster_nodes import NodeHolding, node_holding
from helios.simulate.core.events import queue_again, run
from helios.simulate.core.state import (
    EASY,
    GUARD,
    NEVER,
    NO_BACKFILL,
    NODES,
    PACKED,
    RANDOM,
    SKIP,
    SPREAD,
    WEIGHTED,
    ClusterShape,
    EngineState,
    Workload,
    new_state,
    refuse_misfits,
)
from helios.simulate.job_trace import JobTrace

EXPECTED = (0.25, 0.5, 0.25)
"""Weights of p10, p50 and p90 in the expected run time (McNamee and Celona, "Decision analysis for the professional",
2nd ed. 2001)."""
WEIGHTS = {0.1: (1.0, 0.0, 0.0), 0.5: (0.0, 1.0, 0.0), 0.9: (0.0, 0.0, 1.0), None: EXPECTED}
"""Weights of p10, p50 and p90 in the run time that backfill plans with; None: the expected run time."""
EVENTS_PER_REPORT = 200_000
MOMENTS_PER_REPORT = 1_000
LEAST_KEY = 1.0
"""Least key of which a logarithm is taken, such as one GPU second."""
LONGEST_ESTIMATE_S = 2**53
"""Beyond any run, and small enough that start + estimate stays within 64 bits."""

Runner = Callable[..., bool]
"""Runs a replay on, as :func:`helios.simulate.core.events.run` does."""

MODES = {Backfill.NONE: NO_BACKFILL, Backfill.SKIP: SKIP, Backfill.EASY: EASY, Backfill.NODES: NODES}
RESERVING = frozenset({Backfill.EASY, Backfill.NODES})
"""Modes that reserve, and so plan with estimates."""


class Placement(StrEnum):
    """Which of the fitting nodes of equal weight a job gets.

    See :mod:`helios.simulate`.
    """

    PACKED = "packed"
    SPREAD = "spread"
    RANDOM = "random"
    WEIGHTED = "weighted"


PLACES = {
    Placement.PACKED: PACKED,
    Placement.SPREAD: SPREAD,
    Placement.RANDOM: RANDOM,
    Placement.WEIGHTED: WEIGHTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """How strictly backfill ``nodes`` keeps reserved nodes from other jobs.

    The rules are in :mod:`helios.simulate`.

    Parameters
    ----------
    closed : bool
        Whether nodes that are reserved for a head which the wait bound has promoted are closed to all other jobs, even
        to those that are expected to end in time. Such a head does not depend on right estimates.
    idle_gpus : int, optional
        How many free GPUs of each partition may be kept from jobs that would not end in time. Those kept for a promoted
        head do not count. None: any number.

    Raises
    ------
    UsageError
        ``idle_gpus`` is negative.
    """

    closed: bool = False
    idle_gpus: int | None = None

    def __post_init__(self) -> None:
        if self.idle_gpus is not None and self.idle_gpus < 0:
            raise UsageError(f"idle_gpus is {self.idle_gpus}", hint="Give 0 or more GPUs, or None for no bound.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Result of a replay for each job.

    Arrays have shape (n_jobs,) and are in the order of the workload.

    Attributes
    ----------
    started_s, ended_s : int64 arrays
        First start, and end, s since the epoch.
    wait_s : int64 array
        Time from submission to end that the job did not run, s; with preemption that is more than until the
        first start.
    n_backfilled : int
        Starts that a pass made after it had found an earlier job in the order that could not start.
    busy_gpu_s : float
        GPU seconds run by all jobs.
    believed_s : float64 array
        Run time that the order went by, s; NaN where none was given, or none was needed as the job started at once.
    estimate_s : int64 array or None
        Run time that backfill could plan with, s, before any extension; None: none was given.
    holding : NodeHolding or None
        How many nodes held a job, over time; None: they were not counted.
    bound_s : int or None
        The wait bound at the last scheduling pass, s; None: there was none.
    """

    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    n_backfilled: int
    busy_gpu_s: float
    believed_s: NDArray[np.float64]
    estimate_s: NDArray[np.int64] | None
    holding: NodeHolding | None = None
    bound_s: int | None = None

    def busy_nodes(self, step_s: int = STEP_S) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many nodes of each partition held a job, by steps.

        See :meth:`NodeHolding.in_steps`.

        Raises
        ------
        UsageError
            The replay did not count nodes.
        """
        if self.holding is None:
            raise UsageError("no nodes were counted in this replay", hint="Replay with count_nodes=True.")
        return self.holding.in_steps(step_s)


def replay(
    workload: Workload,
    shape: ClusterShape,
    *,
    backfill: Backfill,
    order: Order,
    preemptive: bool = False,
    run_time_s: NDArray[np.float64] | None = None,
    estimate_s: NDArray[np.int64] | None = None,
    predictor: ReplayPredictor | None = None,
    plan_quantile: float | None = 0.9,
    predict_again_s: int | None = None,
    reads: int = RUN_TIME.p50,
    ageing: Ageing | None = None,
    guard: WaitBound | None = None,
    reservation: Reservation | None = None,
    placement: Placement = Placement.PACKED,
    seed: int = 0,
    count_nodes: bool = False,
    progress: Callable[[int], None] | None = None,
    watch: JobTrace | None = None,
    make_runner: Callable[[JobKeys], Runner | None] | None = None,
) -> Replay:
    """Replay ``workload`` on an empty cluster until every job has ended.

    The rules are in :mod:`helios.simulate`.

    Parameters
    ----------
    backfill : Backfill
        Which jobs may start before a blocked head.
    order : Order
        The queue order. It is called once for all jobs, or, where run times are predicted, at each submission.
    preemptive : bool
        Shortest remaining (true) run time first; ``order`` must then be by run time.
    run_time_s : float64 array of shape (n_jobs,), optional
        Run time that the order goes by, s, where known beforehand.
    estimate_s : int64 array of shape (n_jobs,), optional
        Run time that EASY and ``nodes`` plan with, s, where known beforehand.
    predictor : ReplayPredictor, optional
        Asked at each submission for what is None above: the order goes by its column ``reads``, backfill plans with
        its ``plan_quantile``, rounded up.
    plan_quantile : float or None
        0.1, 0.5 or 0.9; None: the expected run time, see ``WEIGHTS``.
    predict_again_s : int, optional
        Ask the predictor about all pending jobs too, before the first moment at least so long after the last such
        query, s; None: never.
    reads : int
        Column of a prediction, one of ``RUN_TIME``, that the order goes by.
    ageing : Ageing, optional
        The queue is ordered by ln(key) + submission / tau instead of the key that ``order`` returns, which must be
        positive and counts as at least 1. None: keys do not age.
    guard : WaitBound, optional
        How long a job may wait before it goes to the front; None: for ever.
    reservation : Reservation, optional
        How strictly ``nodes`` keeps what it reserves; None: the defaults.
    placement : Placement
        Which nodes a job gets.
    seed : int
        Seed of random placement. The same seed gives a job the same draws, whatever the policy.
    count_nodes : bool
        Count the nodes that hold jobs, for :meth:`Replay.busy_nodes`; it costs some speed.
    progress : callable, optional
        Called now and then with the number of jobs ended.
    watch : JobTrace, optional
        Notes why one of the jobs waits; the result is the same.
    make_runner : callable, optional
        Makes a runner that predicts submissions without stopping at each, or None where the order does not allow it.
        Without such a runner, or with ``watch``, the replay stops at each submission and asks ``predictor``.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    UsageError
        The options contradict each other, or a run time that the order or the backfill needs is missing.
    """
    refuse_misfits(workload, shape)
    _refuse_contradictions(
        backfill,
        preemptive=preemptive,
        estimate_s=estimate_s,
        predictor=predictor,
        plan_quantile=plan_quantile,
        predict_again_s=predict_again_s,
        is_bounded=guard is not None or ageing is not None,
        reserves=reservation is not None,
    )
    if preemptive:
        run_time_s = _true_run_times(workload, order, run_time_s)
    state = new_state(
        workload,
        shape,
        backfill=MODES[backfill],
        preemptive=preemptive,
        placement=PLACES[placement],
        seed=seed,
        tracks_nodes=count_nodes or placement is not Placement.PACKED,
        guard=None if guard is None else _guard_table(guard),
    )
    if reservation is not None:
        state.clock["closed"] = reservation.closed
        state.clock["idle_gpus"] = (
            NEVER if reservation.idle_gpus is None else reservation.idle_gpus * state.clock["units"]
        )
    keys = JobKeys(
        workload=workload,
        order=order,
        weights=np.array(WEIGHTS[plan_quantile]),
        keys=state.pending["key"],
        estimates_s=state.pending["estimate_s"],
        believed_s=_column_or(workload, run_time_s, np.nan),
        reads=reads,
        tau_s=None if ageing is None else ageing.at(workload.submitted_s),
        keys_known=run_time_s is not None or predictor is None,
        estimates_known=estimate_s is not None or predictor is None,
    )
    keys.estimates_s[:] = _column_or(workload, estimate_s, 0).clip(max=LONGEST_ESTIMATE_S)
    if keys.keys_known:
        keys.rank(slice(None))
    predicting_runner = make_runner(keys) if make_runner is not None and watch is None else None
    runner = predicting_runner or (watch.run if watch else run)
    if ageing is not None:
        runner = AgeingRunner(state, ageing, keys, runner).run
    queries = None if predictor is None else PredictorQueries(state, keys, predictor, predict_again_s)
    report_progress = progress or (lambda _: None)
    if queries is not None and predicting_runner is None:
        _predict_at_submissions(state, workload.submitted_s, queries, report_progress, runner=runner)
    _run_to_end(state, queries, report_progress, runner=runner)
    return _result(state, keys, estimated=estimate_s is not None or predictor is not None)


def _refuse_contradictions(
    backfill: Backfill,
    *,
    preemptive: bool,
    estimate_s: NDArray[np.int64] | None,
    predictor: ReplayPredictor | None,
    plan_quantile: float | None,
    predict_again_s: int | None,
    is_bounded: bool,
    reserves: bool,
) -> None:
    if plan_quantile not in WEIGHTS:
        raise UsageError(f"plan_quantile is {plan_quantile}", hint="Use 0.1, 0.5 or 0.9, or None for the expected.")
    if preemptive and backfill in RESERVING:
        raise UsageError(
            f"SRTF preempts instead of reserving, so backfill {backfill} has no meaning for it.",
            hint="Use backfill none or skip with SRTF.",
        )
    if preemptive and predictor is not None:
        raise UsageError("SRTF knows the true run times; a predictor has no part in it.", hint="Leave it out.")
    if backfill in RESERVING and estimate_s is None and predictor is None:
        raise UsageError(f"backfill {backfill} needs estimates to plan with.", hint="Give estimate_s or a predictor.")
    if estimate_s is not None and (estimate_s < 0).any():
        raise UsageError(f"{int((estimate_s < 0).sum()):,} estimates are negative.")
    if preemptive and is_bounded:
        raise UsageError(
            "SRTF goes by remaining run time and by nothing else; ageing or a bound on waiting has no part in it.",
            hint="Leave the ageing and the guard out.",
        )
    if predict_again_s is not None and (predictor is None or predict_again_s < 1):
        raise UsageError(
            "To predict again while jobs wait takes a predictor and a time between two questions, s.",
            hint="Give a predictor and predict_again_s of at least 1, or leave predict_again_s out.",
        )
    if reserves and backfill is not Backfill.NODES:
        raise UsageError(
            f"Backfill {backfill} reserves no nodes, so that there is nothing to keep more or less strictly.",
            hint="Use backfill nodes, or leave the reservation out.",
        )


def _true_run_times(workload: Workload, order: Order, run_time_s: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the true run times, which SRTF goes by.

    Raises
    ------
    UsageError
        Other run times, or an order by anything else, were given.
    """
    true = workload.run_time_s.astype(np.float64)
    keys = order(submitted_s=workload.submitted_s, gpus=workload.order_gpus, run_time_s=true)
    if not np.array_equal(keys, true) or (run_time_s is not None and not np.array_equal(run_time_s, true)):
        raise UsageError(
            "SRTF goes by remaining true run time and by nothing else.",
            hint="Use the order shortest_job_first, and leave run_time_s out or give the true ones.",
        )
    return true


def _guard_table(guard: WaitBound) -> NDArray[np.void]:
    table = np.empty(len(guard.at_s), dtype=GUARD)
    table["at_s"], table["bound_s"] = guard.at_s, guard.bound_s
    return table


def _column_or(workload: Workload, values: NDArray[Any] | None, default: float) -> NDArray[Any]:
    """Return a copy of ``values``, or a column of ``default``."""
    if values is None:
        return np.full(len(workload), default)
    if values.shape != (len(workload),):
        raise UsageError(f"{len(values):,} run times or estimates were given for {len(workload):,} jobs.")
    return values.copy()


def _predict_at_submissions(
    state: EngineState,
    submitted_s: NDArray[np.int64],
    queries: PredictorQueries,
    report_progress: Callable[[int], None],
    *,
    runner: Runner,
) -> None:
    """Run a replay until all jobs are submitted, predicting each then."""
    clock = state.clock[0]
    moments, firsts = np.unique(submitted_s, return_index=True)
    ends = [*firsts[1:].tolist(), len(submitted_s)]
    for number, (now, first, end) in enumerate(zip(moments.tolist(), firsts.tolist(), ends, strict=False)):
        runner(state, scored=first, budget=NEVER, until_s=queries.due_s)
        while clock["next_s"] < now:
            queries.predict_pending(int(clock["next_s"]))
            runner(state, scored=first, budget=NEVER, until_s=queries.due_s)
        queries.predict_submitted(slice(first, end), now)
        if number % MOMENTS_PER_REPORT == 0:
            report_progress(int(clock["ended"]))


def _run_to_end(
    state: EngineState, queries: PredictorQueries | None, report_progress: Callable[[int], None], *, runner: Runner
) -> None:
    """Run a replay to its end, predicting pending jobs when due."""
    clock, next_s = state.clock[0], 0
    while next_s != NEVER:
        until_s = NEVER if queries is None else queries.due_s
        if runner(state, scored=len(state.jobs), budget=EVENTS_PER_REPORT, until_s=until_s):
            next_s = int(clock["next_s"])
            if queries is not None and next_s != NEVER:
                queries.predict_pending(next_s)
        report_progress(int(clock["ended"]))


def _result(state: EngineState, keys: JobKeys, *, estimated: bool) -> Replay:
    workload, ended_s = keys.workload, state.jobs["ends_s"].copy()
    return Replay(
        started_s=state.jobs["started_s"].copy(),
        ended_s=ended_s,
        wait_s=ended_s - workload.submitted_s - workload.run_time_s,
        n_backfilled=int(state.clock["backfilled"][0]),
        busy_gpu_s=float((workload.gpus * workload.run_time_s).sum()),
        believed_s=keys.believed_s,
        estimate_s=keys.estimates_s.copy() if estimated else None,
        holding=node_holding(state, until_s=int(ended_s.max(initial=0))) if state.clock["tracks_nodes"][0] else None,
        bound_s=int(state.guard["bound_s"][max(state.clock["bounds"][0] - 1, 0)]) if len(state.guard) else None,
    )


@dataclass(slots=True, eq=False, kw_only=True)
class JobKeys:
    """Queue keys and estimates of the jobs of a replay.

    Arrays have shape (n_jobs,).

    Attributes
    ----------
    weights : float64 array of shape (3,)
        Weights of p10, p50 and p90 in an estimate.
    keys, estimates_s : arrays
        Columns of the state.
    believed_s : float64 array
        Run time that the order goes by, s: the column ``reads`` of a prediction.
    tau_s : float64 array or None
        Ageing time of each job, s; None: keys do not age.
    keys_known, estimates_known : bool
        Whether they need no prediction.
    """

    workload: Workload
    order: Order
    weights: NDArray[np.float64]
    keys: NDArray[np.float64]
    estimates_s: NDArray[np.int64]
    believed_s: NDArray[np.float64]
    reads: int
    tau_s: NDArray[np.float64] | None
    keys_known: bool
    estimates_known: bool
    n_reported: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """Number of ended jobs that were reported to the predictor."""

    def predict(self, predictor: ReplayPredictor, jobs: NDArray[np.int64], now: int) -> None:
        """Predict ``jobs``, submitted ``now``, where keys or estimates need it.

        The jobs are consecutive in the workload.
        """
        quantiles = self._check(predictor.submitted(jobs, now), jobs)
        rows = slice(int(jobs[0]), int(jobs[-1]) + 1)
        if not self.estimates_known:
            self.estimates_s[rows] = self._estimate(quantiles)
        if not self.keys_known:
            self.believed_s[rows] = quantiles[:, self.reads]
            self.rank(rows)

    def new_keys(
        self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return new keys and estimates of pending ``jobs``.

        A job that was promoted for waiting keeps its key.
        """
        self._check(quantiles, jobs)
        keys, estimates_s = self.keys[jobs], self.estimates_s[jobs]
        if not self.estimates_known:
            estimates_s = self._estimate(quantiles)
        if not self.keys_known:
            self.believed_s[jobs] = quantiles[:, self.reads]
            keys = np.where(np.isneginf(keys), keys, self._keys(jobs))
        return keys, estimates_s

    def rank(self, rows: slice) -> None:
        """Compute the keys of some jobs by the order."""
        self.keys[rows] = self._keys(rows)

    def age(self, jobs: NDArray[np.int64], tau_s: float) -> NDArray[np.float64]:
        """Set the ageing time of pending ``jobs`` and return their keys.

        A job that was promoted for waiting keeps its key.
        """
        if self.tau_s is not None:
            self.tau_s[jobs] = tau_s
        keys = self.keys[jobs]
        return np.where(np.isneginf(keys), keys, self._keys(jobs))

    def _keys(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        keys = self.order(
            submitted_s=self.workload.submitted_s[rows],
            gpus=self.workload.order_gpus[rows],
            run_time_s=self.believed_s[rows],
        )
        if np.isnan(keys).any():
            raise UsageError(
                "the queue order goes by run time, and some jobs have none",
                hint="Give run_time_s for every job, or a predictor.",
            )
        if self.tau_s is None:
            return keys
        age_s = self.workload.submitted_s[rows] - self.workload.submitted_s[0]
        aged: NDArray[np.float64] = np.log(np.maximum(keys, LEAST_KEY)) + age_s / self.tau_s[rows]
        return aged

    def _estimate(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.ceil(quantiles[:, : len(self.weights)] @ self.weights).clip(0, LONGEST_ESTIMATE_S).astype(np.int64)

    def _check(self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        # The sum is finite where all are, and takes half the time of a check of each, at every submission.
        if quantiles.shape != (len(jobs), len(RUN_TIME)) or not math.isfinite(np.add.reduce(quantiles, axis=None)):
            raise UsageError(
                f"the predictor gave no finite prediction for job {self.workload.job_id[jobs[0]]} "
                "or one asked about with it"
            )
        return quantiles


class PendingIndex:
    """Positions of the waiting jobs of a running replay.

    Parameters
    ----------
    started_s : int64 array of shape (n_jobs,)
        Start of each job; ``NEVER`` where it has not started.
    """

    def __init__(self, started_s: NDArray[np.int64]) -> None:
        self._started_s, self._arrived = started_s, 0
        self._waiting = np.empty(0, dtype=np.int64)

    def waiting(self, arrived: int) -> NDArray[np.int64]:
        """Return the positions of waiting jobs, ascending."""
        jobs = self._waiting
        if arrived > self._arrived:
            jobs = np.concatenate((jobs, np.arange(self._arrived, arrived)))
            self._arrived = arrived
        self._waiting = jobs[self._started_s[jobs] == NEVER]
        return self._waiting


class PredictorQueries:
    """Queries to the predictor in the timeline of a replay.

    Before each query the predictor is given the jobs that have ended since the last.

    Attributes
    ----------
    due_s : int
        When to ask again about the pending jobs, s since the epoch. NEVER: not at all.
    """

    def __init__(
        self, state: EngineState, keys: JobKeys, predictor: ReplayPredictor, predict_again_s: int | None
    ) -> None:
        self._state, self._keys, self._predictor = state, keys, predictor
        self._period_s = predict_again_s
        first_s = int(state.jobs["submitted_s"][0]) if len(state.jobs) else 0
        self.due_s = NEVER if predict_again_s is None else first_s + predict_again_s
        self._index = PendingIndex(state.jobs["started_s"])

    def predict_submitted(self, rows: slice, now: int) -> None:
        """Predict new jobs, and first the pending ones if that is due."""
        self._report_ended()
        if now >= self.due_s:
            self.predict_pending(now)
        self._keys.predict(self._predictor, np.arange(rows.start, rows.stop), now)

    def predict_pending(self, now: int) -> None:
        """Predict all pending jobs and queue them anew."""
        self.due_s = now + (self._period_s or NEVER)
        self._report_ended()
        if len(jobs := self._index.waiting(int(self._state.clock["arrived"][0]))):
            running = self._state.ends[: self._state.clock["running"][0]].astype(np.int64)
            since_s = self._state.jobs["resumed_s"][running]
            quantiles = self._predictor.waiting(jobs, now, running=running, since_s=since_s)
            keys, estimates_s = self._keys.new_keys(quantiles, jobs)
            queue_again(self._state, jobs, keys, estimates_s)

    def _report_ended(self) -> None:
        reported, ended = int(self._keys.n_reported[0]), int(self._state.clock["ended"][0])
        if ended > reported:
            jobs = self._state.ended[reported:ended]
            self._predictor.ended(jobs, self._state.jobs["ends_s"][jobs])
            self._keys.n_reported[0] = ended


class AgeingRunner:
    """Runner that requeues jobs when the ageing time changes."""

    def __init__(self, state: EngineState, ageing: Ageing, keys: JobKeys, runner: Runner) -> None:
        self._ageing, self._keys, self._runner = ageing, keys, runner
        self._index = PendingIndex(state.jobs["started_s"])
        self._due_s = self._next_s(int(state.jobs["submitted_s"][0])) if len(state.jobs) else NEVER

    def run(self, state: EngineState, *, scored: int, budget: int, until_s: int = NEVER) -> bool:
        """Run the replay as ``run`` does, and update the keys."""
        while self._runner(state, scored=scored, budget=budget, until_s=min(until_s, self._due_s)):
            next_s = int(state.clock["next_s"][0])
            is_due = next_s >= self._due_s
            if is_due:
                self._queue_again(state, next_s)
            if next_s >= until_s or not is_due:
                return True
        return False

    def _queue_again(self, state: EngineState, now_s: int) -> None:
        self._due_s = self._next_s(now_s)
        waiting = self._index.waiting(int(state.clock["arrived"][0]))
        if len(waiting):
            keys = self._keys.age(waiting, float(self._ageing.at(np.array([now_s]))[0]))
            queue_again(state, waiting, keys, self._keys.estimates_s[waiting])

    def _next_s(self, now_s: int) -> int:
        step = int(np.searchsorted(self._ageing.at_s, now_s, side="right"))
        return int(self._ageing.at_s[step]) if step < len(self._ageing.at_s) else NEVER
