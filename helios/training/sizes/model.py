"""What is known of a training whose number of devices and batch may change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

ROUNDING = 1e-8
"""Slack of divisions that are rounded up."""


class StepTime(NamedTuple):
    """Seconds of a synchronised step, and those of them that are communication."""

    step_s: float
    sync_s: float

    def with_passes(self, further: int) -> float:
        """Return the seconds with further passes before the GPUs synchronise."""
        return self.step_s + (self.step_s - self.sync_s) * further


class Gradient(NamedTuple):
    """Squared norm of the mean gradient, and variance of a gradient of the smallest batch."""

    square: float
    variance: float


class GpuBatch(NamedTuple):
    """Samples of each GPU in a pass, and further passes before the GPUs synchronise."""

    local: int
    accumulation: int

    def total(self, gpus: int) -> int:
        """Return the samples of a step on so many GPUs."""
        return gpus * self.local * (self.accumulation + 1)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Smallest and largest batch, in all and of a GPU in one pass."""

    smallest: int
    largest: int
    smallest_local: int
    largest_local: int

    @property
    def most_gpus(self) -> int:
        """GPUs that the largest batch can be spread over."""
        return self.largest // self.smallest_local

    def split(self, batch: float, gpus: int) -> GpuBatch:
        """Return a global batch as passes of each GPU.

        One GPU takes at least two passes where the batch is not the smallest: the noise of gradients cannot be told
        from a single pass.
        """
        local = np.ceil(batch / gpus - ROUNDING)
        accumulation = int(np.ceil(local / self.largest_local - ROUNDING)) - 1
        if gpus == 1 and batch > self.smallest:
            accumulation = max(accumulation, 1)
        share = int(np.ceil(local / (accumulation + 1) - ROUNDING))
        return GpuBatch(min(share, self.largest // (gpus * (accumulation + 1))), accumulation)


def statistical_gain(gradient: Gradient, scale: float) -> float:
    """Return the progress of a step with a batch so many times the smallest."""
    return (gradient.variance + gradient.square) / (gradient.variance / scale + gradient.square)


class StepRun(NamedTuple):
    """Nodes, GPUs, and samples of a GPU of a step that was measured."""

    nodes: int
    gpus: int
    local: int


Measured = tuple[tuple[StepRun, StepTime], ...]
"""Steps that were measured, sorted, each kind once."""


def mean_times(measured: Iterable[Measured]) -> Measured:
    """Return the mean time of each kind of step."""
    times = defaultdict[StepRun, list[StepTime]](list)
    for run, time in chain.from_iterable(measured):
        times[run].append(time)
    return tuple((run, StepTime(*map(fmean, zip(*found, strict=True)))) for run, found in sorted(times.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticState:
    """What a training that may change its size has shown, and what its owner says.

    Attributes
    ----------
    asked : int
        Devices that its owner asks for.
    most : int
        Devices that it may have now.
    least : int
        Devices below which it cannot run.
    limits : BatchLimits
        Batches that its owner allows.
    submit_s : float
        When it was submitted, s since the epoch.
    restarts : int
        How often its devices were changed.
    gpu_s : float
        Device seconds that it has had.
    epoch : int
        Epochs that it has ended.
    remaining : float, optional
        Progress to its end, in steps of the smallest batch. None where its owner states no length.
    measured : tuple
        Steps that it has taken, sorted. Empty before the first.
    gradient : Gradient, optional
        Of the last steps.
    batch : int, optional
        Samples of the last step, over all devices.
    work : float, optional
        Progress from its begin to its end.
    epochs : float, optional
        All of its epochs.
    change_s : float
        How long it stands still when its devices change, s.
    every_s : float
        Least time between two changes, s.
    kept_until_s : float
        Until when it keeps the devices that it has, s since the epoch.
    """

    asked: int
    most: int
    limits: BatchLimits
    submit_s: float
    restarts: int = 0
    gpu_s: float = 0.0
    epoch: int = 0
    remaining: float | None = None
    measured: Measured = ()
    gradient: Gradient | None = None
    batch: int | None = None
    work: float | None = None
    epochs: float | None = None
    change_s: float = 30.0
    least: int = 1
    every_s: float = 0.0
    kept_until_s: float = 0.0
