"""The nightly check of forecasts of starts, on histories whose starts are known."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helios.app.slurm_whatif_jobs import slurm_jobs
from helios.app.start_forecast import WIDER, check_starts, compare_forecasts, store_check, stored_widening
from helios.errors import NotEnoughHistory
from helios.model import JOBS
from helios.simulate.slurm import replay_slurm
from helios.warehouse import Warehouse
from tests.builders import a_job, jobs_frame
from tests.unit.app.test_start_forecast import NOON, NOW, a_site

SITE = a_site("node1", "node2", age=1_000)


def a_replayed_history() -> pd.DataFrame:
    """Return three weeks of jobs as the simulated Slurm of SITE would have run them."""
    chance = np.random.default_rng(0)
    jobs = jobs_frame(
        *(
            a_job(
                job_id=str(n),
                user=f"user{n % 5}",
                gpus=int(chance.choice([1, 2, 4, 8])),
                cpus=8.0,
                nodes=1.0,
                partition="gpu",
                time_limit_s=36_000.0,
                run_time_s=float(np.ceil(chance.lognormal(8 + n % 5 / 2, 0.5))),
                submitted_at=NOW - pd.Timedelta(days=20) + pd.Timedelta(minutes=20 * n),
            )
            for n in range(1_400)
        )
    )
    laid = slurm_jobs(jobs.assign(eligible_at=jobs["submitted_at"]), SITE)
    found = replay_slurm(laid.workload, SITE)
    times = {
        name: pd.to_datetime(values, unit="s", utc=True)
        for name, values in (("started_at", found.started_s), ("ended_at", found.ended_s))
    }
    return JOBS.conform(laid.jobs.assign(**times, run_time_s=found.ended_s - found.started_s))


def test_forecasts_of_a_replayed_history_are_near_and_covered() -> None:
    check = check_starts(a_replayed_history(), SITE, now=NOON, moments=10)
    assert check.forecasts >= 30
    assert check.median_error < 0.7
    assert check.covered > 0.5
    assert 0.8 <= check.wider <= 4


def test_a_history_in_which_nobody_waited_checks_nothing() -> None:
    calm = jobs_frame(*(a_job(job_id=str(n), submitted_at=NOW - pd.Timedelta(hours=n)) for n in range(1, 40)))
    with pytest.raises(NotEnoughHistory, match="waited"):
        check_starts(calm, SITE, now=NOON)


def test_the_worse_the_forecasts_the_wider_the_intervals() -> None:
    chance = np.random.default_rng(0)
    truth_s = chance.lognormal(8, 1, 400)

    def wider(spread: float) -> float:
        said_s = truth_s * np.exp(chance.normal(0, spread, 400))
        return compare_forecasts(np.stack([said_s / 2, said_s, said_s * 2]), truth_s).wider

    assert wider(0.2) < 1 < wider(1.0) < wider(1.5)


def test_what_is_later_than_the_simulations_is_covered_by_what_is_later() -> None:
    quantiles_s = np.tile(np.array([[600.0], [3_600.0], [np.inf]]), 50)
    assert compare_forecasts(quantiles_s, np.full(50, 1e6)).covered == 1
    assert compare_forecasts(quantiles_s, np.full(50, 1.0)).covered == 0


def test_a_check_counts_for_eight_days(tmp_path: Path) -> None:
    check = compare_forecasts(np.tile(np.array([[600.0], [700.0], [800.0]]), 50), np.full(50, 3_000.0))
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as warehouse:
        assert stored_widening(warehouse, "dev", NOON) == WIDER
        store_check(warehouse, "dev", check, at=NOON)
        assert stored_widening(warehouse, "dev", NOON + timedelta(days=7)) == check.wider > WIDER
        assert stored_widening(warehouse, "dev", NOON + timedelta(days=9)) == WIDER
