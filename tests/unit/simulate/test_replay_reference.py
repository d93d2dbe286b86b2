"""Job by job, the compiled simulator does what the plain one does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.services.qssf import shortest_service_first
from helios.simulate import ORDERS, Backfill, Reservation, WaitBound, replay
from helios.simulate.ageing import shortest_job_first
from tests.examples import examples
from tests.run_times import in_columns

from .crowds import clusters_with_jobs
from .reference import reference_replay

ALL_ORDERS = {**ORDERS, "qssf": shortest_service_first}
thorough = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_alike(ours, simulator):
    assert ours.started_s.tolist() == [job.first_start for job in simulator.jobs]
    assert ours.ended_s.tolist() == [job.end for job in simulator.jobs]
    assert ours.n_backfilled == simulator.n_backfilled


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("order", ALL_ORDERS)
@given(case=clusters_with_jobs())
@thorough
def test_every_job_starts_and_ends_as_in_the_reference(order, backfill, case):
    shape, workload, estimate = case
    believed = workload.run_time_s + 0.5 * estimate
    ours = replay(workload, shape, backfill=backfill, order=ALL_ORDERS[order], run_time_s=believed, estimate_s=estimate)
    keys = ALL_ORDERS[order](submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=believed)
    assert_alike(ours, reference_replay(workload, shape, backfill=backfill, keys=keys, estimates=estimate))


@st.composite
def guards(draw):
    """Bounds that come into force at some times, rise and fall, or are never in force."""
    times = sorted(draw(st.lists(st.integers(0, 90), max_size=4)))
    bounds = draw(st.lists(st.integers(0, 60), min_size=len(times), max_size=len(times)))
    return WaitBound(at_s=np.array(times, dtype=np.int64), bound_s=np.array(bounds, dtype=np.int64))


def patience_of(guard):
    """Read a guard as a function of time, one step after the other."""

    def patience(now):
        in_force = [bound for at, bound in zip(guard.at_s, guard.bound_s, strict=True) if at <= now]
        return in_force[-1] if in_force else float("inf")

    return patience


@pytest.mark.parametrize("backfill", list(Backfill))
@given(case=clusters_with_jobs(), guard=guards())
@thorough
def test_who_has_waited_too_long_goes_first_as_in_the_reference(backfill, case, guard):
    shape, workload, estimate = case
    believed = workload.run_time_s + 0.5 * estimate
    ours = replay(
        workload,
        shape,
        backfill=backfill,
        order=shortest_service_first,
        run_time_s=believed,
        estimate_s=estimate,
        guard=guard,
    )
    keys = workload.gpus * believed
    simulator = reference_replay(
        workload, shape, backfill=backfill, keys=keys, estimates=estimate, patience=patience_of(guard)
    )
    assert_alike(ours, simulator)


@given(case=clusters_with_jobs(), guard=guards(), closed=st.booleans(), idle_gpus=st.none() | st.integers(0, 20))
@thorough
def test_what_is_reserved_is_kept_as_strictly_as_in_the_reference(case, guard, closed, idle_gpus):
    shape, workload, estimate = case
    ours = replay(
        workload,
        shape,
        backfill=Backfill.NODES,
        order=shortest_service_first,
        run_time_s=estimate.astype(np.float64),
        estimate_s=estimate,
        guard=guard,
        reservation=Reservation(closed=closed, idle_gpus=idle_gpus),
    )
    simulator = reference_replay(
        workload,
        shape,
        backfill=Backfill.NODES,
        keys=workload.gpus * estimate.astype(np.float64),
        estimates=estimate,
        patience=patience_of(guard),
        closed=closed,
        idle_gpus=idle_gpus,
    )
    assert_alike(ours, simulator)


@pytest.mark.parametrize("backfill", [Backfill.NONE, Backfill.SKIP])
@given(case=clusters_with_jobs())
@thorough
def test_srtf_stops_and_resumes_jobs_as_in_the_reference(backfill, case):
    shape, workload, _ = case
    ours = replay(workload, shape, backfill=backfill, order=shortest_job_first, preemptive=True)
    assert_alike(ours, reference_replay(workload, shape, backfill=backfill, preemptive=True))


class Learner:
    """Predicts from what has ended, so that a wrong timeline gives wrong predictions."""

    def __init__(self, workload):
        self.workload = workload
        self.heard = []

    def ended(self, jobs, ended_s):
        self.heard += zip(jobs.tolist(), ended_s.tolist(), strict=True)

    def submitted(self, jobs, now_s):
        assert all(end < now_s for _, end in self.heard)
        return in_columns([self.quantiles(job, self.heard) for job in jobs.tolist()])

    def waiting(self, jobs, now_s, *, running, since_s):
        assert all(end < now_s for _, end in self.heard)
        assert (self.workload.submitted_s[jobs] < now_s).all()
        assert not set(running.tolist()) & ({job for job, _ in self.heard} | set(jobs.tolist()))
        oldest_s = int(since_s.min(initial=now_s))
        return in_columns([self.quantiles(job, self.heard, now_s + oldest_s) for job in jobs.tolist()])

    def quantiles(self, job, heard, now_s=0):
        typical = sum((1 + i % 3) * self.workload.run_time_s[j] for i, (j, _) in enumerate(heard)) / (1 + len(heard))
        middle = typical + (job * (1 + now_s)) % 7
        return [middle / 2, middle, 1.5 * middle + 0.25]


def asks(trainer, order):
    """Return what sets keys and estimates in the reference: at submission, and again while a job waits."""

    def score(jobs, now, ended, asked_s=0):
        heard = [(job.position, job.end) for job in ended]
        for job in jobs:
            _, middle, high = trainer.quantiles(job.position, heard, asked_s)
            (key,) = ALL_ORDERS[order](
                submitted_s=np.array([job.submitted]), gpus=np.array([job.gpus]), run_time_s=np.array([middle])
            )
            job.key = job.key if job.key == -np.inf else key
            job.estimate = int(np.ceil(high))

    def again(jobs, now, ended, started):
        score(jobs, now, ended, now + min(started, default=now))

    return score, again


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("order", ALL_ORDERS)
@given(case=clusters_with_jobs())
@settings(thorough, max_examples=examples(25))
def test_predictions_in_the_timeline_learn_the_ends_of_the_reference(order, backfill, case):
    shape, workload, _ = case
    ours = replay(workload, shape, backfill=backfill, order=ALL_ORDERS[order], predictor=Learner(workload))
    score, _ = asks(Learner(workload), order)
    assert_alike(ours, reference_replay(workload, shape, backfill=backfill, score=score))


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("order", ALL_ORDERS)
@given(case=clusters_with_jobs(), guard=guards(), again_s=st.integers(1, 30))
@settings(thorough, max_examples=examples(25))
def test_jobs_predicted_again_while_they_wait_start_as_in_the_reference(order, backfill, case, guard, again_s):
    shape, workload, _ = case
    ours = replay(
        workload,
        shape,
        backfill=backfill,
        order=ALL_ORDERS[order],
        predictor=Learner(workload),
        predict_again_s=again_s,
        guard=guard,
    )
    score, again = asks(Learner(workload), order)
    simulator = reference_replay(
        workload,
        shape,
        backfill=backfill,
        score=score,
        again=again,
        again_s=again_s,
        patience=patience_of(guard),
    )
    assert_alike(ours, simulator)
