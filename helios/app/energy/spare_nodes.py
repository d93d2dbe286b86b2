"""Nodes in use in a replay, the limit, and the rule's rivals.

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
    SAFE_RULE,
    AwakeRule,
    SpareChoice,
    use_by_minute,
)
from helios.model import PoolUse
from helios.simulate import ClusterShape, Workload
from helios.simulate.cluster_nodes import NodeHolding
from helios.simulate.node_series import SeriesRun, oracle_levels, replay_levels
from helios.units import DAY_S

TIMER_S = 1_800
"""Idle timer of the comparisons, s."""
PLAIN_RULE = AwakeRule(memory_s=10_800, spare=5, wakes="short", every_s=600)
"""The most of the last 3 h and 5 nodes, every ten minutes, waking only once a job had to wake a node."""


def use_of_pools(
    holding: NodeHolding, workload: Workload, shape: ClusterShape, *, begin_s: int, end_s: int
) -> dict[str, PoolUse]:
    """Return the use of each partition by minute in a replay.

    It begins with the first job, where that is later than ``begin_s``.
    """
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


def safe_rules(shape: ClusterShape) -> tuple[AwakeRule, ...]:
    """Return the safe rule for each partition."""
    return (SAFE_RULE,) * len(shape.partitions)


def timer_rule(spare: int, *, counts_busy: bool) -> AwakeRule:
    """Return the cluster's own idle timer, which leaves some nodes awake.

    Parameters
    ----------
    counts_busy : bool
        Whether these are of all nodes (Slurm since 24.05), or of those not in use.
    """
    return AwakeRule(memory_s=0, spare=spare, wakes="never", least_idle_s=TIMER_S, counts_use=not counts_busy)


def chosen_rules(choices: Mapping[str, SpareChoice], *, spare: int | None = None) -> tuple[AwakeRule, ...]:
    """Return the chosen rule of each partition, or one like it.

    Parameters
    ----------
    spare : int, optional
        Spare nodes of each partition instead of the chosen number.
    """
    return tuple(choice.rule if spare is None else replace(choice.rule, spare=spare) for choice in choices.values())


def oracle_run(uses: Mapping[str, PoolUse], energy: Energy, always_on: SeriesRun) -> SeriesRun:
    """Return what nodes do if it is known when each will be needed.

    Each sleeps through every idle time that is long enough and is up again in time, for the jobs and the placement of
    ``uses``. The GPUs in use are those of ``always_on``, of the same hours.
    """
    runs = []
    for use in uses.values():
        busy = use.most.astype(np.float64)
        runs.append(
            replay_levels(
                busy,
                np.full(len(busy), float(use.nodes)),
                levels_of_oracle(busy, energy, step_s=CHECK_S),
                step_s=CHECK_S,
                boot_s=energy.boot_s,
                shutdown_s=energy.shutdown_s,
            )
        )
    hourly = tuple(
        replace(sum(hours, NodeSeconds()), gpus_busy=work.gpus_busy, cpus_busy=work.cpus_busy)
        for *hours, work in zip(*(run.hourly for run in runs), always_on.hourly, strict=True)
    )
    return SeriesRun(
        hourly=hourly,
        woken=sum(run.woken for run in runs),
        short_s=0.0,
        mean_asleep=sum(run.mean_asleep for run in runs),
        utilization_before=always_on.utilization_before,
    )


def levels_of_oracle(busy: NDArray[np.float64], energy: Energy, *, step_s: int) -> NDArray[np.float64]:
    """Return nodes awake by step if all long idle times are slept."""
    least_s = energy.boot_s + energy.shutdown_s + min(payback_s(energy), DAY_S)
    return oracle_levels(busy, boot_steps=math.ceil(energy.boot_s / step_s), least_steps=math.ceil(least_s / step_s))
