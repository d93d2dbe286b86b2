import dataclasses

import numpy as np
import pytest

from helios.errors import JobLargerThanPartition, PartitionUnknown, WorkloadInvalid
from helios.simulate import Backfill, ClusterShape, replay
from helios.simulate.ageing import first_in_first_out
from tests.unit.simulate.builders import a_shape, a_workload


def replayed(workload, shape):
    return replay(workload, shape, backfill=Backfill.NONE, order=first_in_first_out)


def with_ids(workload, *ids):
    return dataclasses.replace(workload, job_id=np.array(ids, dtype=object))


def test_jobs_out_of_the_order_of_submission_are_refused():
    with pytest.raises(WorkloadInvalid, match="before that of the job above"):
        a_workload([(5, 1, 1), (4, 1, 1)])


def test_jobs_of_one_second_must_be_in_the_order_of_ids():
    with pytest.raises(WorkloadInvalid, match="10 and 9"):
        with_ids(a_workload([(5, 1, 1), (5, 1, 1)]), "10", "9")


def test_job_ids_are_ordered_as_numbers():
    assert len(with_ids(a_workload([(5, 1, 1), (5, 1, 1)]), "9", "10")) == 2


def test_runs_of_a_requeued_job_may_share_its_id():
    assert len(with_ids(a_workload([(5, 1, 1), (5, 1, 1)]), "9", "9")) == 2


@pytest.mark.parametrize("row", [(0, -1, 1), (0, 1, 0)])
def test_negative_run_times_and_jobs_without_gpus_are_refused(row):
    with pytest.raises(WorkloadInvalid, match="first is 0"):
        a_workload([row])


def test_columns_of_different_length_are_refused():
    with pytest.raises(WorkloadInvalid, match="differ in length"):
        dataclasses.replace(a_workload([(0, 1, 1)]), gpus=np.ones(2, dtype=np.int32))


def test_columns_of_another_type_are_refused():
    with pytest.raises(WorkloadInvalid, match="run_time_s is float64"):
        dataclasses.replace(a_workload([(0, 1, 1)]), run_time_s=np.ones(1))


def test_a_partition_without_nodes_is_refused():
    with pytest.raises(WorkloadInvalid, match="'b' has no nodes"):
        a_shape((1, 8), (0, 8))


def test_a_shape_whose_columns_differ_in_length_is_refused():
    with pytest.raises(WorkloadInvalid, match="differ in length"):
        ClusterShape(partitions=("a",), nodes=np.ones(2, np.int32), gpus_per_node=np.ones(2, np.int32))


def test_the_gpus_of_all_partitions_are_counted():
    assert a_shape((2, 8), (3, 4)).total_gpus == 28


def test_a_job_larger_than_its_partition_is_named_with_its_size():
    workload = a_workload([(0, 1, 1, 0), (0, 1, 17, 1), (0, 1, 20, 1)])
    with pytest.raises(JobLargerThanPartition) as refusal:
        replayed(workload, a_shape((9, 8), (2, 8)))
    assert "2 jobs" in refusal.value.message
    assert "largest, 2, asks for 20 GPUs of partition 'b', which has 16" in refusal.value.message
    assert "--nodes" in refusal.value.hint
    assert "--oversized skip" in refusal.value.hint


def test_a_job_as_large_as_its_partition_runs():
    assert replayed(a_workload([(3, 4, 16)]), a_shape((2, 8))).ended_s.tolist() == [7]


@pytest.mark.parametrize("partition", [-1, 1])
def test_a_partition_that_the_cluster_lacks_is_refused(partition):
    with pytest.raises(PartitionUnknown, match="1 jobs"):
        replayed(a_workload([(0, 1, 1, partition)]), a_shape((1, 8)))


def test_a_workload_without_jobs_is_replayed_to_nothing():
    assert replayed(a_workload([]), a_shape((1, 8))).busy_gpu_s == 0
