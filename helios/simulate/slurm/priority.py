"""Priorities of pending jobs, and the queue in their order.

The order is that of ``sort_job_queue2`` of Slurm's ``job_scheduler.c``: PriorityTier of the partition, priority, submit
time, job id. The priority is that of ``priority_multifactor.c``: a sum of doubles, cut off to a 32-bit number. Age and
fair share change by themselves, but only once in each ``PriorityCalcPeriod``, so that between two of those the queue
stays sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.model.slurm_site import Share, SlurmSite
from helios.simulate.slurm.workload import MS, NEVER, NOBODY, PENDING, SHARE, WORD, SlurmState, SlurmWorkload

LARGEST = 2**32 - 1


@kernel
def before(state: SlurmState, choice: int, other: int) -> bool:
    """Return whether ``choice`` comes before ``other`` in the queue."""
    one, two = state.choices[choice], state.choices[other]
    if one.tier != two.tier:
        return bool(one.tier > two.tier)
    if one.priority != two.priority:
        return bool(one.priority > two.priority)
    submitted_s, later_s = state.jobs[one.job].submitted_s, state.jobs[two.job].submitted_s
    if submitted_s != later_s:
        return bool(submitted_s < later_s)
    return choice < other


@kernel
def queue_position(state: SlurmState, choice: int) -> int:
    """Return the position of ``choice`` in the queue."""
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
    clock, record = state.clock[0], state.jobs[job]
    for choice in range(record.first_choice, record.first_choice + record.choices):
        place = queue_position(state, choice)
        for later in range(clock.queued, place, -1):
            state.queue[later] = state.queue[later - 1]
        state.queue[place] = choice
        clock.queued += 1
    record.status = PENDING


@kernel
def remove_from_queue(state: SlurmState, job: int, position: int) -> int:
    """Take all choices of ``job`` out of the queue.

    Returns how many of them were before ``position``.
    """
    clock, record, earlier = state.clock[0], state.jobs[job], 0
    for choice in range(record.first_choice, record.first_choice + record.choices):
        place = queue_position(state, choice)
        if place < position - earlier:
            earlier += 1
        clock.queued -= 1
        for later in range(place, clock.queued):
            state.queue[later] = state.queue[later + 1]
    return earlier


@kernel
def compute_priority(state: SlurmState, job: int) -> None:
    """Compute the priority of all choices of ``job`` as of now."""
    clock, record = state.clock[0], state.jobs[job]
    if clock.multifactor == 0:
        for choice in range(record.first_choice, record.first_choice + record.choices):
            state.choices[choice].priority = LARGEST - job
        return
    own = _age_factor(state, job) * clock.age_weight
    if record.share != NOBODY:
        own += state.shares[record.share].factor * clock.fair_weight
    for choice in range(record.first_choice, record.first_choice + record.choices):
        total = own + state.choices[choice].fixed + record.site - record.nice
        state.choices[choice].priority = int(min(max(total, 1.0), float(LARGEST)))


@kernel
def _age_factor(state: SlurmState, job: int) -> float:
    clock = state.clock[0]
    age_s = clock.now_ms // MS - state.jobs[job].eligible_ms // MS
    if age_s <= 0:
        return 0.0
    return float(age_s) / float(clock.max_age_s) if age_s < clock.max_age_s else 1.0


@kernel
def recompute_all_priorities(state: SlurmState) -> bool:
    """Recompute the priority of all that is queued, and sort it.

    Returns whether the order changed.
    """
    clock, moved = state.clock[0], False
    for place in range(clock.queued):
        job = state.choices[state.queue[place]].job
        if state.queue[place] == state.jobs[job].first_choice:
            compute_priority(state, job)
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
    """Note that something changed at ``now_ms`` that may let another job start."""
    clock = state.clock[0]
    clock.changed, clock.unseen = 1, 1
    update(state, now_ms)


@kernel
def update(state: SlurmState, now_ms: int) -> None:
    """Note that jobs or nodes were updated at ``now_ms``.

    The backfill thread checks for that.
    """
    clock = state.clock[0]
    # An update during a backfill pass waits for the end of the pass, which holds the locks.
    clock.updated_ms = max(now_ms, clock.last_backfill_ms)
    if clock.moved_ms == NEVER:
        clock.moved_ms = now_ms


# Fair share: usage that decays, and the factor of each user that follows from it.
#
# After ``priority_multifactor.c`` and ``fair_tree.c``. Usage is billed TRES (CPUs, unless the partition bills
# otherwise) x s x the QOS's factor, charged while jobs run, to a user's association and all above it. Each
# ``PriorityCalcPeriod`` usage decays, running jobs are charged, and the factors are computed anew; between two of those
# they stay the same.


@kernel
def charge_usage(state: SlurmState, job: int, until_ms: int) -> None:
    """Charge the usage of ``job`` since the last calculation, up to ``until_ms``."""
    clock, record = state.clock[0], state.jobs[job]
    if record.share == NOBODY:
        return
    since_ms = max(record.started_ms, clock.last_priority_ms)
    ran_s = max(until_ms - since_ms, 0) / MS
    usage = ran_s * clock.decay**ran_s * record.billing
    if record.qos >= 0:
        usage *= state.qos[record.qos].usage_factor
    clock.charged = 1
    share = record.share
    while share != NOBODY:
        state.shares[share].usage += usage
        share = state.shares[share].parent


@kernel
def settle_usage(state: SlurmState) -> None:
    """Let usage decay, charge running jobs, and recompute all factors."""
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
    """Compute the factor of each user's association from the usage."""
    if len(state.shares) == 0:
        return
    if state.clock[0].fair_tree:
        _fair_tree(state)
    else:
        _classic(state)


@kernel
def _classic(state: SlurmState) -> None:
    """Compute the classic factor, 2^(-effective usage / shares), level by level.

    A parent is always before its children.
    """
    root = state.shares[0]
    for share in range(1, len(state.shares)):
        record = state.shares[share]
        used = min(record.usage / root.usage, 1.0) if root.usage > 0 else 0.0
        if record.shares < 0:
            record.effective = state.shares[record.parent].effective
        elif record.fair_parent == 0:
            record.effective = used
        else:
            above = state.shares[record.fair_parent].effective
            record.effective = above
            if record.level_shares > 0:
                record.effective = used + (above - used) * record.shares / record.level_shares
        record.factor = 2.0 ** -(record.effective / record.norm) if record.norm > 0 else 0.0


@kernel
def _fair_tree(state: SlurmState) -> None:
    """Rank users depth first, best served last.

    The factor is rank / number of users. As it is in Slurm's ``_count_tied_accounts``, accounts that tie are not
    merged: the first user of the second is tied with the last of the first.
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
    """Sort the children of ``account``, best served last.

    Of equal ones users go before accounts.
    """
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
    record = state.shares[share]
    if record.shares < 0:
        return float("inf") if record.is_user else 4294967294.0  # NO_VAL
    shares = record.shares / record.level_shares if record.level_shares > 0 else 0.0
    if shares == 0.0:
        return 0.0
    above = state.shares[record.fair_parent].usage
    used = record.usage / above if above > 0 else 0.0
    return shares / used if used > 0 else float("inf")


@kernel
def _goes_before(state: SlurmState, share: int, other: int) -> bool:
    one, two = state.shares[share], state.shares[other]
    if one.level != two.level:
        return bool(one.level > two.level)
    return bool(one.is_user > two.is_user)


# The tree of accounts and users, as tables: a parent before its children.


def share_tables(
    workload: SlurmWorkload, site: SlurmSite
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64], int]:
    """Return the tree of accounts and users as tables.

    They are the shares, the lists of their children, each job's association (NOBODY: none), and the number of users. A
    user who is not in the site's tree gets one share in the account that the job names, if that is there.
    """
    if not site.shares:
        return np.zeros(0, SHARE), np.zeros(0, np.int64), np.full(len(workload), NOBODY, dtype=np.int64), 0
    account, user = workload.column("account"), workload.column("user")
    pairs, which = np.unique(np.stack([account, user]), axis=1, return_inverse=True)
    asked = [(workload.accounts[one], workload.users[two]) for one, two in pairs.T.tolist()]
    tree = _in_order(site.shares, asked)
    place = {(share.account, share.user): number for number, share in enumerate(tree)}
    leaf = np.array([place.get(pair, NOBODY) if pair[1] else NOBODY for pair in asked], dtype=np.int64)
    shares = _tables(tree)
    children = np.argsort(shares["parent"], kind="stable").astype(np.int64)
    edges = np.searchsorted(shares["parent"][children], np.arange(len(shares) + 1))
    shares["first_child"], shares["children"] = edges[:-1], np.diff(edges)
    return shares, children, leaf[which.ravel()], int(shares["is_user"].sum())


def _in_order(known: tuple[Share, ...], asked: list[tuple[str, str]]) -> list[Share]:
    """Return the tree breadth first, below one root, with missing users added."""
    accounts = {share.account: share for share in known if not share.user}
    roots = [share for share in accounts.values() if not share.parent or share.parent not in accounts]
    root = roots[0] if len(roots) == 1 and not roots[0].parent else Share(account="root")
    there = {(share.account, share.user) for share in known}
    missing = [
        Share(account=account, user=user)
        for account, user in asked
        if user and account in accounts and (account, user) not in there
    ]
    below: dict[str, list[Share]] = {}
    for share in (*known, *missing):
        if share is root:
            continue
        parent = share.account if share.user else share.parent
        # What has no parent in the tree goes below the root.
        home = parent if parent in accounts and parent != root.account else root.account
        below.setdefault(home, []).append(share)
    tree, place = [root], 0
    while place < len(tree):
        if not tree[place].user:
            tree.extend(below.get(tree[place].account, ()))
        place += 1
    return tree


def _tables(tree: list[Share]) -> NDArray[np.void]:
    account = {share.account: number for number, share in enumerate(tree) if not share.user}
    shares = np.zeros(len(tree), dtype=SHARE)
    shares["parent"], shares["fair_parent"], shares["norm"], shares["effective"] = NOBODY, NOBODY, 1.0, 1.0
    for number, share in enumerate(tree):
        record = shares[number]
        record["is_user"], record["usage"] = bool(share.user), share.usage_s
        record["shares"] = -1 if share.shares is None else share.shares
        if number > 0:
            record["parent"] = account.get(share.account if share.user else share.parent, 0)
            record["fair_parent"] = _fair_parent(shares, number)
    _share_levels(shares)
    for number in range(len(tree) - 1, -1, -1):
        # An account has used what its users have, or more where the dump says so.
        below = shares["usage"][shares["parent"] == number].sum()
        shares["usage"][number] = max(shares["usage"][number], below)
    return shares


def _fair_parent(shares: NDArray[np.void], number: int) -> int:
    above = int(shares[number]["parent"])
    while above > 0 and shares[above]["shares"] < 0:
        above = int(shares[above]["parent"])
    return above


def _share_levels(shares: NDArray[np.void]) -> None:
    """Normalise the shares down the tree."""
    competes = shares["shares"] >= 0
    for number in range(1, len(shares)):
        record = shares[number]
        level = competes & (shares["fair_parent"] == record["fair_parent"])
        level[0] = False
        record["level_shares"] = shares["shares"][level].sum()
        above = shares[record["fair_parent"]]["norm"]
        own = record["shares"] / record["level_shares"] if record["level_shares"] > 0 else 0.0
        record["norm"] = above if record["shares"] < 0 else above * own


# Constant terms of a job's priority: size, partition, QOS and TRES; and the billing of its CPUs and GPUs.
#
# After ``set_priority_factors`` of Slurm's ``priority_multifactor.c``.

Floats = NDArray[np.float64]


def fixed_priority(
    choices: NDArray[np.void],
    jobs: NDArray[np.void],
    site: SlurmSite,
    *,
    nodes: NDArray[np.void],
    gpus: NDArray[np.int64],
    types: tuple[str, ...],
    part_nodes: NDArray[np.int64],
) -> tuple[Floats, Floats]:
    """Return the constant part of each choice's priority, and its billed TRES.

    The constant part is the weighted sum of all factors but age and fair share.
    """
    record, partition = jobs[choices["job"]], choices["partition"]
    parts = np.maximum(record["nodes"], 1).astype(np.float64)
    cpus = record["cpus"] * parts
    member = _members(part_nodes, len(nodes))
    held = {"cpu": cpus, "node": parts, "mem": record["memory"].astype(np.float64), "gres/gpu": record["gpus"] * parts}
    for place, kind in enumerate(types):
        held[f"gres/gpu:{kind}"] = np.where(record["gpu_type"] == place, record["gpus"] * parts, 0.0)
    flags = site.priority.flags
    of_partition = _factors([p.priority_job_factor for p in site.partitions], normal="NO_NORMAL_PART" not in flags)
    of_qos = _factors([rules.priority for rules in site.qos], normal="NO_NORMAL_QOS" not in flags)
    own = _job_size(cpus, parts, choices["plan_min"], site, nodes) + (site.priority.partition * of_partition)[partition]
    own += np.append(site.priority.qos * of_qos, 0.0)[record["qos"]]
    counts = _partition_tres(member, nodes, gpus, types)
    by_count = "NO_NORMAL_TRES" in site.priority.flags
    for name, weight in site.priority.tres.items():
        tres = name.lower()
        if tres in held:
            has = counts[tres][partition]
            own += weight * (held[tres] if by_count else np.divide(held[tres], has, where=has > 0, out=0.0 * has))
    # All CPUs of whole nodes are billed, as far as is known which nodes those will be.
    linear = site.select == "linear"
    whole = (record["exclusive"] > 0) | np.array([rules.exclusive or linear for rules in site.partitions])[partition]
    first_node = np.array([int(np.argmax(row)) for row in member])
    held["cpu"] = np.where(whole & (record["nodes"] > 0), parts * nodes["cpus"][first_node][partition], cpus)
    return own, _billing(held, partition, site)


def _members(part_nodes: NDArray[np.int64], n_nodes: int) -> NDArray[np.bool_]:
    node = np.arange(n_nodes)
    member: NDArray[np.bool_] = (part_nodes[:, node // WORD] >> (node % WORD)) & 1 == 1
    return member


def _job_size(
    cpus: Floats, parts: Floats, limit_min: NDArray[np.int64], site: SlurmSite, nodes: NDArray[np.void]
) -> Floats:
    rules, n_nodes, n_cpus = site.priority, float(len(nodes)), float(nodes["cpus"].sum())
    if "SMALL_RELATIVE_TO_TIME" in rules.flags:
        factor = np.maximum(parts * n_cpus / n_nodes, cpus) / limit_min / n_cpus
        factor = 1.0 - factor if rules.favor_small else factor
    elif rules.favor_small:
        factor = ((n_nodes - parts) / n_nodes + (n_cpus - cpus) / n_cpus) / 2
    else:
        factor = (parts / n_nodes + cpus / n_cpus) / 2
    return rules.job_size * factor.clip(0.0, 1.0)


def _factors(priorities: list[int], *, normal: bool) -> Floats:
    """Return the factors of partitions or QOS, at most 1 if ``normal``."""
    factors = np.array(priorities, dtype=np.float64)
    return factors / max(factors.max(initial=1.0), 1.0) if normal else factors


def _partition_tres(
    member: NDArray[np.bool_], nodes: NDArray[np.void], gpus: NDArray[np.int64], types: tuple[str, ...]
) -> dict[str, Floats]:
    """Return how much of each TRES every partition has."""
    by_type = gpus.reshape(len(nodes), len(types)).astype(np.float64)
    counts = {"cpu": nodes["cpus"], "mem": nodes["memory"], "node": np.ones(len(nodes)), "gres/gpu": by_type.sum(1)}
    counts |= {f"gres/gpu:{kind}": by_type[:, place] for place, kind in enumerate(types)}
    return {name: member @ count.astype(np.float64) for name, count in counts.items()}


def _billing(held: dict[str, Floats], partition: NDArray[np.int64], site: SlurmSite) -> Floats:
    billed = held["cpu"].copy()
    for code, rules in enumerate(site.partitions):
        if not rules.tres_billing:
            continue
        here = partition == code
        parts = [weight * held[name.lower()][here] for name, weight in rules.tres_billing.items() if name in held]
        if parts:
            billed[here] = np.max(parts, axis=0) if "MAX_TRES" in site.priority.flags else np.sum(parts, axis=0)
    return billed
