"""What a service that acts on nodes is asked about, and what is held against its answers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd

from helios.actions import Action, FillFirst, KeepAwake, NodeAction, PowerDown, PowerUp, RestoreNodes
from helios.model import NODE_STATES, STEP_S, NodePower, Snapshot
from helios.testing.builders import (
    NOON,
    Row,
    a_demand,
    a_node,
    a_pending_job,
    a_running_job,
    a_snapshot,
    power_settings,
)

MANY_NODES = 2_000
"""Nodes of the largest cluster that is asked about."""
WEEK = 7 * 86_400 // STEP_S
KINDS = PowerDown | PowerUp | KeepAwake | FillFirst | RestoreNodes


def node_situations() -> Iterator[tuple[str, Snapshot]]:
    """Yield the snapshots that a service that acts on nodes is asked about beside those of jobs, each with a title."""
    yield "nodes in every state", _snapshot(_in_every_state())
    yield "nodes at night", _snapshot(_in_every_state(at=NOON + timedelta(hours=14)), at=NOON + timedelta(hours=14))
    yield "all nodes idle", _snapshot(_idle(16), busy=[0.0] * WEEK)
    yield "all nodes asleep", _snapshot([row | {"power": "asleep"} for row in _idle(16)], busy=[0.0] * WEEK)
    yield "jobs that wait for nodes", _snapshot(_in_every_state(), pending=_waiting())
    yield "no forecast", a_snapshot(nodes=_in_every_state(), power=power_settings())
    yield "nobody asked how nodes are powered", a_snapshot(nodes=_in_every_state(), demand=a_demand())
    yield "nodes that cannot sleep", _snapshot(_idle(8), can_sleep=False, why_not="SuspendProgram is not set")
    yield "a forecast of which everything is missing", _with_no_forecast_made(_snapshot(_idle(8)))
    yield "a history of an hour", _snapshot(_idle(8), busy=[2.0] * 6)
    yield "a demand that jumps", _snapshot(_idle(16), busy=[float(16 * (step % 5 == 0)) for step in range(WEEK)])
    yield "a forecast of other pools", _snapshot([a_node(partitions="cpu")])
    yield "nodes of which all is missing that can be", _snapshot([{"name": "n1", "partitions": "gpu", "state": "IDLE"}])
    yield (
        "names that nobody expects",
        _snapshot([a_node(name=name, features="ä,b") for name in ("n-1.x", "ü", "x" * 99)]),
    )
    yield f"{MANY_NODES:,} nodes", _many_nodes(MANY_NODES)


def complaints_about_nodes(proposed: list[Action], snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong with the answer of a service that acts on nodes."""
    actions = [action for action in proposed if isinstance(action, KINDS)]
    strangers = [action for action in proposed if not isinstance(action, KINDS)]
    if strangers:
        yield (
            f"{strangers[0]!r} is not an action on nodes; return PowerDown, PowerUp, KeepAwake or FillFirst of "
            "helios.actions, or act on jobs: without office = Office.NODES"
        )
        return
    yield from _of_the_names(actions, snapshot)
    unexplained = {type(action).__name__ for action in actions if not action.reason.strip()}
    yield from (f"a {kind} has no reason; say why, for the person who asks" for kind in sorted(unexplained))
    yield from _of_the_sleeps([action for action in actions if isinstance(action, PowerDown)], snapshot)


def contents_of_the_demand(snapshot: Snapshot) -> list[np.ndarray[Any, Any]]:
    """Return copies of the arrays of a snapshot's demand."""
    demand = snapshot.demand
    if demand is None:
        return []
    return [array.copy() for array in (demand.busy, demand.total, demand.point, demand.mean, demand.most)]


def _of_the_names(actions: list[NodeAction], snapshot: Snapshot) -> Iterator[str]:
    known = set(snapshot.nodes["name"])
    for node in dict.fromkeys(node for action in actions for node in _named(action)):
        if node not in known:
            yield f"it names node {node!r}, which is not in the snapshot; take names from snapshot.nodes['name']"
    powered = Counter(action.node for action in actions if isinstance(action, PowerDown | PowerUp))
    filled = Counter(node for action in actions if isinstance(action, FillFirst) for node in _named(action))
    for counts in (powered, filled):
        for node, times in counts.most_common(1):
            if times > 1:
                yield f"it names node {node} {times} times; decide once for each node"
    for kind in (KeepAwake, FillFirst):
        if sum(isinstance(action, kind) for action in actions) > 1:
            yield f"it returned several {kind.__name__}; each names all that it is about, so return one"


def _of_the_sleeps(sleeps: list[PowerDown], snapshot: Snapshot) -> Iterator[str]:
    nodes = snapshot.nodes.drop_duplicates("name").set_index("name")
    for sleep in sleeps:
        if sleep.node not in nodes.index:
            continue
        node = nodes.loc[sleep.node]
        if isinstance(node["hands_off"], str):
            yield f"it puts node {sleep.node} to sleep, which must be left alone ({node['hands_off']}): see hands_off"
        elif node["state"] != "IDLE" or node["power"] != NodePower.AWAKE:
            yield f"it puts node {sleep.node} to sleep, which is not idle and awake: see state and power"


def _named(action: NodeAction) -> Iterable[str]:
    if isinstance(action, PowerDown | PowerUp):
        return [action.node]
    if isinstance(action, KeepAwake):
        return action.nodes
    if isinstance(action, FillFirst):
        return [node for tier in action.tiers for node in tier]
    return [node for node, _ in action.own if node]


def _snapshot(
    nodes: Iterable[Row], *, at: Any = NOON, busy: list[float] | None = None, pending: Iterable[Row] = (), **power: Any
) -> Snapshot:
    rows = list(nodes)
    return a_snapshot(
        nodes=rows,
        pending=list(pending),
        running=[a_running_job(job_id="900001", node_list="busy1", gpus=8)],
        taken_at=at,
        power=power_settings(**power),
        demand=a_demand(None if busy is None else {"gpu": busy}, total=float(len(rows)), at=at),
    )


def _idle(number: int, *, at: Any = NOON) -> list[Row]:
    return [
        a_node(
            name=f"n{place:02}", idle_since=at - timedelta(hours=place), rack=f"r{place % 3}", weight=1.0 + place % 2
        )
        for place in range(1, number + 1)
    ]


def _in_every_state(*, at: Any = NOON) -> list[Row]:
    busy = {"state": "ALLOCATED", "gpus_held": 8, "cpus_held": 64.0}
    return [
        *_idle(8, at=at),
        *(a_node(name=f"busy{place}", **busy) for place in range(1, 5)),
        a_node(name="mixed", state="MIXED", gpus_held=1, cpus_held=4.0),
        a_node(name="drained", flags="DRAIN", hands_off="it is drained", idle_since=at - timedelta(days=3)),
        a_node(name="down", state="DOWN", power=None, hands_off="it is down"),
        a_node(name="kept", kept_awake=1, idle_since=at - timedelta(days=3)),
        a_node(name="asleep1", power="asleep", flags="POWERED_DOWN"),
        a_node(name="asleep2", power="asleep", flags="POWERED_DOWN", rack="r1"),
        a_node(name="falling", power="falling asleep", flags="POWERING_DOWN"),
        a_node(name="waking", power="waking", flags="POWERING_UP"),
        a_node(name="only", features="nvme", gpu_type="h100", idle_since=at - timedelta(days=9)),
    ]


def _waiting() -> list[Row]:
    return [
        a_pending_job(job_id="1", reason="Resources", nodes=6.0, gpus=48),
        a_pending_job(job_id="2", reason="Priority", nodes=1.0),
        a_pending_job(job_id="3", reason="QOSMaxJobsPerUserLimit", nodes=500.0, gpus=4_000),
        a_pending_job(job_id="4", reason="Dependency", eligible_at=None),
        a_pending_job(job_id="5", reason="Resources", partition="gpu,nowhere", nodes=None),
    ]


def _with_no_forecast_made(snapshot: Snapshot) -> Snapshot:
    demand = snapshot.demand
    assert demand is not None
    missing = {name: np.full_like(getattr(demand, name), np.nan) for name in ("point", "mean", "most")}
    return dataclasses.replace(snapshot, demand=dataclasses.replace(demand, **missing))


def _many_nodes(number: int) -> Snapshot:
    place = np.arange(number)
    row = a_snapshot(nodes=[a_node(idle_since=NOON)]).nodes
    nodes = row.loc[row.index.repeat(number)].reset_index(drop=True)
    nodes = nodes.assign(
        name=pd.Series(place).map("n{:04}".format),
        state=pd.Series(np.where(place % 3 == 0, "ALLOCATED", "IDLE")),
        gpus_held=np.where(place % 3 == 0, 8, 0).astype(np.int32),
        cpus_held=np.where(place % 3 == 0, 64.0, 0.0),
        rack=pd.Series(place // 20).map("r{}".format),
        idle_since=row["idle_since"].iloc[0] - pd.to_timedelta(place * 7919 % 86_400, unit="s"),
    )
    nodes["idle_since"] = nodes["idle_since"].mask(nodes["state"] == "ALLOCATED")
    demand = a_demand({"gpu": [number / 3.0] * WEEK}, total=float(number))
    snapshot = a_snapshot(power=power_settings(), demand=demand)
    return dataclasses.replace(snapshot, nodes=NODE_STATES.conform(nodes))
