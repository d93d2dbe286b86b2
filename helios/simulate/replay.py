"""Replay of a workload on a simulated cluster.

It checks the options and drives the compiled core, :mod:`helios.simulate.core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import Backfill
from helios.errors import UsageError
from helios.model import STEP_S
from helios.ports import RUN_TIME, Order, ReplayPredictor
from helios.simulate.ageing import Ageing, AgeingRunner
from helios.simulate.core.events import run
from helios.simulate.core.scheduling import Reservation
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
    EngineState,
    new_state,
)
from helios.simulate.core.wait_bound import WaitBound
from helios.simulate.job_trace import JobTrace
from helios.simulate.node_usage import NodeHolding, node_holding
from helios.simulate.predictor_feed import LONGEST_ESTIMATE_S, JobKeys, PredictorQueries
from helios.simulate.workload import ClusterShape, Workload, refuse_misfits

EXPECTED = (0.25, 0.5, 0.25)
"""Weights of p10, p50 and p90 in the expected run time (McNamee and Celona, "Decision analysis for the professional",
2nd ed. 2001)."""
WEIGHTS = {0.1: (1.0, 0.0, 0.0), 0.5: (0.0, 1.0, 0.0), 0.9: (0.0, 0.0, 1.0), None: EXPECTED}
"""Weights of p10, p50 and p90 in the run time that backfill plans with; None: the expected run time."""
EVENTS_PER_REPORT = 200_000
MOMENTS_PER_REPORT = 1_000


class Placement(StrEnum):
    """Which of the fitting nodes of equal weight a job gets.

    See :mod:`helios.simulate`.
    """

    PACKED = "packed"
    SPREAD = "spread"
    RANDOM = "random"
    WEIGHTED = "weighted"


MODES = {Backfill.NONE: NO_BACKFILL, Backfill.SKIP: SKIP, Backfill.EASY: EASY, Backfill.NODES: NODES}
RESERVING = frozenset({Backfill.EASY, Backfill.NODES})
"""Modes that reserve, and so plan with estimates."""
PLACES = {
    Placement.PACKED: PACKED,
    Placement.SPREAD: SPREAD,
    Placement.RANDOM: RANDOM,
    Placement.WEIGHTED: WEIGHTED,
}


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
    busy_gpu_s : int
        GPU seconds run by all jobs.
    believed_s : float64 array
        Run time that the order went by, s; NaN where none was given.
    estimate_s : int64 array or None
        Run time that backfill could plan with, s, before any extension; None: none was given.
    holding : NodeHolding or None
        How many nodes held a job, over time; None: they were not counted.
    bound_s : int or None
        The last value of the wait bound, s; None: there was none.
    """

    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    n_backfilled: int
    busy_gpu_s: int
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

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    UsageError
        The options contradict each other, or a run time that the order or the backfill needs is missing.
    """
    refuse_misfits(workload, shape)
    _refuse_contradictions(backfill, preemptive, estimate_s, predictor, plan_quantile)
    _refuse_idle_changes(preemptive, predictor, predict_again_s, is_bounded=guard is not None or ageing is not None)
    _refuse_idle_reservation(backfill, reservation)
    if preemptive:
        run_time_s = _true_run_times(workload, order, run_time_s)
    state = new_state(
        workload,
        shape,
        backfill=MODES[backfill],
        preemptive=preemptive,
        placement=PLACES[placement],
        seed=seed,
        versatile=count_nodes or placement is not Placement.PACKED,
        guard=_bounds(guard),
    )
    _keep_reservations(state, reservation or Reservation())
    scores = JobKeys(
        workload=workload,
        order=order,
        weights=np.array(WEIGHTS[plan_quantile]),
        keys=state.pending["key"],
        plans=state.pending["estimate_s"],
        believed_s=_told(workload, run_time_s, np.nan),
        reads=reads,
        tau_s=None if ageing is None else ageing.at(workload.submitted_s),
        ranked=run_time_s is not None or predictor is None,
        planned=estimate_s is not None or predictor is None,
    )
    scores.plans[:] = _told(workload, estimate_s, 0).clip(max=LONGEST_ESTIMATE_S)
    if scores.ranked:
        scores.rank(slice(None))
    carry = watch.run if watch else run
    if ageing is not None:
        carry = AgeingRunner(state, ageing, scores, carry).run
    _run_through(state, scores, predictor, predict_again_s, progress or _nobody, carry=carry)
    has_estimates = estimate_s is not None or predictor is not None
    return _outcome(state, scores, has_estimates=has_estimates)


def _refuse_contradictions(
    backfill: Backfill,
    preemptive: bool,
    estimate_s: NDArray[np.int64] | None,
    predictor: ReplayPredictor | None,
    plan_quantile: float | None,
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


def _refuse_idle_changes(
    preemptive: bool, predictor: ReplayPredictor | None, predict_again_s: int | None, *, is_bounded: bool
) -> None:
    if preemptive and is_bounded:
        raise UsageError(
            "SRTF goes by remaining run time and by nothing else; ageing or a bound on waiting has no part in it.",
            hint="Leave the ageing and the guard out.",
        )
    if predict_again_s is None:
        return
    if predictor is None or predict_again_s < 1:
        raise UsageError(
            "To predict again while jobs wait takes a predictor and a time between two questions, s.",
            hint="Give a predictor and predict_again_s of at least 1, or leave predict_again_s out.",
        )


def _refuse_idle_reservation(backfill: Backfill, reservation: Reservation | None) -> None:
    if reservation is not None and backfill is not Backfill.NODES:
        raise UsageError(
            f"Backfill {backfill} reserves no nodes, so that there is nothing to keep more or less strictly.",
            hint="Use backfill nodes, or leave the reservation out.",
        )


def _keep_reservations(state: EngineState, reservation: Reservation) -> None:
    state.clock["closed"] = reservation.closed
    state.clock["idle_gpus"] = NEVER if reservation.idle_gpus is None else reservation.idle_gpus


def _bounds(guard: WaitBound | None) -> NDArray[np.void] | None:
    if guard is None:
        return None
    bounds = np.empty(len(guard.at_s), dtype=GUARD)
    bounds["at_s"], bounds["patience_s"] = guard.at_s, guard.patience_s
    return bounds


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


def _told(workload: Workload, values: NDArray[Any] | None, otherwise: float) -> NDArray[Any]:
    if values is None:
        return np.full(len(workload), otherwise)
    if values.shape != (len(workload),):
        raise UsageError(f"{len(values):,} run times or estimates were given for {len(workload):,} jobs.")
    return values.copy()


def _run_through(
    state: EngineState,
    scores: JobKeys,
    predictor: ReplayPredictor | None,
    predict_again_s: int | None,
    tell: Callable[[int], None],
    *,
    carry: Callable[..., bool],
) -> None:
    questions = None if predictor is None else PredictorQueries(state, scores, predictor, predict_again_s)
    if questions is not None:
        _run_predicting(state, scores, questions, tell, carry)
    next_s, clock = 0, state.clock[0]
    while next_s != NEVER:
        until_s = NEVER if questions is None else questions.due_s
        if carry(state, scored=len(state.jobs), budget=EVENTS_PER_REPORT, until_s=until_s):
            next_s = int(clock["next_s"])
            if questions is not None and next_s != NEVER:
                questions.ask_again(next_s)
        tell(int(clock["ended"]))


def _run_predicting(
    state: EngineState,
    scores: JobKeys,
    questions: PredictorQueries,
    tell: Callable[[int], None],
    carry: Callable[..., bool],
) -> None:
    """Stop before every moment of submission and ask the predictor.

    The last such moment is where it returns.
    """
    clock = state.clock[0]
    for moment, these in enumerate(_moments(scores.workload.submitted_s)):
        now = int(scores.workload.submitted_s[these.start])
        carry(state, scored=these.start, budget=NEVER, until_s=questions.due_s)
        while clock["next_s"] < now:
            questions.ask_again(int(clock["next_s"]))
            carry(state, scored=these.start, budget=NEVER, until_s=questions.due_s)
        questions.ask(these, now)
        if moment % MOMENTS_PER_REPORT == 0:
            tell(int(clock["ended"]))


def _moments(submitted_s: NDArray[np.int64]) -> Iterator[slice]:
    """Yield each run of jobs that are submitted in the same second."""
    edges = [*np.flatnonzero(np.diff(submitted_s)) + 1, len(submitted_s)]
    first = 0
    for edge in edges if len(submitted_s) else []:
        yield slice(first, int(edge))
        first = int(edge)


def _outcome(state: EngineState, scores: JobKeys, *, has_estimates: bool) -> Replay:
    workload, ended_s = scores.workload, state.jobs["ends_s"].copy()
    return Replay(
        started_s=state.jobs["started_s"].copy(),
        ended_s=ended_s,
        wait_s=ended_s - workload.submitted_s - workload.run_time_s,
        n_backfilled=int(state.clock["backfilled"][0]),
        busy_gpu_s=int((workload.gpus * workload.run_time_s).sum()),
        believed_s=scores.believed_s,
        estimate_s=scores.plans.copy() if has_estimates else None,
        holding=node_holding(state, until_s=int(ended_s.max(initial=0))) if state.versatile else None,
        bound_s=int(state.guard["patience_s"][-1]) if len(state.guard) else None,
    )


def _nobody(done: int) -> None:
    """Ignore progress."""
