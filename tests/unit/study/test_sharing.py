"""What sharing GPUs would have saved, on a made site whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.whatif import WhatIfRequest
from helios.errors import NotEnoughHistory
from helios.model import JOB_USE
from helios.study.sharing import SharingReport, SharingRequest, find_sharing
from tests.builders import jobs_frame
from tests.unit.study.worlds import MIDNIGHT, job

HOUR, DAY = 3600, 86_400
GPU_MIB = 40_000.0
DAYS = 12


def site(**measured: Any) -> tuple[LoadedHistory, pd.DataFrame]:
    """Return four small jobs at once each two hours, a large one beside them, and what they used."""
    rows, use = [], []
    for start in range(0, DAYS * DAY, 2 * HOUR):
        for number in range(4):
            rows.append(job(start, start + number, start + HOUR, user=f"small{number}"))
            use.append({"utilization": 20.0, "gpu_memory_peak_mib": 9_000.0, "is_interactive": 0.0} | measured)
        rows.append(job(start, start, start + HOUR, gpus=2, user="large"))
        use.append({"utilization": 90.0, "gpu_memory_peak_mib": 39_000.0, "is_interactive": 0.0})
    jobs = jobs_frame(*rows)
    frame = pd.DataFrame(use).assign(
        submitted_at=jobs["submitted_at"],
        job_id=jobs["job_id"],
        restart=0,
        source="jobstats",
        quality="ok",
        busy_means="a kernel ran",
        gpu_memory_total_mib=GPU_MIB,
    )
    return LoadedHistory(cluster="tiny", jobs=jobs, timezone="UTC"), JOB_USE.conform(frame)


def request(**values: Any) -> SharingRequest:
    """Return the last days of the site on a node."""
    replay = WhatIfRequest(since=MIDNIGHT + pd.Timedelta(days=4), nodes={"all": 1}, gpus_per_node=8)
    return SharingRequest(replay=replay, draws=0, **values)


@pytest.fixture(scope="module")
def report() -> SharingReport:
    return find_sharing(*site(), request())


def test_two_and_four_to_a_gpu_save_a_half_and_three_quarters(report: SharingReport) -> None:
    two, four = report.cases[:2]
    assert two.of_one_gpu.value == pytest.approx(1 / 2, abs=0.01)
    assert four.of_one_gpu.value == pytest.approx(3 / 4, abs=0.01)
    assert two.of_all.value == pytest.approx(1 / 3, abs=0.01)  # the others hold half as many hours
    assert (two.overflow, two.slowdown and two.slowdown["by_use"]) == (0.0, 1.0)
    assert two.saved_by_slowdown is not None
    assert two.saved_by_slowdown["harsh"] < two.saved_by_slowdown["mild"] < two.saved_hours


def test_report_says_first_what_was_not_measured_then_who_measured() -> None:
    loaded, use = site()
    found = find_sharing(loaded, use.iloc[::2].reset_index(drop=True), request())
    assert found.sentences[0].startswith("50 % of the hours of one-GPU jobs were not measured")
    assert "jobstats (busy: a kernel ran)" in found.sentences[1]


def test_memory_that_grows_without_warning_overflows() -> None:
    loaded, use = site()
    late = (use["submitted_at"] >= MIDNIGHT + pd.Timedelta(days=11)) & (use["gpu_memory_peak_mib"] < 20_000)
    use.loc[late, "gpu_memory_peak_mib"] = 30_000.0
    two = find_sharing(loaded, use, request()).cases[0]
    assert two.overflow is not None
    assert 0 < two.overflow < 1 / 4


def test_wait_is_shorter_where_shared_gpus_leave_room_for_others() -> None:
    loaded, use = site()
    asked = request()
    asked = replace(asked, replay=replace(asked.replay, gpus_per_node=4))
    two = find_sharing(loaded, use, asked).cases[0]
    assert two.less_wait_s is not None
    assert two.less_wait_s > 60


def test_idle_sessions_are_shown_beside_sharing() -> None:
    loaded, use = site()
    small = use["utilization"] < 50
    idle = use.assign(is_interactive=small.astype(float), longest_idle_s=np.where(small, HOUR, 0.0))
    case = find_sharing(loaded, idle, request(timeout_s=HOUR / 2)).cases[2]
    assert case.of_one_gpu.value == pytest.approx(1 / 2, abs=0.01)
    assert find_sharing(loaded, use, request(timeout_s=HOUR / 2)).cases[2].saved_hours == 0
    unknown = find_sharing(loaded, use.assign(is_interactive=np.nan), request())
    assert unknown.cases[2].saved_hours is None
    assert "it is not known whether they were of an interactive" in " ".join(unknown.sentences)


def test_nothing_is_said_without_memory_or_the_size_of_a_gpu() -> None:
    loaded, use = site()
    with pytest.raises(NotEnoughHistory, match="No memory of GPUs was measured"):
        find_sharing(loaded, use.assign(gpu_memory_peak_mib=np.nan), request())
    without_size = use.assign(gpu_memory_total_mib=np.nan)
    with pytest.raises(NotEnoughHistory, match="how much memory a GPU has"):
        find_sharing(loaded, without_size, request())
    given = find_sharing(loaded, without_size, request(gpu_memory_mib=GPU_MIB))
    assert given.cases[0].of_one_gpu.value == pytest.approx(1 / 2, abs=0.01)
