import os

import lightgbm
import numpy as np
import pytest

from helios.predict.duration import ROUNDS, TrainingSet, train_locally

QUANTILES = (0.1, 0.5, 0.9)


def a_training_set(n=3000, *, seed=0, weight=None):
    """Return jobs whose residual is the first feature plus noise that grows with the second."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 5)).astype(np.float32)
    residual = features[:, 0] + np.exp(0.5 * features[:, 1]) * rng.standard_normal(n)
    return TrainingSet(
        features=features,
        residual=residual,
        weight=np.ones(n) if weight is None else weight,
        names=("a", "b", "c", "d", "e"),
    )


def answers(text, training_set):
    return lightgbm.Booster(model_str=text).predict(training_set.features)


def test_each_ensemble_is_of_its_quantile_in_the_order_asked():
    training_set, later = a_training_set(20_000), a_training_set(20_000, seed=1)
    texts = train_locally(training_set, quantiles=QUANTILES, seed=0)
    below = [float(np.mean(later.residual <= answers(text, later))) for text in texts]
    assert below == pytest.approx(QUANTILES, abs=0.05)
    turned = train_locally(training_set, quantiles=(0.9, 0.1), seed=0)
    assert turned == (texts[2], texts[0])


def test_one_core_grows_the_same_trees_as_all_of_them_to_the_byte():
    cores = os.sched_getaffinity(0)
    everywhere = train_locally(a_training_set(), quantiles=QUANTILES, seed=3)
    try:
        os.sched_setaffinity(0, {min(cores)})
        alone = train_locally(a_training_set(), quantiles=QUANTILES, seed=3)
    finally:
        os.sched_setaffinity(0, cores)
    assert everywhere == alone


def test_another_seed_grows_other_trees():
    one, other = (train_locally(a_training_set(), quantiles=(0.5,), seed=seed) for seed in (0, 1))
    assert one != other


def test_a_job_that_weighs_nothing_teaches_nothing():
    training_set = a_training_set(4000)
    foreign = np.arange(4000) >= 2000
    training_set.residual[foreign] += 50
    weight = np.where(foreign, 1e-9, 1.0)
    (text,) = train_locally(
        TrainingSet(
            features=training_set.features, residual=training_set.residual, weight=weight, names=training_set.names
        ),
        quantiles=(0.5,),
        seed=0,
    )
    assert np.abs(answers(text, training_set)).max() < 10


def test_progress_counts_every_round_of_every_ensemble():
    heard = []
    train_locally(a_training_set(), quantiles=(0.1, 0.9), seed=0, progress=lambda step, done: heard.append(done))
    assert heard == pytest.approx([n / (2 * ROUNDS) for n in range(1, 2 * ROUNDS + 1)])


def test_the_text_names_the_features():
    (text,) = train_locally(a_training_set(), quantiles=(0.5,), seed=0)
    assert "\nfeature_names=a b c d e\n" in text
