"""A table for tests of the node cycle: nodes, a ledger, an undo file, and services that say what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.config import Control, Power, Settings, SlurmSettings
from helios.control import (
    ActiveService,
    Cycle,
    NodeControllerState,
    NodeCycleReport,
    NodeDomain,
    Preconditions,
    Undo,
    release_nodes,
)
from helios.control.observed import Observation
from helios.errors import HeliosError
from helios.model import APPLIED_NODE_CHANGES, DECISIONS, NodePower, Snapshot
from helios.ports import Domain
from helios.testing import FakeLedger, FakeNodes, a_node, a_use
from tests.unit.control.table import ACTIVE, OFF, SHADOW, Says, active, all_is_well, canary

__all__ = ["ACTIVE", "OFF", "SHADOW", "Says", "active", "all_is_well", "canary"]

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
AWAKE, FALLING, ASLEEP, WAKING = (
    NodePower.AWAKE,
    NodePower.FALLING_ASLEEP,
    NodePower.ASLEEP,
    NodePower.WAKING,
)


def down(*nodes: str) -> list[PowerDown]:
    return [PowerDown(node=node, reason=f"{node} is idle and not needed") for node in nodes]


def up(*nodes: str) -> list[PowerUp]:
    return [PowerUp(node=node, reason=f"{node} will be needed") for node in nodes]


def keep(*nodes: str) -> KeepAwake:
    return KeepAwake(nodes=nodes, reason="needed soon")


def some_nodes(number: int = 10, **columns: Any) -> list[dict[str, Any]]:
    """Idle nodes n1, n2, ... of one pool, each with weights far apart."""
    return [a_node(**({"name": f"n{place}", "weight": 10.0} | columns)) for place in range(1, number + 1)]


def node_settings(
    *, control: dict[str, Any] | None = None, slurm: dict[str, Any] | None = None, **power: Any
) -> Settings:
    """Bounds that let half of ten nodes be on their way, unless the test says otherwise."""
    return Settings(
        power=Power(**({"most_in_transition": 0.5} | power)),
        control=Control(**(control or {})),
        slurm=SlurmSettings(**(slurm or {})),
    )


def with_use(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, use=a_use(at=snapshot.taken_at))


@dataclass(kw_only=True)
class NodeTable:
    """Nodes and the ledger of their domain, turn after turn."""

    cluster: FakeNodes = field(default_factory=lambda: FakeNodes(nodes=some_nodes()))
    ledger: FakeLedger = field(default_factory=lambda: FakeLedger(domain=Domain.NODES))
    settings: Settings = field(default_factory=node_settings)
    memory: NodeControllerState = field(default_factory=NodeControllerState)
    holder: str = "helios-1"
    world: Callable[[datetime], Preconditions] = all_is_well
    expectation: Callable[[Snapshot], Snapshot] = with_use
    pause_asked: Callable[[], str] = lambda: ""
    undo: Undo = field(default_factory=Undo)
    undo_fails: HeliosError | None = None
    unreadable: HeliosError | None = None
    ended: Callable[[datetime], Collection[str]] | None = None
    accepted: Observation | None = None
    doubted: Observation | None = None

    def cycle(self, *active_services: ActiveService, after: timedelta = MINUTE) -> NodeCycleReport:
        """Let time pass and take a cycle; the memory goes through its text, as in life."""
        self.cluster.tick(after)
        memory = NodeControllerState.from_json(self.memory.to_json())
        cycle = Cycle(
            domain=NodeDomain(self.cluster, self.settings, memory),
            ledger=self.ledger,
            settings=self.settings,
            now=self.cluster.now,
            holder=self.holder,
            memory=memory.cycle,
            undo=self.write_undo,
            read_undo=self.read_undo,
            paused=self.pause_asked,
            ended=self.ended,
            accepted=self.accepted,
            doubted=self.doubted,
        )
        report: NodeCycleReport = cycle.run(
            active_services, expectation=self.expectation, conditions=lambda snapshot: self.world(self.cluster.now)
        )
        self.accepted, self.doubted = cycle.accepted, cycle.doubted
        if report.leads:
            self.memory = report.memory
        return report

    def after_two_looks(self) -> NodeTable:
        """Have looked once, so that what is idle is so at two looks in the next cycle."""
        self.cycle()
        return self

    def says(self, *actions: NodeAction, after: timedelta = MINUTE, **columns: Any) -> NodeCycleReport:
        """Take a cycle in which one service, active unless said otherwise, asks for this."""
        return self.cycle(active(Says(*actions), **({"name": "ces"} | columns)), after=after)

    def release(self, reason: str = "enough") -> NodeCycleReport:
        return release_nodes(
            cluster=self.cluster,
            ledger=self.ledger,
            undo=self.write_undo,
            read_undo=self.read_undo,
            now=self.cluster.now,
            holder=self.holder,
            reason=reason,
            memory=self.memory,
        )

    def weighed_by_an_earlier_release(self, *nodes: str, mode: str = "active") -> None:
        """Have the nodes weigh one more, and on record what releases up to 0.1 wrote of that; in shadow, that alone."""
        for node in nodes:
            own = round(self.cluster.weight_of(node))
            row = {
                "service": "node_fill_order",
                "mode": mode,
                "setting": "weight",
                "node": node,
                "value": "tier 1",
                "own": str(own),
                "after": f"Weight {own + 1}",
                "overridden": False,
                "written_at": pd.Timestamp(self.cluster.now),
            }
            kept = self.ledger.applied_changes().astype(object).to_dict("records")
            token = self.ledger.acquire(holder=self.holder, now=self.cluster.now, lasts=MINUTE)
            assert token is not None
            applied_changes = APPLIED_NODE_CHANGES.conform(pd.DataFrame([*kept, row]))
            self.ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=applied_changes)
            if mode == "active":
                self.undo = replace(self.undo, weights=(*self.undo.weights, (node, own)))
                self.cluster.admin_sets_weight(node, own + 1)

    def pause(self, reason: str = "enough") -> None:
        self.world = lambda now: replace(all_is_well(now), paused=reason)

    def read_undo(self) -> Undo:
        if self.unreadable is not None:
            raise self.unreadable
        return self.undo

    def write_undo(self, undo: Undo) -> None:
        if self.undo_fails is not None:
            raise self.undo_fails
        self.undo = undo

    def lines(self, **wanted: str) -> list[dict[Any, Any]]:
        """The lines of the ledger with these columns."""
        rows: list[dict[Any, Any]] = self.ledger.decisions.astype(object).to_dict("records")
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    def why_refused(self, node: str) -> str:
        """What the last line of a refusal of this node says."""
        refused = [row for row in self.lines(target=node) if row["outcome"].startswith(("refused", "postponed"))]
        return str(refused[-1]["outcome"]) if refused else ""

    def applied(self, mode: str = "active", *, setting: str = "power") -> dict[str, str]:
        """Value by node of what stands in that mode."""
        frame = self.ledger.applied_changes()
        chosen = frame[(frame["mode"] == mode) & (frame["setting"] == setting)]
        return dict(zip(chosen["node"], chosen["value"], strict=True))
