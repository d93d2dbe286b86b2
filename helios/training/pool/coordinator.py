"""Coordinator of a pool, which runs the trials of one or several sweeps.

It asks each search for trials and a service which of them to start where, has the agent start them, reads what they
report, and records how they end. It waits for events and does nothing in between but read reports.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from helios.training.model import (
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ResizeTrial,
    ShareTrial,
    StartTrial,
    StopTrial,
    TrialState,
)
from helios.training.pool.attempts import Attempts
from helios.training.pool.clock import steady_s
from helios.training.pool.devices import Node
from helios.training.pool.endings import Endings
from helios.training.pool.launcher import Launcher
from helios.training.pool.notes import Notes
from helios.training.pool.orders import Orders
from helios.training.pool.readings import Readings
from helios.training.pool.reports import TaskRequest
from helios.training.pool.resizing import Resizing
from helios.training.pool.slots import fixed_slots
from helios.training.pool.trials import COST, DECIDE_S, PoolSweep, Sweeps, SweepTrials

_READ_S = 0.25
"""How often reports are read, s."""
_LONGEST_READ_S = 2.0
"""A search that prunes takes milliseconds for a report; it would come too late."""
_TERM_GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""

Decide = Callable[[PoolSnapshot], Iterable[PoolAction]]


class Watcher(Protocol):
    """Observer of a pool."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take note of what happened just now."""

    def refresh(self, pool: Coordinator) -> None:
        """Show the pool as it is, several times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEnd:
    """How a run of a pool ended.

    Attributes
    ----------
    reasons : tuple of str
        Why trials are left, for each sweep. Empty where none are.
    signal : int, optional
        What ended it from outside.
    notes : tuple of str
        What a person should know.
    """

    reasons: tuple[str, ...] = ("",)
    signal: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why trials of any sweep are left."""
        return next(filter(None, self.reasons), "")


class Coordinator:
    """Runs the trials of sweeps.

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
    nodes : sequence of Node
        Other nodes of the allocation.
    mps : bool
        Whether to run NVIDIA's MPS on each node while the pool runs.
    """

    def __init__(
        self,
        *,
        sweeps: Sequence[PoolSweep],
        devices: Sequence[Device],
        decide: Decide,
        ends_s: float | None = None,
        margin_s: float = 60.0,
        watcher: Watcher | None = None,
        warm: Sequence[str] = (),
        nodes: Sequence[Node] = (),
        mps: bool = False,
    ) -> None:
        self.ends_s = ends_s
        self._decide, self._margin_s, self._watcher = decide, margin_s, watcher
        self._notes = Notes(None if watcher is None else watcher.event)
        self._attempts = Attempts()
        self.sweeps = Sweeps(
            SweepTrials(
                source,
                place=place,
                others=[other.sweep for other in sweeps if other is not source],
                attempts=self._attempts,
                notes=self._notes,
            )
            for place, source in enumerate(sweeps)
        )
        self._readings = Readings(sweeps=self.sweeps, notes=self._notes)
        self._endings = Endings(sweeps=self.sweeps, attempts=self._attempts, readings=self._readings, notes=self._notes)
        self._launcher = Launcher(
            sweeps=self.sweeps,
            attempts=self._attempts,
            readings=self._readings,
            endings=self._endings,
            notes=self._notes,
            devices=devices,
            nodes=nodes,
            warm=warm,
            mps=mps,
        )
        self._resizing = Resizing(
            sweeps=self.sweeps, attempts=self._attempts, launcher=self._launcher, notes=self._notes
        )
        self._orders = [Orders(trials=each, attempts=self._attempts, notes=self._notes) for each in self.sweeps]
        self._stopped_by = ""
        self._signal: int | None = None
        self._signals: list[int] = []
        self._at_once = False
        self._wake = os.pipe()
        self._read_at_s = self._decide_at_s = 0.0

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all nodes that are not left out."""
        return self._launcher.devices

    @property
    def _left_s(self) -> float | None:
        """Time until trials are asked for a checkpoint."""
        return None if self.ends_s is None else self.ends_s - self._margin_s - steady_s()

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as services see it."""
        left_s = self._left_s
        trials = [
            *(attempt.seen for attempt in self._attempts.running.values()),
            *(
                trial
                for trials in self.sweeps
                if trials.hold_until_s <= steady_s()
                for trial in trials.waiting.values()
                if trials.fits(trial, left_s)
            ),
            *(trial for trials in self.sweeps for trial in trials.just_ended),
        ]
        return PoolSnapshot(
            now_s=steady_s(),
            ends_s=self.ends_s,
            devices=self.devices,
            trials=tuple(sorted(trials, key=lambda trial: trial.number)),
            fused=self._readings.fused_speeds,
            speeds=self._readings.speeds,
        )

    def run(self) -> PoolEnd:
        """Run until nothing is left to do."""
        attempts = self._attempts
        for trials in self.sweeps:
            for note in trials.source.notes:
                self._notes.note(note)
            trials.restore()
        self._launcher.end_interrupted()
        try:
            with self._handlers():
                self._launcher.start_agents()
                while True:
                    self._step()
                    may_end = attempts.stop_reason or all(trials.is_done(self._left_s) for trials in self.sweeps)
                    busy = not self._at_once and any(trials.goal.deliverables.is_busy for trials in self.sweeps)
                    if not attempts.running and may_end and not busy:
                        break
                    self._wait()
        finally:
            self._launcher.close()
            os.close(self._wake[0])
            os.close(self._wake[1])
        reasons = tuple(trials.why_left(attempts.stop_reason) for trials in self.sweeps)
        return PoolEnd(reasons=reasons, signal=self._signal, notes=self._notes.texts)

    def _step(self) -> None:
        now = steady_s()
        if not self._attempts.stop_reason and self.ends_s is not None and now >= self.ends_s - self._margin_s:
            self._stop("the time of the allocation is up")
        self._take_orders()
        self._take_signals()
        if now >= self._read_at_s:
            for attempt in list(self._attempts.running.values()):
                self._readings.read(attempt)
                self._endings.end_if_done(attempt)
            self._read_at_s = steady_s() + min(_LONGEST_READ_S, max(_READ_S, COST * (steady_s() - now)))
        self._resizing.work()
        for attempt in self._attempts.running.values():
            if attempt.terminate_at_s <= now and not attempt.terminated:
                attempt.terminated = True
                self._launcher.end(attempt, _TERM_GRACE_S)
        for trials in self.sweeps:
            if not trials.state.retry():
                trials.pause_starts(trials.state.problem)
            if trials.sweep.search is not None or self._attempts.stop_reason:
                trials.report_to_search()  # what the search chooses next depends on it
        if not self._attempts.stop_reason:
            self._start_trials(now)
        self._launcher.divide_devices()
        for trials in self.sweeps:
            trials.report_to_search()
            trials.goal.deliverables.work()
            trials.show_hold()
        if self._watcher is not None:
            self._watcher.refresh(self)

    def _start_trials(self, now: float) -> None:
        """Ask the searches for trials, and the service which of them start."""
        ready = [trials for trials in self.sweeps if now >= trials.hold_until_s]
        for trials in ready:
            if trials.ask(sum(device.slots for device in self.devices)):
                self._launcher.end_interrupted()
        if ready and (any(trials.changed for trials in ready) or now >= self._decide_at_s):
            for trials in ready:
                trials.changed = False
            self._run_service()
            self._decide_at_s = steady_s() + max(DECIDE_S, COST * (steady_s() - now))

    def _wait(self) -> None:
        """Wait for the next event, signal or due time."""
        due = [self._read_at_s, *(a.terminate_at_s for a in self._attempts.running.values() if not a.terminated)]
        if self.ends_s is not None:
            due.append(self.ends_s - self._margin_s)
        if not self._attempts.stop_reason:
            changed = any(trials.changed and trials.hold_until_s <= steady_s() for trials in self.sweeps)
            due.append(0.0 if changed else self._decide_at_s)
        due += [trials.sync_at_s for trials in self.sweeps if trials.state.unsynced]
        timeout = max(0.0, min(due) - steady_s()) if self._attempts.running else _READ_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ)
            for each in self._launcher.agents.values():
                selector.register(each.output, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(timeout)}
        if self._wake[0] in ready:
            os.read(self._wake[0], 4096)
        for name, each in list(self._launcher.agents.items()):
            events = each.events() if each.output in ready else []
            if events is None:
                self._launcher.restart_agent(name)
            for event in events or ():
                self._handle_event(event, name)

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

    def interrupt(self) -> None:
        """Ask the pool to end, as Ctrl-C does, a second time at once."""
        self._signals.append(signal.SIGINT)

    def _take_orders(self) -> None:
        for orders in self._orders:
            if stopped_by := orders.take():
                self._stopped_by = stopped_by
                self._signals.append(signal.SIGTERM)

    def _take_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._signal is not None:  # a second one: at once
                self._at_once = True
                for attempt in self._attempts.running.values():
                    attempt.terminate_at_s, attempt.terminated = 0.0, True
                    self._launcher.end(attempt, 0.0)
                continue
            if number == signal.SIGUSR1:
                self._stop("the time of the allocation is up")
                continue
            self._signal = number
            told = f"{self._stopped_by} stopped it" if self._stopped_by else "it was told to end"
            self._stop("it was interrupted" if number == signal.SIGINT else told)

    def _stop(self, reason: str) -> None:
        """Request a checkpoint of every trial, then end it."""
        self._attempts.stop_reason = self._attempts.stop_reason or reason
        self._notes.publish({"event": "stopping", "reason": reason})
        now = steady_s()
        for attempt in self._attempts.running.values():
            grace = self._margin_s / 2
            if self._signal is not None:
                own = self.sweeps.of(attempt.trial.number).sweep.grace_s
                grace = own if self.ends_s is None else min(grace, own)
            # Who has reported nothing does not read requests. It may still end by itself when time is up, but whoever
            # interrupts does not want to wait.
            listens = attempt.has_reported or self._signal is None
            attempt.terminate_at_s = min(attempt.terminate_at_s, now + grace if listens else now)
            attempt.request(TaskRequest.PAUSE, by_s=attempt.terminate_at_s)

    def _run_service(self) -> None:
        """Ask the service and apply its actions."""
        for trials in self.sweeps:
            trials.expect()
        snapshot = self.snapshot()
        for trials in self.sweeps:
            trials.just_ended.clear()
        try:
            actions = list(self._decide(snapshot))
        except Exception as reason:
            self._notes.note(f"The service could not decide, so slots are fixed: {type(reason).__name__}: {reason}")
            actions = fixed_slots(snapshot)
        for action in actions:
            self._apply_action(action)
        if not self._attempts.running and any(trial.state is not TrialState.RUNNING for trial in snapshot.trials):
            for action in fixed_slots(self.snapshot()):
                self._notes.note("The service started nothing while nothing ran, so slots are fixed")
                self._apply_action(action)
        self._launcher.launch()

    def _apply_action(self, action: PoolAction) -> None:
        if isinstance(action, StartTrial):
            self._launcher.start(action)
            return
        if isinstance(action, ShareTrial):
            self._launcher.share(action)
            return
        if isinstance(action, ResizeTrial):
            self._resizing.ask(action)
            return
        attempt, trials = self._attempts.running.get(action.number), self.sweeps.of(action.number)
        if isinstance(action, StopTrial) and action.number in trials.waiting and not trials.state.problem:
            trials.withdraw(trials.record(action.number), reason=action.reason, finished=action.finished)
            return
        wanted = TaskRequest.PAUSE if isinstance(action, PauseTrial) else TaskRequest.STOP
        if attempt is None or attempt.asked in {wanted, TaskRequest.STOP}:
            return
        self._notes.publish(
            {"event": "asked", **trials.identify(action.number), "request": str(wanted), "reason": action.reason}
        )
        if isinstance(action, StopTrial):
            attempt.stop(trials.sweep.grace_s, why=action.reason, finished=action.finished)
        else:
            attempt.why = action.reason
            attempt.request(wanted)

    def _handle_event(self, event: Mapping[str, Any], node: str) -> None:
        """Handle what the agent of a node tells."""
        if event["event"] == "memory":
            self._attempts.take_memory(event["mib"], node)
            self._attempts.take_held(event["held_s"])
        elif event["event"] == "warm_failed":
            self._notes.note(f"Trials start without the warm process: {event['reason']}")
        elif event["event"] == "mps_failed":
            self._notes.note(f"Trials share GPUs without MPS: {event['reason']}")
        elif event["event"] in {"ended", "not_started"}:
            if event["event"] == "not_started":
                event = {"status": 127, "seconds": 0.0, "peak_memory_mib": None, "out_of_memory": False, **event}
            elif event["held_s"]:
                self._attempts.take_held({str(event["number"]): event["held_s"]})
            if (process := self._attempts.processes.get(event["number"])) is not None:
                self._endings.end_process(process, event)
            else:
                self._launcher.end_on_node(self._attempts.running[event["number"]], node, event)
