"""Counts of nodes by what they do, and node seconds: brought up to now whenever a count is about to change."""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.state import ASLEEP, AWAKE, FALLING, NOBODY, WAKING, State


@kernel
def bring_up(state: State, partition: int) -> None:
    """Count the stretch that ends now at what the counts of ``partition`` were."""
    tally, now = state.partitions[partition], state.clock[0].now_s
    length = now - tally.counted_s
    if length > 0:
        tally.busy_node_s += length * tally.busy
        tally.awake_node_s += length * tally.awake
        tally.waking_node_s += length * tally.waking
        tally.asleep_node_s += length * tally.asleep
        tally.falling_node_s += length * tally.falling
        tally.gpu_s += length * tally.gpus
        tally.short_node_s += length * (tally.holding - tally.busy)
        tally.counted_s = now


@kernel
def count_gpus(state: State, partition: int, node: int, gpus: int) -> None:
    """Note that ``gpus`` more of ``node`` are held."""
    if state.nodes[node].power == AWAKE:
        bring_up(state, partition)
        state.partitions[partition].gpus += gpus


@kernel
def count_holding(state: State, partition: int, node: int, by: int) -> None:
    """Note that ``node`` now holds a job (``by`` 1), or no longer does (-1)."""
    bring_up(state, partition)
    tally = state.partitions[partition]
    tally.holding += by
    if state.nodes[node].power == AWAKE:
        tally.busy += by
    _log(state, partition)


@kernel
def count_power(state: State, partition: int, power: int, by: int) -> None:
    """Note that one node more (``by`` 1) or less (-1) does what ``power`` says."""
    bring_up(state, partition)
    tally = state.partitions[partition]
    if power == AWAKE:
        tally.awake += by
    elif power == WAKING:
        tally.waking += by
    elif power == ASLEEP:
        tally.asleep += by
    elif power == FALLING:
        tally.falling += by


@kernel
def _log(state: State, partition: int) -> None:
    """Write down how many nodes hold a job; what lasted no time is written over."""
    clock, tally, now = state.clock[0], state.partitions[partition], state.clock[0].now_s
    if tally.row == NOBODY or state.holding[tally.row].at_s != now:
        tally.row = clock.rows
        clock.rows += 1
    row = state.holding[tally.row]
    row.at_s, row.partition, row.nodes = now, partition, tally.holding


@kernel
def count_sleep(state: State) -> None:
    """Note that one more node was put to sleep."""
    clock = state.clock[0]
    clock.sleeps += 1
    if clock.sleep_moments == 0 or clock.last_sleep_s != clock.now_s:
        clock.sleep_moments += 1
    clock.last_sleep_s = clock.now_s


@kernel
def count_wake(state: State) -> None:
    """Note that one more node was woken."""
    clock = state.clock[0]
    clock.wakes += 1
    if clock.wake_moments == 0 or clock.last_wake_s != clock.now_s:
        clock.wake_moments += 1
    clock.last_wake_s = clock.now_s


@kernel
def count_delay(state: State) -> None:
    """Note that one more start waits for a node to get up."""
    clock = state.clock[0]
    clock.delays += 1
    if clock.delay_moments == 0 or clock.last_delay_s != clock.now_s:
        clock.delay_moments += 1
    clock.last_delay_s = clock.now_s
