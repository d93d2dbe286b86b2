"""Queues of pending jobs and the scheduling pass over a partition.

Each strategy is one function. Within a pass the free GPUs only shrink, and jobs are taken in order. So a size that
could not be placed cannot be placed later in the pass, and checking the first job of each size is enough.

A queue is a treap (Aragon and Seidel, "Randomized search trees", Algorithmica 16, 1996): it inserts and removes jobs at
any position in O(log n). Each node has the smallest estimate of its subtree, so the first job in order that is short
enough for a gap is found in O(log n) too, and EASY need not walk through a long queue.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.simulate.core.nodes import (
    choose_node,
    largest_awake_fit,
    largest_fit,
    largest_fit_with_reserved,
    plan_gpus,
    plan_power,
    release_gpus,
    set_aside,
)
from helios.simulate.core.running import (
    extend_overdue,
    falling_node,
    move_overdue,
    next_falling,
    overdue_end_s,
    overdue_job,
    planned_end_s,
    reservation_holds,
    reserve_gpus,
    start_job,
    stop_job,
)
from helios.simulate.core.state import ASLEEP, AWAKE, EASY, FALLING, NEVER, NO_BACKFILL, NOBODY, NODES, EngineState


@kernel
def schedule(state: EngineState, partition: int, now: int) -> None:
    """Start the jobs that the replay's strategy lets start now."""
    clock = state.clock[0]
    if clock.preemptive:
        _shortest_remaining(state, partition, now)
    elif clock.backfill == EASY:
        _backfill_easy(state, partition, now)
    elif clock.backfill == NODES:
        _backfill_nodes(state, partition, now)
    else:
        _greedy(state, partition, now)


@kernel
def _greedy(state: EngineState, partition: int, now: int) -> None:
    """Start jobs in order until one does not fit.

    With SKIP, go on with the jobs after it that fit.
    """
    blocked = False
    while True:
        job = first_up_to(state, partition, largest_fit(state, partition) if blocked else -1)
        if job < 0:
            return
        if blocked or state.jobs[job].gpus <= largest_fit(state, partition):
            _start_pending(state, job, now, blocked)
        elif state.clock[0].backfill == NO_BACKFILL:
            return
        else:
            blocked = True


@kernel
def _backfill_easy(state: EngineState, partition: int, now: int) -> None:
    """Start jobs in order, then those that do not delay the head.

    Whether they do is decided by the number of free GPUs alone.

    Source: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, "Utilization, predictability,
    workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE TPDS 12(6), 2001.
    """
    head = _start_in_order(state, partition, now)
    if head < 0 or largest_fit(state, partition) == 0:
        return
    part = state.partitions[partition]
    if not reservation_holds(state, partition, head, now):
        extend_overdue(state, partition, now)
        part.shadow_s, part.extra = reserve_gpus(state, partition, state.jobs[head].gpus)
        part.reserved_for = head
    shadow, extra = part.shadow_s, part.extra
    while True:
        job = _first_beside_gpus(state, partition, shadow - now, extra)
        if job < 0:
            return
        if state.pending[job].estimate_s > _window_s(state, partition, state.jobs[job].gpus, shadow - now):
            extra -= state.jobs[job].gpus
        _start_pending(state, job, now, True)


@kernel
def _backfill_nodes(state: EngineState, partition: int, now: int) -> None:
    """Start jobs in order, then those that leave the head's nodes.

    EASY counts free GPUs, which may be scattered, so long jobs go on filling the nodes that a large head needs. Here
    :func:`reserve_nodes` names the nodes.
    """
    head = _start_in_order(state, partition, now)
    if head < 0 or largest_fit(state, partition) == 0:
        return
    clock, promoted = state.clock[0], state.pending[head].key == -np.inf
    part = state.partitions[partition]
    if part.overdue > 0 or clock.idle_gpus != NEVER or not reservation_holds(state, partition, head, now):
        move_overdue(state, partition, now)
        part.shadow_s = reserve_nodes(state, partition, head, now)
        part.reserved_for = head
    window_s = part.shadow_s - now
    if promoted and clock.closed:
        window_s = -1
    elif not promoted:
        limit_reserved(state, partition, clock.idle_gpus)
    set_aside(state, partition, -1)
    job = _first_beside_nodes(state, partition, window_s)
    while job >= 0:
        in_time = state.pending[job].estimate_s <= _window_with_reserved_s(
            state, partition, state.jobs[job].gpus, window_s
        )
        if in_time:
            set_aside(state, partition, 1)
        _start_pending(state, job, now, True)
        if in_time:
            set_aside(state, partition, -1)
        job = _first_beside_nodes(state, partition, window_s)
    set_aside(state, partition, 1)


@kernel
def _start_in_order(state: EngineState, partition: int, now: int) -> int:
    """Start jobs in order, and return the first that does not fit.

    NOBODY: all did.
    """
    head = first_up_to(state, partition, -1)
    while head >= 0 and state.jobs[head].gpus <= largest_fit(state, partition):
        _start_pending(state, head, now, False)
        head = first_up_to(state, partition, -1)
    return head


@kernel
def _shortest_remaining(state: EngineState, partition: int, now: int) -> None:
    """Start jobs by remaining run time, and preempt those with more."""
    smallest_failed = -1
    while True:
        job = first_up_to(state, partition, smallest_failed - 1 if smallest_failed > 0 else -1)
        if job < 0:
            return
        gpus = state.jobs[job].gpus
        if gpus <= largest_fit(state, partition) or _preempt_for(state, job, now):
            _start_pending(state, job, now, smallest_failed > 0)
        elif state.clock[0].backfill == NO_BACKFILL or gpus == 1:
            return
        else:
            smallest_failed = gpus


@kernel
def _preempt_for(state: EngineState, job: int, now: int) -> bool:
    """Stop as few running jobs as it takes to place ``job``.

    Those with the longest remaining run time are stopped first. If that would not suffice, none is stopped. Returns
    whether the job fits.
    """
    part, jobs = state.partitions[state.jobs[job].partition], state.jobs
    partition, n_stopped, fits = jobs[job].partition, 0, False
    last = part.first_running + part.running - 1
    while n_stopped < part.running and not fits:
        victim = state.expected[last - n_stopped]
        if jobs[victim].ends_s - now <= state.pending[job].key:
            break
        release_gpus(state, victim, 1)
        n_stopped += 1
        fits = part.free_gpus >= jobs[job].gpus and jobs[job].gpus <= largest_fit(state, partition)
    for i in range(last, last - n_stopped, -1):
        victim = state.expected[i]
        if fits:
            _requeue(state, victim, now)
        else:
            release_gpus(state, victim, -1)
    return fits


@kernel
def _requeue(state: EngineState, job: int, now: int) -> None:
    record = state.jobs[job]
    stop_job(state, job)
    record.remaining_s = record.ends_s - now
    state.pending[job].key = record.remaining_s
    push(state, job)


@kernel
def _start_pending(state: EngineState, job: int, now: int, passes_another: bool) -> None:
    remove(state, job)
    start_job(state, job, now)
    if passes_another:
        state.clock[0].backfilled += 1


@kernel
def first_up_to(state: EngineState, partition: int, gpus: int) -> int:
    """Return the first pending job of at most ``gpus`` GPUs.

    -1: of any size. NOBODY: there is none.
    """
    part, queues, best = state.partitions[partition], state.queues, NOBODY
    for queue in range(part.first_queue, part.end_queue):
        if queues[queue].gpus > gpus >= 0:
            break
        head = queues[queue].head
        if head >= 0 and (best < 0 or comes_before(state.pending, head, best)):
            best = head
    return best


@kernel
def _first_beside_gpus(state: EngineState, partition: int, window_s: int, extra: int) -> int:
    """Return the first job that fits beside EASY's reservation.

    It ends within the window, or needs only ``extra`` GPUs. NOBODY: there is none.
    """
    part, queues, best = state.partitions[partition], state.queues, NOBODY
    largest = largest_fit(state, partition)
    for queue in range(part.first_queue, part.end_queue):
        gpus, job = queues[queue].gpus, queues[queue].head
        if gpus > largest:
            break
        if gpus > extra:
            job = first_within(state.pending, queues[queue].root, _window_s(state, partition, gpus, window_s))
        if job >= 0 and (best < 0 or comes_before(state.pending, job, best)):
            best = job
    return best


@kernel
def _first_beside_nodes(state: EngineState, partition: int, window_s: int) -> int:
    """Return the first job that fits beside the reserved nodes.

    It ends within the window, or fits on the other nodes. NOBODY: there is none.
    """
    part, queues, best = state.partitions[partition], state.queues, NOBODY
    beside = largest_fit(state, partition)
    largest = largest_fit_with_reserved(state, partition, beside, ASLEEP)
    for queue in range(part.first_queue, part.end_queue):
        gpus, job = queues[queue].gpus, queues[queue].head
        if gpus > largest:
            break
        if gpus > beside:
            job = first_within(
                state.pending, queues[queue].root, _window_with_reserved_s(state, partition, gpus, window_s)
            )
        if job >= 0 and (best < 0 or comes_before(state.pending, job, best)):
            best = job
    return best


@kernel
def _window_with_reserved_s(state: EngineState, partition: int, gpus: int, window_s: int) -> int:
    """Return a window's usable part with the reserved nodes, s."""
    if not state.clock[0].tracks_nodes or gpus <= largest_fit_with_reserved(
        state, partition, largest_awake_fit(state, partition), AWAKE
    ):
        return window_s
    return int(window_s - state.clock[0].boot_s)


@kernel
def _window_s(state: EngineState, partition: int, gpus: int, window_s: int) -> int:
    """Return the usable part of a window, s.

    Where awake nodes cannot hold the job, it is shorter by the boot time.
    """
    if not state.clock[0].tracks_nodes or gpus <= largest_awake_fit(state, partition):
        return window_s
    return int(window_s - state.clock[0].boot_s)


@kernel
def reserve_nodes(state: EngineState, partition: int, head: int, now: int) -> int:
    """Reserve nodes for ``head``, and return when it fits.

    Expected ends of running jobs are applied to the nodes, for the plan only, until the head can be placed. What ends
    in one second is applied together. A node that is falling asleep can be used once it sleeps.
    """
    part, gpus = state.partitions[partition], state.jobs[head].gpus
    planned, overdue, fallen, shadow = 0, 0, 0, now
    while gpus > part.free_gpus or gpus > largest_fit(state, partition):
        falls = next_falling(state, partition, fallen)
        shadow = min(planned_end_s(state, partition, planned), overdue_end_s(state, partition, overdue, now))
        shadow = min(shadow, _asleep_at_s(state, falls))
        while planned_end_s(state, partition, planned) == shadow:
            _plan_release(state, state.expected[part.first_running + planned], 1)
            planned += 1
        while overdue_end_s(state, partition, overdue, now) == shadow:
            _plan_release(state, overdue_job(state, partition, overdue), 1)
            overdue += 1
        while _asleep_at_s(state, falls) == shadow:
            plan_power(state, partition, falling_node(state, falls), ASLEEP)
            fallen = falls + 1
            falls = next_falling(state, partition, fallen)
    _reserve_for(state, partition, head)
    _undo_plan(state, partition, planned, overdue, fallen)
    return shadow


@kernel
def _reserve_for(state: EngineState, partition: int, head: int) -> None:
    """Reserve the nodes on which ``head`` would be placed in the planned state."""
    part, nodes, gpus = state.partitions[partition], state.nodes, state.jobs[head].gpus
    full = part.gpus_per_node
    part.reserved = 0
    for number in range(gpus // full):
        _reserve_one(state, partition, choose_node(state, head, number, full), full)
    if gpus % full > 0:
        _reserve_one(state, partition, choose_node(state, head, full, gpus % full), gpus % full)
    for i in range(part.reserved):
        whole = i < gpus // full
        plan_gpus(state, partition, nodes[part.first_node + i].reserved, full if whole else gpus % full)


@kernel
def _reserve_one(state: EngineState, partition: int, node: int, gpus: int) -> None:
    part = state.partitions[partition]
    plan_gpus(state, partition, node, -gpus)
    state.nodes[part.first_node + part.reserved].reserved = node
    part.reserved += 1


@kernel
def _undo_plan(state: EngineState, partition: int, planned: int, overdue: int, fallen: int) -> None:
    """Undo the changes that were made for the plan.

    They are the first ``planned`` expected ends and ``overdue`` overdue jobs, and the partition's nodes among the first
    ``fallen`` that are falling asleep.
    """
    first = state.partitions[partition].first_running
    for i in range(planned):
        _plan_release(state, state.expected[first + i], -1)
    for i in range(overdue):
        _plan_release(state, overdue_job(state, partition, i), -1)
    i = next_falling(state, partition, 0)
    while i < fallen:
        plan_power(state, partition, falling_node(state, i), FALLING)
        i = next_falling(state, partition, i + 1)


@kernel
def _plan_release(state: EngineState, job: int, sign: int) -> None:
    """Free a job's GPUs in a plan (``sign`` 1), or take them (-1)."""
    share = state.jobs[job].first_share
    while share >= 0:
        plan_gpus(state, state.jobs[job].partition, state.shares[share].node, sign * state.shares[share].gpus)
        share = state.shares[share].next


@kernel
def _asleep_at_s(state: EngineState, index: int) -> int:
    """Return when the node number ``index`` of those falling asleep is asleep.

    NEVER: there are not so many.
    """
    if not state.clock[0].tracks_nodes or index >= state.clock[0].falling:
        return NEVER
    return int(state.nodes[falling_node(state, index)].until_s)


@kernel
def limit_reserved(state: EngineState, partition: int, idle_gpus: int) -> None:
    """Reduce the reserved nodes to at most ``idle_gpus`` free GPUs."""
    part, held = state.partitions[partition], 0
    for i in range(part.reserved):
        held += state.nodes[state.nodes[part.first_node + i].reserved].free
        if held > idle_gpus:
            part.reserved = i
            return


# Queues: treaps of pending jobs.
@kernel
def comes_before(pending: NDArray[np.void], job: int, other: int) -> bool:
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
        parent, leftwards = node, comes_before(pending, job, node)
        node = pending[node].left if leftwards else pending[node].right
    if parent < 0:
        queue.root = job
    else:
        _attach(pending, parent, leftwards, job)
    _split(pending, state.path, node, job)
    if queue.head < 0 or comes_before(pending, job, queue.head):
        queue.head = job


@kernel
def remove(state: EngineState, job: int) -> None:
    """Take ``job`` out of its queue."""
    pending, path, queue = state.pending, state.path, state.queues[state.jobs[job].queue]
    parent, node, leftwards, depth = NOBODY, queue.root, False, 0
    while node != job:
        path[depth] = node
        depth += 1
        parent, leftwards = node, comes_before(pending, job, node)
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
        if comes_before(pending, node, job):
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
