from dataclasses import replace
from itertools import groupby

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.ingest import open_trace, reader
from tests.examples import examples
from tests.unit.ingest.builders import a_sacct_file, a_sacct_row, read


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
    monkeypatch.setattr(reader, "LARGEST_KEPT_BYTES", kept_bytes)
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
