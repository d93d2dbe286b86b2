"""The clock of a replay: what ends, what arrives, who starts, moment by moment."""

from __future__ import annotations

from collections.abc import Callable

from helios.simulate import idle, passes, placement, power, queue, running, sets, tally
from helios.simulate import state as state_tables
from helios.simulate.kernel import entry_point, fingerprint, kernel
from helios.simulate.passes import schedule
from helios.simulate.power import fell, get_up, next_change, time_out
from helios.simulate.queue import push
from helios.simulate.running import end
from helios.simulate.state import NEVER, NOBODY, State

PARTS = (passes, placement, power, sets, idle, tally, queue, running, state_tables)
"""Where the kernels are that the core calls."""


@kernel
def next_moment(state: State) -> int:
    """Return when the next job ends or arrives, or a node changes by itself, or NEVER."""
    clock, moment = state.clock[0], NEVER
    if clock.running > 0:
        moment = state.jobs[state.ends[0]].ends_s
    if clock.arrived < len(state.jobs):
        moment = min(moment, state.jobs[clock.arrived].submitted_s)
    return moment if len(state.versatile) == 0 else min(moment, next_change(state))


@kernel
def _awaits(state: State, now: int, scored: int) -> bool:
    """Say whether a job that nobody has scored yet arrives ``now``."""
    arrived = state.clock[0].arrived
    return bool(scored <= arrived < len(state.jobs) and state.jobs[arrived].submitted_s == now)


@kernel
def end_due(state: State, now: int) -> int:
    """Let all end that end ``now``, and nodes be up or asleep that are so by now; return how many jobs ended."""
    n_ended: int = state.clock[0].ended
    state.clock[0].now_s = now
    if len(state.versatile) > 0:
        _arrive(state, now)
    while state.clock[0].running > 0 and state.jobs[state.ends[0]].ends_s == now:
        touch(state, state.jobs[state.ends[0]].partition)
        end(state, state.ends[0])
    return int(state.clock[0].ended) - n_ended


@kernel
def _arrive(state: State, now: int) -> None:
    get_up(state, now)
    partition = fell(state, now)
    while partition != NOBODY:
        touch(state, partition)
        partition = fell(state, now)


@kernel
def admit_due(state: State, now: int) -> int:
    """Let all queue that are submitted ``now``; return how many."""
    clock = state.clock[0]
    first = clock.arrived
    while clock.arrived < len(state.jobs) and state.jobs[clock.arrived].submitted_s == now:
        touch(state, state.jobs[clock.arrived].partition)
        push(state, clock.arrived)
        clock.arrived += 1
    return int(clock.arrived - first)


@kernel
def touch(state: State, partition: int) -> None:
    """Note that ``partition`` needs a scheduling pass."""
    clock, home = state.clock[0], state.partitions[partition]
    if not home.touched:
        home.touched = 1
        state.partitions[clock.touched].due = partition
        clock.touched += 1


@kernel
def schedule_touched(state: State, now: int) -> None:
    """Make the passes that are due ``now``; what is idle too long after them falls asleep."""
    clock = state.clock[0]
    for place in range(clock.touched):
        partition = state.partitions[place].due
        state.partitions[partition].touched = 0
        schedule(state, partition, now)
    clock.touched = 0
    if len(state.versatile) > 0:
        time_out(state, now)


def _compiled(revision: int) -> Callable[[State, int, int], bool]:
    """Return the entry to the core, which holds the ``revision`` of all it calls."""

    @entry_point
    def entry(state: State, scored: int, budget: int) -> bool:
        while budget > 0:
            now = next_moment(state)
            if now == NEVER or _awaits(state, now, scored):
                return revision >= 0
            budget -= end_due(state, now) + admit_due(state, now)
            schedule_touched(state, now)
        return False

    return entry


_run = _compiled(fingerprint(*PARTS))


def run(state: State, *, scored: int, budget: int) -> bool:
    """Carry the timeline on, in place, and stop before the moment when job number ``scored`` arrives.

    Parameters
    ----------
    state : State
        Keys and estimates of the first ``scored`` jobs must stand in ``state.pending``.
    scored : int
        Jobs whose keys are known; all those of one submit time together.
    budget : int
        Arrivals and ends after which to return anyway.

    Returns
    -------
    bool
        Whether that moment, or the end of everything, was reached.
    """
    return _run(state, scored, budget)
