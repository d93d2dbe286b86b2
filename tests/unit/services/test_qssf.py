"""The order of QSSF: the shortest first, nobody moved by a neighbour, and a bound on the wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import cycle, pairwise, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Place, Reorder, Result
from helios.model import Snapshot
from helios.services.qssf import MOST_URGENT, PROMOTED, Qssf, _reference, shortest_service_first
from helios.testing import NOON, FakeCluster, a_node, a_pending_job, a_snapshot, check_service
from tests.changes import asked
from tests.examples import examples

HOUR = timedelta(hours=1)

run_times_s = st.floats(1, 1e8)
gpu_counts = st.integers(0, 512)


def qssf(**options: Any) -> Qssf:
    """Return the service as it is tested here: by the paper's rule, and it promotes after three hours."""
    return Qssf(Qssf.Options(**({"order": "service", "promote_after_s": 10_800.0} | options)))


def places(*jobs: dict[str, Any], service: Qssf | None = None) -> dict[str, Place]:
    orders = (service or qssf()).decide(a_snapshot(pending=jobs))
    return {place.job_id: place for order in orders for place in order.order}


def urgency(service: Qssf | None = None, **job: Any) -> float:
    (place,) = places(a_pending_job(**job), service=service).values()
    return place.urgency


def waiting(time: timedelta, **job: Any) -> dict[str, Any]:
    return a_pending_job(submitted_at=NOON - time, **job)


# The order.


@settings(max_examples=examples(15))
@given(run_time_s=run_times_s, longer=st.floats(1, 1e4), gpus=gpu_counts, more=st.integers(0, 512))
def test_more_service_is_never_more_urgent(run_time_s: float, longer: float, gpus: int, more: int) -> None:
    assert urgency(p50_s=run_time_s * longer, gpus=gpus + more) <= urgency(p50_s=run_time_s, gpus=gpus)


@settings(max_examples=examples(15))
@given(
    jobs=st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 512)), min_size=1, max_size=6),
    order=st.sampled_from(["qssf", "service"]),
)
def test_without_a_grid_the_service_orders_as_its_formula_does(jobs: list[tuple[int, int]], order: str) -> None:
    run_time_s, gpus = np.array([job[0] for job in jobs]), np.array([job[1] for job in jobs], dtype=np.int32)
    keys = shortest_service_first(submitted_s=np.zeros(len(jobs), dtype=np.int64), gpus=gpus, run_time_s=run_time_s)
    chosen = places(
        *(
            a_pending_job(job_id=str(n), p50_s=run_s, truncated_mean_s=run_s, gpus=size)
            for n, (run_s, size) in enumerate(jobs)
        ),
        service=Qssf(Qssf.Options(order=order, levels=0)),
    )
    urgencies = np.array([chosen[str(n)].urgency for n in range(len(jobs))])
    np.testing.assert_array_equal(np.argsort(-urgencies, kind="stable"), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize(
    ("p50_s", "gpus", "expected"),
    [(1, 1, 0.9), (10, 1, 0.9), (100, 1, 0.6), (1_000, 1, 0.3), (1_250, 8, 0.0), (1e5, 10, -0.6), (1e9, 1, -0.9)],
)
def test_the_scale_is_fixed(p50_s: float, gpus: int, expected: float) -> None:
    assert urgency(p50_s=p50_s, gpus=gpus) == pytest.approx(expected)


def test_service_is_what_the_paper_says() -> None:
    service = shortest_service_first(
        submitted_s=np.array([0, 1]), gpus=np.array([2, 1], dtype=np.int32), run_time_s=np.array([100.0, 150.0])
    )
    assert list(service) == [200.0, 150.0]


@settings(max_examples=examples(15))
@given(
    jobs=st.lists(st.tuples(run_times_s, gpu_counts, st.integers(0, 20_000)), min_size=1, max_size=8),
    arrival=st.tuples(run_times_s, gpu_counts, st.integers(0, 20_000)),
)
def test_an_arrival_moves_nobody(jobs: list[tuple[float, int, int]], arrival: tuple[float, int, int]) -> None:
    def a_row(job_id: int, job: tuple[float, int, int]) -> dict[str, Any]:
        run_time_s, gpus, waited_s = job
        return waiting(timedelta(seconds=waited_s), job_id=str(job_id), p50_s=run_time_s, gpus=gpus)

    rows = [a_row(number, job) for number, job in enumerate(jobs)]
    before, after = places(*rows), places(*rows, a_row(len(rows), arrival))
    assert {job_id: after[job_id].urgency for job_id in before} == {
        job_id: place.urgency for job_id, place in before.items()
    }


def test_equal_urgencies_are_named_by_submission_then_id() -> None:
    same = [waiting(HOUR, job_id=job_id, p50_s=60.0) for job_id in ("10", "9")]
    assert list(places(*same, waiting(2 * HOUR, job_id="11", p50_s=60.0))) == ["11", "9", "10"]


def test_the_order_of_rows_in_the_snapshot_does_not_matter() -> None:
    rows = [waiting(HOUR * n, job_id=str(n), p50_s=10.0**n) for n in range(6)]
    assert list(places(*rows).values()) == list(places(*reversed(rows)).values())


def test_a_job_without_a_prediction_is_neutral_and_said_to_be() -> None:
    (place,) = places(a_pending_job()).values()
    assert place.urgency == 0
    assert "no prediction" in place.reason


def test_a_cpu_job_counts_as_one_gpu() -> None:
    assert urgency(p50_s=1_000, gpus=0) == urgency(p50_s=1_000, gpus=1)


def test_a_quarter_of_a_gpu_counts_as_a_quarter() -> None:
    assert urgency(p50_s=4_000.0, gpus=0.25) == urgency(p50_s=1_000.0, gpus=1)
    (place,) = places(a_pending_job(p50_s=4 * 3_600.0, gpus=0.25)).values()
    assert "on 0.25 GPUs: 60 GPU-minutes" in place.reason


def test_each_partition_has_its_own_order_and_several_by_comma_are_one() -> None:
    jobs = [a_pending_job(job_id=str(n), partition=name) for n, name in enumerate(["b", "a", "a,b", "a"])]
    orders = qssf().decide(a_snapshot(pending=jobs))
    assert {order.partition: {place.job_id for place in order.order} for order in orders} == {
        "a": {"1", "3"},
        "a,b": {"2"},
        "b": {"0"},
    }


@pytest.mark.parametrize(
    "job",
    [{"excluded_reason": "held"}, {"eligible_at": None}, {"eligible_at": NOON + HOUR}],
    ids=["hands off", "a dependency", "a begin time"],
)
def test_a_job_that_is_untouchable_or_could_not_start_is_not_named(job: dict[str, Any]) -> None:
    assert list(places(a_pending_job(**job), a_pending_job(job_id="free"))) == ["free"]


def test_nothing_pending_means_nothing_to_say() -> None:
    assert qssf().decide(a_snapshot()) == []


def test_reasons_are_for_a_person() -> None:
    five = timedelta(minutes=5)
    (place,) = places(waiting(five, p10_s=240.0, p50_s=720.0, p90_s=2400.0, gpus=2)).values()
    assert (
        place.reason
        == "predicted 12 min (4 min to 40 min) on 2 GPUs: 24 GPU-minutes; waited 5 min, goes first after 3 h"
    )
    (place,) = places(waiting(five, p50_s=720.0, gpus=2), service=qssf(promote_after_s=np.inf)).values()
    assert place.reason.endswith("; waited 5 min"), "for ever is no number"
    (place,) = places(waiting(5 * HOUR, p50_s=30.0, gpus=0)).values()
    assert place.reason == "waited 5 h, long enough to go first; predicted 30 s (10 s to 2 min) without GPUs"


# Hysteresis.


@settings(max_examples=examples(15))
@given(run_time_s=run_times_s, wobble=st.floats(0.8, 1.25))
def test_a_prediction_that_wobbles_by_a_quarter_rewrites_nothing(run_time_s: float, wobble: float) -> None:
    first = urgency(p50_s=run_time_s)
    cluster = FakeCluster()  # which rounds what it holds
    job_id = cluster.submit(urgency=first)
    again = urgency(p50_s=run_time_s * wobble, urgency=cluster.urgency_of(job_id))
    assert again == pytest.approx(first, abs=1e-9) or (first == 0 and abs(again) <= 0.1 + 1e-9)


def test_a_clearly_new_prediction_moves_the_job() -> None:
    assert urgency(p50_s=1e5, urgency=0.6) == pytest.approx(-0.3)


@settings(max_examples=examples(15))
@given(run_time_s=run_times_s, levels=st.integers(1, 40))
def test_urgencies_lie_on_the_grid(run_time_s: float, levels: int) -> None:
    value = urgency(qssf(levels=levels), p50_s=run_time_s)
    steps = value / (MOST_URGENT / levels)
    assert steps == pytest.approx(round(steps), abs=1e-6)
    assert abs(value) <= MOST_URGENT + 1e-9


def test_a_promotion_is_no_level_to_stick_to() -> None:
    assert urgency(p50_s=10.0, urgency=PROMOTED) == pytest.approx(MOST_URGENT)


# Promotion, and the bound on the wait.


def test_a_job_that_waited_long_goes_before_every_other() -> None:
    rows = [waiting(4 * HOUR, job_id="old", p50_s=1e9, gpus=512), a_pending_job(job_id="new", p50_s=1.0)]
    assert list(places(*rows)) == ["old", "new"]
    assert places(*rows)["old"].urgency == PROMOTED


def test_waiting_counts_from_eligibility() -> None:
    row = waiting(9 * HOUR, eligible_at=NOON - HOUR, p50_s=1e9)
    assert urgency(**row) < 0


def test_a_job_without_a_prediction_is_promoted_too() -> None:
    assert urgency(**waiting(4 * HOUR)) == PROMOTED


@settings(max_examples=examples(15))
@given(waited_s=st.integers(0, 100_000), patience_s=st.floats(1, 100_000), run_time_s=run_times_s)
def test_promotion_depends_on_the_wait_alone(waited_s: int, patience_s: float, run_time_s: float) -> None:
    promoted = urgency(qssf(promote_after_s=patience_s), **waiting(timedelta(seconds=waited_s), p50_s=run_time_s)) == 1
    assert promoted == (waited_s > patience_s)


def test_promotion_survives_a_coarse_site_factor() -> None:
    cluster = FakeCluster(site_factor_most=1_037)
    assert cluster.site_factor(PROMOTED) > cluster.site_factor(MOST_URGENT)


class StrictQueue:
    """A partition of a few GPUs that starts the head of the queue whenever it fits, and never anybody else."""

    def __init__(self, *, gpus: int, service: Qssf, longest_waits_s: Iterator[float] | None = None) -> None:
        self.cluster, self.service = FakeCluster(), service
        self.longest_waits_s = longest_waits_s or repeat(np.nan)
        self.free = gpus
        self.gpus: dict[str, int] = {}
        self.run_times: dict[str, timedelta] = {}
        self.predicted_s: dict[str, float] = {}
        self.came: dict[str, datetime] = {}
        self.started: dict[str, datetime] = {}
        self.running: set[str] = set()

    def arrive(self, *, gpus: int, run_time_s: float, predicted_s: float) -> None:
        job_id = self.cluster.submit(gpus=gpus, job_id=str(len(self.gpus) + 1))
        self.gpus[job_id], self.predicted_s[job_id] = gpus, predicted_s
        self.run_times[job_id] = timedelta(seconds=run_time_s)
        self.came[job_id] = self.cluster.now

    def waits_s(self) -> dict[str, float]:
        return {job_id: (at - self.came[job_id]).total_seconds() for job_id, at in self.started.items()}

    def pass_a_step(self) -> None:
        self.cluster.tick(self.service.every)
        for job_id in [job_id for job_id in self.running if self._ends_at(job_id) <= self.cluster.now]:
            self.running.remove(job_id)
            self.cluster.end(job_id)
            self.free += self.gpus[job_id]
        if self.cluster.queue:
            self.cluster.apply(asked(self.service.decide(self._with_predictions(self.cluster.snapshot()))))
            self._start_from_the_head()

    def _ends_at(self, job_id: str) -> datetime:
        return self.started[job_id] + self.run_times[job_id]

    def _with_predictions(self, seen: Snapshot) -> Snapshot:
        p50_s = seen.pending["job_id"].map(self.predicted_s).astype("float64")
        predicted = {"p50_s": p50_s, "truncated_mean_s": p50_s.clip(upper=28_800.0)}
        pending = seen.pending.assign(**predicted)
        return replace(seen, pending=pending, longest_own_wait_s=next(self.longest_waits_s))

    def _start_from_the_head(self) -> None:
        for job_id in self.cluster.queue:
            if self.gpus[job_id] > self.free:
                return
            self.free -= self.gpus[job_id]
            self.cluster.start(job_id)
            self.started[job_id] = self.cluster.now
            self.running.add(job_id)


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 40), st.floats(-3, 3)), min_size=2, max_size=12
)


def play(queue: StrictQueue, jobs: Sequence[tuple[int, int, int, float]]) -> None:
    """Let jobs of (steps until it comes, GPUs, minutes of run time, decades the prediction is off) come and run."""
    for steps, gpus, minutes, decades_off in jobs:
        for _ in range(steps):
            queue.pass_a_step()
        queue.arrive(gpus=gpus, run_time_s=60.0 * minutes, predicted_s=60.0 * minutes * 10**decades_off)
    for _ in range(10 * 40 * len(jobs)):
        if len(queue.started) == len(jobs):
            return
        queue.pass_a_step()
    raise AssertionError("a job never started")


@settings(max_examples=examples(8))
@given(jobs=arrivals)
def test_no_job_waits_longer_than_the_bound(jobs: list[tuple[int, int, int, float]]) -> None:
    queue = StrictQueue(gpus=4, service=qssf(promote_after_s=1800.0, every_s=300))
    play(queue, jobs)
    assert_bounded(queue, patience_s=1800)


@settings(max_examples=examples(12))
@given(jobs=arrivals, longest_waits_s=st.lists(st.floats(0, 3600), min_size=1, max_size=20))
def test_a_bound_that_follows_the_own_order_holds_with_its_maximum(
    jobs: list[tuple[int, int, int, float]], longest_waits_s: list[float]
) -> None:
    service = qssf(order="qssf", promote_after_s=0.0, least_s=600.0, bound_share=0.5, every_s=300)
    queue = StrictQueue(gpus=4, service=service, longest_waits_s=cycle(longest_waits_s))
    play(queue, jobs)
    assert_bounded(queue, patience_s=max(600, 0.5 * max(longest_waits_s)))


def assert_bounded(queue: StrictQueue, *, patience_s: float) -> None:
    for job_id, waited_s in queue.waits_s().items():
        its_cycle = queue.came[job_id] + timedelta(seconds=patience_s + 300)
        ran_then = [
            (at + queue.run_times[other] - its_cycle).total_seconds()
            for other, at in queue.started.items()
            if at <= its_cycle < at + queue.run_times[other]
        ]
        # At worst one after the other, and each end is seen up to a step late.
        came_before = [queue.run_times[other].total_seconds() for other in queue.gpus if int(other) < int(job_id)]
        assert waited_s <= patience_s + 300 + max(ran_then, default=0) + 300 + sum(s + 300 for s in came_before)


def test_a_stream_of_short_jobs_does_not_starve_a_large_one() -> None:
    """The queue of the bound at its worst: a job that needs all GPUs, and one-GPU jobs that never stop coming."""

    def wait_of_the_large_job(**options: Any) -> float:
        queue = StrictQueue(gpus=4, service=qssf(every_s=300, **options))
        for _ in range(8):
            queue.arrive(gpus=1, run_time_s=600.0, predicted_s=600.0)
        queue.arrive(gpus=4, run_time_s=3600.0, predicted_s=3600.0)
        for _ in range(40):
            for _ in range(2):
                queue.arrive(gpus=1, run_time_s=600.0, predicted_s=600.0)
            queue.pass_a_step()
        return queue.waits_s().get("9", np.inf)

    assert wait_of_the_large_job(promote_after_s=np.inf) == np.inf
    assert wait_of_the_large_job(promote_after_s=3600.0) <= 3600 + 300 + 600 + 300


@settings(max_examples=examples(8))
@given(jobs=arrivals)
def test_promoted_jobs_start_in_the_order_of_submission(jobs: list[tuple[int, int, int, float]]) -> None:
    queue = StrictQueue(gpus=4, service=qssf(promote_after_s=1.0, every_s=300))
    play(queue, jobs)
    promoted = [int(job_id) for job_id, waited_s in queue.waits_s().items() if waited_s > 300]
    assert all(earlier < later for earlier, later in pairwise(promoted))


# What follows the longest wait of the site's own order.


def change(service: Qssf, at: datetime, *, longest_s: float, **job: Any) -> float:
    """Return what the service wishes for one job at a moment."""
    seen = replace(
        a_snapshot(pending=[a_pending_job(**({"submitted_at": NOON} | job))]),
        taken_at=at,
        longest_own_wait_s=longest_s,
    )
    changes = service.changes(seen.pending_values, at)
    (place,) = (place for order in service.decide(seen) for place in order.order)
    assert place.urgency == changes.urgency[0], "decide says what changes says"
    return float(changes.urgency[0])


@pytest.mark.parametrize(
    ("longest_h", "options", "bound_h"),
    [
        (10.0, {}, 9),
        (10.0, {"bound_share": 0.5}, 5),
        (1.0, {}, 3),
        (1.0, {"least_s": 1800.0}, 0.9),
        (np.nan, {}, 21.6),
        (np.nan, {"promote_after_s": 7200.0}, 2),
        (10.0, {"order": "service"}, 9),
        (10.0, {"promote_after_s": 7200.0}, 2),
    ],
)
def test_who_has_waited_for_the_share_of_the_longest_wait_goes_first(
    longest_h: float, options: dict[str, Any], bound_h: float
) -> None:
    service, longest_s, second = Qssf(Qssf.Options(**options)), longest_h * 3600, timedelta(seconds=1)
    just, over = (
        change(
            service, NOON + bound_h * HOUR + aside, longest_s=longest_s, p50_s=3e6, truncated_mean_s=28_800, gpus=512
        )
        for aside in (-second, second)
    )
    assert just < PROMOTED == over


def test_without_a_bound_nobody_is_promoted() -> None:
    service = Qssf(Qssf.Options(bound_share=0.0))
    assert change(service, NOON + 1000 * HOUR, longest_s=3600.0, p50_s=60.0, truncated_mean_s=60.0) <= MOST_URGENT


@settings(max_examples=examples(20))
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 28_800), st.integers(1, 64), st.integers(0, 100)), min_size=2, max_size=8, unique=True
    ),
    share=st.sampled_from([0.25, 0.5, 1.0]),
    longest_h=st.sampled_from([1, 10, 100]),
    later_h=st.integers(0, 72),
)
def test_the_order_is_that_of_the_formula_at_every_moment(
    jobs: list[tuple[int, int, int]], share: float, longest_h: int, later_h: int
) -> None:
    """On no grid: ln(GPUs x E[min(T, 8 h)] / divisor) + submission / tau, whatever the reference moment is."""
    service = Qssf(Qssf.Options(levels=0, wait_share=share, bound_share=0.0))
    rows = [
        waiting(hours * HOUR, job_id=str(n), truncated_mean_s=float(run_s), gpus=gpus)
        for n, (run_s, gpus, hours) in enumerate(jobs)
    ]
    at = NOON + later_h * HOUR
    seen = replace(a_snapshot(pending=rows, taken_at=at), longest_own_wait_s=3600.0 * longest_h)
    urgency = service.changes(seen.pending_values, at).urgency
    tau_h = max(1.0, share * longest_h)
    divisor = service.options.large_divisor
    keys = np.array(
        [np.log(max(run_s * gpus / (divisor if gpus >= 8 else 1), 1)) - hours / tau_h for run_s, gpus, hours in jobs]
    )
    apart = np.abs(np.subtract.outer(keys, keys)) > 1e-6
    goes_first = np.subtract.outer(urgency, urgency) > 0
    assert (goes_first == (np.subtract.outer(keys, keys) < 0))[apart].all()


@settings(max_examples=examples(20))
@given(seconds=st.integers(0, 3 * 86_400), tau_s=st.floats(5, 1e6))
def test_the_reference_moment_is_the_middle_of_its_stretch(seconds: int, tau_s: float) -> None:
    now_us = (int(NOON.timestamp()) + seconds) * 10**6
    reference_us, next_us = _reference(now_us, tau_s)
    stretch_us = 2 * (next_us - reference_us)
    assert next_us - stretch_us <= now_us < next_us
    assert stretch_us <= max(4 * tau_s, 10) * 1e6
    assert (86_400 * 10**6) % stretch_us == 0
    assert _reference(next_us - 1, tau_s) == (reference_us, next_us)


def test_a_quiet_queue_is_rewritten_at_the_reference_moments_alone() -> None:
    service, longest_s = Qssf(Qssf.Options()), 40 * 3600.0
    job = {"p50_s": 1e4, "truncated_mean_s": 1e4, "submitted_at": NOON - HOUR}
    same_day = {change(service, NOON + hours * HOUR, longest_s=longest_s, **job) for hours in range(12)}
    assert len(same_day) == 1
    assert change(service, NOON + 13 * HOUR, longest_s=longest_s, **job) > same_day.pop()


def test_a_large_job_counts_less_where_large_jobs_do_not_pay() -> None:
    large = {"p50_s": 3_600.0, "truncated_mean_s": 3_600.0, "gpus": 64}
    plain, divided = (
        change(Qssf(Qssf.Options(large_divisor=divisor)), NOON, longest_s=36_000.0, **large) for divisor in (1.0, 4.0)
    )
    assert divided > plain


@pytest.mark.parametrize(("per_node", "gains"), [(8, True), (4, True), (16, False), (0, True)])
def test_large_jobs_are_those_of_a_node_and_more(per_node: int, gains: bool) -> None:
    nodes = [a_node(gpus=per_node)] if per_node else []
    seen = a_snapshot(pending=[a_pending_job(gpus=8, truncated_mean_s=3_600.0)], nodes=nodes)
    plain, default = (
        Qssf(Qssf.Options(**options)).decide(seen)[0].order[0] for options in ({"large_divisor": 1.0}, {})
    )
    assert (default.urgency > plain.urgency) is gains
    assert ("of which a job of a node or more counts 1/4" in default.reason) is gains


def test_shortest_ageing_time_follows_the_least_wait_before_promotion() -> None:
    ages = {"old": timedelta(minutes=5), "new": timedelta(0)}
    jobs = [
        waiting(age, job_id=name, truncated_mean_s=600.0, gpus=4 if name == "old" else 1) for name, age in ages.items()
    ]
    seen = replace(a_snapshot(pending=jobs), longest_own_wait_s=0.0)

    def first(least_s: float) -> str:
        return Qssf(Qssf.Options(least_s=least_s, bound_share=0.9, levels=0)).decide(seen)[0].order[0].job_id

    assert first(10_800.0) == "new"
    assert first(360.0) == "old", "five minutes are long where the least wait is six"


def test_the_reason_says_how_much_waiting_counts() -> None:
    service = Qssf(Qssf.Options())
    row = waiting(6 * HOUR, p10_s=240.0, p50_s=720.0, truncated_mean_s=1440.0, p90_s=2400.0, gpus=2)
    seen = replace(a_snapshot(pending=[row]), longest_own_wait_s=12 * 3600.0)
    ((place,),) = (order.order for order in service.decide(seen))
    assert place.reason == (
        "predicted 24 min of at most 8 h (4 min to 40 min) on 2 GPUs: 48 GPU-minutes; waited 6 h, which counts as "
        "1/2.7 of that, goes first after 11 h"
    )


# The rest.


def test_a_quiet_queue_is_written_once() -> None:
    cluster, service = FakeCluster(), qssf()
    for _ in range(5):
        cluster.submit()
    cluster.apply(asked(service.decide(cluster.snapshot())))
    written = cluster.writes
    outcomes = cluster.apply(asked(service.decide(cluster.snapshot())))
    assert {outcome.result for outcome in outcomes} == {Result.UNCHANGED}
    assert cluster.writes == written


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_s": 0},
        {"order": "fifo"},
        {"wait_share": 0.0},
        {"large_divisor": 0.5},
        {"promote_after_s": -1.0},
        {"levels": -1},
        {"bound_share": -0.1},
        {"least_s": 0.0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        qssf(**wrong)


@pytest.mark.parametrize("options", [{}, {"order": "qssf", "promote_after_s": 0.0, "levels": 40}], ids=str)
def test_it_is_a_service(options: dict[str, Any]) -> None:
    check_service(qssf(**options))


def test_every_order_is_a_reorder_with_a_reason() -> None:
    (order,) = qssf().decide(a_snapshot(pending=[waiting(4 * HOUR)]))
    assert isinstance(order, Reorder)
    assert order.reason == "least predicted service first; 1 promoted for their wait"


def test_size_alone_orders_where_the_check_found_predictions_no_better() -> None:
    queue = [
        a_pending_job(job_id="large", gpus=4, p50_s=1.0, truncated_mean_s=1.0),
        a_pending_job(job_id="small", gpus=1, p50_s=20_000.0, truncated_mean_s=20_000.0),
    ]
    predicted = a_snapshot(pending=queue)
    checked = replace(predicted, size_orders=True)

    def first(seen: Snapshot, order: str) -> Place:
        (ranking,) = qssf(order=order).decide(seen)
        return ranking.order[0]

    assert first(predicted, "qssf").job_id == "large"
    for seen, order in ((checked, "qssf"), (predicted, "size"), (checked, "size")):
        assert first(seen, order).job_id == "small"
        assert "1 GPU, size alone orders" in first(seen, order).reason
    assert first(checked, "service").job_id == "large", "the paper's rule is what the admin chose"
