"""Event loop of a simulated Slurm, with its main scheduler's passes.

The model of ``slurmctld`` 22.05, from its source and from observation of a live one:

- A background loop runs each second. It makes a quick pass of the main scheduler when a submission or an end has asked
  for one and ``batch_sched_delay`` has passed since its last pass, and a full one every ``sched_interval``.
- Where nodes have an epilog, its message makes a quick pass at once.
- A backfill pass begins ``bf_interval`` after the end of the last, if jobs or nodes were updated in its second or
  since. Otherwise its thread checks again every second. Pending jobs alone are no reason for a pass.
- Updates are starts, ends, submissions, new priorities of pending jobs, main passes in which a job meets a closed
  partition, and backfill passes that postpone a start or plan with an idle node.
- Priorities are recalculated every ``PriorityCalcPeriod``.
- A job that becomes eligible later than it was submitted asks for no pass.
- The main scheduler takes the queue in order (``_schedule`` of ``job_scheduler.c``). A job that finds its nodes busy
  closes its partition for the rest of the pass: no later job gets a node of it, not even one of another partition that
  shares the node. A job that a limit keeps from running closes nothing. The depth counts every record that is reached,
  closed partition or not.

At one moment the order is: ends, submissions, priorities, main scheduler, backfill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel, plain
from helios.simulate.slurm.backfill import (
    backfill_pass,
    end_job,
    extend_overrun_jobs,
    resume_job,
    start_job,
    within_limits,
)
from helios.simulate.slurm.placement import count_units, pick, units_wanted
from helios.simulate.slurm.priority import (
    compute_priority,
    compute_share_factors,
    enqueue,
    note_change,
    note_update,
    recompute_all_priorities,
    remove_from_queue,
    settle_usage,
)
from helios.simulate.slurm.workload import ALL, BY_MAIN, FUTURE, MS, NEVER, NOBODY, NOW, PENDING, RUNNING, SlurmState

FITS, BUSY, TOO_FEW, HELD = 1, 0, -1, -2
"""Whether a job can start in this pass; HELD: a limit keeps it from running."""
NOBODY_AWAITED = np.zeros(0, dtype=np.int64)


@entry_point
def run_until(state: SlurmState, until_ms: int, leave_due: bool, first_event: bool, awaited: NDArray[np.int64]) -> None:
    """Make the passes due now and advance to ``until_ms``, included.

    It ends earlier when nothing is left to happen.

    Parameters
    ----------
    leave_due : bool
        Leave the passes due at ``until_ms`` to the next call, so that the caller can act before them.
    first_event : bool
        Stop, in the same way, at the first moment at which nodes are freed or a job enters the queue.
    awaited : array of shape (n_awaited,)
        Stop when all of these jobs have started; empty: do not.
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


@kernel
def _is_finished(state: SlurmState) -> bool:
    """Return whether nothing will happen any more.

    Jobs that are pending then wait for ever.
    """
    clock = state.clock[0]
    pass_asked = clock.sched_interval_s >= 0 and (clock.pass_due or clock.pass_asked_ms != NEVER)
    if next_event(state) != NEVER or pass_asked:
        return False
    main_is_idle = clock.changed_for_main == 0 or clock.sched_interval_s <= 0
    return bool(main_is_idle and (clock.changed_for_backfill == 0 or clock.backfill_interval_ms <= 0))


@entry_point
def is_over(state: SlurmState) -> bool:
    """Return whether nothing will happen any more.

    Pending jobs then wait for ever.
    """
    return _is_finished(state)


@entry_point
def next_event_ms(state: SlurmState) -> int:
    """Return the time of the next event, ms, or NEVER."""
    return next_event(state)


@entry_point
def compute_first_shares(state: SlurmState) -> None:
    """Compute the first fair shares."""
    compute_share_factors(state)


@entry_point
def compute_priorities(state: SlurmState, jobs: NDArray[np.int64]) -> None:
    """Compute the priority that ``jobs`` have now."""
    for i in range(len(jobs)):
        compute_priority(state, jobs[i])


@entry_point
def recompute_priorities(state: SlurmState, jobs: NDArray[np.int64], now_ms: int) -> None:
    """Recompute the priority of queued ``jobs``."""
    for i in range(len(jobs)):
        remove_from_queue(state, jobs[i], 0)
    for i in range(len(jobs)):
        compute_priority(state, jobs[i])
        enqueue(state, jobs[i])
    if len(jobs) > 0:
        _record_skipped_passes(state)
        note_change(state, now_ms)


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
    for i in range(len(jobs)):
        state.clock[0].picked = 0
        for k in range(first[i], first[i + 1]):
            state.picked[state.clock[0].picked] = nodes[k]
            state.clock[0].picked += 1
        resume_job(state, state.jobs[jobs[i]].first_choice, started_ms[i])


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
    """Return when the next event, pass or recalculation is due, ms, or NEVER."""
    moment = min(next_event(state), _next_main(state))
    moment = min(moment, _next_backfill(state))
    return int(min(moment, _next_priority(state)))


@kernel
def process_due_events(state: SlurmState, moment: int) -> None:
    """Advance to ``moment`` and process the ends and arrivals due then.

    Priorities are recalculated too if that is due.
    """
    clock = state.clock[0]
    priorities_due = _next_priority(state) <= moment
    clock.now_ms = moment
    _record_skipped_passes(state)
    while clock.running > 0 and state.jobs[state.ends[0]].freed_ms <= moment:
        end_job(state, state.ends[0])
        if clock.ends_ask:
            _request_pass(state, moment)
        else:
            clock.pass_due = 1
    while clock.entered < len(state.entering) and state.jobs[state.entering[clock.entered]].enters_ms <= moment:
        clock.entered += 1
        _admit_job(state, state.entering[clock.entered - 1])
    if priorities_due:
        _recalculate_priorities(state)


@kernel
def _admit_job(state: SlurmState, job: int) -> None:
    """Add ``job`` to the queue, unless an earlier task is before it."""
    clock, record = state.clock[0], state.jobs[job]
    if record.previous_task != NOBODY and state.jobs[record.previous_task].status in (FUTURE, PENDING):
        return
    compute_priority(state, job)
    enqueue(state, job)
    if record.asks_for_pass:
        note_change(state, clock.now_ms)
        _request_pass(state, clock.now_ms)
    else:
        clock.changed_for_backfill, clock.changed_for_main = 1, 1


@kernel
def _request_pass(state: SlurmState, moment: int) -> None:
    if state.clock[0].pass_asked_ms == NEVER:
        state.clock[0].pass_asked_ms = moment


@kernel
def _recalculate_priorities(state: SlurmState) -> None:
    """Recalculate usage, fair shares and priorities, as each PriorityCalcPeriod."""
    clock = state.clock[0]
    if clock.fair_weight > 0:
        settle_usage(state)
    clock.last_priority_ms = clock.now_ms
    if (clock.fair_weight > 0 or clock.age_weight > 0) and recompute_all_priorities(state):
        clock.changed_for_backfill, clock.changed_for_main = 1, 1
    if clock.queued > 0:
        note_update(state, clock.now_ms)


@kernel
def _next_main(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.sched_interval_s < 0:
        return NEVER
    moment = NEVER
    if clock.pass_due:
        moment = max(clock.now_ms, clock.last_pass_ms + clock.min_interval_ms)
    if clock.pass_asked_ms != NEVER:
        free_ms = (clock.last_background_ms // MS + clock.batch_delay_s) * MS
        moment = min(moment, max(_next_tick(state, max(clock.pass_asked_ms, free_ms)), clock.now_ms))
    return int(min(moment, _next_full(state)))


@kernel
def _next_full(state: SlurmState) -> int:
    """Return when the next full pass is due that could change anything."""
    clock = state.clock[0]
    if clock.sched_interval_s <= 0 or clock.queued == 0 or (clock.changed_for_main == 0 and clock.closed == 0):
        return NEVER
    return int(max(_next_full_tick(state), clock.now_ms))


@kernel
def _next_full_tick(state: SlurmState) -> int:
    # Slurm counts intervals in whole seconds (time_t), so that one can be up to a second shorter.
    clock = state.clock[0]
    return _next_tick(state, (clock.last_full_ms // MS + clock.sched_interval_s) * MS)


@kernel
def _record_skipped_passes(state: SlurmState) -> None:
    """Record the skipped full passes before now, which change nothing."""
    clock = state.clock[0]
    while clock.sched_interval_s > 0 and _next_full_tick(state) < clock.now_ms:
        clock.last_full_ms = _next_full_tick(state)
        clock.last_background_ms = clock.last_full_ms


@kernel
def _next_backfill(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.backfill_interval_ms <= 0 or clock.first_update_ms == NEVER:
        return NEVER
    due = clock.last_backfill_ms + _grown_period_ms(state, clock.backfill_interval_ms, clock.last_backfill_ms)
    return int(due if clock.first_update_ms <= due else _next_tick_of(clock.first_update_ms, due, clock.poll_ms))


@kernel
def _next_priority(state: SlurmState) -> int:
    clock = state.clock[0]
    if clock.multifactor == 0 or clock.calc_period_ms <= 0:
        return NEVER
    # While nothing runs, the usage of all decays alike, which changes nobody's factor.
    if clock.queued == 0 and (clock.fair_weight == 0 or clock.running + clock.charged == 0):
        return NEVER
    period_ms = _grown_period_ms(state, clock.calc_period_ms, clock.last_priority_ms)
    return _next_tick_of(max(clock.now_ms, clock.last_priority_ms + 1), clock.last_priority_ms, period_ms)


@kernel
def _grown_period_ms(state: SlurmState, period_ms: int, since_ms: int) -> int:
    """Return the current length of a period that may grow."""
    clock = state.clock[0]
    return max(period_ms, int(clock.growth * max(since_ms - clock.origin_ms, 0)))


@kernel
def _next_tick(state: SlurmState, from_ms: int) -> int:
    """Return the time of the background loop's first run from ``from_ms`` on."""
    return _next_tick_of(from_ms, state.clock[0].tick_origin_ms, state.clock[0].tick_ms)


@kernel
def _next_tick_of(moment: int, origin_ms: int, step_ms: int) -> int:
    """Return the first ``origin_ms`` + n x ``step_ms`` from ``moment`` on."""
    return int(origin_ms + (moment - origin_ms + step_ms - 1) // step_ms * step_ms)


@kernel
def schedule(state: SlurmState) -> None:
    """Make the scheduling passes that are due now."""
    clock = state.clock[0]
    now = clock.now_ms
    if _next_main(state) <= now:
        full = _next_full(state) <= now
        if full or clock.pass_due == 0:
            clock.last_background_ms = now
            clock.pass_asked_ms = NEVER
        if full:
            clock.last_full_ms = now
        if full and clock.changed_for_main == 0:
            note_update(state, now)
        elif full or clock.queued > 0:
            clock.changed_for_main = 0 if full else clock.changed_for_main
            main_pass(state, full)
        clock.pass_due = 0
    if _next_backfill(state) <= now:
        _backfill(state)


@kernel
def main_pass(state: SlurmState, full: bool) -> None:
    """Make a pass over the whole queue if ``full``, else to ``default_queue_depth``."""
    clock = state.clock[0]
    clock.main_passes += 1
    clock.last_pass_ms = clock.now_ms
    _open_partitions(state)
    closed = _start_in_order(state, full)
    if full:
        clock.closed = closed
    if closed:
        note_update(state, clock.now_ms)


@kernel
def _start_in_order(state: SlurmState, full: bool) -> int:
    """Start the jobs that can start, in the order of the queue.

    Returns 1 if a job met a closed partition or too few open nodes, else 0.
    """
    clock, position, tested, started = state.clock[0], plain(0), 0, 0
    closed = 0
    n_open = len(state.partitions)
    # With a depth for each partition (partition_job_depth) jobs of closed partitions count too.
    while position < clock.queued and (n_open > 0 or clock.partition_depth > 0):
        choice = state.queue[position]
        part = state.partitions[state.choices[choice].partition]
        if state.jobs[state.choices[choice].job].is_held:
            position += 1
            continue
        if clock.partition_depth > 0:
            part.tested += 1
            if part.tested > clock.partition_depth:
                position += 1
                continue
        if not full and tested > clock.quick_depth:
            return closed
        tested += 1
        if part.failed:
            closed = 1
            position += 1
            continue
        fits = _fits_open(state, choice)
        if fits == FITS:
            pick(state, plain(NOW), choice, clock.words)
            position -= start_job(state, choice, position, state.choices[choice].limit_min, plain(BY_MAIN))
            started += 1
            if 0 < clock.most_starts <= started:
                return closed
            continue
        if fits != HELD:
            closed = 1 if fits == TOO_FEW else closed
            part.failed = 1
            n_open -= 1
            _close_partition(state, state.choices[choice].partition)
        position += 1
    if position < clock.queued and (full or tested <= clock.quick_depth):
        return 1
    return closed


@kernel
def _fits_open(state: SlurmState, choice: int) -> int:
    """Return whether a job fits on its partition's open nodes.

    The open nodes are written to the second set of ``state.words``. ``TOO_FEW``: too few of the partition's nodes are
    open, as others are kept for a job of another partition. That closes the job's own partition too (22.05).
    """
    clock, row = state.clock[0], state.choices[choice]
    record = state.jobs[row.job]
    record.held_by_limit = 0 if within_limits(state, choice) else 1
    if record.held_by_limit:
        return HELD
    n_open = 0
    for word in range(clock.words):
        bits = state.words[word] & state.part_nodes[row.partition, word]
        state.words[clock.words + word] = bits
        while bits != 0:
            bits &= bits - 1
            n_open += 1
    if n_open < max(record.nodes, 1):
        return TOO_FEW
    return FITS if count_units(state, plain(NOW), choice, clock.words) >= units_wanted(state, row.job) else BUSY


@kernel
def _open_partitions(state: SlurmState) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] = ALL
    for partition in range(len(state.partitions)):
        state.partitions[partition].failed, state.partitions[partition].tested = 0, 0


@kernel
def _close_partition(state: SlurmState, partition: int) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] &= ~state.part_nodes[partition, word]


@kernel
def _backfill(state: SlurmState) -> None:
    """Make a backfill pass.

    Where nothing waits or nothing has changed since the last pass, its result is known and the pass itself is skipped.
    Its duration and its updates still count.
    """
    clock, records = state.clock[0], state.clock[0].queued
    if clock.planned_idle:  # those nodes are no longer planned
        note_update(state, clock.now_ms)
    if records == 0:
        clock.postponed, clock.planned_idle = 0, 0
    elif clock.changed_for_backfill or (
        clock.soft and extend_overrun_jobs(state)
    ):  # an expected end that moves is a change too
        backfill_pass(state)
    if clock.postponed:
        note_update(state, clock.now_ms)
    spent_us = clock.spent_us + clock.pass_us + clock.record_us * min(records, clock.max_test)
    clock.last_backfill_ms, clock.spent_us = clock.now_ms + spent_us // 1000, spent_us % 1000
    if clock.planned_idle:
        note_update(state, clock.last_backfill_ms)
    # In whole seconds (time_t), an update in the second in which the pass ends is new to the next pass.
    is_new = clock.updated_ms // MS >= clock.last_backfill_ms // MS
    clock.first_update_ms = clock.updated_ms if is_new else NEVER
