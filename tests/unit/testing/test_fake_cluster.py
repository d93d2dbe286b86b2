"""What authors of services and clusters are given behaves as it says, and its checks find what they look for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Action, JobAction, JobSetting, Outcome, Place, Reorder, Result, Revert, SoftLimit
from helios.changes import EVERY, Change
from helios.errors import ClusterUnavailable, LeaseLost, WarehouseUnavailable
from helios.model import APPLIED_CHANGES, DECISIONS, QUEUE, Snapshot
from helios.services.qssf import Qssf
from helios.services.soft_limits import SoftLimits
from helios.testing import (
    NOON,
    Crash,
    FakeCluster,
    FakeLedger,
    a_node,
    a_pending_job,
    a_running_job,
    a_snapshot,
    check_cluster,
    check_service,
    frame_of,
    situations,
)
from tests.changes import asked
from tests.examples import examples

MINUTE = timedelta(minutes=1)


def an_order(**urgencies: float) -> Reorder:
    places = sorted(urgencies.items(), key=lambda item: -item[1])
    return Reorder(
        partition="gpu",
        order=tuple(Place(job_id=job, urgency=urgency, reason="short") for job, urgency in places),
        reason="shortest first",
    )


def softened(job_id: str, *, minutes: float = 20) -> SoftLimit:
    return SoftLimit(job_id=job_id, run_time=timedelta(minutes=minutes), reason="short")


def results(outcomes: Iterable[Outcome]) -> list[Result]:
    return [outcome.result for outcome in outcomes]


def ask(cluster: FakeCluster, *actions: JobAction, unseen: bool = False) -> list[Result]:
    return results(cluster.apply(asked(actions, unseen=unseen)))


# Builders.


def test_a_snapshot_of_nothing_is_valid() -> None:
    snapshot = a_snapshot(nodes=[])
    assert (len(snapshot.pending), len(snapshot.running), len(snapshot.nodes)) == (0, 0, 0)


def test_a_row_names_only_what_matters() -> None:
    job = a_snapshot(pending=[a_pending_job(gpus=4)]).pending.iloc[0]
    assert (job["gpus"], job["user"], job["urgency"]) == (4, "alice", 0.0)
    assert job["eligible_at"] == job["submitted_at"]


def test_the_jobs_of_a_snapshot_stay_in_the_order_given() -> None:
    rows = [a_pending_job(job_id=job_id) for job_id in ("9", "3", "5")]
    assert list(a_snapshot(pending=rows).pending["job_id"]) == ["9", "3", "5"]


def test_a_median_brings_a_whole_prediction() -> None:
    job = a_snapshot(pending=[a_pending_job(p50_s=600.0)]).pending.iloc[0]
    assert (job["p10_s"], job["p90_s"], job["source"]) == (200.0, 1800.0, "model")


def test_a_job_has_no_prediction_unless_it_is_given_one() -> None:
    assert a_snapshot(pending=[a_pending_job()]).pending[["p10_s", "p50_s", "p90_s", "source"]].isna().all(axis=None)


def test_a_misspelt_column_is_refused() -> None:
    with pytest.raises(TypeError, match=r"gpu_count.*it has"):
        a_pending_job(gpu_count=3)


@pytest.mark.parametrize("value", ["2026-01-05T11:00:00Z", "2026-01-05 12:00+01:00", pd.Timestamp("2026-01-05T11:00")])
def test_times_may_be_given_as_text(value: Any) -> None:
    job = a_snapshot(pending=[a_pending_job(submitted_at=value)]).pending.iloc[0]
    assert job["submitted_at"] == pd.Timestamp("2026-01-05T11:00:00Z")


def test_a_running_job_has_started() -> None:
    job = a_snapshot(running=[a_running_job(eligible_at=None)]).running.iloc[0]
    assert job["state"] == "RUNNING"
    assert job["started_at"] == job["submitted_at"]


def test_a_column_that_only_some_rows_have_is_missing_in_the_others() -> None:
    frame = frame_of(QUEUE, [a_pending_job(excluded_reason="held"), a_pending_job()])
    assert list(frame["excluded_reason"].isna()) == [False, True]


# The fake cluster.


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@settings(max_examples=examples(15))
@given(
    urgency=st.floats(-1, 1),
    most=st.integers(137, 1_000_000),
)
def test_every_site_factor_has_the_mark_and_reads_back_nearly(urgency: float, most: int) -> None:
    cluster = FakeCluster(site_factor_most=most)
    job_id = cluster.submit()
    cluster.apply(asked([an_order(**{job_id: urgency})]))
    factor, steps = cluster.site_factor_of(job_id), (most - 37) // 100
    assert factor == 0 or abs(factor) % 100 == 37
    assert abs(factor) <= most
    assert abs(cluster.urgency_of(job_id) - urgency) <= 0.5 / steps + 1e-9


def test_the_examples_of_the_mark(cluster: FakeCluster) -> None:
    assert [cluster.site_factor(urgency) for urgency in (1, 0.4, -0.25, 0.001, 0)] == [9937, 4037, -2537, 0, 0]


def test_an_urgent_job_stands_first_and_ties_go_by_submission_then_id(cluster: FakeCluster) -> None:
    ids = [cluster.submit(job_id=job_id, submitted_at=NOON) for job_id in ("10", "9", "11")]
    cluster.submit(job_id="1", submitted_at=NOON - MINUTE)
    cluster.apply(asked([an_order(**{ids[2]: 0.5})]))
    assert list(cluster.snapshot().pending["job_id"]) == ["11", "1", "9", "10"]


def test_what_already_is_so_costs_no_write(cluster: FakeCluster) -> None:
    job_id = cluster.submit()
    assert ask(cluster, an_order(**{job_id: 0.5}), softened(job_id)) == [Result.DONE, Result.DONE]
    assert ask(cluster, an_order(**{job_id: 0.5}), softened(job_id)) == [Result.UNCHANGED, Result.UNCHANGED]
    assert cluster.writes == 2


def test_an_outcome_says_what_was_read_before_and_after(cluster: FakeCluster) -> None:
    job_id = cluster.submit()
    order, soft = cluster.apply(asked([an_order(**{job_id: 0.5}), softened(job_id)]))
    assert (order.before, order.after, order.reason) == ("SiteFactor 0", "SiteFactor 5037", "short")
    assert (soft.before, soft.after) == ("TimeMin 0 min", "TimeMin 27 min")


def test_a_job_that_started_or_ended_is_gone(cluster: FakeCluster) -> None:
    started, ended = cluster.submit(), cluster.submit()
    cluster.start(started)
    cluster.end(ended)
    assert ask(cluster, an_order(**{started: 0.5, ended: 0.4, "nobody": 0.3})) == [Result.GONE] * 3
    assert list(cluster.snapshot().running["job_id"]) == [started]


def test_a_requeued_job_waits_again_with_what_was_set(cluster: FakeCluster) -> None:
    job_id = cluster.submit(urgency=0.5)
    cluster.start(job_id)
    cluster.requeue(job_id)
    job = cluster.snapshot().pending.iloc[0]
    assert (job["restart"], job["state"]) == (1, "PENDING")
    assert job["urgency"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("touch", "why"),
    [
        (lambda cluster, job: cluster.hold(job), "held"),
        (lambda cluster, job: cluster.admin_sets_priority(job, 7), "directly"),
        (lambda cluster, job: cluster.admin_sets_site_factor(job, 500), "SiteFactor 500"),
    ],
)
def test_a_job_changed_by_an_admin_is_refused_with_the_reason(
    cluster: FakeCluster, touch: Callable[[FakeCluster, str], None], why: str
) -> None:
    job_id = cluster.submit()
    touch(cluster, job_id)
    assert why in cluster.snapshot().pending["excluded_reason"].iloc[0]
    (outcome,) = cluster.apply(asked([an_order(**{job_id: 0.5})]))
    assert outcome.result is Result.REFUSED
    assert why in outcome.remark
    assert cluster.writes == 0


def test_a_job_whose_hold_ended_may_be_changed_again(cluster: FakeCluster) -> None:
    job_id = cluster.submit()
    cluster.hold(job_id)
    cluster.unhold(job_id)
    assert ask(cluster, an_order(**{job_id: 0.5})) == [Result.DONE]


def test_a_job_that_cannot_start_yet_is_postponed(cluster: FakeCluster) -> None:
    later = cluster.submit(eligible_at=NOON + MINUTE)
    assert ask(cluster, an_order(**{later: 0.5})) == [Result.POSTPONED]
    cluster.tick(MINUTE)
    assert ask(cluster, an_order(**{later: 0.5})) == [Result.DONE]


def test_a_users_own_soft_limit_is_seen_and_left_alone(cluster: FakeCluster) -> None:
    job_id = cluster.submit(user_soft_limit_s=1200.0)
    job = cluster.snapshot().pending.iloc[0]
    assert (job["user_soft_limit_s"], np.isnan(job["soft_limit_s"])) == (1200.0, True)
    assert ask(cluster, softened(job_id), Revert(job_ids=(job_id,), setting=JobSetting.SOFT_LIMIT, reason="stop")) == [
        Result.REFUSED,
        Result.UNCHANGED,
    ]
    assert cluster.time_min_of(job_id) == 20


def test_soft_limits_are_refused_where_the_site_has_them_switched_off() -> None:
    cluster = FakeCluster(soft_limits=False)
    (outcome,) = cluster.apply(asked([softened(cluster.submit())]))
    assert (outcome.result, "time_min_as_soft_limit" in outcome.remark) == (Result.REFUSED, True)


@pytest.mark.parametrize(("minutes", "written"), [(0.01, 7), (7, 7), (7.01, 17), (12, 17), (17, 17), (18, 27)])
def test_a_soft_limit_is_rounded_up_to_minutes_that_end_in_seven(
    cluster: FakeCluster, minutes: float, written: int
) -> None:
    job_id = cluster.submit()
    cluster.apply(asked([softened(job_id, minutes=minutes)]))
    assert cluster.time_min_of(job_id) == written


def test_a_soft_limit_is_not_set_at_or_above_the_time_limit(cluster: FakeCluster) -> None:
    job_id = cluster.submit(time_limit_s=27 * 60.0)
    assert ask(cluster, softened(job_id, minutes=20)) == [Result.REFUSED]


def test_a_restore_takes_back_what_is_ours_and_nothing_else(cluster: FakeCluster) -> None:
    ours, theirs, running = (cluster.submit(urgency=0.5, soft_limit_s=420.0) for _ in range(3))
    cluster.admin_sets_site_factor(theirs, 500)
    cluster.start(running)
    assert ask(cluster, Revert(reason="stop")) == [Result.DONE] * 3
    assert (cluster.site_factor_of(ours), cluster.time_min_of(ours)) == (0, 0)
    assert (cluster.site_factor_of(theirs), cluster.time_min_of(theirs)) == (500, 0)
    assert cluster.site_factor_of(running) != 0


def test_a_restore_leaves_hidden_values_of_held_jobs_unless_asked(cluster: FakeCluster) -> None:
    job_id = cluster.submit(urgency=0.5)
    cluster.hold(job_id)
    assert ask(cluster, Revert(reason="stop")) == [Result.REFUSED]
    assert ask(cluster, Revert(reason="stop"), unseen=True) == [Result.DONE]
    assert cluster.site_factor_of(job_id) == 0


def test_a_restore_leaves_what_an_admin_set_and_says_so(cluster: FakeCluster) -> None:
    theirs, untouched = cluster.submit(), cluster.submit()
    cluster.admin_sets_site_factor(theirs, 500)
    assert ask(cluster, Revert(setting=JobSetting.ORDER, job_ids=(theirs, untouched), reason="stop")) == [
        Result.REFUSED,
        Result.UNCHANGED,
    ]
    assert cluster.site_factor_of(theirs) == 500


def test_a_soft_limit_of_a_job_that_is_gone_is_gone_everywhere() -> None:
    assert ask(FakeCluster(soft_limits=False), softened("nobody")) == [Result.GONE]


def test_a_user_may_alter_a_job(cluster: FakeCluster) -> None:
    job_id = cluster.submit(urgency=0.5)
    cluster.alter(job_id, time_limit_s=60.0, partition="long")
    job = cluster.snapshot().pending.iloc[0]
    assert (job["time_limit_s"], job["partition"], job["urgency"] > 0) == (60.0, "long", True)


def test_a_restore_can_be_of_one_setting_and_of_named_jobs(cluster: FakeCluster) -> None:
    first, second = (cluster.submit(urgency=0.5, soft_limit_s=420.0) for _ in range(2))
    assert ask(cluster, Revert(setting=JobSetting.ORDER, job_ids=(first, "nobody"), reason="stop")) == [
        Result.DONE,
        Result.GONE,
    ]
    assert [cluster.site_factor_of(first), cluster.time_min_of(first)] == [0, 7]
    assert cluster.site_factor_of(second) != 0


def test_writes_beyond_the_budget_are_postponed() -> None:
    cluster = FakeCluster(writes_per_cycle=1)
    order = an_order(**{cluster.submit(): 0.5, cluster.submit(): 0.4})
    assert ask(cluster, order) == [Result.DONE, Result.POSTPONED]
    assert ask(cluster, order) == [Result.UNCHANGED, Result.DONE]


def test_it_fails_as_often_as_it_was_told(cluster: FakeCluster) -> None:
    cluster.fail_next(times=2)
    with pytest.raises(ClusterUnavailable):
        cluster.snapshot()
    with pytest.raises(ClusterUnavailable):
        cluster.apply([])
    assert cluster.snapshot().cluster == "venus"


def test_a_swallowed_write_is_a_mismatch(cluster: FakeCluster) -> None:
    job_id = cluster.submit()
    cluster.swallow_writes()
    (outcome,) = cluster.apply(asked([an_order(**{job_id: 0.5})]))
    assert (outcome.result, outcome.after) == (Result.MISMATCH, "SiteFactor 0")
    assert ask(cluster, an_order(**{job_id: 0.5})) == [Result.DONE]


def test_a_refused_write_fails_for_that_job_alone(cluster: FakeCluster) -> None:
    bad, good = cluster.submit(), cluster.submit()
    cluster.refuse_writes(bad, answer="Invalid user id")
    first, second = cluster.apply(asked([an_order(**{bad: 0.5, good: 0.4})]))
    assert (first.result, first.remark, second.result) == (Result.FAILED, "Invalid user id", Result.DONE)


def test_a_crash_leaves_what_was_written(cluster: FakeCluster) -> None:
    first, second = cluster.submit(), cluster.submit()
    order = an_order(**{first: 0.5, second: 0.4})
    cluster.crash_after(writes=1)
    with pytest.raises(Crash):
        cluster.apply(asked([order]))
    assert (cluster.urgency_of(first) > 0, cluster.urgency_of(second)) == (True, 0)
    assert ask(cluster, order) == [Result.UNCHANGED, Result.DONE]


def test_it_remembers_what_it_was_asked(cluster: FakeCluster) -> None:
    order = an_order(**{cluster.submit(): 0.5})
    cluster.apply(asked([order]))
    cluster.snapshot()
    assert (cluster.applied, cluster.looks, cluster.writes) == ([tuple(asked([order]))], 1, 1)


# The fake ledger.


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


def hold(ledger: FakeLedger, holder: str, at: datetime = NOON) -> int | None:
    return ledger.acquire(holder=holder, now=at, lasts=MINUTE)


def a_decision(target: str = "1") -> pd.DataFrame:
    row = {"decided_at": pd.Timestamp(NOON), "service": "qssf", "mode": "active", "action": "Reorder"}
    return frame_of(DECISIONS, [row | {"target": target, "reason": "short", "outcome": "done"}])


def test_a_lease_is_one_holders_until_it_runs_out(ledger: FakeLedger) -> None:
    assert hold(ledger, "a") == 1
    assert hold(ledger, "b", NOON + MINUTE / 2) is None
    assert hold(ledger, "a", NOON + MINUTE / 2) == 1
    assert hold(ledger, "b", NOON + MINUTE) is None
    assert hold(ledger, "b", NOON + 1.5 * MINUTE) == 2


def test_a_released_lease_is_free_at_once(ledger: FakeLedger) -> None:
    hold(ledger, "a")
    ledger.release(holder="b")
    assert hold(ledger, "b") is None
    ledger.release(holder="a")
    assert hold(ledger, "b") == 2
    assert hold(ledger, "a", NOON + 2 * MINUTE) == 3
    ledger.release(holder="a")
    assert hold(ledger, "a") == 4


def test_a_holder_may_renew_an_expired_lease_nobody_took(ledger: FakeLedger) -> None:
    assert hold(ledger, "a") == hold(ledger, "a", NOON + 5 * MINUTE) == 1


def test_a_holder_whose_lease_was_taken_writes_nothing(ledger: FakeLedger) -> None:
    old = hold(ledger, "a")
    hold(ledger, "b", NOON + 2 * MINUTE)
    assert old is not None
    with pytest.raises(LeaseLost):
        ledger.record(token=old, decisions=a_decision(), applied_changes=APPLIED_CHANGES.empty())
    assert len(ledger.decisions) == 0


def test_decisions_add_up_and_applied_changes_are_replaced(ledger: FakeLedger) -> None:
    token = hold(ledger, "a") or 0
    applied = {
        "setting": "order",
        "job_id": "1",
        "submitted_at": NOON,
        "service": "qssf",
        "mode": "active",
        "overridden": 0,
    }
    ledger.record(token=token, decisions=a_decision("1"), applied_changes=frame_of(APPLIED_CHANGES, [applied]))
    ledger.record(token=token, decisions=a_decision("2"), applied_changes=None)
    assert list(ledger.decisions["target"]) == ["1", "2"]
    assert list(ledger.applied_changes()["job_id"]) == ["1"]
    ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=APPLIED_CHANGES.empty())
    assert (len(ledger.decisions), len(ledger.applied_changes()), ledger.records) == (2, 0, 3)


def test_a_failing_ledger_keeps_nothing(ledger: FakeLedger) -> None:
    token = hold(ledger, "a") or 0
    ledger.fail_next(times=1, after=1)
    assert len(ledger.applied_changes()) == 0
    with pytest.raises(WarehouseUnavailable):
        ledger.record(token=token, decisions=a_decision(), applied_changes=None)
    assert len(ledger.decisions) == 0
    ledger.record(token=token, decisions=a_decision(), applied_changes=None)
    assert len(ledger.decisions) == 1


# Is it a service?


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    pass


class FewestGpusFirst:
    """A service without a flaw; the broken ones below differ from it in one thing each."""

    Options = NoOptions

    def __init__(self, options: Any) -> None:
        self.every = MINUTE

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        for partition, jobs in snapshot.pending.groupby("partition", observed=True):
            places = [
                Place(job_id=job_id, urgency=max(-1.0, 1 - gpus / 64), reason=f"asks for {gpus:g} GPUs")
                for job_id, gpus in jobs.sort_values("gpus", kind="stable")[["job_id", "gpus"]].itertuples(index=False)
            ]
            yield Reorder(partition=str(partition), order=tuple(places), reason="fewest GPUs first")


class WithoutDecide:
    Options = NoOptions
    every = MINUTE


class WithoutOptions(FewestGpusFirst):
    Options = None  # type: ignore[assignment]  # because that is the flaw


class WithMutableOptions(FewestGpusFirst):
    @dataclass
    class Options:  # type: ignore[assignment]  # because that is the flaw
        gpus: int = 1


class WithAnOptionThatNeedsAValue(FewestGpusFirst):
    @dataclass(frozen=True)
    class Options:  # type: ignore[assignment]  # because that is the flaw
        gpus: int


class WithoutEvery(FewestGpusFirst):
    def __init__(self, options: Any) -> None:
        pass


class AsksTheClock(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if time.time() < 0 else super().decide(snapshot)


class AsksTheClockThroughPandas(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if pd.Timestamp.now() is None else super().decide(snapshot)


class AsksTheDate(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if getattr(datetime, "now")().year < 0 else super().decide(snapshot)  # noqa: B009


class AsksChance(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if random.random() < 0 else super().decide(snapshot)


class AsksChanceThroughNumpy(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if np.random.rand() < 0 else super().decide(snapshot)


class ReadsAFile(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [] if not Path(__file__).read_bytes() else super().decide(snapshot)


class ChangesTheSnapshot(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        snapshot.pending["urgency"] = snapshot.pending["urgency"] + 1
        return super().decide(snapshot)


class RemembersJobs(FewestGpusFirst):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._most = 0

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        self._most = max(self._most, len(snapshot.pending))
        return list(super().decide(snapshot))[: self._most % 3]


class CountsItsCalls(FewestGpusFirst):
    calls = count()

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return list(super().decide(snapshot))[: next(self.calls) % 2]


class InventsAJob(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [softened("31337")]


class NamesARunningJob(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [softened(job_id) for job_id in snapshot.running["job_id"]]


class InventsAPartition(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [Reorder(partition="everywhere", order=(), reason="why not")]


class NamesAJobTwice(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [*super().decide(snapshot), *super().decide(snapshot)]


class GivesNoReason(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [
            Reorder(partition=action.partition, order=action.order, reason=" ") for action in super().decide(snapshot)
        ]


class GivesNoReasonForAPlace(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        ids = snapshot.pending.groupby("partition", observed=True)["job_id"]
        return [
            Reorder(partition=str(name), order=(Place(job_id=jobs.iloc[0], urgency=0.1, reason=""),), reason="x")
            for name, jobs in ids
        ]


class ReturnsText(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return ["scancel --all"]  # type: ignore[list-item]  # because that is the flaw


class NeedsAPrediction(FewestGpusFirst):
    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        return [softened(job_id, minutes=int(s)) for job_id, s in snapshot.pending[["job_id", "p50_s"]].to_numpy()]


FLAWS = [
    (WithoutDecide, "decide"),
    (WithoutOptions, "nest one"),
    (WithMutableOptions, "frozen=True"),
    (WithAnOptionThatNeedsAValue, "gpus have no default"),
    (WithoutEvery, "self.every"),
    (AsksTheClock, "snapshot.taken_at|the clock"),
    (AsksTheClockThroughPandas, "decide asks the clock"),
    (AsksTheDate, "datetime.now asks the clock"),
    (AsksChance, "asks chance"),
    (AsksChanceThroughNumpy, "numpy.random asks chance"),
    (ReadsAFile, "asks the disk"),
    (ChangesTheSnapshot, "changed the snapshot"),
    (RemembersJobs, "asked before"),
    (CountsItsCalls, "asked twice it answers differently"),
    (InventsAJob, "31337"),
    (NamesARunningJob, "runs already"),
    (InventsAPartition, "everywhere"),
    (NamesAJobTwice, "2 times"),
    (GivesNoReason, "Reorder has no reason"),
    (GivesNoReasonForAPlace, "place of job"),
    (ReturnsText, "is not an action"),
    (NeedsAPrediction, "raised"),
]


@pytest.mark.parametrize(("flawed", "said"), FLAWS, ids=lambda value: getattr(value, "__name__", None))
def test_a_flawed_service_is_told_its_flaw(flawed: type[Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_service(flawed)


@pytest.mark.parametrize("service", [FewestGpusFirst, Qssf, SoftLimits])
def test_a_service_without_a_flaw_passes(service: type[Any]) -> None:
    check_service(service)


def test_a_service_with_options_of_its_own_passes_as_an_object() -> None:
    check_service(Qssf(Qssf.Options(wait_share=0.25, large_divisor=4.0, levels=3)))


def test_every_situation_has_a_title_and_one_has_five_thousand_jobs() -> None:
    titled = dict(situations())
    assert len(titled["5,000 jobs"].pending) == 5_000
    assert len(titled["a cluster without jobs or nodes"].pending) == 0


# Is it a cluster?


def with_jobs(cluster: FakeCluster) -> FakeCluster:
    for gpus in (1, 2, 4):
        cluster.submit(gpus=gpus)
    cluster.start(cluster.submit())
    cluster.hold(cluster.submit())
    return cluster


class Forgetful(FakeCluster):
    """Reports what it was asked, and writes nothing."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        before = {job_id: job.site_factor for job_id, job in self._jobs.items()}
        outcomes = super().apply(changes)
        for job_id, site_factor in before.items():
            self._jobs[job_id].site_factor = site_factor
        return outcomes


class WritesAlways(FakeCluster):
    """Says DONE to what already was so."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        return [
            Outcome(
                action=o.action,
                setting=o.setting,
                job_id=o.job_id,
                result=Result.DONE if o.result is Result.UNCHANGED else o.result,
                reason=o.reason,
                before=o.before,
                after=o.after,
                remark=o.remark,
            )
            for o in super().apply(changes)
        ]


class TouchesEverybody(FakeCluster):
    """Knows no hands-off."""

    def _excluded_reason(self, job: Any) -> str:
        return "" if self._writes_left else super()._excluded_reason(job)


class Predicts(FakeCluster):
    """Puts predictions where a cluster has none."""

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        return a_snapshot_like(seen, pending=seen.pending.assign(p50_s=1.0))


class Upside(FakeCluster):
    """Takes up for down."""

    def site_factor(self, urgency: float) -> int:
        return super().site_factor(-urgency)


class NeverRestores(FakeCluster):
    """Does not revert soft limits."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        return super().apply(
            [change for change in changes if not change.is_revert or change.setting is JobSetting.ORDER]
        )


class RestoresTooMuch(FakeCluster):
    """Reverts everything, whoever was named."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        return super().apply([replace(change, target=EVERY) if change.is_revert else change for change in changes])


class StopsAtAStranger(FakeCluster):
    """Does nothing at all when one job is gone."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        if any(change.target != EVERY and self._pending(change.target) is None for change in changes):
            self.swallow_writes(times=99)
        return super().apply(changes)


def a_snapshot_like(snapshot: Snapshot, *, pending: pd.DataFrame) -> Snapshot:
    return Snapshot(
        taken_at=snapshot.taken_at,
        cluster=snapshot.cluster,
        pending=pending,
        running=snapshot.running,
        nodes=snapshot.nodes,
    )


def test_the_fake_cluster_keeps_the_promises_of_a_cluster() -> None:
    check_cluster(lambda: with_jobs(FakeCluster()))


def test_a_cluster_without_soft_limits_keeps_them_too() -> None:
    check_cluster(lambda: with_jobs(FakeCluster(soft_limits=False, nodes=[a_node(gpus=2)])))


def test_a_cluster_is_left_as_it_was_found() -> None:
    cluster = with_jobs(FakeCluster())
    check_cluster(lambda: cluster)
    assert not cluster.snapshot().pending["urgency"].any()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Forgetful, "reads back"),
        (WritesAlways, "UNCHANGED"),
        (TouchesEverybody, "hands-off"),
        (Predicts, "no predictions"),
        (Upside, "reads back|priority"),
        (NeverRestores, "no soft limit stands"),
        (RestoresTooMuch, "does not name"),
        (StopsAtAStranger, "does not stop the others"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_cluster_that_breaks_a_promise_is_told_which(broken: type[FakeCluster], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_cluster(lambda: with_jobs(broken()))


def test_a_cluster_without_jobs_cannot_be_checked() -> None:
    with pytest.raises(AssertionError, match="needs three pending jobs"):
        check_cluster(FakeCluster)
