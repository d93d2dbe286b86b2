import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FileUnwritable, FormatUnknown
from helios.ingest import open_trace, requeued, write_parquet
from helios.model import JOBS
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.ingest.builders import read, rejects_of

AT = pa.array([1_600_000_000, 1_600_000_060], pa.timestamp("s", tz="UTC"))


def written(folder, jobs, *, cluster="lab", timezone="Europe/Berlin"):
    write_parquet(jobs, folder / "jobs.parquet", cluster=cluster, timezone=timezone)
    return folder / "jobs.parquet"


def a_table(folder, **columns):
    path = folder / "foreign.parquet"
    pq.write_table(pa.table({"job_id": ["1", "2"], "submitted_at": AT} | columns), path)
    return path


texts = st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=6)
numbers = st.none() | st.floats(0, 1e7)
counts = st.none() | st.integers(0, 1_000).map(float)
VALUES = {
    "str": texts,
    "category": texts,
    "float64": counts,
    "int32": st.integers(0, 2_000),
    "datetime64[us, UTC]": st.none() | st.integers(0, 7 * 10**15).map(lambda us: pd.Timestamp(us, unit="us", tz="UTC")),
}
OTHERS = {"state": st.sampled_from([None, "COMPLETED", "FAILED", "RUNNING"]), "memory_mib": numbers}
CHECKED = ("started_at", "ended_at", "run_time_s", "eligible_at")  # a row that contradicts itself is no job


@st.composite
def frames(draw):
    rows = draw(st.integers(1, 6))
    columns = {}
    for column in JOBS.columns:
        drawn = draw(st.lists(OTHERS.get(column.name, VALUES[column.dtype]), min_size=rows, max_size=rows))
        columns[column.name] = [None] * rows if column.name in CHECKED else drawn
    columns["job_id"] = [str(number) for number in range(rows)]
    at = [pd.Timestamp(10**15 + 1_000_003 * number, unit="us", tz="UTC") for number in range(rows)]
    return JOBS.conform(pd.DataFrame(columns | {"submitted_at": at}))


@settings(deadline=None, max_examples=examples(15))
@given(jobs=frames())
def test_what_is_written_is_read_back_the_same(tmp_path_factory, jobs):
    again = read(written(tmp_path_factory.mktemp("parquet"), jobs)).jobs
    pd.testing.assert_frame_equal(again, jobs, check_categorical=False)


def test_cluster_and_zone_are_those_of_the_file(tmp_path):
    trace = open_trace(written(tmp_path, jobs_frame(a_job())))
    assert (trace.cluster, trace.timezone, trace.assumed_timezone) == ("lab", "Europe/Berlin", None)


def test_a_zone_that_is_given_comes_before_that_of_the_file(tmp_path):
    assert open_trace(written(tmp_path, jobs_frame(a_job())), timezone="Asia/Tokyo").timezone == "Asia/Tokyo"


def test_a_restart_keeps_its_number_where_earlier_runs_are_missing(tmp_path):
    assert read(written(tmp_path, jobs_frame(a_job(restart=2)))).jobs["restart"].tolist() == [2]


def test_two_rows_of_one_run_are_one_job(tmp_path):
    job = a_job(job_id="7", restart=1)
    assert [reason for _, reason in rejects_of(written(tmp_path, jobs_frame(job, job)))] == ["duplicate row"]


def test_repeated_rows_are_found_in_a_file_too_large_to_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(requeued, "LARGEST_KEPT_BYTES", 0)
    twice, once = a_job(job_id="7"), a_job(job_id="8")
    batches = open_trace(written(tmp_path, jobs_frame(twice, once, twice))).read(rows_per_batch=1)
    assert [reason for batch in batches for reason in batch.rejects["reason"]] == ["duplicate row"]


def test_a_large_file_with_text_that_is_no_utf8_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(requeued, "LARGEST_KEPT_BYTES", 0)
    bad = pa.array([b"ann", b"\xff\xfe"], pa.binary()).view(pa.string())
    assert rejects_of(a_table(tmp_path, user=bad)) == [(2, "invalid UTF-8")]


def test_runs_of_one_job_are_not_taken_for_each_other(tmp_path):
    runs = [a_job(job_id="7", restart=number) for number in range(3)]
    assert read(written(tmp_path, jobs_frame(*runs))).jobs["restart"].tolist() == [0, 1, 2]


def test_names_of_jobs_that_are_not_written_are_not_in_the_file(tmp_path):
    jobs = jobs_frame(a_job(user="alice"), a_job(user="mallory"))
    assert b"mallory" not in written(tmp_path, jobs.head(1)).read_bytes()


def test_rows_are_read_in_batches_with_their_numbers(tmp_path):
    path = written(tmp_path, jobs_frame(*(a_job(gpus=-(number == 8)) for number in range(10))))
    batches = list(open_trace(path).read(rows_per_batch=4))
    assert [len(batch.jobs) for batch in batches] == [4, 4, 1]
    assert batches[-1].rejects["line"].tolist() == [9] and batches[-1].bytes_read == path.stat().st_size


def test_a_rejected_row_is_kept_as_json(tmp_path):
    text = read(written(tmp_path, jobs_frame(a_job(job_id="1"), a_job(job_id="2", gpus=-1)))).rejects["text"][0]
    assert json.loads(text)["job_id"] == "2"


def test_a_table_of_others_needs_only_id_and_submission(tmp_path):
    jobs = read(a_table(tmp_path)).jobs
    assert jobs["job_id"].tolist() == ["1", "2"] and jobs["user"].isna().all() and jobs["gpus"].isna().all()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_are_read(tmp_path, unit):
    jobs = read(a_table(tmp_path, started_at=AT.cast(pa.timestamp(unit, tz="Asia/Tokyo")))).jobs
    assert jobs["started_at"].tolist() == jobs["submitted_at"].tolist()


def test_timestamps_without_a_zone_are_the_cluster_s_own(tmp_path):
    path = a_table(tmp_path, submitted_at=AT.cast(pa.timestamp("us")))
    assert read(path, timezone="Asia/Tokyo").jobs["submitted_at"][0] == pd.Timestamp("2020-09-13T03:26:40Z")


def test_the_run_time_follows_from_start_and_end(tmp_path):
    later = pa.array([1_600_000_090, 1_600_000_150], pa.timestamp("s", tz="UTC"))
    assert read(a_table(tmp_path, started_at=AT, ended_at=later)).jobs["run_time_s"].tolist() == [90, 90]


def test_unknown_columns_are_ignored_and_named(tmp_path):
    assert "1 columns that Helios does not know were ignored: mood" in read(a_table(tmp_path, mood=["a", "b"])).notes


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("restart", 1.5, "number is not understood"),
        ("gpus", 1e12, "size out of range"),
        ("cpus", float("inf"), "number is not understood"),
        ("time_limit_s", -float("inf"), "number is not understood"),
        ("restart", -1, "number is not understood"),
        ("restart", 2**40, "number is not understood"),
        ("state", "HAPPY", "unknown state"),
        ("user", "a\0b", "NUL byte"),
        ("job_id", None, "no job id"),
        ("job_id", "", "no job id"),
    ],
)
def test_a_value_that_makes_no_sense_is_a_reject(tmp_path, column, value, reason):
    good = {"job_id": "1", "user": "ann", "state": "FAILED"}.get(column, 0)
    assert rejects_of(a_table(tmp_path, **{column: [good, value]})) == [(2, reason)]


def test_a_time_out_of_range_is_a_reject(tmp_path):
    times = pa.array([1_600_000_000_000, 2**62], pa.timestamp("ms", tz="UTC"))
    assert rejects_of(a_table(tmp_path, submitted_at=times)) == [(2, "time is not understood")]


def test_text_that_is_no_utf8_is_a_reject(tmp_path):
    bad = pa.array([b"ann", b"\xff\xfe"], pa.binary()).view(pa.string())
    assert rejects_of(a_table(tmp_path, user=bad)) == [(2, "invalid UTF-8")]


def test_an_unlimited_time_limit_stays(tmp_path):
    assert read(a_table(tmp_path, time_limit_s=[np.inf, 60.0])).jobs["time_limit_s"].tolist() == [np.inf, 60]


@pytest.mark.parametrize(
    ("column", "values"),
    [("submitted_at", ["2020", "2021"]), ("gpus", ["1", "2"]), ("user", [[1], [2]]), ("started_at", [1, 2])],
)
def test_a_column_of_another_type_is_named(tmp_path, column, values):
    with pytest.raises(FormatUnknown, match=f"its column {column} is of"):
        read(a_table(tmp_path, **{column: values}))


def test_a_table_without_submissions_is_no_table_of_jobs(tmp_path):
    pq.write_table(pa.table({"job_id": ["1"]}), tmp_path / "x.parquet")
    with pytest.raises(FormatUnknown, match="no column submitted_at"):
        read(tmp_path / "x.parquet")


@pytest.mark.parametrize("kept", [4, 100, -1])
def test_a_cut_file_is_an_error(tmp_path, kept):
    path = written(tmp_path, jobs_frame(a_job()))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FileUnreadable, match="cannot be read as Parquet"):
        read(path)


def test_a_compressed_file_is_read(tmp_path):
    path = written(tmp_path, jobs_frame(a_job()))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read(path).jobs) == 1 and open_trace(path).timezone == "Europe/Berlin"


def test_a_full_disk_is_an_error_of_helios():
    with pytest.raises(FileUnwritable, match="No space left"):
        write_parquet(jobs_frame(a_job()), Path("/dev/full"), cluster="lab", timezone="UTC")
