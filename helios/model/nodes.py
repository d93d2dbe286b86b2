"""States of nodes, hostlists and the use of nodes.

Hostlists are in Slurm's notation, such as ``gpu[01-04,07],login1``. ClusterShell expands and folds them. Its groups
(``@rack1``) are not looked up, because that would run programs that a configuration file of the machine names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from numpy.typing import NDArray

from helios.errors import FrameInvalid, HostlistInvalid
from helios.model.frames import TIME, frame_kind

MOST_NODES = 200_000
"""Most nodes of one list. No cluster has more, and a typing error such as a missing comma could exhaust the memory."""
_NO_NODES = frozenset({"", "(null)", "none", "none assigned", "n/a"})
_NOT_HOSTLIST = re.compile(r"[^\w.,\[\]-]|\[[^\]]*\d-\d+-")
_RANGE = re.compile(r"(\d+)-(\d+)")

STEP_S = 600
"""Length of a step of node demand, s. The published CES decides every ten minutes."""
MINUTES_PER_DAY = 1_440
OUT_OF_SERVICE = frozenset({"DRAIN", "DRAINING", "DRAINED", "DOWN", "FAIL", "FAILING", "MAINT", "MAINTENANCE"})
"""Flags of a node on which no job should start."""

NODE_STATES = frame_kind(
    "node states",
    ("name", "str", "Node name"),
    ("partitions", "category", "Its partitions, by commas"),
    ("state", "category", "Slurm's base state: IDLE, ALLOCATED, MIXED, DOWN, ..."),
    ("flags", "category", "Slurm's state flags by +, as DRAIN or POWERED_DOWN; missing: none"),
    ("power", "category", "A NodePower; missing: it is down, or does not answer"),
    ("excluded_reason", "category", "Why Helios must not change its power, for a person; missing: it may"),
    ("kept_awake", "int32", "1: the cluster's own keep-awake list (SuspendExcNodes) names it, whoever put it in"),
    ("rack", "category", "Rack or leaf switch; missing: unknown"),
    ("cpus", "float64", "CPUs"),
    ("cpus_held", "float64", "CPUs held by jobs"),
    ("gpus", "int32", "GPUs"),
    ("gpus_held", "float64", "GPUs held by jobs, parts of one included"),
    ("gpu_type", "category", "GRES type of the GPUs; missing: none or untyped"),
    ("memory_mib", "float64", "Memory, MiB"),
    ("weight", "float64", "Slurm's weight: lowest is filled first"),
    ("features", "category", "Active features, by commas; missing: none"),
    ("idle_since", TIME, "When its last job left; missing: unknown or busy"),
    ("reason", "str", "Reason an admin or Slurm gave for its state"),
)


@lru_cache(maxsize=65_536)
def expand(text: str) -> tuple[str, ...]:
    """Return the nodes of a hostlist.

    Each comes once. They are sorted by name, with numbers by value.

    Parameters
    ----------
    text : str
        Slurm's text. Without nodes it is empty, ``(null)`` or ``None assigned``.

    Raises
    ------
    HostlistInvalid
        The text is not a hostlist, or names more than ``MOST_NODES`` nodes.
    """
    if text.strip().lower() in _NO_NODES:
        return ()
    if _NOT_HOSTLIST.search(text.strip()):
        raise _invalid(text, "a list of nodes has letters, digits, - _ . , and brackets only")
    if _upper_count(text) > MOST_NODES:
        raise _invalid(text, f"it names more than {MOST_NODES:,} nodes")
    try:
        return tuple(NodeSet(text.strip(), resolver=RESOLVER_NOGROUP))
    except NodeSetException as reason:
        raise _invalid(text, str(reason)) from reason


def expand_valid(text: str) -> tuple[str, ...]:
    """Return the nodes of a hostlist, and none of an invalid one."""
    try:
        return expand(text)
    except HostlistInvalid:
        return ()


def fold(nodes: Iterable[str]) -> str:
    """Return the nodes as one short hostlist, empty without nodes.

    Raises
    ------
    HostlistInvalid
        A name is not that of a single node.
    """
    names = tuple(nodes)
    for name in names:
        if _NOT_HOSTLIST.search(name) or re.search(r"[\[\],]", name) or not name:
            raise _invalid(name, "it is not the name of one node")
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _upper_count(text: str) -> int:
    """Return an upper bound of the number of nodes."""
    total = 0
    for word in re.split(r",(?![^\[]*\])", text):
        count = 1
        for bracket in re.findall(r"\[([^\]]*)\]", word):
            ranges = [abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(bracket)]
            count *= sum(ranges) + bracket.count(",") + 1
        total += count
    return total


def _invalid(text: str, why: str) -> HostlistInvalid:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return HostlistInvalid(f"{shown!r} is not a list of nodes: {why}", hint="Write it as Slurm does: gpu[01-04],login1")


RESERVATIONS = frame_kind(
    "reservations",
    ("name", "str", "Name of the reservation; never missing"),
    ("state", "str", "ACTIVE or INACTIVE, in Slurm's word"),
    ("begins_at", TIME, "Begin; never missing"),
    ("ends_at", TIME, "End; never missing"),
    ("partition", "str", "Partition; missing: any"),
    ("nodes", "float64", "Nodes; NaN: unknown"),
    ("node_list", "str", "Nodes, in Slurm's text; missing: none"),
    ("users", "str", "Who may use it, by commas; missing: nobody by name"),
    ("accounts", "str", "Accounts that may use it, by commas; missing: none by name"),
    ("flags", "str", "Slurm's flags, by commas, such as MAINT"),
)
"""Reservations of a cluster."""


class NodePower(StrEnum):
    """Power state of a node."""

    AWAKE = "awake"
    """It runs jobs, or can do so at once."""
    FALLING_ASLEEP = "falling asleep"
    """It is powering down, and cannot be woken until Slurm counts it as asleep."""
    ASLEEP = "asleep"
    """It is powered down; Slurm wakes it for a job by itself."""
    WAKING = "waking"
    """It is powering up and does not run jobs yet."""


def node_pools(nodes: pd.DataFrame) -> pd.Series[Any]:
    """Return the pool of each node of a ``NODE_STATES`` frame.

    Nodes of one pool have exactly the same partitions and the same type of GPU, so that one can replace another. A pool
    is named by the partitions as the cluster writes them, and by the type if there is one: ``gpu,debug (a100)``.
    """
    names = pool_names(nodes["partitions"].astype(object), nodes["gpu_type"].astype(object))
    return pd.Series(names, index=nodes.index, dtype="str", name="pool")


def pool_names(partitions: Iterable[Any], gpu_type: Iterable[Any]) -> list[str]:
    """Return the pool of each node from two columns, named as by ``node_pools``."""
    return [
        f"{names} ({kind})" if isinstance(kind, str) and kind else str(names)
        for names, kind in zip(partitions, gpu_type, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSettings:
    """Power-saving settings of a cluster.

    Attributes
    ----------
    suspend_time_s : float
        Idle time after which the cluster itself puts a node to sleep, s, or inf for never.
    suspend_timeout_s, resume_timeout_s : float
        Longest time to fall asleep and to wake, s. After the former a node counts as asleep. A node that does not
        answer after the latter counts as failed.
    keep_awake : str
        The current keep-awake list (SuspendExcNodes) of the cluster.
    can_sleep, can_keep_awake : bool
        Whether a node can be put to sleep, and whether the keep-awake list can be changed live.
    why_not : str
        Message for people why nodes cannot be put to sleep here, and what to do. Empty where they can.
    keep_awake_meaning : str
        Message for people what the numbers in the keep-awake list mean here. Empty where it has none.
    """

    suspend_time_s: float
    suspend_timeout_s: float
    resume_timeout_s: float
    keep_awake: str = ""
    can_sleep: bool = True
    can_keep_awake: bool = False
    why_not: str = ""
    keep_awake_meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolUse:
    """Nodes of a pool in use by minute, had all been awake.

    Attributes
    ----------
    nodes : int
        Nodes of the pool.
    most, last : int64 arrays of shape (n_minutes,)
        Most nodes in use at once in each minute, and those at its end.
    raised : int64 array of shape (n_minutes,)
        Most nodes in use after a start that took an idle node; 0: there was no such start.
    submissions : int
        Minutes in which jobs were submitted.
    has_holes : bool
        Whether use is missing from the record at times.
    """

    nodes: int
    most: NDArray[np.int64]
    last: NDArray[np.int64]
    raised: NDArray[np.int64]
    submissions: int
    has_holes: bool = False

    @property
    def days(self) -> float:
        """Length of the record."""
        return len(self.most) / MINUTES_PER_DAY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeUse:
    """Nodes in use of each pool, as recorded jobs tell.

    Pools are named as by :func:`node_pools`, so that each node counts in one of them.

    Attributes
    ----------
    ended_s : int
        End of the record, s since the epoch.
    recent : mapping of str to int64 array
        Most nodes in use at once in each minute since the last midnight, of the last 3 h at least, oldest first. The
        last minute ends at ``ended_s``.
    past : mapping of str to PoolUse
        The weeks before the last midnight, on which rules are tried.
    energy : mapping
        What the site gives in ``[energy]``, by name.
    submissions : mapping of str to int
        Minutes of the last seven days in which jobs were submitted that have started by now.
    """

    ended_s: int
    recent: Mapping[str, NDArray[np.int64]]
    past: Mapping[str, PoolUse]
    energy: Mapping[str, Any] = field(default_factory=dict)
    submissions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeForecast:
    """Nodes in use of each pool, and those expected, by step.

    Everything in row t was known at the end of step t. The last row is the current step.

    Attributes
    ----------
    ended_s : int
        End of the last step, s since the epoch.
    busy : mapping of str to float64 array of shape (n_steps,)
        Most nodes in use at once within each step of ``STEP_S``, oldest first, by pool.
    expected : mapping of str to float64 array of shape (n_steps, n_hours)
        Mean nodes in use expected in each hour after the end of a step; NaN where no forecast was made.
    """

    ended_s: int
    busy: Mapping[str, NDArray[np.float64]]
    expected: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeSeries:
    """Time series of busy and available nodes, at even steps.

    Every step has a value, also those of ``gaps``.

    Attributes
    ----------
    name : str
        Name of the cluster or file.
    start_s : int
        Start of the first step, s since the epoch.
    step_s : int
        Length of a step, s.
    active : float64 array of shape (n_steps,)
        Nodes that held a job, the maximum where a step has several readings.
    total : float64 array of shape (n_steps,)
        Nodes in service.
    gaps : bool array of shape (n_steps,)
        Steps without a reading. They repeat the last known value, and are not evaluated.
    notes : tuple of str
        Messages for people on how the series was read.
    """

    name: str
    start_s: int
    step_s: int
    active: NDArray[np.float64]
    total: NDArray[np.float64]
    gaps: NDArray[np.bool_]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.active.shape == self.total.shape == self.gaps.shape or self.active.ndim != 1:
            raise FrameInvalid(f"the columns of the node series {self.name} differ in length")

    def __len__(self) -> int:
        return len(self.active)

    @property
    def end_s(self) -> int:
        """End of the last step, s since the epoch."""
        return self.start_s + len(self) * self.step_s
