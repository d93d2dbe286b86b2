"""Controller of the jobs of a live cluster.

It runs the control cycle of :mod:`helios.control` on the cluster, and connects it with the warehouse, the predictions
and the configured services.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pandas as pd

from helios.actions import JobSetting
from helios.app.controller_state import (
    LOCK,
    Controller,
    ReadOnlyLedger,
    between_cycles,
    now_utc,
    open_controller_warehouse,
    read_until,
)
from helios.app.cycle_summary import CycleSummary
from helios.app.live_cluster import LiveCluster
from helios.app.modes import RELEASED, RELEASED_FILE
from helios.app.predictions import LivePredictions, job_keys, worth_storing
from helios.changes import Key
from helios.choices import Domain
from helios.config import Settings
from helios.control import (
    ControllerState,
    CycleReport,
    JobDomain,
    Preconditions,
    ServiceMode,
    ShadowCluster,
    Tolerance,
    release,
)
from helios.errors import HeliosError
from helios.model import CYCLES, PREDICTIONS, Mode, Snapshot
from helios.warehouse import Warehouse

JOBS_MEMORY = "cycle"


class JobController(Controller[ControllerState]):
    """Controller of the jobs of one cluster."""

    domain, lock, kind = Domain.JOBS, LOCK, ControllerState
    memory, released, released_file = JOBS_MEMORY, RELEASED, RELEASED_FILE

    def __init__(self, site: LiveCluster, settings: Settings, *, clock: Callable[[], datetime] = now_utc) -> None:
        super().__init__(site, settings, clock=clock)
        self.predictions = LivePredictions(
            url=settings.database.url, cluster=site.name, last_jobs=settings.history.jobs_for_predictions
        )
        self._predicted: pd.DataFrame | None = None
        self._stored: dict[tuple[str, int], float] = {}

    def cycle(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Run one control cycle on the cluster.

        See :class:`helios.control.Cycle`. Without the warehouse nothing is changed, except that a pause by file
        still reverts everything.

        Raises
        ------
        MemoryDamaged
            The controller's stored state cannot be read; nothing was done.
        """
        began = time.monotonic()
        with self.begin_cycle() as (memory, warehouse, released):
            self._load_applied_changes(warehouse)
            self._predicted = None
            domain, why = JobDomain(self.site.cluster, self.settings), "; ".join(released.values())
            report = self.run_cycle(domain, modes, ledger=self.ledger(warehouse), memory=memory, released=why)
            return self._store_cycle(warehouse, report, seconds=time.monotonic() - began, released=released)

    def plan(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Return what ``cycle`` would do now.

        Nothing is written: it runs on a shadow cluster and a read-only ledger.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            The record of applied changes or the controller's stored state cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            applied_changes, memory = warehouse.ledger(self.site.name).applied_changes(), self.store.read(warehouse)
        self.site.load_applied_changes(applied_changes, keep=False)
        real = applied_changes[applied_changes["mode"] != Mode.SHADOW]
        applied: dict[Key, float] = {
            (JobSetting(setting), str(job)): float(value)
            for setting, job, value in zip(real["setting"], real["job_id"], real["value"], strict=True)
        }
        simulated = ShadowCluster(
            snapshot=self.site.cluster.snapshot, applied=applied, tolerance=Tolerance.of(self.settings.slurm)
        )
        self._predicted = None
        report: CycleReport = self.run_cycle(
            JobDomain(simulated, self.settings),
            modes,
            ledger=ReadOnlyLedger(applied_changes),
            memory=replace(memory, asked_at={}),
        )
        return report

    def summary(self) -> CycleSummary:
        """Run a cycle and summarise it for the daemon.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read. What a pause by file asks for was done all the same.
        """
        began, modes = time.monotonic(), self.modes()
        report = self.cycle(modes=modes)
        with Warehouse.open(self.settings.database.url) as warehouse:
            lease = warehouse.lease(self.site.name)
            read_at = read_until(warehouse, self.site.name)
        knowledge = self.predictions.knowledge
        fields = self.summary_fields(report, modes, report.memory, began_s=began)
        notes = (*report.notes, *filter(None, [knowledge.problem]))
        return CycleSummary(
            pending=report.pending,
            running=report.running,
            acted=report.acted,
            predictions=0 if self._predicted is None else len(self._predicted),
            history_read_at=read_at,
            model_trained_at=knowledge.trained_at,
            lease_held=lease is None or lease["holder"] in {None, self.holder},
            **(fields | {"notes": notes}),
        )

    def release(self, reason: str, *, hidden: bool = False) -> CycleReport:
        """Revert everything that Helios set and verify that nothing is left.

        It needs no database. See :func:`helios.control.cycle`.
        """
        within_s = self.settings.slurm.timeout_s
        with (
            between_cycles(self.folder, within_s=within_s, lock=LOCK) as disturbed,
            open_controller_warehouse(self.settings.database.url) as warehouse,
        ):
            now = self.clock()
            ledger = self.ledger(warehouse)
            self._load_applied_changes(warehouse)
            report = release(
                cluster=self.site.cluster,
                ledger=ledger,
                now=now,
                holder=self.holder,
                reason=reason,
                hidden=hidden,
            )
            report = replace(report, notes=(*report.notes, *disturbed))
            if report.recorded or isinstance(warehouse, HeliosError):
                return report
            try:  # another Helios holds the lease; what a person did is audited all the same
                warehouse.add_decisions(self.site.name, report.decisions)
                warehouse.remember(self.site.name, RELEASED, f"{reason} ({self.holder})", at=now)
            except HeliosError:
                return report
        return replace(report, recorded=True)

    def _load_applied_changes(self, warehouse: Warehouse | HeliosError) -> None:
        """Give the cluster the record of applied changes.

        Changes of another Helios that led before are recorded nowhere else on this machine.
        """
        with suppress(HeliosError):
            self.site.load_applied_changes(self.ledger(warehouse).applied_changes(), keep=True)

    def expect(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with predictions of run times."""
        expected = self.predictions(snapshot)
        self._predicted = expected.pending
        return expected

    def conditions(self) -> Preconditions:
        """Return the preconditions of a cycle, with those about the model."""
        conditions = super().conditions()
        if conditions.paused:
            return conditions
        knowledge = self.predictions.knowledge
        return replace(conditions, model_trained_at=knowledge.trained_at, model_problem=knowledge.problem)

    def _store_cycle(
        self,
        warehouse: Warehouse | HeliosError,
        report: CycleReport,
        *,
        seconds: float,
        released: Mapping[str, str],
    ) -> CycleReport:
        """Store the controller's state, the figures of the cycle and its predictions.

        A failure to store them is a note in the report, not a failure of the cycle.
        """
        try:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            if report.leads:  # a standby must not overwrite the leader's state
                self.store.write(warehouse, report.memory, at=report.taken_at)
            if report.leads and report.recorded and not report.suspended:
                self.store.forget(warehouse, released, at=report.taken_at)
            if report.leads and report.seen:  # without a snapshot its figures say nothing of the queue
                warehouse.add_cycles(self.site.name, cycles_frame(report, seconds=seconds))
            self._keep_predictions(warehouse, report.taken_at)
        except HeliosError as problem:
            return replace(report, notes=(*report.notes, f"this cycle could not be stored: {problem.message}"))
        return report

    def _keep_predictions(self, warehouse: Warehouse, made_at: datetime) -> None:
        if self._predicted is None or self._predicted.empty:
            return
        # A job that never starts keeps its submission in the queue for years: only what is new is looked up.
        jobs = job_keys(self._predicted)
        unknown = [job not in self._stored for job in jobs]
        if any(unknown):
            found = warehouse.predictions_of(self.site.name, self._predicted.loc[unknown, "submitted_at"])
            self._remember(found)  # by the time they were made: the newest of a job last
        fresh = worth_storing(self._predicted, self._stored)
        if len(fresh):
            names = ["job_id", "submitted_at", "restart", *PREDICTIONS.names]
            warehouse.add_predictions(self.site.name, fresh[names], made_at=made_at)
            self._remember(fresh)
        self._stored = {job: self._stored[job] for job in jobs if job in self._stored}

    def _remember(self, predictions: pd.DataFrame) -> None:
        self._stored |= dict(zip(job_keys(predictions), predictions["p50_s"].tolist(), strict=True))


def cycles_frame(report: CycleReport, *, seconds: float) -> pd.DataFrame:
    """Return a cycle as one row of ``CYCLES``."""
    row = {
        "taken_at": report.taken_at,
        "seconds": seconds,
        "pending": report.pending,
        "running": report.running,
        "gpus_pending": report.gpus_pending,
        "gpus_running": report.gpus_running,
        "acted": report.acted,
        "suspended": "\n".join(report.suspended) or None,
        "counts": report.counts_json() if report.counts else json.dumps({}),
    }
    return CYCLES.conform(pd.DataFrame([row]))
