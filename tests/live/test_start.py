"""When a pending job starts, forecast on a real Slurm and then seen."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.explain import explain
from helios.app.operations import Operations
from helios.config import load_configuration
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.live.rig import Rig
from tests.live.test_cli import Shell

RUNS_S = 30
"""How long jobs run that are waited for, s: long enough for the queue to be read meanwhile."""
PLACES_S = 90.0
"""How far a real start may lie from the interval, s: Slurm's own rhythm, on a machine that is busy."""


def learn(shell: Shell, rig: Rig) -> None:
    """Load past jobs of alice that ran as long as those that will run."""
    now = pd.Timestamp(datetime.now(UTC)).floor("s")
    rows = [
        a_job(
            job_id=f"{90_000 + n}",
            user="alice",
            run_time_s=float(RUNS_S),
            gpus=8,
            time_limit_s=36_000.0,
            submitted_at=now - pd.Timedelta(hours=60 - n),
        )
        for n in range(40)
    ]
    with Warehouse.open(shell.environment["HELIOS_DATABASE_URL"]) as warehouse:
        batch = a_batch(*rows)
        warehouse.load([batch], cluster=rig.name, path="past", sha256="1", format="sacct", timezone="UTC")


def test_a_pending_job_starts_within_the_forecast_interval(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(rig, tmp_path, since=datetime.now(UTC))
    learn(shell, rig)
    # In this process, so that the queue is read before anything else has to start.
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    settings = load_configuration(environment=os.environ, folder=tmp_path).settings
    cycles = Operations(settings).cycles
    nodes = int(rig.settings.get("NODES", "4"))
    running = [rig.submit(user="alice", gpus=8, limit="600", seconds=RUNS_S) for _ in range(nodes)]
    rig.until(lambda: all(rig.job_state(job) == "RUNNING" for job in running))
    waits = rig.submit(user="alice", gpus=8, limit="600", seconds=1)
    told = explain(cycles, waits).start
    assert told is not None and told.p10_at is not None and told.p90_at is not None, told
    rig.until(lambda: rig.job_state(waits) != "PENDING")
    began = rig.lines("date", "-u", "-d", rig.show_job(waits)["StartTime"], "+%FT%T+00:00")[0]
    spare = timedelta(seconds=PLACES_S)
    assert told.p10_at - spare <= datetime.fromisoformat(began) <= told.p90_at + spare
    assert told.p90_at - told.taken_at < timedelta(minutes=10), "predicted run times, not limits of ten hours"


def test_without_history_the_forecast_rests_on_limits_and_says_so(rig: Rig, tmp_path: Path) -> None:
    shell = Shell(rig, tmp_path, since=datetime.now(UTC))
    Warehouse.open(shell.environment["HELIOS_DATABASE_URL"]).close()
    rig.fill()
    waits = rig.submit(user="bob", gpus=8, limit="60")
    rig.until(lambda: waits in rig.site_factors())
    told = shell.answers("why", waits)["start"]
    assert told["by_limits"]
    assert told["draws"] > 0
    said = shell.says("why", waits)
    assert "Starts " in said
    assert "It rests on time limits" in said
