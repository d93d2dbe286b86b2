"""How a cluster powers its nodes, read from what scontrol prints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from helios.errors import ClusterUnavailable, ConfigurationInvalid
from helios.slurm.power_config import PowerConfigReader, feature_racks, power_config, seconds, topology_racks
from helios.slurm.shell import Shell
from tests.unit.slurm.recorded import RELEASES, recorded
from tests.unit.slurm.test_commands import Program, program

__all__ = ["program"]  # a fixture

GOOD = {
    "SLURM_VERSION": "25.11.2",
    "SuspendProgram": "/usr/sbin/suspend",
    "ResumeProgram": "/usr/sbin/resume",
    "SuspendTime": "604800 sec",
    "SuspendTimeout": "30 sec",
    "ResumeTimeout": "300 sec",
    "SuspendExcNodes": "n[1-2]:1,login1",
}
PARTITIONS = (  # as 22.05.8 and 26.05.5 print them, shortened
    "PartitionName=gpu Nodes=n[1-4] ResumeTimeout=GLOBAL SuspendTimeout=7 SuspendTime=100",
    "PartitionName=big Nodes=n[5-6] ResumeTimeout=900 SuspendTimeout=GLOBAL SuspendTime=INFINITE PowerDownOnIdle=NO",
    "",
)


def test_the_settings_are_those_of_the_cluster() -> None:
    found = power_config(GOOD).settings
    assert (found.suspend_time_s, found.suspend_timeout_s, found.resume_timeout_s) == (604_800, 30, 300)
    assert (found.keep_awake, found.why_not) == ("n[1-2]:1,login1", "")
    assert (found.can_sleep, found.can_keep_awake) == (True, True)


def test_a_partition_that_is_quicker_to_sleep_or_slower_to_wake_counts() -> None:
    found = power_config(GOOD, PARTITIONS).settings
    assert (found.suspend_time_s, found.suspend_timeout_s, found.resume_timeout_s) == (100, 30, 900)


def test_power_saving_of_one_partition_alone_is_power_saving() -> None:
    assert power_config(GOOD | {"SuspendTime": "INFINITE"}, PARTITIONS).settings.why_not == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SuspendTime": "INFINITE"}, "SuspendTime=604800"),
        ({"SuspendTime": "NONE"}, "SuspendTime=604800"),
        ({"SuspendProgram": "(null)"}, "no SuspendProgram"),
        ({"SuspendProgram": "(null)", "ResumeProgram": "(null)"}, "no SuspendProgram and no ResumeProgram"),
        ({"SuspendExcNodes": "n[1-"}, "SuspendExcNodes"),
    ],
)
def test_what_keeps_nodes_from_sleeping_is_told_with_what_to_set(settings: dict[str, str], said: str) -> None:
    found = power_config(GOOD | settings).settings
    assert said in found.why_not
    assert not found.can_sleep


def test_only_newer_releases_take_a_keep_awake_list() -> None:
    able = {
        version: power_config(GOOD | {"SLURM_VERSION": version}).settings.can_keep_awake
        for version in ("22.05.8", "23.02.0", "26.05.5")
    }
    assert able == {"22.05.8": False, "23.02.0": True, "26.05.5": True}


@pytest.mark.parametrize(
    ("text", "length"), [("30 sec", 30), ("604800", 604_800), ("INFINITE", math.inf), ("", math.inf), ("0 sec", 0)]
)
def test_a_length_is_read(text: str, length: float) -> None:
    assert seconds(text) == length


def test_racks_are_the_leaf_switches_or_blocks() -> None:
    tree = (
        "SwitchName=r1 Level=0 LinkSpeed=1 Nodes=n[1-2]",
        "SwitchName=r2 Level=0 LinkSpeed=1 Nodes=n[3-4]",
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=r[1-2]",
        "",
    )
    assert topology_racks(tree) == {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}
    assert topology_racks(["BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2"]) == {"n1": "b1", "n2": "b1"}


def test_racks_may_be_configured() -> None:
    assert feature_racks("r1=n[1-2]; r2 = n3,login1 ;") == {"n1": "r1", "n2": "r1", "n3": "r2", "login1": "r2"}
    assert feature_racks("") == {}
    for wrong in ("r1", "r1=", "=n1", "r1=n[1-"):
        with pytest.raises(ConfigurationInvalid, match="racks"):
            feature_racks(wrong)


SCONTROL = """
case "$*" in
  *"show config") echo "Configuration data as of 1795255200"; echo "SLURM_VERSION = 25.11.2"
    echo "SuspendTime = 60 sec"
    echo "TopologyPlugin = topology/$TOPOLOGY"; echo; echo "Slurmctld(primary) at head is UP";;
  "--all --oneliner show partition") echo "PartitionName=gpu SuspendTime=GLOBAL";;
  "--oneliner show topology") echo "SwitchName=r1 Level=0 Nodes=n[1-2]";;
  update*) echo "$*" > "$HOME/written"; case "$*" in *no*) echo "Permission denied" >&2; exit 1;; esac;;
esac
"""


def a_operations(folder: Path, topology: str = "tree") -> PowerConfigReader:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TOPOLOGY": topology}
    return PowerConfigReader(shell=Shell(folder=str(folder), environment=environment), racks={"n2": "mine"})


def test_a_configured_rack_goes_before_the_topology(program: Program) -> None:
    folder = program("scontrol", SCONTROL)
    assert dict(a_operations(folder)().surroundings.racks) == {"n1": "r1", "n2": "mine"}
    assert dict(a_operations(folder, "flat")().surroundings.racks) == {"n2": "mine"}


def test_a_keep_awake_list_is_written_whole_and_a_refusal_is_told(program: Program) -> None:
    folder = program("scontrol", SCONTROL)
    assert a_operations(folder).keep_awake("n[1-2]:1,n9") == ""
    assert (folder / "written").read_text() == "update SuspendExcNodes=n[1-2]:1,n9\n"
    assert a_operations(folder).keep_awake("no") == "Permission denied"


def test_a_silent_controller_is_an_error(program: Program) -> None:
    folder = program("scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(ClusterUnavailable):
        a_operations(folder)()


def test_recorded_clusters_say_whether_their_nodes_can_sleep() -> None:
    assert {"slurm-22.05", "slurm-26.05"} <= set(RELEASES)
    old, new = (power_config(configuration_of(release)).settings for release in ("slurm-22.05", "slurm-26.05"))
    assert (old.can_sleep, old.can_keep_awake, old.resume_timeout_s) == (True, False, 40)
    assert "SuspendProgram" in new.why_not


def configuration_of(release: str) -> dict[str, str]:
    shown = recorded(release).run("scontrol", "show", "config").decode().splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in shown)}
