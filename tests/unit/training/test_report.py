"""Which trials are the best."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.report import PoolResult, find_best, pool_sentences
from tests.examples import examples

VALUES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


def test_the_first_of_equal_trials_is_the_best() -> None:
    assert find_best({4: {"a": 1.0}, 2: {"a": 3.0}, 3: {"a": 3.0}, 1: {"b": 9.0}}, {"a": True}) == [2]
    assert find_best({4: {"a": 1.0}, 2: {"a": 3.0}}, {"a": False}) == [4]
    assert find_best({4: {"a": 1.0}}, {}) == []


@given(st.lists(VALUES, max_size=12, unique=True), st.lists(st.booleans(), min_size=3, max_size=3))
@settings(max_examples=examples(30), deadline=None)
def test_the_front_is_that_of_optuna(values: list[tuple[int, int, int]], more: list[bool]) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(directions=["maximize" if each else "minimize" for each in more])
        study.add_trials([optuna.trial.create_trial(values=each) for each in values])
    found = find_best(
        {number: dict(zip("abc", map(float, each), strict=True)) for number, each in enumerate(values)},
        dict(zip("abc", more, strict=True)),
    )
    assert sorted(found) == sorted(trial.number for trial in study.best_trials)


def test_trials_that_reported_other_metrics_are_counted_with_their_names() -> None:
    trials = [
        {"number": number, "state": "finished", "metrics": metrics, "parameters": {}, "seconds": 1.0}
        for number, metrics in enumerate([{"accuracy": 0.5}, {"acc": 0.5}, {}, {"acc": 0.4, "loss": 1.0}])
    ]
    result = PoolResult(
        name="sweep.toml",
        folder="sweep.pool",
        objectives={"accuracy": True},
        devices=(),
        trials=trials,
        total=4,
        seconds=3.0,
    )
    assert pool_sentences(result)[-1] == (
        "3 trials finished without reporting 'accuracy', such as 1. Reported: acc, loss."
    )
