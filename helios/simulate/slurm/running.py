"""Running jobs, by when their nodes are free and by expected end.

The clock goes by the former, and backfill plans with the latter.
"""

from __future__ import annotations

from helios.jit import kernel, plain
from helios.simulate.ends import drop, rise
from helios.simulate.slurm.placement import free_job, hold
from helios.simulate.slurm.priority import change, charge_usage, queue_position, queue_up, remove_from_queue
from helios.simulate.slurm.state import BY_MAIN, ENDED, MS, NEVER, NOBODY, NOW, RUNNING, YEAR_MIN, SlurmState

# Limits of a QOS on what runs at once: of the job's own QOS, and of its partition's, which goes first.


@kernel
def allowed(state: SlurmState, choice: int) -> bool:
    """Return whether no QOS limit keeps the job from running now.

    After Slurm's ``acct_policy.c``.
    """
    asked = state.choices[choice]
    record = state.jobs[asked.job]
    first, second = state.partitions[asked.partition].qos, record.qos
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
def charge(state: SlurmState, job: int, partition: int, sign: int) -> None:
    """Add ``job`` to the counts of its QOS, or remove it.

    ``sign`` is 1 or -1.
    """
    record, first = state.jobs[job], state.partitions[partition].qos
    gpus = sign * record.gpus * max(record.nodes, 1)
    for number in range(2):
        qos = first if number == 0 else record.qos
        if qos >= 0 and (number == 0 or qos != first):
            state.user_jobs[record.user * len(state.qos) + qos] += sign
            state.user_gpus[record.user * len(state.qos) + qos] += gpus
            state.qos[qos].held_gpus += gpus


@kernel
def start(state: SlurmState, choice: int, position: int, limit_min: int, by: int) -> int:
    """Start the job in ``choice`` on the nodes picked.

    Returns by how much what was at ``position`` of the queue moves towards the front. The next task of an array takes
    the place of the one that starts.
    """
    clock, job = state.clock[0], state.choices[choice].job
    record = state.jobs[job]
    earlier = remove_from_queue(state, job, position)
    run_ms = record.run_ms
    if limit_min < YEAR_MIN:
        run_ms = min(run_ms, limit_min * 60 * MS)
    _run(state, choice, clock.now_ms, run_ms, limit_min, by)
    clock.starts += 1
    change(state, clock.now_ms)
    if record.next_task != NOBODY:
        earlier -= _queue_next_task(state, job, position - earlier)
    return earlier


@kernel
def resume(state: SlurmState, choice: int, started_ms: int) -> None:
    """Let the job in ``choice`` run since ``started_ms`` on the nodes picked.

    It may have outrun its limit.
    """
    record = state.jobs[state.choices[choice].job]
    _run(state, choice, started_ms, record.run_ms, state.choices[choice].limit_min, plain(BY_MAIN))


@kernel
def _run(  # noqa: PLR0917 - numba kernels are called by position
    state: SlurmState, choice: int, started_ms: int, run_ms: int, limit_min: int, by: int
) -> None:
    clock, job = state.clock[0], state.choices[choice].job
    record, started_s = state.jobs[job], started_ms // MS
    record.priority, record.partition, record.by = state.choices[choice].priority, state.choices[choice].partition, by
    hold(state, choice)
    charge(state, job, record.partition, plain(1))
    record.status, record.started_ms, record.billing = RUNNING, started_ms, state.choices[choice].billing
    record.ended_ms = started_ms + run_ms
    record.freed_ms = record.ended_ms + clock.release_ms
    record.limit_s = started_s + min(limit_min, YEAR_MIN) * 60
    record.soft_s = started_s + record.time_min * 60 if clock.soft and record.time_min > 0 else NEVER
    record.expected_s = min(record.limit_s, record.soft_s)
    rise(state.ends, state.jobs["freed_ms"], state.jobs["place"], job, clock.running)
    _expect(state, job, clock.running)
    clock.running += 1


@kernel
def _queue_next_task(state: SlurmState, job: int, position: int) -> int:
    """Queue the next task of an array, with the priority of its record.

    Returns how many of its choices go before ``position``.
    """
    record, ahead = state.jobs[job], 0
    task = state.jobs[record.next_task]
    task.site, task.nice, task.time_min, task.is_held = record.site, record.nice, record.time_min, record.is_held
    for number in range(record.choices):
        choice = task.first_choice + number
        state.choices[choice].priority = state.choices[record.first_choice + number].priority
        if queue_position(state, choice) < position:
            ahead += 1
    queue_up(state, record.next_task)
    return ahead


@kernel
def end(state: SlurmState, job: int) -> None:
    """End ``job``, whose nodes are free now."""
    clock, record = state.clock[0], state.jobs[job]
    if record.ended_ms > clock.last_priority_ms and clock.fair_weight > 0:
        charge_usage(state, job, record.ended_ms)
    free_job(state, job, plain(NOW))
    charge(state, job, record.partition, plain(-1))
    record.status = ENDED
    state.ended[clock.ended] = job
    clock.ended += 1
    clock.running -= 1
    drop(state.ends, state.jobs["freed_ms"], state.jobs["place"], job, clock.running)
    place = 0
    while state.expected[place] != job:
        place += 1
    for later in range(place, clock.running):
        state.expected[later] = state.expected[later + 1]
    change(state, clock.now_ms)


@kernel
def extend_overrun_jobs(state: SlurmState) -> bool:
    """Move the expected ends of jobs that have outrun their soft limits.

    The new end is after half of the time that is left until the limit (``_bf_reserve_running`` in ``backfill.c``).
    Returns whether there was one.
    """
    clock, outrun, now_s = state.clock[0], False, state.clock[0].now_ms // MS
    for place in range(clock.running):
        record = state.jobs[state.expected[place]]
        if record.soft_s < now_s and record.soft_s < record.limit_s:
            record.expected_s = now_s + max(record.limit_s - now_s, 0) // 2
            outrun = True
    if outrun:
        for place in range(1, clock.running):
            _expect(state, state.expected[place], place)
    return outrun


@kernel
def _expect(state: SlurmState, job: int, place: int) -> None:
    """Move ``job`` to its position by expected end.

    That is not after ``place``.
    """
    while place > 0 and _ends_later(state, state.expected[place - 1], job):
        state.expected[place] = state.expected[place - 1]
        place -= 1
    state.expected[place] = job


@kernel
def _ends_later(state: SlurmState, job: int, other: int) -> bool:
    ends_s, other_ends_s = state.jobs[job].expected_s, state.jobs[other].expected_s
    return bool(ends_s > other_ends_s or (ends_s == other_ends_s and job > other))
