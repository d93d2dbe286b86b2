"""The size of a cluster, as its nodes or its jobs tell it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.metrics.capacity import CapacitySource, ClusterCapacity, capacity_of_jobs, capacity_of_nodes, given_capacity
from helios.model.nodes import expand
from tests.builders import FIRST_SUBMITTED_AT, a_job, jobs_frame

START_S = int(FIRST_SUBMITTED_AT.timestamp())


def ran(begin_s: int, end_s: int, **overrides: Any) -> dict[str, Any]:
    """A job that held its GPUs from one second to another."""
    started_at, ended_at = (FIRST_SUBMITTED_AT + pd.Timedelta(seconds=at_s) for at_s in (begin_s, end_s))
    times = {"submitted_at": started_at, "started_at": started_at, "ended_at": ended_at}
    return a_job(**{**times, "run_time_s": float(end_s - begin_s), **overrides})


def capacity(*jobs: dict[str, Any], until_s: int = 10_000, resource: str = "gpus") -> ClusterCapacity:
    """The capacity that jobs held in the first seconds."""
    return capacity_of_jobs(jobs_frame(*jobs), resource=resource, since_s=START_S, until_s=START_S + until_s)


def test_nodes_are_those_that_jobs_ran_on() -> None:
    found = capacity(ran(0, 10, gpus=16, node_list="n[1-2]"), ran(20, 30, gpus=4, node_list="n3"))
    assert (found.source, found.nodes, found.units) == (CapacitySource.NODE_LISTS, 3, 20)


def test_a_node_has_the_most_that_was_held_at_once() -> None:
    found = capacity(ran(0, 10, gpus=3, node_list="n1"), ran(5, 15, gpus=4, node_list="n1"))
    assert found.units == 7


def test_partitions_that_share_a_node_are_one_pool() -> None:
    found = capacity(
        ran(0, 10, partition="a", gpus=8, node_list="n1"),
        ran(10, 20, partition="b", gpus=8, node_list="n1"),
        ran(0, 10, partition="c", gpus=8, node_list="n2"),
    )
    assert {pool.name: pool.nodes for pool in found.pools} == {"a,b": 1, "c": 1}


def test_without_node_lists_it_is_at_least_what_was_held_at_once() -> None:
    found = capacity(ran(0, 10, gpus=8), ran(5, 15, gpus=8), ran(20, 30, gpus=8))
    assert (found.source, found.nodes, found.units) == (CapacitySource.USE, None, 16)
    assert found.line() == "Capacity: at least 16 GPUs (the most ever in use at once)."


def test_partitions_that_are_never_busy_together_share_nodes() -> None:
    jobs = [ran(10 * number, 10 * number + 10, partition=f"p{number}", gpus=8) for number in range(4)]
    assert [(pool.name, pool.units) for pool in capacity(*jobs).pools] == [("all", 8)]


def test_without_starts_a_capacity_is_assumed() -> None:
    jobs = [ran(0, 10, gpus=8, started_at=None, ended_at=None) for _ in range(2)]
    found = capacity(*jobs)
    assert found.line().startswith("Capacity: not known")
    assert (found.units, found.to_json()["units"]) == (16, None)


def test_what_is_held_outside_of_the_window_does_not_count() -> None:
    assert capacity(ran(0, 10, gpus=1), ran(50, 60, gpus=8), until_s=40).units == 1


def test_an_ended_job_without_an_end_holds_nothing_for_ever() -> None:
    lost = [ran(0, 10, gpus=8, ended_at=None, run_time_s=None, state="CANCELLED") for _ in range(5)]
    assert capacity(ran(20, 30, gpus=1), *lost).units == 1


def test_a_running_job_holds_its_gpus_to_the_end() -> None:
    running = ran(0, 10, gpus=8, ended_at=None, run_time_s=None, state="RUNNING")
    assert capacity(running, ran(500, 600, gpus=2)).units == 10


def test_a_node_in_two_partitions_counts_once() -> None:
    nodes = pd.DataFrame({"name": ["n1", "n1", "n2"], "partition": ["a", "b", "a"], "gpus": [8, 8, 4]})
    found = capacity_of_nodes(nodes, resource="gpus", source=CapacitySource.NODES)
    assert (found.nodes, found.units, found.per_node) == (2, 12, 8)
    assert found.line() == "Capacity: 2 nodes with 12 GPUs (the nodes of the cluster)."


def test_what_a_person_gives_is_told_as_given() -> None:
    found = given_capacity({"gpu": 3}, resource="gpus", per_node=8)
    assert found.line() == "Capacity: 3 nodes of 8 GPUs (--nodes)."


@pytest.mark.parametrize("seed", range(20))
def test_nodes_agree_with_counting_every_second(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [f"n{number}" for number in range(1, 5)]
    jobs = []
    for _ in range(12):
        begin_s, held = int(random.integers(0, 40)), random.choice(names, int(random.integers(1, 3)), replace=False)
        length_s = int(random.integers(1, 20))
        size = len(held) * int(random.integers(1, 5))
        jobs.append(ran(begin_s, begin_s + length_s, gpus=size, node_list=",".join(held)))
    most = dict.fromkeys(names, 0.0)
    for at_s in range(60):
        now = FIRST_SUBMITTED_AT + pd.Timedelta(seconds=at_s)
        for name in names:
            level = sum(
                job["gpus"] / len(expand(job["node_list"]))
                for job in jobs
                if job["started_at"] <= now < job["ended_at"] and name in expand(job["node_list"])
            )
            most[name] = max(most[name], level)
    assert capacity(*jobs).units == sum(most.values())
