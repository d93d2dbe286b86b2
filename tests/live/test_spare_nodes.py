"""The service ces in charge of nodes that really sleep: what it does of its own on jobs as they come.

The rule keeps one spare node and remembers a minute, as on a cluster of eight nodes five spare ones are all. The use of
nodes follows from the jobs of this cluster alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from helios.app.modes import pause
from helios.metrics.spare_nodes import AwakeRule
from helios.services.energy_saving import Ces, CesOptions
from tests.live.rig import Rig
from tests.live.test_power import Helios, asleep

RULE = AwakeRule(memory_s=60, spare=1)
GPU = ("n1", "n2", "n3", "n4", "n5")
"""Nodes of the pool gpu (a100); n5 is the only one with feature big, and the others are of a pool of their own."""


class Running(Helios):
    """Helios with ces alone, on real jobs."""

    def start(self, mechanism: Literal["sleep", "keep_awake"] = "sleep") -> None:
        """Begin anew, as after a restart."""
        self.cycles = self.another(mechanism=mechanism).node_cycles
        self.cycles.services = {"change": Ces(CesOptions(every_s=1, mechanism=mechanism))}

    def sleepers(self) -> set[str]:
        return {node for node in GPU if asleep(self.rig, node)}

    def in_service(self, state: str) -> int:
        """Return the nodes of the pool that are in this state and no other."""
        return sum(self.rig.nodes()[node] == state for node in GPU)

    def settles(self, *, asleep: int) -> None:
        """Take cycles until so many nodes of the pool are asleep."""
        self.until(lambda _: len(self.sleepers()) == asleep)


@pytest.fixture
def helios(sleepy: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("SLURM_CONF", sleepy.environment["SLURM_CONF"])
    monkeypatch.setattr("helios.metrics.spare_nodes.SAFE_RULE", RULE)
    monkeypatch.setattr("helios.services.energy_saving.service.SAFE_RULE", RULE)
    made = Running(sleepy, tmp_path)
    made.another().read()
    made.start()
    yield made


def test_a_burst_finds_its_nodes_and_a_spare_one_is_woken(helios: Running) -> None:
    helios.settles(asleep=3)  # one of feature ib and the only one of feature big stay
    jobs = [helios.rig.submit(f"--nodelist={node}", gpus=8) for node in ("n1", "n2", "n3", "n5")]
    helios.until(lambda _: helios.rig.nodes()["n4"] == "IDLE")
    helios.until(lambda _: all(helios.rig.job_state(job) == "RUNNING" for job in jobs))
    assert "woken ahead of need" in helios.said_of("n4")


def test_a_node_that_fails_to_boot_is_replaced(helios: Running) -> None:
    helios.settles(asleep=3)
    failing = min(helios.sleepers())
    helios.rig.boots(failing, "never")
    helios.rig.submit(f"--nodelist={failing}", gpus=8)
    report = helios.until(lambda report: failing in report.memory.quarantined)
    assert report.memory.quarantined[failing].what.startswith("did not wake")
    helios.until(lambda _: helios.in_service("IDLE") >= 1)


def test_a_drained_node_is_no_spare_one(helios: Running) -> None:
    helios.settles(asleep=3)
    awake = [node for node in GPU if helios.rig.nodes()[node] == "IDLE"]
    for node in awake:
        helios.rig.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=a test")
    helios.until(lambda _: helios.in_service("IDLE") == 1)
    assert all("DRAIN" in helios.rig.nodes()[node] for node in awake)


def test_a_slurm_without_a_list_to_change_sleeps_nothing(helios: Running) -> None:
    helios.start(mechanism="keep_awake")
    helios.until(lambda report: not report.suspended and helios.said_of(""))
    assert "the keep-awake list cannot be changed on this cluster" in helios.said_of("")
    assert not helios.sleepers()


def test_a_restart_in_the_middle_changes_nothing(helios: Running) -> None:
    busy = helios.rig.submit("--nodelist=n5", gpus=8)
    helios.rig.until(lambda: helios.rig.job_state(busy) == "RUNNING")
    helios.settles(asleep=3)
    before = helios.sleepers()
    helios.start()
    report = helios.until(lambda report: not report.suspended)
    assert (report.slept, report.woken) == ((), ())
    states = helios.rig.nodes()
    helios.rig.control("restart", "slurmctld")
    helios.rig.until(lambda: helios.rig.nodes() == states)  # a node that does not answer yet would be replaced
    helios.start()
    helios.until(lambda report: not report.suspended)
    assert helios.sleepers() == before
    pause(helios.url, helios.rig.name, helios.state, by="root", reason="a test", now=helios.cycles.clock())
    helios.until(lambda report: report.clean)
    helios.rig.until(lambda: helios.rig.nodes()["n1"] == "IDLE")
