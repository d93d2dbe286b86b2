"""Rows of sacct that end oddly, or contradict themselves, and how each is read."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from tests.unit.ingest.builders import (
    a_helios_file,
    a_helios_row,
    a_json_file,
    a_json_job,
    a_sacct_file,
    a_sacct_row,
    read,
    the_job,
)

HOUR_S = 3600


def a_job(folder, **fields):
    return the_job(a_sacct_file(folder, a_sacct_row(**fields)))


# slurm.h: flags that job_state_string() names in place of the base state. slurmdbd stores REQUEUED, RESIZING and
# REVOKED so, together with the end of that record (as_mysql_job.c, as_mysql_job_complete()).
FLAGS_OF_ENDED_RECORDS = ["REQUEUED", "RESIZING", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RQ", "RS", "SE"]


@pytest.mark.parametrize("state", [*FLAGS_OF_ENDED_RECORDS, "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_record_with_an_end_has_ended_whatever_its_flag(tmp_path, state):
    job = a_job(tmp_path, State=state)
    assert job["run_time_s"] == HOUR_S and not pd.isna(job["ended_at"])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SI"])
def test_a_job_that_waits_or_runs_has_no_end(tmp_path, state):
    job = a_job(tmp_path, State=state, ElapsedRaw="60")
    assert pd.isna(job["ended_at"]) and np.isnan(job["run_time_s"])


@pytest.mark.parametrize("state", FLAGS_OF_ENDED_RECORDS)
def test_a_flag_without_an_end_has_not_ended(tmp_path, state):
    job = a_job(tmp_path, State=state, End="Unknown", ElapsedRaw="60")
    assert pd.isna(job["ended_at"]) and np.isnan(job["run_time_s"])


def test_a_revoked_sibling_never_ran_here(tmp_path):
    job = a_job(tmp_path, State="REVOKED", NodeList="None assigned", ReqTRES="gres/gpu=2", AllocTRES="")
    assert pd.isna(job["started_at"]) and np.isnan(job["run_time_s"]) and not pd.isna(job["ended_at"])


def test_a_revoked_sibling_may_end_before_its_submission_on_another_clock(tmp_path):
    job = a_job(tmp_path, State="REVOKED", Start="2021-05-01T09:59:59", End="2021-05-01T09:59:59")
    assert job["ended_at"] == job["submitted_at"] and pd.isna(job["started_at"])


@pytest.mark.parametrize(
    ("words", "state", "ended"),
    [
        (["PENDING", "REQUEUED"], "REQUEUED", True),
        (["REQUEUED"], "REQUEUED", True),
        (["NODE_FAIL", "REQUEUED"], "NODE_FAIL", True),
        (["FAILED", "REQUEUE_HOLD", "SPECIAL_EXIT"], "FAILED", True),
        (["COMPLETED", "COMPLETING"], "COMPLETED", True),
        (["RUNNING", "RESIZING"], "RESIZING", True),
        (["CANCELLED", "REVOKED"], "REVOKED", True),
        (["PENDING", "REQUEUED"], "PENDING", False),
        (["RUNNING", "RESIZING"], "RUNNING", False),
        (["RUNNING", "COMPLETING", "SIGNALING"], "RUNNING", False),
        (["PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"], "PENDING", False),
    ],
)
def test_of_a_list_of_states_the_base_state_counts(tmp_path, words, state, ended):
    submitted, started = 1_700_000_000, 1_700_000_060
    times = (submitted, submitted, started, started + HOUR_S if ended else 0)
    job = the_job(a_json_file(tmp_path, a_json_job(times=times) | {"state": {"current": words, "reason": "None"}}))
    assert (job["state"], not pd.isna(job["ended_at"])) == (state, ended)
    ran = ended and state != "REVOKED"
    assert job["run_time_s"] == HOUR_S if ran else np.isnan(job["run_time_s"])


HOURS_OF_10 = {"Submit": "2024-05-01T00:00:00", "Start": "2024-05-01T01:00:00", "End": "2024-05-01T11:00:00"}


@pytest.mark.parametrize(
    ("fields", "hours", "told"),
    [
        ({"Elapsed": "02:00:00", "Suspended": "08:00:00"}, 2, "1 job was suspended: its run time is Elapsed"),
        ({"Suspended": "08:00:00"}, 2, "1 job was suspended"),
        ({"ElapsedRaw": "7200"}, 2, "1 job has an Elapsed other than end minus start"),
        ({"ElapsedRaw": "7200", "Suspended": "00:00:00"}, 2, "1 job has an Elapsed other than end minus start"),
        ({"ElapsedRaw": "39600"}, 11, "1 job has an Elapsed other than end minus start"),
        ({"ElapsedRaw": "0"}, 10, "1 job has an Elapsed other than end minus start"),
        ({"ElapsedRaw": "36001"}, 10, None),
        ({"ElapsedRaw": "7200", "Start": "Unknown", "Suspended": "08:00:00"}, 2, "1 job was suspended"),
        ({"ElapsedRaw": "36000", "End": "2024-05-01T00:30:00"}, 10, "1 job has an end before its start"),
    ],
)
def test_the_run_time_is_elapsed_where_the_times_say_otherwise(tmp_path, fields, hours, told):
    batch = read(a_sacct_file(tmp_path, a_sacct_row(**HOURS_OF_10 | fields)))
    assert batch.jobs["run_time_s"].tolist() == [hours * HOUR_S]
    assert (batch.jobs["ended_at"] - batch.jobs["started_at"]).dt.total_seconds().tolist() == [10 * HOUR_S]
    notes = [note for note in batch.notes if "Elapsed" in note]
    assert (notes[0].startswith(told) and notes[0].endswith("such as '100'")) if told else not notes


def test_a_suspension_in_json_is_no_part_of_the_run_time(tmp_path):
    job = a_json_job(times=(1_700_000_000, 1_700_000_000, 1_700_000_000, 1_700_036_000))
    job["time"] |= {"elapsed": 7_200, "suspended": 28_800}
    assert the_job(a_json_file(tmp_path, job))["run_time_s"] == 7_200


NOT_SET = [
    "1970-01-01T00:00:00",
    "1969-12-31T19:00:00",
    "1970-01-01 01:00:00",
    "0",
    "4294967294",
    "0000-00-00 00:00:00",
]


@pytest.mark.parametrize("text", NOT_SET)
@pytest.mark.parametrize("field", ["Start", "End", "Eligible"])
def test_a_time_of_the_epoch_is_unknown(tmp_path, field, text):
    job = a_job(tmp_path, **{"Eligible": "2021-05-01T10:00:00", field: text})
    assert pd.isna(job[{"Start": "started_at", "End": "ended_at", "Eligible": "eligible_at"}[field]])
    assert job["run_time_s"] == HOUR_S if field == "Eligible" else np.isnan(job["run_time_s"])


def test_times_of_the_epoch_are_counted_with_an_example(tmp_path):
    batch = read(a_sacct_file(tmp_path, a_sacct_row(Start="1970-01-01T00:00:00")))
    assert next(note for note in batch.notes if "1970" in note).endswith("such as '100'")


def test_a_submission_of_the_epoch_is_none(tmp_path):
    batch = read(a_sacct_file(tmp_path, a_sacct_row(), a_sacct_row(JobIDRaw="101", Submit="1970-01-01T00:00:00")))
    assert batch.rejects["reason"].tolist() == ["no submit time"]


def test_a_start_of_the_epoch_is_unknown_in_a_published_trace(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row(start="1970-01-01 00:00:00", queue="")))
    assert pd.isna(job["started_at"]) and job["run_time_s"] == HOUR_S


def test_a_start_of_the_epoch_is_unknown_in_parquet(tmp_path):
    jobs = pd.DataFrame(
        {"job_id": ["1"], "submitted_at": [pd.Timestamp("2024-05-01")], "started_at": [pd.Timestamp(0)]}
    )
    jobs.assign(ended_at=pd.Timestamp("2024-05-01T03:00")).to_parquet(tmp_path / "jobs")
    job = the_job(tmp_path / "jobs")
    assert pd.isna(job["started_at"]) and np.isnan(job["run_time_s"])


def test_a_trace_whose_own_clock_begins_in_1970_keeps_its_times(tmp_path):
    job = a_job(tmp_path, Submit="1970-01-01T00:00:00", Start="1970-01-01T00:10:00", End="1970-01-03T00:10:00")
    assert job["run_time_s"] == 48 * HOUR_S and not pd.isna(job["started_at"])


OF_2024 = a_sacct_row(JobIDRaw="101", JobID="101", Submit="2024-05-01T10:00:00", Timelimit="1-00:00:00") | {
    "Start": "2024-05-01T10:00:00",
    "End": "2024-05-02T10:00:00",
}


@pytest.mark.parametrize(
    ("started", "limit", "runs"),
    [
        ("2019-03-01", "1-00:00:00", False),
        ("2019-03-01", "UNLIMITED", False),
        ("2024-02-01", "1-00:00:00", False),
        ("2024-02-01", "UNLIMITED", True),
        ("2024-04-24", "1-00:00:00", True),
        ("2023-06-01", "365-00:00:00", True),
    ],
)
def test_a_job_that_runs_for_longer_than_any_can_is_a_runaway(tmp_path, started, limit, runs):
    moment = f"{started}T00:00:00"
    row = OF_2024 | {"JobIDRaw": "7", "State": "RUNNING", "Submit": moment, "Start": moment, "End": "Unknown"}
    batch = read(a_sacct_file(tmp_path, OF_2024, row | {"Timelimit": limit}))
    job = batch.jobs.set_index("job_id").loc["7"]
    assert (job["state"] == "RUNNING", pd.isna(job["ended_at"])) == (runs, runs)
    assert np.isnan(job["run_time_s"]) and (runs or job["ended_at"] == job["started_at"])
    assert any("sacctmgr show runawayjobs), such as '7'" in note for note in batch.notes) is not runs


def test_runaways_in_a_file_of_nothing_else_are_named_and_kept(tmp_path):
    row = a_sacct_row(State="RUNNING", End="Unknown")
    batch = read(a_sacct_file(tmp_path, row, row | {"JobIDRaw": "101", "JobID": "101"}))
    assert batch.jobs["state"].tolist() == ["RUNNING", "RUNNING"]
    assert [note for note in batch.notes if note.startswith("2 jobs have run for longer") and "'100', '101'" in note]


def test_jobs_of_today_in_a_file_without_ends_are_no_runaways(tmp_path):
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    row = a_sacct_row(State="RUNNING", Submit=now, Start=now, End="Unknown")
    assert not [note for note in read(a_sacct_file(tmp_path, row)).notes if "runaways" in note]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"Submit": "2021-05-01T10:02:00"}, "1 job has a start before its submission"),
        ({"Submit": "2021-05-09T10:00:00"}, "1 job has a start more than a day before its submission"),
        ({"Timelimit": "00:10:00", "End": "2021-05-03T10:00:00"}, "1 job ran far above its limit"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(tmp_path, fields, told):
    batch = read(a_sacct_file(tmp_path, a_sacct_row(**fields)))
    assert len(batch.jobs) == 1
    assert [note for note in batch.notes if note.startswith(told) and note.endswith("such as '100'")]


CHANGED = "2021-05-01T10:31:00"


@pytest.mark.parametrize(
    ("fields", "run_time_s"),
    [
        ({"ElapsedRaw": "3600"}, 1800),
        ({"ElapsedRaw": "3000", "Suspended": "00:10:00"}, 1200),
        ({"ElapsedRaw": "1800", "End": CHANGED}, 0),
        ({"ElapsedRaw": "3600", "State": "RUNNING", "End": "Unknown"}, np.nan),
    ],
)
def test_a_later_size_of_a_job_counts_from_the_change(tmp_path, fields, run_time_s):
    row = a_sacct_row(Submit=CHANGED, Eligible=CHANGED, **fields)
    batch = read(a_sacct_file(tmp_path, row))
    assert batch.jobs["started_at"].tolist() == [pd.Timestamp(CHANGED, tz="UTC")]
    assert np.array_equal(batch.jobs["run_time_s"], [run_time_s], equal_nan=True)
    told = "1 job has a start before its submission, as later sizes of a resized job have"
    assert [note for note in batch.notes if note.startswith(told) and note.endswith("such as '100'")]


def test_a_start_after_which_the_job_ended_before_its_submission_stays(tmp_path):
    later = "2021-05-09T10:00:00"
    job = a_job(tmp_path, Submit=later, Eligible=later, ElapsedRaw="3600")
    assert job["run_time_s"] == HOUR_S


def test_a_planned_start_of_a_job_without_nodes_is_none(tmp_path):
    job = a_job(tmp_path, State="REQUEUED", Start="2021-05-02T10:00:00", NodeList="None assigned", ElapsedRaw="0")
    assert pd.isna(job["started_at"]) and not pd.isna(job["ended_at"])
