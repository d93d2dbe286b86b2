"""Simulations from the middle of a replay go on as the replay does."""

from __future__ import annotations

import numpy as np
import pytest

from helios.model.hostlist import expand
from helios.simulate.slurm import forward
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.simulate.slurm.forward import ForwardSimulation, Moment

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
def test_with_the_true_run_times_and_arrivals_starts_are_those_of_the_replay(seed, monkeypatch):
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
