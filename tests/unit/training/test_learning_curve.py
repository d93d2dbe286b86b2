"""Forecasts of the steps to a target."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.model.trial_runs import CurvePoint, TrialRun
from helios.training.learning_curve import BUILT_IN, SHARES, EarlierCurves, earlier_curves, forecast_steps
from helios.training.model import StepsToTarget
from tests.examples import examples
from tests.machine import slowness


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


def test_part_that_others_needed_counts_most_far_from_the_target() -> None:
    ratios = []
    for values in ([0.2, 0.22], [0.2, 0.85]):
        early, late = (
            forecast_steps(
                curve(values),
                0.9,
                True,
                horizon=1000.0,
                earlier=EarlierCurves(prior=replace(BUILT_IN, part=math.log(part))),
            )
            for part in (0.2, 0.8)
        )
        assert early is not None
        assert late is not None
        ratios.append(late.p50 / early.p50)
    assert ratios[0] > 1.3
    assert ratios[0] > ratios[1]


def test_percentiles_are_calibrated_by_the_part_that_is_done() -> None:
    levels = tuple((0.1, 0.2, 0.9) if share < 0.1 else (0.1, 0.8, 0.9) for share in SHARES)
    earlier = EarlierCurves(prior=replace(BUILT_IN, levels=levels))
    for horizon, later in ((100.0, True), (10_000.0, False)):
        usual, other = (
            forecast_steps(curve(exponential(5)), 0.95, True, horizon=horizon, earlier=each)
            for each in (EarlierCurves(prior=replace(BUILT_IN, levels=((0.1, 0.5, 0.9),) * len(SHARES))), earlier)
        )
        assert usual is not None
        assert other is not None
        assert (other.p50 > usual.p50) == later


def finished(number: int, values: Sequence[float | None], *, outcome: str = "finished") -> TrialRun:
    return TrialRun(
        pool="p",
        number=number,
        attempt=1,
        program="train.py",
        family="f",
        parameters={},
        device_kind="cpu",
        outcome=outcome,
        started_s=0.0,
        seconds=1.0,
        metric="accuracy",
        direction="maximize",
        curve=curve(values),
    )


def test_target_that_falls_behind_is_not_expected() -> None:
    falling = [0.5 + 0.1 * number for number in range(4)] + [0.8 - 0.02 * number for number in range(20)]
    assert steps_to(curve(falling), 0.95).reached < 0.3


def test_loss_that_starts_very_high_hides_nothing() -> None:
    usual, high = ([first, *(2 - value for value in exponential(20)[1:])] for first in (1.7, 1e5))
    value, other = (steps_to(curve(points), 1.02, maximize=False) for points in (usual, high))
    assert other.p50 == pytest.approx(value.p50, rel=0.5)


def test_noise_lets_a_target_be_reached_earlier() -> None:
    smooth = [0.9 - 0.6 * math.exp(-number / 20) for number in range(60)]
    noisy = [value + noise for value, noise in zip(smooth, np.random.default_rng(3).normal(0, 0.02, 60), strict=True)]
    target = max(*noisy, 0.9) + 0.005
    assert steps_to(curve(noisy), target).reached > steps_to(curve(smooth), target).reached


def test_most_needs_are_between_the_percentiles() -> None:
    draw, inside = np.random.default_rng(7), []
    for _ in range(60):
        scale, height, noise = 10 ** draw.uniform(1, 2), draw.uniform(0.5, 0.8), draw.uniform(0.001, 0.02)
        times = np.arange(1, 400)
        values = (0.1 + height * (1 - np.exp(-times / scale)) + draw.normal(0, noise, len(times))).tolist()
        target = 0.1 + height * draw.uniform(0.8, 0.98)
        work = next(number for number, value in enumerate(values, start=1) if value >= target)
        seen = max(2, int(work * draw.uniform(0.2, 0.8)))
        if seen < work:
            steps = steps_to(curve(values[:seen], every=1), target)
            inside.append(steps.p10 <= work - seen <= steps.p90)
    assert np.mean(inside) >= 0.7


def test_earlier_curves_narrow_a_forecast() -> None:
    earlier = earlier_curves([finished(number, exponential(60)) for number in range(5)])
    points = curve(exponential(8))
    alone, known = (forecast_steps(points, 0.95, True, earlier=past) for past in (EarlierCurves(), earlier))
    assert alone is not None
    assert known is not None
    assert known.p90 / known.p10 < alone.p90 / alone.p10
    assert known.p50 == pytest.approx(200, rel=0.35)


def test_earlier_curves_tell_what_a_trial_without_a_point_needs() -> None:
    earlier = earlier_curves([finished(number, exponential(60)) for number in range(5)])
    steps = forecast_steps((), 0.95, True, earlier=earlier)
    assert steps is not None
    assert steps.p10 < 280 < steps.p90
    assert steps.p50 == pytest.approx(280, rel=0.35)


def test_target_that_no_earlier_curve_reached_is_less_probable() -> None:
    earlier = earlier_curves([finished(number, exponential(60)) for number in range(5)])
    points = curve(exponential(8))
    alone, known = (forecast_steps(points, 1.05, True, earlier=past) for past in (EarlierCurves(), earlier))
    assert alone is not None
    assert known is not None
    assert known.reached < alone.reached - 0.2


def test_runs_that_were_cut_off_say_nothing_of_later_ones() -> None:
    assert earlier_curves([finished(0, exponential(60), outcome="killed")]).curves == ()


def test_forecast_is_the_same_again() -> None:
    points = curve(exponential(30))
    first = steps_to(points, 0.99)
    forecast_steps.cache_clear()
    assert steps_to(points, 0.99) == first


def test_forecast_is_cached_by_its_curve() -> None:
    points = curve(exponential(30))
    assert steps_to(points, 0.99) is steps_to(points, 0.99)


def test_forecast_of_a_long_curve_takes_less_than_a_millisecond() -> None:
    draw = np.random.default_rng(0)
    values = np.array(exponential(200, scale=900.0)) + draw.normal(0, 0.002, 200)
    curves = [curve(values.tolist())] * 50
    forecast_steps.__wrapped__(curves[0], 0.95, True)
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        for points in curves:
            forecast_steps.__wrapped__(points, 0.95, True, horizon=4000.0)
        times_s.append((time.process_time() - began_s) / len(curves))
    assert min(times_s) < 0.001 * slowness()  # a third of it where nothing else runs


@given(
    st.lists(st.none() | st.floats(-1e12, 1e12), min_size=1, max_size=40),
    st.floats(-1e12, 1e12),
    st.booleans(),
    st.none() | st.floats(1, 1e6),
)
@settings(max_examples=examples(50), deadline=None)
def test_quantiles_are_in_order(
    values: list[float | None], value: float, maximize: bool, horizon: float | None
) -> None:
    steps = forecast_steps(curve(values), value, maximize, horizon=horizon)
    if steps is not None:
        assert 0 <= steps.p10 <= steps.p50 <= steps.p90
        assert 0 <= steps.reached <= 1
