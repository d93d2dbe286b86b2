"""Backfill pass, in which no job delays an earlier one.

After ``_attempt_backfill`` of Slurm's ``backfill.c`` and ``_will_run_test`` of its ``select/cons_tres`` (22.05). The
future is a list of slots of time, each with the nodes that no planned job has reserved. A job is tried on the nodes
that are not reserved during its time limit, from now on, then from the end of the first slot that would give it other
nodes, and so on. To find when running jobs free enough, they are removed in the order of their expected ends, a group
at a time: first those that end within 30 s of each other, then 60 s, 120 s, ... A planned start can therefore be later
than necessary.
"""

from __future__ import annotations

from helios.jit import kernel, plain
from helios.simulate.core.running import heap_remove, heap_rise
from helios.simulate.slurm.placement import (
    allocate,
    begin_plan,
    count_units,
    pick,
    release_in_plan,
    release_job,
    units_wanted,
)
from helios.simulate.slurm.priority import charge_usage, enqueue, note_change, queue_position, remove_from_queue
from helios.simulate.slurm.workload import (
    ALL,
    BY_BACKFILL,
    BY_MAIN,
    ENDED,
    MS,
    NEVER,
    NOBODY,
    NOW,
    PLAN,
    RUNNING,
    WORD,
    YEAR_MIN,
    SlurmState,
)

GROUP_S = 30
"""Running jobs that end within this time are removed together, s; doubled for each group (``time_window``)."""


KILL_WAIT_S = 30
"""How long after its limit a job may last (default of ``KillWait``), s."""


LARGEST_GROUP = 200
"""Jobs after which a group ends."""


@kernel
def backfill_pass(state: SlurmState) -> None:
    """Plan the queue, and start the jobs that are planned for now."""
    clock, position, started = state.clock[0], plain(0), 0
    now_s, tested = clock.now_ms // MS, 0
    clock.backfill_passes += 1
    clock.changed_for_backfill = 1 if clock.soft and extend_overrun_jobs(state) else 0
    clock.postponed, clock.planned_idle = 0, 0
    begin_slots(state, now_s)
    for partition in range(len(state.partitions)):
        state.partitions[partition].tested = 0
    for user in range(len(state.user_tested)):
        state.user_tested[user] = 0
    plans = 0
    while position < clock.queued and tested < clock.max_test and clock.slots + 2 <= len(state.slots):
        choice = state.queue[position]
        job = state.choices[choice].job
        if not _may_test(state, choice):
            position, plans = position + 1, 0
            continue
        begin_s = _plan(state, choice, now_s)
        tested += 1 if begin_s != NOBODY else 0
        if begin_s == now_s:
            limit_min = _start_limit(state, choice, now_s)
            position -= start_job(state, choice, position, limit_min, plain(BY_BACKFILL))
            started += 1
            plans = 0
            if 0 < clock.max_start <= started:
                break
            continue
        if begin_s > now_s and begin_s != NEVER:
            _note_plan(state, job, begin_s)
            _note_idle(state)
            plans += 1
            if state.jobs[job].next_task != NOBODY and plans < _tasks_left(state, job):
                continue
        position, plans = position + 1, 0
    clock.backfill_tests += tested


@kernel
def _may_test(state: SlurmState, choice: int) -> bool:
    clock, row = state.clock[0], state.choices[choice]
    record, part = state.jobs[row.job], state.partitions[row.partition]
    record.held_by_limit = 0 if within_limits(state, choice) else 1
    if record.held_by_limit or record.is_held:
        return False
    if clock.max_part > 0 and part.tested >= clock.max_part:
        return False
    if clock.max_user > 0 and state.user_tested[record.user] >= clock.max_user:
        return False
    part.tested += 1
    state.user_tested[record.user] += 1
    return True


@kernel
def _plan(state: SlurmState, choice: int, now_s: int) -> int:
    """Find when ``choice`` can start, and reserve its nodes for then.

    Returns the start. ``now_s``: it can start now, on the nodes picked. NEVER: it cannot start within the window.
    NOBODY: it was not tried, as there were too few nodes.
    """
    clock, row = state.clock[0], state.choices[choice]
    lasts_s, wanted = _planned_min(state, choice) * 60, units_wanted(state, row.job)
    nodes = max(state.jobs[row.job].nodes, 1)
    later_s, tried = now_s, False
    while True:
        from_s = later_s
        later_s = free_nodes(state, row.partition, from_s, max(from_s, now_s) + lasts_s)
        begin_s = NEVER
        if count_nodes(state) >= nodes:
            tried = True
            begin_s = _will_run(state, choice, wanted, now_s)
        if begin_s == NEVER:
            if later_s == 0:
                return NEVER if tried else NOBODY
            continue
        if begin_s < from_s:
            begin_s, clock.postponed = from_s, 1
        if begin_s <= now_s:
            return now_s
        if later_s > 0 and begin_s > later_s:
            continue
        if begin_s > now_s + clock.window_s:
            return NEVER
        later_s = _reserve_picked(state, begin_s, lasts_s)
        if later_s == 0:
            return begin_s


@kernel
def _planned_min(state: SlurmState, choice: int) -> int:
    """Return the run time to plan with, TimeMin or the time limit, min."""
    least = state.jobs[state.choices[choice].job].time_min
    limit: int = state.choices[choice].plan_min
    return int(least if 0 < least < limit else limit)


@kernel
def _reserve_picked(state: SlurmState, begin_s: int, lasts_s: int) -> int:
    """Reserve the nodes picked from ``begin_s`` on.

    Returns 0, or, where one is reserved already, when to try next.
    """
    step_s = state.clock[0].tolerance_s
    slot_s, slot_end_s = begin_s // step_s * step_s, (begin_s + lasts_s) // step_s * step_s
    copy_picked(state)
    if picked_are_reserved(state, slot_s, slot_end_s):
        return int(begin_s)
    reserve(state, slot_s, slot_end_s)
    return 0


@kernel
def _will_run(  # noqa: PLR0912 - to be compared with Slurm's, branch by branch
    state: SlurmState, choice: int, wanted: int, now_s: int
) -> int:
    """Pick nodes for ``choice``, and return when they are free.

    That follows from the expected ends of running jobs. NEVER: too few are ever free.
    """
    units = count_units(state, plain(NOW), choice, plain(0))
    if units >= wanted:
        pick(state, plain(NOW), choice, plain(0))
        return now_s
    begin_plan(state, plain(0))
    clock, next_job = state.clock[0], 0
    window_s, from_s, more = GROUP_S, 0, True
    while more:
        last, n_removed = NOBODY, 0
        while True:
            if next_job == clock.running:
                more = False
                break
            job = state.expected[next_job]
            next_job += 1
            gained = release_in_plan(state, job, choice, plain(0))
            if gained < 0:
                continue
            units += gained
            last = job
            end_s = state.jobs[job].expected_s
            if from_s == 0:
                from_s = end_s + GROUP_S - end_s % GROUP_S
            if next_job == clock.running:
                more = False
                break
            if state.jobs[state.expected[next_job]].expected_s > from_s + window_s:
                break
            n_removed += 1
            if n_removed > LARGEST_GROUP + 1:
                break
        if last == NOBODY:
            return NEVER
        if n_removed > LARGEST_GROUP + 1:
            continue
        window_s *= 2
        while next_job < clock.running and state.jobs[state.expected[next_job]].expected_s > from_s + window_s:
            window_s *= 2
        if units >= wanted:
            pick(state, plain(PLAN), choice, plain(0))
            end_s = state.jobs[last].expected_s
            return int(end_s if end_s > now_s else max(end_s + KILL_WAIT_S, now_s + 1))
    return NEVER


@kernel
def _start_limit(state: SlurmState, choice: int, now_s: int) -> int:
    """Return the time limit of a job that backfill starts, min.

    With a hard TimeMin it is cut to the time in which its nodes are free.
    """
    limit: int = state.choices[choice].limit_min
    least = state.jobs[state.choices[choice].job].time_min
    if least == 0 or least >= limit or state.clock[0].soft:
        return limit
    copy_picked(state)
    slot = plain(0)
    while slot != NOBODY:
        begin_s = state.slots[slot].begin_s
        if begin_s != now_s and begin_s < now_s + limit * 60 and not picked_are_free(state, slot):
            limit = min(limit, (begin_s - now_s) // 60)
        slot = state.slots[slot].next
    return int(max(least, limit))


@kernel
def _note_plan(state: SlurmState, job: int, begin_s: int) -> None:
    record, this_pass = state.jobs[job], state.clock[0].backfill_passes
    if record.planned_in != this_pass or begin_s < record.planned_s:
        record.planned_in, record.planned_s = this_pass, begin_s


@kernel
def _note_idle(state: SlurmState) -> None:
    """Note whether a picked node is idle.

    Slurm marks such a node, which is an update.
    """
    for i in range(state.clock[0].picked):
        if state.free[NOW, state.picked[i]].jobs == 0:
            state.clock[0].planned_idle = 1


@kernel
def _tasks_left(state: SlurmState, job: int) -> int:
    """Count the array tasks that a pass may plan."""
    count = 0
    while job != NOBODY and count < state.clock[0].max_array:
        count += 1
        job = state.jobs[job].next_task
    return count


# Running jobs: in ``ends`` by when their nodes are free, and in ``expected`` by the end that backfill plans with.
@kernel
def start_job(state: SlurmState, choice: int, position: int, limit_min: int, started_by: int) -> int:
    """Start the job of ``choice`` on its nodes, and queue the next task.

    Returns by how many places the record at ``position`` of the queue moves towards the front.
    """
    clock, job = state.clock[0], state.choices[choice].job
    record = state.jobs[job]
    earlier = remove_from_queue(state, job, position)
    run_ms = record.run_ms
    if limit_min < YEAR_MIN:
        run_ms = min(run_ms, limit_min * 60 * MS)
    _run_job(state, choice, clock.now_ms, run_ms, limit_min, started_by)
    clock.starts += 1
    note_change(state, clock.now_ms)
    if record.next_task != NOBODY:
        earlier -= _queue_next_task(state, job, position - earlier)
    return earlier


@kernel
def resume_job(state: SlurmState, choice: int, started_ms: int) -> None:
    """Let the job of ``choice`` run since ``started_ms`` on the nodes picked.

    It may have exceeded its time limit.
    """
    record = state.jobs[state.choices[choice].job]
    _run_job(state, choice, started_ms, record.run_ms, state.choices[choice].limit_min, plain(BY_MAIN))


@kernel
def _run_job(  # noqa: PLR0917 - numba kernels are called by position
    state: SlurmState, choice: int, started_ms: int, run_ms: int, limit_min: int, started_by: int
) -> None:
    clock, job = state.clock[0], state.choices[choice].job
    record, started_s = state.jobs[job], started_ms // MS
    record.priority, record.partition = state.choices[choice].priority, state.choices[choice].partition
    record.started_by = started_by
    allocate(state, choice)
    count_in_qos(state, job, record.partition, plain(1))
    record.status, record.started_ms, record.billing = RUNNING, started_ms, state.choices[choice].billing
    record.ended_ms = started_ms + run_ms
    record.freed_ms = record.ended_ms + clock.release_ms
    record.limit_end_s = started_s + min(limit_min, YEAR_MIN) * 60
    record.soft_end_s = started_s + record.time_min * 60 if clock.soft and record.time_min > 0 else NEVER
    record.expected_s = min(record.limit_end_s, record.soft_end_s)
    heap_rise(state.ends, state.jobs["freed_ms"], state.jobs["heap_index"], job, clock.running)
    _insert_expected(state, job, clock.running)
    clock.running += 1


@kernel
def _queue_next_task(state: SlurmState, job: int, position: int) -> int:
    """Queue the next task of an array, with the priority of ``job``.

    Returns how many of its choices come before ``position``.
    """
    record, ahead = state.jobs[job], 0
    task = state.jobs[record.next_task]
    task.site_factor, task.nice, task.time_min, task.is_held = (
        record.site_factor,
        record.nice,
        record.time_min,
        record.is_held,
    )
    for i in range(record.choices):
        choice = task.first_choice + i
        state.choices[choice].priority = state.choices[record.first_choice + i].priority
        if queue_position(state, choice) < position:
            ahead += 1
    enqueue(state, record.next_task)
    return ahead


@kernel
def end_job(state: SlurmState, job: int) -> None:
    """End ``job``, whose nodes are free now."""
    clock, record = state.clock[0], state.jobs[job]
    if record.ended_ms > clock.last_priority_ms and clock.fair_weight > 0:
        charge_usage(state, job, record.ended_ms)
    release_job(state, job)
    count_in_qos(state, job, record.partition, plain(-1))
    record.status = ENDED
    state.ended[clock.ended] = job
    clock.ended += 1
    clock.running -= 1
    heap_remove(state.ends, state.jobs["freed_ms"], state.jobs["heap_index"], job, clock.running)
    index = 0
    while state.expected[index] != job:
        index += 1
    for later in range(index, clock.running):
        state.expected[later] = state.expected[later + 1]
    note_change(state, clock.now_ms)


@kernel
def extend_overrun_jobs(state: SlurmState) -> bool:
    """Move the expected ends of jobs that have exceeded their soft limits.

    The new end is halfway to the time limit (``_bf_reserve_running`` in ``backfill.c``). Returns whether there was one.
    """
    clock, outrun, now_s = state.clock[0], False, state.clock[0].now_ms // MS
    for i in range(clock.running):
        record = state.jobs[state.expected[i]]
        if record.soft_end_s < now_s and record.soft_end_s < record.limit_end_s:
            record.expected_s = now_s + max(record.limit_end_s - now_s, 0) // 2
            outrun = True
    if outrun:
        for i in range(1, clock.running):
            _insert_expected(state, state.expected[i], i)
    return outrun


@kernel
def _insert_expected(state: SlurmState, job: int, index: int) -> None:
    """Move ``job`` to its position by expected end, which is at most ``index``."""
    while index > 0 and _ends_later(state, state.expected[index - 1], job):
        state.expected[index] = state.expected[index - 1]
        index -= 1
    state.expected[index] = job


@kernel
def _ends_later(state: SlurmState, job: int, other: int) -> bool:
    ends_s, other_ends_s = state.jobs[job].expected_s, state.jobs[other].expected_s
    return bool(ends_s > other_ends_s or (ends_s == other_ends_s and job > other))


# Limits on what runs at once, of the partition's QOS and of the job's own. Where both set one, the partition's counts.
@kernel
def within_limits(state: SlurmState, choice: int) -> bool:
    """Return whether all QOS limits let the job run now (Slurm's ``acct_policy.c``)."""
    row = state.choices[choice]
    record = state.jobs[row.job]
    first, second = state.partitions[row.partition].qos, record.qos
    if second == first:
        second = NOBODY
    gpus = record.gpus * max(record.nodes, 1)
    return (
        _jobs_left(state, record.user, first, second)
        and _user_gpus_left(state, record.user, gpus, first, second)
        and _gpus_left(state, gpus, first, second)
    )


@kernel
def _jobs_left(state: SlurmState, user: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].user_jobs >= 0:
            return bool(state.user_jobs[user * len(state.qos) + qos] < state.qos[qos].user_jobs)
    return True


@kernel
def _user_gpus_left(state: SlurmState, user: int, gpus: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].user_gpus >= 0:
            held = state.user_gpus[user * len(state.qos) + qos]
            return bool(gpus == 0 or held + gpus <= state.qos[qos].user_gpus)
    return True


@kernel
def _gpus_left(state: SlurmState, gpus: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].gpus >= 0:
            return bool(gpus == 0 or state.qos[qos].held_gpus + gpus <= state.qos[qos].gpus)
    return True


@kernel
def count_in_qos(state: SlurmState, job: int, partition: int, sign: int) -> None:
    """Add ``job`` to the counts of its QOS (1), or remove it (-1)."""
    record, first = state.jobs[job], state.partitions[partition].qos
    gpus = sign * record.gpus * max(record.nodes, 1)
    for i in range(2):
        qos = first if i == 0 else record.qos
        if qos >= 0 and (i == 0 or qos != first):
            state.user_jobs[record.user * len(state.qos) + qos] += sign
            state.user_gpus[record.user * len(state.qos) + qos] += gpus
            state.qos[qos].held_gpus += gpus


# Slots of time, each with the nodes that no planned job has reserved, after ``node_space`` of Slurm's ``backfill.c``.
#
# ``state.words`` holds three sets of nodes: those that a job may have, one for the main scheduler, and those picked.
@kernel
def begin_slots(state: SlurmState, now_s: int) -> None:
    """Begin with one slot of the whole window and nothing reserved."""
    clock, slot = state.clock[0], state.slots[0]
    slot.begin_s = now_s // clock.tolerance_s * clock.tolerance_s
    slot.end_s = (now_s + clock.window_s) // clock.tolerance_s * clock.tolerance_s
    slot.next = NOBODY
    clock.slots = 1
    for word in range(clock.words):
        state.slot_nodes[0, word] = ALL


@kernel
def free_nodes(state: SlurmState, partition: int, from_s: int, until_s: int) -> int:
    """Write a partition's unreserved nodes of a period to the first set.

    Returns when to try next: the end of the first slot after which there are other nodes; 0: never.
    """
    clock, slot, later_s = state.clock[0], plain(0), 0
    for word in range(clock.words):
        state.words[word] = state.part_nodes[partition, word]
    while slot != NOBODY:
        record = state.slots[slot]
        if record.end_s > from_s:
            if record.next != NOBODY and later_s == 0 and _adds_nodes(state, partition, slot):
                later_s = record.end_s
            if record.begin_s > until_s:
                return int(later_s)
            for word in range(clock.words):
                state.words[word] &= state.slot_nodes[slot, word]
        slot = record.next
    return int(later_s)


@kernel
def _adds_nodes(state: SlurmState, partition: int, slot: int) -> bool:
    """Return whether the next slot has nodes that are reserved before."""
    following = state.slots[slot].next
    for word in range(state.clock[0].words):
        free_until_end = state.words[word] & state.slot_nodes[slot, word]
        free_afterwards = state.part_nodes[partition, word] & state.slot_nodes[following, word]
        if free_afterwards & ~free_until_end:
            return True
    return False


@kernel
def count_nodes(state: SlurmState) -> int:
    """Count the nodes in the first set."""
    count = 0
    for word in range(state.clock[0].words):
        bits = state.words[word]
        while bits != 0:
            bits &= bits - 1
            count += 1
    return count


@kernel
def copy_picked(state: SlurmState) -> None:
    """Write the nodes picked to the third set."""
    clock = state.clock[0]
    first_word = 2 * clock.words
    for word in range(clock.words):
        state.words[first_word + word] = 0
    for i in range(clock.picked):
        node = state.picked[i]
        state.words[first_word + node // WORD] |= 1 << (node % WORD)


@kernel
def picked_are_free(state: SlurmState, slot: int) -> bool:
    """Return whether no node of the third set is reserved in ``slot``."""
    clock, missing = state.clock[0], 0
    for word in range(clock.words):
        missing |= state.words[2 * clock.words + word] & ~state.slot_nodes[slot, word]
    return bool(missing == 0)


@kernel
def picked_are_reserved(state: SlurmState, from_s: int, until_s: int) -> bool:
    """Return whether a node of the third set is reserved in a period."""
    slot = plain(0)
    while slot != NOBODY:
        record = state.slots[slot]
        if record.end_s > from_s and record.begin_s < until_s and not picked_are_free(state, slot):
            return True
        slot = record.next
    return False


@kernel
def reserve(state: SlurmState, from_s: int, until_s: int) -> None:
    """Reserve the nodes of the third set from ``from_s`` to ``until_s``.

    They are removed from the slots of that period, which are cut where it begins and ends.
    """
    clock = state.clock[0]
    from_s = max(from_s, state.slots[0].begin_s)
    until_s = max(until_s, from_s + clock.tolerance_s)
    slot, previous = plain(0), plain(NOBODY)
    while slot != NOBODY and state.slots[slot].end_s <= from_s:
        previous, slot = slot, state.slots[slot].next
    if slot == NOBODY:
        return
    if state.slots[slot].begin_s < from_s:
        previous = slot
        slot = _split_slot(state, slot, from_s)
    while slot != NOBODY and state.slots[slot].begin_s < until_s:
        if state.slots[slot].end_s > until_s:
            _split_slot(state, slot, until_s)
        for word in range(clock.words):
            state.slot_nodes[slot, word] &= ~state.words[2 * clock.words + word]
        slot = state.slots[slot].next
    _merge(state, 0 if previous == NOBODY else previous, until_s)


@kernel
def _split_slot(state: SlurmState, slot: int, at_s: int) -> int:
    """Cut ``slot`` in two and return the later part."""
    clock = state.clock[0]
    new_slot = clock.slots
    clock.slots += 1
    record, later = state.slots[slot], state.slots[new_slot]
    later.begin_s, later.end_s, later.next = at_s, record.end_s, record.next
    record.end_s, record.next = at_s, new_slot
    for word in range(clock.words):
        state.slot_nodes[new_slot, word] = state.slot_nodes[slot, word]
    return int(new_slot)


@kernel
def _merge(state: SlurmState, slot: int, until_s: int) -> None:
    """Join the first pair of neighbours with the same nodes from ``slot`` on.

    Slurm too joins only one pair.
    """
    while slot != NOBODY and state.slots[slot].begin_s <= until_s:
        following = state.slots[slot].next
        if following == NOBODY:
            return
        equal = True
        for word in range(state.clock[0].words):
            if state.slot_nodes[slot, word] != state.slot_nodes[following, word]:
                equal = False
                break
        if equal:
            state.slots[slot].end_s = state.slots[following].end_s
            state.slots[slot].next = state.slots[following].next
            return
        slot = following
