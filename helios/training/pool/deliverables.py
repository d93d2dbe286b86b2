"""Deliverables of a pool, each published exactly once.

A model that reached a target is copied beside its place and then renamed, so that a deliverable is complete from the
moment in which it is there, and no kill or other pool publishes a second one. The command for it is called after that
and before the record, so at least once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from helios.private_files import FOLDER, fsync_directory
from helios.training.pool.clock import steady_s
from helios.training.pool.reports import PlainFile, Report, TaskRequest, read_end
from helios.training.pool.state import MEMBERS, TrialRecord, is_locked

if TYPE_CHECKING:
    from helios.training.pool.attempts import Attempt
    from helios.training.pool.notes import Notes
    from helios.training.pool.trials import SweepTrials

FOLDERS = ("deliverable", "deliverable-2")
"""Folders in that of the pool, for the first and the second target."""
FILE = "target.json"
LOG = "on_target.log"
ANSWER_S = 300.0
"""How long a program that has no checkpoint may take to answer that it makes one, s. It may look once an epoch."""
COMMAND_S = 60.0
"""How long the command for a deliverable may take, s, as the end of the pool waits for it."""
RETRY_S = 30.0
"""After how long a deliverable that could not be written is tried again."""


class Deliverables:
    """Publishes what reached a sweep's targets, one at a time."""

    def __init__(self, *, trials: SweepTrials, notes: Notes) -> None:
        self._trials, self._notes = trials, notes
        self._confirmed: dict[int, tuple[str, int | None]] = {}
        self._asked_s: dict[tuple[int, int], float] = {}
        self._job: tuple[int, Future[str]] | None = None
        self._next_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether one is being published now."""
        return self._job is not None

    def confirm(self, attempt: Attempt, report: Report) -> None:
        """Remember a checkpoint that is not older than a target."""
        if report.checkpoint is None:
            return
        step = attempt.step if report.step is None else report.step
        for tier, about in self._trials.state.reached.items():
            if self._trials.pool_number(self._record(tier)) != attempt.trial.number:
                continue
            is_later = report.time_s is None or report.time_s >= (about["time_s"] or 0.0)
            if is_later if about["step"] is None else step is not None and step >= about["step"]:
                self._confirmed[tier] = report.checkpoint, step

    def work(self) -> None:
        """Publish what is ready, and record what was published."""
        if self._job is not None and self._job[1].done():
            self._end(*self._job)
        for tier in sorted(self._trials.state.reached.keys() - self._trials.state.delivered.keys()):
            if self._job is None and steady_s() >= self._next_s and self._is_ready(tier):
                self._job = tier, self._begin(tier)

    def _record(self, tier: int) -> TrialRecord:
        return self._trials.state.trials[self._trials.state.reached[tier]["trial"]]

    def _is_ready(self, tier: int) -> bool:
        """Return whether one can be published, else ask the program for it."""
        state, record = self._trials.state, self._record(tier)
        if state.problem or not (state.is_mine(record) or (record.ended and not state.has_owner(record))):
            return False
        if record.ended or tier in self._confirmed:
            return True
        for attempt in self._trials.running:
            if attempt.trial.number == self._trials.pool_number(record):
                is_free = attempt.change is None and attempt.asked in {None, TaskRequest.CHECKPOINT}
                if is_free and (tier, record.attempts) not in self._asked_s:
                    self._asked_s[tier, record.attempts] = steady_s()
                    attempt.request(TaskRequest.CHECKPOINT)
                waits_s = steady_s() - self._asked_s.get((tier, record.attempts), steady_s())
                saves = attempt.answered is TaskRequest.CHECKPOINT or find_checkpoint(attempt.folder / "checkpoints")
                return waits_s > ANSWER_S and not saves
        return False

    def _begin(self, tier: int) -> Future[str]:
        trials, record = self._trials, self._record(tier)
        name, step = self._confirmed.get(tier, (None, None))
        checkpoints = trials.folder(record.number) / "checkpoints"
        checkpoint = find_checkpoint(checkpoints, name)
        about = {key: value for key, value in trials.state.reached[tier].items() if key not in {"what", "at_s"}}
        about |= {"tier": tier + 1, "sweep": trials.source.name, "parameters": dict(record.parameters)}
        confirmed = checkpoint is not None and name is not None and (checkpoints / name).exists()
        about |= {"checkpoint": checkpoint and checkpoint.name, "confirmed": confirmed}
        about |= {"checkpoint_step": step if confirmed else None}
        place, future = trials.source.folder / FOLDERS[tier], Future[str]()

        def work() -> None:
            try:
                if place.exists():  # a pool that was killed has published it
                    _check_same(place, about)
                else:
                    _publish(place, checkpoint, about, root=checkpoints.resolve(), run=trials.state.run)
                future.set_result(_call(trials.sweep.on_target, place, trials.sweep.cwd))
            except Exception as reason:  # whatever it is, the pool goes on
                future.set_exception(reason)

        Thread(target=work, name=f"helios {place.name}", daemon=True).start()
        return future

    def _end(self, tier: int, future: Future[str]) -> None:
        """Record what was published, or have it tried again."""
        self._job, place = None, self._trials.source.folder / FOLDERS[tier]
        if (reason := future.exception()) is not None:
            self._next_s = steady_s() + RETRY_S
            is_written = place.exists() and not isinstance(reason, FileExistsError)
            what = f"The command on_target was not called for {place}" if is_written else f"{place} is not written yet"
            again = "it is tried again, also by the next helios pool run"
            self._notes.note(f"{what}: {reason}; {again}", key=f"problem of {place}")
            return
        number, problem = self._record(tier).number, future.result()
        saved = any(each.name != FILE for each in place.glob("*"))
        self._trials.state.record_delivered(number, tier, folder=str(place), checkpoint=saved, problem=problem)
        self._notes.publish({"event": "delivered", **self._trials.identify(number), "folder": str(place)})
        alone = (
            ""
            if saved
            else f" with {FILE} alone, since trial {self._trials.label(number)} has no checkpoint in its folder"
        )
        self._notes.note(f"Delivered: {place}{alone}")
        if problem:
            self._notes.note(f"The command on_target {problem}; see {place.with_name(LOG)}")


def _publish(place: Path, checkpoint: Path | None, about: Mapping[str, Any], *, root: Path, run: str) -> None:
    for left in place.parent.glob(f".{place.name}.*"):
        if left.suffix[1:] == run or not is_locked(place.parent / MEMBERS / left.suffix[1:]):
            shutil.rmtree(left)
    partial = place.with_name(f".{place.name}.{run}")
    partial.mkdir(mode=FOLDER)
    try:
        if checkpoint is not None:
            copy_unchanged(checkpoint, partial / checkpoint.name, root)
        (partial / FILE).write_text(json.dumps(about, indent=2, default=str) + "\n")
        for each in [*partial.rglob("*"), partial]:
            if not each.is_symlink():
                fsync_directory(each)
        try:
            partial.rename(place)
        except OSError:
            if not place.exists():  # else another pool was first
                raise
        fsync_directory(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_same(place: Path, about: Mapping[str, Any]) -> None:
    """Check that a folder that is there is of what was reached now.

    Raises
    ------
    FileExistsError
        It is of an earlier pool in this folder, or somebody's own.
    """
    with suppress(OSError, ValueError, AttributeError):
        there = json.loads((place / FILE).read_bytes())
        if all(there.get(key) == about[key] for key in ("trial", "tier", "value", "time_s")):
            return
    raise FileExistsError("there is another folder of this name, which must be moved away")


def _call(command: Sequence[str], place: Path, cwd: Path) -> str:
    """Run the command for what was delivered, and return what went wrong."""
    if not command:
        return ""
    about = {**json.loads((place / FILE).read_bytes()), "folder": str(place)}
    own = {
        f"HELIOS_TARGET_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }
    words = ["timeout", "--kill-after=5", f"{COMMAND_S:g}", *command]  # which ends what it started, too
    with place.with_name(LOG).open("ab") as log, (place / FILE).open("rb") as content:
        done = subprocess.run(words, cwd=cwd, env=os.environ | own, stdin=content, stdout=log, stderr=log, check=False)
    status = f"ended with status {done.returncode}"
    return {0: "", 124: f"was ended after {COMMAND_S:g} s"}.get(done.returncode, status)


def find_checkpoint(folder: Path, name: str | None = None) -> Path | None:
    """Return a checkpoint of a trial, None where there is none.

    It is the one with the name, else the one that the program calls its latest, else the newest. One that is a link
    must be of the folder, too. One of the name of our own file cannot be delivered beside it.
    """
    latest = read_end(folder / "latest", owner=os.geteuid())
    named = [name, *(line.decode("utf-8", "replace").strip() for line in latest)]
    with suppress(OSError, ValueError):
        newest = sorted(folder.glob("[!.]*"), key=lambda path: path.lstat().st_mtime, reverse=True)
        for path in [*(folder / each for each in named if each), *newest]:
            found = path.resolve()
            if found.exists() and folder.resolve() in found.parents and found.name not in {"latest", FILE}:
                return found
    return None


def copy_unchanged(source: Path, into: Path, root: Path) -> None:
    """Copy a file or folder that nobody changes meanwhile.

    What its links lead to in the root, beside it, is copied as well, since the program may change that later.

    Raises
    ------
    OSError
        It cannot be copied, or has changed.
    """
    if source.is_dir():
        before = _versions(source)
        _copy_folder(source, into, root)
        changed = _versions(source) != before
    else:
        with closing(PlainFile(source)) as file, into.open("xb") as copy:
            first = os.fstat(file.handle)
            while part := os.read(file.handle, 1 << 20):
                copy.write(part)
            last = os.fstat(file.handle)  # of this file, also where the program has another by its name now
        changed = (first.st_size, first.st_mtime_ns) != (last.st_size, last.st_mtime_ns)
    if changed:
        raise OSError(f"{source.name} was changed while it was copied")


def _copy_folder(source: Path, into: Path, root: Path) -> None:
    try:
        shutil.copytree(source, into, symlinks=True)
    except shutil.Error as several:
        raise OSError(f"{source.name}: {several.args[0][0][2]}") from several
    for link in [each for each in into.rglob("*") if each.is_symlink()]:
        meant = (source / link.relative_to(into)).resolve()
        link.unlink()
        if meant.is_relative_to(source):
            link.symlink_to(os.path.relpath(into / meant.relative_to(source), link.parent))
        elif not (meant.exists() and meant.is_relative_to(root)):
            link.symlink_to(meant)  # as of a data set, or of a model that it began with
        elif meant.is_dir():
            shutil.copytree(meant, link, symlinks=True)
        else:
            shutil.copy2(meant, link)


def _versions(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what shows that the files of a folder are changed."""
    found = {each: each.stat() if each.exists() else each.lstat() for each in folder.rglob("*")}
    return {each: (about.st_ino, about.st_size, about.st_mtime_ns) for each, about in found.items()}
