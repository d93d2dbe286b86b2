"""A site made of fakes that behave: a cluster in memory, a warehouse in a file, a clock that a test moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from helios.app.controllers import JobController
from helios.app.live_cluster import LiveCluster
from helios.app.sync import JOBS as JOBS_READ
from helios.app.sync import AccountingSource
from helios.config import Settings
from helios.model import NODE_EVENTS, ModelRecord
from helios.predict.duration import train
from helios.predict.model_record import to_record
from helios.testing import FakeCluster
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job


@cache
def empty_database() -> bytes:
    """The file of a warehouse without a row; making it takes longer than most tests do."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "helios.db")
        Warehouse.open(f"sqlite:///{file}").close()
        return file.read_bytes()


def put_empty_database(file: Path) -> str:
    """Put an empty warehouse there unless there is one, and return its URL."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(empty_database())
    return f"sqlite:///{file}"


@cache
def learnt_database(now: datetime, jobs: int) -> bytes:
    """The file of a warehouse with nothing but the history of ``FakeSite.learn``, as hundreds of tests need it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "helios.db")
        with Warehouse.open(put_empty_database(file)) as warehouse:
            load_history(warehouse, now, jobs)
        return file.read_bytes()


def load_history(warehouse: Warehouse, now: datetime, jobs: int) -> None:
    """Load so many jobs of alice and of bob that ended before now."""
    rows = [
        a_job(
            job_id=f"{user}{n}",
            user=user,
            run_time_s=run_time_s,
            submitted_at=pd.Timestamp(now) - pd.Timedelta(hours=jobs + 20 - n),
        )
        for user, run_time_s in (("alice", 60.0), ("bob", 50_000.0))
        for n in range(jobs)
    ]
    warehouse.load([a_batch(*rows)], cluster="dev", path="sacct", sha256="1", format="sacct", timezone="UTC")


class FakeSite:
    """A :class:`JobController` on a :class:`FakeCluster`, with a history of alice's short and bob's long jobs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.cluster = FakeCluster(name="dev")
        chosen = {
            "database": {"url": put_empty_database(folder / "helios.db")},
            "control": {"state_folder": str(folder / "state")},
        }
        self.settings = Settings.model_validate(chosen | settings)
        self.folder = folder
        self.controller = "ctl since monday"
        self.skew_s: float | None = 0.0
        self.cycles = self.another()

    def another(self, **settings: Any) -> JobController:
        """Return the same Helios after a restart, or with other settings another one."""
        plain = self.settings.model_dump()
        for section, keys in settings.items():
            plain[section] = plain[section] | keys
        return JobController(self.live_cluster(), Settings.model_validate(plain), clock=lambda: self.cluster.now)

    def live_cluster(self) -> LiveCluster:
        return LiveCluster(
            name="dev",
            cluster=self.cluster,
            accounting=AccountingSource(
                jobs=lambda start, end, path: None, node_events=lambda start, end: NODE_EVENTS.empty()
            ),
            controller=lambda: self.controller,
            clock_skew_s=lambda: self.skew_s,
            site_factor=self.cluster.site_factor,
            time_min=None,
            without_helios=lambda queue: np.asarray(queue["priority"] - queue["urgency"].map(self.cluster.site_factor)),
        )

    @property
    def url(self) -> str:
        return self.settings.database.url

    def warehouse(self) -> Warehouse:
        return Warehouse.open(self.url)

    def learn(self, *, jobs: int = 40) -> None:
        """Load a history that ended before now, and say that it was read."""
        file = self.folder / "helios.db"
        if self.url == f"sqlite:///{file}" and file.read_bytes() == empty_database():
            file.write_bytes(learnt_database(self.cluster.now, jobs))
        else:
            with self.warehouse() as warehouse:
                load_history(warehouse, self.cluster.now, jobs)
        self.read()

    def put_promoted(self, *, damaged: bool = False) -> ModelRecord:
        """Train a model on 300 jobs and put it in charge; damaged: cut short, so that it cannot be read."""
        began = self.cluster.now - timedelta(days=9)
        jobs = [a_job(job_id=f"past{n}", submitted_at=began + timedelta(minutes=n)) for n in range(300)]
        record = to_record(train(a_batch(*jobs).jobs, cluster="dev"), trained_at=self.cluster.now)
        kept = replace(record, artifact=record.artifact[:-9]) if damaged else record
        with self.warehouse() as warehouse:
            warehouse.add_model(kept)
        return kept

    def read(self) -> None:
        """Say that the history was read until now."""
        now = self.cluster.now
        with self.warehouse() as warehouse:
            warehouse.add_coverage(
                "dev", source=JOBS_READ, started_at=now - timedelta(days=1), ended_at=now, read_at=now
            )
