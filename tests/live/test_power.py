"""Helios in charge of nodes that really sleep: what it does, what it never touches, and how it is stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.actions import Action, PowerDown, PowerUp, Result
from helios.app.modes import pause, resume
from helios.app.node_use import NodeUseRecord
from helios.app.operations import Operations
from helios.config import Settings
from helios.control import NodeCycleReport, ServiceMode
from helios.model import APPLIED_NODE_CHANGES, DECISIONS, Mode, Snapshot, node_pools
from helios.ports import Domain
from helios.slurm.undo_file import UNDO_FILE, read_undo, write_undo
from helios.testing import a_use
from helios.warehouse import Warehouse
from tests.live.rig import Rig
from tests.waiting import TEST_TIMEOUT_S

RELEASE = Path(__file__).parents[2] / "deploy" / "slurm" / "helios-release.sh"
OWN_WEIGHTS = {"n1": 10, "n2": 10, "n3": 10, "n4": 20, "n5": 20, "n6": 50, "n7": 50, "n8": 50}


class Wish:
    """A service that asks for what a test changes."""

    domain = Domain.NODES
    every = timedelta(0)

    def __init__(self) -> None:
        self.actions: Sequence[Action] = ()

    def decide(self, snapshot: Snapshot) -> Sequence[Action]:
        return self.actions


class Helios:
    """Helios with one active service on the nodes, and rails that are as wide as they can be."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder, self.state = rig, folder, folder / "state"
        self.url = f"sqlite:///{folder / 'helios.db'}"
        self.change, self.mode = Wish(), Mode.ACTIVE
        self.said: list[tuple[str, str]] = []
        self.cycles = self.another().node_cycles

    def another(self, **power: object) -> Operations:
        """Return Helios as another process would have it, with its change."""
        wide = {"most_in_transition": 1.0, "most_asleep": 1.0, "idle_s": 0, "payback_s": 0, "cycles_per_day": 100}
        plain: dict[str, object] = {
            "database": {"url": self.url},
            "slurm": {"backend": "commands"},
            "control": {"state_folder": str(self.state)},
            "history": {"start": f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}"},
            "services": {"qssf": {}},
            "power": wide | power,
        }
        operations = Operations(Settings.model_validate(plain))
        operations.node_cycles.services = {"change": self.change}
        return operations

    def cycle(self) -> NodeCycleReport:
        report = self.cycles.cycle(modes={"change": ServiceMode(mode=self.mode)})
        lines = report.decisions
        self.said += [
            (str(node), f"{reason}; {outcome}")
            for node, reason, outcome in zip(lines["target"], lines["reason"], lines["outcome"], strict=True)
        ]
        return report

    def said_of(self, node: str) -> str:
        """Return what the audit says of a node; what does not change it says once."""
        return "; ".join(words for about, words in self.said if about == node)

    def asks(self, *actions: Action) -> NodeCycleReport:
        """Have the service ask for this until something is done, at most in two cycles: a node is looked at twice."""
        self.change.actions = actions
        report = self.cycle()
        return report if report.slept or report.woken or report.weighed else self.cycle()

    def until(self, claim: Callable[[NodeCycleReport], Any]) -> NodeCycleReport:
        """Take cycles until one is as claimed."""
        reports: list[NodeCycleReport] = []
        self.rig.until(lambda: reports.append(self.cycle()) or claim(reports[-1]))  # type: ignore[func-returns-value]  # because None goes on
        return reports[-1]

    def weighed_by_an_earlier_release(self, *nodes: str) -> None:
        """Have nodes weigh one more in Slurm, and on record what releases up to 0.1 wrote of that."""
        own, now = {node: self.rig.weights()[node] for node in nodes}, datetime.now(UTC)
        rows = [
            {
                "service": "node_fill_order",
                "mode": "active",
                "setting": "weight",
                "node": node,
                "value": "tier 1",
                "own": str(weight),
                "after": f"Weight {weight + 1}",
                "overridden": False,
                "written_at": pd.Timestamp(now),
            }
            for node, weight in own.items()
        ]
        with Warehouse.open(self.url) as warehouse:
            ledger = warehouse.ledger(self.rig.name, domain=Domain.NODES)
            kept = ledger.applied_changes().astype(object).to_dict("records")
            token = ledger.acquire(holder=self.cycles.holder, now=now, lasts=timedelta(minutes=1))
            assert token is not None
            applied_changes = APPLIED_NODE_CHANGES.conform(pd.DataFrame([*kept, *rows]))
            ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=applied_changes)
        self.state.mkdir(exist_ok=True)
        undo = self.state / UNDO_FILE
        write_undo(undo, asleep=read_undo(undo).asleep if undo.exists() else (), weights=own)
        for node, weight in own.items():
            self.rig.run("scontrol", "update", f"nodename={node}", f"weight={weight + 1}")

    def sleeps(self, *nodes: str) -> None:
        """Have nodes put to sleep, and wait until Slurm counts them as asleep."""
        self.change.actions = [PowerDown(node=node, reason="a test") for node in nodes]
        self.until(lambda _: all(asleep(self.rig, node) for node in nodes))
        self.change.actions = ()


def known_use(_: object, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a record of use, which is what a guard wants to see."""
    in_use = {pool: [0] for pool in sorted(set(node_pools(snapshot.nodes)))}
    return replace(snapshot, use=a_use(in_use, at=snapshot.taken_at))


def asleep(rig: Rig, node: str) -> bool:
    return rig.nodes()[node] == "IDLE+POWERED_DOWN"


def switched_off(rig: Rig, since: int) -> set[str]:
    return {node for what, node, _ in rig.switched()[since:] if what == "off"}


@pytest.fixture
def use_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a record of use that there is no history for yet."""
    monkeypatch.setattr(NodeUseRecord, "__call__", known_use)


@pytest.fixture
def helios(sleepy: Rig, tmp_path: Path, use_is_known: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helios]:
    """Helios on the cluster whose nodes sleep, its history read."""
    monkeypatch.setenv("SLURM_CONF", sleepy.environment["SLURM_CONF"])
    made = Helios(sleepy, tmp_path)
    made.another().read()
    yield made
    sleepy.run("scontrol", "reconfigure")  # forgets every weight


def test_a_node_sleeps_and_wakes_as_decided(helios: Helios) -> None:
    report = helios.asks(PowerDown(node="n1", reason="nobody needs it"))
    assert report.slept == ("n1",)
    helios.rig.until(lambda: asleep(helios.rig, "n1") and "n1" not in helios.rig.machines_on())
    assert helios.cycle().asleep_by_helios == 1
    assert helios.asks(PowerUp(node="n1", reason="somebody will")).notes == ()
    helios.rig.until(lambda: helios.rig.nodes()["n1"] == "IDLE")
    assert helios.until(lambda report: report.asleep_by_helios == 0)


def test_a_job_wakes_a_sleeping_node_and_runs_to_its_end(helios: Helios) -> None:
    helios.sleeps("n1")
    job = helios.rig.submit("--nodelist=n1", seconds=0)
    helios.rig.until(lambda: helios.rig.job_state(job) == "CONFIGURING")
    helios.change.actions = (PowerDown(node="n1", reason="a stubborn service"),)
    told = helios.until(lambda report: report.asleep_by_helios == 0)  # Slurm is at it a second later
    assert told.slept == ()
    assert "Slurm woke it for a job" in helios.said_of("n1")
    helios.rig.until(lambda: helios.cycle() and helios.rig.job_state(job) == "COMPLETED")


def test_what_must_not_sleep_never_does_whatever_a_service_asks(helios: Helios) -> None:
    rig, before = helios.rig, len(helios.rig.switched())
    helios.cycles = helios.another(never="n3").node_cycles
    busy = rig.submit("--nodelist=n1")
    rig.run("scontrol", "update", "nodename=n2", "state=drain", "reason=a test")
    rig.until(lambda: rig.job_state(busy) == "RUNNING" and "DRAIN" in rig.nodes()["n2"])
    rig.run(
        "scontrol", "create", "reservation", "reservationname=held", "nodes=n4",
        "starttime=now", "duration=60", "users=root", "flags=maint",
    )  # fmt: skip
    try:
        rig.until(lambda: "MAINT" in rig.nodes()["n4"])
        report = helios.asks(*(PowerDown(node=node, reason="all of them") for node in rig.nodes()))
        assert report.slept == ()
        for node, why in {
            "n1": "not idle",
            "n2": "drained",
            "n3": "power.never",
            "n4": "MAINT",
            "n5": "last node awake of feature big",
            "n6": "last node awake of pool",
            "n7": "keep-awake list",
            "n8": "SuspendExcParts",
        }.items():
            assert why.lower() in helios.said_of(node).lower(), (node, helios.said_of(node))
        helios.cycle()
    finally:
        rig.run("scontrol", "delete", "reservationname=held")
    assert switched_off(rig, before) == set()
    assert rig.job_state(busy) == "RUNNING"


def test_a_shadow_touches_nothing(helios: Helios) -> None:
    before = len(helios.rig.switched())
    helios.mode = Mode.SHADOW
    helios.asks(PowerDown(node="n1", reason="a test"))
    helios.cycle()
    assert "would" in helios.said_of("n1")
    assert set(helios.rig.nodes().values()) == {"IDLE"}
    assert helios.rig.switched()[before:] == []


def test_few_nodes_change_at_once_and_a_drained_one_stays_asleep(helios: Helios) -> None:
    rig, before = helios.rig, len(helios.rig.switched())
    helios.cycles = helios.another(most_in_transition=0.1).node_cycles
    report = helios.asks(*(PowerDown(node=node, reason="a test") for node in ("n4", "n1")))
    assert report.slept == ("n4",)
    assert report.counts["change"][Result.POSTPONED] == 1
    rig.until(lambda: asleep(rig, "n4"))
    rig.run("scontrol", "update", "nodename=n4", "state=drain", "reason=a test")
    assert helios.asks(PowerUp(node="n4", reason="a test")).woken == ()
    assert "drained" in helios.said_of("n4")
    assert [node for what, node, _ in rig.switched()[before:] if (what, node) == ("on", "n4")] == []


def test_while_a_job_waits_for_nodes_none_of_its_partition_sleeps(helios: Helios) -> None:
    rig = helios.rig
    holder = rig.submit("--nodelist=n4", gpus=8)
    rig.until(lambda: rig.job_state(holder) == "RUNNING")
    job = rig.submit("--nodelist=n4", gpus=8)
    rig.until(lambda: rig.show_job(job)["Reason"] == "Resources")
    report = helios.asks(PowerDown(node="n1", reason="a test"))
    assert report.slept == ()
    assert "pending job" in helios.said_of("n1")


def test_a_job_that_comes_before_the_write_runs_to_its_end(helios: Helios, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, jobs = helios.rig, []
    backend = helios.cycles.nodes.backend  # type: ignore[attr-defined]  # because the door is Slurm's
    write = backend.change_nodes

    def late(changes: Any) -> Any:
        jobs.append(rig.submit("--nodelist=n1", seconds=3))
        rig.until(lambda: rig.job_state(jobs[-1]) == "RUNNING")
        return write(changes)

    helios.cycle()
    monkeypatch.setattr(backend, "change_nodes", late)
    helios.change.actions = (PowerDown(node="n1", reason="a test"),)
    helios.cycle()
    monkeypatch.undo()
    assert "job" in helios.said_of("n1")
    rig.until(lambda: rig.job_state(jobs[0]) == "COMPLETED")
    rig.until(lambda: ("off", "n1", "") in rig.switched())


def test_after_failed_wakes_nothing_is_put_to_sleep_any_more(helios: Helios) -> None:
    rig = helios.rig
    helios.cycles = helios.another(failures_to_protect=2).node_cycles
    helios.sleeps("n1", "n4")
    for node in ("n1", "n4"):
        rig.boots(node, "never")
    helios.asks(*(PowerUp(node=node, reason="a test") for node in ("n1", "n4")))
    helios.change.actions = ()
    notes: list[str] = []
    report = helios.until(lambda report: notes.extend(report.notes) or report.protected)  # type: ignore[func-returns-value]  # because None goes on
    assert sorted(report.memory.quarantined) == ["n1", "n4"]
    assert any("tell somebody" in note and "n1" in note for note in notes)
    rig.wake_all()
    assert helios.asks(PowerDown(node="n3", reason="a test")).slept == ()
    assert "protected mode" in helios.said_of("n3")
    helios.cycles.clear(None)
    assert helios.asks(PowerDown(node="n3", reason="a test")).slept == ("n3",), helios.said


def test_a_pause_wakes_all_that_helios_put_to_sleep_and_nothing_else(helios: Helios) -> None:
    rig = helios.rig
    rig.put_to_sleep("n5")  # an admin's
    helios.sleeps("n1", "n4")
    helios.weighed_by_an_earlier_release("n3")
    assert rig.weights()["n3"] == 11
    report = helios.asks(PowerDown(node="n2", reason="it still falls asleep when the pause comes"))
    assert report.slept == ("n2",), helios.said
    pause(helios.url, rig.name, helios.state, by="root", reason="a test", now=datetime.now(UTC))
    helios.until(lambda report: report.clean and report.suspended)
    rig.until(lambda: {rig.nodes()[node] for node in ("n1", "n2", "n4")} == {"IDLE"})
    assert asleep(rig, "n5")
    assert rig.weights() == OWN_WEIGHTS


def test_the_first_cycle_takes_back_weights_of_an_earlier_release(helios: Helios) -> None:
    rig = helios.rig
    helios.weighed_by_an_earlier_release("n1", "n2", "n3")
    for node, weight in (("n2", 33), ("n5", 77)):
        rig.run("scontrol", "update", f"nodename={node}", f"weight={weight}")  # an admin's
    report = helios.cycle()
    assert set(report.weighed) == {"n1", "n3"}
    assert rig.weights() == OWN_WEIGHTS | {"n2": 33, "n5": 77}
    assert "may not write now" in helios.said_of("n1")


def test_without_the_database_the_script_wakes_all_and_restores_weights(helios: Helios) -> None:
    rig = helios.rig
    helios.sleeps("n1")
    helios.asks(PowerDown(node="n4", reason="a test"))
    helios.weighed_by_an_earlier_release("n3")
    (helios.folder / "helios.db").unlink()
    done = subprocess.run(
        [str(RELEASE), "--state", str(helios.state)],
        env=rig.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rig.until(lambda: {rig.nodes()[node] for node in ("n1", "n4")} == {"IDLE"})
    assert rig.weights() == OWN_WEIGHTS


def where(rig: Rig, job: str) -> str:
    rig.until(lambda: rig.job_state(job) == "RUNNING")
    return rig.show_job(job)["NodeList"]


def test_a_restart_of_helios_and_of_the_controller_forgets_nothing(helios: Helios) -> None:
    helios.sleeps("n1")
    helios.rig.control("restart", "slurmctld")
    helios.cycles = helios.another().node_cycles
    report = helios.until(lambda report: not report.suspended)
    assert report.asleep_by_helios == 1
    pause(helios.url, helios.rig.name, helios.state, by="root", reason="a test", now=datetime.now(UTC))
    helios.until(lambda report: report.clean)
    helios.rig.until(lambda: helios.rig.nodes()["n1"] == "IDLE")
    resume(helios.url, helios.rig.name, helios.state, now=datetime.now(UTC))
