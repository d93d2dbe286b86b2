"""What ended jobs used, from a real Prometheus with known samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.config import Settings
from helios.job_use.fetch import fetch, fetch_by_night
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.prometheus_rig import STEP_S, RealPrometheus, Samples

HOUR = 3600
NOW_S = int(datetime.now(UTC).timestamp()) // STEP_S * STEP_S
MIB = 2**20
BEGIN_S = NOW_S - 9 * HOUR


def late(value: float) -> Any:
    """Return nothing for an hour, and then a value."""
    return lambda since_s: 0 if since_s < HOUR else value


def always(value: float) -> Any:
    return lambda since_s: value


def slurm_exporter(samples: Samples, job: str, begin_s: int, end_s: int, busy: Any, **labels: str) -> None:
    of_gpu = {"instance": "g1.site:9798", "slurmjobid": job, "gpu": "1", "gpu_type": "A100"} | labels
    if busy is not None:
        samples.add("slurm_job_utilization_gpu", of_gpu, begin_s, end_s, busy)
    samples.add("slurm_job_memory_usage_gpu", of_gpu, begin_s, end_s, always(9 * 1024 * MIB))
    samples.add("slurm_job_memory_total_gpu", of_gpu, begin_s, end_s, always(80 * 1024 * MIB))
    samples.add("slurm_job_power_gpu", of_gpu, begin_s, end_s, always(200_000))
    of_job = {"instance": "g1.site:9798", "slurmjobid": job}
    samples.add("slurm_job_memory_max", of_job, begin_s, end_s, always(500 * MIB))
    samples.add("slurm_job_memory_limit", of_job, begin_s, end_s, always(1000 * MIB))
    for core in "01":
        samples.add("slurm_job_core_usage_total", of_job | {"core": core}, begin_s, end_s, lambda s: s * 1e9)


def dcgm(samples: Samples, job: str, begin_s: int, end_s: int, busy: float, *, uuid: str, slice_: str = "") -> None:
    labels = {"Hostname": "g2", "gpu": "0", "UUID": uuid, "hpc_job": job} | ({"GPU_I_ID": slice_} if slice_ else {})
    if slice_:
        samples.add("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, begin_s, end_s, always(busy))
    else:
        samples.add("DCGM_FI_DEV_GPU_UTIL", labels, begin_s, end_s, always(busy))
    samples.add("DCGM_FI_DEV_FB_USED", labels, begin_s, end_s, always(9000))
    samples.add("DCGM_FI_DEV_FB_FREE", labels, begin_s, end_s, always(1000))
    samples.add("DCGM_FI_DEV_POWER_USAGE", labels, begin_s, end_s, always(215))


def jobstats(samples: Samples, job: str, begin_s: int, end_s: int, busy: Any, *, node: str, labelled: bool) -> None:
    labels = {"instance": f"{node}:9445", "minor_number": "3", "uuid": "GPU-a"} | ({"jobid": job} if labelled else {})
    for name, value in (
        ("duty_cycle", busy),
        ("memory_used_bytes", always(MIB)),
        ("memory_total_bytes", always(9 * MIB)),
    ):
        samples.add(f"nvidia_gpu_{name}", labels, begin_s, end_s, value)
    samples.add("nvidia_gpu_power_usage_milliwatts", labels, begin_s, end_s, always(100_000))
    if not labelled:
        samples.add("nvidia_gpu_jobId", labels, begin_s, end_s, always(float(job)))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    """A server with the samples of jobs of all exporters."""
    samples, hours = Samples(), [BEGIN_S + n * HOUR for n in range(10)]
    slurm_exporter(samples, "2001", hours[0], hours[2], late(80))
    slurm_exporter(samples, "2001", hours[5], hours[6], always(10))  # the id is used again
    slurm_exporter(samples, "2006", hours[0], hours[3], lambda s: None if HOUR < s < 2 * HOUR else 50, gpu="2")
    slurm_exporter(samples, "2003", hours[0], hours[1], None, gpu="MIG-26", gpu_type="A100 MIG 1g.10gb")
    slurm_exporter(samples, "2008", hours[0], hours[1], always(150), gpu="3")
    slurm_exporter(samples, "2012", hours[0], hours[1], always(5), gpu="4")
    slurm_exporter(samples, "2013", hours[6], hours[7], lambda s: math.nan if s == 600 else 5)
    of_sm = {"instance": "g1.site:9798", "slurmjobid": "2012", "gpu": "4", "gpu_type": "A100"}
    samples.add("slurm_job_sm_occupancy_gpu", of_sm, hours[0], hours[1], always(3))
    for job in ("2004", "2005"):
        dcgm(samples, job, hours[0], hours[1], 42, uuid="GPU-aaaa")
    dcgm(samples, "2011", hours[0], hours[1], 0.13, uuid="GPU-cccc", slice_="7")
    dcgm(samples, "2014", hours[0], hours[1], 30, uuid="GPU-dddd")
    jobstats(samples, "2015", hours[0], hours[2], late(60), node="g3", labelled=True)
    jobstats(samples, "2016", hours[0], hours[2], late(70), node="g4", labelled=False)
    for exporter in ("slurm_job_memory_limit", "slurm_job_utilization_gpu"):  # what is there now
        samples.add(
            exporter, {"instance": "g1.site:9798", "slurmjobid": "9", "gpu": "7"}, hours[8], hours[9], always(1)
        )
    samples.add("DCGM_FI_DEV_GPU_UTIL", {"hpc_job": "9"}, hours[8], hours[9], always(1))
    samples.add("nvidia_gpu_duty_cycle", {"jobid": "9"}, hours[8], hours[9], always(1))
    samples.add("nvidia_gpu_jobId", {"instance": "g4:9445"}, hours[8], hours[9], always(0))
    with RealPrometheus(tmp_path_factory.mktemp("prometheus"), samples=samples) as server:
        yield server


def measured(
    server: str, folder: Path, dialect: str, *jobs: tuple[str, int, int], **values: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what is stored of jobs with begin and end in hours, and of their GPUs."""
    url = f"sqlite:///{folder / 'use.db'}"
    settings = Settings.model_validate(
        {"database": {"url": url}, "prometheus": {"url": server, "dialect": dialect, "step_s": STEP_S}}
    )
    rows = [
        a_job(job_id=job, submitted_at=at(begin - 1), started_at=at(begin), ended_at=at(end), **values)
        for job, begin, end in jobs
    ]
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*rows)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
        fetch(settings, "venus", at(9))
        return warehouse.job_use("venus"), warehouse.job_use("venus", by_gpu=True)


def at(hours: float) -> datetime:
    return datetime.fromtimestamp(BEGIN_S, UTC) + timedelta(hours=hours)


def test_a_job_has_what_it_used_in_its_own_span(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, gpus = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2001", 0, 2), ("2001", 5, 6))
    first, second = (row for _, row in use.iterrows())
    assert first["utilization"] == pytest.approx(40, abs=0.5)
    assert (first["utilization_later"], first["utilization_p95"], first["utilization_max"]) == (80, 80, 80)
    assert first["idle_share"] == pytest.approx(0.5, abs=0.01)
    assert first["longest_idle_s"] == pytest.approx(HOUR, abs=120)
    assert (first["gpu_memory_peak_mib"], first["gpu_memory_total_mib"]) == (9 * 1024, 80 * 1024)
    assert (first["power_w"], first["energy_j"]) == (200, 200 * 2 * HOUR)
    assert first["cpu_s"] == pytest.approx(2 * 2 * HOUR, rel=0.01)
    assert (first["memory_peak_mib"], first["memory_limit_mib"]) == (500, 1000)
    assert (first["quality"], first["busy_means"], first["is_shared"], first["is_mig"]) == ("ok", "a kernel ran", 0, 0)
    assert (second["utilization"], second["idle_share"], second["longest_idle_s"]) == (10, 0, 0)
    assert [*gpus["gpu"]] == ["1", "1"]
    assert [*gpus["node"]] == ["g1", "g1"]


@pytest.mark.parametrize(("dialect", "job"), [("jobstats", "2015"), ("jobstats-joined", "2016")])
@pytest.mark.parametrize("node_list", ["g[3-4]", None])
def test_jobstats_exporters_name_jobs(
    dialect: str, job: str, node_list: str | None, prometheus: RealPrometheus, tmp_path: Path
) -> None:
    use, gpus = measured(prometheus.url, tmp_path, dialect, (job, 0, 2), node_list=node_list)
    (row,) = use.to_dict("records")
    assert row["utilization_later"] == {"2015": 60, "2016": 70}[job]
    assert (row["quality"], row["is_shared"], row["power_w"]) == ("ok", 0, 100)
    assert [*gpus["gpu"]] == ["3"]


def test_a_gpu_of_two_jobs_is_neither_s(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "dcgm", ("2004", 0, 1), ("2005", 0, 1), ("2014", 0, 1))
    assert [*use["is_shared"]] == [1, 1, 0]
    assert [*use["utilization"].isna()] == [True, True, False]
    assert [*use["gpu_memory_peak_mib"].isna()] == [True, True, False]
    assert use["energy_j"].isna().tolist() == [True, True, False]
    assert use["gpu_memory_total_mib"].tolist() == [10_000] * 3


def test_a_slice_has_only_use_that_is_its_own(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, gpus = measured(prometheus.url, tmp_path, "dcgm", ("2011", 0, 1))
    (row,) = use.to_dict("records")
    assert (row["is_mig"], row["busy_means"]) == (1, "the graphics engine was active")
    assert row["utilization"] == pytest.approx(13)
    assert [*gpus["gpu"]] == ["0/7"]
    assert math.isnan(row["power_w"])


def test_a_slice_without_utilization_is_not_idle(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2003", 0, 1))
    (row,) = use.to_dict("records")
    assert row["is_mig"] == 1
    assert use[["utilization", "idle_share", "longest_idle_s", "power_w", "energy_j"]].isna().all(axis=None)
    assert row["gpu_memory_peak_mib"] == 9 * 1024


def test_what_busy_means_is_stored(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2012", 0, 1))
    assert use["busy_means"].tolist() == ["an SM was active"]


def test_a_gap_is_not_covered(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2006", 0, 3))
    (row,) = use.to_dict("records")
    assert row["quality"] == "partial"
    assert row["covered_s"] == pytest.approx(2 * HOUR, abs=400)
    assert math.isnan(row["energy_j"])
    assert math.isnan(row["cpu_s"]) is False  # the processors were measured throughout


@pytest.mark.parametrize("job", ["2008", "2013"])
def test_impossible_utilization_is_not_stored(job: str, prometheus: RealPrometheus, tmp_path: Path) -> None:
    begin = {"2008": 0, "2013": 6}[job]
    use, gpus = measured(prometheus.url, tmp_path, "slurm-job-exporter", (job, begin, begin + 1))
    assert use["quality"].tolist() == ["broken"]
    assert use[["utilization", "utilization_max", "idle_share"]].isna().all(axis=None)
    assert gpus[["utilization", "idle_share"]].isna().all(axis=None)


def test_a_job_without_samples_is_asked_for_once(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2009", 0, 1), ("2010", 0, 0.01))
    assert sorted(use["quality"]) == ["none", "short"]
    assert use["utilization"].isna().all()
    again = Settings.model_validate(
        {
            "database": {"url": f"sqlite:///{tmp_path / 'use.db'}"},
            "prometheus": {"url": prometheus.url, "step_s": STEP_S},
        }
    )
    assert fetch(again, "venus", at(9)).runs == {}


def test_fewer_gpus_than_held_are_a_part(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2001", 5, 6), gpus=2)
    assert use["quality"].tolist() == ["partial"]
    assert use["gpus_measured"].tolist() == [1]


def test_a_job_without_gpus_has_its_memory_and_processors(prometheus: RealPrometheus, tmp_path: Path) -> None:
    use, gpus = measured(prometheus.url, tmp_path, "slurm-job-exporter", ("2001", 0, 2), gpus=0)
    (row,) = use.to_dict("records")
    assert (row["quality"], row["memory_peak_mib"]) == ("ok", 500)
    assert row["cpu_s"] == pytest.approx(2 * 2 * HOUR, rel=0.01)
    assert use[["utilization", "gpus_measured", "is_shared", "is_mig", "energy_j"]].isna().all(axis=None)
    assert gpus.empty


def test_a_reading_that_was_interrupted_goes_on(prometheus: RealPrometheus, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("helios.job_use.fetch.JOBS_AT_ONCE", 2)
    stored = Warehouse.add_job_use
    calls = []

    def interrupted(*words: Any) -> None:
        stored(*words)
        calls.append(words)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Warehouse, "add_job_use", interrupted)
    jobs = [("2001", 5, 6), ("2006", 0, 3), ("2012", 0, 1), ("2008", 0, 1), ("2003", 0, 1)]
    with pytest.raises(KeyboardInterrupt):
        measured(prometheus.url, tmp_path, "slurm-job-exporter", *jobs)
    use, _ = measured(prometheus.url, tmp_path, "slurm-job-exporter", *jobs)
    assert len(calls) == 3
    assert sorted(use["job_id"]) == ["2001", "2003", "2006", "2008", "2012"]


def test_a_night_asks_for_a_time_and_leaves_the_rest(
    prometheus: RealPrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate(
        {
            "database": {"url": f"sqlite:///{tmp_path / 'use.db'}"},
            "prometheus": {"url": prometheus.url, "step_s": STEP_S},
        }
    )
    job = a_job(job_id="2012", submitted_at=at(-1), started_at=at(0), ended_at=at(1))
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.load([a_batch(job)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    monkeypatch.setattr("helios.job_use.fetch.NIGHT_S", 0)
    assert fetch_by_night(settings, "venus", now=at(9)).endswith(": nothing new")
    monkeypatch.undo()
    assert fetch_by_night(settings, "venus", now=at(9)).endswith(": 1 partial")
    assert fetch_by_night(Settings(), "venus", now=at(9)) == ""
