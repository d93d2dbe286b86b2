"""Records of what Helios would have to revert on nodes and jobs.

The files can be read by a shell, and ``helios-release.sh`` uses them. Lines have words separated by tabs, and are on
the disk before anything is written to Slurm, so that they name at least every changed target, whatever happens to the
database.

``nodes.undo`` has ``asleep NODE``, ``weight NODE OWN`` and ``keep_awake LIST``, with ``(null)`` for an empty list.

``jobs.undo`` has ``site_factor JOB SUBMITTED VALUE`` and ``time_min JOB SUBMITTED MINUTES``; an array has one line with
its master's number. It proves that a value is Helios' own. A mark alone proves nothing: a user may ask for a minimum of
17 minutes, and an admin may write a SiteFactor of 537. Helios reverts a value only if it has the mark and is recorded
here for this job with this submission. A value that the priority hook wrote is proved by what was published for that
user and partition when the job was submitted. A value of 0 records that nothing of Helios was observed there any more.
An earlier value may come back (backfill, before 26.05.3) and is still reverted. But where Slurm hides the value, Helios
then no longer expects one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helios.actions import JobSetting
from helios.errors import FileUnreadable, HeliosError
from helios.lines_file import LinesFile
from helios.private_files import atomic_write, fsync_directory, give_to_folder_owner, make_folder
from helios.slurm import parse
from helios.slurm.backend import RawJob
from helios.slurm.hook_table import PUBLISHED, PublishedTables, read_published

UNDO_FILE = "nodes.undo"
"""Name of the undo file within ``[control] state_folder``."""
_LOOK = "Look at it; helios-release.sh uses the lines that it knows."
_NODE = re.compile(r"[\w.-]+", re.ASCII)
_WEIGHT = re.compile(r"[0-9]{1,10}", re.ASCII)
_LIST = re.compile(r"[\w.,:\[\]-]+|\(null\)", re.ASCII)

JOBS_FILE = "jobs.undo"
"""Name of the undo file within ``[control] state_folder``."""
MODE = 0o640
"""Readable for the service's user and its group; ``helios-release.sh`` reads it as root or as that user."""
_WORD = {JobSetting.ORDER: "site_factor", JobSetting.SOFT_LIMIT: "time_min"}
_SETTING = {word: setting for setting, word in _WORD.items()}
_LINE = re.compile(r"(site_factor|time_min)\t(\d{1,10})\t(\d{1,12})\t(-?\d{1,10})", re.ASCII)
_SLACK = 1000
"""Number of outdated lines after which the file is rewritten."""
_NO_SUBMISSIONS: Collection[int] = frozenset()
_MOST_VALUES = 16
"""Values kept for each job, as only the latest can still be set on it or come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesUndo:
    """Changes on nodes that would have to be reverted.

    Attributes
    ----------
    asleep : tuple of str
        Nodes that Helios put to sleep, or was about to.
    weights : mapping
        The site's own weight of each node whose weight Helios changed.
    keep_awake : str, optional
        The site's own keep-awake list; None where Helios did not change it.
    """

    asleep: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    keep_awake: str | None = None


class UndoNotWritten(HeliosError):
    """The record of what to revert could not be written."""


def write_undo(
    path: Path, *, asleep: Iterable[str] = (), weights: Mapping[str, int] | None = None, keep_awake: str | None = None
) -> None:
    """Replace the content of the undo file.

    The replacement is atomic and synced to the disk.

    Parameters
    ----------
    path : Path
        The file.
    asleep, weights, keep_awake
        As in :class:`NodesUndo`.

    Raises
    ------
    UndoNotWritten
        The folder cannot be written to, or a name is one that the shell could not read back.
    """
    rows = [f"asleep\t{node}" for node in asleep]
    rows += [f"weight\t{node}\t{own}" for node, own in (weights or {}).items()]
    rows += [] if keep_awake is None else [f"keep_awake\t{parse.text(keep_awake.strip()) or '(null)'}"]
    text = "".join(f"{row}\n" for row in rows)
    if _parse(text) is None:
        raise UndoNotWritten(f"A node's name or the keep-awake list cannot be written to {path}: {text!r:.200}")
    try:
        atomic_write(path, text)
    except OSError as reason:
        raise UndoNotWritten(
            f"{path} cannot be written: {reason.strerror}", hint="Give Helios its [control] state_folder."
        ) from reason


def read_undo(path: Path) -> NodesUndo:
    """Return the content of the undo file.

    It is empty where there is no file.

    Raises
    ------
    FileUnreadable
        The file cannot be read, or is damaged.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return NodesUndo()
    except (OSError, UnicodeDecodeError) as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason}", hint=_LOOK) from reason
    if (found := _parse(text)) is None:
        raise FileUnreadable(f"{path} is damaged.", hint=_LOOK)
    return found


def _parse(text: str) -> NodesUndo | None:
    """Return the content of the file, or None where it is damaged."""
    asleep: list[str] = []
    weights: dict[str, int] = {}
    keep_awake: str | None = None
    for line in text.splitlines():
        match line.split("\t"):
            case ["asleep", node] if _NODE.fullmatch(node):
                asleep.append(node)
            case ["weight", node, own] if _NODE.fullmatch(node) and _WEIGHT.fullmatch(own):
                weights[node] = int(own)
            case ["keep_awake", own] if _LIST.fullmatch(own) and keep_awake is None:
                keep_awake = parse.text(own) or ""
            case _:
                return None
    return NodesUndo(asleep=tuple(asleep), weights=weights, keep_awake=keep_awake)


_Job = tuple[str, int]
"""Job number and submission, s since the epoch. Slurm reuses numbers, and a requeue is a new submission (22.05.8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoEntry:
    """Value that Helios wrote, or is about to write, to a job.

    It is a SiteFactor, or a TimeMin in minutes.
    """

    setting: JobSetting
    job_id: str
    submitted: int
    value: int

    @property
    def line(self) -> str:
        """The line of the file."""
        return f"{_WORD[self.setting]}\t{self.job_id}\t{self.submitted}\t{self.value}\n"


class JobsUndo:
    """Record of what Helios wrote to jobs.

    One process at a time may add to it (under the cycle's lock), any number may read.

    Parameters
    ----------
    folder : Path, optional
        ``[control] state_folder``; None for a record in memory only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._problem = ""
        self._path = None if folder is None else folder / JOBS_FILE
        self._hook_path = None if folder is None else folder / PUBLISHED
        self._values: dict[tuple[JobSetting, _Job], tuple[int, ...]] = {}
        self._applied_now: dict[tuple[JobSetting, _Job], int] = {}
        self._submissions: dict[str, set[int]] = {}
        self._published = PublishedTables()
        self._lines = self._kept = 0  # lines of the file now, and after it was last rewritten
        self._read_as: tuple[object, object] = (None, None)

    @property
    def problem(self) -> str:
        """Why a record could not be read.

        Empty where all could, or there is none.
        """
        return self._problem or self._published.problem

    def refresh(self) -> None:
        """Read the files again if they changed."""
        state = (_file_state(self._path), _file_state(self._hook_path))
        if state == self._read_as:
            return
        if state[0] != self._read_as[0]:
            self._read()
        if state[1] != self._read_as[1] and self._hook_path is not None:
            self._published = read_published(self._hook_path)
        self._read_as = state

    def load(self, entries: Iterable[UndoEntry]) -> None:
        """Replace the values known from the database, in memory.

        The database's table of applied changes is the second record beside the file.
        """
        self._applied_now = {_key(entry): entry.value for entry in entries}
        for _, (job_id, submitted) in self._applied_now:
            self._submissions.setdefault(job_id, set()).add(submitted)

    def has_record(self, setting: JobSetting, job: RawJob, value: int) -> bool:
        """Return whether Helios, or its hook, wrote ``value`` to a job."""
        if not value:
            return False
        of_the_applied_now = any(self._applied_now.get((setting, known)) == value for known in self._recorded_keys(job))
        return of_the_applied_now or self.has(setting, job, value) or self._published.has(setting, job, value)

    def has(self, setting: JobSetting, job: RawJob, value: int) -> bool:
        """Return whether the file itself has ``value`` for a job."""
        return any(value in self._values.get((setting, known), ()) for known in self._recorded_keys(job))

    def contains(self, entry: UndoEntry) -> bool:
        """Return whether the file itself has ``entry``."""
        return entry.value in self._values.get(_key(entry), ())

    def last(self, setting: JobSetting, job: RawJob) -> int:
        """Return the last known value that Helios wrote to a job.

        0 where there is none, or it was observed to be gone.
        """
        for known in self._recorded_keys(job):
            if values := self._values.get((setting, known)):
                return values[-1]
        return next(
            (
                self._applied_now[setting, known]
                for known in self._recorded_keys(job)
                if (setting, known) in self._applied_now
            ),
            0,
        )

    def add(self, entries: Iterable[UndoEntry], *, queue: Collection[RawJob] = ()) -> None:
        """Record values before they are written to Slurm.

        A value of 0 is recorded after a value was observed to be gone.

        Parameters
        ----------
        queue : collection of RawJob
            All jobs of the cluster. Entries of other jobs may be dropped.

        Raises
        ------
        UndoNotWritten
            The entries are not on the disk, so that nothing may be written to Slurm.
        """
        new = [entry for entry in entries if self._values.get(_key(entry), (0,))[-1] != entry.value]
        if not new:
            return
        self._remember(new)
        if self._path is None:
            return
        try:
            if queue and self._lines + len(new) > 2 * self._kept + _SLACK:
                self._rewrite(queue)
            else:
                _append(self._path, "".join(entry.line for entry in new))
                self._lines += len(new)
        except OSError as reason:
            self._read_as = (None, None)  # forces a new reading, since entries that are not on the disk must not count
            raise UndoNotWritten(
                f"{self._path} cannot be written: {reason.strerror}", hint="Give Helios its [control] state_folder."
            ) from reason
        self._read_as = (_file_state(self._path), self._read_as[1])

    def _recorded_keys(self, job: RawJob) -> Sequence[_Job]:
        """Return the keys under which a job may be recorded, latest first.

        They are the job's own and its array's. For a requeued job earlier submissions count too.
        """
        job_id, array, submitted = job["job_id"], job["array_job_id"], job["submitted"]
        own = self._submissions.get(job_id, _NO_SUBMISSIONS)
        if array is None or array == job_id:
            if not own:
                return ()
            if submitted in own and len(own) == 1:  # fast path, called several times for each of 100,000 jobs
                return ((job_id, submitted),)
        others = self._submissions.get(array, _NO_SUBMISSIONS) if array not in {None, job_id} else _NO_SUBMISSIONS
        return [
            (name, then)
            for name, thens in ((job_id, own), (array or "", others))
            for then in sorted(thens, reverse=True)
            if then == submitted or (job["restart"] > 0 and then < submitted)
        ]

    def _remember(self, entries: Iterable[UndoEntry]) -> None:
        for entry in entries:
            self._submissions.setdefault(entry.job_id, set()).add(entry.submitted)
            known = tuple(value for value in self._values.get(_key(entry), ()) if value != entry.value)
            self._values[_key(entry)] = (*known, entry.value)[-_MOST_VALUES:]

    def _read(self) -> None:
        self._values, self._lines, self._kept, self._problem = {}, 0, 0, ""
        if self._path is None:
            return
        try:
            lines = self._path.read_text(encoding="ascii", errors="replace").split("\n")
        except FileNotFoundError:
            return
        except OSError as reason:
            self._problem = f"{self._path} cannot be read: {reason.strerror}"
            return
        self._lines = len(lines)
        # A partial or damaged line proves nothing; the shell script leaves it out too.
        self._remember(
            UndoEntry(setting=_SETTING[word], job_id=job_id, submitted=int(submitted), value=int(value))
            for line in lines
            if (found := _LINE.fullmatch(line))
            for word, job_id, submitted, value in [found.groups()]
        )

    def _rewrite(self, queue: Collection[RawJob]) -> None:
        alive = {name for job in queue for name in (job["job_id"], job["array_job_id"])}
        self._values = {key: values for key, values in self._values.items() if key[1][0] in alive}
        self._submissions = {job_id: them for job_id, them in self._submissions.items() if job_id in alive}
        lines = [
            UndoEntry(setting=setting, job_id=job[0], submitted=job[1], value=value).line
            for (setting, job), values in self._values.items()
            for value in values
        ]
        assert self._path is not None
        atomic_write(self._path, "".join(lines), mode=MODE)
        self._lines = self._kept = len(lines)


def _key(entry: UndoEntry) -> tuple[JobSetting, _Job]:
    return entry.setting, (entry.job_id, entry.submitted)


def _file_state(path: Path | None) -> object:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError as reason:
        return reason.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


def _append(path: Path, text: str) -> None:
    make_folder(path.parent)
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        if is_new:
            give_to_folder_owner(handle, path)
        file = LinesFile(handle)
        file.skip()
        file.append(text.encode("ascii"))
    finally:
        os.close(handle)
    if is_new:
        fsync_directory(path.parent)
