import numpy as np
import pandas as pd
import pytest

from helios.app.replay_cluster import ReplayCluster, parse_nodes, replay_cluster_for
from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.metrics.capacity import choose_resource
from tests.builders import a_job, jobs_frame


def placed(*jobs: dict, **options: object) -> ReplayCluster:
    return replay_cluster_for(jobs_frame(*jobs), **{"resource": "gpus", "gpus_per_node": 8, "nodes": None, **options})


def shape_of(machine: ReplayCluster) -> dict[str, int]:
    return dict(zip(machine.shape.partitions, machine.shape.nodes.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("a=2,b=3", {"a": 2, "b": 3}), ("12", {"all": 12}), (" a=2 , b=3", {"a": 2, "b": 3}), ("x=y=2", {"x=y": 2})],
)
def test_nodes_are_read_by_partition_or_pooled(text: str, nodes: dict[str, int]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "a", "a=", "a=0", "a=-1", "a=2.5", "a=1,a=2", "a=1,,b=2"])
def test_nodes_of_another_form_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="PARTITION=N"):
        parse_nodes(text)


def test_each_job_goes_to_its_partition() -> None:
    machine = placed(a_job(partition="b"), a_job(partition="a"), nodes={"a": 1, "b": 1})
    assert [machine.shape.partitions[code] for code in machine.partition] == ["b", "a"]


def test_the_name_all_pools_every_partition_and_says_so() -> None:
    machine = placed(a_job(partition="a"), a_job(partition="b"), nodes={"all": 2})
    assert len(machine.jobs) == 2
    assert "pooled" in machine.notes[0]


@pytest.mark.parametrize("nodes", [{"gpuu": 2}, {"gpuu": 2, "cpu": 1}])
def test_a_mistyped_partition_is_refused_with_the_nearest_one(nodes: dict[str, int]) -> None:
    with pytest.raises(PartitionUnknown, match="partition gpuu of --nodes") as refused:
        placed(a_job(partition="gpu"), a_job(partition="cpu"), nodes=nodes)
    assert refused.value.hint.startswith("Did you mean gpu?")


def test_a_partition_without_jobs_beside_others_is_only_named() -> None:
    machine = placed(a_job(partition="gpu"), nodes={"gpu": 2, "debug": 1})
    assert machine.notes == ("No job belongs to partition debug.",)


@pytest.mark.parametrize(
    ("gpu_hours", "cpu_hours", "chosen", "words"),
    [
        (1, 99, "cpus", "1 %"),
        (5, 95, "gpus", "5 %"),
        (40, 60, "gpus", "40 %"),
        (60, 40, "gpus", ""),
        (0, 1, "cpus", ""),
    ],
)
def test_what_has_the_hours_is_replayed(gpu_hours: int, cpu_hours: int, chosen: str, words: str) -> None:
    held = [a_job(gpus=8, run_time_s=3600.0 * gpu_hours)] if gpu_hours else []
    resource, notes = choose_resource(jobs_frame(*held, a_job(gpus=0, cpus=4, run_time_s=3600.0 * cpu_hours)))
    assert resource == chosen
    assert [words in note and f"{chosen.upper()[:-1]}s are counted" in note for note in notes] == [True] * bool(words)


@pytest.mark.parametrize("nodes", [{"all": 99_999_999_999}, None])
def test_a_cluster_larger_than_a_replay_can_have_is_refused(nodes: dict[str, int] | None) -> None:
    with pytest.raises(UsageError, match="10,000,000"):
        placed(a_job(), nodes=nodes, gpus_per_node=8 if nodes else 99_999_999_999)


def test_jobs_without_a_partition_can_be_pooled() -> None:
    assert len(placed(a_job(partition=None), nodes={"gpu": 1}).jobs) == 1


def test_jobs_without_a_partition_are_refused_on_several() -> None:
    with pytest.raises(PartitionUnknown, match="--nodes N"):
        placed(a_job(partition=None), a_job(partition="a"), nodes={"a": 1, "b": 1})


def test_jobs_of_partitions_without_nodes_are_left_out_and_named() -> None:
    machine = placed(a_job(partition="a"), a_job(partition="b"), nodes={"a": 1})
    assert machine.jobs["partition"].tolist() == ["a"]
    assert "b" in machine.notes[0]


def test_a_cluster_without_a_job_is_refused_with_the_known_partitions() -> None:
    with pytest.raises(PartitionUnknown, match="alpha"):
        placed(a_job(partition="alpha"), nodes={"b": 1, "c": 1})


def test_a_job_larger_than_its_partition_is_refused_with_both_sizes() -> None:
    with pytest.raises(JobLargerThanPartition, match=r"17, a has 16(.|\n)*--oversized skip"):
        placed(a_job(partition="a", gpus=17), nodes={"a": 2})


def test_a_job_exactly_as_large_as_its_partition_is_placed() -> None:
    assert placed(a_job(partition="a", gpus=16), nodes={"a": 2}).size.tolist() == [16]


def test_a_job_larger_than_its_partition_can_be_left_out() -> None:
    machine = placed(a_job(partition="a", gpus=17), a_job(partition="a"), nodes={"a": 2}, skip_oversized=True)
    assert machine.size.tolist() == [1]
    assert "Left out" in machine.notes[-1]


def test_the_peak_demand_counts_jobs_that_overlap_and_says_so() -> None:
    start = pd.Timestamp("2020-01-01", tz="UTC")
    jobs = [
        a_job(gpus=8, submitted_at=start, started_at=None, ended_at=None, run_time_s=100),
        a_job(gpus=8, submitted_at=start + pd.Timedelta("99s"), started_at=None, ended_at=None, run_time_s=100),
        a_job(gpus=8, submitted_at=start + pd.Timedelta("100s"), started_at=None, ended_at=None, run_time_s=100),
    ]
    machine = placed(*jobs)
    assert shape_of(machine) == {"gpu": 2}
    assert "16 GPUs would have been in use at once" in machine.notes[0]


def test_the_peak_demand_has_room_for_the_largest_job() -> None:
    assert shape_of(placed(a_job(gpus=17, run_time_s=0))) == {"gpu": 3}


def test_cpus_can_be_the_replayed_resource() -> None:
    machine = placed(a_job(gpus=0, cpus=12), resource="cpus", nodes={"all": 2})
    assert machine.size.tolist() == [12]
    assert machine.size.dtype == np.int32


def test_jobs_hold_what_was_allocated_and_are_ordered_by_what_they_requested() -> None:
    jobs = [a_job(job_id="1", gpus=8, gpus_requested=2.0), a_job(job_id="2", gpus=4)]
    workload = placed(*jobs, nodes={"all": 2}).workload()
    assert (workload.gpus.tolist(), workload.order_gpus.tolist()) == ([8, 4], [2, 4])
