"""A model text that does not hold together is refused with what is wrong, before a kernel or LightGBM sees it."""

import lightgbm
import numpy as np
import pytest

from helios.predict.trees import MOST_LEAVES, MOST_TREES, parse_trees, read_trees, trees_alone
from tests.unit.predict.crafted import edited, placed, resized, with_leaves
from tests.unit.predict.test_trees import a_booster

BOOSTER, KNOWN = a_booster(leaves=7, trees=3)
TEXT = BOOSTER.model_to_string()
NAMES = [f"Column_{n}" for n in range(10)]


def test_what_lightgbm_writes_is_read():
    trees = read_trees(TEXT, features=NAMES)
    assert [len(tree.leaf) for tree in trees] == [7, 7, 7]
    assert all(len(tree.left) == len(tree.right) == len(tree.feature) == 6 for tree in trees)


def test_the_trees_alone_are_a_model_that_predicts_and_explains_alike():
    alone = lightgbm.Booster(model_str=trees_alone(TEXT))
    np.testing.assert_array_equal(alone.predict(KNOWN[:9]), BOOSTER.predict(KNOWN[:9]))
    np.testing.assert_array_equal(
        alone.predict(KNOWN[:9], pred_contrib=True), BOOSTER.predict(KNOWN[:9], pred_contrib=True)
    )


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("left_child", placed(0, "2000000000"), "as a child once"),
        ("left_child", placed(0, "-2000000000"), "as a child once"),
        ("left_child", placed(0, "0"), "as a child once"),
        ("right_child", lambda words: [*words[1:], words[0]], "child"),
        ("left_child", lambda words: words[:-1], "5 of left_child, not 6"),
        ("right_child", lambda words: [*words, "1"], "7 of right_child, not 6"),
        ("split_feature", placed(0, "10"), "not among the 10"),
        ("split_feature", placed(0, "-1"), "not among the 10"),
        ("split_feature", placed(0, "99999999999"), "not made of numbers"),
        ("decision_type", placed(0, "1"), "decision_type"),
        ("decision_type", placed(0, "6"), "decision_type"),
        ("threshold", placed(0, "nan"), "not made of numbers"),
        ("threshold", placed(0, "0x1p3"), "not made of numbers"),
        ("leaf_value", placed(0, "nan"), "not made of numbers"),
        ("leaf_value", placed(0, "1e999"), "not finite"),
        ("leaf_value", placed(0, "1e10"), "beyond 1e\\+09"),
        ("leaf_value", lambda words: words[:-1], "6 of leaf_value, not 7"),
        ("leaf_weight", placed(0, "1e999"), "not finite"),
        ("leaf_count", placed(0, "0"), "without a job"),
        ("internal_count", placed(0, "-5"), "without a job"),
        ("internal_value", placed(0, "1_0"), "not made of numbers"),
        ("num_leaves", lambda _: ["8"], "not 7"),
        ("num_leaves", lambda _: ["0"], "."),
        ("num_leaves", lambda _: ["-3"], "whole number"),
        ("num_leaves", lambda _: ["99999999999999999999"], "whole number"),
        ("num_leaves", lambda _: [str(MOST_LEAVES + 1)], "whole number"),
        ("num_cat", lambda _: ["1"], "categories"),
        ("is_linear", lambda _: ["1"], "linear"),
        ("shrinkage", lambda _: ["1e999"], "shrinkage"),
    ],
)
def test_a_tree_that_does_not_hold_together_is_refused(name, change, why):
    crafted = edited(TEXT, name, change, tree=1)
    assert crafted != TEXT
    with pytest.raises(ValueError, match=why):
        parse_trees((crafted,))


def test_a_cycle_beside_the_tree_is_refused():
    # Each node and leaf is a child once, and yet two nodes lead only to each other.
    crafted = edited(TEXT, "left_child", lambda _: ["-1", "2", "1", "-2", "-3", "-4"], tree=0)
    crafted = edited(crafted, "right_child", lambda _: ["3", "-5", "-6", "4", "5", "-7"], tree=0)
    with pytest.raises(ValueError, match="before the node above it"):
        parse_trees((crafted,))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tree\n", "forest\n", "not a complete"),
        ("num_class=1", "num_class=2000000000", "num_class"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=0", "num_tree_per_iteration"),
        ("max_feature_idx=9", "max_feature_idx=8", "does not name"),
        ("max_feature_idx=9", "max_feature_idx=-1", "whole number"),
        ("objective=regression", "objective=regression sqrt", "objective"),
        ("objective=regression", "objective=lambdarank", "objective"),
        ("objective=regression\n", "objective=regression\naverage_output\n", "other lines"),
        ("num_class=1\n", "num_class=1\nnum_class=1\n", "other lines"),
        ("Column_9", "Column_x", "other features"),
        ("num_cat=0\n", "num_cat=0\ncat_boundaries=0 9\n", "begin and end"),
        ("Tree=1", "Tree=2", "begin and end"),
        ("end of trees", "end of all trees", "do not end"),
        ("shrinkage", "shr\u00efnkage", "letters"),
    ],
)
def test_a_header_or_frame_that_lightgbm_does_not_write_is_refused(old, new, why):
    assert old in TEXT
    with pytest.raises(ValueError, match=why):
        read_trees(TEXT.replace(old, new, 1), features=NAMES)


@pytest.mark.parametrize("sizes", ["", "1", "-1 -1 -1", "99999999999", "0 0 0"])
def test_sizes_that_do_not_agree_with_the_trees_are_refused(sizes):
    head, _, rest = TEXT.partition("tree_sizes=")
    with pytest.raises(ValueError, match=r"Tree|tree|sizes"):
        read_trees(f"{head}tree_sizes={sizes}\n{rest.partition(chr(10))[2]}")


def test_more_trees_than_any_model_has_are_refused():
    head, _, rest = TEXT.partition("Tree=0\n")
    block = "Tree=0\n" + rest.partition("Tree=1\n")[0]
    blocks = [block.replace("Tree=0", f"Tree={n}") for n in range(MOST_TREES + 1)]
    with pytest.raises(ValueError, match="trees, not 1 to"):
        read_trees(resized(head, blocks, "end of trees\n"))


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_text_cut_short_is_refused(kept):
    with pytest.raises(ValueError, match=r"complete|begin and end"):
        read_trees(TEXT[: int(len(TEXT) * kept * TEXT.index("end of trees") / len(TEXT))])


def test_leaves_as_large_as_allowed_give_a_finite_sum():
    assert np.isfinite(parse_trees((with_leaves(TEXT, "1e9"),)).leaf).all()
