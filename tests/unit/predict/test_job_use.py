"""Predictions of what runs use, beside a plain reckoning and on made histories whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helios.model import JOB_USE
from helios.predict.job_use import (
    RECENT,
    RunsWithUse,
    kinds_of_runs,
    predict_use,
    predict_use_again,
    runs_with_use,
)
from tests.builders import a_job, jobs_frame


def random_runs(n: int = 3000, users: int = 40, seed: int = 1) -> RunsWithUse:
    """Return runs whose memory and use are alike within each user."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, n)
    asked_s = np.sort(rng.integers(0, n * 2, n)) * 300
    memory = rng.uniform(500, 30_000, users)[user] * np.exp(rng.normal(0, 0.1, n))
    utilization = np.clip(rng.choice([0.0, 30.0, 90.0], users)[user] + rng.normal(0, 3, n), 0, 100)
    return RunsWithUse(
        kinds=(np.zeros(n, dtype=np.int64), user % 2, user),
        asked_s=asked_s,
        ended_s=asked_s + rng.integers(1, 120, n) * 300,
        utilization=utilization,
        memory_mib=memory,
    )


def test_prediction_is_the_mean_of_the_last_of_a_kind():
    runs = random_runs(300)
    found = predict_use(runs)
    for run in range(300):
        expected, chance = float("nan"), float("nan")
        for kind in runs.kinds:
            ended = np.flatnonzero((kind == kind[run]) & (runs.ended_s < runs.asked_s[run]))
            last = ended[np.argsort(runs.ended_s[ended], kind="stable")][-RECENT:]
            if len(last):
                used = [*runs.utilization[last], *([] if np.isnan(expected) else [expected])]
                idle = [*(runs.utilization[last] < 1.0), *([] if np.isnan(chance) else [chance])]
                expected, chance = float(np.mean(used)), float(np.mean(idle))
        assert found.utilization[run] == pytest.approx(expected, nan_ok=True)
        assert found.idle_chance[run] == pytest.approx(chance, nan_ok=True)


def test_what_had_not_ended_at_submission_changes_no_prediction():
    runs, moment_s = random_runs(400), 400 * 300
    later = runs.ended_s >= moment_s
    changed = replace(
        runs,
        utilization=np.where(later, 77.0, runs.utilization),
        memory_mib=np.where(later, 5.0, runs.memory_mib),
    )
    before = runs.asked_s <= moment_s
    for name in ("utilization", "idle_chance", "memory_mib"):
        one, other = (getattr(predict_use(world), name)[before] for world in (runs, changed))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert before.sum() > 100


def test_bound_of_memory_covers_95_of_100_runs_and_hours():
    runs = random_runs()
    found = predict_use(runs)
    known = ~np.isnan(found.memory_mib)
    held, hours = (runs.memory_mib <= found.memory_mib)[known], (runs.ended_s - runs.asked_s)[known]
    assert known.mean() > 0.95
    assert 0.93 <= held.mean() <= 0.97
    assert 0.93 <= np.average(held, weights=hours) <= 0.97
    assert np.median(found.memory_mib[known] / runs.memory_mib[known]) < 1.5  # not by being large


def test_nothing_is_predicted_where_nothing_was_measured():
    runs = random_runs(50)
    unknown = np.full(50, np.nan)
    found = predict_use(replace(runs, utilization=unknown, memory_mib=unknown))
    assert np.isnan([found.utilization, found.idle_chance, found.memory_mib]).all()


def test_busy_run_goes_on_and_idle_one_becomes_as_others():
    runs = random_runs(2000)
    loads_late = runs.kinds[-1] < 10
    runs = replace(runs, utilization=np.where(loads_late, 50.0, np.maximum(runs.utilization, 2.0)))
    early = np.where(loads_late, 0.0, runs.utilization)
    first = predict_use(runs)
    found = predict_use_again(
        runs, after_s=900, utilization=early, memory_mib=np.where(loads_late, 0.0, runs.memory_mib), before=first
    )
    settled = slice(500, None)
    assert np.abs(found.utilization - runs.utilization)[settled].mean() < 0.1
    assert found.idle_chance[settled].max() == 0.0
    held = (runs.memory_mib <= found.memory_mib)[settled]
    assert 0.93 <= held[loads_late[settled]].mean() <= 0.97
    assert (found.memory_mib - runs.memory_mib)[settled][~loads_late[settled]].max() < 1.0


def test_kinds_are_from_wide_to_narrow_and_unknown_users_are_no_kind():
    jobs = jobs_frame(
        a_job(job_id="1", user="ann", name="train-1", gpus=1),
        a_job(job_id="2", user="ann", name="train-22", gpus=1),
        a_job(job_id="3", user="ann", name="eval", gpus=1),
        a_job(job_id="4", user="bob", name="train-1", gpus=2),
        a_job(job_id="5", user=None, name="train-1", gpus=1),
    )
    kinds = kinds_of_runs(jobs)
    assert [len(set(kind.tolist())) for kind in kinds] == [1, 1, 3, 3, 4]
    assert kinds[-1][0] == kinds[-1][1] != kinds[-1][2]
    assert [kind[4] for kind in kinds[2:]] == [-1, -1, -1]


def test_use_is_joined_by_run_and_missing_or_shared_use_is_unknown():
    jobs = jobs_frame(*(a_job(job_id=job_id, restart=restart) for job_id, restart in (("1", 0), ("1", 1), ("2", 0))))
    row = {"submitted_at": jobs["submitted_at"][0], "source": "file", "quality": "ok", "utilization": 0.0}
    shared = row | {"job_id": "2", "restart": 0, "is_shared": 1.0}
    use = JOB_USE.conform(pd.DataFrame([row | {"job_id": "1", "restart": 1}, shared]))
    runs = runs_with_use(jobs, use)
    assert runs.utilization.tolist() == pytest.approx([np.nan, 0.0, np.nan], nan_ok=True)
    assert np.isnan(runs.memory_mib).all()
