from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(deadline=None, max_examples=50)
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
