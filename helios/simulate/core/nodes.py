"""Nodes by power state and free GPUs, and their choice for jobs.

The nodes of a partition are kept in sets, one for each power state and each number of free GPUs (level). A set is a
row of bits, one for each rank, so the best fit is the lowest bit of the lowest level that suffices. Set number
``node_set`` has power ``node_set // levels`` and level ``node_set % levels``, where ``levels`` is the GPUs of a node
plus 1.

A job gets awake nodes first, then waking, then sleeping ones. A large job takes whole nodes first. The lowest weight
goes first. Among nodes of equal weight the mode decides: ``packed``, the fullest node that still fits; ``spread``, the
emptiest; ``random``, any that fits; ``weighted``, the first. The first node wins ties.
"""

from __future__ import annotations

import numpy as np

from helios.jit import kernel
from helios.simulate.core.state import (
    ASLEEP,
    AWAKE,
    FALLING,
    NEVER,
    NOBODY,
    RANDOM,
    SPREAD,
    WAKING,
    WEIGHTED,
    WORD_BITS,
    EngineState,
)

# A de Bruijn sequence gives the position of a lone bit by one multiplication (Leiserson, Prokop, Randall,
# "Using de Bruijn sequences to index a 1 in a computer word", 1998); numba has no count of trailing zeros.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(WORD_BITS, dtype=np.int64)


@kernel
def assign_nodes(state: EngineState, job: int, now: int) -> int:
    """Give ``job``, which must fit, its nodes.

    Returns when the last of them is up.
    """
    jobs, part = state.jobs, state.partitions[state.jobs[job].partition]
    full, up_s = part.gpus_per_node, now
    for number in range(jobs[job].gpus // full):
        up_s = max(up_s, _assign_gpus(state, job, choose_node(state, job, number, full), full, now))
    remainder = jobs[job].gpus % full
    if remainder > 0:
        up_s = max(up_s, _assign_gpus(state, job, choose_node(state, job, full, remainder), remainder, now))
    return up_s


@kernel
def release_gpus(state: EngineState, job: int, sign: int) -> None:
    """Free the GPUs that ``job`` holds (``sign`` 1), or take them again (-1)."""
    share = state.jobs[job].first_share
    while share >= 0:
        change_free_gpus(state, state.jobs[job].partition, state.shares[share].node, sign * state.shares[share].gpus)
        share = state.shares[share].next


@kernel
def drop_shares(state: EngineState, job: int) -> None:
    """Drop the list of nodes that ``job`` held, once its GPUs are free."""
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
    if state.clock[0].tracks_nodes and state.nodes[node].power == ASLEEP:
        wake(state, state.jobs[job].partition, node)
        state.partitions[state.jobs[job].partition].was_short = 1
    change_free_gpus(state, state.jobs[job].partition, node, -gpus)
    if state.clock[0].tracks_nodes and state.nodes[node].power == WAKING:
        return int(state.nodes[node].until_s)
    return now


@kernel
def choose_node(state: EngineState, job: int, number: int, least: int) -> int:
    """Return the node that ``job`` gets for ``least`` GPUs.

    ``number`` distinguishes the choices of one job, for random placement.
    """
    partition = state.jobs[job].partition
    part = state.partitions[partition]
    if not state.clock[0].tracks_nodes:
        while state.level_nodes[part.first_level + least] == 0:
            least += 1
        return first_node(state, partition, least)
    power, levels = AWAKE, part.gpus_per_node + 1
    node_set = _first_nonempty(state, partition, least, levels)
    while node_set == NOBODY and power < ASLEEP:
        power += 1
        node_set = _first_nonempty(state, partition, power * levels + least, (power + 1) * levels)
    return _preferred_node(state, job, number, node_set, (power + 1) * levels)


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
def _preferred_node(state: EngineState, job: int, number: int, lowest: int, end: int) -> int:
    """Return the node that weight and mode prefer among some sets.

    These are the sets from ``lowest``, which is not empty, to before ``end``.
    """
    partition, placement, nodes = state.jobs[job].partition, state.clock[0].placement, state.nodes
    best = first_node(state, partition, lowest)
    for node_set in range(lowest + 1, end):
        if state.level_nodes[state.partitions[partition].first_level + node_set] > 0:
            node = first_node(state, partition, node_set)
            tier, best_tier = nodes[node].tier_end, nodes[best].tier_end
            if tier < best_tier or (
                tier == best_tier
                and (placement == SPREAD or (placement == WEIGHTED and nodes[node].rank < nodes[best].rank))
            ):
                best = node
    return _random_node(state, best, lowest, end, _random_number(state, job, number)) if placement == RANDOM else best


@kernel
def _random_node(state: EngineState, best: int, lowest: int, end: int, drawn: int) -> int:
    """Return the node that ``drawn`` selects among some sets.

    These are the sets from ``lowest`` to before ``end``. Only nodes with no higher weight than ``best`` count.
    """
    partition, tier_end = partition_of_node(state, best), state.nodes[best].tier_end
    n_alike = 0
    for node_set in range(lowest, end):
        n_alike += count_below_rank(state, partition, node_set, tier_end)
    n = drawn % n_alike
    for node_set in range(lowest, end):
        n_here = count_below_rank(state, partition, node_set, tier_end)
        if n < n_here:
            return nth_node(state, partition, node_set, n)
        n -= n_here
    return NOBODY


@kernel
def _random_number(state: EngineState, job: int, number: int) -> int:
    """Return a random number that depends on seed, job and choice only.

    So all policies see the same draws.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (the mix of SplitMix64).
    """
    mixed = np.uint64(state.clock[0].seed) * np.uint64(0x9E3779B97F4A7C15)
    for value in (np.uint64(job), np.uint64(number)):
        mixed += value + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return int(mixed >> np.uint64(1))


# Idle nodes that the cluster's own idle timer may put to sleep, longest idle first: a linked list of nodes.
@kernel
def add_idle_node(state: EngineState, node: int) -> None:
    """Put ``node``, idle and awake, into the list of idle nodes.

    The list begins with the node that has been idle longest, of equals with the last. A node that is kept awake stays
    out.
    """
    clock, nodes, record = state.clock[0], state.nodes, state.nodes[node]
    if record.kept:
        return
    ahead = clock.idle_last
    while ahead != NOBODY and (
        nodes[ahead].idle_since_s > record.idle_since_s
        or (nodes[ahead].idle_since_s == record.idle_since_s and ahead < node)
    ):
        ahead = nodes[ahead].earlier
    behind = clock.idle_first if ahead == NOBODY else nodes[ahead].later
    record.earlier, record.later = ahead, behind
    _join(state, ahead, node)
    _join(state, node, behind)


@kernel
def remove_idle_node(state: EngineState, node: int) -> None:
    """Remove ``node`` from the idle nodes."""
    clock, record = state.clock[0], state.nodes[node]
    if record.earlier != NOBODY or clock.idle_first == node:
        _join(state, record.earlier, record.later)
        record.earlier = record.later = NOBODY


@kernel
def _join(state: EngineState, ahead: int, behind: int) -> None:
    clock, nodes = state.clock[0], state.nodes
    if ahead == NOBODY:
        clock.idle_first = behind
    else:
        nodes[ahead].later = behind
    if behind == NOBODY:
        clock.idle_last = ahead
    else:
        nodes[behind].earlier = ahead


# Counts of nodes by power state, and node seconds. Before a count changes, node seconds are added up to now.
@kernel
def count_node_seconds(state: EngineState, partition: int) -> None:
    """Add the node seconds of ``partition`` since they were last counted."""
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
def count_gpus(state: EngineState, partition: int, node: int, gpus: int) -> None:
    """Count ``gpus`` more of ``node`` as held."""
    if state.nodes[node].power == AWAKE:
        count_node_seconds(state, partition)
        state.partitions[partition].gpus += gpus


@kernel
def count_holding(state: EngineState, partition: int, node: int, by: int) -> None:
    """Count ``node`` as holding a job (``by`` 1), or no longer (-1)."""
    count_node_seconds(state, partition)
    tally = state.partitions[partition]
    tally.holding += by
    tally.most_holding = max(tally.most_holding, tally.holding)
    if state.nodes[node].power == AWAKE:
        tally.busy += by
    _log(state, partition)


@kernel
def count_power(state: EngineState, partition: int, power: int, by: int) -> None:
    """Count one node more (``by`` 1) or less (-1) in state ``power``."""
    count_node_seconds(state, partition)
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
def _log(state: EngineState, partition: int) -> None:
    """Log how many nodes hold a job, in one row for each moment."""
    clock, tally, now = state.clock[0], state.partitions[partition], state.clock[0].now_s
    if tally.row == NOBODY or state.holding[tally.row].at_s != now:
        tally.row = clock.rows
        clock.rows += 1
    row = state.holding[tally.row]
    row.at_s, row.partition, row.nodes = now, partition, tally.holding


@kernel
def count_sleep(state: EngineState) -> None:
    """Count one more node that was put to sleep."""
    clock = state.clock[0]
    clock.sleeps += 1
    if clock.sleep_moments == 0 or clock.last_sleep_s != clock.now_s:
        clock.sleep_moments += 1
    clock.last_sleep_s = clock.now_s


@kernel
def count_wake(state: EngineState) -> None:
    """Count one more node that was woken."""
    clock = state.clock[0]
    clock.wakes += 1
    if clock.wake_moments == 0 or clock.last_wake_s != clock.now_s:
        clock.wake_moments += 1
    clock.last_wake_s = clock.now_s


@kernel
def count_delay(state: EngineState) -> None:
    """Count one more start that waits for a node to boot."""
    clock = state.clock[0]
    clock.delays += 1
    if clock.delay_moments == 0 or clock.last_delay_s != clock.now_s:
        clock.delay_moments += 1
    clock.last_delay_s = clock.now_s


for _bit in range(WORD_BITS):
    _BIT_OF[((int(_DE_BRUIJN) << _bit) & (2**64 - 1)) >> 58] = _bit


@kernel
def largest_fit(state: EngineState, partition: int) -> int:
    """Return the size of the largest job that can be placed now.

    Every smaller one can be placed too. With c free nodes of G GPUs and m free GPUs on the best partly used node, the
    size is c G + m: a job of k G + r GPUs (r < G) needs k free nodes and r GPUs on another. Sleeping nodes count, nodes
    that are falling asleep do not.
    """
    if not state.clock[0].tracks_nodes:
        return largest_awake_fit(state, partition)
    part = state.partitions[partition]
    free, full = 0, part.gpus_per_node
    for power in (AWAKE, WAKING, ASLEEP):
        free += state.level_nodes[part.first_level + power * (full + 1) + full]
    return int(free * full + max(_largest_partial(state, partition, AWAKE), _largest_partial(state, partition, WAKING)))


@kernel
def largest_awake_fit(state: EngineState, partition: int) -> int:
    """Return the size of the largest job that awake nodes can hold."""
    part = state.partitions[partition]
    full = part.gpus_per_node
    return int(state.level_nodes[part.first_level + full] * full + _largest_partial(state, partition, AWAKE))


@kernel
def _largest_partial(state: EngineState, partition: int, power: int) -> int:
    """Return the most free GPUs on a partly used node."""
    part = state.partitions[partition]
    level, first = part.gpus_per_node - 1, part.first_level + power * (part.gpus_per_node + 1)
    while level > 0 and state.level_nodes[first + level] == 0:
        level -= 1
    return int(level)


@kernel
def change_free_gpus(state: EngineState, partition: int, node: int, gpus: int) -> None:
    """Change the free GPUs of ``node`` by ``gpus``."""
    part = state.partitions[partition]
    if state.clock[0].tracks_nodes:
        _change_and_count(state, partition, node, gpus)
        return
    rank = node - part.first_node  # as all nodes are alike
    bit = np.uint64(1) << np.uint64(rank % WORD_BITS)
    free_before = state.nodes[node].free
    free_after = free_before + gpus
    state.bits[part.first_word + free_before * part.words + rank // WORD_BITS] ^= bit
    state.bits[part.first_word + free_after * part.words + rank // WORD_BITS] ^= bit
    state.level_nodes[part.first_level + free_before] -= 1
    state.level_nodes[part.first_level + free_after] += 1
    state.nodes[node].free = free_after
    part.free_gpus += gpus


@kernel
def _change_and_count(state: EngineState, partition: int, node: int, gpus: int) -> None:
    """Change the free GPUs of ``node``, and what is counted by them."""
    part, record, clock = state.partitions[partition], state.nodes[node], state.clock[0]
    free_before = state.nodes[node].free
    free_after = free_before + gpus
    _toggle_in_set(state, partition, node, free_before, -1)
    _toggle_in_set(state, partition, node, free_after, 1)
    state.nodes[node].free = free_after
    part.free_gpus += gpus
    count_gpus(state, partition, node, -gpus)
    if free_before == part.gpus_per_node:
        count_holding(state, partition, node, 1)
        remove_idle_node(state, node)
    elif free_after == part.gpus_per_node:
        count_holding(state, partition, node, -1)
        record.idle_since_s = clock.now_s
        if record.power == AWAKE:
            add_idle_node(state, node)


@kernel
def plan_gpus(state: EngineState, partition: int, node: int, gpus: int) -> None:
    """Change the free GPUs of ``node`` by ``gpus`` for a plan only.

    Nothing is counted, and the caller has to undo it.
    """
    if not state.clock[0].tracks_nodes:
        change_free_gpus(state, partition, node, gpus)
        return
    record = state.nodes[node]
    _toggle_in_set(state, partition, node, record.free, -1)
    record.free += gpus
    _toggle_in_set(state, partition, node, record.free, 1)
    state.partitions[partition].free_gpus += gpus


@kernel
def plan_power(state: EngineState, partition: int, node: int, power: int) -> None:
    """Change an idle ``node`` between FALLING and ASLEEP in a plan."""
    record = state.nodes[node]
    _toggle_in_set(state, partition, node, record.free, -1)
    record.power = power
    _toggle_in_set(state, partition, node, record.free, 1)
    state.partitions[partition].free_gpus += -record.free if power == FALLING else record.free


@kernel
def set_aside(state: EngineState, partition: int, by: int) -> None:
    """Take reserved nodes out of their sets (-1), or put them back (1).

    No job is placed on a node that is in no set.
    """
    part = state.partitions[partition]
    for i in range(part.reserved):
        node = state.nodes[part.first_node + i].reserved
        _toggle_in_set(state, partition, node, state.nodes[node].free, by)


@kernel
def largest_fit_with_reserved(state: EngineState, partition: int, size: int, deepest: int) -> int:
    """Return the size of the largest job that fits with the reserved nodes.

    ``size`` is the largest one that fits while they are set aside. Reserved nodes count if their power state is at most
    ``deepest``: AWAKE, or ASLEEP for waking and sleeping ones too.
    """
    part, nodes = state.partitions[partition], state.nodes
    full = part.gpus_per_node
    free, partial = size // full, size % full
    for i in range(part.reserved):
        record = nodes[nodes[part.first_node + i].reserved]
        if record.power <= deepest and record.free == full:
            free += 1
        elif record.power <= deepest:
            partial = max(partial, record.free)
    return int(free * full + partial)


@kernel
def change_power(state: EngineState, partition: int, node: int, power: int) -> None:
    """Change the power state of ``node`` to ``power``."""
    part, record = state.partitions[partition], state.nodes[node]
    held = part.gpus_per_node - state.nodes[node].free
    _toggle_in_set(state, partition, node, state.nodes[node].free, -1)
    count_power(state, partition, record.power, -1)
    record.power = power
    _toggle_in_set(state, partition, node, state.nodes[node].free, 1)
    count_power(state, partition, power, 1)
    if held > 0 and power == AWAKE:
        state.partitions[partition].busy += 1
        state.partitions[partition].gpus += held


@kernel
def _toggle_in_set(state: EngineState, partition: int, node: int, level: int, by: int) -> None:
    """Put ``node`` into a set (``by`` 1), or take it out (-1).

    The set is that of the node's power state and ``level``.
    """
    part, record = state.partitions[partition], state.nodes[node]
    node_set = record.power * (part.gpus_per_node + 1) + level
    bit = np.uint64(1) << np.uint64(record.rank % WORD_BITS)
    state.bits[part.first_word + node_set * part.words + record.rank // WORD_BITS] ^= bit
    state.level_nodes[part.first_level + node_set] += by


@kernel
def first_node(state: EngineState, partition: int, node_set: int) -> int:
    """Return the first node of the set ``node_set``, which must not be empty."""
    part = state.partitions[partition]
    word = part.first_word + node_set * part.words
    first_word = word
    while state.bits[word] == 0:
        word += 1
    lone = state.bits[word] & (~state.bits[word] + np.uint64(1))
    bit = _BIT_OF[np.int64((lone * _DE_BRUIJN) >> np.uint64(58))]
    return int(state.nodes[part.first_node + (word - first_word) * WORD_BITS + bit].ranked)


@kernel
def count_below_rank(state: EngineState, partition: int, node_set: int, rank: int) -> int:
    """Count the nodes of the set ``node_set`` that rank before ``rank``."""
    part = state.partitions[partition]
    if rank >= part.nodes:
        return int(state.level_nodes[part.first_level + node_set])
    n, first = 0, part.first_word + node_set * part.words
    for word in range(rank // WORD_BITS):
        n += _count_bits(state.bits[first + word])
    if rank % WORD_BITS:
        below = (np.uint64(1) << np.uint64(rank % WORD_BITS)) - np.uint64(1)
        n += _count_bits(state.bits[first + rank // WORD_BITS] & below)
    return n


@kernel
def nth_node(state: EngineState, partition: int, node_set: int, n: int) -> int:
    """Return the node of the set ``node_set`` before which ``n`` others rank."""
    part = state.partitions[partition]
    word = part.first_word + node_set * part.words
    first_word = word
    while _count_bits(state.bits[word]) <= n:
        n -= _count_bits(state.bits[word])
        word += 1
    left = state.bits[word]
    for _ in range(n):
        left &= left - np.uint64(1)
    lone = left & (~left + np.uint64(1))
    bit = _BIT_OF[np.int64((lone * _DE_BRUIJN) >> np.uint64(58))]
    return int(state.nodes[part.first_node + (word - first_word) * WORD_BITS + bit].ranked)


@kernel
def _count_bits(word: np.uint64) -> int:
    """Count the set bits of ``word``.

    Source: Warren, "Hacker's Delight", 2nd edition, 5-1.
    """
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


# Nodes that sleep and wake: on request, for a job, or by the cluster's own idle timer.
#
# Falling asleep takes the same time on every node, and so does waking. So nodes finish in the order in which they
# began, and two ring buffers suffice.
@kernel
def partition_of_node(state: EngineState, node: int) -> int:
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
def wake(state: EngineState, partition: int, node: int) -> None:
    """Begin to wake ``node``, which is asleep."""
    clock, record = state.clock[0], state.nodes[node]
    change_power(state, partition, node, WAKING)
    record.until_s = clock.now_s + clock.boot_s
    state.nodes[(clock.first_waking + clock.waking) % len(state.nodes)].waking = node
    clock.waking += 1
    count_wake(state)


@kernel
def put_to_sleep(state: EngineState, partition: int, node: int) -> None:
    """Begin to put ``node``, which is awake and idle, to sleep.

    No job can use it until it is asleep.
    """
    clock, record = state.clock[0], state.nodes[node]
    remove_idle_node(state, node)
    change_power(state, partition, node, FALLING)
    state.partitions[partition].free_gpus -= state.nodes[node].free
    record.until_s = clock.now_s + clock.shutdown_s
    state.nodes[(clock.first_falling + clock.falling) % len(state.nodes)].falling = node
    clock.falling += 1
    count_sleep(state)


@kernel
def next_change(state: EngineState) -> int:
    """Return when the next node changes its power state by itself.

    That is when it is up or asleep, or when the idle timer puts it to sleep. NEVER: none does.
    """
    clock, moment = state.clock[0], NEVER
    if clock.waking > 0:
        moment = state.nodes[state.nodes[clock.first_waking].waking].until_s
    if clock.falling > 0:
        moment = min(moment, state.nodes[state.nodes[clock.first_falling].falling].until_s)
    if clock.suspend_s != NEVER and clock.idle_first != NOBODY:
        moment = min(moment, state.nodes[clock.idle_first].idle_since_s + clock.suspend_s)
    return moment


@kernel
def finish_boots(state: EngineState, now: int) -> None:
    """Change the nodes that have booted by ``now`` to awake."""
    clock = state.clock[0]
    while clock.waking > 0 and state.nodes[state.nodes[clock.first_waking].waking].until_s <= now:
        node = state.nodes[clock.first_waking].waking
        clock.first_waking = (clock.first_waking + 1) % len(state.nodes)
        clock.waking -= 1
        partition = partition_of_node(state, node)
        change_power(state, partition, node, AWAKE)
        state.nodes[node].idle_since_s = now
        if state.nodes[node].free == state.partitions[partition].gpus_per_node:
            add_idle_node(state, node)


@kernel
def finish_falling_asleep(state: EngineState, now: int) -> int:
    """Change one node that has fallen asleep by ``now`` to asleep.

    Returns its partition; NOBODY: there was none.
    """
    clock = state.clock[0]
    if clock.falling == 0 or state.nodes[state.nodes[clock.first_falling].falling].until_s > now:
        return NOBODY
    node = state.nodes[clock.first_falling].falling
    clock.first_falling = (clock.first_falling + 1) % len(state.nodes)
    clock.falling -= 1
    partition = partition_of_node(state, node)
    change_power(state, partition, node, ASLEEP)
    state.partitions[partition].free_gpus += state.nodes[node].free
    return partition


@kernel
def apply_idle_timer(state: EngineState, now: int) -> None:
    """Put the nodes to sleep whose idle timer has expired."""
    clock = state.clock[0]
    if clock.suspend_s == NEVER:
        return
    while clock.idle_first != NOBODY and state.nodes[clock.idle_first].idle_since_s + clock.suspend_s <= now:
        put_to_sleep(state, partition_of_node(state, clock.idle_first), clock.idle_first)
