"""Events of a simulated Slurm cluster and the periodic work of its controller.

What is modelled of ``slurmctld`` 22.05 (its source, and what was observed on a live one):

- A background loop runs each second. It makes a quick pass of the main scheduler when a submission or an end has asked
  for one and ``batch_sched_delay`` has passed since its last pass, and a full one every ``sched_interval``.
- Where nodes have an epilog, its message makes a quick pass at once.
- A backfill pass begins ``bf_interval`` after the end of the last, if jobs or nodes were updated in its second or
  since. Otherwise its thread checks again every second. Pending jobs alone are no reason for a pass.
- Updates are starts, ends, submissions, new priorities of pending jobs, main passes in which a job meets a closed
  partition, and backfill passes that put a start off or plan with an idle node.
- Priorities are recalculated every ``PriorityCalcPeriod``.
- A job that becomes eligible later than it was submitted asks for no pass.

- The main scheduler goes down the queue in order (``_schedule`` of ``job_scheduler.c``). A job that finds its nodes
  busy closes its partition, and the nodes of it, to all that come after it in this pass, also to jobs of other
  partitions that share nodes. A job that a limit keeps from running closes nothing. The depth counts every record that
  is reached, closed partition or not.

At one moment the order is: ends, submissions, priorities, main scheduler, backfill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel, plain
from helios.simulate.slurm.backfill import allowed, backfill_pass, end, extend_overrun_jobs, resume, start
from helios.simulate.slurm.placement import count_units, keep_fitting_choices, pick, units_wanted
from helios.simulate.slurm.priority import (
    change,
    compute_priority,
    make_factors,
    queue_up,
    recompute_all_priorities,
    remove_from_queue,
    settle_usage,
    update,
)
from helios.simulate.slurm.workload import ALL, BY_MAIN, FUTURE, MS, NEVER, NOBODY, NOW, PENDING, RUNNING, SlurmState

FITS, BUSY, TOO_FEW, HELD = 1, 0, -1, -2
"""Whether a job can start in this pass."""


@kernel
def main_pass(state: SlurmState, full: bool) -> None:
    """Make a pass over the queue.

    A full one goes through all of it, a quick one to ``default_queue_depth``.
    """
    clock = state.clock[0]
    clock.main_passes += 1
    clock.last_pass_ms = clock.now_ms
    _open_all(state)
    closed = _go_down(state, full)
    if full:
        clock.closed = closed
    if closed:
        update(state, clock.now_ms)


@kernel
def _go_down(state: SlurmState, full: bool) -> int:
    """Start the jobs that can start, in the order of the queue.

    Returns 1 if a job met a closed partition or too few open nodes, else 0.
    """
    clock, position, tested, started = state.clock[0], plain(0), 0, 0
    closed = 0
    n_open = len(state.partitions)
    # With a depth for each partition those that come after count too.
    while position < clock.queued and (n_open > 0 or clock.partition_depth > 0):
        choice = state.queue[position]
        home = state.partitions[state.choices[choice].partition]
        if state.jobs[state.choices[choice].job].is_held:
            position += 1
            continue
        if clock.partition_depth > 0:
            home.tested += 1
            if home.tested > clock.partition_depth:
                position += 1
                continue
        if not full and tested > clock.quick_depth:
            return closed
        tested += 1
        if home.failed:
            closed = 1
            position += 1
            continue
        fits = _fits_open(state, choice)
        if fits == FITS:
            pick(state, plain(NOW), choice, clock.words)
            position -= start(state, choice, position, state.choices[choice].limit_min, plain(BY_MAIN))
            started += 1
            if 0 < clock.most_starts <= started:
                return closed
            continue
        if fits != HELD:
            closed = 1 if fits == TOO_FEW else closed
            home.failed = 1
            n_open -= 1
            _close(state, state.choices[choice].partition)
        position += 1
    if position < clock.queued and (full or tested <= clock.quick_depth):
        return 1
    return closed


@kernel
def _open_all(state: SlurmState) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] = ALL
    for partition in range(len(state.partitions)):
        state.partitions[partition].failed, state.partitions[partition].tested = 0, 0


@kernel
def _close(state: SlurmState, partition: int) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] &= ~state.part_nodes[partition, word]


@kernel
def _fits_open(state: SlurmState, choice: int) -> int:
    """Return whether a job fits on the open nodes of its partition.

    If not, the value says why. The open nodes are put into the second set of ``state.words``. ``TOO_FEW``: other nodes
    are kept for a job of another partition; that closes the job's own one, as busy nodes do (22.05).
    """
    clock, asked = state.clock[0], state.choices[choice]
    record = state.jobs[asked.job]
    record.held_by_limit = 0 if allowed(state, choice) else 1
    if record.held_by_limit:
        return HELD
    n_open = 0
    for word in range(clock.words):
        bits = state.words[word] & state.part_nodes[asked.partition, word]
        state.words[clock.words + word] = bits
        while bits != 0:
            bits &= bits - 1
            n_open += 1
    if n_open < max(record.nodes, 1):
        return TOO_FEW
    return FITS if count_units(state, plain(NOW), choice, clock.words) >= units_wanted(state, asked.job) else BUSY


NOBODY_AWAITED = np.zeros(0, dtype=np.int64)


@kernel
def next_event(state: SlurmState) -> int:
    """Return the time of the next event, ms, or NEVER."""
    clock, moment = state.clock[0], NEVER
    if clock.running > 0:
        moment = state.jobs[state.ends[0]].freed_ms
    if clock.entered < len(state.entering):
        moment = min(moment, state.jobs[state.entering[clock.entered]].enters_ms)
    return int(moment)


@kernel
def next_moment(state: SlurmState) -> int:
    """Return when anything at all is due, in ms, or NEVER."""
    moment = min(next_event(state), _next_main(state))
    moment = min(moment, _next_backfill(state))
    return int(min(moment, _next_priority(state)))


@kernel
def _later(moment: int, of_ms: int, step_ms: int) -> int:
    """Return the first tick of ``step_ms`` since ``of_ms`` from ``moment`` on."""
    return int(of_ms + (moment - of_ms + step_ms - 1) // step_ms * step_ms)


@kernel
def _next_tick(state: SlurmState, from_ms: int) -> int:
    """Return the time of the background loop's first run from then on."""
    return _later(from_ms, state.clock[0].tick_origin_ms, state.clock[0].tick_ms)


@kernel
def _full_after_last(state: SlurmState) -> int:
    # time_t is whole seconds: what counts as an interval can be up to a second less.
    clock = state.clock[0]
    return _next_tick(state, (clock.last_full_ms // MS + clock.sched_interval_s) * MS)


@kernel
def _next_full(state: SlurmState) -> int:
    """Return when the next full pass is due that could change anything."""
    clock = state.clock[0]
    # One that starts nothing is of interest only as an update.
    if clock.sched_interval_s <= 0 or clock.queued == 0 or (clock.unseen == 0 and clock.closed == 0):
        return NEVER
    return int(max(_full_after_last(state), clock.now_ms))


@kernel
def _pass_over(state: SlurmState) -> None:
    """Record the full passes before now that were skipped.

    They were not made because they could change nothing.
    """
    clock = state.clock[0]
    while clock.sched_interval_s > 0 and _full_after_last(state) < clock.now_ms:
        clock.last_full_ms = _full_after_last(state)
        clock.last_background_ms = clock.last_full_ms


@kernel
def _next_main(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.sched_interval_s < 0:
        return NEVER
    moment = NEVER
    if clock.pass_due:
        moment = max(clock.now_ms, clock.last_pass_ms + clock.min_interval_ms)
    if clock.asked_ms != NEVER:
        free_ms = (clock.last_background_ms // MS + clock.batch_delay_s) * MS
        moment = min(moment, max(_next_tick(state, max(clock.asked_ms, free_ms)), clock.now_ms))
    return int(min(moment, _next_full(state)))


@kernel
def _next_backfill(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.backfill_interval_ms <= 0 or clock.moved_ms == NEVER:
        return NEVER
    due = clock.last_backfill_ms + _grown(state, clock.backfill_interval_ms, clock.last_backfill_ms)
    return int(due if clock.moved_ms <= due else _later(clock.moved_ms, due, clock.poll_ms))


@kernel
def _next_priority(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.multifactor == 0 or clock.calc_period_ms <= 0:
        return NEVER
    # While nothing runs usage decays, but as it does so for all alike nobody's factor changes.
    if clock.queued == 0 and (clock.fair_weight == 0 or clock.running + clock.charged == 0):
        return NEVER
    period_ms = _grown(state, clock.calc_period_ms, clock.last_priority_ms)
    return _later(max(clock.now_ms, clock.last_priority_ms + 1), clock.last_priority_ms, period_ms)


@kernel
def _grown(state: SlurmState, period_ms: int, since_ms: int) -> int:
    """Return the current length of a growing period."""
    clock = state.clock[0]
    return max(period_ms, int(clock.growth * max(since_ms - clock.origin_ms, 0)))


@kernel
def process_due_events(state: SlurmState, moment: int) -> None:
    """Advance to ``moment`` and process the ends and arrivals due then.

    Priorities are recalculated if that is due.
    """
    clock = state.clock[0]
    priorities = _next_priority(state) <= moment
    clock.now_ms = moment
    _pass_over(state)
    while clock.running > 0 and state.jobs[state.ends[0]].freed_ms <= moment:
        end(state, state.ends[0])
        if clock.ends_ask:
            _ask(state, moment)
        else:
            clock.pass_due = 1
    while clock.entered < len(state.entering) and state.jobs[state.entering[clock.entered]].enters_ms <= moment:
        clock.entered += 1
        _enqueue(state, state.entering[clock.entered - 1])
    if priorities:
        make_priorities(state)


@kernel
def _ask(state: SlurmState, moment: int) -> None:
    if state.clock[0].asked_ms == NEVER:
        state.clock[0].asked_ms = moment


@kernel
def _enqueue(state: SlurmState, job: int) -> None:
    """Add ``job`` to the queue.

    Of an array only the first pending task is queued; the others wait behind it.
    """
    clock, record = state.clock[0], state.jobs[job]
    if record.previous_task != NOBODY and state.jobs[record.previous_task].status in (FUTURE, PENDING):
        return
    compute_priority(state, job)
    queue_up(state, job)
    if record.asks:
        change(state, clock.now_ms)
        _ask(state, clock.now_ms)
    else:
        clock.changed, clock.unseen = 1, 1


@kernel
def make_priorities(state: SlurmState) -> None:
    """Recalculate usage, fair shares and priorities, as each PriorityCalcPeriod."""
    clock = state.clock[0]
    if clock.fair_weight > 0:
        settle_usage(state)
    clock.last_priority_ms = clock.now_ms
    if (clock.fair_weight > 0 or clock.age_weight > 0) and recompute_all_priorities(state):
        clock.changed, clock.unseen = 1, 1
    if clock.queued > 0:
        update(state, clock.now_ms)


@kernel
def schedule(state: SlurmState) -> None:
    """Make the scheduling passes that are due now."""
    clock = state.clock[0]
    now = clock.now_ms
    if _next_main(state) <= now:
        full = _next_full(state) <= now
        if full or clock.pass_due == 0:
            clock.last_background_ms = now
            clock.asked_ms = NEVER
        if full:
            clock.last_full_ms = now
        if full and clock.unseen == 0:
            update(state, now)
        elif full or clock.queued > 0:
            clock.unseen = 0 if full else clock.unseen
            main_pass(state, full)
        clock.pass_due = 0
    if _next_backfill(state) <= now:
        _backfill(state)


@kernel
def _backfill(state: SlurmState) -> None:
    """Make a backfill pass.

    The pass itself is skipped where nothing has changed since the last or nothing waits, as its result is known then.
    Its time and its updates still count.
    """
    clock, records = state.clock[0], state.clock[0].queued
    if clock.planned_idle:  # those nodes are no longer planned
        update(state, clock.now_ms)
    if records == 0:
        clock.pushed, clock.planned_idle = 0, 0
    elif clock.changed or (clock.soft and extend_overrun_jobs(state)):  # an expected end that moves is a change too
        backfill_pass(state)
    if clock.pushed:
        update(state, clock.now_ms)
    spent_us = clock.spent_us + clock.pass_us + clock.record_us * min(records, clock.max_test)
    clock.last_backfill_ms, clock.spent_us = clock.now_ms + spent_us // 1000, spent_us % 1000
    if clock.planned_idle:
        update(state, clock.last_backfill_ms)
    # time_t is whole seconds: what was updated in the second of its end counts as new for the next pass.
    is_news = clock.updated_ms // MS >= clock.last_backfill_ms // MS
    clock.moved_ms = clock.updated_ms if is_news else NEVER


@kernel
def _is_finished(state: SlurmState) -> bool:
    """Return whether nothing will happen any more.

    Jobs that are pending then wait for ever.
    """
    clock = state.clock[0]
    asked = clock.sched_interval_s >= 0 and (clock.pass_due or clock.asked_ms != NEVER)
    if next_event(state) != NEVER or asked:
        return False
    looked = clock.unseen == 0 or clock.sched_interval_s <= 0
    return bool(looked and (clock.changed == 0 or clock.backfill_interval_ms <= 0))


@entry_point
def keep_choices(state: SlurmState) -> None:
    """Remove the partitions in which a job could never start.

    This is tried for all jobs on an empty cluster.
    """
    keep_fitting_choices(state)


@entry_point
def begin(state: SlurmState) -> None:
    """Compute the first fair shares."""
    make_factors(state)


@entry_point
def run_until(state: SlurmState, until_ms: int, leave_due: bool, first_event: bool, awaited: NDArray[np.int64]) -> None:
    """Make the passes due now and advance to ``until_ms``, included.

    It ends earlier when nothing is left that can happen. With ``leave_due`` the passes due at ``until_ms`` wait for the
    next call, so that a caller can act before them. With ``first_event`` it stops in the same way at the first moment
    at which nodes are freed or a job enters the queue. With ``awaited`` it stops when all these jobs have started.
    """
    started = 0
    schedule(state)
    while not _is_finished(state):
        while started < len(awaited) and state.jobs[awaited[started]].status >= RUNNING:
            started += 1
        if 0 < len(awaited) == started:
            return
        moment = next_moment(state)
        if moment > until_ms or moment == NEVER:
            break
        events = state.clock[0].ended + state.clock[0].entered
        process_due_events(state, moment)
        if moment == until_ms and leave_due:
            return
        if first_event and state.clock[0].ended + state.clock[0].entered > events:
            return
        schedule(state)
    if until_ms != NEVER and until_ms > state.clock[0].now_ms:
        state.clock[0].now_ms = until_ms


@entry_point
def put_running(
    state: SlurmState,
    jobs: NDArray[np.int64],
    started_ms: NDArray[np.int64],
    first: NDArray[np.int64],
    nodes: NDArray[np.int64],
) -> None:
    """Let ``jobs`` run since ``started_ms``.

    Job i runs on ``nodes[first[i]:first[i + 1]]``.
    """
    for place in range(len(jobs)):
        state.clock[0].picked = 0
        for at in range(first[place], first[place + 1]):
            state.picked[state.clock[0].picked] = nodes[at]
            state.clock[0].picked += 1
        resume(state, state.jobs[jobs[place]].first_choice, started_ms[place])


@entry_point
def make_first_priorities(state: SlurmState, jobs: NDArray[np.int64]) -> None:
    """Compute the priority that ``jobs`` have now."""
    for place in range(len(jobs)):
        compute_priority(state, jobs[place])


@entry_point
def is_over(state: SlurmState) -> bool:
    """Return whether nothing will happen any more by itself.

    Jobs that are pending then wait for ever.
    """
    return _is_finished(state)


@entry_point
def next_event_ms(state: SlurmState) -> int:
    """Return the time of the next event, ms, or NEVER."""
    return next_event(state)


@entry_point
def recompute_priorities(state: SlurmState, jobs: NDArray[np.int64], now_ms: int) -> None:
    """Recompute the priority of queued ``jobs``."""
    for place in range(len(jobs)):
        remove_from_queue(state, jobs[place], 0)
    for place in range(len(jobs)):
        compute_priority(state, jobs[place])
        queue_up(state, jobs[place])
    if len(jobs) > 0:
        _pass_over(state)
        change(state, now_ms)
