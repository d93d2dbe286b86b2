"""Goodput is learned from the steps that a training has taken."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from helios.training.sizes import goodput as module
from helios.training.sizes.goodput import Goodput, SpeedModel, fit_speed
from helios.training.sizes.model import BatchLimits, GpuBatch, Gradient, Measured, StepRun, StepTime

LIMITS = BatchLimits(smallest=10, largest=640, smallest_local=10, largest_local=40)
TRUE = SpeedModel(0.1, 0.01, 0.2, 0.01, 0.05, 0.01, 1.5)


def measured(*runs: StepRun) -> Measured:
    def time(run: StepRun) -> StepTime:
        passes, step = (float(seconds) for seconds in TRUE.times(*run))
        return StepTime(step, step - passes)

    return tuple(sorted((run, time(run)) for run in runs))


RUNS = tuple(
    StepRun(nodes, gpus, local) for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16)) for local in (10, 20, 40)
)


def test_steps_on_sizes_that_ran_are_predicted() -> None:
    fitted = fit_speed(measured(*RUNS))
    for run in RUNS:
        assert float(fitted.times(*run)[1]) == pytest.approx(float(TRUE.times(*run)[1]), rel=0.05)


def test_a_training_seen_on_one_gpu_is_taken_to_scale() -> None:
    fitted = fit_speed(measured(StepRun(1, 1, 10)))
    assert float(fitted.times(1, 4, 10)[1]) == pytest.approx(float(fitted.times(1, 1, 10)[1]), rel=0.01)


def test_the_gradient_of_the_fit_is_that_of_its_error() -> None:
    rng = np.random.default_rng(1)
    local, gpus = np.array([10.0, 20, 40, 10]), np.array([1.0, 2, 8, 4])
    times = rng.normal(size=4), rng.normal(size=4)
    data = times, (local, np.maximum(gpus - 2, 1e-8)), (gpus > 4, (gpus > 1) & (gpus <= 4))
    point = np.append(rng.normal(-2, 1, 6), 2.5)
    numeric = approx_fprime(point, lambda where: module._loss(where, *data)[0], 1e-7)
    assert module._loss(point, *data)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def test_the_best_batch_is_the_smallest_without_noise() -> None:
    assert Goodput(TRUE, Gradient(1.0, 0.0), LIMITS).choose_batch(1, 1) == GpuBatch(10, 0)


def test_the_best_batch_is_the_largest_with_much_noise() -> None:
    assert Goodput(TRUE, Gradient(1e-6, 1.0), LIMITS).choose_batch(4, 16) == GpuBatch(40, 0)


def test_a_step_that_is_all_communication_is_fitted() -> None:
    with np.errstate(divide="raise", invalid="raise"):
        fitted = fit_speed(((StepRun(1, 1, 10), StepTime(0.2, 0.0)), (StepRun(1, 2, 10), StepTime(0.2, 0.2))))
    assert float(fitted.times(1, 2, 10)[1]) == pytest.approx(0.2, rel=0.5)
