"""Learn the goodput of a training from the steps it has taken.

Goodput is throughput times statistical efficiency (Pollux, OSDI'21). The time of a step is modelled as in its paper:
passes are linear in the samples of a GPU, communication is linear in the number of GPUs, apart within and between
nodes, and both overlap by a p-norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from helios.training.sizes.model import ROUNDING, BatchLimits, GpuBatch, Gradient, Measured

CANDIDATES = 50
"""Global batches that are tried between the smallest and the largest, evenly in the logarithm."""
LEAST = 1e-8
"""Least value of a parameter of the model, s; nothing that was measured takes so little."""
OVERLAPS = np.geomspace(1, 10, 12)[:, None]
"""Exponents of the norm that are tried, a row for each; with the last it is about the larger of both."""
OVERLAP_PRICE = 1e-3
"""Relative error that an exponent of 2 has to save, as in the artifact of Pollux."""
NETWORK_MARGIN = 1.1
"""How much slower than within a node the network is taken to be before it was seen."""
LEAST_PASS = 0.01
"""Least part of a step that is no communication; times that a program takes itself may overlap."""
FIXED_SHARE = 0.15
"""Part of a pass that is taken not to depend on its samples while all had as many.

Pollux takes a half. With that no training of a fixed batch ever looked as if it gained from a second GPU.
"""
_TINY = 1e-12

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Parameters of the time of a step, s.

    Of a pass, between nodes, within a node, and of their overlap.
    """

    pass_s: float
    sample_s: float
    network_s: float
    network_gpu_s: float
    node_s: float
    node_gpu_s: float
    overlap: float

    def times(self, nodes: ArrayLike, gpus: ArrayLike, local: ArrayLike) -> tuple[Floats, Floats]:
        """Return the seconds of a pass, and those of a synchronised step."""
        nodes, gpus = np.asarray(nodes), np.asarray(gpus)
        passes = self.pass_s + self.sample_s * np.asarray(local, dtype=float)
        further = np.maximum(gpus - 2, LEAST)
        network = np.where(
            nodes > 1,
            self.network_s + self.network_gpu_s * further,
            np.where(gpus > 1, self.node_s + self.node_gpu_s * further, LEAST),
        )
        return passes, (passes**self.overlap + network**self.overlap) ** (1 / self.overlap)


@dataclass(frozen=True, slots=True)
class Goodput:
    """What a training would reach, by all that it has shown so far."""

    speed: SpeedModel
    gradient: Gradient
    limits: BatchLimits

    def best(self, nodes: ArrayLike, gpus: ArrayLike) -> tuple[Floats, Floats]:
        """Return the best goodput of each size, and its global batch.

        Goodput is in steps of the smallest batch a second.
        """
        nodes, gpus = np.atleast_1d(nodes), np.atleast_1d(gpus)
        limits = self.limits
        least = np.maximum(limits.smallest, limits.smallest_local * gpus).astype(float)
        share = np.geomspace(least, limits.largest, CANDIDATES) / gpus
        accumulation = np.ceil(share / limits.largest_local - ROUNDING) - 1
        alone = (gpus == 1) & (share > limits.smallest + ROUNDING)
        accumulation = np.where(alone, np.maximum(accumulation, 1), accumulation).astype(np.int64)
        local = np.ceil(share / (accumulation + 1) - ROUNDING).astype(np.int64)
        passes, step = self.speed.times(nodes, gpus, local)
        scale = gpus * local * (accumulation + 1) / limits.smallest
        square, variance = self.gradient
        reached = (variance + square) / (variance / scale + square) / (step + accumulation * passes)
        reached = np.where((local >= limits.smallest_local) & (local <= limits.largest_local), reached, 0.0)
        best = reached.argmax(axis=0), np.arange(len(gpus))
        return reached[best], (share * gpus)[best]

    def choose_batch(self, nodes: int, gpus: int) -> GpuBatch:
        """Return the batch of the best goodput on so many GPUs."""
        _, batch = self.best(nodes, gpus)
        return self.limits.split(float(batch[0]), gpus)


def learn_goodput(measured: Measured, gradient: Gradient | None, limits: BatchLimits) -> Goodput | None:
    """Return what a training would reach, None before its first step."""
    return Goodput(fit_speed(measured), gradient, limits) if measured and gradient is not None else None


@lru_cache(maxsize=100_000)
def fit_speed(measured: Measured) -> SpeedModel:
    """Fit the time of a step to what was measured, by relative errors.

    Passes are fitted first. With a given overlap, what a step took beyond them tells its communication, which is
    linear, too. So only the overlap is searched for. What was not tried yet is taken to be free, so that a training
    that does well is tried on more GPUs.
    """
    nodes, gpus, local = np.array([run for run, _ in measured], dtype=float).T
    step_s, sync_s = np.array([time for _, time in measured], dtype=float).T
    pass_s = np.maximum(step_s - sync_s, LEAST_PASS * step_s)
    fixed, sample = _fit_line(local, pass_s, 1 / pass_s)
    if len({*local.tolist()}) == 1:
        fixed, sample = FIXED_SHARE * fixed, (1 - FIXED_SHARE) * fixed / local[0]
    further = np.maximum(gpus - 2, 0)
    beyond = np.maximum(1 - (pass_s / step_s) ** OVERLAPS, _TINY) ** (1 / OVERLAPS)
    lines = np.full((4, len(OVERLAPS)), LEAST)
    wire = np.full(beyond.shape, LEAST)
    for row, ran in (0, nodes > 1), (2, (nodes == 1) & (gpus > 1)):
        if ran.any():
            seen = beyond[:, ran]
            weight = seen ** (OVERLAPS - 1) / step_s[ran]  # what a second of communication changes of the step
            lines[row : row + 2] = base, slope = _fit_line(further[ran], seen * step_s[ran], weight)
            wire[:, ran] = base[:, None] + slope[:, None] * further[ran]
    off = np.log(((fixed + sample * local) ** OVERLAPS + wire**OVERLAPS) ** (1 / OVERLAPS) / step_s)
    best = int((np.sqrt((off**2).mean(axis=1)) + OVERLAP_PRICE * (OVERLAPS[:, 0] - 1) ** 2).argmin())
    fitted = np.maximum([fixed, sample, *lines[:, best], OVERLAPS[best, 0]], LEAST)
    if not (nodes > 1).any():
        fitted[2:4] = NETWORK_MARGIN * fitted[4:6]
    return SpeedModel(*fitted.tolist())


def _fit_line(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Fit a line along the last axis by weighted least squares.

    Base and slope are not below 0.
    """
    square = weight**2
    ones, xs, xxs = square.sum(-1), (square * x).sum(-1), (square * x * x).sum(-1)
    ys, xys = (square * y).sum(-1), (square * x * y).sum(-1)
    spread = ones * xxs - xs**2
    varied = spread > ROUNDING * ones * xxs
    slope = np.where(varied, np.maximum(ones * xys - xs * ys, 0) / np.where(varied, spread, 1), 0)
    base = (ys - slope * xs) / ones
    return np.maximum(base, 0), np.where(base < 0, xys / np.where(varied, xxs, 1), slope)
