from dataclasses import replace
from itertools import groupby

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.ingest import open_trace, reader, requeued
from tests.examples import examples
from tests.unit.ingest.builders import a_json_file, a_json_job, a_sacct_file, a_sacct_row, read


def a_run(number, **fields):
    return a_sacct_row(**{"Start": f"2021-05-01T12:{number:02d}:00", "End": "2021-05-02T00:00:00", **fields})


def test_runs_of_a_requeued_job_are_numbered_by_their_start(tmp_path):
    jobs = read(a_sacct_file(tmp_path, a_run(2), a_run(1), a_run(3))).jobs
    assert jobs["restart"].tolist() == [1, 0, 2]


def test_the_same_id_at_another_submit_time_is_another_job(tmp_path):
    jobs = read(a_sacct_file(tmp_path, a_run(1), a_run(2, Submit="2021-05-01T10:30:00"))).jobs
    assert jobs["restart"].tolist() == [0, 0]


def test_the_same_row_again_is_a_duplicate(tmp_path):
    batch = read(a_sacct_file(tmp_path, a_run(1), a_run(1)))
    assert len(batch.jobs) == 1 and batch.rejects["reason"].tolist() == ["duplicate row"]
    assert batch.rejects["line"].tolist() == [3]


def test_a_later_export_of_the_same_run_supersedes_the_earlier(tmp_path):
    running = a_run(1, State="RUNNING", End="Unknown")
    batch = read(a_sacct_file(tmp_path, running, a_run(1)))
    assert batch.jobs["state"].tolist() == ["COMPLETED"]
    assert batch.rejects["reason"].tolist() == ["superseded by a later row of the same run"]


def test_a_pending_row_is_superseded_by_the_run_that_followed(tmp_path):
    batch = read(a_sacct_file(tmp_path, a_run(1, State="PENDING", Start="Unknown", End="Unknown"), a_run(1)))
    assert batch.jobs["restart"].tolist() == [0] and len(batch.rejects) == 1


def test_a_row_refused_for_its_time_takes_no_number(tmp_path):
    jobs = read(a_sacct_file(tmp_path, a_run(1, Start="soon"), a_run(2))).jobs
    assert jobs["restart"].tolist() == [0]


@settings(deadline=None, max_examples=examples(15))
@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 59)), min_size=1, max_size=20, unique=True),
    rows_per_batch=st.sampled_from([3, 7, 50]),
)
def test_numbers_agree_with_plain_sorting_however_far_apart_runs_lie(tmp_path_factory, runs, rows_per_batch):
    rows = [a_run(start, JobIDRaw=str(job), JobID=str(job)) for job, start in runs]
    expected = {
        run: number for _, found in groupby(sorted(runs), lambda run: run[0]) for number, run in enumerate(found)
    }
    jobs = read(a_sacct_file(tmp_path_factory.mktemp("runs"), *rows), rows_per_batch=rows_per_batch).jobs
    found = zip(jobs["job_id"].astype(int), jobs["started_at"].dt.minute, strict=True)
    assert jobs["restart"].tolist() == [expected[run] for run in found]


def test_two_exports_of_a_job_that_never_started_are_one_run(tmp_path):
    cancelled = {"State": "CANCELLED by 7", "NodeList": "None assigned", "End": "2021-05-01T12:01:00", "JobName": "a"}
    batch = read(a_sacct_file(tmp_path, a_run(1, **cancelled), a_run(1, **cancelled | {"JobName": "b"})))
    assert batch.jobs["started_at"].isna().tolist() == [True] and batch.jobs["restart"].tolist() == [0]
    assert batch.rejects["reason"].tolist() == ["superseded by a later row of the same run"]


@pytest.mark.parametrize("kept_bytes", [0, 2_000])
def test_a_file_too_large_to_keep_gives_the_same(tmp_path, monkeypatch, kept_bytes):
    rows = [a_run(minute % 7, JobIDRaw=str(minute % 4), JobID=str(minute % 4)) for minute in range(40)]
    path = a_sacct_file(tmp_path, *rows, a_run(1, Submit="soon"))
    whole = read(path)
    monkeypatch.setattr(requeued, "LARGEST_KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(reader, "ROWS_PER_BATCH", 3)
    again = read(path, rows_per_batch=3)
    pd.testing.assert_frame_equal(again.jobs, whole.jobs, check_categorical=False, check_dtype=False)
    pd.testing.assert_frame_equal(again.rejects, whole.rejects, check_categorical=False, check_dtype=False)
    assert again.notes == whole.notes and len(whole.rejects) > 2 and whole.jobs["restart"].max() > 0


def test_a_small_file_is_read_once(tmp_path, monkeypatch):
    trace, passes = open_trace(a_sacct_file(tmp_path, a_run(1, Cluster="c"))), []
    layout = reader.LAYOUTS[trace.format]
    drafts = lambda reading: passes.append(reading) or layout.drafts(reading)  # noqa: E731
    monkeypatch.setitem(reader.LAYOUTS, trace.format, replace(layout, drafts=drafts))
    assert trace.cluster and list(trace.read()) and len(passes) == 1


RESTARTED = {"Submit": "2021-05-01T11:01:01", "Start": "2021-05-01T11:05:00", "End": "2021-05-01T12:05:00"}


def numbers(folder, *rows):
    jobs = read(a_sacct_file(folder, *rows)).jobs
    return jobs["restart"].tolist()


@pytest.mark.parametrize("state", ["REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUE_HOLD"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_run_follows_one_that_was_interrupted_before_its_submission(tmp_path, state, turn):
    rows = [a_sacct_row(State=state, User="u"), a_sacct_row(**RESTARTED, User="u")]
    assert numbers(tmp_path, *rows[::turn]) == [0, 1][::turn]


@pytest.mark.parametrize(
    "changed",
    [
        {"User": "another"},
        {"End": "2021-05-01T11:03:00"},
        {"Submit": "2021-04-01T10:00:00", "Start": "2021-04-01T10:01:00", "End": "2021-04-01T11:01:00"},
        {"Cluster": "another"},
        {"JobIDRaw": "99", "JobID": "99"},
    ],
)
def test_another_job_with_the_id_of_one_is_no_run_of_it(tmp_path, changed):
    earlier = a_sacct_row(State="PREEMPTED", User="u", Cluster="c") | changed
    assert numbers(tmp_path, earlier, a_sacct_row(**RESTARTED, User="u", Cluster="c")) == [0, 0]


def test_what_the_cluster_counts_is_believed_where_runs_before_are_missing(tmp_path):
    assert numbers(tmp_path, a_sacct_row(Restarts="3")) == [3]


@pytest.mark.parametrize(("restarts", "expected"), [("0", [0, 0]), ("1", [0, 1]), ("4", [0, 4])])
def test_what_the_cluster_counts_tells_a_new_job_from_a_run(tmp_path, restarts, expected):
    rows = [a_sacct_row(State="PREEMPTED", Restarts="0"), a_sacct_row(**RESTARTED, Restarts=restarts)]
    assert numbers(tmp_path, *rows) == expected


@pytest.mark.parametrize("text", ["", "4294967294", "None"])
def test_a_count_of_restarts_that_is_not_set_says_nothing(tmp_path, text):
    rows = [a_sacct_row(State="PREEMPTED", Restarts=text), a_sacct_row(**RESTARTED, Restarts=text)]
    assert numbers(tmp_path, *rows) == [0, 1]


def test_runs_of_a_chain_and_a_job_after_it_are_told_apart(tmp_path):
    moments = ["2021-05-01T10:00:00", "2021-05-01T11:01:30", "2021-05-01T12:02:10", "2021-06-01T10:00:00"]
    ends = ["2021-05-01T11:01:00", "2021-05-01T12:02:00", "2021-05-01T13:00:00", "2021-06-01T11:00:00"]
    states = ["PREEMPTED", "NODE_FAIL", "COMPLETED", "COMPLETED"]
    rows = [
        a_sacct_row(Submit=moment, Start=moment, End=end, State=state)
        for moment, end, state in zip(moments, ends, states, strict=True)
    ]
    assert numbers(tmp_path, rows[2], rows[0], rows[3], rows[1]) == [2, 0, 0, 1]


def test_parts_of_a_resized_job_have_numbers_and_the_next_run_follows(tmp_path):
    first = a_sacct_row(State="RESIZING", End="2021-05-01T10:30:00", Restarts="0")
    second = a_sacct_row(Start="2021-05-01T10:30:00", State="PREEMPTED", Restarts="0")
    assert numbers(tmp_path, first, second, a_sacct_row(**RESTARTED, Restarts="1")) == [0, 1, 2]


def test_two_rows_of_one_record_are_one_run_by_its_own_id(tmp_path):
    running = a_sacct_row(SLUID="s1", State="RUNNING", Start="2021-05-01T10:01:00", End="Unknown")
    batch = read(a_sacct_file(tmp_path, running, a_sacct_row(SLUID="s1"), a_sacct_row(SLUID="s2", **RESTARTED)))
    assert len(batch.jobs) == 2 and batch.rejects["reason"].tolist() == ["superseded by a later row of the same run"]


def test_json_counts_restarts(tmp_path):
    jobs = [a_json_job() | {"restart_cnt": 2, "sluid": "s1"}, a_json_job(job_id=2) | {"restart_cnt": None}]
    assert read(a_json_file(tmp_path, *jobs)).jobs["restart"].tolist() == [2, 0]


@pytest.mark.parametrize("rows_per_batch", [1, 2, 7])
def test_runs_far_apart_in_a_file_are_one_job(tmp_path, rows_per_batch):
    between = [a_sacct_row(JobIDRaw=str(number), JobID=str(number)) for number in range(200, 210)]
    path = a_sacct_file(tmp_path, a_sacct_row(**RESTARTED), *between, a_sacct_row(State="REQUEUED"))
    jobs = read(path, rows_per_batch=rows_per_batch).jobs
    assert jobs.loc[jobs["job_id"] == "100", "restart"].tolist() == [1, 0]


AGAIN = {"Submit": "2021-05-01T11:10:00", "Start": "2021-05-01T11:12:00", "End": "2021-05-01T12:00:00"}


def test_the_run_after_a_job_that_was_requeued_by_hand_follows_it(tmp_path):
    first = a_sacct_row(State="COMPLETED", User="ann", End="2021-05-01T11:00:00")
    again = a_sacct_row(**AGAIN, User="ann")
    assert read(a_sacct_file(tmp_path, first, again)).jobs["restart"].tolist() == [0, 1]


@pytest.mark.parametrize("other", [{"User": "bob"}, {"User": ""}, {"Submit": "2021-05-09T11:10:00"}])
def test_a_finished_job_of_another_user_or_week_is_not_followed(tmp_path, other):
    first = a_sacct_row(State="COMPLETED", User="ann", End="2021-05-01T11:00:00")
    times = {"Submit": "2021-05-01T11:10:00", "Start": "2021-05-09T11:12:00", "End": "2021-05-09T12:00:00"}
    jobs = read(a_sacct_file(tmp_path, first, a_sacct_row(**{"User": "ann"} | times | other))).jobs
    assert jobs["restart"].tolist() == [0, 0]


@pytest.mark.parametrize("keys", [{"SLUID": "s1"}, {"DBIndex": "9"}, {"Restarts": "0"}])
def test_keys_of_runs_that_contradict_each_other_are_counted(tmp_path, keys):
    first = a_sacct_row(State="REQUEUED", End="2021-05-01T11:00:00", **keys)
    batch = read(a_sacct_file(tmp_path, first, a_sacct_row(**AGAIN, **keys)))
    assert len(batch.jobs) == 2
    assert [note for note in batch.notes if "Restarts, SLUID or DBIndex" in note]


def test_keys_that_agree_with_the_times_are_no_contradiction(tmp_path):
    rows = (
        a_sacct_row(State="REQUEUED", End="2021-05-01T11:00:00", SLUID="s1", DBIndex="1", Restarts="0"),
        a_sacct_row(**AGAIN, SLUID="s2", DBIndex="2", Restarts="1"),
    )
    assert not [note for note in read(a_sacct_file(tmp_path, *rows)).notes if "SLUID" in note]
