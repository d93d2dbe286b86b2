"""The check of the live order on draws of a small history."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.order_check import CHECKED, DrawnWindow, check_order, live_scenario
from helios.app.scenarios import Policy, RunTimes
from helios.app.whatif import WhatIfRequest, prepare_replay, replay_scenario
from helios.choices import ResampledUnit
from helios.errors import UsageError
from helios.report.verdict import CheckedOrder
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2020-01-01", tz="UTC")


def a_history(
    *, days: int = 8, every_s: int = 1_200, gpus: int | None = None, large: int = 16, **columns: Any
) -> LoadedHistory:
    """Jobs of 1 GPU that run short, and of ``large`` that run long, of five users in turn."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(days * 86_400 // every_s):
        is_large = rng.random() < 0.2
        job = {
            "job_id": str(number),
            "user": f"user{number % 5}",
            "submitted_at": START + timedelta(seconds=every_s * number),
            "gpus": gpus or (large if is_large else 1),
            "run_time_s": 4_000.0 if is_large else 60.0,
            "time_limit_s": 7_200.0,
        }
        rows.append(a_job(started_at=None, ended_at=None, **job | columns))
    return LoadedHistory(cluster="lab", jobs=jobs_frame(*rows), timezone="UTC")


REQUEST = WhatIfRequest(scenarios=(), nodes={"gpu": 2}, gpus_per_node=8)


def test_size_orders_where_predictions_know_no_more() -> None:
    check = check_order(a_history(), REQUEST, draws=3)
    assert check.over is ResampledUnit.USERS
    assert {order: len(found) for order, found in check.ratios.items()} == {
        CheckedOrder.PREDICTIONS: 3,
        CheckedOrder.SIZE: 3,
    }
    assert check.own_mean_s > 60
    assert check.mean(CheckedOrder.SIZE).ratio < 1


def test_the_same_request_gives_the_same_check() -> None:
    one, same = (check_order(a_history(), REQUEST, draws=2) for _ in range(2))
    assert one.to_json() == same.to_json()


def test_where_nobody_waits_nothing_else_is_replayed() -> None:
    steps: list[str] = []
    check = check_order(a_history(gpus=1), REQUEST, progress=lambda step, done: steps.append(step))
    assert check.has_no_waits
    assert not [step for step in steps if step.startswith("Checking the order")]


def bursts(starts: dict[str, int], *, size: int = 6) -> LoadedHistory:
    """Return, for each user, jobs of the whole cluster for an hour each, all submitted at nine on one day."""
    rows = []
    for user, day in starts.items():
        at = START + timedelta(days=day, hours=9)
        job = {"user": user, "submitted_at": at, "gpus": 16, "run_time_s": 3_600.0, "time_limit_s": 7_200.0}
        rows += [a_job(job_id=f"{user}{number}", started_at=None, ended_at=None, **job) for number in range(size)]
    return LoadedHistory(cluster="lab", jobs=jobs_frame(*rows), timezone="UTC")


def test_draws_that_move_the_queue_are_refused_for_another_way() -> None:
    one_a_day = bursts({f"u{day}": day for day in range(20)})
    verdict = check_order(one_a_day, REQUEST)
    assert verdict.refused[ResampledUnit.USERS].ratio > 1.3, "users who never met now wait for each other"
    assert verdict.over is ResampledUnit.DAYS
    assert verdict.own_mean_s == pytest.approx(DrawnWindow(one_a_day, REQUEST).draw(0).own_mean_s, rel=0.1)


def test_where_no_draw_keeps_the_queue_the_window_stands_alone() -> None:
    # Ten days of more than a day's work each, one after the other, and then nothing: no day may be moved.
    backlog = bursts({f"u{day}": day for day in range(10)}, size=30)
    late = bursts({"last": 20}, size=1)
    jobs = jobs_frame(*backlog.jobs.to_dict("records"), *late.jobs.to_dict("records"))
    verdict = check_order(replace(backlog, jobs=jobs.assign(user=pd.NA).astype(jobs.dtypes)), REQUEST)
    assert set(verdict.refused) == {ResampledUnit.DAYS}
    assert (verdict.draws, len(verdict.ratios[CheckedOrder.SIZE])) == (0, 1)
    assert verdict.best is CheckedOrder.OWN


def test_a_recorded_wait_far_from_the_replay_s_is_said() -> None:
    history = a_history()
    submitted = history.jobs["submitted_at"]
    known = replace(history, jobs=history.jobs.assign(started_at=submitted + timedelta(seconds=3)))
    assert not check_order(known, REQUEST, draws=2).is_comparable
    assert check_order(known, REQUEST, draws=2, compares_recorded=False).is_comparable
    assert check_order(history, REQUEST, draws=2).recorded is None


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        check_order(a_history(), REQUEST, draws=1)


def test_what_is_checked_is_the_default_of_a_live_slurm() -> None:
    default = live_scenario(Policy.QSSF, run_times=RunTimes.PREDICTED, options=())
    live = CHECKED[CheckedOrder.PREDICTIONS]
    assert (live.wait_share, live.bound_share) == (default.wait_share, default.bound_share)
    assert {scenario.estimates for scenario in CHECKED.values()} == {RunTimes.LIMIT}


def test_ratios_count_the_window_and_large_jobs_by_their_size() -> None:
    history = a_history()
    request = WhatIfRequest(
        scenarios=(), nodes={"gpu": 2}, since=START + timedelta(days=2), warm_up=timedelta(days=1), gpus_per_node=8
    )
    draw = DrawnWindow(history, request).draw(0)
    setup = prepare_replay(history, request)
    counted = setup.counted
    own_s, size_s = (
        replay_scenario(CHECKED[order], setup, None, lambda *_: None).wait_s
        for order in (CheckedOrder.OWN, CheckedOrder.SIZE)
    )
    large = counted & (setup.workload.gpus >= 8)
    found = draw.ratios(CHECKED[CheckedOrder.SIZE])
    assert found.mean == pytest.approx((size_s[counted].mean() + 1) / (own_s[counted].mean() + 1))
    assert found.longest == pytest.approx((size_s[counted].max() + 1) / (own_s[counted].max() + 1))
    assert found.large == pytest.approx((size_s[large].mean() + 1) / (own_s[large].mean() + 1))


def test_whole_node_jobs_are_counted_among_the_large_ones() -> None:
    found = DrawnWindow(a_history(large=8), REQUEST).draw(0).ratios(CHECKED[CheckedOrder.SIZE])
    assert found.large == found.by_size["one_node"] > 0
    assert np.isnan(found.by_size["more_nodes"])


def test_earlier_jobs_delay_nobody_in_the_own_order_of_a_replay() -> None:
    hour = timedelta(hours=1)

    def job(number: int, submitted: pd.Timestamp, hours: float) -> dict[str, Any]:
        times = {"submitted_at": submitted, "started_at": None, "ended_at": None}
        return a_job(job_id=str(number), gpus=16, run_time_s=3600.0 * hours, **times)

    opens = START + timedelta(days=2)
    # The second waits for five hours before the window opens, and runs for ten days into it.
    earlier = [job(1, START, 5), job(2, START, 240)]
    inside = [job(3 + number, opens + number * hour, 0.5) for number in range(240)]
    history = LoadedHistory(cluster="lab", jobs=jobs_frame(*earlier, *inside), timezone="UTC")
    request = WhatIfRequest(scenarios=(), nodes={"gpu": 2}, gpus_per_node=8, since=opens.to_pydatetime())
    longest = prepare_replay(history, request).own_order
    assert longest.at(int(opens.timestamp())) == longest.at(int((opens + 240 * hour).timestamp())) == 5 * 3600
    # As live, a wait counts for four weeks: here until four weeks after the start.
    assert longest.at(int((START + timedelta(days=28) + 4 * hour).timestamp())) == 5 * 3600
    assert longest.at(int((START + timedelta(days=28) + 6 * hour).timestamp())) == 0
