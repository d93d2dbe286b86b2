"""Hands on a replay while it is under way: change what the queue goes by, and what nodes do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.simulate.engine import touch
from helios.simulate.idle import enlist, strike
from helios.simulate.kernel import entry_point
from helios.simulate.power import fall, home_of, wake
from helios.simulate.queue import push, remove
from helios.simulate.state import AWAKE, FALLING, N_SETS, WAKING, WORD_BITS, State
from helios.simulate.tally import bring_up

_Jobs = NDArray[np.int64]


@entry_point
def withdraw(state: State, jobs: _Jobs) -> None:
    """Take ``jobs``, which are queued, out of their queues; a pass of their partitions is due."""
    for place in range(len(jobs)):
        remove(state, jobs[place])
        touch(state, state.jobs[jobs[place]].partition)


@entry_point
def admit(state: State, jobs: _Jobs) -> None:
    """Put ``jobs``, which are withdrawn, into their queues by what ``state.pending`` says; a pass is due."""
    for place in range(len(jobs)):
        push(state, jobs[place])
        touch(state, state.jobs[jobs[place]].partition)


def put_to_sleep(state: State, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are idle and awake, fall asleep."""
    _steer(state, nodes, FALLING, now)


def wake_up(state: State, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are asleep, get up."""
    _steer(state, nodes, WAKING, now)


@entry_point
def _steer(state: State, nodes: _Jobs, power: int, now: int) -> None:
    state.clock[0].now_s = now
    for place in range(len(nodes)):
        if power == FALLING:
            fall(state, home_of(state, nodes[place]), nodes[place])
        else:
            wake(state, home_of(state, nodes[place]), nodes[place])


def keep_awake(state: State, node: int, *, kept: bool) -> None:
    """Have the idle timer leave ``node`` alone, or no longer."""
    _keep(state, node, int(kept))


@entry_point
def _keep(state: State, node: int, kept: int) -> None:
    its = state.nodes[node]
    its.kept = kept
    if kept:
        strike(state, node)
    elif its.power == AWAKE and its.free == state.partitions[home_of(state, node)].gpus_per_node:
        enlist(state, node)


def count_up(state: State, *, now: int) -> None:
    """Count node seconds up to ``now``."""
    _count(state, now)


@entry_point
def _count(state: State, now: int) -> None:
    state.clock[0].now_s = now
    for partition in range(len(state.partitions)):
        bring_up(state, partition)


def rank_nodes(state: State, weight: NDArray[np.int64]) -> None:
    """Have nodes of lower weight filled first; those of equal weight stay as they are numbered."""
    nodes = state.nodes
    for home in state.partitions:
        first, n_nodes = int(home["first_node"]), int(home["nodes"])
        these = slice(first, first + n_nodes)
        order = np.argsort(weight[these], kind="stable")
        nodes["ranked"][these] = first + order
        nodes["rank"][first + order] = np.arange(n_nodes)
        in_order = weight[these][order]
        nodes["tier_end"][first + order] = np.searchsorted(in_order, in_order, side="right")
        _shelve(state, home)


def _shelve(state: State, home: np.void) -> None:
    """Put the nodes of a partition into their sets, by their ranks."""
    first, words, levels = int(home["first_word"]), int(home["words"]), int(home["gpus_per_node"]) + 1
    nodes = state.nodes[int(home["first_node"]) : int(home["first_node"] + home["nodes"])]
    rank = nodes["rank"].astype(np.int64)
    shelf = nodes["power"].astype(np.int64) * levels + nodes["free"]
    state.bits[first : first + words * levels * N_SETS] = 0
    bit = np.uint64(1) << (rank % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(state.bits, first + shelf * words + rank // WORD_BITS, bit)
