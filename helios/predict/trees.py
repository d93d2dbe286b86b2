"""LightGBM's trees as arrays, and the parser of its model text.

A call of LightGBM for one row takes longer than the trees themselves (because of its Python layer and thread pool), and
a replay predicts one job at a time. A test compares the kernels with ``Booster.predict``, bit for bit.

The parser is strict, and refuses an inconsistent text with the reason. A model is stored as text in the warehouse, and
whoever can write there can write any text. Neither LightGBM's parser nor the kernels check their input. With a missing
child the process would crash, and with a cycle it would never end. A digest does not help against somebody who can
write a digest too. The format is that of LightGBM's ``gbdt_model_text.cpp`` and ``tree.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table

# Bounds far above the size of Helios' own models (120 trees of 31 leaves, 0.4 MiB). Within them a kernel or LightGBM's
# TreeSHAP takes seconds at most.
MOST_BYTES = 16 * 1024 * 1024
MOST_TREES = 2_000
MOST_LEAVES = 128
LARGEST = 1e9
"""Largest value of a leaf. The sum over 2,000 trees stays finite."""
# LightGBM's decision_type: bit 0 categorical, bit 1 missing goes left, bits 2-3 what counts as missing (0: nothing,
# 2: NaN). Zeros as missing (1) and categories do not occur in Helios' models and are not supported.
_DECISIONS = frozenset({0, 2, 8, 10})
_OBJECTIVE = re.compile(r"quantile|regression|regression_l1|binary sigmoid:1")
_INT = r"-?[0-9]{1,10}"
_FLOAT = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_BOUND = rf"(?:{_FLOAT}|-?inf)"
_INTS, _FLOATS, _THRESHOLDS = (re.compile(rf"(?:{number}(?: {number})*)?") for number in (_INT, _FLOAT, _BOUND))
_RANGE = re.compile(rf"none|\[{_BOUND}:{_BOUND}\]")
"""Entry of a feature in ``feature_infos``: ``none`` if it is not used, else its range."""
_END = "end of trees\n"
_HEADER = (
    *("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective"),
    *("feature_names", "feature_infos", "tree_sizes"),
)
_FIXED_VALUES = {"num_class": "1", "num_tree_per_iteration": "1", "label_index": "0"}
_SPLIT_FIELDS = {
    "split_feature": _INTS,
    "split_gain": _FLOATS,
    "threshold": _THRESHOLDS,
    "decision_type": _INTS,
    "left_child": _INTS,
    "right_child": _INTS,
    "internal_value": _FLOATS,
    "internal_weight": _FLOATS,
    "internal_count": _INTS,
}
_LEAF_FIELDS = {"leaf_value": _FLOATS, "leaf_weight": _FLOATS, "leaf_count": _INTS}
_TREE_FIELDS = (
    *("num_leaves", "num_cat"),
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child"),
    *("leaf_value", "leaf_weight", "leaf_count"),
    *("internal_value", "internal_weight", "internal_count"),
    *("is_linear", "shrinkage"),
)

# LightGBM's decision_type: bit 1 missing goes left, bits 2-3 what counts as missing (2: NaN).
_SPLIT = np.dtype([("feature", np.int32), ("threshold", np.float32), ("missing_left", np.bool_)])

_MISSING_LEFT, _MISSING_SHIFT, _MISSING_IS_NAN = 2, 2, 2


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One checked tree.

    Each node except the first, and each leaf, is the child of exactly one node.

    Attributes
    ----------
    feature, decision, left, right : int64 arrays of shape (n_leaves - 1,)
        ``left`` and ``right`` are node numbers, or for a leaf the bitwise complement of its number.
    threshold : float64 array of shape (n_leaves - 1,)
    leaf : float64 array of shape (n_leaves,)
    """

    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    decision: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    leaf: NDArray[np.float64]


def read_trees(text: str, *, features: Sequence[str] | None = None) -> list[Tree]:
    """Return the trees of a model's text.

    Parameters
    ----------
    features : sequence of str, optional
        Names that its features must have, in this order; None for any.

    Raises
    ------
    ValueError
        The text is not LightGBM's, is inconsistent, or has a kind of model that Helios does not train.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"a text of {len(text):,} bytes is larger than any model ({MOST_BYTES:,})")
    if not text.isascii():
        raise ValueError("its text has letters that LightGBM does not write")
    header, n_features, sizes = _read_header(text, features)
    trees, start = [], len(header)
    for number, size in enumerate(sizes):
        trees.append(_read_tree(text[start : start + size], number, n_features))
        start += size
    if not text.startswith(_END, start):
        raise ValueError("not a complete LightGBM model: its trees do not end where their sizes say")
    return trees


def trees_alone(text: str) -> str:
    """Return the part of a model's text that ``read_trees`` checks."""
    return text.partition(_END)[0] + _END


def _read_header(text: str, features: Sequence[str] | None) -> tuple[str, int, list[int]]:
    """Return the header, the number of features and the trees' sizes."""
    header, separator, _ = text.partition("\n\n")
    if not separator or not header.startswith("tree\n"):
        raise ValueError("not a complete LightGBM model")
    fields = _fields(header.split("\n")[1:], _HEADER, "the header")
    for name, value in _FIXED_VALUES.items():
        if fields[name] != value:
            raise ValueError(f"its {name} is {fields[name]!r:.40}, not {value}")
    if not _OBJECTIVE.fullmatch(fields["objective"]):
        raise ValueError(f"its objective is {fields['objective']!r:.40}, which is not trained here")
    if not re.fullmatch(r"v[0-9]{1,3}", fields["version"]):
        raise ValueError(f"its version is {fields['version']!r:.40}")
    n_features = 1 + _number(fields["max_feature_idx"], "max_feature_idx", most=1_000_000)
    names = fields["feature_names"].split(" ")
    ranges = fields["feature_infos"].split(" ")
    if len(names) != n_features or len(ranges) != n_features:
        raise ValueError(f"it does not name the {n_features} features that it says it has")
    if wrong := [text for text in ranges if not _RANGE.fullmatch(text)]:
        raise ValueError(f"its feature_infos has {wrong[0]!r:.40}, which is no range")
    if features is not None and names != list(features):
        raise ValueError("its trees take other features than the model says")
    sizes = _array(fields["tree_sizes"], _INTS, "tree_sizes", "the header").tolist()
    if not 1 <= len(sizes) <= MOST_TREES or min(sizes) < 1:
        raise ValueError(f"it has {len(sizes)} trees, not 1 to {MOST_TREES:,}, or one without a size")
    return header + "\n\n", n_features, sizes


def _read_tree(text: str, number: int, n_features: int) -> Tree:
    where = f"tree {number}"
    if not text.startswith(f"Tree={number}\n") or not text.endswith("\n\n"):
        raise ValueError(f"{where} does not begin and end where the sizes of the trees say")
    fields = _fields(text.strip("\n").split("\n")[1:], _TREE_FIELDS, where)
    if (fields["num_cat"], fields["is_linear"]) != ("0", "0"):
        raise ValueError(f"{where} splits on categories or has linear leaves, which this forest does not know")
    if not np.isfinite(_array(fields["shrinkage"], _FLOATS, "shrinkage", where, 1)).all():
        raise ValueError(f"{where} has a shrinkage that is no number")
    n_leaves = _number(fields["num_leaves"], f"num_leaves of {where}", most=MOST_LEAVES)
    splits = {name: _array(fields[name], pattern, name, where, n_leaves - 1) for name, pattern in _SPLIT_FIELDS.items()}
    # LightGBM writes no weight for the only leaf of a tree.
    may_be_empty = {"leaf_weight"} if n_leaves == 1 else set()
    leaves = {
        name: _array(fields[name], pattern, name, where, n_leaves)
        for name, pattern in _LEAF_FIELDS.items()
        if name not in may_be_empty or fields[name]
    }
    for name, values in (splits | leaves).items():
        # A feature may be infinite (a time limit), and so may its threshold.
        if name != "threshold" and not all(map(isfinite, values.tolist())):
            raise ValueError(f"{where} has a {name} that is not finite")
    _check_tree(splits, leaves, n_features, where)
    return Tree(
        feature=splits["split_feature"],
        threshold=splits["threshold"],
        decision=splits["decision_type"],
        left=splits["left_child"],
        right=splits["right_child"],
        leaf=leaves["leaf_value"],
    )


def _check_tree(splits: dict[str, NDArray[Any]], leaves: dict[str, NDArray[Any]], n_features: int, where: str) -> None:
    """Raise ValueError unless the arrays make one valid tree."""
    # Lists, because NumPy takes longer for arrays as small as those of a tree.
    lists = {name: values.tolist() for name, values in (splits | leaves).items()}
    left, right = lists["left_child"], lists["right_child"]
    n_splits = len(left)
    if not all(0 <= feature < n_features for feature in lists["split_feature"]):
        raise ValueError(f"{where} splits on a feature that is not among the {n_features}")
    if not _DECISIONS.issuperset(lists["decision_type"]):
        raise ValueError(f"{where} has a decision_type that this forest does not know")
    if n_splits and sorted(left + right) != [*range(-n_splits - 1, 0), *range(1, n_splits)]:
        raise ValueError(f"{where} does not have each of its nodes and leaves as a child once")
    # A node always comes after its parent, which excludes cycles.
    if any(0 <= child <= node for children in (left, right) for node, child in enumerate(children)):
        raise ValueError(f"{where} has a child before the node above it")
    # TreeSHAP divides by the counts.
    if min(lists["internal_count"] + lists["leaf_count"]) < 1:
        raise ValueError(f"{where} has a node or leaf without a job")
    if not all(abs(value) <= LARGEST for value in lists["leaf_value"]):
        raise ValueError(f"{where} has a leaf beyond {LARGEST:g}")


def _fields(lines: list[str], names: Sequence[str], where: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` lines.

    The names must be exactly ``names``, in this order.
    """
    pairs = [line.partition("=") for line in lines]
    actual = [name for name, _, _ in pairs]
    if actual != list(names):
        wrong = next((name for name in (*actual, *names) if name not in names or name not in actual), "a line twice")
        raise ValueError(f"{where} has other lines than LightGBM writes: {wrong!r:.40}")
    return {name: value for name, _, value in pairs}


def _array(value: str, pattern: re.Pattern[str], name: str, where: str, length: int | None = None) -> NDArray[Any]:
    words = value.split()
    if length is not None and len(words) != length:
        raise ValueError(f"{where} has {len(words)} of {name}, not {length}")
    if not pattern.fullmatch(value):
        raise ValueError(f"{where} has a {name} that is not made of numbers")
    return np.array(words, dtype=np.int64 if pattern is _INTS else np.float64)


def _number(value: str, name: str, *, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", value) or not int(value) <= most:
        raise ValueError(f"{name} is {value!r:.40}, not a whole number up to {most:,}")
    return int(value)


@dataclass(frozen=True, eq=False)
class TreeEnsemble(Table):
    """Several ensembles of trees in one set of arrays.

    The nodes of a tree are contiguous, and so are its leaves.

    Attributes
    ----------
    split, left, right : int32 arrays of shape (n_nodes,)
        ``left`` and ``right`` are node numbers, or for a leaf the bitwise complement of its number.
    feature : int32 array of shape (n_splits,)
        The distinct splits of all nodes, ordered by feature.
    threshold : float32 array of shape (n_splits,)
        A row goes left if its feature is at most this.
    missing_left : bool array of shape (n_splits,)
        Whether a row goes left whose feature is NaN.
    leaf : float64 array of shape (n_leaves,)
        Values of the leaves.
    root : int32 array of shape (n_trees,)
        Node number, or complement of a leaf's for a tree without a split.
    first_tree : int32 array of shape (n_ensembles + 1,)
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    split: NDArray[np.int32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    leaf: NDArray[np.float64]
    root: NDArray[np.int32]
    first_tree: NDArray[np.int32]


def parse_trees(texts: tuple[str, ...], *, features: Sequence[str] | None = None) -> TreeEnsemble:
    """Parse LightGBM model ``texts`` into one forest, an ensemble for each.

    Parameters
    ----------
    features : sequence of str, optional
        Names that their features must have; None for any.

    Raises
    ------
    ValueError
        A text is not LightGBM's, is inconsistent, or has categorical splits.
    """
    ensembles = [read_trees(text, features=features) for text in texts]
    trees = [tree for ensemble in ensembles for tree in ensemble]
    decision = _concat([tree.decision for tree in trees], np.int32)
    threshold = _concat([tree.threshold for tree in trees], np.float64)
    first_node = np.cumsum([0] + [len(tree.feature) for tree in trees]).astype(np.int32)
    first_leaf = np.cumsum([0] + [len(tree.leaf) for tree in trees]).astype(np.int32)
    # LightGBM treats NaN as 0 where there was none in training.
    missing_left = np.where(
        (decision >> _MISSING_SHIFT) & 3 == _MISSING_IS_NAN, decision & _MISSING_LEFT != 0, threshold >= 0
    )
    node_splits = np.empty(len(threshold), dtype=_SPLIT)
    node_splits["feature"] = _concat([tree.feature for tree in trees], np.int32)
    node_splits["threshold"], node_splits["missing_left"] = _round_down(threshold), missing_left
    splits, split = np.unique(node_splits, return_inverse=True)
    return TreeEnsemble(
        feature=splits["feature"].copy(),
        threshold=splits["threshold"].copy(),
        missing_left=splits["missing_left"].copy(),
        split=split.astype(np.int32),
        left=_renumber_children([tree.left for tree in trees], first_node, first_leaf),
        right=_renumber_children([tree.right for tree in trees], first_node, first_leaf),
        leaf=_concat([tree.leaf for tree in trees], np.float64),
        root=np.where(np.diff(first_node) > 0, first_node[:-1], ~first_leaf[:-1]),
        first_tree=np.cumsum([0] + [len(ensemble) for ensemble in ensembles]).astype(np.int32),
    )


def _concat(arrays: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0), *arrays]).astype(dtype)


def _round_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest single-precision number not above each threshold.

    A comparison of single-precision features with it has the same result.
    """
    with np.errstate(over="ignore"):  # too large numbers become infinite
        rounded = threshold.astype(np.float32)
    is_above = rounded.astype(np.float64) > threshold
    return np.where(is_above, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _renumber_children(
    children: list[NDArray[Any]], first_node: NDArray[np.int32], first_leaf: NDArray[np.int32]
) -> NDArray[Any]:
    """Return the children of all nodes, numbered through all trees."""
    trees = zip(children, first_node, first_leaf, strict=False)
    return _concat([np.where(child >= 0, child + node, child - leaf) for child, node, leaf in trees], np.int32)
