"""Tables of a replay, built from a site's setup and a workload."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.model.gpu_parts import part_of_gpu
from helios.model.slurm_site import SlurmSite
from helios.simulate.gpu_units import ERROR, choose_units, in_units
from helios.simulate.slurm.priority import TresTables, fixed_priority, share_tables
from helios.simulate.slurm.workload import (
    ALL,
    CHOICE,
    CLOCK,
    FREE,
    HOLDING,
    JOB,
    MS,
    NEVER,
    NOBODY,
    NODE,
    PARTITION,
    QOS,
    RUN,
    SLOT,
    WORD,
    YEAR_MIN,
    SlurmState,
    SlurmWorkload,
)

LONG_UP_S = 3600
"""How long before the first submission the controller started, s, where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLatency:
    """Reaction times of Slurm's controller.

    No configuration file has them. The defaults were measured on 22.05.8.

    Attributes
    ----------
    release_s : float
        From a job's end until its nodes are free and, where nodes have an epilog, the main scheduler makes a quick
        pass.
    tick_s : float
        Period of the background loop.
    poll_s : float
        Period at which the backfill thread checks whether anything changed.
    backfill_s, backfill_job_s : float
        How long a backfill pass takes, and how much more for each record in the queue. The next begins
        ``bf_interval`` after its end.
    loop_phase_s : float
        From the controller's start until the periods of its background loop and of priorities begin to count.
    controller_started_s : float, optional
        When the controller started, s since the epoch; None: an hour before the first submission.
    growth : float
        Least length of the periods of backfill and of priorities, as a share of the time since the beginning. No real
        controller has it. With it a simulation of days costs little more than one of hours.
    """

    release_s: float = 0.04
    tick_s: float = 1.003
    poll_s: float = 1.0
    backfill_s: float = 0.0003
    backfill_job_s: float = 0.00035
    loop_phase_s: float = 0.27
    controller_started_s: float | None = None
    growth: float = 0.0


def node_names(site: SlurmSite) -> tuple[str, ...]:
    """Return the node names in the order of the tables."""
    return tuple(name for group in site.nodes for name in group.names)


def build(workload: SlurmWorkload, site: SlurmSite, latency: SlurmLatency) -> SlurmState:
    """Return the tables of a cluster before the first submission.

    Whether a job could start in its partitions is not checked.
    """
    types = tuple({kind: None for group in site.nodes for kind in group.gpus} | dict.fromkeys(workload.gpu_types))
    nodes, held = _nodes(site, types)
    units = choose_units(np.concatenate([workload.column("gpus"), held]), total=ceil(held.sum()))
    gpus = np.floor(held * units + ERROR * units).astype(np.int64)
    names = node_names(site)
    part_nodes = _part_nodes(site, names)
    jobs = _jobs(workload, site, types, units)
    tres = TresTables(nodes=nodes, gpus=gpus, types=types, units=units, part_nodes=part_nodes)
    choices = _choices(workload, site, jobs, tres)
    shares, children, jobs["association"], n_users = share_tables(workload, site)
    clock = _clock(workload, site, latency)
    clock["words"], clock["types"], clock["users"] = part_nodes.shape[1], len(types), n_users
    clock["units"] = units
    n_nodes, n_choices, n_jobs = len(nodes), len(choices), len(jobs)
    free = np.zeros((2, n_nodes), dtype=FREE)
    free["cpus"], free["memory"] = nodes["cpus"], nodes["memory"]
    node, in_any_partition = np.arange(n_nodes), np.bitwise_or.reduce(part_nodes, axis=0)
    free["jobs"] = np.where((in_any_partition[node // WORD] >> (node % WORD)) & 1, 0, -1)  # -1: in no partition
    n_holdings = int(nodes["cpus"].sum() + gpus.sum()) + 2 * n_nodes + 2
    holdings = np.zeros(n_holdings, dtype=HOLDING)
    holdings["next"] = np.arange(1, n_holdings + 1)
    entering = np.argsort(jobs["enters_ms"], kind="stable").astype(np.int64)
    words = part_nodes.shape[1]
    n_slots = (site.scheduling.bf_node_space_size or site.scheduling.bf_max_job_test) + 2
    return SlurmState(
        clock=clock,
        jobs=jobs,
        choices=choices,
        partitions=_partitions(site),
        nodes=nodes,
        free=free,
        gpus=gpus,
        free_gpus=np.stack([gpus, gpus]),
        holdings=holdings,
        queue=np.zeros(n_choices + 1, dtype=np.int64),
        ends=np.zeros(n_holdings, dtype=np.int64),
        expected=np.zeros(n_holdings + 1, dtype=np.int64),
        ended=np.zeros(n_jobs, dtype=np.int64),
        entering=entering,
        part_nodes=part_nodes,
        slots=np.zeros(n_slots, dtype=SLOT),
        slot_nodes=np.full((n_slots, words), ALL, dtype=np.int64),
        words=np.zeros(3 * words, dtype=np.int64),
        runs=np.zeros(n_nodes + 1, dtype=RUN),
        picked=np.zeros(n_nodes + 1, dtype=np.int64),
        qos=_qos(site, units),
        user_gpus=np.zeros(len(workload.users) * max(len(site.qos), 1), dtype=np.int64),
        user_jobs=np.zeros(len(workload.users) * max(len(site.qos), 1), dtype=np.int64),
        user_tested=np.zeros(len(workload.users), dtype=np.int64),
        shares=shares,
        children=children,
        stack=np.zeros(3 * len(shares) + 6, dtype=np.int64),
    )


def _nodes(site: SlurmSite, types: tuple[str, ...]) -> tuple[NDArray[np.void], NDArray[np.float64]]:
    """Return the nodes, and the GPUs of each type on each.

    A MIG slice is its part of a GPU.
    """
    if not site.nodes:
        raise UsageError("the site has no nodes", hint="Give NodeName lines, or a dump of sinfo.")
    sizes = [len(group.names) for group in site.nodes]
    nodes = np.zeros(sum(sizes), dtype=NODE)
    for column, values in (
        ("cpus", [group.cpus for group in site.nodes]),
        ("memory", [group.memory_mib for group in site.nodes]),
        ("weight", [group.weight for group in site.nodes]),
    ):
        nodes[column] = np.repeat(values, sizes)
    gpus = [[group.gpus.get(kind, 0) * (part_of_gpu(kind) or 1.0) for kind in types] for group in site.nodes]
    return nodes, np.repeat(np.array(gpus, dtype=np.float64).reshape(len(sizes), len(types)), sizes, axis=0).ravel()


def _part_nodes(site: SlurmSite, names: tuple[str, ...]) -> NDArray[np.int64]:
    number = {name: node for node, name in enumerate(names)}
    sets = np.zeros((max(len(site.partitions), 1), (len(names) + WORD - 1) // WORD), dtype=np.int64)
    for partition, rules in enumerate(site.partitions):
        for name in rules.nodes if rules.is_up else ():
            if name not in number:
                raise UsageError(f"partition {rules.name!r} has a node {name!r}, which the site does not have")
            sets[partition, number[name] // WORD] |= 1 << (number[name] % WORD)
    return sets


def _partitions(site: SlurmSite) -> NDArray[np.void]:
    partitions = np.zeros(len(site.partitions), dtype=PARTITION)
    number = {rules.name: qos for qos, rules in enumerate(site.qos)}
    partitions["qos"] = [number.get(rules.qos, NOBODY) for rules in site.partitions]
    partitions["exclusive"] = [rules.exclusive or site.select == "linear" for rules in site.partitions]
    return partitions


def _qos(site: SlurmSite, units: int) -> NDArray[np.void]:
    qos = np.zeros(len(site.qos), dtype=QOS)
    for number, rules in enumerate(site.qos):
        qos[number]["user_gpus"] = NOBODY if rules.max_gpus_per_user is None else rules.max_gpus_per_user * units
        qos[number]["gpus"] = NOBODY if rules.max_gpus is None else rules.max_gpus * units
        qos[number]["user_jobs"] = NOBODY if rules.max_jobs_per_user is None else rules.max_jobs_per_user
        qos[number]["usage_factor"] = rules.usage_factor
    return qos


def _jobs(workload: SlurmWorkload, site: SlurmSite, types: tuple[str, ...], units: int) -> NDArray[np.void]:
    column, jobs = workload.column, np.zeros(len(workload), dtype=JOB)
    submitted_ms, eligible_ms = _in_ms(workload.submitted_s), _in_ms(column("eligible_s"))
    jobs["submitted_s"], jobs["eligible_ms"] = submitted_ms // MS, np.maximum(eligible_ms, submitted_ms)
    jobs["enters_ms"], jobs["asks_for_pass"] = jobs["eligible_ms"], eligible_ms <= submitted_ms
    if "ACCRUE_ALWAYS" in site.priority.flags:
        jobs["eligible_ms"] = submitted_ms
    jobs["run_ms"] = _in_ms(workload.run_time_s)
    for name in ("started_ms", "ended_ms", "freed_ms", "planned_s", "expected_s", "soft_end_s"):
        jobs[name] = NEVER
    jobs["time_min"] = _to_minutes(column("time_min_s"))
    nodes = column("nodes")
    parts = np.maximum(nodes, 1)
    gpus = in_units(column("gpus"), units)
    jobs["nodes"], jobs["cpus"], jobs["gpus"] = nodes, -(-column("cpus") // parts), -(-gpus // parts)
    type_number = np.array([types.index(kind) for kind in workload.gpu_types] + [NOBODY])
    jobs["gpu_type"] = type_number[column("gpu_type")]
    jobs["memory"] = column("memory_mib")
    for name in ("exclusive", "user", "nice"):
        jobs[name] = column(name)
    jobs["site_factor"] = column("site_factor")
    qos_codes = {rules.name: qos for qos, rules in enumerate(site.qos)}
    jobs["qos"] = np.array([qos_codes.get(name, NOBODY) for name in workload.qos_names] + [NOBODY])[column("qos")]
    jobs["first_share"] = NOBODY
    link_tasks(jobs, *array_chains(workload))
    return jobs


def _in_ms(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * MS).astype(np.int64)


def _to_minutes(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ceil(seconds / 60 - 1e-9).astype(np.int64)


def array_chains(workload: SlurmWorkload) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the array tasks in order, with their chains.

    Only tasks of one array that ask for the same are in one chain.
    """
    columns = [
        workload.column(name)
        for name in (
            *("submitted_s", "eligible_s", "time_limit_s", "time_min_s", "partition", "nodes", "cpus", "gpus"),
            *("gpu_type", "memory_mib", "exclusive", "user", "account", "qos", "nice", "site_factor"),
        )
    ]
    array = workload.column("array")
    tasks = np.flatnonzero(array >= 0)
    tasks = tasks[np.lexsort((tasks, array[tasks]))]
    first, second = tasks[:-1], tasks[1:]
    linked = array[first] == array[second]
    for column in columns:
        linked &= column[first] == column[second]
    if workload.more_partitions:
        partitions_of = workload.more_partitions
        same_partitions = [
            partitions_of.get(int(job)) == partitions_of.get(int(next_job))
            for job, next_job in zip(first, second, strict=True)
        ]
        linked &= np.array(same_partitions, dtype=np.bool_)
    return tasks, np.cumsum(np.concatenate([[False], ~linked]))[: len(tasks)].astype(np.int64)


def link_tasks(jobs: NDArray[np.void], tasks: NDArray[np.int64], chain: NDArray[np.int64]) -> None:
    """Link each array task to its neighbours.

    NOBODY: there is none.
    """
    first, second = tasks[:-1], tasks[1:]
    linked = chain[:-1] == chain[1:]
    jobs["next_task"] = jobs["previous_task"] = NOBODY
    jobs["next_task"][first[linked]], jobs["previous_task"][second[linked]] = second[linked], first[linked]


def _choices(
    workload: SlurmWorkload,
    site: SlurmSite,
    jobs: NDArray[np.void],
    tres: TresTables,
) -> NDArray[np.void]:
    """Return a row for each partition in which each job may run.

    It also sets where the rows of each job are.
    """
    number = {rules.name: code_in_site for code_in_site, rules in enumerate(site.partitions)}
    unknown = sorted({workload.partitions[code] for code in np.unique(workload.partition)} - set(number))
    if unknown:
        raise PartitionUnknown(
            f"jobs name partitions that the site does not have: {', '.join(unknown)}",
            hint=f"It has {', '.join(number)}.",
        )
    code_in_site = np.array([number.get(name, NOBODY) for name in workload.partitions])
    job, partition = np.arange(len(workload)), code_in_site[workload.partition]
    more = [
        (job_number, code_in_site[code])
        for job_number, codes in sorted((workload.more_partitions or {}).items())
        for code in codes
    ]
    if more:
        extra = np.array(more, dtype=np.int64)
        job, partition = np.concatenate([job, extra[:, 0]]), np.concatenate([partition, extra[:, 1]])
        job, partition = job[partition >= 0], partition[partition >= 0]
        order = np.argsort(job, kind="stable")
        job, partition = job[order], partition[order]
    choices = np.zeros(len(job), dtype=CHOICE)
    choices["job"], choices["partition"] = job, partition
    limit_s = workload.column("time_limit_s")[job]
    for code, rules in enumerate(site.partitions):
        in_partition = partition == code
        longest = YEAR_MIN if rules.max_time_s is None else max(rules.max_time_s // 60, 1)
        default = longest if rules.default_time_s is None else min(max(rules.default_time_s // 60, 1), longest)
        asked_min = _to_minutes(limit_s[in_partition])
        # Backfill plans a job without a limit with the partition's longest; it gets the default when it starts.
        choices["plan_min"][in_partition] = np.where(asked_min > 0, np.minimum(asked_min, longest), longest)
        choices["limit_min"][in_partition] = np.where(asked_min > 0, asked_min, default)
        choices["longest_min"][in_partition] = NEVER if rules.max_time_s is None else longest
        choices["tier"][in_partition] = rules.priority_tier
    choices["memory"] = _memory(choices, jobs, site, tres.units)
    choices["fixed"], choices["billing"] = fixed_priority(choices, jobs, site, tres)
    edges = np.searchsorted(job, np.arange(len(workload) + 1))
    jobs["first_choice"], jobs["choices"] = edges[:-1], np.diff(edges)
    return choices


def _memory(choices: NDArray[np.void], jobs: NDArray[np.void], site: SlurmSite, gpu_units: int) -> NDArray[np.int64]:
    """Return the memory of each choice, MiB.

    -1: all of the node's.
    """
    record = jobs[choices["job"]]
    units = np.maximum(
        np.where(record["nodes"] > 0, record["nodes"], np.where(record["gpus"] > 0, record["gpus"], record["cpus"])), 1
    )
    requested = -(-record["memory"] // units)
    default = np.full(len(choices), -1, dtype=np.int64)
    for code, rules in enumerate(site.partitions):
        in_partition = choices["partition"] == code
        spread = np.where(record["nodes"] > 0, 1, units)
        if rules.def_mem_per_node_mib > 0:
            default[in_partition] = -(-rules.def_mem_per_node_mib // spread[in_partition])
        if rules.def_mem_per_cpu_mib > 0:
            default[in_partition] = -(-rules.def_mem_per_cpu_mib * record["cpus"][in_partition] // spread[in_partition])
        if rules.def_mem_per_gpu_mib > 0:
            spread_units = spread[in_partition] * gpu_units
            by_gpu = -(-rules.def_mem_per_gpu_mib * record["gpus"][in_partition] // spread_units)
            default[in_partition] = np.where(record["gpus"][in_partition] > 0, by_gpu, default[in_partition])
    chosen: NDArray[np.int64] = np.where(requested > 0, requested, default)
    return chosen


def _clock(workload: SlurmWorkload, site: SlurmSite, latency: SlurmLatency) -> NDArray[np.void]:
    rules, priority, clock = site.scheduling, site.priority, np.zeros(1, dtype=CLOCK)
    begin_ms = int(workload.submitted_s[0] // 1) * MS if len(workload) else 0
    boot_ms = begin_ms - LONG_UP_S * MS
    if latency.controller_started_s is not None:
        boot_ms = round(latency.controller_started_s * MS)
    loop_ms = boot_ms + round(latency.loop_phase_s * MS)
    clock["now_ms"] = min(begin_ms, boot_ms) - 1
    clock["tick_origin_ms"] = clock["last_full_ms"] = clock["last_priority_ms"] = loop_ms
    clock["last_background_ms"] = clock["last_pass_ms"] = loop_ms
    clock["last_backfill_ms"] = clock["updated_ms"] = clock["first_update_ms"] = boot_ms
    clock["pass_asked_ms"] = NEVER
    half_life_s = _ceil_to_minute(priority.decay_half_life_s)
    backfill = rules.backfill and rules.bf_interval_s > 0
    for name, value in {
        "quick_depth": rules.default_queue_depth,
        "most_starts": rules.sched_max_job_start,
        "partition_depth": rules.partition_job_depth,
        "sched_interval_s": rules.sched_interval_s,
        "min_interval_ms": round(rules.sched_min_interval_s * MS),
        "batch_delay_s": rules.batch_sched_delay_s,
        "tick_ms": max(round(latency.tick_s * MS), 1),
        "release_ms": round(latency.release_s * MS),
        "ends_ask": rules.defer or not rules.epilog,
        "backfill_interval_ms": rules.bf_interval_s * MS if backfill else -1,
        "growth": latency.growth,
        "origin_ms": boot_ms,
        "pass_us": round(latency.backfill_s * 1e6),
        "record_us": round(latency.backfill_job_s * 1e6),
        "poll_ms": max(round(latency.poll_s * MS), 1),
        "window_s": rules.bf_window_s,
        "tolerance_s": max(rules.bf_resolution_s, 1),
        "max_test": rules.bf_max_job_test,
        "max_array": rules.bf_max_job_array_resv,
        "max_part": rules.bf_max_job_part,
        "max_user": rules.bf_max_job_user,
        "max_start": rules.bf_max_job_start,
        "soft": rules.time_min_is_soft,
        "least_loaded": site.least_loaded,
        "holds_memory": site.holds_memory,
        "multifactor": priority.multifactor,
        "fair_tree": priority.fair_tree,
        "calc_period_ms": _ceil_to_minute(priority.calc_period_s) * MS,
        "max_age_s": max(_ceil_to_minute(priority.max_age_s), 1),
        "age_weight": priority.age,
        "fair_weight": priority.fairshare if site.shares else 0,
        # Slurm's own approximation of 2^(-1/half-life).
        "decay": 1 - 0.693 / half_life_s if half_life_s > 0 else 1.0,
    }.items():
        clock[name] = value
    return clock


def _ceil_to_minute(seconds: int) -> int:
    """Round up to whole minutes, as Slurm keeps its priority settings."""
    return -(-seconds // 60) * 60


def refuse_misfits(workload: SlurmWorkload, fits: NDArray[np.bool_]) -> None:
    """Raise unless every job could start on an empty cluster.

    ``fits``, of shape (n_jobs,), is whether each could start in one of its partitions.

    Raises
    ------
    JobLargerThanPartition
        A job asks for more than its partitions have, or for more time than they give.
    """
    if not fits.all():
        raise JobLargerThanPartition(
            f"{int((~fits).sum()):,} jobs could never start, as job {workload.job_id[np.argmin(fits)]}: they ask for "
            "more than their partitions have, or for a longer time than those allow",
            hint="Leave them out: workload.kept(startable(workload, site)).",
        )
