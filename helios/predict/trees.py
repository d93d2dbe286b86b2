"""LightGBM's trees as arrays, evaluated by compiled kernels.

LightGBM's own call for one row costs more than the trees themselves (its Python layer, its thread pool), and a replay
predicts one job at a time. The kernels check nothing; :mod:`helios.predict.model_text` checks their input. A test
compares them with ``Booster.predict``, bit for bit.

Few rows descend the trees one by one. Many rows are evaluated by QuickScorer (Lucchese et al. 2015, doi
10.1145/2766462.2767733): every split of a tree is evaluated for many rows at a time, which avoids branch mispredictions
and allows SIMD instructions. A row that goes right excludes the leaves on the left, and the leftmost remaining leaf is
its own. Both methods add up the leaves in the same order, so that they agree to the last bit. There are no threads: the
processors belong to the caller, and the threads of numba may not be used by two callers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit
from helios.predict.model_text import read_trees

# LightGBM's decision_type: bit 1 missing goes left, bits 2-3 what counts as missing (2: NaN).
_MISSING_LEFT, _MISSING_SHIFT, _MISSING_IS_NAN = 2, 2, 2
_ALL_BITS = (1 << 64) - 1
# Rows at a time. With 40 features they take 20 KiB, which stay in a core's first cache.
_BLOCK = 128
# Largest number of rows for which descending the trees is faster than evaluating every split.
_FEW = 16


@dataclass(frozen=True, eq=False)
class TreeEnsemble(Table):
    """Several ensembles of trees in one set of arrays.

    Nodes and leaves of a tree are contiguous.

    Attributes
    ----------
    feature, left, right : int32 arrays of shape (n_nodes,)
        ``left`` and ``right`` are node numbers, or for a leaf the bitwise complement of its number.
    threshold : float32 array of shape (n_nodes,)
        A row goes left if its feature is at most this.
    missing_left : bool array of shape (n_nodes,)
        Whether a row goes left whose feature is NaN.
    keeps : uint32 or uint64 array of shape (n_nodes,)
        A bit for each leaf of the tree, the leftmost one lowest, which is 0 if a row that goes right cannot reach the
        leaf. Empty where a tree has more than 64 leaves.
    leaf : float64 array of shape (n_leaves,)
        Values of each tree's leaves from left to right.
    root : int32 array of shape (n_trees,)
        Node number, or complement of a leaf's for a tree without a split.
    first_node, first_leaf : int32 arrays of shape (n_trees + 1,)
    first_tree : int32 array of shape (n_ensembles + 1,)
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    keeps: NDArray[Any]
    leaf: NDArray[np.float64]
    root: NDArray[np.int32]
    first_node: NDArray[np.int32]
    first_leaf: NDArray[np.int32]
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
    decision = _joined([tree.decision for tree in trees], np.int32)
    threshold = _joined([tree.threshold for tree in trees], np.float64)
    shapes = [_shape(tree.left.tolist(), tree.right.tolist()) for tree in trees]
    nodes = np.cumsum([0] + [len(shape.keeps) for shape in shapes]).astype(np.int32)
    leaves = np.cumsum([0] + [len(shape.leaves) for shape in shapes]).astype(np.int32)
    most = int(np.diff(leaves).max(initial=0))
    return TreeEnsemble(
        feature=_joined([tree.feature for tree in trees], np.int32),
        threshold=_single(threshold),
        # LightGBM takes NaN as 0 where training saw none.
        missing_left=np.where(
            (decision >> _MISSING_SHIFT) & 3 == _MISSING_IS_NAN, decision & _MISSING_LEFT != 0, threshold >= 0
        ),
        left=_children([shape.left for shape in shapes], nodes, leaves),
        right=_children([shape.right for shape in shapes], nodes, leaves),
        keeps=np.array(
            [keeps for shape in shapes for keeps in shape.keeps] if most <= 64 else [], dtype=np.uint64
        ).astype(np.uint32 if most <= 32 else np.uint64),
        leaf=_joined([tree.leaf[shape.leaves] for tree, shape in zip(trees, shapes, strict=True)], np.float64),
        root=np.where(np.diff(nodes) > 0, nodes[:-1], ~leaves[:-1]),
        first_node=nodes,
        first_leaf=leaves,
        first_tree=np.cumsum([0] + [len(ensemble) for ensemble in ensembles]).astype(np.int32),
    )


def _joined(arrays: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0), *arrays]).astype(dtype)


def _single(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest single-precision number not above each number.

    Comparisons of single-precision features with it have the same result.
    """
    with np.errstate(over="ignore"):  # beyond every single is infinity
        rounded = threshold.astype(np.float32)
    above = rounded.astype(np.float64) > threshold
    return np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)


class _Shape(NamedTuple):
    """A tree with leaves numbered from left to right.

    ``leaves`` has their previous numbers.
    """

    left: list[int]
    right: list[int]
    keeps: list[int]
    leaves: list[int]


def _shape(left: list[int], right: list[int]) -> _Shape:
    leaves: list[int] = []
    number_of: dict[int, int] = {}
    keeps = [0] * len(left)
    # Each node is visited twice, before and after the leaves on its left are numbered.
    ahead = [(0 if left else ~0, -1)]
    while ahead:
        node, began = ahead.pop()
        if node < 0:
            number_of[node] = ~len(leaves)
            leaves.append(~node)
        elif began < 0:
            ahead += [(node, len(leaves)), (left[node], -1)]
        else:
            keeps[node] = _ALL_BITS ^ (((1 << (len(leaves) - began)) - 1) << began)
            ahead.append((right[node], -1))
    return _Shape(
        left=[number_of.get(child, child) for child in left],
        right=[number_of.get(child, child) for child in right],
        keeps=keeps,
        leaves=leaves,
    )


def _children(of_trees: list[list[int]], nodes: NDArray[np.int32], leaves: NDArray[np.int32]) -> NDArray[np.int32]:
    children = [
        child + node if child >= 0 else child - leaf
        for tree, node, leaf in zip(of_trees, nodes.tolist(), leaves.tolist(), strict=False)
        for child in tree
    ]
    return np.array(children, dtype=np.int32)


@cached_jit
def predict_trees(forest: Any, features: Any) -> Any:
    """Return each ensemble's sum of leaves for each row of ``features``.

    Parameters
    ----------
    forest : TreeEnsemble
    features : float32 array of shape (n, n_features)
        NaN where a value is unknown.

    Returns
    -------
    float64 array of shape (n, n_ensembles)
    """
    sums = np.zeros((len(features), len(forest.first_tree) - 1))
    if len(features) <= _FEW or len(forest.keeps) == 0:
        _fall_each(forest, features, sums)
    else:
        for first in range(0, len(features), _BLOCK):
            _strike_out(forest, features[first : first + _BLOCK], sums[first : first + _BLOCK])
    return sums


@inline_jit
def _fall_each(forest: Any, features: Any, sums: Any) -> None:
    for row in range(len(features)):
        for ensemble in range(sums.shape[1]):
            for tree in range(forest.first_tree[ensemble], forest.first_tree[ensemble + 1]):
                sums[row, ensemble] += forest.leaf[~_fall(forest, forest.root[tree], features[row])]


@inline_jit
def _fall(forest: Any, node: int, row: Any) -> int:
    while node >= 0:
        value = row[forest.feature[node]]
        goes_left = forest.missing_left[node] if np.isnan(value) else value <= forest.threshold[node]
        node = forest.left[node] if goes_left else forest.right[node]
    return node


@inline_jit
def _strike_out(forest: Any, features: Any, sums: Any) -> None:
    columns = features.T.copy()
    every_leaf = (~np.zeros(1, dtype=forest.keeps.dtype))[0]
    left_over = np.empty(len(features), dtype=forest.keeps.dtype)
    for ensemble in range(sums.shape[1]):
        for tree in range(forest.first_tree[ensemble], forest.first_tree[ensemble + 1]):
            left_over[:] = every_leaf
            for node in range(forest.first_node[tree], forest.first_node[tree + 1]):
                _try_split(forest, node, columns[forest.feature[node]], left_over, every_leaf)
            first_leaf = forest.first_leaf[tree]
            for row in range(len(left_over)):
                sums[row, ensemble] += forest.leaf[first_leaf + _lowest_bit(left_over[row])]


@inline_jit
def _try_split(forest: Any, node: int, values: Any, left_over: Any, every_leaf: Any) -> None:
    threshold, keeps = forest.threshold[node], forest.keeps[node]
    # Comparisons with NaN are false, so that each of the two branches handles it correctly.
    if forest.missing_left[node]:
        for row in range(len(values)):
            left_over[row] &= keeps if values[row] > threshold else every_leaf
    else:
        for row in range(len(values)):
            left_over[row] &= every_leaf if values[row] <= threshold else keeps


def _count_zeros(typing_context: Any, word: Any) -> Any:  # noqa: ARG001 - the signature is numba's
    """Return the position of the lowest set bit of ``word``.

    numba has no function for it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - likewise
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return word(word), generate


_lowest_bit: Any = intrinsic(_count_zeros)
