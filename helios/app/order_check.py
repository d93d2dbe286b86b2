"""OrderVerdict on the live order over draws, and the value of predictions.

The verdict is on what Helios does live. The value is one replay of the tested jobs by each predictor, between plain
FIFO + EASY and an order by true run times. All of them age and are bounded as the live order is, and let small
jobs pass by EASY backfill that plans with time limits, so that only the predictor differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.resampling import Resampler, redraw, resampled_predictor, resamplers_for
from helios.app.scenarios import AGED, Options, Scenario
from helios.app.whatif import (
    InsidePredictor,
    ReplaySetup,
    WhatIfRequest,
    measure,
    predictor_for,
    prepare_replay,
    replay_scenario,
    train_predictor,
)
from helios.choices import Policy, ResampledUnit, RunTimes
from helios.errors import HeliosError, UsageError
from helios.metrics.queue import QueueSummary
from helios.model import SIZE_CLASSES, is_large, size_class
from helios.ports import Progress, ReplayPredictor, no_progress
from helios.predict.duration import DurationModel
from helios.predict.replay_predictor import UserLast
from helios.report.models import MODEL, ORACLE, PLAIN, OrderValue
from helios.report.verdict import (
    LEAST_EFFECT,
    LEAST_WAIT_S,
    NOTICED_S,
    CheckedOrder,
    Effect,
    OrderVerdict,
    Ratios,
    WaitRatio,
    compare_recorded,
)
from helios.simulate import Backfill, Replay

FEWEST_DRAWS = 2
FEWEST_ONE_SIDED = 5
"""Draws from which all on one side of the window are no chance: of five it is one in sixteen."""


def live_scenario(policy: Policy, *, run_times: RunTimes | None = None, options: Options = AGED) -> Scenario:
    """Return a scenario with the backfill of a live Slurm."""
    return Scenario(
        policy=policy, backfill=Backfill.EASY, run_times=run_times, estimates=RunTimes.LIMIT, options=options
    )


CHECKED: Mapping[CheckedOrder, Scenario] = {
    CheckedOrder.OWN: live_scenario(Policy.FIFO, options=()),
    CheckedOrder.PREDICTIONS: live_scenario(Policy.QSSF, run_times=RunTimes.PREDICTED),
    CheckedOrder.SIZE: live_scenario(Policy.FEWEST_GPUS),
}


def check_order(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    draws: int = 5,
    compares_recorded: bool = True,
    progress: Progress = no_progress,
) -> OrderVerdict:
    """Replay draws of a window under three orders.

    They are the live order, plain FIFO + EASY, and size.

    Parameters
    ----------
    request : WhatIfRequest
        The window and the machine; its scenarios do not count. Jobs larger than their partition are left out.
    compares_recorded : bool
        Whether recorded waits are those of the site alone. False where Helios acted, or where they are made up.

    Raises
    ------
    UsageError
        There are too few draws for an interval.
    NotEnoughHistory, PartitionUnknown
        As :func:`helios.app.whatif.whatif`.
    """
    refuse_few(draws)
    window = DrawnWindow(history, replace(request, skip_oversized=True), progress=progress)
    return check_draws(window, draws=draws, compares_recorded=compares_recorded, progress=progress)


def refuse_few(draws: int) -> None:
    """Raise UsageError where there are too few draws for an interval."""
    if draws < FEWEST_DRAWS:
        raise UsageError(
            f"{draws} draws are too few to tell a difference from chance.", hint=f"Use 5, at least {FEWEST_DRAWS}."
        )


def check_draws(
    window: DrawnWindow, *, draws: int, compares_recorded: bool = True, progress: Progress = no_progress
) -> OrderVerdict:
    """Return the verdict on a window that is prepared.

    Draws in which plain FIFO + EASY waits another time than in the window are refused, because they are of another
    queue, and another way of drawing is used. Without any, the ratios are those of the window itself.
    """
    original = window.draw(0)
    refused: dict[ResampledUnit, WaitRatio] = {}
    resampler = None
    if original.own_mean_s >= LEAST_WAIT_S:
        for candidate in window.resamplers:
            progress(f"Drawing {candidate.over}", 0.0)
            own_s = [window.draw(number, candidate).own_mean_s for number in range(1, draws + 1)]
            progress(f"Drawing {candidate.over}", 1.0)
            beside = [(drawn_s + NOTICED_S) / (original.own_mean_s + NOTICED_S) for drawn_s in own_s]
            if not _is_moved(beside):
                resampler = candidate
                break
            refused[candidate.over] = WaitRatio.of(beside)
    drawn = 0 if resampler is None else draws
    found: dict[CheckedOrder, list[Ratios]] = {CheckedOrder.PREDICTIONS: [], CheckedOrder.SIZE: []}
    numbers = range(1, draws + 1) if drawn else (0,)
    own_means_s = []
    for number in numbers if original.own_mean_s >= LEAST_WAIT_S else ():
        step = f"Checking the order, draw {number} of {drawn}"
        progress(step, 0.0)
        draw = window.draw(number, resampler)
        own_means_s.append(draw.own_mean_s)
        for done, (order, ratios) in enumerate(found.items(), start=1):
            ratios.append(draw.ratios(CHECKED[order]))
            progress(step, done / len(found))
    return OrderVerdict(
        window=window.span,
        jobs=int(window.setup.counted.sum()),
        draws=drawn,
        over=window.resamplers[0].over if resampler is None else resampler.over,
        own_mean_s=float(np.mean(own_means_s or [original.own_mean_s])),
        ratios=found,
        refused=refused,
        recorded=compare_recorded(window.setup.recorded_wait_s, original.counted_own_wait_s)
        if compares_recorded
        else None,
    )


def _is_moved(ratios: Sequence[float]) -> bool:
    """Return whether draws' waits are those of another queue.

    They are where all are on one side of it, or the interval of their mean is, unless the difference is small. Of
    skewed waits the interval alone is too wide to tell.
    """
    beside = WaitRatio.of(ratios)
    one_sided = len(ratios) >= FEWEST_ONE_SIDED and (min(ratios) > 1 or max(ratios) < 1)
    is_small = abs(beside.ratio - 1) <= LEAST_EFFECT
    return not is_small and (one_sided or beside.effect in {Effect.SHORTER, Effect.LONGER})


class DrawnWindow:
    """Draws of a window, on one machine and with one first model.

    Attributes
    ----------
    request : WhatIfRequest
    setup : ReplaySetup
        The window as it was.
    resamplers : sequence of Resampler
        Ways of drawing, the best first.

    Parameters
    ----------
    model : DurationModel, optional
        Trained on what had ended before the window. None where it is trained here.
    """

    def __init__(
        self,
        history: LoadedHistory,
        request: WhatIfRequest,
        *,
        model: DurationModel | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._history, self._given, self._progress = history, model, progress
        self.request = replace(request, scenarios=[CHECKED[CheckedOrder.PREDICTIONS]])
        self.setup = prepare_replay(history, self.request)
        self.resamplers = resamplers_for(self.setup)

    @cached_property
    def model(self) -> DurationModel | None:
        """The model of what had ended when the replay begins.

        None where too few jobs had ended.
        """
        if self._given is not None:
            return self._given
        return train_predictor(self._history, self.setup, self.request, self._progress)

    @property
    def span(self) -> tuple[datetime, datetime]:
        """First and last submission that count."""
        submitted = self.setup.machine.jobs["submitted_at"][self.setup.counted]
        return submitted.min().to_pydatetime(), submitted.max().to_pydatetime()

    def draw(self, number: int, resampler: Resampler | None = None) -> Draw:
        """Return a draw, or for number 0 the window as it was.

        Without a ``resampler`` it is drawn in the best way.
        """
        setup = self.setup
        if number:
            setup = redraw(setup, resampler or self.resamplers[0], repeat=number, seed=self.request.seed)
        return Draw(setup, self)


class Draw:
    """One draw of a window.

    Attributes
    ----------
    setup : ReplaySetup
    own_wait_s : array of shape (jobs,)
        Waits under plain FIFO + EASY.
    """

    def __init__(self, setup: ReplaySetup, window: DrawnWindow) -> None:
        self.setup, self._window = setup, window
        self.own_wait_s = self._replay(CHECKED[CheckedOrder.OWN]).wait_s
        gpus, node = setup.workload.gpus, window.request.gpus_per_node
        classes = size_class(gpus, node)
        self._large = is_large(gpus, node) & setup.counted
        self._by_size = {name: (classes == number) & setup.counted for number, name in enumerate(SIZE_CLASSES)}

    @property
    def own_mean_s(self) -> float:
        """Mean wait under plain FIFO + EASY, s."""
        return float(self.counted_own_wait_s.mean())

    @property
    def counted_own_wait_s(self) -> NDArray[np.int64]:
        """Waits of the jobs that count under plain FIFO + EASY, s."""
        waits_s: NDArray[np.int64] = self.own_wait_s[self.setup.counted]
        return waits_s

    def ratios(self, scenario: Scenario) -> Ratios:
        """Replay a scenario and compare its waits.

        A second is added to both waits, so that none over none is 1.
        """
        wait_s, counted, large = self._replay(scenario).wait_s, self.setup.counted, self._large

        def ratio(rows: NDArray[np.bool_], figure: Callable[[NDArray[np.int64]], Any]) -> float:
            return float((figure(wait_s[rows]) + NOTICED_S) / (figure(self.own_wait_s[rows]) + NOTICED_S))

        def mean_ratio(rows: NDArray[np.bool_]) -> float:
            return ratio(rows, np.mean) if rows.any() else float("nan")

        return Ratios(
            mean=ratio(counted, np.mean),
            longest=ratio(counted, np.max),
            large=mean_ratio(large),
            by_size={name: mean_ratio(rows) for name, rows in self._by_size.items()},
        )

    def _replay(self, scenario: Scenario) -> Replay:
        request = self._window.request
        if not scenario.uses_predictions:
            return replay_scenario(scenario, self.setup, None, no_progress, request=request)
        predictor = resampled_predictor(self.setup, self._window.model, request)
        return replay_scenario(scenario, self.setup, predictor, no_progress, request=request)


def value_of_predictions(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    train_until: datetime | None,
    test_fraction: float,
    model: DurationModel | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> OrderValue:
    """Replay the test part of a history under each order.

    The model is trained on what had ended before that part, and learns during a replay from what ends in it. Jobs
    larger than their partition are left out, with a note.

    Parameters
    ----------
    request : WhatIfRequest
        The machine.
    train_until, test_fraction
        As in :func:`helios.app.model_registry.judge`.
    model : DurationModel, optional
        The model to begin with. None where it is trained here.

    Raises
    ------
    NotEnoughHistory
        No job of that part can be replayed.
    PartitionUnknown
        The jobs do not fit the machine as described.
    """
    submitted = history.jobs["submitted_at"]
    first = min(int(len(submitted) * (1 - test_fraction)), len(submitted) - 1)  # the same job as the evaluation's
    request = replace(
        request, since=train_until or submitted.iloc[first].to_pydatetime(), skip_oversized=True, seed=seed
    )
    window = DrawnWindow(history, request, model=model, progress=progress)
    return OrderValue(
        nodes=window.setup.machine.nodes,
        gpus_per_node=request.gpus_per_node,
        resource=window.setup.machine.resource,
        replays=_replays(window, progress),
        notes=(*window.setup.machine.notes, *window.setup.notes),
    )


def value_or_reason(history: LoadedHistory, request: WhatIfRequest, **options: Any) -> OrderValue | str:
    """Return the value of predictions, or why the jobs cannot be replayed.

    A failed replay must not cost the other figures of an evaluation. ``options`` are those of
    :func:`value_of_predictions`.
    """
    try:
        return value_of_predictions(history, request, **options)
    except HeliosError as reason:
        return f"The orders were not compared, because these jobs cannot be replayed: {reason}"


def _replays(window: DrawnWindow, progress: Progress) -> dict[str, QueueSummary]:
    """Return the queue summaries of a window as it was, by replay."""
    setup, request = window.setup, window.request
    jobs, before = setup.machine.jobs, setup.before
    shrinkage = InsidePredictor(
        jobs, history=before, model=None, refit=False, seed=request.seed, timezone=setup.timezone
    )

    predicted = CHECKED[CheckedOrder.PREDICTIONS]

    def replayed(
        scenario: Scenario, predictor: ReplayPredictor | None = None, *, again_s: int | None = None
    ) -> QueueSummary:
        asked = replace(request, predict_again_s=again_s)
        result = replay_scenario(scenario, setup, predictor, progress, request=asked)
        return measure(setup, result.started_s, result.ended_s, **scenario.parts).summary

    return {
        PLAIN: replayed(CHECKED[CheckedOrder.OWN]),
        ORACLE: replayed(live_scenario(Policy.QSSF, run_times=RunTimes.TRUE)),
        "smallest_first": replayed(CHECKED[CheckedOrder.SIZE]),
        MODEL: replayed(predicted, predictor_for(setup, window.model, request)),
        "shrinkage": replayed(predicted, shrinkage),
        # The naive rule knows nothing of what happens while a job waits.
        "user_last": replayed(predicted, UserLast(jobs, history=before), again_s=0),
    }
