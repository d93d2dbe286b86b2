"""Commands that a study proposes, and when it proposes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.metrics.blocks import Estimate, Finding, Question
from helios.metrics.capacity import CapacitySource, ClusterCapacity, PoolCapacity
from helios.study.proposals import Source, propose
from tests.unit.study.worlds import a_history, job

HISTORY = a_history(job(0, 0, 3600), end=86_400, timezone="Asia/Shanghai")
WINDOW = "--from 2020-03-02T08:00:00 --to 2020-03-03T08:00:00"
PARTS = {"failed_hours": 1234.56, "mean_wait_s": 7260.0, "share_of_hours_repeated_high": 0.1}


def size(units: float, nodes: int | None = 4) -> ClusterCapacity:
    pool = PoolCapacity(name="gpu", nodes=nodes, units=units)
    return ClusterCapacity(resource="gpus", pools=(pool,), source=CapacitySource.NODES, per_node=8)


def command(question: Question, source: Source | None = None, **more: object) -> str | None:
    finding = Finding(question=question, estimate=Estimate(value=1.0), parts={**PARTS, **more})
    found = propose(finding, HISTORY, size(32), source or Source())
    return found and found.command


def test_a_command_has_the_cluster_window_and_nodes_of_the_study() -> None:
    source = Source(machine=("--nodes", "gpu=4", "--gpus-per-node", "8"))
    assert (
        command(Question.WHO_WAITS, source) == f"helios whatif --cluster tiny {WINDOW} --nodes gpu=4 --gpus-per-node 8"
    )


def test_a_file_is_loaded_before_a_report_reads_it() -> None:
    source = Source(trace=Path("my log.swf"))
    load = "helios trace load 'my log.swf' --cluster tiny"
    assert command(Question.LONG_FAILURES, source) == f"{load} && helios report usage --by user --cluster tiny {WINDOW}"
    assert command(Question.WHO_WAITS, source) == f"helios whatif --trace 'my log.swf' {WINDOW}"


@pytest.mark.parametrize(
    ("capacity", "pool"),
    [(size(32), "--nodes 4 --gpus-per-node 8"), (size(30), None), (size(32, None), None), (None, None)],
)
def test_one_pool_is_proposed_only_of_nodes_that_are_alike(capacity: ClusterCapacity | None, pool: str | None) -> None:
    found = propose(
        Finding(question=Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE, estimate=Estimate(value=1.0)),
        HISTORY,
        capacity,
        Source(),
    )
    assert (found and found.command) == (pool and f"helios whatif --cluster tiny {WINDOW} {pool}")


def test_of_some_partitions_only_reports_are_proposed() -> None:
    source = Source(partitions=("a", "b"))
    assert command(Question.WHO_WAITS, source) is None
    assert str(command(Question.CONCENTRATION, source)).endswith(f"{WINDOW} --partition a --partition b")


def test_a_command_that_cannot_print_the_number_is_not_proposed() -> None:
    assert command(Question.ONE_GPU_JOBS, share_of_hours_repeated_high=None) is None
    assert command(Question.UNUSABLE_IDLE) is None


def test_what_a_command_shows_has_the_number_that_follows() -> None:
    finding = Finding(question=Question.LONG_FAILURES, estimate=Estimate(value=0.1), parts=PARTS)
    found = propose(finding, HISTORY, None, Source())
    assert found is not None and "1,234.6 in all" in found.shows
