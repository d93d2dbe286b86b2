"""What running jobs will likely use, and how such predictions are judged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.explain_past import explain_past
from helios.config import Settings
from helios.job_use.fetch import fetch
from helios.job_use.predicted import FEWEST, judge, predict_running, read_predictions
from helios.model import EARLY, GPU_USE, JOB_USE
from helios.report.job_use import PREDICTED_USE
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.prometheus_rig import STEP_S, RealPrometheus, Samples

HOUR_S, MINUTE_S = 3600, 60
DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


@cache
def now_s() -> int:
    """Return the time of the first call, s: tests may run long after they were collected."""
    return int(time.time()) // STEP_S * STEP_S


def now() -> datetime:
    return datetime.fromtimestamp(now_s(), UTC)


def hold(samples: Samples, job: str, begin_s: int, end_s: int, *, busy: Any, memory: Any) -> None:
    """Add what an exporter says of the GPU of a job."""
    labels = {"instance": "g1:9798", "slurmjobid": job, "gpu": job}
    samples.add("slurm_job_utilization_gpu", labels, begin_s, end_s, busy)
    samples.add("slurm_job_memory_usage_gpu", labels, begin_s, end_s, memory)
    samples.add("slurm_job_memory_total_gpu", labels, begin_s, end_s, lambda _: 80 * 2**30)


def loads_then_works(since_s: float) -> float:
    """Load for five minutes, work a little until the fifteenth, and much later."""
    return 0 if since_s < 5 * MINUTE_S else 40 if since_s <= 15 * MINUTE_S else 90


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    samples, begin_s = Samples(), now_s() - HOUR_S
    grows = lambda since_s: (2 if since_s <= 15 * MINUTE_S else 60) * 2**30  # noqa: E731 - a curve
    hold(samples, "1", begin_s, now_s(), busy=loads_then_works, memory=grows)
    hold(samples, "2", begin_s, now_s(), busy=lambda _: 0, memory=lambda _: 2**29)
    hold(samples, "3", now_s() - 16 * MINUTE_S, now_s(), busy=loads_then_works, memory=grows)
    hold(samples, "4", begin_s - HOUR_S, begin_s, busy=loads_then_works, memory=grows)
    hold(samples, "5", begin_s - 10 * MINUTE_S, begin_s, busy=loads_then_works, memory=grows)
    with RealPrometheus(tmp_path_factory.mktemp("prometheus"), samples=samples) as server:
        yield server


def site(folder: Path, server: str, *jobs: dict[str, Any]) -> Settings:
    url = f"sqlite:///{folder / 'use.db'}"
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    prometheus = {"url": server, "dialect": "slurm-job-exporter", "step_s": STEP_S}
    return Settings.model_validate({"database": {"url": url}, "prometheus": prometheus})


def running(job: str, begin: datetime, **values: Any) -> dict[str, Any]:
    times = {"submitted_at": begin, "started_at": begin, "ended_at": None, "run_time_s": None}
    return a_job(**{"job_id": job, "state": "RUNNING", "gpus": 1} | times | values)


def test_a_running_job_is_predicted_from_its_first_15_minutes(prometheus: RealPrometheus, tmp_path: Path) -> None:
    begin = now() - HOUR
    jobs = running("1", begin), running("2", begin), running("3", now() - 16 * timedelta(minutes=1))
    settings = site(tmp_path, prometheus.url, *jobs)
    assert predict_running(settings, "venus", now()) == {}
    with Warehouse.open(settings.database.url) as warehouse:
        early = warehouse.job_use("venus", early=True).set_index("job_id")
        assert warehouse.job_use("venus").empty
        kept = json.loads(warehouse.remembered("venus", PREDICTED_USE) or "")
    assert [*early.index] == ["1", "2"]  # the samples of the third may not have arrived
    assert early.loc["1", "utilization"] == pytest.approx(40, abs=2)
    assert early.loc["1", "gpu_memory_peak_mib"] == 2 * 1024
    assert [*early["quality"]] == ["ok", "ok"]
    assert kept["1"]["utilization"] == early.loc["1", "utilization"]
    lines = explain_past(settings.database.url, "venus", "1", now=now()).lines()
    (said,) = (line for line in lines if line.startswith("After 15 minutes"))
    assert "busy in minutes 5 to 15; GPU memory at most 2.0 GiB, by Prometheus, where busy means that a kernel" in said
    assert "So it will likely use 40" in said


def test_first_minutes_of_an_ended_job_are_kept_beside_its_use(prometheus: RealPrometheus, tmp_path: Path) -> None:
    begin, end = now() - 2 * HOUR, now() - HOUR
    long = running("4", begin, ended_at=end, state="COMPLETED", run_time_s=3600.0)
    short = running("5", end - timedelta(minutes=10), ended_at=end, state="COMPLETED", run_time_s=600.0)
    settings = site(tmp_path, prometheus.url, long, short)
    fetch(settings, "venus", now())
    with Warehouse.open(settings.database.url) as warehouse:
        (early,) = warehouse.job_use("venus", early=True).to_dict("records")
        whole = warehouse.job_use("venus").set_index("job_id")
    assert early["job_id"] == "4"
    assert early["utilization"] == pytest.approx(40, abs=2)
    assert whole.loc["4", "utilization"] == pytest.approx((10 * 40 + 45 * 90) / 60, abs=1)
    assert set(whole.index) == {"4", "5"}


def a_site_with_kinds(folder: Path, *, runs: int) -> Warehouse:
    """Return runs of an idle, a busy and a changing user on two days, whose use and first minutes are known."""
    rng = np.random.default_rng(2)
    jobs, use = [], []
    for number in range(runs):
        user, busy = (("ann", 0.2), ("bob", 80.0), ("eve", float(rng.choice([0.0, 50.0]))))[number % 3]
        begin = DAY - timedelta(days=1) + timedelta(minutes=2 * 1440 * number / runs)
        length = timedelta(minutes=20 + int(rng.integers(0, 30)))
        jobs.append(
            a_job(
                job_id=str(number),
                user=user,
                gpus=1 + number % 2,
                submitted_at=begin,
                started_at=begin,
                ended_at=begin + length,
                run_time_s=length.total_seconds(),
            )
        )
        key = {"submitted_at": begin, "job_id": str(number), "restart": 0, "quality": "ok"}
        known = {"utilization": busy, "gpu_memory_peak_mib": 1000.0 * rng.uniform(1, 2)}
        use.append(key | known | {"source": "prometheus"})
        use.append(key | known | {"source": EARLY})
    warehouse = Warehouse.open(f"sqlite:///{folder / 'judged.db'}")
    warehouse.load([a_batch(*jobs)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    warehouse.add_job_use("venus", JOB_USE.conform(pd.DataFrame(use)), GPU_USE.empty())
    return warehouse


def test_a_day_is_judged_as_a_plain_reckoning_says(tmp_path: Path) -> None:
    end = DAY + timedelta(days=1)
    with a_site_with_kinds(tmp_path, runs=240) as warehouse:
        judged = judge(warehouse, "venus", DAY, end)
        found = read_predictions(warehouse, "venus", end)
    day, earlier = [], []
    for row, job in enumerate(found.jobs.to_dict("records")):
        minutes = int(job["gpus"]) * round((job["ended_at"] - job["started_at"]).total_seconds() / 60)
        if job["ended_at"] < DAY:
            earlier += [found.runs.utilization[row]] * minutes
        elif job["ended_at"] < end:
            day.append((row, minutes))
    mean = np.mean(earlier)
    for name, predicted in (("at_submission", found.before), ("after_15_min", found.after)):
        errors, of_mean, wins, held, held_hours = [], [], [], [], []
        for row, minutes in day:
            truth = found.runs.utilization[row]
            errors += [abs(predicted.utilization[row] - truth)] * minutes
            of_mean += [abs(mean - truth)] * minutes
            held.append(found.runs.memory_mib[row] <= predicted.memory_mib[row])
            held_hours += [held[-1]] * minutes
            for other, _ in day:
                if truth < 1 <= found.runs.utilization[other]:
                    difference = predicted.idle_chance[row] - predicted.idle_chance[other]
                    wins.append((difference > 0) + (difference == 0) / 2)
        assert judged.levels[f"use_error_{name}"] == pytest.approx(np.median(errors), abs=1e-6)
        assert judged.levels[f"use_error_of_mean_{name}"] == pytest.approx(np.median(of_mean), abs=1e-6)
        assert judged.levels[f"use_idle_auc_{name}"] == pytest.approx(np.mean(wins))
        assert judged.levels[f"use_memory_covered_runs_{name}"] == pytest.approx(np.mean(held))
        assert judged.levels[f"use_memory_covered_hours_{name}"] == pytest.approx(np.mean(held_hours))
    assert judged.levels["use_error_at_submission"] < judged.levels["use_error_of_mean_at_submission"]
    assert judged.levels["use_idle_auc_after_15_min"] > judged.levels["use_idle_auc_at_submission"]
    assert judged.sentences[0].startswith("Utilization predicted at submission was off by ")
    assert judged.sentences[0].endswith(f"(median by GPU hours, {len(day)} runs).")


def test_too_few_runs_judge_nothing(tmp_path: Path) -> None:
    with a_site_with_kinds(tmp_path, runs=30) as warehouse:
        judged = judge(warehouse, "venus", DAY, DAY + timedelta(days=1))
        quiet = judge(warehouse, "venus", DAY + timedelta(days=5), DAY + timedelta(days=6))
    assert judged.levels == {}
    assert judged.sentences[0] == f"Use predicted at submission: too few runs to judge, 15 of {FEWEST}."
    assert (quiet.sentences, quiet.levels) == ((), {})
