import os

import lightgbm
import numpy as np
import pytest

from helios.predict.duration import ROUNDS, TrainingSet, fit_trees


def a_training_set(n=3000, *, seed=0):
    """Return pairs of which the more have ended, the larger the first feature."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 5)).astype(np.float32)
    ended = (features[:, 0] + 0.5 * rng.standard_normal(n) > 0).astype(np.float32)
    return TrainingSet(features=features, ended=ended, names=("a", "b", "c", "d", "e"))


def answers(text, training_set):
    return lightgbm.Booster(model_str=text).predict(training_set.features)


def test_it_learns_how_often_runs_have_ended():
    later = a_training_set(20_000, seed=1)
    said = answers(fit_trees(a_training_set(20_000), seed=0), later)
    for low, high in ((0.0, 0.2), (0.4, 0.6), (0.8, 1.0)):
        there = (said >= low) & (said <= high)
        assert said[there].mean() == pytest.approx(later.ended[there].mean(), abs=0.03)


def test_one_core_grows_the_same_trees_as_all_of_them():
    cores = os.sched_getaffinity(0)
    everywhere = fit_trees(a_training_set(), seed=3)
    try:
        os.sched_setaffinity(0, {min(cores)})
        alone = fit_trees(a_training_set(), seed=3)
    finally:
        os.sched_setaffinity(0, cores)
    assert everywhere == alone


def test_another_seed_grows_other_trees():
    one, other = (fit_trees(a_training_set(), seed=seed) for seed in (0, 1))
    assert one != other


def test_progress_counts_every_round():
    heard = []
    fit_trees(a_training_set(), seed=0, progress=lambda step, done: heard.append(done))
    assert heard == pytest.approx([n / ROUNDS for n in range(1, ROUNDS + 1)])


def test_the_text_names_the_features():
    assert "\nfeature_names=a b c d e\n" in fit_trees(a_training_set(), seed=0)
