import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FormatUnknown
from helios.ingest import TraceFormat, open_trace
from tests.examples import examples
from tests.unit.ingest.builders import (
    a_file,
    a_philly_attempt,
    a_philly_file,
    a_philly_job,
    read,
    rejects_of,
    the_job,
)


def jobs_of(folder, *jobs):
    return read(a_philly_file(folder, *jobs)).jobs


def local(text):
    return pd.Timestamp(text, tz="America/Los_Angeles").tz_convert("UTC")


def test_a_job_of_the_published_example_is_read(tmp_path):
    job = the_job(a_philly_file(tmp_path, a_philly_job(a_philly_attempt(m412=8))))
    assert job[["job_id", "user", "partition", "state", "gpus", "nodes", "node_list"]].tolist() == [
        *("application_1506638472019_14199", "ce2f4c", "ee9e8c", "COMPLETED", 8, 1, "m412"),
    ]
    assert job["run_time_s"] == 3600 and job["submitted_at"] == local("2017-10-07 01:11:39")


def test_gpus_are_those_of_all_machines(tmp_path):
    job = the_job(a_philly_file(tmp_path, a_philly_job(a_philly_attempt(m1=8, m2=8, m3=2))))
    assert job[["gpus", "nodes", "node_list"]].tolist() == [18, 3, "m1,m2,m3"]


@pytest.mark.parametrize(("status", "state"), [("Pass", "COMPLETED"), ("Killed", "CANCELLED"), ("Failed", "FAILED")])
def test_their_words_for_states_are_slurms(tmp_path, status, state):
    assert the_job(a_philly_file(tmp_path, a_philly_job(a_philly_attempt(), status=status)))["state"] == state


def test_each_attempt_is_a_run_with_its_own_times_and_size(tmp_path):
    first = a_philly_attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", m1=4)
    last = a_philly_attempt("2017-10-07 01:13:30", "2017-10-07 03:13:30", m2=8)
    jobs = jobs_of(tmp_path, a_philly_job(first, last))
    assert jobs["restart"].tolist() == [0, 1] and jobs["job_id"].nunique() == jobs["submitted_at"].nunique() == 1
    assert jobs["run_time_s"].tolist() == [74, 7200] and jobs["gpus"].tolist() == [4, 8]


def test_only_the_last_attempt_has_the_jobs_state(tmp_path):
    attempts = [a_philly_attempt(f"2017-10-07 0{hour}:00:00", f"2017-10-07 0{hour}:30:00") for hour in (2, 3, 4)]
    jobs = jobs_of(tmp_path, a_philly_job(*attempts, status="Failed"))
    assert jobs["state"].isna().tolist() == [True, True, False] and jobs["state"].iloc[-1] == "FAILED"


def test_a_later_attempt_was_eligible_when_the_one_before_ended(tmp_path):
    attempts = [a_philly_attempt(f"2017-10-07 0{hour}:00:00", f"2017-10-07 0{hour}:30:00") for hour in (2, 3)]
    eligible = jobs_of(tmp_path, a_philly_job(*attempts))["eligible_at"]
    assert pd.isna(eligible[0]) and eligible[1] == local("2017-10-07 02:30:00")


@pytest.mark.parametrize("unknown", ["None", None, ""])
def test_a_job_whose_last_attempt_has_no_end_was_still_running(tmp_path, unknown):
    job = the_job(a_philly_file(tmp_path, a_philly_job(a_philly_attempt(end=unknown))))
    assert job["state"] == "RUNNING" and np.isnan(job["run_time_s"]) and pd.isna(job["ended_at"])


@pytest.mark.parametrize("attempts", [[], None])
def test_a_job_without_attempts_never_started_and_is_told(tmp_path, attempts):
    batch = read(a_philly_file(tmp_path, a_philly_job(status="Killed", attempts=attempts)))
    assert batch.jobs[["started_at", "ended_at", "run_time_s", "nodes"]].isna().all(axis=None)
    assert batch.jobs["gpus"].tolist() == [0] and any("1 job has no recorded attempt" in note for note in batch.notes)


@pytest.mark.parametrize("unknown", ["None", None])
def test_an_earlier_attempt_without_a_start_is_left_out_and_told(tmp_path, unknown):
    batch = read(a_philly_file(tmp_path, a_philly_job(a_philly_attempt(unknown, unknown), a_philly_attempt())))
    assert batch.jobs["restart"].tolist() == [0] and any("1 attempts without a start" in note for note in batch.notes)


def test_times_are_pacific_unless_a_person_names_a_zone(tmp_path):
    path = a_philly_file(tmp_path, a_philly_job(a_philly_attempt()))
    assert any("America/Los_Angeles was assumed" in note for note in read(path).notes)
    assert the_job(path, timezone="UTC")["submitted_at"] == pd.Timestamp("2017-10-07 01:11:39", tz="UTC")
    assert open_trace(path).timezone == "America/Los_Angeles"


def test_an_attempt_across_the_end_of_daylight_saving_lasts_an_hour_longer(tmp_path):
    attempt = a_philly_attempt("2017-11-05 00:30:00", "2017-11-05 03:30:00")
    job = the_job(a_philly_file(tmp_path, a_philly_job(attempt, submitted_time="2017-11-05 00:00:00")))
    assert job["run_time_s"] == 4 * 3600


def test_a_repeated_hour_is_the_second_where_the_first_precedes_the_start(tmp_path):
    attempt = a_philly_attempt("2017-11-05 01:50:00", "2017-11-05 01:10:00")
    job = the_job(a_philly_file(tmp_path, a_philly_job(attempt, submitted_time="2017-11-05 01:40:00")))
    assert job["run_time_s"] == 20 * 60


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_philly_job(a_philly_attempt(), status="Vanished"), "unknown state"),
        (a_philly_job(a_philly_attempt(start="yesterday")), "time is not understood"),
        (a_philly_job(a_philly_attempt(end="2017-10-06 00:00:00")), "negative run time"),
        (a_philly_job(a_philly_attempt(), submitted_time="None"), "no submit time"),
        (a_philly_job(a_philly_attempt(), jobid=None), "no job id"),
        (a_philly_job(attempts="many"), "record is not understood"),
        (a_philly_job(attempts=[3]), "record is not understood"),
        (a_philly_job(a_philly_attempt(), user="a\0b"), "NUL byte"),
        ("a job", "record is not understood"),
    ],
)
def test_an_impossible_job_is_rejected_with_its_number_and_reason(tmp_path, job, reason):
    path = a_philly_file(tmp_path, a_philly_job(a_philly_attempt(), jobid="first"), job)
    assert rejects_of(path) == [(2, reason)]


def test_a_rejected_job_is_kept_with_what_was_read_of_it(tmp_path):
    path = a_philly_file(tmp_path, a_philly_job(a_philly_attempt(), jobid="a"), a_philly_job(status="?", jobid="b7"))
    assert '"b7"' in read(path).rejects["text"].iloc[0]


def test_a_log_that_is_cut_says_how_far_it_was_read(tmp_path):
    whole = json.dumps([a_philly_job(a_philly_attempt(), jobid=str(number)) for number in range(100)])
    with pytest.raises(FileUnreadable, match=r"(?s)no JSON behind job 9\d.*export or copy it again"):
        next(open_trace(a_file(tmp_path, whole[:-900])).read())


def test_another_list_is_not_phillys(tmp_path):
    with pytest.raises(FormatUnknown, match="cluster_job_log"):
        read(a_file(tmp_path, '[{"id": 1}]'), format=TraceFormat.PHILLY)


def test_an_archive_is_to_be_unpacked_first(tmp_path):
    header = b"trace-data/".ljust(257, b"\0") + b"ustar\x0000"
    with pytest.raises(FormatUnknown, match="tar -xf"):
        open_trace(a_file(tmp_path, header.ljust(10_240, b"\0"), packed=True))


moments = st.datetimes(pd.Timestamp("2017-08-07"), pd.Timestamp("2017-12-22")).map(
    lambda time: f"{time:%Y-%m-%d %H:%M:%S}"
)
spans = st.tuples(moments | st.none(), moments | st.just("None"))


@settings(deadline=None, max_examples=examples(20))
@given(jobs=st.lists(st.lists(spans, max_size=4), min_size=1, max_size=8), rows_per_batch=st.sampled_from([1, 3, 100]))
def test_every_attempt_with_a_start_is_one_job_or_one_reject(tmp_path_factory, jobs, rows_per_batch):
    early = "2017-08-01 00:00:00"
    records = [
        a_philly_job(*(a_philly_attempt(*span) for span in spans), jobid=str(number), submitted_time=early)
        for number, spans in enumerate(jobs)
    ]
    good = a_philly_job(a_philly_attempt(), jobid="good")
    batch = read(a_philly_file(tmp_path_factory.mktemp("log"), *records, good), rows_per_batch=rows_per_batch)
    rows = [max(1, sum(start is not None for start, _ in spans[:-1]) + bool(spans)) for spans in jobs]
    assert len(batch.jobs) + len(batch.rejects) == sum(rows) + 1
