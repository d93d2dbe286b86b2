"""Turns on a live cluster: the other rooms put together around control's."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from helios.actions import Lever, Result
from helios.app.clockwork import Breaker, Tally, TurnSummary
from helios.app.modes import PAUSE_FILE, Pause, modes_in_force, paused
from helios.app.outlook import Outlook, worth_storing
from helios.app.reading import read_until
from helios.app.site import Site
from helios.config import Settings
from helios.control import (
    BreakerState,
    Conditions,
    Resolution,
    Seat,
    ServiceMode,
    ShadowCluster,
    TurnMemory,
    TurnReport,
    release,
    take_turn,
)
from helios.errors import HeliosError, NoSuchCluster, WarehouseUnavailable
from helios.model import PREDICTIONS, TURNS, Mode, Snapshot
from helios.ports import Cluster, Ledger, Service
from helios.services.registry import build
from helios.warehouse import Warehouse

MEMORY = "turn"
LOCK = "turn.lock"


def now_utc() -> datetime:
    """Return the time by the machine's clock."""
    return datetime.now(UTC)


class Turns:
    """Takes turns on one cluster. What must outlive the process is in the warehouse.

    Parameters
    ----------
    site : Site
        The cluster.
    settings : Settings
        The configuration in force.
    clock : callable
        Gives the time, aware.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A service of the configuration cannot be had as it is asked for.
    """

    def __init__(self, site: Site, settings: Settings, *, clock: Callable[[], datetime] = now_utc) -> None:
        self.site, self.settings, self._clock = site, settings, clock
        self.holder = holder_of(settings)
        self.services = services_of(settings)
        self.outlook = Outlook(
            url=settings.database.url, cluster=site.name, last_jobs=settings.history.jobs_for_predictions
        )
        self._predicted: pd.DataFrame | None = None

    def modes(self) -> dict[str, ServiceMode]:
        """Return the mode of each service as it was set last."""
        return modes_in_force(self.settings.database.url, self.site.name, self.services)

    def pause(self) -> Pause | None:
        """Return who paused Helios; None: nobody did."""
        return paused(self.settings.database.url, self.site.name, Path(self.settings.control.state_folder))

    def turn(self, *, modes: Mapping[str, ServiceMode]) -> TurnReport:
        """Look, ask, check, act, write down; see :func:`helios.control.take_turn`.

        Without the warehouse nothing is done, except that a pause by file still takes everything back.

        Raises
        ------
        MemoryDamaged
            What control remembers cannot be read; nothing was done.
        """
        began = time.monotonic()
        with alone(Path(self.settings.control.state_folder)), self._opened() as warehouse:
            report = self._taken(
                modes,
                cluster=self.site.cluster,
                ledger=self._ledger(warehouse),
                memory=self._memory(warehouse),
            )
            return self._kept(warehouse, report, seconds=time.monotonic() - began)

    def plan(self, *, modes: Mapping[str, ServiceMode]) -> TurnReport:
        """Return what :meth:`turn` would do now. Nothing is written: what it acts on holds nothing that could write.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            What Helios remembers cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            standings, memory = warehouse.ledger(self.site.name).standings(), self._memory(warehouse)
        real = standings[standings["mode"] != Mode.SHADOW]
        stands = {
            (Lever(lever), str(job)): float(value)
            for lever, job, value in zip(real["lever"], real["job_id"], real["value"], strict=True)
        }
        rehearsed = ShadowCluster(
            look=self.site.cluster.snapshot, stands=stands, resolution=Resolution.of(self.settings.slurm)
        )
        return self._taken(modes, cluster=rehearsed, ledger=_Draft(standings), memory=replace(memory, asked_at={}))

    def _taken(
        self, modes: Mapping[str, ServiceMode], *, cluster: Cluster, ledger: Ledger, memory: TurnMemory
    ) -> TurnReport:
        self._predicted = None
        return take_turn(
            seats=[Seat(name=name, service=it, mode=modes[name]) for name, it in self.services.items()],
            cluster=cluster,
            expectation=self._expect,
            ledger=ledger,
            conditions=lambda _: self._conditions(),
            settings=self.settings,
            now=self._clock(),
            holder=self.holder,
            memory=memory,
        )

    def modes_for_a_turn(self) -> dict[str, ServiceMode]:
        """Return the modes that were set; with the warehouse gone and a pause file there, every service is off.

        Raises
        ------
        WarehouseUnavailable
            The modes cannot be read, and nobody asked for a pause.
        """
        try:
            return self.modes()
        except HeliosError:
            if not os.path.lexists(Path(self.settings.control.state_folder) / PAUSE_FILE):
                raise
            return {name: ServiceMode(mode=Mode.OFF) for name in self.services}

    def summary(self) -> TurnSummary:
        """Take a turn in the modes that were set, and return what the daemon tells of it.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read; what a pause by file asks for was done all the same.
        """
        began, modes = time.monotonic(), self.modes_for_a_turn()
        report = self.turn(modes=modes)
        with Warehouse.open(self.settings.database.url) as warehouse:
            lease = warehouse.lease(self.site.name)
            read_at = read_until(warehouse, self.site.name)
        return TurnSummary(
            pending=report.pending,
            running=report.running,
            acted=report.acted,
            still=report.still,
            tallies=tuple(_tallies(report, modes)),
            seconds=time.monotonic() - began,
            predictions=0 if self._predicted is None else len(self._predicted),
            history_read_at=read_at,
            model_trained_at=self.outlook.knowledge.trained_at,
            modes={name: mode.mode for name, mode in modes.items()},
            breaker=_state(report.memory, self.settings, self._clock()),
            lease_held=lease is not None and lease["holder"] == self.holder,
            notes=report.notes,
            trouble="" if report.seen else "; ".join(report.still),
        )

    def release(self, reason: str) -> TurnReport:
        """Take back everything that Helios set and look whether anything is left; it needs no database.

        See :func:`helios.control.release`.
        """
        now = self._clock()
        with self._opened() as warehouse:
            ledger = self._ledger(warehouse)
            report = release(cluster=self.site.cluster, ledger=ledger, now=now, holder=self.holder, reason=reason)
            if report.recorded or isinstance(warehouse, HeliosError):
                return report
            try:  # another Helios holds the lease; what a person did stands in the audit all the same
                warehouse.add_decisions(self.site.name, report.decisions)
            except HeliosError:
                return report
        return replace(report, recorded=True)

    @contextmanager
    def _opened(self) -> Iterator[Warehouse | HeliosError]:
        """Open the warehouse, or give the reason why it cannot be."""
        try:
            warehouse = Warehouse.open(self.settings.database.url)
        except HeliosError as trouble:
            yield trouble
            return
        with warehouse:
            yield warehouse

    def _ledger(self, warehouse: Warehouse | HeliosError) -> Ledger:
        if isinstance(warehouse, HeliosError):
            return _NoLedger(warehouse)
        try:
            return warehouse.ledger(self.site.name)
        except HeliosError as trouble:
            return _NoLedger(trouble)

    def _expect(self, snapshot: Snapshot) -> Snapshot:
        seen = self.outlook(snapshot)
        self._predicted = seen.pending
        return seen

    def _conditions(self) -> Conditions:
        pause = self.pause()
        if pause:  # nothing else matters, and the warehouse may be gone
            return Conditions(paused=str(pause))
        with Warehouse.open(self.settings.database.url) as warehouse:
            read_at = read_until(warehouse, self.site.name)
        return Conditions(
            controller=self.site.controller(),
            history_read_at=read_at,
            model_trained_at=self.outlook.knowledge.trained_at,
            clock_skew_s=self.site.clock_skew_s(),
        )

    def _memory(self, warehouse: Warehouse | HeliosError) -> TurnMemory:
        text: str | None = None
        if not isinstance(warehouse, HeliosError):
            with suppress(NoSuchCluster, WarehouseUnavailable):  # without it the lease cannot be had either
                text = warehouse.remembered(self.site.name, MEMORY)
        return TurnMemory.from_json(text) if text else TurnMemory()

    def _kept(self, warehouse: Warehouse | HeliosError, report: TurnReport, *, seconds: float) -> TurnReport:
        """Write down what is not control's to write; that it cannot be is a note, not a failure of the turn."""
        try:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            if report.leads:  # a standby must not overwrite what the leader remembers
                warehouse.remember(self.site.name, MEMORY, report.memory.to_json(), at=report.taken_at)
            warehouse.add_turns(self.site.name, turns_frame(report, seconds=seconds))
            self._keep_predictions(warehouse, report.taken_at)
        except HeliosError as trouble:
            return replace(report, notes=(*report.notes, f"this turn could not be written down: {trouble.fact}"))
        return report

    def _keep_predictions(self, warehouse: Warehouse, made_at: datetime) -> None:
        if self._predicted is None or self._predicted.empty:
            return
        stored = warehouse.predictions(self.site.name, since=self._predicted["submitted_at"].min())
        fresh = worth_storing(self._predicted, stored)
        if len(fresh):
            names = ["job_id", "submitted_at", "restart", *PREDICTIONS.names]
            warehouse.add_predictions(self.site.name, fresh[names], made_at=made_at)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes of this Helios, which share its lease, from taking a turn meanwhile.

    Raises
    ------
    HeliosError
        One is taking a turn, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as reason:
        raise HeliosError(
            f"{folder} cannot be written: {reason}", remedy="Set control.state_folder to a folder of Helios' own."
        ) from reason
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            raise HeliosError(
                "Another process is taking a turn on this machine just now.", remedy="Try again in a moment."
            ) from reason
        yield


class _Draft:
    """A ledger that keeps nothing, for a plan."""

    def __init__(self, standings: pd.DataFrame) -> None:
        self._standings = standings

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        return 0

    def release(self, *, holder: str) -> None:
        pass

    def standings(self) -> pd.DataFrame:
        return self._standings

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:
        pass


class _NoLedger:
    """A ledger that cannot be reached, for the one thing that goes on without: taking everything back."""

    def __init__(self, trouble: HeliosError) -> None:
        self._trouble = trouble

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        raise self._trouble

    def release(self, *, holder: str) -> None:  # noqa: ARG002 - a Ledger's
        raise self._trouble

    def standings(self) -> pd.DataFrame:
        raise self._trouble

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:  # noqa: ARG002 - a Ledger's
        raise self._trouble


def holder_of(settings: Settings) -> str:
    """Return the name under which this Helios holds the lease: the same after a restart, another on another host."""
    return f"{socket.gethostname()} {settings.control.state_folder}"


def services_of(settings: Settings) -> dict[str, Service]:
    """Return the services of the configuration, in its order.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        One cannot be had as it is asked for.
    """
    return {name: build(name, options) for name, options in settings.services.items()}


def turns_frame(report: TurnReport, *, seconds: float) -> pd.DataFrame:
    """Return a turn as one row of ``TURNS``."""
    row = {
        "taken_at": report.taken_at,
        "seconds": seconds,
        "pending": report.pending,
        "running": report.running,
        "gpus_pending": report.gpus_pending,
        "gpus_running": report.gpus_running,
        "acted": report.acted,
        "still": "\n".join(report.still) or None,
        "counts": report.counts_json() if report.counts else json.dumps({}),
    }
    return TURNS.conform(pd.DataFrame([row]))


def _tallies(report: TurnReport, modes: Mapping[str, ServiceMode]) -> Iterator[Tally]:
    for service, counts in report.counts.items():
        mode = modes[service].mode if service in modes else Mode.ACTIVE
        for result, jobs in counts.items():
            yield Tally(service=service, mode=mode.value, result=Result(result), jobs=jobs)


def _state(memory: TurnMemory, settings: Settings, now: datetime) -> Breaker:
    names: dict[BreakerState, Breaker] = {
        BreakerState.CLOSED: "closed",
        BreakerState.HALF_OPEN: "half-open",
        BreakerState.OPEN: "open",
    }
    return names[memory.breaker.state(now=now, settings=settings.control)]
