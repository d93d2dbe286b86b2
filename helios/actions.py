"""Closed list of the actions that Helios may take on a cluster.

Each action has a reason for a person. It states what is wanted, not how. :mod:`helios.slurm` translates an order to
SiteFactor, a soft limit to TimeMin and sleep to node states; the simulator translates them to arrays. Helios never sets
Priority, Nice or TimeLimit, never cancels or holds a job, requeues none but one whose owner opted in to yield, and
never drains a node or powers one down that is not idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.model import Snapshot


class JobSetting(StrEnum):
    """Setting of a job that Helios can change."""

    ORDER = "order"
    SOFT_LIMIT = "soft_limit"


class Result(StrEnum):
    """Result of an action on one target."""

    DONE = "done"
    """Written, and the same was read back."""
    UNCHANGED = "unchanged"
    """It had this value already; nothing was written."""
    WOULD = "would"
    """In shadow: nothing was written; an active service would have written it."""
    REFUSED = "refused"
    """A guard or the cluster interface refused it before anything was written."""
    POSTPONED = "postponed"
    """Not possible now, as when the budget of calls is spent or a node is falling asleep; tried again next cycle."""
    GONE = "gone"
    """The job started or ended meanwhile, or there is no such node; nothing to do."""
    FAILED = "failed"
    """The cluster refused or did not answer."""
    MISMATCH = "mismatch"
    """Written, but something else was read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One job's place in an order.

    Attributes
    ----------
    job_id : str
        As in ``QUEUE``.
    urgency : float
        From -1 to 1; 0 is neutral, the urgency of a job that is not named. It should depend on the job alone, not on
        other jobs in the queue. Otherwise each new job changes the urgency of all others.
    reason : str
        Why it has this place, for the user who asks.
    """

    job_id: str
    urgency: float
    reason: str

    def __post_init__(self) -> None:
        if not -1 <= self.urgency <= 1:
            raise ValueError(f"urgency of job {self.job_id} is {self.urgency}, not between -1 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder:
    """Order in which to start a partition's jobs, where priorities allow.

    Attributes
    ----------
    partition : str
        As in ``QUEUE``.
    order : tuple of Place
        First to start first; urgencies descend. Equal urgencies are left in the site's own order, and so is a job
        that is not named, at urgency 0.
    reason : str
        Why, for a person.
    partial : bool
        Whether jobs that are not named are left as they are, instead of being neutral.
    """

    partition: str
    order: tuple[Place, ...]
    reason: str
    partial: bool = False

    def __post_init__(self) -> None:
        urgencies = [place.urgency for place in self.order]
        if urgencies != sorted(urgencies, reverse=True):
            raise ValueError(f"the order of partition {self.partition} has urgencies that do not descend")
        if len({place.job_id for place in self.order}) < len(self.order):
            raise ValueError(f"the order of partition {self.partition} names a job twice")


class Ranking(Reorder):
    """``Reorder`` that computes ``order`` and ``reason`` when they are first read.

    It is given by rows of a snapshot. A replay requests a hundred thousand orders from a service and reads no reason,
    so it saves the time to write them. It is equal to a ``Reorder`` of the same content.

    Parameters
    ----------
    snapshot : Snapshot
        Snapshot with the pending jobs.
    rows : int64 array of shape (n,)
        Positions of pending jobs, each at most once, in any order.
    urgency : float64 array of shape (n,)
        Their urgencies, from -1 to 1.
    order : callable
        Returns the places, first to start first.
    reason : callable
        Returns why, for a person.
    """

    __slots__ = ("_writers", "rows", "snapshot", "urgency")
    snapshot: Snapshot
    rows: NDArray[np.int64]
    urgency: NDArray[np.float64]

    def __init__(
        self,
        *,
        partition: str,
        snapshot: Snapshot,
        rows: NDArray[np.int64],
        urgency: NDArray[np.float64],
        order: Callable[[], tuple[Place, ...]],
        reason: Callable[[], str],
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "partition", partition)
        set_field(self, "partial", False)
        set_field(self, "snapshot", snapshot)
        set_field(self, "rows", rows)
        set_field(self, "urgency", urgency)
        set_field(self, "_writers", {"order": order, "reason": reason})

    def __getattr__(self, name: str) -> Any:
        """Compute ``order`` or ``reason`` at its first use.

        Python calls this only then.
        """
        if name not in {"order", "reason"}:
            raise AttributeError(name)
        value = self._writers[name]()
        object.__setattr__(self, name, value)
        return value

    def plain(self) -> Reorder:
        """Return the same as a plain ``Reorder``."""
        return Reorder(partition=self.partition, order=self.order, reason=self.reason)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reorder):
            return NotImplemented
        return self.plain() == (other.plain() if isinstance(other, Ranking) else other)

    def __hash__(self) -> int:
        return hash(self.plain())

    def __repr__(self) -> str:
        return repr(self.plain())

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Reorder, partition=self.partition, order=self.order, reason=self.reason), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLimit:
    """Let backfill plan with ``run_time`` for a pending job.

    Its hard time limit stays as it is.

    Attributes
    ----------
    job_id : str
        As in ``QUEUE``.
    run_time : timedelta
        An upper bound of the run time, positive. A bound at or above the hard limit has no effect.
    reason : str
        Why, for a person.
    """

    job_id: str
    run_time: timedelta
    reason: str

    def __post_init__(self) -> None:
        if self.run_time <= timedelta(0):
            raise ValueError(f"soft limit of job {self.job_id} is {self.run_time}, not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """Revert what Helios set on jobs.

    Afterwards the cluster is as it would be without Helios.

    Attributes
    ----------
    setting : JobSetting, optional
        None for every setting.
    job_ids : tuple of str, optional
        None for every pending job that Helios has ever changed.
    reason : str
        Why, for a person.
    """

    setting: JobSetting | None = None
    job_ids: tuple[str, ...] | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """Have a running job yield its GPUs to another one.

    It is asked for a checkpoint by the signal that its owner named, and requeued once that is confirmed. Control
    carries it on over cycles, and drops it where anything speaks against it (:mod:`helios.control.yields`). Of several
    for one waiting job the first that is allowed counts.

    Attributes
    ----------
    job_id : str
        The running job.
    for_job : str
        The job that waits for a first target.
    reason : str
        Why, for a person. It does not name the other job.
    """

    job_id: str
    for_job: str
    reason: str


JobAction = Reorder | SoftLimit | Revert
"""Actions on pending jobs, which are desired state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of an action on one job.

    See :class:`NodeOutcome` for nodes.

    Attributes
    ----------
    action : str
        Name of the action's class.
    setting : JobSetting
        The setting to change.
    job_id : str
        The job.
    result : Result
    reason : str
        The action's own reason for this job.
    before, after : str
        Values read before and after, as the cluster writes them (``SiteFactor 0``); empty where not read.
    remark : str
        Details, such as why it was refused, or the cluster's answer.
    """

    action: str
    setting: JobSetting
    job_id: str
    result: Result
    reason: str
    before: str = ""
    after: str = ""
    remark: str = ""


class NodeSetting(StrEnum):
    """Setting of a node, or of all nodes, that Helios can change."""

    POWER = "power"
    KEEP_AWAKE = "keep_awake"
    WEIGHT = "weight"
    """No action sets it any more. What earlier releases set is reverted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDown:
    """Put an idle node to sleep.

    The cluster still schedules jobs on it, and wakes it for a job by itself.

    Attributes
    ----------
    node : str
        As in ``NODE_STATES``.
    reason : str
        Why this node, and why now, for a person.
    """

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUp:
    """Wake a node ahead of need.

    Attributes
    ----------
    node : str
        As in ``NODE_STATES``.
    reason : str
        Why, for a person.
    """

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAwake:
    """Exempt nodes from the cluster's own idle timer.

    The timer puts other nodes to sleep as before. The nodes are added to those that the site itself exempts.

    Attributes
    ----------
    nodes : tuple of str
        All nodes to keep awake from now on. Nodes that only an earlier action named may sleep again.
    reason : str
        Why, for a person.
    """

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertNodes:
    """Revert what Helios set on nodes.

    Afterwards the cluster is as it would be without Helios.

    Attributes
    ----------
    setting : NodeSetting
        POWER: wake them; WEIGHT: the site's own weight; KEEP_AWAKE: the site's own list.
    own : tuple of (str, str)
        Each node and the site's own value as text: a weight for WEIGHT, empty for POWER. For KEEP_AWAKE, one pair of an
        empty name and the site's list.
    reason : str
        Why, for a person.
    """

    setting: NodeSetting
    own: tuple[tuple[str, str], ...]
    reason: str


NodeAction = PowerDown | PowerUp | KeepAwake | RevertNodes
Action = JobAction | Yield | NodeAction
"""Any action. A service acts on jobs or on nodes; each kind has its own cluster interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """Outcome of an action on one node.

    Attributes
    ----------
    action : str
        Name of the action's class.
    setting : NodeSetting
        The setting to change.
    node : str
        The node; empty for the keep-awake list, which belongs to the cluster.
    result : Result
        DONE of a PowerDown or PowerUp means that the node was read back as falling asleep or waking, or already asleep
        or awake. Later snapshots show whether it gets there.
    reason : str
        The action's own reason.
    before, after : str
        Values read before and after, as the cluster writes them (``IDLE``, ``Weight 20``); empty where not read.
    remark : str
        Details, such as why it was refused, or the cluster's answer.
    """

    action: str
    setting: NodeSetting
    node: str
    result: Result
    reason: str
    before: str = ""
    after: str = ""
    remark: str = ""
