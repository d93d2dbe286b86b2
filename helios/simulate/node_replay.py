"""Replay of jobs on nodes that sleep, where nobody acts.

The jobs go first in, first out, with EASY backfill. It is what remains of
:class:`~helios.simulate.cluster.SimCluster` where nobody acts: to make one takes a quarter of the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.choices import Backfill
from helios.simulate.cluster_nodes import NodeActions, NodeHolding, NodeTally, Sleep, node_holding, node_tally
from helios.simulate.core.events import Stops, advance_replay, count_up, new_step_counts, rank_nodes
from helios.simulate.core.state import ClusterShape, Workload, new_state, refuse_misfits
from helios.simulate.replay import LONGEST_ESTIMATE_S, MODES, PLACES, Placement


class NodeReplay:
    """Jobs on nodes that sleep, before the first job at first.

    Parameters
    ----------
    workload, shape
        As for :func:`helios.simulate.replay`.
    estimates_s : int64 array of shape (n_jobs,)
        Run time that EASY plans with, s.
    sleep : Sleep
        How nodes sleep.
    placement, seed, resource
        As for :class:`~helios.simulate.cluster.SimCluster`.
    block_nodes : int, optional
        Nodes of a partition are filled in blocks of so many; None: all have the same weight.

    Attributes
    ----------
    now_s : int
        Clock, s since the epoch.
    started_s, late_s : int64 arrays of shape (n_jobs,)
        When each job started, and how long it waited for its nodes to boot, s; without meaning where it has not
        started.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    """

    def __init__(
        self,
        workload: Workload,
        shape: ClusterShape,
        *,
        estimates_s: NDArray[np.int64],
        sleep: Sleep,
        placement: Placement = Placement.PACKED,
        seed: int = 0,
        resource: str = "gpus",
        block_nodes: int | None = None,
    ) -> None:
        refuse_misfits(workload, shape)
        self._state = new_state(
            workload,
            shape,
            backfill=MODES[Backfill.EASY],
            preemptive=False,
            placement=PLACES[placement],
            seed=seed,
            tracks_nodes=True,
        )
        self._state.pending["estimate_s"] = estimates_s.clip(0, LONGEST_ESTIMATE_S)
        self._counts = new_step_counts(self._state)
        self._partitions, self._resource = shape.partitions, resource
        self.now_s = int(workload.submitted_s[0]) - 1 if len(workload) else 0
        self.started_s: NDArray[np.int64] = self._state.jobs["started_s"]
        self.late_s: NDArray[np.int64] = self._state.jobs["boot_wait_s"]
        numbers = [str(number) for number in range(int(shape.nodes.sum()))]
        NodeActions(self._state, numbers, sleep)
        if block_nodes is not None:
            blocks = [np.arange(nodes) // block_nodes for nodes in shape.nodes.tolist()]
            rank_nodes(self._state, np.concatenate(blocks))

    def advance(self, until_s: int) -> None:
        """Advance the clock."""
        advance_replay(self._state, self._counts, Stops(until_s=until_s), self.now_s, False)
        self.now_s = until_s

    def set_spare(self, nodes: NDArray[np.int64]) -> None:
        """Set the number of nodes in the rule of each partition."""
        self._state.partitions["spare"] = nodes

    def holding(self) -> NodeHolding:
        """Return the log of the nodes that held a job until now."""
        return node_holding(self._state, until_s=self.now_s)

    def tally(self) -> NodeTally:
        """Return the counts of what nodes have done until now."""
        count_up(self._state, self.now_s)
        return node_tally(self._state, self._partitions, resource=self._resource)
