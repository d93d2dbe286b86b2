"""How full a cluster is, when and where, and which jobs fill it: against counts by the second and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.history import StudyHistory, read_history
from helios.study.capacity import find_capacity
from helios.study.figures.source import FigureSource
from helios.study.statements.levels import (
    MISSING_NODES,
    cpu_jobs_on_gpu_nodes,
    idle_nodes,
    imbalance,
    large_and_long,
    utilization,
)
from tests.builders import jobs_frame
from tests.unit.study.worlds import DAY_S, MIDNIGHT_S, a_history, a_node, events_frame, job, nodes_frame

HOUR_S = 3600
WEEK_S = 7 * DAY_S


@st.composite
def moments(draw: st.DrawFn) -> tuple[int, int, int]:
    submitted = draw(st.integers(0, 40))
    started = submitted + draw(st.integers(0, 20))
    return submitted, started, started + draw(st.integers(1, 30))


@settings(max_examples=15)
@given(st.lists(st.tuples(moments(), st.integers(1, 8), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=6))
def test_levels_are_means_over_each_second(rows: list[tuple[tuple[int, int, int], int, str]]) -> None:
    history = a_history(*(job(*times, gpus, partition=name) for times, gpus, name in rows), end=60)
    capacity = find_capacity(history, given={"a": 1, "b": 2}, units_per_node=8)
    source, edges_s = FigureSource(history, capacity), MIDNIGHT_S + np.array([0, 20, 40, 60])
    held, asked = source.held(edges_s=edges_s), source.asked(edges_s=edges_s)
    mine = [(times, gpus) for times, gpus, where in rows if where != "c"]
    for step in range(3):
        seconds = range(20 * step, 20 * (step + 1))
        used = sum(gpus for second in seconds for (_, start, end), gpus in mine if start <= second < end)
        waiting = sum(gpus for second in seconds for (begin, start, _), gpus in mine if begin <= second < start)
        assert held[step] == pytest.approx(used / 20)
        assert asked[step] == pytest.approx(waiting / 20)
    assert capacity.in_service(edges_s).tolist() == [24] * 3


def test_steps_begin_on_the_clock_and_fill_the_window() -> None:
    history = a_history(job(0, 0, 5000), first=100, end=4000)
    assert np.diff(history.step_edges_s).tolist() == [800, 900, 900, 900, 400]


def test_nodes_idle_longer_than_an_hour_are_counted() -> None:
    nodes = nodes_frame(a_node("n1"), a_node("n2"))
    # n1 idles for 2 h and for 30 min between its jobs, n2 for 1 h to the end of the window.
    history = a_history(
        job(0, 0, HOUR_S, node_list="n1"),
        job(0, 3 * HOUR_S, 3.5 * HOUR_S, node_list="n1"),
        job(0, 4 * HOUR_S, 6 * HOUR_S, node_list="n1"),
        job(0, 0, 4.75 * HOUR_S, node_list="n2"),
        end=6 * HOUR_S,
    )
    found = idle_nodes(history, find_capacity(history, nodes=nodes))
    assert found.estimate.value == pytest.approx((2 + 1.25) / 12)
    assert found.parts["spells_per_day"] == pytest.approx(2 * 4)
    assert found.hours_per_week == pytest.approx(8 * 3.25 / history.weeks)


def test_a_node_that_is_down_does_not_idle() -> None:
    nodes = nodes_frame(a_node("n1"), a_node("n2"))
    events = events_frame(("n2", "DOWN", 2 * HOUR_S, None))
    history = a_history(job(0, 0, 10 * HOUR_S, node_list="n1"), end=10 * HOUR_S)
    found = idle_nodes(history, find_capacity(history, nodes=nodes, events=events))
    assert found.estimate.value == pytest.approx(2 / 12)


def test_without_node_lists_idle_nodes_are_those_no_job_can_hold() -> None:
    history = a_history(
        job(0, 0, 2 * HOUR_S, 8, nodes=1.0),
        job(0, HOUR_S, 3 * HOUR_S, 2, nodes=float("nan")),
        end=6 * HOUR_S,
    )
    found = idle_nodes(history, find_capacity(history, given={"gpu": 4}, units_per_node=8))
    # One or two GPUs may lie on as many nodes: 1, 3, 2 and 0 nodes are busy for 1, 1, 1 and 3 h. The spell of an hour
    # of the second node, and that of the third, are not longer than an hour.
    assert found.parts["level"] == "counts"
    assert found.estimate.value == pytest.approx((3 + 3 + 4 + 6) / 24)
    assert found.hours_per_week == pytest.approx(8 * 16 / history.weeks)


def test_idle_nodes_need_nodes() -> None:
    history = a_history(job(0, 0, 10), end=100)
    assert idle_nodes(history, find_capacity(history)).missing == "on which nodes jobs ran"


def test_utilization_is_hours_in_use_by_hours_in_service() -> None:
    history = a_history(job(0, 0, DAY_S, 4), job(0, DAY_S, 4 * DAY_S, 12), end=2 * DAY_S)
    found = utilization(history, find_capacity(history, given={"gpu": 1}, units_per_node=8))
    assert found.estimate.value == pytest.approx((4 + 12) / 16)
    assert (found.parts["p5"]["value"], found.parts["p95"]["value"]) == (0.5, 1.5)
    assert found.parts["swing"] == 1


def test_the_hour_of_the_week_is_that_of_the_local_clock() -> None:
    # 2020-03-02 is a Monday; its first hour is 8 h in Shanghai.
    history = a_history(job(0, 0, HOUR_S, 8), end=DAY_S, timezone="Asia/Shanghai")
    found = utilization(history, find_capacity(history, given={"gpu": 1}, units_per_node=8))
    assert found.parts["by_hour_of_week"][8] == 1
    assert found.parts["by_hour_of_week"][9] == 0
    assert found.parts["by_hour_of_week"][24 + 9] is None


def test_imbalance_is_weighted_by_capacity() -> None:
    history = a_history(job(0, 0, DAY_S, 24, partition="a"), job(0, 0, DAY_S, 0, partition="b"), end=DAY_S)
    capacity = find_capacity(history, given={"a": 3, "b": 1}, units_per_node=8)
    found = imbalance(history, capacity)
    # Shares of 1 and 0 around .75, weighted by 3 and 1.
    assert found.estimate.value == pytest.approx(np.sqrt(0.75 * 0.25**2 + 0.25 * 0.75**2))
    assert found.parts["range"] == 1


def test_a_small_partition_does_not_make_the_range() -> None:
    history = a_history(job(0, 0, DAY_S, 4, partition="a"), job(0, 0, DAY_S, 4, partition="b"), end=DAY_S)
    found = imbalance(history, find_capacity(history, given={"a": 4, "b": 4, "tiny": 0, "c": 100}, units_per_node=1))
    assert found.parts["range"] is None
    assert "tiny" not in found.parts["by_partition"]


def test_one_pool_has_no_imbalance() -> None:
    history = a_history(job(0, 0, DAY_S), end=DAY_S)
    assert imbalance(history, find_capacity(history, given={"gpu": 4})).missing


def test_hours_of_long_and_of_large_jobs() -> None:
    history = a_history(
        job(0, 0, 2 * DAY_S, 1, partition="a"),
        job(0, DAY_S, 2 * DAY_S, 6, partition="a"),
        job(0, 0, None, 1, partition="a", state="RUNNING"),
        job(0, HOUR_S, DAY_S, 4, partition="a"),
        end=2 * DAY_S,
    )
    found = large_and_long(history, find_capacity(history, given={"a": 1}, units_per_node=8))
    total = 48 + 6 * 24 + 48 + 4 * 23
    assert found.estimate.value == pytest.approx((48 + 48) / total)
    assert found.parts["above_half"]["value"] == pytest.approx(6 * 24 / total)
    assert (found.parts["mean_wait_above_half_h"], found.parts["mean_wait_of_others_h"]) == (24, pytest.approx(1 / 3))
    # While the job of 6 GPUs waits, 6 GPUs idle for the first hour and 2 for the rest of the day.
    assert found.parts["drain_hours_per_week"] == pytest.approx((6 + 2 * 23) / history.weeks)


def test_long_jobs_are_known_without_starts() -> None:
    rows = [job(0, None, None, state="COMPLETED", run_time_s=hours * HOUR_S) for hours in (30.0, 10.0)]
    history = read_history(jobs_frame(*rows), cluster="tiny", timezone="UTC", resource="gpus")
    assert not history.has_starts
    found = large_and_long(history, find_capacity(history))
    assert found.estimate.value == pytest.approx(0.75)
    assert found.parts["above_half"] is None


def test_cpu_jobs_on_gpu_nodes_count_beside_waiting_gpu_jobs_once() -> None:
    nodes = nodes_frame(a_node("n1"), a_node("n2", "other"))
    history = a_history(
        job(0, 0, 4 * HOUR_S, 0, node_list="n1"),
        job(0, HOUR_S, 3 * HOUR_S, 0, node_list="n1"),
        job(0, 0, 4 * HOUR_S, 0, node_list="n2", partition="other"),
        job(2 * HOUR_S, 5 * HOUR_S, 6 * HOUR_S, 1, node_list="n1"),
        job(1.5 * HOUR_S, 2.5 * HOUR_S, 6 * HOUR_S, 1, node_list="n1"),
        end=6 * HOUR_S,
    )
    found = cpu_jobs_on_gpu_nodes(history, find_capacity(history, nodes=nodes))
    assert found.hours_per_week == pytest.approx(2.5 / history.weeks)
    assert found.parts["node_hours_per_week"] == pytest.approx(8 / history.weeks)
    assert found.n == 3


def test_a_cpu_job_holds_up_only_those_who_may_use_its_node() -> None:
    nodes = nodes_frame(a_node("n1", "p"), a_node("n2", "p"), a_node("n2", "q"), a_node("n3", "q"))
    history = a_history(
        job(0, 0, 4 * HOUR_S, 0, node_list="n1", partition="p"),
        job(0, 0, 4 * HOUR_S, 8, node_list="n3", partition="q"),
        job(0, 3 * HOUR_S, 4 * HOUR_S, 8, node_list="n3", partition="q"),
        end=6 * HOUR_S,
    )
    assert cpu_jobs_on_gpu_nodes(history, find_capacity(history, nodes=nodes)).estimate.value == 0


def test_partitions_that_only_seem_to_share_nodes_tell_nothing_of_cpu_jobs() -> None:
    # Of GPUs and CPUs each partition has its most at another time, so that they look like one pool.
    history = a_history(
        job(0, 0, 4 * HOUR_S, 8, partition="gpu"),
        job(0, 5 * HOUR_S, 6 * HOUR_S, 8, partition="gpu2"),
        job(0, 0, 6 * HOUR_S, 0, partition="cpu"),
        end=6 * HOUR_S,
    )
    found = cpu_jobs_on_gpu_nodes(history, find_capacity(history))
    assert (found.estimate.value, found.missing) == (None, MISSING_NODES)


@pytest.mark.parametrize("number_of", [(4, idle_nodes), (5, utilization), (6, imbalance), (20, cpu_jobs_on_gpu_nodes)])
def test_without_starts_levels_are_not_known(number_of: tuple[int, Any]) -> None:
    number, finding = number_of
    history: StudyHistory = a_history(job(0, None, None, state="COMPLETED", run_time_s=5.0), end=1000)
    found = finding(history, find_capacity(history, given={"gpu": 1}))
    assert (found.question, found.missing) == (number, "when jobs started")


def test_weeks_give_an_interval() -> None:
    jobs = [job(week * WEEK_S, week * WEEK_S, week * WEEK_S + (3 + week % 3) * DAY_S, 8) for week in range(9)]
    history = a_history(*jobs, end=9 * WEEK_S)
    found = utilization(history, find_capacity(history, given={"gpu": 1}, units_per_node=8)).estimate
    assert found.value == pytest.approx(4 / 7)
    assert found.low is not None and found.high is not None and 0 < found.low < 4 / 7 < found.high


def test_a_job_with_unknown_end_does_not_hold_to_the_end() -> None:
    lost = job(0, HOUR_S, None, 4, state="CANCELLED", run_time_s=float("nan"))
    history = a_history(lost, job(0, 0, DAY_S, 2), job(0, DAY_S / 2, None, 2, state="RUNNING"), end=DAY_S)
    assert history.hours().tolist() == [0, 48, 24]
    assert history.repaired == {"has ended at an unknown time": 1}
