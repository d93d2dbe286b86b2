"""Power cycles as a whole: every line of the audit, row of the book and field of the report, told once each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from helios.actions import NodeOutcome, Result
from helios.changes import Change
from helios.control import NodeCycleReport, Undo
from helios.control.modes import OUTSIDE, node_cluster_for_mode
from helios.control.observed import same_list
from helios.errors import ClusterUnavailable, WarehouseUnavailable
from helios.model import NodePower
from helios.testing import Crash, FakeNodes, a_node
from tests.changes import asked_of_nodes
from tests.unit.control.nodes_table import (
    ACTIVE,
    HOUR,
    OFF,
    SHADOW,
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

Row = tuple[str | None, ...]


def rows(report: NodeCycleReport) -> list[Row]:
    """Service, mode, action, target, result, before and after of every line; each has a reason and no model."""
    assert (report.decisions["reason"].str.len() > 3).all()
    assert report.decisions["model_id"].isna().all()
    told = report.decisions[["service", "mode", "action", "target", "outcome", "before", "after"]].astype(object)
    lines = told.where(told.notna(), None).to_dict("records")
    return [tuple((line | {"outcome": line["outcome"].split(":")[0]}).values()) for line in lines]


def applied_changes_of(table: NodeTable) -> set[tuple[Any, ...]]:
    columns = ["service", "mode", "setting", "node", "value", "own", "after", "overridden"]
    return set(table.ledger.applied_changes()[columns].astype(object).itertuples(index=False, name=None))


def memory(table: NodeTable) -> dict[str, Any]:
    """What the next cycle is given, its digests counted."""
    plain: dict[str, Any] = json.loads(table.memory.to_json())
    cycle = json.loads(plain.pop("cycle"))
    return plain | cycle | {"said": {service: len(digests) for service, digests in cycle["said"].items()}}


class Night:
    """Ten nodes and three services: one that puts to sleep, a canary, and a shadow."""

    def __init__(self) -> None:
        self.table = NodeTable().after_two_looks()
        self.active = Says(*down("n1", "n2", "n99"))
        self.canary = Says(keep("n7"), *down("n8"))
        self.shadow = Says(*down("n9"))

    def cycle(self, after: timedelta = timedelta(minutes=1)) -> NodeCycleReport:
        return self.table.cycle(
            active(self.active, name="ces"),
            active(self.canary, name="node_fill_order", mode=canary("debug")),
            active(self.shadow, name="other", mode=SHADOW),
            after=after,
        )


@pytest.fixture
def night() -> Night:
    return Night()


ASLEEP_APPLIED = {
    ("ces", "active", "power", "n1", "asleep", "", "IDLE+POWERING_DOWN", 0),
    ("ces", "active", "power", "n2", "asleep", "", "IDLE+POWERING_DOWN", 0),
}
OF_THE_SHADOW = ("other", "shadow", "power", "n9", "asleep", "", "asleep", 0)


def test_a_first_cycle_says_what_is_refused_meant_done_and_only_seen(night: Night) -> None:
    report = night.cycle()
    plain = report.decisions["outcome"][~report.decisions["outcome"].str.startswith("refused")]
    assert set(plain) == {"meant", "done", "would"}  # and nothing more is to be said of them
    assert rows(report) == [
        ("ces", "active", "PowerDown", "n99", "refused", None, None),
        ("node_fill_order", "canary", "KeepAwake", "", "refused", None, None),
        ("ces", "active", "Cycle", "venus", "meant", None, None),
        ("ces", "active", "PowerDown", "n1", "done", "IDLE", "IDLE+POWERING_DOWN"),
        ("ces", "active", "PowerDown", "n2", "done", "IDLE", "IDLE+POWERING_DOWN"),
        ("other", "shadow", "PowerDown", "n9", "would", "awake", "asleep"),
    ]
    assert report.decisions["reason"].str.contains("2").tolist()[2]
    assert applied_changes_of(night.table) == {*ASLEEP_APPLIED, OF_THE_SHADOW}
    assert night.table.undo == Undo(asleep=("n1", "n2"))


def test_a_first_cycle_reports_all_that_it_saw_and_did(night: Night) -> None:
    report = night.cycle()
    assert (report.slept, report.woken, report.weighed) == (("n1", "n2"), (), ())
    assert (report.suspended, report.remaining, report.notes, report.protected) == ((), (), (), "")
    assert (report.seen, report.recorded, report.leads, report.clean) == (True, True, True, True)
    assert report.counts == {
        "ces": {Result.REFUSED: 1, Result.DONE: 2},
        "node_fill_order": {Result.REFUSED: 2},
        "other": {Result.WOULD: 1},
    }
    assert report.taken_at == night.table.cluster.now
    assert (report.nodes[NodePower.AWAKE], sum(report.nodes.values()), report.asleep_by_helios) == (10, 10, 0)
    assert report.tallies.drop(columns="taken_at").to_dict("records") == [
        {
            "pool": "gpu",
            "total": 10,
            "busy": 0,
            "asleep": 0,
            "falling_asleep": 0,
            "waking": 0,
            "by_helios": 0,
            "wanted": 8.0,
        }
    ]


def test_a_first_cycle_remembers_sleepers_and_idle_times(night: Night) -> None:
    first = night.table.cluster.now.isoformat()
    night.cycle()
    now = night.table.cluster.now.isoformat()
    assert memory(night.table) == {
        "looked_at": now,
        "idle": {f"n{place}": first for place in range(1, 11)},
        "slept": {"n1": [now], "n2": [now]},
        "wakes": {},
        "failures": [],
        "quarantined": [],
        "protected_at": None,
        "keep_off": {},
        "delayed": {},
        "asked_at": {"ces": now, "node_fill_order": now, "other": now},
        "breaker": {"bad_in_row": 0, "opened_at": None},
        "suspension": {},
        "controller": "ctl1",
        "pending": 0,
        "nodes": 10,
        "suspended": [],
        "said": {"ces": 1, "node_fill_order": 1, "other": 0},
    }


def test_a_cycle_that_finds_all_as_asked_says_nothing_and_counts_it(night: Night) -> None:
    night.cycle()
    before = applied_changes_of(night.table)
    report = night.cycle()
    assert (rows(report), report.slept, report.weighed) == ([], (), ())
    assert report.counts == {
        "ces": {Result.REFUSED: 1, Result.UNCHANGED: 2},
        "node_fill_order": {Result.REFUSED: 2},
        "other": {Result.UNCHANGED: 1},
    }
    assert (report.asleep_by_helios, report.tallies["by_helios"].tolist()) == (2, [2])
    assert applied_changes_of(night.table) == before


def test_a_shadow_wants_a_node_back_under_its_own_name(night: Night) -> None:
    night.cycle()
    night.shadow.actions = []
    report = night.cycle()
    assert rows(report) == [("other", "shadow", "RevertNodes", "n9", "would", "asleep", "awake")]
    assert "other" in report.decisions["reason"][0]
    assert applied_changes_of(night.table) == ASLEEP_APPLIED


def test_nodes_asked_for_again_are_woken_at_once(night: Night) -> None:
    night.cycle()
    night.active.actions = [*up("n1"), *down("n2")]
    report = night.cycle()
    assert [row[:5] for row in rows(report)] == [
        ("ces", "active", "Cycle", "venus", "meant"),
        ("ces", "active", "PowerUp", "n1", "done"),
    ]
    assert (report.woken, report.asleep_by_helios) == (("n1",), 1)
    assert memory(night.table)["wakes"] == {"n1": [night.table.cluster.now.isoformat(), "Helios"]}
    assert night.table.undo.asleep == ("n2",)


def test_stillness_is_written_down_once_and_said_in_every_report(night: Night) -> None:
    night.cycle()
    night.table.world = lambda now: replace(all_is_well(now), clock_skew_s=None)
    first, second = night.cycle(), night.cycle()
    assert rows(first) == [("helios", "off", "Cycle", "venus", "nothing was done", None, None)]
    assert (rows(second), first.suspended) == ([], second.suspended)
    assert [reason.split()[0] for reason in first.suspended] == ["the", "2"]  # what stands is said too
    assert (first.seen, first.leads, first.recorded, first.counts) == (True, True, True, {})
    assert memory(night.table)["suspended"] == [first.suspended[0]]
    assert night.table.undo.asleep == ("n1", "n2")
    night.table.world = all_is_well
    night.cycle()
    assert memory(night.table)["suspended"] == []


def test_a_pause_reverts_everything_and_says_so_once(night: Night) -> None:
    night.cycle()
    night.table.pause()
    report = night.cycle()
    assert rows(report) == [
        ("helios", "paused", "RevertNodes", "n1", "done", "IDLE+POWERED_DOWN", "IDLE+POWERING_UP"),
        ("helios", "paused", "RevertNodes", "n2", "done", "IDLE+POWERED_DOWN", "IDLE+POWERING_UP"),
        ("helios", "paused", "Cycle", "venus", "done", None, None),
    ]
    assert set(report.decisions["reason"]) == {"enough"}
    assert (report.woken, report.weighed, report.remaining, report.clean) == (("n1", "n2"), (), (), True)
    assert (report.suspended, report.counts) == (("paused: enough",), {"helios": {Result.DONE: 2}})
    assert len(report.notes) == 1
    assert (applied_changes_of(night.table), night.table.undo) == (set(), Undo())
    later = night.cycle()
    assert (rows(later), later.woken, later.suspended) == ([], (), ("paused: enough",))


def test_a_release_reports_all_that_it_did_and_that_it_leads(night: Night) -> None:
    night.cycle()
    night.table.cluster.tick(HOUR)
    report = night.table.release()
    assert (report.woken, report.weighed, report.slept) == (("n1", "n2"), (), ())
    assert (report.seen, report.recorded, report.leads, report.clean) == (True, True, True, True)
    assert (report.suspended, report.counts) == (("released: enough",), {"helios": {Result.DONE: 2}})
    assert [row[:5] for row in rows(report)][-1] == ("helios", "paused", "Cycle", "venus", "done")
    assert [row[1] for row in rows(report)] == ["paused"] * 3
    assert (report.asleep_by_helios, sum(report.nodes.values()), len(report.tallies)) == (0, 10, 1)
    assert report.memory.wakes.keys() == {"n1", "n2"}
    assert (applied_changes_of(night.table), night.table.undo) == (set(), Undo())


def test_a_release_under_anothers_lease_does_not_say_that_it_leads(night: Night) -> None:
    night.cycle()
    night.table.cluster.tick(HOUR)
    night.table.holder = "helios-2"
    night.table.ledger.acquire(holder="helios-3", now=night.table.cluster.now, lasts=2 * HOUR)
    report = night.table.release()
    assert (report.recorded, report.leads, report.woken) == (False, False, ("n1", "n2"))
    assert len(report.notes) == 2


def test_a_node_falling_asleep_in_a_pause_remains_and_is_named(night: Night) -> None:
    night.table.cluster.tick(timedelta(minutes=1))
    night.active.actions = [*down("n1")]
    night.cycle()
    report = night.table.release()
    assert (report.remaining, report.clean, report.woken) == (("n1",), False, ())
    assert [row[:5] for row in rows(report)] == [
        ("helios", "paused", "Cycle", "venus", "postponed"),
    ]
    assert "n1" in report.decisions["outcome"][0]
    assert report.asleep_by_helios == 1
    assert night.table.undo.asleep == ("n1",)


def test_a_cluster_that_cannot_be_seen_is_said_with_no_figures(night: Night) -> None:
    night.cycle()
    night.table.cluster.fail_next()
    report = night.cycle()
    assert (report.seen, report.leads, report.recorded) == (False, True, True)
    assert (dict(report.nodes), report.tallies.empty) == ({}, True)
    assert rows(report) == [("helios", "off", "Cycle", "", "nothing was done", None, None)]
    assert report.taken_at == night.table.cluster.now
    assert applied_changes_of(night.table) == {*ASLEEP_APPLIED, OF_THE_SHADOW}


def test_a_standby_saw_what_it_was_to_see_and_writes_nothing(night: Night) -> None:
    lines = night.table.lines()
    night.table.ledger.release(holder=night.table.holder)
    night.table.ledger.acquire(holder="helios-2", now=night.table.cluster.now, lasts=HOUR)
    report = night.cycle()
    assert (report.seen, report.leads, rows(report), len(report.suspended)) == (True, False, [], 1)
    assert night.table.lines() == lines


@pytest.mark.parametrize("step", ["acquire", "applied_changes"])
def test_a_failure_before_the_first_write_suspends_the_cycle(night: Night, step: str) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise WarehouseUnavailable("no database")

    setattr(night.table.ledger, step, fails)
    report = night.cycle()
    assert (report.slept, report.weighed, report.counts, report.leads) == ((), (), {}, step != "acquire")
    assert any(reason.endswith("no database") and len(reason) > 20 for reason in report.suspended)


def test_a_cluster_lost_while_acting_is_noted_and_counts_for_the_breaker(night: Night) -> None:
    def unavailable(_: object) -> Any:
        raise ClusterUnavailable("no answer")

    night.table.cluster.steer = unavailable  # type: ignore[method-assign]
    report = night.cycle()
    assert (report.slept, report.weighed) == ((), ())
    assert [note for note in report.notes if note.endswith("no answer")]
    assert memory(night.table)["breaker"]["bad_in_row"] == 1
    assert {row[3] for row in applied_changes_of(night.table)} >= {"n1", "n2"}  # who knows what became of them


def test_an_admin_who_changes_a_weight_gets_a_line_and_the_node(night: Night) -> None:
    night.table.weighed_by_an_earlier_release("n4")
    night.table.cluster.admin_sets_weight("n4", 4_294_967_280)
    report = night.cycle()
    (line,) = [row for row in rows(report) if row[2] == "HandsOff"]
    assert (line[3], line[5], line[6]) == ("n4", "Weight 11", "Weight 4294967280")
    assert night.table.cluster.weight_of("n4") == 4_294_967_280
    assert [row[-1] for row in applied_changes_of(night.table) if row[3] == "n4"] == [1]
    assert "n4" not in dict(night.table.undo.weights)


def test_a_list_is_written_down_whole_with_what_the_site_has_itself() -> None:
    table = NodeTable(settings=node_settings(mechanism="keep_awake")).after_two_looks()
    report = table.says(keep("n1", "n2"))
    assert [row[:5] for row in rows(report)] == [
        ("ces", "active", "Cycle", "venus", "meant"),
        ("ces", "active", "KeepAwake", "", "done"),
    ]
    ((*_, value, own, after, overridden),) = applied_changes_of(table)
    assert (own, overridden, bool(value)) == ("", 0, True)
    assert "n[1-2]" in after or "n1,n2" in after
    assert table.undo == Undo(keep_awake="")
    table.pause()
    paused = table.cycle()
    assert [row[:5] for row in rows(paused)] == [
        ("helios", "paused", "RevertNodes", "", "done"),
        ("helios", "paused", "Cycle", "venus", "done"),
    ]
    assert (applied_changes_of(table), table.undo) == (set(), Undo())


def test_a_pool_of_its_own_has_a_tally_of_its_own() -> None:
    table = NodeTable()
    table.cluster = type(table.cluster)(nodes=[*some_nodes(4), *some_nodes(1, name="m1", partitions="debug")])
    report = table.after_two_looks().says(*down("n1"))
    assert report.tallies["total"].sum() == 5
    assert report.slept == ("n1",)


def test_nodes_of_a_removed_service_are_reverted_by_helios(night: Night) -> None:
    night.cycle()
    night.table.cluster.tick(HOUR)
    report = night.table.cycle(active(night.shadow, name="other", mode=SHADOW))
    assert [row[:5] for row in rows(report)] == [
        ("helios", "active", "Cycle", "venus", "meant"),
        ("helios", "active", "RevertNodes", "n1", "done"),
        ("helios", "active", "RevertNodes", "n2", "done"),
    ]
    assert "2" in report.decisions["reason"][0]
    assert all("ces" in reason for reason in report.decisions["reason"][1:])
    assert applied_changes_of(night.table) == {OF_THE_SHADOW}


def test_an_intent_without_result_stays_recorded_while_it_may_happen() -> None:
    table = NodeTable().after_two_looks()
    table.cluster.crash_after(writes=0)
    with pytest.raises(Crash):
        table.says(*down("n1"))
    table.world = lambda now: replace(all_is_well(now), clock_skew_s=None)
    table.cycle()
    assert table.applied() == {"n1": "asleep"}
    table.cycle(after=timedelta(minutes=11))
    assert table.applied() == {}
    assert table.lines(action="Woken") == []


def test_an_audit_that_fails_after_acting_is_noted_with_its_reason(night: Night) -> None:
    record, calls = night.table.ledger.record, []

    def fails(**arguments: Any) -> None:
        calls.append(arguments)
        if len(night.table.cluster.steered):
            raise WarehouseUnavailable("disk full")
        record(**arguments)

    night.table.ledger.record = fails  # type: ignore[method-assign]
    report = night.cycle()
    assert (report.recorded, report.slept) == (False, ("n1", "n2"))
    assert [note for note in report.notes if note.endswith("disk full")]


def test_a_drained_sleeper_is_not_woken_though_nobody_said_to_keep_off() -> None:
    nodes = [*some_nodes(3), a_node(name="n9", power="asleep", flags="DRAIN+POWERED_DOWN")]
    table = NodeTable(cluster=FakeNodes(nodes=nodes, lax=True)).after_two_looks()
    table.cluster.steered.clear()
    report = table.says(*up("n9"))
    assert (report.woken, table.cluster.steered) == ((), [])
    assert "DRAIN" in table.why_refused("n9")


def test_lists_that_keep_some_nodes_differ_by_node_and_number() -> None:
    assert same_list("SuspendExcNodes n[1-4]:2,n9", "n9,n[1-4]:2")
    assert not same_list("n[1-4]:2", "n[1-4]:3")
    assert not same_list("n[1-4]:2", "n[1-3]:2")
    assert not same_list("n[1-4]:2", "n[1-4]")


def test_a_canary_writes_no_other_node() -> None:
    cluster = FakeNodes(nodes=[*some_nodes(2), a_node(name="m1", partitions="debug")], lax=True)
    door = node_cluster_for_mode(canary("debug"), cluster, read_snapshot=cluster.snapshot, applied={})
    assert door is not None
    said = door.steer(asked_of_nodes([*down("n1", "m1"), *up("n2"), keep("n1", "m1")]))
    by_node = {(outcome.action, outcome.node): outcome.result for outcome in said}
    assert by_node["PowerDown", "n1"] is by_node["PowerUp", "n2"] is Result.REFUSED
    assert by_node["PowerDown", "m1"] is Result.DONE
    assert {outcome.remark for outcome in said if outcome.result is Result.REFUSED} == {OUTSIDE}
    assert [seen.node for seen in cluster.power_downs] == ["m1"]
    assert node_cluster_for_mode(ACTIVE, cluster, read_snapshot=cluster.snapshot, applied={}) is cluster
    assert node_cluster_for_mode(OFF, cluster, read_snapshot=cluster.snapshot, applied={}) is None


def test_what_takes_several_calls_to_take_back_is_told_of_every_call() -> None:
    nodes = some_nodes(4)
    table = NodeTable(cluster=FakeNodes(nodes=nodes), settings=node_settings(most_in_transition=1.0)).after_two_looks()
    table.says(*down("n1", "n2"))
    table.cluster.tick(HOUR)
    steer, calls = table.cluster.steer, []

    def one_at_a_time(changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        calls.append(changes)
        first, *others = changes
        assert first.is_revert
        return [*steer([first]), *(change.outcome(Result.POSTPONED, "later") for change in others)]

    table.cluster.steer = one_at_a_time  # type: ignore[method-assign]
    report = table.release()
    assert (len(calls), report.woken, report.clean) == (2, ("n1", "n2"), True)
    assert [row[2:5] for row in rows(report)][:-1] == [
        ("RevertNodes", "n1", "done"),
        ("RevertNodes", "n2", "done"),
    ]


def test_changes_of_nodes_beyond_the_budget_wait_with_a_note() -> None:
    table = NodeTable(settings=node_settings(slurm={"writes_per_cycle": 1})).after_two_looks()
    report = table.says(*down("n1", "n2"))
    assert (report.slept, report.counts) == (("n1",), {"ces": {Result.DONE: 1, Result.POSTPONED: 1}})
    (note,) = report.notes
    assert note.startswith("1 changes wait: ") and "None" not in note
    assert not note.endswith(": ")


def test_a_shadow_that_would_keep_nobody_awake_would_change_nothing() -> None:
    table = NodeTable(settings=node_settings(mechanism="keep_awake")).after_two_looks()
    report = table.cycle(active(Says(keep()), name="node_fill_order", mode=SHADOW))
    assert report.counts == {"node_fill_order": {Result.UNCHANGED: 1}}
    later = table.cycle(active(Says(keep("n1")), name="node_fill_order", mode=SHADOW))
    assert [(row[:5]) for row in rows(later)] == [("node_fill_order", "shadow", "KeepAwake", "", "would")]
