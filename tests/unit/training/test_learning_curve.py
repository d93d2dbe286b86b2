"""Forecasts of the steps to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from helios.model.trial_runs import CurvePoint
from helios.training.learning_curve import forecast_steps
from helios.training.target import StepsToTarget


def curve(values: Sequence[float | None], *, every: int = 10) -> tuple[CurvePoint, ...]:
    points = enumerate(values, start=1)
    return tuple(CurvePoint(number * every, float(number), value) for number, value in points)


def steps_to(
    points: tuple[CurvePoint, ...], value: float, maximize: bool = True, horizon: float | None = None
) -> StepsToTarget:
    steps = forecast_steps(points, value, maximize, horizon=horizon)
    assert steps is not None
    return steps


def exponential(n: int, *, scale: float = 100.0, every: int = 10) -> list[float]:
    return [1 - 0.8 * math.exp(-number * every / scale) for number in range(1, n + 1)]


def test_exponential_curve_is_forecast() -> None:
    need = 100 * math.log(0.8 / 0.05) - 150
    steps = steps_to(curve(exponential(15)), 0.95)
    assert steps.p50 == pytest.approx(need, rel=0.5)
    assert steps.p10 < need < steps.p90


def test_reached_target_needs_no_steps() -> None:
    steps = steps_to(curve([0.2, 0.7, 0.6]), 0.65)
    assert (steps.p10, steps.p50, steps.p90, steps.reached) == (0, 0, 0, 1)


def test_metric_to_minimize_is_the_mirror_of_one_to_maximize() -> None:
    values = exponential(12)
    mirror = [-value for value in values]
    assert steps_to(curve(values), 0.97) == steps_to(curve(mirror), -0.97, False)


def test_nothing_is_known_of_an_empty_curve() -> None:
    assert forecast_steps((), 0.9, True) is None


def test_points_that_are_not_finite_are_left_out() -> None:
    values = exponential(20)
    holes = [None if number % 5 == 2 else value for number, value in enumerate(values)]
    whole, rest = (steps_to(curve(points), 0.98) for points in (values, holes))
    assert rest.p50 == pytest.approx(whole.p50, rel=0.3)


def test_training_that_diverged_reaches_nothing() -> None:
    assert steps_to(curve([*exponential(10), None, None, None]), 0.99).reached == 0


def test_one_point_gives_a_wide_forecast() -> None:
    steps = steps_to(curve([0.3]), 0.9)
    assert steps.p90 > 10 * steps.p10


def test_plateau_below_the_target_is_not_expected_to_reach_it() -> None:
    noise = np.random.default_rng(1).normal(0, 0.002, 100)
    values = [0.7 - 0.5 * math.exp(-number / 5) + noise[number] for number in range(100)]
    assert steps_to(curve(values), 0.9).reached < 0.2


def test_end_of_the_training_limits_the_forecast() -> None:
    points = curve(exponential(10))
    assert steps_to(points, 0.99, horizon=110.0).p90 <= 10
