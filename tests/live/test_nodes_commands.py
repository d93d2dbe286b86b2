"""Nodes of a real Slurm through its own commands: the door, and each fact about power that it rests on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helios.actions import NodeAction, NodeOutcome, NodeSetting, PowerDown, PowerUp, Result, RevertNodes
from helios.config import SlurmSettings
from helios.model import NodePower
from helios.slurm.accounting import Accounting
from helios.slurm.backend import NodeUpdate
from helios.slurm.commands import CommandsBackend
from helios.slurm.connect import open_nodes
from helios.slurm.nodes import TAKEN, TOO_OLD, SlurmNodes
from helios.slurm.power_config import PowerConfigReader
from helios.slurm.preflight import FindingLevel, power_checks, run_checks
from helios.slurm.shell import Shell
from tests.changes import asked_of_nodes
from tests.contract.nodes_suite import NodesContract, NodeWorld
from tests.live.rig import Rig

SETTINGS = SlurmSettings(backend="commands")


@pytest.fixture
def nodes(sleepy: Rig) -> Iterator[SlurmNodes]:
    cluster = open_nodes(SETTINGS, racks="mine=n5", environment=sleepy.environment)
    yield cluster
    cluster.close()


@contextmanager
def configured(rig: Rig, old: str, new: str) -> Iterator[None]:
    """Have another line in slurm.conf."""
    path = rig.folder / "conf" / "slurm.conf"
    before = path.read_text()
    assert old in before
    try:
        path.write_text(before.replace(old, new))
        reconfigure(rig)
        yield
    finally:
        path.write_text(before)
        reconfigure(rig)


def reconfigure(rig: Rig) -> None:
    """Have slurm.conf read again, in a second of its own.

    Slurm's power saving takes a configuration as read by the second in which it was: of two in one second it would keep
    to the first, and a node could not be told to sleep after the test that forbade it (22.05.8).
    """
    begun = int(time.time())
    rig.until(lambda: int(time.time()) > begun)
    rig.run("scontrol", "reconfigure")
    begun = int(time.time())
    rig.until(lambda: int(time.time()) > begun)


def down(*names: str) -> list[NodeAction]:
    return [PowerDown(node=name, reason="nothing to do") for name in names]


def up(*names: str) -> list[NodeAction]:
    return [PowerUp(node=name, reason="wanted soon") for name in names]


def results(outcomes: Sequence[NodeOutcome]) -> list[Result]:
    for outcome in outcomes:
        print(outcome)  # noqa: T201 - shown where a test fails
    return [outcome.result for outcome in outcomes]


def is_now(nodes: SlurmNodes, name: str, power: NodePower) -> Callable[[], bool]:
    def claim() -> bool:
        frame = nodes.snapshot().nodes.set_index("name")
        return bool(frame.loc[name, "power"] == power.value)

    return claim


class TestCommands(NodesContract):
    """The contract of every cluster's nodes, on a running one."""

    @pytest.fixture
    def world(self, sleepy: Rig, nodes: SlurmNodes) -> Iterator[NodeWorld]:
        job = sleepy.submit("--nodelist=n6")
        sleepy.until(lambda: sleepy.job_state(job) == "RUNNING")
        yield NodeWorld(
            cluster=nodes,
            let_pass=lambda _: sleepy.until(lambda: settled(nodes)),
            longest_s=10,
            forbid=lambda node: print(sleepy.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=x")),  # noqa: T201 - for its effect
            can_keep_awake=False,
        )
        # A reconfiguration while a node falls asleep may leave it POWERING_UP for ever (seen on 22.05.8).
        sleepy.until(lambda: settled(nodes))
        reconfigure(sleepy)


def settled(nodes: SlurmNodes) -> bool:
    """Return whether every node is where it was told to go."""
    return set(nodes.snapshot().nodes["power"].astype(object)) <= {NodePower.AWAKE.value, NodePower.ASLEEP.value}


def test_the_nodes_are_read_with_power_hands_and_racks(sleepy: Rig, nodes: SlurmNodes) -> None:
    sleepy.put_to_sleep("n2")
    sleepy.run("scontrol", "update", "nodename=n3", "state=drain", "reason=disk")
    snapshot = nodes.snapshot()
    frame = snapshot.nodes.set_index("name").astype(object)
    assert frame["power"].to_dict() == {name: "asleep" if name == "n2" else "awake" for name in frame.index}
    excluded_reason = frame["excluded_reason"].dropna().to_dict()
    assert excluded_reason.keys() == {"n3", "n8"}
    assert excluded_reason["n3"].startswith("it is drained (disk")
    assert excluded_reason["n8"] == "SuspendExcParts names its partition login"
    assert frame.loc[["n1", "n5", "n8"], "rack"].tolist() == ["leaf1", "mine", "leaf2"]
    assert snapshot.power is not None
    assert (snapshot.power.can_sleep, snapshot.power.can_keep_awake) == (True, False)
    assert (snapshot.power.suspend_timeout_s, snapshot.power.resume_timeout_s) == (2, 40)


def test_a_node_sleeps_and_wakes_as_it_is_told(sleepy: Rig, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(down("n1", "n2")))) == [Result.DONE] * 2
    sleepy.until(is_now(nodes, "n2", NodePower.ASLEEP))
    assert not {"n1", "n2"} & sleepy.machines_on()
    assert results(nodes.steer(asked_of_nodes(down("n2")))) == [Result.UNCHANGED]
    restore = RevertNodes(setting=NodeSetting.POWER, own=(("n1", ""),), reason="stop")
    assert results(nodes.steer(asked_of_nodes([*up("n2"), restore]))) == [Result.DONE] * 2
    sleepy.until(is_now(nodes, "n1", NodePower.AWAKE))
    sleepy.until(is_now(nodes, "n2", NodePower.AWAKE))
    assert {"n1", "n2"} <= sleepy.machines_on()


def test_busy_drained_and_excluded_nodes_are_never_touched(sleepy: Rig, nodes: SlurmNodes) -> None:
    job = sleepy.submit("--nodelist=n1")
    sleepy.until(lambda: sleepy.job_state(job) == "RUNNING")
    sleepy.run("scontrol", "update", "nodename=n2", "state=drain", "reason=disk")
    before = sleepy.switched()
    outcomes = nodes.steer(asked_of_nodes(down("n1", "n2", "n7", "n8")))
    assert results(outcomes) == [Result.REFUSED] * 4
    why = ("not idle", "drained", "SuspendExcNodes", "login")
    assert all(word in outcome.remark for word, outcome in zip(why, outcomes, strict=True))
    assert sleepy.switched() == before
    assert not any("POWER" in state for state in sleepy.nodes().values())


def test_an_explicit_power_down_ignores_what_slurm_excludes(sleepy: Rig) -> None:
    """So Helios must honour it."""
    sleepy.put_to_sleep("n7", "n8")


def test_slurm_takes_the_drain_of_a_node_that_is_told_to_sleep(sleepy: Rig) -> None:
    """A drained node would come back into service: another reason never to do it."""
    sleepy.run("scontrol", "update", "nodename=n1", "state=drain", "reason=disk")
    sleepy.put_to_sleep("n1")
    assert "DRAIN" not in sleepy.nodes()["n1"]


def test_a_node_that_is_falling_asleep_cannot_be_called_back(sleepy: Rig, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(down("n1")))) == [Result.DONE]
    assert results(nodes.steer(asked_of_nodes(up("n1")))) == [Result.POSTPONED]
    sleepy.until(lambda: "POWERING_DOWN" in sleepy.nodes()["n1"])
    assert sleepy.power("n1", "power_up") == ""
    sleepy.until(is_now(nodes, "n1", NodePower.ASLEEP))
    assert ("on", "n1") not in [(what, node) for what, node, _ in sleepy.switched()[-1:]]
    assert results(nodes.steer(asked_of_nodes(up("n1")))) == [Result.DONE]


def test_without_an_idle_timer_the_refusal_says_what_to_set(sleepy: Rig, nodes: SlurmNodes) -> None:
    with configured(sleepy, "SuspendTime=604800", "SuspendTime=INFINITE"):
        assert "Invalid node state" in sleepy.power("n1", "power_down")
        (outcome,) = nodes.steer(asked_of_nodes(down("n1")))
        assert outcome.result is Result.REFUSED
        assert "SuspendTime=604800" in outcome.remark


def test_a_job_wakes_the_node_that_it_needs(sleepy: Rig, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(down("n6")))) == [Result.DONE]
    sleepy.until(is_now(nodes, "n6", NodePower.ASLEEP))
    sleepy.boots("n6", 2)
    job = sleepy.submit("--nodelist=n6", partition="debug")
    sleepy.until(is_now(nodes, "n6", NodePower.WAKING))
    sleepy.until(is_now(nodes, "n6", NodePower.AWAKE))
    assert sleepy.show_job(job)["NodeList"] == "n6"


def test_a_job_that_comes_with_the_write_runs_to_its_end(sleepy: Rig) -> None:
    jobs: list[str] = []

    class Late(CommandsBackend):
        def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
            jobs.append(sleepy.submit("--nodelist=n1", seconds=3))
            sleepy.until(lambda: sleepy.job_state(jobs[0]) == "RUNNING")
            return super().change_nodes(changes)

    backend = Late(environment=sleepy.environment)
    operations = PowerConfigReader(shell=Shell(environment=sleepy.environment), racks={})
    late = SlurmNodes(backend, operations, name="dev", site_factor_most=10_000, writes_per_cycle=9)
    (outcome,) = late.steer(asked_of_nodes(down("n1")))
    assert (outcome.result, outcome.remark) == (Result.DONE, TAKEN)
    sleepy.until(lambda: sleepy.job_state(jobs[0]) == "COMPLETED")
    assert ("off", "n1", jobs[0]) not in sleepy.switched()
    sleepy.until(is_now(late, "n1", NodePower.ASLEEP))


def test_a_weight_decides_where_jobs_go_and_is_set_back(sleepy: Rig, nodes: SlurmNodes) -> None:
    own = sleepy.weights()
    sleepy.run("scontrol", "update", "nodename=n3", "weight=9")
    job = sleepy.submit(seconds=60)
    sleepy.until(lambda: sleepy.job_state(job) == "RUNNING")
    assert sleepy.show_job(job)["NodeList"] == "n3"
    back = RevertNodes(setting=NodeSetting.WEIGHT, own=(("n1", "10"), ("n3", "10")), reason="stop")
    assert results(nodes.steer(asked_of_nodes([back]))) == [Result.UNCHANGED, Result.DONE]
    assert sleepy.weights() == own


def test_sleep_survives_a_restart_of_the_controller(sleepy: Rig, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(down("n1")))) == [Result.DONE]
    sleepy.until(is_now(nodes, "n1", NodePower.ASLEEP))
    sleepy.control("stop", "slurmctld")
    sleepy.control("start", "slurmctld")
    assert is_now(nodes, "n1", NodePower.ASLEEP)()


def test_an_old_slurm_has_no_keep_awake_list_to_change(sleepy: Rig, nodes: SlurmNodes) -> None:
    restore = RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "n1"),), reason="stop")
    (outcome,) = nodes.steer(asked_of_nodes([restore]))
    assert (outcome.result, outcome.remark) == (Result.REFUSED, TOO_OLD)
    assert "No valid entity" in nodes.operations.keep_awake("n1")


def test_slurm_has_no_such_node_and_says_so_of_it_alone(sleepy: Rig) -> None:
    backend = CommandsBackend(environment=sleepy.environment)
    answers = backend.change_nodes([NodeUpdate(node="n99", weight=7), NodeUpdate(node="n1", weight=8)])
    assert answers[0].endswith("Invalid node name specified")
    assert answers[1] == ""
    assert sleepy.weights()["n1"] == 8
    sleepy.run("scontrol", "reconfigure")


def test_the_accounting_knows_from_when_to_when_a_node_slept(sleepy: Rig, nodes: SlurmNodes) -> None:
    applied = Accounting(shell=Shell(environment=sleepy.environment))
    asked = datetime.now(UTC).replace(microsecond=0)
    assert results(nodes.steer(asked_of_nodes(down("n4")))) == [Result.DONE]
    sleepy.until(is_now(nodes, "n4", NodePower.ASLEEP))
    sleepy.boots("n4", 3)
    nodes.steer(asked_of_nodes(up("n4")))
    sleepy.until(is_now(nodes, "n4", NodePower.AWAKE))

    def rows() -> list[dict[str, object]]:
        frame = applied.node_events(asked, datetime.now(UTC) + timedelta(minutes=1))
        own = frame[(frame["node"] == "n4") & (frame["started_at"] >= asked) & frame["ended_at"].notna()]
        return [{str(key): value for key, value in row.items()} for row in own.to_dict("records")]

    sleepy.until(rows)
    (row,) = rows()
    assert (row["state"], row["reason"]) == ("IDLE~", "Powered down after SuspendTimeout")
    assert isinstance(row["started_at"], datetime) and isinstance(row["ended_at"], datetime)
    assert timedelta(seconds=2) <= row["started_at"] - asked  # from asleep on: not while it was falling asleep
    booted = int(sleepy.run("date", "+%s", "-d", boot_time(sleepy, "n4")))
    assert row["ended_at"].timestamp() <= booted - 2  # to when its boot began


def boot_time(rig: Rig, node: str) -> str:
    (line,) = rig.lines("scontrol", "-o", "show", "node", node)
    return next(word.partition("=")[2] for word in line.split() if word.startswith("BootTime="))


def test_the_doctor_finds_nothing_that_would_keep_nodes_from_sleeping(sleepy: Rig) -> None:
    backend = CommandsBackend(environment=sleepy.environment)
    findings = run_checks(
        shell=backend.shell,
        configuration=backend.configuration,
        user="root",
        site_factor_most=10_000,
        more=power_checks("sleep"),
    )
    found = {finding.check: finding.verdict for finding in findings}
    assert found["power programs"] is found["idle timer"] is found["administrator"] is FindingLevel.OK
    assert FindingLevel.FAIL not in {finding.verdict for finding in findings if finding.check != "soft limits"}


@pytest.mark.parametrize(("level", "verdict"), [("Administrator", FindingLevel.OK), ("Operator", FindingLevel.FAIL)])
def test_the_doctor_asks_slurm_itself_who_may_change_nodes(
    sleepy: Rig, tmp_path: Path, level: str, verdict: FindingLevel
) -> None:
    sleepy.run("sacctmgr", "-i", "modify", "user", "bob", "set", f"adminlevel={level}")
    asks = tmp_path / "scontrol"
    asks.write_text('#!/bin/sh\nexec setpriv --reuid bob --regid bob --clear-groups /usr/bin/scontrol "$@"\n')
    asks.chmod(0o755)
    try:
        shell = Shell(folder=str(tmp_path), environment=sleepy.environment)
        configuration = CommandsBackend(environment=sleepy.environment).configuration()
        findings = run_checks(
            shell=shell,
            configuration=lambda: configuration,
            user="bob",
            site_factor_most=10_000,
            more=power_checks("sleep"),
        )
        (found,) = [finding for finding in findings if finding.check == "administrator"]
        assert found.verdict is verdict, found
    finally:
        sleepy.run("sacctmgr", "-i", "modify", "user", "bob", "set", "adminlevel=None")
