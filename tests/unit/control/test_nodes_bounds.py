"""The rules for nodes at their bounds, to the second and name by name, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from helios.actions import NodeAction, NodeSetting, Result
from helios.changes import LIST, to_node_changes
from helios.config import Power
from helios.control import AppliedChange, AppliedChanges, Failure, NodeControllerState, Undo, WakeUp, clear_failed_wakes
from helios.control.node_guards import NodeCycleContext, apply_node_guards
from helios.control.nodes import (
    NodeActivity,
    NodeComparison,
    NodeObservation,
    possibly_applied_changes,
    update_nodes,
    with_undo_records,
)
from helios.control.observed import observed_nodes
from helios.control.power_budget import PowerBudget, bound_power_changes
from helios.control.report import HELIOS, node_cycle_counts, wanted_awake
from helios.model import Mode, NodePower, PowerSettings
from helios.testing import NOON, FakeNodes, a_node, a_snapshot, a_use
from tests.unit.control.nodes_table import ACTIVE, HOUR, MINUTE, NodeTable, down, keep, node_settings, some_nodes, up

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
POWERING = PowerSettings(
    suspend_time_s=1e6, suspend_timeout_s=60.0, resume_timeout_s=600.0, keep_awake="", can_keep_awake=True
)


def a_row(node: str = "n1", *, setting: NodeSetting = NodeSetting.POWER, **columns: Any) -> AppliedChange:
    """A node that Helios put to sleep at noon and saw asleep, unless said otherwise."""
    ordinary = {"service": "ces", "mode": Mode.ACTIVE, "value": "asleep", "after": "IDLE", "written_at": NOON}
    return AppliedChange(**({"setting": setting, "target": node} | ordinary | columns))


def weighed(node: str, **columns: Any) -> AppliedChange:
    return a_row(node, setting=NodeSetting.WEIGHT, **({"value": "tier 1", "own": "10", "after": "Weight 11"} | columns))


def listed(**columns: Any) -> AppliedChange:
    return a_row("", setting=NodeSetting.KEEP_AWAKE, **({"value": "n1,n2", "own": "n9", "after": "n[1-2,9]"} | columns))


def applied(*rows: AppliedChange) -> AppliedChanges:
    return AppliedChanges(real={row.key: row for row in rows})


def look(
    *nodes: dict[str, Any], at: datetime = NOON, kept: str = "", released: bool = False, **power: Any
) -> NodeObservation:
    return NodeObservation(
        nodes=observed_nodes(a_snapshot(nodes=nodes, taken_at=at)),
        power=replace(POWERING, keep_awake=kept),
        at=at,
        settings=Power(**power),
        released=released,
    )


def seen(*rows: AppliedChange, by: NodeObservation, memory: NodeControllerState | None = None) -> NodeComparison:
    return update_nodes(memory or NodeControllerState(), applied(*rows), by)


# What is remembered, and what a person clears.

FAILURES = tuple(Failure(node=node, at=NOON, what="did not wake") for node in ("n1", "n2"))
REMEMBERED = NodeControllerState(
    looked_at=NOON,
    idle={"n3": NOON},
    slept={"n1": (NOON,), "n2": (NOON,)},
    wakes={"n1": WakeUp(since=NOON, by="Helios"), "n2": WakeUp(since=NOON, by="Slurm")},
    failures=FAILURES,
    quarantined={failure.node: failure for failure in FAILURES},
    protected_at=NOON,
    keep_off={"n1": NOON + DAY, "n2": NOON + DAY},
)


def test_clearing_one_node_leaves_the_other_and_the_protected_mode() -> None:
    assert clear_failed_wakes(REMEMBERED, "n1") == replace(
        REMEMBERED, failures=FAILURES[1:], quarantined={"n2": FAILURES[1]}, keep_off={"n2": NOON + DAY}
    )


def test_clearing_all_nodes_ends_protected_mode_and_keeps_sleeps_and_wakes() -> None:
    assert clear_failed_wakes(REMEMBERED) == replace(
        REMEMBERED, failures=(), quarantined={}, protected_at=None, keep_off={}
    )


def test_sleeps_failures_and_nodes_kept_off_are_remembered_for_a_day() -> None:
    assert REMEMBERED.without_old_entries(NOON + DAY - SECOND) == REMEMBERED
    assert REMEMBERED.without_old_entries(NOON + DAY) == replace(REMEMBERED, slept={}, failures=(), keep_off={})


def test_of_the_sleeps_of_a_node_only_the_old_are_forgotten() -> None:
    memory = NodeControllerState(slept={"n1": (NOON, NOON + HOUR)})
    assert memory.without_old_entries(NOON + DAY).slept == {"n1": (NOON + HOUR,)}


def test_a_sleep_is_counted_once_and_a_wake_keeps_its_first_time() -> None:
    memory = NodeControllerState().with_slept("n1", NOON).with_slept("n1", NOON).with_slept("n1", NOON + HOUR)
    assert memory.with_slept("n2", NOON).slept == {"n1": (NOON, NOON + HOUR), "n2": (NOON,)}
    first = WakeUp(since=NOON, by="Helios")
    memory = NodeControllerState().with_wake("n1", first).with_wake("n1", WakeUp(since=NOON + HOUR, by="Slurm"))
    assert memory.wakes == {"n1": first}


def test_the_last_failed_wake_allowed_begins_protected_mode_once() -> None:
    settings, later = Power(failures_to_protect=2), replace(FAILURES[1], at=NOON + HOUR)
    memory = NodeControllerState(wakes=REMEMBERED.wakes).with_failure(FAILURES[0], settings)
    assert (set(memory.wakes), set(memory.quarantined), memory.protected_at) == ({"n2"}, {"n1"}, None)
    memory = memory.with_failure(later, settings)
    assert (memory.wakes, set(memory.quarantined), memory.protected_at) == ({}, {"n1", "n2"}, NOON + HOUR)
    assert memory.with_failure(replace(later, at=NOON + DAY), settings).protected_at == NOON + HOUR


def test_protected_mode_names_its_nodes_once_with_their_clearing() -> None:
    twice = replace(REMEMBERED, failures=(FAILURES[1], *FAILURES))
    assert "since 2026-01-05 12:00 UTC" in twice.protected
    assert "(n1, n2)" in twice.protected
    assert "(since cleared)" in replace(REMEMBERED, failures=()).protected
    assert replace(REMEMBERED, protected_at=None).protected == ""


# What became of the nodes since the last look.


@pytest.mark.parametrize(("apart", "follows"), [(HOUR, True), (HOUR + SECOND, False), (-SECOND, False)])
def test_a_node_is_idle_since_the_first_of_close_observations(apart: timedelta, follows: bool) -> None:
    memory = NodeControllerState(looked_at=NOON, idle={"n1": NOON - HOUR})
    found = seen(by=look(a_node(name="n1"), a_node(name="n2"), at=NOON + apart), memory=memory).memory
    assert found.idle == {"n1": NOON - HOUR if follows else NOON + apart, "n2": NOON + apart}
    assert found.looked_at == NOON + apart


@pytest.mark.parametrize(("idle_for", "by"), [(0, "somebody"), (1, "Slurm woke it for a job")])
def test_a_node_idle_since_after_its_sleep_had_a_job(idle_for: int, by: str) -> None:
    node = a_node(name="n1", idle_since=NOON + idle_for * SECOND)
    (line,) = seen(a_row(), by=look(node, at=NOON + HOUR)).lines
    assert line.reason.startswith(by)
    assert (line.service, line.mode, line.action, line.target) == ("ces", "active", "Woken", "n1")
    assert (line.before, line.after) == ("IDLE", "awake")


@pytest.mark.parametrize(("after_s", "off"), [(3599, True), (3600, False)])
def test_a_node_woken_by_others_early_is_kept_off_for_a_day(after_s: int, off: bool) -> None:
    at = NOON + after_s * SECOND
    found = seen(a_row(), by=look(a_node(name="n1"), at=at, payback_s=3600)).memory
    assert found.keep_off == ({"n1": at + DAY} if off else {})


@pytest.mark.parametrize(("after_s", "stays"), [(599, True), (600, False)])
def test_a_sleep_that_was_only_meant_is_waited_for_ten_minutes(after_s: int, stays: bool) -> None:
    found = seen(a_row(after=""), by=look(a_node(name="n1"), at=NOON + after_s * SECOND))
    assert (len(found.applied.real), found.lines) == (int(stays), ())


@pytest.mark.parametrize(("after_s", "failed"), [(660, False), (661, True)])
def test_a_wake_fails_a_minute_after_slurms_own_bound(after_s: int, failed: bool) -> None:
    memory = NodeControllerState(wakes={"n1": WakeUp(since=NOON, by="Helios"), "n2": WakeUp(since=NOON, by="Slurm")})
    nodes = (a_node(name="n1", power="waking"), a_node(name="n2"))  # the second one is awake
    found = seen(by=look(*nodes, at=NOON + after_s * SECOND), memory=memory)
    assert set(found.memory.wakes) == (set() if failed else {"n1"})
    assert [line.target for line in found.lines] == ["n1"] * failed
    assert [note.split()[:4] for note in found.notes] == [["tell", "somebody:", "node", "n1"]] * failed
    assert all("did not wake within 600 s: it is waking" in line.outcome for line in found.lines)


@pytest.mark.parametrize(
    ("reason", "failed"), [("ResumeTimeout reached", True), ("Not responding", True), ("", True), ("disk swap", False)]
)
def test_a_sleeper_found_down_without_a_reason_failed_to_wake(reason: str, failed: bool) -> None:
    node = a_node(name="n1", state="DOWN", power=None, reason=reason)
    found = seen(a_row(), by=look(node, at=NOON + HOUR))
    assert set(found.memory.quarantined) == ({"n1"} if failed else set())
    assert [line.action for line in found.lines] == ["FailedWake"] * failed
    assert all(line.reason.startswith("Slurm told it to wake") for line in found.lines)
    why = f"it is DOWN ({reason});" if reason else "it is DOWN;"
    assert all(why in line.outcome for line in found.lines)
    assert found.applied.real == {}


def test_a_list_that_the_cluster_forgot_goes_alone() -> None:
    rows = (a_row(), weighed("n2"), listed())
    nodes = (a_node(name="n1", power="asleep"), a_node(name="n2", weight=11.0))
    found = seen(*rows, by=look(*nodes, kept="n9", at=NOON + HOUR))
    assert found.applied.real.keys() == {row.key for row in rows[:2]}
    assert len(found.notes) == 1 and "keep-awake list" in found.notes[0]


@pytest.mark.parametrize("quiet", [{"after": ""}, {"overridden": True}, {"released": True}])
def test_a_list_unread_foreign_or_released_goes_silently(
    quiet: dict[str, Any],
) -> None:
    released = bool(quiet.get("released"))
    columns = {name: value for name, value in quiet.items() if name != "released"}
    found = seen(listed(**columns), by=look(kept="n9", released=released))
    assert (found.applied.real, found.notes, found.lines) == ({}, (), ())


def test_another_list_is_theirs_and_leaves_what_else_stands() -> None:
    found = seen(listed(), weighed("n2"), by=look(a_node(name="n2", weight=11.0), kept="n5"))
    assert found.applied.real[LIST].overridden
    assert not found.applied.real[weighed("n2").key].overridden
    (line,) = found.lines
    assert (line.action, line.before, line.after) == ("HandsOff", "n[1-2,9]", "n5")


def test_weights_that_the_cluster_forgot_leave_the_record_without_a_word() -> None:
    rows = (weighed("n1"), weighed("n2"), weighed("n3", after=""), weighed("n4", overridden=True), weighed("n5"))
    nodes = [a_node(name=f"n{place}", weight=10.0) for place in range(1, 5)]
    found = seen(*rows, by=look(*nodes, a_node(name="n5", weight=11.0)))
    assert set(found.applied.real) == {weighed("n5").key}
    assert (found.notes, found.lines) == ((), ())


def test_an_unread_or_foreign_weight_is_not_told_as_changed() -> None:
    rows = (weighed("n1", after=""), weighed("n2", overridden=True))
    found = seen(*rows, by=look(*(a_node(name=node, weight=99.0) for node in ("n1", "n2"))))
    assert (found.applied, found.lines, found.notes) == (applied(*rows), (), ())


def test_a_row_of_a_day_ago_is_no_sleep_of_today() -> None:
    asleep = [a_node(name=node, power="asleep") for node in ("n1", "n2")]
    rows = (a_row("n1", written_at=NOON - DAY), a_row("n2", written_at=NOON - DAY + SECOND))
    assert set(seen(*rows, by=look(*asleep)).memory.slept) == {"n2"}


# What guards let through.


def context(
    *nodes: dict[str, Any],
    memory: NodeControllerState | None = None,
    rows: tuple[AppliedChange, ...] = (),
    **columns: Any,
) -> NodeCycleContext:
    """Nodes that were idle at a look a minute ago, with a forecast of now."""
    known = dict(columns)
    power = known.pop("power", {})
    snapshot = a_snapshot(nodes=nodes, power=POWERING, use=a_use(at=known.pop("forecast_at", NOON)))
    idle = {node["name"]: NOON - MINUTE for node in nodes}
    return NodeCycleContext(
        snapshot=snapshot,
        nodes=observed_nodes(snapshot),
        applied=applied(*rows),
        memory=memory or NodeControllerState(looked_at=NOON - MINUTE, idle=idle),
        settings=node_settings(**({"idle_s": 0} | power)),
        **known,
    )


def refusal(action: NodeAction, around: NodeCycleContext) -> str:
    result = apply_node_guards(to_node_changes([action]).changes, context=around, mode=ACTIVE)
    return "".join(outcome.remark for outcome in result.refused)


@pytest.mark.parametrize(("minutes", "fits"), [(60, True), (61, False), (-60, True), (-61, False)])
def test_a_forecast_is_of_this_hour_up_to_an_hour_away(minutes: int, fits: bool) -> None:
    around = context(a_node(name="n1"), forecast_at=NOON + minutes * MINUTE)
    assert ("not of this hour" not in refusal(down("n1")[0], around)) is fits


@pytest.mark.parametrize(("idle_s", "fits"), [(300, True), (299, False)])
def test_a_node_may_sleep_after_the_configured_idle_time(idle_s: int, fits: bool) -> None:
    around = context(a_node(name="n1", idle_since=NOON - idle_s * SECOND), power={"idle_s": 300})
    assert (refusal(down("n1")[0], around) == "") is fits


@pytest.mark.parametrize(("ago", "fits"), [(SECOND, True), (timedelta(0), False)])
def test_a_node_first_seen_idle_at_this_very_look_was_seen_once(ago: timedelta, fits: bool) -> None:
    memory = NodeControllerState(looked_at=NOON - ago, idle={"n1": NOON - ago})
    assert (refusal(down("n1")[0], context(a_node(name="n1"), memory=memory)) == "") is fits


def test_a_node_down_or_out_of_service_is_not_woken() -> None:
    nodes = [
        a_node(name="n1", state="DOWN", power=None),
        a_node(name="n2", power="asleep", flags="MAINT+POWERED_DOWN"),
        a_node(name="n3", power="asleep", flags="DRAIN+POWERED_DOWN", excluded_reason="drained: fan"),
        a_node(name="n4", power="asleep", flags="PLANNED+POWERED_DOWN"),
    ]
    around = context(*nodes)
    told = [refusal(up(f"n{place}")[0], around) for place in range(1, 5)]
    assert told == ["it is DOWN", "it is MAINT", "drained: fan", ""]


def test_a_place_is_kept_for_nodes_that_the_timer_takes() -> None:
    nodes = observed_nodes(a_snapshot(nodes=some_nodes()))
    room = PowerBudget(nodes, Power(most_in_transition=0.3), about_to_fall=["n9", "n10"])
    assert [room.to_sleep(nodes[name])[0] for name in ("n1", "n2")] == [Result.DONE, Result.POSTPONED]
    assert [room.to_revert()[0] for _ in range(3)] == [Result.DONE, Result.DONE, Result.POSTPONED]


@pytest.mark.parametrize("most_in_transition", [0.15, 0.35, 1.0])
@pytest.mark.parametrize("most_asleep", [0.3, 0.7, 1.0])
def test_a_replay_bounds_the_same_nodes_as_a_live_cycle(most_in_transition: float, most_asleep: float) -> None:
    nodes = [*some_nodes(20), a_node(name="n21", features="nvlink"), a_node(name="n22", features="nvlink")]
    settings = node_settings(most_in_transition=most_in_transition, most_asleep=most_asleep, payback_s=0)
    table = NodeTable(cluster=FakeNodes(nodes=nodes), settings=settings)
    for name in ("n1", "n2"):
        table.cluster.admin_powers_down(name)
    table.cluster.drain("n3")
    table.cycle(after=5 * MINUTE)
    actions: list[NodeAction] = [*down(*(f"n{place}" for place in range(4, 23))), *up("n1", "n2")]
    table.cluster.tick(MINUTE)
    observed = observed_nodes(table.cluster.snapshot())
    requested = {"ces": to_node_changes(actions).changes}
    allowed, _ = bound_power_changes(requested, observed, PowerBudget(observed, settings.power))
    live = table.says(*actions, after=timedelta(0))
    assert {change.target for change in allowed["ces"]} == {*live.slept, *live.woken}
    assert live.slept


# What stands, and what a report counts.


def test_an_undo_file_becomes_rows_of_helios_not_read_back() -> None:
    undo = Undo(asleep=("n1",), weights=(("n2", 10),), keep_awake="n9")
    common = {"service": HELIOS, "after": "", "written_at": NOON}
    assert with_undo_records(AppliedChanges(), undo, at=NOON) == applied(
        a_row(**common), weighed("n2", value="unknown", **common), listed(value="unknown", **common)
    )
    assert with_undo_records(applied(a_row()), undo, at=NOON).real[a_row().key] == a_row()
    assert Undo(asleep=("n1",)).rows(at=NOON, service=HELIOS).keys() == {a_row().key}


def test_an_undo_file_reads_back_what_helios_wrote() -> None:
    rows = (a_row("n2"), a_row("n1"), a_row("n3", overridden=True), weighed("n4", own="10.0"), listed())
    assert Undo.of(applied(*rows)) == Undo(asleep=("n1", "n2"), weights=(("n4", 10),), keep_awake="n9")
    assert Undo.of(applied(listed(overridden=True))) == Undo()


def test_an_unseen_change_stays_recorded_and_a_foreign_one_does_not() -> None:
    rows = (a_row("n1"), a_row("n2"), a_row("gone"), a_row("theirs", overridden=True), weighed("n2"))
    snapshot = a_snapshot(nodes=[a_node(name="n1", power="asleep"), a_node(name="n2", weight=10.0)], power=POWERING)
    assert possibly_applied_changes(applied(*rows).real, snapshot).keys() == {a_row("n1").key, a_row("gone").key}


def test_only_what_was_done_counts_as_slept_woken_or_weighed() -> None:
    activity = NodeActivity(memory=NodeControllerState())
    sleep, wake = to_node_changes([*down("n1"), *up("n2")]).changes
    weight = replace(wake, setting=NodeSetting.WEIGHT, target="n3", action="RevertNodes")
    every = (sleep, wake, weight)
    activity.add(
        [change.outcome(result) for change in every for result in Result if result is not Result.DONE], now=NOON
    )
    assert activity.lists() == {"slept": (), "woken": (), "weighed": ()}
    activity.add([change.outcome(Result.DONE) for change in every], now=NOON)
    assert activity.lists() == {"slept": ("n1",), "woken": ("n2",), "weighed": ("n3",)}
    assert activity.memory == NodeControllerState(slept={"n1": (NOON,)}, wakes={"n2": WakeUp(since=NOON, by="Helios")})


def test_a_report_counts_each_power_state_and_nodes_in_service() -> None:
    powers = {"n1": "awake", "n2": "falling asleep", "n3": "asleep", "n4": "asleep", "n5": "waking", "n6": "awake"}
    nodes = [a_node(name=name, power=power) for name, power in powers.items()]
    nodes[0] |= {"gpus_held": 1}
    nodes[5] |= {"flags": "DRAIN"}
    rows = (a_row("n2"), a_row("n3"), a_row("n5"), a_row("gone"), a_row("n4", overridden=True))
    counts = node_cycle_counts(a_snapshot(nodes=nodes), applied(*rows), at=NOON - HOUR, wanted={"gpu": 2.0})
    assert counts["taken_at"] == NOON
    assert counts["asleep_by_helios"] == 2
    assert counts["nodes"] == {
        NodePower.AWAKE: 2, NodePower.FALLING_ASLEEP: 1, NodePower.ASLEEP: 2, NodePower.WAKING: 1,
    }  # fmt: skip
    (tally,) = counts["tallies"].drop(columns="taken_at").to_dict("records")
    assert tally == {
        "pool": "gpu", "total": 5, "busy": 1, "asleep": 2, "falling_asleep": 1, "waking": 1, "by_helios": 2,
        "wanted": 2.0,
    }  # fmt: skip


def test_without_a_snapshot_a_report_has_only_its_time() -> None:
    assert node_cycle_counts(None, applied(a_row()), at=NOON) == {"taken_at": NOON}


def test_the_first_service_about_power_says_which_nodes_stay_awake() -> None:
    nodes = observed_nodes(
        a_snapshot(
            nodes=[
                a_node(name="n1", gpus_held=1),
                a_node(name="n2"),
                a_node(name="n3", power="asleep"),
                a_node(name="n4", power="waking"),
                a_node(name="n5", flags="DRAIN"),
                a_node(name="c1", partitions="cpu"),
            ]
        )
    )
    silent = to_node_changes([])
    sleeping = to_node_changes([*down("n2"), *up("n3")])
    listing = to_node_changes([keep("n3", "n5")])
    assert wanted_awake({}, nodes) == {}
    assert wanted_awake({"b": silent, "c": sleeping}, nodes) == {"gpu": 3.0, "cpu": 1.0}
    assert wanted_awake({"a": sleeping, "b": listing}, nodes) == {"gpu": 3.0, "cpu": 1.0}
    assert wanted_awake({"a": listing, "b": sleeping}, nodes) == {"gpu": 2.0, "cpu": 0.0}
