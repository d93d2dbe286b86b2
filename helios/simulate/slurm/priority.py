"""Priorities of pending jobs, and the queue in their order.

The order is that of ``sort_job_queue2`` of Slurm's ``job_scheduler.c``: PriorityTier of the partition, priority, submit
time, job id. The priority is that of ``priority_multifactor.c``: a sum of doubles, truncated to 32 bits. Age and fair
share are updated once in each ``PriorityCalcPeriod`` only, so the queue stays sorted in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.jit import kernel
from helios.model.slurm_site import Share, SlurmSite
from helios.simulate.slurm.workload import MS, NEVER, NOBODY, PENDING, SHARE, WORD, Floats, SlurmState, SlurmWorkload

LARGEST = 2**32 - 1
"""Highest priority of Slurm, a 32-bit number."""


@kernel
def comes_before(state: SlurmState, choice: int, other: int) -> bool:
    """Return whether ``choice`` comes before ``other`` in the queue."""
    row, other_row = state.choices[choice], state.choices[other]
    if row.tier != other_row.tier:
        return bool(row.tier > other_row.tier)
    if row.priority != other_row.priority:
        return bool(row.priority > other_row.priority)
    submitted_s, later_s = state.jobs[row.job].submitted_s, state.jobs[other_row.job].submitted_s
    if submitted_s != later_s:
        return bool(submitted_s < later_s)
    return choice < other


@kernel
def queue_position(state: SlurmState, choice: int) -> int:
    """Return the position in the queue where ``choice`` is, or belongs."""
    low, high = 0, state.clock[0].queued
    while low < high:
        middle = (low + high) // 2
        if comes_before(state, state.queue[middle], choice):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def enqueue(state: SlurmState, job: int) -> None:
    """Put all choices of ``job``, whose priorities are known, into the queue."""
    clock, record = state.clock[0], state.jobs[job]
    for choice in range(record.first_choice, record.first_choice + record.choices):
        position = queue_position(state, choice)
        for later in range(clock.queued, position, -1):
            state.queue[later] = state.queue[later - 1]
        state.queue[position] = choice
        clock.queued += 1
    record.status = PENDING


@kernel
def remove_from_queue(state: SlurmState, job: int, position: int) -> int:
    """Take all choices of ``job`` out of the queue.

    Returns how many of them were before ``position``.
    """
    clock, record, earlier = state.clock[0], state.jobs[job], 0
    for choice in range(record.first_choice, record.first_choice + record.choices):
        index = queue_position(state, choice)
        if index < position - earlier:
            earlier += 1
        clock.queued -= 1
        for later in range(index, clock.queued):
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
    common = _age_factor(state, job) * clock.age_weight
    if record.association != NOBODY:
        common += state.shares[record.association].factor * clock.fair_weight
    for choice in range(record.first_choice, record.first_choice + record.choices):
        total = common + state.choices[choice].fixed + record.site_factor - record.nice
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
    """Recompute the priorities of the queue and sort it.

    Returns whether the order changed.
    """
    clock, moved = state.clock[0], False
    for i in range(clock.queued):
        job = state.choices[state.queue[i]].job
        if state.queue[i] == state.jobs[job].first_choice:
            compute_priority(state, job)
    for i in range(1, clock.queued):
        choice, gap = state.queue[i], i
        while gap > 0 and comes_before(state, choice, state.queue[gap - 1]):
            state.queue[gap] = state.queue[gap - 1]
            gap -= 1
            moved = True
        state.queue[gap] = choice
    return moved


@kernel
def note_change(state: SlurmState, now_ms: int) -> None:
    """Note a change at ``now_ms`` that may let another job start."""
    clock = state.clock[0]
    clock.changed_for_backfill, clock.changed_for_main = 1, 1
    note_update(state, now_ms)


@kernel
def note_update(state: SlurmState, now_ms: int) -> None:
    """Note an update of jobs or nodes for the backfill thread."""
    clock = state.clock[0]
    # An update during a backfill pass waits for the end of the pass, which holds the locks.
    clock.updated_ms = max(now_ms, clock.last_backfill_ms)
    if clock.first_update_ms == NEVER:
        clock.first_update_ms = now_ms


# Fair share, after ``priority_multifactor.c`` and ``fair_tree.c``.
#
# Usage is billed TRES (CPUs, unless the partition bills otherwise) x s x the QOS's factor. It is charged to a user's
# association and all above it. Each ``PriorityCalcPeriod`` usage decays, running jobs are charged, and the factors are
# computed anew.
@kernel
def charge_usage(state: SlurmState, job: int, until_ms: int) -> None:
    """Charge the usage of ``job`` since the last calculation, up to ``until_ms``."""
    clock, record = state.clock[0], state.jobs[job]
    if record.association == NOBODY:
        return
    since_ms = max(record.started_ms, clock.last_priority_ms)
    ran_s = max(until_ms - since_ms, 0) / MS
    usage = ran_s * clock.decay**ran_s * record.billing
    if record.qos >= 0:
        usage *= state.qos[record.qos].usage_factor
    clock.charged = 1
    share = record.association
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
    for i in range(clock.running):
        job = state.ends[i]
        if state.jobs[job].ended_ms > clock.last_priority_ms:
            charge_usage(state, job, min(clock.now_ms, state.jobs[job].ended_ms))
    clock.charged = 0
    compute_share_factors(state)


@kernel
def compute_share_factors(state: SlurmState) -> None:
    """Compute the factor of each user's association from the usage."""
    if len(state.shares) == 0:
        return
    if state.clock[0].fair_tree:
        _fair_tree_factors(state)
    else:
        _classic_factors(state)


@kernel
def _classic_factors(state: SlurmState) -> None:
    """Compute the classic factor, 2^(-effective usage / shares), parents before children."""
    root = state.shares[0]
    for share in range(1, len(state.shares)):
        record = state.shares[share]
        used = min(record.usage / root.usage, 1.0) if root.usage > 0 else 0.0
        if record.shares < 0:
            record.effective = state.shares[record.parent].effective
        elif record.fair_parent == 0:
            record.effective = used
        else:
            parent_effective = state.shares[record.fair_parent].effective
            record.effective = parent_effective
            if record.level_shares > 0:
                record.effective = used + (parent_effective - used) * record.shares / record.level_shares
        record.factor = 2.0 ** -(record.effective / record.norm) if record.norm > 0 else 0.0


@kernel
def _fair_tree_factors(state: SlurmState) -> None:
    """Compute the Fair Tree factor, a user's rank / number of users.

    As in Slurm's ``_count_tied_accounts``, accounts that tie are not merged: the first user of the second account ties
    with the last of the first.
    """
    rank = untied = state.clock[0].users
    stack, depth = state.stack, 1
    # For each level: the account, its next child, and whether its first child ties with the user before it.
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
    """Sort the children of ``account`` by level, highest first, users before accounts."""
    first, end = state.shares[account].first_child, state.shares[account].first_child + state.shares[account].children
    for i in range(first, end):
        child = state.children[i]
        state.shares[child].level = _level(state, child)
        gap = i
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
    parent_usage = state.shares[record.fair_parent].usage
    used = record.usage / parent_usage if parent_usage > 0 else 0.0
    return shares / used if used > 0 else float("inf")


@kernel
def _goes_before(state: SlurmState, share: int, other: int) -> bool:
    record, other_record = state.shares[share], state.shares[other]
    if record.level != other_record.level:
        return bool(record.level > other_record.level)
    return bool(record.is_user > other_record.is_user)


def share_tables(
    workload: SlurmWorkload, site: SlurmSite
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64], int]:
    """Return the tree of accounts and users as tables, parents first.

    A user who is not in the site's tree gets one share in the account that the job names, if that is there.

    Returns
    -------
    shares : array of SHARE
        Accounts and users.
    children : int64 array
        Children of all of them, one parent's after another's.
    association : int64 array of shape (n_jobs,)
        Position of each job's user in ``shares``; NOBODY: none.
    n_users : int
        Users in the tree.
    """
    if not site.shares:
        return np.zeros(0, SHARE), np.zeros(0, np.int64), np.full(len(workload), NOBODY, dtype=np.int64), 0
    account, user = workload.column("account"), workload.column("user")
    codes, pair_of_job = np.unique(np.stack([account, user]), axis=1, return_inverse=True)
    job_pairs = [
        (workload.accounts[account_code], workload.users[user_code]) for account_code, user_code in codes.T.tolist()
    ]
    tree = _in_order(site.shares, job_pairs)
    number_of = {(share.account, share.user): number for number, share in enumerate(tree)}
    association = np.array([number_of.get(pair, NOBODY) if pair[1] else NOBODY for pair in job_pairs], dtype=np.int64)
    shares = _tables(tree)
    children = np.argsort(shares["parent"], kind="stable").astype(np.int64)
    edges = np.searchsorted(shares["parent"][children], np.arange(len(shares) + 1))
    shares["first_child"], shares["children"] = edges[:-1], np.diff(edges)
    return shares, children, association[pair_of_job.ravel()], int(shares["is_user"].sum())


def _in_order(shares: tuple[Share, ...], job_pairs: list[tuple[str, str]]) -> list[Share]:
    """Return the tree breadth first, below one root, with missing users added."""
    accounts = {share.account: share for share in shares if not share.user}
    roots = [share for share in accounts.values() if not share.parent or share.parent not in accounts]
    root = roots[0] if len(roots) == 1 and not roots[0].parent else Share(account="root")
    known_pairs = {(share.account, share.user) for share in shares}
    missing = [
        Share(account=account, user=user)
        for account, user in job_pairs
        if user and account in accounts and (account, user) not in known_pairs
    ]
    children: dict[str, list[Share]] = {}
    for share in (*shares, *missing):
        if share is root:
            continue
        parent = share.account if share.user else share.parent
        # An account without a parent in the tree goes below the root.
        parent_account = parent if parent in accounts and parent != root.account else root.account
        children.setdefault(parent_account, []).append(share)
    tree, i = [root], 0
    while i < len(tree):
        if not tree[i].user:
            tree.extend(children.get(tree[i].account, ()))
        i += 1
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
        # An account has used what its users have used, or more where the dump says so.
        below = shares["usage"][shares["parent"] == number].sum()
        shares["usage"][number] = max(shares["usage"][number], below)
    return shares


def _fair_parent(shares: NDArray[np.void], number: int) -> int:
    ancestor = int(shares[number]["parent"])
    while ancestor > 0 and shares[ancestor]["shares"] < 0:
        ancestor = int(shares[ancestor]["parent"])
    return ancestor


def _share_levels(shares: NDArray[np.void]) -> None:
    """Normalise the shares down the tree."""
    competes = shares["shares"] >= 0
    for number in range(1, len(shares)):
        record = shares[number]
        level = competes & (shares["fair_parent"] == record["fair_parent"])
        level[0] = False
        record["level_shares"] = shares["shares"][level].sum()
        parent_norm = shares[record["fair_parent"]]["norm"]
        fraction = record["shares"] / record["level_shares"] if record["level_shares"] > 0 else 0.0
        record["norm"] = parent_norm if record["shares"] < 0 else parent_norm * fraction


# Constant terms of a priority and the billing, after ``set_priority_factors`` of Slurm's ``priority_multifactor.c``.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TresTables:
    """What the nodes of a site have.

    Attributes
    ----------
    nodes : array of shape (n_nodes,)
        Records of type ``NODE``.
    gpus : int64 array of shape (n_nodes * len(types),)
        GPUs of each node and type, in ``units`` of one.
    types : tuple of str
    units : int
        Units of a GPU.
    part_nodes : int64 array of shape (n_partitions, n_words)
        Sets of nodes.
    """

    nodes: NDArray[np.void]
    gpus: NDArray[np.int64]
    types: tuple[str, ...]
    units: int
    part_nodes: NDArray[np.int64]


def fixed_priority(
    choices: NDArray[np.void], jobs: NDArray[np.void], site: SlurmSite, tres: TresTables
) -> tuple[Floats, Floats]:
    """Return the constant part of each choice's priority, and its billed TRES.

    The constant part is the weighted sum of the factors of size, partition, QOS and TRES.
    """
    record, partition, nodes = jobs[choices["job"]], choices["partition"], tres.nodes
    parts = np.maximum(record["nodes"], 1).astype(np.float64)
    cpus = record["cpus"] * parts
    membership = _members(tres.part_nodes, len(nodes))
    gpus = record["gpus"] * parts / tres.units
    held = {"cpu": cpus, "node": parts, "mem": record["memory"].astype(np.float64), "gres/gpu": gpus}
    for number, kind in enumerate(tres.types):
        held[f"gres/gpu:{kind}"] = np.where(record["gpu_type"] == number, gpus, 0.0)
    flags = site.priority.flags
    of_partition = _factors(
        [rules.priority_job_factor for rules in site.partitions], normal="NO_NORMAL_PART" not in flags
    )
    of_qos = _factors([rules.priority for rules in site.qos], normal="NO_NORMAL_QOS" not in flags)
    fixed = (
        _job_size(cpus, parts, choices["plan_min"], site, nodes) + (site.priority.partition * of_partition)[partition]
    )
    fixed += np.append(site.priority.qos * of_qos, 0.0)[record["qos"]]
    counts = _partition_tres(membership, tres)
    by_count = "NO_NORMAL_TRES" in site.priority.flags
    for name, weight in site.priority.tres.items():
        if (amount := held.get(name.lower())) is not None:
            total = counts[name.lower()][partition]
            fixed += weight * (amount if by_count else np.divide(amount, total, where=total > 0, out=0.0 * total))
    # All CPUs of whole nodes are billed. The nodes are not known yet, so the partition's first one counts.
    linear = site.select == "linear"
    whole_nodes = (record["exclusive"] > 0) | np.array([rules.exclusive or linear for rules in site.partitions])[
        partition
    ]
    first_node = np.array([int(np.argmax(row)) for row in membership])
    held["cpu"] = np.where(whole_nodes & (record["nodes"] > 0), parts * nodes["cpus"][first_node][partition], cpus)
    return fixed, _billing(held, partition, site)


def _members(part_nodes: NDArray[np.int64], n_nodes: int) -> NDArray[np.bool_]:
    node = np.arange(n_nodes)
    membership: NDArray[np.bool_] = (part_nodes[:, node // WORD] >> (node % WORD)) & 1 == 1
    return membership


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


def _partition_tres(membership: NDArray[np.bool_], tres: TresTables) -> dict[str, Floats]:
    """Return how much of each TRES every partition has."""
    nodes = tres.nodes
    by_type = tres.gpus.reshape(len(nodes), len(tres.types)) / tres.units
    counts = {"cpu": nodes["cpus"], "mem": nodes["memory"], "node": np.ones(len(nodes)), "gres/gpu": by_type.sum(1)}
    counts |= {f"gres/gpu:{kind}": by_type[:, number] for number, kind in enumerate(tres.types)}
    return {name: membership @ count.astype(np.float64) for name, count in counts.items()}


def _billing(held: dict[str, Floats], partition: NDArray[np.int64], site: SlurmSite) -> Floats:
    billed = held["cpu"].copy()
    for code, rules in enumerate(site.partitions):
        if not rules.tres_billing:
            continue
        in_partition = partition == code
        parts = [
            weight * held[name.lower()][in_partition] for name, weight in rules.tres_billing.items() if name in held
        ]
        if parts:
            billed[in_partition] = np.max(parts, axis=0) if "MAX_TRES" in site.priority.flags else np.sum(parts, axis=0)
    return billed
