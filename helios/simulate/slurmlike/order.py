"""The queue in the order that Slurm goes through it, and the priorities that make it.

``sort_job_queue2`` of Slurm's ``job_scheduler.c``: PriorityTier of the partition, priority, submit time, job id. The
priority is that of ``priority_multifactor.c``: a sum of doubles, cut off to a 32-bit number; what changes of it without
anybody's doing, age and fair share, changes once in each ``PriorityCalcPeriod`` only, so that between two of those the
queue stays sorted.
"""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.slurmlike.state import MS, NEVER, NOBODY, PENDING, SlurmState

LARGEST = 2**32 - 1


@kernel
def before(state: SlurmState, choice: int, other: int) -> bool:
    """Say whether ``choice`` comes before ``other`` in the queue."""
    mine, theirs = state.choices[choice], state.choices[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier > theirs.tier)
    if mine.priority != theirs.priority:
        return bool(mine.priority > theirs.priority)
    submitted_s, later_s = state.jobs[mine.job].submitted_s, state.jobs[theirs.job].submitted_s
    if submitted_s != later_s:
        return bool(submitted_s < later_s)
    return choice < other


@kernel
def place_of(state: SlurmState, choice: int) -> int:
    """Return where in the queue ``choice`` is, or would go."""
    low, high = 0, state.clock[0].queued
    while low < high:
        middle = (low + high) // 2
        if before(state, state.queue[middle], choice):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def queue_up(state: SlurmState, job: int) -> None:
    """Put all choices of ``job``, whose priorities are known, into the queue."""
    clock, its = state.clock[0], state.jobs[job]
    for choice in range(its.first_choice, its.first_choice + its.choices):
        place = place_of(state, choice)
        for later in range(clock.queued, place, -1):
            state.queue[later] = state.queue[later - 1]
        state.queue[place] = choice
        clock.queued += 1
    its.status = PENDING


@kernel
def take_out(state: SlurmState, job: int, position: int) -> int:
    """Take all choices of ``job`` out of the queue, and return how many were before ``position``."""
    clock, its, earlier = state.clock[0], state.jobs[job], 0
    for choice in range(its.first_choice, its.first_choice + its.choices):
        place = place_of(state, choice)
        if place < position - earlier:
            earlier += 1
        clock.queued -= 1
        for later in range(place, clock.queued):
            state.queue[later] = state.queue[later + 1]
    return earlier


@kernel
def weigh(state: SlurmState, job: int) -> None:
    """Give all choices of ``job`` the priority that they have now."""
    clock, its = state.clock[0], state.jobs[job]
    if clock.multifactor == 0:
        for choice in range(its.first_choice, its.first_choice + its.choices):
            state.choices[choice].priority = LARGEST - job
        return
    own = _age_factor(state, job) * clock.age_weight
    if its.share != NOBODY:
        own += state.shares[its.share].factor * clock.fair_weight
    for choice in range(its.first_choice, its.first_choice + its.choices):
        total = own + state.choices[choice].fixed + its.site - its.nice
        state.choices[choice].priority = int(min(max(total, 1.0), float(LARGEST)))


@kernel
def _age_factor(state: SlurmState, job: int) -> float:
    clock = state.clock[0]
    age_s = clock.now_ms // MS - state.jobs[job].eligible_ms // MS
    if age_s <= 0:
        return 0.0
    return float(age_s) / float(clock.max_age_s) if age_s < clock.max_age_s else 1.0


@kernel
def reweigh(state: SlurmState) -> bool:
    """Recalculate the priority of all that is queued, and say whether that changed the order."""
    clock, moved = state.clock[0], False
    for place in range(clock.queued):
        job = state.choices[state.queue[place]].job
        if state.queue[place] == state.jobs[job].first_choice:
            weigh(state, job)
    for place in range(1, clock.queued):
        choice, gap = state.queue[place], place
        while gap > 0 and before(state, choice, state.queue[gap - 1]):
            state.queue[gap] = state.queue[gap - 1]
            gap -= 1
            moved = True
        state.queue[gap] = choice
    return moved


@kernel
def change(state: SlurmState, now_ms: int) -> None:
    """Note that something changed ``now_ms`` that may let another job start."""
    clock = state.clock[0]
    clock.changed, clock.unseen = 1, 1
    update(state, now_ms)


@kernel
def update(state: SlurmState, now_ms: int) -> None:
    """Note that jobs or nodes were updated ``now_ms``, which is what the backfill thread looks for."""
    clock = state.clock[0]
    # Whoever comes while a pass holds the locks waits for its end.
    clock.updated_ms = max(now_ms, clock.last_backfill_ms)
    if clock.moved_ms == NEVER:
        clock.moved_ms = now_ms
