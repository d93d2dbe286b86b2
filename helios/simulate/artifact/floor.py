"""The nodes of one partition, and what each running job holds of them.

Nodes are looked through one by one: a partition has some dozens, and the published rule is then read off the code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel

NOBODY = -1

HALL = np.dtype(
    [
        ("nodes", np.int64),
        ("gpus_per_node", np.int64),
        ("first", np.int64),  # of its jobs
        ("end", np.int64),
        ("free_gpus", np.int64),
        ("free_share", np.int64),
    ],
    align=True,
)
SHARE = np.dtype([("node", np.int64), ("gpus", np.int64), ("next", np.int64)], align=True)


class Floor(NamedTuple):
    """One partition at a time: its size, the free GPUs of each node, and the list of shares that each job holds."""

    hall: NDArray[np.void]
    free: NDArray[np.int64]
    shares: NDArray[np.void]
    first_share: NDArray[np.int64]


def new_floor(*, nodes: int, gpus: int, jobs: int) -> Floor:
    """Return room for a partition of up to so many nodes, GPUs and jobs."""
    return Floor(
        hall=np.zeros(1, dtype=HALL),
        free=np.zeros(nodes, dtype=np.int64),
        shares=np.zeros(gpus, dtype=SHARE),  # a share has at least one GPU
        first_share=np.full(jobs, NOBODY, dtype=np.int64),
    )


@kernel
def clear(floor: Floor) -> None:
    """Empty the partition whose size stands in ``hall``."""
    hall = floor.hall[0]
    hall.free_gpus, hall.free_share = hall.nodes * hall.gpus_per_node, 0
    for node in range(hall.nodes):
        floor.free[node] = hall.gpus_per_node
    for share in range(hall.free_gpus):
        floor.shares[share].next = share + 1


@kernel
def place(floor: Floor, job: int, gpus: int) -> bool:
    """Give ``job`` its nodes, if it fits; say whether it does."""
    if gpus > floor.hall[0].free_gpus:
        return False
    if gpus <= floor.hall[0].gpus_per_node:
        return _on_one(floor, job, gpus)
    return _on_several(floor, job, gpus)


@kernel
def vacate(floor: Floor, job: int) -> None:
    """Free what ``job`` holds."""
    hall, share = floor.hall[0], floor.first_share[job]
    while share != NOBODY:
        gpus, following = floor.shares[share].gpus, floor.shares[share].next
        floor.free[floor.shares[share].node] += gpus
        hall.free_gpus += gpus
        floor.shares[share].next = hall.free_share
        hall.free_share, share = share, following
    floor.first_share[job] = NOBODY


@kernel
def _on_one(floor: Floor, job: int, gpus: int) -> bool:
    """Take the fullest node that fits, the lowest among equals."""
    best = NOBODY
    for node in range(floor.hall[0].nodes):
        free = floor.free[node]
        if free >= gpus and (best == NOBODY or free < floor.free[best]):
            best = node
            if free == gpus:
                break
    if best == NOBODY:
        return False
    _take(floor, job, best, gpus)
    return True


@kernel
def _on_several(floor: Floor, job: int, gpus: int) -> bool:
    """Take the lowest wholly free nodes, and for the rest the emptiest of the others."""
    full = floor.hall[0].gpus_per_node
    whole, rest = gpus // full, gpus % full
    seen, other = 0, NOBODY
    for node in range(floor.hall[0].nodes):
        seen += floor.free[node] == full
        passed_over = floor.free[node] == full and seen <= whole
        if not passed_over and (other == NOBODY or floor.free[node] > floor.free[other]):
            other = node
    if seen < whole or (rest > 0 and (other == NOBODY or floor.free[other] < rest)):
        return False
    if rest > 0:
        _take(floor, job, other, rest)
    node = 0
    while whole > 0:
        if floor.free[node] == full:
            _take(floor, job, node, full)
            whole -= 1
        node += 1
    return True


@kernel
def _take(floor: Floor, job: int, node: int, gpus: int) -> None:
    hall = floor.hall[0]
    share = hall.free_share
    hall.free_share = floor.shares[share].next
    floor.shares[share].node, floor.shares[share].gpus = node, gpus
    floor.shares[share].next, floor.first_share[job] = floor.first_share[job], share
    floor.free[node] -= gpus
    hall.free_gpus -= gpus
