"""Value of predictions for ordering a queue.

First the verdict over draws on what Helios does live; then one replay of the tested jobs by each predictor, between the
site's own order and an order by true run times. All of them age and are bounded as the live order is, and let small
jobs pass by EASY backfill that plans with time limits, so that only the predictor differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from helios.app.history import LoadedHistory
from helios.app.order_check import CHECKED, DrawnWindow, check_draws, live_scenario
from helios.app.scenarios import Scenario
from helios.app.whatif import WhatIfRequest, measure, predictor_for, replay_scenario
from helios.choices import Policy, RunTimes
from helios.errors import HeliosError
from helios.metrics.queue import QueueSummary
from helios.ports import Progress, ReplayPredictor, no_progress
from helios.predict.duration import DurationModel
from helios.predict.replay_predictor import ReplayTrainedPredictor, UserLast
from helios.report.models import MODEL, ORACLE, TODAY, OrderValue
from helios.report.order_check import Orders

PREDICTED = CHECKED[Orders.PREDICTIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """Machine on which the scored jobs are replayed.

    Attributes
    ----------
    nodes : mapping, optional
        Nodes of each partition; None takes them from the peak demand, where there is hardly a queue.
    draws : int
        Draws of the verdict; 0: none, and no verdict.
    """

    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    default_time_limit_s: int = 7 * 86_400
    draws: int = 5


def value_of_predictions(
    history: LoadedHistory,
    site: ReplayTarget,
    *,
    train_until: datetime | None,
    test_fraction: float,
    gpu_only: bool = False,
    model: DurationModel | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> OrderValue:
    """Replay the scored part of a history, over draws and under each order.

    The model is trained on what had ended before that part, and learns during a replay from what ends in it. Jobs
    larger than their partition are left out, with a note.

    Parameters
    ----------
    train_until, test_fraction, gpu_only
        As of :func:`helios.app.training.judge`.
    model : DurationModel, optional
        The model to begin with; None: it is trained here.

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
    window = DrawnWindow(history, request, model=model, progress=progress)
    return OrderValue(
        nodes=window.setup.machine.nodes,
        gpus_per_node=request.gpus_per_node,
        resource=window.setup.machine.resource,
        replays=_replays(window, progress),
        check=check_draws(window, draws=site.draws, progress=progress) if site.draws else None,
        notes=(*window.setup.machine.notes, *window.setup.notes),
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


def _replays(window: DrawnWindow, progress: Progress) -> dict[str, QueueSummary]:
    """Return the queue summaries of a window as it was, by replay."""
    setup, request = window.setup, window.request
    jobs, before = setup.machine.jobs, setup.before
    shrinkage = ReplayTrainedPredictor(
        jobs, history=before, model=None, refit=False, seed=request.seed, timezone=setup.timezone
    )

    def replayed(
        plan: Scenario, predictor: ReplayPredictor | None = None, *, again_s: int | None = None
    ) -> QueueSummary:
        asked = replace(request, predict_again_s=again_s)
        result = replay_scenario(plan, setup, predictor, progress, request=asked)
        return measure(setup, result.started_s, result.ended_s, **plan.parts).summary

    return {
        TODAY: replayed(CHECKED[Orders.OWN]),
        ORACLE: replayed(live_scenario(Policy.QSSF, run_times=RunTimes.TRUE)),
        "smallest_first": replayed(CHECKED[Orders.SIZE]),
        MODEL: replayed(PREDICTED, predictor_for(setup, window.model, request)),
        "shrinkage": replayed(PREDICTED, shrinkage),
        # The naive rule knows nothing of what happens while a job waits.
        "user_last": replayed(PREDICTED, UserLast(jobs, history=before), again_s=0),
    }
