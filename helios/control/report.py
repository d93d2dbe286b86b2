"""What a cycle hands back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Required, TypedDict

import pandas as pd

from helios.actions import NodeSetting, PowerDown, PowerUp, Result
from helios.changes import AWAKE, RequestedNodeChanges
from helios.control.applied import AppliedNodeChanges
from helios.control.observed import ObservedNode, observed_nodes
from helios.control.state import ControllerState, NodeControllerState
from helios.model import NODE_TALLIES, NodePower, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CycleReport:
    """What was seen, decided and done in one cycle.

    Attributes
    ----------
    taken_at : datetime
        When the cluster was looked at; the start of the cycle, if it was not.
    acted : int
        Jobs changed on the cluster.
    still : tuple of str
        Why no service was listened to, for a person; empty: they were.
    counts : mapping
        Outcomes by service and result; a shadow's too.
    pending, running : int
        Jobs, array tasks counted one by one.
    gpus_pending, gpus_running : int
        GPUs asked for and held.
    decisions : DataFrame
        The lines of this cycle, columns of ``DECISIONS``, whether or not they could be written down.
    seen : bool
        Whether the cluster could be looked at.
    recorded : bool
        Whether every line was written down.
    leads : bool
        Whether this Helios had the lease. A standby's memory must not be kept over that of the one that leads.
    remaining : tuple of str, optional
        After everything was to be reverted: jobs that still carry something. None: that could not be seen.
    notes : tuple of str
        What the operator should be told besides.
    memory : TurnMemory
        To be kept, and given to the next cycle.
    """

    taken_at: datetime
    acted: int
    suspended: tuple[str, ...]
    counts: Mapping[str, Mapping[Result, int]]
    pending: int = 0
    running: int = 0
    gpus_pending: int = 0
    gpus_running: int = 0
    decisions: pd.DataFrame
    seen: bool = True
    recorded: bool
    leads: bool
    remaining: tuple[str, ...] | None = ()
    notes: tuple[str, ...] = ()
    memory: ControllerState = field(default_factory=ControllerState)

    @property
    def clean(self) -> bool:
        """Whether nothing that was to be reverted is left, as far as was looked."""
        return self.remaining == ()

    def counts_json(self) -> str:
        """Return the counts as ``CYCLES`` keeps them."""
        return json.dumps({service: {str(k): n for k, n in sums.items()} for service, sums in self.counts.items()})


class CycleCounts(TypedDict, total=False):
    """The sums of a snapshot, as :class:`CycleReport` names them."""

    pending: int
    running: int
    gpus_pending: int
    gpus_running: int


def cycle_counts(snapshot: Snapshot | None) -> CycleCounts:
    """Return the jobs and GPUs of a snapshot, named as in :class:`CycleReport`; None: it was not seen."""
    if snapshot is None:
        return {}
    pending, running = snapshot.pending, snapshot.running
    return {
        "pending": int(pending["tasks"].sum()),
        "running": int(running["tasks"].sum()),
        "gpus_pending": int((pending["tasks"] * pending["gpus"]).sum()),
        "gpus_running": int((running["tasks"] * running["gpus"]).sum()),
    }


# What a node cycle hands back, and the count of nodes that it leaves for the energy ledger.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCycleReport:
    """What was seen, decided and done about nodes in one cycle.

    Attributes
    ----------
    taken_at : datetime
        When the nodes were looked at; the start of the cycle, if they were not.
    slept, woken, weighed : tuple of str
        Nodes put to sleep, woken, and given another weight, on the cluster.
    still : tuple of str
        Why no service was listened to, for a person; empty: they were.
    counts : mapping
        Outcomes by service and result; a shadow's too.
    nodes : mapping
        Number of nodes by ``NodePower``; a node that is down is in none.
    asleep_by_helios : int
        Nodes asleep, or falling asleep, because Helios asked for it.
    decisions : DataFrame
        The lines of this cycle, columns of ``DECISIONS``, whether or not they could be written down.
    tallies : DataFrame
        Columns of ``NODE_TALLIES``, a row for each pool; none if the nodes were not seen.
    seen, recorded, leads : bool
        Whether the cluster could be looked at, every line was written down, and this Helios had the lease. A standby's
        memory must not be kept over that of the one that leads.
    remaining : tuple of str, optional
        After everything was to be reverted: nodes on which something stands yet, as those that fall asleep and can
        be woken only then. None: that could not be seen.
    notes : tuple of str
        What the operator should be told besides.
    protected : str
        Why nothing is put to sleep any more until a person clears it; empty: nodes are.
    memory : NodeMemory
        To be kept, and given to the next cycle.
    """

    taken_at: datetime
    slept: tuple[str, ...] = ()
    woken: tuple[str, ...] = ()
    weighed: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[Result, int]] = field(default_factory=dict)
    nodes: Mapping[NodePower, int] = field(default_factory=dict)
    asleep_by_helios: int = 0
    decisions: pd.DataFrame
    tallies: pd.DataFrame = field(default_factory=NODE_TALLIES.empty)
    seen: bool = True
    recorded: bool = True
    leads: bool = True
    remaining: tuple[str, ...] | None = ()
    notes: tuple[str, ...] = ()
    protected: str = ""
    memory: NodeControllerState = field(default_factory=NodeControllerState)

    @property
    def clean(self) -> bool:
        """Whether nothing that was to be reverted is left, as far as was looked."""
        return self.remaining == ()


class NodeCycleCounts(TypedDict, total=False):
    """The sums of a look at the nodes, as :class:`NodeCycleReport` names them."""

    taken_at: Required[datetime]
    nodes: Mapping[NodePower, int]
    asleep_by_helios: int
    tallies: pd.DataFrame


def node_cycle_counts(
    snapshot: Snapshot | None, applied: AppliedNodeChanges, *, at: datetime, wanted: Mapping[str, float] | None = None
) -> NodeCycleCounts:
    """Return the sums of a look.

    Parameters
    ----------
    snapshot : Snapshot, optional
        None: there was none; then ``at`` is all that is known.
    wanted : mapping, optional
        As :func:`wanted_awake` gives it.
    """
    if snapshot is None:
        return {"taken_at": at}
    nodes = observed_nodes(snapshot)
    ours = count_asleep_by_helios(nodes, applied)
    return {
        "taken_at": snapshot.taken_at,
        "nodes": power_states(nodes),
        "asleep_by_helios": len(ours),
        "tallies": service_tallies(nodes, at=snapshot.taken_at, ours=ours, wanted=wanted or {}),
    }


def power_states(nodes: Mapping[str, ObservedNode]) -> dict[NodePower, int]:
    """Return how many nodes are in each state of power."""
    found = Counter(node.power for node in nodes.values())
    return {power: found[power] for power in NodePower}


def count_asleep_by_helios(nodes: Mapping[str, ObservedNode], applied: AppliedNodeChanges) -> frozenset[str]:
    """Return the nodes that are asleep, or falling asleep, because Helios asked for it."""
    ours = (row.node for row in applied.ours(NodeSetting.POWER))
    return frozenset(name for name in ours if name in nodes and nodes[name].away)


def service_tallies(
    nodes: Mapping[str, ObservedNode], *, at: datetime, ours: frozenset[str], wanted: Mapping[str, float]
) -> pd.DataFrame:
    """Count the nodes of each pool, columns of ``NODE_TALLIES``.

    Parameters
    ----------
    ours : set of str
        Nodes asleep because of Helios.
    wanted : mapping
        By pool, how many nodes the services wanted awake; a pool that is not named: none was asked.
    """
    rows = []
    by_pool: dict[str, list[ObservedNode]] = {}
    for node in nodes.values():
        by_pool.setdefault(node.pool, []).extend([node] if node.in_service else [])
    for pool, served in by_pool.items():
        powers = Counter(node.power for node in served)
        rows.append(
            {
                "taken_at": at,
                "pool": pool,
                "total": len(served),
                "busy": sum(node.holds for node in served),
                "asleep": powers[NodePower.ASLEEP],
                "falling_asleep": powers[NodePower.FALLING_ASLEEP],
                "waking": powers[NodePower.WAKING],
                "by_helios": sum(node.name in ours for node in served),
                "wanted": wanted.get(pool, float("nan")),
            }
        )
    if not rows:
        return NODE_TALLIES.empty()
    frame = pd.DataFrame(rows)
    return NODE_TALLIES.conform(frame.assign(taken_at=pd.to_datetime(frame["taken_at"], utc=True)))


def wanted_awake(proposals: Mapping[str, RequestedNodeChanges], nodes: Mapping[str, ObservedNode]) -> dict[str, float]:
    """Return how many nodes of each pool the first service that speaks of power wanted awake.

    A service that was asked and asked for nothing wants what there is; one that only orders the filling says nothing.
    """
    said = next((proposal for proposal in proposals.values() if _speaks_of_power(proposal)), None)
    if said is None:
        return {}
    lists = [change for change in said.changes if change.setting is NodeSetting.KEEP_AWAKE]
    if lists:
        awake = {node.name for node in nodes.values() if node.holds} | set(lists[0].names)
    else:
        awake = {node.name for node in nodes.values() if node.power in {NodePower.AWAKE, NodePower.WAKING}}
        awake |= {change.node for change in said.changes if change.value == AWAKE}
        awake -= {change.node for change in said.changes if change.sleeps}
    found = Counter(node.pool for node in nodes.values() if node.in_service and node.name in awake)
    return {pool: float(found[pool]) for pool in {node.pool for node in nodes.values()}}


def _speaks_of_power(proposal: RequestedNodeChanges) -> bool:
    kinds = {PowerDown.__name__, PowerUp.__name__, "KeepAwake"}
    return not proposal.fills or any(change.action in kinds for change in proposal.changes)
