"""Nodes made of fakes that behave: a door in memory, a warehouse in a file, a clock that a test moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from helios.actions import NodeAction, PowerDown
from helios.app.controllers import NodeController
from helios.app.live_cluster import LiveCluster
from helios.app.sync import JOBS as JOBS_READ
from helios.app.sync import AccountingSource
from helios.config import Settings
from helios.control import NodeCycleReport, ServiceMode
from helios.model import NODE_EVENTS, Mode, Snapshot
from helios.testing import FakeCluster, FakeNodes, a_node, a_use
from helios.warehouse import Warehouse
from tests.unit.app.sites import put_empty_database
from tests.unit.control.table import Says

ACTIVE = ServiceMode(mode=Mode.ACTIVE)


class FakeNodeSite:
    """A :class:`NodeController` on :class:`FakeNodes`, with a service ``says`` that says what it is told to."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.nodes = FakeNodes(name="dev", nodes=[a_node(name=f"n{place}") for place in range(1, 7)])
        chosen = {
            "database": {"url": put_empty_database(folder / "helios.db")},
            "control": {"state_folder": str(folder / "state")},
            "power": {"most_in_transition": 0.5, "payback_s": 0, "idle_s": 0},
            "services": {},
        }
        self.settings = Settings.model_validate(chosen | settings)
        self.says = Says()
        self.cycles = self.another()
        self.read()
        self.cycle()  # the first look: a node must be idle on two

    def another(self) -> NodeController:
        """Return the same Helios after a restart."""
        cycles = NodeController(self.live_cluster(), self.settings, clock=lambda: self.nodes.now)
        cycles.services = {"says": self.says}
        cycles.expect = expecting  # type: ignore[method-assign]  # what is forecast is not what is tested here
        return cycles

    def live_cluster(self) -> LiveCluster:
        jobs = FakeCluster(name="dev")
        return LiveCluster(
            name="dev",
            cluster=jobs,
            accounting=AccountingSource(
                jobs=lambda start, end, path: None, node_events=lambda start, end: NODE_EVENTS.empty()
            ),
            controller=lambda: "ctl since monday",
            clock_skew_s=lambda: 0.0,
            site_factor=jobs.site_factor,
            time_min=None,
            without_helios=lambda queue: np.zeros(len(queue)),
            nodes=lambda: self.nodes,
        )

    def cycle(self, *actions: NodeAction, mode: ServiceMode = ACTIVE) -> NodeCycleReport:
        """A minute later, have the service say ``actions``, and take a cycle."""
        self.nodes.tick(timedelta(minutes=1))
        self.read()
        self.says.actions = list(actions)
        return self.cycles.cycle(modes={"says": mode})

    def warehouse(self) -> Warehouse:
        return Warehouse.open(self.settings.database.url)

    def read(self) -> None:
        """Say that the history was read until now."""
        now = self.nodes.now
        with self.warehouse() as warehouse:
            warehouse.add_coverage(
                "dev", source=JOBS_READ, started_at=now - timedelta(days=1), ended_at=now, read_at=now
            )

    @property
    def state(self) -> Path:
        return Path(self.settings.control.state_folder)


def expecting(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, use=a_use(at=snapshot.taken_at))


def down(*nodes: str) -> list[PowerDown]:
    return [PowerDown(node=node, reason="idle and not needed") for node in nodes]
