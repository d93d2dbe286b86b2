"""Choice of the nodes for a job.

Awake nodes go before waking ones before sleeping ones, and a large job takes whole nodes first. Among these the lowest
weight goes first, and among nodes of equal weight the mode decides: ``packed``, the fullest node that still fits;
``spread``, the emptiest; ``random``, any that fits; ``weighted``, the first. The first node wins ties.
"""

from __future__ import annotations

import numpy as np

from helios.jit import kernel
from helios.simulate.core.nodes import first_node, n_below, nth_node, partition_of_node, shift, wake
from helios.simulate.core.state import ASLEEP, AWAKE, NOBODY, RANDOM, SPREAD, WAKING, WEIGHTED, EngineState


@kernel
def place(state: EngineState, job: int, now: int) -> int:
    """Give ``job``, which must fit, its nodes.

    Returns when the last of them is up.
    """
    jobs, home = state.jobs, state.partitions[state.jobs[job].partition]
    full, up_s = home.gpus_per_node, now
    for number in range(jobs[job].gpus // full):
        up_s = max(up_s, _assign_gpus(state, job, choice(state, job, number, full), full, now))
    rest = jobs[job].gpus % full
    if rest > 0:
        up_s = max(up_s, _assign_gpus(state, job, choice(state, job, full, rest), rest, now))
    return up_s


@kernel
def lift(state: EngineState, job: int, sign: int) -> None:
    """Free the GPUs of ``job`` (``sign`` 1), or take them again (-1)."""
    share = state.jobs[job].first_share
    while share >= 0:
        shift(state, state.jobs[job].partition, state.shares[share].node, sign * state.shares[share].gpus)
        share = state.shares[share].next


@kernel
def forget(state: EngineState, job: int) -> None:
    """Drop the list of what ``job`` held, once its GPUs are free."""
    clock, shares, share = state.clock[0], state.shares, state.jobs[job].first_share
    while share >= 0:
        following = shares[share].next
        shares[share].next = clock.free_share
        clock.free_share, share = share, following
    state.jobs[job].first_share = NOBODY


@kernel
def _assign_gpus(state: EngineState, job: int, node: int, gpus: int, now: int) -> int:
    """Give ``job`` ``gpus`` GPUs of ``node``.

    Returns when the node is up.
    """
    clock = state.clock[0]
    share = clock.free_share
    clock.free_share = state.shares[share].next
    state.shares[share].node, state.shares[share].gpus = node, gpus
    state.shares[share].next = state.jobs[job].first_share
    state.jobs[job].first_share = share
    if state.clock[0].versatile and state.nodes[node].power == ASLEEP:
        wake(state, state.jobs[job].partition, node)
    shift(state, state.jobs[job].partition, node, -gpus)
    if state.clock[0].versatile and state.nodes[node].power == WAKING:
        return int(state.nodes[node].until_s)
    return now


@kernel
def choice(state: EngineState, job: int, number: int, least: int) -> int:
    """Return the node that ``job`` gets for ``least`` GPUs.

    ``number`` distinguishes the choices of one job, for random placement.
    """
    partition = state.jobs[job].partition
    home = state.partitions[partition]
    if not state.clock[0].versatile:
        while state.level_nodes[home.first_level + least] == 0:
            least += 1
        return first_node(state, partition, least)
    power, levels = AWAKE, home.gpus_per_node + 1
    node_set = _first_nonempty(state, partition, least, levels)
    while node_set == NOBODY and power < ASLEEP:
        power += 1
        node_set = _first_nonempty(state, partition, power * levels + least, (power + 1) * levels)
    return _chosen(state, job, number, node_set, (power + 1) * levels)


@kernel
def _first_nonempty(state: EngineState, partition: int, node_set: int, end: int) -> int:
    """Return the first set from number ``node_set`` on that is not empty.

    NOBODY: there is none before ``end``.
    """
    first = state.partitions[partition].first_level
    while node_set < end:
        if state.level_nodes[first + node_set] > 0:
            return node_set
        node_set += 1
    return NOBODY


@kernel
def _chosen(state: EngineState, job: int, number: int, lowest: int, end: int) -> int:
    """Return the node that weight and mode prefer among some sets.

    These are the sets from number ``lowest`` on, which is not empty, and before ``end``.
    """
    partition, placement, nodes = state.jobs[job].partition, state.clock[0].placement, state.nodes
    best = first_node(state, partition, lowest)
    for node_set in range(lowest + 1, end):
        if state.level_nodes[state.partitions[partition].first_level + node_set] > 0:
            node = first_node(state, partition, node_set)
            mine, record = nodes[node].tier_end, nodes[best].tier_end
            if mine < record or (
                mine == record
                and (placement == SPREAD or (placement == WEIGHTED and nodes[node].rank < nodes[best].rank))
            ):
                best = node
    return _any_alike(state, best, lowest, end, _random_number(state, job, number)) if placement == RANDOM else best


@kernel
def _any_alike(state: EngineState, best: int, lowest: int, end: int, drawn: int) -> int:
    """Return the node that number ``drawn`` selects among some sets.

    Only nodes with no higher weight than ``best`` count.
    """
    partition, tier_end = partition_of_node(state, best), state.nodes[best].tier_end
    n_alike = 0
    for node_set in range(lowest, end):
        n_alike += n_below(state, partition, node_set, tier_end)
    n = drawn % n_alike
    for node_set in range(lowest, end):
        n_here = n_below(state, partition, node_set, tier_end)
        if n < n_here:
            return nth_node(state, partition, node_set, n)
        n -= n_here
    return NOBODY


@kernel
def _random_number(state: EngineState, job: int, number: int) -> int:
    """Draw a number that depends on seed, job and choice only.

    So all policies see the same draws.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (the mix of SplitMix64).
    """
    mixed = np.uint64(state.clock[0].seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (np.uint64(job), np.uint64(number)):
        mixed += part + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return int(mixed >> np.uint64(1))
