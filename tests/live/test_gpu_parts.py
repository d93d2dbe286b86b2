"""Shards of GPUs on a real Slurm: in the queue, in orders, on nodes and in the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from helios.config import SlurmSettings
from helios.slurm.connect import open_cluster
from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.live.test_cli import Shell, from_now_on

SETTINGS = {"NAME": "shards", "NODES": "1", "GPUS": "2", "SHARDS": "8", "CPUS": "16"}


@pytest.fixture(scope="module")
def shards() -> Iterator[Rig]:
    """A cluster of one node, whose two GPUs have four shards each."""
    skip_without_slurm()
    rig = Rig(roomy_folder(), settings=SETTINGS)
    try:
        rig.control("up")
        yield rig
    finally:
        rig.control("wipe")


def submit(rig: Rig, *gres: str, seconds: float = 600) -> list[str]:
    """Submit jobs whose limits are long enough for orders to tell their sizes apart."""
    return [rig.submit(f"--gres={one}", gpus=0, seconds=seconds, limit="6000") for one in gres]


def test_the_queue_and_the_nodes_have_parts_of_gpus(shards: Rig) -> None:
    shards.empty()
    running = submit(shards, "gpu:1", "shard:2")
    shards.until(lambda: {shards.job_state(job) for job in running} == {"RUNNING"})
    waiting = submit(shards, "shard:4", "shard:a100:3", "gpu:2")
    cluster = open_cluster(
        SlurmSettings(backend="commands", site_factor_most=10_000, writes_per_cycle=1), environment=shards.environment
    )
    try:
        snapshot = cluster.snapshot()
    finally:
        cluster.close()
    assert snapshot.running.set_index("job_id")["gpus"].loc[running].tolist() == [1, 0.5]
    assert snapshot.pending.set_index("job_id")["gpus"].loc[waiting].tolist() == [1, 0.75, 2]
    assert snapshot.nodes[["gpus", "gpus_held"]].to_numpy().tolist() == [[2, 1.5]]


def test_a_part_of_a_gpu_goes_before_a_whole_one(shards: Rig, tmp_path: Path) -> None:
    shards.empty()
    since = from_now_on(shards)
    (holds,) = submit(shards, "gpu:2")
    shards.until(lambda: shards.job_state(holds) == "RUNNING")
    # A quarter of the GPUs is always a step of the grid of urgencies apart; a half only at most hours of the day.
    whole, part = submit(shards, "gpu:1", "shard:1")
    shards.until(lambda: {whole, part} <= set(shards.site_factors()))
    shell = Shell(shards, tmp_path, since=since)
    shell.says("trace", "sync")
    shell.says("mode", "qssf", "active", "--reason", "parts")
    assert shell.answers("cycle", "--apply")["acted"]
    assert shards.site_factors()[part] > shards.site_factors()[whole]


def test_the_history_has_parts_of_gpus_and_zeros(shards: Rig, tmp_path: Path) -> None:
    shards.empty()
    since = from_now_on(shards)
    jobs = submit(shards, "shard:2", "gpu:1", seconds=1)
    jobs.append(shards.submit(gpus=0, seconds=1))
    jobs.append(shards.submit("--exclusive", gpus=0, seconds=1))
    shell = Shell(shards, tmp_path, since=since)

    def ended() -> bool:
        printed = shards.lines("sacct", "--allusers", "-X", "-n", "-P", "--format=JobIDRaw,State", "-S", "now-1day")
        return {f"{job}|COMPLETED" for job in jobs} <= set(printed)

    shards.until(ended)
    shell.says("trace", "sync")
    shell.says("trace", "export", "--cluster", "shards", "--layout", "parquet", "--out", str(tmp_path / "out"))
    found = pd.read_parquet(tmp_path / "out" / "jobs.parquet").set_index("job_id")["gpus"]
    assert found.loc[jobs].tolist() == [0.5, 1, 0, 2]
