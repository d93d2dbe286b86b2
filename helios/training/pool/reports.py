"""Reports of programs and requests to them, through files.

A task is not trusted: it may write garbage, gigabytes, or a link to somebody's secrets. So files are read in bounded
steps, and only plain files of the pool's own account that are no links.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from helios.private_files import write_private

STEP = 1 << 18
"""Bytes that one call reads of a file."""
MOST_LINES, MOST_LAST_LINES = 1_000, 10_000
"""Lines that one call and the last call look at, some 20 us each."""
FARTHEST_BEHIND = 16 << 20
"""Bytes that a file may be ahead of its reader, above which all but the last ``STEP`` are passed over."""
LONGEST_LINE = 1 << 16
END = 1 << 15
"""Bytes at the end of a file that somebody who asks is shown."""
MOST_METRICS = 64
"""Metrics of one report; the others are dropped."""
LONGEST_NAME, LONGEST_MESSAGE = 100, 1_000
LARGEST_STEP = 2**53
"""Steps above it are not whole in JSON of other languages."""
OWN_KEYS = ("step", "progress", "checkpoint", "message", "answer", "time_s", "fused", "elastic")
"""Keys of a report that are no metrics."""
Jump = Literal["", "replaced", "skipped"]
"""Why new bytes do not follow on the last ones. Empty where they do."""


class TaskRequest(StrEnum):
    """Requests to a running program."""

    PAUSE = "pause"
    """Save a checkpoint and exit with code 0, to be started again later."""
    CHECKPOINT = "checkpoint"
    """Save a checkpoint and go on."""
    STOP = "stop"
    """Exit; nobody will start it again."""
    RESIZE = "resize"
    """Train on other devices from now on, which only programs of changing size do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A line of a report file, or the scalars of an event.

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
    answer : TaskRequest, optional
        Request that the program has seen; one that saw a pause and exits with code 0 is paused and not finished.
    time_s : float, optional
        When the program wrote it, s since the epoch.
    fused : mapping
        What a process that trains several trials tells of this one, see :mod:`helios.training.pool.fusing`.
    elastic : mapping
        What a program of changing size tells of it, see :mod:`helios.training.pool.elastic_state`.
    """

    step: int | None = None
    progress: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    checkpoint: str | None = None
    message: str | None = None
    answer: TaskRequest | None = None
    time_s: float | None = None
    fused: Mapping[str, Any] = field(default_factory=dict)
    elastic: Mapping[str, Any] = field(default_factory=dict)


def parse_report(line: bytes) -> Report | None:
    """Parse a line as a report, or return None.

    A line is a JSON object. Its numbers are metrics, but for those named in ``OWN_KEYS``; anything else is ignored.
    """
    try:
        values = json.loads(line) if line.lstrip().startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    metrics: dict[str, float] = {}
    not_finite: list[str] = []
    for name, value in values.items():
        number = _number(value)
        if number is None or name in OWN_KEYS or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            continue
        if len(metrics) + len(not_finite) == MOST_METRICS:
            break
        if math.isfinite(number):
            metrics[name] = number
        else:
            not_finite.append(name)
    step, progress, time_s = (_number(values.get(name)) for name in ("step", "progress", "time_s"))
    report = Report(
        step=int(step) if step is not None and 0 <= step <= LARGEST_STEP else None,
        progress=min(1.0, max(0.0, progress)) if progress is not None and math.isfinite(progress) else None,
        metrics=metrics,
        not_finite=tuple(not_finite),
        checkpoint=one_line(values.get("checkpoint")),
        message=one_line(values.get("message")),
        answer=next((each for each in TaskRequest if each == values.get("answer")), None),
        time_s=time_s if time_s is not None and math.isfinite(time_s) else None,
        fused=values["fused"] if isinstance(values.get("fused"), dict) else {},
        elastic=values["elastic"] if isinstance(values.get("elastic"), dict) else {},
    )
    told = report.fused or report.elastic or None
    content = (told, report.step, report.progress, report.checkpoint, report.message, report.answer)
    return report if metrics or not_finite or any(value is not None for value in content) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def one_line(value: Any) -> str | None:
    """Return a text as one line without control characters, or None."""
    if not isinstance(value, str):
        return None
    plain = "".join(letter if letter.isprintable() else " " for letter in value[:LONGEST_MESSAGE]).strip()
    return plain or None


class GrowingFile:
    """A growing file, read from where the last call ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_bytes = 0
        self.problem = ""
        self.place = 0
        self._inode = self._size = 0

    def read(self, *, skip: bool, most: int = STEP) -> tuple[bytes, Jump]:
        """Return new bytes.

        With ``skip`` only the last ones where there are too many.
        """
        self.problem = ""
        jump: Jump = ""
        try:
            with closing(PlainFile(self.path)) as file:
                if file.inode != self._inode or file.size < self._size:  # another file, or cut short
                    jump = "replaced" if self.place else ""
                    self._inode, self.place = file.inode, 0
                self._size = file.size
                if skip and file.size - self.place > FARTHEST_BEHIND:
                    self.skipped_bytes += file.size - STEP - self.place
                    jump, self.place = "skipped", file.size - STEP
                # What is to be passed over may not be written yet.
                new = os.pread(file.handle, most, self.place) if self.place < file.size else b""
        except FileNotFoundError:
            return b"", ""
        except OSError as reason:
            self.problem = f"{self.path.name} is not read: {reason.strerror}"
            return b"", ""
        self.place += len(new)
        return new, jump

    def unread(self, count: int) -> None:
        """Have the last bytes read again."""
        self.place -= count

    def skip(self, count: int) -> None:
        """Pass over the next bytes, also those that are not written yet."""
        self.place += count


class PlainFile:
    """An open plain file of this or another account, or an OSError."""

    def __init__(self, path: Path, *, owner: int | None = None) -> None:
        self.handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        found = os.fstat(self.handle)
        self.size, self.inode = found.st_size, found.st_ino
        if not stat.S_ISREG(found.st_mode) or found.st_uid != (os.geteuid() if owner is None else owner):
            self.close()
            raise OSError(0, "it is no plain file of this account")

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)


def read_end(path: Path, *, owner: int) -> list[bytes]:
    """Return the lines at the end of a file.

    None are where it cannot be read, or is no plain file of its owner.
    """
    with suppress(OSError), closing(PlainFile(path, owner=owner)) as file:
        start = max(0, file.size - END)
        lines = os.pread(file.handle, END, start).split(b"\n")
        return lines[bool(start) :]
    return []


def read_last_report(path: Path, *, owner: int) -> Report:
    """Return what a running program reported last."""
    last = Report()
    for line in read_end(path, owner=owner)[-MOST_LINES:]:
        if (report := parse_report(line)) is not None:
            last = Report(
                step=last.step if report.step is None else report.step,
                progress=last.progress if report.progress is None else report.progress,
                metrics={**last.metrics, **report.metrics},
                message=report.message or last.message,
            )
    return last


class ReportReader:
    """Reader of a growing report file.

    Attributes
    ----------
    skipped_lines : int
        Lines that were no reports.
    skipped_bytes : int
        Bytes that were passed over since the file grew too fast.
    problem : str
        Why the file is not read at all. Empty where it is, or is not there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_lines = self.skipped_bytes = 0
        self.problem = ""
        self._file = GrowingFile(path)
        self._half = b""
        self._in_long_line = False

    @property
    def place(self) -> int:
        """Where the next call reads on."""
        return self._file.place

    def read(self, *, last: bool = False) -> list[Report]:
        """Return at most ``MOST_LINES`` lines written since the last call.

        Parameters
        ----------
        last : bool
            Whether the program has ended: what is left is read, the last ``MOST_LAST_LINES`` lines of it, with one
            that is not ended.
        """
        new, jump = self._file.read(skip=True, most=FARTHEST_BEHIND if last else STEP)
        self.problem, self.skipped_bytes = self._file.problem, self._file.skipped_bytes
        if jump:
            self.skipped_lines += bool(self._half) or self._in_long_line
            self._half, self._in_long_line = b"", jump == "skipped"  # which begins within a line
        *lines, self._half = (self._half + new + b"\n" * last).split(b"\n")
        if lines and self._in_long_line:
            del lines[0]
            self.skipped_lines += 1
            self._in_long_line = False
        if len(self._half) > LONGEST_LINE:
            self._half, self._in_long_line = b"", True
        if last:
            lines = [line for line in lines if line]
            self.skipped_lines += max(0, len(lines) - MOST_LAST_LINES)
            lines = lines[-MOST_LAST_LINES:]
        elif len(lines) > MOST_LINES:  # the others are for the next call
            self._file.unread(len(self._half) + sum(len(line) + 1 for line in lines[MOST_LINES:]))
            lines, self._half, self._in_long_line = lines[:MOST_LINES], b"", False
        reports = []
        for line in lines:
            if not line.strip():
                continue
            report = parse_report(line) if len(line) <= LONGEST_LINE else None
            if report is None:
                self.skipped_lines += 1
            else:
                reports.append(report)
        return reports


def write_request(path: Path, request: TaskRequest | None, **details: Any) -> None:
    """Ask something of a program, or with None take it back.

    A request is taken back before the program is started again. It is one line, on which the request itself comes
    first. A detail of None is left out.

    Raises
    ------
    OSError
        It could not be written.
    """
    if request is None:
        path.unlink(missing_ok=True)
    else:
        known = {name: value for name, value in details.items() if value is not None}
        write_private(path, json.dumps({"request": request.value, **known}).encode() + b"\n")
