import bz2
import gzip
import hashlib
import json
import lzma

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FormatUnknown, HeliosError, NothingUnderstood
from helios.ingest import TraceFormat, open_trace
from helios.ingest.reader import LAYOUTS
from helios.model import REJECTS
from tests.examples import examples
from tests.unit.ingest.builders import (
    HELIOS_HEADER,
    KALOS_HEADER,
    SEREN_HEADER,
    a_file,
    a_helios_file,
    a_helios_row,
    a_json_job,
    a_kalos_row,
    a_pai_job,
    a_pai_task,
    a_parquet_file,
    a_philly_attempt,
    a_philly_job,
    a_raw_row,
    a_sacct_file,
    a_sacct_row,
    an_swf_file,
    an_swf_row,
    read,
    the_job,
)

CONTENTS = {
    TraceFormat.HELIOS: f"{HELIOS_HEADER}\n{a_helios_row()}\n".encode(),
    TraceFormat.SACCT: a_raw_row().encode() + b"\n",
    TraceFormat.SWF: f"; UnixStartTime: 5\n{an_swf_row()}\n".encode(),
    TraceFormat.SACCT_JSON: json.dumps({"jobs": [a_json_job()], "errors": []}, indent=2).encode(),
    TraceFormat.PHILLY: json.dumps([a_philly_job(a_philly_attempt())], indent=1).encode(),
    TraceFormat.PAI: a_pai_job().encode() + b"\n",
    TraceFormat.PARQUET: a_parquet_file(),
    TraceFormat.ACME: f"{KALOS_HEADER}\n{a_kalos_row()}\n".encode(),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["plain.txt", "wrong.gz"])
@pytest.mark.parametrize("expected", list(TraceFormat))
def test_format_and_compression_are_told_by_content_alone(tmp_path, expected, name, packed):
    path = a_file(tmp_path, CONTENTS[expected], packed=packed, name=name)
    a_file(tmp_path, a_pai_task() + "\n", name="pai_task_table.csv")
    assert open_trace(path).format is expected and len(read(path).jobs) == 1


def test_gzip_members_behind_each_other_are_one_file(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row())
    path.write_bytes(gzip.compress(path.read_bytes()) + gzip.compress(a_helios_row(job_id="2").encode()))
    assert len(read(path).jobs) == 2


def test_size_and_hash_are_those_of_the_file_on_disk(tmp_path):
    trace = open_trace(a_file(tmp_path, CONTENTS[TraceFormat.SWF], packed=True))
    data = trace.path.read_bytes()
    assert (trace.size_bytes, trace.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_bytes_read_end_at_the_files_size(tmp_path):
    path = a_helios_file(tmp_path, *(a_helios_row(job_id=str(number)) for number in range(500)))
    assert read(path, rows_per_batch=50).bytes_read == path.stat().st_size


def test_batches_are_no_larger_than_asked(tmp_path):
    path = a_helios_file(tmp_path, *(a_helios_row(job_id=str(number)) for number in range(500)))
    assert [len(batch.jobs) for batch in open_trace(path).read(rows_per_batch=100)] == [99, 100, 100, 100, 100, 1]


def test_reading_twice_gives_the_same(tmp_path):
    trace = open_trace(a_helios_file(tmp_path, a_helios_row()))
    first, second = (next(trace.read()).jobs for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_notes_come_once_with_the_last_batch(tmp_path):
    path = a_helios_file(tmp_path, *(a_helios_row(job_id=str(number)) for number in range(10)))
    *others, last = open_trace(path).read(rows_per_batch=3)
    assert not any(batch.notes for batch in others) and len(last.notes) == 1


def test_rejects_have_the_declared_columns_and_types(tmp_path):
    REJECTS.check(read(a_helios_file(tmp_path, a_helios_row(), "x")).rejects)


def test_a_format_not_recognised_names_the_known_ones_and_the_option(tmp_path):
    with pytest.raises(FormatUnknown, match="(?s)" + ".*".join(["--format", *LAYOUTS])):
        open_trace(a_file(tmp_path, "hello\nworld\n"))


@pytest.mark.parametrize("wrong", [wrong for wrong in TraceFormat if wrong is not TraceFormat.SWF])
def test_a_format_named_wrongly_is_an_error(tmp_path, wrong):
    with pytest.raises(FormatUnknown, match="not"):
        read(an_swf_file(tmp_path, an_swf_row()), format=wrong)


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"", mtime=0), b" "])
def test_an_empty_file_is_an_error(tmp_path, content):
    with pytest.raises(NothingUnderstood, match="is empty"):
        open_trace(a_file(tmp_path, content))


def test_a_file_with_only_a_header_holds_no_jobs(tmp_path):
    with pytest.raises(NothingUnderstood, match="no jobs"):
        read(a_helios_file(tmp_path))


def test_a_file_of_which_nothing_was_understood_names_the_first_reasons(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row(gpus="x"), a_helios_row(gpus="y"), a_helios_row(state="z"))
    with pytest.raises(NothingUnderstood, match=r"\(2 rows, first 'x' in gpu_num on line 2\); unknown state \(1 row,"):
        read(path)


@pytest.mark.parametrize("kept", [10, 200, -9])
def test_a_truncated_gzip_is_an_error_before_the_first_batch(tmp_path, kept):
    rows = "\n".join(a_helios_row(job_id=str(number)) for number in range(2_000))
    path = a_file(tmp_path, gzip.compress(f"{HELIOS_HEADER}\n{rows}\n".encode())[:kept])
    with pytest.raises(FileUnreadable, match="decompressed to its end"):
        next(open_trace(path).read(rows_per_batch=10))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileUnreadable, match="No such file"):
        open_trace(tmp_path / "nowhere")


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(FileUnreadable, match="directory"):
        open_trace(tmp_path)


COMPRESSIONS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda text: pa.Codec("zstd").compress(text, asbytes=True),
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_files_are_read_as_plain_ones(tmp_path, name):
    path = a_file(tmp_path, COMPRESSIONS[name](f"{HELIOS_HEADER}\n{a_helios_row(job_id='7')}\n".encode()))
    assert the_job(path)["job_id"] == "7"


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_cut_compressed_file_is_an_error(tmp_path, name):
    rows = "\n".join(a_helios_row(job_id=str(number)) for number in range(2_000))
    whole = COMPRESSIONS[name](f"{HELIOS_HEADER}\n{rows}\n".encode())
    with pytest.raises(FileUnreadable, match="decompressed to its end"):
        read(a_file(tmp_path, whole[:-20]))


def test_a_zip_archive_is_named(tmp_path):
    with pytest.raises(FormatUnknown, match="zip archive"):
        open_trace(a_file(tmp_path, b"PK\x03\x04rest"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be-mark", "utf-8-sig"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_texts_of_windows_programs_are_read(tmp_path, encoding, compress):
    text = f"{HELIOS_HEADER}\r\n{a_helios_row(job_id='7', user='Zoë')}\r\n"
    mark = "\ufeff" if encoding == "utf-16-be-mark" else ""
    content = (mark + text).encode(encoding.removesuffix("-mark"))
    assert the_job(a_file(tmp_path, compress(content)))[["job_id", "user"]].tolist() == ["7", "Zoë"]


@settings(deadline=None)
@given(content=st.binary(max_size=400), chosen=st.sampled_from([None, *TraceFormat]))
def test_arbitrary_bytes_raise_nothing_but_helios_errors(tmp_path_factory, content, chosen):
    read_or_refuse(a_file(tmp_path_factory.mktemp("bytes"), content), chosen)


pieces = st.lists(
    st.sampled_from([b"1", b"-", b"|", b",", b" ", b"\n", b"\r", b'"', b"\0", b"\xff", "é".encode(), b"9" * 30, b"."])
    | st.sampled_from([b"2020-04-01 10:00:00", b"1-1:1:1", b"gpu:2", b"K", b"_[", b"+", b"nan", b"1e999", b"="])
    | st.sampled_from(
        [b"{", b"}", b"[", b"]", b'"job_id":', b'"attempts":', b'"time":', b"null", b"Terminated", b"9" * 5_000]
    ),
    max_size=60,
).map(b"".join)
starts = st.sampled_from(
    [
        HELIOS_HEADER.encode() + b"\n",
        b"job_id,submit_time,gpu_num,time_limit,name\n",
        b"JobID|Submit|JobName|State|ReqTRES|ReqMem|Timelimit\n",
        b"JobID|Submit\n",
        b"; UnixStartTime: 9\n",
        an_swf_row().encode() + b"\n",
        a_raw_row().encode() + b"\n",
        SEREN_HEADER.encode() + b"\n",
        a_pai_job().encode() + b"\n",
        json.dumps([a_philly_job(a_philly_attempt())]).encode()[:-1] + b",",
        b'{"jobs":[' + json.dumps(a_json_job()).encode() + b",",
    ]
)


@settings(deadline=None)
@example(start=b'{"jobs":[' + json.dumps(a_json_job()).encode() + b",", rest=b"9" * 5_000, rows_per_batch=1)
@given(start=starts, rest=pieces, rows_per_batch=st.integers(1, 5))
def test_a_good_start_with_any_rest_raises_nothing_but_helios_errors(tmp_path_factory, start, rest, rows_per_batch):
    read_or_refuse(a_file(tmp_path_factory.mktemp("rest"), start + rest), None, rows_per_batch=rows_per_batch)


fields = st.sampled_from(["", "1", "-1", "1e30", "x", "é", "2020-04-01 10:00:00", "2199-12-31T23:59:59", "0001-01-01"])


@settings(deadline=None, max_examples=examples(15))
@given(row=st.lists(fields, min_size=12, max_size=12))
def test_every_helios_row_is_a_job_or_a_reject(tmp_path_factory, row):
    path = a_helios_file(tmp_path_factory.mktemp("row"), a_helios_row(job_id="first"), ",".join(row))
    batch = read(path)
    assert len(batch.jobs) + len(batch.rejects) == 2


@settings(deadline=None, max_examples=examples(15))  # each is two files' worth of work
@given(row=st.lists(fields, min_size=18, max_size=18))
def test_every_sacct_row_is_a_job_or_a_reject(tmp_path_factory, row):
    names = [
        *("JobID", "Submit", "Start", "End", "State", "ReqTRES", "ReqMem", "Timelimit", "NNodes", "ReqCPUS"),
        *("Elapsed", "ReqGRES", "User", "Eligible", "NodeList", "Cluster", "ExitCode", "JobName"),
    ]
    good = a_sacct_row(**dict.fromkeys(set(names) - set(a_sacct_row()), ""))
    good = {name: good[name] for name in names}
    batch = read(a_sacct_file(tmp_path_factory.mktemp("row"), good, dict(zip(names, row, strict=True))))
    assert len(batch.jobs) + len(batch.rejects) == 2


def read_or_refuse(path, chosen, rows_per_batch=200_000):
    a_file(path.parent, a_pai_task() + "\nx\n", name="pai_task_table.csv")
    try:
        read(path, format=chosen, rows_per_batch=rows_per_batch)
    except HeliosError as refusal:
        assert str(refusal)
