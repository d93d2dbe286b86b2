"""Which nodes a job gets: consolidated, on the fullest node that still fits, whole nodes first for large jobs.

For every partition and every number of free GPUs (level) the set of such nodes is kept as bits, so that the best
fit is the lowest bit of the lowest level that suffices.
"""

from __future__ import annotations

import numpy as np

from helios.simulate.kernel import kernel
from helios.simulate.state import NOBODY, WORD_BITS, State

# A de Bruijn sequence tells the position of a lone bit by one multiplication (Leiserson, Prokop, Randall,
# "Using de Bruijn sequences to index a 1 in a computer word", 1998); numba has no count of trailing zeros.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(WORD_BITS, dtype=np.int64)
for _bit in range(WORD_BITS):
    _BIT_OF[((int(_DE_BRUIJN) << _bit) & (2**64 - 1)) >> 58] = _bit


@kernel
def room(state: State, partition: int) -> int:
    """Return the size of the largest job that can be placed now; every smaller one can be, too.

    With c wholly free nodes of G GPUs and m free on the best other node, that is c G + m: a job of k G + r
    GPUs (r < G) needs k free nodes and r on another.
    """
    home = state.partitions[partition]
    level, first, full = home.gpus_per_node - 1, home.first_level, home.gpus_per_node
    while level > 0 and state.level_nodes[first + level] == 0:
        level -= 1
    return int(state.level_nodes[first + full] * full + level)


@kernel
def place(state: State, job: int) -> None:
    """Give ``job``, which must fit, its nodes: the first wholly free ones, then the best fit for the rest."""
    jobs, home = state.jobs, state.partitions[state.jobs[job].partition]
    full, partition = home.gpus_per_node, jobs[job].partition
    for _ in range(jobs[job].gpus // full):
        _take(state, job, _first_node(state, partition, full), full)
    rest = jobs[job].gpus % full
    if rest > 0:
        level = rest
        while state.level_nodes[home.first_level + level] == 0:
            level += 1
        _take(state, job, _first_node(state, partition, level), rest)


@kernel
def lift(state: State, job: int, sign: int) -> None:
    """Free the GPUs that ``job`` holds (``sign`` 1), or take the same ones again (-1)."""
    share = state.jobs[job].first_share
    while share >= 0:
        _shift(state, state.jobs[job].partition, state.shares[share].node, sign * state.shares[share].gpus)
        share = state.shares[share].next


@kernel
def forget(state: State, job: int) -> None:
    """Drop the list of what ``job`` held, once its GPUs are free."""
    clock, shares, share = state.clock[0], state.shares, state.jobs[job].first_share
    while share >= 0:
        following = shares[share].next
        shares[share].next = clock.free_share
        clock.free_share, share = share, following
    state.jobs[job].first_share = NOBODY


@kernel
def _take(state: State, job: int, node: int, gpus: int) -> None:
    clock = state.clock[0]
    share = clock.free_share
    clock.free_share = state.shares[share].next
    state.shares[share].node, state.shares[share].gpus = node, gpus
    state.shares[share].next = state.jobs[job].first_share
    state.jobs[job].first_share = share
    _shift(state, state.jobs[job].partition, node, -gpus)


@kernel
def _shift(state: State, partition: int, node: int, gpus: int) -> None:
    """Change the free GPUs of ``node`` by ``gpus``."""
    home = state.partitions[partition]
    place = node - home.first_node
    bit = np.uint64(1) << np.uint64(place % WORD_BITS)
    before = state.free[node]
    after = before + gpus
    state.bits[home.first_word + before * home.words + place // WORD_BITS] ^= bit
    state.bits[home.first_word + after * home.words + place // WORD_BITS] ^= bit
    state.level_nodes[home.first_level + before] -= 1
    state.level_nodes[home.first_level + after] += 1
    state.free[node] = after
    home.free_gpus += gpus


@kernel
def _first_node(state: State, partition: int, level: int) -> int:
    """Return the first node with ``level`` free GPUs; there must be one."""
    home = state.partitions[partition]
    word = home.first_word + level * home.words
    start = word
    while state.bits[word] == 0:
        word += 1
    lone = state.bits[word] & (~state.bits[word] + np.uint64(1))
    bit = _BIT_OF[np.int64((lone * _DE_BRUIJN) >> np.uint64(58))]
    node: int = home.first_node + (word - start) * WORD_BITS + bit
    return node
