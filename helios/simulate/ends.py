"""Heap of running jobs with the first to end on top.

Both simulators keep one. Jobs that end at the same time are in the order of the workload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel

_Column = NDArray[np.int64]


@kernel
def rise(ends: _Column, times: _Column, places: NDArray[Any], job: int, place: int) -> None:
    """Move ``job`` up the heap as far as it belongs.

    It begins at ``place``, which is free. ``times`` says when each job ends, ``places`` where in the heap it is.
    """
    while place > 0 and _ends_before(times, job, ends[(place - 1) // 2]):
        above = (place - 1) // 2
        ends[place], places[ends[above]] = ends[above], place
        place = above
    ends[place], places[job] = job, place


@kernel
def drop(ends: _Column, times: _Column, places: NDArray[Any], job: int, size: int) -> None:
    """Take ``job`` out of the heap, which then has ``size`` jobs."""
    place, last = places[job], ends[size]
    if last == job:
        return
    rise(ends, times, places, last, place)
    place = places[last]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _ends_before(times, ends[below + 1], ends[below]):
            below += 1
        if not _ends_before(times, ends[below], last):
            break
        ends[place], places[ends[below]] = ends[below], place
        place = below
    ends[place], places[last] = last, place


@kernel
def _ends_before(times: _Column, job: int, other: int) -> bool:
    return bool(times[job] < times[other] or (times[job] == times[other] and job < other))
