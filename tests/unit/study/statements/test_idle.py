"""GPUs that idle while jobs wait: the compiled sweep against one that walks through every second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.metrics.history import StudyHistory
from helios.study.capacity import find_capacity
from helios.study.statements.idle import (
    BEHIND_OLDEST,
    CPUS,
    IDLE,
    LENT,
    MEASURED_S,
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
from tests.unit.study.worlds import DAY_S, a_history, a_node, events_frame, job, nodes_frame

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


def by_the_second(machines: list[Machine], requests: list[Request]) -> NDArray[np.float64]:
    pools = sorted({machine.partition for machine in machines})
    answer = np.zeros((len(pools), MEASURES))
    for second in range(END):
        answer += of_a_moment(machines, requests, pools, second)
    return answer


def of_a_moment(machines: list[Machine], requests: list[Request], pools: list[str], second: int) -> NDArray[np.float64]:
    """One second, in the words of the definition."""
    free = free_then(machines, requests, second)
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
    first_of = {request.partition: request for request in reversed(queue)}
    blocked = {pool for pool, request in first_of.items() if not find(request, machines, free, own=True)}
    for own in (True, False):
        left_over = []
        for request in queue:
            taken = find(request, machines, free, own=own)
            if not taken:
                left_over.append(request)
                continue
            for number in taken:
                free[number] = [there - needed for there, needed in zip(free[number], request.need, strict=True)]
                if not own:
                    rates[pools.index(machines[number].partition), LENT] += request.size / request.nodes
            rates[pools.index(request.partition), OWN if own else SENT] += request.size
            if own and request.partition in blocked:
                rates[pools.index(request.partition), BEHIND_OLDEST] += request.size
        queue = left_over
        if own:
            explain(machines, queue, free, pools, rates)
    return rates


def free_then(machines: list[Machine], requests: list[Request], second: int) -> list[list[float]]:
    free = [list(machine.total) for machine in machines]
    for request in requests:
        if request.started is not None and request.started <= second < (request.ended or END):
            for number in request.held:
                free[number] = [there - held for there, held in zip(free[number], request.need, strict=True)]
    return [[max(amount, 0.0) for amount in one] for one in free]


def find(request: Request, machines: list[Machine], free: list[list[float]], *, own: bool) -> list[int]:
    possible = [
        number
        for number, machine in enumerate(machines)
        if (machine.partition == request.partition) == own
        and suits(request, machine)
        and all(there >= needed for there, needed in zip(free[number], request.need, strict=True))
    ]
    if request.nodes == 1:
        possible.sort(key=lambda number: free[number][0])
    return possible[: request.nodes] if len(possible) >= request.nodes else []


def explain(
    machines: list[Machine],
    queue: list[Request],
    free: list[list[float]],
    pools: list[str],
    rates: NDArray[np.float64],
) -> None:
    for number, machine in enumerate(machines):
        mine = [request for request in queue if request.partition == machine.partition]
        if mine and free[number][0] > 0:
            row = pools.index(machine.partition)
            rates[row, UNUSABLE] += free[number][0]
            rates[row, max(why(request, number, machines, free) for request in mine)] += free[number][0]


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


def state_of(request: Request) -> str:
    if request.started is None:
        return "PENDING" if request.ended is None else "CANCELLED"
    return "RUNNING" if request.ended is None else "COMPLETED"


def as_jobs(requests: list[Request]) -> list[dict[str, Any]]:
    return [
        job(
            request.eligible,
            request.started,
            request.ended,
            request.size,
            partition=request.partition,
            state=state_of(request),
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
    requests = [*requests, Request(0, 0, 1, 1, "p0", 1, (1,), "", (0,))]
    history = a_history(*as_jobs(requests), end=END)
    given_nodes = {machine.partition: int(machine.total[0]) for machine in machines}
    found = idle_by_day(history, find_capacity(history, given=given_nodes))
    assert found.level == "counts"
    columns = slice(0, UNUSABLE + 1)
    assert found.pools.sum(axis=0)[:, columns] == pytest.approx(by_the_second(machines, requests)[:, columns])


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


RAN = job(0, 0, 1, 1, partition="gpu")
"""A job that makes a history one with starts."""


def hours(history: StudyHistory, **capacity: Any) -> list[float]:
    found = idle_beside_waiting(history, find_capacity(history, **capacity))
    return [one.hours_per_week * history.weeks for one in found if one.hours_per_week is not None]


def test_what_fits_in_the_other_partition_is_counted_there() -> None:
    busy, waits = job(0, 0, 7200, 8, partition="a"), job(1800, 5400, 7200, 4, partition="a")
    history = a_history(busy, waits, job(0, 0, 1, partition="b"), end=7200)
    elsewhere, unusable, behind = hours(history, given={"a": 1, "b": 1}, units_per_node=8)
    assert (elsewhere, unusable, behind) == pytest.approx((4, 0, 0))


def test_younger_jobs_that_fit_are_behind_the_oldest_that_does_not() -> None:
    history = a_history(job(0, 0, 7200, 4), job(0, 7200, None, 8), job(3600, 7200, None, 2), end=7200)
    unusable, behind = hours(history, given={"gpu": 1}, units_per_node=8)
    assert (unusable, behind) == pytest.approx((4 + 2, 2))


def test_the_oldest_job_is_that_of_its_own_partition() -> None:
    pending = (job(0, None, None, 4, partition="q"), job(1, None, None, 1, partition="p"))
    assert hours(a_history(RAN, *pending, end=10), given={"all": 2})[-1] == 0


def test_a_run_started_again_waits_from_the_end_of_the_first() -> None:
    first = job(0, 2, 10, state="NODE_FAIL", job_id="j1")
    again = job(0, 12, 20, job_id="j1", restart=1)
    assert a_history(first, again, end=20).wait_s.tolist() == [2, 2]


def test_a_job_above_a_node_needs_whole_nodes_of_counts() -> None:
    history = a_history(job(0, 0, 3600, 5), job(0, None, None, 10), end=3600)
    found = idle_by_day(history, find_capacity(history, given={"gpu": 2}, units_per_node=8))
    assert found.pools.sum(axis=0)[0, OWN] == 0
    found = idle_by_day(history, find_capacity(history, given={"gpu": 16}, units_per_node=1))
    assert found.pools.sum(axis=0)[0, OWN] == 10 * 3600


@pytest.mark.parametrize(
    ("waits", "waited_s"),
    [
        (job(100, None, None), 900),
        (job(100, None, 400), 300),
        (job(100, 100, 400), 0),
        (job(100, None, None, state="COMPLETED"), 0),
        (job(100, 2000, 3000), 900),
    ],
    ids=["still pending", "cancelled in the queue", "at once", "of unknown start", "starts after the window"],
)
def test_how_long_a_job_waits(waits: dict[str, Any], waited_s: int) -> None:
    history = a_history(RAN, waits, end=1000)
    found = idle_by_day(history, find_capacity(history, given={"gpu": 4}))
    assert found.pools[:, 0, WAITING].sum() == waited_s


def test_a_queue_that_never_starts_waits_to_the_window_end() -> None:
    history = a_history(RAN, *(job(100, None, None, 2) for _ in range(3)), end=1000)
    found = idle_by_day(history, find_capacity(history, given={"gpu": 3}))
    assert found.pools[:, 0, WAITING].sum() == 3 * 2 * 900
    assert found.pools[:, 0, UNUSABLE].sum() == 900


def test_jobs_of_unknown_wait_lower_the_coverage() -> None:
    history = a_history(RAN, job(100, None, None, state="COMPLETED"), end=1000)
    assert idle_by_day(history, find_capacity(history, given={"gpu": 4})).coverage == 0.5


def test_days_are_measured_apart() -> None:
    history = a_history(job(0, 0, DAY_S, 4), job(DAY_S - 10, DAY_S + 30, 2 * DAY_S, 4), end=2 * DAY_S)
    found = idle_by_day(history, find_capacity(history, given={"gpu": 6}))
    assert found.pools[:, 0, WAITING].tolist() == [40, 120]
    assert found.totals[:, MEASURED_S].tolist() == [DAY_S, DAY_S]


def test_capacity_changes_at_midnight() -> None:
    history = a_history(job(0, 0, 2 * DAY_S, 4), end=2 * DAY_S)
    capacity = find_capacity(history, given={"gpu": 6})
    grows = replace(capacity, units=np.array([[6.0, 9.0]]))
    assert idle_by_day(history, grows).pools[:, 0, IDLE].tolist() == [2 * DAY_S, 5 * DAY_S]


def test_a_job_runs_only_on_nodes_of_its_own_partition() -> None:
    nodes = nodes_frame(a_node("n1", "long"), a_node("n1", "short"), a_node("n2", "short"))
    busy = job(0, 0, 3600, 8, partition="long", node_list="n1")
    history = a_history(busy, job(0, None, None, 2, partition="long"), end=3600)
    capacity = find_capacity(history, nodes=nodes)
    assert capacity.pools == ("long,short",)
    found = idle_by_day(history, capacity).pools.sum(axis=0)[0]
    assert (found[OWN], found[LENT]) == (0, 2 * 3600)


def test_a_drained_node_does_not_idle() -> None:
    nodes = nodes_frame(a_node("n1"), a_node("n2"))
    events = events_frame(("n2", "DRAINED", 600, None))
    history = a_history(job(0, 0, 3600, 8, node_list="n1"), job(0, None, None, 2), end=3600)
    found = idle_by_day(history, find_capacity(history, nodes=nodes, events=events)).pools.sum(axis=0)[0]
    assert (found[IDLE], found[OWN]) == (8 * 600, 2 * 600)


def test_reasons_are_given_only_where_nodes_are_known() -> None:
    busy, waits = job(0, 0, 3600, 7, node_list="n1", cpus=64.0), job(0, None, None, 1, cpus=8.0)
    history = a_history(busy, waits, end=3600)
    _, unusable, _ = idle_beside_waiting(history, find_capacity(history, nodes=nodes_frame(a_node("n1"))))
    assert unusable.parts["level"] == "nodes"
    assert unusable.parts["reasons"]["CPUs taken"] == pytest.approx(1 / history.weeks)
    _, unusable, _ = idle_beside_waiting(history, find_capacity(history, given={"gpu": 1}, units_per_node=8))
    assert (unusable.parts["reasons"], unusable.parts["reasons_missing"]) == (None, "not known here")


def test_many_events_are_looked_at_less_often_with_nearly_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    submitted = np.sort(rng.integers(0, 4 * DAY_S, size=300))
    jobs = [
        job(int(moment), int(moment + wait), int(moment + wait + 20_000), 2)
        for moment, wait in zip(submitted, rng.integers(0, 9000, size=300), strict=True)
    ]
    history = a_history(*jobs, end=4 * DAY_S)
    capacity = find_capacity(history, given={"gpu": 40})
    exact = idle_by_day(history, capacity).pools
    monkeypatch.setattr("helios.study.statements.idle._MAX_WORK", 1.0)
    rough = idle_by_day(history, capacity).pools
    assert not np.array_equal(exact, rough)
    assert rough[:, 0, : OWN + 1] == pytest.approx(exact[:, 0, : OWN + 1], rel=0.03)


def test_jobs_that_still_run_hold_what_they_have_to_the_end() -> None:
    waits = [job(0, 3600, 7200, 4), job(0, 0, 3600, 6)]
    others = [job(0, 0, 3600 if number % 4 else None) for number in range(1_000)]
    assert hours(a_history(*waits, end=7200), given={"gpu": 8}) == pytest.approx([2, 0])
    assert hours(a_history(*waits, *others, end=7200), given={"gpu": 1_008}) == pytest.approx([2, 0])


def test_without_starts_nothing_is_known() -> None:
    history = a_history(job(0, None, None, state="COMPLETED", run_time_s=5.0), end=1000)
    found = idle_beside_waiting(history, find_capacity(history, given={"gpu": 1}))
    assert [(one.question, one.missing) for one in found] == [(number, "when jobs started") for number in (1, 2, 3)]


def test_one_partition_has_no_other() -> None:
    history = a_history(job(0, 0, 100, 4), job(0, 100, 200, 8), end=1000)
    for capacity in ({"given": {"gpu": 8}}, {}):
        elsewhere, unusable, _ = idle_beside_waiting(history, find_capacity(history, **capacity))
        assert (elsewhere.missing, elsewhere.hours_per_week) == ("several partitions with nodes of their own", None)
        assert elsewhere.parts["pooled"] == pytest.approx(0.4)
        assert unusable.hours_per_week is not None


def test_gpu_types_not_recorded_are_read_from_requested_resources() -> None:
    jobs = [
        job(0, 0, 10, tres_requested="cpu=4,gres/gpu=2,gres/gpu:a100=2"),
        job(0, 0, 10, tres_requested="cpu=4,gres/gpu=2"),
        job(0, 0, 10, tres_requested="cpu=4,gres/gpu:a100=2", gpu_type="v100"),
        job(0, 0, 10, tres_requested=None),
    ]
    types = a_history(*jobs, end=100).gpu_type
    assert [types.values[code] if code >= 0 else None for code in types.code] == ["a100", None, "v100", None]
