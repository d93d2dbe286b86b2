"""The cap on one user's share in a service replay is the guard of a live cycle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import JobSetting, Place, Reorder
from helios.app.replay_guards import ReplayGuards
from helios.app.service_replay import ReplayedService, replay_services
from helios.changes import Change
from helios.control.observed import pending_jobs
from helios.control.user_share import cap_changes
from helios.services.qssf import Qssf
from helios.simulate import SimCluster
from tests.examples import examples
from tests.unit.app.test_service_replay_policies import SHAPE, Noisy, a_cluster
from tests.unit.simulate.builders import a_workload, jobs_of

FULL = [(0, 1_000, 8, 0), (0, 1_000, 8, 1)]
"""Jobs that fill both partitions; the others wait behind them under the ids from 2 on."""
queues = st.lists(
    st.tuples(
        st.integers(1, 4),  # submitted
        st.integers(0, 1),  # partition
        st.sampled_from(["ann", "bob", "cem", None]),
        st.sampled_from([-0.5, 0.0, 0.25, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=20,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))
shares = st.sampled_from([0.2, 0.5, 0.75])


def waiting(queue: list[tuple[Any, ...]]) -> SimCluster:
    workload = a_workload([*FULL, *((at, 10, 1, partition) for at, partition, *_ in queue)])
    jobs = jobs_of(workload, SHAPE, user=["zoe", "zoe", *(user for *_, user, _ in queue)])
    cluster = a_cluster(workload, jobs=jobs)
    cluster.advance(int(cluster.now_s) + 10)
    return cluster


def orders(queue: list[tuple[Any, ...]]) -> list[Reorder]:
    made = []
    for number, name in enumerate(SHAPE.partitions):
        named = [(job + 2, urgency) for job, (_, home, _, urgency) in enumerate(queue) if home == number]
        ranked = sorted(named, key=lambda of: -of[1])
        places = tuple(Place(job_id=str(job), urgency=urgency, reason="so") for job, urgency in ranked)
        made.append(Reorder(partition=name, order=places, reason="so"))
    return made


def by_the_guard(cluster: SimCluster, queue: list[tuple[Any, ...]], share: float) -> dict[str, float]:
    changes = [
        Change(
            setting=JobSetting.ORDER,
            target=place.job_id,
            value=place.urgency,
            reason="so",
            action="Reorder",
            partition=order.partition,
        )
        for order in orders(queue)
        for place in order.order
    ]
    kept = cap_changes(changes, jobs=pending_jobs(cluster.snapshot()), share=share)
    return {change.target: change.value for change in kept if change.value}


def stands(cluster: SimCluster) -> dict[str, float]:
    pending = cluster.snapshot().pending
    return {job: urgency for job, urgency in zip(pending["job_id"], pending["urgency"], strict=True) if urgency}


@settings(max_examples=examples(37), deadline=None)
@given(queue=queues, share=shares)
def test_applied_changes_are_those_that_a_live_guard_lets_pass(queue: list[tuple[Any, ...]], share: float) -> None:
    cluster = waiting(queue)
    expected = by_the_guard(cluster, queue, share)
    ReplayGuards(cluster, 1, share).act(0, orders(queue))
    assert stands(cluster) == expected


@settings(max_examples=examples(20), deadline=None)
@given(queue=queues, share=shares, cut=st.integers(0, 20))
def test_changes_that_come_in_parts_are_capped_as_a_whole(queue: list[tuple[Any, ...]], share: float, cut: int) -> None:
    cluster = waiting(queue)
    expected = by_the_guard(cluster, queue, share)
    guards = ReplayGuards(cluster, 1, share)
    jobs, urgency = np.arange(len(queue)) + 2, np.array([row[-1] for row in queue])
    for part in (slice(None, cut), slice(cut, None)):
        guards.change(0, jobs[part], urgency[part])
    assert stands(cluster) == expected


@settings(max_examples=examples(20), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, 8), st.integers(0, 1), st.sampled_from("abc")),
        max_size=30,
    ).map(sorted),
    share=shares,
    every_s=st.sampled_from([0, 1, 7]),
)
def test_a_jobwise_service_is_capped_as_any_other(rows: list[tuple[Any, ...]], share: float, every_s: int) -> None:
    workload = a_workload([row[:4] for row in rows])
    jobs = jobs_of(workload, SHAPE, time_limit_s=1e7, user=[row[4] for row in rows])
    started = []
    for jobwise in (True, False):
        cluster = a_cluster(workload, jobs=jobs)
        active = ReplayedService(name="qssf", service=Qssf(Qssf.Options()), every=timedelta(seconds=every_s))
        replay_services(cluster, [active], predictor=Noisy(workload), jobwise=jobwise, most_of_one_user=share)
        assert not active.problems
        started.append(cluster.started_s.tolist())
    assert started[0] == started[1]


@pytest.mark.parametrize(("share", "users", "binds"), [(1.0, "ab", False), (0.5, "aa", False), (0.5, "ab", True)])
def test_where_nothing_can_be_capped_nothing_is_looked_at(share: float, users: str, binds: bool) -> None:
    workload = a_workload([(0, 10, 1, 0), (0, 10, 1, 0)])
    cluster = a_cluster(workload, jobs=jobs_of(workload, SHAPE, user=list(users)))
    assert ReplayGuards(cluster, 1, share).follows_the_queue is binds
