"""Fair share: usage that decays, and what it makes of everybody's factor.

After ``priority_multifactor.c`` and ``fair_tree.c``. Usage is billed TRES (CPUs, unless the partition bills otherwise)
x s x the QOS's factor, charged while jobs run, to a user's association and all above it. Each ``PriorityCalcPeriod``
usage decays, running jobs are charged, and the factors are made anew; between two of those they stand.
"""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.slurmlike.state import MS, NOBODY, SlurmState


@kernel
def charge_usage(state: SlurmState, job: int, until_ms: int) -> None:
    """Charge ``job`` for its run since the last calculation."""
    clock, its = state.clock[0], state.jobs[job]
    if its.share == NOBODY:
        return
    since_ms = max(its.started_ms, clock.last_priority_ms)
    ran_s = max(until_ms - since_ms, 0) / MS
    usage = ran_s * clock.decay**ran_s * its.billing
    if its.qos >= 0:
        usage *= state.qos[its.qos].usage_factor
    clock.charged = 1
    share = its.share
    while share != NOBODY:
        state.shares[share].usage += usage
        share = state.shares[share].parent


@kernel
def settle_usage(state: SlurmState) -> None:
    """Let usage decay, charge what runs, and make all factors anew."""
    clock = state.clock[0]
    passed_s = (clock.now_ms - clock.last_priority_ms) / MS
    decay = clock.decay**passed_s
    for share in range(len(state.shares)):
        state.shares[share].usage *= decay
    for place in range(clock.running):
        job = state.ends[place]
        if state.jobs[job].ended_ms > clock.last_priority_ms:
            charge_usage(state, job, min(clock.now_ms, state.jobs[job].ended_ms))
    clock.charged = 0
    make_factors(state)


@kernel
def make_factors(state: SlurmState) -> None:
    """Work out the factor of each user's association from the usage that stands."""
    if len(state.shares) == 0:
        return
    if state.clock[0].fair_tree:
        _fair_tree(state)
    else:
        _classic(state)


@kernel
def _classic(state: SlurmState) -> None:
    """2^(-effective usage / shares), level by level; a parent is always before its children."""
    root = state.shares[0]
    for share in range(1, len(state.shares)):
        its = state.shares[share]
        used = min(its.usage / root.usage, 1.0) if root.usage > 0 else 0.0
        if its.shares < 0:
            its.effective = state.shares[its.parent].effective
        elif its.fair_parent == 0:
            its.effective = used
        else:
            above = state.shares[its.fair_parent].effective
            its.effective = above
            if its.level_shares > 0:
                its.effective = used + (above - used) * its.shares / its.level_shares
        its.factor = 2.0 ** -(its.effective / its.norm) if its.norm > 0 else 0.0


@kernel
def _fair_tree(state: SlurmState) -> None:
    """Rank users depth first, best served last; the factor is rank / number of users.

    As it stands in Slurm's ``_count_tied_accounts``, accounts that tie are not merged: the first user of the second is
    tied with the last of the first.
    """
    rank = untied = state.clock[0].users
    stack, depth = state.stack, 1
    # Of each level: the account, the next child, and whether its first child is tied with what came before.
    stack[0], stack[1], stack[2] = 0, 0, 0
    _sort_children(state, 0)
    while depth > 0:
        base = 3 * (depth - 1)
        parent, number = state.shares[stack[base]], stack[base + 1]
        if number == parent.children:
            depth -= 1
            continue
        stack[base + 1] += 1
        child = state.children[parent.first_child + number]
        tied = stack[base + 2] == 1
        if number > 0:
            earlier = state.shares[state.children[parent.first_child + number - 1]].level
            tied = earlier == state.shares[child].level
        if state.shares[child].is_user:
            rank = rank if tied else untied
            state.shares[child].factor = rank / state.clock[0].users
            untied -= 1
        else:
            _sort_children(state, child)
            stack[base + 3], stack[base + 4], stack[base + 5] = child, 0, 1 if tied else 0
            depth += 1


@kernel
def _sort_children(state: SlurmState, account: int) -> None:
    """Sort the children of ``account``: best served last, users before accounts."""
    first, end = state.shares[account].first_child, state.shares[account].first_child + state.shares[account].children
    for place in range(first, end):
        child = state.children[place]
        state.shares[child].level = _level(state, child)
        gap = place
        while gap > first and _goes_before(state, child, state.children[gap - 1]):
            state.children[gap] = state.children[gap - 1]
            gap -= 1
        state.children[gap] = child


@kernel
def _level(state: SlurmState, share: int) -> float:
    its = state.shares[share]
    if its.shares < 0:
        return float("inf") if its.is_user else 4294967294.0  # NO_VAL
    shares = its.shares / its.level_shares if its.level_shares > 0 else 0.0
    if shares == 0.0:
        return 0.0
    above = state.shares[its.fair_parent].usage
    used = its.usage / above if above > 0 else 0.0
    return shares / used if used > 0 else float("inf")


@kernel
def _goes_before(state: SlurmState, share: int, other: int) -> bool:
    mine, theirs = state.shares[share], state.shares[other]
    if mine.level != theirs.level:
        return bool(mine.level > theirs.level)
    return bool(mine.is_user > theirs.is_user)
