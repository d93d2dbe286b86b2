import lightgbm
import numpy as np
import pytest

from helios.predict.trees import parse_trees
from tests.forest import predict_trees


def a_booster(*, leaves, trees=12, seed=0):
    """Trees on ten columns: holes in two, infinities in one, whole numbers in one."""
    rng = np.random.default_rng(seed)
    known = rng.standard_normal((1500, 10)).astype(np.float32)
    known[rng.random(1500) < 0.3, 1] = np.nan
    known[rng.random(1500) < 0.1, 2] = np.nan
    known[::7, 3] = np.inf
    known[:, 4] = np.round(known[:, 4] * 3)
    truth = np.nan_to_num(known[:, 0] * known[:, 4]) + np.isnan(known[:, 1]) + rng.standard_normal(1500)
    options = {"verbose": -1, "num_threads": 1, "num_leaves": leaves, "min_data_in_leaf": 3}
    return lightgbm.train(options, lightgbm.Dataset(known, truth), trees), known


@pytest.mark.parametrize("rows", [1, 16, 17, 128, 129, 1500])
@pytest.mark.parametrize("leaves", [2, 15, 32, 33, 64, 65])
def test_few_rows_and_many_are_what_lightgbm_says_bit_for_bit(leaves, rows):
    booster, known = a_booster(leaves=leaves)
    asked = known[:rows].copy()
    asked[::3, 0] = np.nan  # a column in which training saw nothing missing
    text = booster.model_to_string()
    np.testing.assert_array_equal(
        predict_trees(parse_trees((text,)), asked)[:, 0], lightgbm.Booster(model_str=text).predict(asked)
    )


def test_a_value_near_a_threshold_goes_where_lightgbm_sends_it():
    booster, known = a_booster(leaves=15)
    text = booster.model_to_string()
    forest = parse_trees((text,))
    asked = np.repeat(known[:1], len(forest.threshold), axis=0)
    for row, (feature, threshold) in enumerate(zip(forest.feature, forest.threshold, strict=True)):
        asked[row, feature] = threshold
    above = asked.copy()
    for row, feature in enumerate(forest.feature):
        above[row, feature] = np.nextafter(asked[row, feature], np.float32(np.inf))
    both = np.concatenate([asked, above])
    np.testing.assert_array_equal(predict_trees(forest, both)[:, 0], booster.predict(both))


def test_ensembles_stand_side_by_side_and_one_may_be_a_constant():
    texts = [a_booster(leaves=15, seed=seed)[0].model_to_string() for seed in (1, 2)]
    flat = {"verbose": -1, "min_data_in_leaf": 1000}
    constant = lightgbm.train(flat, lightgbm.Dataset(np.zeros((50, 10)), np.full(50, 7.0)), 3)
    known = a_booster(leaves=15)[1]
    together = predict_trees(parse_trees((texts[0], constant.model_to_string(), texts[1])), known)
    for column, text in ((0, texts[0]), (2, texts[1])):
        np.testing.assert_array_equal(together[:, column], lightgbm.Booster(model_str=text).predict(known))
    np.testing.assert_allclose(together[:, 1], 7.0)


def test_no_rows_give_no_sums():
    forest = parse_trees((a_booster(leaves=15)[0].model_to_string(),))
    assert predict_trees(forest, np.empty((0, 10), np.float32)).shape == (0, 1)


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match="not a complete"):
        parse_trees(("tree\n",))
