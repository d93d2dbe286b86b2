"""From an exporter that a real Prometheus scrapes to the answer of a command."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.cli.main import application
from helios.job_use import fetch
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.prometheus_rig import Answer, RealPrometheus, Samples, Server
from tests.waiting import until

BUSY, IDLE, SCRAPES = 80, 0, 8
MEMORY = 9 * 2**30


class Exporter:
    """slurm-job-exporter on a node with a job that is idle at first and then busy, for some scrapes."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, _: str) -> Answer:
        self.times.append(time.time())
        busy = IDLE if len(self.times) <= SCRAPES / 2 else BUSY
        labels = 'account="lab",slurmjobid="1001",user="ann"'
        on_gpu = f'{labels},gpu="1",gpu_type="NVIDIA A100-SXM4-80GB"'
        lines = [
            f"slurm_job_utilization_gpu{{{on_gpu}}} {busy}",
            f"slurm_job_memory_usage_gpu{{{on_gpu}}} {MEMORY}",
            f"slurm_job_power_gpu{{{on_gpu}}} 215310",
            f"slurm_job_memory_max{{{labels}}} 1048576",
            f"slurm_job_memory_limit{{{labels}}} 2097152",
            f'slurm_job_core_usage_total{{{labels},core="12"}} {len(self.times)}e9',
        ]
        return 200, {}, ("\n".join(lines) + "\n").encode()


def test_a_command_stores_what_an_exporter_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, exporter = f"sqlite:///{tmp_path / 'use.db'}", Exporter()
    with Server(exporter) as node, RealPrometheus(tmp_path, samples=Samples(), targets=[node.port]) as server:
        until(lambda: len(exporter.times) > SCRAPES)
        begin, end = (datetime.fromtimestamp(exporter.times[scrape], UTC) for scrape in (0, SCRAPES - 1))
        job = a_job(job_id="1001", submitted_at=begin - timedelta(hours=1), started_at=begin, ended_at=end)
        with Warehouse.open(database) as warehouse:
            warehouse.load([a_batch(job)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
        for name, value in {"DATABASE_URL": database, "PROMETHEUS_URL": server.url, "PROMETHEUS_STEP_S": "1"}.items():
            monkeypatch.setenv(f"HELIOS_{name}", value)
        monkeypatch.setattr(fetch, "SETTLED", timedelta(0))
        said = CliRunner().invoke(application, ["trace", "use", "--json"], catch_exceptions=False)
    assert json.loads(said.stdout)["runs"] == {"ok": 1}
    with Warehouse.open(database) as warehouse:
        (row,) = warehouse.job_use("venus").to_dict("records")
    assert row["utilization"] == pytest.approx(BUSY / 2, abs=BUSY / SCRAPES + 1)
    assert (row["utilization_max"], row["gpu_memory_peak_mib"], row["power_w"]) == (BUSY, 9 * 1024, 215.31)
    assert row["idle_share"] == pytest.approx(0.5, abs=0.15)
    assert row["longest_idle_s"] == pytest.approx(SCRAPES / 2, abs=2)
    assert row["samples"] == pytest.approx(SCRAPES, abs=1)
    assert (row["memory_peak_mib"], row["memory_limit_mib"]) == (1, 2)
    assert row["cpu_s"] == pytest.approx(SCRAPES, abs=1)
