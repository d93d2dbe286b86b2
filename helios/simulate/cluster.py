"""Simulated cluster in the timeline of a workload.

It implements the same ports as a real one. Jobs go by urgency, rounded to the steps of Slurm's SiteFactor, then first
in, first out. A soft limit changes the run time that backfill plans with, not the true one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import JobSetting, NodeOutcome, Outcome, Result
from helios.changes import TOO_LONG, Change, ValueMapping
from helios.choices import Backfill
from helios.errors import UsageError
from helios.model import NODE_STATES, STEP_S, PowerSettings
from helios.simulate.cluster_nodes import NodeActions, NodeHolding, NodeTally, Sleep, node_holding, node_tally
from helios.simulate.core.events import (
    BEFORE,
    CHOICE,
    EXCLUDED,
    HELD,
    UNNAMED,
    Stops,
    Urgencies,
    admit,
    advance_replay,
    count_up,
    has_choice,
    new_step_counts,
    set_urgencies,
    withdraw,
)
from helios.simulate.core.state import NEVER, ClusterShape, EngineState, Workload, new_state, refuse_misfits
from helios.simulate.replay import LONGEST_ESTIMATE_S, MODES, PLACES, Placement
from helios.simulate.simulated_cluster import SimulatedCluster, StopPoint, refuse_unequal
from helios.simulate.snapshot import Frames, Jobs, OwnColumns, encode, shown_priority, times


class SimCluster(SimulatedCluster):
    """Simulated ``Cluster`` and ``NodeCluster`` in a workload's timeline.

    Parameters
    ----------
    workload, shape
        As for :func:`helios.simulate.replay`.
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload: names, users and limits for the snapshot. A component of a
        heterogeneous job is ``excluded_reason``.
    estimates_s : int64 array of shape (n_jobs,)
        Run time that EASY plans with where no soft limit is set, s: the users' limits.
    backfill : Backfill
        Which jobs may start before a blocked head.
    name : str
        The cluster's name.
    site_factor_most : int, optional
        Bound of the SiteFactor on a real cluster (``slurm.site_factor_most``), to whose steps urgencies are rounded;
        None: no rounding.
    resource : str
        ``gpus`` or ``cpus``: the resource that the workload's GPUs stand for.
    placement : Placement
        Which of the fitting nodes of equal weight a job gets.
    seed : int
        Seed of random placement. The same seed gives a job the same draws, whatever else happens.
    sleep : Sleep, optional
        How nodes sleep; None: they do not.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    WorkloadInvalid
        ``jobs`` or ``estimates_s`` are not one for each job.
    """

    _state: EngineState

    def __init__(
        self,
        workload: Workload,
        shape: ClusterShape,
        jobs: pd.DataFrame,
        *,
        estimates_s: NDArray[np.int64],
        backfill: Backfill = Backfill.EASY,
        name: str = "replay",
        site_factor_most: int | None = 10_000,
        resource: str = "gpus",
        placement: Placement = Placement.PACKED,
        seed: int = 0,
        sleep: Sleep | None = None,
    ) -> None:
        refuse_unequal(jobs=len(workload), rows=len(jobs), estimates=len(estimates_s))
        refuse_misfits(workload, shape)
        self.now_s = int(workload.submitted_s[0]) - 1 if len(workload) else 0
        self._state = new_state(
            workload,
            shape,
            backfill=MODES[backfill],
            preemptive=False,
            placement=PLACES[placement],
            seed=seed,
            tracks_nodes=True,
        )
        # Columns of the tables, looked up once, as a lookup costs as much as the change of a job.
        self.started_s = self._state.jobs["started_s"]
        self.ended_s = self._state.jobs["ends_s"]  # of a running job the true end, which lies ahead
        self._n_arrived: Jobs = self._state.clock["arrived"]
        self._submitted_s: Jobs = self._state.jobs["submitted_s"]
        submitted_at = times(workload.submitted_s)
        super().__init__(
            name,
            workload,
            jobs,
            _nodes(shape, resource),
            site_factor_most=site_factor_most,
            partition=encode(workload.partition, shape.partitions),
            submitted_at=submitted_at,
            eligible_at=submitted_at,
            **{resource: workload.order_gpus},
        )
        self._mapping = ValueMapping(
            of_urgency=self._rounded,
            of_run_time=lambda run_time: float(math.ceil(run_time / timedelta(seconds=1))),
            nothing=_unset_value,
            words=_describe,
        )
        self._resource, self._partitions = resource, shape.partitions
        self.gpus_per_node = dict(zip(shape.partitions, shape.gpus_per_node.tolist(), strict=True))
        self._units = int(self._state.clock["units"][0])
        self._node_size = np.repeat(shape.gpus_per_node.astype(np.int64) * self._units, shape.nodes)
        self._node_actions = NodeActions(self._state, self._view.names, sleep)
        self._urgency, self._soft_limit_s = np.zeros(len(jobs)), np.full(len(jobs), np.nan)
        self._held: set[int] = set()
        self._limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
        self._estimates_s = estimates_s.clip(0, LONGEST_ESTIMATE_S).astype(np.int64)
        self._state.pending["estimate_s"] = self._estimates_s
        self._urgencies = Urgencies(urgency=self._urgency, flags=np.zeros(len(jobs), dtype=np.uint8))
        self._urgencies.flags[list(self._excluded_reason)] |= EXCLUDED
        self._counts = new_step_counts(self._state)
        self._is_between_moments = False

    # Time.

    def next_event_s(self) -> int | None:
        """Run due passes and return the next event's time.

        An event is the end or arrival of a job, or a change of a node's power by itself. It may be now. None: nothing
        is left to happen.
        """
        self._freeze_snapshots()
        moment_s, *_ = advance_replay(self._state, self._counts, Stops(before_s=-NEVER), self.now_s, False)
        return None if moment_s == NEVER else int(moment_s)

    def _advance(self, until_s: int) -> None:
        self._freeze_snapshots()
        advance_replay(self._state, self._counts, Stops(until_s=until_s), self.now_s, False)
        self.now_s = until_s

    def advance_to_decision(
        self,
        *,
        arrivals: bool = True,
        choices_from_s: int = NEVER,
        alarm_s: int = NEVER,
        alarm_from_s: int = NEVER,
        before_s: int = NEVER,
        again_s: int = NEVER,
        again_every_s: int = NEVER,
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        See :meth:`SimulatedCluster.advance_to_decision`.
        """
        stops = Stops(NEVER, before_s, again_s, again_every_s, arrivals, choices_from_s, alarm_s, alarm_from_s)
        between = self._is_between_moments
        if not between:
            self._freeze_snapshots()
        moment_s, where, alarm_s, again_s = advance_replay(self._state, self._counts, stops, self.now_s, between)
        if moment_s == NEVER:
            return None
        self._is_between_moments = where == BEFORE
        if not self._is_between_moments:
            self.now_s = moment_s
        return StopPoint(moment_s, where == BEFORE, where == CHOICE, alarm_s, again_s)

    def _freeze_snapshots(self) -> None:
        self._is_between_moments = False
        super()._freeze_snapshots()

    @property
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """
        return int(self._n_arrived[0])

    @property
    def submitted_s(self) -> Jobs:
        """When each job is submitted, s since the epoch."""
        return self._submitted_s

    def has_choice(self) -> bool:
        """Return whether the order of the queue may matter now.

        It may if a job whose GPUs are free has waited since before now, or waits beside another of its partition.
        Otherwise no change of the queue makes another job start now.
        """
        return bool(has_choice(self._state, self._counts, self.now_s))

    # Contents of snapshots.

    @property
    def _power(self) -> PowerSettings | None:
        return self._node_actions.settings

    def _settings(self, jobs: Jobs) -> OwnColumns:
        urgency = self._urgency.take(jobs)
        held = np.isin(jobs, list(self._held)) if self._held else None
        columns: OwnColumns = {
            "urgency": urgency,
            "soft_limit_s": self._soft_limit_s.take(jobs),
            "priority": lambda: shown_priority(urgency, steps=self._steps, held=held),
        }
        if not self._excluded_reason:
            return columns
        reasons = [self._excluded_reason.get(job, np.nan) for job in jobs.tolist()]
        return {**columns, "excluded_reason": np.array(reasons, dtype=np.object_)}

    def _frames(self) -> Frames:
        state, jobs = self._state, self._state.jobs
        running = np.sort(state.ends[: int(state.clock["running"][0])])
        by_start = running[np.argsort(self.started_s[running], kind="stable")]
        # A job whose nodes are still waking is shown as started when it got them, as the boot ends in the future.
        late = jobs["resumed_s"][by_start] > state.clock["now_s"][0]
        started_s = jobs["started_s"][by_start] - np.where(late, jobs["boot_wait_s"][by_start], 0)
        held_by = jobs["first_share"][by_start]
        free, power = state.nodes["free"].copy(), self._node_actions.columns()
        held = self._node_size - free
        shown = held / self._units
        return {
            "running": self._view.running(
                by_start, started_s=started_s, shares=state.shares, first_share=held_by, own={}
            ),
            "nodes": self._view.nodes(free, held, {f"{self._resource}_held": shown, **power}),
        }

    def _run_since_s(self) -> Jobs:
        since_s: Jobs = self._state.jobs["resumed_s"]
        return since_s

    def _queue(self) -> Jobs:
        jobs = self.waiting()
        in_order: Jobs = jobs[np.argsort(-self._urgency[jobs], kind="stable")]
        if not self._held:
            return in_order
        held = np.array([job in self._held for job in in_order.tolist()])
        return np.concatenate((in_order[~held], in_order[held]))

    # Changes to jobs.

    def _set_urgencies(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Sequence[int]:
        return set_urgencies(self._state, self._urgencies, jobs, urgency, steps=self._steps)[:UNNAMED]

    def _apply_change(self, change: Change[float], job: int) -> Outcome:
        wanted, outcome = self._mapping.wanted(change), self._mapping.outcome
        is_limit = change.setting is JobSetting.SOFT_LIMIT
        if is_limit and not change.is_revert and wanted >= self._limit_s[job]:
            return change.outcome(Result.REFUSED, TOO_LONG)
        values = self._values(JobSetting(change.setting))
        before = float(values[job])
        if _is_same(before, wanted):
            return outcome(change, Result.UNCHANGED, before=before, after=before)
        if job in self._excluded_reason and not change.is_revert:
            return outcome(change, Result.REFUSED, before=before, remark=self._excluded_reason[job])
        values[job] = wanted
        if job not in self._held:
            withdraw(self._state, np.array([job]))
            self._admit(np.array([job]))
        return outcome(change, Result.DONE, before=before, after=wanted)

    def _admit(self, jobs: Jobs) -> None:
        """Put ``jobs`` into their queues with the present keys and estimates."""
        self._state.pending["key"][jobs] = -self._urgency[jobs]
        self._state.pending["estimate_s"][jobs] = np.fmin(self._soft_limit_s[jobs], self._estimates_s[jobs])
        admit(self._state, jobs)

    def _rounded(self, urgency: float) -> float:
        return round(urgency * self._steps) / self._steps if self._steps else float(urgency)

    def _values(self, setting: JobSetting) -> NDArray[np.float64]:
        return self._urgency if setting is JobSetting.ORDER else self._soft_limit_s

    def _changed_jobs(self) -> list[str]:
        return [self._job_ids[job] for job in self._queue()]

    def _is_set(self, setting: JobSetting, job: int) -> bool:
        return not _is_same(self._values(setting)[job], _unset_value(setting))

    # Changes by an administrator.

    def hold(self, job_id: str, *, why: str = "held") -> None:
        """Hold a pending job.

        It does not start, and has ``why`` as its ``excluded_reason``.

        Raises
        ------
        UsageError
            It is not pending, or held already.
        """
        job = self._pending_position(job_id)
        if job is None or job in self._held:
            raise UsageError(f"job {job_id} is not pending, or held already")
        withdraw(self._state, np.array([job]))
        self._held.add(job)
        self._excluded_reason[job] = why
        self._urgencies.flags[job] = EXCLUDED | HELD

    def release(self, job_id: str) -> None:
        """Release a held job.

        Raises
        ------
        UsageError
            It is not held.
        """
        job = self._pending_position(job_id)
        if job is None or job not in self._held:
            raise UsageError(f"job {job_id} is not held")
        del self._excluded_reason[job]
        self._held.remove(job)
        self._urgencies.flags[job] = 0
        self._admit(np.array([job]))

    # Nodes.

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Apply changes and return the outcome of each.

        See :class:`helios.ports.NodeCluster`.
        """
        self._freeze_snapshots()
        return self._node_actions.steer(changes, now=self.now_s)

    def fill(self, tiers: Sequence[Sequence[str]]) -> None:
        """Have nodes filled tier by tier, as a site's static weights do."""
        self._freeze_snapshots()
        self._node_actions.fill(tiers)

    def busy_nodes(self, step_s: int = STEP_S) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many nodes of each partition held a job, by steps.

        The count goes until now. See :meth:`NodeHolding.in_steps`.
        """
        return self.holding().in_steps(step_s)

    def holding(self) -> NodeHolding:
        """Return the log of the nodes that held a job until now."""
        return node_holding(self._state, until_s=self.now_s)

    def tally(self) -> NodeTally:
        """Return the counts of what nodes have done until now."""
        count_up(self._state, self.now_s)
        return node_tally(self._state, self._partitions, resource=self._resource)

    @property
    def late_s(self) -> Jobs:
        """Time that each job waited for its nodes to boot, s.

        Meaningless where it has not started.
        """
        return self._state.jobs["boot_wait_s"]

    def forbid(self, node: str, *, why: str | None) -> None:
        """Exclude the power of a node from control, or include it again.

        It is then treated as a drained or reserved node. ``why`` is the reason; None: Helios may act on it again.

        Raises
        ------
        UsageError
            There is no such node.
        """
        self._freeze_snapshots()
        number = self._node_actions.number(node)
        self._node_actions.excluded_reason.pop(number, None)
        if why is not None:
            self._node_actions.excluded_reason[number] = why


def _unset_value(setting: JobSetting) -> float:
    return 0.0 if setting is JobSetting.ORDER else math.nan


def _is_same(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@lru_cache(maxsize=4_096)
def _describe(setting: JobSetting, value: float) -> str:
    if setting is JobSetting.ORDER:
        return f"urgency {value:.4g}"
    return "no soft limit" if math.isnan(value) else f"soft limit {value:.0f} s"


def _nodes(shape: ClusterShape, resource: str) -> pd.DataFrame:
    names = [
        f"{partition}{number}"
        for partition, nodes in zip(shape.partitions, shape.nodes.tolist(), strict=True)
        for number in range(1, nodes + 1)
    ]
    frame = {
        "name": names,
        "partitions": np.repeat(np.array(shape.partitions, dtype=object), shape.nodes),
        resource: np.repeat(shape.gpus_per_node, shape.nodes),
        f"{resource}_held": 0,
        "weight": 1.0,
    }
    return NODE_STATES.conform(pd.DataFrame(frame))
