"""Modes of a service, and its cluster in each mode.

A mode is a :class:`helios.ports.Cluster`, never an ``if``: a shadow holds nothing that could write, and a canary passes
only changes of its own jobs to the cluster.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from helios.actions import JobSetting, NodeOutcome, NodeSetting, Outcome, Result
from helios.changes import (
    AWAKE,
    LIST,
    NOTHING,
    Change,
    Key,
    Setting,
    each_job,
    join_names,
    nodes_named,
)
from helios.control.observed import AppliedChange, PendingJob, Tolerance, observed_nodes, pending_jobs
from helios.model import Mode, Snapshot
from helios.ports import Cluster, NodeCluster

OUTSIDE = "outside the canary"
UNTOUCHED: Mapping[Setting, str] = {NodeSetting.POWER: AWAKE}
"""Values of a node that Helios has not changed."""

_UNTOUCHED: dict[Setting, str] = {NodeSetting.POWER: AWAKE}
"""Values of a node that Helios has not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMode:
    """A service's mode, and for a canary the scope of its changes.

    A job must be within every part of the scope.

    Attributes
    ----------
    partitions : tuple of str
        A job belongs to a canary if all partitions it may run in are listed; empty for all partitions.
    percent : int, optional
        Share of the jobs, 1 to 100, chosen by a digest of the job's id (its master's id for an array), so that the same
        jobs are chosen in every cycle, and all tasks of an array alike. A larger share contains a smaller one. For a
        service that acts on nodes it is a share of the nodes, by a digest of the node's name.
    """

    mode: Mode
    partitions: tuple[str, ...] = ()
    percent: int | None = None

    def __post_init__(self) -> None:
        if self.percent is not None and not 1 <= self.percent <= 100:
            raise ValueError(f"a canary of {self.percent} percent of the jobs; it takes 1 to 100")

    @property
    def writes(self) -> bool:
        """Whether its decisions may reach the cluster."""
        return self.mode in {Mode.CANARY, Mode.ACTIVE}

    def covers(self, job: PendingJob) -> bool:
        """Return whether the service may change ``job``.

        In a shadow, whether it may report that it would. A canary without a scope covers nothing, because a forgotten
        scope must not mean all jobs.
        """
        return self.reaches(job.array_job_id or job.job_id, partitions=job.partition.split(","))

    def reaches(self, name: str, *, partitions: Iterable[str]) -> bool:
        """Return whether the service may change a target.

        The rule is that of :meth:`covers`, for a name and its partitions.
        """
        if self.mode is not Mode.CANARY:
            return self.mode is not Mode.OFF
        if not self.partitions and self.percent is None:
            return False
        chosen = self.percent is None or _hundredth(name) < self.percent
        return chosen and (not self.partitions or set(partitions) <= set(self.partitions))


def cluster_for_mode(
    mode: ServiceMode,
    cluster: Cluster,
    *,
    read_snapshot: Callable[[], Snapshot],
    applied: Mapping[Key, float],
    tolerance: Tolerance,
) -> Cluster | None:
    """Return the cluster that a service of that mode acts on.

    None for a service that is off.

    Parameters
    ----------
    read_snapshot : callable
        Returns the snapshot of this cycle. It must not access the cluster, because a shadow gets nothing else.
    applied : mapping
        Values that would be applied if shadows could act.
    """
    if mode.mode is Mode.OFF:
        return None
    if mode.mode is Mode.SHADOW:
        return ShadowCluster(snapshot=read_snapshot, applied=applied, tolerance=tolerance)
    if mode.mode is Mode.CANARY:
        return CanaryCluster(cluster=cluster, mode=mode, read_snapshot=read_snapshot)
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCluster:
    """Cluster that reports what actions would do, without doing it.

    It holds nothing that could write. The outcome is ``WOULD`` where a value differs from what would be applied
    already, otherwise ``UNCHANGED``.
    """

    snapshot: Callable[[], Snapshot]
    applied: Mapping[Key, float]
    tolerance: Tolerance

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Return the outcome of each change without making it."""
        jobs = pending_jobs(self.snapshot())
        single = each_job(
            changes,
            pending=lambda: dict.fromkeys(job_id for _, job_id in self.applied),
            is_set=lambda setting, job_id: (setting, job_id) in self.applied,
        )
        return [
            self._shadow_outcome(change, jobs.get(change.target))
            for change in single
            if not change.is_revert or change.key in self.applied
        ]

    def _shadow_outcome(self, change: Change[float], job: PendingJob | None) -> Outcome:
        before = self.applied.get(change.key, NOTHING[change.setting])
        words = {
            "before": describe_mode(change.setting, before),
            "after": describe_mode(change.setting, change.value),
        }
        if change.is_revert:
            return change.outcome(Result.WOULD, **words)
        if job is None:
            return change.outcome(Result.GONE, "no longer pending")
        if job.excluded_reason:
            return change.outcome(Result.REFUSED, job.excluded_reason)
        same = self.tolerance.same(change.setting, asked=change.value, read=before)
        return change.outcome(Result.UNCHANGED if same else Result.WOULD, **words)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryCluster:
    """Cluster on which only the jobs of a canary can be changed.

    Changes of other jobs are refused.
    """

    cluster: Cluster
    mode: ServiceMode
    read_snapshot: Callable[[], Snapshot]

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the whole cluster."""
        return self.cluster.snapshot()

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Apply changes of jobs of the canary, and refuse the others."""
        inside = {job_id for job_id, job in pending_jobs(self.read_snapshot()).items() if self.mode.covers(job)}
        single = list(each_job(changes, pending=lambda: sorted(inside), is_set=lambda *_: True))
        refused = [change.outcome(Result.REFUSED, OUTSIDE) for change in single if change.target not in inside]
        allowed = [change for change in single if change.target in inside]
        return [*refused, *(self.cluster.apply(allowed) if allowed else [])]


def describe_mode(setting: Setting, value: float) -> str:
    """Return the value of a job's setting in words."""
    if setting is JobSetting.ORDER:
        return f"urgency {value:.3g}"
    return "no soft limit" if math.isnan(value) else f"soft limit {value / 60:.0f} min"


def _hundredth(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100


def node_cluster_for_mode(
    mode: ServiceMode,
    cluster: NodeCluster,
    *,
    read_snapshot: Callable[[], Snapshot],
    applied: Mapping[Key, AppliedChange],
) -> NodeCluster | None:
    """Return the nodes that a service of that mode acts on.

    None for a service that is off.

    Parameters
    ----------
    read_snapshot : callable
        Returns the snapshot of this cycle. It must not access the cluster, because a shadow gets nothing else.
    applied : mapping
        Changes that would be applied if shadows could act.
    """
    if mode.mode is Mode.OFF:
        return None
    if mode.mode is Mode.SHADOW:
        return ShadowNodes(snapshot=read_snapshot, applied=applied)
    if mode.mode is Mode.CANARY:
        return CanaryNodes(cluster=cluster, mode=mode, read_snapshot=read_snapshot)
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowNodes:
    """Nodes with reports of what actions would do, without doing it.

    It holds nothing that could write.
    """

    snapshot: Callable[[], Snapshot]
    applied: Mapping[Key, AppliedChange]

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Return the outcome of each change without making it."""
        nodes = observed_nodes(self.snapshot())
        return [
            self._shadow_outcome(change, known=not change.target or change.target in nodes)
            for change in changes
            if not change.is_revert or change.key in self.applied
        ]

    def _shadow_outcome(self, change: Change[str], *, known: bool) -> NodeOutcome:
        row = self.applied.get(change.key)
        before = UNTOUCHED.get(change.setting, "") if row is None else row.value
        if change.is_revert:
            return change.outcome(Result.WOULD, before=before, after=change.value or AWAKE)
        if not known:
            return change.outcome(Result.GONE, "no such node")
        result = Result.UNCHANGED if before == change.value else Result.WOULD
        return change.outcome(result, before=before, after=change.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryNodes:
    """Cluster on which only the nodes of a canary can be changed.

    Changes of other nodes are refused.
    """

    cluster: NodeCluster
    mode: ServiceMode
    read_snapshot: Callable[[], Snapshot]

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the whole cluster."""
        return self.cluster.snapshot()

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Apply changes of nodes of the canary, and refuse the others."""
        inside = {
            node.name
            for node in observed_nodes(self.read_snapshot()).values()
            if self.mode.reaches(node.name, partitions=node.partitions)
        }
        refused = [
            change.outcome(Result.REFUSED, OUTSIDE)
            for change in changes
            if change.target and change.target not in inside
        ]
        allowed = [_list_within(change, inside) for change in changes if not change.target or change.target in inside]
        return [*refused, *(self.cluster.steer(allowed) if allowed else [])]


def _list_within(change: Change[str], inside: set[str]) -> Change[str]:
    """Return a keep-awake list with the nodes of the canary alone."""
    if change.key != LIST or change.is_revert:
        return change
    return replace(change, value=join_names(inside.intersection(nodes_named(change.value))))
