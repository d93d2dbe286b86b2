import pandas as pd
import pytest

from helios.errors import FormatUnknown
from helios.ingest import TraceFormat, open_trace
from tests.unit.ingest.builders import (
    KALOS_HEADER,
    SEREN_HEADER,
    a_helios_file,
    a_helios_row,
    a_kalos_row,
    a_seren_row,
    read,
    rejects_of,
    the_job,
)


def seren(folder, *rows):
    return a_helios_file(folder, *rows, header=SEREN_HEADER)


def kalos(folder, *rows):
    return a_helios_file(folder, *rows, header=KALOS_HEADER)


def test_serens_published_example_is_read(tmp_path):
    job = the_job(seren(tmp_path, a_seren_row()))
    assert job[["job_id", "user", "nodes", "gpus", "cpus", "name", "state", "run_time_s"]].tolist() == [
        *("5778432", "u5907", 1, 8, 128, "Other", "FAILED", 117),
    ]
    assert job["submitted_at"] == pd.Timestamp("2023-02-28 16:18:22", tz="UTC")


def test_a_run_time_of_kalos_is_end_minus_start(tmp_path):
    job = the_job(kalos(tmp_path, a_kalos_row(duration="18")))
    assert job["run_time_s"] == 8 and (job["started_at"] - job["submitted_at"]).total_seconds() == 10


def test_memory_of_kalos_is_that_of_all_its_pods(tmp_path):
    job = the_job(kalos(tmp_path, a_kalos_row(mem_per_pod_GB="1000", node_num="8")))
    assert job["memory_mib"] == 8 * 1000 * 1024


def test_seren_says_nothing_about_memory(tmp_path):
    assert pd.isna(the_job(seren(tmp_path, a_seren_row()))["memory_mib"])


def test_times_with_a_zone_need_none_and_days_are_those_of_shanghai(tmp_path):
    path = seren(tmp_path, a_seren_row())
    assert open_trace(path).timezone == "Asia/Shanghai"
    assert not any("assumed" in note for note in read(path).notes)
    assert the_job(path, timezone="UTC")["submitted_at"] == the_job(path)["submitted_at"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"])
def test_all_published_states_are_known(tmp_path, state):
    assert the_job(seren(tmp_path, a_seren_row(state=state)))["state"] == state


def test_a_job_that_never_started_has_no_run_time(tmp_path):
    job = the_job(seren(tmp_path, a_seren_row(start_time="", end_time="", queue="", duration="", state="CANCELLED")))
    assert job[["started_at", "ended_at", "run_time_s"]].isna().all()


def test_an_unfinished_job_has_no_end(tmp_path):
    job = the_job(seren(tmp_path, a_seren_row(state="RUNNING")))
    assert job[["ended_at", "run_time_s"]].isna().all() and not pd.isna(job["started_at"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gpu_num": "eight"}, "number is not understood"),
        ({"end_time": "2023-02-01 00:00:00+08:00"}, "negative run time"),
        ({"state": "LOST"}, "unknown state"),
        ({"submit_time": ""}, "no submit time"),
        ({"user": "a,b"}, "wrong number of fields"),
    ],
)
def test_a_row_that_makes_no_sense_is_rejected_with_its_reason(tmp_path, fields, reason):
    assert rejects_of(seren(tmp_path, a_seren_row(job_id="1"), a_seren_row(**fields))) == [(3, reason)]


def test_the_helios_layout_is_not_taken_for_it(tmp_path):
    assert open_trace(a_helios_file(tmp_path, a_helios_row())).format is TraceFormat.HELIOS
    with pytest.raises(FormatUnknown, match="no column type and no gpu_time"):
        read(a_helios_file(tmp_path, a_helios_row()), format=TraceFormat.ACME)
