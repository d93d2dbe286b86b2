"""One contract for every cluster that lives in memory; on a running Slurm it is held by tests/live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from helios.slurm.commands import CommandsBackend, Sprio
from helios.slurm.jobs import SlurmCluster
from helios.testing import FakeCluster
from tests.contract.cluster_suite import ClusterContract, World
from tests.unit.simulate.builders import a_sim_cluster
from tests.unit.simulate.slurm.doors import a_busy_door
from tests.unit.slurm.recorded import recorded
from tests.unit.slurm.slurm import START, MemorySlurm, a_raw_job


def fake() -> World:
    cluster = FakeCluster()
    for _ in range(5):
        cluster.submit()
    cluster.start(cluster.submit())
    return World(
        cluster=cluster,
        hold=cluster.hold,
        set_site_factor=cluster.admin_sets_site_factor,
        set_priority=cluster.admin_sets_priority,
        set_time_min=cluster.admin_sets_time_min,
        delay=lambda job_id: cluster.alter(job_id, eligible_at=cluster.now + timedelta(hours=1)),
    )


def simulated() -> World:
    cluster = a_sim_cluster([(0, 5000, 8), *((second, 3600, 8) for second in range(1, 6))])
    cluster.advance(10)
    return World(cluster=cluster, hold=cluster.hold)


def simulated_slurm() -> World:
    return world_of_a_door(soft=True)


def simulated_slurm_without_soft_limits() -> World:
    return world_of_a_door(soft=False)


def world_of_a_door(*, soft: bool) -> World:
    door = a_busy_door(soft=soft)
    return World(cluster=door, hold=door.hold, set_site_factor=door.set_site_factor, set_time_min=door.set_time_min)


def slurm_in_memory() -> World:
    running = a_raw_job("9", state="RUNNING", started=START)
    return world_of(MemorySlurm(*(a_raw_job(str(number)) for number in range(1, 6)), running))


def slurm_as_recorded() -> World:
    """Take the jobs and factors of a real queue, and let them live on in memory."""
    backend = CommandsBackend()
    backend.shell = recorded("slurm-22.05")
    slurm = MemorySlurm(*backend.queue(), version="22.05.8", parameters="")
    slurm.now = int(backend.configuration()["NOW"])
    for job_id, factor in Sprio(shell=backend.shell)().items():
        slurm.jobs[job_id]["priority"] -= factor.value
        slurm.site[job_id] = factor.value
        slurm.direct |= {job_id} if factor.direct else set()
    return world_of(slurm)


def world_of(slurm: MemorySlurm) -> World:
    cluster = SlurmCluster(
        slurm,
        name="venus",
        site_factor_most=10_000,
        writes_per_cycle=500,
        sprio=slurm.sprio,
        clock=lambda: datetime.fromtimestamp(slurm.now, UTC),
    )

    def set_priority(job_id: str, value: int) -> None:
        slurm.direct.add(job_id)
        slurm.jobs[job_id]["priority"] = value

    return World(
        cluster=cluster,
        hold=lambda job_id: slurm.jobs[job_id].update(priority=0, reason="JobHeldUser"),
        set_site_factor=lambda job_id, value: slurm.site.update({job_id: value}),
        set_priority=set_priority,
        set_time_min=lambda job_id, value: slurm.jobs[job_id].update(time_min_s=value * 60.0),
        delay=lambda job_id: slurm.jobs[job_id].update(eligible=slurm.now + 3600),
        meanwhile=slurm.meanwhile.append,
    )


@pytest.fixture(
    params=[
        fake,
        simulated,
        simulated_slurm,
        simulated_slurm_without_soft_limits,
        slurm_in_memory,
        slurm_as_recorded,
    ],
    ids=lambda make: make.__name__,
)
def world(request: pytest.FixtureRequest) -> World:
    make: Callable[[], World] = request.param
    return make()


class TestClusters(ClusterContract):
    """All of them, on each."""
