"""Real traces: every row accounted for, and totals as other means find them."""

import csv
import gzip
import re

import pytest

from helios.ingest import TraceFormat, open_trace
from tests.traces import TRACES, needs_traces
from tests.unit.ingest.builders import read

pytestmark = needs_traces

VENUS, PHILLY = "helios_venus_mar-aug2020.csv.gz", "philly_vc_aug-oct2017.csv.gz"
GRAHAM, CEDAR = "sacct_graham_may-jun2021.txt.gz", "sacct_cedar_may-jun2021.txt.gz"
PHILLIPS = "sacct_raw_phillips_dec2016.txt.gz"
KTH, BLUE = "KTH-SP2-1996-2.1-cln.swf.gz", "SDSC-BLUE-2000-4.2-cln.swf.gz"

# Rows as traces/README.md gives them; for KTH and SDSC-BLUE ("28k", "243k") as `grep -vc '^;'` counts them.
ROWS = {VENUS: 99_707, PHILLY: 52_849, GRAHAM: 131_939, CEDAR: 84_773, PHILLIPS: 4_285, KTH: 27_992, BLUE: 243_306}
FORMATS = {
    **dict.fromkeys((VENUS, PHILLY), TraceFormat.HELIOS),
    **dict.fromkeys((GRAHAM, CEDAR, PHILLIPS), TraceFormat.SACCT),
    **dict.fromkeys((KTH, BLUE), TraceFormat.SWF),
}
BATCHES = {}


def read_once(name):
    if name not in BATCHES:
        BATCHES[name] = read(TRACES / name)
    return BATCHES[name]


def lines_of(name):
    with gzip.open(TRACES / name, "rt") as text:
        yield from (line.rstrip("\n") for line in text)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_becomes_a_job(name):
    batch = read_once(name)
    assert (len(batch.jobs), len(batch.rejects)) == (ROWS[name], 0)


@pytest.mark.parametrize("name", ROWS)
def test_the_format_is_recognised(name):
    assert open_trace(TRACES / name).format is FORMATS[name]


@pytest.mark.parametrize(("name", "cluster"), [(GRAHAM, "graham"), (PHILLIPS, "phillips"), (VENUS, None), (KTH, None)])
def test_the_cluster_is_the_one_the_file_names(name, cluster):
    assert open_trace(TRACES / name).cluster == cluster


@pytest.mark.parametrize("name", [VENUS, PHILLY])
def test_gpus_and_run_times_sum_to_what_the_csv_module_finds(name):
    rows = list(csv.DictReader(lines_of(name)))
    jobs = read_once(name).jobs
    assert jobs["gpus"].sum() == sum(int(row["gpu_num"]) for row in rows)
    assert jobs["run_time_s"].sum() == sum(int(row["duration"]) for row in rows)


@pytest.mark.parametrize("name", [GRAHAM, CEDAR])
def test_elapsed_time_and_gpus_sum_to_what_splitting_lines_finds(name):
    header, *lines = lines_of(name)
    rows = [dict(zip(header.split("|"), line.split("|"), strict=True)) for line in lines]
    gpus = sum(int(found[1]) for row in rows if (found := re.search(r"gres/gpu=(\d+)", row["ReqTRES"])))
    jobs = read_once(name).jobs
    assert jobs["run_time_s"].sum() == sum(int(row["ElapsedRaw"]) for row in rows)
    assert jobs["gpus"].sum() == gpus


def test_memory_with_the_hidden_per_cpu_flag_is_what_slurm_allocated():
    jobs = read_once(PHILLIPS).jobs
    given = jobs["tres_allocated"].astype("str").str.extract(r"mem=(\d+)M", expand=False).astype(float)
    asked = [line.split("|")[20] for line in lines_of(PHILLIPS)]
    flagged = [text == "2147486648Mn" for text in asked]
    assert sum(flagged) > 4_000
    assert (jobs["memory_mib"][flagged] == given[flagged]).mean() > 0.98


def test_jobs_without_a_node_never_started():
    jobs = read_once(PHILLIPS).jobs
    assert (jobs["started_at"].isna() == (jobs["node_list"] == "None assigned")).all()


@pytest.mark.parametrize("name", [KTH, BLUE])
def test_waits_and_run_times_sum_to_what_splitting_lines_finds(name):
    rows = [list(map(float, line.split())) for line in lines_of(name) if not line.startswith(";")]
    jobs = read_once(name).jobs
    waits = (jobs["started_at"] - jobs["submitted_at"]).dt.total_seconds()
    assert jobs["run_time_s"].sum() == sum(row[3] for row in rows if row[3] >= 0)
    assert waits.sum() == sum(row[2] for row in rows if row[3] > 0 or row[4] > 0 or row[10] != 5)


def test_batches_of_any_size_hold_the_same_jobs():
    whole = read_once(CEDAR).jobs
    parts = [batch.jobs["job_id"] for batch in open_trace(TRACES / CEDAR).read(rows_per_batch=10_000)]
    assert [job for part in parts for job in part] == whole["job_id"].tolist()
