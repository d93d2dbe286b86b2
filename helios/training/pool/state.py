"""State file of a pool, which survives a kill.

Its lines are JSON, appended and never changed. A line that was cut off is the last one, and the next run removes it.
A result is in it before the search or anybody else hears of it, so that a finished trial is never run again.

Several pools may share it. Then each holds a lock of its own for as long as it lives, takes turns in writing, and reads
what the others wrote before it writes. A trial belongs to the pool that chose it, until that one is gone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.lines_file import LinesFile, try_lock
from helios.private_files import fsync_directory, make_folder, open_private
from helios.training.model import ENDED, TrialState
from helios.training.pool.orders import size_of_orders
from helios.training.pool.reports import PlainFile

if TYPE_CHECKING:
    from helios.model.trial_runs import CurvePoint, TrialRun

VERSION = 4
FILE = "state.jsonl"
MEMBERS = "members"
"""Folder with a file for each run of the pool, which that run has locked for as long as it lives."""
LIVE_BYTES = 4_096
"""Size of such a file, so that writing to it needs no room on a full disk."""
NAME_A_POOL = "Name the folder of a pool, as sweep.pool, or its sweep file."
_RETRY_S = 2.0
"""After how long a full disk is tried again."""


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """What is known of one trial.

    Attributes
    ----------
    attempts : int
        How often it was started.
    failures, memory_kills : int
        How many of these ended with an error, and at the memory limit.
    seconds : float
        Time in all attempts that ended, s.
    held_s : float
        How much of it the trial was held back, s.
    last_seconds : float, optional
        Time of the last attempt that ended, s.
    out_of_memory_mib : float, optional
        Highest limit at which it was killed for memory.
    value : float, optional
        The metric that the search compares.
    reason : str
        Why it failed or is to be started again.
    owner : str
        The pool that runs it, or is to. Empty for the only one of the folder.
    started_s : float, optional
        When it was started last, s since the epoch.
    run : str
        Run of the pool that started it last.
    log : str
        Its log, where that is not in its folder.
    again : int
        How often it was run again after it had ended.
    order : int
        Place of the last order to run it again that was carried out.
    curve : tuple of CurvePoint
        Of a trial that has not ended, its metric by step until its last end that is recorded.
    extremes : tuple of float
        The least and the largest value of that curve and of those before, empty where there is none.
    unended_s : list of float
        When the attempts since then began, s since the epoch.
    made_s : float
        When the search chose it, s since the epoch.
    changes : int
        How often its devices changed while it ran.
    pause_s : float, optional
        How long it stood still for the last change of which that is known, s.
    device_s, sized_s : float
        Device time until its devices changed last, and when that was, s and s since the epoch.
    """

    number: int
    parameters: Mapping[str, Any]
    state: TrialState = TrialState.WAITING
    attempts: int = 0
    failures: int = 0
    memory_kills: int = 0
    seconds: float = 0.0
    held_s: float = 0.0
    last_seconds: float | None = None
    peak_memory_mib: float | None = None
    out_of_memory_mib: float | None = None
    devices: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    value: float | None = None
    reason: str = ""
    owner: str = ""
    started_s: float | None = None
    run: str = ""
    log: str = ""
    again: int = 0
    order: int = 0
    curve: tuple[CurvePoint, ...] = ()
    extremes: tuple[float, ...] = ()
    unended_s: list[float] = field(default_factory=list)
    made_s: float = 0.0
    changes: int = 0
    pause_s: float | None = None
    device_s: float = 0.0
    sized_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it has a result."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "number": self.number,
            "parameters": dict(self.parameters),
            "state": str(self.state),
            "metrics": dict(self.metrics),
            "value": self.value,
            "seconds": round(self.seconds, 3),
            "peak_memory_mib": None if self.peak_memory_mib is None else round(self.peak_memory_mib, 1),
            "attempts": self.attempts,
            "devices": list(self.devices),
            **({"changes": self.changes, "pause_s": self.pause_s} if self.changes else {}),
            **({"reason": self.reason} if self.reason else {}),
        }


def trial_folder(pool: Path, number: int) -> Path:
    """Return the folder of a trial."""
    return pool / "trials" / f"{number:05d}"


def read_runs(folder: Path) -> list[TrialRun]:
    """Return the finished attempts of a pool.

    Pools of an older Helios have none, because they did not record what attempts used.

    Raises
    ------
    FileUnreadable
        The folder is not of a pool.
    """
    path, runs = folder / FILE, []
    attempts: Counter[int] = Counter()
    parameters: dict[int, Mapping[str, Any]] = {}
    place = 0
    try:
        with path.open("rb") as lines:
            pool = ""
            for place, line in enumerate(lines, start=1):  # noqa: B007 - said where it cannot be read
                if not line.endswith(b"\n"):  # it is being written
                    break
                entry = json.loads(line)
                if not pool:
                    pool = str(entry["pool"])
                    continue
                if "trial" not in entry:  # a run, another pool that shares the folder, or a change of the sweep
                    continue
                number = int(entry["trial"])
                if entry["what"] == "made":
                    parameters[number] = entry["parameters"]
                elif entry["what"] == "started":
                    attempts[number] += 1
                elif "run" in entry:
                    runs.append(_run(entry, pool=pool, attempt=attempts[number], parameters=parameters[number]))
    except OSError as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason.strerror}", hint=NAME_A_POOL) from reason
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise _line_unreadable(path, place) from reason
    return runs


def run_entry(run: TrialRun, *, held_s: float = 0.0) -> dict[str, Any]:
    """Return the stored details of an attempt, held back for a time."""
    rounded = {
        name: None if value is None else round(value, 3)
        for name, value in (
            ("start_up_s", run.start_up_s),
            ("progress", run.progress),
            ("utilization", run.utilization),
            ("energy_j", run.energy_j),
        )
    }
    return {
        "program": run.program,
        "family": run.family,
        "device_kind": run.device_kind,
        "device_model": run.device_model,
        "placement": run.placement,
        **rounded,
        **({"held_s": round(held_s, 3)} if held_s else {}),
        "metric": run.metric,
        "direction": run.direction,
        "curve": run.curve,
        "speeds": [[speed.beside, speed.steps_per_s, round(speed.seconds, 3)] for speed in run.speeds],
        **({"sizes": run.sizes} if run.sizes else {}),
    }


def _curve(run: Mapping[str, Any]) -> tuple[CurvePoint, ...]:
    """Return the curve among the stored details of an attempt."""
    points = run.get("curve", ())
    if not points:
        return ()
    from helios.model.trial_runs import CurvePoint  # noqa: PLC0415 - imports pandas, as in training.model

    return tuple(CurvePoint._make(point) for point in points)


def _run(entry: Mapping[str, Any], *, pool: str, attempt: int, parameters: Mapping[str, Any]) -> TrialRun:
    from helios.model.trial_runs import MeasuredSpeed, TrialRun  # noqa: PLC0415 - imports pandas, as in training.model

    values = {**entry["run"], "curve": _curve(entry["run"])}
    speeds = tuple(
        MeasuredSpeed(beside=tuple(beside), steps_per_s=float(steps), seconds=float(seconds))
        for beside, steps, seconds in values.pop("speeds", ())
    )
    held_s = values.pop("held_s", 0.0)
    return TrialRun(
        pool=pool,
        number=int(entry["trial"]),
        attempt=attempt,
        parameters=parameters,
        outcome=str(entry["what"]),
        started_s=float(entry["at_s"]) - float(entry["seconds"]),
        seconds=max(0.0, float(entry["seconds"]) - held_s),
        peak_memory_mib=entry["peak_memory_mib"],
        memory_limit_mib=entry["memory_limit_mib"],
        metrics=entry["metrics"],
        speeds=speeds,
        placement=tuple(values.pop("placement")),
        **values,
    )


def read_records(folder: Path, *, history_of: int | None = None) -> tuple[Records, list[Mapping[str, Any]]]:
    """Return the trials of a pool without disturbing it.

    Parameters
    ----------
    history_of : int, optional
        Trial whose lines are returned as well.

    Raises
    ------
    FileUnreadable
        The folder is not of a pool, of another version, or of somebody else.
    """
    path, records = folder / FILE, Records()
    try:
        with closing(PlainFile(path, owner=folder.stat().st_uid)) as file:
            lines = LinesFile(file.handle).read()
    except OSError as reason:
        hint = "Only the account that runs a pool may read it." if isinstance(reason, PermissionError) else NAME_A_POOL
        raise FileUnreadable(f"{path} cannot be read: {reason.strerror}", hint=hint) from reason
    entries = records.apply_lines(lines, path)
    return records, [entry for entry in entries if history_of is not None and entry.get("trial") == history_of]


def _line_unreadable(path: Path, place: int) -> FileUnreadable:
    if place == 1:
        return FileUnreadable(f"{path}, line 1, is not of a pool.", hint=NAME_A_POOL)
    hint = "Bring the file back from a copy, or run the sweep anew in another place: --folder FOLDER"
    return FileUnreadable(f"{path}, line {place}, is damaged.", hint=hint)


def is_locked(path: Path) -> bool:
    """Return whether a process has locked a file.

    The lock is tried shared, which disturbs nobody who asks the same.
    """
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return not try_lock(handle, shared=True)
        finally:
            os.close(handle)
    return False


class Records:
    """Trials of a pool, from the lines of its state file.

    Attributes
    ----------
    trials : dict
        A :class:`TrialRecord` for each number.
    runs : dict of str to mapping
        What each run of the pool said when it began, by its id, the last one last.
    sweep : mapping
        Description of the sweep of the trials so far.
    interrupted : set of str
        Pools that ended while trials of them ran.
    joined : int
        How many pools have shared the folder before this one.
    orders : int
        Up to where orders to run trials again were carried out.
    reached : dict of int to mapping
        What is known of each target that was reached, by its tier, 0 or 1.
    delivered : dict of int to mapping
        The same of those that were published.
    first : str
        Identity that the pool got when it was made.
    """

    def __init__(self) -> None:
        self.trials: dict[int, TrialRecord] = {}
        self.runs: dict[str, Mapping[str, Any]] = {}
        self.interrupted: set[str] = set()
        self.sweep: Mapping[str, Any] = {}
        self.reached: dict[int, Mapping[str, Any]] = {}
        self.delivered: dict[int, Mapping[str, Any]] = {}
        self.joined = self.orders = 0
        self.first = ""

    def begin(self, header: Mapping[str, Any]) -> None:
        """Take the first line.

        Raises
        ------
        FileUnreadable
            It is of another version of Helios.
        """
        if int(header["version"]) != VERSION:
            raise FileUnreadable(
                f"The pool was made by another version of Helios (its state file has format {header['version']}).",
                hint=f"Use that version, or choose another place: --folder FOLDER. This one has format {VERSION}.",
            )
        self.first, self.sweep = str(header["pool"]), header["sweep"]

    def apply_lines(self, lines: Sequence[bytes], path: Path) -> Iterator[dict[str, Any]]:
        """Apply the lines of a file from its first, and yield them.

        Raises
        ------
        FileUnreadable
            It is not of a pool, damaged, or of another version of Helios.
        """
        for place, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                (self.begin if place == 1 else self.apply_entry)(entry)
            except (ValueError, KeyError, TypeError, AttributeError) as reason:
                raise _line_unreadable(path, place) from reason
            yield entry

    def interrupt(self, trial: TrialRecord) -> None:
        """Record that a trial's pool ended first."""
        if trial.state is TrialState.RUNNING:
            self.interrupted.add(trial.owner or self.first)
            trial.state, trial.reason = TrialState.WAITING, "the pool ended while it ran"

    def apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Apply a line to the records."""
        if entry.get("what") == "target":
            self.reached.setdefault(int(entry["tier"]), entry)
        elif entry.get("what") == "delivered":
            self.delivered.setdefault(int(entry["tier"]), entry)
        elif "what" in entry:
            self._apply_to_trial(entry)
        elif "joined" in entry:
            self.joined += 1
        elif "orders" in entry:
            self.orders = max(self.orders, int(entry["orders"]))
        elif "run" not in entry:
            self.sweep = entry["sweep"]
        else:
            self.runs[str(entry["run"])] = entry

    def _apply_to_trial(self, entry: Mapping[str, Any]) -> None:
        number = int(entry["trial"])
        what, owner = entry["what"], str(entry.get("by", ""))
        if what == "made":
            made = TrialRecord(number=number, parameters=entry["parameters"], owner=owner, made_s=float(entry["at_s"]))
            self.trials.setdefault(number, made).parameters = entry["parameters"]
            return
        trial = self.trials[number]
        if what == "retried":
            trial.state, trial.reason, trial.owner = TrialState.WAITING, f"run again by {entry['who']}", owner
            trial.failures = trial.memory_kills = 0
            trial.metrics, trial.value, trial.extremes = {}, None, ()
            trial.again, trial.order = trial.again + 1, int(entry["order"])
            return
        if trial.ended:
            return
        if what == "withdrawn":
            trial.state = TrialState.FINISHED if entry["finished"] else TrialState.PRUNED
            trial.reason = str(entry["reason"])
            return
        if what == "taken":
            self.interrupt(trial)
            trial.owner = owner
            return
        if what == "started":
            trial.attempts += 1
            trial.state, trial.devices, trial.reason = TrialState.RUNNING, tuple(entry["devices"]), ""
            trial.unended_s.append(float(entry["at_s"]))
            trial.sized_s = float(entry["at_s"])
            trial.started_s, trial.run = entry["at_s"], str(entry["run"])
            trial.log = str(entry.get("log", ""))
            return
        trial.device_s += len(trial.devices) * max(0.0, float(entry["at_s"]) - trial.sized_s)
        trial.sized_s = float(entry["at_s"])
        if what == "resized":
            trial.devices, trial.changes = tuple(entry["devices"]), trial.changes + 1
            trial.pause_s = trial.pause_s if entry["pause_s"] is None else entry["pause_s"]
        else:
            self._end_attempt(trial, entry)

    def _end_attempt(self, trial: TrialRecord, entry: Mapping[str, Any]) -> None:
        what = entry["what"]
        trial.seconds += entry["seconds"]
        trial.held_s += entry.get("run", {}).get("held_s", 0.0)
        trial.last_seconds = entry["seconds"]
        peaks = [peak for peak in (trial.peak_memory_mib, entry["peak_memory_mib"]) if peak is not None]
        trial.peak_memory_mib = max(peaks, default=None)
        trial.state, trial.reason = TrialState(entry["state"]), str(entry["reason"])
        trial.metrics, trial.value = entry["metrics"], entry["value"]
        trial.curve = () if trial.ended else _curve(entry.get("run", {}))
        values = [
            *trial.extremes,
            *(point[-1] for point in entry.get("run", {}).get("curve", ()) if point[-1] is not None),
        ]
        trial.extremes = (min(values), max(values)) if values else ()
        trial.unended_s.clear()
        trial.failures += what == "failed"
        if what == "out_of_memory":
            trial.memory_kills += 1
            trial.out_of_memory_mib = max(trial.out_of_memory_mib or 0.0, entry["memory_limit_mib"] or 0.0) or None


class StateFile(Records):
    """Open and locked file of a pool's trials.

    Parameters
    ----------
    folder : Path
        Folder of the pool, created if missing.
    sweep : mapping
        Description of the sweep, for a new folder.
    shared : bool
        Whether other pools may have it open, too; all must say so.

    Attributes
    ----------
    pool : str
        Identity of the pool, by which its processes are known.
    run : str
        Identity of this run of the pool.
    orders_before : int
        Up to where orders were given before this run began.
    problem : str
        Why nothing can be written now. Empty where it can.
    unsynced : bool
        Whether lines were written that a power cut would lose.

    Raises
    ------
    UsageError
        Another process has it open, or another version of Helios made it.
    FileUnreadable
        It holds something else.
    FileUnwritable
        It cannot be made.
    """

    def __init__(self, folder: Path, sweep: Mapping[str, Any], *, shared: bool = False) -> None:
        super().__init__()
        self.path, self.shared, self.sweep = folder / FILE, shared, sweep
        self._is_exclusive = False
        self._members, self._own_lock = folder / MEMBERS, -1
        self.pool, self.run, self.problem = "", uuid4().hex, ""
        self.orders_before = size_of_orders(folder)
        self._unwritten: list[bytes] = []
        self._retry_at_s = 0.0
        self.unsynced = False
        try:
            make_folder(folder)
            self._handle = open_private(self.path)
            self._file = LinesFile(self._handle)
        except OSError as reason:
            raise FileUnwritable(
                f"The pool's folder cannot be written: {reason}", hint="Choose another place: --folder FOLDER"
            ) from reason
        try:
            if not try_lock(self._handle, shared=self.shared):
                raise UsageError(
                    f"Another pool is running in {folder}.",
                    hint="Wait for it or end it, or choose another place: --folder FOLDER. Pools that share a folder "
                    "all need --shared.",
                )
            self._write_lock = open_private(folder / "turn.lock") if shared else -1
            with self.exclusive(catch_up=False):
                self._read(folder)
                self._join()
        except BaseException:
            os.close(self._handle)
            raise

    def _read(self, folder: Path) -> None:
        for _ in self.apply_lines(self._file.read(), self.path):
            pass
        if not self.first:
            self.first = uuid4().hex
            self.append({"version": VERSION, "pool": self.first, "sweep": self.sweep})
            if self.problem:
                raise FileUnwritable(f"{self.path}: {self.problem}", hint="Choose another place: --folder FOLDER")
            fsync_directory(folder)
        self.pool = self.run if self.shared else self.first
        if self.shared:
            return
        for trial in self.trials.values():
            if trial.state is TrialState.RUNNING:
                self.interrupt(trial)

    def _join(self) -> None:
        """Show that this run lives, by a file that it has locked."""
        try:
            make_folder(self._members)
            for other in self._members.iterdir():
                if not is_locked(other):
                    other.unlink(missing_ok=True)
            own = self._members / self.run
            self._own_lock = open_private(own.with_name(f".{self.run}"))
            fcntl.flock(self._own_lock, fcntl.LOCK_EX)
            self.show("")
            own.with_name(f".{self.run}").rename(own)  # nobody sees it unlocked
        except OSError as reason:
            raise FileUnwritable(
                f"The pool's folder cannot be written: {reason}", hint="Make room, or choose another place: --folder"
            ) from reason
        if self.shared:
            self.append({"joined": self.pool})

    def show(self, hold: str, **more: Any) -> None:
        """Show others why no trial is started, empty where some may be."""
        live = {"run": self.run, "pid": os.getpid(), "at_s": round(time.time(), 3), "hold": hold[: LIVE_BYTES // 8]}
        os.pwrite(self._own_lock, json.dumps(live | more).encode().ljust(LIVE_BYTES), 0)

    def record_run(self, about: Mapping[str, Any]) -> None:
        """Record what runs now, and where."""
        entry = {"run": self.run, "at_s": round(time.time(), 3), **about}
        self.append(entry, lasting=False)
        self.runs[self.run] = entry

    @contextmanager
    def exclusive(self, *, catch_up: bool = True) -> Iterator[None]:
        """Lock out the folder's other pools, after reading their lines."""
        if not self.shared or self._is_exclusive:
            yield
            return
        fcntl.flock(self._write_lock, fcntl.LOCK_EX)
        self._is_exclusive = True
        try:
            if catch_up:
                for line in self._file.read():
                    self.apply_entry(json.loads(line))
            yield
        finally:
            self._is_exclusive = False
            fcntl.flock(self._write_lock, fcntl.LOCK_UN)

    def is_mine(self, trial: TrialRecord) -> bool:
        """Return whether this pool is to run a trial."""
        return not self.shared or trial.owner == self.pool

    def has_owner(self, trial: TrialRecord) -> bool:
        """Return whether the pool that a trial belongs to is there."""
        if self.is_mine(trial):
            return True
        return is_locked(self._members / (trial.owner or "none"))

    def others_run(self) -> bool:
        """Return whether other pools have the folder open."""
        return any(path.name != self.run and is_locked(path) for path in self._members.iterdir())

    def adopt(self) -> list[TrialRecord]:
        """Take over the unfinished trials of dead pools."""
        adopted = []
        with self.exclusive():
            gone = {
                trial.owner: trial for trial in self.trials.values() if not trial.ended and trial.owner != self.pool
            }
            owners = {owner for owner, trial in gone.items() if not self.has_owner(trial)}
            for trial in self.trials.values():
                if not trial.ended and trial.owner in owners:
                    self._append_of_trial(trial.number, "taken", by=self.pool)
                    adopted.append(trial)
        return adopted

    def record_created(self, number: int, parameters: Mapping[str, Any]) -> None:
        """Record that the search chose a trial, or that its parameters have grown."""
        self._append_of_trial(number, "made", parameters=dict(parameters), **self._by)

    def record_sweep(self, sweep: Mapping[str, Any]) -> None:
        """Record that the sweep has changed."""
        self.append({"sweep": sweep})
        self.sweep = sweep

    def record_started(
        self, number: int, *, devices: Sequence[str], memory_limit_mib: float | None, why: str = "", log: str = ""
    ) -> None:
        """Record that a trial is about to be started, and why.

        Its log is named where that is not in its folder.
        """
        self._append_of_trial(
            number,
            "started",
            devices=list(devices),
            memory_limit_mib=memory_limit_mib,
            why=why,
            run=self.run,
            **({"log": log} if log else {}),
        )

    def record_resized(self, number: int, *, devices: Sequence[str], pause_s: float | None, in_place: bool) -> None:
        """Record that a running trial has other devices."""
        self._append_of_trial(number, "resized", devices=devices, pause_s=pause_s, in_place=in_place)

    def record_retried(self, number: int, *, order: int, who: str) -> None:
        """Record that a trial that has ended is run again."""
        self._append_of_trial(number, "retried", order=order, who=who, **self._by)

    def record_target(self, number: int, tier: int, **about: Any) -> bool:
        """Record that a trial reached a target, and return whether none had before."""
        with self.exclusive():
            if tier in self.reached:
                return False
            self._append_of_trial(number, "target", tier=tier, **about)
        self.sync()
        return True

    def record_delivered(self, number: int, tier: int, **about: Any) -> None:
        """Record that what reached a target was published."""
        self._append_of_trial(number, "delivered", tier=tier, **about)
        self.sync()

    def record_withdrawn(self, number: int, *, reason: str, finished: bool) -> None:
        """Record that a trial that waits is not to be run any more."""
        self._append_of_trial(number, "withdrawn", reason=reason, finished=finished)

    def record_ended(
        self,
        number: int,
        *,
        what: str,
        state: TrialState,
        seconds: float,
        peak_memory_mib: float | None,
        memory_limit_mib: float | None = None,
        metrics: Mapping[str, float],
        value: float | None,
        reason: str = "",
        run: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how an attempt ended.

        It survives a kill from now on, and a power cut from the next :meth:`sync` on.

        Parameters
        ----------
        what : str
            ``finished``, ``stopped`` (as finished, before its end), ``diverged``, ``pruned``, ``failed``,
            ``out_of_memory``, ``killed``, ``paused`` or ``interrupted``.
        state : TrialState
            What the trial is from now on.
        run : mapping, optional
            What else :func:`read_runs` returns of the attempt.
        """
        self._append_of_trial(
            number,
            what,
            state=str(state),
            seconds=round(seconds, 3),
            peak_memory_mib=peak_memory_mib,
            memory_limit_mib=memory_limit_mib,
            metrics=dict(metrics),
            value=value,
            reason=reason,
            **({} if run is None else {"run": dict(run)}),
        )

    @property
    def _by(self) -> dict[str, str]:
        """Which pool a line of a shared folder is from."""
        return {"by": self.pool} if self.shared else {}

    def _append_of_trial(self, number: int, what: str, **values: Any) -> None:
        """Append a line about a trial."""
        self.append({"what": what, "trial": number, "at_s": round(time.time(), 3), **values}, lasting=False)

    def append(self, entry: Mapping[str, Any], *, lasting: bool = True) -> None:
        """Append a line.

        It is kept in memory while the disk is full.
        """
        line = json.dumps(entry, allow_nan=False, default=str).encode() + b"\n"
        with self.exclusive():
            if "what" in entry or "orders" in entry:
                self.apply_entry(json.loads(line))
            self._unwritten.append(line)
            if not self.problem:
                self._write(lasting=lasting)

    def sync(self) -> bool:
        """Have everything on the disk, and return whether it is."""
        if self.unsynced and not self.problem:
            self._write(lasting=True)
        return not self.problem

    def retry(self) -> bool:
        """Write postponed lines.

        Returns whether none is left.
        """
        if self.problem and time.monotonic() >= self._retry_at_s:
            self._write(lasting=True)
        return not self.problem

    def _write(self, *, lasting: bool) -> None:
        with self.exclusive():
            lines = b"".join(self._unwritten)
            try:
                self._file.append(lines, lasting=lasting)
            except OSError as reason:
                full = reason.errno in {errno.ENOSPC, errno.EDQUOT}
                self.problem = "the disk is full" if full else (reason.strerror or str(reason))
                self._retry_at_s = time.monotonic() + _RETRY_S
                return
            self.unsynced = not lasting
            self._unwritten.clear()
            self.problem = ""

    def close(self) -> None:
        """Close the file, which frees the lock."""
        self.retry()
        self.sync()
        os.close(self._handle)
        (self._members / self.run).unlink(missing_ok=True)
        os.close(self._own_lock)
        if self.shared:
            os.close(self._write_lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
