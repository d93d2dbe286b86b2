"""A replay that goes on by itself until somebody is to be asked, and the orders that are given then.

At the moment where it stops, jobs have ended and arrived, but the scheduling pass is left for the next call: whoever is
asked can look and decide between the two, as a policy asked at that very moment would.
Services are asked tens of thousands of times in a replay: all that happens from one question to the next is one call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel
from helios.simulate.core.events import admit_due, end_due, next_moment, schedule_touched, touch
from helios.simulate.core.nodes import bring_up, enlist, fall, home_of, strike, wake
from helios.simulate.core.queue import push, remove
from helios.simulate.core.state import AWAKE, FALLING, N_SETS, NEVER, WAKING, WORD_BITS, EngineState

_Jobs = NDArray[np.int64]
BEFORE, QUIET, CHOICE = 0, 1, 2
"""Where :func:`advance_replay` stopped: before a moment, at one with nothing to decide, at one with a choice."""
DONE, UNCHANGED, REFUSED, GONE, UNNAMED = 0, 1, 2, 3, 4
"""What became of an urgency that was wished for a job."""
BARRED, HELD = 1, 2
"""A job that is to be left alone; one that is in no queue besides."""


class StepColumns(NamedTuple):
    """What is counted along with a replay, to know without a walk through the queue whether anything may start.

    ``upto`` is how many arrivals and ends are in the counts; the others are one number for each partition.
    """

    upto: _Jobs
    arrived: _Jobs
    ended: _Jobs


class Stops(NamedTuple):
    """Where to stop; times in s since the epoch.

    Attributes
    ----------
    until : int
        Stop at this second, whatever happens then.
    before : int
        Stop before the first moment from then on.
    arrivals : bool
        Stop where jobs arrive.
    asks_from : int
        Stop where something may start, from then on.
    alarm, alarm_from : int
        Moments are those at which jobs end or arrive, and one more: ``alarm``; after each moment that is passed at
        which something might have started ``alarm_from``, after each other one none.
    """

    until: int = NEVER
    before: int = NEVER
    arrivals: bool = False
    asks_from: int = NEVER
    alarm: int = NEVER
    alarm_from: int = NEVER


class Orders(NamedTuple):
    """What was set on each job: its urgency, and whether it is ``BARRED`` or ``HELD``; arrays of shape (n_jobs,)."""

    urgency: NDArray[np.float64]
    bar: NDArray[np.uint8]


@kernel
def _may_choose(state: EngineState, seen: StepColumns, now: int) -> bool:
    """Say whether a job that fits by count waits since before ``now``, or beside another of its partition."""
    clock, queues = state.clock[0], state.queues
    for job in range(seen.upto[0], clock.arrived):
        seen.arrived[state.jobs[job].partition] += 1
    for place in range(seen.upto[1], clock.ended):
        seen.ended[state.jobs[state.ended[place]].partition] += 1
    seen.upto[0], seen.upto[1] = clock.arrived, clock.ended
    for partition in range(len(state.partitions)):
        home = state.partitions[partition]
        waiting = seen.arrived[partition] - seen.ended[partition] - home.running - home.overdue
        if waiting == 0 or home.free_gpus == 0:
            continue
        for queue in range(home.first_queue, home.end_queue):
            head = queues[queue].head
            if queues[queue].gpus > home.free_gpus:
                break
            if head >= 0 and (waiting > 1 or state.jobs[head].submitted_s < now):
                return True
    return False


@kernel
def _set(state: EngineState, orders: Orders, job: int, level: float) -> int:
    """Give ``job`` this urgency, if it is pending and may be touched; say what became of that."""
    if job < 0 or job >= state.clock[0].arrived or state.jobs[job].started_s != NEVER:
        return GONE
    if orders.urgency[job] == level:
        return UNCHANGED
    if orders.bar[job] & BARRED:
        return REFUSED
    orders.urgency[job] = level
    if not orders.bar[job] & HELD:
        remove(state, job)
        state.pending[job].key = -level
        push(state, job)
        touch(state, state.jobs[job].partition)
    return DONE


def advance_replay(
    state: EngineState, seen: StepColumns, stops: Stops, *, now: int, between: bool = False
) -> tuple[int, int]:
    """Make the passes due ``now``, and go on to the first moment at which to stop; its own pass stays due.

    Parameters
    ----------
    between : bool
        Whether it stopped before a moment, so that no pass is due.

    Returns
    -------
    moment : int
        Where it stopped, s since the epoch, or the first moment after ``until``; NEVER: nothing is left to happen.
    where : int
        BEFORE, QUIET or CHOICE.
    """
    return _go_on(state, seen, stops, now, between)


@entry_point
def _go_on(state: EngineState, seen: StepColumns, stops: Stops, now: int, between: bool) -> tuple[int, int]:
    state.clock[0].now_s = now
    alarm, due = stops.alarm, not between
    while True:
        if due:
            schedule_touched(state, now)
        event = next_moment(state)
        moment = min(event, alarm)
        if moment >= stops.before or event == NEVER or moment > stops.until:
            return (NEVER if event == NEVER else moment), BEFORE
        end_due(state, moment)
        arrived = admit_due(state, moment) > 0
        choice = _may_choose(state, seen, moment)
        if moment == stops.until or (arrived and stops.arrivals) or (choice and moment >= stops.asks_from):
            return moment, CHOICE if choice else QUIET
        alarm, now, due = stops.alarm_from if choice else NEVER, moment, True


def order(
    state: EngineState, orders: Orders, jobs: _Jobs, wished: NDArray[np.float64], *, steps: int
) -> tuple[NDArray[np.int8], NDArray[np.float64], list[int]]:
    """Write urgencies, one job after the other; a pass is due where one changed.

    Parameters
    ----------
    jobs : array of shape (n,)
        Positions; -1: no job.
    wished : float64 array of shape (n,)
        From -1 to 1; NaN: none.
    steps : int
        Of the grid between 0 and 1 that urgencies are rounded to; 0: they are not.

    Returns
    -------
    results : int8 array of shape (n,)
        DONE, UNCHANGED, ...
    before : float64 array of shape (n,)
        What stood; meaningless where there is no job.
    counts : list of int
        How many were DONE, UNCHANGED, ...
    """
    results, before, counts = np.empty(len(jobs), dtype=np.int8), np.empty(len(jobs)), np.empty(5, dtype=np.int64)
    _order(state, orders, jobs, wished, steps, results, before, counts)
    return results, before, counts.tolist()


@entry_point
def _order(  # noqa: PLR0917 - numba kernels are called by position
    state: EngineState,
    orders: Orders,
    jobs: _Jobs,
    wished: NDArray[np.float64],
    steps: int,
    results: NDArray[np.int8],
    before: NDArray[np.float64],
    counts: _Jobs,
) -> None:
    counts[:] = 0
    for place in range(len(jobs)):
        job, level = jobs[place], wished[place]
        if steps > 0:
            level = np.rint(level * steps) / steps
        if 0 <= job < len(state.jobs):
            before[place] = orders.urgency[job]
        results[place] = UNNAMED if np.isnan(level) else _set(state, orders, job, level)
        counts[results[place]] += 1


class PendingIndex:
    """Keeps the positions of the pending jobs while a replay goes on, and knows whether one of them may start.

    Parameters
    ----------
    state : State
        A replay that nobody has submitted to yet.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._waiting = np.empty(len(state.jobs), dtype=np.int64)
        self._tally = np.zeros(2, dtype=np.int64)  # jobs in _waiting, and jobs that had arrived when last looked
        n_partitions = len(state.partitions)
        self.seen = StepColumns(
            upto=np.zeros(2, dtype=np.int64),
            arrived=np.zeros(n_partitions, dtype=np.int64),
            ended=np.zeros(n_partitions, dtype=np.int64),
        )

    def waiting(self) -> _Jobs:
        """Return the pending jobs by position."""
        n_waiting = _wait(self._state, self._waiting, self._tally)
        return self._waiting[:n_waiting].copy()

    def has_choice(self, now: int) -> bool:
        """Say whether a job that fits by count waits since before ``now``, or beside another of its partition."""
        return _choose(self._state, self.seen, now)


@entry_point
def _wait(state: EngineState, waiting: _Jobs, tally: _Jobs) -> int:
    n_known, n_seen, n_left = tally[0], tally[1], 0
    for place in range(n_known + state.clock[0].arrived - n_seen):
        job = waiting[place] if place < n_known else n_seen + place - n_known
        if state.jobs[job].started_s == NEVER:
            waiting[n_left] = job
            n_left += 1
    tally[0], tally[1] = n_left, state.clock[0].arrived
    return n_left


@entry_point
def _choose(state: EngineState, seen: StepColumns, now: int) -> bool:
    return _may_choose(state, seen, now)


# Hands on a replay while it is under way: change what the queue goes by, and what nodes do.


@entry_point
def withdraw(state: EngineState, jobs: _Jobs) -> None:
    """Take ``jobs``, which are queued, out of their queues; a pass of their partitions is due."""
    for place in range(len(jobs)):
        remove(state, jobs[place])
        touch(state, state.jobs[jobs[place]].partition)


@entry_point
def admit(state: EngineState, jobs: _Jobs) -> None:
    """Put ``jobs``, which are withdrawn, into their queues by what ``state.pending`` says; a pass is due."""
    for place in range(len(jobs)):
        push(state, jobs[place])
        touch(state, state.jobs[jobs[place]].partition)


def put_to_sleep(state: EngineState, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are idle and awake, fall asleep."""
    _steer(state, nodes, FALLING, now)


def wake_up(state: EngineState, nodes: _Jobs, *, now: int) -> None:
    """Let ``nodes``, which are asleep, get up."""
    _steer(state, nodes, WAKING, now)


@entry_point
def _steer(state: EngineState, nodes: _Jobs, power: int, now: int) -> None:
    state.clock[0].now_s = now
    for place in range(len(nodes)):
        if power == FALLING:
            fall(state, home_of(state, nodes[place]), nodes[place])
        else:
            wake(state, home_of(state, nodes[place]), nodes[place])


def keep_awake(state: EngineState, node: int, *, kept: bool) -> None:
    """Have the idle timer leave ``node`` alone, or no longer."""
    _keep(state, node, int(kept))


@entry_point
def _keep(state: EngineState, node: int, kept: int) -> None:
    its = state.nodes[node]
    its.kept = kept
    if kept:
        strike(state, node)
    elif its.power == AWAKE and its.free == state.partitions[home_of(state, node)].gpus_per_node:
        enlist(state, node)


def count_up(state: EngineState, *, now: int) -> None:
    """Count node seconds up to ``now``."""
    _count(state, now)


@entry_point
def _count(state: EngineState, now: int) -> None:
    state.clock[0].now_s = now
    for partition in range(len(state.partitions)):
        bring_up(state, partition)


def rank_nodes(state: EngineState, weight: NDArray[np.int64]) -> None:
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


def _shelve(state: EngineState, home: np.void) -> None:
    """Put the nodes of a partition into their sets, by their ranks."""
    first, words, levels = int(home["first_word"]), int(home["words"]), int(home["gpus_per_node"]) + 1
    nodes = state.nodes[int(home["first_node"]) : int(home["first_node"] + home["nodes"])]
    rank = nodes["rank"].astype(np.int64)
    shelf = nodes["power"].astype(np.int64) * levels + nodes["free"]
    state.bits[first : first + words * levels * N_SETS] = 0
    bit = np.uint64(1) << (rank % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(state.bits, first + shelf * words + rank // WORD_BITS, bit)
