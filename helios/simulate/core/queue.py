"""Queues of pending jobs, as treaps.

A treap (Aragon and Seidel, "Randomized search trees", Algorithmica 16, 1996) inserts and removes jobs at any position
in O(log n), whatever the order of arrival. With the smallest estimate of each subtree, it finds the first job in order
that is short enough for a gap just as fast, so that EASY need not walk through a long queue. Ranks need not be known
beforehand, so it also serves orders by predictions that are made in the timeline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.simulate.core.state import NOBODY, EngineState


@kernel
def before(pending: NDArray[np.void], job: int, other: int) -> bool:
    """Return whether ``job`` comes before ``other`` in the queue.

    Jobs go by key, then by position, which is by submit time and job id.
    """
    key: float = pending[job].key
    other_key: float = pending[other].key
    return key < other_key or (key == other_key and job < other)


@kernel
def push(state: EngineState, job: int) -> None:
    """Put ``job`` into its queue, by its key and estimate in ``state.pending``."""
    pending, queue = state.pending, state.queues[state.jobs[job].queue]
    parent, node, leftwards = NOBODY, queue.root, False
    while node >= 0 and pending[node].priority >= pending[job].priority:
        pending[node].least_s = min(pending[node].least_s, pending[job].estimate_s)
        parent, leftwards = node, before(pending, job, node)
        node = pending[node].left if leftwards else pending[node].right
    if parent < 0:
        queue.root = job
    else:
        _attach(pending, parent, leftwards, job)
    _split(pending, state.path, node, job)
    if queue.head < 0 or before(pending, job, queue.head):
        queue.head = job


@kernel
def remove(state: EngineState, job: int) -> None:
    """Take ``job`` out of its queue."""
    pending, path, queue = state.pending, state.path, state.queues[state.jobs[job].queue]
    parent, node, leftwards, depth = NOBODY, queue.root, False, 0
    while node != job:
        path[depth] = node
        depth += 1
        parent, leftwards = node, before(pending, job, node)
        node = pending[node].left if leftwards else pending[node].right
    n_above = depth
    top, depth = _merge(pending, path, depth, pending[job].left, pending[job].right)
    if parent < 0:
        queue.root = top
    else:
        _attach(pending, parent, leftwards, top)
    _refresh_path(pending, path, n_above, depth)
    _refresh_above(pending, path, n_above)
    if queue.head == job:
        queue.head = _leftmost(pending, queue.root)


@kernel
def first_within(pending: NDArray[np.void], root: int, window_s: int) -> int:
    """Return the first job whose estimate is at most ``window_s``.

    It is the first in order of the subtree at ``root``. NOBODY: there is none.
    """
    node = root
    if node < 0 or pending[node].least_s > window_s:
        return NOBODY
    while True:
        left = pending[node].left
        if left >= 0 and pending[left].least_s <= window_s:
            node = left
        elif pending[node].estimate_s <= window_s:
            return node
        else:
            node = pending[node].right


@kernel
def _attach(pending: NDArray[np.void], parent: int, leftwards: bool, child: int) -> None:
    if leftwards:
        pending[parent].left = child
    else:
        pending[parent].right = child


@kernel
def _split(pending: NDArray[np.void], path: NDArray[np.int64], node: int, job: int) -> None:
    """Split the subtree at ``node`` into the two children of ``job``.

    The left one holds what comes before it, the right one what comes after.
    """
    pending[job].left = pending[job].right = NOBODY
    # The parts grow inwards: the left part at its right edge, the right part at its left edge.
    inner_left, inner_right, depth = job, job, 0
    while node >= 0:
        path[depth] = node
        depth += 1
        if before(pending, node, job):
            _attach(pending, inner_left, inner_left == job, node)
            inner_left, node = node, pending[node].right
        else:
            _attach(pending, inner_right, inner_right != job, node)
            inner_right, node = node, pending[node].left
    if inner_left != job:
        pending[inner_left].right = NOBODY
    if inner_right != job:
        pending[inner_right].left = NOBODY
    _refresh_path(pending, path, 0, depth)
    _refresh(pending, job)


@kernel
def _merge(pending: NDArray[np.void], path: NDArray[np.int64], depth: int, left: int, right: int) -> tuple[int, int]:
    """Join two treaps, all of ``left`` before all of ``right``.

    Returns the top, and the new length of ``path``, which lists the nodes to refresh.
    """
    top, parent, leftwards = NOBODY, NOBODY, False
    while left >= 0 or right >= 0:
        from_left = right < 0 or (left >= 0 and pending[left].priority >= pending[right].priority)
        node = left if from_left else right
        if parent < 0:
            top = node
        else:
            _attach(pending, parent, leftwards, node)
        if left < 0 or right < 0:
            break
        path[depth] = node
        depth += 1
        parent, leftwards = node, not from_left
        if from_left:
            left = pending[node].right
        else:
            right = pending[node].left
    return top, depth


@kernel
def _refresh_path(pending: NDArray[np.void], path: NDArray[np.int64], first: int, end: int) -> None:
    for step in range(end - 1, first - 1, -1):
        _refresh(pending, path[step])


@kernel
def _refresh_above(pending: NDArray[np.void], path: NDArray[np.int64], n_above: int) -> None:
    """Refresh a path from its end upwards until nothing changes."""
    for step in range(n_above - 1, -1, -1):
        least_s = pending[path[step]].least_s
        _refresh(pending, path[step])
        if pending[path[step]].least_s == least_s:
            return


@kernel
def _refresh(pending: NDArray[np.void], node: int) -> None:
    least, left, right = pending[node].estimate_s, pending[node].left, pending[node].right
    if left >= 0:
        least = min(least, pending[left].least_s)
    if right >= 0:
        least = min(least, pending[right].least_s)
    pending[node].least_s = least


@kernel
def _leftmost(pending: NDArray[np.void], node: int) -> int:
    while node >= 0 and pending[node].left >= 0:
        node = pending[node].left
    return node
