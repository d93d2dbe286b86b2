"""The published semantics: job by job what stepping through every second gives, and what the artifact gave."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.published.simulator import PublishedPolicy, replay_as_published
from helios.errors import JobLargerThanPartition, UsageError, WorkloadInvalid
from helios.simulate import Backfill, ClusterShape, Workload, replay
from helios.simulate.ageing import first_in_first_out
from tests.examples import examples
from tests.traces import TRACES, needs_traces

from .builders import a_shape, a_workload
from .crowds import crowds
from .stepping import stepping_replay

FIFO, SJF, QSSF, SRTF = PublishedPolicy
RECORDED = Path(__file__).parent / "recorded" / "published_philly_oct2017.json"
thorough = settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def crowded_clusters():
    """Draw a shape, a workload, and what its jobs are ordered by: priorities, and ranks for those that are equal."""
    ranks = st.integers(-2, 6), st.integers(0, 3)
    return crowds(most_partitions=2, most_nodes=5, least_s=1, most_s=[3, 12, 150], besides=ranks)


def assert_alike(ours, jobs):
    assert ours.started_s.tolist() == [job["started"] for job in jobs]
    assert ours.ended_s.tolist() == [job["ended"] for job in jobs]
    assert ours.queue_s.tolist() == [job["queue"] for job in jobs]
    assert ours.jct_s.tolist() == [job["ended"] - job["submitted"] for job in jobs]
    assert ours.stops.tolist() == [job["stops"] for job in jobs]


@pytest.mark.parametrize("policy", list(PublishedPolicy))
@given(case=crowded_clusters(), drawn=st.booleans())
@thorough
def test_every_job_starts_and_ends_as_when_every_second_is_stepped_through(policy, case, drawn):
    shape, workload, priority, tie = case
    options = {"priority": priority.astype(np.float64) if policy is QSSF else None, "tie_rank": tie if drawn else None}
    ours = replay_as_published(workload, shape, policy=policy, **options)
    assert_alike(ours, stepping_replay(workload, shape, policy=policy, **options))


def made_up():
    """600 jobs of sizes from 1 to 24 GPUs on partitions of 5 and 9 nodes that they overload, by arithmetic alone."""
    sizes, rows, now = [1, 1, 2, 4, 8, 12, 16, 24, 5, 3], [], 0
    for i in range(600):
        now += i * 7919 % 23
        rows.append((now, 1 + i * 104729 % 1301, sizes[i * i * 31 % 10], i % 2))
    return a_workload(rows), a_shape((5, 8), (9, 8))


# What the artifact's own loops and placement gave of these jobs, logging and sampling left out (HeliosArtifact, commit
# 6345d9f, "framework/QSSF Service"; run once, not copied): sums of JCT and of queue, s, the last end, stops, and the
# sum of end x (place + 1), which tells jobs that changed places. QSSF went by GPUs x run time x (1 + place % 7).
MADE_UP = {
    FIFO: (12_951_357, 12_528_175, 76_472, 0, 5_760_492_099),
    SJF: (7_670_381, 7_247_199, 71_379, 0, 2_180_680_889),
    QSSF: (6_825_327, 6_402_145, 70_359, 0, 2_520_570_816),
    SRTF: (6_278_936, 5_852_778, 63_748, 92, 1_994_749_816),
}


def priority_of(policy, workload, numbers):
    """Make QSSF's priorities wrong in a way that needs no random numbers."""
    return workload.gpus * workload.run_time_s * (1.0 + numbers % 7) if policy is QSSF else None


def figures(found, mine=slice(None)):
    ended_s = found.ended_s[mine]
    sums = (found.jct_s[mine].sum(), found.queue_s[mine].sum(), ended_s.max(), found.stops[mine].sum())
    return (*sums, (ended_s * (1 + np.arange(len(ended_s)))).sum())


@pytest.mark.parametrize("policy", list(PublishedPolicy))
def test_a_made_up_month_comes_out_as_of_the_artifact_itself(policy):
    workload, shape = made_up()
    priority = priority_of(policy, workload, np.arange(len(workload)))
    assert figures(replay_as_published(workload, shape, policy=policy, priority=priority)) == MADE_UP[policy]


@needs_traces
@pytest.mark.parametrize("policy", list(PublishedPolicy))
@pytest.mark.parametrize("capacity", ["whole", "40 %"])
def test_october_on_philly_comes_out_as_of_the_artifact_itself(capacity, policy):
    recorded = json.loads(RECORDED.read_text())["sums"][capacity]
    workload, shape, numbers = philly({name: row["nodes"] for name, row in recorded.items()})
    priority = priority_of(policy, workload, numbers)
    found = replay_as_published(workload, shape, policy=policy, priority=priority)
    ours = {name: list(map(int, figures(found, workload.partition == i))) for i, name in enumerate(shape.partitions)}
    pinned = {name: row[policy] for name, row in recorded.items() if policy in row}
    assert len(pinned) >= (11 if capacity == "whole" else 6)
    assert {name: ours[name] for name in pinned} == pinned


def philly(nodes):
    """Return October 2017 on Philly, in seconds since its first job, and the numbers of its jobs in the file."""
    jobs = pd.read_csv(TRACES / "philly_vc_aug-oct2017.csv.gz", dtype={"job_id": str}, parse_dates=["submit_time"])
    jobs = jobs[(jobs["submit_time"] >= "2017-10-01") & jobs["vc"].isin(list(nodes))]
    submitted_s = jobs["submit_time"].to_numpy(dtype="datetime64[s]").astype(np.int64)
    workload = Workload(
        job_id=jobs["job_id"].to_numpy(dtype=object),
        submitted_s=submitted_s - submitted_s[0],
        run_time_s=jobs["duration"].to_numpy(dtype=np.int64),
        gpus=jobs["gpu_num"].to_numpy(dtype=np.int32),
        partition=pd.Categorical(jobs["vc"], categories=list(nodes)).codes.astype(np.int32),
    )
    shape = ClusterShape(
        partitions=tuple(nodes),
        nodes=np.array(list(nodes.values()), dtype=np.int32),
        gpus_per_node=np.full(len(nodes), 8, dtype=np.int32),
    )
    return workload, shape, jobs["job_id"].to_numpy(dtype=np.int64)


def starts(rows, shape, policy=FIFO, **options):
    return replay_as_published(a_workload(rows), shape, policy=policy, **options).started_s.tolist()


def test_what_ends_makes_room_in_the_same_second():
    assert starts([(0, 9, 8), (9, 5, 8)], a_shape((1, 8))) == [0, 9]


def test_a_blocked_head_blocks_everybody():
    assert starts([(0, 9, 6), (1, 9, 6), (2, 9, 1)], a_shape((1, 8))) == [0, 9, 9]


def test_the_artifact_puts_the_rest_of_a_large_job_elsewhere():
    # Nodes have 5, 8 and 8 free; 12 GPUs take one whole and 4 of the other whole one, so that no 8 are left together.
    rows = [(0, 99, 3), (1, 50, 12), (2, 9, 8)]
    assert starts(rows, a_shape((3, 8))) == [0, 1, 51]
    workload = a_workload(rows)
    ours = replay(workload, a_shape((3, 8)), backfill=Backfill.NONE, order=first_in_first_out)
    assert ours.started_s.tolist() == [0, 1, 2]


def test_qssf_lets_new_jobs_go_by_size_while_nobody_has_waited():
    rows = [(0, 9, 8), (9, 9, 8), (9, 9, 1)]
    assert starts(rows, a_shape((1, 8)), QSSF, priority=np.array([1.0, 1.0, 2.0])) == [0, 18, 9]


def test_qssf_goes_by_priority_once_somebody_has_waited():
    rows = [(0, 9, 8), (8, 9, 8), (9, 9, 1)]
    assert starts(rows, a_shape((1, 8)), QSSF, priority=np.array([1.0, 1.0, 2.0])) == [0, 9, 18]


def test_srtf_sees_an_end_a_second_late():
    found = replay_as_published(a_workload([(0, 5, 8), (0, 0, 8)]), a_shape((2, 8)), policy=SRTF)
    assert found.jct_s.tolist() == [6, 1]


@pytest.mark.parametrize(("gpus", "cost_s"), [(1, 7), (2, 30), (8, 30), (9, 60), (16, 60)])
def test_srtf_charges_a_stopped_job_for_its_checkpoint(gpus, cost_s):
    found = replay_as_published(a_workload([(0, 100, gpus), (40, 10, 16)]), a_shape((2, 8)), policy=SRTF)
    # It runs 40 s, waits for the 11 that the other takes, and has 60 and the cost to go.
    assert found.stops.tolist() == [1, 0]
    assert found.queue_s.tolist() == [11, 0]
    assert found.jct_s.tolist() == [100 + 11 + cost_s + 1, 11]


def test_jobs_of_one_second_can_be_put_in_another_order():
    rows = [(0, 9, 8), (0, 5, 8)]
    assert starts(rows, a_shape((1, 8)), tie_rank=np.array([1, 0])) == [5, 0]


def test_a_job_of_length_0_is_refused():
    with pytest.raises(WorkloadInvalid, match="length 0"):
        starts([(0, 0, 1)], a_shape((1, 8)))


def test_a_job_larger_than_its_partition_is_refused():
    with pytest.raises(JobLargerThanPartition):
        starts([(0, 1, 9)], a_shape((1, 8)))


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (QSSF, {}),
        (FIFO, {"priority": np.array([1.0])}),
        (QSSF, {"priority": np.array([1.0, 2.0])}),
        (FIFO, {"tie_rank": np.array([1, 0])}),
    ],
)
def test_priorities_and_ranks_that_do_not_belong_are_refused(policy, options):
    with pytest.raises(UsageError):
        starts([(0, 1, 1)], a_shape((1, 8)), policy, **options)


def test_no_jobs_at_all_are_replayed_too():
    assert starts([], a_shape((1, 8)), SRTF) == starts([], a_shape((1, 8))) == []


def test_progress_is_told_partition_by_partition():
    heard = []
    starts([(0, 1, 1, 0), (0, 1, 1, 1), (0, 1, 1, 1)], a_shape((1, 8), (1, 8)), progress=heard.append)
    assert heard == [1, 3]
