"""The demand of a live cluster: counted from its jobs, forecast, laid into the snapshot."""

from dataclasses import replace
from datetime import datetime, timedelta
from threading import current_thread
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from helios.app.node_demand import NodeDemand, _in_thread, busy_by_pool
from helios.config import Settings
from helios.model import JOBS, STEP_S, Snapshot
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot
from tests.builders import a_job
from tests.waiting import TEST_TIMEOUT_S

NODES = [
    *(a_node(name=f"g{place}", partitions="gpu", gpu_type="a100") for place in range(1, 5)),
    a_node(name="c1", partitions="cpu", gpus=0, gpu_type=None),
    a_node(name="g9", partitions="gpu", gpu_type="a100", state="DOWN", power=None),
]
NOW_S = int(NOON.timestamp())


def ended(node_list: str, *, hours_ago: float, run_time_s: float = 3600.0, partition: str = "gpu") -> dict[str, object]:
    submitted = pd.Timestamp(NOON) - pd.Timedelta(hours=hours_ago)
    return a_job(
        job_id=f"{node_list}{hours_ago}",
        submitted_at=submitted,
        started_at=submitted,
        ended_at=submitted + pd.Timedelta(seconds=run_time_s),
        run_time_s=run_time_s,
        node_list=node_list,
        partition=partition,
        gpus=8,
    )


def history(*jobs: dict[str, object]) -> pd.DataFrame:
    return JOBS.conform(pd.DataFrame(list(jobs))) if jobs else JOBS.empty()


def test_busy_nodes_are_counted_by_pool_from_what_ended_and_what_runs() -> None:
    running = a_running_job(job_id="r", node_list="g[1-2]", started_at=NOON - timedelta(minutes=30), partition="gpu")
    snapshot = a_snapshot(nodes=NODES, running=[running])
    past = history(ended("g[1-3]", hours_ago=3), ended("c1", hours_ago=3, partition="cpu"))
    seen = busy_by_pool(past, snapshot, ended_s=NOW_S)
    busy = dict(zip(seen.pools, seen.busy, strict=True))
    assert set(busy) == {"gpu (a100)", "cpu"}
    assert busy["gpu (a100)"][:6].tolist() == [3.0] * 6
    assert busy["gpu (a100)"][6:15].tolist() == [0.0] * 9
    assert busy["gpu (a100)"][-3:].tolist() == [2.0] * 3
    assert busy["cpu"][0] == 1.0
    assert busy["cpu"][-1] == 0.0


def test_a_node_that_is_down_is_not_in_service() -> None:
    seen = busy_by_pool(history(ended("g[1-4]", hours_ago=2)), a_snapshot(nodes=NODES), ended_s=NOW_S)
    assert seen.total[seen.pools.index("gpu (a100)"), 0] == 4


def test_what_the_warehouse_still_calls_running_is_left_to_the_cluster() -> None:
    stale = ended("g1", hours_ago=5) | {"ended_at": None, "run_time_s": None}
    seen = busy_by_pool(history(stale, ended("g2", hours_ago=6)), a_snapshot(nodes=NODES), ended_s=NOW_S)
    assert seen.busy[seen.pools.index("gpu (a100)"), -1] == 0


def test_a_queue_is_part_of_what_jobs_tell() -> None:
    empty, queued = (
        busy_by_pool(history(ended("g1", hours_ago=9)), a_snapshot(nodes=NODES, pending=jobs), ended_s=NOW_S)
        for jobs in ([], [a_pending_job(job_id="p", gpus=16, submitted_at=NOON - timedelta(hours=1))])
    )
    at = empty.pools.index("gpu (a100)")
    place = empty.states[at].names.index("queued")
    assert empty.states[at].values[-1, place] == 0
    assert queued.states[at].values[-1, place] == 2


class Remembered(NodeDemand):
    """One whose history is in memory."""

    def __init__(self, jobs: pd.DataFrame, *, synchronous: bool = True) -> None:
        super().__init__("dev", Settings(), synchronous=synchronous)
        self.jobs, self.reads = jobs, 0

    def _history(self, snapshot: Snapshot) -> tuple[pd.DataFrame, ZoneInfo]:
        self.reads += 1
        return self.jobs, ZoneInfo("UTC")


def at(moment: datetime) -> Snapshot:
    return a_snapshot(nodes=NODES, taken_at=moment)


@pytest.fixture
def remembered() -> Remembered:
    return Remembered(history(*(ended("g[1-2]", hours_ago=hours) for hours in range(2, 60, 6))))


def test_the_demand_in_a_snapshot_ends_with_the_last_whole_step(remembered: Remembered) -> None:
    demand = remembered(at(NOON + timedelta(minutes=7))).demand
    assert demand is not None
    assert demand.ended_s == NOW_S
    assert np.isfinite(demand.most[:, -1]).all()
    assert (np.diff(demand.most[:, -1], axis=-1) >= 0).all()


def test_within_a_step_nothing_is_read_again(remembered: Remembered) -> None:
    first = remembered(at(NOON)).demand
    assert remembered(at(NOON + timedelta(seconds=STEP_S - 1))).demand is first
    assert remembered.reads == 1


def test_steps_in_which_nobody_asked_have_no_forecast(remembered: Remembered) -> None:
    remembered(at(NOON))
    demand = remembered(at(NOON + timedelta(minutes=30))).demand
    assert demand is not None
    assert np.isnan(demand.point[:, -3:-1]).all()
    assert np.isfinite(demand.point[:, -1]).all()


def test_a_daemon_does_not_wait_for_what_learns_and_has_it_soon(remembered: Remembered) -> None:
    impatient = Remembered(remembered.jobs, synchronous=False)
    assert impatient(at(NOON)).demand is None
    assert impatient._learning is not None
    impatient._learning.result(timeout=TEST_TIMEOUT_S)
    assert impatient(at(NOON + timedelta(seconds=30))).demand is not None


def test_a_cluster_without_nodes_in_service_has_no_demand() -> None:
    nothing = replace(at(NOON), nodes=a_snapshot(nodes=[NODES[-1]]).nodes)
    assert Remembered(history())(nothing).demand is None


def test_a_new_cluster_without_any_job_is_forecast_from_nothing() -> None:
    demand = Remembered(history())(at(NOON)).demand
    assert demand is not None
    assert demand.busy.max() == 0


def test_a_history_without_nodes_says_why_there_is_no_forecast() -> None:
    unplaced = [ended("g1", hours_ago=hours) | {"node_list": None} for hours in range(2, 60, 6)]
    demand = Remembered(history(*unplaced, ended("g1", hours_ago=1.5)))
    assert demand(at(NOON)).demand is None
    assert "of 11 ended jobs only 1 say on which nodes they ran" in demand.why_not
    assert "NodeList" in demand.why_not and "helios trace sync" in demand.why_not


def test_a_history_that_was_read_again_with_its_nodes_gives_a_forecast(remembered: Remembered) -> None:
    placed, remembered.jobs = remembered.jobs, remembered.jobs.assign(node_list=None)
    remembered.jobs = JOBS.conform(remembered.jobs)
    assert remembered(at(NOON)).demand is None
    remembered.jobs = placed
    assert remembered(at(NOON + timedelta(seconds=STEP_S))).demand is not None
    assert remembered.why_not == ""


def test_forecasters_that_still_learn_are_named(remembered: Remembered) -> None:
    impatient = Remembered(remembered.jobs, synchronous=False)
    impatient(at(NOON))
    assert "still learn" in impatient.why_not
    assert impatient._learning is not None
    impatient._learning.result(timeout=TEST_TIMEOUT_S)
    impatient(at(NOON + timedelta(seconds=30)))
    assert impatient.why_not == ""


def test_a_trainer_that_dies_is_heard_of_and_another_one_learns(
    remembered: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise MemoryError

    impatient = Remembered(remembered.jobs, synchronous=False)
    with monkeypatch.context() as patched:
        patched.setattr("helios.app.node_demand._learned", dies)
        assert impatient(at(NOON)).demand is None
        assert impatient._learning is not None
        assert isinstance(impatient._learning.exception(timeout=TEST_TIMEOUT_S), MemoryError)
    with pytest.raises(MemoryError):
        impatient(at(NOON))
    later = at(NOON + timedelta(seconds=STEP_S))
    assert impatient(later).demand is None
    assert impatient._learning is not None
    impatient._learning.result(timeout=TEST_TIMEOUT_S)
    assert impatient(later).demand is not None


def test_the_end_of_the_daemon_does_not_wait_for_what_learns() -> None:
    told = _in_thread(lambda: {"daemon": current_thread().daemon})  # type: ignore[dict-item]  # no forecaster is needed
    assert told.result(timeout=TEST_TIMEOUT_S) == {"daemon": True}
