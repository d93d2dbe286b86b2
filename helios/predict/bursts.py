"""Bursts: many like jobs of one person in one go, of which a few teach nearly all there is to learn.

A campaign's jobs are one experiment many times over: n of them should count for about as much as sqrt(n) others. They
can be weighted, or all but about sqrt(n) be left out. Leaving out trains as well where it was tried and several times
faster: fewer rows, and LightGBM's quantile objective sorts every leaf anew in each round only where rows are weighted.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.history import REQUEST, USER_SIZE

BURST_GAP_S = 6 * 3600
"""Like jobs further apart than this are another burst."""
STRANGERS_GAP_S = 600
"""The same where the user is not known."""
KEPT = 2.0
"""Of a burst of n jobs at most this times sqrt(n) are kept; 1, 2 and 4 were tried: docs/scale.md."""


def without_repeats(
    rows: NDArray[np.int64], *, groups: NDArray[np.int32], submitted_s: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return those of ``rows`` to learn from, in their order: of a long burst a few, spread evenly over it.

    Of unknown users only what comes at once is a burst: strangers' jobs that are alike never pause for long.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        Jobs by their place in the other arrays.
    groups : int32 array of shape (n_jobs, n_levels)
        As :func:`helios.predict.features.groups_of` makes them.
    submitted_s : int64 array of shape (n_jobs,)
        s since the epoch.
    """
    gap_s = np.where(groups[rows, USER_SIZE] < 0, STRANGERS_GAP_S, BURST_GAP_S)
    burst, place = _burst_and_place(alike_of(groups[rows]), submitted_s[rows], gap_s)
    length = np.bincount(burst)[burst]
    kept = np.minimum(np.ceil(KEPT * np.sqrt(length)), length)
    return np.asarray(rows[(place + 1) * kept // length > place * kept // length])


def alike_of(groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return with whom each job can share a burst: of its user, size and limit; of an unknown user, of its request."""
    return np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])


def bursts_of(alike: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each job's burst, numbered from 0 in the order in which they appear.

    A burst are jobs with the same ``alike``, each submitted within ``BURST_GAP_S`` of the one before.
    """
    burst, _ = _burst_and_place(alike, submitted_s, np.full(len(alike), BURST_GAP_S))
    return np.asarray(pd.factorize(burst)[0], dtype=np.int64)


def _burst_and_place(
    alike: NDArray[np.int32], submitted_s: NDArray[np.int64], gap_s: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each job's burst, and its place in it by submission, both from 0."""
    order = np.lexsort((submitted_s, alike))
    another = np.diff(alike[order], prepend=-1) != 0
    apart = np.diff(submitted_s[order], prepend=submitted_s[order[:1]]) > gap_s[order]
    begins = another | apart
    burst, place = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(begins) - 1
    place[order] = np.arange(len(order)) - np.flatnonzero(begins)[burst[order]]
    return burst, place
