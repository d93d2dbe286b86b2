"""Clock of a replay, which goes from event to event or from decision to decision.

At each moment jobs end, then jobs arrive, then the scheduling passes that are due start jobs.

Where a step between two decisions of a service stops, jobs have ended and arrived, but the scheduling pass is left for
the next step. So a service can read and decide between the two, as a policy inside the scheduler would. Services decide
tens of thousands of times in a replay: all that happens from one decision to the next is one compiled call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, entry_point, kernel
from helios.simulate.core.nodes import (
    add_idle_node,
    count_node_seconds,
    fall,
    finish_boots,
    finish_falling_asleep,
    next_change,
    partition_of_node,
    remove_idle_node,
    time_out,
    wake,
)
from helios.simulate.core.running import end
from helios.simulate.core.scheduling import push, remove, schedule
from helios.simulate.core.state import AWAKE, FALLING, N_SETS, NEVER, NOBODY, WORD_BITS, EngineState

_Jobs = NDArray[np.int64]
BEFORE, QUIET, CHOICE = 0, 1, 2
"""Where :func:`advance_replay` stopped: before a moment, at one without a choice, at one with a choice."""
DONE, UNCHANGED, REFUSED, GONE, UNNAMED = 0, 1, 2, 3, 4
"""Results of setting the urgency of a job; UNNAMED: none was given."""
BARRED, HELD = 1, 2
"""Flags of a job that is excluded, and of one that is held, which is in no queue."""


@dataclass(frozen=True, eq=False)
class StepColumns(Table):
    """Counts that show whether a job may start.

    ``upto`` is how many arrivals and ends are in the counts. The others have one number for each partition.
    """

    upto: _Jobs
    arrived: _Jobs
    ended: _Jobs


class Stops(NamedTuple):
    """Moments at which to stop.

    Times are in s since the epoch.

    Attributes
    ----------
    until : int
        Stop at this second, whatever happens then.
    before : int
        Stop before the first moment from then on.
    again, again_every : int
        Stop also before the first moment from ``again`` on at which jobs wait. Where none does, ``again`` becomes
        that moment plus ``again_every``.
    arrivals : bool
        Stop where jobs arrive.
    asks_from : int
        Stop where something may start, from then on.
    alarm, alarm_from : int
        Check for a choice at ``alarm`` too, if no event comes before it. After each moment that is passed,
        ``alarm_from`` takes its place if a job might have started there, and else there is no alarm.
    """

    until: int = NEVER
    before: int = NEVER
    again: int = NEVER
    again_every: int = NEVER
    arrivals: bool = False
    asks_from: int = NEVER
    alarm: int = NEVER
    alarm_from: int = NEVER


@dataclass(frozen=True, eq=False)
class Orders(Table):
    """Urgency of each job, and whether it may be changed.

    Arrays have shape (n_jobs,). ``bar`` has the flags ``BARRED`` and ``HELD``.
    """

    urgency: NDArray[np.float64]
    bar: NDArray[np.uint8]


def step_columns(state: EngineState) -> StepColumns:
    """Return the counts of a replay before its first submission."""
    upto, (arrived, ended) = np.zeros(2, dtype=np.int64), np.zeros((2, len(state.partitions)), dtype=np.int64)
    return StepColumns(upto=upto, arrived=arrived, ended=ended)


@kernel
def _may_choose(state: EngineState, seen: StepColumns, now: int) -> bool:
    """Return whether the order of the queue may matter ``now``.

    That is so if a job that fits by count has waited since before ``now``, or waits beside another of its partition.
    """
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
def _waits(state: EngineState) -> bool:
    """Return whether a job is pending."""
    clock = state.clock[0]
    return bool(clock.arrived > clock.ended + clock.running)


@kernel
def _set(state: EngineState, orders: Orders, job: int, level: float) -> int:
    """Set the urgency of ``job`` if it is pending and not excluded.

    Returns the result.
    """
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
        mark_partition_due(state, state.jobs[job].partition)
    return DONE


@entry_point
def advance_replay(
    state: EngineState, seen: StepColumns, stops: Stops, now: int, between: bool
) -> tuple[int, int, int, int]:
    """Make the passes due ``now`` and advance to the next stop.

    The pass of the moment where it stops stays due.

    Parameters
    ----------
    between : bool
        Whether the last call stopped before a moment, so that no pass is due.

    Returns
    -------
    moment : int
        Where it stopped, s since the epoch, or the first moment after ``until``; NEVER: nothing is left to happen.
    where : int
        BEFORE, QUIET or CHOICE.
    alarm, again : int
        What to go on with in ``stops``.
    """
    state.clock[0].now_s = now
    alarm, again, due = stops.alarm, stops.again, not between
    while True:
        if due:
            schedule_touched(state, now)
        event = next_moment(state)
        moment = min(event, alarm)
        if moment >= again and moment < stops.before and event != NEVER and not _waits(state):
            again, due = moment + stops.again_every, False
            continue
        if moment >= min(stops.before, again) or event == NEVER or moment > stops.until:
            return (NEVER if event == NEVER else moment), BEFORE, alarm, again
        end_due(state, moment)
        arrived = admit_due(state, moment) > 0
        choice = _may_choose(state, seen, moment)
        if moment == stops.until or (arrived and stops.arrivals) or (choice and moment >= stops.asks_from):
            return moment, CHOICE if choice else QUIET, NEVER, again
        alarm, now, due = stops.alarm_from if choice else NEVER, moment, True


def order(
    state: EngineState, orders: Orders, jobs: _Jobs, wished: NDArray[np.float64], *, steps: int
) -> tuple[NDArray[np.int8], NDArray[np.float64], list[int]]:
    """Set the urgencies of jobs, one after the other.

    A pass is due where one changed.

    Parameters
    ----------
    jobs : array of shape (n,)
        Positions; -1: no job.
    wished : float64 array of shape (n,)
        From -1 to 1; NaN: none.
    steps : int
        Steps between 0 and 1 that urgencies are rounded to; 0: they are not.

    Returns
    -------
    results : int8 array of shape (n,)
        DONE, UNCHANGED, ...
    before : float64 array of shape (n,)
        Urgency before; meaningless where there is no job.
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


@entry_point
def may_choose(state: EngineState, seen: StepColumns, now: int) -> bool:
    """Return whether the order of the queue may matter ``now``."""
    return _may_choose(state, seen, now)


# Changes to a replay between two steps: the queue and the nodes.


@entry_point
def withdraw(state: EngineState, jobs: _Jobs) -> None:
    """Take ``jobs`` out of their queues.

    A pass of their partitions is due.
    """
    for place in range(len(jobs)):
        remove(state, jobs[place])
        mark_partition_due(state, state.jobs[jobs[place]].partition)


@entry_point
def admit(state: EngineState, jobs: _Jobs) -> None:
    """Put withdrawn ``jobs`` back into their queues.

    Keys and estimates are those in ``state.pending``. A pass of their partitions is due.
    """
    for place in range(len(jobs)):
        push(state, jobs[place])
        mark_partition_due(state, state.jobs[jobs[place]].partition)


@entry_point
def set_power(state: EngineState, nodes: _Jobs, power: int, now: int) -> None:
    """Put idle ``nodes`` to sleep (FALLING) or wake them (WAKING)."""
    state.clock[0].now_s = now
    for place in range(len(nodes)):
        if power == FALLING:
            fall(state, partition_of_node(state, nodes[place]), nodes[place])
        else:
            wake(state, partition_of_node(state, nodes[place]), nodes[place])


@entry_point
def keep_awake(state: EngineState, node: int, kept: bool) -> None:
    """Exclude ``node`` from the idle timer, or include it again."""
    record = state.nodes[node]
    record.kept = int(kept)
    if kept:
        remove_idle_node(state, node)
    elif record.power == AWAKE and record.free == state.partitions[partition_of_node(state, node)].gpus_per_node:
        add_idle_node(state, node)


@entry_point
def count_up(state: EngineState, now: int) -> None:
    """Count node seconds up to ``now``."""
    state.clock[0].now_s = now
    for partition in range(len(state.partitions)):
        count_node_seconds(state, partition)


def rank_nodes(state: EngineState, weight: NDArray[np.int64]) -> None:
    """Rank the nodes of each partition by weight, lowest first.

    Those of equal weight go by number.
    """
    nodes = state.nodes
    for home in state.partitions:
        first, n_nodes = int(home["first_node"]), int(home["nodes"])
        these = slice(first, first + n_nodes)
        order = np.argsort(weight[these], kind="stable")
        nodes["ranked"][these] = first + order
        nodes["rank"][first + order] = np.arange(n_nodes)
        in_order = weight[these][order]
        nodes["tier_end"][first + order] = np.searchsorted(in_order, in_order, side="right")
        _sort_nodes_into_sets(state, home)


def _sort_nodes_into_sets(state: EngineState, home: np.void) -> None:
    """Put the nodes of a partition into their sets, by their ranks."""
    first, words, levels = int(home["first_word"]), int(home["words"]), int(home["gpus_per_node"]) + 1
    nodes = state.nodes[int(home["first_node"]) : int(home["first_node"] + home["nodes"])]
    rank = nodes["rank"].astype(np.int64)
    node_set = nodes["power"].astype(np.int64) * levels + nodes["free"]
    state.bits[first : first + words * levels * N_SETS] = 0
    bit = np.uint64(1) << (rank % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(state.bits, first + node_set * words + rank // WORD_BITS, bit)


@kernel
def next_moment(state: EngineState) -> int:
    """Return the time of the next event.

    A job ends or arrives, or a node changes its power state by itself. NEVER: nothing is left to happen.
    """
    clock, moment = state.clock[0], NEVER
    if clock.running > 0:
        moment = state.jobs[state.ends[0]].ends_s
    if clock.arrived < len(state.jobs):
        moment = min(moment, state.jobs[clock.arrived].submitted_s)
    return min(moment, next_change(state)) if clock.versatile else moment


@kernel
def awaits_key(state: EngineState, now: int, scored: int) -> bool:
    """Return whether a job that has no key yet arrives ``now``."""
    arrived = state.clock[0].arrived
    return bool(scored <= arrived < len(state.jobs) and state.jobs[arrived].submitted_s == now)


@kernel
def end_due(state: EngineState, now: int) -> int:
    """Change the nodes that are due, then end jobs.

    Returns how many jobs ended.
    """
    n_ended: int = state.clock[0].ended
    state.clock[0].now_s = now
    if state.clock[0].versatile:
        _arrive(state, now)
    while state.clock[0].running > 0 and state.jobs[state.ends[0]].ends_s == now:
        mark_partition_due(state, state.jobs[state.ends[0]].partition)
        end(state, state.ends[0])
    return int(state.clock[0].ended) - n_ended


@kernel
def _arrive(state: EngineState, now: int) -> None:
    finish_boots(state, now)
    partition = finish_falling_asleep(state, now)
    while partition != NOBODY:
        mark_partition_due(state, partition)
        partition = finish_falling_asleep(state, now)


@kernel
def admit_due(state: EngineState, now: int) -> int:
    """Queue the jobs that are submitted ``now``.

    Returns how many there are.
    """
    clock = state.clock[0]
    first = clock.arrived
    while clock.arrived < len(state.jobs) and state.jobs[clock.arrived].submitted_s == now:
        mark_partition_due(state, state.jobs[clock.arrived].partition)
        push(state, clock.arrived)
        clock.arrived += 1
    return int(clock.arrived - first)


@kernel
def mark_partition_due(state: EngineState, partition: int) -> None:
    """Mark ``partition`` as due for a scheduling pass."""
    clock, home = state.clock[0], state.partitions[partition]
    if not home.touched:
        home.touched = 1
        state.partitions[clock.touched].due = partition
        clock.touched += 1


@kernel
def schedule_touched(state: EngineState, now: int) -> None:
    """Make the scheduling passes that are due ``now``.

    After them the idle timer puts nodes to sleep.
    """
    clock = state.clock[0]
    for place in range(clock.touched):
        partition = state.partitions[place].due
        state.partitions[partition].touched = 0
        if len(state.guard) > 0:
            promote_overdue(state, partition, now)
        schedule(state, partition, now)
    clock.touched = 0
    if state.clock[0].versatile:
        time_out(state, now)


# The wait bound: jobs that have waited longer go to the front, first come, first served.
#
# An order by predicted run time starves jobs that are predicted to be long. A bound that depends on nothing but waiting
# holds whatever is predicted; one by a score would fail where the score is wrong.


@kernel
def promote_overdue(state: EngineState, partition: int, now: int) -> None:
    """Promote the jobs that have waited beyond the bound.

    Jobs become overdue in the order in which they were submitted, so each is checked once.
    """
    home, bound_s = state.partitions[partition], _bound_s(state, now)
    while home.next_by_submission < home.end_by_submission:
        job = state.by_submission[home.next_by_submission]
        if now - state.jobs[job].submitted_s <= bound_s:
            return
        if state.jobs[job].started_s == NEVER:
            remove(state, job)
            state.pending[job].key = -np.inf
            push(state, job)
        home.next_by_submission += 1


@kernel
def _bound_s(state: EngineState, now: int) -> int:
    clock, guard = state.clock[0], state.guard
    while clock.bounds < len(guard) and guard[clock.bounds].at_s <= now:
        clock.bounds += 1
    return int(guard[clock.bounds - 1].bound_s) if clock.bounds > 0 else NEVER


@entry_point
def run(state: EngineState, scored: int, until_s: int, budget: int) -> bool:
    """Run the replay until job number ``scored`` is about to arrive.

    The state is changed in place.

    Parameters
    ----------
    state : EngineState
        Keys and estimates of the first ``scored`` jobs must be in ``state.pending``.
    scored : int
        Jobs whose keys are known; all those of one submit time together.
    until_s : int
        Stop also before the first moment from then on, s since the epoch.
    budget : int
        Arrivals and ends after which it returns anyway.

    Returns
    -------
    bool
        Whether such a moment, or the end of the replay, was reached. ``next_s`` of the clock is that moment; NEVER: the
        end.
    """
    while budget > 0:
        now = next_moment(state)
        if now == NEVER or now >= until_s or awaits_key(state, now, scored):
            state.clock[0].next_s = now
            return True
        budget -= end_due(state, now) + admit_due(state, now)
        schedule_touched(state, now)
    return False


@entry_point
def queue_again(
    state: EngineState, jobs: NDArray[np.int64], keys: NDArray[np.float64], estimates_s: NDArray[np.int64]
) -> None:
    """Give pending ``jobs`` new keys and estimates.

    All three have the same length. A pass of the jobs' partitions is then due.
    """
    for place in range(len(jobs)):
        job = jobs[place]
        remove(state, job)
        state.pending[job].key, state.pending[job].estimate_s = keys[place], estimates_s[place]
        push(state, job)
        mark_partition_due(state, state.jobs[job].partition)
