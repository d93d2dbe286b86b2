"""Choice of the rule for nodes awake from replayed jobs.

The limit that no rule can pass follows from the same replay, in which the safe rule lets nodes sleep. Were all nodes
awake in it, jobs that are placed at random would be spread over all of them. On Venus from April to July the rule would
then seem to save 15 % less than it does; as it is, 2 % more or less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from helios.config import Energy
from helios.metrics.node_usage import NodeSeconds, payback_s
from helios.metrics.spare_nodes import (
    CHECK_S,
    CYCLES_PER_NODE_DAY,
    SAFE_RULE,
    WEEKS,
    AwakeRule,
    SpareChoice,
    choose_rules,
    use_by_minute,
)
from helios.model import PoolUse
from helios.simulate import ClusterShape, SimCluster, Workload
from helios.simulate.node_series import SeriesRun, oracle_levels, replay_levels
from helios.units import DAY_S

TIMER_S = 1_800
"""Idle timer of the comparisons in which some nodes stay awake, s."""
PLAIN_RULE = AwakeRule(memory_s=10_800, spare=5, wakes="short", every_s=600)
"""The most of the last 3 h and 5 nodes, every ten minutes, waking only once a job had to wake a node."""


def use_of_pools(
    cluster: SimCluster, workload: Workload, shape: ClusterShape, *, begin_s: int, end_s: int
) -> dict[str, PoolUse]:
    """Return the use of each partition by minute in a replay.

    It begins with the first job, where that is later than ``begin_s``.
    """
    holding = cluster.holding()
    uses = {}
    for partition, name in enumerate(shape.partitions):
        rows = holding.partition == partition
        uses[name] = use_by_minute(
            holding.at_s[rows],
            holding.nodes[rows],
            nodes=int(shape.nodes[partition]),
            begin_s=max(begin_s, holding.since_s),
            end_s=end_s,
            submitted_s=workload.submitted_s[workload.partition == partition],
        )
    return uses


def choose_spare_nodes(
    cluster: SimCluster,
    workload: Workload,
    shape: ClusterShape,
    energy: Energy,
    *,
    before_s: int,
    delayed_submissions: float,
    since_s: int | None = None,
) -> dict[str, SpareChoice]:
    """Return the rule of each partition, chosen on the weeks before ``before_s``.

    Parameters
    ----------
    cluster : SimCluster
        After a replay under the safe rule.
    delayed_submissions : float
        As for :func:`choose_rules`.
    since_s : int, optional
        Begin of the weeks; None: ``WEEKS`` before.
    """
    begin_s = before_s - 7 * WEEKS * DAY_S if since_s is None else since_s
    uses = use_of_pools(cluster, workload, shape, begin_s=begin_s, end_s=before_s)
    return choose_rules(uses, energy, delayed_submissions=delayed_submissions, cycles_per_node_day=CYCLES_PER_NODE_DAY)


def safe_rules(shape: ClusterShape) -> tuple[AwakeRule, ...]:
    """Return the safe rule for each partition."""
    return (SAFE_RULE,) * len(shape.partitions)


def chosen_rules(
    choices: Mapping[str, SpareChoice], *, spare: int | None = None, timer: bool | None = None
) -> tuple[AwakeRule, ...]:
    """Return the chosen rule of each partition, or a rule like it.

    Parameters
    ----------
    spare : int, optional
        Spare nodes of each partition instead of the chosen number.
    timer : bool, optional
        The cluster's own idle timer leaves as many nodes awake: of those not in use (True, Slurm before 24.05), or of
        all (False, since then).
    """
    rules = (choice.rule if spare is None else replace(choice.rule, spare=spare) for choice in choices.values())
    if timer is None:
        return tuple(rules)
    return tuple(
        AwakeRule(memory_s=0, spare=rule.spare, wakes="never", least_idle_s=TIMER_S, counts_use=timer) for rule in rules
    )


def oracle_run(uses: Mapping[str, PoolUse], energy: Energy, always_on: SeriesRun) -> SeriesRun:
    """Return what nodes do if it is known when each will be needed.

    Each sleeps through every idle time that is long enough and is up again in time, for the jobs and the placement of
    ``uses``. The GPUs in use are those of ``always_on``, of the same hours.
    """
    runs = []
    for use in uses.values():
        busy = use.most.astype(np.float64)
        levels = levels_of_oracle(busy, energy, step_s=CHECK_S)
        total = np.full(len(busy), float(use.nodes))
        runs.append(
            replay_levels(
                busy,
                total,
                levels,
                step_s=CHECK_S,
                decide_every=1,
                boot_s=energy.boot_s,
                shutdown_s=energy.shutdown_s,
                may_sleep_between=True,
            )
        )
    hourly = tuple(
        replace(sum(hours, NodeSeconds()), gpus_busy=work.gpus_busy, cpus_busy=work.cpus_busy)
        for *hours, work in zip(*(run.hourly for run in runs), always_on.hourly, strict=True)
    )
    return SeriesRun(
        hourly=hourly,
        wakes=sum(run.wakes for run in runs),
        sleeps=sum(run.sleeps for run in runs),
        woken=sum(run.woken for run in runs),
        shortages=0,
        short_s=0.0,
        mean_asleep=sum(run.mean_asleep for run in runs),
        utilization_before=always_on.utilization_before,
    )


def levels_of_oracle(busy: NDArray[np.float64], energy: Energy, *, step_s: int) -> NDArray[np.float64]:
    """Return the nodes awake in each step if all long idle times are slept through."""
    least_s = energy.boot_s + energy.shutdown_s + min(payback_s(energy), DAY_S)
    return oracle_levels(busy, boot_steps=math.ceil(energy.boot_s / step_s), least_steps=math.ceil(least_s / step_s))
