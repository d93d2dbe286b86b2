"""One contract for the nodes of every cluster that lives in memory; on a running Slurm it is held by tests/live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from helios.simulate import Sleep
from helios.testing import FakeNodes, a_node
from tests.contract.nodes_suite import NodesContract, NodeWorld
from tests.unit.simulate.builders import a_shape, a_sim_cluster


def simulated() -> NodeWorld:
    cluster = a_sim_cluster([(0, 50_000, 8)], a_shape((6, 8)), sleep=Sleep(boot_s=300, shutdown_s=120))
    cluster.advance(10)
    cluster.next_event_s()
    return NodeWorld(
        cluster=cluster,
        let_pass=lambda seconds: cluster.advance(cluster.now_s + seconds),
        longest_s=301,
        forbid=lambda node: cluster.forbid(node, why="drained by an admin"),
    )


def faked() -> NodeWorld:
    cluster = FakeNodes(nodes=[a_node(name=f"n{number}", weight=10.0) for number in range(6)])
    cluster.submit()
    return NodeWorld(
        cluster=cluster,
        let_pass=lambda seconds: cluster.tick(timedelta(seconds=seconds)),
        longest_s=301,
        forbid=cluster.drain,
        set_weight=cluster.admin_sets_weight,
    )


@pytest.fixture(params=[simulated, faked], ids=lambda make: make.__name__)
def world(request: pytest.FixtureRequest) -> NodeWorld:
    make: Callable[[], NodeWorld] = request.param
    return make()


class TestNodes(NodesContract):
    """All of them, on each."""
