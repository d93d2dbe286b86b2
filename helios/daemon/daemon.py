"""Start, main loop and shutdown of the daemon."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Literal, TextIO

from helios.app.controller_state import DaemonOperations, hold_daemon_lock
from helios.app.explain_socket import ExplainServer
from helios.app.modes import is_paused_here
from helios.choices import Domain
from helios.config import Settings, without_password
from helios.daemon.health import AddressTaken, Health, HealthFile, Metrics, Server, TaskTimes
from helios.daemon.tasks import TaskSchedule, TaskScheduler, task_error
from helios.errors import ConfigurationInvalid, StrangersLeft

WRITER_S = 45.0
"""Longest wait for a running cycle at the end, s. It is above the longest call to Slurm (slurm.timeout_s)."""
RELEASE_S = 60.0
"""Longest time for reverting, s."""
READER_S = 5.0
"""Longest wait for a running ingest at the end, s. It only reads, and continues where it stopped."""
BIND_S = 60.0
"""Time between attempts to bind an address that another process has, s."""
DEAD_S = 90.0
"""Time without a heartbeat after which the scheduler itself counts as dead, s."""
HEARTBEAT_S = 10.0
QUIET = ("apscheduler", "alembic", "matplotlib", "numba")
"""Libraries whose errors only are logged. The daemon logs their important events itself."""

_log = logging.getLogger("helios.daemon.daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Result of a run of the daemon.

    Attributes
    ----------
    code : int
        Exit status, 1 if changes of Helios may still be applied that should be reverted, that of ``StrangersLeft`` if
        only values of strangers are left that look like it, else 0.
    stuck : bool
        Whether a thread is still running, for which the interpreter would wait.
    """

    code: int
    stuck: bool


class Notifier:
    """Client of the notification protocol of sd_notify(3).

    The package sdnotify is not used, because it drops a status that is not Latin-1 and hides errors.

    Parameters
    ----------
    environment : mapping
        The process environment. ``NOTIFY_SOCKET`` names the socket (an abstract one with ``@``). ``WATCHDOG_USEC`` and
        ``WATCHDOG_PID`` say whether and how often the service manager expects a sign of life.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._warned = False
        is_watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if is_watched and usec.isdecimal() else None

    def send(self, message: str) -> None:
        """Send an assignment such as ``READY=1``, and log the first failure."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.settimeout(1)
                manager.sendto(" ".join(message.split()).encode(errors="replace"), address)
        except OSError as error:
            if not self._warned:
                _log.warning("the service manager does not listen at NOTIFY_SOCKET=%s: %s", self._address, error)
            self._warned = True


class Daemon:
    """A running daemon with all its parts.

    Parameters
    ----------
    tasks : DaemonOperations
        The tasks.
    settings : Settings
        Intervals, address and state folder.
    nightly : bool
        Whether this process does the nightly analysis.
    environment : mapping
        The process environment, in which the service manager gives its socket.
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
        self._all_settings, self._settings = settings, settings.daemon
        self._folder = Path(settings.control.state_folder)
        self._notifier = Notifier(environment)
        watchdog_s = self._notifier.watchdog_s
        schedule = TaskSchedule(
            cycle_s=settings.daemon.cycle_s,
            ingest_s=settings.daemon.ingest_s,
            nightly=settings.daemon.nightly if nightly else None,
            heartbeat_s=HEARTBEAT_S if watchdog_s is None else min(HEARTBEAT_S, watchdog_s / 3),
        )
        tasks_by_name = {"cycle": tasks.cycle, "nodes": tasks.nodes, "ingest": tasks.ingest}
        periodic = [name for name, task in tasks_by_name.items() if task is not None]
        self._health = Health(longest_silence_s=schedule.longest_silence_s(tasks=periodic), times=self._times)
        self._metrics = Metrics(times=self._times)
        self._file = HealthFile(self._folder)
        self._scheduler = TaskScheduler(
            tasks=tasks,
            schedule=schedule,
            beat=self.send_heartbeat,
            paused=lambda: is_paused_here(self._folder),
            health=self._health,
            metrics=self._metrics,
            times=self._times,
        )
        self._server: Server | None = None
        self._explain_server: ExplainServer | None = None
        self._bind_at_s = self._times.monotonic_s()
        self._locks = ExitStack()
        self._beaten_s = self._times.monotonic_s()
        self._starved = False

    def start(self) -> None:
        """Start the server and the tasks, and notify the service manager.

        Raises
        ------
        DaemonRuns
            Another daemon uses the state folder.
        ConfigurationInvalid
            The address cannot be bound.
        """
        cycles = {Domain.JOBS: self._tasks.cycle, Domain.NODES: self._tasks.nodes}
        domains = [domain for domain, cycle in cycles.items() if cycle is not None]
        with ExitStack() as stack:
            stack.enter_context(hold_daemon_lock(self._folder, domains=domains))
            self._serve()
            self._serve_explanations()
            self._scheduler.start()
            self._locks = stack.pop_all()
        self._notifier.send("READY=1")
        night = self._scheduler.due().get("nightly")
        _log.info(
            "started: a cycle on %s every %d s, %s, %s",
            " and ".join(domains),
            self._settings.cycle_s,
            f"a reading every {self._settings.ingest_s} s" if self._tasks.ingest else "no reading",
            f"nightly analysis next at {night:%Y-%m-%d %H:%M %Z}" if night else "no nightly analysis",
        )

    def send_heartbeat(self) -> None:
        """Send and store the daemon's state.

        The watchdog of the service manager is notified only while cycles make progress.
        """
        self._beaten_s = self._times.monotonic_s()
        if self._scheduler.is_progressing():
            self._notifier.send("WATCHDOG=1")
            self._starved = False
        elif not self._starved:
            self._starved = True
            silent_s = self._scheduler.silent_for_s()
            _log.critical("no cycle has begun or ended for %.0f s: the watchdog is no longer fed", silent_s)
        if self._beaten_s >= self._bind_at_s:
            with suppress(ConfigurationInvalid):  # the address was valid at the start, and may be again
                self._serve()
        report = self._health.report()
        self._notifier.send(f"STATUS={report['state']}: {_headline(report)}")
        self._file.write(self._health.report)

    @property
    def port(self) -> int | None:
        """Port of /metrics and /healthz, or None if they are not served."""
        return None if self._server is None else self._server.port

    def is_dead(self) -> bool:
        """Return whether the scheduler has stopped unexpectedly."""
        return self._times.monotonic_s() - self._beaten_s > DEAD_S

    def stop(self, *, why: str) -> Ending:
        """Stop the tasks, wait for a running cycle, and revert what was set."""
        self._notifier.send("STOPPING=1")
        self._health.record_ending("stopping")
        self._scheduler.stop()
        if self._explain_server is not None:
            self._explain_server.close()
        _log.info("stops: %s", why)
        code, stuck = self._revert(why)
        stuck = not self._scheduler.close_readers(within_s=READER_S) or stuck
        self._health.record_ending("stopped")
        self._file.write(self._health.report)
        if self._server is not None:
            self._server.close()
        self._locks.close()
        _log.info("ended")
        return Ending(code=code, stuck=stuck)

    def _serve(self) -> None:
        """Start the server, unless another process has the address.

        A taken address is only reported, because the daemon can act without metrics.
        """
        if not self._settings.listen or self._server is not None:
            return
        self._bind_at_s = self._times.monotonic_s() + BIND_S
        try:
            self._server = Server(self._settings.listen, registry=self._metrics.registry, health=self._health.report)
        except AddressTaken as error:
            if not self._health.note:
                _log.error("%s. What to do: %s", error.message, error.hint)
            self._health.note = error.message
        else:
            self._health.note = ""

    def _serve_explanations(self) -> None:
        """Start to answer ``helios why``, which works without it, too."""
        if self._tasks.explain is None:
            return
        try:
            self._explain_server = ExplainServer(self._all_settings, self._tasks.explain)
        except OSError as error:
            _log.warning("helios why cannot ask this daemon, and works it out itself: %s", error)

    def _revert(self, why: str) -> tuple[int, bool]:
        """Revert everything due, and return status and whether a thread hangs."""
        if not self._scheduler.writing.close(within_s=WRITER_S):
            _log.error("a cycle is stuck: nothing was reverted. What to do: run helios-release.sh")
            return 1, True
        if not self._settings.release_on_stop:
            _log.warning("what Helios set stands: daemon.release_on_stop is false")
            return 0, False
        if self._health.is_standby:
            _log.info("standby: nothing was set from here, nothing to revert")
            return 0, False
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(self._release(why)), name="release", daemon=True)
        thread.start()
        thread.join(RELEASE_S)
        if thread.is_alive():
            _log.error("reverting did not end in %.0f s. What to do: run helios-release.sh", RELEASE_S)
            return 1, True
        return codes[0] if codes else 1, False

    def _release(self, why: str) -> int:
        try:
            _log.info("%s", self._tasks.release(why))
        except StrangersLeft as left:
            _log.warning("%s. %s", left.message, left.hint)
            return left.exit_code
        except Exception as error:  # the process ends anyway, and must report the failure
            problem = task_error(error)
            _log.error("not all is reverted: %s", problem.line(), exc_info=error if problem.defect else None)
            return 1
        return 0


def run(tasks: DaemonOperations, *, settings: Settings, nightly: bool, environment: Mapping[str, str]) -> Ending:
    """Run the tasks until SIGTERM or SIGINT.

    SIGHUP changes nothing, and is logged.

    Raises
    ------
    ConfigurationInvalid
        ``daemon.listen`` cannot be bound.
    DaemonRuns
        Another daemon uses the state folder.
    """
    daemon = Daemon(tasks=tasks, settings=settings, nightly=nightly, environment=environment)
    with _signals() as signals:
        daemon.start()
        return daemon.stop(why=_wait_for_end(signals, daemon.is_dead))


def start_logs(form: Literal["text", "json"], *, stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs to ``stream`` in the chosen form."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class LineFormatter(logging.Formatter):
    """Formatter with one line for each record.

    A text line is like ``2026-11-21T02:30:00Z WARNING cycle: what happened``, with a traceback on separate lines. A
    JSON line is one object with time, level, source, message, and traceback where there is one.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without passwords."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Helios' own loggers are named by their last word, such as cycle for helios.daemon.cycle.
        source = record.name.rpartition(".")[2] if record.name.startswith("helios.") else record.name
        # A line break, for instance in a job's name, must not look like a second record.
        message = "".join(
            character if character.isprintable() else " " for character in _redact(record.getMessage())
        ).strip()
        trace = _redact(self.formatException(record.exc_info)) if record.exc_info else ""
        if not self._as_json:
            line = f"{time} {record.levelname:<7} {source}: {message}"
            return f"{line}\n{trace}" if trace else line
        entry = {"time": time, "level": record.levelname.lower(), "source": source, "message": message}
        return json.dumps({**entry, "traceback": trace} if trace else entry, ensure_ascii=False)


def _wait_for_end(signals: SimpleQueue[int], is_dead: Callable[[], bool]) -> str:
    while True:
        try:
            number = signal.Signals(signals.get(timeout=5))
        except Empty:
            if is_dead():
                _log.critical("the scheduler is dead. What to do: start the daemon again; systemd does")
                return "the scheduler is dead"
            continue
        if number != signal.SIGHUP:
            return number.name
        _log.warning("SIGHUP changes nothing: settings are read at the start. What to do: systemctl restart helios")


@contextmanager
def _signals() -> Iterator[SimpleQueue[int]]:
    """Yield a queue with the received signals.

    Handlers are used instead of a signal mask, because commands that Helios starts would inherit the mask.
    """
    queue: SimpleQueue[int] = SimpleQueue()

    def put(number: int, _: FrameType | None) -> None:
        queue.put(number)

    before = {number: signal.signal(number, put) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield queue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _headline(report: Mapping[str, Any]) -> str:
    if report["reasons"]:
        return "; ".join(report["reasons"])
    notes = [report["note"], *(cycle["line"] for cycle in (report["cycle"], report["nodes"]) if cycle)]
    return "; ".join(note for note in notes if note) or "the first cycle is to come"


def _redact(text: str) -> str:
    return re.sub(r"\S+://\S+", lambda url: str(without_password(url[0])), text)
