"""What Slurm's words about a node mean: awake or asleep, whose it is, and what is never put to sleep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import HostlistInvalid
from helios.model import NodePower
from helios.slurm import translate
from helios.slurm.power import (
    Exclusions,
    NodeSurroundings,
    excluded_reason,
    join_exceptions,
    keep_awake_list,
    kept_awake,
    power,
    same_list,
    why_not_wake,
)
from helios.slurm.power_config import power_config
from tests.unit.slurm.slurm import a_raw_node


@pytest.mark.parametrize(
    ("state", "flags", "meant"),
    [
        ("IDLE", None, NodePower.AWAKE),
        ("MIXED", "PLANNED", NodePower.AWAKE),
        ("IDLE", "POWER_DOWN", NodePower.FALLING_ASLEEP),
        ("MIXED", "POWER_DOWN", NodePower.FALLING_ASLEEP),
        ("IDLE", "POWERING_DOWN", NodePower.FALLING_ASLEEP),
        ("IDLE", "POWERED_DOWN", NodePower.ASLEEP),
        ("IDLE", "CLOUD+POWERED_DOWN", NodePower.ASLEEP),
        ("IDLE", "POWERED_DOWN+NOT_RESPONDING", None),
        ("IDLE", "CLOUD+POWERED_DOWN+NOT_RESPONDING", None),
        ("IDLE", "POWER_UP+POWERED_DOWN", NodePower.WAKING),
        ("IDLE", "NOT_RESPONDING+POWERING_UP", NodePower.WAKING),
        ("MIXED", "NOT_RESPONDING+POWERING_UP", NodePower.WAKING),
        ("IDLE", "NOT_RESPONDING", None),
        ("DOWN", "POWERED_DOWN+NOT_RESPONDING", None),
        ("DOWN", None, None),
        ("UNKNOWN", None, None),
        ("FUTURE", None, None),
    ],
)
def test_a_state_that_slurm_writes_is_a_power_state(state: str, flags: str | None, meant: NodePower | None) -> None:
    assert power(a_raw_node("n1", state=state, flags=flags)) is meant


@pytest.mark.parametrize(
    ("state", "flags", "why"),
    [
        ("IDLE", "DRAIN", "drained (disk)"),
        ("DOWN", None, "down (disk)"),
        ("IDLE", "MAINTENANCE+RESERVED", "maintenance"),
        ("IDLE", "FAIL", "failing"),
        ("IDLE", "REBOOT_REQUESTED", "reboot"),
        ("IDLE", "INVALID_REG", "registered"),
        ("IDLE", "DYNAMIC_NORM", "dynamic"),
        ("IDLE", "SOMETHING_NEW", "SOMETHING_NEW"),
        ("FUTURE", None, "FUTURE"),
        ("UNKNOWN", "NOT_RESPONDING", "UNKNOWN"),
    ],
)
def test_nodes_of_an_admin_neither_sleep_nor_wake(state: str, flags: str | None, why: str) -> None:
    node = a_raw_node("n1", state=state, flags=flags, reason="disk")
    assert why in why_not_wake(node)
    assert why in excluded_reason(node)


@pytest.mark.parametrize(
    ("flags", "why"), [("COMPLETING", "completing"), ("PLANNED", "plans"), ("RESERVED", "reserved")]
)
def test_what_slurm_needs_is_not_put_to_sleep_but_may_be_woken(flags: str, why: str) -> None:
    node = a_raw_node("n1", flags=flags)
    assert why in excluded_reason(node)
    assert why_not_wake(node) == ""


def test_a_silent_node_is_left_alone_and_a_booting_one_has_time() -> None:
    assert excluded_reason(a_raw_node("n1", flags="NOT_RESPONDING")) == "it does not answer"
    assert excluded_reason(a_raw_node("n1", flags="NOT_RESPONDING+POWERING_UP")) == ""


@pytest.mark.parametrize(("state", "flags"), [("IDLE", None), ("ALLOCATED", None), ("MIXED", None), ("IDLE", "CLOUD")])
def test_a_plain_node_is_anybodys(state: str, flags: str | None) -> None:
    assert excluded_reason(a_raw_node("n1", state=state, flags=flags)) == ""


def test_what_the_site_excludes_by_partition_or_state_is_named() -> None:
    excluded = Exclusions.of({"SuspendExcParts": "login,debug", "SuspendExcStates": "CLOUD,planned"})
    assert (
        excluded_reason(a_raw_node("n1", partitions="gpu,debug"), excluded)
        == "SuspendExcParts names its partition debug"
    )
    assert excluded_reason(a_raw_node("n1", flags="CLOUD"), excluded) == "SuspendExcStates names CLOUD"
    assert excluded_reason(a_raw_node("n1"), excluded) == ""


def test_a_keep_awake_list_without_number_keeps_every_node_whatever_it_does() -> None:
    nodes = [a_raw_node("n1", state="MIXED"), a_raw_node("n2", flags="POWERED_DOWN"), a_raw_node("n3")]
    assert kept_awake(nodes, Exclusions(warm=keep_awake_list("n[1-2]"))) == {"n1", "n2"}


def test_a_number_keeps_that_many_of_the_idle_nodes_that_are_awake() -> None:
    nodes = [
        a_raw_node("n1", state="ALLOCATED"),
        a_raw_node("n2", flags="POWERED_DOWN"),
        a_raw_node("n3", flags="DRAIN"),
        a_raw_node("n4"),
        a_raw_node("n5"),
        a_raw_node("n6"),
        a_raw_node("n7"),
    ]
    assert kept_awake(nodes, Exclusions(warm=keep_awake_list("n[1-6]:2,n7"))) == {"n4", "n5", "n7"}


def test_since_24_05_a_busy_node_lowers_the_number_kept() -> None:
    nodes = [
        a_raw_node("n1"),
        a_raw_node("n2"),
        a_raw_node("n3"),
        a_raw_node("n4", state="MIXED", cpus_held=1),
        a_raw_node("n5", state="ALLOCATED", flags="DRAIN", cpus_held=8),
        a_raw_node("n6", state="ALLOCATED", flags="POWERING_UP", cpus_held=8),
        a_raw_node("n7", flags="POWERED_DOWN"),
    ]
    for version, kept in (("23.11.10", {"n1", "n2", "n3"}), ("24.05.0", {"n1", "n2"}), ("26.05.5", {"n1", "n2"})):
        exclusions = Exclusions.of({"SLURM_VERSION": version, "SuspendExcNodes": "n[1-7]:3"})
        assert kept_awake(nodes, exclusions) == kept, version


def test_a_number_of_all_its_nodes_keeps_them_all_whatever_they_do() -> None:
    nodes = [a_raw_node("n1", state="ALLOCATED", cpus_held=1), a_raw_node("n2"), a_raw_node("n3")]
    for version in ("22.05.8", "24.11.5"):
        exclusions = Exclusions.of({"SLURM_VERSION": version, "SuspendExcNodes": "n[1-3]:3"})
        assert kept_awake(nodes, exclusions) == {"n1", "n2", "n3"}, version


def test_a_node_whose_job_is_completing_is_no_spare_one() -> None:
    nodes = [a_raw_node("n1", flags="COMPLETING"), a_raw_node("n2"), a_raw_node("n3")]
    for version, kept in (("22.05.8", {"n2"}), ("24.11.5", set())):
        exclusions = Exclusions.of({"SLURM_VERSION": version, "SuspendExcNodes": "n[1-3]:1"})
        assert kept_awake(nodes, exclusions) == kept, version


def test_what_a_number_means_is_said_by_release() -> None:
    before = power_config({"SLURM_VERSION": "23.11.10", "SuspendExcNodes": "n[1-7]:3"}).settings
    since = power_config({"SLURM_VERSION": "24.05.1", "SuspendExcNodes": "n[1-7]:3,n9"}).settings
    assert "3 of 7 nodes awake, besides those that hold jobs" in before.keep_awake_meaning
    assert "3 of 7 nodes awake, those that hold jobs included" in since.keep_awake_meaning
    assert power_config({"SLURM_VERSION": "24.05.1", "SuspendExcNodes": "n9"}).settings.keep_awake_meaning == ""


@given(awake=st.integers(0, 9), least=st.integers(1, 9), asked=st.sets(st.integers(1, 9)))
def test_however_many_others_are_put_to_sleep_the_number_stays_awake(awake: int, least: int, asked: set[int]) -> None:
    """The oracle is the promise itself: ``least`` of the list, or all there are, are awake and idle afterwards."""
    nodes = [a_raw_node(f"n{n}", flags=None if n <= awake else "POWERED_DOWN") for n in range(1, 10)]
    kept = kept_awake(nodes, Exclusions(warm=keep_awake_list(f"n[1-9]:{least}")))
    left = [n for n in range(1, awake + 1) if n not in asked or f"n{n}" in kept]
    assert len(left) >= min(least, awake)


def test_a_list_of_both_sorts_is_read_by_the_word() -> None:
    found = [(part.nodes, part.least) for part in keep_awake_list("n[10,12]:1,n20,n[30-31]:2")]
    assert found == [(("n10", "n12"), 1), (("n20",), None), (("n30", "n31"), 2)]
    assert keep_awake_list("(null)") == keep_awake_list("") == ()
    with pytest.raises(HostlistInvalid):
        keep_awake_list("n[1-")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("n1,n2", "n[1-2]", True),
        ("(null)", "", True),
        ("n[1-2]:1", "n1,n2", False),
        ("n[1-2]:1,n5", "n5,n[1-2]:1", True),
        ("n1", "n2", False),
    ],
)
def test_two_lists_are_the_same_when_they_keep_the_same_awake(one: str, other: str, same: bool) -> None:
    assert same_list(one, other) is same


def test_the_sites_own_list_stands_first_and_as_it_is() -> None:
    assert join_exceptions("n[1,3]:1,n7", ["n7", "n8", "n9", "n8"]) == "n[1,3]:1,n7,n8,n9"
    assert join_exceptions("(null)", ["n1"]) == "n1"
    assert join_exceptions("", []) == ""


def test_a_frame_of_nodes_has_power_reason_rack_and_keep_awake() -> None:
    drained = a_raw_node("n3", flags="DRAIN", reason="caf\udce9")
    nodes = [a_raw_node("n2", flags="POWERED_DOWN"), a_raw_node("n1"), drained]
    around = NodeSurroundings(exclusions=Exclusions(warm=keep_awake_list("n1")), racks={"n2": "r1"})
    frame = translate.node_states(nodes, around)
    assert frame["name"].tolist() == ["n1", "n2", "n3"]
    assert frame["power"].tolist() == ["awake", "asleep", "awake"]
    assert frame["excluded_reason"].astype(object).fillna("").tolist() == ["", "", "it is drained (caf\\xe9)"]
    assert frame["kept_awake"].tolist() == [1, 0, 0]
    assert frame["rack"].astype(object).fillna("").tolist() == ["", "r1", ""]
