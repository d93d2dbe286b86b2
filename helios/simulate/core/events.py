"""Event loop of a replay up to a moment or a decision.

At each moment jobs end, then jobs arrive, then the scheduling passes that are due start jobs.

:func:`advance_replay` stops when jobs have ended and arrived, before the scheduling pass. So a service reads and
decides between the two, as a policy inside the scheduler would. Services decide tens of thousands of times in a replay,
so all that happens from one decision to the next is one compiled call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, entry_point, kernel
from helios.simulate.core.awake import apply_awake_rules
from helios.simulate.core.nodes import (
    add_idle_node,
    apply_idle_timer,
    count_node_seconds,
    finish_boots,
    finish_falling_asleep,
    next_change,
    partition_of_node,
    put_to_sleep,
    remove_idle_node,
    wake,
)
from helios.simulate.core.running import end_job
from helios.simulate.core.scheduling import push, remove, schedule
from helios.simulate.core.state import AWAKE, FALLING, N_SETS, NEVER, NOBODY, WORD_BITS, EngineState

_Jobs = NDArray[np.int64]
BEFORE, QUIET, CHOICE = 0, 1, 2
"""Where :func:`advance_replay` stopped: before a moment, at one without a choice, at one with a choice."""
DONE, UNCHANGED, REFUSED, GONE, UNNAMED = 0, 1, 2, 3, 4
"""Results of setting the urgency of a job; UNNAMED: no urgency was given."""
EXCLUDED, HELD = 1, 2
"""Flags of a job: excluded from control; held, so that it is in no queue."""


@dataclass(frozen=True, eq=False)
class StepCounts(Table):
    """Jobs that have arrived and ended in each partition.

    ``counted`` is how many arrivals and how many ends are in the counts.
    """

    counted: _Jobs
    arrived: _Jobs
    ended: _Jobs


class Stops(NamedTuple):
    """Moments at which ``advance_replay`` stops, s since the epoch.

    Attributes
    ----------
    until_s : int
        Stop at this second, whatever happens then.
    before_s : int
        Stop before the first moment from then on.
    again_s, again_every_s : int
        Stop also before the first moment from ``again_s`` on at which jobs wait. Where none waits, ``again_s`` becomes
        that moment plus ``again_every_s``.
    arrivals : bool
        Stop where jobs arrive.
    choices_from_s : int
        From then on, stop where the order of the queue may matter.
    alarm_s, alarm_from_s : int
        Check for a choice at ``alarm_s`` too, if no event comes before it. At each moment that is passed without a
        stop, ``alarm_s`` becomes ``alarm_from_s`` if there was a choice, and NEVER if there was none.
    """

    until_s: int = NEVER
    before_s: int = NEVER
    again_s: int = NEVER
    again_every_s: int = NEVER
    arrivals: bool = False
    choices_from_s: int = NEVER
    alarm_s: int = NEVER
    alarm_from_s: int = NEVER


@dataclass(frozen=True, eq=False)
class Urgencies(Table):
    """Urgency of each job, and its flags ``EXCLUDED`` and ``HELD``."""

    urgency: NDArray[np.float64]
    flags: NDArray[np.uint8]


@entry_point
def run(state: EngineState, scored: int, until_s: int, budget: int) -> bool:
    """Run the replay until job number ``scored`` is about to arrive.

    Parameters
    ----------
    state : EngineState
        Changed in place. Keys and estimates of the first ``scored`` jobs must be in ``state.pending``.
    scored : int
        Jobs whose keys are known. The jobs of one submit time get their keys together.
    until_s : int
        Stop also before the first moment from then on, s since the epoch.
    budget : int
        Arrivals and ends after which it returns anyway.

    Returns
    -------
    bool
        Whether such a moment, or the end of the replay, was reached. ``next_s`` of the clock is that moment; NEVER at
        the end.
    """
    while budget > 0:
        now = next_moment(state)
        if now == NEVER or now >= until_s or awaits_key(state, now, scored):
            state.clock[0].next_s = now
            return True
        budget -= end_due(state, now) + admit_due(state, now)
        run_due_passes(state, now)
    return False


@entry_point
def advance_replay(
    state: EngineState, counts: StepCounts, stops: Stops, now: int, between: bool
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
        Where it stopped, s since the epoch, or the first moment after ``until_s``; NEVER: nothing is left to happen.
    where : int
        BEFORE, QUIET or CHOICE.
    alarm_s, again_s : int
        Their values in the ``stops`` of the next call.
    """
    state.clock[0].now_s = now
    alarm_s, again_s, pass_due = stops.alarm_s, stops.again_s, not between
    while True:
        if pass_due:
            run_due_passes(state, now)
        event = next_moment(state)
        moment = min(event, alarm_s)
        if moment >= again_s and moment < stops.before_s and event != NEVER and not _has_pending(state):
            again_s, pass_due = moment + stops.again_every_s, False
            continue
        if moment >= min(stops.before_s, again_s) or event == NEVER or moment > stops.until_s:
            return (NEVER if event == NEVER else moment), BEFORE, alarm_s, again_s
        end_due(state, moment)
        arrived = admit_due(state, moment) > 0
        choice = _has_choice(state, counts, moment)
        if moment == stops.until_s or (arrived and stops.arrivals) or (choice and moment >= stops.choices_from_s):
            return moment, CHOICE if choice else QUIET, NEVER, again_s
        alarm_s, now, pass_due = stops.alarm_from_s if choice else NEVER, moment, True


@entry_point
def has_choice(state: EngineState, counts: StepCounts, now: int) -> bool:
    """Return whether the order of the queue may matter ``now``."""
    return _has_choice(state, counts, now)


@kernel
def _has_choice(state: EngineState, counts: StepCounts, now: int) -> bool:
    """Return whether the order of the queue may matter ``now``.

    It may if a job whose GPUs are free has waited since before ``now``, or waits beside another of its partition.
    """
    clock, queues = state.clock[0], state.queues
    for job in range(counts.counted[0], clock.arrived):
        counts.arrived[state.jobs[job].partition] += 1
    for i in range(counts.counted[1], clock.ended):
        counts.ended[state.jobs[state.ended[i]].partition] += 1
    counts.counted[0], counts.counted[1] = clock.arrived, clock.ended
    for partition in range(len(state.partitions)):
        part = state.partitions[partition]
        waiting = counts.arrived[partition] - counts.ended[partition] - part.running - part.overdue
        if waiting == 0 or part.free_gpus == 0:
            continue
        for queue in range(part.first_queue, part.end_queue):
            head = queues[queue].head
            if queues[queue].gpus > part.free_gpus:
                break
            if head >= 0 and (waiting > 1 or state.jobs[head].submitted_s < now):
                return True
    return False


@kernel
def _has_pending(state: EngineState) -> bool:
    """Return whether a job is pending."""
    clock = state.clock[0]
    return bool(clock.arrived > clock.ended + clock.running)


@kernel
def next_moment(state: EngineState) -> int:
    """Return the time of the next event.

    A job ends or arrives, a node changes its power state by itself, or the rules for nodes awake are checked. NEVER:
    nothing is left to happen, whatever a check would find.
    """
    clock, moment = state.clock[0], NEVER
    if clock.running > 0:
        moment = state.jobs[state.ends[0]].ends_s
    if clock.arrived < len(state.jobs):
        moment = min(moment, state.jobs[clock.arrived].submitted_s)
    if clock.tracks_nodes:
        moment = min(moment, next_change(state))
    return NEVER if moment == NEVER else min(moment, clock.check_s)


@kernel
def awaits_key(state: EngineState, now: int, scored: int) -> bool:
    """Return whether a job that has no key yet arrives ``now``."""
    arrived = state.clock[0].arrived
    return bool(scored <= arrived < len(state.jobs) and state.jobs[arrived].submitted_s == now)


@kernel
def end_due(state: EngineState, now: int) -> int:
    """End the jobs that end ``now``, after nodes have changed their power state.

    Returns how many jobs ended.
    """
    n_ended: int = state.clock[0].ended
    state.clock[0].now_s = now
    if state.clock[0].tracks_nodes:
        _change_due_nodes(state, now)
    while state.clock[0].running > 0 and state.jobs[state.ends[0]].ends_s == now:
        mark_partition_due(state, state.jobs[state.ends[0]].partition)
        end_job(state, state.ends[0])
    return int(state.clock[0].ended) - n_ended


@kernel
def _change_due_nodes(state: EngineState, now: int) -> None:
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
    clock, part = state.clock[0], state.partitions[partition]
    if not part.pass_due:
        part.pass_due = 1
        state.partitions[clock.n_passes_due].due_list = partition
        clock.n_passes_due += 1


@kernel
def run_due_passes(state: EngineState, now: int) -> None:
    """Make the passes due ``now``, then let nodes sleep and wake."""
    clock = state.clock[0]
    for i in range(clock.n_passes_due):
        partition = state.partitions[i].due_list
        state.partitions[partition].pass_due = 0
        if len(state.guard) > 0:
            promote_waiting(state, partition, now)
        schedule(state, partition, now)
    clock.n_passes_due = 0
    if state.clock[0].tracks_nodes:
        apply_idle_timer(state, now)
        if state.clock[0].check_s <= now:
            apply_awake_rules(state, now)


@kernel
def promote_waiting(state: EngineState, partition: int, now: int) -> None:
    """Move jobs that waited beyond the wait bound to the front.

    Jobs reach the bound in the order of submission, so each is checked once.

    An order by predicted run time starves jobs that are predicted to be long. A bound on waiting alone holds even
    where the predictions are wrong.
    """
    part, bound_s = state.partitions[partition], _bound_s(state, now)
    while part.next_by_submission < part.end_by_submission:
        job = state.by_submission[part.next_by_submission]
        if now - state.jobs[job].submitted_s <= bound_s:
            return
        if state.jobs[job].started_s == NEVER:
            remove(state, job)
            state.pending[job].key = -np.inf
            push(state, job)
        part.next_by_submission += 1


@kernel
def _bound_s(state: EngineState, now: int) -> int:
    clock, guard = state.clock[0], state.guard
    while clock.bounds < len(guard) and guard[clock.bounds].at_s <= now:
        clock.bounds += 1
    return int(guard[clock.bounds - 1].bound_s) if clock.bounds > 0 else NEVER


def new_step_counts(state: EngineState) -> StepCounts:
    """Return the counts of a replay before its first submission."""
    arrived, ended = np.zeros((2, len(state.partitions)), dtype=np.int64)
    return StepCounts(counted=np.zeros(2, dtype=np.int64), arrived=arrived, ended=ended)


def set_urgencies(
    state: EngineState, urgencies: Urgencies, jobs: _Jobs, wanted: NDArray[np.float64], *, steps: int
) -> list[int]:
    """Set the urgencies of jobs, one after the other.

    A pass is due in the partitions where one changed.

    Parameters
    ----------
    jobs : array of shape (n,)
        Positions; -1: no job.
    wanted : float64 array of shape (n,)
        From -1 to 1; NaN: none.
    steps : int
        Steps between 0 and 1 that urgencies are rounded to; 0: they are not rounded.

    Returns
    -------
    list of int
        How many were DONE, UNCHANGED, ...
    """
    counts = np.zeros(5, dtype=np.int64)
    _set_urgencies(state, urgencies, jobs, wanted, steps, counts)
    return counts.tolist()


@entry_point
def _set_urgencies(  # noqa: PLR0917 - numba kernels are called by position
    state: EngineState, urgencies: Urgencies, jobs: _Jobs, wanted: NDArray[np.float64], steps: int, counts: _Jobs
) -> None:
    for i in range(len(jobs)):
        urgency = wanted[i]
        if steps > 0:
            urgency = np.rint(urgency * steps) / steps
        counts[UNNAMED if np.isnan(urgency) else _set_urgency(state, urgencies, jobs[i], urgency)] += 1


@kernel
def _set_urgency(state: EngineState, urgencies: Urgencies, job: int, urgency: float) -> int:
    """Set the urgency of ``job`` if it is pending and not excluded.

    Returns DONE, UNCHANGED, REFUSED or GONE.
    """
    if job < 0 or job >= state.clock[0].arrived or state.jobs[job].started_s != NEVER:
        return GONE
    if urgencies.urgency[job] == urgency:
        return UNCHANGED
    if urgencies.flags[job] & EXCLUDED:
        return REFUSED
    urgencies.urgency[job] = urgency
    if not urgencies.flags[job] & HELD:
        remove(state, job)
        state.pending[job].key = -urgency
        push(state, job)
        mark_partition_due(state, state.jobs[job].partition)
    return DONE


@entry_point
def withdraw(state: EngineState, jobs: _Jobs) -> None:
    """Take ``jobs`` out of their queues.

    A pass of their partitions is then due.
    """
    for i in range(len(jobs)):
        remove(state, jobs[i])
        mark_partition_due(state, state.jobs[jobs[i]].partition)


@entry_point
def admit(state: EngineState, jobs: _Jobs) -> None:
    """Put withdrawn ``jobs`` back into their queues.

    Keys and estimates are those in ``state.pending``. A pass of their partitions is then due.
    """
    for i in range(len(jobs)):
        push(state, jobs[i])
        mark_partition_due(state, state.jobs[jobs[i]].partition)


@entry_point
def queue_again(
    state: EngineState, jobs: NDArray[np.int64], keys: NDArray[np.float64], estimates_s: NDArray[np.int64]
) -> None:
    """Give pending ``jobs`` new keys and estimates.

    A pass of their partitions is then due.
    """
    for i in range(len(jobs)):
        job = jobs[i]
        remove(state, job)
        state.pending[job].key, state.pending[job].estimate_s = keys[i], estimates_s[i]
        push(state, job)
        mark_partition_due(state, state.jobs[job].partition)


@entry_point
def set_power(state: EngineState, nodes: _Jobs, power: int, now: int) -> None:
    """Put idle ``nodes`` to sleep (FALLING) or wake them (WAKING)."""
    state.clock[0].now_s = now
    for i in range(len(nodes)):
        if power == FALLING:
            put_to_sleep(state, partition_of_node(state, nodes[i]), nodes[i])
        else:
            wake(state, partition_of_node(state, nodes[i]), nodes[i])


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
    """Rank the nodes of each partition by weight, lowest first, then by number."""
    nodes = state.nodes
    for part in state.partitions:
        first, n_nodes = int(part["first_node"]), int(part["nodes"])
        rows = slice(first, first + n_nodes)
        by_weight = np.argsort(weight[rows], kind="stable")
        nodes["ranked"][rows] = first + by_weight
        nodes["rank"][first + by_weight] = np.arange(n_nodes)
        ascending = weight[rows][by_weight]
        nodes["tier_end"][first + by_weight] = np.searchsorted(ascending, ascending, side="right")
        _sort_nodes_into_sets(state, part)


def _sort_nodes_into_sets(state: EngineState, part: np.void) -> None:
    """Rebuild the sets of a partition's nodes after a change of ranks."""
    first, words, levels = int(part["first_word"]), int(part["words"]), int(part["gpus_per_node"]) + 1
    nodes = state.nodes[int(part["first_node"]) : int(part["first_node"] + part["nodes"])]
    rank = nodes["rank"].astype(np.int64)
    node_set = nodes["power"].astype(np.int64) * levels + nodes["free"]
    state.bits[first : first + words * levels * N_SETS] = 0
    bit = np.uint64(1) << (rank % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(state.bits, first + node_set * words + rank // WORD_BITS, bit)
