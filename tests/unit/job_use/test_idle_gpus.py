"""GPUs that are held and idle now, from a real Prometheus with known samples."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helios.app.controller_state import NIGHTLY_LEVELS
from helios.app.operations import Operations
from helios.config import PrometheusSettings, Settings
from helios.job_use.checks import check_prometheus
from helios.job_use.idle_gpus import HeldGpus, held_gpus, last_held_gpus, levels_now
from helios.job_use.prometheus import Prometheus
from helios.slurm.preflight import PreflightFinding
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.prometheus_rig import RealPrometheus, Samples, Server, success, vector
from tests.unit.app.sites import FakeSite

HOUR = 3600


@cache
def now_s() -> int:
    """Return the time of the first call, s: tests may run long after they were collected."""
    return int(time.time())


def now() -> datetime:
    return datetime.fromtimestamp(now_s(), UTC)


def hold(samples: Samples, job: str, gpu: str, busy: Any, *, memory: float = 1e9, since_s: float = 2 * HOUR) -> None:
    """Add what slurm-job-exporter and DCGM's say of a GPU of a job, until now."""
    of_slurm = {"instance": "g1:9798", "slurmjobid": job, "gpu": gpu, "user": "ann"}
    of_dcgm = {"Hostname": "g1", "hpc_job": job, "gpu": gpu, "UUID": f"GPU-{gpu}"}
    for name, labels, value in (
        ("slurm_job_utilization_gpu", of_slurm, busy),
        ("slurm_job_memory_usage_gpu", of_slurm, lambda _: memory),
        ("DCGM_FI_DEV_GPU_UTIL", of_dcgm, busy),
        ("DCGM_FI_DEV_FB_USED", of_dcgm, lambda _: 500),
    ):
        samples.add(name, labels, now_s() - since_s, now_s(), value)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    samples = Samples()
    hold(samples, "1", "0", lambda _: 90)
    hold(samples, "2", "1", lambda since_s: 50 if since_s < HOUR else 0)  # idle for an hour
    hold(samples, "3", "2", lambda _: 0, memory=0)
    hold(samples, "4", "3", lambda _: 0, since_s=HOUR / 4)  # it has just begun
    hold(samples, "5", "4", lambda since_s: 0 if since_s < HOUR or since_s > 1.7 * HOUR else None)  # not measured
    for job in ("6", "7"):
        hold(samples, job, "5", lambda _: 0)  # two jobs
    hold(samples, "8", "6", lambda since_s: 99 if since_s > 1.8 * HOUR else 0)
    for name, value in (("duty_cycle", 0), ("memory_used_bytes", 4e8), ("jobId", 9), ("memory_total_bytes", 1e9)):
        labels = {"instance": "g2:9445", "minor_number": "0"}
        samples.add(f"nvidia_gpu_{name}", labels, now_s() - HOUR, now_s(), lambda _, number=value: number)
    with RealPrometheus(tmp_path_factory.mktemp("prometheus"), samples=samples) as server:
        yield server


def seen(server: str, dialect: str) -> HeldGpus:
    settings = PrometheusSettings.model_validate({"url": server, "dialect": dialect})
    held = held_gpus(Prometheus(settings), settings, now())
    assert held is not None
    return held


def test_a_gpu_without_use_for_half_an_hour_is_idle(prometheus: RealPrometheus) -> None:
    held = seen(prometheus.url, "slurm-job-exporter")
    assert {(gpu.job_id, gpu.gpu, gpu.user, gpu.has_process) for gpu in held.idle} == {
        ("2", "1", "ann", True),
        ("3", "2", "ann", False),
    }
    assert held.measured == 4
    assert held.levels() == {"held_gpus_measured": 4, "held_gpus_idle": 2, "held_gpus_without_process": 1}


def test_memory_of_a_whole_card_tells_no_process(prometheus: RealPrometheus) -> None:
    held = seen(prometheus.url, "dcgm")
    assert {(gpu.job_id, gpu.has_process, gpu.memory_mib) for gpu in held.idle} == {("2", None, 500), ("3", None, 500)}


def test_the_value_of_a_metric_names_the_job(prometheus: RealPrometheus) -> None:
    (gpu,) = seen(prometheus.url, "jobstats-joined").idle
    assert (gpu.job_id, gpu.node, gpu.gpu) == ("9", "g2", "0")


def warehouse_settings(folder: Path, **prometheus: object) -> Settings:
    url = f"sqlite:///{folder / 'now.db'}"
    with Warehouse.open(url) as warehouse:
        running = [
            a_job(
                job_id=job,
                user="bob",
                submitted_at=now() - timedelta(hours=2),
                started_at=now() - timedelta(hours=2),
                ended_at=None,
                run_time_s=None,
                state="RUNNING",
            )
            for job in ("2", "77")
        ]
        warehouse.load([a_batch(*running)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    return Settings.model_validate({"database": {"url": url}, "prometheus": prometheus})


def test_what_is_seen_is_kept_with_the_users(prometheus: RealPrometheus, tmp_path: Path) -> None:
    settings = warehouse_settings(tmp_path, url=prometheus.url, dialect="dcgm")
    assert levels_now(settings, "venus", now())["held_gpus_idle"] == 2
    with Warehouse.open(settings.database.url) as warehouse:
        kept = last_held_gpus(warehouse, "venus")
    assert kept is not None
    assert json.dumps(kept)
    assert {(gpu["job_id"], gpu["user"]) for gpu in kept["idle"]} == {("2", "bob"), ("3", None)}


def test_without_an_answer_nothing_is_said_to_be_idle(tmp_path: Path) -> None:
    with Server(lambda _: (500, {}, b"")) as server:
        assert levels_now(warehouse_settings(tmp_path, url=server.url), "venus", now()) == {}
        assert len(server.queries) == 1
    assert levels_now(warehouse_settings(tmp_path), "venus", now()) == {}


def findings(folder: Path, **prometheus: object) -> list[PreflightFinding]:
    return [*check_prometheus(warehouse_settings(folder, **prometheus), "venus", now())]


def test_doctor_finds_the_series_of_running_jobs(prometheus: RealPrometheus, tmp_path: Path) -> None:
    first, second = findings(tmp_path, url=prometheus.url, dialect="slurm-job-exporter")
    assert first.message == "the label slurmjobid of slurm-job-exporter names 1 of 2 running jobs with GPUs"
    assert "processors and memory" in second.message


def test_doctor_says_whose_jobs_there_are_instead(prometheus: RealPrometheus, tmp_path: Path) -> None:
    first, *_ = findings(tmp_path, url=prometheus.url, dialect="jobstats-joined")
    assert first.message.endswith("names no running job with GPUs (2, 77), but 9")
    assert "prometheus.match" in first.hint


def test_doctor_says_which_label_is_missing(tmp_path: Path) -> None:
    def answer(query: str) -> Any:
        if query == "time()":
            return success({"resultType": "scalar", "result": [1, str(datetime.now(UTC).timestamp())]})
        return vector(({}, 1)) if "DCGM" in query and "hpc_job" not in query else vector()

    with Server(answer) as server:
        first, *_ = findings(tmp_path, url=server.url)
    assert first.message == "DCGM_FI_DEV_GPU_UTIL is measured, but no series has the label hpc_job"
    assert "--hpc-job-mapping-dir" in first.hint


def test_doctor_says_that_a_clock_is_hours_off(tmp_path: Path) -> None:
    five_hours_ago = success({"resultType": "scalar", "result": [1, str(datetime.now(UTC).timestamp() - 5 * HOUR)]})
    with Server(lambda _: five_hours_ago) as server:
        (finding,) = findings(tmp_path, url=server.url)
    assert "300 minutes behind" in finding.message
    assert "NTP" in finding.hint


def test_doctor_is_silent_without_a_prometheus(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


def test_the_daemon_joins_what_is_held_now_to_the_night_s_values(prometheus: RealPrometheus, tmp_path: Path) -> None:
    site = FakeSite(tmp_path)
    site.learn()
    settings = site.another(prometheus={"url": prometheus.url, "dialect": "dcgm"}).settings
    operations = Operations(settings, open_cluster=lambda _: site.live_cluster(), clock=lambda: site.cluster.now)
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.remember("dev", NIGHTLY_LEVELS, json.dumps({"utilization": 0.5}), at=now())
    assert {"utilization": 0.5, "held_gpus_idle": 2}.items() <= operations.nightly_levels().items()
