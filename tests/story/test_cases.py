"""Rows as sites have them, loaded as a person loads them, with the values that Slurm's source and manual settle."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.slurm.commands import _node
from helios.slurm.power import power, why_not_wake
from tests.story.shell import Helios

CASES = Path(os.environ.get("HELIOS_CASES", Path(__file__).parents[3] / "shared" / "cases"))
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"the cases are not at {CASES}; set HELIOS_CASES")


def load(helios: Helios, *files: Path) -> Any:
    """Load files into the cluster ``site`` and return the last answer."""
    return [helios("trace", "load", file, "--cluster", "site") for file in files][-1]


def jobs(helios: Helios, tmp_path: Path) -> pd.DataFrame:
    """Return the loaded jobs in the order of submission."""
    helios("trace", "export", "--cluster", "site", "--layout", "parquet", "--out", tmp_path / "out")
    return pd.read_parquet(tmp_path / "out" / "jobs.parquet")


def hours(helios: Helios) -> float:
    return float(helios("trace", "describe", "--cluster", "site", "--json").json["resource_hours"])


@needs_cases
def test_a_requeued_run_keeps_its_end_and_its_hours(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "01_requeued.txt")
    assert jobs(helios, tmp_path)["run_time_s"].tolist() == [4 * 3600, 6 * 3600]
    assert hours(helios) == 40


@needs_cases
def test_runs_of_a_job_are_numbered_and_earlier_hours_are_lost(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "02_restarts_after_preemption.txt")
    assert jobs(helios, tmp_path)["restart"].tolist() == [0, 1, 2] and hours(helios) == 48
    assert lost_hours(helios) == 0.5


HEADER = "JobIDRaw|User|Partition|State|Submit|Start|End|ElapsedRaw|NNodes|AllocTRES"
RUNS = (
    "200|u1|gpu|PREEMPTED|2024-03-01T08:00:00|2024-03-01T08:10:00|2024-03-01T12:10:00|14400|1|gres/gpu=4,node=1",
    "200|u1|gpu|REQUEUED|2024-03-01T12:10:01|2024-03-01T12:15:00|2024-03-01T14:15:00|7200|1|gres/gpu=4,node=1",
    "200|u1|gpu|COMPLETED|2024-03-01T14:15:01|2024-03-01T14:20:00|2024-03-01T20:20:00|21600|1|gres/gpu=4,node=1",
    "200|u1|gpu|COMPLETED|2025-03-01T14:15:01|2025-03-01T14:20:00|2025-03-01T20:20:00|21600|1|gres/gpu=4,node=1",
)


@pytest.mark.parametrize(
    ("order", "together"),
    [
        ("0123", False),
        ("1302", False),
        ("3210", True),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in [("0123", True), ("1302", True), ("3210", False)]),
    ],
)
def test_runs_of_one_job_are_told_from_its_id_used_again(
    helios: Helios, tmp_path: Path, order: str, together: bool
) -> None:
    rows = [RUNS[int(place)] for place in order]
    files = [tmp_path / f"{number}.txt" for number in range(1 if together else len(rows))]
    for file, lines in zip(files, [rows] if together else [[row] for row in rows], strict=True):
        file.write_text("\n".join([HEADER, *lines]) + "\n")
    load(helios, *files)
    assert jobs(helios, tmp_path)["restart"].tolist() == [0, 1, 2, 0] and hours(helios) == 72
    assert lost_hours(helios) == pytest.approx(24 / 72)


def lost_hours(helios: Helios) -> float:
    """Return the share of hours that ``helios study`` finds lost to requeues."""
    found = helios("study", "--cluster", "site", "--json").json
    (statement,) = [it for it in found["statements"] if it["number"] == 19]
    return float(statement["value"])


@needs_cases
def test_a_suspended_job_worked_for_its_elapsed_time(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "06_suspended.txt")
    assert jobs(helios, tmp_path)["run_time_s"].tolist() == [7_200] and hours(helios) == 8
    assert "1 job was suspended" in answer.err and "such as '1'" in answer.err


@needs_cases
def test_a_start_of_1970_is_unknown(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "09_epoch_zero_start.txt")
    assert jobs(helios, tmp_path)["started_at"].isna().tolist() == [True, False] and hours(helios) == 8
    assert "1 job has a time of 1970" in answer.err


@needs_cases
def test_allocated_gres_is_a_sum_over_nodes(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "07_allocgres_total.txt")
    assert jobs(helios, tmp_path)["gpus"].tolist() == [16, 4]


@needs_cases
def test_the_sibling_that_ran_counts(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "08_federation.txt")
    assert jobs(helios, tmp_path)["state"].tolist() == ["COMPLETED"] and hours(helios) == 4
    assert "sibling of a job that another cluster of the federation ran" in answer.out


@needs_cases
def test_no_use_and_no_memory_of_a_gpu_is_not_measured(helios: Helios) -> None:
    words = ("advise", "--user", "all", "--trace", CASES / "10_mig_trace.txt", "--usage", CASES / "10_mig_usage.txt")
    window = ("--from", "2024-05-01", "--to", "2024-05-31")
    found = helios(*words, *window, "--json").json
    assert found["jobs_measured"] > 0 and "gpus_unused" not in {one["kind"] for one in found["advice"]}


@needs_cases
def test_a_powered_down_node_that_does_not_answer_is_left_alone() -> None:
    (text,) = [line for line in (CASES / "15_stuck_cloud_node.txt").read_text().splitlines() if line.startswith("Node")]
    node = _node(text)
    assert power(node) is None and "never uses it" in why_not_wake(node)


@needs_cases
def test_gpus_that_a_site_does_not_account_for_are_unknown(helios: Helios) -> None:
    answer = load(helios, CASES / "04_gpus_not_tracked.txt")
    assert "no row names gres/gpu, though partition gpu-a100 looks like a GPU partition" in answer.err
    assert "Add gres/gpu to AccountingStorageTRES" in answer.err
    described = " ".join(helios("trace", "describe", "--cluster", "site").out.split())
    assert "CPUs: no job names a GPU in this history" in described
    for command in (("trace", "describe"), ("study",), ("whatif", "--nodes", "4", "--gpus-per-node", "64")):
        assert "though partition gpu-a100 looks" in helios(*command, "--cluster", "site").err


UNTRACKED = "1|{user}|{partition}|COMPLETED|2024-03-01T08:00:00|2024-03-01T08:10:00|2024-03-01T12:10:00|14400|1|{tres}"


def load_one(helios: Helios, tmp_path: Path, *, tres: str, partition: str = "gpu") -> Any:
    file = tmp_path / "one.txt"
    file.write_text(f"{HEADER}\n{UNTRACKED.format(user='u1', partition=partition, tres=tres)}\n")
    return load(helios, file)


@pytest.mark.parametrize("partition", ["gpu", "short_h100", "dgx2", "GPUlong", "mi300x"])
def test_a_partition_named_after_gpus_is_a_hint(helios: Helios, tmp_path: Path, partition: str) -> None:
    answer = load_one(helios, tmp_path, tres="cpu=8,node=1", partition=partition)
    assert f"though partition {partition} looks like a GPU partition" in answer.err


@pytest.mark.parametrize(
    ("partition", "tres"),
    [
        ("cpu", "cpu=8,node=1"),
        ("no-gpu", "cpu=8,node=1"),
        ("nongpu", "cpu=8,node=1"),
        ("gpu", "cpu=8,gres/gpu=1,node=1"),
        ("gpu", "cpu=8,gres/gpu:a100=1,node=1"),
        ("gpu", "cpu=8,gres/shard=1,node=1"),
        ("gpu", ""),
    ],
)
def test_no_site_is_suspected_without_reason(helios: Helios, tmp_path: Path, partition: str, tres: str) -> None:
    assert "AccountingStorageTRES" not in load_one(helios, tmp_path, tres=tres, partition=partition).err


@needs_cases
def test_a_replay_of_slurm_says_that_gpus_are_unknown(helios: Helios) -> None:
    files = ("--slurm-conf", CASES / "04_slurm.conf", "--trace", CASES / "04_gpus_not_tracked.txt")
    assert "though partition gpu-a100 looks" in helios("whatif", "slurm", *files).err


@pytest.mark.parametrize("gres", ["shard:4", "gres:shard:a100:4", "shard:2,craynetwork:1"])
def test_shards_of_old_sites_are_named(helios: Helios, tmp_path: Path, gres: str) -> None:
    file = tmp_path / "one.txt"
    row = UNTRACKED.format(user="u1", partition="gpu", tres=gres)
    file.write_text(f"{HEADER.replace('AllocTRES', 'AllocGRES')}\n{row}\n")
    assert "1 job holds shards of GPUs" in load(helios, file).err


@needs_cases
def test_jobs_that_hold_shards_are_named(helios: Helios) -> None:
    answer = load(helios, CASES / "05_shards.txt")
    assert "1 job holds shards of GPUs (gres/shard), and the shards of a GPU are not known" in answer.err
    assert "--gpus-from slurm.conf" in answer.err and "such as '1'" in answer.err


@pytest.mark.parametrize(
    ("tres", "note"),
    [
        ("cpu=8,gres/shard:l40=4,node=1", "1 job holds shards of GPUs (gres/shard)"),
        ("cpu=8,gres/mps=50,node=1", "1 job holds a share of a GPU (gres/mps)"),
        ("cpu=8,gres/mps:a100=50,node=1", "1 job holds a share of a GPU (gres/mps)"),
        ("gres/gpu:1g.5gb=2,gres/gpu=2,node=1", "1 job holds MIG slices, each counted by its compute slices"),
        ("gres/gpu:a100_3g.20gb=1,node=1", "1 job holds MIG slices, each counted by its compute slices"),
        (
            "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb+me=1,node=1",
            "1 job holds MIG slices, each counted by its compute slices",
        ),
    ],
)
def test_parts_of_a_gpu_are_named_in_the_load(helios: Helios, tmp_path: Path, tres: str, note: str) -> None:
    assert note in load_one(helios, tmp_path, tres=tres).err


@pytest.mark.parametrize("tres", ["gres/gpu=2,gres/shard=4,node=1", "gres/gpu:a100-80gb=2,node=1"])
def test_whole_gpus_are_no_parts(helios: Helios, tmp_path: Path, tres: str) -> None:
    answer = load_one(helios, tmp_path, tres=tres)
    assert "shards of" not in answer.err and "MIG" not in answer.err
