"""Rules for how many nodes stay awake, checked each minute.

The rule of :func:`helios.metrics.spare_nodes.nodes_to_change` wakes nodes ahead of need. With it can be compared the
cluster's own timer that leaves some nodes awake, and a rule that wakes nodes only once a job had to.
"""

from __future__ import annotations

from helios.jit import kernel
from helios.metrics.spare_nodes import compiled_nodes_to_change
from helios.simulate.core.nodes import first_node, partition_of_node, put_to_sleep, wake
from helios.simulate.core.state import ASLEEP, NOBODY, RECENT_CHECKS, EngineState

NO_RULE, NEVER_WAKES, WAKES_SHORT, WAKES_AHEAD = 0, 1, 2, 3
"""When a partition's rule wakes nodes: there is no rule, never, after a job has had to wake one, ahead of need."""


@kernel
def apply_awake_rules(state: EngineState, now: int) -> None:
    """Wake and put to sleep nodes by the rules of their partitions."""
    clock, any_surplus = state.clock[0], False
    number = now // clock.check_every_s
    for partition in range(len(state.partitions)):
        part = state.partitions[partition]
        if part.wakes != NO_RULE:
            change = _nodes_to_change(state, partition, number)
            while change > 0 and _wake_first(state, partition):
                change -= 1
            part.surplus = max(-change, 0)
            any_surplus = any_surplus or part.surplus > 0
        part.most_holding, part.was_short = part.holding, 0
    clock.check_s = (number + 1) * clock.check_every_s
    node = clock.idle_first if any_surplus else NOBODY
    while node != NOBODY:
        following, partition = state.nodes[node].later, partition_of_node(state, node)
        part = state.partitions[partition]
        if part.surplus > 0 and state.nodes[node].idle_since_s + part.least_idle_s <= now:
            part.surplus -= 1
            put_to_sleep(state, partition, node)
        node = following


@kernel
def _nodes_to_change(state: EngineState, partition: int, number: int) -> int:
    """Return the nodes to wake, or below zero those to put to sleep."""
    part, first = state.partitions[partition], partition * RECENT_CHECKS
    powered, peak = part.awake + part.waking, part.holding
    if part.memory_checks > 0:
        state.recent[first + number % part.memory_checks] = part.most_holding
        for i in range(part.memory_checks):
            peak = max(peak, state.recent[first + i])
    if part.is_floor:
        change = min(max(part.spare, part.holding), part.nodes) - powered
    else:
        change = compiled_nodes_to_change(part.holding, peak, part.spare, powered, part.nodes)
    wakes = part.wakes == WAKES_AHEAD or (part.wakes == WAKES_SHORT and part.was_short)
    return int(change if wakes else min(change, 0))


@kernel
def _wake_first(state: EngineState, partition: int) -> bool:
    """Wake the sleeping node of the lowest weight, if there is one."""
    part = state.partitions[partition]
    node_set = ASLEEP * (part.gpus_per_node + 1) + part.gpus_per_node
    asleep = state.level_nodes[part.first_level + node_set] > 0
    if asleep:
        wake(state, partition, first_node(state, partition, node_set))
    return bool(asleep)
