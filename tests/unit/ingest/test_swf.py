import gzip

import numpy as np
import pandas as pd
import pytest

from helios.ingest import RecordedMachine, open_trace, write_swf
from helios.ingest.swf import _STATUS
from helios.model import JobState
from tests.builders import a_job, jobs_frame
from tests.unit.ingest.builders import a_file, an_swf_file, an_swf_row, read, rejects_of, the_job


def test_times_count_from_the_headers_start_in_utc(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(submit=100, wait=10, run=60)))
    seconds = [int(job[name].timestamp()) for name in ("submitted_at", "started_at", "ended_at")]
    assert seconds == [1_000_000_100, 1_000_000_110, 1_000_000_170]


def test_labels_stay_numbers_in_text(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(user=3, group=2, queue=1, executable=5)))
    assert job[["user", "group", "partition", "name"]].tolist() == ["3", "2", "1", "5"]


def test_minus_one_is_unknown(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(user=-1, group=-1, queue=-1, executable=-1, requested_time=-1)))
    assert job[["user", "group", "partition", "name", "time_limit_s"]].isna().all()


def test_the_partition_number_stands_in_for_an_unknown_queue(tmp_path):
    assert the_job(an_swf_file(tmp_path, an_swf_row(queue=-1, partition=9)))["partition"] == "9"


def test_allocated_processors_come_before_requested_ones_which_are_kept(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(procs=4, requested_procs=8)))
    assert (job["cpus"], job["cpus_requested"]) == (4, 8)


def test_requested_processors_stand_in_for_unknown_allocations(tmp_path):
    assert the_job(an_swf_file(tmp_path, an_swf_row(procs=-1, requested_procs=8)))["cpus"] == 8


def test_allocated_processors_stand_in_for_unknown_requests(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(procs=4, requested_procs=-1)))
    assert job["cpus"] == 4 and np.isnan(job["cpus_requested"])


def test_requested_memory_is_kib_for_each_processor(tmp_path):
    assert the_job(an_swf_file(tmp_path, an_swf_row(requested_procs=4, requested_memory=2048)))["memory_mib"] == 8


@pytest.mark.parametrize(("status", "state"), [(0, "FAILED"), (1, "COMPLETED"), (5, "CANCELLED")])
def test_status_numbers_are_states(tmp_path, status, state):
    assert the_job(an_swf_file(tmp_path, an_swf_row(status=status)))["state"] == state


def test_an_unknown_status_stays_unknown(tmp_path):
    assert pd.isna(the_job(an_swf_file(tmp_path, an_swf_row(status=-1)))["state"])


def test_partial_executions_are_skipped_and_told(tmp_path):
    rows = [an_swf_row(status=1), an_swf_row(status=2, submit=-1), an_swf_row(status=3, submit=-1)]
    batch = read(an_swf_file(tmp_path, *rows))
    assert (len(batch.jobs), len(batch.rejects)) == (1, 0) and batch.notes[0].startswith("2 partial executions")


def test_a_job_cancelled_before_its_start_has_no_start_or_run_time(tmp_path):
    job = the_job(an_swf_file(tmp_path, an_swf_row(status=5, run=-1, procs=-1, wait=74)))
    assert pd.isna(job["started_at"]) and np.isnan(job["run_time_s"])
    assert int(job["ended_at"].timestamp()) == 1_000_000_174


def test_fractions_and_tabs_are_read(tmp_path):
    path = an_swf_file(tmp_path, an_swf_row().replace("  ", "\t").replace("\t60\t", " 60.5 "))
    assert the_job(path)["run_time_s"] == 60.5


def test_comments_may_stand_between_rows(tmp_path):
    path = an_swf_file(tmp_path, an_swf_row(), "; a remark of eighteen words", an_swf_row(job=2))
    assert (len(read(path).jobs), len(read(path).rejects)) == (2, 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1 2 3", "wrong number of fields"),
        (an_swf_row(run=-7), "negative run time"),
        (an_swf_row(requested_procs=-9, procs=-9), "negative size"),
        (an_swf_row(submit=10**14), "time is not understood"),
        (an_swf_row().replace("3600", "1h"), "number is not understood"),
    ],
)
def test_a_line_that_makes_no_sense_is_rejected_with_its_reason(tmp_path, row, reason):
    assert rejects_of(an_swf_file(tmp_path, an_swf_row(job=2), row)) == [(3, reason)]


def test_a_file_without_a_start_time_says_so(tmp_path):
    assert any("UnixStartTime" in note for note in read(a_file(tmp_path, an_swf_row() + "\n")).notes)


@pytest.mark.parametrize(
    ("header", "machine"),
    [
        ("; MaxNodes: 40960\n; MaxProcs: 163840", (40_960, 163_840, 4)),
        ("; MaxNodes: 5544\n; MaxProcs: 93312", (5_544, 93_312, 17)),
        (";MaxProcs: 512 (of two kinds)", (512, 512, 1)),
        ("; MaxNodes: 128\n; MaxProcs: -1", (128, 128, 1)),
    ],
)
def test_the_header_describes_the_machine(tmp_path, header, machine):
    found = open_trace(an_swf_file(tmp_path, header, an_swf_row())).machine
    assert found is not None and (*found, found.cpus_per_node) == machine


def test_a_header_without_sizes_describes_no_machine(tmp_path):
    assert open_trace(an_swf_file(tmp_path, "; MaxJobs: 7", an_swf_row())).machine is None


def written(folder, *jobs, **options):
    path = folder / "made.swf.gz"
    notes = write_swf(jobs_frame(*jobs), path, timezone="Europe/Berlin", **options)
    return path, notes


KEPT = ["job_id", "partition", "state", "submitted_at", "started_at", "ended_at", "run_time_s", "time_limit_s", "cpus"]


@pytest.mark.parametrize(
    "job",
    [
        a_job(gpus=0),
        a_job(gpus=0, state="FAILED"),
        a_job(gpus=0, time_limit_s=None, partition=None, state=None),
        a_job(gpus=0, state="CANCELLED", started_at=None, run_time_s=None, ended_at="2020-01-01T09:00:00Z", job_id="9"),
        a_job(gpus=0, state=None, started_at=None, run_time_s=None, ended_at=None),
        a_job(gpus=0, state=None, ended_at=None, run_time_s=None),
        a_job(gpus=0, started_at=None, ended_at=None),
        a_job(gpus=0, cpus=None),
        a_job(gpus=0, run_time_s=0.0, state="CANCELLED"),
    ],
    ids=["ended", "failed", "unknown", "cancelled", "pending", "running", "no start", "no size", "cancelled at once"],
)
def test_a_job_that_is_written_is_read_back_the_same(tmp_path, job):
    path, _ = written(tmp_path, job)
    before, again = jobs_frame(job), read(path).jobs
    before["partition"] = before["partition"].cat.rename_categories({"gpu": "1"})  # names become numbers
    pd.testing.assert_frame_equal(again[KEPT], before[KEPT], check_categorical=False)


def test_requests_and_memory_are_read_back(tmp_path):
    job = the_job(written(tmp_path, a_job(gpus=0, cpus=8.0, cpus_requested=4.0, memory_mib=4096.0))[0])
    assert (job["cpus"], job["cpus_requested"], job["memory_mib"]) == (8, 4, 4096)


def test_the_same_names_are_the_same_numbers(tmp_path):
    path, _ = written(tmp_path, a_job(user="bob"), a_job(user="alice"), a_job(user="bob"), a_job(user=None))
    assert read(path).jobs["user"].astype("object").fillna("-").tolist() == ["2", "1", "2", "-"]


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"])
def test_states_that_the_format_lacks_are_failures(tmp_path, state):
    assert the_job(written(tmp_path, a_job(state=state))[0])["state"] == "FAILED"


def test_every_final_state_has_a_number(tmp_path):
    unfinished = {"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"}
    assert {state.value for state in JobState} - unfinished == set(_STATUS)


def test_gpus_that_have_no_place_are_noted(tmp_path):
    _, notes = written(tmp_path, a_job(gpus=2), a_job(gpus=0))
    assert notes == ("made.swf.gz: processors are CPUs; the format has no place for the GPUs of 1 jobs.",)


def test_processors_are_gpus_where_no_cpus_are_known(tmp_path):
    path, notes = written(tmp_path, a_job(gpus=2, cpus=None))
    assert the_job(path)["cpus"] == 2 and "its processors are GPUs" in notes[0]
    assert b"Note: processors are GPUs" in gzip.decompress(path.read_bytes())


def test_ids_that_are_no_numbers_are_replaced(tmp_path):
    path, notes = written(tmp_path, a_job(job_id="12_3"), a_job(job_id="x"))
    assert read(path).jobs["job_id"].tolist() == ["1", "2"] and any("numbered anew" in note for note in notes)


def test_the_header_has_the_machine_and_the_partitions(tmp_path):
    path, _ = written(tmp_path, a_job(partition="a b"), machine=RecordedMachine(4, 16), cluster="lab\n9 9")
    text = gzip.decompress(path.read_bytes()).decode()
    assert "; Queue: 1 a b\n" in text and "; TimeZoneString: Europe/Berlin\n" in text and "\n9 9" not in text
    assert open_trace(path).machine == RecordedMachine(4, 16)


def test_without_a_cluster_the_header_names_nothing(tmp_path):
    path, _ = written(tmp_path, a_job(partition="secret"))
    assert b"secret" not in gzip.decompress(path.read_bytes())
