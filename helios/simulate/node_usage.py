"""Use of nodes in a replay over time.

It covers how many nodes held a job, and node seconds in each power state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.metrics.energy import NodeSeconds
from helios.simulate.core.state import EngineState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeHolding:
    """Times at which the number of nodes that hold a job changed.

    A number that lasted no time is left out.

    Attributes
    ----------
    at_s : int64 array
        When, s since the epoch; ascending within a partition.
    partition, nodes : int64 arrays
        Where, and how many from then on.
    n_partitions : int
        Number of partitions.
    since_s, until_s : int
        Begin and end of the count, s since the epoch.
    """

    at_s: NDArray[np.int64]
    partition: NDArray[np.int64]
    nodes: NDArray[np.int64]
    n_partitions: int
    since_s: int
    until_s: int

    def in_steps(self, step_s: int) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return the most and the mean number of nodes in each step.

        Steps begin at whole multiples of ``step_s`` since the epoch.

        Returns
        -------
        start_s : int
            Begin of the first step, that in which the first job was submitted.
        most, mean : float64 arrays of shape (n_partitions, n_steps)
            Most nodes that held a job at once, and their average, up to the step in which the count ends; nothing is
            held before and after it.

        Raises
        ------
        UsageError
            ``step_s`` is not positive.
        """
        if step_s < 1:
            raise UsageError(f"a step of {step_s} s", hint="Use a positive number of seconds, as 600.")
        start_s = self.since_s // step_s * step_s
        grid = np.arange(start_s, max(self.until_s, start_s + 1), step_s)
        most, mean = np.zeros((2, self.n_partitions, len(grid)))
        for partition in range(self.n_partitions):
            mine = self.partition == partition
            most[partition], mean[partition] = _in_steps(self.at_s[mine], self.nodes[mine], grid, step_s)
        return start_s, most, mean


def node_holding(state: EngineState, *, until_s: int) -> NodeHolding:
    """Return the log of the nodes that held a job, up to ``until_s``."""
    rows = state.holding[: int(state.clock["rows"][0])]
    jobs = state.jobs["submitted_s"]
    return NodeHolding(
        at_s=rows["at_s"].copy(),
        partition=rows["partition"].copy(),
        nodes=rows["nodes"].copy(),
        n_partitions=len(state.partitions),
        since_s=int(jobs[0]) if len(jobs) else 0,
        until_s=until_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTally:
    """Counts of what nodes have done so far.

    Attributes
    ----------
    seconds : mapping of str to NodeSeconds
        By partition. GPUs or CPUs held on awake nodes count as busy, also those of a job that still waits for another
        of its nodes.
    sleeps, wakes : int
        Nodes put to sleep, and woken, by control or by the cluster itself.
    sleep_moments, wake_moments : int
        At how many moments; several nodes of one second count once.
    delays, delay_moments : int
        Starts that waited for a node to boot, and at how many moments.
    short_node_s : int
        Node seconds in which a job held a node that was still booting.
    """

    seconds: Mapping[str, NodeSeconds]
    sleeps: int
    sleep_moments: int
    wakes: int
    wake_moments: int
    delays: int
    delay_moments: int
    short_node_s: int

    @property
    def total(self) -> NodeSeconds:
        """All partitions together."""
        return sum(self.seconds.values(), NodeSeconds())


def node_tally(state: EngineState, partitions: tuple[str, ...], *, resource: str) -> NodeTally:
    """Return the counts of the core.

    They go up to the last change; :func:`helios.simulate.core.stepping.count_up` brings them up to now.
    """
    clock = state.clock[0]
    seconds = {
        name: NodeSeconds(
            busy=float(of["busy_node_s"]),
            idle=float(of["awake_node_s"] - of["busy_node_s"]),
            asleep=float(of["asleep_node_s"]),
            falling_asleep=float(of["falling_node_s"]),
            waking=float(of["waking_node_s"]),
            **{f"{resource}_busy": float(of["gpu_s"])},
        )
        for name, of in zip(partitions, state.partitions, strict=True)
    }
    counted = ("sleeps", "sleep_moments", "wakes", "wake_moments", "delays", "delay_moments")
    return NodeTally(
        seconds=seconds,
        short_node_s=int(state.partitions["short_node_s"].sum()),
        **{name: int(clock[name]) for name in counted},
    )


def _in_steps(
    at_s: NDArray[np.int64], nodes: NDArray[np.int64], grid: NDArray[np.int64], step_s: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the most and the mean of a count in each step.

    The count changed at ``at_s`` and was ``nodes`` from then on.
    """
    end_s = int(grid[-1]) + step_s
    begins = np.union1d(grid, at_s[at_s < end_s])
    held = np.concatenate([[0], nodes])[np.searchsorted(at_s, begins, side="right")].astype(np.float64)
    lasts_s = np.diff(begins, append=end_s)
    first = np.searchsorted(begins, grid)
    return np.maximum.reduceat(held, first), np.add.reduceat(held * lasts_s, first) / step_s
