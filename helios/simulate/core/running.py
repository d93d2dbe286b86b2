"""Running jobs, by true end and by expected end.

The clock goes by true ends, which are in a heap. Backfill plans with expected ends, which are in a sorted list.
Jobs that end at the same time are in the order of the workload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.simulate.core.nodes import assign_nodes, count_delay, drop_shares, partition_of_node, release_gpus
from helios.simulate.core.state import EASY, NEVER, NOBODY, NODES, EngineState

_Column = NDArray[np.int64]

OVERDUE = -1
"""Value of ``granted_s`` of a job in the list of overdue jobs."""


@kernel
def heap_rise(ends: _Column, times: _Column, indices: NDArray[Any], job: int, index: int) -> None:
    """Insert ``job`` into the heap at free ``index``, and move it up.

    ``times`` has the end of each job, and ``indices`` its index in the heap.
    """
    while index > 0 and _ends_before(times, job, ends[(index - 1) // 2]):
        above = (index - 1) // 2
        ends[index], indices[ends[above]] = ends[above], index
        index = above
    ends[index], indices[job] = job, index


@kernel
def heap_remove(ends: _Column, times: _Column, indices: NDArray[Any], job: int, size: int) -> None:
    """Remove ``job`` from the heap, which then has ``size`` jobs."""
    index, last = indices[job], ends[size]
    if last == job:
        return
    heap_rise(ends, times, indices, last, index)
    index = indices[last]
    while 2 * index + 1 < size:
        below = 2 * index + 1
        if below + 1 < size and _ends_before(times, ends[below + 1], ends[below]):
            below += 1
        if not _ends_before(times, ends[below], last):
            break
        ends[index], indices[ends[below]] = ends[below], index
        index = below
    ends[index], indices[last] = last, index


@kernel
def _ends_before(times: _Column, job: int, other: int) -> bool:
    return bool(times[job] < times[other] or (times[job] == times[other] and job < other))


@kernel
def start_job(state: EngineState, job: int, now: int) -> None:
    """Place ``job``, which must fit, to start when its nodes are up."""
    clock, record = state.clock[0], state.jobs[job]
    up_s = assign_nodes(state, job, now)
    state.partitions[record.partition].reserved_for = NOBODY
    if state.clock[0].tracks_nodes and up_s > now:
        record.boot_wait_s = up_s - now
        count_delay(state)
    if record.started_s == NEVER:
        record.started_s = up_s
    record.resumed_s = up_s
    record.ends_s = up_s + record.remaining_s
    heap_rise(state.ends, state.jobs["ends_s"], state.jobs["heap_index"], job, clock.running)
    clock.running += 1
    if clock.preemptive:
        record.expected_s = record.ends_s
        _insert_expected(state, job)
    elif clock.backfill >= EASY:
        record.granted_s = state.pending[job].estimate_s
        record.expected_s = up_s + record.granted_s
        _insert_expected(state, job)
    else:
        state.partitions[record.partition].running += 1


@kernel
def stop_job(state: EngineState, job: int) -> None:
    """Remove ``job``, whose GPUs are free already, from the running jobs."""
    clock = state.clock[0]
    drop_shares(state, job)
    state.partitions[state.jobs[job].partition].reserved_for = NOBODY
    clock.running -= 1
    heap_remove(state.ends, state.jobs["ends_s"], state.jobs["heap_index"], job, clock.running)
    if clock.backfill == NODES and state.jobs[job].granted_s == OVERDUE:
        _remove_overdue(state, job)
    elif clock.preemptive or clock.backfill >= EASY:
        _remove_expected(state, job)
    else:
        state.partitions[state.jobs[job].partition].running -= 1


@kernel
def end_job(state: EngineState, job: int) -> None:
    """End ``job`` and free its GPUs."""
    clock = state.clock[0]
    release_gpus(state, job, 1)
    stop_job(state, job)
    state.jobs[job].remaining_s = 0
    state.ended[clock.ended] = job
    clock.ended += 1


@kernel
def reservation_holds(state: EngineState, partition: int, head: int, now: int) -> bool:
    """Return whether the last reservation is still right.

    It is if it was for ``head``, no job has started or ended since, and none is overdue now. Where nodes sleep, these
    change it too, so it is always made anew.
    """
    part = state.partitions[partition]
    if state.clock[0].tracks_nodes or part.reserved_for != head or part.running == 0:
        return False
    return bool(state.jobs[state.expected[part.first_running]].expected_s > now)


@kernel
def extend_overdue(state: EngineState, partition: int, now: int) -> None:
    """Extend the estimates of jobs until their expected ends lie ahead.

    Each extension is 0.3 x the estimate in force, at least 1 s.
    """
    part, jobs = state.partitions[partition], state.jobs
    while part.running > 0:
        job = state.expected[part.first_running]
        record = jobs[job]
        if record.expected_s > now:
            break
        _remove_expected(state, job)
        while record.expected_s <= now:
            record.granted_s += max(1, 3 * record.granted_s // 10)
            record.expected_s = record.resumed_s + record.granted_s
        _insert_expected(state, job)


@kernel
def move_overdue(state: EngineState, partition: int, now: int) -> None:
    """Move jobs past their estimates to the list of overdue jobs.

    That list is in order of start, last started last. An overdue job is expected to last in proportion to how long it
    has run, so read backwards the list is in order of expected end.
    """
    part = state.partitions[partition]
    while part.running > 0 and state.jobs[state.expected[part.first_running]].expected_s <= now:
        job = state.expected[part.first_running]
        _remove_expected(state, job)
        _insert_overdue(state, job)


@kernel
def planned_end_s(state: EngineState, partition: int, index: int) -> int:
    """Return the expected end number ``index`` of the jobs within their estimates.

    NEVER: there are not so many.
    """
    part = state.partitions[partition]
    if index >= part.running:
        return NEVER
    return int(state.jobs[state.expected[part.first_running + index]].expected_s)


@kernel
def overdue_end_s(state: EngineState, partition: int, index: int, now: int) -> int:
    """Return the expected end number ``index`` of the jobs past their estimates.

    Such a job is expected to last 0.3 x as long again as it has run, at least 1 s. NEVER: there are not so many.
    """
    if index >= state.partitions[partition].overdue:
        return NEVER
    return int(now + max(1, 3 * (now - state.jobs[overdue_job(state, partition, index)].resumed_s) // 10))


@kernel
def overdue_job(state: EngineState, partition: int, index: int) -> int:
    """Return the job number ``index`` of those past their estimates, last started first."""
    return int(state.expected[_end_of_slots(state, partition) - 1 - index])


@kernel
def reserve_gpus(state: EngineState, partition: int, gpus: int) -> tuple[int, int]:
    """Return when ``gpus`` will be free, and how many more are free then.

    It is not before the first expected end. A node that is falling asleep can be used again once it sleeps.
    """
    part = state.partitions[partition]
    if state.clock[0].tracks_nodes and state.clock[0].falling > 0:
        return _reserve_gpus_with_falling(state, partition, gpus)
    free, shadow = part.free_gpus, NEVER
    for slot in range(part.first_running, part.first_running + part.running):
        record = state.jobs[state.expected[slot]]
        if shadow != NEVER and free >= gpus and record.expected_s != shadow:
            break
        free, shadow = free + record.gpus, record.expected_s
    return shadow, free - gpus


@kernel
def _reserve_gpus_with_falling(state: EngineState, partition: int, gpus: int) -> tuple[int, int]:
    part, clock = state.partitions[partition], state.clock[0]
    free, shadow = part.free_gpus, NEVER
    slot, index = part.first_running, next_falling(state, partition, 0)
    while True:
        ends_s, falls_s = NEVER, NEVER
        if slot < part.first_running + part.running:
            ends_s = state.jobs[state.expected[slot]].expected_s
        if index < clock.falling:
            falls_s = state.nodes[falling_node(state, index)].until_s
        moment = min(ends_s, falls_s)
        if moment == NEVER or (shadow != NEVER and free >= gpus and moment != shadow):
            return shadow, free - gpus
        shadow = moment
        if ends_s == moment:
            free += state.jobs[state.expected[slot]].gpus
            slot += 1
        else:
            free += state.nodes[falling_node(state, index)].free
            index = next_falling(state, partition, index + 1)


@kernel
def falling_node(state: EngineState, index: int) -> int:
    """Return the node number ``index`` of those falling asleep, first asleep first."""
    return int(state.nodes[(state.clock[0].first_falling + index) % len(state.nodes)].falling)


@kernel
def next_falling(state: EngineState, partition: int, index: int) -> int:
    """Return the next node of ``partition`` falling asleep, from ``index`` on.

    If there is none, it is the number of all nodes falling asleep.
    """
    n_falling = state.clock[0].falling
    while index < n_falling and partition_of_node(state, falling_node(state, index)) != partition:
        index += 1
    return index


@kernel
def _insert_expected(state: EngineState, job: int) -> None:
    part, expected = state.partitions[state.jobs[job].partition], state.expected
    index = _expected_index(state, job)
    _move_up(expected, index, part.first_running + part.running)
    expected[index] = job
    part.running += 1


@kernel
def _remove_expected(state: EngineState, job: int) -> None:
    part, expected = state.partitions[state.jobs[job].partition], state.expected
    part.running -= 1
    _move_down(expected, _expected_index(state, job) + 1, part.first_running + part.running + 1)


@kernel
def _insert_overdue(state: EngineState, job: int) -> None:
    partition, expected, jobs = state.jobs[job].partition, state.expected, state.jobs
    part, jobs[job].granted_s = state.partitions[partition], OVERDUE
    slots_end = _end_of_slots(state, partition)
    slot = slots_end - 1 - part.overdue
    while slot + 1 < slots_end and jobs[expected[slot + 1]].resumed_s < jobs[job].resumed_s:
        expected[slot] = expected[slot + 1]
        slot += 1
    expected[slot] = job
    part.overdue += 1


@kernel
def _remove_overdue(state: EngineState, job: int) -> None:
    partition, expected = state.jobs[job].partition, state.expected
    part = state.partitions[partition]
    slot = _end_of_slots(state, partition) - 1
    while expected[slot] != job:
        slot -= 1
    part.overdue -= 1
    _move_up(expected, _end_of_slots(state, partition) - 1 - part.overdue, slot)


@kernel
def _move_up(slots: NDArray[np.int64], first: int, end: int) -> None:
    """Move the slots from ``first`` to before ``end`` one to the right."""
    # Unsigned: else numba checks each index for a negative value, and it takes eight times as long.
    slot, last, one = np.uint64(end), np.uint64(first), np.uint64(1)
    while slot > last:
        slots[slot] = slots[slot - one]
        slot -= one


@kernel
def _move_down(slots: NDArray[np.int64], first: int, end: int) -> None:
    """Move the slots from ``first`` to before ``end`` one to the left."""
    slot, last, one = np.uint64(first), np.uint64(end), np.uint64(1)
    while slot < last:
        slots[slot - one] = slots[slot]
        slot += one


@kernel
def _end_of_slots(state: EngineState, partition: int) -> int:
    """Return the end of this partition's part of ``expected``."""
    part = state.partitions[partition]
    return int(part.first_running + part.nodes * part.gpus_per_node)


@kernel
def _expected_index(state: EngineState, job: int) -> int:
    """Return the index in ``expected`` where ``job`` is, or belongs.

    Its partition's running jobs are there by expected end, then position.
    """
    jobs, part = state.jobs, state.partitions[state.jobs[job].partition]
    low, high = part.first_running, part.first_running + part.running
    while low < high:
        middle = (low + high) // 2
        other = state.expected[middle]
        ends_s, other_ends_s = jobs[job].expected_s, jobs[other].expected_s
        if other_ends_s < ends_s or (other_ends_s == ends_s and other < job):
            low = middle + 1
        else:
            high = middle
    return int(low)
