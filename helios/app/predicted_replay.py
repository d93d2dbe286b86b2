"""Replay that predicts submissions without leaving compiled code.

A stop of the replay at each submission, with its calls from Python, takes as long as the prediction itself. A job that
comes alone to an empty queue starts or waits whatever its key is. Where nothing but keys follows from predictions, it
is predicted only if it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit, plain
from helios.ports import RUN_TIME
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.predict.timeline import learn_known, note_ended, pass_submitted, predict_submitted
from helios.simulate.core.events import run
from helios.simulate.core.queue import push, remove
from helios.simulate.core.scheduling import first_up_to
from helios.simulate.core.state import NEVER, EngineState
from helios.simulate.replay import LEAST_KEY, LONGEST_ESTIMATE_S, Carry, JobKeys

PROBES_S = (1.0, 1e3, 1e7)
"""Run times at which an order must be a straight line, s."""
EVENTS_PER_PREDICTION = 100
"""Events that a prediction counts as in the budget of a call."""
_REACHED, _OUT_OF_BUDGET, _ATTEND = range(3)


@dataclass(frozen=True, eq=False)
class KeyRules(Table):
    """How keys and plans of jobs follow from their predictions.

    Attributes
    ----------
    key, slope : float64 arrays of shape (n_jobs,)
        Key of a job at a run time of 0, and what a second adds.
    tau_s : float64 array of shape (n_jobs,)
        Ageing times; empty: keys do not age.
    weights : float64 array of shape (3,)
        Weights of p10, p50 and p90 in the run time that backfill plans with.
    believed_s : float64 array of shape (n_jobs,)
    n_reported : int64 array of shape (1,)
        Ended jobs that the predictor has been n_reported of.
    reads : tuple of int
        Column of a prediction that the order goes by, whether keys and plans are needed, and whether jobs that start
        at once are predicted.
    """

    key: NDArray[np.float64]
    slope: NDArray[np.float64]
    tau_s: NDArray[np.float64]
    weights: NDArray[np.float64]
    believed_s: NDArray[np.float64]
    n_reported: NDArray[np.int64]
    reads: tuple[int, ...]


@partial(cached_jit, nogil=True)
def _carry_predicting(  # noqa: PLR0917 - numba kernels are called by position
    engine: Any,
    rules: Any,
    state: Any,
    events: Any,
    model: Any,
    known: Any,
    first: int,
    limits: Any,
    until_s: int,
    budget: int,
) -> int:
    """Carry a replay on as ``run`` does, and predict submissions."""
    clock, jobs = engine.clock[0], engine.jobs
    job, ended, ended_s = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64)
    out = np.empty((1, len(RUN_TIME)))
    scored = clock.arrived
    while True:
        # Jobs that are predicted must arrive before it returns.
        if not run(engine, scored, until_s, max(budget, 1)):
            return _OUT_OF_BUDGET
        now = clock.next_s
        if now == NEVER or now >= until_s:
            return _REACHED
        if budget <= 0:
            return _OUT_OF_BUDGET
        while rules.n_reported[0] < clock.ended:
            ended[0] = engine.ended[rules.n_reported[0]]
            ended_s[0] = jobs[ended[0]].ends_s
            ended[0] += first
            note_ended(known, ended, ended_s)
            rules.n_reported[0] += 1
        learn_known(state, events, known, now)
        end = scored
        while end < len(jobs) and jobs[end].submitted_s == now:
            end += 1
        if end - 1 >= limits[0] or known.learned[0] >= limits[1] or now >= limits[2]:
            return _ATTEND
        events.submitted_s[first + scored : first + end] = now
        is_put_off = not rules.reads[3] and end - scored == 1 and first_up_to(engine, jobs[scored].partition, -1) < 0
        if is_put_off:
            run(engine, end, now + 1, plain(NEVER))
        for place in range(scored, end):
            job[0] = first + place
            if is_put_off and jobs[place].started_s != NEVER:
                pass_submitted(state, events, model, job[0])
                continue
            predict_submitted(state, events, model, job, out)
            if is_put_off:
                remove(engine, place)
            _set_key(engine, rules, place, out[0])
            if is_put_off:
                push(engine, place)
        budget -= EVENTS_PER_PREDICTION * (end - scored)
        scored = end


@inline_jit
def _set_key(engine: Any, rules: Any, job: int, prediction: Any) -> None:
    """Set the key and the plan of a job as ``JobKeys`` does."""
    reads, is_ranked_by, is_planned_with, _ = rules.reads
    if is_planned_with:
        planned_s = 0.0
        for column in range(3):
            planned_s += rules.weights[column] * prediction[column]
        engine.pending[job].estimate_s = int(min(max(np.ceil(planned_s), 0.0), float(LONGEST_ESTIMATE_S)))
    if is_ranked_by:
        rules.believed_s[job] = prediction[reads]
        key = rules.key[job] + rules.slope[job] * prediction[reads]
        if len(rules.tau_s) > 0:
            age_s = engine.jobs[job].submitted_s - engine.jobs[0].submitted_s
            key = np.log(max(key, LEAST_KEY)) + age_s / rules.tau_s[job]
        engine.pending[job].key = key


class InsidePredictor(ReplayTrainedPredictor):
    """Predictor that carries on the replay it serves."""

    def inside(self, scores: JobKeys) -> Carry | None:
        """Return what carries a replay on and predicts its submissions.

        None where keys are no straight line in the run time.
        """
        line = _line(scores)
        if line is None:
            return None
        tau_s = np.empty(0) if scores.tau_s is None else scores.tau_s
        # What p10 and p90 are read off at has learned from the predictions of all earlier jobs.
        predicts_all = not scores.planned or scores.ranked or scores.reads in {RUN_TIME.p10, RUN_TIME.p90}
        needs = (scores.reads, int(not scores.ranked), int(not scores.planned), int(predicts_all))
        rules = KeyRules(*line, tau_s, scores.weights, scores.believed_s, scores.n_reported, needs)

        def carry(engine: EngineState, *, scored: int, budget: int, until_s: int = NEVER) -> bool:  # noqa: ARG001  all jobs get a key here
            clock, timeline, stopped = engine.clock[0], self.timeline, _ATTEND
            while stopped == _ATTEND:
                before = int(clock["arrived"])
                args = (rules, timeline.state, timeline.events, timeline.model, self.known, self.first, self.limits())
                stopped = _carry_predicting(engine, *args, until_s, budget)
                arrived = int(clock["arrived"])
                self.source[before:arrived] = len(self.sources) - 1
                timeline.submissions = max(timeline.submissions, self.first + arrived)
                if stopped == _ATTEND:
                    now_s = int(clock["next_s"])
                    submitted_s = engine.jobs["submitted_s"]
                    self.attend(int(np.searchsorted(submitted_s, now_s, side="right")) - 1, now_s)
            return stopped == _REACHED

        return carry


def _line(scores: JobKeys) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return intercept and slope of the keys.

    The key is a straight line over the run time, s. None if keys do not follow from these.
    """
    workload = scores.workload

    def at(run_time_s: float) -> NDArray[np.float64]:
        run_times_s = np.full(len(workload), run_time_s)
        return scores.order(submitted_s=workload.submitted_s, gpus=workload.order_gpus, run_time_s=run_times_s)

    start = np.asarray(at(0.0), dtype=np.float64)
    slope = at(1.0) - start
    straight = all(np.allclose(at(probe_s), start + probe_s * slope, rtol=1e-12, atol=0) for probe_s in PROBES_S)
    return (start, slope) if straight else None
