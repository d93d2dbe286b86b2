"""The clock: APScheduler calls each task when its time has come.

Three rules keep it harmless. A task never overlaps with itself, and the tasks that write to the cluster or to the
hook's table never overlap with each other: they share one worker and one door. Times that were missed are never made
up for, only the last of them counts: a task looks at the world as it is when it runs. Nothing that a task raises
ends the process.
"""

from __future__ import annotations

import errno
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock
from typing import TypeVar
from zoneinfo import ZoneInfo

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobEvent,
)
from apscheduler.executors.pool import (
    ThreadPoolExecutor,
)
from apscheduler.schedulers.background import (
    BackgroundScheduler,
)
from apscheduler.triggers.cron import (
    CronTrigger,
)
from apscheduler.triggers.interval import (
    IntervalTrigger,
)

from helios.actions import Result
from helios.app.controller_state import CycleUnderWay
from helios.app.cycle_summary import CycleSummary, DaemonOperations, NodeCycleSummary
from helios.daemon.health import Health, TaskTimes
from helios.daemon.metrics import Metrics
from helios.errors import HeliosError

# One at a time, and nobody after closing time.


class ExclusiveSection:
    """Lets one task in at a time, until it is shut for good."""

    def __init__(self) -> None:
        self._inside = Lock()
        self._shut = False

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Wait for the one inside, then enter; False: the door was shut meanwhile, turn round."""
        with self._inside:
            yield not self._shut

    def shut(self, *, within_s: float) -> bool:
        """Let nobody in any more, and wait for the one inside.

        Returns
        -------
        bool
            False: it is still inside after ``within_s``.
        """
        self._shut = True
        left = self._inside.acquire(timeout=within_s)
        if left:
            self._inside.release()  # who waits at the door finds it shut, and goes
        return left


# What went wrong in a task, and how long it then waits: pure values, no clock.

MOST_WAIT_S = 300.0
"""Longest wait between tries, s. After a repair nobody should wait for Helios longer than for a cup of coffee."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """Why a task could not be done.

    Attributes
    ----------
    fact, hint : str
        What happened, and what to try next.
    defect : bool
        Helios did not raise it on purpose: the traceback belongs in the log.
    at_once : bool
        Nothing was tried that waiting would spare: the next run comes at its next time, however often it failed.
    """

    message: str
    hint: str = ""
    defect: bool = False
    at_once: bool = False

    @property
    def kind(self) -> str:
        """What makes it another trouble than the last."""
        return error_kind(self.message)

    def line(self) -> str:
        """Return fact and hint in one line."""
        parts = [self.message, self.hint]
        return " What to do: ".join(" ".join(part.split()) for part in parts if part)


def error_kind(line: str) -> str:
    """Return a line without its figures: a wait of 30.1 s and one of 30.2 s are the same trouble."""
    return re.sub(r"\d[\d.,]*", "#", line)


def task_error(error: Exception) -> TaskError:
    """Say what an error means to the operator."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How a task has fared lately, and from when it may run again.

    After the first failure it runs at its next time; then it waits two, four, eight intervals, but never longer than
    ``MOST_WAIT_S`` or one interval.

    Attributes
    ----------
    interval_s : float
        Time between its runs, s.
    rest_s : float
        It does not run again so soon after a success, s.
    failures : int
        In a row.
    trouble : Trouble, optional
        The last; None: it is well.
    not_before_s : float
        Monotonic time of the earliest next run.
    failing_since_s : float
        Monotonic time of the first of the failures in a row.
    """

    interval_s: float
    rest_s: float = 0.0
    failures: int = 0
    problem: TaskError | None = None
    not_before_s: float = float("-inf")
    failing_since_s: float = 0.0

    def succeeded(self, *, began_s: float) -> Backoff:
        """Return the pace after a success."""
        return Backoff(interval_s=self.interval_s, rest_s=self.rest_s, not_before_s=began_s + self.rest_s)

    def failed(self, problem: TaskError, *, began_s: float) -> Backoff:
        """Return the pace after another failure."""
        failures = self.failures + 1
        wait_s = min(self.interval_s * 2 ** min(failures - 1, 20), max(MOST_WAIT_S, self.interval_s))
        wait_s = self.interval_s if problem.at_once else wait_s
        return replace(
            self,
            failures=failures,
            problem=problem,
            # Half an interval early: a tick that comes a moment before its time is not to be lost.
            not_before_s=began_s + wait_s - self.interval_s / 2,
            failing_since_s=self.failing_since_s if self.failures else began_s,
        )

    def is_news(self, problem: TaskError) -> bool:
        """Return whether ``problem`` is another one than the last."""
        return self.problem is None or self.problem.kind != problem.kind


# One task as the scheduler calls it: it never raises, waits longer the more often it fails, and says so once.


class Task:
    """A piece of work that is done again and again.

    Parameters
    ----------
    name : str
        Name in logs, health and metrics.
    work : callable
        Does it once; returns a line for the log, or nothing worth a line.
    interval_s : float
        Time between runs, s.
    rest_s : float, optional
        It does not run again so soon after a success, s.
    repeats : bool, optional
        Whether a line that differs from the last in figures only is worth a line.
    door : Door
        Shared by tasks that must not run at the same time.
    """

    def __init__(
        self,
        *,
        name: str,
        work: Callable[[], str],
        interval_s: float,
        door: ExclusiveSection,
        health: Health,
        metrics: Metrics,
        times: TaskTimes,
        rest_s: float = 0.0,
        repeats: bool = True,
    ) -> None:
        self.name = name
        self._work = work
        self._pace = Backoff(interval_s=interval_s, rest_s=rest_s)
        self._door = door
        self._health = health
        self._metrics = metrics
        self._times = times
        self._log = logging.getLogger(f"helios.daemon.{name}")
        self._moved_s = times.monotonic_s()
        self._overlap_said = False
        self._repeats = repeats
        self._said = ""

    def tick(self) -> bool:
        """Do the work, unless the door is shut or it is too early after a failure.

        Returns
        -------
        bool
            Whether it was done, and well.
        """
        with self._door.entered() as may_enter:
            self._moved_s = self._times.monotonic_s()
            done = may_enter and self._moved_s >= self._pace.not_before_s and self._try()
            self._moved_s = self._times.monotonic_s()
            self._overlap_said = False
            return done

    def silent_for_s(self) -> float:
        """Return for how long it has neither begun nor ended a tick, s."""
        return self._times.monotonic_s() - self._moved_s

    def say_overlap(self) -> None:
        """Take note that its time came while it was still at work; said once for each run."""
        self._metrics.left_out(self.name)
        if not self._overlap_said:
            self._log.warning("still at work after %.0f s: this time is left out", self.silent_for_s())
        self._overlap_said = True

    def say_late(self) -> None:
        """Take note that its time came and went while another task was at work."""
        self._metrics.left_out(self.name)
        self._log.warning("its time passed while another task was at work: left out until the next")

    def _try(self) -> bool:
        began_s = self._times.monotonic_s()
        self._health.began(self.name, at=self._times.now())
        try:
            line = self._work()
        except Exception as error:  # whatever it is, the next run comes and the process lives
            self._fail(error, began_s=began_s)
            return False
        self._succeed(line, began_s=began_s)
        return True

    def _succeed(self, line: str, *, began_s: float) -> None:
        if self._pace.problem is not None:
            lasted_min = (began_s - self._pace.failing_since_s) / 60
            self._log.warning("works again, after %d failures in %.0f min", self._pace.failures, lasted_min)
        if line and (self._repeats or error_kind(line) != error_kind(self._said)):
            self._log.info("%s", line)
        self._said = line
        self._pace = self._pace.succeeded(began_s=began_s)
        self._health.succeeded(self.name, at=self._times.now(), line=line)
        self._metrics.succeeded(self.name, at=self._times.now())

    def _fail(self, error: Exception, *, began_s: float) -> None:
        problem = task_error(error)
        self._say(problem, error)
        self._pace = self._pace.failed(problem, began_s=began_s)
        self._health.failed(self.name, at=self._times.now(), problem=problem.line())
        self._metrics.failed(self.name)

    def _say(self, problem: TaskError, error: Exception) -> None:
        if self._pace.is_news(problem):
            self._log.error("%s", problem.line(), exc_info=error if problem.defect else None)
        else:
            self._log.debug("again: %s", problem.line())


# Says when Helios falls still, why, and when it goes on: once each, however often a cycle finds it so.


class StateChangeLog:
    """Compares each cycle with the one before.

    Parameters
    ----------
    task : str
        Whose cycles: ``cycle`` or ``nodes``, as the log has it.
    """

    def __init__(self, task: str = "cycle") -> None:
        self._log = logging.getLogger(f"helios.daemon.{task}")
        self._suspended: frozenset[str] = frozenset()
        self._notes: frozenset[str] = frozenset()
        self._held: bool | None = None

    def hear(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Take note of a cycle."""
        self._say_lease(cycle)
        if not cycle.problem:  # which is the task's to say
            self._say_suspended(cycle)
        self._say_notes(cycle)

    def _say_lease(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        if not cycle.lease_held and self._held is not False:
            self._log.warning(
                "standby: another Helios writes to this cluster; this one takes over when its lease runs out"
            )
        elif cycle.lease_held and self._held is False:
            self._log.warning("the lease is ours: no longer standby")
        self._held = cycle.lease_held

    def _say_suspended(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        before, self._suspended = self._suspended, _kinds(cycle.suspended)
        if not cycle.lease_held:
            return  # said as standby
        if self._suspended and self._suspended != before:
            self._log.warning("nothing is done: %s", "; ".join(cycle.suspended))
        elif before and not self._suspended:
            self._log.warning("acts again")

    def _say_notes(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        before, self._notes = self._notes, _kinds(cycle.notes)
        for note in cycle.notes:
            if error_kind(note) not in before:
                self._log.warning("%s", note)


def _kinds(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(error_kind(line) for line in lines)


DAY_S = 86_400.0
NIGHT_GRACE_S = 6 * 3600
"""A nightly analysis that could not begin in its hour (a suspended machine) still begins this much later, s: by
breakfast; after that the next night is near enough."""
NIGHT_REST_S = 12 * 3600
"""Where clocks are set back, half past two comes twice in one night."""
NEVER_AGAIN_S = 36_500 * DAY_S
"""When the hook comes again by itself: never, s. A job that had no next time would be taken out of the scheduler's
store, and APScheduler 3.11 looks for it in the wrong place where :meth:`TaskScheduler.stop` comes at that moment."""

Summary = TypeVar("Summary", CycleSummary, NodeCycleSummary)

_log = logging.getLogger("helios.daemon.tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When things happen.

    Attributes
    ----------
    cycle_s, ingest_s : float
        Time between cycles, and between readings, s.
    nightly : str, optional
        Local time of the nightly analysis, HH:MM; None: somebody else sees to it.
    heartbeat_s : float
        Time between two signs of life, s.
    zone : ZoneInfo, optional
        What local time is; None: the machine's.
    """

    cycle_s: float
    ingest_s: float
    nightly: str | None
    heartbeat_s: float = 10.0
    zone: ZoneInfo | None = None

    def lately_s(self, *, tasks: Iterable[str] = ("cycle", "ingest")) -> dict[str, float]:
        """Return how long ago each task that the health rests on may have succeeded: three times, and a minute."""
        every_s = {"cycle": self.cycle_s, "nodes": self.cycle_s, "ingest": self.ingest_s}
        return {name: 3 * every_s[name] + 60 for name in tasks}

    def stuck_s(self) -> float:
        """Return after how long without a sign of progress cycles are stuck.

        A slow turn is none: each call to the cluster is bounded by slurm.timeout_s, and a cycle makes several.
        """
        return max(5 * self.cycle_s, 300)


class TaskScheduler:
    """Calls the tasks in their rhythm.

    Parameters
    ----------
    tasks : Tasks
        What is called.
    rhythm : Rhythm
        When.
    beat : callable
        Called every ``heartbeat_s`` by a thread of its own.
    paused : callable
        Whether somebody paused Helios by file.
    health, metrics, times
        Where it is written down how it goes.
    """

    def __init__(
        self,
        *,
        tasks: DaemonOperations,
        rhythm: Schedule,
        beat: Callable[[], None],
        paused: Callable[[], bool],
        health: Health,
        metrics: Metrics,
        times: TaskTimes,
    ) -> None:
        self._tasks = tasks
        self._rhythm = rhythm
        self._beat = beat
        self._paused = paused
        self._health = health
        self._metrics = metrics
        self._times = times
        self._stillness, self._stillness_of_nodes = StateChangeLog(), StateChangeLog("nodes")
        self._outcomes: frozenset[tuple[str, str]] = frozenset()
        self._bounds: object = None
        self.writing, self._reading, self._nights = ExclusiveSection(), ExclusiveSection(), ExclusiveSection()
        self.cycles = {
            name: self._task(name, work, rhythm.cycle_s, self.writing) for name, work in self._cycles_of(tasks)
        }
        self.hook = self._task("hook", tasks.hook, rhythm.ingest_s, self.writing, repeats=False)
        self.ingest = tasks.ingest and self._task("ingest", tasks.ingest, rhythm.ingest_s, self._reading)
        self.nightly = self._task("nightly", tasks.nightly, DAY_S, self._nights, rest_s=NIGHT_REST_S)
        self._scheduler = self._scheduler_of()

    def start(self) -> None:
        """Begin; the first cycle and the first reading at once."""
        now = datetime.now(self._scheduler.timezone)
        for name, cycle in self.cycles.items():
            self._every(self._rhythm.cycle_s, cycle.tick, name=name, worker="writes", first=now)
        if self.ingest is not None:
            self._every(self._rhythm.ingest_s, self.read, name="ingest", worker="reads", first=now)
        self._every(self._rhythm.heartbeat_s, self._beat, name="heartbeat", worker="heart", first=now)
        if self._rhythm.nightly is not None:
            self._each_night(self._rhythm.nightly)
        self._scheduler.start()

    def read(self) -> None:
        """Read what ended; after it the hook's table is due."""
        if self.ingest is not None and self.ingest.tick():
            self._hook_is_due()

    def think(self) -> None:
        """Do the nightly analysis; after it the hook's table is due."""
        if self.nightly.tick():
            self._hook_is_due()

    def due(self) -> dict[str, datetime]:
        """Return when each task that has its times is called next; nothing before the start."""
        jobs = [job for job in self._scheduler.get_jobs() if job.id != self.hook.name]
        return {job.id: job.next_run_time for job in jobs if getattr(job, "next_run_time", None)}

    def makes_progress(self) -> bool:
        """Return whether cycles begin and end; those that fail do too."""
        return self.silent_for_s() < self._rhythm.stuck_s()

    def silent_for_s(self) -> float:
        """Return for how long no cycle has begun or ended of the kind that has been silent longest, s."""
        return max((cycle.silent_for_s() for cycle in self.cycles.values()), default=0.0)

    def stop(self) -> None:
        """Call nothing any more; what runs, runs on."""
        self._scheduler.shutdown(wait=False)

    def readers_left(self, *, within_s: float) -> bool:
        """Wait for the reading and the nightly analysis that run; False: one still does."""
        return self._reading.shut(within_s=within_s) and self._nights.shut(within_s=within_s)

    def _hook_is_due(self) -> None:
        self._scheduler.add_job(
            self.hook.tick,
            IntervalTrigger(seconds=NEVER_AGAIN_S, timezone=self._scheduler.timezone),
            id=self.hook.name,
            next_run_time=datetime.now(self._scheduler.timezone),
            executor="writes",
            replace_existing=True,
            coalesce=True,
            misfire_grace_time=self._grace_s(self._rhythm.ingest_s),
        )

    def _cycles_of(self, tasks: DaemonOperations) -> Iterator[tuple[str, Callable[[], str]]]:
        if (cycle := tasks.cycle) is not None:
            yield "cycle", lambda: self._cycle(self._taken(cycle))
        if (nodes := tasks.nodes) is not None:
            yield "nodes", lambda: self._nodes(self._taken(nodes))

    def _taken(self, cycle: Callable[[], Summary]) -> Summary:
        """Take a cycle; where its lock is another's and Helios is paused by file, revert everything without the lock.

        That is as safe as helios pause, which does not wait for ever either: whoever takes a cycle sees the file too.
        """
        try:
            return cycle()
        except CycleUnderWay as held:
            if not self._paused():
                raise
            told = self._tasks.release("paused by file, while another process keeps cycles away")
            raise CycleUnderWay(f"{held.message} Helios is paused: {told}.", hint=held.hint) from held

    def _nodes(self, summary: NodeCycleSummary) -> str:
        self._health.turned_nodes(summary)
        self._metrics.turned_nodes(summary)
        self._stillness_of_nodes.hear(summary)
        if summary.problem:
            raise HeliosError(summary.problem)
        return summary.line() if summary.acted else ""

    def _cycle(self, summary: CycleSummary) -> str:
        self._health.turned(summary)
        self._metrics.turned(summary)
        self._stillness.hear(summary)
        self._mind_the_hook(summary)
        if summary.problem:
            raise HeliosError(summary.problem)
        return summary.line() if self._is_worth_a_line(summary) else ""

    def _mind_the_hook(self, summary: CycleSummary) -> None:
        """Have the hook's table follow at once when cycles fall still or act again, or a mode was set."""
        before, self._bounds = self._bounds, (dict(summary.modes), bool(summary.suspended))
        if before is not None and before != self._bounds:
            self._hook_is_due()

    def _is_worth_a_line(self, summary: CycleSummary) -> bool:
        """Return whether jobs were changed, or services met another answer than the cycle before.

        What stays as it is belongs in health and metrics: a line for each cycle would bury the others.
        """
        before = self._outcomes
        self._outcomes = frozenset(
            (tally.service, tally.result.value)
            for tally in summary.tallies
            if tally.jobs and tally.result is not Result.UNCHANGED
        )
        return not summary.suspended and (summary.acted > 0 or self._outcomes != before)

    def _task(
        self,
        name: str,
        work: Callable[[], str],
        interval_s: float,
        door: ExclusiveSection,
        *,
        rest_s: float = 0,
        repeats: bool = True,
    ) -> Task:
        return Task(
            name=name,
            work=work,
            interval_s=interval_s,
            rest_s=rest_s,
            repeats=repeats,
            door=door,
            health=self._health,
            metrics=self._metrics,
            times=self._times,
        )

    def _scheduler_of(self) -> BackgroundScheduler:
        scheduler = BackgroundScheduler(
            executors={
                "writes": ThreadPoolExecutor(1),
                "reads": ThreadPoolExecutor(2),  # a long night must not hold up the readings
                "heart": ThreadPoolExecutor(1),
            },
            **({} if self._rhythm.zone is None else {"timezone": self._rhythm.zone}),
        )
        scheduler.add_listener(self._hear, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)
        return scheduler

    def _every(self, interval_s: float, call: Callable[[], object], *, name: str, worker: str, first: datetime) -> None:
        self._scheduler.add_job(
            call,
            IntervalTrigger(seconds=interval_s, timezone=self._scheduler.timezone),
            id=name,
            executor=worker,
            next_run_time=first,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=self._grace_s(interval_s),
        )

    def _each_night(self, at: str) -> None:
        hour, minute = at.split(":")
        self._scheduler.add_job(
            self.think,
            CronTrigger(hour=int(hour), minute=int(minute), timezone=self._scheduler.timezone),
            id="nightly",
            executor="reads",
            coalesce=True,
            max_instances=1,
            misfire_grace_time=NIGHT_GRACE_S,
        )

    @staticmethod
    def _grace_s(interval_s: float) -> int:
        """Return how late a task may begin: one interval, since after that its next time has come anyway.

        After a machine slept, the last of the missed times is younger than that, and is caught up with at once.
        """
        return max(math.ceil(interval_s), 1)

    def _hear(self, event: JobEvent) -> None:
        tasks = (*self.cycles.values(), self.hook, self.ingest, self.nightly)
        task = {each.name: each for each in tasks if each is not None}.get(event.job_id)
        if event.code == EVENT_JOB_ERROR:
            _log.error("%s ended in a defect of Helios: %s", event.job_id, event.exception)
        elif task is None:
            _log.debug("%s came too late or too early", event.job_id)
        elif event.code == EVENT_JOB_MAX_INSTANCES:
            task.say_overlap()
        else:
            task.say_late()
