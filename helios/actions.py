"""Closed list of the actions that Helios may take on a cluster.

Each action has a reason for a person. It states what is wanted, never how: :mod:`helios.slurm` translates an order to
SiteFactor, a soft limit to TimeMin, sleep to node states and a fill order to weights; the simulator translates all of
them to arrays. Helios never sets Priority, Nice or TimeLimit, never cancels, holds or requeues a job, and never drains
a node or powers one down that is not idle.
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
    """Written and read back as asked."""
    UNCHANGED = "unchanged"
    """It already was so; nothing was written."""
    WOULD = "would"
    """In shadow: nothing was written; an active service would have written it."""
    REFUSED = "refused"
    """A guard or the cluster interface refused it before anything was written."""
    POSTPONED = "postponed"
    """Not possible now, as when the budget of calls is spent or a node is falling asleep; asked again next cycle."""
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
        its neighbours in the queue: else each new job changes the urgency of all others.
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
    """Start the jobs of a partition in this order.

    As far as the site's own priorities leave room.

    Attributes
    ----------
    partition : str
        As in ``QUEUE``.
    order : tuple of Place
        First to start first; urgencies descend. Equal urgencies are left in the site's own order, and so is a job
        that is not named, at urgency 0.
    reason : str
        Why, for a person.
    """

    partition: str
    order: tuple[Place, ...]
    reason: str

    def __post_init__(self) -> None:
        urgencies = [place.urgency for place in self.order]
        if urgencies != sorted(urgencies, reverse=True):
            raise ValueError(f"the order of partition {self.partition} has urgencies that do not descend")
        if len({place.job_id for place in self.order}) < len(self.order):
            raise ValueError(f"the order of partition {self.partition} names a job twice")


class Ranking(Reorder):
    """``Reorder`` that computes ``order`` and ``reason`` when they are first read.

    It is given by rows of a snapshot. A replay asks a service for orders a hundred thousand times and reads no reason,
    so it saves the time to write them. To a reader it is a ``Reorder``: the two are equal where their contents are.

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

    __slots__ = ("_made", "rows", "snapshot", "urgency")
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
        assign = object.__setattr__
        assign(self, "partition", partition)
        assign(self, "snapshot", snapshot)
        assign(self, "rows", rows)
        assign(self, "urgency", urgency)
        assign(self, "_made", {"order": order, "reason": reason})

    def __getattr__(self, name: str) -> Any:
        """Compute ``order`` or ``reason`` at its first use.

        Python calls this for an attribute that is not set yet.
        """
        if name not in {"order", "reason"}:
            raise AttributeError(name)
        value = self._made[name]()
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
        An upper bound of the run time, positive; what is at or above the hard limit has no effect.
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
    hidden : bool
        Whether to write also where the cluster hides the current value and Helios has written one. What an
        administrator wrote there since is lost, so only a person asks for it.
    reason : str
        Why, for a person.
    """

    setting: JobSetting | None = None
    job_ids: tuple[str, ...] | None = None
    hidden: bool = False
    reason: str


JobAction = Reorder | SoftLimit | Revert


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of an action on one job.

    See :class:`NodeOutcome` for nodes.

    Attributes
    ----------
    action : str
        Name of the action's class.
    setting : JobSetting
        What was to change.
    job_id : str
        On which job.
    result : Result
        What became of it.
    reason : str
        The action's own reason for this job.
    before, after : str
        What was read before and after, as the cluster writes it (``SiteFactor 0``). Empty where it was not read.
    remark : str
        Details: why it was refused, what the cluster answered.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDown:
    """Put an idle node to sleep.

    The cluster still counts on it, and wakes it for a job by itself.

    Attributes
    ----------
    node : str
        As in ``NODE_STATES``.
    reason : str
        Why this one, and why now, for a person.
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
        All nodes to keep awake from now on; those that an earlier action named and this one does not may sleep again.
    reason : str
        Why, for a person.
    own : str, optional
        The site's own list, where control has recorded it. None where the list read now is the site's own. Services
        leave it None.
    """

    nodes: tuple[str, ...]
    reason: str
    own: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FillFirst:
    """Have the cluster fill nodes in this order.

    The site's own order of its nodes (their weights) comes first: tiers only order nodes whose weights are equal.

    Attributes
    ----------
    tiers : tuple of tuple of str
        Nodes, first to fill first; within a tier as the site has it. A node that is not named is left as it is.
    reason : str
        Why, for a person.
    why : tuple of str
        Why the nodes of each tier are in it. Empty where ``reason`` holds for all of them.
    own : tuple of (str, int)
        The site's own weights, of nodes for which control has recorded one; of the others the weight read now is the
        site's own. Services leave it empty.
    """

    tiers: tuple[tuple[str, ...], ...]
    reason: str
    why: tuple[str, ...] = ()
    own: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        named = [node for tier in self.tiers for node in tier]
        if len(set(named)) < len(named):
            raise ValueError("an order of filling names a node twice")
        if self.why and len(self.why) != len(self.tiers):
            raise ValueError(f"an order of filling has {len(self.tiers)} tiers and gives {len(self.why)} reasons")

    def why_in(self, place: int) -> str:
        """Return why a node is in the tier at ``place``."""
        return self.why[place] if self.why else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertNodes:
    """Revert what Helios set on nodes.

    Afterwards the cluster is as it would be without Helios.

    Attributes
    ----------
    setting : NodeSetting
        POWER: wake them; WEIGHT: the site's own weight; KEEP_AWAKE: the site's own list.
    own : tuple of (str, str)
        Each node and what the site itself had there, as text: a weight; of POWER empty; of KEEP_AWAKE one pair of an
        empty name and the site's list.
    reason : str
        Why, for a person.
    """

    setting: NodeSetting
    own: tuple[tuple[str, str], ...]
    reason: str


NodeAction = PowerDown | PowerUp | KeepAwake | FillFirst | RevertNodes
Action = JobAction | NodeAction
"""Any action. A service acts on jobs or on nodes; each kind has its own cluster interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """Outcome of an action on one node.

    Attributes
    ----------
    action : str
        Name of the action's class.
    setting : NodeSetting
        What was to change.
    node : str
        On which node; of the keep-awake list, which is the cluster's, empty text.
    result : Result
        What became of it. DONE of a PowerDown or PowerUp means that the node was read back on its way (falling
        asleep, waking) or already there; later snapshots show whether it arrives.
    reason : str
        The action's own reason.
    before, after : str
        What was read before and after, as the cluster writes it (``IDLE``, ``Weight 20``). Empty where it was not read.
    remark : str
        Details: why it was refused, what the cluster answered.
    """

    action: str
    setting: NodeSetting
    node: str
    result: Result
    reason: str
    before: str = ""
    after: str = ""
    remark: str = ""
