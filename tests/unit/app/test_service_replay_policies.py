"""Services asked along a replay: as exact as a policy built in, and alike however they are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.actions import Action, Place, Reorder, SoftLimit
from helios.app.history import LoadedHistory, read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.service_replay import ReplayedService, replay_services
from helios.app.whatif import WhatIfRequest, prepare_replay
from helios.model import Snapshot
from helios.ports import ChangeRequests, Columns, JobwiseService
from helios.services.qssf import Qssf, shortest_service_first
from helios.simulate import ORDERS, Backfill, LongestWaits, Replay, SimCluster, Workload, replay
from helios.testing import NOON, a_pending_job, a_snapshot
from tests.examples import examples
from tests.run_times import in_columns
from tests.traces import TRACES, needs_traces
from tests.unit.app.test_service_replay import Oracle
from tests.unit.simulate.builders import a_shape, a_workload, jobs_of

AT_ONCE = timedelta(0)
PAPER = {"order": "service", "levels": 0, "promote_after_s": float("inf")}
"""Nothing but the paper's order: no grid, no promotion."""
SHAPE = a_shape((2, 4), (1, 8))


class Noisy:
    """A predictor that is off by a factor for each job, and changes its mind with all that it hears of."""

    def __init__(self, workload: Workload, *, ties: bool = True) -> None:
        noise = np.random.default_rng(len(workload)).choice([0.5, 1.0, 1.0, 3.0], size=len(workload))
        guess_s = workload.run_time_s * noise if ties else workload.run_time_s + noise / 7
        self.guess_s = guess_s.astype(float)
        self.source = np.full(len(workload), -1, dtype=np.int16)
        self.sources = ["noisy"]
        self.ends: list[int] = []
        self.asked_again: list[tuple[int, list[int], list[int]]] = []

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        self.ends += ended_s.tolist()

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        self.source[jobs] = 0
        return self._around(self.guess_s[jobs] * (1 + self._known(now_s) % 3))

    def waiting(
        self, jobs: NDArray[np.int64], now_s: int, *, running: NDArray[np.int64], since_s: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        self.asked_again.append((now_s, jobs.tolist(), sorted(running.tolist())))
        assert (since_s < now_s).all()
        return self._around(self.guess_s[jobs] * (1 + (self._known(now_s) + len(running) + jobs) % 4))

    def _known(self, now_s: int) -> int:
        return sum(ended_s < now_s for ended_s in self.ends)

    @staticmethod
    def _around(median_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return in_columns(np.stack([median_s / 2, median_s, median_s * 2], axis=1))


def active(service: Any, *, every: timedelta = AT_ONCE) -> ReplayedService:
    return ReplayedService(name="it", service=service, every=every)


def a_cluster(workload: Workload, shape: Any = SHAPE, *, jobs: Any = None, limit_s: Any = None, **options: Any) -> Any:
    jobs = jobs_of(workload, shape, time_limit_s=1e7) if jobs is None else jobs
    estimates_s = 2 * workload.run_time_s if limit_s is None else limit_s
    return SimCluster(workload, shape, jobs, estimates_s=estimates_s, **({"site_factor_most": None} | options))


def built_in(workload: Workload, backfill: Backfill, again_s: int | None) -> tuple[Replay, Noisy]:
    predictor = Noisy(workload)
    policy = replay(
        workload,
        SHAPE,
        backfill=backfill,
        order=shortest_service_first,
        estimate_s=2 * workload.run_time_s,
        predictor=predictor,
        predict_again_s=again_s,
    )
    return policy, predictor


rows = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(1, 8), st.integers(0, 1)), max_size=30
).map(sorted)


@settings(max_examples=examples(20), deadline=None)
@given(rows=rows, backfill=st.sampled_from(Backfill), jobwise=st.booleans(), again_s=st.sampled_from([None, 1, 10]))
def test_qssf_asked_at_every_event_is_the_compiled_qssf(
    rows: list[tuple[int, ...]], backfill: Backfill, jobwise: bool, again_s: int | None
) -> None:
    workload = a_workload(rows)
    policy, heard = built_in(workload, backfill, again_s)
    cluster, predictor = a_cluster(workload, backfill=backfill), Noisy(workload)
    place = active(Qssf(Qssf.Options(**PAPER)))
    replay_services(cluster, [place], predictor=predictor, jobwise=jobwise, predict_again_s=again_s)
    assert not place.problems
    assert cluster.started_s.tolist() == policy.started_s.tolist()
    assert cluster.ended_s.tolist() == policy.ended_s.tolist()
    assert predictor.asked_again == heard.asked_again


@dataclass
class Beside:
    """A service that looks at the whole queue, and acts on some jobs at some times."""

    every: timedelta

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        jobs, now_s = snapshot.pending, int(snapshot.taken_at.timestamp())
        for partition, queue in jobs.groupby("partition", observed=True):
            places = [Place(job_id=job_id, urgency=0.25, reason="so") for job_id in queue["job_id"][:: 1 + now_s % 3]]
            yield Reorder(partition=str(partition), order=tuple(places), reason="so")
        for job_id in jobs["job_id"][:: 2 + now_s % 2]:
            yield SoftLimit(job_id=job_id, run_time=timedelta(seconds=5), reason="so")


def own_order(workload: Workload) -> LongestWaits:
    """Return the longest waits first in, first out."""
    fifo = replay(workload, SHAPE, backfill=Backfill.EASY, order=ORDERS["fifo"], estimate_s=workload.run_time_s)
    return LongestWaits.of(submitted_s=workload.submitted_s, started_s=fifo.started_s)


def both_ways(
    workload: Workload,
    services: Callable[[], list[ReplayedService]],
    *,
    again_s: int | None = None,
    reckons: bool = False,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """Replay with jobwise services asked about single jobs, and about the whole queue; return what came of each."""
    made = []
    for jobwise in (True, False):
        cluster, active_services = a_cluster(workload, **options), services()
        replay_services(
            cluster,
            active_services,
            predictor=Noisy(workload),
            jobwise=jobwise,
            predict_again_s=again_s,
            own_order=own_order(workload) if reckons else None,
        )
        problems = [dict(place.problems) for place in active_services]
        made.append((cluster.started_s.tolist(), problems, [place.suspended for place in active_services]))
    return made


# Who acts first at a moment is overruled at that moment, not at the next.
@example(
    rows=[(0, 0, 1, 0), (0, 14, 1, 0), (1, 0, 8, 0), (7, 0, 1, 0), (7, 11, 1, 0)],
    levels=0,
    after_s=1.0,
    order="service",
    every_s=0,
    beside_s=7,
    first=True,
    site_factor_most=None,
)
# Asked again, a service may not answer otherwise: a level that another one set was once kept the first time only.
@example(
    rows=[
        (34, 11, 6, 0),
        (35, 15, 7, 0),
        (41, 22, 2, 0),
        (53, 19, 5, 0),
        (55, 13, 8, 0),
        (56, 28, 4, 0),
        (57, 0, 8, 0),
    ],
    levels=1,
    after_s=float("inf"),
    order="service",
    every_s=0,
    beside_s=7,
    first=False,
    site_factor_most=None,
)
@settings(max_examples=examples(20), deadline=None)
@given(
    rows=rows,
    levels=st.sampled_from([0, 1, 9]),
    after_s=st.sampled_from([1.0, 12.5, float("inf")]),
    order=st.sampled_from(["qssf", "service"]),
    every_s=st.sampled_from([0, 1, 13]),
    beside_s=st.sampled_from([None, 0, 7]),
    first=st.booleans(),
    site_factor_most=st.sampled_from([None, 1_037]),
)
def test_a_jobwise_service_replays_as_if_asked_about_the_whole_queue(  # noqa: PLR0917 - drawn
    rows: list[tuple[int, ...]],
    levels: int,
    after_s: float,
    order: str,
    every_s: int,
    beside_s: int | None,
    first: bool,
    site_factor_most: int | None,
) -> None:
    def services() -> list[ReplayedService]:
        qssf = Qssf(Qssf.Options(levels=levels, promote_after_s=after_s, order=order))
        active_services = [active(qssf, every=timedelta(seconds=every_s))]
        if beside_s is not None:
            other = active(Beside(timedelta(seconds=beside_s)), every=timedelta(seconds=beside_s))
            active_services.insert(0 if first else 1, other)
        return active_services

    one_by_one, whole = both_ways(a_workload(rows), services, site_factor_most=site_factor_most)
    assert one_by_one == whole


@settings(max_examples=examples(20), deadline=None)
@given(rows=rows, again_s=st.sampled_from([1, 5]), every_s=st.sampled_from([0, 4]), after_s=st.sampled_from([9.0, 1e9]))
def test_jobwise_replays_agree_where_jobs_are_predicted_again(
    rows: list[tuple[int, ...]], again_s: int, every_s: int, after_s: float
) -> None:
    def services() -> list[ReplayedService]:
        qssf = Qssf(Qssf.Options(levels=0, promote_after_s=after_s))
        return [active(qssf, every=timedelta(seconds=every_s))]

    one_by_one, whole = both_ways(a_workload(rows), services, again_s=again_s)
    assert one_by_one == whole


@settings(max_examples=examples(20), deadline=None)
@given(
    rows=rows,
    again_s=st.sampled_from([None, 1_000, 3_600]),
    levels=st.sampled_from([0, 1, 9]),
    least_s=st.sampled_from([60.0, 7_200.0]),
    order=st.sampled_from(["qssf", "service"]),
    every_s=st.sampled_from([0, 30]),
)
def test_that_holds_where_ageing_and_bound_follow_the_sites_own_order(  # noqa: PLR0917 - drawn
    rows: list[tuple[int, ...]],
    again_s: int | None,
    levels: int,
    least_s: float,
    order: str,
    every_s: int,
) -> None:
    def services() -> list[ReplayedService]:
        options = Qssf.Options(levels=levels, least_s=least_s, order=order)
        return [active(Qssf(options), every=timedelta(seconds=every_s))]

    hours = [(600 * at_s, 600 * run_s, *rest) for at_s, run_s, *rest in rows]
    one_by_one, whole = both_ways(a_workload(hours), services, again_s=again_s, reckons=True)
    assert one_by_one == whole


def test_services_see_the_longest_own_wait_so_far() -> None:
    seen: list[tuple[float, float]] = []

    @dataclass
    class Watching:
        every: timedelta = AT_ONCE

        def decide(self, snapshot: Snapshot) -> list[Action]:
            (shown,) = {*snapshot.pending_values("longest_own_wait_s").tolist()}
            assert shown == snapshot.longest_own_wait_s or math.isnan(shown)
            seen.append((snapshot.taken_at.timestamp(), shown))
            return []

    # All want all GPUs, and something happens at the hours 0, 3, 4 and 6 alone: the three looks are before each end.
    hour = 3_600
    workload = a_workload([(0, 3 * hour, 8, 0), (600, hour, 8, 0), (1_200, 2 * hour, 8, 0), (1_300, hour, 8, 0)])
    replay_services(
        a_cluster(workload),
        [active(Watching())],
        predictor=Oracle(workload),
        own_order=own_order(workload),
    )
    shown = [(at_s / hour, longest_s / hour) for at_s, longest_s in seen]
    assert shown == [(3, pytest.approx(3 - 1 / 6)), (4, pytest.approx(4 - 1 / 3)), (6, pytest.approx(6 - 1_300 / hour))]


def the_example() -> Any:
    """Return an instance of the jobwise service that the page for authors shows."""
    page = (Path(__file__).parents[3] / "docs" / "write-a-service.md").read_text()
    (block,) = [text for text in page.split("```")[1::2] if "class DayOld" in text]
    made: dict[str, Any] = {}
    exec(block, made)
    return made["DayOld"]()


def test_the_jobwise_service_of_the_page_for_authors_works_as_described() -> None:
    # Two large jobs one after the other, small ones behind them; the second large one is a day old before it can start.
    rows = [(0, 90_000, 8, 1), (1, 50_000, 8, 1), *((n, 50_000, 3, 1) for n in range(80_000, 86_000, 600))]
    one_by_one, whole = both_ways(
        a_workload(rows), lambda: [active(the_example()), active(Qssf(Qssf.Options(**PAPER)))]
    )
    assert one_by_one == whole
    assert isinstance(the_example(), JobwiseService)
    old = a_pending_job(job_id="1", submitted_at=NOON - timedelta(days=2))
    (order,) = the_example().decide(a_snapshot(pending=[a_pending_job(job_id="2"), old], taken_at=NOON))
    assert [(place.job_id, place.reason) for place in order.order] == [("1", "a day old"), ("2", "younger than a day")]


CROWDED = [(n // 2, 5 + n % 7, 1 + n % 8, n % 2) for n in range(40)]


class Lifo:
    """A jobwise service of a few lines, which fails when it is told to."""

    every = AT_ONCE

    def __init__(self, *, fails_at: tuple[int, ...] = (), wrong: bool = False) -> None:
        self.fails_at, self.wrong, self.asked_about = fails_at, wrong, []

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        submitted = jobs("submitted_at").astype("datetime64[s]").astype(np.int64)
        self.asked_about.append(jobs("job_id").tolist())
        if len(self.asked_about) in self.fails_at:
            raise ZeroDivisionError
        urgency = submitted / (100.0 if not self.wrong else 0.1)
        return ChangeRequests(urgency=urgency, until=np.full(len(urgency), np.datetime64("NaT", "us")))

    def decide(self, snapshot: Snapshot) -> list[Action]:
        raise AssertionError("it is jobwise")


def test_a_jobwise_service_is_asked_again_only_about_a_changed_job() -> None:
    workload = a_workload(CROWDED)
    lifo = Lifo()
    replay_services(a_cluster(workload), [active(lifo)], predictor=Noisy(workload))
    asked_about = [job_id for ids in lifo.asked_about for job_id in ids]
    assert len(asked_about) == len(set(asked_about)) > 30


def test_a_jobwise_service_is_asked_again_after_a_failure() -> None:
    workload = a_workload(CROWDED)
    sound, shaky = Lifo(), Lifo(fails_at=(2, 3))
    active_services = [active(sound), active(shaky)]
    for place in active_services:
        replay_services(a_cluster(workload), [place], predictor=Noisy(workload))
    assert active_services[1].problems == {"ZeroDivisionError: ": 2}
    assert not active_services[1].suspended
    assert set(sound.asked_about[1]) <= set(shaky.asked_about[3])


@pytest.mark.parametrize("service", [Lifo(fails_at=(1, 2, 3)), Lifo(wrong=True)])
def test_a_jobwise_service_that_fails_three_times_running_is_suspended(service: Lifo) -> None:
    workload = a_workload([(second + 10, *rest) for second, *rest in CROWDED])
    place, cluster = active(service), a_cluster(workload)
    replay_services(cluster, [place], predictor=Noisy(workload))
    assert (place.asked, place.suspended) == (3, True)
    assert cluster.ended.size == len(workload)


def test_what_waits_is_predicted_again_and_shown() -> None:
    seen: list[list[float]] = []

    @dataclass
    class Watching:
        every: timedelta = AT_ONCE

        def decide(self, snapshot: Snapshot) -> list[Action]:
            seen.append(snapshot.pending["p50_s"].tolist())
            return []

    workload = a_workload([(0, 100, 8, 1), (1, 10, 8, 1), (2, 10, 8, 1)])
    predictor = Noisy(workload)
    replay_services(a_cluster(workload), [active(Watching())], predictor=predictor, predict_again_s=50)
    # At 100, before job 0 has ended to anybody's knowledge; then at the next moment that is 50 s later: there is none.
    assert predictor.asked_again == [(100, [1, 2], [0])]
    assert seen[0] == [predictor.guess_s[job] * (1 + (0 + 1 + job) % 4) for job in (1, 2)]


def the_trace(name: str, jobs: int) -> tuple[LoadedHistory, WhatIfRequest]:
    """Return the busiest stretch of so many jobs of a real trace, and a machine on which they queue."""
    if name == "kth":
        history = read_file(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz")
        machine: dict[str, Any] = {"nodes": {"all": 100}, "gpus_per_node": 1}
    else:
        history = read_file(TRACES / "philly_vc_aug-oct2017.csv.gz", timezone="America/Los_Angeles")
        nodes = (
            "6214e9=26,7f04ca=13,11cb48=6,b436b2=26,ee9e8c=26,e13805=6,6c71a0=13,2869ce=6,ed69ec=3,103959=3,0e4a51=13"
        )
        machine = {"nodes": parse_nodes(nodes), "gpus_per_node": 8, "skip_oversized": True}
    submitted = history.jobs["submitted_at"]
    return history, WhatIfRequest(
        scenarios=(),
        since=submitted.iloc[len(submitted) // 2],
        until=submitted.iloc[len(submitted) // 2 + jobs],
        **machine,
    )


@needs_traces
@pytest.mark.parametrize("name", ["kth", "philly"])
def test_on_a_real_trace_too(name: str) -> None:
    history, request = the_trace(name, 4_000)
    setup = prepare_replay(history, request)
    workload, shape = setup.workload, setup.machine.shape
    given_to = {"backfill": Backfill.EASY, "order": shortest_service_first, "estimate_s": setup.limit_s}
    policy = replay(workload, shape, predictor=Noisy(workload, ties=False), **given_to)
    starts = []
    for jobwise in (True, False):
        cluster = a_cluster(workload, shape, jobs=setup.machine.jobs, limit_s=setup.limit_s)
        service = active(Qssf(Qssf.Options(**PAPER)))
        replay_services(cluster, [service], predictor=Noisy(workload, ties=False), jobwise=jobwise)
        starts.append(cluster.started_s.tolist())
    assert (policy.wait_s > 0).mean() > 0.1
    assert starts == [policy.started_s.tolist()] * 2
