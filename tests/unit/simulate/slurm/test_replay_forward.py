"""Simulations from the middle of a replay go on as the replay does."""

from __future__ import annotations

import numpy as np
import pytest

from helios.model.nodes import expand
from helios.model.slurm_site import PartitionRules
from helios.simulate.slurm import replay as forward
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.simulate.slurm.replay import ForwardSimulation, Moment

from .builders import a_site, a_workload
from .doors import jobs_of


def a_busy_day(seed):
    """Return 200 jobs of some 20 minutes on four nodes, each of a part of a node or of two, with limits."""
    chance = np.random.default_rng(seed)
    submitted = np.sort(chance.integers(0, 30_000, 200))
    run_time = np.ceil(chance.lognormal(7, 1, 200))
    cpus = chance.choice([1, 2, 4, 8, 16], 200)
    limit = np.ceil(run_time * chance.uniform(1.0, 8.0, 200) / 60) * 60
    rows = list(zip(submitted.tolist(), run_time.tolist(), cpus.tolist(), limit.tolist(), strict=True))
    return a_workload(rows, nodes=np.maximum(cpus // 8, 1).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_with_true_run_times_and_arrivals_starts_equal_the_replay(seed, monkeypatch):
    monkeypatch.setattr(forward, "GROWTH", 0.0)
    # Backfill each second: with 30 s it matters at which second the periods begin, which a forecast cannot know.
    site = a_site(nodes=4, priority={"age": 1_000}, scheduling={"bf_interval_s": 1, "bf_resolution_s": 1})
    workload, now_s = a_busy_day(seed), 18_000
    cluster = SimulatedSlurm(workload, site, jobs_of(workload))
    cluster.advance(now_s)
    seen = cluster.snapshot()
    place = {job_id: position for position, job_id in enumerate(workload.job_id)}
    running = np.array([place[job_id] for job_id in seen.running["job_id"]], dtype=np.int64)
    pending = np.array([place[job_id] for job_id in seen.pending["job_id"]], dtype=np.int64)
    priority = np.full(len(workload), np.nan)
    priority[pending] = seen.pending["priority"]
    started_s = cluster.started_s[running].astype(np.float64)
    nodes = [expand(text) for text in seen.running["node_list"]]
    moment = Moment(now_s=now_s, running=running, started_s=started_s, nodes=nodes, priority=priority)
    there = workload.submitted_s > now_s
    there[pending] = True
    del seen
    cluster.advance(400_000)
    found = ForwardSimulation(workload, site, moment).starts(
        workload.run_time_s, present=there, awaited=pending, until_s=400_000
    )
    assert len(pending) > 5
    # Milliseconds apart in a backfill pass, the two worlds part sooner or later; many starts are the same before.
    waits_s, true_s = found - now_s, cluster.started_s[pending] - now_s
    assert np.mean(np.abs(waits_s - true_s) <= 2) > 0.3
    assert np.median(np.abs(np.log((waits_s + 60) / (true_s + 60)))) < 0.1


def a_crowded_moment(seed):
    """Return nodes that run more than they have, as real ones can, with jobs that the rules could never start."""
    chance = np.random.default_rng(seed)
    names, n_jobs, now_s = ["n0", "n1", "n2"], 60, 10_000
    partitions = (PartitionRules(name="p", nodes=tuple(names)), PartitionRules(name="without-nodes", nodes=()))
    site = a_site(nodes=3, cpus=2, gpus=2, partitions=partitions)
    submitted = np.sort(chance.integers(0, 9_000, n_jobs))
    cpus = chance.integers(1, 5, n_jobs)
    rows = [(int(when), 600, int(each), 36_000) for when, each in zip(submitted, cpus, strict=True)]
    workload = a_workload(
        rows,
        nodes=chance.integers(0, 4, n_jobs).tolist(),
        gpus=chance.integers(0, 3, n_jobs).tolist(),
        memory_mib=chance.choice([0, 100, 3_000], n_jobs).tolist(),
        exclusive=(chance.random(n_jobs) < 0.2).tolist(),
        partition=chance.choice([0, 0, 0, 1], n_jobs).tolist(),
        partitions=("p", "without-nodes"),
    )
    running = np.flatnonzero(chance.random(n_jobs) < 0.7)
    nodes = [chance.choice([*names, "elsewhere"], size=2, replace=False).tolist() for _ in running]
    priority = np.full(n_jobs, 1.0)
    priority[running] = np.nan
    started_s = submitted[running].astype(np.float64)
    return workload, site, Moment(now_s=now_s, running=running, started_s=started_s, nodes=nodes, priority=priority)


@pytest.mark.parametrize("seed", range(20))
def test_what_could_start_does_when_running_jobs_that_share_nodes_have_ended(seed):
    workload, site, moment = a_crowded_moment(seed)
    pending = np.flatnonzero(np.isfinite(moment.priority))
    future = ForwardSimulation(workload, site, moment)
    assert not future.fits[moment.running].all()
    for run_time_s in (600.0, 50_000.0):
        found = future.starts(
            np.full(len(workload), run_time_s), present=np.ones(60, dtype=bool), awaited=pending, until_s=3_000_000
        )
        np.testing.assert_array_equal(np.isfinite(found), future.fits[pending])
        assert (found[future.fits[pending]] >= moment.now_s).all()


def test_tasks_of_an_array_start_once():
    workload = a_workload([(0, 600, 1, 3_600)] * 6, array=[0] * 6)
    priority = np.array([1.0, 1.0, np.nan, 1.0, np.nan, 1.0])
    moment = Moment(now_s=60, running=np.array([2]), started_s=np.array([0.0]), nodes=[["n0"]], priority=priority)
    there = np.array([True, True, True, True, False, True])
    awaited = np.array([0, 1, 3, 5])
    found = ForwardSimulation(workload, a_site(cpus=1), moment).starts(
        workload.run_time_s, present=there, awaited=awaited, until_s=100_000
    )
    assert (np.diff(found) >= 600).all()
    assert found[-1] < 60 + 5 * 600 + 60
