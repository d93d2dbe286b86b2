"""Explanation of a live cluster's nodes, and of a single node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pandas as pd

from helios.app.explain_job import read_or_empty
from helios.app.node_controller import NodeController
from helios.choices import Domain
from helios.control import AppliedChanges, NodeControllerState
from helios.control.observed import observed_nodes
from helios.control.report import count_asleep_by_helios, service_tallies
from helios.errors import UsageError
from helios.model import APPLIED_NODE_CHANGES, DECISIONS, Snapshot
from helios.report.nodes import NodeExplanation, NodeStatus
from helios.warehouse import Warehouse

LOOK_BACK = timedelta(days=30)


class NodeUnknown(UsageError):
    """The cluster has no such node."""


def node_status(cycles: NodeController) -> NodeStatus:
    """Return the current state of the nodes.

    Raises
    ------
    ClusterUnavailable, WarehouseUnavailable, MemoryDamaged
        The nodes or the controller's stored state cannot be read.
    """
    snapshot, applied_changes, memory = cycles.nodes.snapshot(), _applied_changes(cycles), cycles.remembered()
    nodes, applied = observed_nodes(snapshot), AppliedChanges.read(applied_changes, APPLIED_NODE_CHANGES)
    return NodeStatus(
        taken_at=snapshot.taken_at,
        pools=service_tallies(nodes, at=snapshot.taken_at, by_helios=count_asleep_by_helios(nodes, applied), wanted={}),
        applied_changes=applied_changes,
        protected=memory.protected,
        quarantined={node: failure.what for node, failure in memory.quarantined.items()},
        cannot="" if snapshot.power is None else snapshot.power.why_not,
        paused=str(cycles.pause() or ""),
    )


def explain_node(cycles: NodeController, node: str) -> NodeExplanation:
    """Return what Helios knows about one node.

    Raises
    ------
    NodeUnknown
        The cluster has no such node.
    ClusterUnavailable, WarehouseUnavailable, MemoryDamaged
        As :func:`node_status`.
    """
    snapshot = cycles.nodes.snapshot()
    if node not in set(snapshot.nodes["name"]):
        raise NodeUnknown(f"The cluster has no node {node!r}.", hint="See all: sinfo --Node, or helios power status")
    applied_changes, memory = _applied_changes(cycles), cycles.remembered()
    return NodeExplanation(
        node=node,
        facts=tuple(_facts(snapshot, node, applied_changes[applied_changes["node"] == node], memory)),
        decisions=_decisions(cycles, node, snapshot),
    )


def _facts(snapshot: Snapshot, node: str, applied_changes: pd.DataFrame, memory: NodeControllerState) -> Iterator[str]:
    observed = observed_nodes(snapshot)[node]
    state = snapshot.nodes.set_index("name").loc[node]
    words = [str(word) for word in (state["state"], state["flags"]) if isinstance(word, str)]
    yield f"{node} ({observed.pool}) is {observed.power or 'down, or does not answer'}; Slurm says {'+'.join(words)}."
    if observed.excluded_reason:
        yield f"Helios leaves it alone: {observed.excluded_reason}."
    if node in memory.quarantined:
        failure = memory.quarantined[node]
        when = f"{failure.at:%Y-%m-%d %H:%M} UTC"
        yield f"It failed to wake at {when} ({failure.what}). To trust it again: helios power clear {node}"
    if node in memory.keep_off:
        until = f"{memory.keep_off[node]:%m-%d %H:%M} UTC"
        yield f"Somebody woke it soon after Helios had put it to sleep: left awake until {until}."
    if memory.protected:
        yield f"{memory.protected[:1].upper()}{memory.protected[1:]}."
    for row in applied_changes.to_dict("records"):
        own = f"; the site's own is {row['own']}" if isinstance(row["own"], str) and row["own"] else ""
        verb = "would have set" if row["mode"] == "shadow" else "set"
        shadow = " (it is in shadow: nothing was set)" if row["mode"] == "shadow" else ""
        since = f"{row['written_at']:%m-%d %H:%M} UTC"
        what = f"{row['setting']} {row['value']}{own}{shadow}"
        yield f"Since {since} stands what service {row['service']} {verb}: {what}."
    cycles = len(memory.slept.get(node, ()))
    times = "once" if cycles == 1 else f"{cycles} times"
    yield f"Helios put it to sleep {times if cycles else 'not once'} in the last 24 hours."


def _applied_changes(cycles: NodeController) -> pd.DataFrame:
    with Warehouse.open(cycles.settings.database.url) as warehouse:
        ledger = warehouse.ledger(cycles.site.name, domain=Domain.NODES)
        return read_or_empty(ledger.applied_changes, APPLIED_NODE_CHANGES)


def _decisions(cycles: NodeController, node: str, snapshot: Snapshot) -> pd.DataFrame:
    since = snapshot.taken_at - LOOK_BACK
    with Warehouse.open(cycles.settings.database.url) as warehouse:
        made = read_or_empty(lambda: warehouse.decisions_about(cycles.site.name, node, since=since), DECISIONS)
    return made.sort_values("decided_at", ascending=False, kind="stable", ignore_index=True)
