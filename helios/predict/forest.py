"""LightGBM's trees as arrays, evaluated by a compiled kernel.

LightGBM's own call for one row costs more than the trees themselves (its Python layer, its thread
pool), and a replay asks for one job at a time. The text format is LightGBM's, ``gbdt_model_text.cpp``;
a test holds the kernel equal to ``Booster.predict``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# LightGBM's decision_type: bit 0 categorical, bit 1 missing goes left, bits 2-3 what counts as missing (2: NaN).
_CATEGORICAL, _MISSING_LEFT, _MISSING_SHIFT, _MISSING_IS_NAN = 1, 2, 2, 2


class Forest(NamedTuple):
    """Several ensembles of trees in one set of arrays.

    Attributes
    ----------
    feature, threshold, left, right, decision : arrays of shape (n_nodes,)
        ``left`` and ``right`` are node numbers, or for a leaf the bitwise complement of its number.
    leaf : float64 array of shape (n_leaves,)
    root : int32 array of shape (n_trees,)
        Node number, or complement of a leaf's for a tree without a split.
    first_tree : int32 array of shape (n_ensembles + 1,)
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    decision: NDArray[np.int32]
    leaf: NDArray[np.float64]
    root: NDArray[np.int32]
    first_tree: NDArray[np.int32]


def plant(texts: tuple[str, ...]) -> Forest:
    """Return the forest of LightGBM model ``texts``, one ensemble for each.

    Raises
    ------
    ValueError
        A text is not LightGBM's, or has categorical splits.
    """
    ensembles = [list(_trees(text)) for text in texts]
    trees = [tree for ensemble in ensembles for tree in ensemble]
    nodes = np.cumsum([0] + [len(tree["split_feature"]) for tree in trees])
    leaves = np.cumsum([0] + [len(tree["leaf_value"]) for tree in trees])
    decision = _joined(trees, "decision_type", np.int32)
    if (decision & _CATEGORICAL).any():
        raise ValueError("a tree splits on categories, which this forest does not know")
    return Forest(
        feature=_joined(trees, "split_feature", np.int32),
        threshold=_joined(trees, "threshold", np.float64),
        left=_children(trees, "left_child", nodes, leaves),
        right=_children(trees, "right_child", nodes, leaves),
        decision=decision,
        leaf=_joined(trees, "leaf_value", np.float64),
        root=np.array(
            [
                node if len(tree["split_feature"]) else ~leaf
                for tree, node, leaf in zip(trees, nodes, leaves, strict=False)
            ],
            dtype=np.int32,
        ),
        first_tree=np.cumsum([0] + [len(ensemble) for ensemble in ensembles]).astype(np.int32),
    )


def _trees(text: str) -> Iterator[dict[str, list[str]]]:
    body, found, _ = text.partition("end of trees")
    if not found:
        raise ValueError("not a complete LightGBM model")
    for block in body.split("Tree=")[1:]:
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        yield {
            name: fields.get(name, "").split()
            for name in ("split_feature", "threshold", "decision_type", "left_child", "right_child", "leaf_value")
        }


def _joined(trees: list[dict[str, list[str]]], name: str, dtype: Any) -> NDArray[Any]:
    return np.array([value for tree in trees for value in tree[name]], dtype=np.float64).astype(dtype)


def _children(
    trees: list[dict[str, list[str]]], name: str, nodes: NDArray[np.int64], leaves: NDArray[np.int64]
) -> NDArray[np.int32]:
    children = [
        child + node if child >= 0 else child - leaf
        for tree, node, leaf in zip(trees, nodes, leaves, strict=False)
        for child in map(int, tree[name])
    ]
    return np.array(children, dtype=np.int32)


@njit(cache=True)
def grow(forest: Any, features: Any) -> Any:
    """Return each ensemble's sum of leaves for each row of ``features``.

    Parameters
    ----------
    forest : Forest
    features : float32 array of shape (n, n_features)
        NaN: unknown.

    Returns
    -------
    float64 array of shape (n, n_ensembles)
    """
    n_ensembles = len(forest.first_tree) - 1
    sums = np.zeros((len(features), n_ensembles))
    for row in range(len(features)):
        for ensemble in range(n_ensembles):
            for tree in range(forest.first_tree[ensemble], forest.first_tree[ensemble + 1]):
                sums[row, ensemble] += forest.leaf[~_fall(forest, forest.root[tree], features[row])]
    return sums


@njit(cache=True)
def _fall(forest: Any, node: int, row: Any) -> int:
    while node >= 0:
        value = float(row[forest.feature[node]])
        decision = forest.decision[node]
        if np.isnan(value) and (decision >> _MISSING_SHIFT) & 3 == _MISSING_IS_NAN:
            goes_left = decision & _MISSING_LEFT != 0
        else:
            # LightGBM takes NaN as 0 where training saw none.
            goes_left = (0.0 if np.isnan(value) else value) <= forest.threshold[node]
        node = forest.left[node] if goes_left else forest.right[node]
    return node
