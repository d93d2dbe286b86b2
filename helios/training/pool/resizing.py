"""Changes of the devices of trials that may change their size.

A program with the agent of elastic training is asked to change in place. Where it cannot, it is paused at a checkpoint
and started again. Devices that a trial gets are its own from the request on, and those that it leaves until the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from helios.training.model import (
    NUMBERS,
    Device,
    ResizeTrial,
    StartTrial,
    Trial,
    TrialState,
    node_name,
    placement,
)
from helios.training.pool.attempts import Attempt, Attempts, PendingResize
from helios.training.pool.clock import steady_s
from helios.training.pool.elastic_state import plain_number
from helios.training.pool.launcher import Launcher
from helios.training.pool.notes import Notes
from helios.training.pool.reports import TaskRequest, one_line, write_request
from helios.training.pool.trials import Sweeps
from helios.training.sizes.goodput import learn_goodput

ANSWER_S = 300.0
"""How long a program may take to start workers, s: on a loaded machine imports alone take minutes."""
LATE_S = 5.0
"""How long after that the answer may be read, s."""
REFUSED_S = 600.0
"""How long a program that kept its size is not asked again, s."""


class Resizing:
    """Gives running trials other devices, as services want."""

    def __init__(self, *, sweeps: Sweeps, attempts: Attempts, launcher: Launcher, notes: Notes) -> None:
        self._sweeps, self._attempts, self._launcher, self._notes = sweeps, attempts, launcher, notes
        self._numbers = count(1)
        self._restarts: dict[int, tuple[Attempt, PendingResize]] = {}

    def ask(self, action: ResizeTrial) -> None:
        """Ask a trial to change to other devices, if it may."""
        attempt, now = self._attempts.running.get(action.number), steady_s()
        if attempt is None or attempt.change is not None or attempt.is_asked_to_end or now < attempt.kept_until_s:
            return
        devices = self._order(attempt, action.devices)
        new = [each for each in devices or () if each not in attempt.devices]
        if devices is None or {*devices} == {*attempt.devices}:
            return
        if not all(self._launcher.may_start(attempt.trial, each) for each in new):
            return  # as where another trial is about to leave them
        if problem := self._problem(attempt, devices):
            about = f"Trial {attempt.trial.label} is not resized to {len(devices)} devices: {problem}"
            self._notes.note(about, key=f"{attempt.trial.number} {problem}")
            return
        is_open = attempt.asked is TaskRequest.CHECKPOINT and attempt.answered is not TaskRequest.CHECKPOINT
        if is_open or not attempt.has_reported:
            return
        kept = any(each in attempt.devices for each in devices)  # whose worker hands its state over
        is_local = {*attempt.nodes, *(node_name(each.name) for each in devices)} == {attempt.nodes[0]}
        in_place = attempt.is_elastic and kept and is_local  # over several nodes a program starts again
        change = self._change(attempt, devices, in_place=in_place, reason=action.reason)
        try:
            self._write_request(attempt, change)
        except OSError as reason:  # a full disk: a service may want it again
            about = f"Trial {attempt.trial.label} is not resized now: {reason.strerror}"
            self._notes.note(about, key=f"{attempt.trial.number} request")
            return
        attempt.change, attempt.share = change, None
        self._publish("resizing", attempt, devices=[each.name for each in devices], reason=action.reason)
        self._assign(attempt, (*attempt.devices, *new))
        if not in_place:
            attempt.asked, attempt.why = TaskRequest.PAUSE, action.reason
            self._restarts[action.number] = attempt, change

    def work(self) -> None:
        """Take answers, and give up waiting for those that do not come."""
        for number, (paused, restart) in list(self._restarts.items()):
            if self._attempts.running.get(number) is not paused:
                del self._restarts[number]
                self._start_again(paused, restart)
        for attempt in self._attempts.running.values():
            for message in attempt.told:
                self._take(attempt, message)
            attempt.told.clear()
            if attempt.restarted_s is not None and attempt.first_report_s is not None:
                pause_s, attempt.restarted_s = steady_s() - attempt.restarted_s, None
                self._record(attempt, pause_s, in_place=False)
            change = attempt.change
            if change is None or steady_s() < change.by_s + LATE_S:
                continue
            if attempt.answered is not TaskRequest.PAUSE:
                self._give_up(attempt, change, f"it did not answer in {ANSWER_S:g} s")

    def _order(self, attempt: Attempt, names: Sequence[str]) -> tuple[Device, ...] | None:
        """Return devices, those that the trial has first, if all are there."""
        by_name = {device.name: device for device in self._launcher.devices}
        if not names or not {*names} <= by_name.keys():
            return None
        kept = [each for each in attempt.devices if each.name in names]
        return (*kept, *(by_name[name] for name in dict.fromkeys(names) if by_name[name] not in kept))

    def _problem(self, attempt: Attempt, devices: Sequence[Device]) -> str:
        """Return why a trial may not have some devices, nothing where it may."""
        program, trial = self._sweeps.of(attempt.trial.number).sweep.elastic, attempt.trial
        if program is None:
            return "its size is fixed, since its sweep has no [elastic]"
        if not program.least <= len(devices) <= program.most:
            return f"its sweep allows {program.least} to {program.most}"
        least_mib = min(each.memory_mib for each in devices)
        if least_mib < attempt.limit_mib and not (trial.peak_memory_mib or math.inf) <= least_mib:
            return f"its limit is {attempt.limit_mib:,.0f} MiB, and one of these devices has {least_mib:,.0f}"
        return ""

    def _assign(self, attempt: Attempt, devices: tuple[Device, ...]) -> None:
        """Assign devices to a trial, which its agent measures there."""
        gone = [each for each in attempt.devices if each not in devices]
        attempt.devices = devices
        attempt.limit_mib = min(attempt.limit_mib, *(each.memory_mib for each in devices))
        names = tuple(each.name for each in devices)
        attempt.trial = replace(attempt.trial, devices=names, memory_limit_mib=attempt.limit_mib)
        self._attempts.change_neighbours((*devices, *gone))
        self._launcher.limit(attempt)
        for trials in self._sweeps:
            trials.changed |= bool(gone)

    def _change(self, attempt: Attempt, devices: tuple[Device, ...], *, in_place: bool, reason: str) -> PendingResize:
        number, by_s = next(self._numbers), round(steady_s() + ANSWER_S, 3)
        return PendingResize(
            number=number, devices=devices, before=attempt.devices, by_s=by_s, in_place=in_place, reason=reason
        )

    def _write_request(self, attempt: Attempt, change: PendingResize) -> None:
        """Ask a program to change, or to pause for it."""
        path = attempt.folder / "requests"
        if not change.in_place:
            write_request(path, TaskRequest.PAUSE)
            return
        limit_mib = min(attempt.limit_mib, *(each.memory_mib for each in change.devices))
        workers = self._launcher.worker_environments(change.devices, limit_mib)
        batch = _choose_batch(attempt.trial, change.devices) if change.devices != change.before else None
        write_request(path, TaskRequest.RESIZE, number=change.number, devices=workers, batch=batch, by_s=change.by_s)

    def _take(self, attempt: Attempt, message: Mapping[str, Any]) -> None:
        """Take what a program tells of its size."""
        change, devices, number = attempt.change, message.get("devices"), message.get("number")
        is_answer = change is not None and change.in_place and number == change.number
        is_late = number is not None and number == attempt.missed and "refused" not in message
        if "lost" in message and type(devices) is int:
            self._shrink(attempt, devices, message)
        elif change is not None and is_answer and "refused" in message:
            self._give_up(attempt, change, one_line(message["refused"]) or "it said no")
        elif change is not None and is_answer and type(devices) is int and 0 < devices <= len(change.devices):
            self._sum_up(attempt)
            attempt.change = None
            self._assign(attempt, change.devices[:devices])
            self._record(attempt, plain_number(message.get("pause_s")), in_place=True)
        elif change is None and not attempt.is_asked_to_end and (is_late or self._has_too_many(attempt, message)):
            # It changed too late, or its answer was lost, and others may have the devices: it is asked to go back.
            back = self._change(attempt, attempt.devices, in_place=True, reason="")
            with suppress(OSError):  # a full disk: its next step tells it again
                self._write_request(attempt, back)
                attempt.change, attempt.missed = back, None

    def _has_too_many(self, attempt: Attempt, message: Mapping[str, Any]) -> bool:
        """Return whether steps are told of more devices than a trial has."""
        devices, program = message.get("devices"), self._sweeps.of(attempt.trial.number).sweep.elastic
        if program is None or "number" in message or type(devices) is not int or len(attempt.nodes) > 1:
            return False
        return devices > len(attempt.devices) and steady_s() >= attempt.sized_s + program.every_s

    def _shrink(self, attempt: Attempt, count: int, message: Mapping[str, Any]) -> None:
        """Record that workers of a trial have died."""
        held = attempt.devices if attempt.change is None else attempt.change.before
        places = message.get("kept")
        known = isinstance(places, list) and all(type(place) is int and 0 <= place < len(held) for place in places)
        kept = tuple(held[place] for place in dict.fromkeys(places)) if known and places else held[: max(count, 0)]
        if not 0 < len(kept) < len(held):
            return
        self._sum_up(attempt)
        if attempt.change is not None:
            attempt.change = replace(attempt.change, before=kept)
        else:
            self._assign(attempt, kept)
        self._notes.note(f"Trial {attempt.trial.label} goes on with {len(kept)} devices: {one_line(message['lost'])}")
        self._record(attempt, None, in_place=True)

    def _give_up(self, attempt: Attempt, change: PendingResize, why: str) -> None:
        """Leave a trial at its size."""
        attempt.change, attempt.kept_until_s = None, steady_s() + REFUSED_S
        attempt.missed = change.number
        self._restarts.pop(attempt.trial.number, None)
        if not attempt.is_asked_to_end or not change.in_place:
            attempt.asked = None
            with suppress(OSError):
                write_request(attempt.folder / "requests", None)
        self._assign(attempt, change.before)
        self._publish("kept_size", attempt, devices=[each.name for each in change.before], reason=why)
        self._notes.note(f"Trial {attempt.trial.label} keeps its {len(change.before)} devices: {why}")

    def _start_again(self, attempt: Attempt, change: PendingResize) -> None:
        """Start a trial that has paused for it on its new devices."""
        trial = self._sweeps.of(attempt.trial.number).waiting.get(attempt.trial.number)
        if trial is None or trial.state is not TrialState.PAUSED or self._attempts.stop_reason:
            return
        names, limit_mib = tuple(each.name for each in change.devices), attempt.limit_mib
        start = StartTrial(number=trial.number, devices=names, memory_limit_mib=limit_mib, reason=change.reason)
        self._launcher.start(start)
        if (started := self._attempts.running.get(trial.number)) is not None:
            started.restarted_s = started.began_s

    def _sum_up(self, attempt: Attempt) -> None:
        """Count the device time of a trial until now."""
        program = self._sweeps.of(attempt.trial.number).sweep.elastic
        attempt.trial, attempt.sized_s = attempt.seen, steady_s()
        attempt.kept_until_s = attempt.sized_s + (program.every_s if program is not None else 0.0)

    def _record(self, attempt: Attempt, pause_s: float | None, *, in_place: bool) -> None:
        """Record that the devices of a trial have changed."""
        elastic = attempt.trial.elastic
        assert elastic is not None
        # A program that changes in place is started again seldom, and the next change will not cost that.
        change_s = pause_s if pause_s is not None and (in_place or not elastic.measured) else elastic.change_s
        attempt.trial = replace(
            attempt.trial, elastic=replace(elastic, restarts=elastic.restarts + 1, change_s=change_s)
        )
        about: dict[str, Any] = {"devices": list(attempt.trial.devices), "pause_s": pause_s, "in_place": in_place}
        trials = self._sweeps.of(attempt.trial.number)
        trials.state.record_resized(attempt.trial.number % NUMBERS, **about)
        trials.changed = True
        self._publish("resized", attempt, **about)

    def _publish(self, event: str, attempt: Attempt, **about: Any) -> None:
        which = self._sweeps.of(attempt.trial.number).identify(attempt.trial.number)
        self._notes.publish({"event": event, **which, **about})


def _choose_batch(trial: Trial, devices: Sequence[Device]) -> int | None:
    """Return the batch of the best goodput, None where it stays."""
    known = trial.elastic
    if known is None or known.limits.smallest == known.limits.largest:
        return None
    goodput = learn_goodput(known.measured, known.gradient, known.limits)
    if goodput is None:
        return None
    batch = goodput.choose_batch(len(placement(each.name for each in devices)), len(devices))
    return batch.total(len(devices)) or None
