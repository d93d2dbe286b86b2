"""GPUs that idle while jobs wait: the compiled sweep against one that walks through every second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.metrics.study import idle
from helios.metrics.study.capacity import find_capacity
from helios.metrics.study.idle import (
    BEHIND_OLDEST,
    CPUS,
    IDLE,
    LENT,
    MEASURES,
    MEMORY,
    OTHER_NODES,
    OWN,
    SAME_POOL,
    SCATTERED,
    SENT,
    TOO_FEW,
    TYPE,
    UNUSABLE,
    WAITING,
    idle_beside_waiting,
    idle_by_day,
)
from tests.unit.metrics.study.worlds import DAY_S, a_history, a_node, job, nodes_frame

END = 30
POOL_NAMES = ("p0", "p1", "p2")


@dataclass(frozen=True)
class Machine:
    """A node, or a whole partition."""

    partition: str
    total: tuple[float, ...]
    kind: str = ""


@dataclass(frozen=True)
class Request:
    """A job with the machines that it held."""

    eligible: int
    started: int | None
    ended: int | None
    size: int
    partition: str
    nodes: int
    need: tuple[float, ...]
    kind: str = ""
    held: tuple[int, ...] = ()

    @property
    def waits_until(self) -> int:
        return next((moment for moment in (self.started, self.ended) if moment is not None), END)

    def fits(self, free: tuple[float, ...]) -> bool:
        return all(there >= needed for there, needed in zip(free, self.need, strict=True))


def by_the_second(machines: list[Machine], requests: list[Request]) -> NDArray[np.float64]:
    pools = sorted({machine.partition for machine in machines})
    answer = np.zeros((len(pools), MEASURES))
    for second in range(END):
        answer += of_a_moment(machines, requests, pools, second)
    return answer


def of_a_moment(machines: list[Machine], requests: list[Request], pools: list[str], second: int) -> NDArray[np.float64]:
    """One second, in the words of the definition."""
    free = [list(machine.total) for machine in machines]
    for request in requests:
        if request.started is not None and request.started <= second < (request.ended or END):
            for number in request.held:
                for resource, amount in enumerate(request.need):
                    free[number][resource] -= amount
    free = [[max(amount, 0.0) for amount in one] for one in free]
    queue = [request for request in requests if request.eligible <= second < request.waits_until]
    queue.sort(key=lambda request: request.eligible)
    rates = np.zeros((len(pools), MEASURES))
    for row, pool in enumerate(pools):
        idle_here = sum(one[0] for one, machine in zip(free, machines, strict=True) if machine.partition == pool)
        waiting_here = sum(request.size for request in queue if request.partition == pool)
        rates[row, IDLE], rates[row, WAITING] = idle_here, waiting_here
        rates[row, SAME_POOL] = min(idle_here, waiting_here)
    if not rates[:, IDLE].any() or not rates[:, WAITING].any():
        return rates

    def find(request: Request, *, own: bool) -> list[int]:
        possible = [
            number
            for number, machine in enumerate(machines)
            if (machine.partition == request.partition) == own
            and suits(request, machine)
            and request.fits(tuple(free[number]))
        ]
        if request.nodes == 1:
            possible.sort(key=lambda number: free[number][0])
        return possible[: request.nodes] if len(possible) >= request.nodes else []

    blocked = set()
    for pool in pools:
        own_queue = [request for request in queue if request.partition == pool]
        if own_queue and not find(own_queue[0], own=True):
            blocked.add(pool)
    for own in (True, False):
        left_over = []
        for request in queue:
            row, taken = pools.index(request.partition), find(request, own=own)
            if not taken:
                left_over.append(request)
                continue
            for number in taken:
                for resource, amount in enumerate(request.need):
                    free[number][resource] -= amount
                if not own:
                    rates[pools.index(machines[number].partition), LENT] += request.size / request.nodes
            rates[row, OWN if own else SENT] += request.size
            if own and request.partition in blocked:
                rates[row, BEHIND_OLDEST] += request.size
        queue = left_over
        if own:
            for number, machine in enumerate(machines):
                mine = [request for request in queue if request.partition == machine.partition]
                if mine and free[number][0] > 0:
                    row = pools.index(machine.partition)
                    rates[row, UNUSABLE] += free[number][0]
                    rates[row, max(why(request, number, machines, free) for request in mine)] += free[number][0]
    return rates


def suits(request: Request, machine: Machine) -> bool:
    return request.kind == machine.kind or "" in {request.kind, machine.kind}


def why(request: Request, number: int, machines: list[Machine], free: list[list[float]]) -> int:
    if not suits(request, machines[number]):
        return TYPE
    own = [
        place
        for place, machine in enumerate(machines)
        if machine.partition == request.partition and suits(request, machine)
    ]
    if free[number][0] < request.need[0]:
        enough = sum(free[place][0] for place in own) >= request.nodes * request.need[0]
        return SCATTERED if enough else TOO_FEW
    if free[number][1:2] < list(request.need[1:2]):
        return CPUS
    return MEMORY if free[number][2:3] < list(request.need[2:3]) else OTHER_NODES


@st.composite
def moments(draw: st.DrawFn) -> tuple[int, int | None, int | None]:
    eligible = draw(st.integers(0, 24))
    started = draw(st.none() | st.integers(eligible, eligible + 9))
    ended = draw(st.none() | st.integers((eligible if started is None else started) + 1, 35))
    return eligible, started, ended


@st.composite
def counted_worlds(draw: st.DrawFn) -> tuple[list[Machine], list[Request]]:
    machines = [Machine(name, (draw(st.integers(1, 10)),)) for name in POOL_NAMES[: draw(st.integers(1, 3))]]
    requests = []
    for _ in range(draw(st.integers(1, 9))):
        place, size = draw(st.integers(0, len(machines) - 1)), draw(st.sampled_from([1, 1, 2, 4, 8]))
        requests.append(Request(*draw(moments()), size, machines[place].partition, 1, (size,), "", (place,)))
    return machines, requests


@st.composite
def noded_worlds(draw: st.DrawFn) -> tuple[list[Machine], list[Request]]:
    machines = [
        Machine(draw(st.sampled_from(POOL_NAMES[:2])), (4, 8, 16), draw(st.sampled_from(["", "a", "b"])))
        for _ in range(draw(st.integers(1, 4)))
    ]
    partitions = sorted({machine.partition for machine in machines})
    requests = []
    for _ in range(draw(st.integers(1, 8))):
        eligible, started, ended = draw(moments())
        nodes = draw(st.sampled_from([1, 1, 2]))
        held = tuple(range(nodes)) if nodes <= len(machines) else (0,)
        if nodes == 1:
            held = (draw(st.integers(0, len(machines) - 1)),)
        need = (draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 12)))
        kind, partition = draw(st.sampled_from(["", "", "a"])), draw(st.sampled_from(partitions))
        if started is not None and len(held) < nodes:
            continue
        requests.append(Request(eligible, started, ended, need[0] * nodes, partition, nodes, need, kind, held))
    return machines, requests


def as_jobs(requests: list[Request]) -> list[dict[str, Any]]:
    return [
        job(
            request.eligible,
            request.started,
            request.ended,
            request.size,
            partition=request.partition,
            state="RUNNING"
            if request.started is not None and request.ended is None
            else "COMPLETED"
            if request.started is not None
            else "PENDING"
            if request.ended is None
            else "CANCELLED",
            nodes=float(request.nodes),
            cpus=float(request.need[1] * request.nodes) if len(request.need) > 1 else 4.0,
            memory_mib=float(request.need[2] * request.nodes) if len(request.need) > 2 else None,
            gpu_type=request.kind or None,
            node_list=",".join(f"n{place}" for place in request.held) if request.started is not None else None,
        )
        for request in requests
    ]


@settings(max_examples=40)
@given(counted_worlds())
def test_counts_are_what_each_second_says(world: tuple[list[Machine], list[Request]]) -> None:
    machines, requests = world
    history = a_history(*as_jobs([*requests, Request(0, 0, 1, 1, "p0", 1, (0,))]), end=END)
    requests = [*requests, Request(0, 0, 1, 1, "p0", 1, (1,), "", (0,))]
    given_nodes = {machine.partition: int(machine.total[0]) for machine in machines}
    found = idle_by_day(history, find_capacity(history, given=given_nodes))
    assert found.level == "counts"
    measured = found.pools.sum(axis=0)
    expected = by_the_second(machines, requests)
    if len(machines) == 1 and "p0" not in history.partition.values:
        pytest.skip("one pool for all")
    columns = slice(0, UNUSABLE + 1)
    assert measured[:, columns] == pytest.approx(expected[:, columns])


@settings(max_examples=60)
@given(noded_worlds())
def test_nodes_are_what_each_second_says(world: tuple[list[Machine], list[Request]]) -> None:
    machines, requests = world
    requests = [*requests, Request(0, 0, 2, 1, machines[0].partition, 1, (1, 1, 1), "", (0,))]
    nodes = nodes_frame(
        *(
            a_node(f"n{number}", one.partition, 4, cpus=8.0, memory_mib=16.0, gpu_type=one.kind or None)
            for number, one in enumerate(machines)
        )
    )
    history = a_history(*as_jobs(requests), end=END)
    found = idle_by_day(history, find_capacity(history, nodes=nodes))
    assert found.level == "nodes"
    assert found.pools.sum(axis=0) == pytest.approx(by_the_second(machines, requests))
