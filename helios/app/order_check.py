"""Check of the live order over draws of a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from helios.app.history import LoadedHistory
from helios.app.resampling import redraw, resampled_predictor, resampler_for
from helios.app.scenarios import BOUND_SHARE, WAIT_SHARE, Options, Policy, RunTimes, Scenario
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay, replay_scenario, train_predictor
from helios.errors import UsageError
from helios.ports import Progress, no_progress
from helios.predict.duration import DurationModel
from helios.report.order_check import LEAST_WAIT_S, OrderCheck, Orders, Ratios
from helios.report.significance import ResampledUnit
from helios.simulate import Backfill, Replay

FEWEST_DRAWS = 2
LARGE_GPUS = 8
LARGEST_SHARE = 0.9
"""Quantile of the sizes from which a job is large where a node has one GPU or CPU."""
AGED: Options = (("bound_share", BOUND_SHARE), ("wait_share", WAIT_SHARE))
"""Default ageing and bound."""


def live_scenario(policy: Policy, *, run_times: RunTimes | None = None, options: Options = AGED) -> Scenario:
    """Return a scenario with the backfill of a live Slurm."""
    return Scenario(
        policy=policy, backfill=Backfill.EASY, run_times=run_times, estimates=RunTimes.LIMIT, options=options
    )


CHECKED: Mapping[Orders, Scenario] = {
    Orders.OWN: live_scenario(Policy.FIFO, options=()),
    Orders.PREDICTIONS: live_scenario(Policy.QSSF, run_times=RunTimes.PREDICTED),
    Orders.SIZE: live_scenario(Policy.FEWEST_GPUS),
}


def check_order(
    history: LoadedHistory, request: WhatIfRequest, *, draws: int = 5, progress: Progress = no_progress
) -> OrderCheck:
    """Replay draws of a window under the live order, the site's own order, and size.

    Parameters
    ----------
    request : WhatIfRequest
        The window and the machine; its scenarios do not count.

    Raises
    ------
    UsageError
        There are too few draws for an interval.
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`helios.app.whatif.whatif`.
    """
    if draws < FEWEST_DRAWS:
        raise UsageError(
            f"{draws} draws are too few to tell a difference from chance.", hint=f"Use 5, at least {FEWEST_DRAWS}."
        )
    window = DrawnWindow(history, request, progress=progress)
    own_s = [window.draw(0).own_mean_s]
    found: dict[Orders, list[Ratios]] = {Orders.PREDICTIONS: [], Orders.SIZE: []}
    for number in range(1, draws + 1) if own_s[0] >= LEAST_WAIT_S else ():
        step = f"Checking the order, draw {number} of {draws}"
        progress(step, 0.0)
        draw = window.draw(number)
        own_s.append(draw.own_mean_s)
        for done, (order, ratios) in enumerate(found.items(), start=1):
            ratios.append(draw.ratios(CHECKED[order]))
            progress(step, done / len(found))
    return OrderCheck(
        window=window.span, draws=draws, over=window.over, own_mean_s=float(np.mean(own_s[1:] or own_s)), ratios=found
    )


class DrawnWindow:
    """Draws of a window, on one machine and with one first model.

    Attributes
    ----------
    setup : ReplaySetup
        The window as it was.
    """

    def __init__(self, history: LoadedHistory, request: WhatIfRequest, *, progress: Progress = no_progress) -> None:
        self._request = replace(request, plans=[CHECKED[Orders.PREDICTIONS]])
        self.setup = prepare_replay(history, self._request)
        self._resampler = resampler_for(self.setup)
        self._model = train_predictor(history, self.setup, self._request, progress)

    @property
    def over(self) -> ResampledUnit:
        """What is drawn."""
        return self._resampler.over

    @property
    def span(self) -> tuple[datetime, datetime]:
        """First and last submission that count."""
        submitted = self.setup.machine.jobs["submitted_at"][self.setup.counted]
        return submitted.min().to_pydatetime(), submitted.max().to_pydatetime()

    def draw(self, number: int) -> Draw:
        """Return a draw, or for number 0 the window as it was."""
        setup = self.setup
        if number:
            setup = redraw(setup, self._resampler, repeat=number, seed=self._request.seed)
        return Draw(setup, self._model, self._request)


class Draw:
    """One draw of a window, with its replay under the site's own order.

    Attributes
    ----------
    setup : ReplaySetup
    own_wait_s : array of shape (jobs,)
        Waits under first in, first out with EASY backfill by time limits.
    """

    def __init__(self, setup: ReplaySetup, model: DurationModel | None, request: WhatIfRequest) -> None:
        self.setup, self._model, self._request = setup, model, request
        self.own_wait_s = self._replay(CHECKED[Orders.OWN]).wait_s
        gpus = setup.workload.gpus
        is_large = gpus > LARGE_GPUS if request.gpus_per_node > 1 else gpus >= np.quantile(gpus, LARGEST_SHARE)
        self._large = is_large & setup.counted

    @property
    def own_mean_s(self) -> float:
        """Mean wait in the site's own order, s."""
        return float(self.own_wait_s[self.setup.counted].mean())

    def ratios(self, scenario: Scenario) -> Ratios:
        """Replay a scenario and compare its waits."""
        wait_s, own_s, counted, large = self._replay(scenario).wait_s, self.own_wait_s, self.setup.counted, self._large
        return Ratios(
            mean=float(wait_s[counted].mean() / max(own_s[counted].mean(), 1.0)),
            longest=float(wait_s[counted].max() / max(own_s[counted].max(), 1.0)),
            large=float(wait_s[large].mean() / max(own_s[large].mean(), 1.0)) if large.any() else float("nan"),
        )

    def _replay(self, scenario: Scenario) -> Replay:
        request = self._request
        predictor = resampled_predictor(self.setup, self._model, request) if scenario.uses_predictions else None
        return replay_scenario(scenario, self.setup, predictor, no_progress, request=request)
