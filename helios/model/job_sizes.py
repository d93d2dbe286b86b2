"""Size classes of jobs, by the GPUs of a node.

Who asks for a whole node waits until one is empty, so waits are given for jobs below a node, of one node and of more.
A size is the GPUs that a job holds, or asks for while it waits (CPUs where none are replayed). So a job with
``--exclusive`` counts with all GPUs of its node once it runs, and one that fills a node by CPUs or memory by its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

UNKNOWN_NODE = 8
"""GPUs of a node where its size is not known, those of the usual GPU server."""
SIZE_CLASSES = ("below_node", "one_node", "more_nodes")
SIZE_NAMES: Mapping[str, str] = {"below_node": "below a node", "one_node": "one node", "more_nodes": "more"}
"""The classes in words, within a list."""
SIZE_HEADS: Mapping[str, str] = {"below_node": "<node", "one_node": "1 node", "more_nodes": ">node"}
"""The classes in the head of a narrow table."""
SIZE_RANGES = ("0", "<1", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", ">64", "unknown")
"""Ranges of GPUs (of CPUs where none are recorded), whatever the nodes are."""
_RANGE_ENDS = (0, np.nextafter(1, 0), 1, 2, 4, 8, 16, 32, 64, np.inf)

Sizes = NDArray[np.int64] | NDArray[np.int32] | NDArray[np.float64]
NodeSizes = int | NDArray[np.int64]
"""GPUs of a node, one number or one for each job."""


def size_class(gpus: Sizes, node: NodeSizes) -> NDArray[np.int64]:
    """Return each job's size class, as an index into ``SIZE_CLASSES``.

    It is -1 for an unknown size. Where ``node`` is 0 it is not known.
    """
    known = np.where(np.asarray(node) > 0, node, UNKNOWN_NODE)
    return (gpus >= known).astype(np.int64) + (gpus > known) - np.isnan(gpus)


def size_range(size: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the range of each size, as an index into ``SIZE_RANGES``."""
    return np.searchsorted(_RANGE_ENDS, size, side="left")  # NaN comes after all numbers


def is_large(gpus: Sizes, node: NodeSizes) -> NDArray[np.bool_]:
    """Return which jobs ask for a node or more.

    Where nodes have one GPU every job does, so there it is more than one node. A service asks this at every event of a
    replay, so ``node`` must be known.
    """
    large: NDArray[np.bool_] = gpus >= np.maximum(node, 2)
    return large


def largest_nodes(partitions: NDArray[np.object_], nodes: pd.DataFrame) -> NDArray[np.int64]:
    """Return the GPUs of the largest node that each job may run on.

    Parameters
    ----------
    partitions : object array of shape (n_jobs,)
        Partitions of each job, joined by commas, or a missing value.
    nodes : DataFrame
        Columns of ``NODE_STATES``.

    Returns
    -------
    int64 array of shape (n_jobs,)
        ``UNKNOWN_NODE`` where no node with GPUs is known.
    """
    shapes = nodes[["partitions", "gpus"]].dropna().drop_duplicates()
    largest: dict[str, int] = {}
    for names, gpus in zip(shapes["partitions"].astype(str), shapes["gpus"].astype(int), strict=True):
        largest |= {name: max(gpus, largest.get(name, 0)) for name in names.split(",")}
    found = {
        names: max(largest.get(name, 0) for name in names.split(",")) if isinstance(names, str) else 0
        for names in set(partitions.tolist())
    }
    return np.array([found[names] or UNKNOWN_NODE for names in partitions.tolist()], dtype=np.int64)
