"""The node cycle on a simulated cluster: the same cycle, another door."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from helios.control import Cycle, NodeControllerState, NodeCycleReport, NodeDomain, Undo, release_nodes
from helios.model import NodePower
from helios.ports import Domain
from helios.simulate import SimCluster, Sleep
from helios.testing import FakeLedger, a_use
from tests.unit.control.nodes_table import Says, active, all_is_well, down, node_settings
from tests.unit.simulate.builders import a_shape, a_sim_cluster


class Simulated:
    """Cycles on a simulated cluster of six nodes, one of them busy."""

    def __init__(self) -> None:
        self.cluster: SimCluster = a_sim_cluster(
            [(0, 50_000, 8)], a_shape((6, 8)), sleep=Sleep(boot_s=300, shutdown_s=120)
        )
        self.cluster.advance(10)
        self.ledger, self.memory, self.undo = FakeLedger(domain=Domain.NODES), NodeControllerState(), Undo()

    @property
    def now(self) -> datetime:
        return self.cluster.snapshot().taken_at

    def write(self, undo: Undo) -> None:
        self.undo = undo

    def cycle(self, *actions: object, after: timedelta = timedelta(minutes=10)) -> NodeCycleReport:
        self.cluster.advance(self.cluster.now_s + int(after.total_seconds()))
        now = self.now.astimezone(UTC)
        settings = node_settings(payback_s=0, most_in_transition=1.0)
        cycle = Cycle(
            domain=NodeDomain(self.cluster, settings, self.memory),
            ledger=self.ledger,
            settings=settings,
            now=now,
            holder="h",
            memory=self.memory.cycle,
            paused=lambda: "",
            undo=self.write,
            read_undo=lambda: self.undo,
        )
        report: NodeCycleReport = cycle.run(
            [active(Says(*actions), name="ces")],  # type: ignore[arg-type]
            expectation=lambda snapshot: replace(snapshot, use=a_use(at=snapshot.taken_at)),
            conditions=lambda snapshot: all_is_well(now),
        )
        self.memory = report.memory
        return report


def test_nodes_of_the_simulator_sleep_and_are_released() -> None:
    table = Simulated()
    table.cycle()
    idle = [name for name, state in zip(*table_columns(table), strict=True) if state == "IDLE"]
    report = table.cycle(*down(*idle))
    assert len(report.slept) == 4  # 0.8 of six nodes
    report = table.cycle()
    assert report.nodes[NodePower.ASLEEP] == 4
    assert report.asleep_by_helios == 4
    released = release_nodes(
        cluster=table.cluster,
        ledger=table.ledger,
        undo=table.write,
        read_undo=lambda: table.undo,
        now=table.now,
        holder="h",
        reason="enough",
    )
    assert released.clean
    assert set(released.woken) == set(report.memory.slept)
    assert table.undo == Undo()


def table_columns(table: Simulated) -> tuple[list[str], list[str]]:
    nodes = table.cluster.snapshot().nodes
    return list(nodes["name"]), list(nodes["state"])
