"""Nodes that sleep and wake: on request, for a job, or by the cluster's own idle timer.

Falling asleep and waking take as long for every node, so that those on the way arrive in the order in which they left.
"""

from __future__ import annotations

from helios.simulate.idle import enlist, strike
from helios.simulate.kernel import kernel
from helios.simulate.sets import turn
from helios.simulate.state import ASLEEP, AWAKE, FALLING, NEVER, NOBODY, WAKING, State
from helios.simulate.tally import count_sleep, count_wake


@kernel
def home_of(state: State, node: int) -> int:
    """Return the partition of ``node``."""
    low, high = 0, len(state.partitions)
    while high - low > 1:
        middle = (low + high) // 2
        if state.partitions[middle].first_node <= node:
            low = middle
        else:
            high = middle
    return low


@kernel
def wake(state: State, partition: int, node: int) -> None:
    """Let ``node``, which sleeps, get up."""
    clock, its = state.clock[0], state.nodes[node]
    turn(state, partition, node, WAKING)
    its.until_s = clock.now_s + clock.boot_s
    state.nodes[(clock.first_waking + clock.waking) % len(state.nodes)].waking = node
    clock.waking += 1
    count_wake(state)


@kernel
def fall(state: State, partition: int, node: int) -> None:
    """Let ``node``, which is awake and idle, fall asleep: until it has, nobody can use it."""
    clock, its = state.clock[0], state.nodes[node]
    strike(state, node)
    turn(state, partition, node, FALLING)
    state.partitions[partition].free_gpus -= state.nodes[node].free
    its.until_s = clock.now_s + clock.shutdown_s
    state.nodes[(clock.first_falling + clock.falling) % len(state.nodes)].falling = node
    clock.falling += 1
    count_sleep(state)


@kernel
def next_change(state: State) -> int:
    """Return when the next node is up or asleep, or is put to sleep by the idle timer, or NEVER."""
    clock, moment = state.clock[0], NEVER
    if clock.waking > 0:
        moment = state.nodes[state.nodes[clock.first_waking].waking].until_s
    if clock.falling > 0:
        moment = min(moment, state.nodes[state.nodes[clock.first_falling].falling].until_s)
    if clock.suspend_s != NEVER and clock.idle_first != NOBODY:
        moment = min(moment, state.nodes[clock.idle_first].idle_since_s + clock.suspend_s)
    return moment


@kernel
def get_up(state: State, now: int) -> None:
    """Let all be awake that are up ``now``."""
    clock = state.clock[0]
    while clock.waking > 0 and state.nodes[state.nodes[clock.first_waking].waking].until_s <= now:
        node = state.nodes[clock.first_waking].waking
        clock.first_waking = (clock.first_waking + 1) % len(state.nodes)
        clock.waking -= 1
        partition = home_of(state, node)
        turn(state, partition, node, AWAKE)
        state.nodes[node].idle_since_s = now
        if state.nodes[node].free == state.partitions[partition].gpus_per_node:
            enlist(state, node)


@kernel
def fell(state: State, now: int) -> int:
    """Let one node be asleep that has fallen asleep by ``now``, and return its partition, or NOBODY."""
    clock = state.clock[0]
    if clock.falling == 0 or state.nodes[state.nodes[clock.first_falling].falling].until_s > now:
        return NOBODY
    node = state.nodes[clock.first_falling].falling
    clock.first_falling = (clock.first_falling + 1) % len(state.nodes)
    clock.falling -= 1
    partition = home_of(state, node)
    turn(state, partition, node, ASLEEP)
    state.partitions[partition].free_gpus += state.nodes[node].free
    return partition


@kernel
def time_out(state: State, now: int) -> None:
    """Let fall asleep whatever the idle timer says should."""
    clock = state.clock[0]
    if clock.suspend_s == NEVER:
        return
    while clock.idle_first != NOBODY and state.nodes[clock.idle_first].idle_since_s + clock.suspend_s <= now:
        fall(state, home_of(state, clock.idle_first), clock.idle_first)
