"""Running jobs: by true end, for the clock; by expected end, for those who plan."""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.placement import forget, lift, place
from helios.simulate.power import home_of
from helios.simulate.state import EASY, NEVER, State
from helios.simulate.tally import count_delay


@kernel
def start(state: State, job: int, now: int) -> None:
    """Place ``job``, which must fit, and let it run from ``now`` on, or from when all of its nodes are up."""
    clock, its = state.clock[0], state.jobs[job]
    up_s = place(state, job, now)
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
    elif clock.backfill == EASY:
        its.granted_s = state.pending[job].estimate_s
        its.expected_s = up_s + its.granted_s
        _expect(state, job)


@kernel
def stop(state: State, job: int) -> None:
    """Take ``job``, whose GPUs are free already, out of the running jobs."""
    clock = state.clock[0]
    forget(state, job)
    clock.running -= 1
    place, last = state.jobs[job].place, state.ends[clock.running]
    if last != job:
        _rise(state, last, place)
        _sink(state, last, state.jobs[last].place)
    if clock.preemptive or clock.backfill == EASY:
        _unexpect(state, job)


@kernel
def end(state: State, job: int) -> None:
    """Let ``job``, whose time has come, free its GPUs and be done."""
    clock = state.clock[0]
    lift(state, job, 1)
    stop(state, job)
    state.jobs[job].remaining_s = 0
    state.ended[clock.ended] = job
    clock.ended += 1


@kernel
def extend_overdue(state: State, partition: int, now: int) -> None:
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
def reservation(state: State, partition: int, gpus: int) -> tuple[int, int]:
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
def _reservation_with_falling(state: State, partition: int, gpus: int) -> tuple[int, int]:
    home, clock = state.partitions[partition], state.clock[0]
    free, shadow = home.free_gpus, NEVER
    slot, place = home.first_running, _next_falling(state, partition, 0)
    while True:
        ends_s, falls_s = NEVER, NEVER
        if slot < home.first_running + home.running:
            ends_s = state.jobs[state.expected[slot]].expected_s
        if place < clock.falling:
            falls_s = state.nodes[_falling(state, place)].until_s
        moment = min(ends_s, falls_s)
        if moment == NEVER or (shadow != NEVER and free >= gpus and moment != shadow):
            return shadow, free - gpus
        shadow = moment
        if ends_s == moment:
            free += state.jobs[state.expected[slot]].gpus
            slot += 1
        else:
            free += state.nodes[_falling(state, place)].free
            place = _next_falling(state, partition, place + 1)


@kernel
def _falling(state: State, place: int) -> int:
    """Return the node at that place among those that fall asleep, first to be asleep first."""
    return int(state.nodes[(state.clock[0].first_falling + place) % len(state.nodes)].falling)


@kernel
def _next_falling(state: State, partition: int, place: int) -> int:
    """Return the first place from ``place`` on of a node of ``partition`` among those that fall asleep."""
    n_falling = state.clock[0].falling
    while place < n_falling and home_of(state, _falling(state, place)) != partition:
        place += 1
    return place


@kernel
def _rise(state: State, job: int, place: int) -> None:
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
def _sink(state: State, job: int, place: int) -> None:
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
def _ends_before(state: State, job: int, other: int) -> bool:
    mine: int = state.jobs[job].ends_s
    theirs: int = state.jobs[other].ends_s
    return mine < theirs or (mine == theirs and job < other)


@kernel
def _expect(state: State, job: int) -> None:
    home, expected = state.partitions[state.jobs[job].partition], state.expected
    place = _place_of(state, job)
    for above in range(home.first_running + home.running, place, -1):
        expected[above] = expected[above - 1]
    expected[place] = job
    home.running += 1


@kernel
def _unexpect(state: State, job: int) -> None:
    home, expected = state.partitions[state.jobs[job].partition], state.expected
    home.running -= 1
    for slot in range(_place_of(state, job), home.first_running + home.running):
        expected[slot] = expected[slot + 1]


@kernel
def _place_of(state: State, job: int) -> int:
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
