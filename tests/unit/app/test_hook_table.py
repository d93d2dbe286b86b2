from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.app.hook import hook_rows
from helios.app.predictions import PredictorState
from helios.control.modes import ServiceMode
from helios.model import Mode, in_submission_order
from helios.services.qssf import Qssf
from helios.services.soft_limits import SoftLimits
from helios.slurm.hook_table import HookRow
from helios.testing import NOON, a_node, a_snapshot
from tests.builders import a_job, jobs_frame

ACTIVE = ServiceMode(mode=Mode.ACTIVE)


def history(*kinds: dict[str, Any], each: int = 30) -> PredictorState:
    jobs = [
        a_job(
            **({"job_id": f"{k}.{n}", "submitted_at": NOON - timedelta(hours=12 + each - n), "run_time_s": 60.0} | kind)
        )
        for k, kind in enumerate(kinds)
        for n in range(each)
    ]
    return PredictorState(
        history=in_submission_order(jobs_frame(*jobs)), model=None, trained_at=None, timezone="UTC", edition=(1, "")
    )


def marked(urgency: float) -> int:
    return int(urgency * 100) * 100 + 37 if urgency > 0 else int(urgency * 100) * 100 - 37


def rows_of(
    knowledge: PredictorState, *, mode: ServiceMode = ACTIVE, service: Any = None, **overrides: Any
) -> list[HookRow]:
    options: dict[str, Any] = {
        "cluster": "dev",
        "now": NOON,
        "most_rows": 1000,
        "site_factor": marked,
        "time_min": None,
    }
    chosen = service or Qssf(Qssf.Options())
    return hook_rows(knowledge, [(chosen, mode)], **(options | overrides))[0]


def found(rows: list[HookRow], **key: Any) -> HookRow:
    wanted = {"user": None, "partition": "gpu", "gpus": None, "limit_min": None} | key
    return next(row for row in rows if row.key == tuple(wanted.values()))


def test_who_runs_short_jobs_gets_more_than_who_runs_long_ones() -> None:
    rows = rows_of(history({"user": "alice"}, {"user": "bob", "run_time_s": 80_000.0, "time_limit_s": 90_000.0}))
    short = found(rows, user="alice", gpus=1, limit_min=60)
    long = found(rows, user="bob", gpus=1, limit_min=1500)
    assert short.site_factor > 0 > long.site_factor


def test_a_coarser_kind_gets_what_its_most_frequent_finer_kind_gets() -> None:
    often = {"user": "alice", "gpus": 1}
    seldom = {"user": "alice", "gpus": 8, "run_time_s": 80_000.0, "time_limit_s": 90_000.0}
    rows = rows_of(history(often, often, seldom))
    assert found(rows, user="alice").site_factor == found(rows, user="alice", gpus=1).site_factor
    assert found(rows, gpus=8).site_factor == found(rows, user="alice", gpus=8, limit_min=1500).site_factor


@pytest.mark.parametrize("gpus", [0.25, math.nan])
def test_the_hook_names_whole_and_known_gpus_only(gpus: float) -> None:
    rows = rows_of(history({"user": "alice", "gpus": gpus}))
    assert [row.key for row in rows] == [("alice", "gpu", None, None)]


def test_what_may_not_write_does_not_reach_the_hook() -> None:
    assert rows_of(history({}), mode=ServiceMode(mode=Mode.SHADOW)) == []
    assert rows_of(history({}), mode=ServiceMode(mode=Mode.OFF)) == []


def test_a_canary_reaches_its_partitions_only() -> None:
    mode = ServiceMode(mode=Mode.CANARY, partitions=("gpu",))
    rows = rows_of(history({"partition": "gpu"}, {"partition": "debug"}), mode=mode)
    assert {row.partition for row in rows} == {"gpu"}


def test_a_canary_by_percent_does_not_reach_the_hook() -> None:
    mode = ServiceMode(mode=Mode.CANARY, percent=50)
    rows, notes = hook_rows(
        history({}),
        [(Qssf(Qssf.Options()), mode)],
        cluster="dev",
        now=NOON,
        most_rows=10,
        site_factor=marked,
        time_min=None,
    )
    assert rows == []
    assert "percent" in notes[0]


def test_the_most_frequent_kinds_are_kept() -> None:
    known = history({"user": "alice", "gpus": 2}, {"user": "alice", "gpus": 2}, {"user": "bob"})
    assert [row.gpus for row in rows_of(known, most_rows=1)] == [2]
    assert len(rows_of(known, most_rows=5)) == 5


def test_no_history_no_rows() -> None:
    nothing = PredictorState(history=jobs_frame(), model=None, trained_at=None, timezone="UTC", edition=(0, ""))
    assert rows_of(nothing) == []


def test_unlimited_jobs_and_jobs_of_several_partitions_are_no_problem() -> None:
    rows = rows_of(history({"time_limit_s": float("inf")}, {"partition": "a,b"}, {"user": None}))
    assert {row.partition for row in rows} == {"gpu"}
    assert found(rows, user="alice", gpus=1, limit_min=0).site_factor > 0


def test_soft_limits_need_the_full_key_and_a_cluster_that_knows_them() -> None:
    known = history({"user": "alice", "time_limit_s": 500_000.0})
    known = PredictorState(history=known.history, model=None, trained_at=None, timezone="UTC", edition=(1, ""))
    service = SoftLimits(SoftLimits.Options(fallbacks=()))
    with_limits = rows_of(known, service=service, time_min=lambda seconds: int(seconds // 600) * 10 + 7)
    assert [row.limit_min for row in with_limits if row.time_min] == [8334]
    assert rows_of(known, service=service, time_min=None) == []


def test_old_kinds_are_forgotten() -> None:
    known = history({"user": "alice"})
    old = known.history.assign(submitted_at=known.history["submitted_at"] - pd.Timedelta(days=90))
    gone = PredictorState(history=old, model=None, trained_at=None, timezone="UTC", edition=(1, ""))
    assert rows_of(gone) == []


def test_a_new_job_is_placed_as_the_next_cycle_will_place_it() -> None:
    knowledge = history({"user": "alice"}, {"user": "bob", "run_time_s": 80_000.0, "time_limit_s": 90_000.0})
    by_size = rows_of(knowledge, of_cluster={"size_orders": True, "longest_own_wait_s": 36_000.0})
    assert found(by_size, user="alice", gpus=1).site_factor == found(by_size, user="bob", gpus=1).site_factor
    now = NOON + timedelta(hours=11)  # far from the reference moment, so that the ageing time counts
    short, long = (
        found(rows_of(knowledge, now=now, of_cluster={"longest_own_wait_s": wait_s}), user="alice", gpus=1).site_factor
        for wait_s in (43_200.0, 864_000.0)
    )
    assert short != long


def test_whole_node_job_is_placed_by_the_nodes_of_the_last_cycle() -> None:
    knowledge = history({"user": "alice", "gpus": 4})
    small, whole = (
        found(
            rows_of(knowledge, of_cluster={"nodes": a_snapshot(nodes=[a_node(gpus=gpus)]).nodes}), user="alice", gpus=4
        )
        for gpus in (8, 4)
    )
    assert whole.site_factor > small.site_factor
