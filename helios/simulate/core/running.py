"""Running jobs, by true end and by expected end.

The clock goes by true ends, and backfill plans with expected ones.

A heap has the first job to end on top. Both simulators keep one. Jobs that end at the same time are in the order of the
workload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.simulate.core.nodes import count_delay, forget, lift, partition_of_node, place
from helios.simulate.core.state import EASY, NEVER, NOBODY, NODES, EngineState

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


OVERDUE = -1
"""Value of ``granted_s`` of a job past its estimate, where such jobs are listed apart."""


@kernel
def start(state: EngineState, job: int, now: int) -> None:
    """Place ``job``, which must fit, and start it.

    It runs from ``now`` on, or from when all of its nodes are up.
    """
    clock, record = state.clock[0], state.jobs[job]
    up_s = place(state, job, now)
    state.partitions[record.partition].planned_for = NOBODY
    if state.clock[0].versatile and up_s > now:
        record.late_s = up_s - now
        count_delay(state)
    if record.started_s == NEVER:
        record.started_s = up_s
    record.resumed_s = up_s
    record.ends_s = up_s + record.remaining_s
    rise(state.ends, state.jobs["ends_s"], state.jobs["place"], job, clock.running)
    clock.running += 1
    if clock.preemptive:
        record.expected_s = record.ends_s
        _expect(state, job)
    elif clock.backfill >= EASY:
        record.granted_s = state.pending[job].estimate_s
        record.expected_s = up_s + record.granted_s
        _expect(state, job)
    else:
        state.partitions[record.partition].running += 1


@kernel
def stop(state: EngineState, job: int) -> None:
    """Remove ``job``, whose GPUs are free already, from the running jobs."""
    clock = state.clock[0]
    forget(state, job)
    state.partitions[state.jobs[job].partition].planned_for = NOBODY
    clock.running -= 1
    drop(state.ends, state.jobs["ends_s"], state.jobs["place"], job, clock.running)
    if clock.backfill == NODES and state.jobs[job].granted_s == OVERDUE:
        _forget_overdue(state, job)
    elif clock.preemptive or clock.backfill >= EASY:
        _unexpect(state, job)
    else:
        state.partitions[state.jobs[job].partition].running -= 1


@kernel
def end(state: EngineState, job: int) -> None:
    """End ``job`` and free its GPUs."""
    clock = state.clock[0]
    lift(state, job, 1)
    stop(state, job)
    state.jobs[job].remaining_s = 0
    state.ended[clock.ended] = job
    clock.ended += 1


@kernel
def plan_holds(state: EngineState, partition: int, head: int, now: int) -> bool:
    """Return whether the last reservation is still right.

    That is so if it was for ``head``, no job has started or ended since, and none is overdue now: then the same would
    be reserved again. Where nodes sleep they change it too, and it is always made anew.
    """
    home = state.partitions[partition]
    if state.clock[0].versatile or home.planned_for != head or home.running == 0:
        return False
    return bool(state.jobs[state.expected[home.first_running]].expected_s > now)


@kernel
def extend_overdue(state: EngineState, partition: int, now: int) -> None:
    """Extend the estimates of jobs until their expected ends lie ahead.

    Each extension is 0.3 x the estimate in force, at least 1 s.
    """
    home, jobs = state.partitions[partition], state.jobs
    while home.running > 0:
        job = state.expected[home.first_running]
        record = jobs[job]
        if record.expected_s > now:
            break
        _unexpect(state, job)
        while record.expected_s <= now:
            record.granted_s += max(1, 3 * record.granted_s // 10)
            record.expected_s = record.resumed_s + record.granted_s
        _expect(state, job)


@kernel
def set_overdue_apart(state: EngineState, partition: int, now: int) -> None:
    """Move jobs past their estimates to the list of overdue jobs.

    That list is in order of start, last started last. How long such a job is expected to last follows from how long it
    has run, so it is in order of expected end too, from its end backwards.
    """
    home = state.partitions[partition]
    while home.running > 0 and state.jobs[state.expected[home.first_running]].expected_s <= now:
        job = state.expected[home.first_running]
        _unexpect(state, job)
        _expect_overdue(state, job)


@kernel
def planned_end_s(state: EngineState, partition: int, place: int) -> int:
    """Return the expected end number ``place`` of the jobs within their estimates.

    NEVER: there are not so many.
    """
    home = state.partitions[partition]
    if place >= home.running:
        return NEVER
    return int(state.jobs[state.expected[home.first_running + place]].expected_s)


@kernel
def overdue_end_s(state: EngineState, partition: int, place: int, now: int) -> int:
    """Return the expected end number ``place`` of the jobs past their estimates.

    Such a job is expected to last 0.3 x as long again as it has run, at least 1 s. NEVER: there are not so many.
    """
    if place >= state.partitions[partition].overdue:
        return NEVER
    return int(now + max(1, 3 * (now - state.jobs[overdue_job(state, partition, place)].resumed_s) // 10))


@kernel
def overdue_job(state: EngineState, partition: int, place: int) -> int:
    """Return the job number ``place`` of those past their estimates.

    The last started is the first.
    """
    return int(state.expected[_end_of_slots(state, partition) - 1 - place])


@kernel
def reservation(state: EngineState, partition: int, gpus: int) -> tuple[int, int]:
    """Return when ``gpus`` will be free, and how many more.

    That is an expected end at the earliest. A node that is falling asleep can be used again once it sleeps, which
    counts as an end.
    """
    home = state.partitions[partition]
    if state.clock[0].versatile and state.clock[0].falling > 0:
        return _reservation_with_falling(state, partition, gpus)
    free, shadow = home.free_gpus, NEVER
    for slot in range(home.first_running, home.first_running + home.running):
        record = state.jobs[state.expected[slot]]
        if shadow != NEVER and free >= gpus and record.expected_s != shadow:
            break
        free, shadow = free + record.gpus, record.expected_s
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
    """Return the node number ``place`` of those that are falling asleep.

    The first to be asleep is the first.
    """
    return int(state.nodes[(state.clock[0].first_falling + place) % len(state.nodes)].falling)


@kernel
def next_falling(state: EngineState, partition: int, place: int) -> int:
    """Return the first place of a node of ``partition`` from ``place`` on.

    Places are those among the nodes that are falling asleep; their number: there is none.
    """
    n_falling = state.clock[0].falling
    while place < n_falling and partition_of_node(state, falling_node(state, place)) != partition:
        place += 1
    return place


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
    home = state.partitions[partition]
    return int(home.first_running + home.nodes * home.gpus_per_node)


@kernel
def _place_of(state: EngineState, job: int) -> int:
    """Return the index of ``job`` in ``expected``.

    Its partition's running jobs are there by expected end, then position.
    """
    jobs, home = state.jobs, state.partitions[state.jobs[job].partition]
    low, high = home.first_running, home.first_running + home.running
    while low < high:
        middle = (low + high) // 2
        other = state.expected[middle]
        ends_s, other_ends_s = jobs[job].expected_s, jobs[other].expected_s
        if other_ends_s < ends_s or (other_ends_s == ends_s and other < job):
            low = middle + 1
        else:
            high = middle
    return int(low)
