"""The daemon's tasks, called by APScheduler.

Three rules apply. A task never overlaps with itself, and the tasks that write to the cluster or to the hook's table
never overlap with each other: they share one worker and one exclusive section. Missed runs are not repeated, since a
task works with the state at the time when it runs. No exception of a task ends the process.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Lock
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from helios.actions import Result
from helios.app.controller_state import CycleSummary, CycleUnderWay, DaemonOperations, NodeCycleSummary, error_kind
from helios.daemon.health import Health, Metrics, TaskTimes
from helios.errors import HeliosError

MOST_WAIT_S = 300.0
"""Longest wait between tries, s. After a repair Helios should work again within minutes."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
DAY_S = 86_400.0
NIGHT_GRACE_S = 6 * 3600
"""Longest delay of a nightly analysis that could not begin in time (a suspended machine), s. After that it waits for
the next night."""
NIGHT_REST_S = 12 * 3600
"""Least time between two nightly analyses, s. Where clocks are set back, 02:30 occurs twice in one night."""
NOTIFY_S = 30.0
"""Time between two looks at what is to be told, s."""
NEVER_AGAIN_S = 36_500 * DAY_S
"""Interval of the hook's task, s, which means never. A job without a next run would be removed from the scheduler's
store, and APScheduler 3.11 looks for it in the wrong place if :meth:`TaskScheduler.stop` is called at that moment."""

_log = logging.getLogger("helios.daemon.tasks")


class ExclusiveSection:
    """Section for one task at a time, until it is closed.

    APScheduler alone is not sufficient: its shutdown waits either for ever or not at all, and still runs what was
    submitted.
    """

    def __init__(self) -> None:
        self._inside = Lock()
        self._closed = False

    @contextmanager
    def enter(self) -> Iterator[bool]:
        """Wait for the task inside, then enter.

        Yields False if the section was closed meanwhile.
        """
        with self._inside:
            yield not self._closed

    def close(self, *, within_s: float) -> bool:
        """Close the section, and return whether the task inside left in time."""
        self._closed = True
        left = self._inside.acquire(timeout=within_s)
        if left:
            self._inside.release()  # a task that waits to enter finds it closed
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """Error of a task, as it is reported to the operator.

    Attributes
    ----------
    message, hint : str
        What happened, and what to try next.
    defect : bool
        Whether it is a defect of Helios, so that the traceback is logged.
    at_once : bool
        Whether the next run comes at its regular time, without a growing pause, because nothing was tried.
    """

    message: str
    hint: str = ""
    defect: bool = False
    at_once: bool = False

    def line(self) -> str:
        """Return message and hint in one line."""
        parts = [self.message, self.hint]
        return " What to do: ".join(" ".join(part.split()) for part in parts if part)


def task_error(error: Exception) -> TaskError:
    """Convert an exception into an error for the operator."""
    if isinstance(error, HeliosError):
        return TaskError(message=error.message, hint=error.hint, at_once=isinstance(error, CycleUnderWay))
    if isinstance(error, MemoryError):
        return TaskError(
            message="Memory ran out; nothing was done.",
            hint="Raise MemoryMax of the unit, or lower history.jobs_for_predictions.",
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return TaskError(
            message=f"The disk is full ({error.filename or error.strerror}); nothing was done.",
            hint="Make room; Helios goes on by itself.",
        )
    return TaskError(
        message=f"{type(error).__name__}: {error}",
        hint="Helios did not expect this; report it with the traceback.",
        defect=True,
    )


def backoff_s(failures: int, *, interval_s: float) -> float:
    """Return a task's pause after consecutive failures, s.

    It is one interval, then two, four, eight, but never longer than ``MOST_WAIT_S`` or one interval. tenacity is not
    used, because it calls a function again itself, whereas here the scheduler does.
    """
    return min(interval_s * 2.0 ** min(failures - 1, 20), max(MOST_WAIT_S, interval_s))


class Task:
    """One task as the scheduler calls it.

    It never raises, waits longer the more often it fails, and logs each problem once.

    Parameters
    ----------
    name : str
        Name in logs, health and metrics.
    work : callable
        Runs the task once, and returns a line for the log or an empty text.
    interval_s : float
        Time between runs, s.
    section : ExclusiveSection
        Shared by tasks that must not run at the same time.
    rest_s : float, optional
        Least time from the start of a successful run to the next run, s.
    repeats : bool, optional
        Whether to log a line that differs from the last one in numbers only.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], str],
        *,
        interval_s: float,
        section: ExclusiveSection,
        health: Health,
        metrics: Metrics,
        times: TaskTimes,
        rest_s: float = 0.0,
        repeats: bool = True,
    ) -> None:
        self.name = name
        self._work = work
        self._interval_s, self._rest_s, self._repeats = interval_s, rest_s, repeats
        self._section = section
        self._health, self._metrics, self._times = health, metrics, times
        self._log = logging.getLogger(f"helios.daemon.{name}")
        self._moved_s = times.monotonic_s()
        self._not_before_s = -math.inf
        self._failures, self._failing_since_s = 0, 0.0
        self._last_problem = self._last_line = ""
        self._overlap_logged = False

    def tick(self) -> bool:
        """Run the task if it is due, and return whether it succeeded.

        It does not run while the section is closed or a pause lasts.
        """
        with self._section.enter() as may_run:
            self._moved_s = self._times.monotonic_s()
            done = may_run and self._moved_s >= self._not_before_s and self._run()
            self._moved_s = self._times.monotonic_s()
            self._overlap_logged = False
            return done

    def silent_for_s(self) -> float:
        """Return the time since a tick last began or ended, s."""
        return self._times.monotonic_s() - self._moved_s

    def report_overlap(self) -> None:
        """Count a run that was skipped because the task was still running.

        The first one of each run is logged.
        """
        self._metrics.record_skip(self.name)
        if not self._overlap_logged:
            self._log.warning("still at work after %.0f s: this time is left out", self.silent_for_s())
        self._overlap_logged = True

    def report_late(self) -> None:
        """Count a run that was skipped because another task was running."""
        self._metrics.record_skip(self.name)
        self._log.warning("its time passed while another task was at work: left out until the next")

    def _run(self) -> bool:
        began_s = self._times.monotonic_s()
        self._health.record_begin(self.name, at=self._times.now())
        try:
            line = self._work()
        except Exception as error:  # no exception may end the process
            self._fail(error, began_s=began_s)
            return False
        if self._failures:
            lasted_min = (began_s - self._failing_since_s) / 60
            self._log.warning("works again, after %d failures in %.0f min", self._failures, lasted_min)
        if line and (self._repeats or error_kind(line) != error_kind(self._last_line)):
            self._log.info("%s", line)
        self._last_line, self._last_problem, self._failures = line, "", 0
        self._not_before_s = began_s + self._rest_s
        self._health.record_success(self.name, at=self._times.now(), line=line)
        self._metrics.record_success(self.name, at=self._times.now())
        return True

    def _fail(self, error: Exception, *, began_s: float) -> None:
        problem = task_error(error)
        if error_kind(problem.message) == error_kind(self._last_problem):
            self._log.debug("again: %s", problem.line())
        else:
            self._log.error("%s", problem.line(), exc_info=error if problem.defect else None)
        if not self._failures:
            self._failing_since_s = began_s
        self._last_problem, self._failures = problem.message, self._failures + 1
        wait_s = backoff_s(1 if problem.at_once else self._failures, interval_s=self._interval_s)
        # Half an interval early, so that a tick slightly before its time is not lost.
        self._not_before_s = began_s + wait_s - self._interval_s / 2
        self._health.record_failure(self.name, at=self._times.now(), problem=problem.line())
        self._metrics.record_failure(self.name)


class StateChangeLog:
    """Log of when and why Helios is suspended, and when it resumes.

    Each change is logged once.

    Parameters
    ----------
    task : str
        The task whose cycles are logged, ``cycle`` or ``nodes``.
    """

    def __init__(self, task: str = "cycle") -> None:
        self._log = logging.getLogger(f"helios.daemon.{task}")
        self._suspended: frozenset[str] = frozenset()
        self._notes: frozenset[str] = frozenset()
        self._held: bool | None = None

    def record(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Log the differences from the previous cycle."""
        held, self._held = self._held, cycle.lease_held
        if not cycle.lease_held and held is not False:
            self._log.warning(
                "standby: another Helios writes to this cluster; this one takes over when its lease runs out"
            )
        elif cycle.lease_held and held is False:
            self._log.warning("the lease is ours: no longer standby")
        if not cycle.problem:  # which the task logs
            before, self._suspended = self._suspended, frozenset(map(error_kind, cycle.suspended))
            if cycle.lease_held and self._suspended and self._suspended != before:
                self._log.warning("nothing is done: %s", "; ".join(cycle.suspended))
            elif cycle.lease_held and before and not self._suspended:
                self._log.warning("acts again")
        before, self._notes = self._notes, frozenset(map(error_kind, cycle.notes))
        for note in cycle.notes:
            if error_kind(note) not in before:
                self._log.warning("%s", note)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchedule:
    """Times of the daemon's tasks.

    Attributes
    ----------
    cycle_s, ingest_s : float
        Time between cycles, and between readings of history, s.
    nightly : str, optional
        Local time of the nightly analysis, HH:MM. None where this process does not do it.
    heartbeat_s : float
        Time between two heartbeats, s.
    zone : ZoneInfo, optional
        Zone of local time; None for the machine's.
    """

    cycle_s: float
    ingest_s: float
    nightly: str | None
    heartbeat_s: float = 10.0
    zone: ZoneInfo | None = None

    def longest_silence_s(self, *, tasks: Iterable[str] = ("cycle", "ingest")) -> dict[str, float]:
        """Return the longest healthy time since each task's last success, s.

        It is three intervals and a minute.
        """
        every_s = {"cycle": self.cycle_s, "nodes": self.cycle_s, "ingest": self.ingest_s}
        return {name: 3 * every_s[name] + 60 for name in tasks}

    def stuck_s(self) -> float:
        """Return the time without progress after which cycles count as stuck, s.

        A slow cycle is not stuck: each call to the cluster is bounded by slurm.timeout_s, and a cycle makes several.
        """
        return max(5 * self.cycle_s, 300)


class TaskScheduler:
    """Scheduler that calls the tasks at their times.

    Parameters
    ----------
    tasks : DaemonOperations
        The tasks.
    schedule : TaskSchedule
        Their times.
    beat : callable
        Called every ``heartbeat_s`` in a separate thread.
    paused : callable
        Returns whether Helios is paused by a file.
    health, metrics, times
        Records of the tasks' results, and the clocks.
    """

    def __init__(
        self,
        *,
        tasks: DaemonOperations,
        schedule: TaskSchedule,
        beat: Callable[[], None],
        paused: Callable[[], bool],
        health: Health,
        metrics: Metrics,
        times: TaskTimes,
    ) -> None:
        self._schedule, self._beat, self._paused, self._release = schedule, beat, paused, tasks.release
        self._levels = tasks.levels
        self._health, self._metrics = health, metrics
        self._outcomes: frozenset[tuple[str, str]] = frozenset()
        self._hook_inputs: object = None
        self.writing, self._reading, self._nights = ExclusiveSection(), ExclusiveSection(), ExclusiveSection()
        task = partial(Task, health=health, metrics=metrics, times=times)
        works = {"cycle": tasks.cycle, "nodes": tasks.nodes}
        self.cycles = {
            name: task(
                name,
                partial(self._cycle, name, work, StateChangeLog(name)),
                interval_s=schedule.cycle_s,
                section=self.writing,
            )
            for name, work in works.items()
            if work is not None
        }
        self.hook = task("hook", tasks.hook, interval_s=schedule.ingest_s, section=self.writing, repeats=False)
        self.ingest = tasks.ingest and task("ingest", tasks.ingest, interval_s=schedule.ingest_s, section=self._reading)
        self._mails = ExclusiveSection()
        self._observe = tasks.observe
        self.notify = tasks.notify and task("notify", tasks.notify, interval_s=NOTIFY_S, section=self._mails)
        self.nightly = task("nightly", tasks.nightly, interval_s=DAY_S, section=self._nights, rest_s=NIGHT_REST_S)
        self._scheduler = BackgroundScheduler(
            executors={
                "writes": ThreadPoolExecutor(1),
                "reads": ThreadPoolExecutor(2),  # a long night must not hold up the readings
                "heart": ThreadPoolExecutor(1),
                "mails": ThreadPoolExecutor(1),  # a mail server that hangs holds up nothing else
            },
            job_defaults={"coalesce": True, "max_instances": 1},
            **({} if schedule.zone is None else {"timezone": schedule.zone}),
        )
        self._scheduler.add_listener(self._report, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)

    def start(self) -> None:
        """Start the scheduler.

        The first cycle and the first reading come at once.
        """
        schedule = self._schedule
        for name, cycle in self.cycles.items():
            self._add(name, cycle.tick, worker="writes", every_s=schedule.cycle_s)
        if self.ingest is not None:
            self._add("ingest", self.read, worker="reads", every_s=schedule.ingest_s)
        if self.notify is not None:
            self._add("notify", self.notify.tick, worker="mails", every_s=NOTIFY_S)
        self._add("heartbeat", self._beat, worker="heart", every_s=schedule.heartbeat_s)
        if schedule.nightly is not None:
            hour, minute = schedule.nightly.split(":")
            self._scheduler.add_job(
                self.run_nightly,
                CronTrigger(hour=int(hour), minute=int(minute), timezone=self._scheduler.timezone),
                id="nightly",
                executor="reads",
                misfire_grace_time=NIGHT_GRACE_S,
            )
        self._scheduler.start()

    def read(self) -> None:
        """Read ended jobs, and then update the hook's table."""
        if self.ingest is not None and self.ingest.tick():
            self._publish_hook()
            self._read_levels()

    def run_nightly(self) -> None:
        """Run the nightly analysis, and then update the hook's table."""
        if self.nightly.tick():
            self._publish_hook()
            self._read_levels()

    def due(self) -> dict[str, datetime]:
        """Return the next time of each scheduled task.

        It is empty before the start.
        """
        jobs = [job for job in self._scheduler.get_jobs() if job.id != self.hook.name]
        return {job.id: job.next_run_time for job in jobs if getattr(job, "next_run_time", None)}

    def is_progressing(self) -> bool:
        """Return whether cycles begin and end.

        Failing cycles count too.
        """
        return self.silent_for_s() < self._schedule.stuck_s()

    def silent_for_s(self) -> float:
        """Return the time since the most overdue cycle, s."""
        return max((cycle.silent_for_s() for cycle in self.cycles.values()), default=0.0)

    def stop(self) -> None:
        """Stop the scheduler.

        Running tasks go on.
        """
        self._scheduler.shutdown(wait=False)

    def close_readers(self, *, within_s: float) -> bool:
        """Wait for the running reading, nightly analysis and notice.

        Returns whether they ended in time.
        """
        return all(section.close(within_s=within_s) for section in (self._reading, self._nights, self._mails))

    def _add(
        self, name: str, call: Callable[[], object], *, worker: str, every_s: float, grace_s: float | None = None
    ) -> None:
        self._scheduler.add_job(
            call,
            IntervalTrigger(seconds=every_s, timezone=self._scheduler.timezone),
            id=name,
            executor=worker,
            next_run_time=datetime.now(self._scheduler.timezone),
            replace_existing=True,
            # It may begin one interval late, since after that its next time has come anyway. After a machine was
            # suspended, the last of the missed times is more recent than that, so that the task runs at once.
            misfire_grace_time=max(math.ceil(every_s if grace_s is None else grace_s), 1),
        )

    def _read_levels(self) -> None:
        """Set the gauges of the last nightly report.

        Another process may have made the report.
        """
        try:
            self._metrics.record_levels(self._levels())
        except HeliosError as problem:
            _log.debug("the levels of the last nightly report cannot be read: %s", problem.message)

    def _publish_hook(self) -> None:
        self._add("hook", self.hook.tick, worker="writes", every_s=NEVER_AGAIN_S, grace_s=self._schedule.ingest_s)

    def _cycle(self, name: str, cycle: Callable[[], CycleSummary | NodeCycleSummary], changes: StateChangeLog) -> str:
        try:
            summary = cycle()
        except CycleUnderWay as held:
            if not self._paused():
                raise
            # Reverting without the lock is as safe as in helios pause, which does not wait for ever either, because any
            # process that begins a cycle sees the file too.
            reverted = self._release("paused by file, while another process keeps cycles away")
            raise CycleUnderWay(f"{held.message} Helios is paused: {reverted}.", hint=held.hint) from held
        self._health.record_cycle(name, summary)
        self._metrics.record_cycle(summary)
        changes.record(summary)
        if not summary.problem and summary.lease_held:
            self._observe(summary)
        if isinstance(summary, CycleSummary):
            # The hook's table follows at once when cycles are suspended or act again, or a mode was set.
            before, self._hook_inputs = self._hook_inputs, (dict(summary.modes), bool(summary.suspended))
            if before is not None and before != self._hook_inputs:
                self._publish_hook()
        if summary.problem:
            raise HeliosError(summary.problem)
        worth_a_line = summary.acted > 0
        if isinstance(summary, CycleSummary):
            worth_a_line = (self._have_outcomes_changed(summary) or worth_a_line) and not summary.suspended
        return summary.line() if worth_a_line else ""

    def _have_outcomes_changed(self, summary: CycleSummary) -> bool:
        """Return whether the outcomes of services differ from the previous cycle.

        Constant outcomes are visible in health and metrics. A line for each cycle would hide other log lines.
        """
        before = self._outcomes
        self._outcomes = frozenset(
            (tally.service, tally.result.value)
            for tally in summary.tallies
            if tally.jobs and tally.result is not Result.UNCHANGED
        )
        return self._outcomes != before

    def _report(self, event: JobEvent) -> None:
        tasks = (*self.cycles.values(), self.hook, self.ingest, self.nightly, self.notify)
        task = {each.name: each for each in tasks if each is not None}.get(event.job_id)
        if event.code == EVENT_JOB_ERROR:
            _log.error("%s ended in a defect of Helios: %s", event.job_id, event.exception)
        elif task is None:
            _log.debug("%s came too late or too early", event.job_id)
        elif event.code == EVENT_JOB_MAX_INSTANCES:
            task.report_overlap()
        else:
            task.report_late()
