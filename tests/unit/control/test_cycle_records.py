"""Cycles as a whole: every line of the audit, every row of the book and every field of the report, told once each.

Only what a person reads for itself (reasons, remarks) is asked to be there and not to be worded so.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.actions import JobSetting, Result
from helios.control import CycleReport, release
from helios.control.observed import Tolerance
from helios.errors import ClusterUnavailable, WarehouseUnavailable
from tests.unit.control.table import (
    SHADOW,
    Says,
    Table,
    active,
    all_is_well,
    canary,
    order,
    settings,
    soft_limit,
)

Row = tuple[str | None, ...]


def rows(report: CycleReport) -> list[Row]:
    """Service, mode, action, target, result, before, after and model of every line; each has a reason."""
    assert (report.decisions["reason"].str.len() > 3).all()
    assert (report.decisions["decided_at"].diff().dropna() == pd.Timedelta(0)).all()
    columns = ["service", "mode", "action", "target", "outcome", "before", "after", "model_id"]
    told = report.decisions[columns].astype(object)
    lines = told.where(told.notna(), None).to_dict("records")
    return [tuple((line | {"outcome": line["outcome"].split(":")[0]}).values()) for line in lines]


def applied_changes_of(table: Table) -> set[tuple[Any, ...]]:
    frame = table.ledger.applied_changes()
    columns = ["service", "mode", "setting", "job_id", "value", "after"]
    return set(frame[columns].astype(object).itertuples(index=False, name=None))


class Day:
    """Three services at one table: an active one, a canary of a partition, and a shadow."""

    def __init__(self) -> None:
        self.table = Table(settings=settings(slurm={"writes_per_cycle": 4}))
        self.table.submit("j1", "j2", "j3", user="alice")
        self.table.submit("j4", user="bob", tasks=3, gpus=2)
        self.table.submit("j5", user="bob", partition="debug")
        self.table.submit("r1", gpus=4)
        self.table.cluster.start("r1")
        self.table.cluster.hold("j3")
        self.active = Says(order(j1=0.5, j3=0.4, j4=0.6))
        self.canary = Says(order("debug", j5=0.5), order(j2=0.3))
        self.shadow = Says(soft_limit("j2", minutes=20))

    def cycle(self) -> CycleReport:
        return self.table.cycle(
            active(self.active, name="qssf"),
            active(self.canary, name="node_fill_order", mode=canary("debug")),
            active(self.shadow, name="soft_limits", mode=SHADOW),
        )

    def memory(self) -> dict[str, Any]:
        memory: dict[str, Any] = json.loads(self.table.memory.to_json())
        return memory | {"said": {service: len(digests) for service, digests in memory["said"].items()}}


@pytest.fixture
def day() -> Day:
    return Day()


def test_a_first_cycle_says_what_is_refused_meant_done_and_only_seen(day: Day) -> None:
    report = day.cycle()
    plain = report.decisions["outcome"][~report.decisions["outcome"].str.startswith("refused")]
    assert set(plain) == {"meant", "done", "would"}  # and nothing more is to be said of them
    assert rows(report) == [
        ("qssf", "active", "Reorder", "j3", "refused", None, None, "m1"),
        ("qssf", "active", "Cycle", "venus", "meant", None, None, None),
        ("node_fill_order", "canary", "Cycle", "venus", "meant", None, None, None),
        ("qssf", "active", "Reorder", "j4", "done", "SiteFactor 0", "SiteFactor 5937", "m1"),
        ("qssf", "active", "Reorder", "j1", "done", "SiteFactor 0", "SiteFactor 5037", "m1"),
        ("node_fill_order", "canary", "Reorder", "j5", "done", "SiteFactor 0", "SiteFactor 5037", "m1"),
        ("soft_limits", "shadow", "SoftLimit", "j2", "would", "no soft limit", "soft limit 20 min", "m1"),
    ]
    meant = report.decisions.query("outcome == 'meant'")["reason"]
    assert [word for reason in meant for word in reason.split() if word.isdigit()] == ["2", "1"]
    assert len(day.table.lines()) == 7
    assert applied_changes_of(day.table) == {
        ("qssf", "active", "order", "j4", 0.6, "SiteFactor 5937"),
        ("qssf", "active", "order", "j1", 0.5, "SiteFactor 5037"),
        ("node_fill_order", "canary", "order", "j5", 0.5, "SiteFactor 5037"),
        ("soft_limits", "shadow", "soft_limit", "j2", 1200.0, "soft limit 20 min"),
    }


def test_a_first_cycle_reports_all_that_it_saw_and_did(day: Day) -> None:
    report = day.cycle()
    assert (report.acted, report.suspended, report.remaining, report.notes) == (3, (), (), ())
    assert (report.seen, report.recorded, report.leads, report.clean) == (True, True, True, True)
    assert (report.pending, report.running, report.gpus_pending, report.gpus_running) == (7, 1, 10, 4)
    assert report.taken_at == day.table.cluster.now
    assert report.counts == {
        "qssf": {Result.REFUSED: 1, Result.DONE: 2},
        "node_fill_order": {Result.REFUSED: 1, Result.DONE: 1},
        "soft_limits": {Result.WOULD: 1},
    }
    at = day.table.cluster.now.isoformat()
    assert day.memory() == {
        "asked_at": {"qssf": at, "node_fill_order": at, "soft_limits": at},
        "breaker": {"bad_in_row": 0, "opened_at": None},
        "suspension": {},
        "controller": "ctl1",
        "pending": 5,
        "nodes": 1,
        "suspended": [],
        "said": {"qssf": 1, "node_fill_order": 0, "soft_limits": 0},
    }


def test_a_cycle_that_finds_all_as_asked_says_nothing_and_counts_it(day: Day) -> None:
    day.cycle()
    before = applied_changes_of(day.table)
    report = day.cycle()
    assert (rows(report), report.acted, report.recorded) == ([], 0, True)
    assert report.counts == {
        "qssf": {Result.REFUSED: 1, Result.UNCHANGED: 2},
        "node_fill_order": {Result.REFUSED: 1, Result.UNCHANGED: 1},
        "soft_limits": {Result.UNCHANGED: 1},
    }
    assert applied_changes_of(day.table) == before


def test_a_dropped_change_is_reverted_in_the_name_of_helios(day: Day) -> None:
    day.cycle()
    day.active.actions, day.shadow.actions = [order(j2=0.9)], []
    report = day.cycle()
    assert rows(report) == [
        ("qssf", "active", "Cycle", "venus", "meant", None, None, None),
        ("helios", "active", "Cycle", "venus", "meant", None, None, None),
        ("helios", "active", "Revert", "j4", "done", "SiteFactor 5937", "SiteFactor 0", "m1"),
        ("helios", "active", "Revert", "j1", "done", "SiteFactor 5037", "SiteFactor 0", "m1"),
        ("qssf", "active", "Reorder", "j2", "done", "SiteFactor 0", "SiteFactor 8937", "m1"),
        ("soft_limits", "shadow", "Revert", "j2", "would", "soft limit 20 min", "no soft limit", "m1"),
    ]
    restores = report.decisions.query("action == 'Revert'")["reason"].tolist()
    assert [reason.split()[1] for reason in restores] == ["qssf", "qssf", "soft_limits"]
    assert "2" in report.decisions["reason"][1]
    assert report.counts["helios"] == {Result.DONE: 2}
    assert applied_changes_of(day.table) == {
        ("node_fill_order", "canary", "order", "j5", 0.5, "SiteFactor 5037"),
        ("qssf", "active", "order", "j2", 0.9, "SiteFactor 8937"),
    }


def test_a_failed_service_has_an_audit_line_and_keeps_its_values(day: Day) -> None:
    day.cycle()
    before = applied_changes_of(day.table)
    day.canary.raises = RuntimeError("no   luck")
    report = day.cycle()
    assert rows(report) == [("node_fill_order", "canary", "Cycle", "venus", "failed", None, None, None)]
    assert report.decisions["outcome"].tolist() == ["failed: RuntimeError: no luck"]
    assert report.counts["node_fill_order"] == {Result.FAILED: 1}
    at = day.table.cluster.now.isoformat()
    assert day.memory()["suspension"] == {
        "node_fill_order": {"in_row": 1, "last_at": at, "what": "RuntimeError: no luck"}
    }
    assert day.memory()["asked_at"]["node_fill_order"] == at
    assert applied_changes_of(day.table) == before
    day.canary.raises = None
    day.cycle()
    assert day.memory()["suspension"] == {}


def test_what_somebody_changes_is_set_again_once_and_then_theirs(day: Day) -> None:
    day.cycle()
    day.table.cluster.admin_sets_site_factor("j1", 0)
    again = day.cycle()
    assert rows(again) == [
        ("qssf", "active", "Cycle", "venus", "meant", None, None, None),
        ("qssf", "active", "Reorder", "j1", "done", "SiteFactor 0", "SiteFactor 5037", "m1"),
    ]
    assert "urgency 0" in again.decisions["reason"][1]
    assert ("qssf", "active", "order", "j1", 0.5, "SiteFactor 5037 (set again)") in applied_changes_of(day.table)
    day.table.cluster.admin_sets_site_factor("j1", 0)
    theirs = day.cycle()
    assert rows(theirs) == [
        ("helios", "active", "HandsOff", "j1", "refused", "SiteFactor 5037 (set again)", "urgency 0", None),
        ("qssf", "active", "Reorder", "j1", "refused", None, None, "m1"),
    ]
    assert "order" in theirs.decisions["outcome"][0]
    assert "qssf" in theirs.decisions["reason"][0]
    assert (theirs.acted, day.table.cluster.site_factor_of("j1")) == (0, 0)
    assert rows(day.cycle()) == []


def test_stillness_is_written_down_once_and_said_in_every_report(day: Day) -> None:
    day.cycle()
    before = applied_changes_of(day.table)
    day.table.world = lambda now: replace(all_is_well(now), clock_skew_s=None)
    first, second = day.cycle(), day.cycle()
    assert rows(first) == [("helios", "off", "Cycle", "venus", "nothing was done", None, None, None)]
    assert rows(second) == []
    assert first.suspended == second.suspended
    assert [reason.split()[0] for reason in first.suspended] == ["the", "3"]  # what stands is said too
    assert (first.seen, first.leads, first.acted, first.counts) == (True, True, 0, {})
    assert applied_changes_of(day.table) == before
    assert day.memory()["suspended"] == [first.suspended[0]]
    day.table.world = all_is_well
    day.cycle()
    assert day.memory()["suspended"] == []


def test_a_pause_reverts_everything_and_says_so_once(day: Day) -> None:
    day.cycle()
    day.table.world = lambda now: replace(all_is_well(now), paused="enough")
    report = day.cycle()
    assert sorted(rows(report), key=str) == [
        ("helios", "paused", "Cycle", "venus", "done", None, None, None),
        ("helios", "paused", "Revert", "j1", "done", "SiteFactor 5037", "SiteFactor 0", None),
        ("helios", "paused", "Revert", "j4", "done", "SiteFactor 5937", "SiteFactor 0", None),
        ("helios", "paused", "Revert", "j5", "done", "SiteFactor 5037", "SiteFactor 0", None),
    ]
    assert set(report.decisions["reason"]) == {"enough"}
    assert (report.acted, report.counts) == (3, {"helios": {Result.DONE: 3}})
    assert report.suspended == ("paused: enough",)
    assert (report.remaining, report.clean, len(report.notes)) == ((), True, 1)
    assert applied_changes_of(day.table) == set()
    later = day.cycle()
    assert (rows(later), later.acted, later.suspended) == ([], 0, ("paused: enough",))


def test_a_cluster_that_cannot_be_seen_is_said_with_no_figures(day: Day) -> None:
    day.cycle()
    day.table.cluster.fail_next()
    report = day.cycle()
    assert (report.seen, report.leads, report.recorded) == (False, True, True)
    assert (report.pending, report.running, report.gpus_pending, report.gpus_running) == (0, 0, 0, 0)
    assert rows(report) == [("helios", "off", "Cycle", "", "nothing was done", None, None, None)]
    assert report.taken_at == day.table.cluster.now


def test_a_standby_saw_what_it_was_to_see_and_writes_nothing(day: Day) -> None:
    day.table.ledger.acquire(holder="helios-2", now=day.table.cluster.now, lasts=timedelta(hours=1))
    report = day.cycle()
    assert (report.seen, report.leads, report.acted, rows(report)) == (True, False, 0, [])
    assert len(report.suspended) == 1
    assert day.table.lines() == []


def test_changes_over_the_budget_wait_with_the_largest_first(day: Day) -> None:
    day.table.settings = settings(slurm={"writes_per_cycle": 2})
    report = day.cycle()
    assert {job for job in ("j1", "j4", "j5") if day.table.cluster.site_factor_of(job)} == {"j1", "j4"}
    assert report.counts["node_fill_order"] == {Result.REFUSED: 1, Result.POSTPONED: 1}
    assert [note.split()[0] for note in report.notes] == ["1"]
    assert day.cycle().acted == 1
    assert day.table.cluster.site_factor_of("j5") > 0


def test_a_revert_over_the_budget_goes_on_before_anything_new(day: Day) -> None:
    day.cycle()
    day.table.settings = settings(slurm={"writes_per_cycle": 1})
    day.active.actions = [order(j2=0.9)]
    first = day.cycle()
    assert [row[2:5] for row in rows(first)] == [("Cycle", "venus", "meant"), ("Revert", "j4", "done")]
    assert (first.acted, first.counts["qssf"]) == (1, {Result.POSTPONED: 1})
    second = day.cycle()
    assert [row[2:5] for row in rows(second)] == [("Cycle", "venus", "meant"), ("Revert", "j1", "done")]
    third = day.cycle()
    assert [row[2:5] for row in rows(third)] == [("Cycle", "venus", "meant"), ("Reorder", "j2", "done")]


def test_a_former_shadow_begins_with_an_empty_record(day: Day) -> None:
    day.cycle()
    report = day.table.cycle(active(day.shadow, name="soft_limits"))
    assert ("soft_limits", "active", "SoftLimit", "j2", "done") in [row[:5] for row in rows(report)]
    assert {row[:4] for row in applied_changes_of(day.table)} == {("soft_limits", "active", "soft_limit", "j2")}


def test_what_a_shadow_would_do_is_not_recorded_as_applied(day: Day) -> None:
    day.shadow.actions = [order(j1=0.2, j2=0.7)]  # another service has the setting of j1 in earnest
    report = day.cycle()
    assert day.table.cluster.site_factor_of("j2") == 0
    assert day.table.applied("shadow") == {"j1": 0.2, "j2": 0.7}
    assert day.table.applied() == {"j1": 0.5, "j4": 0.6}
    assert report.acted == 3
    assert rows(day.cycle()) == []


def test_a_write_that_reads_back_otherwise_counts_for_the_breaker(day: Day) -> None:
    day.table.cluster.swallow_writes(times=1)
    report = day.cycle()
    (line,) = [row for row in rows(report) if row[4] == "mismatch"]
    assert line[:4] == ("qssf", "active", "Reorder", "j4")
    assert day.memory()["breaker"] == {"bad_in_row": 1, "opened_at": None}
    assert report.acted == 2


@pytest.mark.parametrize("step", ["acquire", "applied_changes", "expectation"])
def test_a_failure_before_the_first_write_suspends_the_cycle(day: Day, step: str) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise WarehouseUnavailable("no database")

    if step == "expectation":
        day.table.expectation = fails
    else:
        setattr(day.table.ledger, step, fails)
    report = day.cycle()
    assert (report.acted, report.leads, report.counts) == (0, step != "acquire", {})
    assert any(reason.endswith("no database") and len(reason) > 20 for reason in report.suspended)
    assert day.table.cluster.applied == []


def test_conditions_that_fail_are_the_reason_of_a_suspended_cycle(day: Day) -> None:
    def fails(_: object) -> Any:
        raise ClusterUnavailable("no clock")

    day.table.world = fails
    report = day.cycle()
    assert (report.acted, report.seen, report.leads) == (0, True, True)
    assert report.suspended[0].endswith("no clock")
    assert rows(report) == [("helios", "off", "Cycle", "venus", "nothing was done", None, None, None)]


def test_a_shadow_that_is_not_due_keeps_what_it_would_have_set(day: Day) -> None:
    day.shadow.every = timedelta(hours=1)
    day.cycle()
    assert rows(day.cycle()) == []
    assert day.table.applied("shadow") == {"j2": 1200.0}


def test_a_shadow_tells_a_dropped_change_from_an_unknown_value(day: Day) -> None:
    day.cycle()
    day.shadow.actions = []
    (ends,) = day.cycle().decisions["reason"]
    assert "no longer asks" in ends


def test_an_unwanted_value_of_the_hook_is_taken_back_with_a_reason() -> None:
    table = Table()
    table.submit("j1", "j2", urgency=0.5)
    report = table.cycle(active(Says(order(j1=0.5))))
    assert [row[:5] for row in rows(report)] == [
        ("helios", "active", "Cycle", "venus", "meant"),
        ("helios", "active", "Revert", "j2", "done"),
    ]
    assert report.acted == 1


def test_a_release_reports_what_it_saw_and_did(day: Day) -> None:
    day.cycle()
    day.table.cluster.unhold("j3")
    cluster, ledger = day.table.cluster, day.table.ledger
    report = release(cluster=cluster, ledger=ledger, now=cluster.now, holder=day.table.holder, reason="enough")
    assert (report.pending, report.running, report.gpus_pending, report.gpus_running) == (7, 1, 10, 4)
    assert (report.acted, report.seen, report.recorded, report.clean) == (3, True, True, True)
    assert report.taken_at == cluster.now
    assert [row[:2] for row in rows(report)] == [("helios", "paused")] * 4
    assert (set(report.decisions["reason"]), applied_changes_of(day.table)) == ({"enough"}, set())


@pytest.mark.parametrize("read", [0, 1])
def test_a_soft_limit_equals_one_up_to_a_minute_step_above(read: int) -> None:
    tolerance = Tolerance.of(settings().slurm)
    asked = 1200.0
    step = tolerance.soft_limit_s
    assert tolerance.same(JobSetting.SOFT_LIMIT, asked=asked, read=asked + read * (step - 1))
    assert not tolerance.same(JobSetting.SOFT_LIMIT, asked=asked, read=asked + step)
    assert not tolerance.same(JobSetting.SOFT_LIMIT, asked=asked, read=asked - 1)


@pytest.mark.parametrize("percent", [1, 100])
def test_a_canary_may_be_any_share_from_one_to_all(percent: int) -> None:
    assert canary(percent=percent).percent == percent
    with pytest.raises(ValueError, match=r"\d"):
        canary(percent=percent - 1 if percent == 1 else percent + 1)
