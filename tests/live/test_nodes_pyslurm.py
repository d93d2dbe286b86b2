"""Nodes of a Slurm that pyslurm fits: both ways in see and do the same, and the keep-awake list is changed live."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helios.actions import (
    KeepAwake,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    PowerDown,
    PowerUp,
    Result,
    RevertNodes,
)
from helios.changes import Change
from helios.slurm.backend import NodeUpdate
from helios.slurm.connect import open_nodes
from helios.slurm.nodes import SlurmNodes
from helios.slurm.undo_file import UNDO_FILE, write_undo
from tests.changes import asked_of_nodes
from tests.live.chroot import Chroot
from tests.live.test_release_script import SCRIPT
from tests.waiting import TEST_TIMEOUT_S


@pytest.fixture(scope="module")
def cluster(newest: Chroot) -> Chroot:
    return newest


@pytest.fixture
def chroot(cluster: Chroot) -> Iterator[Chroot]:
    cluster.empty()
    settled(cluster)
    yield cluster
    cluster.empty()
    settled(cluster)


def settled(chroot: Chroot) -> None:
    """Have every node awake and idle, with the weights and the list of slurm.conf."""

    def idle() -> bool:
        states = chroot.nodes()
        for node, state in states.items():
            if "POWERED_DOWN" in state.split("+") and "POWER_UP" not in state:
                chroot.run("scontrol", "update", f"nodename={node}", "state=power_up", check=False)
        return set(states.values()) == {"IDLE"}

    chroot.run("scontrol", "reconfigure")
    chroot.until(idle)


@pytest.fixture(params=["pyslurm", "commands"])
def nodes(chroot: Chroot, request: pytest.FixtureRequest) -> Iterator[SlurmNodes]:
    cluster = open_nodes(chroot.slurm(request.param))
    assert cluster.backend.name == request.param
    yield cluster
    cluster.close()


def results(outcomes: Sequence[NodeOutcome]) -> list[Result]:
    for outcome in outcomes:
        print(outcome)  # noqa: T201 - shown where a test fails
    return [outcome.result for outcome in outcomes]


def powers(nodes: SlurmNodes) -> list[str]:
    return nodes.snapshot().nodes["power"].astype(object).tolist()


def down(*names: str) -> list[NodeAction]:
    return [PowerDown(node=name, reason="nothing to do") for name in names]


def up(*names: str) -> list[NodeAction]:
    return [PowerUp(node=name, reason="wanted soon") for name in names]


def kept(*names: str, own: str | None = None) -> list[Change[str]]:
    return asked_of_nodes([KeepAwake(nodes=names, reason="wanted soon")], own=own)


def the_list(chroot: Chroot) -> str:
    (line,) = [line for line in chroot.lines("scontrol", "show", "config") if line.startswith("SuspendExcNodes")]
    return line.partition("=")[2].strip()


def test_a_node_sleeps_and_wakes_as_it_is_told(chroot: Chroot, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(down("n1")))) == [Result.DONE]
    assert results(nodes.steer(asked_of_nodes([*up("n1"), *down("n2")]))) == [Result.POSTPONED, Result.DONE]
    chroot.until(lambda: powers(nodes) == ["asleep", "asleep"])
    assert results(nodes.steer(asked_of_nodes(up("n1", "n2")))) == [Result.DONE] * 2
    chroot.until(lambda: powers(nodes) == ["awake", "awake"])


def test_a_busy_or_drained_node_is_not_put_to_sleep(chroot: Chroot, nodes: SlurmNodes) -> None:
    job = chroot.submit("--nodelist=n1")
    chroot.until(lambda: chroot.job_state(job) == "RUNNING")
    chroot.run("scontrol", "update", "nodename=n2", "state=drain", "reason=disk")
    try:
        assert results(nodes.steer(asked_of_nodes(down("n1", "n2")))) == [Result.REFUSED] * 2
        assert not any("POWER" in state for state in chroot.nodes().values())
    finally:
        chroot.run("scontrol", "update", "nodename=n2", "state=undrain")


def weight(**own: int) -> RevertNodes:
    return RevertNodes(
        setting=NodeSetting.WEIGHT, own=tuple((node, str(value)) for node, value in own.items()), reason="stop"
    )


def test_weights_are_written_read_back_and_lost_on_a_reconfiguration(chroot: Chroot, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes([weight(n1=2, n2=1)]))) == [Result.DONE, Result.UNCHANGED]
    assert chroot.weights() == {"n1": 2, "n2": 1}
    job = chroot.submit(seconds=60)
    chroot.until(lambda: chroot.job_state(job) == "RUNNING")
    assert chroot.show_job(job)["NodeList"] == "n2"
    chroot.run("scontrol", "reconfigure")
    chroot.until(lambda: chroot.weights() == {"n1": 1, "n2": 1})
    assert results(nodes.steer(asked_of_nodes([weight(n1=0, n2=1)]))) == [Result.DONE, Result.UNCHANGED]
    assert chroot.weights() == {"n1": 0, "n2": 1}


def test_both_ways_in_see_the_same_nodes(chroot: Chroot) -> None:
    by_commands, by_pyslurm = (open_nodes(chroot.slurm(way)) for way in ("commands", "pyslurm"))
    try:
        by_commands.steer(asked_of_nodes([*down("n1"), weight(n2=2)]))
        chroot.until(lambda: powers(by_commands)[0] == "asleep")
        columns = ["name", "state", "power", "excluded_reason", "kept_awake", "weight", "partitions"]
        one, other = (nodes.snapshot().nodes[columns].astype(object) for nodes in (by_commands, by_pyslurm))
        assert one.equals(other), f"{one}\n{other}"
        assert by_commands.snapshot().power == by_pyslurm.snapshot().power
    finally:
        by_pyslurm.close()


def test_a_node_that_is_not_there_is_told_of_it_alone(chroot: Chroot, nodes: SlurmNodes) -> None:
    wrong, right = nodes.backend.change_nodes([NodeUpdate(node="n99", weight=7), NodeUpdate(node="n1", weight=8)])
    assert "Invalid node name" in wrong
    assert right == ""
    assert chroot.weights()["n1"] == 8


def test_the_keep_awake_list_is_changed_live_and_given_back(chroot: Chroot, nodes: SlurmNodes) -> None:
    assert results(nodes.steer(asked_of_nodes(kept("n1")))) == [Result.DONE]
    assert the_list(chroot) == "n1"
    assert nodes.snapshot().nodes["kept_awake"].tolist() == [1, 0]
    assert results(nodes.steer(asked_of_nodes([*kept("n2", own=""), *down("n1")]))) == [
        Result.DONE,
        Result.REFUSED,
    ]  # judged before the list
    assert results(nodes.steer(asked_of_nodes(down("n2")))) == [Result.REFUSED]
    assert results(nodes.steer(asked_of_nodes(kept("n2", own="")))) == [Result.UNCHANGED]
    assert results(nodes.steer(asked_of_nodes(kept("n2", own="n[1-2]:1")))) == [Result.DONE]
    assert the_list(chroot) == "n[1-2]:1,n2"
    back = RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "(null)"),), reason="stop")
    assert results(nodes.steer(asked_of_nodes([back]))) == [Result.DONE]
    assert the_list(chroot) == "(null)"


def test_the_list_is_lost_on_a_reconfiguration_and_set_again(chroot: Chroot, nodes: SlurmNodes) -> None:
    nodes.steer(asked_of_nodes(kept("n1", own="")))
    chroot.run("scontrol", "reconfigure")
    chroot.until(lambda: the_list(chroot) == "(null)")
    assert results(nodes.steer(asked_of_nodes(kept("n1", own="")))) == [Result.DONE]
    assert the_list(chroot) == "n1"


def test_nodes_that_do_not_exist_are_left_out_of_a_list(chroot: Chroot, nodes: SlurmNodes) -> None:
    assert nodes.operations.keep_awake("n99") == ""
    assert the_list(chroot) == "n99"
    (outcome,) = nodes.steer(asked_of_nodes(kept("n1", "n98", own="")))
    assert (outcome.result, outcome.after) == (Result.DONE, "SuspendExcNodes n1")
    assert "n98" in outcome.remark


def test_an_explicit_power_down_ignores_the_list(chroot: Chroot) -> None:
    """So Helios must honour it."""
    nodes = open_nodes(chroot.slurm("commands"))
    nodes.steer(asked_of_nodes(kept("n1", own="")))
    chroot.run("scontrol", "update", "nodename=n1", "state=power_down")
    chroot.until(lambda: powers(nodes)[0] == "asleep")


@pytest.mark.parametrize("own", ["n[1-2]:1", "(null)"])
def test_the_kill_switch_without_python_gives_the_sites_own_list_back(chroot: Chroot, tmp_path: Path, own: str) -> None:
    nodes = open_nodes(chroot.slurm("commands"))
    write_undo(tmp_path / UNDO_FILE, asleep=["n2"], keep_awake=own)
    nodes.steer(asked_of_nodes([*kept("n1", own=own), *down("n2")]))
    assert the_list(chroot) != own
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), "--state", str(tmp_path)],
        check=False,
        env={"PATH": f"{chroot.scratch}:{os.defpath}:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert the_list(chroot) == own
    chroot.until(lambda: chroot.nodes()["n2"] == "IDLE")
