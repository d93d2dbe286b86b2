"""The kill switch wakes every node that Helios put to sleep, whatever is broken, and verifies it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helios.actions import Result
from helios.control import Undo, release_nodes
from helios.errors import ClusterUnavailable, FileUnreadable
from helios.model import Snapshot
from helios.testing import FakeNodes
from tests.unit.control.nodes_table import (
    ASLEEP,
    HOUR,
    MINUTE,
    WAKING,
    NodeTable,
    Says,
    active,
    all_is_well,
    down,
    keep,
    node_settings,
    some_nodes,
)


def busy_helios(*, mechanism: str = "sleep") -> NodeTable:
    """Three nodes asleep and two weights, or a list and two weights, set by Helios; n9 asleep by an admin."""
    cluster = FakeNodes(nodes=some_nodes(), keep_awake="n10")
    table = NodeTable(cluster=cluster, settings=node_settings(mechanism=mechanism)).after_two_looks()
    wants = [keep("n1", "n2")] if mechanism == "keep_awake" else down("n1", "n2", "n3")
    table.weighed_by_an_earlier_release("n5", "n6")
    table.cycle(active(Says(*wants), name="ces"), active(Says(), name="node_fill_order"))
    cluster.admin_powers_down("n9")
    cluster.tick(5 * MINUTE)
    return table


def nothing_of_helios(table: NodeTable) -> bool:
    cluster = table.cluster
    power = {cluster.power_of(f"n{n}") for n in range(1, 9)}
    weights = {cluster.weight_of(f"n{n}") for n in range(1, 11)}
    return not power & {ASLEEP} and weights == {10.0} and cluster.keep_awake == "n10" and table.undo == Undo()


def test_a_release_wakes_everything_and_gives_weights_back() -> None:
    table = busy_helios()
    report = table.release()
    assert report.clean
    assert set(report.woken) == {"n1", "n2", "n3"}
    assert set(report.weighed) == {"n5", "n6"}
    assert nothing_of_helios(table)
    assert table.ledger.applied_changes().empty
    assert table.cluster.power_of("n9") is ASLEEP  # the admin's own
    assert table.lines(service="helios", mode="paused", action="RevertNodes", target="n1")


def test_what_was_woken_before_nobody_could_look_again_is_told() -> None:
    table = busy_helios()
    look, looks = table.cluster.snapshot, []

    def look_once() -> Snapshot:
        looks.append(1)
        if len(looks) > 1:
            raise ClusterUnavailable("nobody answers", hint="Call it again.")
        return look()

    table.cluster.snapshot = look_once  # type: ignore[method-assign]
    report = table.release()
    assert not report.clean
    assert set(report.woken) == {"n1", "n2", "n3"}
    assert table.lines(service="helios", mode="paused", action="RevertNodes", target="n1")


def test_a_release_gives_the_list_back() -> None:
    table = busy_helios(mechanism="keep_awake")
    assert table.cluster.keep_awake == "n[1-2,10]"
    assert table.release().clean
    assert nothing_of_helios(table)


def test_a_second_release_writes_nothing() -> None:
    table = busy_helios()
    table.release()
    writes = table.cluster.writes
    assert table.release().clean
    assert table.cluster.writes == writes


def test_a_release_works_without_the_database() -> None:
    table = busy_helios()
    table.ledger.fail_next(times=99)
    report = table.release()
    assert report.clean
    assert not report.recorded
    assert any("the undo file stands in" in note for note in report.notes)
    assert nothing_of_helios(table)


def test_a_release_works_without_the_undo_file() -> None:
    table = busy_helios()
    table.undo = Undo()
    table.undo_fails = FileUnreadable("the disk is full")
    report = table.release()
    assert report.clean
    assert any("the disk is full" in note for note in report.notes)
    assert nothing_of_helios(table)


@pytest.mark.parametrize("how", ["release", "pause"])
def test_with_an_unreadable_undo_file_the_ledger_is_enough(how: str) -> None:
    table = busy_helios()
    table.unreadable = FileUnreadable("permission denied")
    if how == "pause":
        table.pause()
    report = table.cycle() if how == "pause" else table.release()
    assert report.clean
    assert any(note.endswith("could not be read: permission denied") for note in report.notes)
    assert nothing_of_helios(table)


def test_what_only_the_undo_file_knew_goes_into_the_ledger() -> None:
    table = busy_helios()
    table.ledger = type(table.ledger)(domain=table.ledger.domain)  # the database was lost
    table.cluster.refuse_writes("n2")
    assert table.release().remaining == ("n2",)
    (row,) = table.ledger.applied_changes().to_dict("records")
    assert (row["node"], row["service"], row["written_at"]) == ("n2", "helios", table.cluster.now)


def test_with_ledger_and_undo_file_unreadable_both_reasons_are_told() -> None:
    table = busy_helios()
    table.ledger.fail_next(times=99)
    table.unreadable = FileUnreadable("permission denied")
    report = table.release()
    assert report.remaining is None
    told = [note for note in report.notes if "could not be read" in note]
    assert [note.rpartition(": ")[2] != "" for note in told] == [True, True]
    assert table.undo.asleep == ("n1", "n2", "n3")


def test_a_release_works_while_another_holds_the_lease() -> None:
    table = busy_helios()
    table.cycle(active(Says(), name="ces"), active(Says(), name="node_fill_order"))
    table.holder = "alice"
    report = table.release()
    assert report.clean
    assert any("another Helios holds the lease" in note for note in report.notes)


def test_a_cluster_that_does_not_answer_is_told() -> None:
    table = busy_helios()
    table.cluster.fail_next()
    report = table.release()
    assert report.remaining is None
    assert not report.clean
    assert any("broken off" in line for line in report.suspended)
    assert (report.seen, dict(report.nodes), report.tallies.empty) == (False, {}, True)
    assert set(table.applied()) == {"n1", "n2", "n3"}
    assert table.undo.asleep == ("n1", "n2", "n3")


def test_falling_nodes_remain_and_are_woken_by_the_cycles_that_follow() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), suspend_timeout_s=300.0)).after_two_looks()
    table.says(*down("n1", "n2"))
    table.pause()
    report = table.cycle()
    assert report.remaining == ("n1", "n2")
    assert table.undo.asleep == ("n1", "n2")
    assert table.cycle().remaining == ("n1", "n2")
    report = table.cycle(after=5 * MINUTE)
    assert (report.woken, report.remaining) == (("n1", "n2"), ())
    assert table.undo == Undo()
    assert table.applied() == {}
    assert table.cluster.power_of("n1") is WAKING


def test_a_release_that_must_wait_can_be_asked_again() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), suspend_timeout_s=300.0)).after_two_looks()
    table.says(*down("n1"))
    report = table.release()
    assert report.remaining == ("n1",)
    assert "cannot be reverted yet: n1" in report.notes[0]
    table.cluster.tick(5 * MINUTE)
    assert table.release().clean


def test_a_pause_takes_everything_back_even_without_a_database() -> None:
    table = busy_helios()
    table.pause()
    table.ledger.fail_next(times=99)
    report = table.cycle()
    assert set(report.woken) == {"n1", "n2", "n3"}
    assert report.clean
    assert nothing_of_helios(table)


def test_a_pause_says_once_what_it_did() -> None:
    table = busy_helios()
    table.pause()
    for _ in range(3):
        report = table.cycle()
        assert report.suspended[0] == "paused: enough"
    assert len(table.lines(action="RevertNodes", target="n1")) == 1
    assert len(table.lines(action="Cycle", mode="paused")) <= 2


def test_after_a_pause_helios_starts_anew() -> None:
    table = busy_helios()
    table.pause()
    table.cycle()
    table.world = all_is_well
    table.cycle(after=20 * MINUTE)
    assert table.says(*down("n1"), after=10 * MINUTE).slept == ("n1",)


def test_a_weight_of_an_admin_survives_a_release() -> None:
    table = busy_helios()
    table.cluster.admin_sets_weight("n5", 50)
    table.says(name="node_fill_order")
    table.release()
    assert table.cluster.weight_of("n5") == 50


def test_wakes_of_a_release_are_watched() -> None:
    table = busy_helios()
    table.cluster.fail_wakes("n2")
    table.memory = table.release().memory
    report = table.says(after=12 * MINUTE)
    assert "n2" in report.memory.quarantined


def test_a_release_of_nothing_is_clean() -> None:
    report = NodeTable().release()
    assert report.clean
    assert report.counts == {}


def test_a_node_whose_write_is_refused_remains() -> None:
    table = busy_helios()
    table.cluster.refuse_writes("n2")
    report = table.release()
    assert report.remaining == ("n2",)
    assert report.counts["helios"][Result.FAILED] == 1
    assert table.undo.asleep == ("n2",)
    table.cluster.refuse_writes("n2", answer="")
    assert table.release().clean


def test_without_the_database_the_undo_file_restores_unread_weights() -> None:
    table = busy_helios()
    table.ledger = type(table.ledger)(domain=table.ledger.domain)
    table.world = lambda now: replace(all_is_well(now), paused="enough")
    assert table.cycle().clean
    assert nothing_of_helios(table)
    assert table.cycle(after=HOUR).clean


def test_a_pause_that_must_wait_is_written_down_once() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), suspend_timeout_s=600.0)).after_two_looks()
    table.cluster.fail_wakes("n3")
    table.says(*down("n3"))
    table.says(*down("n1"), after=11 * MINUTE)
    table.cluster.submit(nodes=9)
    table.pause()
    reports = [table.cycle(after=5 * MINUTE) for _ in range(4)]
    assert [report.remaining for report in reports] == [("n1",), (), (), ()]
    assert any("tell somebody" in note for report in reports for note in report.notes)
    assert len(table.lines(action="FailedWake")) == 1
    assert len(table.lines(action="Cycle", mode="paused")) == 1  # n1 was woken by the job that n3 failed


@pytest.mark.parametrize("mechanism", ["sleep", "keep_awake"])
def test_a_paused_cycle_reverts_what_a_release_had_no_privilege_for(mechanism: str) -> None:
    table = busy_helios(mechanism=mechanism)
    table.cycle(active(Says(), name="ces"), active(Says(), name="node_fill_order"))
    asked = ["", *(f"n{n}" for n in range(1, 11))]
    for node in asked:
        table.cluster.refuse_writes(node)
    table.holder, leader = "alice", table.holder
    undo, table.undo = table.undo, Undo()  # alice's folder is another one
    assert not table.release().clean
    for node in asked:
        table.cluster.refuse_writes(node, answer="")
    table.holder, table.undo = leader, undo
    table.world = lambda now: replace(all_is_well(now), paused="by alice", released="alice released")
    assert table.cycle().clean
    assert not table.lines(action="HandsOff")
    assert nothing_of_helios(table)


@pytest.mark.parametrize("how", ["release", "pause"])
def test_a_drained_sleeper_is_woken_once_back_in_service(how: str) -> None:
    table = busy_helios()
    table.cluster.drain("n2")
    if how == "pause":
        table.pause()
    report = table.cycle() if how == "pause" else table.release()
    assert report.clean
    assert any("n2 (it is drained: memory errors)" in note for note in report.notes)
    assert table.cluster.power_of("n2") is ASLEEP
    assert table.undo.asleep == ("n2",)
    table.cluster.resume("n2")
    report = table.cycle() if how == "pause" else table.release()
    assert report.woken == ("n2",)
    assert nothing_of_helios(table)


def test_a_pause_beside_a_drained_sleeper_writes_no_line_each_cycle() -> None:
    table = busy_helios()
    table.cluster.drain("n2")
    table.pause()
    table.cycle()
    lines = len(table.lines())
    for _ in range(3):
        table.cycle()
    assert len(table.lines()) == lines


def test_a_release_without_records_does_not_claim_that_nothing_is_left() -> None:
    table = busy_helios()
    table.ledger.fail_next(times=99)
    written: list[Undo] = []
    report = release_nodes(
        cluster=table.cluster,
        ledger=table.ledger,
        undo=written.append,
        read_undo=lambda: None,
        now=table.cluster.now,
        holder="alice",
        reason="the database is gone",
    )
    assert report.remaining is None
    assert not report.clean
    assert any("not known" in note for note in report.notes)
    assert not written
