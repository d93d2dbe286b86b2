"""Doors: what a mode lets through, and what a shadow cannot even reach."""

import gc
from typing import Any

import pytest

from helios.actions import JobSetting, Result, Revert
from helios.control import CanaryCluster, ServiceMode, ShadowCluster, Tolerance, cluster_for_mode
from helios.control.observed import PendingJob, pending_jobs
from helios.model import Mode, Snapshot
from helios.testing import FakeCluster, a_pending_job, a_snapshot
from tests.changes import asked
from tests.unit.control.table import ACTIVE, OFF, SHADOW, canary, order, soft_limit

FINE = Tolerance(urgency=0.005)


def a_job(**columns: Any) -> PendingJob:
    (job,) = pending_jobs(a_snapshot(pending=[a_pending_job(**columns)])).values()
    return job


def jobs_of(numbers: range, **columns: Any) -> list[PendingJob]:
    rows = [a_pending_job(job_id=str(number), **columns) for number in numbers]
    return list(pending_jobs(a_snapshot(pending=rows)).values())


def a_shadow(snapshot: Snapshot, applied: dict[Any, float] | None = None) -> ShadowCluster:
    return ShadowCluster(snapshot=lambda: snapshot, applied=applied or {}, tolerance=FINE)


def a_queue(*job_ids: str, **columns: Any) -> tuple[FakeCluster, Snapshot]:
    cluster = FakeCluster()
    for job_id in job_ids:
        cluster.submit(job_id=job_id, **columns)
    return cluster, cluster.snapshot()


def reachable_from(thing: object) -> list[object]:
    """Everything that ``thing`` holds, however deep; classes, modules and their globals are everybody's."""
    seen: dict[int, object] = {}
    waiting = [thing]
    while waiting:
        for held in gc.get_referents(waiting.pop()):
            if id(held) in seen or held is globals() or issubclass(type(held), (type, type(gc))):
                continue
            seen[id(held)] = held
            waiting.append(held)
    return list(seen.values())


def door(mode: ServiceMode, cluster: FakeCluster, snapshot: Snapshot) -> Any:
    return cluster_for_mode(mode, cluster, read_snapshot=lambda: snapshot, applied={}, tolerance=FINE)


def test_a_shadow_holds_nothing_that_leads_to_the_cluster() -> None:
    cluster, snapshot = a_queue("j1")
    assert not any(held is cluster for held in reachable_from(door(SHADOW, cluster, snapshot)))
    assert any(held is cluster for held in reachable_from(door(canary("gpu"), cluster, snapshot)))


def test_a_shadow_says_what_would_be_and_writes_nothing() -> None:
    cluster, snapshot = a_queue("j1")
    (outcome,) = door(SHADOW, cluster, snapshot).apply(asked([order(j1=0.5)]))
    assert (outcome.result, outcome.before, outcome.after) == (Result.WOULD, "urgency 0", "urgency 0.5")
    assert cluster.writes == 0


def test_a_shadow_remembers_what_would_stand() -> None:
    _, snapshot = a_queue("j1", "j2")
    shadow = a_shadow(snapshot, {(JobSetting.ORDER, "j1"): 0.5, (JobSetting.SOFT_LIMIT, "j1"): 1200.0})
    results = [o.result for o in shadow.apply(asked([order(j1=0.501), soft_limit("j1", minutes=20), order(j2=0.501)]))]
    assert results == [Result.UNCHANGED, Result.UNCHANGED, Result.WOULD]


def test_a_shadow_would_take_back_what_would_stand() -> None:
    _, snapshot = a_queue("j1", "j2")
    shadow = a_shadow(snapshot, {(JobSetting.ORDER, "j1"): 0.5, (JobSetting.ORDER, "j2"): 0.5})
    (outcome,) = shadow.apply(asked([Revert(setting=JobSetting.ORDER, job_ids=("j1",), reason="enough")]))
    assert (outcome.job_id, outcome.result, outcome.after) == ("j1", Result.WOULD, "urgency 0")


def test_a_shadow_refuses_what_the_cluster_would_refuse() -> None:
    _, snapshot = a_queue("j1", excluded_reason="held")
    outcomes = a_shadow(snapshot).apply(asked([order(j1=0.5, j9=0.4)]))
    assert [(o.result, o.remark) for o in outcomes] == [
        (Result.REFUSED, "held"),
        (Result.GONE, "no longer pending"),
    ]


def test_a_service_that_is_off_has_no_cluster() -> None:
    cluster, snapshot = a_queue()
    assert door(OFF, cluster, snapshot) is None


def test_an_active_service_has_the_cluster() -> None:
    cluster, snapshot = a_queue()
    assert door(ACTIVE, cluster, snapshot) is cluster


def test_only_jobs_of_the_canary_reach_the_cluster() -> None:
    cluster = FakeCluster()
    cluster.submit(job_id="j1")
    cluster.submit(job_id="j2", partition="debug")
    snapshot = cluster.snapshot()
    gate = door(canary("debug"), cluster, snapshot)
    assert isinstance(gate, CanaryCluster)
    outcomes = gate.apply(asked([order(j1=0.5), order("debug", j2=0.5), soft_limit("j1", minutes=20)]))
    assert {(o.job_id, o.setting, o.result) for o in outcomes} == {
        ("j1", JobSetting.ORDER, Result.REFUSED),
        ("j1", JobSetting.SOFT_LIMIT, Result.REFUSED),
        ("j2", JobSetting.ORDER, Result.DONE),
    }
    assert all(o.remark == "outside the canary" for o in outcomes if o.result is Result.REFUSED)
    assert (cluster.site_factor_of("j1"), cluster.time_min_of("j1")) == (0, 0)


def test_a_canary_restores_only_its_own() -> None:
    cluster = FakeCluster()
    cluster.submit(job_id="j1", urgency=0.5)
    cluster.submit(job_id="j2", urgency=0.5, partition="debug")
    door(canary("debug"), cluster, cluster.snapshot()).apply(asked([Revert(reason="enough")]))
    assert cluster.urgency_of("j1") > 0
    assert cluster.site_factor_of("j2") == 0


@pytest.mark.parametrize(
    ("partition", "covered"), [("gpu", True), ("debug", False), ("debug,gpu", False), ("gpu,big", True)]
)
def test_a_job_is_in_a_canary_only_with_all_its_partitions(partition: str, covered: bool) -> None:
    assert canary("gpu", "big").covers(a_job(partition=partition)) is covered


def test_a_canary_by_percent_chooses_about_that_share_and_always_the_same() -> None:
    jobs = jobs_of(range(4_000_000, 4_002_000))
    tenth = {job.job_id for job in jobs if canary(percent=10).covers(job)}
    assert 0.08 < len(tenth) / len(jobs) < 0.12
    assert {job.job_id for job in jobs if canary(percent=10).covers(job)} == tenth
    assert tenth < {job.job_id for job in jobs if canary(percent=30).covers(job)}


def test_the_choice_of_a_canary_is_the_same_in_every_release() -> None:
    chosen = [int(job.job_id) for job in jobs_of(range(100)) if canary(percent=10).covers(job)]
    assert chosen == [2, 4, 9, 36, 52, 64, 69, 71, 87]


def test_an_array_is_in_a_canary_as_a_whole() -> None:
    covered = {canary(percent=50).covers(job) for job in jobs_of(range(100), array_job_id="77")}
    assert len(covered) == 1


def test_a_canary_needs_both_partition_and_percent_where_both_are_given() -> None:
    both = canary("gpu", percent=50)
    assert not any(both.covers(job) for job in jobs_of(range(50), partition="debug"))
    assert 0 < sum(both.covers(job) for job in jobs_of(range(50))) < 50


def test_a_canary_that_nobody_narrowed_covers_nothing() -> None:
    assert not ServiceMode(mode=Mode.CANARY).covers(a_job())


@pytest.mark.parametrize("percent", [0, 101, -5])
def test_a_percentage_outside_of_1_to_100_is_refused(percent: int) -> None:
    with pytest.raises(ValueError, match="1 to 100"):
        canary(percent=percent)


def test_a_canary_restores_none_that_is_named_but_not_its_own() -> None:
    cluster = FakeCluster()
    for job_id, partition in (("j1", "gpu"), ("j2", "debug")):
        cluster.submit(job_id=job_id, partition=partition, urgency=0.5)
    named = Revert(job_ids=("j1", "j2"), reason="enough")
    door(canary("debug"), cluster, cluster.snapshot()).apply(asked([named]))
    assert (cluster.urgency_of("j1") > 0, cluster.urgency_of("j2")) == (True, 0)
