"""Health and metrics of the daemon, and their HTTP server.

The server has ``/metrics`` and ``/healthz``, read-only. Metrics of jobs and nodes come from Slurm's own exporters.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from email import message_from_string
from email.message import Message
from functools import partial
from itertools import product
from pathlib import Path
from threading import Lock, Thread
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder

from helios import __version__
from helios.app.controller_state import Breaker, CycleSummary, NodeCycleSummary, now_utc
from helios.errors import ConfigurationInvalid, HeliosError
from helios.listener import ClientConnection, Listener
from helios.model import Mode
from helios.private_files import make_folder, write_private
from helios.report.nodes import SpareNodes
from helios.units import HOUR_S

NAME = "health.json"
FAILURES = 3
"""Failures in a row after which the daemon is unhealthy, however recent the last success is."""
OF_CYCLES = ("suspended", "seconds", "modes", "breaker", "lease_held", "acted")
OF_JOBS = ("pending", "running", "predictions", "history_read_at", "model_trained_at")
OF_NODES = ("nodes", "by_helios", "protected", "quarantined")
"""Fields in the report of any cycle, of one on jobs and of one on nodes."""

_log = logging.getLogger("helios.daemon.health")
_http_log = logging.getLogger("helios.daemon.http")

SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 120)

KWH_J = 3.6e6
LEVELS: Mapping[str, tuple[str, str, float]] = {
    "utilization": ("helios_gpus_in_use_ratio", "Share of the GPUs in service that were in use", 1.0),
    "idle_while_jobs_wait_elsewhere": (
        "helios_gpu_idle_elsewhere_seconds",
        "GPU seconds that idled in one partition while jobs that fit waited in another",
        HOUR_S,
    ),
    "idle_nodes": ("helios_node_time_idle_ratio", "Share of node time in idle spells longer than an hour", 1.0),
    "long_failures": (
        "helios_gpu_time_failed_ratio",
        "Share of GPU time in jobs that failed after more than an hour",
        1.0,
    ),
    "hours_at_time_limit": ("helios_gpu_time_cut_at_limit_ratio", "Share of GPU time in jobs cut at their limit", 1.0),
}
"""Gauges of the study of the last seven days by the statement's name, with the factor of its unit."""
ENERGY_LEVELS: Mapping[str, tuple[str, str, float]] = {
    "used_kwh": ("helios_energy_used_joules", "Drawn by the building for all nodes", KWH_J),
    "idle_kwh": ("helios_energy_idle_joules", "Drawn by nodes without a job", KWH_J),
    "saved_kwh": ("helios_energy_saved_joules", "Saved by sleep against leaving all nodes on", KWH_J),
    "saved_low_kwh": ("helios_energy_saved_low_joules", "Lower end of what sleep saved, 95 %", KWH_J),
    "saved_high_kwh": ("helios_energy_saved_high_joules", "Upper end of what sleep saved, 95 %", KWH_J),
    "saved_to_timer_kwh": (
        "helios_energy_saved_to_timer_joules",
        "Saved by sleep against an idle timer of 30 minutes",
        KWH_J,
    ),
    "saved_cost": ("helios_energy_saved_cost", "Money saved by sleep, in energy.currency", 1.0),
    "saved_co2_kg": ("helios_energy_saved_co2_grams", "Carbon dioxide saved by sleep", 1000.0),
    "asleep_node_h": ("helios_node_asleep_seconds", "Node seconds asleep", HOUR_S),
}
"""Gauges of the energy report of the last fourteen days, likewise."""
HELD_LEVELS: Mapping[str, tuple[str, str, float]] = {
    "held_gpus_measured": (
        "helios_held_gpus_measured",
        "GPUs that a running job holds alone and that were measured",
        1,
    ),
    "held_gpus_idle": ("helios_held_gpus_idle", "Of these, GPUs without use", 1),
    "held_gpus_without_process": ("helios_held_gpus_without_process", "Of these, GPUs without a process", 1),
}
"""Gauges of the GPUs that are held now, likewise."""
USE_LEVELS: Mapping[str, tuple[str, str, float]] = {
    "use_error_at_submission": (
        "helios_use_error_at_submission_ratio",
        "Error of predicted utilization, median by GPU hours",
        0.01,
    ),
    "use_error_of_mean_at_submission": (
        "helios_use_error_of_mean_ratio",
        "The same, of the mean of earlier runs",
        0.01,
    ),
    "use_error_after_15_min": ("helios_use_error_after_start_ratio", "The same, 15 minutes after the start", 0.01),
    "use_idle_auc_at_submission": ("helios_use_idle_auc_at_submission", "How well idle runs were foreseen, AUC", 1),
    "use_idle_auc_after_15_min": ("helios_use_idle_auc_after_start", "The same, 15 minutes after the start", 1),
    "use_memory_covered_runs_at_submission": (
        "helios_use_memory_covered_runs_ratio",
        "Share of runs within their predicted GPU memory",
        1,
    ),
    "use_memory_covered_hours_at_submission": (
        "helios_use_memory_covered_gpu_time_ratio",
        "Share of GPU time within the predicted GPU memory",
        1,
    ),
}
"""Gauges of the predictions of use that the nightly report judged, likewise."""

OPENMETRICS = "application/openmetrics-text"
CACHED_S = 1.0
"""How long an answer of /metrics is given again, s. Making it takes milliseconds of what the cycles have."""


class HealthFile:
    """The file ``health.json`` in the state folder, for readers without a port.

    It is replaced atomically.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._problem = ""
        self._one_at_a_time = Lock()

    def write(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file by the content of ``report``.

        A failure is logged once, and never raised.
        """
        with self._one_at_a_time:  # the report is made under the lock, so that "stopping" never overwrites "stopped"
            problem = ""
            try:
                make_folder(self._path.parent)
                write_private(self._path, (json.dumps(report(), indent=2) + "\n").encode())
            except OSError as error:
                problem = f"{self._path} cannot be written: {error.strerror}"
            if problem and problem != self._problem:
                _log.error("%s. What to do: check control.state_folder and the room on its disk.", problem)
            elif self._problem and not problem:
                _log.warning("%s is written again", self._path)
            self._problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """Clocks of the tasks, which tests replace.

    Attributes
    ----------
    now : callable
        Returns the time, aware UTC, for people. It may jump.
    monotonic_s : callable
        Returns monotonic time, s, for lengths of time. Its zero has no meaning.
    """

    now: Callable[[], datetime] = now_utc
    monotonic_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHealth:
    """Recent results of one task.

    Attributes
    ----------
    began_at, succeeded_at, failed_at : datetime, optional
        Last time of each; None where it has not happened since the start.
    at_work : bool
        Whether it runs now.
    line : str
        Its last message.
    failures : int
        Number of failures in a row.
    problem : str
        The last error; empty after a success.
    """

    began_at: datetime | None = None
    succeeded_at: datetime | None = None
    failed_at: datetime | None = None
    at_work: bool = False
    line: str = ""
    failures: int = 0
    problem: str = ""


class Health:
    """Health of the daemon.

    The tasks' threads write it, and other threads read it.

    Parameters
    ----------
    longest_silence_s : mapping of str to float
        Tasks that must have succeeded for the daemon to be healthy, and the longest time since then, s.
    times : TaskTimes
        The clocks.
    """

    def __init__(self, *, longest_silence_s: Mapping[str, float], times: TaskTimes) -> None:
        self._longest_silence_s = dict(longest_silence_s)
        self._times = times
        self._lock = Lock()
        self._started_at = times.now()
        self._tasks = {name: TaskHealth() for name in longest_silence_s}
        self._cycles: dict[str, CycleSummary | NodeCycleSummary] = {}
        self._ending = ""
        self.note = ""
        """A remark for a person that does not affect the health, or an empty text."""

    @property
    def is_standby(self) -> bool:
        """Whether this process holds no lease, by its last cycles.

        Another Helios then writes to the cluster. False before the first cycle.
        """
        cycles = list(self._cycles.values())
        return bool(cycles) and not any(cycle.lease_held for cycle in cycles)

    def record_begin(self, name: str, *, at: datetime) -> None:
        """Record that a task began."""
        self._update(name, began_at=at, at_work=True)

    def record_success(self, name: str, *, at: datetime, line: str) -> None:
        """Record that a task succeeded.

        With an empty ``line`` its previous message stays.
        """
        said = {"line": line} if line else {}
        self._update(name, succeeded_at=at, at_work=False, failures=0, problem="", **said)

    def record_failure(self, name: str, *, at: datetime, problem: str) -> None:
        """Record that a task failed."""
        self._update(name, failed_at=at, at_work=False, failures=self.of(name).failures + 1, problem=problem)

    def record_cycle(self, name: str, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Record the last cycle of a task."""
        self._cycles[name] = cycle

    def record_ending(self, word: str) -> None:
        """Record that the daemon is ``stopping``, or ``stopped``."""
        self._ending = word

    def of(self, name: str) -> TaskHealth:
        """Return the recent results of one task."""
        with self._lock:
            return self._tasks.get(name, TaskHealth())

    def reasons(self) -> list[str]:
        """Return why the daemon is not healthy, or an empty list."""
        if self._ending:
            return [f"the daemon is {self._ending}"]
        return [reason for name in self._longest_silence_s if (reason := self._task_problem(name))]

    def report(self) -> dict[str, Any]:
        """Return everything as plain values, as ``/healthz`` and ``health.json`` show it."""
        reasons = self.reasons()
        with self._lock:
            tasks = {name: _plain(asdict(task)) for name, task in sorted(self._tasks.items())}
        return {
            "healthy": not reasons,
            "state": self._state(reasons),
            "reasons": reasons,
            "note": self.note,
            "version": __version__,
            "pid": os.getpid(),
            **_plain({"started_at": self._started_at, "written_at": self._times.now()}),
            "tasks": tasks,
            "cycle": self._report_cycle("cycle", OF_JOBS),
            "nodes": self._report_cycle("nodes", OF_NODES),
        }

    def _report_cycle(self, name: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
        if (cycle := self._cycles.get(name)) is None:
            return None
        return {"line": cycle.line(), **_plain({field: getattr(cycle, field) for field in OF_CYCLES + fields})}

    def _state(self, reasons: list[str]) -> str:
        if self._ending:
            return self._ending
        if reasons:
            return "failing" if any(task.failures for task in self._tasks.values()) else "waiting"
        if self.is_standby:
            return "standby"
        return "suspended" if any(cycle.suspended for cycle in list(self._cycles.values())) else "at work"

    def _task_problem(self, name: str) -> str:
        task = self.of(name)
        age_s = (self._times.now() - (task.succeeded_at or self._started_at)).total_seconds()
        if task.failures >= FAILURES:
            return f"{name} failed {task.failures} times in a row: {task.problem}"
        if task.succeeded_at is not None and age_s <= self._longest_silence_s[name]:
            return ""
        why = task.problem or ("at work" if task.at_work else "")
        return f"{name} has not succeeded for {age_s:.0f} s" + (f": {why}" if why else "")

    def _update(self, name: str, **changes: Any) -> None:
        with self._lock:
            self._tasks[name] = replace(self._tasks.get(name, TaskHealth()), **changes)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that JSON supports.

    Times are rounded to seconds, numbers to three decimals.
    """
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: str(it) if isinstance(it, str) else it for key, it in value.items()}
    return list(value) if isinstance(value, tuple) else value


class Metrics:
    """Metrics of one daemon, in their own registry.

    Attributes
    ----------
    registry : CollectorRegistry
        Registry for ``/metrics``.
    """

    def __init__(self, *, times: TaskTimes) -> None:
        self.registry = registry = CollectorRegistry()
        self._times = times
        self._last: CycleSummary | None = None
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        Info("helios_build", "What runs", registry=registry).info({"version": __version__})
        self._decisions = counter(
            "helios_decisions",
            "Jobs or nodes for which a service proposed something, by what became of it",
            ["service", "mode", "result"],
        )
        self._predictions = counter("helios_predictions", "Run times predicted in cycles")
        self._cycles = counter(
            "helios_cycles", "Cycles taken: acted, quiet (nothing to change), suspended", ["outcome"]
        )
        self._seconds = Histogram("helios_cycle_seconds", "Length of a cycle", buckets=SECONDS, registry=registry)
        self._success = gauge("helios_task_last_success_timestamp_seconds", "When it last ended well", ["task"])
        self._failures = counter("helios_task_failures", "Runs that failed", ["task"])
        self._left_out = counter("helios_task_left_out", "Times left out since work was still going on", ["task"])
        self._mode = gauge("helios_service_mode", "1: its mode now", ["service", "mode"])
        self._modes: dict[str, Mapping[str, Mode]] = {}
        self._breaker = gauge("helios_breaker_state", "1: its state now", ["domain", "state"])
        self._lease = gauge("helios_lease_held", "1: this Helios is the one that writes", ["domain"])
        self._suspended = gauge("helios_suspended", "1: a guard kept the last cycle from acting", ["domain"])
        history = gauge("helios_history_age_seconds", "Since the history was read; NaN: it never was")
        history.set_function(lambda: self._age_s(lambda cycle: cycle.history_read_at))
        model = gauge("helios_model_age_seconds", "Since the model was trained; NaN: there is none")
        model.set_function(lambda: self._age_s(lambda cycle: cycle.model_trained_at))
        self._node_cycles = counter("helios_node_cycles", "Cycles taken on nodes: acted, quiet, suspended", ["outcome"])
        self._node_changes = counter("helios_node_changes", "Nodes put to sleep, woken, weighed anew", ["change"])
        self._levels = {
            level: (gauge(name, f"{what} in the last {span}; NaN: not known"), factor)
            for span, levels in (
                ("seven days, from the nightly report", LEVELS),
                ("fourteen days, from the nightly report", ENERGY_LEVELS),
                ("30 minutes, from Prometheus", HELD_LEVELS),
                ("day, from the nightly report", USE_LEVELS),
            )
            for level, (name, what, factor) in levels.items()
        }
        self._nodes = gauge("helios_nodes", "Nodes by what they do, at the last cycle on nodes", ["state"])
        self.record_levels({})
        self._by_helios = gauge("helios_nodes_asleep", "Nodes asleep or falling asleep because Helios asked for it")
        self._protected = gauge("helios_protected", "1: too many nodes failed to wake, nothing is put to sleep")
        self._quarantined = gauge("helios_nodes_quarantined", "Nodes that failed to wake and are left alone")
        self._spare = gauge("helios_spare_nodes", "Nodes that stay awake beyond those in use", ["pool"])
        self._memory = gauge("helios_spare_memory_seconds", "Time over which the most nodes in use count", ["pool"])
        self._delayed = gauge("helios_submissions_delayed_ratio", "Share that waited for a boot in the last 7 days")
        self._accepted = gauge("helios_submissions_delayed_accepted_ratio", "Share that the site accepts")
        self._sleeps = gauge("helios_node_sleeps_most", "Most times that one node was put to sleep in 24 hours")
        self._record_spare(None)

    def record_cycle(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Count a cycle and set the gauges of its state."""
        outcome = "suspended" if cycle.suspended else "acted" if cycle.acted else "quiet"
        for tally in cycle.tallies:
            labels = {"service": tally.service, "mode": str(tally.mode), "result": tally.result.value}
            self._decisions.labels(**labels).inc(tally.jobs)
        domain = "nodes" if isinstance(cycle, NodeCycleSummary) else "jobs"
        self._modes[domain] = cycle.modes
        self._mode.clear()
        for modes in self._modes.values():
            for service, each in product(modes, Mode):
                self._mode.labels(service=service, mode=each.value).set(each == modes[service])
        for state in get_args(Breaker):
            self._breaker.labels(domain=domain, state=state).set(state == cycle.breaker)
        self._lease.labels(domain=domain).set(cycle.lease_held)
        self._suspended.labels(domain=domain).set(bool(cycle.suspended))
        if isinstance(cycle, NodeCycleSummary):
            self._record_nodes(cycle, outcome)
            return
        self._last = cycle
        self._cycles.labels(outcome=outcome).inc()
        self._seconds.observe(cycle.seconds)
        self._predictions.inc(cycle.predictions)

    def _record_nodes(self, cycle: NodeCycleSummary, outcome: str) -> None:
        self._node_cycles.labels(outcome=outcome).inc()
        for change, number in (("sleep", cycle.slept), ("wake", cycle.woken), ("weight", cycle.weighed)):
            self._node_changes.labels(change=change).inc(number)
        self._nodes.clear()
        for state, number in cycle.nodes.items():
            self._nodes.labels(state=state).set(number)
        self._by_helios.set(cycle.by_helios)
        self._protected.set(bool(cycle.protected))
        self._quarantined.set(cycle.quarantined)
        self._record_spare(cycle.spare)

    def _record_spare(self, spare: SpareNodes | None) -> None:
        self._spare.clear()
        self._memory.clear()
        for rule in () if spare is None else spare.rules:
            self._spare.labels(pool=rule.pool).set(rule.spare)
            self._memory.labels(pool=rule.pool).set(rule.memory_s)
        share = None if spare is None else spare.share_delayed
        self._delayed.set(float("nan") if share is None else share)
        self._accepted.set(float("nan") if spare is None else spare.accepted)
        self._sleeps.set(0 if spare is None else max(spare.cycles.values(), default=0))

    def record_levels(self, levels: Mapping[str, float]) -> None:
        """Set the gauges of the last nightly report, and of what is held now."""
        for level, (gauge, factor) in self._levels.items():
            gauge.set(levels.get(level, float("nan")) * factor)

    def record_success(self, task: str, *, at: datetime) -> None:
        """Record when a task last succeeded."""
        self._success.labels(task=task).set(at.timestamp())

    def record_failure(self, task: str) -> None:
        """Count a failure of a task."""
        self._failures.labels(task=task).inc()

    def record_skip(self, task: str) -> None:
        """Count a skipped run of a task."""
        self._left_out.labels(task=task).inc()

    def _age_s(self, moment: Callable[[CycleSummary], datetime | None]) -> float:
        since = None if self._last is None else moment(self._last)
        return float("nan") if since is None else (self._times.now() - since).total_seconds()


class AddressTaken(HeliosError):
    """Error about an address on which another process listens."""


def parse_address(listen: str) -> tuple[str, int]:
    """Parse an address into host and port.

    Its form is ``HOST:PORT``, with an IPv6 host in brackets.

    Raises
    ------
    ConfigurationInvalid
        The text has another form.
    """
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):(\d{1,5})", listen)
    if parts is None or int(parts[3]) > 65_535:
        raise ConfigurationInvalid(
            f"daemon.listen is {listen!r}, not HOST:PORT.",
            hint="Write 127.0.0.1:9842, [::1]:9842, or an empty text to serve nothing.",
        )
    return parts[1] or parts[2], int(parts[3])


class Server:
    """HTTP server of metrics and health, in its own thread.

    Parameters
    ----------
    listen : str
        ``HOST:PORT``, with port 0 for a free one.
    registry : CollectorRegistry
        Metrics for ``/metrics``.
    health : callable
        Returns the report for ``/healthz``. The status is 200 if its ``healthy`` is true, else 503.

    Raises
    ------
    AddressTaken
        Another process has the address.
    ConfigurationInvalid
        The address cannot be bound for another reason.
    """

    def __init__(self, listen: str, *, registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> None:
        host, port = parse_address(listen)
        is_v6 = ":" in host
        try:
            listening = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if is_v6 else socket.AF_INET,
                dualstack_ipv6=is_v6 and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken(
                    f"another process listens on {listen}: /metrics and /healthz are not served by this daemon",
                    hint="See who it is: ss -ltnp. Do not believe what it answers; or choose another daemon.listen.",
                ) from error
            raise ConfigurationInvalid(
                f"daemon.listen {listen} cannot be bound: {error.strerror or error}.",
                hint="Choose another HOST:PORT, or an empty text to serve nothing.",
            ) from error
        self._registry, self._health = registry, health
        self._made: dict[tuple[bool, bool], tuple[float, bytes]] = {}
        self.port: int = listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._listener = Listener(listening, self._answer, loop=self._loop)
        self._thread = Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()
        _http_log.info("serves /metrics and /healthz on %s port %d", host, self.port)

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        self._listener.open()
        self._loop.run_forever()
        self._loop.run_until_complete(self._listener.close())
        self._loop.close()

    async def _answer(self, connection: ClientConnection) -> None:
        request, _, rest = connection.received.decode("latin-1").partition("\n")
        method, target, *_ = [*request.split(), "", ""]
        try:
            answer = self._response(target.partition("?")[0], message_from_string(rest))
        except Exception as error:  # a traceback for each request would fill the journal
            _http_log.debug("a client was not answered: %s", error)
            answer = _response("500 Internal Server Error")
        end = answer.index(b"\r\n\r\n") + 4 if method == "HEAD" else len(answer)
        await self._loop.sock_sendall(connection.stream, answer[:end])

    def _response(self, path: str, fields: Message) -> bytes:
        if path == "/metrics":
            formats, codings = (fields.get(name, "").lower() for name in ("Accept", "Accept-Encoding"))
            return self._metrics_response(OPENMETRICS in formats, "gzip" in codings)
        if path == "/healthz":
            report = self._health()
            status = "200 OK" if report["healthy"] else "503 Service Unavailable"
            return _response(status, (json.dumps(report, indent=2) + "\n").encode(), kind="application/json")
        return _response("404 Not Found", b"There are /metrics and /healthz.\n")

    def _metrics_response(self, is_openmetrics: bool, is_gzip: bool) -> bytes:
        end_s, response = self._made.get((is_openmetrics, is_gzip), (0.0, b""))
        if self._loop.time() >= end_s:
            encode, kind = choose_encoder(f"{OPENMETRICS}; version=1.0.0" if is_openmetrics else "")
            body = encode(self._registry)
            response = _response("200 OK", gzip.compress(body) if is_gzip else body, kind=kind, is_gzip=is_gzip)
            self._made[is_openmetrics, is_gzip] = (self._loop.time() + CACHED_S, response)
        return response


def _response(status: str, body: bytes = b"", *, kind: str = "text/plain", is_gzip: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        "Server: helios",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Content-Encoding: gzip"] if is_gzip else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
