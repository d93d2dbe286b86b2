"""How trials of a pool end, and what becomes of them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from helios.training.model import TrialState
from helios.training.pool.attempts import Attempt, Attempts
from helios.training.pool.clock import steady_s
from helios.training.pool.fusing import FusedProcess
from helios.training.pool.notes import Notes
from helios.training.pool.readings import Readings
from helios.training.pool.reports import TaskRequest
from helios.training.pool.state import TrialRecord
from helios.training.pool.trials import MOST_MEMORY_KILLS, Sweeps

MOST_OUTSIDE_KILLS = 10
"""How often a trial is started again that somebody else killed."""
_LOG_END = 16_384
"""Bytes at the end of a log in which an error is looked for."""
_NO_MEMORY = re.compile(
    rb"out of memory|OutOfMemoryError|MemoryError|std::bad_alloc|RESOURCE_EXHAUSTED|Cannot allocate memory|oom[-_]kill"
)
_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}


class Endings:
    """Decides what becomes of trials whose process has ended."""

    def __init__(self, *, sweeps: Sweeps, attempts: Attempts, readings: Readings, notes: Notes) -> None:
        self._sweeps, self._attempts, self._readings, self._notes = sweeps, attempts, readings, notes
        self._outside_kills: dict[int, int] = {}

    def end(self, attempt: Attempt, event: Mapping[str, Any]) -> None:
        """Record the end of a trial's process."""
        self._readings.read(attempt, to_end=True)
        self._readings.forget(attempt.trial.number)
        self._attempts.remove(attempt)
        what, state, reason = self._outcome(attempt, int(event["status"]), event)
        peak_mib = None if event["peak_memory_mib"] is None else event["peak_memory_mib"] / attempt.parts
        peaks = [peak for peak in (peak_mib, attempt.trial.peak_memory_mib) if peak is not None]
        trials = self._sweeps.of(attempt.trial.number)
        ended = trials.describe_run(
            replace(attempt, trial=replace(attempt.trial, peak_memory_mib=max(peaks, default=None))),
            what,
            float(event["seconds"]),
            utilization=event.get("utilization"),
            energy_j=event.get("energy_j"),
        )
        record = trials.record_end(attempt, what, state, reason, ended, seconds=float(event["seconds"]))
        self._notes.publish({"event": what, **trials.identify(attempt.trial.number), **record.to_json()})

    def end_if_done(self, attempt: Attempt) -> None:
        """End a trial that its process has done with."""
        process, message = attempt.process, attempt.ended
        if process is None or not message:
            return
        event = {"seconds": steady_s() - attempt.began_s, "peak_memory_mib": None, "out_of_memory": False}
        self.end(attempt, {**event, "status": int(message["ended"] == "failed")})

    def end_process(self, process: FusedProcess, event: Mapping[str, Any]) -> None:
        """End the trials of a process that has ended."""
        attempts = [self._attempts.running[number] for number in sorted(process.trials)]
        for attempt in attempts:
            self._readings.read(attempt, to_end=True)
            self.end_if_done(attempt)
        del self._attempts.processes[process.number]
        left = [attempt for attempt in attempts if attempt.trial.number in self._attempts.running]
        fusion, status, shared = self._sweeps.of(process.number).fusion, int(event["status"]), len(left) > 1
        of_memory = bool(event["out_of_memory"]) or (status != 0 and any(map(_log_shows_out_of_memory, left[:1])))
        crashed = status not in _OUTSIDE | {0, 127} and not of_memory
        for attempt in left:
            if shared and (of_memory or crashed):
                attempt.ended = {"ended": "together"}
            if crashed:  # who is to blame is not known
                fusion.separate.add(attempt.trial.number)
        if shared and of_memory:
            fusion.limit_fused(left[0].trial.parameters, len(left) // 2)
        if status == 0:  # it had gone when they were told to it
            event = {**event, "status": -signal.SIGTERM, "reason": "left by its process"}
        share = None if event["peak_memory_mib"] is None else event["peak_memory_mib"] / max(1, len(left))
        for attempt in left:
            self.end(attempt, {**event, "peak_memory_mib": share})

    def _outcome(  # noqa: PLR0911 - a table of cases
        self, attempt: Attempt, status: int, event: Mapping[str, Any]
    ) -> tuple[str, TrialState, str]:
        """Return how an attempt ended, what the trial is now, and why."""
        trials, number = self._sweeps.of(attempt.trial.number), attempt.trial.number
        record = trials.record(number)
        asked = bool(event.get("asked"))
        how, why = attempt.ended.get("ended"), str(attempt.ended.get("reason", ""))
        if how == "diverged":
            return "diverged", TrialState.DIVERGED, why
        if how == "stopped" or (attempt.stopped and not _ran_to_end(attempt, status, asked)):
            return (
                _stopped(attempt, ended_by_pool=asked)
                if attempt.finished
                else ("pruned", TrialState.PRUNED, why or attempt.why)
            )
        if how in {"apart", "together"}:
            return "interrupted", TrialState.WAITING, why or "the process that trained it with others ended"
        paused = attempt.answered is TaskRequest.PAUSE and status == 0
        if self._attempts.stop_reason and (paused or asked):
            return "interrupted", TrialState.WAITING, self._attempts.stop_reason
        if paused or asked:
            return (
                "paused",
                TrialState.PAUSED,
                f"paused by the service: {attempt.why}" if attempt.asked is TaskRequest.PAUSE else "it paused",
            )
        if status == 0 and attempt.diverged:
            return "diverged", TrialState.DIVERGED, f"its last {min(attempt.diverged)} is not a finite number"
        if status == 0:
            return "finished", TrialState.FINISHED, ""
        if event["out_of_memory"] or (how != "failed" and _log_shows_out_of_memory(attempt)):
            return _out_of_memory(attempt, record)
        why = why or (str(event["reason"]) if "reason" in event else _status_in_words(status))
        if status in _OUTSIDE:
            kills = self._outside_kills[number] = self._outside_kills.get(number, 0) + 1
            if kills <= MOST_OUTSIDE_KILLS:
                return "killed", TrialState.WAITING, f"it was {why}"
        if record.failures + 1 < trials.sweep.attempts:
            return "failed", TrialState.WAITING, why
        return "failed", TrialState.FAILED, f"{why}; see {attempt.log}"


def _stopped(attempt: Attempt, *, ended_by_pool: bool) -> tuple[str, TrialState, str]:
    """Return the same of a trial that was to end as finished."""
    if attempt.diverged:
        return "diverged", TrialState.DIVERGED, attempt.why
    late = "; it did not end by itself" if ended_by_pool else ""
    return "stopped", TrialState.FINISHED, attempt.why + late


def _ran_to_end(attempt: Attempt, status: int, asked: bool) -> bool:
    """Return whether a trial ended by itself, without being asked."""
    if status != 0 or attempt.ended.get("ended") == "finished" or attempt.trial.progress == 1.0:
        return status == 0
    return attempt.has_reported and attempt.answered is not TaskRequest.STOP and not asked


def _out_of_memory(attempt: Attempt, record: TrialRecord) -> tuple[str, TrialState, str]:
    limit = attempt.limit_mib
    whole = limit >= min(device.memory_mib for device in attempt.devices) and not attempt.beside
    if record.memory_kills >= MOST_MEMORY_KILLS or (whole and record.memory_kills):
        names = " and ".join(device.name for device in attempt.devices)
        return "out_of_memory", TrialState.FAILED, f"it needs more memory than {names} has"
    return "out_of_memory", TrialState.WAITING, f"it needed more than {limit:,.0f} MiB"


def _log_shows_out_of_memory(attempt: Attempt) -> bool:
    """Return whether the log ends with an error about memory."""
    with suppress(OSError), attempt.log.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
        return _NO_MEMORY.search(log.read(_LOG_END)) is not None
    return False


def _status_in_words(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"
