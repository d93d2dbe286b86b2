"""Coordinator of a pool, which runs a sweep's trials.

It asks the search for trials and a service which of them to start where, has the agent start them, reads what they
report, and records how they end. It waits for events and does nothing in between but read reports.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from statistics import quantiles
from types import FrameType
from typing import Any, Protocol

from helios.errors import FileUnwritable, HeliosError
from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.training.model import (
    Device,
    Forecast,
    FusedSpeed,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    Trial,
    TrialForecast,
    TrialState,
    by_process,
    fuse,
    fused_with,
)
from helios.training.pool import agent
from helios.training.pool.containers import Container
from helios.training.pool.devices import THREADS, Node, device_environment, gpu_id
from helios.training.pool.event_files import EventReader
from helios.training.pool.fusing import FusedProcess, Fusion
from helios.training.pool.reports import Report, ReportReader, TaskRequest, write_request
from helios.training.pool.search import Search
from helios.training.pool.state import StateFile, TrialRecord, run_entry
from helios.training.pool.sweep import FUSED_TASK, FusedProgram, TrainingSweep

MOST_MEMORY_KILLS = 3
"""A trial that is killed for memory is started twice with more room; from then on it runs alone."""
MOST_OUTSIDE_KILLS = 10
"""How often a trial is started again that somebody else killed."""
MORE_ROOM = 1.5
"""What a trial that was killed for memory gets of its last limit."""
WAITING_AT_MOST = 10_000
"""How many trials of a grid are made before they can start."""
_READ_S, _COST = 0.25, 100
"""How often reports are read; one part in so many of a core goes into it."""
_LONGEST_READ_S = 2.0
"""A search that prunes takes milliseconds for a report; it would come too late."""
_DECIDE_S = 1.0
"""How often the service is asked while nothing happens; no more than a part of a core goes into it either."""
_TERM_GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""
_PRUNE_GRACE_S = 10.0
"""From the request to stop to SIGTERM."""
_SYNC_S = 0.5
"""A power cut loses what ended in so many seconds, which is run again; a kill loses nothing."""
_HOLD_S = 2.0
"""After how long a full disk is tried again."""
_RECENT = 100
"""Ended trials from which the time of the next is expected."""
_MOST_READS = 100
"""Of a report file when a trial has ended; each takes a bounded part."""
_LOG_END = 16_384
"""Bytes at the end of a log in which an error is looked for."""
_NO_MEMORY = re.compile(
    rb"out of memory|OutOfMemoryError|MemoryError|std::bad_alloc|RESOURCE_EXHAUSTED|Cannot allocate memory|oom[-_]kill"
)
_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
_AGENT_DEATHS = 5
_NODE_DEATHS = 2
_ADOPT_S = 2.0
"""How often the trials of pools that are gone are looked for."""
_DEVICE_VARIABLES = ("HELIOS_DEVICE", "CUDA_VISIBLE_DEVICES")
"""What differs between trials of the environment that a device gives."""

_EARLIER = -1
"""Stands for the trials of earlier pools among those of which a speed is known."""

Decide = Callable[[PoolSnapshot], Iterable[PoolAction]]


class Watcher(Protocol):
    """Observer of a pool."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take note of what happened just now."""

    def refresh(self, pool: Coordinator) -> None:
        """Show the pool as it is, several times a second."""


def fixed_slots(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Start trials in order while a device has a slot.

    Those that may be fused share processes. Each process gets an equal part of the memory. A trial that was killed for
    memory gets more, and at last a device of its own.
    """
    running: dict[str, list[Trial]] = {device.name: [] for device in snapshot.devices}
    for lead, *_ in by_process(snapshot.trials):
        if lead.device is not None:
            running[lead.device].append(lead)
    used = {device.name: len(running[device.name]) for device in snapshot.devices}
    free = {
        device.name: device.memory_mib - sum(trial.memory_limit_mib or 0.0 for trial in running[device.name])
        for device in snapshot.devices
    }
    actions: list[PoolAction] = []
    for start in fuse(snapshot, {device.name: device.slots - used[device.name] for device in snapshot.devices}):
        actions.append(start)
        if start.into is None:
            used[start.device] += 1
            free[start.device] -= start.memory_limit_mib or 0.0
    waiting = [
        trial
        for trial in snapshot.trials
        if trial.state in {TrialState.WAITING, TrialState.PAUSED} and not trial.fusible
    ]
    for trial in sorted(waiting, key=lambda trial: (trial.out_of_memory_mib or 0.0, trial.number)):
        if all(used[device.name] >= device.slots for device in snapshot.devices):
            break
        for device in sorted(snapshot.devices, key=lambda device: used[device.name] / device.slots):
            need = trial.forecast.memory_p95_mib or device.memory_mib / device.slots
            if trial.out_of_memory_mib is not None:
                need = max(need, MORE_ROOM * trial.out_of_memory_mib)
            need = min(need, device.memory_mib)
            if used[device.name] < device.slots and (need <= free[device.name] * (1 + 1e-9) or not used[device.name]):
                actions.append(
                    StartTrial(
                        number=trial.number,
                        device=device.name,
                        memory_limit_mib=need,
                        reason=f"{device.slots - used[device.name]} of {device.slots} slots free",
                    )
                )
                used[device.name] += 1
                free[device.name] -= need
                break
    return actions


@dataclass(slots=True)
class _Attempt:
    """A trial that runs."""

    trial: Trial
    device: Device
    limit_mib: float
    folder: Path
    began_s: float
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    value: float | None = None
    has_reported: bool = False
    asked: TaskRequest | None = None
    answered: TaskRequest | None = None
    terminate_at_s: float = inf
    terminated: bool = False
    pruned: bool = False
    beside: tuple[str, ...] = ()
    beside_since: tuple[float, int] | None = None
    first_report_s: float | None = None
    speeds: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    """Steps a second in each group, and how long that was measured, s."""
    process: FusedProcess | None = None
    ended: Mapping[str, Any] = field(default_factory=dict)
    """What its process, which trains others as well, told of its end."""

    @property
    def log(self) -> Path:
        """File to which its process writes."""
        return (self.folder if self.process is None else self.process.folder) / "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEnd:
    """How a run of a pool ended.

    Attributes
    ----------
    reason : str
        Why trials are left. Empty where none are.
    signal : int, optional
        What ended it from outside.
    notes : tuple of str
        What a person should know.
    """

    reason: str = ""
    signal: int | None = None
    notes: tuple[str, ...] = ()


class Coordinator:
    """Runs the trials of a sweep.

    Parameters
    ----------
    decide : callable
        From a snapshot to actions, as services for pools have it.
    ends_s : float, optional
        When the allocation ends, s since the epoch.
    margin_s : float
        How long before that trials are asked for a checkpoint.
    watcher : Watcher, optional
    warm : sequence of str
        Modules that a warm process imports once for all trials.
    forecast : Forecast, optional
        Tells the service what to expect of trials. By default nothing but the sweep file tells it.
    known_speeds : sequence of SharedSpeed
        Measured in earlier pools on such devices.
    container : Container, optional
        What trials run in.
    nodes : sequence of Node
        Other nodes of the allocation.
    mps : bool
        Whether to run NVIDIA's MPS on each node while the pool runs.
    """

    def __init__(
        self,
        *,
        sweep: TrainingSweep,
        search: Search,
        state: StateFile,
        devices: Sequence[Device],
        decide: Decide,
        folder: Path,
        ends_s: float | None = None,
        margin_s: float = 60.0,
        watcher: Watcher | None = None,
        warm: Sequence[str] = (),
        container: Container | None = None,
        nodes: Sequence[Node] = (),
        mps: bool = False,
        forecast: Forecast | None = None,
        known_speeds: Sequence[SharedSpeed] = (),
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        devices = (*devices, *(device for node in nodes for device in node.devices))
        self.sweep, self.state, self.devices = sweep, state, devices
        self._forecast, self._forecast_at_s = forecast, 0.0
        self._runs: list[TrialRun] = []
        self.ends_s = ends_s
        self._search, self._decide, self._folder, self._watcher = search, decide, folder, watcher
        self._margin_s, self._warm = margin_s, list(warm)
        self._container = container
        # The path of its sockets must be short, and on a disk of the node.
        self._mps = f"{tempfile.gettempdir()}/helios-mps-{state.pool[:12]}" if mps else ""
        self._segment: dict[str, Any] | None = None
        if container is not None:
            common = dict(agent.mps_environment(self._mps)) if mps else {}
            common |= device_environment(self.devices[0])
            common = {name: value for name, value in common.items() if name not in _DEVICE_VARIABLES}
            common |= {name: os.environ[name] for name in THREADS if name in os.environ}  # which stay outside else
            self._segment = container.segment(folder, sweep, self._warm, pool=state.pool, environment=common)
        self._by_name = {device.name: device for device in devices}
        self._waiting: dict[int, Trial] = {}
        self._processes_made = 0
        self._running: dict[int, _Attempt] = {}
        self._fusion = Fusion(sweep.fused, searched=sweep.search is not None)
        self._processes: dict[int, FusedProcess] = {}
        self._just_ended: list[Trial] = []
        self._outside_kills: dict[int, int] = {}
        self._speeds: dict[tuple[str, tuple[str, ...]], dict[int, float]] = {
            (speed.family, speed.beside): {_EARLIER: speed.steps_per_s} for speed in known_speeds
        }
        self._fused_speeds: dict[tuple[str, int], FusedSpeed] = {}
        self._durations: list[float] = []
        self._usual_s: float | None = None
        self._exhausted = False
        self._agents: dict[str, agent.AgentProcess] = {}
        self._agent_deaths: Counter[str] = Counter()
        self._readers: dict[int, tuple[ReportReader | EventReader, ...]] = {}
        self._unreported: list[TrialRecord] = []
        self._notes: dict[str, str] = {}
        self._stop_reason = ""
        self._signal: int | None = None
        self._signals: list[int] = []
        self._wake = os.pipe()
        self._read_at_s = self._decide_at_s = self._sync_at_s = self._hold_until_s = self._adopt_at_s = 0.0

    # What others may look at.

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as services see it."""
        return PoolSnapshot(
            now_s=time.time(),
            ends_s=self.ends_s,
            devices=self.devices,
            trials=tuple(
                sorted(
                    [
                        *(attempt.trial for attempt in self._running.values()),
                        *(trial for trial in self._waiting.values() if self._fits(trial)),
                        *self._just_ended,
                    ],
                    key=lambda trial: trial.number,
                )
            ),
            fused=tuple(self._fused_speeds.values()),
            speeds=tuple(
                SharedSpeed(
                    family=family, beside=beside, steps_per_s=sum(rates.values()) / len(rates), samples=len(rates)
                )
                for (family, beside), rates in self._speeds.items()
            ),
        )

    @property
    def total(self) -> int:
        """Number of trials of the whole sweep."""
        return max(self.sweep.trials, len(self.state.trials))

    def best(self) -> TrialRecord | None:
        """Return the finished trial with the best metric so far."""
        known = [
            trial
            for trial in self.state.trials.values()
            if trial.state is TrialState.FINISHED and trial.value is not None
        ]
        choose = max if self.sweep.maximize else min
        return choose(known, key=lambda trial: trial.value or 0.0, default=None)

    # The loop.

    def run(self) -> PoolEnd:
        """Run until nothing is left to do."""
        self.state.adopt()
        self._end_interrupted()
        for record in self.state.trials.values():
            if not record.ended and self.state.is_mine(record):
                self._waiting[record.number] = self._trial(record)
            elif record.last_seconds is not None:
                self._take_duration(record.last_seconds)
        try:
            with self._handlers():
                for name in ("", *self._nodes):
                    self._start_agent(name)
                while True:
                    self._step()
                    settled = not self._unreported and not self.state.problem
                    if not self._running and (self._stop_reason or (settled and not self._may_start_any())):
                        break
                    self._wait()
        finally:
            for each in self._agents.values():
                each.close()
            if self._container is not None:
                self._container.remove_left(self.state.pool, self._folder)
            os.close(self._wake[0])
            os.close(self._wake[1])
        reason = self._stop_reason
        if not reason and self._waiting:
            reason = "the time left is too short for the trials that wait"
        if not self._waiting and self._exhausted:
            reason = ""
        return PoolEnd(reason=reason, signal=self._signal, notes=tuple(self._notes.values()))

    def _end_interrupted(self) -> None:
        """End what pools that were killed have left on this machine."""
        left = 0
        for pool in self.state.interrupted:
            left += agent.kill_leftovers(pool)
            if self._container is not None:
                self._container.remove_left(pool, self._folder)
        self.state.interrupted.clear()
        if left:
            self._note(f"{left} processes of the pool's last run were ended")

    def _step(self) -> None:
        now = time.time()
        if not self._stop_reason and self.ends_s is not None and now >= self.ends_s - self._margin_s:
            self._stop("the time of the allocation is up")
        self._take_signals()
        if now >= self._read_at_s:
            for attempt in list(self._running.values()):
                self._read(attempt)
                self._end_if_done(attempt)
            self._read_at_s = time.time() + min(_LONGEST_READ_S, max(_READ_S, _COST * (time.time() - now)))
        for attempt in self._running.values():
            if attempt.terminate_at_s <= now and not attempt.terminated:
                attempt.terminated = True
                self._end(attempt, _TERM_GRACE_S)
        if not self.state.retry():
            self._pause_starts(self.state.problem)
        if self.sweep.search is not None or self._stop_reason:
            self._report_to_search()  # what the search chooses next depends on it
        if not self._stop_reason and now >= self._hold_until_s:
            self._ask_for_trials()
            if now >= self._decide_at_s:
                self._decide_at_s = inf
                self._run_service()
                again_s = time.time() + max(_DECIDE_S, _COST * (time.time() - now))
                self._decide_at_s = min(self._decide_at_s, again_s)
        self._report_to_search()
        if self._watcher is not None:
            self._watcher.refresh(self)

    def _wait(self) -> None:
        """Wait for the next event, signal or due time."""
        due = [self._read_at_s, *(a.terminate_at_s for a in self._running.values() if not a.terminated)]
        if self.ends_s is not None:
            due.append(self.ends_s - self._margin_s)
        if not self._stop_reason:
            due.append(self._decide_at_s)
        if self.state.unsynced:
            due.append(self._sync_at_s)
        timeout = max(0.0, min(due) - time.time()) if self._running else _READ_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ)
            for each in self._agents.values():
                selector.register(each.output, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(timeout)}
        if self._wake[0] in ready:
            os.read(self._wake[0], 4096)
        for name, each in list(self._agents.items()):
            events = each.events() if each.output in ready else []
            if events is None:
                self._restart_agent(name)
            for event in events or ():
                self._handle_event(event)

    # Signals and the end of the allocation.

    @contextmanager
    def _handlers(self) -> Iterator[None]:
        """Take signals as requests to end, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def received(number: int, _: FrameType | None) -> None:
            self._signals.append(number)

        os.set_blocking(self._wake[1], False)
        chosen = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
        # What is ignored stays so: nohup ignores a hang-up, and a shell the Ctrl-C of what it runs in the background.
        heard = [number for number in chosen if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, received) for number in heard}
        wakeup = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._signal is not None:  # a second one: at once
                for attempt in self._running.values():
                    attempt.terminate_at_s, attempt.terminated = 0.0, True
                    self._end(attempt, 0.0)
                continue
            if number == signal.SIGUSR1:
                self._stop("the time of the allocation is up")
                continue
            self._signal = number
            self._stop("it was interrupted" if number == signal.SIGINT else "it was told to end")

    def _stop(self, reason: str) -> None:
        """Request a checkpoint of every trial, then end it."""
        self._stop_reason = self._stop_reason or reason
        self._publish({"event": "stopping", "reason": reason})
        now = time.time()
        grace = self._margin_s / 2 if self._signal is None else min(self._margin_s / 2, 10.0)
        for attempt in self._running.values():
            self._request(attempt, TaskRequest.PAUSE)
            # Who has reported nothing does not read requests. It may still end by itself when time is up, but whoever
            # interrupts does not want to wait.
            listens = attempt.has_reported or self._signal is None
            attempt.terminate_at_s = min(attempt.terminate_at_s, now + grace if listens else now)

    def _request(self, attempt: _Attempt, request: TaskRequest) -> None:
        attempt.asked = request
        with suppress(OSError):  # a full disk: the signal comes anyway
            write_request(attempt.folder / "requests", request)

    def _end(self, attempt: _Attempt, grace_s: float) -> None:
        number = attempt.trial.number if attempt.process is None else attempt.process.number
        if (agent := self._agents.get(_node_name(attempt.device))) is not None:
            agent.send({"do": "end", "number": number, "grace_s": grace_s})

    # Trials before they start.

    def _ask_for_trials(self) -> None:
        """Ask the search for as many trials as may start."""
        room = WAITING_AT_MOST
        # The next choice of a search is better the more results it knows, and other pools want trials, too.
        if self.sweep.search is not None or self.state.shared:
            room = sum(device.slots for device in self.devices) * self._fusion.most - len(self._running)
        if len(self._waiting) >= room:
            return
        if not self._exhausted:
            with self.state.exclusive():
                self._ask_search(room)
        if self.state.shared and self._exhausted and not self._waiting and time.time() >= self._adopt_at_s:
            self._adopt_at_s = time.time() + (_ADOPT_S if self._running else 0.0)
            for record in self.state.adopt():
                self._waiting[record.number] = self._trial(record)
                self._decide_at_s = 0.0
            self._end_interrupted()

    def _ask_search(self, room: int) -> None:
        while not self._exhausted and len(self._waiting) < room:
            try:
                chosen = self._search.ask()
            except FileUnwritable as reason:
                self._pause_starts(reason.message)
                return
            if chosen is None:
                self._exhausted = True
                return
            record = self.state.trials.get(chosen.number)
            if record is not None and not self.state.is_mine(record) and self.state.has_owner(record):
                continue
            if record is not None and record.ended:  # recorded, but the search was not told before the end
                if record not in self._unreported:
                    self._unreported.append(record)
                self._report_to_search()
                continue
            if record is None:
                self.state.record_created(chosen.number, chosen.parameters)
                record = self.state.trials[chosen.number]
                self._decide_at_s = 0.0
            if record.number not in self._running and self.state.is_mine(record):
                self._waiting[record.number] = self._trial(record)

    def _pause_starts(self, problem: str) -> None:
        """Pause starts, which could not be recorded."""
        self._hold_until_s = time.time() + _HOLD_S
        self._note(f"No trial is started: {problem}")

    def _report_end(self, record: TrialRecord) -> bool:
        """Record a trial's end with the search, if it can be written."""
        try:
            with self.state.exclusive():
                self._search.tell(record.number, record.state, record.value)
        except FileUnwritable as reason:
            self._pause_starts(reason.message)
            return False
        return True

    def _report_to_search(self) -> None:
        """Report written results to the search, and sync them."""
        while self._unreported and not self.state.problem and self._report_end(self._unreported[0]):
            del self._unreported[0]
        if self.state.unsynced and time.time() >= self._sync_at_s:
            self.state.sync()
            self._sync_at_s = time.time() + _SYNC_S

    def _trial(self, record: TrialRecord) -> Trial:
        fusible, most_fused = "", 1
        if not record.memory_kills:  # else it needs more room, which a process that it joins has not
            fusible, most_fused = self._fusion.group_key(record.number, record.parameters)
        return Trial(
            number=record.number,
            parameters=record.parameters,
            family=family(self.sweep, record.parameters),
            state=TrialState.PAUSED if record.state is TrialState.PAUSED else TrialState.WAITING,
            attempts=record.attempts,
            peak_memory_mib=record.peak_memory_mib,
            out_of_memory_mib=record.out_of_memory_mib,
            forecast=TrialForecast(memory_p95_mib=self.sweep.memory_mib),
            fusible=fusible,
            most_fused=most_fused,
        )

    def _expect(self) -> None:
        """Update the forecasts by the pool's own trials."""
        now = time.time()
        if self._forecast is None or (now < self._forecast_at_s and not self._just_ended):
            return
        trials = [*self._waiting.values(), *(attempt.trial for attempt in self._running.values())]
        runs = [
            *self._runs,
            *(self._run(attempt, "running", now - attempt.began_s) for attempt in self._running.values()),
        ]
        forecasts = self._forecast(trials, runs)
        for trial, forecast in zip(trials, forecasts, strict=True):
            limit = forecast.memory_p95_mib or self.sweep.memory_mib
            self._replace_trial(replace(trial, forecast=replace(forecast, memory_p95_mib=limit)))
        self._forecast_at_s = time.time() + max(_DECIDE_S, _COST * (time.time() - now))

    def _replace_trial(self, trial: Trial) -> None:
        if trial.number in self._waiting:
            self._waiting[trial.number] = trial
        else:
            self._running[trial.number].trial = trial

    def _run(self, attempt: _Attempt, what: str, seconds: float, **used: Any) -> TrialRun:
        """Return the use of an attempt."""
        trial = attempt.trial
        return TrialRun(
            pool=self.state.pool,
            number=trial.number,
            attempt=trial.attempts,
            program=program(self.sweep),
            family=trial.family,
            parameters=trial.parameters,
            device_kind=attempt.device.kind,
            device_model=attempt.device.model,
            outcome=what,
            started_s=attempt.began_s,
            seconds=seconds,
            start_up_s=attempt.first_report_s,
            progress=1.0 if what == "finished" else trial.progress,
            peak_memory_mib=trial.peak_memory_mib,
            memory_limit_mib=attempt.limit_mib,
            speeds=tuple(
                MeasuredSpeed(beside=beside, steps_per_s=rate, seconds=measured_s)
                for beside, (rate, measured_s) in (attempt.speeds or {attempt.beside: (0.0, 0.0)}).items()
            ),
            metrics=dict(attempt.metrics),
            **used,
        )

    def _fits(self, trial: Trial) -> bool:
        """Return whether a trial may start in the time left."""
        if self.ends_s is None:
            return True
        left_s = self.ends_s - self._margin_s - time.time()
        if left_s <= 0:
            return False
        if trial.attempts and any((self._trial_folder(trial.number) / "checkpoints").glob("*")):
            return True
        seconds = trial.forecast.seconds_p90 or self._usual_s
        return seconds is None or seconds <= left_s

    def _take_duration(self, seconds: float) -> None:
        """Expect of trials what nine of ten of the last hundred took."""
        self._durations = [*self._durations[1 - _RECENT :], seconds]
        self._usual_s = quantiles(self._durations, n=10)[-1] if len(self._durations) > 1 else seconds

    def _may_start_any(self) -> bool:
        return not self._exhausted or any(self._fits(trial) for trial in self._waiting.values())

    def _trial_folder(self, number: int) -> Path:
        return self._folder / "trials" / f"{number:05d}"

    def _run_service(self) -> None:
        """Ask the service and apply its actions."""
        self._expect()
        snapshot = self.snapshot()
        self._just_ended.clear()
        try:
            actions = list(self._decide(snapshot))
        except Exception as reason:
            self._note(f"The service could not decide, so slots are fixed: {type(reason).__name__}: {reason}")
            actions = fixed_slots(snapshot)
        for action in actions:
            self._apply_action(action)
        if not self._running and any(trial.state is not TrialState.RUNNING for trial in snapshot.trials):
            for action in fixed_slots(self.snapshot()):
                self._note("The service started nothing while nothing ran, so slots are fixed")
                self._apply_action(action)
        self._launch()

    def _apply_action(self, action: PoolAction) -> None:
        attempt = self._running.get(action.number)
        if isinstance(action, StartTrial):
            trial, device = self._waiting.get(action.number), self._by_name.get(action.device)
            if trial is None or device is None or self.state.problem:
                return
            if action.into is not None:
                beside = self._running.get(action.into)
                if beside is not None and beside.process is not None and self._may_join(trial, beside):
                    self._start(trial, beside.device, action, beside.process)
            elif self._may_start(trial, device):
                self._start(trial, device, action)
        elif attempt is not None:
            wanted = TaskRequest.PAUSE if isinstance(action, PauseTrial) else TaskRequest.STOP
            if attempt.asked in {wanted, TaskRequest.STOP}:
                return
            self._publish({"event": "asked", "number": action.number, "request": str(wanted), "reason": action.reason})
            if wanted is TaskRequest.PAUSE:
                self._request(attempt, wanted)
            else:
                self._prune(attempt)

    def _may_start(self, trial: Trial, device: Device) -> bool:
        """Return whether a trial may join those that a device has."""
        beside = [other for other in self._running.values() if other.device is device]
        processes = {each.trial.number if each.process is None else each.process.number for each in beside}
        if len(processes) >= device.slots:
            return False
        alone = any(self._needs_device_alone(other.trial.number) for other in beside)
        return not alone and not (beside and self._needs_device_alone(trial.number))

    def _may_join(self, trial: Trial, beside: _Attempt) -> bool:
        """Return whether a trial may join another one's process."""
        process = beside.process
        return (
            process is not None
            and not process.closed
            and trial.fusible == beside.trial.fusible != ""
            and len(process.trials) < trial.most_fused
        )

    def _needs_device_alone(self, number: int) -> bool:
        return self.state.trials[number].memory_kills >= MOST_MEMORY_KILLS

    def _start(self, trial: Trial, device: Device, action: StartTrial, process: FusedProcess | None = None) -> None:
        folder = self._trial_folder(trial.number)
        limit = min(action.memory_limit_mib or device.memory_mib, device.memory_mib)
        if self._needs_device_alone(trial.number):
            limit = device.memory_mib
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_request(folder / "requests", None)
            if self.sweep.fused is not None:
                process = process or self._idle_process(trial, device, limit)
                process = process or self._new_process(trial, device, limit, self.sweep.fused)
                process.add_message(
                    {"trial": trial.number, "parameters": dict(trial.parameters), "folder": str(folder)}
                )
                process.trials.add(trial.number)
                limit = process.limit_mib
        except OSError as reason:
            self._pause_starts(reason.strerror or str(reason))
            return
        self.state.record_started(trial.number, device=device.name, memory_limit_mib=limit)
        if self.state.problem:
            return
        now = time.time()
        started = replace(
            trial,
            state=TrialState.RUNNING,
            device=device.name,
            started_s=now,
            attempts=trial.attempts + 1,
            memory_limit_mib=limit,
            memory_mib=None,
            process=None if process is None else process.number,
        )
        del self._waiting[trial.number]
        attempt = self._running[trial.number] = _Attempt(
            trial=started,
            device=device,
            limit_mib=limit,
            folder=folder,
            began_s=now,
            process=process,
        )
        self._change_neighbours(device)
        # What earlier attempts reported stands, but what they answered was not asked of this one.
        self._read(attempt, to_end=True)
        attempt.answered = attempt.first_report_s = attempt.beside_since = None
        attempt.ended = {}
        if process is None:
            self._send_start(attempt)
        self._publish(
            {
                "event": "started",
                "number": trial.number,
                "parameters": dict(trial.parameters),
                "device": device.name,
                "memory_limit_mib": round(limit, 1),
                "attempt": started.attempts,
                "reason": action.reason,
            }
        )

    def _send_start(self, attempt: _Attempt) -> None:
        """Have the agent start the program of a trial."""
        trial, device, folder = attempt.trial, attempt.device, attempt.folder
        own = {
            "HELIOS_TRIAL_FOLDER": str(folder),
            "HELIOS_PARAMETERS": json.dumps(dict(trial.parameters)),
            "HELIOS_REPORT": str(folder / "report.jsonl"),
            "HELIOS_REQUESTS": str(folder / "requests"),
            "HELIOS_CHECKPOINTS": str(folder / "checkpoints"),
        }
        self._order_start(
            device,
            {
                "number": trial.number,
                "argv": self.sweep.fill(trial.parameters, trial=trial.number, checkpoints=folder / "checkpoints"),
                "log": str(attempt.log),
                "limit_mib": attempt.limit_mib,
            },
            own,
        )

    def _order_start(self, device: Device, order: Mapping[str, Any], own: Mapping[str, str]) -> None:
        """Have the agent of a device start a process."""
        node = self._nodes.get(_node_name(device))
        on_device = device_environment(device) if node is None else node.environment[device.name]
        if (threads := self.sweep.env.get("OMP_NUM_THREADS")) is not None:
            # PyTorch takes the larger one of two variables, which would not be what the sweep file says.
            on_device = {name: threads if name in THREADS else value for name, value in on_device.items()}
        if self._mps:
            # It fails what a trial asks for above its limit; device 0 is the only one that a trial sees.
            limited = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={int(order['limit_mib'])}M"}
            on_device = {**on_device, **agent.mps_environment(self._mps), **limited}
        self._agents[_node_name(device)].send(
            {
                "do": "start",
                **order,
                "environment": {**on_device, **self.sweep.env, **own},
                "own": [*own, *_DEVICE_VARIABLES, agent.TRIAL],
                "warm": self._warm,
                "segment": self._segment,
                "folder": str(self.sweep.cwd),
                "gpu": gpu_id(device) if node is None else node.gpus[device.name],
            }
        )

    # Processes that train several trials.

    def _idle_process(self, trial: Trial, device: Device, limit: float) -> FusedProcess | None:
        """Return an idle process that may take a trial."""
        if trial.number in self._fusion.separate or trial.out_of_memory_mib is not None:
            return None
        idle = (each for each in self._processes.values() if not each.trials and not each.closed)
        return next((each for each in idle if each.device is device and each.limit_mib == limit), None)

    def _new_process(self, trial: Trial, device: Device, limit: float, program: FusedProgram) -> FusedProcess:
        """Return a process for a trial, which is launched later."""
        folder = self._folder / "fused" / f"{trial.number:05d}-{trial.attempts + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        self._processes_made += 1
        process = FusedProcess(number=-self._processes_made, device=device, folder=folder, limit_mib=limit)
        process.file.unlink(missing_ok=True)  # of a start that could not be recorded
        process.add_message({"settings": dict(program.settings), "limit_mib": limit})
        self._processes[process.number] = process
        return process

    def _launch(self) -> None:
        """Start new processes, and send all their trials.

        Those without trials are told that none will come.
        """
        for process in list(self._processes.values()):
            if not process.trials and not process.closed:
                process.closed = True
                process.add_message({"close": True})
            try:
                process.write()
            except OSError as reason:  # they are told when there is room
                self._pause_starts(reason.strerror or str(reason))
                continue
            if not process.started and not process.trials:
                del self._processes[process.number]
            elif not process.started:
                assert self.sweep.fused is not None
                process.started = True
                words = [sys.executable, "-P", "-m", FUSED_TASK, self.sweep.fused.program, str(process.file)]
                log = str(process.folder / "log.txt")
                order = {"number": process.number, "argv": words, "log": log, "limit_mib": process.limit_mib}
                self._order_start(process.device, order, {})

    def _end_if_done(self, attempt: _Attempt) -> None:
        """End a trial that its process has done with."""
        process, message = attempt.process, attempt.ended
        if process is None or not message:
            return
        event = {"seconds": time.time() - attempt.began_s, "peak_memory_mib": None, "out_of_memory": False}
        self._attempt_ended(attempt, {**event, "status": int(message["ended"] == "failed")})

    def _process_ended(self, process: FusedProcess, event: Mapping[str, Any]) -> None:
        """End the trials of a process that has ended."""
        attempts = [self._running[number] for number in sorted(process.trials)]
        for attempt in attempts:
            self._read(attempt, to_end=True)
            self._end_if_done(attempt)
        del self._processes[process.number]
        left = [attempt for attempt in attempts if attempt.trial.number in self._running]
        status, shared = int(event["status"]), len(left) > 1
        of_memory = bool(event["out_of_memory"]) or (status != 0 and any(map(self._log_shows_out_of_memory, left[:1])))
        crashed = status not in _OUTSIDE | {0, 127} and not of_memory
        for attempt in left:
            if shared and (of_memory or crashed):
                attempt.ended = {"ended": "together"}
            if crashed:  # who is to blame is not known
                self._fusion.separate.add(attempt.trial.number)
        if shared and of_memory:
            self._fusion.limit_fused(left[0].trial.parameters, len(left) // 2)
        if status == 0:  # it had gone when they were told to it
            event = {**event, "status": -signal.SIGTERM, "reason": "left by its process"}
        share = None if event["peak_memory_mib"] is None else event["peak_memory_mib"] / max(1, len(left))
        for attempt in left:
            self._attempt_ended(attempt, {**event, "peak_memory_mib": share})

    # Trials that run.

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "memory":
            for number, mib in event["mib"].items():
                process = self._processes.get(int(number))
                numbers = [int(number)] if process is None else process.trials
                for attempt in [self._running[each] for each in numbers if each in self._running]:
                    share = mib / len(numbers)  # the trials of a process in equal parts
                    peak = max(share, attempt.trial.peak_memory_mib or 0.0)
                    attempt.trial = replace(attempt.trial, memory_mib=share, peak_memory_mib=peak)
        elif event["event"] == "warm_failed":
            self._note(f"Trials start without the warm process: {event['reason']}")
        elif event["event"] == "mps_failed":
            self._note(f"Trials share GPUs without MPS: {event['reason']}")
        elif event["event"] in {"ended", "not_started"}:
            if event["event"] == "not_started":
                event = {"status": 127, "seconds": 0.0, "peak_memory_mib": None, "out_of_memory": False, **event}
            if (process := self._processes.get(event["number"])) is not None:
                self._process_ended(process, event)
            else:
                self._attempt_ended(self._running[event["number"]], event)

    def _read(self, attempt: _Attempt, *, to_end: bool = False) -> None:
        """Handle the reports of a trial."""
        number = attempt.trial.number
        if number not in self._readers:
            events = self.sweep.events_folder(trial=number, checkpoints=attempt.folder / "checkpoints")
            readers: list[ReportReader | EventReader] = [ReportReader(attempt.folder / "report.jsonl")]
            self._readers[number] = (*readers, *([] if events is None else [EventReader(events)]))
        for reader in self._readers[number]:
            for _ in range(_MOST_READS if to_end else 1):
                before = _count_skipped(reader)
                reports, now = reader.read(), time.time()
                for report in reports:
                    self._take_report(attempt, report, now)
                if not reports and before == _count_skipped(reader):
                    break
            if reader.problem or any(_count_skipped(reader)):
                lines, count = _count_skipped(reader)
                skipped = f"{lines:,} lines and {count:,} bytes were skipped"
                self._note(f"Of the reports of trial {number}, {reader.problem or skipped}", key=f"reports of {number}")

    def _take_report(self, attempt: _Attempt, report: Report, now: float) -> None:
        attempt.has_reported = True
        attempt.metrics.update(report.metrics)
        attempt.answered = report.answer or attempt.answered
        if report.fused and attempt.process is not None:
            self._take_fused(attempt, report.fused)
        if report.progress is not None:
            attempt.trial = replace(attempt.trial, progress=report.progress)
        if attempt.first_report_s is None and attempt.trial.started_s is not None:
            attempt.first_report_s = now - attempt.trial.started_s
        if report.step is not None:
            attempt.step = report.step
            # Speed counts from the last of the steps that were read first.
            if attempt.beside_since is None or attempt.beside_since[0] == now:
                attempt.beside_since = (now, report.step)
            since, step = attempt.beside_since
            if now - since >= 1.0 and report.step > step:
                rate = (report.step - step) / (now - since)
                attempt.trial = replace(attempt.trial, steps_per_s=rate)
                speeds = self._speeds.setdefault((attempt.trial.family, attempt.beside), {})
                speeds[attempt.trial.number] = rate
                attempt.speeds[attempt.beside] = (rate, now - since)
        metric = self.sweep.metric
        value = report.metrics.get(metric) if metric else None
        if value is not None and isfinite(value):
            attempt.value = value
            if report.step is not None and not attempt.pruned:
                with suppress(FileUnwritable), self.state.exclusive():  # then it is not pruned at this step
                    attempt.pruned = self._search.report(attempt.trial.number, report.step, value)
                if attempt.pruned and attempt.asked is None:
                    self._prune(attempt)

    def _take_fused(self, attempt: _Attempt, message: Mapping[str, Any]) -> None:
        """Handle a message of a fused process about a trial."""
        if isinstance(message.get("ended"), str):
            attempt.ended = dict(message)
        changed = self._fusion.learn(attempt.trial.parameters, message)
        speed = self._fusion.speed(attempt.trial.parameters, message)
        if speed is not None:
            self._fused_speeds[speed.fusible, speed.models] = speed
        if message.get("obstacle"):
            self._note(f"Trials like {attempt.trial.number} are not fused: {message['obstacle']}"[:500])
        for trial in [*self._waiting.values(), *(each.trial for each in self._running.values())] if changed else ():
            if trial.fusible:
                fusible, most = self._fusion.group_key(trial.number, trial.parameters)
                self._replace_trial(replace(trial, fusible=fusible, most_fused=most))

    def _prune(self, attempt: _Attempt) -> None:
        attempt.pruned = True
        self._request(attempt, TaskRequest.STOP)
        if attempt.process is None:  # one that trains others as well reads requests
            attempt.terminate_at_s = time.time() + _PRUNE_GRACE_S

    def _change_neighbours(self, device: Device) -> None:
        """Restart the measurement after a change of trials."""
        neighbours = [attempt for attempt in self._running.values() if attempt.device is device]
        for attempt in neighbours:
            others = [each for each in neighbours if each.process is None or each.process is not attempt.process]
            beside = [other.trial.family for other in others if other is not attempt]
            if attempt.process is not None and len(attempt.process.trials) > 1:
                beside.append(fused_with(len(attempt.process.trials) - 1))
            attempt.beside = tuple(sorted(beside))
            attempt.beside_since = None

    # Trials that have ended.

    def _attempt_ended(self, attempt: _Attempt, event: Mapping[str, Any]) -> None:
        number, status = attempt.trial.number, int(event["status"])
        self._read(attempt, to_end=True)
        del self._running[number]
        if attempt.process is not None:
            attempt.process.trials.discard(number)
        del self._readers[number]  # the next attempt reads all again
        self._change_neighbours(attempt.device)
        what, state, reason = self._outcome(attempt, status, event)
        peaks = [peak for peak in (event["peak_memory_mib"], attempt.trial.peak_memory_mib) if peak is not None]
        ended = self._run(
            replace(attempt, trial=replace(attempt.trial, peak_memory_mib=max(peaks, default=None))),
            what,
            float(event["seconds"]),
            utilization=event.get("utilization"),
            energy_j=event.get("energy_j"),
        )
        self.state.record_ended(
            number,
            what=what,
            state=state,
            seconds=ended.seconds,
            peak_memory_mib=ended.peak_memory_mib,
            memory_limit_mib=attempt.limit_mib,
            metrics=attempt.metrics,
            value=attempt.value,
            reason=reason,
            run=run_entry(ended),
        )
        if self._forecast is not None:
            self._runs.append(ended)
        record = self.state.trials[number]
        self._decide_at_s = 0.0
        if record.ended:
            self._unreported.append(record)
            self._take_duration(float(event["seconds"]))
            self._just_ended.append(
                replace(attempt.trial, state=record.state, peak_memory_mib=record.peak_memory_mib, memory_mib=None)
            )
            if record.state is TrialState.FINISHED and self.sweep.metric and record.value is None:
                self._note(f"Trial {number} finished without reporting {self.sweep.metric!r}", key="no metric")
        else:
            self._waiting[number] = self._trial(record)
        self._publish({"event": what, **record.to_json()})

    def _outcome(  # noqa: PLR0911 - a table of cases
        self, attempt: _Attempt, status: int, event: Mapping[str, Any]
    ) -> tuple[str, TrialState, str]:
        """Return how an attempt ended, what the trial is now, and why."""
        record = self.state.trials[attempt.trial.number]
        asked = bool(event.get("asked"))
        how, why = attempt.ended.get("ended"), str(attempt.ended.get("reason", ""))
        if attempt.pruned or how == "stopped":
            return "pruned", TrialState.PRUNED, why
        if how in {"apart", "together"}:
            return "interrupted", TrialState.WAITING, why or "the process that trained it with others ended"
        paused = attempt.answered is TaskRequest.PAUSE and status == 0
        if self._stop_reason and (paused or asked):
            return "interrupted", TrialState.WAITING, self._stop_reason
        if paused or asked:
            return "paused", TrialState.PAUSED, "paused by the service" if attempt.asked else "it paused"
        if status == 0:
            return "finished", TrialState.FINISHED, ""
        if event["out_of_memory"] or (how != "failed" and self._log_shows_out_of_memory(attempt)):
            return self._out_of_memory(attempt, record)
        why = why or (str(event["reason"]) if "reason" in event else _status_in_words(status))
        if status in _OUTSIDE:
            kills = self._outside_kills[record.number] = self._outside_kills.get(record.number, 0) + 1
            if kills <= MOST_OUTSIDE_KILLS:
                return "killed", TrialState.WAITING, f"it was {why}"
        if record.failures + 1 < self.sweep.attempts:
            return "failed", TrialState.WAITING, why
        return "failed", TrialState.FAILED, f"{why}; see {attempt.log}"

    def _out_of_memory(self, attempt: _Attempt, record: TrialRecord) -> tuple[str, TrialState, str]:
        limit = attempt.limit_mib
        whole = limit >= attempt.device.memory_mib and not attempt.beside
        if record.memory_kills >= MOST_MEMORY_KILLS or (whole and record.memory_kills):
            return "out_of_memory", TrialState.FAILED, f"it needs more memory than {attempt.device.name} has"
        return "out_of_memory", TrialState.WAITING, f"it needed more than {limit:,.0f} MiB"

    @staticmethod
    def _log_shows_out_of_memory(attempt: _Attempt) -> bool:
        """Return whether the log ends with an error about memory."""
        with suppress(OSError), attempt.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
            return _NO_MEMORY.search(log.read(_LOG_END)) is not None
        return False

    def _start_agent(self, name: str) -> None:
        step = self._nodes[name].step if name else ()
        self._agents[name] = agent.AgentProcess(self.state.pool, step, mps=self._mps)

    def _restart_agent(self, name: str) -> None:
        """Restart a dead agent and all its trials.

        A node whose agent dies again and again is given up.
        """
        self._agent_deaths[name] += 1
        self._agents.pop(name).close()
        if not name:
            agent.kill_leftovers(self.state.pool)
        self._processes = {at: each for at, each in self._processes.items() if _node_name(each.device) != name}
        for attempt in [each for each in self._running.values() if _node_name(each.device) == name]:
            event = {"status": -signal.SIGKILL, "seconds": time.time() - attempt.began_s, "peak_memory_mib": None}
            self._attempt_ended(attempt, {**event, "out_of_memory": False, "asked": bool(self._stop_reason)})
        if self._agent_deaths[name] >= (_NODE_DEATHS if name else _AGENT_DEATHS):
            self.devices = tuple(device for device in self.devices if _node_name(device) != name)
            self._by_name = {device.name: device for device in self.devices}
            if not self.devices or not name:
                raise HeliosError(
                    "The process that starts trials was killed again and again.", hint="Start the pool again."
                )
            self._note(f"Node {name} is left out: the process that starts trials there ended again and again")
            return
        self._note("The process that starts trials was killed; its trials are started again")
        self._start_agent(name)

    def _note(self, note: str, *, key: str | None = None) -> None:
        """Take note of something for a person, once."""
        known = (key or note) in self._notes
        self._notes[key or note] = note
        if not known:
            self._publish({"event": "note", "note": note})

    def _publish(self, event: Mapping[str, Any]) -> None:
        if self._watcher is not None:
            self._watcher.event({"at_s": round(time.time(), 3), **event})


def _node_name(device: Device) -> str:
    """Return the name of a device's node, empty for this one."""
    return device.name.rpartition("/")[0]


def _count_skipped(reader: ReportReader | EventReader) -> tuple[int, int]:
    """Return the entries and bytes that a reader skipped."""
    return reader.skipped_lines, reader.skipped_bytes if isinstance(reader, ReportReader) else 0


def family(sweep: TrainingSweep, parameters: Mapping[str, Any]) -> str:
    """Return the family of a trial.

    Numbers with a fraction, such as a learning rate, change what is learned and not the shapes; all others may.
    """
    shaping = parameters if sweep.fused is None else sweep.fused.shape(parameters)
    shapes = [f"{name}={value}" for name, value in sorted(shaping.items()) if not isinstance(value, float)]
    return " ".join([program(sweep), *shapes])


def program(sweep: TrainingSweep) -> str:
    """Return the name of the program that a sweep runs."""
    return next((Path(word).name for word in sweep.command if word.endswith(".py")), Path(sweep.command[0]).name)


def _status_in_words(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"
