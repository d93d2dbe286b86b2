"""A table for tests: a cluster, a ledger, and services that say what they are told to; cycles follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios.actions import Action, JobSetting, Place, Reorder, SoftLimit
from helios.changes import Change
from helios.config import Control, Settings, SlurmSettings
from helios.control import ActiveService, ControllerState, Cycle, CycleReport, JobDomain, Preconditions, ServiceMode
from helios.control.observed import PendingJob, pending_jobs
from helios.control.yields import Yields, YieldStore
from helios.model import Mode, Snapshot
from helios.testing import FakeCluster, FakeLedger, a_pending_job, a_snapshot

MINUTE = timedelta(minutes=1)
ACTIVE = ServiceMode(mode=Mode.ACTIVE)
SHADOW = ServiceMode(mode=Mode.SHADOW)
OFF = ServiceMode(mode=Mode.OFF)


class Says:
    """A service that answers as it is told, or raises what it is given."""

    def __init__(self, *actions: Action, every: timedelta = MINUTE) -> None:
        self.actions: Sequence[Action] = actions
        self.every = every
        self.asked = 0
        self.raises: Exception | None = None

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        self.asked += 1
        if self.raises is not None:
            raise self.raises
        return list(self.actions)


def order(partition: str = "gpu", /, **urgencies: float) -> Reorder:
    """An order of jobs called j1, j2, ...: ``order(j1=0.5)``."""
    places = sorted(urgencies.items(), key=lambda item: -item[1])
    return Reorder(
        partition=partition,
        order=tuple(Place(job_id=job, urgency=urgency, reason=f"{job} is short") for job, urgency in places),
        reason="short jobs first",
    )


def soft_limit(job_id: str, *, minutes: float) -> SoftLimit:
    return SoftLimit(job_id=job_id, run_time=timedelta(minutes=minutes), reason="such jobs are short")


def canary(*partitions: str, percent: int | None = None) -> ServiceMode:
    return ServiceMode(mode=Mode.CANARY, partitions=partitions, percent=percent)


def with_predictions(snapshot: Snapshot) -> Snapshot:
    """Every pending job that has no prediction is expected to run a minute."""
    pending = snapshot.pending
    known = pending.assign(p50_s=pending["p50_s"].fillna(60.0), source=pd.Series("m1", pending.index, dtype="category"))
    return replace(snapshot, pending=known)


def settings(*, slurm: dict[str, Any] | None = None, **control: Any) -> Settings:
    return Settings(control=Control(**control), slurm=SlurmSettings(**(slurm or {})))


def all_is_well(now: datetime) -> Preconditions:
    return Preconditions(controller="ctl1", history_read_at=now, model_trained_at=now, clock_skew_s=0.0)


@dataclass(kw_only=True)
class Table:
    """A cluster and its ledger, turn after turn."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    ledger: FakeLedger = field(default_factory=FakeLedger)
    settings: Settings = field(default_factory=settings)
    memory: ControllerState = field(default_factory=ControllerState)
    holder: str = "helios-1"
    world: Callable[[datetime], Preconditions] = all_is_well
    expectation: Callable[[Snapshot], Snapshot] = with_predictions
    pause_asked: Callable[[], str] = lambda: ""
    store: YieldStore | None = None

    def submit(self, *job_ids: str, **columns: Any) -> None:
        for job_id in job_ids:
            self.cluster.submit(job_id=job_id, **columns)

    def cycle(self, *active_services: ActiveService, after: timedelta = MINUTE) -> CycleReport:
        """Let time pass and take a cycle; the memory goes through its text, as in life."""
        self.cluster.tick(after)
        cycle = Cycle(
            domain=JobDomain(
                self.cluster,
                self.settings,
                None if self.store is None else Yields(self.cluster, self.settings.control, self.store),
            ),
            ledger=self.ledger,
            settings=self.settings,
            now=self.cluster.now,
            holder=self.holder,
            memory=ControllerState.from_json(self.memory.to_json()),
            paused=self.pause_asked,
        )
        report: CycleReport = cycle.run(
            active_services, expectation=self.expectation, conditions=lambda snapshot: self.world(self.cluster.now)
        )
        self.memory = report.memory
        return report

    def lines(self, **wanted: str) -> list[dict[str, Any]]:
        """The lines of the ledger with these columns."""
        rows = self.ledger.decisions.astype(object).to_dict("records")
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    def applied(self, mode: str = "active") -> dict[str, float]:
        """Value by job of what stands in that mode."""
        frame = self.ledger.applied_changes()
        chosen = frame[frame["mode"] == mode]
        return dict(zip(chosen["job_id"], chosen["value"], strict=True))


def active(service: Any, *, name: str = "qssf", mode: ServiceMode = ACTIVE) -> ActiveService:
    return ActiveService(name=name, service=service, mode=mode)


def change(job_id: str = "j1", value: float = 0.5, *, partition: str = "gpu") -> Change[float]:
    return Change(
        setting=JobSetting.ORDER,
        target=job_id,
        value=value,
        reason="short",
        action="Reorder",
        partition=partition,
    )


def jobs_of(*rows: dict[str, Any]) -> dict[str, PendingJob]:
    return pending_jobs(a_snapshot(pending=[a_pending_job(**{"p50_s": 600.0} | row) for row in rows]))
