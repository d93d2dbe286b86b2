"""Urgency and SiteFactor, soft limit and TimeMin, and who must be left alone."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from helios.actions import JobSetting
from helios.slurm import translate
from helios.slurm.commands import SiteFactor
from helios.slurm.undo_file import JobsUndo, UndoEntry
from tests.unit.slurm.slurm import START, a_raw_job, a_raw_node

NEW, OLD = (25, 11), (22, 5)


def test_the_queue_is_in_slurms_order() -> None:
    jobs = [
        a_raw_job("10", priority=5),
        a_raw_job("9", priority=5),
        a_raw_job("11", priority=5, submitted=START - 1),
        a_raw_job("8", priority=6),
    ]
    assert translate.pending(jobs, {}, most=10_000, release=NEW)["job_id"].tolist() == ["8", "11", "9", "10"]


def test_running_jobs_come_oldest_start_first_and_completing_ones_hold_too() -> None:
    jobs = [
        a_raw_job("1", state="SUSPENDED", started=START + 5),
        a_raw_job("2", state="COMPLETING", started=START + 1),
        a_raw_job("3", state="COMPLETED", started=START),
    ]
    running = translate.running(jobs, release=NEW)
    assert running["job_id"].tolist() == ["2", "1"]
    assert running["state"].tolist() == ["RUNNING", "SUSPENDED"]
    assert running["reason"].tolist() == ["Completing", "Priority"]


def test_a_time_min_is_the_users_unless_helios_could_write_it() -> None:
    jobs = [a_raw_job("1", time_min_s=420.0), a_raw_job("2", time_min_s=1800.0), a_raw_job("3", time_min_s=420.0)]
    undo = having(JobSetting.SOFT_LIMIT, **{"1": 7, "2": 30})
    new = translate.pending(jobs, {}, most=10_000, release=NEW, undo=undo)
    assert new["soft_limit_s"].fillna(0).tolist() == [420, 0, 0]
    assert new["user_soft_limit_s"].fillna(0).tolist() == [0, 1800, 420]
    old = translate.pending(jobs, {}, most=10_000, release=OLD, undo=undo)
    assert old["soft_limit_s"].isna().all()
    assert old["user_soft_limit_s"].fillna(0).tolist() == [420, 1800, 420]


def test_the_urgency_of_a_hidden_or_foreign_site_factor_is_0() -> None:
    jobs = [a_raw_job(job_id) for job_id in "123"]
    factors = {"1": SiteFactor(value=9937), "3": SiteFactor(value=9937)}
    undo = having(JobSetting.ORDER, **{"1": 9937})
    queue = translate.pending(jobs, factors, most=10_000, release=NEW, undo=undo)
    assert queue["urgency"].tolist() == [1, 0, 0]
    assert queue["excluded_reason"].notna().tolist() == [False, False, True]


def test_units_and_missing_values_of_a_job() -> None:
    job = a_raw_job("1", time_limit_s="UNLIMITED", eligible=None, planned_start=START + 60, memory_mib=None)
    (row,) = translate.pending([job], {}, most=10_000, release=NEW).to_dict("records")
    assert row["time_limit_s"] == math.inf
    assert row["eligible_at"] is pd.NaT
    assert row["planned_start_at"] == pd.Timestamp(START + 60, unit="s", tz="UTC")
    assert math.isnan(row["memory_mib"])


def test_an_array_is_one_row_that_says_how_many_it_stands_for() -> None:
    job = a_raw_job("6", array_job_id="6", array_tasks="0-9%2", tasks=10)
    (row,) = translate.pending([job], {}, most=10_000, release=NEW).to_dict("records")
    assert (row["array_job_id"], row["array_task_id"], row["tasks"]) == ("6", "0-9%2", 10)


def test_bytes_that_are_no_text_are_written_out() -> None:
    queue = translate.pending([a_raw_job("1", name="caf\udce9\n|")], {}, most=10_000, release=NEW)
    assert queue["name"].tolist() == ["caf\\xe9\n|"]


def test_nothing_makes_frames_of_nothing() -> None:
    assert len(translate.pending([], {}, most=10_000, release=NEW)) == 0
    assert len(translate.running([], release=NEW)) == 0
    assert len(translate.node_states([])) == 0


def test_nodes_come_in_the_order_of_their_numbers() -> None:
    nodes = [a_raw_node("n10"), a_raw_node("n2", idle_since=START), a_raw_node("n1", flags="DRAIN+POWERED_DOWN")]
    states = translate.node_states(nodes)
    assert states["name"].tolist() == ["n1", "n2", "n10"]
    assert states["flags"].dropna().tolist() == ["DRAIN+POWERED_DOWN"]
    assert states["idle_since"].notna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("factor", "why"),
    [
        (None, ""),
        (SiteFactor(value=0), ""),
        (SiteFactor(value=-2537), ""),
        (SiteFactor(value=500), "an admin set SiteFactor 500"),
        (SiteFactor(value=0, direct=True), "its priority was set directly, to 100000"),
    ],
)
def test_a_hand_on_a_job_is_named(factor: SiteFactor | None, why: str) -> None:
    assert translate.excluded_reason(a_raw_job("1"), factor, having(JobSetting.ORDER, **{"1": -2537})) == why


def test_a_mark_without_a_record_is_a_hand_on_a_job() -> None:
    assert "an admin set SiteFactor -2537, or" in translate.excluded_reason(a_raw_job("1"), SiteFactor(value=-2537))


def having(setting: JobSetting, **values: int) -> JobsUndo:
    undo = JobsUndo()
    undo.add(
        UndoEntry(setting=setting, job_id=job_id, submitted=START, value=value) for job_id, value in values.items()
    )
    return undo
