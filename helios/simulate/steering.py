"""Hands on a replay while it is under way: move its clock, and change what the queue goes by.

At the moment the clock is moved to, jobs end and arrive, but the scheduling pass is left for the next call: whoever
steers can look and decide between the two, as a policy asked at that very moment would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from helios.simulate import engine
from helios.simulate.engine import admit_due, end_due, next_moment, schedule_touched, touch
from helios.simulate.idle import enlist, strike
from helios.simulate.kernel import entry_point, fingerprint
from helios.simulate.power import fall, home_of, wake
from helios.simulate.queue import push, remove
from helios.simulate.state import AWAKE, FALLING, N_SETS, NEVER, WAKING, WORD_BITS, State
from helios.simulate.tally import bring_up

_Jobs = NDArray[np.int64]


def _compiled(revision: int) -> tuple[Callable[..., int], ...]:
    """Return the entries, which hold the ``revision`` of all they call."""

    @entry_point
    def carry(state: State, now: int, until: int) -> int:
        state.clock[0].now_s = now
        schedule_touched(state, now)
        moment = next_moment(state)
        while moment <= until and moment != NEVER:
            end_due(state, moment)
            admit_due(state, moment)
            if moment == until:
                return next_moment(state)
            schedule_touched(state, moment)
            moment = next_moment(state)
        return moment if revision >= 0 else NEVER  # it must name the revision: see kernel.fingerprint

    @entry_point
    def withdraw(state: State, jobs: _Jobs) -> int:
        for place in range(len(jobs)):
            remove(state, jobs[place])
            touch(state, state.jobs[jobs[place]].partition)
        return revision

    @entry_point
    def admit(state: State, jobs: _Jobs) -> int:
        for place in range(len(jobs)):
            push(state, jobs[place])
            touch(state, state.jobs[jobs[place]].partition)
        return revision

    @entry_point
    def census(state: State, waiting: _Jobs, tally: _Jobs, counts: _Jobs, now: int) -> bool:
        n_known, n_seen, n_left = tally[0], tally[1], 0
        counts[:] = 0
        for place in range(n_known + state.clock[0].arrived - n_seen):
            job = waiting[place] if place < n_known else n_seen + place - n_known
            if state.jobs[job].started_s == NEVER:
                waiting[n_left] = job
                n_left += 1
                counts[state.jobs[job].partition] += 1
        tally[0], tally[1] = n_left, state.clock[0].arrived
        for place in range(n_left):
            job = state.jobs[waiting[place]]
            if job.gpus <= state.partitions[job.partition].free_gpus and (
                counts[job.partition] > 1 or job.submitted_s < now
            ):
                return True
        return revision < 0

    @entry_point
    def steer(state: State, nodes: _Jobs, power: int, now: int) -> int:
        state.clock[0].now_s = now
        for place in range(len(nodes)):
            if power == FALLING:
                fall(state, home_of(state, nodes[place]), nodes[place])
            else:
                wake(state, home_of(state, nodes[place]), nodes[place])
        return revision

    @entry_point
    def keep(state: State, node: int, kept: int) -> int:
        its = state.nodes[node]
        its.kept = kept
        if kept:
            strike(state, node)
        elif its.power == AWAKE and its.free == state.partitions[home_of(state, node)].gpus_per_node:
            enlist(state, node)
        return revision

    @entry_point
    def count(state: State, now: int) -> int:
        state.clock[0].now_s = now
        for partition in range(len(state.partitions)):
            bring_up(state, partition)
        return revision

    return carry, withdraw, admit, census, steer, keep, count


_carry, _withdraw, _admit, _census, _steer, _keep, _count = _compiled(fingerprint(engine, *engine.PARTS))


def carry_on(state: State, *, now: int, until: int) -> None:
    """Make the passes due ``now``, and go on up to the ends and arrivals at ``until``; their pass stays due."""
    _carry(state, now, until)


def settle(state: State, *, now: int) -> int:
    """Make the passes due ``now``, and return when the next job ends or arrives: perhaps now again, or NEVER."""
    return _carry(state, now, now - 1)


def withdraw(state: State, jobs: _Jobs) -> None:
    """Take ``jobs``, which are queued, out of their queues; a pass of their partitions is due."""
    _withdraw(state, jobs)


def admit(state: State, jobs: _Jobs) -> None:
    """Put ``jobs``, which are withdrawn, into their queues by what ``state.pending`` says; a pass is due."""
    _admit(state, jobs)


def put_to_sleep(state: State, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are idle and awake, fall asleep."""
    _steer(state, nodes, FALLING, now)


def wake_up(state: State, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are asleep, get up."""
    _steer(state, nodes, WAKING, now)


def keep_awake(state: State, node: int, *, kept: bool) -> None:
    """Have the idle timer leave ``node`` alone, or no longer."""
    _keep(state, node, int(kept))


def count_up(state: State, *, now: int) -> None:
    """Count node seconds up to ``now``."""
    _count(state, now)


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


class Census:
    """Keeps the positions of the pending jobs while a replay goes on.

    Parameters
    ----------
    state : State
        A replay that nobody has submitted to yet.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting = np.empty(len(state.jobs), dtype=np.int64)
        self._tally = np.zeros(2, dtype=np.int64)  # jobs in _waiting, and jobs that had arrived when last looked
        self._counts = np.empty(len(state.partitions), dtype=np.int64)

    def waiting(self) -> _Jobs:
        """Return the pending jobs by position."""
        self.has_choice(NEVER)
        return self._waiting[: self._tally[0]].copy()

    def has_choice(self, now: int) -> bool:
        """Say whether a job that fits by count waits since before ``now``, or beside another of its partition."""
        return bool(_census(self._state, self._waiting, self._tally, self._counts, now))
