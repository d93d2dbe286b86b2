import csv
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.ingest import TraceFormat, open_trace, synthetic_trace, write_helios_csv
from helios.model import JOBS
from tests.examples import examples
from tests.unit.ingest.builders import (
    HELIOS_HEADER,
    a_file,
    a_helios_file,
    a_helios_row,
    read,
    rejects_of,
    the_job,
)


def test_every_field_of_the_layout_lands_in_its_column(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row()))
    assert (job["job_id"], job["user"], job["partition"], job["state"]) == ("1", "ann", "vc1", "COMPLETED")
    assert (job["gpus"], job["cpus"], job["nodes"], job["run_time_s"]) == (8, 64, 1, 3600)


def test_times_are_read_in_the_zone_given(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row()), timezone="Asia/Shanghai")
    assert job["submitted_at"] == pd.Timestamp("2020-04-01 02:00:00", tz="UTC")


def test_batches_have_the_declared_columns_and_types(tmp_path):
    JOBS.check(read(a_helios_file(tmp_path, a_helios_row())).jobs)


def test_empty_fields_stay_unknown(tmp_path):
    row = a_helios_row(user="", vc="", cpus="", nodes="", state="", start="", end="", queue="")
    job = the_job(a_helios_file(tmp_path, row))
    assert job[["user", "partition", "state", "started_at", "ended_at", "cpus", "nodes"]].isna().all()


def test_an_unknown_start_is_found_from_the_time_queued(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row(start="", end="", queue="90")))
    assert job["started_at"] == pd.Timestamp("2020-04-01 10:01:30", tz="UTC")


def test_an_unknown_end_is_found_from_the_duration(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row(end="", duration="60")))
    assert job["ended_at"] == pd.Timestamp("2020-04-01 10:01:05", tz="UTC")


def test_a_running_job_has_no_end_and_no_run_time(tmp_path):
    job = the_job(a_helios_file(tmp_path, a_helios_row(state="RUNNING", end="")))
    assert pd.isna(job["ended_at"]) and np.isnan(job["run_time_s"])


def test_columns_may_come_in_any_order_and_number(tmp_path):
    job = the_job(a_file(tmp_path, "gpu_num,submit_time,remark,job_id\n4,2020-04-01 10:00:00,x,9\n"))
    assert (job["job_id"], job["gpus"]) == ("9", 4)


@pytest.mark.parametrize("column", ["name", "jobname", "JobName"])
def test_a_column_of_job_names_is_read(tmp_path, column):
    path = a_helios_file(tmp_path, a_helios_row() + ",train", header=f"{HELIOS_HEADER},{column}")
    assert the_job(path)["name"] == "train"


@pytest.mark.parametrize(("text", "seconds"), [("7200", 7200), ("1-00:00:00", 86_400), ("UNLIMITED", np.inf)])
def test_a_column_of_time_limits_is_read(tmp_path, text, seconds):
    path = a_helios_file(tmp_path, f"{a_helios_row()},{text}", header=f"{HELIOS_HEADER},time_limit")
    assert the_job(path)["time_limit_s"] == seconds


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_id": ""}, "no job id"),
        ({"submit": ""}, "no submit time"),
        ({"submit": "yesterday"}, "time is not understood"),
        ({"submit": "0000-00-00 00:00:00"}, "no submit time"),
        ({"submit": "2020-13-01 00:00:00"}, "time is not understood"),
        ({"submit": "9999-12-31 23:59:59"}, "time is not understood"),
        ({"gpus": "-1"}, "negative size"),
        ({"gpus": "eight"}, "number is not understood"),
        ({"gpus": "nan!"}, "number is not understood"),
        ({"gpus": "inf"}, "number is not understood"),
        ({"gpus": "4294967294"}, "size out of range"),
        ({"duration": "1e30"}, "duration out of range"),
        ({"duration": "-5"}, "negative run time"),
        ({"state": "EXPLODED"}, "unknown state"),
        ({"end": "2020-04-01 09:59:59"}, "end before start"),
        ({"start": "", "queue": "", "end": "2020-04-01 09:59:59"}, "end before submit"),
    ],
)
def test_a_row_that_makes_no_sense_is_rejected_with_its_reason(tmp_path, change, reason):
    path = a_helios_file(tmp_path, a_helios_row(job_id="0"), a_helios_row(**change))
    assert rejects_of(path) == [(3, reason)]


def test_a_start_before_the_submission_is_kept_and_told(tmp_path):
    batch = read(a_helios_file(tmp_path, a_helios_row(start="2020-04-01 09:59:00")))
    assert len(batch.jobs) == 1 and any("start before its submission" in note for note in batch.notes)


@pytest.mark.parametrize("row", ["1,2,3", a_helios_row() + ",extra"])
def test_a_row_of_the_wrong_length_is_rejected(tmp_path, row):
    assert rejects_of(a_helios_file(tmp_path, a_helios_row(), row)) == [(3, "wrong number of fields")]


def test_a_reject_keeps_its_text(tmp_path):
    path = a_file(tmp_path, f"{HELIOS_HEADER}\n{a_helios_row()}\n".encode() + b"2,J\xf6rg,vc\n")
    rejects = read(path).rejects
    assert rejects["reason"].tolist() == ["wrong number of fields"] and rejects["text"].tolist() == ["2,J\xf6rg,vc"]


def test_names_in_latin_1_are_read_and_noted_beside_utf_8(tmp_path):
    rows = [a_helios_row(job_id=str(n), user="J\xf6rg").encode(code) for n, code in enumerate(("latin-1", "utf-8"))]
    batch = read(a_file(tmp_path, b"\n".join([HELIOS_HEADER.encode(), *rows, b""])))
    assert batch.jobs["user"].tolist() == ["J\xf6rg", "J\xf6rg"] and batch.rejects.empty
    assert "1 byte that is no UTF-8 was read as Latin-1" in batch.notes


def test_a_file_with_every_field_quoted_is_read(tmp_path):
    quoted = [",".join(f'"{field}"' for field in line.split(",")) for line in (HELIOS_HEADER, a_helios_row())]
    assert the_job(a_file(tmp_path, "\n".join(quoted)))["user"] == "ann"


def test_quotes_that_enclose_nothing_do_not_spoil_other_rows(tmp_path):
    odd = a_helios_row(job_id="2", user='x"', vc='"y')
    batch = read(a_helios_file(tmp_path, a_helios_row(), odd, a_helios_row(job_id="3", user='"ann"')))
    assert {"1", "3"} <= set(batch.jobs["job_id"]) and len(batch.jobs) + len(batch.rejects) == 3


def test_a_very_long_reject_is_cut_at_2000_characters(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row(), "x" * 5_000)
    assert len(read(path).rejects["text"][0]) == 2_000


def test_lines_are_numbered_across_batches(tmp_path):
    rows = [a_helios_row(job_id=str(number), gpus="?" if number == 7 else "1") for number in range(10)]
    rejects = read(a_helios_file(tmp_path, *rows), rows_per_batch=2).rejects
    assert rejects["line"].tolist() == [9]


def test_the_batch_size_does_not_change_what_is_read(tmp_path):
    rows = [a_helios_row(job_id=str(number)) for number in range(300)]
    path = a_helios_file(tmp_path, *rows)
    whole, small = read(path).jobs, read(path, rows_per_batch=7).jobs
    assert whole["job_id"].tolist() == small["job_id"].tolist()


def test_a_header_repeated_by_concatenation_is_no_row(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row(), HELIOS_HEADER, a_helios_row(job_id="2"))
    assert (len(read(path).jobs), len(read(path).rejects)) == (2, 0)


@pytest.mark.parametrize("ending", ["\r\n", "\n", "\n\n"])
def test_line_endings_and_blank_lines_do_not_matter(tmp_path, ending):
    path = a_file(tmp_path, ending.join([HELIOS_HEADER, a_helios_row(), a_helios_row(job_id="2")]))
    assert (len(read(path).jobs), len(read(path).rejects)) == (2, 0)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = a_file(tmp_path, f"\ufeff{HELIOS_HEADER}\n{a_helios_row()}\n")
    assert open_trace(path).format is TraceFormat.HELIOS and len(read(path).jobs) == 1


names = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=12).filter(
    lambda text: text.count("\n") < 4
)


@settings(deadline=None, max_examples=examples(15))
@given(written=st.lists(names, min_size=1, max_size=8))
def test_names_are_read_back_as_the_csv_module_writes_them(tmp_path_factory, written):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job_id", "submit_time", "name"])
    writer.writerows([[str(place), "2020-04-01 10:00:00", name] for place, name in enumerate(written)])
    path = a_file(tmp_path_factory.mktemp("csv"), text.getvalue())
    assert read(path).jobs["name"].tolist() == written


@pytest.mark.parametrize("name", ["made.csv", "made.csv.gz"])
def test_what_is_written_is_read_back_the_same(tmp_path, name, a_week):
    write_helios_csv(a_week, tmp_path / name)
    again = read(tmp_path / name).jobs
    columns = [name for name in JOBS.names if name != "eligible_at"]
    pd.testing.assert_frame_equal(again[columns], a_week[columns], check_categorical=False)


def test_times_are_written_in_a_zone_and_read_back_in_it(tmp_path, a_week):
    write_helios_csv(a_week.head(3), tmp_path / "local.csv", timezone="Asia/Shanghai")
    again = read(tmp_path / "local.csv", timezone="Asia/Shanghai").jobs
    assert again["submitted_at"].tolist() == a_week["submitted_at"].head(3).tolist()
    assert read(tmp_path / "local.csv").jobs["submitted_at"][0] != a_week["submitted_at"][0]


def test_a_suffix_of_gz_is_what_compresses(tmp_path, a_week):
    write_helios_csv(a_week, tmp_path / "a.csv")
    write_helios_csv(a_week, tmp_path / "a.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes()[:2] == b"\x1f\x8b" != (tmp_path / "a.csv").read_bytes()[:2]


def test_names_with_commas_survive_writing(tmp_path, a_week):
    jobs = a_week.head(3).assign(name=pd.Series(["a,b", 'say "hi"', "plain"], dtype="str"))
    write_helios_csv(jobs, tmp_path / "quoted.csv")
    assert read(tmp_path / "quoted.csv").jobs["name"].tolist() == ["a,b", 'say "hi"', "plain"]


@pytest.fixture(scope="module")
def a_week():
    return synthetic_trace(start=pd.Timestamp("2020-09-01", tz="UTC").to_pydatetime(), days=7)
