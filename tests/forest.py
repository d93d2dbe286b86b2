"""A plain walk through the trees that Helios has parsed, one row and tree after the other."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit
def _fall(forest: Any, node: int, row: Any) -> int:
    while node >= 0:
        split = forest.split[node]
        value = row[forest.feature[split]]
        goes_left = forest.missing_left[split] if np.isnan(value) else value <= forest.threshold[split]
        node = forest.left[node] if goes_left else forest.right[node]
    return node


@numba.njit
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
    for row in range(len(features)):
        for ensemble in range(sums.shape[1]):
            for tree in range(forest.first_tree[ensemble], forest.first_tree[ensemble + 1]):
                sums[row, ensemble] += forest.leaf[~_fall(forest, forest.root[tree], features[row])]
    return sums
