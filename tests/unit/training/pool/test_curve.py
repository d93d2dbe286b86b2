"""Thinning of curves."""

from __future__ import annotations

import random
from itertools import pairwise

from helios.model.trial_runs import CurvePoint
from helios.training.pool.curve import MOST_POINTS, Curve, thin


def a_curve(steps: list[int]) -> Curve:
    curve = Curve()
    for place, step in enumerate(steps):
        curve.add(step, float(place), step / 2)
    return curve


def test_a_short_curve_keeps_all_points() -> None:
    points = a_curve(list(range(MOST_POINTS))).points
    assert points == tuple(CurvePoint(step, float(step), step / 2) for step in range(MOST_POINTS))


def test_first_and_last_point_are_kept_at_any_length() -> None:
    for length in (201, 399, 400, 401, 777, 20_000):
        points = a_curve(list(range(7, 7 + length))).points
        assert (points[0].step, points[-1].step) == (7, 6 + length)
        assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS


def test_steps_are_spread_evenly_over_a_long_curve() -> None:
    steps = [point.step for point in a_curve(list(range(50_000))).points]
    assert max(later - earlier for earlier, later in pairwise(steps)) < 4 * 50_000 / MOST_POINTS


def test_any_order_of_steps_gives_a_monotone_curve() -> None:
    numbers = random.Random(1)
    for most in (3, 300, 10**9):
        points = a_curve([numbers.randrange(most) for _ in range(5_000)]).points
        assert all(a.step < b.step and a.seconds <= b.seconds for a, b in pairwise(points))
        assert len(points) <= MOST_POINTS


def test_a_step_back_removes_what_was_after_it() -> None:
    points = a_curve([*range(100), 40, 41]).points
    assert [point.step for point in points] == [*range(41), 41]
    assert points[-1].seconds == 101.0


def test_a_curve_goes_on_from_its_points() -> None:
    whole = a_curve(list(range(150)))
    again = Curve(a_curve(list(range(100))).points)
    for step in range(100, 150):
        again.add(step, float(step), step / 2)
    assert again.points == whole.points


def test_points_beside_each_other_are_thinned_to_the_bound() -> None:
    points = [CurvePoint(step, 0.0, 0.0) for step in [0, *range(10**6, 10**6 + 500)]]
    assert thin(points)[0] == points[0]
    assert thin(points)[-1] == points[-1]
    assert len(thin(points)) <= MOST_POINTS
