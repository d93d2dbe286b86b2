"""Job by job, the compiled simulator does what the plain one does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.services.qssf import shortest_service_first
from helios.simulate import ORDERS, Backfill, ClusterShape, Workload, replay
from helios.simulate.policies import shortest_job_first

from .reference import reference_replay

ALL_ORDERS = {**ORDERS, "qssf": shortest_service_first}
thorough = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def clusters_with_jobs(draw):
    """Small clusters, crowded: few different times, sizes and lengths, so that ties abound."""
    n_partitions = draw(st.integers(1, 3))
    ints = lambda low, high: st.lists(  # noqa: E731  because it names a strategy used twice
        st.integers(low, high), min_size=n_partitions, max_size=n_partitions
    )
    shape = ClusterShape(
        partitions=tuple("abc"[:n_partitions]),
        nodes=np.array(draw(ints(1, 4)), dtype=np.int32),
        gpus_per_node=np.array(draw(ints(1, 8)), dtype=np.int32),
    )
    job = st.tuples(
        st.integers(0, draw(st.sampled_from([0, 5, 60]))),
        st.integers(0, draw(st.sampled_from([3, 12, 80]))),
        st.floats(0, 1),
        st.integers(0, n_partitions - 1),
        st.integers(0, 90),
    )
    rows = sorted(draw(st.lists(job, min_size=1, max_size=30)))
    submitted, run_time, size, partition, estimate = (np.array(column) for column in zip(*rows, strict=True))
    sizes = 1 + (size**2 * (shape.capacity[partition] - 1)).round()
    workload = Workload(
        job_id=np.array([str(i) for i in range(len(rows))], dtype=object),
        submitted_s=submitted.astype(np.int64),
        run_time_s=run_time.astype(np.int64),
        gpus=sizes.astype(np.int32),
        partition=partition.astype(np.int32),
    )
    return shape, workload, estimate.astype(np.int64)


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
        return np.array([self.quantiles(job, self.heard) for job in jobs.tolist()])

    def quantiles(self, job, heard):
        typical = sum((1 + i % 3) * self.workload.run_time_s[j] for i, (j, _) in enumerate(heard)) / (1 + len(heard))
        middle = typical + job % 4
        return [middle / 2, middle, 1.5 * middle + 0.25]


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("order", ALL_ORDERS)
@given(case=clusters_with_jobs())
@settings(thorough, max_examples=150)
def test_predictions_in_the_timeline_hear_of_the_same_ends_as_in_the_reference(order, backfill, case):
    shape, workload, _ = case
    ours = replay(workload, shape, backfill=backfill, order=ALL_ORDERS[order], predictor=Learner(workload))
    learner = Learner(workload)

    def score(jobs, now, ended):
        heard = [(job.position, job.end) for job in ended]
        for job in jobs:
            _, middle, high = learner.quantiles(job.position, heard)
            (job.key,) = ALL_ORDERS[order](
                submitted_s=np.array([now]), gpus=np.array([job.gpus]), run_time_s=np.array([middle])
            )
            job.estimate = int(np.ceil(high))

    assert_alike(ours, reference_replay(workload, shape, backfill=backfill, score=score))
