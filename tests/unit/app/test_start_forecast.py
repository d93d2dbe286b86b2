"""Forecasts of starts in small worlds where the answer is known."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.app.start_forecast import QueueForecast, calibrate, forecast_start, forecast_starts, wait_quantiles
from helios.model import JOBS, Snapshot
from helios.model.slurm_site import NodeGroup, PartitionRules, PriorityRules, SlurmSite
from helios.report.job import StartForecast
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot
from tests.builders import a_job, jobs_frame

NOW = pd.Timestamp(NOON)
NOW_S = NOW.timestamp()
LONG_AGO = jobs_frame(*(a_job(job_id=str(900 + n), submitted_at=NOW - pd.Timedelta(days=100 + n)) for n in range(30)))
"""A history that lets run times be predicted, and from which no jobs to come are taken."""
PASS_S = 65.0
"""Longest time until Slurm's next pass, s."""


def a_site(*nodes: str, gpus: int = 8, **rules: Any) -> SlurmSite:
    return SlurmSite(
        nodes=(NodeGroup(names=nodes, cpus=64, gpus={"": gpus}),),
        partitions=(PartitionRules(name="gpu", nodes=nodes, is_default=True),),
        priority=PriorityRules(**rules),
    )


def starts_after(snapshot: Snapshot, site: SlurmSite, job_id: str, history: pd.DataFrame | None = None) -> list[float]:
    """Return how long after now the job starts in each simulation, s."""
    forecast = QueueForecast(snapshot, site, LONG_AGO if history is None else history, draws=8)
    position = forecast.position(job_id)
    assert position is not None
    return [start - NOW_S for start in forecast.starts([position]).started_s[:, 0]]


def exact(run_time_s: float) -> dict[str, float]:
    return {"p10_s": run_time_s, "p50_s": run_time_s, "p90_s": run_time_s}


def whole_node(**values: Any) -> dict[str, Any]:
    return a_pending_job(**({"gpus": 8, "cpus": 64.0} | values))


def test_a_job_that_is_first_on_a_free_cluster_starts_now() -> None:
    snapshot = a_snapshot(pending=[whole_node(job_id="1", **exact(600.0))], nodes=[a_node()])
    assert all(0 <= after <= PASS_S for after in starts_after(snapshot, a_site("node1"), "1"))


def test_a_job_waits_for_the_predicted_end_on_its_node() -> None:
    holder = a_running_job(
        gpus=8, cpus=64.0, started_at=NOW - pd.Timedelta(hours=1), time_limit_s=86_400.0, **exact(7_200.0)
    )
    snapshot = a_snapshot(running=[holder], pending=[whole_node(job_id="1", **exact(600.0))], nodes=[a_node()])
    after = starts_after(snapshot, a_site("node1"), "1")
    assert all(3_000 < moment < 4_200 for moment in after)
    assert max(after) - min(after) < 900


def test_several_jobs_are_forecast_as_each_alone() -> None:
    pending = [whole_node(job_id=f"{n}", priority=1_000.0 - n, **exact(1_000.0)) for n in range(3)]
    snapshot = a_snapshot(pending=[*pending, whole_node(job_id="9", priority=0.0)], nodes=[a_node()])
    found = forecast_starts(snapshot, a_site("node1"), LONG_AGO, snapshot.pending)
    alone = [forecast_start(snapshot, a_site("node1"), LONG_AGO, row) for _, row in snapshot.pending.iterrows()]
    assert [one.p50_at for one in found] == [one.p50_at for one in alone]
    assert [one.problem for one in found] == ["", "", "", "it is held"]


def test_without_history_the_limit_counts_whatever_is_predicted() -> None:
    holder = a_running_job(
        gpus=8, cpus=64.0, started_at=NOW - pd.Timedelta(hours=1), time_limit_s=7_200.0, **exact(3_700.0)
    )
    snapshot = a_snapshot(running=[holder], pending=[whole_node(job_id="1", **exact(60.0))], nodes=[a_node()])
    site = a_site("node1")
    assert all(3_600 <= after <= 3_600 + PASS_S for after in starts_after(snapshot, site, "1", JOBS.empty()))
    (row,) = (row for _, row in snapshot.pending.iterrows())
    told = forecast_start(snapshot, site, JOBS.empty(), row)
    assert told.by_limits
    assert math.isnan(told.fitting_limit_s)
    assert any("It rests on time limits" in line for line in told.lines())


def test_a_job_of_higher_priority_goes_first() -> None:
    first = whole_node(job_id="1", priority=200_000.0, **exact(1_000.0))
    second = whole_node(job_id="2", priority=100_000.0, **exact(1_000.0))
    snapshot = a_snapshot(pending=[first, second], nodes=[a_node()])
    assert all(after <= PASS_S for after in starts_after(snapshot, a_site("node1"), "1"))
    assert all(after > 800 for after in starts_after(snapshot, a_site("node1"), "2"))


def test_a_node_that_is_drained_gets_no_job() -> None:
    pending = [whole_node(job_id="1", time_limit_s=3_600.0, **exact(600.0))]
    holder = a_running_job(gpus=8, cpus=64.0, node_list="node2", time_limit_s=7_200.0, **exact(3_000.0))
    nodes = [a_node(name="node1", flags="DRAIN"), a_node(name="node2")]
    snapshot = a_snapshot(running=[holder], pending=pending, nodes=nodes)
    assert all(1_000 < after < math.inf for after in starts_after(snapshot, a_site("node1", "node2"), "1"))


def test_a_held_job_is_not_simulated() -> None:
    held = whole_node(job_id="1", priority=0.0, reason="JobHeldUser")
    other = whole_node(job_id="2", priority=1.0, **exact(60.0))
    forecast = QueueForecast(a_snapshot(pending=[held, other], nodes=[a_node()]), a_site("node1"), LONG_AGO, draws=4)
    assert forecast.position("1") is None
    assert forecast.position("2") is not None


def test_tasks_of_an_array_start_one_after_the_other() -> None:
    array = whole_node(job_id="7", array_job_id="7", array_task_id="3-5", tasks=3, **exact(1_000.0))
    forecast = QueueForecast(a_snapshot(pending=[array], nodes=[a_node()]), a_site("node1"), LONG_AGO, draws=4)
    after = []
    for task in ("3", "4", "5"):
        position = forecast.position("7", task)
        assert position is not None
        after.append(forecast.starts([position]).started_s[:, 0].min() - NOW_S)
    assert after[0] <= PASS_S
    assert after[1] > after[0] + 500
    assert after[2] > after[1] + 500


def a_past_job(job_id: str, ago: timedelta, **values: Any) -> dict[str, Any]:
    begun = NOW - ago
    usual = {"job_id": job_id, "user": "bob", "partition": "gpu", "submitted_at": begun, "eligible_at": begun}
    return usual | {"started_at": begun, "gpus": 8, "cpus": 64.0, "nodes": 1.0, "time_limit_s": 3_600.0} | values


def test_jobs_to_come_are_those_of_a_week_ago() -> None:
    # A week ago, ten minutes later, a job came that now is backfilled onto the free node, for three hours.
    came = a_past_job("8", timedelta(days=7, minutes=-10), run_time_s=10_800.0, time_limit_s=30_000.0)
    first = a_past_job("9", timedelta(days=8), run_time_s=60.0)
    history = JOBS.conform(pd.concat([LONG_AGO, JOBS.conform(pd.DataFrame([came, first]))]))
    holder = a_running_job(gpus=8, cpus=64.0, started_at=NOW, time_limit_s=36_000.0, **exact(1_800.0))
    waiting = whole_node(job_id="1", nodes=2.0, gpus=16, cpus=128.0, **exact(600.0))
    snapshot = a_snapshot(running=[holder], pending=[waiting], nodes=[a_node(), a_node(name="node2")])
    site = a_site("node1", "node2")
    assert all(1_000 < after < 3_000 for after in starts_after(snapshot, site, "1"))
    assert all(11_400 <= after <= 11_400 + 2 * PASS_S for after in starts_after(snapshot, site, "1", history))


def test_the_future_of_the_history_changes_nothing() -> None:
    past = [a_past_job(str(100 + n), timedelta(days=9, hours=-5 * n), run_time_s=3_000.0) for n in range(40)]
    to_come = [a_past_job(str(900 + n), -timedelta(minutes=n), run_time_s=9_000.0) for n in range(1, 20)]
    waiting = [whole_node(job_id=str(n), priority=100.0 - n, **exact(2_000.0)) for n in range(5)]
    snapshot = a_snapshot(pending=waiting, nodes=[a_node()])
    known = JOBS.conform(pd.DataFrame(past))
    leaked = JOBS.conform(pd.DataFrame([*past, *to_come]))
    site = a_site("node1")
    assert starts_after(snapshot, site, "4", known) == starts_after(snapshot, site, "4", leaked)


@settings(max_examples=15, deadline=None)
@given(begins_s=st.integers(0, 20_000), run_time_s=st.floats(10, 5_000), others=st.integers(0, 4))
def test_no_job_starts_before_its_begin_time(begins_s: int, run_time_s: float, others: int) -> None:
    waiting = [whole_node(priority=200.0, **exact(run_time_s)) for _ in range(others)]
    asked = whole_node(
        job_id="1000001", priority=100.0, eligible_at=NOW + pd.Timedelta(seconds=begins_s), **exact(60.0)
    )
    snapshot = a_snapshot(pending=[*waiting, asked], nodes=[a_node()])
    assert all(after >= begins_s for after in starts_after(snapshot, a_site("node1"), "1000001"))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_starts(seed: int) -> None:
    holder = a_running_job(gpus=8, cpus=64.0, p50_s=3_000.0, time_limit_s=36_000.0)
    snapshot = a_snapshot(running=[holder], pending=[whole_node(job_id="1", p50_s=60.0)], nodes=[a_node()])
    both = [QueueForecast(snapshot, a_site("node1"), LONG_AGO, draws=6, seed=seed) for _ in range(2)]
    first, second = (forecast.starts([forecast.position("1") or 0]).started_s[:, 0] for forecast in both)
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) > 1


def explained(snapshot: Snapshot, site: SlurmSite, job_id: str) -> StartForecast:
    (row,) = (row for _, row in snapshot.pending.iterrows() if row["job_id"] == job_id)
    return forecast_start(snapshot, site, LONG_AGO, row)


def behind_a_wide_job(**asked: Any) -> Snapshot:
    """Return two nodes: one is held for two hours, and a job that wants both goes first."""
    holder = a_running_job(gpus=8, cpus=64.0, started_at=NOW, time_limit_s=7_200.0, **exact(7_200.0))
    wide = whole_node(nodes=2.0, gpus=16, cpus=128.0, priority=200_000.0, time_limit_s=7_200.0, **exact(3_600.0))
    waiting = whole_node(**({"job_id": "1", "priority": 1_000.0, "time_limit_s": 36_000.0} | exact(900.0) | asked))
    return a_snapshot(running=[holder], pending=[wide, waiting], nodes=[a_node(), a_node(name="node2")])


def test_a_shorter_limit_that_fits_is_named_with_its_gain() -> None:
    told = explained(behind_a_wide_job(), a_site("node1", "node2"), "1")
    (shorter,) = (way for way in told.earlier if "time limit" in way.change)
    assert told.fitting_limit_s < 7_200
    assert shorter.p50_at <= NOON + timedelta(seconds=PASS_S)
    assert shorter.gain_s > 7_200
    assert any("With a time limit of" in line for line in told.lines())


def test_half_the_gpus_are_tried_too() -> None:
    holder = a_running_job(gpus=4, cpus=32.0, started_at=NOW, time_limit_s=7_200.0, **exact(7_200.0))
    waiting = whole_node(job_id="1", time_limit_s=3_600.0, **exact(3_300.0))
    told = explained(a_snapshot(running=[holder], pending=[waiting], nodes=[a_node()]), a_site("node1"), "1")
    assert [way.change for way in told.earlier] == ["4 GPUs"]
    assert told.earlier[0].p50_at <= NOON + timedelta(seconds=PASS_S)


def test_the_text_gives_an_interval_and_a_median() -> None:
    told = explained(behind_a_wide_job(time_limit_s=900.0, **exact(60_000.0)), a_site("node1", "node2"), "1")
    first, second, *_ = told.lines()
    assert first.startswith("Starts ")
    assert "half of the simulations: before" in first
    assert second.startswith("Ends ")
    assert told.p10_at is not None and told.p50_at is not None and told.p90_at is not None
    assert told.p10_at <= told.p50_at <= told.p90_at


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"reason": "JobHeldUser", "priority": 0.0}, "it is held"),
        ({"reason": "Dependency"}, "depends on"),
        ({"gpus": 9}, "in no simulation"),
        ({"partition": "gone"}, "partition"),
    ],
    ids=["held", "dependency", "too large", "partition unknown"],
)
def test_a_job_that_cannot_start_is_told_why(values: dict[str, Any], why: str) -> None:
    snapshot = a_snapshot(pending=[whole_node(**({"job_id": "1"} | exact(60.0) | values))], nodes=[a_node()])
    told = explained(snapshot, a_site("node1"), "1")
    assert why in told.problem
    assert [line for line in told.lines() if why in line]


def test_a_job_whose_nodes_are_down_is_told_so() -> None:
    snapshot = a_snapshot(pending=[whole_node(job_id="1", **exact(60.0))], nodes=[a_node(state="DOWN")])
    assert "nodes" in explained(snapshot, a_site("node1"), "1").problem


def test_an_interval_is_widened_on_both_sides_and_its_median_stays() -> None:
    low, middle, high = calibrate(np.array([600.0, 3_600.0, 7_200.0]))
    assert low < 600
    assert middle == pytest.approx(3_600)
    assert high > 7_200


def test_what_is_later_than_the_simulations_stays_so() -> None:
    some = wait_quantiles(np.array([60.0, 600.0, *[np.inf] * 6]))
    assert np.isinf(some[1:]).all()
    low, middle, high = calibrate(some)
    assert low < 600
    assert np.isinf(middle) and np.isinf(high)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_quantiles_are_in_order(waits_s: list[float]) -> None:
    low, middle, high = calibrate(wait_quantiles(np.array(waits_s)))
    assert 0 <= low <= middle + 1e-3 <= high + 2e-3
