"""Value of predictions for ordering a queue, measured by replays.

It lies between that of today's order and that of an order by true run times.

Every replay lets small jobs pass by EASY backfill that plans with time limits, so that only the order differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from helios.app.history import LoadedHistory
from helios.app.scenarios import ORDERS, READS, Policy, RunTimes, Scenario
from helios.app.whatif import ReplaySetup, WhatIfRequest, measure, prepare_replay, replayed_resource, train_predictor
from helios.errors import HeliosError
from helios.metrics.queue import QueueSummary
from helios.ports import RUN_TIME, Progress, no_progress
from helios.predict.duration import DurationModel
from helios.predict.replay_predictor import ReplayTrainedPredictor, UserLast
from helios.report.models import MODEL, ORACLE, REPLAY_NAMES, TODAY, UNGUARDED_ORACLE, OrderValue
from helios.simulate import Backfill, LongestWaits, Replay, WaitBound, replay

SHARE_OF_LONGEST = 1.0
"""The bound on waiting is max(3 h, the longest wait so far under FIFO + EASY). With 0.7 of it QSSF with true run times
keeps .81 of its gain on KTH and .94 on Philly at 40 %, its longest wait being 1.14 and 0.93 x FIFO's; with all of it
.90 and .98, at 1.41 and 0.97 x (means over four and five sizes of the machine: python -m benchmarks.ordering)."""
PREDICTED = Scenario(policy=Policy.QSSF, backfill=Backfill.EASY, run_times=RunTimes.PREDICTED, estimates=RunTimes.LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """Machine on which the scored jobs are replayed.

    Attributes
    ----------
    nodes : mapping, optional
        Nodes of each partition; None takes them from the peak demand, where there is hardly a queue.
    promote_after : timedelta, optional
        Bound on waiting; None: the longer of 3 hours and the longest wait so far under FIFO + EASY.
    predict_again : timedelta, optional
        How often pending jobs are predicted again, as in the cycles of a live cluster; None: never.
    """

    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    default_time_limit_s: int = 7 * 86_400
    promote_after: timedelta | None = None
    predict_again: timedelta | None = timedelta(minutes=10)


def value_of_predictions(
    history: LoadedHistory,
    site: ReplayTarget,
    *,
    train_until: datetime | None,
    test_fraction: float,
    gpu_only: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> OrderValue:
    """Replay the scored part of a history under each order.

    The model is trained on what had ended before that part, and learns during a replay from what ends in it. Jobs
    larger than their partition are left out, with a note.

    Parameters
    ----------
    train_until, test_fraction, gpu_only
        As of :func:`helios.app.training.judge`.

    Raises
    ------
    NotEnoughHistory
        No job of that part can be replayed.
    PartitionUnknown
        The jobs do not fit the machine as described.
    """
    submitted = history.jobs["submitted_at"]
    first = min(int(len(submitted) * (1 - test_fraction)), len(submitted) - 1)  # the same job as the evaluation's
    request = WhatIfRequest(
        plans=[PREDICTED],
        since=train_until or submitted.iloc[first].to_pydatetime(),
        nodes=site.nodes,
        gpus_per_node=site.gpus_per_node,
        resource="gpus" if gpu_only else None,
        skip_oversized=True,
        default_time_limit_s=site.default_time_limit_s,
        seed=seed,
    )
    setup = prepare_replay(history, request)
    model = train_predictor(history, setup, request, progress)
    guard = "the longer of 3 hours and the longest wait so far under FIFO + EASY"
    if site.promote_after is not None:
        guard = f"{site.promote_after.total_seconds() / 3_600:g} hours"
    return OrderValue(
        nodes=setup.machine.nodes,
        gpus_per_node=request.gpus_per_node,
        resource=replayed_resource(history, request),
        guard=guard,
        replays=_replays(setup, model, site, seed=seed, progress=progress),
        notes=(*setup.machine.notes, *setup.notes),
    )


def value_or_reason(history: LoadedHistory, site: ReplayTarget, **options: Any) -> OrderValue | str:
    """Return the value of predictions, or why the jobs cannot be replayed.

    A failed replay must not cost the other figures of an evaluation. ``options`` are those of
    :func:`value_of_predictions`.
    """
    try:
        return value_of_predictions(history, site, **options)
    except HeliosError as reason:
        return f"The orders were not compared, because these jobs cannot be replayed: {reason}"


def _replays(
    setup: ReplaySetup, model: DurationModel | None, site: ReplayTarget, *, seed: int, progress: Progress
) -> dict[str, QueueSummary]:
    """Return the queue summary of each replay of a setup, by name."""
    again_s = int(site.predict_again.total_seconds()) if site.predict_again else None

    def replayed(name: str, policy: Policy = Policy.QSSF, **options: Any) -> Replay:
        said, n_jobs = f"Replaying: {REPLAY_NAMES[name]}", len(setup.workload)
        result = replay(
            setup.workload,
            setup.machine.shape,
            backfill=Backfill.EASY,
            order=ORDERS[policy],
            reads=READS.get(policy, RUN_TIME.p50),
            estimate_s=setup.limit_s,
            progress=lambda done: progress(said, done / n_jobs),
            **{"run_time_s": PREDICTED.true_run_time_s(setup.workload.run_time_s), **options},
        )
        progress(said, 1.0)
        return result

    def predicted(name: str, taught: DurationModel | None, guard: WaitBound | None) -> Replay:
        predictor = ReplayTrainedPredictor(
            setup.machine.jobs,
            history=setup.before,
            model=taught,
            refit=taught is not None,  # the control is never trained
            seed=seed,
            timezone=setup.timezone,
        )
        return replayed(name, guard=guard, run_time_s=None, predictor=predictor, predict_again_s=again_s)

    today = replayed(TODAY, Policy.FIFO)
    if site.promote_after is not None:
        guard = WaitBound.constant(int(site.promote_after.total_seconds()))
    else:
        own_order = LongestWaits.of(submitted_s=setup.workload.submitted_s, started_s=today.started_s)
        guard = own_order.wait_bound(SHARE_OF_LONGEST)
    made = {
        TODAY: today,
        ORACLE: replayed(ORACLE, guard=guard),
        UNGUARDED_ORACLE: replayed(UNGUARDED_ORACLE),
        "smallest_first": replayed("smallest_first", Policy.FEWEST_GPUS, guard=guard),
        MODEL: predicted(MODEL, model, guard),
        "model_unguarded": predicted("model_unguarded", model, None),
        "shrinkage": predicted("shrinkage", None, guard),
        # The naive rule knows nothing of what happens while a job waits.
        "user_last": replayed(
            "user_last",
            guard=guard,
            run_time_s=None,
            predictor=UserLast(setup.machine.jobs, history=setup.before),
            predict_again_s=None,
        ),
    }
    return {
        name: measure(setup, result.started_s, result.ended_s, **PREDICTED.parts).summary
        for name, result in made.items()
    }
