"""One node cycle after another: nodes sleep and wake as decided, and everything is written down before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from helios.actions import NodeOutcome, Result
from helios.changes import Change, nodes_named
from helios.control import Failure, ServiceMode, Undo
from helios.control.observed import Observation
from helios.errors import ClusterUnavailable, FileUnreadable, HeliosError, NotEnoughHistory
from helios.model import NODE_TALLIES, Snapshot
from helios.testing import Crash, FakeNodes, a_node
from tests.unit.control.nodes_table import (
    ACTIVE,
    ASLEEP,
    AWAKE,
    FALLING,
    HOUR,
    MINUTE,
    OFF,
    SHADOW,
    WAKING,
    NodeTable,
    Says,
    active,
    all_is_well,
    canary,
    down,
    keep,
    node_settings,
    some_nodes,
    up,
)
from tests.unit.control.table import order


def test_a_node_put_to_sleep_is_in_the_ledger() -> None:
    table = NodeTable().after_two_looks()
    report = table.says(*down("n1"))
    assert report.slept == ("n1",)
    assert table.cluster.power_of("n1") is FALLING
    assert table.applied() == {"n1": "asleep"}
    assert table.undo == Undo(asleep=("n1",))
    assert report.nodes[AWAKE] == 10  # as it was seen
    table.says(after=2 * MINUTE)
    assert table.cluster.power_of("n1") is ASLEEP
    assert table.applied() == {"n1": "asleep"}


def test_a_node_asleep_is_woken_when_it_pays() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    report = table.says(*up("n1"), after=2 * HOUR)
    assert report.woken == ("n1",)
    assert table.cluster.power_of("n1") is WAKING
    assert table.applied() == {}
    assert table.undo == Undo()
    table.says(after=5 * MINUTE)
    assert table.cluster.power_of("n1") is AWAKE
    assert table.memory.wakes == {}
    assert table.memory.failures == ()


def test_asking_again_writes_nothing_more() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.says(*down("n1"))
    writes, records = table.cluster.writes, table.ledger.records
    report = table.says(*down("n1"), *up("n2"))
    assert (table.cluster.writes, table.ledger.records) == (writes, records)
    assert report.counts["ces"][Result.UNCHANGED] == 2


def test_intent_is_in_ledger_and_undo_file_before_any_write() -> None:
    table = NodeTable().after_two_looks()
    seen: list[tuple[Undo, dict[str, str]]] = []
    steer = table.cluster.steer

    def watched(changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        seen.append((table.undo, table.applied()))
        return steer(changes)

    table.cluster.steer = watched  # type: ignore[method-assign]
    table.says(*down("n1", "n2"))
    assert seen == [(Undo(asleep=("n1", "n2")), {"n1": "asleep", "n2": "asleep"})]


def test_a_wake_is_in_the_ledger_before_it_is_written() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.says(after=5 * MINUTE)
    seen: list[dict[str, str]] = []
    steer = table.cluster.steer

    def watched(changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        seen.append(table.applied())
        return steer(changes)

    table.cluster.steer = watched  # type: ignore[method-assign]
    table.cycle(active(Says(), name="other"))  # the service that had put it to sleep is gone
    assert seen == [{"n1": "awake"}]


def test_an_unwritable_undo_file_stops_every_write() -> None:
    table = NodeTable().after_two_looks()
    table.undo_fails = FileUnreadable("the disk is full")
    report = table.says(*down("n1"))
    assert "the disk is full" in report.suspended[0]
    assert table.cluster.writes == 0
    assert table.applied() == {}


@pytest.mark.parametrize("after", [2, 3])
def test_an_unwritable_ledger_stops_every_write(after: int) -> None:
    table = NodeTable().after_two_looks()
    table.ledger.fail_next(after=after, times=9)
    report = table.says(*down("n1"))
    assert report.suspended or any("broken off" in note for note in report.notes)
    assert table.cluster.writes == 0


def test_nodes_wake_and_none_sleeps_where_use_is_unknown() -> None:
    def none(snapshot: Snapshot) -> Snapshot:
        raise NotEnoughHistory("three days only")

    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.expectation = none
    report = table.says(*down("n2"), *up("n1"), after=2 * HOUR)
    assert report.woken == ("n1",)
    assert report.slept == ()
    assert "it is not known which nodes were in use" in table.why_refused("n2")
    assert any("three days only" in note for note in report.notes)


def test_why_use_is_unknown_is_written_once_with_what_to_do() -> None:
    def none(snapshot: Snapshot) -> Snapshot:
        raise NotEnoughHistory("three days only", hint="Load more.")

    table = NodeTable().after_two_looks()
    table.expectation = none
    first, again = table.says(*down("n1")), table.says(*down("n1"), after=HOUR)
    reasons = [
        [reason for reason in report.decisions["reason"] if "use of nodes is not known:" in reason]
        for report in (first, again)
    ]
    assert reasons == [["the use of nodes is not known: three days only Load more."], []]
    (line,) = table.lines(reason="the use of nodes is not known: three days only Load more.")
    assert (line["service"], line["mode"]) == ("helios", "off")  # no service's
    assert any("Load more." in note for note in again.notes)


def test_a_standby_does_nothing() -> None:
    table = NodeTable().after_two_looks()
    table.holder = "helios-2"
    report = table.says(*down("n1"))
    assert not report.leads
    assert "standing by" in report.suspended[0]
    assert table.cluster.writes == 0


def test_an_unseen_cluster_stops_every_write() -> None:
    table = NodeTable().after_two_looks()
    table.cluster.fail_next()
    report = table.says(*down("n1"))
    assert not report.seen
    assert "could not be read" in report.suspended[0]
    assert report.tallies.empty


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"controller": "ctl2"}, "the controller changed"),
        ({"clock_skew_s": 100.0}, "clock"),
        ({"history_read_at": None}, "history"),
    ],
)
def test_the_conditions_of_jobs_hold_for_nodes(change: dict[str, object], why: str) -> None:
    table = NodeTable().after_two_looks()
    well = table.world
    table.world = lambda now: replace(well(now), **change)  # type: ignore[arg-type]
    report = table.says(*down("n1"))
    assert why in report.suspended[0]
    assert table.cluster.writes == 0


def test_an_answer_cut_short_stops_writes_and_changes_no_ledger() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.cluster._nodes.clear()
    report = table.says(*down("n2"))
    assert "without any node" in report.suspended[0]
    assert table.applied() == {"n1": "asleep"}


def test_reasons_of_suspended_cycles_are_written_down_once() -> None:
    table = NodeTable().after_two_looks()
    well = table.world
    table.world = lambda now: replace(well(now), history_read_at=None)
    for _ in range(3):
        table.says(*down("n1"))
    assert len(table.lines(action="Cycle", outcome="nothing was done")) == 1


def test_several_failures_open_the_breaker() -> None:
    table = NodeTable(settings=node_settings(control={"mismatches_to_open": 2})).after_two_looks()
    table.cluster.refuse_writes("n1")
    table.says(*down("n1"))
    table.says(*down("n1"))
    report = table.says(*down("n2"))
    assert "the breaker is open" in report.suspended[0]
    assert table.cluster.power_of("n2") is AWAKE


def test_a_write_that_is_swallowed_is_a_mismatch_and_asked_again() -> None:
    table = NodeTable().after_two_looks()
    table.cluster.swallow_writes()
    report = table.says(*down("n1"))
    assert report.counts["ces"] == {Result.MISMATCH: 1}
    assert report.memory.cycle.breaker.bad_in_row == 1
    assert table.says(*down("n1")).slept == ("n1",)


def test_a_shadow_writes_nothing_and_remembers_what_would_stand() -> None:
    table = NodeTable().after_two_looks()
    report = table.says(*down("n1", "n2"), mode=SHADOW)
    assert report.counts["ces"] == {Result.WOULD: 2}
    assert table.cluster.writes == 0
    assert table.cluster.steered == []
    assert table.applied("shadow") == {"n1": "asleep", "n2": "asleep"}
    assert table.undo == Undo()
    again = table.says(*down("n1", "n2"), mode=SHADOW)
    assert again.counts["ces"] == {Result.UNCHANGED: 2}


def test_a_shadow_that_no_longer_wants_a_node_asleep_would_wake_it() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1", "n2"), mode=SHADOW)
    table.says(*down("n1"), mode=SHADOW)
    assert table.applied("shadow") == {"n1": "asleep"}


def test_a_job_on_a_node_that_only_a_shadow_sleeps_is_told() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"), mode=SHADOW)
    table.cluster.submit(nodes=10)
    table.says(mode=SHADOW)
    assert table.applied("shadow") == {}
    (line,) = table.lines(action="Woken", target="n1")
    assert line["outcome"].startswith("would")


def test_a_canary_changes_nodes_of_its_partitions_only() -> None:
    nodes = [a_node(name=f"{where}{n}", partitions=where) for where in ("a", "b", "a,b") for n in range(3)]
    table = NodeTable(cluster=FakeNodes(nodes=nodes)).after_two_looks()
    report = table.says(*down("a0", "b0", "a,b0"), mode=canary("a"))
    assert report.slept == ("a0",)
    assert table.cluster.power_of("b0") is AWAKE
    assert table.cluster.power_of("a,b0") is AWAKE  # partition b may need it


def test_a_canary_of_a_share_takes_the_same_nodes_every_time() -> None:
    slept = []
    for _ in range(2):
        table = NodeTable(cluster=FakeNodes(nodes=some_nodes(40)), settings=node_settings(most_in_transition=1.0))
        slept.append(
            table.after_two_looks().says(*down(*(f"n{n}" for n in range(1, 31))), mode=canary(percent=50)).slept
        )
    assert slept[0] == slept[1]
    assert 5 < len(slept[0]) < 25


def test_a_service_that_may_no_longer_write_has_its_nodes_woken() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1", "n2"))
    report = table.cycle(active(Says(), name="ces", mode=OFF), after=5 * MINUTE)
    assert set(report.woken) == {"n1", "n2"}
    assert table.applied() == {}


def test_nodes_still_going_down_are_woken_once_asleep() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), suspend_timeout_s=180.0)).after_two_looks()
    table.says(*down("n1"))
    report = table.cycle(active(Says(), name="ces", mode=OFF))
    assert report.woken == ()
    assert any("to be woken, once asleep" in note for note in report.notes)
    assert table.cycle(active(Says(), name="ces", mode=OFF), after=5 * MINUTE).woken == ("n1",)


def test_a_node_that_leaves_the_canary_is_woken() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"), mode=canary("gpu"))
    report = table.says(mode=canary("other"), after=5 * MINUTE)
    assert report.woken == ("n1",)


def test_the_first_configured_service_has_the_node() -> None:
    table = NodeTable().after_two_looks()
    report = table.cycle(active(Says(*up("n1")), name="a"), active(Says(*down("n1")), name="b"))
    assert report.slept == ("n1",)  # what already is so holds nothing back
    table.says(name="b", after=5 * MINUTE)
    table.cycle(active(Says(*down("n2")), name="a"), active(Says(*down("n2")), name="b"), after=5 * MINUTE)
    assert table.lines(target="n2", service="a", outcome="done")
    assert "service a has this setting" in table.why_refused("n2")


def test_tallies_count_the_pools_and_what_the_service_wanted() -> None:
    nodes = [*some_nodes(6), *(a_node(name=f"c{n}", partitions="cpu") for n in range(4))]
    table = NodeTable(cluster=FakeNodes(nodes=nodes))
    table.cluster.submit()
    table.after_two_looks()
    table.says(*down("n2", "n3"))
    report = table.says(*down("n4"), after=5 * MINUTE)
    NODE_TALLIES.check(report.tallies)
    gpu = report.tallies.set_index("pool").loc["gpu"]
    assert gpu["total"] == 6
    assert gpu["busy"] == 1
    assert gpu["asleep"] == 2
    assert gpu["by_helios"] == 2  # of those seen asleep; the one told to in this cycle is counted in the next
    assert gpu["wanted"] == 3
    assert report.tallies.set_index("pool").loc["cpu", "wanted"] == 4


def test_a_failing_service_is_written_down_and_skipped() -> None:
    table = NodeTable().after_two_looks()
    broken = Says()
    broken.raises = RuntimeError("no rows")
    report = table.cycle(active(broken, name="broken"), active(Says(*down("n1")), name="ces"))
    assert report.slept == ("n1",)
    assert "no rows" in table.lines(service="broken")[0]["outcome"]


def test_a_job_action_in_the_domain_of_nodes_is_a_fault() -> None:
    table = NodeTable().after_two_looks()
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.counts["qssf"] == {Result.FAILED: 1}


def test_weights_of_an_earlier_release_go_back_in_the_first_cycle() -> None:
    table = NodeTable()
    table.weighed_by_an_earlier_release("n2", "n3")
    report = table.cycle()
    assert report.weighed == ("n2", "n3")
    assert {table.cluster.weight_of(f"n{n}") for n in range(1, 11)} == {10}
    assert (table.applied(setting="weight"), table.undo) == ({}, Undo())


def test_they_go_back_beside_a_service_that_sleeps_nodes() -> None:
    table = NodeTable().after_two_looks()
    table.weighed_by_an_earlier_release("n2")
    report = table.says(*down("n1"))
    assert (report.slept, report.weighed) == (("n1",), ("n2",))


def test_a_weight_that_an_admin_changed_since_is_theirs() -> None:
    table = NodeTable()
    table.weighed_by_an_earlier_release("n2", "n3")
    table.cluster.admin_sets_weight("n2", 99)
    table.cycle()
    assert [table.cluster.weight_of(node) for node in ("n2", "n3")] == [99, 10]
    assert len(table.lines(action="HandsOff", target="n2")) == 1


def test_weights_that_wait_for_writes_go_back_in_later_cycles() -> None:
    table = NodeTable(settings=node_settings(slurm={"writes_per_cycle": 2}))
    table.weighed_by_an_earlier_release("n1", "n2", "n3")
    assert [len(table.cycle().weighed) for _ in range(3)] == [2, 1, 0]
    assert {table.cluster.weight_of(f"n{n}") for n in range(1, 4)} == {10}


def test_what_an_earlier_release_would_have_weighed_in_shadow_is_forgotten() -> None:
    table = NodeTable()
    table.weighed_by_an_earlier_release("n2", mode="shadow")
    table.cycle()
    assert table.applied("shadow", setting="weight") == {}


def by_list(*, suspend_time_s: float = 1e6, **columns: Any) -> NodeTable:
    cluster = FakeNodes(nodes=some_nodes(), keep_awake="n9", suspend_time_s=suspend_time_s)
    settings = node_settings(mechanism="keep_awake", **columns)
    return NodeTable(cluster=cluster, settings=settings).after_two_looks()


def test_services_share_the_writes_of_a_cycle_in_order() -> None:
    table = NodeTable(settings=node_settings(slurm={"writes_per_cycle": 3})).after_two_looks()
    report = table.cycle(active(Says(*down("n1", "n2")), name="ces"), active(Says(*down("n4", "n5", "n6")), name="own"))
    assert report.slept == ("n1", "n2", "n4")
    assert report.counts["own"][Result.POSTPONED] == 2


def test_the_keep_awake_list_holds_the_sites_own_beside_what_is_asked() -> None:
    table = by_list()
    table.says(keep("n1", "n2"))
    assert table.cluster.keep_awake == "n[1-2,9]"
    assert table.undo.keep_awake == "n9"
    table.says(keep("n1", "n3", "n2"))
    assert table.cluster.keep_awake == "n[1-3,9]"
    assert table.undo.keep_awake == "n9"


def test_a_shrinking_list_obeys_the_bound_of_nodes_on_their_way() -> None:
    table = by_list(most_in_transition=0.2)
    table.says(keep("n1", "n2", "n3", "n4", "n5"))
    table.says(keep("n1"))
    assert table.cluster.keep_awake == "n[1,4-5,9]"
    table.says(keep("n1"))
    assert table.cluster.keep_awake == "n[1,9]"


def test_a_list_has_every_node_never_to_sleep_and_none_unknown() -> None:
    table = by_list(never="n3,nowhere")
    table.says(keep("n1", "n77", "n3"))
    assert table.cluster.keep_awake == "n[1,3,9]"
    assert set(nodes_named(table.applied(setting="keep_awake")[""])) == {"n1", "n3"}


def test_a_canary_keeps_awake_only_nodes_of_its_own() -> None:
    nodes = [*some_nodes(3), a_node(name="m1", partitions="debug")]
    table = NodeTable(cluster=FakeNodes(nodes=nodes), settings=node_settings(mechanism="keep_awake")).after_two_looks()
    table.says(keep("n1", "m1"), mode=canary("debug"))
    assert table.cluster.keep_awake == "m1"


def test_a_quarantined_node_stays_in_a_list_that_stands() -> None:
    table = by_list()
    table.says(keep("n1"))
    table.memory = replace(table.memory, quarantined={"n5": Failure(node="n5", at=table.cluster.now, what="hung")})
    table.says(keep("n1", "n2"))
    assert table.cluster.keep_awake == "n[1-2,5,9]"


def test_the_reason_of_a_list_counts_nodes_that_must_stay() -> None:
    table = by_list(most_in_transition=0.2)
    table.says(keep("n1", "n2", "n3", "n4", "n5"))
    table.says(keep("n1"))
    assert table.lines(action="KeepAwake")[-1]["reason"].startswith("needed soon; 2 more stay in it (n4: ")
    table.says(keep("n1"))
    assert table.lines(action="KeepAwake")[-1]["reason"] == "needed soon"


def test_a_second_service_takes_over_a_node_asleep() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"), name="first")
    table.says(after=5 * MINUTE, name="first")
    second = active(Says(*down("n1")), name="second")
    table.cycle(active(Says(), name="first"), second)
    assert table.ledger.applied_changes()["service"].tolist() == ["second"]
    assert table.cycle(second).woken == ()
    assert table.cluster.power_of("n1") is ASLEEP


def test_a_failed_undo_file_keeps_observations_and_drops_intents() -> None:
    table = NodeTable(settings=node_settings(payback_s=0)).after_two_looks()
    table.says(*down("n1"))
    table.cluster.fail_wakes("n1")
    table.says(*up("n1"), after=HOUR)
    meant = len(table.lines(outcome="meant"))
    table.undo_fails = FileUnreadable("the disk is full")
    assert "the disk is full" in table.says(*down("n5"), after=12 * MINUTE).suspended[0]
    assert len(table.lines(action="FailedWake")) == 1
    assert len(table.lines(outcome="meant")) == meant


@pytest.mark.parametrize("mode", [ACTIVE, SHADOW, canary(percent=100)])
def test_an_equal_list_is_asked_for_without_a_write(mode: ServiceMode) -> None:
    table = by_list()
    table.says(keep("n1", "n2"), mode=mode)
    writes, records, calls = table.cluster.writes, table.ledger.records, len(table.cluster.steered)
    report = table.says(keep("n2", "n1"), mode=mode)
    assert report.counts == {"ces": {Result.UNCHANGED: 1}}
    assert (table.cluster.writes, table.ledger.records, len(table.cluster.steered)) == (writes, records, calls)


def test_a_list_that_no_node_may_leave_is_not_rewritten() -> None:
    table = by_list(most_in_transition=0.1, most_asleep=0.1)
    table.says(keep(*(f"n{n}" for n in range(1, 11))))
    table.says(keep(*(f"n{n}" for n in range(1, 10))))
    writes, records = table.cluster.writes, table.ledger.records
    report = table.says(keep(*(f"n{n}" for n in range(1, 9))))
    assert report.counts == {"ces": {Result.UNCHANGED: 1}}
    assert (table.cluster.writes, table.ledger.records) == (writes, records)


def test_the_list_of_a_shadow_shrinks_from_what_the_shadow_asked_for() -> None:
    table = by_list(most_in_transition=0.2)
    table.cluster.admin_sets_keep_awake("n[1-9]")
    table.says(keep("n1", "n2", "n3", "n4", "n5"), mode=SHADOW)
    table.says(keep("n1"), mode=SHADOW)
    assert set(nodes_named(table.applied("shadow", setting="keep_awake")[""])) == {"n1", "n4", "n5"}


def test_nodes_that_the_timer_puts_to_sleep_count_for_the_bound() -> None:
    table = by_list(most_in_transition=0.2)
    table.says(keep(*(f"n{n}" for n in range(1, 9))))  # n10 is idle and in nobody's list
    table.cluster.suspend_time_s = 86_400 + 600.0
    table.says(keep("n1"))
    assert table.cluster.keep_awake == "n[1,3-9]"


def test_slurms_timer_takes_no_place_where_helios_puts_nodes_to_sleep() -> None:
    cluster = FakeNodes(nodes=some_nodes(), suspend_time_s=86_400 + 600.0)  # every node is idle for a day already
    table = NodeTable(cluster=cluster, settings=node_settings(most_in_transition=0.2)).after_two_looks()
    assert table.says(*down("n1", "n2", "n3")).slept == ("n1", "n2")


def test_a_list_shrinks_no_further_than_a_pool_can_spare() -> None:
    table = by_list(most_in_transition=1.0, most_asleep=0.7)
    table.says(keep(*(f"n{n}" for n in range(1, 11))))
    table.says(keep())
    assert len(table.cluster.snapshot().nodes.query("kept_awake == 1")) == 3


def test_a_list_that_a_reconfiguration_forgot_is_set_again() -> None:
    table = by_list()
    table.says(keep("n1"))
    table.cluster.reconfigure()
    report = table.says(keep("n1"))
    assert table.cluster.keep_awake == "n[1,9]"
    assert any("forgot the keep-awake list" in note for note in report.notes)


def test_a_list_that_an_admin_changed_is_theirs() -> None:
    table = by_list()
    table.says(keep("n1"))
    table.cluster.admin_sets_keep_awake("n5")
    table.says(keep("n1", "n2"))
    assert table.cluster.keep_awake == "n5"
    assert table.undo.keep_awake is None
    assert len(table.lines(action="HandsOff")) == 1


def test_a_mechanism_that_was_changed_is_taken_back() -> None:
    table = by_list()
    table.says(keep("n1"))
    table.settings = node_settings()
    table.says()
    assert table.cluster.keep_awake == "n9"


def test_a_crash_while_acting_is_put_right_by_the_next_cycle() -> None:
    table = NodeTable().after_two_looks()
    table.cluster.crash_after(writes=1)
    with pytest.raises(Crash):
        table.says(*down("n1", "n2"))
    assert table.undo.asleep == ("n1", "n2")
    assert set(table.applied()) == {"n1", "n2"}
    table.says(after=11 * MINUTE)
    assert table.applied() == {"n1": "asleep"}
    assert len(table.memory.slept["n1"]) == 1


def test_a_node_that_only_the_undo_file_names_is_woken() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.ledger = type(table.ledger)(domain=table.ledger.domain)  # the database was lost
    report = table.says(after=5 * MINUTE)
    assert report.woken == ("n1",)
    assert table.undo == Undo()


def test_an_error_of_the_preconditions_stops_every_write() -> None:
    def unknown(now: object) -> None:
        raise ClusterUnavailable("no controller")

    table = NodeTable().after_two_looks()
    table.world = unknown  # type: ignore[assignment]
    assert "no controller" in table.says(*down("n1")).suspended[0]


def test_a_pause_during_the_cycle_stops_it_before_a_write() -> None:
    table = NodeTable().after_two_looks()
    table.pause_asked = lambda: "alice"
    report = table.says(*down("n1"))
    assert table.cluster.writes == 0
    assert any("paused: alice" in note for note in report.notes)


def test_an_unreadable_list_of_names_stops_every_write() -> None:
    table = NodeTable(settings=node_settings(never="n[1-"))
    assert "power.never" in table.says(*down("n1")).suspended[0]
    assert issubclass(FileUnreadable, HeliosError)


def test_counts_of_the_report_say_what_was_seen() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1", "n2"))
    report = table.says(after=timedelta(minutes=3))
    assert (report.nodes[ASLEEP], report.nodes[AWAKE], report.asleep_by_helios) == (2, 8, 2)


def test_an_old_undo_file_beside_a_ledger_is_not_believed() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.cluster.admin_powers_down("n2")
    table.undo = Undo(asleep=("n1", "n2"), weights=(("n3", 5),))
    report = table.says(after=5 * MINUTE)
    assert report.woken == ()
    assert table.cluster.weight_of("n3") == 10


@pytest.mark.parametrize("result", [Result.POSTPONED, Result.REFUSED])
def test_what_is_not_written_stays_in_the_ledger_as_it_was(result: Result) -> None:
    table = NodeTable(settings=node_settings(payback_s=0)).after_two_looks()
    table.says(*down("n1"))
    table.says(after=5 * MINUTE)
    applied = table.ledger.applied_changes()
    steer = table.cluster.steer
    table.cluster.steer = lambda changes: [change.outcome(result, "no") for change in changes]  # type: ignore[method-assign]
    table.says(*up("n1"))
    assert table.ledger.applied_changes().equals(applied)
    assert table.undo == Undo(asleep=("n1",))
    table.cluster.steer = steer  # type: ignore[method-assign]
    assert table.says(*up("n1")).woken == ("n1",)


def test_a_ledger_unreadable_for_once_is_not_written_over() -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.cycle(active(Says(), name="ces"), active(Says(*down("n2")), name="dream", mode=SHADOW))
    before = table.ledger.applied_changes()
    table.ledger.fail_next(after=1)
    report = table.says(after=5 * MINUTE)
    assert "could not be read" in report.suspended[0]
    assert table.ledger.applied_changes().equals(before)
    assert table.undo == Undo(asleep=("n1",))
    assert table.says().woken == ()


def test_a_drained_sleeper_takes_no_place_from_nodes_to_wake() -> None:
    table = NodeTable(settings=node_settings(most_in_transition=0.1)).after_two_looks()
    for node in ("n1", "n2"):
        table.says(*down(node), after=20 * MINUTE)
    table.cluster.tick(20 * MINUTE)
    table.cluster.drain("n1")
    report = table.says(mode=OFF)
    assert report.woken == ("n2",)
    assert any("in service" in note for note in report.notes)
    assert table.applied() == {"n1": "asleep"}
    table.cluster.resume("n1")
    assert table.says(mode=OFF, after=20 * MINUTE).woken == ("n1",)


@pytest.mark.parametrize("then", ["acts", "is still"])
def test_whoever_takes_the_lease_over_has_an_undo_file_of_what_stands(then: str) -> None:
    table = NodeTable().after_two_looks()
    table.says(*down("n1"))
    table.holder, table.undo = "helios-2", Undo()  # another machine, with a disk of its own
    if then == "is still":
        table.world = lambda now: replace(all_is_well(now), clock_skew_s=None)
    table.says(after=HOUR)
    assert table.undo.asleep == ("n1",)


def test_a_queue_that_was_cut_puts_no_node_to_sleep() -> None:
    table = NodeTable().after_two_looks()
    waiting = Observation(
        at=table.cluster.now,
        pending=frozenset(f"j{number}" for number in range(20)),
        running=frozenset(),
        nodes=frozenset(f"n{number}" for number in range(1, 11)),
    )
    table.ended, table.accepted = lambda _: (), waiting
    report = table.says(*down("n1"))
    assert "20 of 20 jobs vanished" in report.suspended[0]
    assert table.applied() == {} and report.slept == ()
    assert table.says(*down("n1")).slept == ("n1",)
