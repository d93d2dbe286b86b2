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
from scipy.optimize import minimize

from helios.training.sizes.model import ROUNDING, BatchLimits, GpuBatch, Gradient, Measured

CANDIDATES = 50
"""Global batches that are tried between the smallest and the largest, evenly in the logarithm."""
LEAST = 1e-8
"""Least value of a parameter of the model, s; nothing that was measured takes so little."""
MOST_S = 1e4
"""Largest value of one, s."""
MOST_OVERLAP = 10.0
"""Largest exponent of the norm; from there on it is the larger of both."""
NETWORK_MARGIN = 1.1
"""How much slower than within a node the network is taken to be before it was seen."""
LEAST_PASS = 0.01
"""Least part of a step that is no communication; times that a program takes itself may overlap."""
_START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
_TINY = 1e-12

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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

    def best(self, nodes: ArrayLike, gpus: ArrayLike) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Return the best goodput of each size, and its batch.

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
        rows, columns = reached.argmax(axis=0), np.arange(len(gpus))
        return reached[rows, columns], local[rows, columns], accumulation[rows, columns]

    def choose_batch(self, nodes: int, gpus: int) -> GpuBatch:
        """Return the batch of the best goodput on so many GPUs."""
        _, local, accumulation = self.best(nodes, gpus)
        passes = int(accumulation[0]) + 1
        return GpuBatch(min(int(local[0]), self.limits.largest // (gpus * passes)), passes - 1)


def learn_goodput(measured: Measured, gradient: Gradient | None, limits: BatchLimits) -> Goodput | None:
    """Return what a training would reach, None before its first step."""
    return Goodput(fit_speed(measured), gradient, limits) if measured and gradient is not None else None


@lru_cache(maxsize=100_000)
def fit_speed(measured: Measured) -> SpeedModel:
    """Fit the time of a step to what was measured, in logarithms.

    What was not tried yet is taken to be free, so that a training that does well is tried on more GPUs.
    """
    nodes, gpus, local = np.array([run for run, _ in measured], dtype=float).T
    step_s, sync_s = np.array([time for _, time in measured], dtype=float).T
    pass_s = np.maximum(step_s - sync_s, LEAST_PASS * step_s)
    distributed, together = nodes > 1, (nodes == 1) & (gpus > 1)
    start, low, high = np.array(_START), np.array([LEAST] * 6 + [1.0]), np.array([MOST_S] * 6 + [MOST_OVERLAP])
    if len(np.unique(local)) == 1:
        start[0] = low[0] = high[0] = pass_s.mean() / 2  # half of a pass is taken to be fixed
    for unknown, seen in (((2, 3), distributed), ((4, 5), together), ((3, 5), gpus > 2)):
        if not seen.any():
            start[list(unknown)] = high[list(unknown)] = LEAST
    data = (np.log(pass_s), np.log(step_s)), (local, np.maximum(gpus - 2, LEAST)), (distributed, together)
    bounds = [*zip(np.log(low[:6]), np.log(high[:6]), strict=True), (low[6], high[6])]
    begin = np.append(np.log(start[:6]), start[6])
    # At SciPy's precision: a looser one halves the time, and made Pollux' rule 5 % worse on a workload.
    found = minimize(_loss, begin, args=data, jac=True, bounds=bounds, method="L-BFGS-B").x
    fitted = np.append(np.exp(found[:6]), found[6])
    if not distributed.any():
        fitted[2:4] = np.maximum(fitted[2:4], NETWORK_MARGIN * fitted[4:6])
    return SpeedModel(*map(float, fitted))


def _loss(
    point: Floats, times: tuple[Floats, Floats], runs: tuple[Floats, Floats], links: tuple[Bools, Bools]
) -> tuple[float, Floats]:
    """Return the error of a model and its gradient.

    Parameters
    ----------
    point : array
        Parameters of the model as logarithms, but for the last.
    times : pair of arrays
        Logarithms of the measured passes and steps.
    runs : pair of arrays
        Samples of a GPU, and GPUs beyond the second.
    links : pair of arrays
        Whether they ran on several nodes, or on several GPUs of one.
    """
    (pass_log, step_log), (local, further), (distributed, together) = times, runs, links
    fixed, sample, network, network_gpu, node, node_gpu = np.exp(point[:6])
    overlap = point[6]
    passes = fixed + sample * local
    wire = np.where(distributed, network + network_gpu * further, np.where(together, node + node_gpu * further, LEAST))
    log_pass, log_wire = np.log(passes), np.log(wire)
    log_step = np.logaddexp(overlap * log_pass, overlap * log_wire) / overlap
    of_pass = np.exp(overlap * (log_pass - log_step))
    off_pass, off_step = log_pass - pass_log, log_step - step_log
    error_pass, error_step = (np.sqrt((off**2).mean() + _TINY) for off in (off_pass, off_step))
    slope_pass, slope_step = off_pass / (len(local) * error_pass), off_step / (len(local) * error_step)
    by_pass = (slope_pass + slope_step * of_pass) / passes
    by_wire = slope_step * (1 - of_pass) / wire
    by_overlap = slope_step * (of_pass * log_pass + (1 - of_pass) * log_wire - log_step) / overlap
    ratios = (network_gpu / network) ** 2, (node_gpu / node) ** 2
    slope = np.array(
        [
            fixed * by_pass.sum(),
            sample * (by_pass * local).sum(),
            network * (by_wire * distributed).sum() - 2e-2 * ratios[0],
            network_gpu * (by_wire * distributed * further).sum() + 2e-2 * ratios[0],
            node * (by_wire * together).sum() - 2e-2 * ratios[1],
            node_gpu * (by_wire * together * further).sum() + 2e-2 * ratios[1],
            by_overlap.sum() + 2e-3 * (overlap - 1),
        ]
    )
    return error_pass + error_step + 1e-3 * (overlap - 1) ** 2 + 1e-2 * sum(ratios), slope
