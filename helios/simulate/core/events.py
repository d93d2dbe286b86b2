"""Clock of a replay, which goes from event to event.

At each moment jobs end, then jobs arrive, then the scheduling passes that are due start jobs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel
from helios.simulate.core.nodes import finish_boots, finish_falling_asleep, next_change, time_out
from helios.simulate.core.queue import push, remove
from helios.simulate.core.running import end
from helios.simulate.core.scheduling import schedule
from helios.simulate.core.state import NEVER, NOBODY, EngineState


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
