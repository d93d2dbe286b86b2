"""Running jobs: by true end, for the clock; by expected end, for those who plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.simulate.core.nodes import count_delay, home_of
from helios.simulate.core.placement import forget, lift, place
from helios.simulate.core.state import EASY, NEVER, NOBODY, NODES, EngineState

OVERDUE = -1
"""Granted to a job that is past its estimate, where such jobs are kept apart."""


@kernel
def start(state: EngineState, job: int, now: int) -> None:
    """Place ``job``, which must fit, and let it run from ``now`` on, or from when all of its nodes are up."""
    clock, its = state.clock[0], state.jobs[job]
    up_s = place(state, job, now)
    state.partitions[its.partition].planned_for = NOBODY
    if len(state.versatile) > 0 and up_s > now:
        its.late_s = up_s - now
        count_delay(state)
    if its.started_s == NEVER:
        its.started_s = up_s
    its.resumed_s = up_s
    its.ends_s = up_s + its.remaining_s
    _rise(state, job, clock.running)
    clock.running += 1
    if clock.preemptive:
        its.expected_s = its.ends_s
        _expect(state, job)
    elif clock.backfill >= EASY:
        its.granted_s = state.pending[job].estimate_s
        its.expected_s = up_s + its.granted_s
        _expect(state, job)
    else:
        state.partitions[its.partition].running += 1


@kernel
def stop(state: EngineState, job: int) -> None:
    """Take ``job``, whose GPUs are free already, out of the running jobs."""
    clock = state.clock[0]
    forget(state, job)
    state.partitions[state.jobs[job].partition].planned_for = NOBODY
    clock.running -= 1
    place, last = state.jobs[job].place, state.ends[clock.running]
    if last != job:
        _rise(state, last, place)
        _sink(state, last, state.jobs[last].place)
    if clock.backfill == NODES and state.jobs[job].granted_s == OVERDUE:
        _forget_overdue(state, job)
    elif clock.preemptive or clock.backfill >= EASY:
        _unexpect(state, job)
    else:
        state.partitions[state.jobs[job].partition].running -= 1


@kernel
def end(state: EngineState, job: int) -> None:
    """Let ``job``, whose time has come, free its GPUs and be done."""
    clock = state.clock[0]
    lift(state, job, 1)
    stop(state, job)
    state.jobs[job].remaining_s = 0
    state.ended[clock.ended] = job
    clock.ended += 1


@kernel
def plan_holds(state: EngineState, partition: int, head: int, now: int) -> bool:
    """Say whether the last reservation was ``head``'s, nobody has started or ended since, and nobody is overdue now.

    Then the same would be reserved again. Where nodes sleep they change it too, and it is always made anew.
    """
    home = state.partitions[partition]
    if len(state.versatile) > 0 or home.planned_for != head or home.running == 0:
        return False
    return bool(state.jobs[state.expected[home.first_running]].expected_s > now)


@kernel
def extend_overdue(state: EngineState, partition: int, now: int) -> None:
    """Give jobs past their estimates more: 0.3 x the estimate, at least 1 s, until their end lies ahead."""
    home, jobs = state.partitions[partition], state.jobs
    while home.running > 0:
        job = state.expected[home.first_running]
        its = jobs[job]
        if its.expected_s > now:
            break
        _unexpect(state, job)
        while its.expected_s <= now:
            its.granted_s += max(1, 3 * its.granted_s // 10)
            its.expected_s = its.resumed_s + its.granted_s
        _expect(state, job)


@kernel
def set_overdue_apart(state: EngineState, partition: int, now: int) -> None:
    """Put jobs past their estimates where they stand by what has been true of them so far: last started last."""
    home = state.partitions[partition]
    while home.running > 0 and state.jobs[state.expected[home.first_running]].expected_s <= now:
        job = state.expected[home.first_running]
        _unexpect(state, job)
        _expect_overdue(state, job)


@kernel
def planned_end_s(state: EngineState, partition: int, place: int) -> int:
    """Return the expected end number ``place`` of the jobs that are not past their estimates, or NEVER."""
    home = state.partitions[partition]
    if place >= home.running:
        return NEVER
    return int(state.jobs[state.expected[home.first_running + place]].expected_s)


@kernel
def overdue_end_s(state: EngineState, partition: int, place: int, now: int) -> int:
    """Return the expected end number ``place`` of the jobs that are, which last 0.3 x as long again, or NEVER."""
    if place >= state.partitions[partition].overdue:
        return NEVER
    return int(now + max(1, 3 * (now - state.jobs[overdue_job(state, partition, place)].resumed_s) // 10))


@kernel
def overdue_job(state: EngineState, partition: int, place: int) -> int:
    """Return the job number ``place`` of those past their estimates, last started first."""
    return int(state.expected[_end_of_slots(state, partition) - 1 - place])


@kernel
def reservation(state: EngineState, partition: int, gpus: int) -> tuple[int, int]:
    """Say when ``gpus`` will be free by count, at an expected end at the earliest, and how many more then.

    A node that is falling asleep can be used again once it sleeps, which counts as an end.
    """
    home = state.partitions[partition]
    if len(state.versatile) > 0 and state.clock[0].falling > 0:
        return _reservation_with_falling(state, partition, gpus)
    free, shadow = home.free_gpus, NEVER
    for slot in range(home.first_running, home.first_running + home.running):
        its = state.jobs[state.expected[slot]]
        if shadow != NEVER and free >= gpus and its.expected_s != shadow:
            break
        free, shadow = free + its.gpus, its.expected_s
    return shadow, free - gpus


@kernel
def _reservation_with_falling(state: EngineState, partition: int, gpus: int) -> tuple[int, int]:
    home, clock = state.partitions[partition], state.clock[0]
    free, shadow = home.free_gpus, NEVER
    slot, place = home.first_running, next_falling(state, partition, 0)
    while True:
        ends_s, falls_s = NEVER, NEVER
        if slot < home.first_running + home.running:
            ends_s = state.jobs[state.expected[slot]].expected_s
        if place < clock.falling:
            falls_s = state.nodes[falling_node(state, place)].until_s
        moment = min(ends_s, falls_s)
        if moment == NEVER or (shadow != NEVER and free >= gpus and moment != shadow):
            return shadow, free - gpus
        shadow = moment
        if ends_s == moment:
            free += state.jobs[state.expected[slot]].gpus
            slot += 1
        else:
            free += state.nodes[falling_node(state, place)].free
            place = next_falling(state, partition, place + 1)


@kernel
def falling_node(state: EngineState, place: int) -> int:
    """Return the node at that place among those that fall asleep, first to be asleep first."""
    return int(state.nodes[(state.clock[0].first_falling + place) % len(state.nodes)].falling)


@kernel
def next_falling(state: EngineState, partition: int, place: int) -> int:
    """Return the first place from ``place`` on of a node of ``partition`` among those that fall asleep."""
    n_falling = state.clock[0].falling
    while place < n_falling and home_of(state, falling_node(state, place)) != partition:
        place += 1
    return place


@kernel
def _rise(state: EngineState, job: int, place: int) -> None:
    """Put ``job`` into the heap of ends at ``place``, which is free, or nearer to the top."""
    jobs, ends = state.jobs, state.ends
    while place > 0:
        parent = ends[(place - 1) // 2]
        if not _ends_before(state, job, parent):
            break
        ends[place], jobs[parent].place = parent, place
        place = (place - 1) // 2
    ends[place], jobs[job].place = job, place


@kernel
def _sink(state: EngineState, job: int, place: int) -> None:
    """Move ``job``, at ``place`` in the heap of ends, away from the top as far as it belongs."""
    jobs, ends, n_running = state.jobs, state.ends, state.clock[0].running
    while 2 * place + 1 < n_running:
        child = 2 * place + 1
        if child + 1 < n_running and _ends_before(state, ends[child + 1], ends[child]):
            child += 1
        if not _ends_before(state, ends[child], job):
            break
        ends[place], jobs[ends[child]].place = ends[child], place
        place = child
    ends[place], jobs[job].place = job, place


@kernel
def _ends_before(state: EngineState, job: int, other: int) -> bool:
    mine: int = state.jobs[job].ends_s
    theirs: int = state.jobs[other].ends_s
    return mine < theirs or (mine == theirs and job < other)


@kernel
def _expect(state: EngineState, job: int) -> None:
    home, expected = state.partitions[state.jobs[job].partition], state.expected
    place = _place_of(state, job)
    _move_up(expected, place, home.first_running + home.running)
    expected[place] = job
    home.running += 1


@kernel
def _unexpect(state: EngineState, job: int) -> None:
    home, expected = state.partitions[state.jobs[job].partition], state.expected
    home.running -= 1
    _move_down(expected, _place_of(state, job) + 1, home.first_running + home.running + 1)


@kernel
def _expect_overdue(state: EngineState, job: int) -> None:
    partition, expected, jobs = state.jobs[job].partition, state.expected, state.jobs
    home, jobs[job].granted_s = state.partitions[partition], OVERDUE
    end = _end_of_slots(state, partition)
    slot = end - 1 - home.overdue
    while slot + 1 < end and jobs[expected[slot + 1]].resumed_s < jobs[job].resumed_s:
        expected[slot] = expected[slot + 1]
        slot += 1
    expected[slot] = job
    home.overdue += 1


@kernel
def _forget_overdue(state: EngineState, job: int) -> None:
    partition, expected = state.jobs[job].partition, state.expected
    home = state.partitions[partition]
    slot = _end_of_slots(state, partition) - 1
    while expected[slot] != job:
        slot -= 1
    home.overdue -= 1
    _move_up(expected, _end_of_slots(state, partition) - 1 - home.overdue, slot)


@kernel
def _move_up(slots: NDArray[np.int64], first: int, end: int) -> None:
    """Move what is in ``slots`` from ``first`` on and before ``end`` one further up."""
    # Unsigned: else numba asks of each slot whether it counts from the end, and it takes eight times as long.
    slot, last, one = np.uint64(end), np.uint64(first), np.uint64(1)
    while slot > last:
        slots[slot] = slots[slot - one]
        slot -= one


@kernel
def _move_down(slots: NDArray[np.int64], first: int, end: int) -> None:
    """Move what is in ``slots`` from ``first`` on and before ``end`` one further down."""
    slot, last, one = np.uint64(first), np.uint64(end), np.uint64(1)
    while slot < last:
        slots[slot - one] = slots[slot]
        slot += one


@kernel
def _end_of_slots(state: EngineState, partition: int) -> int:
    """Return the end of the part of ``expected`` that is this partition's."""
    home = state.partitions[partition]
    return int(home.first_running + home.nodes * home.gpus_per_node)


@kernel
def _place_of(state: EngineState, job: int) -> int:
    """Return where ``job`` stands, or would stand, among its partition's running jobs by expected end."""
    jobs, home = state.jobs, state.partitions[state.jobs[job].partition]
    low, high = home.first_running, home.first_running + home.running
    while low < high:
        middle = (low + high) // 2
        other = state.expected[middle]
        mine, theirs = jobs[job].expected_s, jobs[other].expected_s
        if theirs < mine or (theirs == mine and other < job):
            low = middle + 1
        else:
            high = middle
    return int(low)
