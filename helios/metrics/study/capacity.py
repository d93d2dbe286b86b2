"""GPUs or CPUs in service on each day, in each pool of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capacity:
    """What is in service on each day, in each pool.

    A pool is a partition, or several that share nodes: a node counts once.

    Attributes
    ----------
    pools : tuple of str
        Names of the pools, partitions that share nodes joined by a comma.
    pool_of : int64 array of shape (n_partition_names + 1,)
        Pool of each partition in the order of ``StudyHistory.partition.values``; the last one is the pool of jobs
        without a partition. -1: it has no capacity.
    edges_s : int64 array of shape (n_days + 1,)
        Local midnights, with the window's first and last moment.
    units : float64 array of shape (n_pools, n_days)
        GPUs or CPUs in service.
    source : str
        ``nodes``, ``given`` or ``jobs``.
    at_least : bool
        Whether it is the most that was ever in use, so that the true capacity may be higher.
    notes : tuple of str
        What a reader should know of how it was found.
    """

    pools: tuple[str, ...]
    pool_of: NDArray[np.int64]
    edges_s: NDArray[np.int64]
    units: NDArray[np.float64]
    source: str
    at_least: bool
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> NDArray[np.float64]:
        """Units in service on each day, over all pools."""
        total: NDArray[np.float64] = self.units.sum(axis=0)
        return total
