from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.report.admin.sacct_format import ReportTable
from helios.report.admin.usage import held_s, select_jobs, usage_by, wait_s, waiting_at
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.report.admin.frames import DAY, at, predicted, predictions_frame

END = DAY + pd.Timedelta(days=1)


def usage(*jobs: dict[str, Any], group: str = "user", predictions: pd.DataFrame | None = None) -> ReportTable:
    known = predictions_frame() if predictions is None else predictions
    return usage_by(group, jobs_frame(*jobs), predictions=known, since=DAY, until=END, now=END, title="Users")


def row(answer: ReportTable, name: str) -> dict[str, Any]:
    return answer.rows.set_index("group").loc[name].to_dict()


def waited(seconds: int, **overrides: Any) -> dict[str, Any]:
    submitted = overrides.pop("submitted_at", at("08:00"))
    return a_job(submitted_at=submitted, started_at=submitted + pd.Timedelta(seconds=seconds), **overrides)


def test_each_user_has_a_row_and_the_largest_consumer_is_first() -> None:
    answer = usage(
        waited(0, user="alice", gpus=1, run_time_s=3600.0),
        waited(0, user="bob", gpus=8, run_time_s=3600.0),
        waited(0, user="alice", gpus=1, run_time_s=3600.0),
    )
    assert answer.rows["group"].tolist() == ["bob", "alice"]
    assert answer.rows["gpu_hours"].tolist() == [8.0, 2.0]
    assert answer.rows["cpu_hours"].tolist() == [4.0, 8.0]
    assert answer.total is not None and answer.total["jobs"] == 3


def test_on_a_cluster_without_gpus_cpu_hours_are_shown_and_sorted_by() -> None:
    answer = usage(waited(0, user="alice", gpus=0, cpus=1.0), waited(0, user="bob", gpus=0, cpus=64.0))
    assert answer.rows["group"].tolist() == ["bob", "alice"]
    assert "CPUHours" in answer.shown and "GPUHours" not in answer.shown


def test_waits_are_from_eligible_to_start() -> None:
    job = waited(600, eligible_at=at("08:05"))
    assert row(usage(job), "alice")["mean_wait_s"] == 300


def test_quantiles_interpolate_and_the_longest_is_the_longest() -> None:
    found = row(usage(*(waited(seconds) for seconds in (0, 10, 20, 30, 100))), "alice")
    assert found["p50_wait_s"] == 20
    assert found["p95_wait_s"] == pytest.approx(np.quantile([0, 10, 20, 30, 100], 0.95))
    assert (found["mean_wait_s"], found["longest_wait_s"]) == (32, 100)


def test_jobs_that_still_wait_count_only_in_the_longest_wait() -> None:
    pending = a_job(state="PENDING", submitted_at=at("12:00"), started_at=None, ended_at=None, run_time_s=float("nan"))
    found = row(usage(waited(60), pending), "alice")
    assert (found["waiting"], found["mean_wait_s"], found["longest_wait_s"]) == (1, 60, 12 * 3600)


def test_a_job_cancelled_before_it_started_neither_waits_nor_has_a_wait() -> None:
    gone = a_job(
        state="CANCELLED", submitted_at=at("08:00"), started_at=None, ended_at=at("09:00"), run_time_s=float("nan")
    )
    found = row(usage(gone), "alice")
    assert found["waiting"] == 0
    assert np.isnan(found["mean_wait_s"])


def test_a_running_job_counts_its_hours_so_far() -> None:
    job = a_job(
        state="RUNNING",
        submitted_at=at("12:00"),
        started_at=at("22:00"),
        ended_at=None,
        run_time_s=float("nan"),
        gpus=4,
    )
    assert row(usage(job), "alice")["gpu_hours"] == 8.0


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"])
def test_hours_of_failed_jobs_are_lost(state: str) -> None:
    failed = waited(0, state=state, gpus=2, run_time_s=1800.0)
    found = row(usage(failed, waited(0, gpus=2, run_time_s=1800.0)), "alice")
    assert (found["failed_share"], found["lost_gpu_hours"], found["lost_cpu_hours"]) == (0.5, 1.0, 2.0)


def test_a_limit_reached_and_a_cancellation_are_no_failures() -> None:
    found = row(usage(waited(0, state="TIMEOUT"), waited(0, state="CANCELLED")), "alice")
    assert (found["failed_share"], found["timeout_share"], found["lost_gpu_hours"]) == (0.0, 0.5, 0.0)


def test_where_no_state_is_known_no_share_of_failures_is_claimed() -> None:
    assert np.isnan(row(usage(waited(0, state=None)), "alice")["failed_share"])


def test_overestimation_is_the_limit_over_the_run_time_of_completed_jobs() -> None:
    found = usage(
        waited(0, time_limit_s=3600.0, run_time_s=360.0),
        waited(0, time_limit_s=3600.0, run_time_s=1.0, state="FAILED"),
        waited(0, time_limit_s=float("inf"), run_time_s=360.0),
    )
    assert row(found, "alice")["over_asked"] == 10


def test_predictions_are_judged_by_the_first_one_made() -> None:
    job = waited(0, run_time_s=99.0)
    predictions = predictions_frame(
        predicted(job, 10_000, made_at=at("08:02")), predicted(job, 199, made_at=at("08:00"))
    )
    found = row(usage(job, waited(0), predictions=predictions), "alice")
    assert found["predicted"] == 1
    assert found["off_by"] == pytest.approx(2.0)


def test_jobs_without_a_user_are_counted_as_unknown() -> None:
    assert usage(waited(0, user=None)).rows["group"].tolist() == ["(unknown)"]


def test_where_no_start_is_recorded_that_is_said() -> None:
    assert "no wait is known" in usage(a_job(submitted_at=at("08:00"), started_at=None, ended_at=None)).notes[0]


def test_no_job_is_no_error() -> None:
    answer = usage()
    assert answer.rows.empty
    assert answer.empty == "No job was submitted in this window and none held anything in it."


def test_jobs_are_chosen_by_user_account_and_partition_together() -> None:
    jobs = jobs_frame(
        a_job(user="alice", account="lab"), a_job(user="bob", account="lab"), a_job(user="alice", account="hpc")
    )
    assert len(select_jobs(jobs, users=["alice"])) == 2
    assert len(select_jobs(jobs, users=["alice", "bob"], accounts=["lab"])) == 2
    assert len(select_jobs(jobs, partitions=["cpu"])) == 0


@st.composite
def a_history(draw: st.DrawFn) -> list[dict[str, Any]]:
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        submitted = DAY + pd.Timedelta(seconds=draw(st.integers(0, 86_399)))
        started = submitted + pd.Timedelta(seconds=draw(st.integers(0, 90_000)))
        ran = draw(st.integers(0, 50_000))
        job: dict[str, Any] = a_job(
            job_id=str(number + 1),
            user=draw(st.sampled_from(["alice", "bob", None])),
            gpus=draw(st.integers(0, 8)),
            state=draw(st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT"])),
            submitted_at=submitted,
            started_at=started,
            run_time_s=float(ran),
        )
        if draw(st.booleans()) and draw(st.booleans()):
            job |= {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": float("nan")}
        jobs.append(job)
    return jobs


@settings(max_examples=examples(15))
@given(a_history())
def test_figures_are_those_of_a_plain_loop(history: list[dict[str, Any]]) -> None:
    answer = usage(*history)
    for name in {job["user"] for job in history}:
        mine = [job for job in history if job["user"] == name]
        found = row(answer, name or "(unknown)")
        started = [job for job in mine if job["started_at"] is not None and job["started_at"] <= END]
        waits = [(job["started_at"] - job["eligible_at"]).total_seconds() for job in started]
        so_far = [(END - job["eligible_at"]).total_seconds() for job in mine if job not in started]
        ended = [job for job in mine if not np.isnan(job["run_time_s"])]
        assert found["jobs"] == len(mine)
        assert found["waiting"] == len(so_far)
        assert found["longest_wait_s"] == max(waits + so_far)
        ran = [(job, min(job["ended_at"], END) - min(job["started_at"], END)) for job in ended]
        assert found["gpu_hours"] == pytest.approx(sum(job["gpus"] * held.total_seconds() / 3600 for job, held in ran))
        assert found["mean_wait_s"] == pytest.approx(np.mean(waits)) if waits else np.isnan(found["mean_wait_s"])
        failed = [job["state"] == "FAILED" for job in ended]
        assert found["failed_share"] == pytest.approx(np.mean(failed)) if ended else np.isnan(found["failed_share"])


def test_no_wait_is_negative_where_clocks_disagree() -> None:
    assert wait_s(jobs_frame(waited(-3))).tolist() == [0.0]


def test_a_job_that_cannot_start_yet_does_not_wait() -> None:
    later = a_job(state="PENDING", submitted_at=at("08:00"), eligible_at=at("18:00"), started_at=None, ended_at=None)
    jobs = jobs_frame(later)
    assert waiting_at(jobs, at("12:00")).tolist() == [False]
    assert waiting_at(jobs, at("19:00")).tolist() == [True]


def test_a_job_that_never_ran_held_nothing() -> None:
    jobs = jobs_frame(a_job(state="CANCELLED", started_at=None, ended_at=at("09:00"), run_time_s=float("nan")))
    held, worked = held_s(jobs, since=DAY, until=END, now=END)
    assert (held.tolist(), worked.tolist()) == ([0.0], [0.0])
