"""Goodput is learned from the steps that a training has taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from helios.training.sizes import goodput as module
from helios.training.sizes.goodput import Goodput, SpeedModel, fit_speed
from helios.training.sizes.model import BatchLimits, GpuBatch, Gradient, Measured, StepRun, StepTime
from tests.examples import examples

LIMITS = BatchLimits(smallest=10, largest=640, smallest_local=10, largest_local=40)
TRUE = SpeedModel(0.1, 0.01, 0.2, 0.01, 0.05, 0.01, 1.5)


def measured(*runs: StepRun, true: SpeedModel = TRUE) -> Measured:
    def time(run: StepRun) -> StepTime:
        passes, step = (float(seconds) for seconds in true.times(*run))
        return StepTime(step, step - passes)

    return tuple(sorted((run, time(run)) for run in {*runs}))


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


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6), st.floats(1.0, 4.0), st.sets(st.sampled_from(RUNS)))
def test_any_speed_is_fitted_where_it_was_seen(seconds: list[float], overlap: float, runs: set[StepRun]) -> None:
    a, b, c, d, e, f = seconds
    true = SpeedModel(a, b / 10, c, d / 10, e, f / 10, overlap)
    seen = measured(RUNS[0], *runs, true=true)
    fitted = fit_speed(seen)
    assert [float(fitted.times(*run)[1]) for run, _ in seen] == pytest.approx(
        [time.step_s for _, time in seen], rel=0.1
    )


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.1, 9), st.floats(0.1, 3)), min_size=2, max_size=6))
def test_a_line_is_that_of_non_negative_least_squares(points: list[tuple[int, float, float]]) -> None:
    assume(len({x for x, _, _ in points}) > 1)
    x, y, weight = np.array(points, dtype=float).T
    expected, _ = nnls(np.column_stack((weight, weight * x)), weight * y)
    assert np.array(module._fit_line(x, y, weight)) == pytest.approx(expected, abs=1e-6)


def test_the_best_batch_is_the_smallest_without_noise() -> None:
    assert Goodput(TRUE, Gradient(1.0, 0.0), LIMITS).choose_batch(1, 1) == GpuBatch(10, 0)


def test_the_best_batch_is_the_largest_with_much_noise() -> None:
    assert Goodput(TRUE, Gradient(1e-6, 1.0), LIMITS).choose_batch(4, 16) == GpuBatch(40, 0)


def test_a_step_that_is_all_communication_is_fitted() -> None:
    with np.errstate(divide="raise", invalid="raise"):
        fitted = fit_speed(((StepRun(1, 1, 10), StepTime(0.2, 0.0)), (StepRun(1, 2, 10), StepTime(0.2, 0.2))))
    assert float(fitted.times(1, 2, 10)[1]) == pytest.approx(0.2, rel=0.5)
