"""The daemon's life: start, wait for a signal, revert, end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from helios.app.controller_state import hold_daemon_lock
from helios.app.cycle_summary import DaemonOperations
from helios.app.modes import PAUSE_FILE
from helios.config import Settings
from helios.daemon.health import Health, HealthFile, TaskTimes
from helios.daemon.http import AddressTaken, Server
from helios.daemon.metrics import Metrics
from helios.daemon.systemd import Notifier
from helios.daemon.tasks import Schedule, TaskScheduler, task_error
from helios.errors import ConfigurationInvalid
from helios.ports import Domain

WRITER_S = 45.0
"""How long the end waits for a cycle that runs, s: one call to a slow controller (slurm.timeout_s) and a little."""
RELEASE_S = 60.0
"""How long reverting may last, s."""
READER_S = 5.0
"""How long the end waits for a reading, s; it is only reading, and begins again where it left off."""
BIND_S = 60.0
"""An address that another process has is tried again so often, s."""
DEAD_S = 90.0
"""Without a heartbeat for so long the scheduler itself is dead, s."""

_log = logging.getLogger("helios.daemon.daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the daemon ended.

    Attributes
    ----------
    code : int
        Exit status: 0, or 1 when something that Helios set may still stand.
    stuck : bool
        A thread is still at work, and the interpreter would wait for it.
    """

    code: int
    stuck: bool


class Daemon:
    """All parts of a running daemon, wired.

    Parameters
    ----------
    tasks : Tasks
        What is done.
    settings : Settings
        When, and where it may be looked at.
    nightly : bool
        Whether the nightly analysis is this process's.
    environment : mapping
        Where the service manager says how it wants to be told.
    """

    def __init__(
        self,
        *,
        tasks: DaemonOperations,
        settings: Settings,
        nightly: bool,
        environment: Mapping[str, str],
        times: TaskTimes | None = None,
    ) -> None:
        self._times = times or TaskTimes()
        self._tasks = tasks
        self._keeps = not settings.daemon.release_on_stop
        self._listen = settings.daemon.listen
        self._folder = Path(settings.control.state_folder)
        self._notifier = Notifier(environment)
        self._rhythm = rhythm = _rhythm(settings, nightly=nightly, watchdog_s=self._notifier.watchdog_s)
        self._health = Health(lately_s=rhythm.lately_s(tasks=_steady(tasks)), times=self._times)
        self._metrics = Metrics(times=self._times)
        self._file = HealthFile(self._folder)
        self._clock = TaskScheduler(
            tasks=tasks,
            rhythm=rhythm,
            beat=self.beat,
            paused=lambda: os.path.lexists(self._folder / PAUSE_FILE),
            health=self._health,
            metrics=self._metrics,
            times=self._times,
        )
        self._server: Server | None = None
        self._bind_at_s = self._times.monotonic_s()
        self._locks = ExitStack()
        self._beaten_s = self._times.monotonic_s()
        self._starved = False

    def start(self) -> None:
        """Serve, call, and tell the service manager.

        Raises
        ------
        DaemonRuns
            Another daemon has the state folder.
        ConfigurationInvalid
            The address is none that this machine has.
        """
        with ExitStack() as until_started:
            until_started.enter_context(hold_daemon_lock(self._folder, domains=_domains(self._tasks)))
            self._serve()
            self._clock.start()
            self._locks = until_started.pop_all()
        self._notifier.ready()
        _log.info("started: %s", self._rhythm_in_words())

    def beat(self) -> None:
        """Give a sign of life: to the service manager only while cycles make progress."""
        self._beaten_s = self._times.monotonic_s()
        if self._clock.makes_progress():
            self._notifier.alive()
            self._starved = False
        elif not self._starved:
            self._starved = True
            _log.critical("no cycle has begun or ended for %.0f s: the watchdog is no longer fed", self._silence_s())
        self._serve_again()
        report = self._health.report()
        self._notifier.status(f"{report['state']}: {_headline(report)}")
        self._file.write(self._health.report)

    @property
    def port(self) -> int | None:
        """Where /metrics and /healthz are served; None: nowhere."""
        return None if self._server is None else self._server.port

    def is_dead(self) -> bool:
        """Return whether the scheduler has stopped by itself."""
        return self._times.monotonic_s() - self._beaten_s > DEAD_S

    def stop(self, *, why: str) -> Ending:
        """Call nothing any more, wait for the task that writes, revert what was set, and end."""
        self._notifier.stopping()
        self._health.ending("stopping")
        self._clock.stop()
        _log.info("stops: %s", why)
        done, stuck = self._take_back(why)
        stuck = not self._clock.readers_left(within_s=READER_S) or stuck
        self._health.ending("stopped")
        self._file.write(self._health.report)
        if self._server is not None:
            self._server.close()
        self._locks.close()
        _log.info("ended")
        return Ending(code=0 if done else 1, stuck=stuck)

    def _serve(self) -> None:
        """Serve, unless another process has the address: metrics are no reason to leave the cluster alone."""
        if not self._listen or self._server is not None:
            return
        self._bind_at_s = self._times.monotonic_s() + BIND_S
        try:
            self._server = Server(self._listen, registry=self._metrics.registry, health=self._health.report)
        except AddressTaken as taken:
            if not self._health.note:
                _log.error("%s. What to do: %s", taken.message, taken.hint)
            self._health.note = taken.message
        else:
            self._health.note = ""

    def _serve_again(self) -> None:
        if self._times.monotonic_s() >= self._bind_at_s:
            with suppress(ConfigurationInvalid):  # it could be bound at the start, so that it may be again
                self._serve()

    def _take_back(self, why: str) -> tuple[bool, bool]:
        """Return whether all is reverted that should be, and whether a thread is stuck."""
        if not self._clock.writing.shut(within_s=WRITER_S):
            _log.error("a cycle is stuck: nothing was reverted. What to do: run helios-release.sh")
            return False, True
        if self._keeps:
            _log.warning("what Helios set stands: daemon.release_on_stop is false")
            return True, False
        if self._health.stands_by:
            _log.info("standby: nothing was set from here, nothing to revert")
            return True, False
        return _bounded(lambda: self._release(why), within_s=RELEASE_S)

    def _release(self, why: str) -> bool:
        try:
            _log.info("%s", self._tasks.release(why))
        except Exception as error:  # the process ends anyway; its last word must be what is left
            problem = task_error(error)
            _log.error("not all is reverted: %s", problem.line(), exc_info=error if problem.defect else None)
            return False
        return True

    def _rhythm_in_words(self) -> str:
        rhythm = self._rhythm
        night = self._clock.due().get("nightly")
        nightly = f"nightly analysis next at {night:%Y-%m-%d %H:%M %Z}" if night else "no nightly analysis"
        reading = f"a reading every {rhythm.ingest_s:.0f} s" if self._clock.ingest else "no reading"
        on = " and ".join({"cycle": "jobs"}.get(name, name) for name in self._clock.cycles)
        return f"a cycle on {on} every {rhythm.cycle_s:.0f} s, {reading}, {nightly}"

    def _silence_s(self) -> float:
        return self._clock.silent_for_s()


def run(
    tasks: DaemonOperations,
    *,
    settings: Settings,
    nightly: bool,
    environment: Mapping[str, str],
    times: TaskTimes | None = None,
) -> Ending:
    """Do the tasks until a signal comes: SIGTERM and SIGINT end it, SIGHUP changes nothing and says so.

    Raises
    ------
    ConfigurationInvalid
        ``daemon.listen`` is none that this machine has.
    DaemonRuns
        Another daemon has the state folder.
    """
    daemon = Daemon(tasks=tasks, settings=settings, nightly=nightly, environment=environment, times=times)
    with _signals() as signals:
        daemon.start()
        return daemon.stop(why=_first_end(signals, daemon))


def _first_end(signals: SimpleQueue[int], daemon: Daemon) -> str:
    while True:
        try:
            number = signal.Signals(signals.get(timeout=5))
        except Empty:
            if daemon.is_dead():
                _log.critical("the scheduler is dead. What to do: start the daemon again; systemd does")
                return "the scheduler is dead"
            continue
        if number != signal.SIGHUP:
            return number.name
        _log.warning("SIGHUP changes nothing: settings are read at the start. What to do: systemctl restart helios")


@contextmanager
def _signals() -> Iterator[SimpleQueue[int]]:
    """Put signals in a queue; handlers, not a mask, since commands that Helios starts would inherit the mask."""
    queue: SimpleQueue[int] = SimpleQueue()

    def hear(number: int, _: FrameType | None) -> None:
        queue.put(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield queue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bounded(work: Callable[[], bool], *, within_s: float) -> tuple[bool, bool]:
    """Return what ``work`` returned, and whether it was still at work at the end of its time (then False, True)."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(work()), name="release", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        _log.error("reverting did not end in %.0f s. What to do: run helios-release.sh", within_s)
        return False, True
    return bool(answers) and answers[0], False


def _rhythm(settings: Settings, *, nightly: bool, watchdog_s: float | None) -> Schedule:
    times = settings.daemon
    return Schedule(
        cycle_s=times.cycle_s,
        ingest_s=times.ingest_s,
        nightly=times.nightly if nightly else None,
        heartbeat_s=10.0 if watchdog_s is None else min(10.0, watchdog_s / 3),
    )


def _steady(tasks: DaemonOperations) -> list[str]:
    """Return which tasks this process has of those that must succeed again and again for it to be well."""
    works = {"cycle": tasks.cycle, "nodes": tasks.nodes, "ingest": tasks.ingest}
    return [name for name, work in works.items() if work is not None]


def _domains(tasks: DaemonOperations) -> list[Domain]:
    works = {Domain.JOBS: tasks.cycle, Domain.NODES: tasks.nodes}
    return [domain for domain, work in works.items() if work is not None]


def _headline(report: Mapping[str, object]) -> str:
    reasons = report["reasons"]
    if isinstance(reasons, list) and reasons:
        return "; ".join(reasons)
    said = [str(report["note"])] if report["note"] else []
    said += [str(cycle["line"]) for cycle in (report["cycle"], report["nodes"]) if isinstance(cycle, dict)]
    return "; ".join(said) or "the first cycle is to come"
