"""Rows of several clusters in one file, and of a federation."""

import pytest

from helios.ingest import open_trace
from tests.unit.ingest.builders import a_json_file, a_json_job, a_sacct_file, a_sacct_row, read

EAST = a_sacct_row(Cluster="east", ReqTRES="gres/gpu=2", NodeList="e1")
WEST = EAST | {"Cluster": "west", "NodeList": "w1"}
REVOKED = WEST | {"State": "REVOKED", "NodeList": "None assigned", "End": "2021-05-01T10:01:00"}


@pytest.mark.parametrize("turn", [1, -1])
def test_a_revoked_sibling_never_supersedes_the_job_that_ran(tmp_path, turn):
    batch = read(a_sacct_file(tmp_path, *[EAST, REVOKED][::turn]))
    assert batch.jobs[["job_id", "state", "run_time_s"]].to_numpy().tolist() == [["100", "COMPLETED", 3600]]
    assert batch.rejects["reason"].tolist() == ["sibling of a job that another cluster of the federation ran"]


def test_a_job_that_no_other_cluster_in_the_file_ran_is_kept(tmp_path):
    batch = read(a_sacct_file(tmp_path, REVOKED, EAST | {"JobIDRaw": "7", "JobID": "7"}))
    assert batch.jobs["state"].tolist() == ["REVOKED", "COMPLETED"] and batch.jobs["started_at"].isna().tolist()[0]


@pytest.mark.parametrize("turn", [1, -1])
def test_jobs_of_two_clusters_with_one_id_and_submission_are_two(tmp_path, turn):
    batch = read(a_sacct_file(tmp_path, *[EAST, WEST][::turn]))
    second = ("west", "east")[turn < 0]
    assert batch.jobs["job_id"].tolist() == ["100", f"100@{second}"] and batch.jobs["restart"].tolist() == [0, 0]


def test_rows_repeated_on_each_of_two_clusters_are_still_found(tmp_path):
    batch = read(a_sacct_file(tmp_path, EAST, WEST, EAST, WEST))
    assert len(batch.jobs) == 2 and batch.rejects["reason"].tolist() == ["duplicate row"] * 2


@pytest.mark.parametrize("rows_per_batch", [1, 2, 9])
def test_clusters_far_apart_in_a_file_are_kept_apart(tmp_path, rows_per_batch):
    rows = [EAST, *(EAST | {"JobIDRaw": str(n), "JobID": str(n)} for n in range(6)), WEST]
    assert read(a_sacct_file(tmp_path, *rows), rows_per_batch=rows_per_batch).jobs["job_id"].tolist()[-1] == "100@west"


def test_of_a_named_cluster_only_its_rows_are_read(tmp_path):
    trace = open_trace(a_sacct_file(tmp_path, EAST, WEST, REVOKED | {"JobIDRaw": "7", "JobID": "7"}))
    (batch,) = trace.read(cluster="west")
    assert batch.jobs["job_id"].tolist() == ["100", "7"]
    assert any(note.startswith("1 row is of other clusters") for note in batch.notes)


def test_a_name_that_is_none_of_the_clusters_takes_all_rows(tmp_path):
    (batch,) = open_trace(a_sacct_file(tmp_path, EAST, WEST)).read(cluster="both")
    assert len(batch.jobs) == 2


def test_siblings_in_json_are_one_job(tmp_path):
    revoked = {"cluster": "west", "state": {"current": ["CANCELLED", "REVOKED"], "reason": "None"}}
    batch = read(a_json_file(tmp_path, a_json_job(), a_json_job() | revoked))
    assert batch.jobs["state"].tolist() == ["COMPLETED"] and len(batch.rejects) == 1
