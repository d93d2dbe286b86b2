"""Modes of services and the pause switch, both set by a person.

They are stored in the warehouse. A service without a stored mode is in shadow mode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from helios.control.modes import ServiceMode
from helios.errors import HeliosError, NoSuchCluster, UsageError
from helios.model import MODES, Mode
from helios.private_files import make_folder, open_private, write_private
from helios.warehouse import Warehouse

LONGEST_NOTE = 65_536
"""Most bytes of a pause file that are read."""
PAUSE_FILE = "PAUSED"
RELEASED = "released"
"""Key in the warehouse of the note that a kill switch reverted changes which are still recorded as applied."""
RELEASED_FILE = "RELEASED"
"""Name of the file with the same note, of a kill switch that has no database."""
PAUSED = "paused"
"""Key in the warehouse of the note who paused Helios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause that a person requested.

    Attributes
    ----------
    by, since, reason : str
        Who, when (UTC), and why; empty where the note does not say.
    where : str
        What must be removed for Helios to resume.
    """

    by: str
    since: str
    reason: str
    where: str

    def __str__(self) -> str:
        by = f"by {self.by} " if self.by else ""
        since = f"since {self.since} " if self.since else ""
        return f"{by}{since}({self.where})" + (f": {self.reason}" if self.reason else "")


def current_modes(url: str, cluster: str, services: Iterable[str]) -> dict[str, ServiceMode]:
    """Return the mode of each service, shadow where none was set."""
    with Warehouse.open(url) as warehouse:
        try:
            settings = warehouse.modes(cluster)
        except NoSuchCluster:
            settings = MODES.empty()
    found = dict.fromkeys(services, ServiceMode(mode=Mode.SHADOW))
    for row in settings.drop_duplicates("service", keep="last").to_dict("records"):
        if row["service"] in found:
            found[row["service"]] = ServiceMode(
                mode=Mode(row["mode"]),
                partitions=tuple(str(row["partitions"]).split(",")) if pd.notna(row["partitions"]) else (),
                percent=int(row["percent"]) if pd.notna(row["percent"]) else None,
            )
    return found


def set_mode(
    url: str,
    cluster: str,
    service: str,
    mode: Mode,
    *,
    partitions: tuple[str, ...] = (),
    percent: int | None = None,
    by: str,
    reason: str,
    now: datetime,
) -> ServiceMode:
    """Set the mode of a service, effective from its next cycle.

    Raises
    ------
    UsageError
        A canary has neither partition nor percent, another mode has one, or a partition's name is empty (as from a
        shell variable that is not set).
    """
    if mode is Mode.CANARY and not partitions and percent is None:
        raise UsageError("A canary acts on a part of the jobs.", hint="Say which: --partition NAME, or --percent 10")
    if wrong_names := [name for name in partitions if not name.strip() or "," in name]:
        raise UsageError(f"{wrong_names[0]!r} is no partition.", hint="Name each by itself: -p gpu -p debug")
    if mode is not Mode.CANARY and (partitions or percent is not None):
        raise UsageError(
            f"Only a canary acts on a part of the jobs; {mode.value} does not.",
            hint="Leave --partition and --percent out, or say canary.",
        )
    try:
        chosen = ServiceMode(mode=mode, partitions=partitions, percent=percent)
    except ValueError as wrong:
        raise UsageError(f"{str(wrong).capitalize()}.", hint="Say which: --partition NAME, or --percent 10") from wrong
    row = {
        "service": service,
        "mode": mode.value,
        "partitions": ",".join(partitions) or None,
        "percent": percent,
        "set_at": now,
        "set_by": by,
        "reason": reason,
    }
    with Warehouse.open(url) as warehouse:
        warehouse.add_modes(cluster, MODES.conform(pd.DataFrame([row])))
    return chosen


def pause(url: str, cluster: str, folder: Path, *, by: str, reason: str, now: datetime) -> tuple[bool, list[str]]:
    """Pause every Helios of this cluster.

    The pause is written to two places, and either is enough: a file, for processes without the database, and the
    warehouse, for processes on other machines.

    Returns
    -------
    bool
        Whether one of the two was written.
    list of str
        What could not be written, and why.
    """
    problems = pause_here(folder, by=by, reason=reason, now=now)
    paused = is_paused_here(folder)
    try:
        with Warehouse.open(url) as warehouse:
            warehouse.remember(cluster, PAUSED, _note(by=by, reason=reason, now=now), at=now)
        paused = True
    except HeliosError as problem:
        problems.append(problem.message)
    return paused, problems


def pause_here(folder: Path, *, by: str, reason: str, now: datetime) -> list[str]:
    """Write only the pause file of this machine.

    Needs neither the cluster nor the database. Returns what could not be written; empty where all was. An empty file,
    which fits on most full disks, pauses too.
    """
    file = folder / PAUSE_FILE
    try:
        make_folder(folder)
        write_private(file, f"{_note(by=by, reason=reason, now=now)}\n".encode())
    except OSError as problem:
        with suppress(OSError):
            os.close(open_private(file))
            return [f"the file {file} pauses Helios, but does not say who paused it and why: {problem}"]
        return [f"the file {file} could not be written: {problem}"]
    return []


def is_paused_here(folder: Path) -> bool:
    """Return whether there is a pause file."""
    return os.path.lexists(folder / PAUSE_FILE)


def resume(url: str, cluster: str, folder: Path, *, now: datetime) -> None:
    """Undo ``pause``.

    Does nothing where Helios is not paused. What was reverted during the pause does not count as a person's decision,
    so that services may set it again.

    Raises
    ------
    HeliosError
        The warehouse cannot be written, or the file cannot be removed. Helios stays paused.
    """
    try:
        with Warehouse.open(url) as warehouse:
            warehouse.remember(cluster, RELEASED, f"before {now:%Y-%m-%d %H:%M:%S} UTC", at=now)
            warehouse.remember(cluster, PAUSED, "", at=now)
    except HeliosError as problem:
        raise still_paused(problem) from problem
    resume_here(folder)


def still_paused(problem: HeliosError) -> HeliosError:
    """Return the error that a pause could not be ended."""
    return HeliosError(f"Helios stays paused: {problem.message}", hint=problem.hint)


def resume_here(folder: Path) -> bool:
    """Remove this machine's pause file, and return whether there was one.

    Needs neither the cluster nor the database.

    Raises
    ------
    HeliosError
        It cannot be removed.
    """
    file = folder / PAUSE_FILE
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as problem:
        if not is_paused_here(folder):  # a read-only file system says so before it looks whether the file is there
            return False
        raise HeliosError(
            f"Helios stays paused: {file} cannot be removed: {problem}",
            hint="Make the folder writable, or remove the file as root.",
        ) from problem
    return True


def is_paused(url: str, cluster: str, folder: Path) -> Pause | None:
    """Return who paused Helios, or None.

    A pause file that cannot be understood counts as a pause.
    """
    file = folder / PAUSE_FILE
    if is_paused_here(folder):
        try:
            # A pipe that somebody put there is not waited for, and is a pause as well.
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as note:
                written = (note.read(LONGEST_NOTE) or b"").decode("utf-8", "replace")
        except OSError:
            written = ""
        return _read(written, where=str(file))
    with Warehouse.open(url) as warehouse:
        try:
            text = warehouse.remembered(cluster, PAUSED)
        except NoSuchCluster:
            return None
    return _read(text, where="the warehouse; helios resume") if text else None


def _note(*, by: str, reason: str, now: datetime) -> str:
    return json.dumps(asdict(Pause(by=by, since=f"{now:%Y-%m-%d %H:%M} UTC", reason=reason, where="")))


def _read(text: str, *, where: str) -> Pause:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = {}
    content = content if isinstance(content, Mapping) else {}
    return Pause(where=where, **{name: str(content.get(name, "")) for name in ("by", "since", "reason")})
