import re

import numpy as np
import pandas as pd
import pytest

from helios.errors import FormatUnknown
from helios.ingest import TraceFormat, open_trace
from tests.unit.ingest.builders import (
    a_file,
    a_raw_row,
    a_sacct_file,
    a_sacct_row,
    read,
    rejects_of,
    the_job,
)


def a_job(folder, **fields):
    return the_job(a_sacct_file(folder, a_sacct_row(**fields)))


def test_a_header_in_any_case_and_order_is_understood(tmp_path):
    job = the_job(a_file(tmp_path, "SUBMIT|nonsense|jobid\n2021-05-01T10:00:00|x|5\n"))
    assert job["job_id"] == "5" and job["submitted_at"] == pd.Timestamp("2021-05-01T10:00:00", tz="UTC")


def test_the_bar_that_parsable_adds_at_the_end_is_no_field(tmp_path):
    assert the_job(a_file(tmp_path, "JobID|Submit|\n5|2021-05-01T10:00:00|\n"))["job_id"] == "5"


def test_a_raw_dump_has_its_26_fields_without_a_header(tmp_path):
    trace = open_trace(a_file(tmp_path, a_raw_row(user="ann", jobname="fit") + "\n"))
    job = next(trace.read()).jobs.iloc[0]
    assert (trace.format, job["job_id"], job["user"], job["name"]) == (TraceFormat.SACCT, "7", "ann", "fit")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 380693", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("OOM", "OUT_OF_MEMORY"),
        ("node_fail", "NODE_FAIL"),
        ("TIMEOUT", "TIMEOUT"),
    ],
)
def test_states_are_read_as_slurm_prints_them(tmp_path, text, state):
    assert a_job(tmp_path, State=text)["state"] == state


@pytest.mark.parametrize("text", ["WEIRD", "COMPLETED?", "?"])
def test_an_unknown_state_is_rejected(tmp_path, text):
    path = a_sacct_file(tmp_path, a_sacct_row(), a_sacct_row(JobIDRaw="101", State=text))
    assert rejects_of(path) == [(3, "unknown state")]


@pytest.mark.parametrize("text", ["Unknown", "None", "", "N/A"])
def test_a_pending_job_is_kept_without_start_and_end(tmp_path, text):
    job = a_job(tmp_path, State="PENDING", Start=text, End=text)
    assert job[["started_at", "ended_at", "run_time_s"]].isna().all()


def test_a_running_jobs_elapsed_time_is_not_its_run_time(tmp_path):
    job = a_job(tmp_path, State="RUNNING", End="Unknown", ElapsedRaw="500")
    assert job[["ended_at", "run_time_s"]].isna().all()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("37-14:00:00", 37 * 86_400 + 14 * 3_600),
        ("20:00:00", 72_000),
        ("30:00", 1_800),
        ("1-12", 36 * 3_600),
        ("UNLIMITED", np.inf),
    ],
)
def test_time_limits_are_read_as_slurm_prints_them(tmp_path, text, seconds):
    assert a_job(tmp_path, Timelimit=text)["time_limit_s"] == seconds


@pytest.mark.parametrize("text", ["Partition_Limit", "", "Unknown"])
def test_a_limit_that_the_partition_sets_is_unknown(tmp_path, text):
    assert np.isnan(a_job(tmp_path, Timelimit=text)["time_limit_s"])


def test_a_raw_time_limit_is_in_minutes(tmp_path):
    assert a_job(tmp_path, TimelimitRaw="90")["time_limit_s"] == 5_400


def test_a_time_limit_that_is_no_duration_is_rejected(tmp_path):
    path = a_sacct_file(tmp_path, a_sacct_row(Timelimit="1:00:00"), a_sacct_row(JobIDRaw="2", Timelimit="INVALID"))
    assert rejects_of(path) == [(3, "duration is not understood")]


def test_an_unknown_end_is_found_from_the_elapsed_time(tmp_path):
    job = a_job(tmp_path, End="Unknown", Elapsed="1-00:00:10")
    assert job["ended_at"] == pd.Timestamp("2021-05-02T10:01:10", tz="UTC") and job["run_time_s"] == 86_410


def test_an_unknown_start_is_found_from_the_elapsed_time(tmp_path):
    job = a_job(tmp_path, Start="Unknown", ElapsedRaw="3600")
    assert job["started_at"] == pd.Timestamp("2021-05-01T10:01:00", tz="UTC")


def test_a_job_cancelled_while_pending_never_started(tmp_path):
    moment = "2021-05-01T12:00:00"
    job = a_job(tmp_path, State="CANCELLED by 5", Start=moment, End=moment, NodeList="None assigned")
    assert pd.isna(job["started_at"]) and np.isnan(job["run_time_s"]) and not pd.isna(job["ended_at"])


def test_a_zero_length_job_that_had_a_node_did_start(tmp_path):
    moment = "2021-05-01T12:00:00"
    assert a_job(tmp_path, Start=moment, End=moment, NodeList="n1")["run_time_s"] == 0


@pytest.mark.parametrize(
    ("fields", "gpus", "kind"),
    [
        ({"ReqTRES": "cpu=8,gres/gpu=2"}, 2, None),
        ({"ReqTRES": "gres/gpu:a100=2,gres/gpu=2"}, 2, "a100"),
        ({"ReqTRES": "gres/gpu:a100=2"}, 2, "a100"),
        ({"ReqTRES": "gres/gpu:a100=2,gres/gpu:v100=1"}, 3, "a100,v100"),
        ({"ReqTRES": "gres/gpu=2", "AllocTRES": "gres/gpu=4,gres/gpu:h100=4"}, 4, "h100"),
        ({"ReqTRES": "cpu=8", "AllocTRES": "cpu=8,gres/gpu=4"}, 4, None),
        ({"ReqGRES": "gpu:2", "NNodes": "3"}, 6, None),
        ({"ReqGRES": "gpu:tesla:2(IDX:0,1),craynetwork:1", "NNodes": "1"}, 2, "tesla"),
        ({"AllocGRES": "gres:gpu:v100:2", "NNodes": "2"}, 2, "v100"),
        ({"ReqGRES": "gpu:4", "AllocGRES": "gpu:16", "NNodes": "4"}, 16, None),
        ({"ReqGRES": "gpu:p100:2", "AllocGRES": "gpu:4", "NNodes": "2"}, 4, "p100"),
        ({"AllocGRES": "gpu:v100:6,gpu:p100:2", "NNodes": "4"}, 8, "p100,v100"),
        ({"ReqGRES": "gpu:2", "AllocGRES": "gpu:6", "AllocTRES": "cpu=8,gres/gpu=6,node=3", "NNodes": "3"}, 6, None),
        ({"ReqGRES": "gpu:2", "AllocGRES": "", "NNodes": "3"}, 6, None),
        ({"AllocGRES": "7696487:2", "NNodes": "1"}, 2, None),
        ({"ReqGRES": "gpu", "NNodes": "1"}, 1, None),
        ({"ReqTRES": "cpu=8,gres/shard=4"}, np.nan, None),
        ({"ReqTRES": ""}, np.nan, None),
    ],
)
def test_gpus_are_counted_once_from_what_was_given_else_asked(tmp_path, fields, gpus, kind):
    job = a_job(tmp_path, **fields)
    assert job["gpus"] == pytest.approx(gpus, nan_ok=True)
    assert job["gpu_type"] == kind if kind else pd.isna(job["gpu_type"])


@pytest.mark.parametrize(
    ("fields", "mib"),
    [
        ({"ReqMem": "31000Mn", "NNodes": "2"}, 62_000),
        ({"ReqMem": "4Gc", "ReqCPUS": "8"}, 32_768),
        ({"ReqMem": "4G", "ReqCPUS": "8"}, 4_096),
        ({"ReqMem": "2147486648Mn", "ReqCPUS": "8"}, 24_000),
        ({"ReqMem": "9223372036854778808Mc", "ReqCPUS": "2"}, 6_000),
        ({"ReqMem": "1Tn", "NNodes": "1"}, 1_048_576),
        ({"ReqMem": "512K"}, 0.5),
        ({"ReqTRES": "cpu=64,mem=62.50G,node=8", "ReqMem": "1M"}, 64_000),
        ({"AllocTRES": "mem=100M"}, 100),
    ],
)
def test_memory_is_mib_for_the_whole_job(tmp_path, fields, mib):
    assert a_job(tmp_path, **fields)["memory_mib"] == mib


@pytest.mark.parametrize("text", ["0n", "", "?", "Unknown"])
def test_memory_that_says_nothing_is_unknown(tmp_path, text):
    assert np.isnan(a_job(tmp_path, ReqMem=text)["memory_mib"])


@pytest.mark.parametrize(
    ("fields", "nodes", "cpus"),
    [
        ({"AllocNodes": "0", "ReqNodes": "2", "ReqCPUS": "16"}, 2, 16),
        ({"NNodes": "2K", "AllocCPUS": "64"}, 2_048, 64),
        ({"ReqTRES": "cpu=24,node=3"}, 3, 24),
    ],
)
def test_sizes_come_from_the_first_field_that_knows(tmp_path, fields, nodes, cpus):
    job = a_job(tmp_path, **fields)
    assert (job["nodes"], job["cpus"]) == (nodes, cpus)


BOTH = {"ReqTRES": "cpu=1,gres/gpu=1,node=1", "AllocTRES": "cpu=64,gres/gpu=8,node=2"}
COUNTS = {"ReqCPUS": "1", "ReqNodes": "1", "NCPUS": "64", "NNodes": "2"}


@pytest.mark.parametrize(("fields", "gpus"), [(BOTH, (8, 1)), (COUNTS, (np.nan, np.nan))])
def test_a_started_job_has_its_allocation_and_keeps_its_request(tmp_path, fields, gpus):
    job = a_job(tmp_path, **fields)
    sizes = [job[f"{name}{end}"] for name in ("nodes", "cpus", "gpus") for end in ("", "_requested")]
    np.testing.assert_array_equal(sizes, (2, 1, 64, 1, *gpus))


def test_a_job_that_never_started_holds_what_it_requested(tmp_path):
    never = {"Start": "Unknown", "End": "Unknown", "Elapsed": "00:00:00", "State": "PENDING"}
    job = a_job(tmp_path, **BOTH, **never)
    assert job[["nodes", "cpus", "gpus"]].tolist() == [1, 1, 1]


@pytest.mark.parametrize("step", ["100.batch", "100.extern", "100.0", "100_3.batch", "100+1.0"])
def test_job_steps_are_skipped_and_told_not_rejected(tmp_path, step):
    batch = read(a_sacct_file(tmp_path, a_sacct_row(), a_sacct_row(JobID=step, JobIDRaw="100.0")))
    assert (len(batch.jobs), len(batch.rejects)) == (1, 0)
    assert any(note.startswith("1 job steps") for note in batch.notes)


def test_a_step_is_no_duplicate_of_its_job(tmp_path):
    assert read(a_sacct_file(tmp_path, a_sacct_row(), a_sacct_row(JobID="100.batch"))).jobs["restart"].tolist() == [0]


@pytest.mark.parametrize(("shown", "task"), [("123_4", "4"), ("123_[5-9]", "[5-9]"), ("123_[1,3-9%2]", "[1,3-9%2]")])
def test_array_tasks_keep_their_array(tmp_path, shown, task):
    job = a_job(tmp_path, JobID=shown, JobIDRaw="130")
    assert (job["job_id"], job["array_job_id"], job["array_task_id"]) == ("130", "123", task)


def test_parts_of_a_heterogeneous_job_keep_their_leader(tmp_path):
    job = a_job(tmp_path, JobID="123+2", JobIDRaw="125")
    assert (job["job_id"], job["het_job_id"], job["het_job_offset"]) == ("125", "123", 2)


def test_an_array_task_without_raw_id_is_its_own_job(tmp_path):
    path = a_file(tmp_path, "JobID|Submit\n123_4|2021-05-01T10:00:00\n123_5|2021-05-01T10:00:00\n")
    assert read(path).jobs["job_id"].tolist() == ["123_4", "123_5"]


@pytest.mark.parametrize("text", ["abc", "12x", "-5"])
def test_an_id_that_is_none_is_rejected(tmp_path, text):
    path = a_sacct_file(tmp_path, a_sacct_row(), a_sacct_row(JobID=text, JobIDRaw=text))
    assert rejects_of(path) == [(3, "job id is not understood")]


def named(name, after="COMPLETED"):
    header = "JobIDRaw|JobName|Submit|State"
    return f"{header}\n1|first|2021-05-01T10:00:00|COMPLETED\n2|{name}|2021-05-01T10:00:00|{after}\n"


@pytest.mark.parametrize("name", ["a|b", "a||b|", "a\nb", "a\nb\nc", "a|b\nc", "5\n6"])
def test_bars_and_newlines_in_a_name_are_put_together_again(tmp_path, name):
    batch = read(a_file(tmp_path, named(name)))
    assert batch.jobs["name"].tolist() == ["first", name] and len(batch.rejects) == 0
    assert any("put together" in note for note in batch.notes)


@pytest.mark.parametrize("name", ["a|b", "|", "a\nb", "a\nb|c\nd"])
def test_bars_and_newlines_in_a_last_name_are_put_together_again(tmp_path, name):
    rows = [a_raw_row(jobid="1", jobidraw="1"), a_raw_row(jobname=name), a_raw_row(jobid="9", jobidraw="9")]
    batch = read(a_file(tmp_path, "\n".join(rows) + "\n"))
    assert batch.jobs["name"].tolist() == ["fit", name, "fit"] and len(batch.rejects) == 0


@pytest.mark.parametrize("rows_per_batch", [1, 2, 3])
def test_a_broken_row_survives_a_batch_ending_inside_it(tmp_path, rows_per_batch):
    path = a_file(tmp_path, named("a\nb\nc") + "3|last|2021-05-01T10:00:00|COMPLETED\n")
    assert read(path, rows_per_batch=rows_per_batch).jobs["name"].tolist() == ["first", "a\nb\nc", "last"]


def test_a_row_cut_short_does_not_swallow_the_next(tmp_path):
    text = "JobIDRaw|JobName|Submit|State\n1|a|2021-05-01T10\n2|b|2021-05-01T10:00:00|COMPLETED\n"
    batch = read(a_file(tmp_path, text))
    assert batch.jobs["job_id"].tolist() == ["2"]
    assert batch.rejects["text"].tolist() == ["1|a|2021-05-01T10"]


def test_two_rows_cut_short_are_not_taken_for_one(tmp_path):
    text = "JobIDRaw|Submit|State|User\n1|2021-05-01T10:00:00|COMPLETED|a\n2|x\n3|y|z\n"
    assert rejects_of(a_file(tmp_path, text)) == [(3, "wrong number of fields"), (4, "wrong number of fields")]


def test_a_surplus_that_the_name_cannot_explain_is_rejected(tmp_path):
    text = "JobIDRaw|Submit|JobName\n1|2021-05-01T10:00:00|ok\n2|x|2021-05-01T10:00:00|b\n"
    assert rejects_of(a_file(tmp_path, text)) == [(3, "wrong number of fields")]


def test_a_constraint_with_bars_does_not_push_the_name(tmp_path):
    text = "JobIDRaw|JobName|Submit|Constraints|User\n1|fit|2021-05-01T10:00:00|a100|h100|ann\n"
    job = the_job(a_file(tmp_path, text))
    assert (job["name"], job["user"]) == ("fit", "ann")


def test_many_lines_of_rubbish_are_not_taken_for_the_last_name(tmp_path):
    batch = read(a_file(tmp_path, "\n".join([a_raw_row(jobname="fit"), *(["rubbish"] * 200)]) + "\n"))
    assert batch.jobs["name"].tolist() == ["fit"] and len(batch.rejects) == 200


def test_a_user_without_name_goes_by_number(tmp_path):
    assert a_job(tmp_path, User="", UID="1042")["user"] == "1042"


def test_the_one_cluster_in_the_file_is_named(tmp_path):
    assert open_trace(a_sacct_file(tmp_path, a_sacct_row(Cluster="ada"))).cluster == "ada"


def test_two_clusters_in_a_file_are_told_and_none_is_chosen(tmp_path):
    path = a_sacct_file(tmp_path, a_sacct_row(Cluster="ada"), a_sacct_row(Cluster="bob", JobIDRaw="2"))
    assert open_trace(path).cluster is None
    assert any("ada, bob" in note for note in read(path).notes)


def test_a_nul_byte_is_rejected_and_shown(tmp_path):
    batch = read(a_file(tmp_path, named("\0")))
    assert batch.rejects["reason"].tolist() == ["NUL byte"] and "\\x00" in batch.rejects["text"][0]


@pytest.mark.parametrize(
    ("header", "lacking"),
    [
        ("JobIDRaw|User|State|Start|End|AllocTRES", "lacks the submission (Submit)"),
        ("User;State;Submit;Start;End", "lacks a job id (JobIDRaw)"),
        ("User,State,Start,End", "lacks a job id (JobIDRaw) and the submission (Submit)"),
        (
            "JobID JobName Partition State ExitCode\n------------ ---------- ---------- ---------- --------",
            "--parsable",
        ),
    ],
)
@pytest.mark.parametrize("chosen", [None, "sacct"])
def test_a_file_of_sacct_that_lacks_something_says_what(tmp_path, header, lacking, chosen):
    path = a_file(tmp_path, f"{header}\n1|ann|COMPLETED\n".encode())
    with pytest.raises(FormatUnknown, match=re.escape(lacking)) as refused:
        list(open_trace(path, format=chosen).read())
    assert "--format=JobIDRaw" in refused.value.hint


@pytest.mark.parametrize("first", ["a,b,c", "some text about a job", "user,id,when"])
def test_what_is_not_sacct_s_is_not_said_to_be(tmp_path, first):
    with pytest.raises(FormatUnknown, match="not recognised"):
        open_trace(a_file(tmp_path, f"{first}\n1,2,3\n".encode()))
