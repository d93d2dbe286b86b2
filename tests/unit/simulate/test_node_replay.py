"""A replay of jobs on sleeping nodes is that of a simulated cluster on which nobody acts."""

import numpy as np
import pytest

from helios.errors import JobLargerThanPartition
from helios.metrics.spare_nodes import AwakeRule
from helios.simulate import Placement, Sleep
from helios.simulate.node_replay import NodeReplay
from tests.unit.simulate.builders import a_shape, a_sim_cluster, a_workload

RULE = AwakeRule(memory_s=1_800, spare=1)


def some_jobs(n_jobs=200):
    rng = np.random.default_rng(3)
    submitted = np.sort(rng.integers(0, 200_000, size=n_jobs))
    return [(int(at), int(rng.integers(60, 9_000)), int(rng.choice([1, 4, 8, 16]))) for at in submitted]


def asleep(sleep, **options):
    return {"sleep": Sleep(boot_s=300, shutdown_s=120, **sleep), "placement": Placement.RANDOM, "seed": 2} | options


@pytest.mark.parametrize("sleep", [{"rules": (RULE,)}, {"idle_timer_s": 1_800}, {}])
def test_starts_delays_and_node_seconds_are_those_of_a_simulated_cluster(sleep):
    jobs, shape = some_jobs(), a_shape((6, 8))
    workload = a_workload(jobs)
    other = a_sim_cluster(jobs, shape, **asleep(sleep))
    replay = NodeReplay(workload, shape, estimates_s=other._estimates_s, **asleep(sleep))
    for moment in (50_000, 300_000):
        replay.advance(moment)
        other.advance(moment)
        assert replay.tally() == other.tally()
    assert np.array_equal(replay.started_s, other.started_s)
    assert np.array_equal(replay.late_s, other.late_s)


def test_nodes_in_blocks_are_filled_from_the_first():
    shape = a_shape((6, 8))
    jobs = [(0, 1_000, 8), (10, 90_000, 8), (20, 1_000, 8), (30_000, 1_000, 8)]
    workload = a_workload(jobs)
    replay = NodeReplay(workload, shape, estimates_s=workload.run_time_s, **asleep({}), block_nodes=2)
    replay.advance(100)
    held = np.flatnonzero(replay._state.nodes["free"] == 0).tolist()
    assert held[:2] == [0, 1]
    assert held[2] in {2, 3}


def test_a_level_puts_to_sleep_down_to_the_nodes_in_use():
    shape = a_shape((6, 8))
    workload = a_workload([(0, 80_000, 16), (90_000, 10, 8)])
    level = AwakeRule(memory_s=0, spare=6, every_s=600, counts_use=False)
    replay = NodeReplay(workload, shape, estimates_s=workload.run_time_s, **asleep({"rules": (level,)}))
    powered = []
    for moment, spare in ((6_000, 6), (12_000, 1), (18_000, 4)):
        replay.set_spare(np.array([spare]))
        replay.advance(moment)
        part = replay._state.partitions[0]
        powered.append(int(part["awake"] + part["waking"]))
    assert powered == [6, 2, 4]


def test_a_job_larger_than_its_partition_is_refused():
    shape = a_shape((1, 8))
    workload = a_workload([(0, 10, 16)])
    with pytest.raises(JobLargerThanPartition):
        NodeReplay(workload, shape, estimates_s=workload.run_time_s, **asleep({}))
