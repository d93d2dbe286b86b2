"""Controller of the jobs of a live cluster.

It runs the control cycle of :mod:`helios.control` on the cluster, and connects it with the warehouse, the predictions
and the configured services.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from helios.actions import JobSetting
from helios.app.controller_state import (
    LOCK,
    ControllerStateStore,
    ReadOnlyLedger,
    between_cycles,
    cycle_tallies,
    hold_cycle_lock,
    ledger_for,
    modes_or_off,
    open_controller_warehouse,
    process_identity,
)
from helios.app.cycle_summary import Breaker, CycleSummary
from helios.app.live_cluster import LiveCluster, configured_services
from helios.app.modes import RELEASED, RELEASED_FILE, Pause, is_paused, modes_in_force
from helios.app.predictions import LivePredictions, job_keys, worth_storing
from helios.app.sync import read_until
from helios.changes import Key
from helios.config import Settings
from helios.control import (
    ActiveService,
    BreakerState,
    ControllerState,
    CycleReport,
    Preconditions,
    ServiceMode,
    ShadowCluster,
    Tolerance,
    release,
    run_cycle,
)
from helios.errors import HeliosError
from helios.model import CYCLES, PREDICTIONS, Mode, Snapshot
from helios.ports import Cluster, Domain, Ledger
from helios.warehouse import Warehouse

MEMORY = "cycle"


def now_utc() -> datetime:
    """Return the time by the machine's clock."""
    return datetime.now(UTC)


class JobController:
    """Controller of the jobs of one cluster.

    What must outlive the process is in the warehouse.

    Parameters
    ----------
    site : LiveCluster
        The cluster.
    settings : Settings
        The configuration in force.
    clock : callable
        Returns the time, aware.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A service of the configuration cannot be made with these options.
    """

    def __init__(self, site: LiveCluster, settings: Settings, *, clock: Callable[[], datetime] = now_utc) -> None:
        self.site, self.settings, self._clock = site, settings, clock
        self.holder = lease_holder(settings)
        self.services = configured_services(settings, domain=Domain.JOBS)
        self.predictions = LivePredictions(
            url=settings.database.url, cluster=site.name, last_jobs=settings.history.jobs_for_predictions
        )
        self._folder = Path(settings.control.state_folder)
        self._keeping = ControllerStateStore(
            kind=ControllerState,
            cluster=site.name,
            folder=self._folder,
            memory=MEMORY,
            released=RELEASED,
            released_file=RELEASED_FILE,
        )
        self._predicted: pd.DataFrame | None = None
        self._stored: dict[tuple[str, int], float] = {}

    def modes(self) -> dict[str, ServiceMode]:
        """Return the mode of each service as it was set last."""
        return modes_in_force(self.settings.database.url, self.site.name, self.services)

    def pause(self) -> Pause | None:
        """Return who paused Helios, None if nobody did."""
        return is_paused(self.settings.database.url, self.site.name, self._folder)

    def remembered(self) -> ControllerState:
        """Return the controller's state after the last cycle that led.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            It cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            return self._keeping.read(warehouse)

    def cycle(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Run one control cycle on the cluster.

        See :func:`helios.control.run_cycle`. Without the warehouse nothing is changed, except that a pause by file
        still reverts everything.

        Raises
        ------
        MemoryDamaged
            The controller's stored state cannot be read; nothing was done.
        """
        began = time.monotonic()
        with hold_cycle_lock(self._folder), open_controller_warehouse(self.settings.database.url) as at_hand:
            memory, warehouse = self._keeping.read_or_problem(at_hand, paused=lambda: self.pause() is not None)
            self._know(warehouse)
            taken_back = self._keeping.taken_back_by(warehouse)
            report = self._taken(
                modes,
                cluster=self.site.cluster,
                ledger=self._ledger(warehouse),
                memory=memory,
                released="; ".join(taken_back.values()),
            )
            return self._kept(warehouse, report, seconds=time.monotonic() - began, taken_back=taken_back)

    def plan(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Return what ``cycle`` would do now.

        Nothing is written: it runs on a shadow cluster and a read-only ledger.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            The record of applied changes or the controller's stored state cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            applied_changes, memory = warehouse.ledger(self.site.name).applied_changes(), self._keeping.read(warehouse)
        self.site.know(applied_changes, keep=False)
        real = applied_changes[applied_changes["mode"] != Mode.SHADOW]
        stands: dict[Key, float] = {
            (JobSetting(setting), str(job)): float(value)
            for setting, job, value in zip(real["setting"], real["job_id"], real["value"], strict=True)
        }
        simulated = ShadowCluster(
            look=self.site.cluster.snapshot, stands=stands, tolerance=Tolerance.of(self.settings.slurm)
        )
        return self._taken(
            modes, cluster=simulated, ledger=ReadOnlyLedger(applied_changes), memory=replace(memory, asked_at={})
        )

    def _taken(
        self,
        modes: Mapping[str, ServiceMode],
        *,
        cluster: Cluster,
        ledger: Ledger,
        memory: ControllerState,
        released: str = "",
    ) -> CycleReport:
        self._predicted = None
        return run_cycle(
            active_services=[
                ActiveService(name=name, service=it, mode=modes[name]) for name, it in self.services.items()
            ],
            cluster=cluster,
            expectation=self._expect,
            ledger=ledger,
            conditions=lambda _: replace(self._conditions(), released=released),
            paused=lambda: str(self.pause() or ""),
            settings=self.settings,
            now=self._clock(),
            holder=self.holder,
            memory=memory,
        )

    def modes_for_a_cycle(self) -> dict[str, ServiceMode]:
        """Return the modes in force for the next cycle.

        If the warehouse cannot be read and there is a pause file, every service is off.

        Raises
        ------
        WarehouseUnavailable
            The modes cannot be read, and there is no pause file.
        """
        return modes_or_off(self.modes, folder=self._folder, services=self.services)

    def summary(self) -> CycleSummary:
        """Run a cycle in the modes in force and summarise it for the daemon.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read. What a pause by file asks for was done all the same.
        """
        began, modes = time.monotonic(), self.modes_for_a_cycle()
        report = self.cycle(modes=modes)
        with Warehouse.open(self.settings.database.url) as warehouse:
            lease = warehouse.lease(self.site.name)
            read_at = read_until(warehouse, self.site.name)
        knowledge = self.predictions.knowledge
        return CycleSummary(
            pending=report.pending,
            running=report.running,
            acted=report.acted,
            suspended=report.suspended,
            tallies=tuple(cycle_tallies(report.counts, modes)),
            seconds=time.monotonic() - began,
            predictions=0 if self._predicted is None else len(self._predicted),
            history_read_at=read_at,
            model_trained_at=knowledge.trained_at,
            modes={name: mode.mode for name, mode in modes.items()},
            breaker=describe_breaker(report.memory, self.settings, self._clock()),
            lease_held=lease is None or lease["holder"] in {None, self.holder},
            notes=(*report.notes, *filter(None, [knowledge.problem])),
            problem="" if report.seen else "; ".join(report.suspended),
        )

    def release(self, reason: str, *, hidden: bool = False) -> CycleReport:
        """Revert everything that Helios set and verify that nothing is left.

        It needs no database. See :func:`helios.control.release`.
        """
        within_s = self.settings.slurm.timeout_s
        with (
            between_cycles(self._folder, within_s=within_s, lock=LOCK) as disturbed,
            open_controller_warehouse(self.settings.database.url) as warehouse,
        ):
            now = self._clock()
            ledger = self._ledger(warehouse)
            self._know(warehouse)
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

    def _know(self, warehouse: Warehouse | HeliosError) -> None:
        """Give the cluster the record of applied changes.

        Changes of another Helios that led before are recorded nowhere else on this machine.
        """
        with suppress(HeliosError):
            self.site.know(self._ledger(warehouse).applied_changes(), keep=True)

    def _ledger(self, warehouse: Warehouse | HeliosError) -> Ledger:
        return ledger_for(warehouse, self.site.name, domain=Domain.JOBS)

    def _expect(self, snapshot: Snapshot) -> Snapshot:
        seen = self.predictions(snapshot)
        self._predicted = seen.pending
        return seen

    def _conditions(self) -> Preconditions:
        pause = self.pause()
        if pause:  # nothing else matters, and the warehouse may be gone
            return Preconditions(paused=str(pause))
        with Warehouse.open(self.settings.database.url) as warehouse:
            read_at = read_until(warehouse, self.site.name)
        return Preconditions(
            controller=self.site.controller(),
            history_read_at=read_at,
            model_trained_at=self.predictions.knowledge.trained_at,
            model_problem=self.predictions.knowledge.problem,
            clock_skew_s=self.site.clock_skew_s(),
        )

    def _kept(
        self,
        warehouse: Warehouse | HeliosError,
        report: CycleReport,
        *,
        seconds: float,
        taken_back: Mapping[str, str],
    ) -> CycleReport:
        """Store the controller's state, the figures of the cycle and its predictions.

        A failure to store them is a note in the report, not a failure of the cycle.
        """
        try:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            if report.leads:  # a standby must not overwrite the leader's state
                self._keeping.write(warehouse, report.memory, at=report.taken_at)
            if report.leads and report.recorded and not report.suspended:
                self._keeping.forget(warehouse, taken_back, at=report.taken_at)
            if report.leads and report.seen:  # without a snapshot its figures say nothing of the queue
                warehouse.add_cycles(self.site.name, cycles_frame(report, seconds=seconds))
            self._keep_predictions(warehouse, report.taken_at)
        except HeliosError as problem:
            return replace(report, notes=(*report.notes, f"this cycle could not be written down: {problem.message}"))
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


def lease_holder(settings: Settings) -> str:
    """Return the name under which this Helios holds the lease.

    All processes with the same state folder share it.
    """
    folder = Path(settings.control.state_folder)
    return f"{socket.gethostname()} {folder.resolve()} {process_identity(folder)}"


def refuse_other_leader(settings: Settings, cluster: str, *, now: datetime, domain: Domain = Domain.JOBS) -> str:
    """Return the other holder of a domain's lease.

    Empty where there is none, its lease has expired, or this cannot be known.
    """
    with suppress(HeliosError), Warehouse.open(settings.database.url) as warehouse:
        lease = warehouse.lease(cluster, domain=domain)
        if lease is not None and lease["holder"] not in {None, lease_holder(settings)}:
            time_there = warehouse.time_of_leases(now).timestamp() * 1e6
            return str(lease["holder"]) if lease["expires_at"] > time_there else ""
    return ""


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


def describe_breaker(memory: ControllerState, settings: Settings, now: datetime) -> Breaker:
    """Return the state of the circuit breaker as health and metrics spell it."""
    names: dict[BreakerState, Breaker] = {
        BreakerState.CLOSED: "closed",
        BreakerState.HALF_OPEN: "half-open",
        BreakerState.OPEN: "open",
    }
    return names[memory.breaker.state(now=now, settings=settings.control)]
