"""The service, asked each minute on a replayed cluster, beside the simulator's kernel of the same rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import read_file
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.changes import to_node_changes
from helios.metrics.spare_nodes import CHECK_S, SAFE_RULE, AwakeRule
from helios.model import NodeUse
from helios.services.energy_saving import Ces, CesOptions
from helios.simulate import SimCluster, Sleep
from tests.traces import TRACES, needs_traces

BEGIN, END = datetime(2020, 5, 9, tzinfo=UTC), datetime(2020, 5, 12, tzinfo=UTC)
"""Days of Venus in which up to a hundred nodes come and go."""


def venus(*, whole_nodes: bool) -> ReplaySetup:
    """Return a replay of Venus on 133 nodes, of all jobs or of those that take whole nodes."""
    history = read_file(TRACES / "helios_venus_mar-aug2020.csv.gz", timezone="Asia/Shanghai")
    if whole_nodes:
        jobs = history.jobs
        history = replace(history, jobs=jobs[jobs["gpus"] % 8 == 0].reset_index(drop=True))
    request = WhatIfRequest(
        scenarios=(), since=BEGIN, until=END, warm_up=pd.Timedelta(0), nodes={"all": 133}, skip_oversized=True
    )
    return prepare_replay(history, request)


def cluster(setup: ReplaySetup, *, boot_s: int, rules: tuple[AwakeRule, ...] = ()) -> SimCluster:
    sleep = Sleep(boot_s=boot_s, shutdown_s=120 if boot_s > 1 else 1, rules=rules)
    machine = setup.machine
    return SimCluster(setup.workload, machine.shape, machine.jobs, estimates_s=setup.limit_s, sleep=sleep)


def powered(cluster: SimCluster) -> int:
    return int(np.isin(cluster.snapshot().node_values("power"), ["awake", "waking"]).sum())


def use_until(cluster: SimCluster, now_s: int) -> NodeUse:
    """Return the use of the last hour as a record of jobs would have it."""
    log, first_s = cluster.holding(), now_s - SAFE_RULE.memory_s
    minutes = np.arange(first_s, now_s, CHECK_S)
    most = np.concatenate([[0], log.nodes])[np.searchsorted(log.at_s, minutes, side="right")]
    inside = (log.at_s >= first_s) & (log.at_s < now_s)
    np.maximum.at(most, (log.at_s[inside] - first_s) // CHECK_S, log.nodes[inside])
    return NodeUse(ended_s=now_s, recent={"all": most}, past={})


@dataclass(frozen=True, kw_only=True)
class Both:
    """Nodes awake or waking after each minute, by the kernel and by the service."""

    kernel: NDArray[np.int64]
    service: NDArray[np.int64]


def run(*, whole_nodes: bool, boot_s: int) -> Both:
    setup = venus(whole_nodes=whole_nodes)
    by_kernel, by_service = (cluster(setup, boot_s=boot_s, rules=rules) for rules in ((SAFE_RULE,), ()))
    service = Ces(CesOptions())
    first_s = (int(setup.workload.submitted_s[0]) // CHECK_S + 1) * CHECK_S
    counts = []
    for now_s in range(first_s, int(END.timestamp()), CHECK_S):
        for each in (by_kernel, by_service):
            each.advance(now_s)
            each.next_event_s()  # jobs that can start do
        snapshot = by_service.snapshot()
        object.__setattr__(snapshot, "use", use_until(by_service, now_s))  # a copy would make all frames
        by_service.steer(to_node_changes(service.decide(snapshot)).changes)
        counts.append((powered(by_kernel), powered(by_service)))
    kernel, by_ces = np.array(counts).T
    return Both(kernel=kernel, service=by_ces)


@needs_traces
def test_service_and_kernel_agree_in_each_minute() -> None:
    both = run(whole_nodes=True, boot_s=1)
    assert both.kernel.max() > 60
    assert both.kernel.min() < 30
    assert (both.kernel == both.service).all()


@needs_traces
def test_service_and_kernel_differ_by_equal_nodes_only() -> None:
    # They wake different ones of equal nodes. So a job that shares a node, or waits for one, may end up elsewhere.
    both = run(whole_nodes=False, boot_s=300)
    assert abs(both.kernel - both.service).max() <= 3
    assert abs(both.kernel.mean() / both.service.mean() - 1) < 0.002
