"""The kill switch that needs no Python, on nodes of a real Slurm that sleep."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from helios.actions import PowerDown
from helios.config import SlurmSettings
from helios.slurm.connect import open_nodes
from helios.slurm.undo_file import NodesUndo, read_undo, write_undo
from tests.changes import asked_of_nodes
from tests.live.rig import Rig
from tests.live.test_release_script import SCRIPT, SETPRIV, Ran, path
from tests.waiting import TEST_TIMEOUT_S

__all__ = ["path"]  # a fixture: a PATH without Python


@pytest.fixture
def undo(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nodes.undo"


def release(rig: Rig, path: Path, undo: Path, *options: str, user: str | None = None) -> Ran:
    prefix = [SETPRIV, "--reuid", user, "--regid", user, "--clear-groups"] if user else []
    done = subprocess.run(
        [*prefix, str(path / SCRIPT.name), "--state", str(undo.parent), *options],
        check=False,
        env={"PATH": str(path), "SLURM_CONF": rig.environment["SLURM_CONF"]},
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    return Ran(status=done.returncode, said=done.stdout + done.stderr)


def by_helios(rig: Rig, undo: Path, *asleep: str, weights: Mapping[str, int] | None = None) -> None:
    """Do to nodes what Helios would, with word left of it."""
    write_undo(undo, asleep=asleep, weights=weights)
    nodes = open_nodes(SlurmSettings(backend="commands"), environment=rig.environment)
    nodes.steer(asked_of_nodes([PowerDown(node=name, reason="nothing to do") for name in asleep]))
    for name, own in (weights or {}).items():
        rig.run("scontrol", "update", f"nodename={name}", f"weight={own + 1}")


def is_asleep(rig: Rig, *names: str) -> bool:
    states = rig.nodes()
    return all("POWERED_DOWN" in states[name].split("+") for name in names)


def test_only_nodes_that_helios_put_to_sleep_are_woken(sleepy: Rig, path: Path, undo: Path) -> None:
    sleepy.put_to_sleep("n3")
    own = sleepy.weights()
    by_helios(sleepy, undo, "n1", "n2", weights={"n4": own["n4"], "n5": own["n5"]})
    assert sleepy.weights() != own
    sleepy.until(lambda: is_asleep(sleepy, "n1", "n2"))
    ran = release(sleepy, path, undo)
    assert ran.status == 0, ran.said
    sleepy.until(lambda: {sleepy.nodes()[name] for name in ("n1", "n2")} == {"IDLE"})
    assert is_asleep(sleepy, "n3")
    assert sleepy.weights() == own
    assert sorted(file.name for file in undo.parent.iterdir() if not file.is_dir()) == [
        "PAUSED", "RELEASED", "RELEASED.nodes", "nodes.undo.released"
    ]  # fmt: skip


def test_a_node_that_is_falling_asleep_is_waited_for(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    ran = release(sleepy, path, undo, "--nodes-only")
    assert ran.status == 0, ran.said
    assert "waiting for 1 nodes" in ran.said
    sleepy.until(lambda: sleepy.nodes()["n1"] == "IDLE")


def test_a_wake_that_takes_too_long_is_named_and_stays_recorded(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    ran = release(sleepy, path, undo, "--wait", "0")
    assert ran.status == 1
    assert "1 nodes are still falling asleep; run this again: n1" in ran.said
    assert read_undo(undo) == NodesUndo(asleep=("n1",))
    again = release(sleepy, path, undo)
    assert again.status == 0, again.said


def test_a_dry_run_wakes_nothing(sleepy: Rig, path: Path, undo: Path) -> None:
    own = sleepy.weights()
    by_helios(sleepy, undo, "n1", weights={"n4": own["n4"]})
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    before = sleepy.weights()
    ran = release(sleepy, path, undo, "--dry-run")
    assert ran.status == 0, ran.said
    assert "would wake 1 nodes: n1" in ran.said
    assert "would set the weight of 1 nodes back" in ran.said
    assert is_asleep(sleepy, "n1")
    assert sleepy.weights() == before
    assert [file.name for file in undo.parent.iterdir()] == ["nodes.undo"]
    assert release(sleepy, path, undo, "--nodes-only").status == 0


def test_jobs_alone_can_be_released(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    ran = release(sleepy, path, undo, "--jobs-only")
    assert ran.status == 0, ran.said
    assert is_asleep(sleepy, "n1")
    assert undo.exists()


def test_a_node_that_an_admin_drained_meanwhile_is_left_to_them(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    sleepy.run("scontrol", "update", "nodename=n1", "state=drain", "reason=disk")
    ran = release(sleepy, path, undo, "--nodes-only")
    assert ran.status == 0, ran.said
    assert "left to their admins, who drained them or have them in hand: n1" in ran.said
    assert is_asleep(sleepy, "n1")


def test_a_node_that_did_not_wake_is_told_of(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    sleepy.boots("n1", "never")
    sleepy.power("n1", "power_up")
    sleepy.until(lambda: sleepy.nodes()["n1"].startswith("DOWN"))
    ran = release(sleepy, path, undo, "--nodes-only")
    assert ran.status == 1
    assert "1 nodes did not wake and are down; look at them: n1" in ran.said


def test_a_node_that_sleeps_when_its_job_ends_is_told_of(sleepy: Rig, path: Path, undo: Path) -> None:
    job = sleepy.submit("--nodelist=n1")
    sleepy.until(lambda: sleepy.job_state(job) == "RUNNING")
    write_undo(undo, asleep=["n1"])
    sleepy.power("n1", "power_down")
    ran = release(sleepy, path, undo, "--nodes-only")
    assert ran.status == 1
    assert "1 nodes fall asleep when their jobs end; run this again then: n1" in ran.said


@pytest.fixture
def open_undo() -> Iterator[Path]:
    """An undo file that every user may read: pytest's own folders are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="helios-undo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "nodes.undo"


def test_it_says_so_where_it_may_not_wake(sleepy: Rig, path: Path, open_undo: Path) -> None:
    undo = open_undo
    by_helios(sleepy, undo, "n1", weights={"n4": 20})
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    ran = release(sleepy, path, undo, "--nodes-only", user="alice")
    assert ran.status == 1
    assert "1 nodes are still asleep: n1" in ran.said
    assert "the weight of 1 nodes still stands: n4" in ran.said
    assert "Invalid user id" in ran.said
    assert undo.exists()


def test_lines_that_make_no_sense_are_no_reason_to_leave_the_others(sleepy: Rig, path: Path, undo: Path) -> None:
    by_helios(sleepy, undo, "n1")
    sleepy.until(lambda: is_asleep(sleepy, "n1"))
    undo.write_text("asleep\tn1\nasleep\tgone\nweight\tn1\tmuch\nasleep\t$(touch /tmp/x)\n")
    ran = release(sleepy, path, undo, "--nodes-only")
    assert ran.status == 1
    assert "2 lines" in ran.said
    sleepy.until(lambda: sleepy.nodes()["n1"] == "IDLE")


def test_without_a_word_of_helios_there_is_nothing_to_wake(sleepy: Rig, path: Path, undo: Path) -> None:
    undo.parent.mkdir()
    ran = release(sleepy, path, undo)
    assert ran.status == 0, ran.said
    assert "Helios has changed no node" in ran.said


def test_a_release_by_the_folder_of_jobs_stops_the_daemon_of_nodes(
    sleepy: Rig, path: Path, undo: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "state-power" / undo.name
    by_helios(sleepy, beside, "n1")
    ran = release(sleepy, path, undo)
    assert ran.status == 0, ran.said
    sleepy.until(lambda: sleepy.nodes()["n1"] == "IDLE")
    assert (undo.parent / "PAUSED").exists()
    assert {file.name for file in beside.parent.iterdir()} == {"PAUSED", "RELEASED.nodes", "nodes.undo.released"}


def test_a_release_of_jobs_alone_leaves_the_daemon_of_nodes(
    sleepy: Rig, path: Path, undo: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "state-power"
    beside.mkdir()
    assert release(sleepy, path, undo, "--jobs-only").status == 0
    assert not list(beside.iterdir())
