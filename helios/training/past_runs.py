"""Runs of trials in the warehouse, from which later pools forecast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

from helios.errors import HeliosError
from helios.model.trial_runs import TrialRun
from helios.training.model import Device
from helios.training.pool.provenance import own_name
from helios.training.pool.state import FILE, read_runs
from helios.training.pool.sweep import TrainingSweep, program

KEEP_S = 180.0
"""How often the runs of a running pool are stored, s."""
COST = 100
"""One part in so many of a core goes into it at most."""
LAST_S = 60.0
"""How long a pool waits at its end for what is being stored, s."""


def keep_runs(database: str, folders: Sequence[Path]) -> list[int]:
    """Store the runs of pools in the warehouse.

    Returns
    -------
    list of int
        How many runs of each pool were new.

    Raises
    ------
    FileUnreadable
        A folder is not of a pool.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - pandas takes a second, and most pools have no warehouse

    runs = [read_runs(folder) for folder in folders]
    with Warehouse.open(database) as warehouse:
        return [warehouse.add_trial_runs(pool_runs, user=own_name()) for pool_runs in runs]


def keep_if_possible(database: str | None, folder: Path) -> str:
    """Store the runs of a pool where there is a warehouse.

    Returns
    -------
    str
        Why they could not be stored. Empty where they could, or there is no warehouse.
    """
    try:
        if database is not None and _has_warehouse(database):
            keep_runs(database, [folder])
    except HeliosError as reason:
        return f"What trials used is kept in {folder} alone, since the warehouse failed: {reason.message}"
    return ""


@contextmanager
def keep_while_running(database: str | None, folders: Sequence[Path]) -> Iterator[None]:
    """Store the runs of pools now and then while the block goes on.

    What fails is left to the end of the pool, which tells why. Nobody waits for a slow database until then.
    """
    ended = Event()

    def keep() -> None:
        pause_s = KEEP_S
        while not ended.wait(pause_s):
            began_s = monotonic()
            for folder in folders:
                with suppress(Exception):  # the pool runs on, whatever it is
                    keep_if_possible(database, folder)
            pause_s = max(KEEP_S, COST * (monotonic() - began_s))

    thread = Thread(target=keep, name="keep runs", daemon=True)
    if database is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if database is not None:
            thread.join(LAST_S)


def known_runs(database: str | None, program: str) -> tuple[list[TrialRun], str]:
    """Return the user's earlier runs of a program.

    Returns
    -------
    runs : list of TrialRun
    problem : str
        Why they cannot be read. Empty where they can, or there is no warehouse.
    """
    try:
        if database is not None and _has_warehouse(database):
            from helios.warehouse import Warehouse  # noqa: PLC0415 - see keep_runs

            with Warehouse.open(database) as warehouse:
                return warehouse.trial_runs(user=own_name(), program=program), ""
    except HeliosError as reason:
        return [], f"Earlier trials are not known, since the warehouse cannot be read: {reason.message}"
    return [], ""


def runs_of_folder(folder: Path, program: str) -> list[TrialRun]:
    """Return the runs of a program in a pool's folder.

    Both may have been moved since, so that the name of the file counts.

    Raises
    ------
    FileUnreadable
        The folder is not of a pool.
    """
    name = Path(program).name
    return [replace(run, program=program) for run in read_runs(folder) if Path(run.program).name == name]


def earlier_runs(program: str, folders: Iterable[Path], database: str | None) -> tuple[list[TrialRun], str]:
    """Return a program's runs in the warehouse and in pools.

    With them comes why the warehouse cannot be read, as of :func:`known_runs`.

    Raises
    ------
    FileUnreadable
        A folder is not of a pool.
    """
    known, problem = known_runs(database, program)
    own = chain.from_iterable(runs_of_folder(folder, program) for folder in dict.fromkeys(folders))
    return [*{(run.pool, run.number, run.attempt): run for run in chain(known, own)}.values()], problem


def runs_of_sweep(sweep: TrainingSweep, folders: Sequence[Path], database: str | None) -> tuple[list[TrialRun], str]:
    """Return the runs of a sweep's program, those of the pool beside it as well.

    It is :func:`earlier_runs` otherwise.
    """
    own = sweep.path.with_suffix(".pool")
    return earlier_runs(program(sweep), [*folders, *([own] if (own / FILE).exists() else [])], database)


def shown_sizes(runs: Iterable[TrialRun], device: Device) -> dict[str, list[Mapping[str, Any]]]:
    """Return what trials showed of their sizes on such devices, by family.

    The oldest come first.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run.started_s):
        if run.sizes and (run.device_kind, run.device_model) == (device.kind, device.model):
            found.setdefault(run.family, []).append(run.sizes)
    return found


def _has_warehouse(database: str) -> bool:
    """Return whether there is a warehouse.

    For a file that is not there it is not imported.
    """
    file = database.removeprefix("sqlite:///")
    return file == database or Path(file).exists()
