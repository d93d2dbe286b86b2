"""How far services may go: set by a person, kept in the warehouse, shadow where nobody said anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from helios.control.modes import ServiceMode
from helios.errors import HeliosError, NoSuchCluster, UsageError
from helios.model import MODES, Mode
from helios.private_files import make_folder, write_private
from helios.warehouse import Warehouse

PAUSE_FILE = "PAUSED"
RELEASED = "released"
"""What the warehouse remembers under this name: that a kill switch reverted what the book still names."""
RELEASED_FILE = "RELEASED"
"""The same, of a kill switch that has no database."""
PAUSED = "paused"
"""Under this name the warehouse remembers who paused Helios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Somebody told Helios to do nothing.

    Attributes
    ----------
    by, since, reason : str
        Who, when (UTC), and why; empty: the file does not say.
    where : str
        What has to go for Helios to resume.
    """

    by: str
    since: str
    reason: str
    where: str

    def __str__(self) -> str:
        by = f"by {self.by} " if self.by else ""
        since = f"since {self.since} " if self.since else ""
        return f"{by}{since}({self.where})" + (f": {self.reason}" if self.reason else "")


def modes_in_force(url: str, cluster: str, services: Iterable[str]) -> dict[str, ServiceMode]:
    """Return the mode of each of ``services``: the one set last, else shadow."""
    with Warehouse.open(url) as warehouse:
        try:
            settings = warehouse.modes(cluster)
        except NoSuchCluster:
            settings = MODES.empty()
    last = settings.drop_duplicates("service", keep="last")
    return {name: _mode_of(last, name) for name in services}


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
    """Let a service go so far from its next cycle on.

    Raises
    ------
    Misuse
        A canary is not narrowed by partition or percent, or something else than a canary is; or a partition has no
        name, as of a shell variable that is not set.
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


def pause(url: str, cluster: str, folder: Path, *, by: str, reason: str, now: datetime) -> list[str]:
    """Have every Helios of this cluster do nothing from now on; return what of it could not be written.

    Two places say so, either is enough: a file, for whoever has no database, and the warehouse, for whoever runs
    on another machine.

    Raises
    ------
    HeliosError
        Neither could be written: nothing is paused.
    """
    problems = pause_here(folder, by=by, reason=reason, now=now)
    try:
        with Warehouse.open(url) as warehouse:
            warehouse.remember(cluster, PAUSED, _note(by=by, reason=reason, now=now), at=now)
    except HeliosError as problem:
        problems.append(problem.message)
    if len(problems) > 1:
        raise not_paused(problems)
    return problems


def pause_here(folder: Path, *, by: str, reason: str, now: datetime) -> list[str]:
    """Write the pause file alone, which asks neither cluster nor database; return why it could not be written."""
    try:
        make_folder(folder)
        write_private(folder / PAUSE_FILE, f"{_note(by=by, reason=reason, now=now)}\n".encode())
    except OSError as problem:
        return [f"the file {folder / PAUSE_FILE} could not be written: {problem}"]
    return []


def not_paused(problems: Iterable[str]) -> HeliosError:
    """Return the error that no place took the pause."""
    return HeliosError(
        f"Helios could not be paused: {'; '.join(problems)}",
        hint="Stop the daemon (systemctl stop helios) and run deploy/slurm/helios-release.sh",
    )


def resume(url: str, cluster: str, folder: Path, *, now: datetime) -> None:
    """Undo :func:`pause`; nothing to undo is fine. What was reverted meanwhile is nobody's will: it may be set again.

    Raises
    ------
    HeliosError
        The file cannot be removed, or the warehouse not be written: Helios stays paused.
    """
    try:
        (folder / PAUSE_FILE).unlink(missing_ok=True)
    except OSError as problem:
        raise HeliosError(f"{folder / PAUSE_FILE} cannot be removed: {problem}", hint="Remove it as root.") from problem
    with Warehouse.open(url) as warehouse:
        warehouse.remember(cluster, PAUSED, "", at=now)
        warehouse.remember(cluster, RELEASED, f"before {now:%Y-%m-%d %H:%M:%S} UTC", at=now)


def is_paused(url: str, cluster: str, folder: Path) -> Pause | None:
    """Return who paused Helios; None: nobody did. A pause file that cannot be understood is a pause all the same."""
    file = folder / PAUSE_FILE
    if os.path.lexists(file):
        return _read(_text_of(file), where=str(file))
    with Warehouse.open(url) as warehouse:
        try:
            text = warehouse.remembered(cluster, PAUSED)
        except NoSuchCluster:
            return None
    return _read(text, where="the warehouse; helios resume") if text else None


def _note(*, by: str, reason: str, now: datetime) -> str:
    return json.dumps(asdict(Pause(by=by, since=f"{now:%Y-%m-%d %H:%M} UTC", reason=reason, where="")))


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read(text: str, *, where: str) -> Pause:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, Mapping) else {}
    return Pause(where=where, **{name: str(said.get(name, "")) for name in ("by", "since", "reason")})


def _mode_of(last: pd.DataFrame, service: str) -> ServiceMode:
    row = next(iter(last[last["service"] == service].to_dict("records")), None)
    if row is None:
        return ServiceMode(mode=Mode.SHADOW)
    return ServiceMode(
        mode=Mode(row["mode"]),
        partitions=tuple(str(row["partitions"]).split(",")) if pd.notna(row["partitions"]) else (),
        percent=int(row["percent"]) if pd.notna(row["percent"]) else None,
    )
