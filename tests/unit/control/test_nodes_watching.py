"""What became of the nodes since the last look: woken by others, not woken at all, forgotten by the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helios.control import NodeControllerState, clear_failed_wakes
from helios.testing import FakeNodes
from tests.unit.control.nodes_table import (
    AWAKE,
    HOUR,
    MINUTE,
    SHADOW,
    NodeTable,
    all_is_well,
    down,
    node_settings,
    some_nodes,
    up,
)


def asleep(*nodes: str, **columns: Any) -> NodeTable:
    """A table at which Helios has put these nodes to sleep an hour ago or so."""
    table = NodeTable(settings=node_settings(payback_s=0, **columns)).after_two_looks()
    table.says(*down(*nodes))
    table.says(after=5 * MINUTE)
    return table


def test_a_job_that_wakes_a_node_takes_it_from_helios() -> None:
    table = asleep("n1")
    table.cluster.submit(nodes=10)
    table.says()
    assert table.applied() == {}
    assert table.undo.asleep == ()
    (line,) = table.lines(action="Woken")
    assert line["target"] == "n1"
    assert "for a job" in line["reason"]
    table.says(after=5 * MINUTE)
    assert len(table.lines(action="Woken")) == 1
    assert table.memory.keep_off == {}


def test_a_job_that_came_and_went_between_two_looks_is_a_job() -> None:
    table = NodeTable(settings=node_settings(payback_s=3600)).after_two_looks()
    table.says(*down("n1"))
    table.says(after=5 * MINUTE)
    job = table.cluster.submit(nodes=10)
    table.cluster.tick(10 * MINUTE)
    table.cluster.end(job)
    table.says()
    assert "for a job" in table.lines(action="Woken")[0]["reason"]
    assert table.memory.keep_off == {}


def test_a_node_that_an_admin_woke_stays_awake_for_a_day() -> None:
    table = NodeTable(settings=node_settings(payback_s=3600)).after_two_looks()
    table.says(*down("n1"))
    table.says(after=5 * MINUTE)
    table.cluster.admin_powers_up("n1")
    table.says()
    (line,) = table.lines(action="Woken")
    assert "somebody woke it" in line["reason"]
    table.cycle(after=10 * MINUTE)
    table.says(*down("n1"), after=10 * MINUTE)
    assert "left awake until" in table.why_refused("n1")
    table.cycle(after=24 * HOUR)
    assert table.says(*down("n1")).slept == ("n1",)


@pytest.mark.parametrize("gone", [True, False])
def test_a_wake_of_a_node_gone_or_asleep_again_is_ignored(gone: bool) -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), suspend_timeout_s=300.0)).after_two_looks()
    table.says(*down("n1"))
    table.says(*up("n1"), after=2 * HOUR)
    assert set(table.memory.wakes) == {"n1"}
    if gone:
        table.cluster = FakeNodes(nodes=some_nodes()[1:], now=table.cluster.now)
    else:
        table.cluster.tick(20 * MINUTE)
        table.cluster.admin_powers_down("n1")
    table.says()
    assert table.memory.wakes == {}
    assert table.memory.failures == ()
    assert not table.lines(action="FailedWake")


def test_an_admin_who_wakes_a_node_that_has_paid_takes_it_only() -> None:
    table = NodeTable(settings=node_settings(payback_s=600)).after_two_looks()
    table.says(*down("n1"))
    table.says(after=HOUR)
    table.cluster.admin_powers_up("n1")
    table.says()
    assert table.applied() == {}
    assert table.memory.keep_off == {}


def test_a_node_that_helios_woke_is_nobody_elses_deed() -> None:
    table = asleep("n1")
    table.says(*up("n1"), after=HOUR)
    table.says(after=MINUTE)
    table.says(after=10 * MINUTE)
    assert table.lines(action="Woken") == []


def test_a_wake_that_a_crash_left_in_the_ledger_is_by_helios() -> None:
    table = asleep("n1", "n2")
    table.cluster.crash_after(writes=1)
    with pytest.raises(Exception, match="crash"):
        table.says(*up("n1", "n2"), after=HOUR)
    table.says()
    assert table.lines(action="Woken") == []
    assert table.applied() == {"n2": "awake"}  # it was to be woken, and sleeps yet
    assert "n1" in table.memory.wakes


def test_a_node_that_does_not_come_is_quarantined_and_told() -> None:
    table = asleep("n1")
    table.cluster.fail_wakes("n1")
    table.says(*up("n1"), after=HOUR)
    assert table.says(after=5 * MINUTE).memory.failures == ()
    report = table.says(after=6 * MINUTE)
    assert "n1" in report.memory.quarantined
    assert any("tell somebody" in note and "n1" in note for note in report.notes)
    (line,) = table.lines(action="FailedWake")
    assert line["target"] == "n1"
    assert line["outcome"].startswith("failed")
    table.cluster.fail_wakes("n1", fails=False)
    table.cluster.resume("n1")
    table.cycle(after=10 * MINUTE)
    table.says(*down("n1"), after=10 * MINUTE)
    assert "nobody has cleared it" in table.why_refused("n1")
    assert len(table.lines(action="FailedWake")) == 1


def test_a_node_that_slurm_could_not_wake_is_a_failed_wake() -> None:
    table = asleep("n1")
    table.cluster.fail_wakes("n1")
    table.cluster.submit(nodes=10)
    table.says(after=MINUTE)
    report = table.says(after=11 * MINUTE)
    assert "n1" in report.memory.quarantined
    assert "Slurm told it to wake" in table.lines(action="FailedWake")[0]["reason"]


def test_a_wake_that_failed_between_two_looks_is_seen_too() -> None:
    table = asleep("n1")
    table.cluster.fail_wakes("n1")
    table.cluster.submit(nodes=10)
    report = table.says(after=30 * MINUTE)
    assert "n1" in report.memory.quarantined
    assert table.applied() == {}


def test_a_sleeping_node_that_a_person_took_down_is_no_failed_wake() -> None:
    table = asleep("n1")
    table.cluster.take_down("n1", reason="disk swap")
    assert table.says().memory.quarantined == {}


def test_a_node_that_hangs_while_waking_fails_after_the_timeout() -> None:
    table = asleep("n1")
    table.cluster.boot_s = table.cluster.resume_timeout_s = 1e6  # Slurm itself never gives up
    table.says(*up("n1"), after=HOUR)
    seen = table.cluster.snapshot
    table.cluster.snapshot = lambda: replace(seen(), power=replace(seen().power, resume_timeout_s=600.0))  # type: ignore[method-assign, type-var]
    assert table.says(after=10 * MINUTE).memory.failures == ()
    assert len(table.says(after=2 * MINUTE).memory.failures) == 1


def test_a_suspended_cycle_sees_failed_wakes_too() -> None:
    table = asleep("n1")
    table.cluster.fail_wakes("n1")
    table.says(*up("n1"), after=HOUR)
    table.world = lambda now: replace(all_is_well(now), history_read_at=None)
    report = table.says(after=12 * MINUTE)
    assert report.suspended
    assert "n1" in report.memory.quarantined
    assert table.lines(action="FailedWake")


def fail_some_wakes(table: NodeTable, *nodes: str) -> None:
    table.cluster.fail_wakes(*nodes)
    table.says(*up(*nodes), after=HOUR)
    table.says(after=12 * MINUTE)


def test_failed_wakes_lead_to_protected_mode_until_a_person_clears_it() -> None:
    table = asleep("n1", "n2", "n3", "n4", failures_to_protect=3)
    fail_some_wakes(table, "n1", "n2")
    assert table.says(*down("n5")).slept == ("n5",)
    fail_some_wakes(table, "n3")
    assert len(table.lines(action="Protected")) == 1
    report = table.says(*down("n6"), *up("n4"))
    assert (report.slept, report.woken) == ((), ("n4",))
    assert "n1, n2, n3" in report.protected
    assert any(note.endswith("to end it: helios power --clear all") for note in report.notes)
    table.cycle(after=48 * HOUR)
    assert table.says(*down("n6")).slept == ()  # time alone ends nothing
    table.memory = clear_failed_wakes(table.memory, "n1")
    assert table.says(*down("n6")).slept == ()
    table.memory = clear_failed_wakes(table.memory)
    assert table.says(*down("n6")).slept == ("n6",)


def test_failures_of_different_days_do_not_add_up() -> None:
    table = asleep("n1", "n2", "n3", failures_to_protect=3)
    fail_some_wakes(table, "n1")
    fail_some_wakes(table, "n2")
    table.cycle(after=25 * HOUR)
    fail_some_wakes(table, "n3")
    assert table.memory.protected == ""


def test_a_weight_lost_by_a_release_is_nobodys_hand() -> None:
    table = NodeTable().after_two_looks()
    table.weighed_by_an_earlier_release("n2")
    table.cluster.reconfigure()
    table.world = lambda now: replace(all_is_well(now), released="alice released")
    report = table.says(name="node_fill_order")
    assert not report.notes
    assert table.applied(setting="weight") == {}


def test_a_node_woken_by_a_release_is_not_told_as_somebodys_wake() -> None:
    table = asleep("n1")
    table.cluster.admin_powers_up("n1")
    table.world = lambda now: replace(all_is_well(now), released="the script released")
    table.says()
    assert table.lines(action="Woken") == []
    assert table.memory.keep_off == {}
    assert table.applied() == {}


def test_a_restart_forgets_nothing() -> None:
    table = asleep("n1", "n2", "n3", failures_to_protect=2)
    fail_some_wakes(table, "n1", "n2")
    table.says(*up("n3"))
    assert NodeControllerState.from_json(table.memory.to_json()) == table.memory
    assert table.memory.protected
    assert set(table.memory.slept) == {"n1", "n2", "n3"}


def test_a_memory_without_looks_does_not_take_a_node_for_idle_twice() -> None:
    table = asleep("n1")
    table.memory = NodeControllerState()
    assert table.says(*down("n2")).slept == ()
    assert len(table.memory.slept["n1"]) == 1  # the book remembers that cycle


def test_in_a_shadow_nothing_is_watched_for() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes())).after_two_looks()
    table.says(*down("n1"), mode=SHADOW)
    table.says(*up("n1"), mode=SHADOW)
    assert table.memory.wakes == {}
    assert table.memory.slept == {}
    assert table.cluster.power_of("n1") is AWAKE
    assert table.applied("shadow") == {}


def test_a_node_missing_from_one_look_is_not_forgotten() -> None:
    table = asleep("n1")
    table.weighed_by_an_earlier_release("n5")
    gone = {name: table.cluster._nodes.pop(name) for name in ("n1", "n5")}
    table.says()
    assert table.applied() == {"n1": "asleep"}
    assert table.undo.asleep == ("n1",)
    assert dict(table.undo.weights)["n5"] == 10
    table.cluster._nodes.update(gone)
    table.pause()
    assert table.cycle().woken == ("n1",)
    assert table.cluster.weight_of("n5") == 10
