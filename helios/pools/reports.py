"""What programs report and what is asked of them, through files.

A task is not trusted: it may write garbage, gigabytes, or a link to somebody's secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class TaskRequest(StrEnum):
    """What may be asked of a running program."""

    PAUSE = "pause"
    """Save a checkpoint and exit with code 0, to be started again later."""
    CHECKPOINT = "checkpoint"
    """Save a checkpoint and go on."""
    STOP = "stop"
    """Exit; nobody will start it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One line of a report file, or the scalars of one step of an event file.

    Attributes
    ----------
    step : int, optional
        From 0.
    progress : float, optional
        Share that is done, 0 to 1.
    metrics : mapping
        Finite values by name.
    not_finite : tuple of str
        Names of metrics that were NaN or infinite.
    checkpoint : str, optional
        What the program calls the checkpoint that it has completed.
    message : str, optional
        One line for a person, without control characters.
    time_s : float, optional
        When the program wrote it, s since the epoch.
    """

    step: int | None = None
    progress: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    checkpoint: str | None = None
    message: str | None = None
    time_s: float | None = None


class ReportReader:
    """Reader of a growing report file.

    Attributes
    ----------
    skipped_lines : int
        Lines that were no reports.
    skipped_bytes : int
        Bytes that were passed over since the file grew too fast.
    problem : str
        Why the file is not read at all; empty: it is, or is not there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_lines = 0
        self.skipped_bytes = 0
        self.problem = ""

    def read(self) -> list[Report]:
        """Return what was written since the last call, at most 1 MiB of it."""
        raise NotImplementedError


class EventReader:
    """Reader of the scalars in the TensorBoard event files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped_lines = 0
        self.skipped_bytes = 0
        self.problem = ""

    def read(self) -> list[Report]:
        """Return what was written since the last call, at most 1 MiB of each file."""
        raise NotImplementedError


def write_request(path: Path, request: TaskRequest | None) -> None:
    """Ask something of a program, or with None take it back (before it is started again).

    Raises
    ------
    OSError
        It could not be written.
    """
    raise NotImplementedError
