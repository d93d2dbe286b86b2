"""Where a job lies among alike jobs of its user."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.report.alike import AlikeJobs, compare_alike
from tests.builders import a_job, jobs_frame

AT = pd.Timestamp("2020-06-01", tz="UTC")


def run(number: int, **values: Any) -> dict[str, Any]:
    """Return a job of alice that waited ``number`` minutes and ran ``number`` hours."""
    submitted = AT - timedelta(days=1, minutes=number)
    started = submitted + timedelta(minutes=number)
    times = {"submitted_at": submitted, "started_at": started, "run_time_s": number * 3600.0}
    return a_job(**{"job_id": f"{number}", "user": "alice", "name": f"sweep_{number}", "gpus": 4} | times | values)


def compare(*jobs: dict[str, Any], **values: Any) -> AlikeJobs | None:
    own = jobs_frame(run(0, job_id="own", submitted_at=AT, run_time_s=4.5 * 3600.0, **values)).iloc[0]
    return compare_alike(jobs_frame(*jobs), own, waited_s=150.0)


def test_shares_are_of_the_alike_jobs_that_were_shorter() -> None:
    found = compare(*(run(number) for number in range(1, 11)))
    assert found is not None and found.run_time is not None and found.wait is not None
    assert (found.jobs, found.run_time.shorter, found.wait.shorter) == (10, 4, 2)
    lines = list(found.lines())
    assert lines[0].startswith("It ran longer than 40 % of 10 alike jobs of its user: half of them ran at most 5 h 30")
    assert lines[1].startswith("It waited longer than 20 % of 10 alike jobs")
    assert "'sweep'" in lines[2] and "4 GPUs" in lines[2] and "4 weeks" in lines[2]


@pytest.mark.parametrize(
    "other",
    [{"user": "bob"}, {"user": None}, {"gpus": 8}, {"name": "other"}, {"partition": "x"}, {"job_id": "own"}],
    ids=lambda other: next(iter(other)),
)
def test_jobs_that_differ_do_not_count(other: dict[str, Any]) -> None:
    found = compare(*(run(number) for number in range(1, 6)), run(9, **other))
    assert found is not None and found.jobs == 5


def test_jobs_of_long_ago_do_not_count() -> None:
    found = compare(*(run(number) for number in range(1, 6)), run(9, submitted_at=AT - timedelta(days=29)))
    assert found is not None and found.jobs == 5


def test_few_alike_jobs_are_not_compared() -> None:
    found = compare(*(run(number) for number in range(1, 5)))
    assert found is not None and (found.jobs, found.run_time, list(found.lines())) == (4, None, [])


def test_times_that_are_not_known_are_left_out() -> None:
    jobs = [run(number, run_time_s=None, ended_at=None) for number in range(1, 9)]
    found = compare(*jobs)
    assert found is not None and found.run_time is None and found.wait is not None


def test_a_job_of_an_unknown_user_has_no_alike_ones() -> None:
    assert compare(*(run(number, user=None) for number in range(1, 9)), user=None) is None
