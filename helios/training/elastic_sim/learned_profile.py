"""What earlier runs of a program have shown of it, as a profile for simulations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from helios.training.sizes.goodput import SpeedModel, fit_speed
from helios.training.sizes.model import (
    BatchLimits,
    ElasticState,
    Gradient,
    Measured,
    StepRun,
    StepTime,
    mean_times,
    statistical_gain,
)

MOST_PARTS, FEWEST_PARTS = 100, 4
"""Parts of a training, whose ends simulations round to seconds."""
PART_S = 20.0
"""Least time of one, s, so that rounding stays below some 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedProfile:
    """Trials of a program as a profile. Their batch stays as it was.

    Steps that they took are as measured. Others are as a model says that is fitted to these, times what was measured
    over what it says on as many GPUs.

    Attributes
    ----------
    epochs : int
        Parts of equal work.
    """

    name: str
    limits: BatchLimits
    epochs: int
    _steps: float
    _gradient: Gradient
    _measured: Mapping[StepRun, StepTime]
    _speed: SpeedModel
    _ratios: Mapping[tuple[int, int], float]

    @property
    def measured(self) -> Measured:
        """The steps that trials took."""
        return tuple(self._measured.items())

    def has_run_on(self, nodes: int, gpus: int) -> bool:
        """Return whether steps were measured on so many GPUs of so many nodes."""
        return (nodes, gpus) in self._ratios

    def step_time(self, placement: tuple[int, ...], local: int) -> StepTime:
        """Return the time of a step."""
        run = StepRun(len(placement), sum(placement), local)
        if run in self._measured:
            return self._measured[run]
        passes, step = (float(each) for each in self._speed.times(*run))
        ratio = self._ratios.get((run.nodes, run.gpus), 1.0)
        return StepTime(step * ratio, (step - passes) * ratio)

    def gradient(self, batch: int, epoch: int) -> Gradient:  # noqa: ARG002 - as other profiles have it
        """Return the gradient, which is taken to stay as it was."""
        return self._gradient

    def progress_after(self, epochs: int) -> float:
        """Return the steps of so many parts."""
        return self._steps * epochs / self.epochs


def learn_profile(name: str, limits: BatchLimits, shown: Sequence[ElasticState]) -> LearnedProfile:
    """Return the profile of trials that are taken to be alike.

    All is known of them.
    """
    batch, gradient = shown[-1].batch, shown[-1].gradient
    assert batch is not None and gradient is not None
    steps = median(state.work or 0.0 for state in shown) / statistical_gain(gradient, batch / limits.smallest)
    measured = dict(mean_times(state.measured for state in shown))
    speed = fit_speed(tuple(measured.items()))
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step, time in measured.items():
        ratios[step.nodes, step.gpus].append(time.step_s / float(speed.times(*step)[1]))
    shortest_s = steps * min(time.step_s for time in measured.values())
    return LearnedProfile(
        name=name,
        limits=BatchLimits(batch, batch, limits.smallest_local, limits.largest_local),
        epochs=min(MOST_PARTS, max(FEWEST_PARTS, int(shortest_s / PART_S))),
        _steps=steps,
        _gradient=gradient,
        _measured=measured,
        _speed=speed,
        _ratios={size: fmean(found) for size, found in ratios.items()},
    )
