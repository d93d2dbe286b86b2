import json

import numpy as np
import pandas as pd
import pytest

from helios.report.history import Description, describe
from tests.builders import a_job, jobs_frame


def described(*jobs: dict, timezone: str = "UTC") -> Description:
    return describe(jobs_frame(*jobs), cluster="venus", timezone=timezone)


def test_jobs_users_and_hours_are_counted() -> None:
    description = described(
        a_job(user="ann", gpus=2, run_time_s=3600), a_job(user="bob", gpus=1, run_time_s=1800), a_job(user=None)
    )
    assert (description.jobs, description.users) == (3, 2)
    assert description.resource_hours == pytest.approx(2.5 + 60 / 3600)


def test_shares_of_sizes_and_states_add_up_to_one() -> None:
    description = described(a_job(gpus=1), a_job(gpus=8, state="FAILED"), a_job(gpus=9, state=None))
    assert [row["size"] for row in description.sizes] == ["1", "5-8", "9-16"]
    assert sum(row["share_of_jobs"] for row in description.sizes) == pytest.approx(1)
    assert description.states == pytest.approx({"completed": 1 / 3, "failed": 1 / 3, "unknown": 1 / 3})


def test_the_busiest_user_comes_first() -> None:
    description = described(a_job(user="ann"), a_job(user="bob", gpus=8), a_job(user="ann"))
    assert [row["user"] for row in description.busiest_users] == ["bob", "ann"]
    assert description.busiest_users[0]["share_of_hours"] == pytest.approx(0.8)


def test_the_day_has_the_shape_of_the_cluster_s_own_clock() -> None:
    midnight_there = pd.Timestamp("2020-01-01T16:00:00Z")
    description = described(a_job(submitted_at=midnight_there), timezone="Asia/Shanghai")
    assert np.argmax(description.day_shape) == 0


def test_a_trace_without_gpus_is_measured_in_cpus() -> None:
    assert described(a_job(gpus=0, cpus=4)).resource == "cpus"


def test_what_is_missing_is_counted() -> None:
    description = described(a_job(user=None, started_at=None, ended_at=None), a_job())
    assert description.missing["user"] == 1
    assert description.missing["started_at"] == 1


def test_without_starts_nothing_is_said_of_waits() -> None:
    description = described(a_job(started_at=None, ended_at=None))
    assert description.wait_s == {}
    assert description.busy_by_hour == []


def test_jobs_whose_run_times_are_all_unknown_are_described() -> None:
    assert described(a_job(run_time_s=np.nan, ended_at=None)).run_time_s == {}


def test_a_job_that_runs_for_two_hours_keeps_those_hours_busy() -> None:
    start = pd.Timestamp("2020-01-01T03:00:00Z")
    description = described(a_job(submitted_at=start, started_at=start, run_time_s=7200, gpus=4))
    assert description.busy_by_hour[3:5] == [4, 4]


def test_a_job_waits_from_when_it_could_have_started() -> None:
    submitted = pd.Timestamp("2020-01-01T00:00:00Z")
    able, started = submitted + pd.Timedelta(hours=2), submitted + pd.Timedelta(hours=3)
    description = described(
        a_job(submitted_at=submitted, eligible_at=able, started_at=started),
        a_job(submitted_at=submitted, eligible_at=None, started_at=started),
    )
    assert (description.wait_s["p10"], description.wait_s["max"]) == (pytest.approx(3600 + 720), 3 * 3600)


def test_each_size_has_its_own_mean_wait() -> None:
    submitted = pd.Timestamp("2020-01-01T00:00:00Z")
    later = submitted + pd.Timedelta(hours=1)
    description = described(
        a_job(gpus=1, submitted_at=submitted, started_at=submitted),
        a_job(gpus=8, submitted_at=submitted, started_at=later),
        a_job(gpus=16, submitted_at=submitted, started_at=None, ended_at=None),
    )
    assert [row["mean_wait_s"] for row in description.sizes] == [0, 3600, None]


def test_a_description_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(described(a_job(), a_job(user=None)).to_json(), allow_nan=False))["jobs"] == 2
