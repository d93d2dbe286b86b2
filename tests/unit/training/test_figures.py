"""Figures of pools: what they show of few and many trials, and what they say of parameters."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import pytest

from helios.model.trial_runs import CurvePoint
from helios.training.figures import (
    FEWEST_EXPLAINED,
    PlottedPool,
    PlottedTrial,
    curves_figure,
    importance,
    parallel_figure,
    pool_figures,
    scatter_figure,
)

FIGURES = (curves_figure, parallel_figure, scatter_figure)


def a_trial(number: int, value: float | None = 0.5, state: str = "finished", **parameters: Any) -> PlottedTrial:
    curve = tuple(CurvePoint(step, step * 2.0, None if value is None else value * step / 9) for step in range(10))
    return PlottedTrial(number=number, parameters=parameters, state=state, value=value, curve=curve)


def a_pool(count: int, *, maximize: bool = True, **more: Any) -> PlottedPool:
    numbers = random.Random(1)
    trials = [
        a_trial(
            number,
            numbers.random(),
            "pruned" if number % 3 == 1 else "finished",
            lr=10 ** numbers.uniform(-5, -1),
            width=numbers.choice([32, 64, 128]),
            kind=numbers.choice(["$x$", "<b>", "plain"]),
        )
        for number in range(count)
    ]
    return PlottedPool(metric="accuracy", maximize=maximize, trials=trials, **more)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("count", [3, 24, 500, 3_000])
def test_figures_of_any_number_of_trials_are_of_bounded_size(count: int, narrow: bool) -> None:
    pool = a_pool(count)
    for draw in FIGURES:
        drawn = draw(pool, narrow=narrow)
        assert drawn is not None
        assert len(drawn) < 300_000
        assert drawn == draw(pool, narrow=narrow)


def test_each_figure_says_in_words_what_it_shows() -> None:
    pool = a_pool(24)
    best = pool.ranked[0]
    for draw in FIGURES:
        said = re.search('aria-label="([^"]*)"', draw(pool) or "")
        assert said is not None
        assert f"the best is trial {best.number} with {best.value:.5g}" in said[1]
    assert "16 finished, 8 pruned" in (curves_figure(pool) or "")


def test_a_pruned_trial_is_drawn_but_never_the_best() -> None:
    trials = [a_trial(0, 0.5, lr=0.1), a_trial(1, 0.9, "pruned", lr=0.2), a_trial(2, 0.95, "failed", lr=0.3)]
    pool = PlottedPool(metric="accuracy", maximize=True, trials=trials)
    assert pool.best == {0}
    assert {trial.number for trial in pool.drawn} == {0, 1, 2}


def test_the_smallest_value_is_the_best_where_less_is_better() -> None:
    trials = [a_trial(number, value, lr=value) for number, value in enumerate((0.5, 0.1, 0.9))]
    assert PlottedPool(metric="loss", maximize=False, trials=trials).best == {1}


def test_of_too_many_trials_the_best_and_some_others_are_drawn() -> None:
    pool = a_pool(3_000)
    numbers = {trial.number for trial in pool.drawn}
    assert len(numbers) == 500
    assert pool.best < numbers
    assert {trial.state for trial in pool.drawn} == {"finished", "pruned"}
    assert "leave out 2500 trials" in pool_figures(pool)[0].notes[0]


def test_a_range_has_the_axis_that_the_sweep_says() -> None:
    for is_log in (True, False):
        pool = a_pool(24, is_log={"lr": is_log})
        assert (">1e-4<" in (scatter_figure(pool) or "")) == is_log
        assert (">1e-4<" in (parallel_figure(pool) or "")) == is_log


def test_nothing_is_drawn_where_there_is_nothing_to_draw() -> None:
    for trials in ([], [a_trial(0, None, lr=0.1)], [a_trial(0, 0.5), a_trial(1, 0.6)]):
        pool = PlottedPool(metric="accuracy", maximize=True, trials=trials)
        assert (parallel_figure(pool), scatter_figure(pool)) == (None, None)
    assert pool_figures(PlottedPool(metric="", maximize=True, trials=[])) == []


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300, -1e300])
def test_equal_and_extreme_values_are_drawn(value: float) -> None:
    trials = [a_trial(number, value, lr=0.1 * number, width=7) for number in range(3)]
    trials.append(a_trial(3, 1.0, lr=None, width=2**60))
    for draw in FIGURES:
        assert draw(PlottedPool(metric="loss", maximize=False, trials=trials))


def explained(count: int) -> dict[str, float]:
    """The importance of two parameters of f = 2x + y, and of a third that changes nothing."""
    numbers = random.Random(3)
    trials = []
    for number in range(count):
        x, y = numbers.random(), numbers.random()
        parameters = {"x": x, "y": y, "z": numbers.choice(["a", "b"]), "fixed": 1}
        trials.append(PlottedTrial(number=number, parameters=parameters, state="finished", value=2 * x + y))
    return importance(PlottedPool(metric="f", maximize=True, trials=trials))


def test_importance_is_the_share_of_variance_of_a_known_function() -> None:
    pytest.importorskip("optuna")
    found = explained(150)
    assert list(found) == ["x", "y", "z"]
    assert math.isclose(found["x"], 0.8, abs_tol=0.08)
    assert math.isclose(found["y"], 0.2, abs_tol=0.08)
    assert found["z"] < 0.02


def test_importance_is_known_of_more_trials_than_are_drawn() -> None:
    pytest.importorskip("optuna")
    assert explained(1_200)["x"] > 0.6


def test_importance_needs_twenty_trials() -> None:
    pytest.importorskip("optuna")
    assert explained(FEWEST_EXPLAINED - 1) == {}
    assert explained(FEWEST_EXPLAINED) != {}
