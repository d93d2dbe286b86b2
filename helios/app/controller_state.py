"""Between the turns of a domain: what it remembers, the word of a kill switch, and what must not meet a cycle."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar
from uuid import uuid4

import pandas as pd

from helios.actions import Result
from helios.app.cycle_summary import CycleTally
from helios.app.modes import PAUSE_FILE
from helios.control import ControllerState, NodeControllerState, ServiceMode
from helios.errors import HeliosError, MemoryDamaged, NoSuchCluster, WarehouseUnavailable
from helios.model import Mode
from helios.ports import Domain, Ledger
from helios.private_files import OWN, make_folder, open_private, write_private
from helios.warehouse import Warehouse

# Ledgers that keep nothing: for a cycle that is only planned, and for one that has no database.


@contextmanager
def open_controller_warehouse(url: str) -> Iterator[Warehouse | HeliosError]:
    """Open the warehouse, or give the reason why it cannot be."""
    try:
        warehouse = Warehouse.open(url)
    except HeliosError as problem:
        yield problem
        return
    with warehouse:
        yield warehouse


def ledger_for(warehouse: Warehouse | HeliosError, cluster: str, *, domain: Domain) -> Ledger:
    """Return the ledger of a cluster's domain; where it cannot be had, one that says why."""
    if isinstance(warehouse, HeliosError):
        return UnavailableLedger(warehouse)
    try:
        return warehouse.ledger(cluster, domain=domain)
    except HeliosError as problem:
        return UnavailableLedger(problem)


class ReadOnlyLedger:
    """A ledger that keeps nothing, for a plan."""

    def __init__(self, applied_changes: pd.DataFrame) -> None:
        self._applied_changes = applied_changes

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        """Give the lease."""
        return 0

    def release(self, *, holder: str) -> None:
        """Do nothing."""

    def applied_changes(self) -> pd.DataFrame:
        """Return what it was given."""
        return self._applied_changes

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Do nothing."""


class UnavailableLedger:
    """A ledger that cannot be reached, for the one thing that goes on without: taking everything back."""

    def __init__(self, problem: HeliosError) -> None:
        self._problem = problem

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._problem

    def release(self, *, holder: str) -> None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._problem

    def applied_changes(self) -> pd.DataFrame:
        """Raise why there is no database."""
        raise self._problem

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._problem


# Keep processes that share a state folder apart, and tell them from all others.
#
# Processes of one Helios share its lease, and must not act beside each other: one takes a cycle at a time, and one
# daemon runs for each domain. The kernel ends a lock with its process. The files are the owner's alone: who can open
# one can hold it.

LOCK = "cycle.lock"
LOCK_OF_NODES = "nodes.lock"
IDENTITY = "identity"
BOOT = Path("/proc/sys/kernel/random/boot_id")
_OF_THIS_PROCESS = uuid4().hex


class CycleUnderWay(HeliosError):
    """Another process of this Helios is taking a cycle."""


class DaemonRuns(HeliosError):
    """Another daemon has this state folder and acts on the same."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: nothing was begun, systemd tries again, and nothing is reverted after it."""


@contextmanager
def hold_cycle_lock(folder: Path, *, within_s: float = 0.0, lock: str = LOCK) -> Iterator[None]:
    """Keep other processes of this Helios, which share its lease, from taking a cycle meanwhile.

    Parameters
    ----------
    within_s : float
        How long to wait for the end of a cycle that is being taken, s.
    lock : str
        Name of the lock's file: turns on jobs and on nodes do not wait for each other.

    Raises
    ------
    TurnUnderWay
        One is taking a cycle.
    HeliosError
        The folder cannot be written.
    """
    with _lock(folder / lock, within_s=within_s) as other:
        if other is not None:
            raise CycleUnderWay(
                f"Another process{other} is taking a cycle on this machine just now.",
                hint=f"Try again in a moment. If it stays so, see who holds {folder / lock}: lslocks",
            )
        yield


@contextmanager
def hold_daemon_lock(folder: Path, *, domains: Collection[Domain]) -> Iterator[None]:
    """Be the only daemon of this state folder for ``domains``.

    Raises
    ------
    DaemonRuns
        Another one runs.
    HeliosError
        The folder cannot be written.
    """
    with ExitStack() as held:
        for domain in sorted(domains):
            other = held.enter_context(_lock(folder / f"daemon.{domain}.lock"))
            if other is not None:
                raise DaemonRuns(
                    f"Another helios daemon{other} acts on {domain} with the state folder {folder}.",
                    hint="Nothing was done. Stop that one, or give this one a state folder of its own.",
                )
        yield


@contextmanager
def _lock(path: Path, *, within_s: float = 0.0) -> Iterator[str | None]:
    """Hold a lock, None; where another process keeps it all the time, say which: words, empty if it is not known."""
    try:
        make_folder(path.parent)
        handle = open_private(path)
    except OSError as reason:
        raise HeliosError(
            f"{path.parent} cannot be written: {reason}", hint="Set control.state_folder to a folder of Helios' own."
        ) from reason
    try:
        until = time.monotonic() + within_s
        while not (locked := _locked(handle)) and time.monotonic() < until:
            time.sleep(0.05)
        yield None if locked else _holder(handle)
    finally:
        os.close(handle)


def process_identity(folder: Path) -> str:
    """Return a word that only processes with this state folder on this machine have, until it boots again.

    Host names and paths are the same on copies of a machine. A random number that is kept in the folder tells machines
    apart that only have the same names; the boot's tells a copy of the folder, or one on a network file system.
    """
    try:
        number = _number_kept_in(folder)
    except OSError:
        number = _OF_THIS_PROCESS  # who cannot write there takes no cycle either
    boot = BOOT.read_text(encoding="ascii") if BOOT.exists() else ""
    return hashlib.sha256(f"{boot} {number}".encode()).hexdigest()[:16]


def _number_kept_in(folder: Path) -> str:
    file = folder / IDENTITY
    if not file.exists():
        make_folder(folder)
        fresh = folder / f".{IDENTITY}.{uuid4().hex}"
        write_private(fresh, f"{uuid4().hex}\n".encode(), mode=OWN, lasting=True)
        try:
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, file)
        finally:
            fresh.unlink()
    return file.read_text(encoding="ascii", errors="replace")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(handle: int) -> str:
    """Return `` (process 4711)`` of who holds the lock, as Linux tells in /proc/locks; empty: it does not."""
    inode = f":{os.fstat(handle).st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return ""
    # 7: FLOCK ADVISORY WRITE 4711 08:01:131074 0 EOF; a row with -> waits for the lock, pid 0 is of another container.
    pids = [row[4] for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)]
    return f" (process {pids[0]})" if pids and pids[0] not in {"0", "-1"} else ""


Memory = TypeVar("Memory", ControllerState, NodeControllerState)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStateStore(Generic[Memory]):
    """What one domain keeps of a cluster from one cycle to the next.

    Attributes
    ----------
    kind : type
        Of its memory.
    cluster : str
        The cluster's name.
    folder : Path
        Where a kill switch that has no database leaves word.
    memory, released : str
        Names under which the warehouse has its memory, and who took everything back outside of cycles.
    released_file : str
        The latter, in the folder.
    """

    kind: type[Memory]
    cluster: str
    folder: Path
    memory: str
    released: str
    released_file: str

    def read(self, warehouse: Warehouse) -> Memory:
        """Return what control remembers.

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
        """Return what control remembers; where it cannot be read, the reason in place of the warehouse: be still.

        Raises
        ------
        MemoryDamaged
            It cannot be read, and nobody paused Helios.
        """
        if isinstance(warehouse, HeliosError):
            return self.kind(), warehouse  # without it the lease cannot be had, and nothing is done
        try:
            return self.read(warehouse), warehouse
        except WarehouseUnavailable as problem:
            return self.kind(), problem
        except MemoryDamaged as problem:
            if not paused():
                raise
            return self.kind(), problem  # a pause takes everything back whatever else is damaged

    def write(self, warehouse: Warehouse, memory: Memory, *, at: datetime) -> None:
        """Have the warehouse remember it."""
        warehouse.remember(self.cluster, self.memory, memory.to_json(), at=at)

    def taken_back_by(self, warehouse: Warehouse | HeliosError) -> dict[str, str]:
        """Return which kill switches took everything back outside of cycles, by where they left word."""
        found = {}
        if (self.folder / self.released_file).exists():
            found[self.released_file] = "helios-release.sh"
        if not isinstance(warehouse, HeliosError):
            with suppress(HeliosError):
                found[self.released] = warehouse.remembered(self.cluster, self.released) or ""
        return {where: who for where, who in found.items() if who}

    def forget(self, warehouse: Warehouse, taken_back: Mapping[str, str], *, at: datetime) -> None:
        """Remove the word of these kill switches: a cycle has gone by it."""
        if self.released in taken_back:
            warehouse.remember(self.cluster, self.released, "", at=at)
        if self.released_file in taken_back:
            with suppress(OSError):
                (self.folder / self.released_file).unlink(missing_ok=True)


@contextmanager
def between_cycles(folder: Path, *, within_s: float, lock: str) -> Iterator[tuple[str, ...]]:
    """Keep this machine's cycles away meanwhile; where one does not end in time, say so instead of waiting on."""
    disturbed: tuple[str, ...] = ()
    with ExitStack() as held:
        try:
            held.enter_context(hold_cycle_lock(folder, within_s=within_s, lock=lock))
        except HeliosError as problem:
            disturbed = (f"what a cycle that is under way sets is reverted in the next one: {problem.message}",)
        yield disturbed


def modes_or_off(
    modes: Callable[[], dict[str, ServiceMode]], *, folder: Path, services: Collection[str]
) -> dict[str, ServiceMode]:
    """Return the modes that were set; where they cannot be read and a pause file is there, every service is off.

    Raises
    ------
    WarehouseUnavailable
        They cannot be read, and nobody asked for a pause.
    """
    try:
        return modes()
    except HeliosError:
        if not os.path.lexists(folder / PAUSE_FILE):
            raise
        return {name: ServiceMode(mode=Mode.OFF) for name in services}


def cycle_tallies(counts: Mapping[str, Mapping[Result, int]], modes: Mapping[str, ServiceMode]) -> Iterator[CycleTally]:
    """Return how often each service's actions ended in each way, with its mode."""
    for service, by_result in counts.items():
        mode = modes[service].mode if service in modes else Mode.ACTIVE
        for result, number in by_result.items():
            yield CycleTally(service=service, mode=mode.value, result=result, jobs=number)
