"""What is in service, from nodes and their events, from what a person says, and from what was in use."""

from __future__ import annotations

import pytest

from helios.study.capacity import Capacity, find_capacity, takes_no_jobs
from tests.unit.study.worlds import DAY_S, a_history, a_node, events_frame, job, nodes_frame

TWO_DAYS = 2 * DAY_S


def of(*, partition: str | None = "gpu", end: float = TWO_DAYS, **given: object) -> Capacity:
    history = a_history(job(0, 10, 20, 2, partition=partition), end=end)
    return find_capacity(history, **given)  # type: ignore[arg-type]  # tests give what they like


def test_a_node_of_two_partitions_counts_once_and_makes_them_one_pool() -> None:
    nodes = nodes_frame(a_node("n1", "a"), a_node("n1", "b"), a_node("n2", "b"), a_node("n3", "c", 4))
    history = a_history(job(0, 1, 2, partition="a"), job(0, 1, 2, partition="c"), end=TWO_DAYS)
    found = find_capacity(history, nodes=nodes)
    assert found.pools == ("a,b", "c")
    assert found.units.tolist() == [[16, 16], [4, 4]]
    assert [found.pool_of[code] for code in history.partition.code] == [0, 1]


def test_partitions_are_one_pool_through_a_third() -> None:
    nodes = nodes_frame(a_node("n1", "a"), a_node("n1", "c"), a_node("n2", "b"), a_node("n2", "c"))
    assert of(nodes=nodes).pools == ("a,b,c",)


def test_a_drained_node_counts_for_its_part_of_the_day() -> None:
    events = events_frame(("n2", "IDLE+DRAIN", DAY_S / 4, DAY_S), ("n2", "DOWN*", DAY_S / 2, DAY_S))
    found = of(nodes=nodes_frame(a_node("n1"), a_node("n2")), events=events)
    assert found.total.tolist() == [8 + 2, 16]


def test_a_node_that_sleeps_is_in_service() -> None:
    events = events_frame(("n1", "IDLE+POWERED_DOWN", 0, None))
    assert of(nodes=nodes_frame(a_node("n1")), events=events).total.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("state", "out"),
    [
        ("DOWN", True),
        ("DOWN*", True),
        ("MIXED+DRAIN", True),
        ("drained", True),
        ("IDLE+MAINT", True),
        ("FAILING", True),
        ("FUTURE", True),
        ("IDLE", False),
        ("IDLE~", False),
        ("MIXED+POWERING_UP", False),
        ("ALLOCATED+RESERVED", False),
    ],
)
def test_states_that_take_no_jobs(state: str, out: bool) -> None:
    assert takes_no_jobs(state) is out


def test_a_node_counts_from_its_first_job_when_that_is_late() -> None:
    days = 40
    early = job(0, 0, 10, node_list="n1")
    late = job(30 * DAY_S, 30 * DAY_S, 31 * DAY_S, node_list="n2")
    history = a_history(early, late, end=days * DAY_S)
    found = find_capacity(history, nodes=nodes_frame(a_node("n1"), a_node("n2")))
    assert found.total[[0, 29, 30, days - 1]].tolist() == [8, 8, 16, 16]


def test_a_node_that_is_gone_counts_to_its_last_job() -> None:
    history = a_history(job(0, 0, DAY_S, 3, node_list="old"), job(0, 0, 10, node_list="n1"), end=TWO_DAYS)
    found = find_capacity(history, nodes=nodes_frame(a_node("n1")))
    assert found.total.tolist() == [8 + 3, 8]
    assert "1 node that jobs ran on and the cluster no longer has were added." in found.notes


def test_given_nodes_are_there_all_the_time() -> None:
    found = of(given={"gpu": 3, "cpu": 1}, units_per_node=8)
    assert (found.pools, found.source, found.at_least) == (("gpu", "cpu"), "given", False)
    assert found.units.tolist() == [[24, 24], [8, 8]]


@pytest.mark.parametrize("name", ["all", "*", "nobody"])
def test_one_name_that_no_job_uses_pools_all(name: str) -> None:
    history = a_history(job(0, 1, 2, partition="a"), job(0, 1, 2, partition=None), end=TWO_DAYS)
    assert find_capacity(history, given={name: 3}).pools_of(history).tolist() == [0, 0]


def test_jobs_of_a_partition_without_capacity_are_told() -> None:
    found = of(given={"a": 1, "b": 1})
    assert "1 job ran or waited in partitions whose capacity is not known" in found.notes[0]


def test_the_most_in_use_stands_for_what_is_not_known() -> None:
    history = a_history(
        job(0, 100, 300, 4),
        job(0, 200, 400, 3),
        job(0, 300, 500, 5),
        job(40 * DAY_S, 40 * DAY_S, None, 2),
        end=50 * DAY_S,
    )
    found = find_capacity(history)
    assert (found.pools, found.source, found.at_least) == (("gpu",), "jobs", True)
    # The job of 5 GPUs begins in the moment in which that of 4 ends.
    assert found.total[[0, 10, 45]].tolist() == [8, 8, 2]
    assert found.notes[0].startswith("At least: the most GPUs")


def test_nodes_that_jobs_ran_on_stand_for_those_of_a_cluster() -> None:
    history = a_history(job(0, 0, 10, 4, node_list="n[1-2]"), job(20, 20, 30, 8, node_list="n2", partition="b"), end=60)
    found = find_capacity(history)
    assert (found.source, found.at_least, found.pools) == ("jobs", True, ("b,gpu",))
    assert found.total.tolist() == [2 + 8]


def test_more_in_use_than_in_service_is_shown_and_told() -> None:
    history = a_history(job(0, 0, DAY_S, 12), end=TWO_DAYS)
    found = find_capacity(history, given={"gpu": 1}, units_per_node=8)
    assert found.total.tolist() == [8, 8]
    assert found.notes == ("More in use than in service, shown as it is: gpu on 2020-03-02.",)


def test_partitions_that_reach_their_most_at_different_times_are_one_pool() -> None:
    rows = [job(0, 100 * number, 100 * number + 90, 8, partition=f"q{number}") for number in range(4)]
    found = find_capacity(a_history(*rows, end=1000))
    assert (found.pools, found.total.tolist()) == (("all",), [8])
    assert "seem to share nodes" in found.notes[0]


def test_partitions_that_are_full_together_are_pools() -> None:
    rows = [job(0, 0, 500, 8, partition=f"q{number}") for number in range(4)]
    assert find_capacity(a_history(*rows, end=1000)).units.tolist() == [[8]] * 4
