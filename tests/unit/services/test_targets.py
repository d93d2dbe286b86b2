"""Jobs with targets: their order, which puts nobody else back, and who yields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helios.actions import Reorder, Yield
from helios.changes import to_job_changes
from helios.model import Snapshot
from helios.model.targets import TargetJob, read_note
from helios.services.targets import LEAST_URGENT, UNKNOWN_NEED, JobTargets, JobTargetsOptions
from helios.testing import a_pending_job, a_snapshot, check_service

TARGET = "helios:target=acc>=0.9,0.99;yield=USR2"


def a_target(job_id: str, progress: str = "", **fields: Any) -> TargetJob:
    job = TargetJob(job_id=job_id, user="alice", partition="gpu", reason="Resources", note=read_note(TARGET + progress))
    return replace(job, **fields)


def running(job_id: str, progress: str, **fields: Any) -> TargetJob:
    return a_target(job_id, progress, state="RUNNING", reason="", **({"started_s": int(job_id)} | fields))


def a_queue(*targets: TargetJob, **p50_s: float) -> Snapshot:
    """Return a queue of these jobs; ``j7=60`` predicts a minute for job 7."""
    pending = [
        a_pending_job(job_id=job.job_id, gpus=job.gpus, p50_s=p50_s.get(f"j{job.job_id}", float("nan")))
        for job in targets
        if job.state == "PENDING"
    ]
    return replace(a_snapshot(pending=pending), targets=targets)


def decide(snapshot: Snapshot, **options: Any) -> list[Reorder | Yield]:
    return JobTargets(JobTargetsOptions(**options)).decide(snapshot)


def urgencies(snapshot: Snapshot) -> dict[str, float]:
    return {
        place.job_id: place.urgency
        for action in decide(snapshot)
        if isinstance(action, Reorder)
        for place in action.order
    }


def yields(snapshot: Snapshot, **options: Any) -> list[tuple[str, str]]:
    return [(one.job_id, one.for_job) for one in decide(snapshot, **options) if isinstance(one, Yield)]


def test_the_service_is_one() -> None:
    check_service(JobTargets)


def test_jobs_before_their_first_target_come_by_their_need() -> None:
    found = urgencies(a_queue(*(a_target(job) for job in "1234"), j1=60.0, j2=36_000.0, j3=36e6))
    assert found["1"] == 0 and found["3"] == LEAST_URGENT and found["4"] == UNKNOWN_NEED
    assert found["1"] > found["2"] > found["3"]


def test_jobs_past_a_target_step_back_behind_all_before_one() -> None:
    found = urgencies(a_queue(a_target("1"), a_target("2", ";at=0.9"), a_target("3", ";at=0.99"), j1=36e6))
    assert found["1"] > found["2"] > found["3"] == -1


def test_nobody_comes_before_a_neutral_place() -> None:
    found = urgencies(a_queue(*(a_target(str(job), f";at={job / 10}") for job in range(1, 10)), j1=1.0, j2=1e9))
    assert max(found.values()) <= 0


def test_jobs_without_a_target_are_left_as_they_are() -> None:
    changes = to_job_changes(decide(a_queue(a_target("1"))))
    assert (changes.partitions, [change.target for change in changes.changes]) == (frozenset(), ["1"])


def test_a_job_past_its_second_target_yields_first_then_the_one_that_runs_longest() -> None:
    jobs = (running("1", ";at=0.9"), running("2", ";at=0.9"), running("3", ";at=0.99"), a_target("4"))
    assert yields(a_queue(*jobs)) == [("3", "4"), ("1", "4"), ("2", "4")]


@pytest.mark.parametrize(
    "job",
    [
        running("1", ";at=0.8"),
        running("1", ";at=0.9", requeues=False),
        running("1", ";at=0.9", excluded_reason="it is part of an array"),
        running("1", ";at=0.9", partition="debug"),
        running("1", "", note=read_note("helios:target=acc>=0.9;at=0.95")),
    ],
)
def test_other_jobs_are_not_named_to_yield(job: TargetJob) -> None:
    assert yields(a_queue(job, a_target("4"))) == []


def test_yields_can_be_left_out() -> None:
    assert yields(a_queue(running("1", ";at=0.9"), a_target("4")), yields=False) == []
