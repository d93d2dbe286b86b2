"""Bursts of alike jobs from one user.

The jobs of a burst are one experiment many times over, so that n of them should count for about as much as sqrt(n)
other jobs. They can be weighted, or all but about sqrt(n) can be left out. Leaving out trained as well in the
experiments and several times faster: there are fewer rows, and LightGBM's quantile objective sorts every leaf anew in
each round only where rows are weighted.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.causal_stats import REQUEST, USER_SIZE

BURST_GAP_S = 6 * 3600
"""Longest gap within a burst, s."""
STRANGERS_GAP_S = 600
"""Longest gap within a burst of unknown users, s."""
KEPT = 2.0
"""At most this times sqrt(n) jobs of a burst of n are kept. 1, 2 and 4 were tried: docs/experiments.md."""


def without_repeats(
    rows: NDArray[np.int64], *, groups: NDArray[np.int32], submitted_s: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows to learn from, with long bursts thinned.

    The order is kept. The jobs kept of a burst are spread evenly over it. For unknown users the gap is shorter, since
    alike jobs of many unknown users never pause for long.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        Positions of jobs in the other arrays.
    groups : int32 array of shape (n_jobs, n_levels)
        As :func:`helios.predict.job_table.group_columns` makes them.
    submitted_s : int64 array of shape (n_jobs,)
        s since the epoch.
    """
    gap_s = np.where(groups[rows, USER_SIZE] < 0, STRANGERS_GAP_S, BURST_GAP_S)
    burst, place = _burst_and_place(similar_names(groups[rows]), submitted_s[rows], gap_s)
    length = np.bincount(burst)[burst]
    kept = np.minimum(np.ceil(KEPT * np.sqrt(length)), length)
    return np.asarray(rows[(place + 1) * kept // length > place * kept // length])


def similar_names(groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group within which each job can be in a burst.

    It is the user's group of the same size and limit, or for an unknown user that of the same request.
    """
    return np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])


def find_bursts(alike: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each job's burst, numbered from 0 in order of appearance.

    A burst has jobs with the same ``alike``, each submitted within ``BURST_GAP_S`` of the one before.
    """
    burst, _ = _burst_and_place(alike, submitted_s, np.full(len(alike), BURST_GAP_S))
    return np.asarray(pd.factorize(burst)[0], dtype=np.int64)


def _burst_and_place(
    alike: NDArray[np.int32], submitted_s: NDArray[np.int64], gap_s: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each job's burst and its position in it, both from 0.

    Positions are in the order of submission.
    """
    order = np.lexsort((submitted_s, alike))
    another = np.diff(alike[order], prepend=-1) != 0
    apart = np.diff(submitted_s[order], prepend=submitted_s[order[:1]]) > gap_s[order]
    begins = another | apart
    burst, place = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(begins) - 1
    place[order] = np.arange(len(order)) - np.flatnonzero(begins)[burst[order]]
    return burst, place
