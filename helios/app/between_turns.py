"""Between the turns of an office: what it remembers, the word of a kill switch, and what must not meet a turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from helios.actions import Result
from helios.app.clockwork import Tally
from helios.app.modes import PAUSE_FILE
from helios.app.turn_lock import alone
from helios.control import ServiceMode, TurnMemory
from helios.control.nodes import NodeMemory
from helios.errors import HeliosError, MemoryDamaged, NoSuchCluster, WarehouseUnavailable
from helios.model import Mode
from helios.warehouse import Warehouse

Memory = TypeVar("Memory", TurnMemory, NodeMemory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping(Generic[Memory]):
    """What one office keeps of a cluster from one turn to the next.

    Attributes
    ----------
    kind : type
        Of its memory.
    cluster : str
        The cluster's name.
    folder : Path
        Where a kill switch that has no database leaves word.
    memory, released : str
        Names under which the warehouse has its memory, and who took everything back outside of turns.
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

    def read_or_trouble(
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
        except WarehouseUnavailable as trouble:
            return self.kind(), trouble
        except MemoryDamaged as trouble:
            if not paused():
                raise
            return self.kind(), trouble  # a pause takes everything back whatever else is damaged

    def write(self, warehouse: Warehouse, memory: Memory, *, at: datetime) -> None:
        """Have the warehouse remember it."""
        warehouse.remember(self.cluster, self.memory, memory.to_json(), at=at)

    def taken_back_by(self, warehouse: Warehouse | HeliosError) -> dict[str, str]:
        """Return which kill switches took everything back outside of turns, by where they left word."""
        found = {}
        if (self.folder / self.released_file).exists():
            found[self.released_file] = "helios-release.sh"
        if not isinstance(warehouse, HeliosError):
            with suppress(HeliosError):
                found[self.released] = warehouse.remembered(self.cluster, self.released) or ""
        return {where: who for where, who in found.items() if who}

    def forget(self, warehouse: Warehouse, taken_back: Mapping[str, str], *, at: datetime) -> None:
        """Remove the word of these kill switches: a turn has gone by it."""
        if self.released in taken_back:
            warehouse.remember(self.cluster, self.released, "", at=at)
        if self.released_file in taken_back:
            with suppress(OSError):
                (self.folder / self.released_file).unlink(missing_ok=True)


@contextmanager
def between_turns(folder: Path, *, within_s: float, lock: str) -> Iterator[tuple[str, ...]]:
    """Keep this machine's turns away meanwhile; where one does not end in time, say so instead of waiting on."""
    disturbed: tuple[str, ...] = ()
    with ExitStack() as held:
        try:
            held.enter_context(alone(folder, within_s=within_s, lock=lock))
        except HeliosError as trouble:
            disturbed = (f"what a turn that is under way sets is taken back in the next one: {trouble.fact}",)
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


def tallies_of(counts: Mapping[str, Mapping[Result, int]], modes: Mapping[str, ServiceMode]) -> Iterator[Tally]:
    """Return how often each service's actions ended in each way, with its mode."""
    for service, by_result in counts.items():
        mode = modes[service].mode if service in modes else Mode.ACTIVE
        for result, number in by_result.items():
            yield Tally(service=service, mode=mode.value, result=result, jobs=number)
