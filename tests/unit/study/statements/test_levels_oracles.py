"""Statements on levels against counts step by step, over small random histories with and without node lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.blocks import Finding
from helios.metrics.history import StudyHistory
from helios.study.capacity import Capacity, find_capacity
from helios.study.statements.idle import idle_beside_waiting
from helios.study.statements.levels import (
    MISSING_NODES,
    cpu_jobs_on_gpu_nodes,
    idle_nodes,
    imbalance,
    large_and_long,
    utilization,
)
from tests.examples import examples
from tests.unit.study.random_worlds import DAY, DAYS, END, HOUR, STEP_S, Row, history_of, rows
from tests.unit.study.worlds import a_node, events_frame, nodes_frame

worlds = settings(max_examples=examples(15), deadline=None)
WEEKS = DAYS / 7
Nodes = dict[str, tuple[str, ...]]
NODES: tuple[Nodes, ...] = (
    {"n1": ("p",), "n2": ("p",), "n3": ("q",)},
    {"n1": ("p",), "n2": ("p", "q"), "n3": ("q",)},
    {"n1": ("p", "q"), "n2": ("p", "q"), "n3": ("r",)},
)
"""Nodes with their partitions: of their own, some shared, all shared."""


@st.composite
def placed(draw: st.DrawFn) -> tuple[Nodes, list[Row]]:
    """A cluster, and jobs on its nodes, no more than one on a node at a time that is known."""
    nodes = draw(st.sampled_from(NODES))
    found = []
    for row in draw(rows()):
        possible = sorted(name for name, partitions in nodes.items() if row.partition in partitions)
        held = tuple(draw(st.permutations(possible))[: min(row.nodes, len(possible))])
        found.append(replace(row, held=held if row.started is not None else ()))
    return nodes, found


def frame_of(nodes: Nodes, **more: Any) -> pd.DataFrame:
    return nodes_frame(*(a_node(name, one, **more) for name, partitions in nodes.items() for one in partitions))


def seen_by(rows: list[Row]) -> list[Row]:
    """The rows that a window shows: submitted before its end, and not over before its begin."""
    return [row for row in rows if row.submitted >= 0 or row.ended is None or row.ended > 0]


def same(found: Finding, value: float | None) -> None:
    assert found.estimate.value == (None if value is None else pytest.approx(value, abs=1e-9)), found.missing


def without_lists(rows: list[Row]) -> list[Row]:
    return [replace(row, held=()) for row in rows]


def test_the_worlds_have_what_the_statements_are_about() -> None:
    drawn = [row for _ in range(20) for row in placed().example()[1]]
    assert any(row.held and not row.gpus for row in drawn) and any(row.restart for row in drawn)


@worlds
@given(placed())
def test_cpu_jobs_on_gpu_nodes_are_counted_node_by_node(world: tuple[Nodes, list[Row]]) -> None:
    nodes, jobs = world
    jobs = seen_by(jobs)
    total = while_waiting = 0
    for step in range(END):
        wanted = {row.partition for row in jobs if row.gpus and step in row.waits}
        busy = {name for row in jobs if not row.gpus and step in row.steps() for name in row.held}
        total += len(busy)
        while_waiting += sum(not wanted.isdisjoint(nodes[name]) for name in busy)
    history = history_of(jobs)
    found = cpu_jobs_on_gpu_nodes(history, find_capacity(history, nodes=frame_of(nodes)))
    same(found, while_waiting / HOUR / WEEKS)
    assert found.parts["node_hours_per_week"] == pytest.approx(total / HOUR / WEEKS)


@worlds
@given(placed(), st.booleans())
def test_cpu_jobs_without_node_lists_count_where_all_nodes_have_gpus(
    world: tuple[Nodes, list[Row]], has_mixed: bool
) -> None:
    nodes, jobs = world
    jobs = seen_by(without_lists(jobs))
    cpu_jobs = [row for row in jobs if not row.gpus and row.steps()]
    frame = frame_of(nodes)
    if has_mixed:
        frame = pd.concat([frame, nodes_frame(a_node("c1", "p", gpus=0))], ignore_index=True)
    history = history_of(jobs)
    found = cpu_jobs_on_gpu_nodes(history, find_capacity(history, nodes=frame))
    if has_mixed and any(row.partition == "p" for row in cpu_jobs):
        assert (found.estimate.value, found.missing) == (None, MISSING_NODES)
        return
    shares = {
        (one, other) for partitions in nodes.values() for one in partitions for other in partitions
    }  # fmt: skip
    while_waiting = 0
    for step in range(END):
        wanted = {row.partition for row in jobs if row.gpus and step in row.waits}
        while_waiting += sum(
            row.nodes
            for row in cpu_jobs
            if step in row.steps() and any((row.partition, one) in shares for one in wanted)
        )
    same(found, while_waiting / HOUR / WEEKS)


@worlds
@given(rows(partitions=("gpu", "cpu")))
def test_cpu_jobs_are_unknown_without_node_lists_and_partitions(jobs: list[Row]) -> None:
    history = history_of(jobs)
    for capacity in (find_capacity(history), find_capacity(history, given={"gpu": 2, "cpu": 3}, units_per_node=8)):
        found = cpu_jobs_on_gpu_nodes(history, capacity)
        assert (found.estimate.value, found.missing) == (None, MISSING_NODES)


@worlds
@given(placed(), st.none() | st.tuples(st.integers(0, END - 1), st.integers(1, 2 * DAY)))
def test_idle_nodes_are_the_long_gaps_of_each_node(
    world: tuple[Nodes, list[Row]], drained: tuple[int, int] | None
) -> None:
    nodes, jobs = world
    jobs = seen_by(jobs)
    idle = served = spells = 0
    out = range(0) if drained is None else range(drained[0], min(drained[0] + drained[1], END))
    for name in nodes:
        free = [
            not (name == "n1" and step in out)
            and not any(name in row.held and step in row.steps() for row in jobs)
            for step in range(END)
        ]  # fmt: skip
        served += END - (len(out) if name == "n1" else 0)
        lengths = [len(run) for run in "".join("x" if one else " " for one in free).split()]
        idle += sum(length for length in lengths if length > HOUR)
        spells += sum(length > HOUR for length in lengths)
    events = None
    if drained is not None:
        events = events_frame(("n1", "DRAIN", out.start * STEP_S, out.stop * STEP_S))
    history = history_of(jobs)
    found = idle_nodes(history, find_capacity(history, nodes=frame_of(nodes), events=events))
    same(found, idle / served)
    assert found.parts["spells_per_day"] == pytest.approx(spells / DAYS)


def used_in(jobs: list[Row], partitions: str) -> float:
    return sum(row.hours for row in jobs if row.partition in partitions)


def capacity_of(history: StudyHistory, shared: bool) -> tuple[Capacity, dict[str, int]]:
    """Two partitions of 2 and 1 nodes of 8 GPUs, or one pool of all."""
    given_nodes = {"all": 3} if shared else {"p": 2, "q": 1}
    sizes = {"pq": 24} if shared else {"p": 16, "q": 8}
    return find_capacity(history, given=given_nodes, units_per_node=8), sizes


@worlds
@given(rows(), st.booleans())
def test_use_and_imbalance_are_hours_over_hours(jobs: list[Row], shared: bool) -> None:
    jobs = seen_by(jobs)
    history = history_of(jobs)
    capacity, sizes = capacity_of(history, shared)
    same(utilization(history, capacity), used_in(jobs, "pq") / (24 * 24 * DAYS))
    use = {names: used_in(jobs, names) / (size * 24 * DAYS) for names, size in sizes.items()}
    mean = sum(use[names] * size for names, size in sizes.items()) / 24
    deviation = (sum(size * (use[names] - mean) ** 2 for names, size in sizes.items()) / 24) ** 0.5
    same(imbalance(history, capacity), None if shared else deviation)


@worlds
@given(rows(), st.booleans())
def test_long_and_large_jobs_are_those_of_a_plain_count(jobs: list[Row], shared: bool) -> None:
    jobs = seen_by(jobs)
    history = history_of(jobs)
    capacity, sizes = capacity_of(history, shared)
    total = sum(row.hours for row in jobs)
    so_far = [
        (row, row.run if row.run is not None else END - (END if row.started is None else row.started)) for row in jobs
    ]
    found = large_and_long(history, capacity)
    same(found, sum(row.hours for row, ran in so_far if ran > DAY) / total if total else None)
    if total:
        large = [row for row in jobs for names, size in sizes.items() if row.partition in names and row.gpus > size / 2]
        assert found.parts["above_half"]["value"] == pytest.approx(sum(row.hours for row in large) / total)


@worlds
@given(rows(within=2 * DAY + 2 * HOUR), st.integers(2, 4), st.booleans())
def test_idle_beside_waiting_is_counted_in_each_step(jobs: list[Row], gpus: int, shared: bool) -> None:
    """Statements 1 to 3, where only counts are known: the queue of each pool is placed, oldest first."""
    jobs = seen_by(jobs)
    pools = {"pq": 2 * gpus} if shared else {"p": gpus, "q": gpus}
    totals = np.zeros(3)
    for step in range(END):
        totals += _of_step(jobs, pools, step)
    history = history_of(jobs)
    given_nodes = {"all": 2 * gpus} if shared else dict.fromkeys("pq", gpus)
    elsewhere, unusable, behind = idle_beside_waiting(history, find_capacity(history, given=given_nodes))
    same(elsewhere, None if shared else totals[0] / HOUR / WEEKS)
    same(unusable, totals[1] / HOUR / WEEKS)
    same(behind, totals[2] / HOUR / WEEKS)


def _of_step(jobs: list[Row], pools: dict[str, int], step: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    free = {names: max(size - sum(row.gpus for row in jobs if row.partition in names and step in row.steps()), 0)
            for names, size in pools.items()}  # fmt: skip
    queue = [row for row in jobs if row.gpus and step in row.waits]
    queue.sort(key=lambda row: max(row.eligible, row.submitted))
    lent = unusable = behind = 0
    left, oldest = [], {}
    for row in queue:
        oldest.setdefault(row.partition, row.gpus > next(free[names] for names in pools if str(row.partition) in names))
    for row in queue:
        names = next(names for names in pools if str(row.partition) in names)
        if row.gpus <= free[names]:
            free[names] -= row.gpus
            behind += row.gpus * oldest[row.partition]
        else:
            left.append(row)
    unusable = sum(free[names] for names in pools if any(str(row.partition) in names for row in left))
    for row in left:
        other = next((names for names in pools if str(row.partition) not in names and row.gpus <= free[names]), None)
        if other is not None:
            free[other] -= row.gpus
            lent += row.gpus
    return np.array([lent, unusable, behind], dtype=np.float64)
