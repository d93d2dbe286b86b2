"""How a question becomes replays: which jobs count, what order and backfill are told, what is said aloud."""

from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.scenarios import Estimates, Policy, RunTimes, Scenario
from helios.app.whatif import WhatIfRequest, choose_window, whatif
from helios.errors import NotEnoughHistory
from helios.model import JOBS
from helios.report.whatif import WhatIf
from helios.simulate import Backfill
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2020-01-01", tz="UTC")
FIFO = Scenario(policy=Policy.FIFO, backfill=Backfill.NONE)


def easy(estimates: Estimates) -> Scenario:
    return Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=estimates)


def at(second: int, **job: Any) -> dict[str, Any]:
    return a_job(submitted_at=START + timedelta(seconds=second), started_at=None, ended_at=None, **job)


def asked(*jobs: dict[str, Any], scenarios: tuple[Scenario, ...] = (FIFO,), **options: Any) -> WhatIf:
    history = LoadedHistory(cluster="venus", jobs=jobs_frame(*jobs), timezone="UTC")
    return whatif(history, WhatIfRequest(scenarios=scenarios, nodes={"gpu": 1}, gpus_per_node=2, **options))


def waits(result: WhatIf) -> list[list[int]]:
    return [run.wait_s.tolist() for run in result.runs]


def a_blocked_head(limit_s: float | None) -> list[dict[str, Any]]:
    """One GPU runs for 100 s, the next job needs two, and the third needs one for 50 s."""
    return [
        at(0, gpus=1, run_time_s=100, time_limit_s=100),
        at(1, gpus=2, run_time_s=10, time_limit_s=10),
        at(2, gpus=1, run_time_s=50, time_limit_s=limit_s),
    ]


def test_backfill_by_true_times_starts_what_ends_before_the_head() -> None:
    result = asked(*a_blocked_head(200), scenarios=(easy(RunTimes.TRUE), easy(RunTimes.LIMIT)))
    assert waits(result) == [[0, 99, 0], [0, 99, 108]]


def test_backfill_can_plan_with_the_same_seconds_for_all() -> None:
    # Believed to take 1 s, the first is always about to end, and the third fits before it; with 98 s it does not.
    result = asked(*a_blocked_head(200), scenarios=(easy(1), easy(98)))
    assert waits(result) == [[0, 99, 0], [0, 99, 108]]


@pytest.mark.parametrize("limit_s", [None, float("inf")])
def test_a_job_without_a_limit_gets_the_default_and_it_is_said(limit_s: float | None) -> None:
    generous = asked(*a_blocked_head(limit_s), scenarios=(easy(RunTimes.LIMIT),), default_time_limit_s=98)
    strict = asked(*a_blocked_head(limit_s), scenarios=(easy(RunTimes.LIMIT),), default_time_limit_s=99)
    assert [waits(generous)[0][2], waits(strict)[0][2]] == [0, 108]
    assert any("1 of 3 jobs have no time limit" in note for note in strict.notes)


def test_an_order_by_true_run_times_is_told_them() -> None:
    shortest = Scenario(policy=Policy.SJF, backfill=Backfill.NONE, run_times=RunTimes.TRUE)
    jobs = [at(0, gpus=2, run_time_s=10), at(1, gpus=2, run_time_s=100), at(2, gpus=2, run_time_s=5)]
    assert waits(asked(*jobs, scenarios=(shortest,))) == [[0, 14, 8]]


def test_jobs_that_never_ran_are_left_out_and_it_is_said() -> None:
    result = asked(at(0), at(1, run_time_s=None))
    assert result.runs[0].summary.jobs == 1
    assert any("1 job that never ran" in note for note in result.notes)


def test_jobs_of_the_warm_up_are_replayed_but_not_counted() -> None:
    jobs = [at(0, gpus=2, run_time_s=100), at(50, gpus=2, run_time_s=1)]
    since = START + timedelta(seconds=50)
    assert waits(asked(*jobs, since=since)) == [[0]]
    assert waits(asked(*jobs, since=since, warm_up=timedelta(seconds=50))) == [[50]]


def test_a_window_is_half_open() -> None:
    result = asked(at(0), at(10), at(20), since=START + timedelta(seconds=10), until=START + timedelta(seconds=20))
    assert result.runs[0].summary.jobs == 1


def test_a_window_without_jobs_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotEnoughHistory, match="2020-01-01"):
        asked(at(0), since=START + timedelta(days=9))


def test_an_empty_history_has_no_window() -> None:
    loaded = LoadedHistory(cluster="venus", jobs=JOBS.empty(), timezone="UTC")
    with pytest.raises(NotEnoughHistory, match="no jobs"):
        choose_window(loaded, since=None, until=None, warm_up=timedelta(0))


def test_predictions_without_history_say_where_they_come_from() -> None:
    predicted = Scenario(policy=Policy.QSSF, backfill=Backfill.NONE, run_times=RunTimes.PREDICTED)
    result = asked(at(0), at(1), scenarios=(predicted,))
    assert any("100 % are untrained shrinkage" in note for note in result.notes)
