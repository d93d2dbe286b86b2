"""Recorded jobs as they would be submitted to a site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.slurm_whatif_jobs import slurm_jobs
from helios.app.slurm_whatif_pool import capacity, job_pools, pooled_easy
from helios.errors import NotEnoughHistory
from helios.model import JOBS
from helios.model.slurm_site import NodeGroup, PartitionRules, SlurmSite

BEGAN = pd.Timestamp("2026-01-01", tz="UTC")
SITE = SlurmSite(
    nodes=(
        NodeGroup(names=("a1", "a2"), cpus=16, memory_mib=64_000, gpus={"a100": 4}),
        NodeGroup(names=("v1",), cpus=8, memory_mib=64_000, gpus={"v100": 2}),
    ),
    partitions=(
        PartitionRules(name="gpu", nodes=("a1", "a2", "v1"), is_default=True, def_mem_per_cpu_mib=1_000),
        PartitionRules(name="short", nodes=("v1",), max_time_s=3_600, def_mem_per_cpu_mib=1_000),
    ),
)


def history(*jobs: dict[str, Any]) -> pd.DataFrame:
    usual = {
        "user": "ann",
        "account": "lab",
        "partition": "gpu",
        "run_time_s": 60.0,
        "gpus": 1,
        "cpus": 1.0,
        "nodes": 1.0,
    }
    rows = [{"job_id": str(number), "at": number, **usual, **job} for number, job in enumerate(jobs, start=1)]
    frame = pd.DataFrame(rows)
    submitted = BEGAN + pd.to_timedelta(frame.pop("at"), unit="s")
    if "begin" in frame:
        frame["eligible_at"] = BEGAN + pd.to_timedelta(frame.pop("begin"), unit="s")
    return JOBS.conform(frame.assign(submitted_at=submitted))


def test_what_a_job_asked_for_reaches_the_workload() -> None:
    jobs = slurm_jobs(
        history(
            {"gpus": 8, "cpus": 32.0, "nodes": 2.0, "memory_mib": 32_000.0, "time_limit_s": 7_200.0, "qos": "high"},
            {"user": "bob", "gpu_type": "v100", "partition": "short", "time_limit_s": np.inf, "begin": 600},
        ),
        SITE,
    )
    load = jobs.workload
    assert load.column("nodes").tolist() == [2, 1]
    assert load.column("gpus").tolist() == [8, 1]
    assert load.column("memory_mib").tolist() == [32_000, 0]
    assert load.column("time_limit_s").tolist() == [7_200, 0]
    assert [load.users[code] for code in load.column("user")] == ["ann", "bob"]
    assert [load.gpu_types[code] if code >= 0 else "any" for code in load.column("gpu_type")] == ["any", "v100"]
    assert [load.partitions[code] for code in load.partition] == ["gpu", "short"]
    assert (load.column("eligible_s") - load.submitted_s[0]).tolist() == [0, 599]
    assert any("1 of 2 jobs have no time limit" in note for note in jobs.notes)


def test_a_job_of_several_partitions_keeps_those_that_the_site_has() -> None:
    load = slurm_jobs(history({"partition": "old,short,gpu"}), SITE).workload
    assert [load.partitions[code] for code in load.choices(0)] == ["short", "gpu"]


def test_jobs_that_cannot_be_replayed_are_left_out_and_counted() -> None:
    jobs = slurm_jobs(
        history({"run_time_s": np.nan}, {"partition": "gone"}, {"gpus": 99}, {}, {"partition": None}), SITE
    )
    assert jobs.jobs["job_id"].tolist() == ["4", "5"]
    said = "\n".join(jobs.notes)
    assert "1 job that never ran" in said
    assert "1 job of partitions that the site does not have was left out: gone" in said
    assert "1 job that asks for more nodes, resources or time than its partition has was left out, as 3" in said
    assert "1 job without a partition goes to the site's default one" in said


def test_a_history_of_another_cluster_is_refused() -> None:
    with pytest.raises(NotEnoughHistory):
        slurm_jobs(history({"partition": "elsewhere"}), SITE)
    with pytest.raises(NotEnoughHistory, match="fits the nodes"):
        slurm_jobs(history({"gpus": 50}), SITE)


def test_parts_that_nodes_cannot_hold_equally_are_spread_as_they_fit() -> None:
    assert slurm_jobs(history({"gpus": 3, "nodes": 2.0}), SITE).workload.column("nodes").tolist() == [0]


def test_tasks_of_an_array_are_one_record_in_order() -> None:
    array = {"at": 5, "array_job_id": "7"}
    jobs = slurm_jobs(
        history(
            {"job_id": "7", **array, "array_task_id": "10"},
            {"job_id": "8", **array, "array_task_id": "2"},
            {"job_id": "9", "at": 5},
        ),
        SITE,
        nice=np.array([1, 2, 3]),
    )
    assert jobs.jobs["job_id"].tolist() == ["8", "7", "9"]
    assert jobs.workload.column("array")[0] == jobs.workload.column("array")[1] != jobs.workload.column("array")[2]
    assert jobs.workload.column("nice").tolist() == [2, 1, 3]


def test_the_pool_of_the_textbook_has_at_least_what_the_site_has() -> None:
    assert (capacity(SITE, "gpus"), capacity(SITE, "cpus")) == (10, 40)
    pool = job_pools(SITE, "gpus")
    assert (pool.nodes.tolist(), pool.gpus_per_node.tolist()) == ([3], [4])


def test_the_textbook_starts_in_order_and_lets_pass_what_delays_nobody() -> None:
    jobs = slurm_jobs(
        history(
            {"at": 0, "gpus": 8, "nodes": 2.0, "cpus": 2.0, "run_time_s": 100.0, "time_limit_s": 120.0},
            {"at": 1, "gpus": 8, "nodes": 2.0, "cpus": 2.0, "run_time_s": 50.0, "time_limit_s": 60.0},
            {"at": 2, "gpus": 1, "run_time_s": 10.0, "time_limit_s": 60.0},
            {"at": 3, "gpus": 0, "run_time_s": 10.0, "time_limit_s": 60.0},
        ),
        SITE,
    )
    starts = pooled_easy(jobs, SITE, resource="gpus", default_time_limit_s=3_600) - jobs.workload.submitted_s[0]
    assert starts.tolist() == [0, 100, 2, 3]
