"""Replay a workload on a cluster made of arithmetic: the door between Python and the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import Misuse
from helios.model import STEP_S
from helios.ports import Order, ReplayPredictor
from helios.simulate.engine import run
from helios.simulate.holding import Holding, holding_of
from helios.simulate.state import EASY, NEVER, NO_BACKFILL, PACKED, RANDOM, SKIP, SPREAD, WEIGHTED, State, new_state
from helios.simulate.workload import ClusterShape, Workload, refuse_misfits

QUANTILES = {0.1: 0, 0.5: 1, 0.9: 2}
EVENTS_PER_REPORT = 200_000
MOMENTS_PER_REPORT = 1_000
LONGEST_ESTIMATE_S = 2**53  # beyond any run; keeps start + estimate within 64 bits


class Backfill(StrEnum):
    """What may pass a job that is at the head of its queue and does not fit."""

    NONE = "none"
    SKIP = "skip"
    EASY = "easy"


class Placement(StrEnum):
    """Which of the nodes of equal weight that fit a job gets; see :mod:`helios.simulate`."""

    PACKED = "packed"
    SPREAD = "spread"
    RANDOM = "random"
    WEIGHTED = "weighted"


MODES = {Backfill.NONE: NO_BACKFILL, Backfill.SKIP: SKIP, Backfill.EASY: EASY}
PLACES = {
    Placement.PACKED: PACKED,
    Placement.SPREAD: SPREAD,
    Placement.RANDOM: RANDOM,
    Placement.WEIGHTED: WEIGHTED,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What became of each job; arrays of shape (n_jobs,) in the order of the workload.

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
        Run time that the order believed, s; NaN where it was told none.
    estimate_s : int64 array or None
        Run time that backfill could plan with, s, before any extension; None: it was told none.
    holding : Holding or None
        How many nodes held a job, over time; None: nobody counted.
    """

    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    n_backfilled: int
    busy_gpu_s: int
    believed_s: NDArray[np.float64]
    estimate_s: NDArray[np.int64] | None
    holding: Holding | None = None

    def busy_nodes(self, step_s: int = STEP_S) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many nodes of each partition held a job, by steps; see :meth:`Holding.in_steps`.

        Raises
        ------
        Misuse
            Nobody counted.
        """
        if self.holding is None:
            raise Misuse("no nodes were counted in this replay", remedy="Replay with count_nodes=True.")
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
    plan_quantile: float = 0.9,
    placement: Placement = Placement.PACKED,
    seed: int = 0,
    count_nodes: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Replay ``workload`` on ``shape`` from an empty cluster until every job has ended; see :mod:`helios.simulate`.

    Parameters
    ----------
    backfill : Backfill
        What may pass a blocked head.
    order : Order
        The queue order, asked once for all jobs; with a prediction as the run time, at each submission.
    preemptive : bool
        Shortest remaining (true) run time first; ``order`` must then be by run time.
    run_time_s : float64 array of shape (n_jobs,), optional
        Run time that the order believes, s, where known beforehand.
    estimate_s : int64 array of shape (n_jobs,), optional
        Run time that EASY plans with, s, where known beforehand.
    predictor : ReplayPredictor, optional
        Says at each submission what is left None above: the order believes its p50, EASY plans with its
        ``plan_quantile``, rounded up.
    plan_quantile : float
        0.1, 0.5 or 0.9.
    placement : Placement
        Which nodes a job gets.
    seed : int
        Of random placement: the same gives a job the same draws, whatever the policy.
    count_nodes : bool
        Keep count of the nodes that hold jobs, for :meth:`Replay.busy_nodes`; it costs some speed.
    progress : callable, optional
        Called now and then with the number of jobs ended.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    Misuse
        The options contradict each other, or a run time that the order or EASY needs is not told.
    """
    refuse_misfits(workload, shape)
    _refuse_contradictions(backfill, preemptive, estimate_s, predictor, plan_quantile)
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
    )
    scores = _Scores(
        workload=workload,
        order=order,
        column=QUANTILES[plan_quantile],
        keys=state.pending["key"],
        plans=state.pending["estimate_s"],
        believed_s=_told(workload, run_time_s, np.nan),
        ranked=run_time_s is not None or predictor is None,
        planned=estimate_s is not None or predictor is None,
    )
    scores.plans[:] = _told(workload, estimate_s, 0).clip(max=LONGEST_ESTIMATE_S)
    if scores.ranked:
        scores.rank(slice(None))
    _run_through(state, scores, predictor, progress or _nobody)
    has_estimates = estimate_s is not None or predictor is not None
    return _outcome(state, scores, has_estimates=has_estimates)


@dataclass(slots=True, eq=False, kw_only=True)
class _Scores:
    """What the order and EASY go by; ``keys`` and ``plans`` are columns of the state."""

    workload: Workload
    order: Order
    column: int
    keys: NDArray[np.float64]
    plans: NDArray[np.int64]
    believed_s: NDArray[np.float64]
    ranked: bool
    planned: bool

    def predict(self, predictor: ReplayPredictor, jobs: NDArray[np.int64], now: int) -> None:
        """Fill in what is not known yet of ``jobs``, neighbours submitted ``now``."""
        quantiles = predictor.submitted(jobs, now)
        these = slice(int(jobs[0]), int(jobs[-1]) + 1)
        if quantiles.shape != (len(jobs), 3) or not np.isfinite(quantiles).all():
            raise Misuse(
                f"the predictor gave no finite p10, p50 and p90 for job {self.workload.job_id[jobs[0]]} "
                "or one submitted with it"
            )
        if not self.planned:
            self.plans[these] = np.ceil(quantiles[:, self.column]).clip(0, LONGEST_ESTIMATE_S)
        if not self.ranked:
            self.believed_s[these] = quantiles[:, 1]
            self.rank(these)

    def rank(self, these: slice) -> None:
        """Ask the order for the keys of ``these`` jobs."""
        self.keys[these] = self.order(
            submitted_s=self.workload.submitted_s[these],
            gpus=self.workload.gpus[these],
            run_time_s=self.believed_s[these],
        )
        if np.isnan(self.keys[these]).any():
            raise Misuse(
                "the queue order goes by run time, and some jobs have none",
                remedy="Give run_time_s for every job, or a predictor.",
            )


def _refuse_contradictions(
    backfill: Backfill,
    preemptive: bool,
    estimate_s: NDArray[np.int64] | None,
    predictor: ReplayPredictor | None,
    plan_quantile: float,
) -> None:
    if plan_quantile not in QUANTILES:
        raise Misuse(f"plan_quantile is {plan_quantile}", remedy="Use 0.1, 0.5 or 0.9.")
    if preemptive and backfill is Backfill.EASY:
        raise Misuse(
            "SRTF preempts instead of reserving, so EASY backfill has no meaning for it.",
            remedy="Use backfill none or skip with SRTF.",
        )
    if preemptive and predictor is not None:
        raise Misuse("SRTF knows the true run times; a predictor has no part in it.", remedy="Leave it out.")
    if backfill is Backfill.EASY and estimate_s is None and predictor is None:
        raise Misuse("EASY backfill needs estimates to plan with.", remedy="Give estimate_s or a predictor.")
    if estimate_s is not None and (estimate_s < 0).any():
        raise Misuse(f"{int((estimate_s < 0).sum()):,} estimates are negative.")


def _true_run_times(workload: Workload, order: Order, run_time_s: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the run times that SRTF goes by, which are the true ones; refuse to be told otherwise."""
    true = workload.run_time_s.astype(np.float64)
    keys = order(submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=true)
    if not np.array_equal(keys, true) or (run_time_s is not None and not np.array_equal(run_time_s, true)):
        raise Misuse(
            "SRTF goes by remaining true run time and by nothing else.",
            remedy="Use the order shortest_job_first, and leave run_time_s out or give the true ones.",
        )
    return true


def _told(workload: Workload, values: NDArray[Any] | None, otherwise: float) -> NDArray[Any]:
    if values is None:
        return np.full(len(workload), otherwise)
    if values.shape != (len(workload),):
        raise Misuse(f"{len(values):,} run times or estimates were given for {len(workload):,} jobs.")
    return values.copy()


def _run_through(state: State, scores: _Scores, predictor: ReplayPredictor | None, tell: Callable[[int], None]) -> None:
    if predictor is not None:
        _run_predicting(state, scores, predictor, tell)
    finished = False
    while not finished:
        finished = run(state, scored=len(state.jobs), budget=EVENTS_PER_REPORT)
        tell(int(state.clock["ended"][0]))


def _run_predicting(state: State, scores: _Scores, predictor: ReplayPredictor, tell: Callable[[int], None]) -> None:
    """Stop the timeline before every moment of submission and ask the predictor, up to the last of them."""
    submitted, jobs, told = scores.workload.submitted_s, np.arange(len(state.jobs)), 0
    ends_s, n_ended = state.jobs["ends_s"], state.clock["ended"]
    for moment, these in enumerate(_moments(submitted)):
        run(state, scored=these.start, budget=NEVER)
        ended = int(n_ended[0])
        if ended > told:
            fresh = state.ended[told:ended].astype(np.int64)
            predictor.ended(fresh, ends_s[fresh])
            told = ended
        scores.predict(predictor, jobs[these], int(submitted[these.start]))
        if moment % MOMENTS_PER_REPORT == 0:
            tell(ended)


def _moments(submitted_s: NDArray[np.int64]) -> Iterator[slice]:
    """Yield each stretch of jobs that are submitted in the same second."""
    edges = [*np.flatnonzero(np.diff(submitted_s)) + 1, len(submitted_s)]
    first = 0
    for edge in edges if len(submitted_s) else []:
        yield slice(first, int(edge))
        first = int(edge)


def _outcome(state: State, scores: _Scores, *, has_estimates: bool) -> Replay:
    workload, ended_s = scores.workload, state.jobs["ends_s"].copy()
    return Replay(
        started_s=state.jobs["started_s"].copy(),
        ended_s=ended_s,
        wait_s=ended_s - workload.submitted_s - workload.run_time_s,
        n_backfilled=int(state.clock["backfilled"][0]),
        busy_gpu_s=int((workload.gpus * workload.run_time_s).sum()),
        believed_s=scores.believed_s,
        estimate_s=scores.plans.copy() if has_estimates else None,
        holding=holding_of(state, until_s=int(ended_s.max(initial=0))) if state.versatile else None,
    )


def _nobody(done: int) -> None:
    """Hear of progress, and tell nobody."""
