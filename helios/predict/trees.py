"""LightGBM's trees as arrays, evaluated by compiled kernels.

LightGBM's own call for one row costs more than the trees themselves (its Python layer, its thread pool), and a replay
predicts one job at a time. The kernels check nothing; :mod:`helios.predict.model_text` checks their input. A test
compares them with ``Booster.predict``, bit for bit.

There are no threads: the processors belong to the caller, and the threads of numba may not be used by two callers at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table
from helios.predict.model_text import read_trees

# LightGBM's decision_type: bit 1 missing goes left, bits 2-3 what counts as missing (2: NaN).
_SPLIT = np.dtype([("feature", np.int32), ("threshold", np.float32), ("missing_left", np.bool_)])
_MISSING_LEFT, _MISSING_SHIFT, _MISSING_IS_NAN = 2, 2, 2


@dataclass(frozen=True, eq=False)
class TreeEnsemble(Table):
    """Several ensembles of trees in one set of arrays.

    Nodes and leaves of a tree are contiguous.

    Attributes
    ----------
    split, left, right : int32 arrays of shape (n_nodes,)
        ``left`` and ``right`` are node numbers, or for a leaf the bitwise complement of its number.
    feature : int32 array of shape (n_splits,)
        Each split is there once, by feature, however many nodes have it.
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
    decision = _joined([tree.decision for tree in trees], np.int32)
    threshold = _joined([tree.threshold for tree in trees], np.float64)
    nodes = np.cumsum([0] + [len(tree.feature) for tree in trees]).astype(np.int32)
    leaves = np.cumsum([0] + [len(tree.leaf) for tree in trees]).astype(np.int32)
    # LightGBM takes NaN as 0 where training saw none.
    missing_left = np.where(
        (decision >> _MISSING_SHIFT) & 3 == _MISSING_IS_NAN, decision & _MISSING_LEFT != 0, threshold >= 0
    )
    of_nodes = np.empty(len(threshold), dtype=_SPLIT)
    of_nodes["feature"] = _joined([tree.feature for tree in trees], np.int32)
    of_nodes["threshold"], of_nodes["missing_left"] = _single(threshold), missing_left
    splits, split = np.unique(of_nodes, return_inverse=True)
    return TreeEnsemble(
        feature=splits["feature"].copy(),
        threshold=splits["threshold"].copy(),
        missing_left=splits["missing_left"].copy(),
        split=split.astype(np.int32),
        left=_children([tree.left for tree in trees], nodes, leaves),
        right=_children([tree.right for tree in trees], nodes, leaves),
        leaf=_joined([tree.leaf for tree in trees], np.float64),
        root=np.where(np.diff(nodes) > 0, nodes[:-1], ~leaves[:-1]),
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


def _children(of_trees: list[NDArray[Any]], nodes: NDArray[np.int32], leaves: NDArray[np.int32]) -> NDArray[Any]:
    """Return the children of all nodes, numbered through all trees."""
    places = zip(of_trees, nodes, leaves, strict=False)
    return _joined([np.where(child >= 0, child + node, child - leaf) for child, node, leaf in places], np.int32)
