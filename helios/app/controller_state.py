"""The part of a controller that all domains share.

- the controller, which builds and runs a cycle,
- the ledgers of cycles without a database,
- the locks on the state folder, and the identity of this process,
- the controller's state between cycles, and the notes that kill switches leave,
- the results of cycles, and the tasks that the daemon calls.

The daemon receives its tasks as callables instead of importing use cases. So a test can drive it with fakes, and a use
case does not know that a scheduler calls it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from uuid import uuid4

import pandas as pd

from helios.actions import Result
from helios.app.explain_socket import Explain
from helios.app.live_cluster import LiveCluster
from helios.app.modes import Pause, current_modes, is_paused, is_paused_here
from helios.app.services import configured_services
from helios.choices import Domain
from helios.config import Settings
from helios.control import ActiveService, ControllerState, Cycle, NodeControllerState, Preconditions, ServiceMode
from helios.control.cycle import ControlDomain
from helios.control.observed import Observation
from helios.control.report import DomainReport
from helios.errors import HeliosError, MemoryDamaged, NoSuchCluster, WarehouseUnavailable
from helios.model import Mode, Snapshot
from helios.ports import Ledger
from helios.private_files import OWN, make_folder, open_private, write_private
from helios.report.nodes import SpareNodes
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE

NIGHTLY_LEVELS = "study levels"
"""Name under which the warehouse keeps the values of the last nightly study."""

Breaker = Literal["closed", "half-open", "open"]

# Processes with one state folder share one lease, so only these locks keep their cycles and daemons apart. They are
# flock locks, which the kernel releases when the process ends. Only the owner can open the files, because whoever can
# open one can also hold its lock.
LOCK = "cycle.lock"
LOCK_OF_NODES = "nodes.lock"
IDENTITY = "identity"
BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_NUMBER = uuid4().hex
_NUMBERS_READ: dict[Path, str] = {}
"""Numbers by folder, by which a process still knows its own lease once the folder cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTally:
    """Number of jobs of one service that ended with one result.

    Attributes
    ----------
    service : str
        Name in the configuration; ``helios`` for control itself.
    mode : str
        A Mode, or ``paused``.
    result : Result
    jobs : int
        Their number, of nodes in a cycle on nodes.
    """

    service: str
    mode: str
    result: Result
    jobs: int

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise ValueError(f"the tally of {self.service} counts {self.jobs} jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSummary:
    """Result of one cycle, for logs, health and metrics.

    Attributes
    ----------
    suspended : tuple of str
        Why nothing was done, for a person; empty where the services were called.
    tallies : tuple of CycleTally
        Number of requested changes by service, mode and result.
    seconds : float
        How long the cycle took.
    modes : mapping of str to Mode
        The mode of each service.
    breaker : str
        State of the circuit breaker.
    lease_held : bool
        False where another Helios holds the lease, and this one is a standby.
    notes : tuple of str
        Further messages for the operator. The daemon logs each once.
    problem : str
        What prevented the cycle, such as a cluster that cannot be reached; the cycle then counts as failed. Empty where
        the cycle ran, even if it decided to do nothing.
    """

    suspended: tuple[str, ...] = ()
    tallies: tuple[CycleTally, ...] = ()
    seconds: float
    modes: Mapping[str, Mode] = field(default_factory=dict)
    breaker: Breaker = "closed"
    lease_held: bool = True
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSummary(DomainSummary):
    """Result of one cycle on jobs.

    Attributes
    ----------
    pending, running : int
        Jobs in the queue.
    acted : int
        Jobs changed on the cluster; 0 in shadow mode.
    predictions : int
        Run times predicted for this cycle.
    history_read_at : datetime, optional
        Aware; up to when the cluster's history is known. None where it was never read.
    model_trained_at : datetime, optional
        Aware; None where there is no model.
    """

    pending: int
    running: int
    acted: int
    predictions: int = 0
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None

    def line(self) -> str:
        """Return the cycle in one line of text."""
        counts = f"{self.pending} pending, {self.running} running, {self.seconds:.1f} s"
        if self.problem:
            return f"no cycle: {self.problem}"
        if self.suspended:
            return f"{counts}; nothing is done: {'; '.join(self.suspended)}"
        changes = ", ".join(
            f"{tally.service} ({tally.mode}) {tally.result.value} {tally.jobs}" for tally in self.tallies if tally.jobs
        )
        return f"{counts}; {changes or 'nothing proposed'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCycleSummary(DomainSummary):
    """Result of one cycle on nodes.

    Its tallies count nodes.

    Attributes
    ----------
    nodes : mapping of str to int
        Number of nodes by state: busy, idle, asleep, falling asleep, waking, out of service.
    by_helios : int
        Nodes that Helios put to sleep, also those that still fall asleep.
    slept, woken, weighed : int
        Nodes powered down, powered up, and given back their weight in this cycle.
    protected : str
        Why nothing is powered down until a person clears it; empty where power-down is allowed.
    quarantined : int
        Nodes that failed to wake and are left alone until a person clears them.
    spare : SpareNodes, optional
        Rules by which nodes stay awake, and what came of them. None where no service has one.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    by_helios: int = 0
    slept: int = 0
    woken: int = 0
    weighed: int = 0
    protected: str = ""
    quarantined: int = 0
    spare: SpareNodes | None = None

    @property
    def acted(self) -> int:
        """Number of nodes that were changed."""
        return self.slept + self.woken + self.weighed

    def line(self) -> str:
        """Return the cycle in one line of text."""
        if self.problem:
            return f"no cycle on nodes: {self.problem}"
        counts = ", ".join(f"{number} {state}" for state, number in self.nodes.items() if number) or "no nodes"
        counts = f"{counts}, {self.seconds:.1f} s"
        if self.suspended:
            return f"{counts}; nothing is done: {'; '.join(self.suspended)}"
        counts_by_change = [
            ("put to sleep", self.slept),
            ("woken", self.woken),
            ("given back their weight", self.weighed),
        ]
        changes = ", ".join(f"{number} {what}" for what, number in counts_by_change if number) or "nothing to change"
        return f"{counts}; {changes}{f'; PROTECTED: {self.protected}' if self.protected else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOperations:
    """Tasks of the daemon, each bound to its configuration.

    Each returns one line for the log (empty where nothing is worth one) and raises HeliosError when it could not do its
    work. An exception ends that run only. ``cycle``, ``nodes``, ``hook`` and ``release`` never run at the same time.
    ``ingest`` and ``nightly`` run in other threads at the same time.

    Attributes
    ----------
    ingest : callable, optional
        Read the jobs that ended since the last reading. None where another process does.
    cycle : callable, optional
        Run one cycle on jobs. None where no service of this process acts on jobs.
    hook : callable
        Publish the priority hook's table, or remove it where it must not be; called after each reading and each night.
    nightly : callable
        Train, evaluate and report.
    release : callable
        Given the reason, revert everything that Helios set, the hook's table too, and verify that nothing is left.
        Idempotent. It raises when something is left or cannot be verified.
    nodes : callable, optional
        Run one cycle on nodes. None where no service of this process acts on nodes.
    levels : callable
        Return the values of the last nightly report by name, and those that the wings measure now.
    observe : callable
        Queue the notices that a cycle causes. It neither waits nor fails.
    notify : callable, optional
        Send the notices that are due. None where nobody gets notices. It runs in a thread of its own.
    explain : callable, optional
        Return what is known of a job, for ``helios why``. None where this process does not act on jobs. It runs in a
        thread of its own.
    """

    ingest: Callable[[], str] | None
    cycle: Callable[[], CycleSummary] | None
    hook: Callable[[], str]
    nightly: Callable[[], str]
    release: Callable[[str], str]
    nodes: Callable[[], NodeCycleSummary] | None = None
    levels: Callable[[], Mapping[str, float]] = dict
    observe: Callable[[CycleSummary | NodeCycleSummary], None] = lambda _: None
    notify: Callable[[], str] | None = None
    explain: Explain | None = None


def error_kind(line: str) -> str:
    """Return a line with its numbers replaced.

    Then waits of 30.1 s and 30.2 s are the same problem.
    """
    return re.sub(r"\d[\d.,]*", "#", line)


@contextmanager
def open_controller_warehouse(url: str) -> Iterator[Warehouse | HeliosError]:
    """Open the warehouse, or yield the error that prevented it."""
    try:
        warehouse = Warehouse.open(url)
    except HeliosError as problem:
        yield problem
        return
    with warehouse:
        yield warehouse


class ReadOnlyLedger:
    """Ledger that records nothing, for a planned cycle."""

    def __init__(self, applied_changes: pd.DataFrame) -> None:
        self._applied_changes = applied_changes

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        """Grant the lease without recording it."""
        return 0

    def release(self, *, holder: str) -> None:
        """Do nothing."""

    def applied_changes(self) -> pd.DataFrame:
        """Return the applied changes given at construction."""
        return self._applied_changes

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Do nothing."""


class UnavailableLedger:
    """Ledger that cannot be reached.

    Every method raises. A release works without a ledger, since it finds Helios' changes on the cluster.
    """

    def __init__(self, problem: HeliosError) -> None:
        self._problem = problem

    def acquire(self, *_: Any, **__: Any) -> Any:
        """Raise the error that made the ledger unavailable."""
        raise self._problem

    release = applied_changes = record = acquire


class CycleUnderWay(HeliosError):
    """Another process of this Helios is running a cycle."""


class DaemonRuns(HeliosError):
    """Another daemon runs with this state folder for the same domain."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: nothing was started, systemd tries again, and nothing needs to be reverted."""


@contextmanager
def hold_cycle_lock(folder: Path, *, within_s: float = 0.0, lock: str = LOCK) -> Iterator[None]:
    """Prevent cycles of other processes that share this state folder.

    Parameters
    ----------
    within_s : float
        How long to wait for the end of a running cycle, s.
    lock : str
        Name of the lock file. Job cycles and node cycles have different ones and do not wait for each other.

    Raises
    ------
    CycleUnderWay
        Another process is still running a cycle.
    HeliosError
        The folder cannot be written.
    """
    with hold_lock(folder / lock, within_s=within_s) as other:
        if other is not None:
            raise CycleUnderWay(
                f"Another process{other} is running a cycle on this machine just now.",
                hint=f"Try again in a moment. If it stays so, see who holds {folder / lock}: lslocks",
            )
        yield


@contextmanager
def hold_daemon_lock(folder: Path, *, domains: Collection[Domain]) -> Iterator[None]:
    """Prevent a second daemon with this state folder for ``domains``.

    Raises
    ------
    DaemonRuns
        Another one runs.
    HeliosError
        The folder cannot be written.
    """
    with ExitStack() as stack:
        for domain in sorted(domains):
            other = stack.enter_context(hold_lock(folder / f"daemon.{domain}.lock"))
            if other is not None:
                raise DaemonRuns(
                    f"Another helios daemon{other} acts on {domain} with the state folder {folder}.",
                    hint="Nothing was done. Stop that one, or give this one a state folder of its own.",
                )
        yield


def process_identity(folder: Path) -> str:
    """Return an identifier for this state folder, machine and boot.

    Host names and paths are the same on copies of a machine. A random number kept in the folder distinguishes machines
    that share a name. The boot id distinguishes copies of the folder, and machines that share it on a network file
    system.
    """
    try:
        file = folder / IDENTITY
        if not file.exists():
            make_folder(folder)
            temporary = folder / f".{IDENTITY}.{uuid4().hex}"
            write_private(temporary, f"{uuid4().hex}\n".encode(), mode=OWN, lasting=True)
            try:
                with suppress(FileExistsError):  # another process created it first
                    os.link(temporary, file)
            finally:
                temporary.unlink()
        number = _NUMBERS_READ[folder] = file.read_text(encoding="ascii", errors="replace")
    except OSError:
        number = _NUMBERS_READ.get(folder, _PROCESS_NUMBER)  # without a number it cannot run a cycle either
    boot = BOOT.read_text(encoding="ascii") if BOOT.exists() else ""
    return hashlib.sha256(f"{boot} {number}".encode()).hexdigest()[:16]


Memory = TypeVar("Memory", ControllerState, NodeControllerState)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStateStore(Generic[Memory]):
    """State of one domain on one cluster, kept between cycles.

    Attributes
    ----------
    kind : type
        Class of the state.
    cluster : str
        The cluster's name.
    folder : Path
        Where a kill switch without a database leaves its note.
    memory, released : str
        Keys in the warehouse of the state, and of the note that a kill switch reverted everything outside of a cycle.
    released_file : str
        Name of the file with that note, in the folder.
    """

    kind: type[Memory]
    cluster: str
    folder: Path
    memory: str
    released: str
    released_file: str

    def read(self, warehouse: Warehouse) -> Memory:
        """Return the stored state, or a fresh one where none is stored.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            It cannot be read.
        """
        with suppress(NoSuchCluster):
            if text := warehouse.remembered(self.cluster, self.memory):
                return self.kind.from_json(text)
        return self.kind()

    def read_or_problem(
        self, warehouse: Warehouse | HeliosError, *, paused: Callable[[], bool]
    ) -> tuple[Memory, Warehouse | HeliosError]:
        """Return the stored state and the warehouse.

        Where the state cannot be read, return a fresh state, and the error in place of the warehouse. Without a
        warehouse there is no lease, so that the cycle changes nothing.

        Raises
        ------
        MemoryDamaged
            The stored state is damaged and Helios is not paused.
        """
        if isinstance(warehouse, HeliosError):
            return self.kind(), warehouse  # without it there is no lease, and nothing is changed
        try:
            return self.read(warehouse), warehouse
        except WarehouseUnavailable as problem:
            return self.kind(), problem
        except MemoryDamaged as problem:
            if not paused():
                raise
            return self.kind(), problem  # a pause reverts everything, whatever else is damaged

    def write(self, warehouse: Warehouse, memory: Memory, *, at: datetime) -> None:
        """Store the state in the warehouse."""
        warehouse.remember(self.cluster, self.memory, memory.to_json(), at=at)

    def reverted_by(self, warehouse: Warehouse | HeliosError) -> dict[str, str]:
        """Return the kill switches that reverted everything outside of a cycle.

        Keys are the file or the warehouse key with the note, values the name of the kill switch.
        """
        notes = {}
        if os.path.lexists(self.folder / self.released_file):
            notes[self.released_file] = "helios-release.sh"
        if not isinstance(warehouse, HeliosError):
            with suppress(HeliosError):
                notes[self.released] = warehouse.remembered(self.cluster, self.released) or ""
        return {location: name for location, name in notes.items() if name}

    def forget(self, warehouse: Warehouse, notes: Mapping[str, str], *, at: datetime) -> None:
        """Remove the notes of kill switches that a cycle has obeyed."""
        if self.released in notes:
            warehouse.remember(self.cluster, self.released, "", at=at)
        if self.released_file in notes:
            with suppress(OSError):
                (self.folder / self.released_file).unlink(missing_ok=True)


@contextmanager
def between_cycles(folder: Path, *, within_s: float, lock: str) -> Iterator[tuple[str, ...]]:
    """Prevent cycles of this machine's other processes, and yield warnings.

    If a running cycle does not end within ``within_s``, go on with a warning that it may still set something.
    """
    warnings: tuple[str, ...] = ()
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_cycle_lock(folder, within_s=within_s, lock=lock))
        except HeliosError as problem:
            warnings = (f"what a cycle that is under way sets is reverted in the next one: {problem.message}",)
        yield warnings


def modes_or_off(
    modes: Callable[[], dict[str, ServiceMode]], *, folder: Path, services: Collection[str]
) -> dict[str, ServiceMode]:
    """Return the modes that were set.

    If they cannot be read during a pause, every service is off.

    Raises
    ------
    HeliosError
        They cannot be read, and there is no pause file.
    """
    try:
        return modes()
    except HeliosError:
        if not is_paused_here(folder):
            raise
        return {name: ServiceMode(mode=Mode.OFF) for name in services}


def cycle_tallies(counts: Mapping[str, Mapping[Result, int]], modes: Mapping[str, ServiceMode]) -> Iterator[CycleTally]:
    """Yield how many actions of each service ended with each result."""
    for service, by_result in counts.items():
        mode = modes[service].mode if service in modes else Mode.ACTIVE
        for result, number in by_result.items():
            yield CycleTally(service=service, mode=mode.value, result=result, jobs=number)


def read_until(warehouse: Warehouse, cluster: str) -> datetime | None:
    """Return when the cluster's live history was last read, or None."""
    with suppress(NoSuchCluster):
        coverage = warehouse.coverage(cluster)
        ends = coverage.loc[coverage["source"] == LIVE_SOURCE, "ended_at"]
        return ends.iloc[-1].to_pydatetime() if len(ends) else None
    return None


def now_utc() -> datetime:
    """Return the time by the machine's clock."""
    return datetime.now(UTC)


class Controller(Generic[Memory]):
    """Controller of one domain of one cluster.

    What must outlive the process is in the warehouse and in the undo files.

    Parameters
    ----------
    site : LiveCluster
        The cluster.
    settings : Settings
        The configuration in force.
    clock : callable
        Returns the time, aware.

    Attributes
    ----------
    domain : Domain
        What it acts on.
    lock : str
        Name of the lock file of its cycles.
    kind, memory, released, released_file
        As in :class:`ControllerStateStore`.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A service of the configuration cannot be made with these options.
    """

    domain: Domain
    lock: str
    kind: type[Memory]
    memory: str
    released: str
    released_file: str

    def __init__(self, site: LiveCluster, settings: Settings, *, clock: Callable[[], datetime]) -> None:
        self.site, self.settings, self.clock = site, settings, clock
        self.folder = Path(settings.control.state_folder)
        self.store: ControllerStateStore[Memory] = ControllerStateStore(
            kind=self.kind,
            cluster=site.name,
            folder=self.folder,
            memory=self.memory,
            released=self.released,
            released_file=self.released_file,
        )
        self.holder = lease_holder(settings)
        self._accepted: Observation | None = None
        self._doubted: Observation | None = None
        self.services = configured_services(settings, domain=self.domain)

    def modes(self) -> dict[str, ServiceMode]:
        """Return the mode of each service as it was set last.

        If the warehouse cannot be read and there is a pause file, every service is off.

        Raises
        ------
        HeliosError
            The modes cannot be read, and there is no pause file.
        """
        return modes_or_off(
            lambda: current_modes(self.settings.database.url, self.site.name, self.services),
            folder=self.folder,
            services=self.services,
        )

    def pause(self) -> Pause | None:
        """Return who paused Helios, None if nobody did."""
        return is_paused(self.settings.database.url, self.site.name, self.folder)

    def remembered(self) -> Memory:
        """Return the controller's state after the last cycle that led.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            It cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            return self.store.read(warehouse)

    @contextmanager
    def begin_cycle(self) -> Iterator[tuple[Memory, Warehouse | HeliosError, dict[str, str]]]:
        """Hold the cycle lock and yield a cycle's inputs.

        These are the controller's state, the warehouse or why there is none, and the notes of kill switches. A pause
        is obeyed even where the lock cannot be written.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_cycle_lock(self.folder, lock=self.lock))
            except CycleUnderWay:
                raise
            except HeliosError:
                if self.pause() is None:
                    raise
            warehouse_or_error = stack.enter_context(open_controller_warehouse(self.settings.database.url))
            memory, warehouse = self.store.read_or_problem(warehouse_or_error, paused=lambda: self.pause() is not None)
            yield memory, warehouse, self.store.reverted_by(warehouse)

    def run_cycle(
        self,
        domain: ControlDomain,
        modes: Mapping[str, ServiceMode],
        *,
        ledger: Ledger,
        memory: ControllerState,
        released: str = "",
        **undo: Any,
    ) -> Any:
        """Run one cycle of the configured services in these modes.

        Parameters
        ----------
        released : str
            As in :class:`~helios.control.Preconditions`.
        **undo
            As in :class:`~helios.control.Cycle`.
        """
        cycle = Cycle(
            domain=domain,
            ledger=ledger,
            settings=self.settings,
            now=self.clock(),
            holder=self.holder,
            memory=memory,
            paused=lambda: str(self.pause() or ""),
            ended=self.site.ended,
            accepted=self._accepted,
            doubted=self._doubted,
            **undo,
        )
        services = [
            ActiveService(name=name, service=service, mode=modes[name]) for name, service in self.services.items()
        ]
        report = cycle.run(
            services, expectation=self.expect, conditions=lambda _: replace(self.conditions(), released=released)
        )
        self._accepted, self._doubted = cycle.accepted, cycle.doubted
        return report

    def summary_fields(
        self, report: DomainReport, modes: Mapping[str, ServiceMode], state: ControllerState, *, began_s: float
    ) -> dict[str, Any]:
        """Return the fields of a summary that every domain has.

        Parameters
        ----------
        began_s : float
            Start of the cycle by the monotonic clock, s.
        """
        breaker = state.breaker.state(now=self.clock(), settings=self.settings.control)
        return {
            "suspended": report.suspended,
            "tallies": tuple(cycle_tallies(report.counts, modes)),
            "seconds": time.monotonic() - began_s,
            "modes": {name: mode.mode for name, mode in modes.items()},
            "breaker": breaker.value,
            "notes": report.notes,
            "problem": "" if report.seen else "; ".join(report.suspended),
        }

    def expect(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with predictions."""
        raise NotImplementedError

    def conditions(self) -> Preconditions:
        """Return the preconditions of a cycle that hold for every domain."""
        pause = self.pause()
        if pause:  # nothing else matters, and the warehouse may be gone
            return Preconditions(paused=str(pause))
        with Warehouse.open(self.settings.database.url) as warehouse:
            read_at = read_until(warehouse, self.site.name)
        return Preconditions(
            controller=self.site.controller(), history_read_at=read_at, clock_skew_s=self.site.clock_skew_s()
        )

    def ledger(self, warehouse: Warehouse | HeliosError) -> Ledger:
        """Return the domain's ledger.

        Where the warehouse is not available, the ledger's methods raise the reason.
        """
        if isinstance(warehouse, HeliosError):
            return UnavailableLedger(warehouse)
        try:
            return warehouse.ledger(self.site.name, domain=self.domain)
        except HeliosError as problem:
            return UnavailableLedger(problem)


def lease_holder(settings: Settings) -> str:
    """Return the name under which this Helios holds the lease.

    All processes with the same state folder share it.
    """
    folder = Path(settings.control.state_folder)
    return f"{socket.gethostname()} {folder.resolve()} {process_identity(folder)}"


def other_leader(settings: Settings, cluster: str, *, now: datetime, domain: Domain = Domain.JOBS) -> str:
    """Return the other Helios that holds a domain's lease.

    Empty where there is none, the lease has expired, or the lease cannot be read.
    """
    with suppress(HeliosError), Warehouse.open(settings.database.url) as warehouse:
        lease = warehouse.lease(cluster, domain=domain)
        if lease is not None and lease["holder"] not in {None, lease_holder(settings)}:
            time_there = warehouse.time_of_leases(now).timestamp() * 1e6
            return str(lease["holder"]) if lease["expires_at"] > time_there else ""
    return ""


@contextmanager
def hold_lock(path: Path, *, within_s: float = 0.0) -> Iterator[str | None]:
    """Hold an exclusive lock on a file, and yield None.

    If another process still holds it after ``within_s``, yield that process as text, empty if it is not known.
    """
    try:
        make_folder(path.parent)
        handle = open_private(path)
    except OSError as reason:
        raise HeliosError(
            f"{path.parent} cannot be written: {reason}", hint="Set control.state_folder to a folder of Helios' own."
        ) from reason
    try:
        deadline = time.monotonic() + within_s
        while not (locked := _try_lock(handle)) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield None if locked else _holder(handle)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(handle: int) -> str:
    """Return `` (process 4711)`` for the process that holds the lock.

    Read from /proc/locks of Linux. Empty where the process is not known.
    """
    inode = f":{os.fstat(handle).st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return ""
    # A row is "7: FLOCK ADVISORY WRITE 4711 08:01:131074 0 EOF". Rows with "->" wait for the lock. Pid 0 stands for a
    # process in another container.
    pids = [row[4] for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)]
    return f" (process {pids[0]})" if pids and pids[0] not in {"0", "-1"} else ""
