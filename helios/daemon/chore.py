"""One chore as the scheduler calls it: it never raises, waits longer the more often it fails, and says so once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from helios.daemon.door import Door
from helios.daemon.health import Health
from helios.daemon.metrics import Metrics
from helios.daemon.times import Times
from helios.daemon.trouble import Pace, Trouble, kind_of, trouble_of


class Chore:
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
        Shared by chores that must not run at the same time.
    """

    def __init__(
        self,
        *,
        name: str,
        work: Callable[[], str],
        interval_s: float,
        door: Door,
        health: Health,
        metrics: Metrics,
        times: Times,
        rest_s: float = 0.0,
        repeats: bool = True,
    ) -> None:
        self.name = name
        self._work = work
        self._pace = Pace(interval_s=interval_s, rest_s=rest_s)
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
        """Take note that its time came and went while another chore was at work."""
        self._metrics.left_out(self.name)
        self._log.warning("its time passed while another chore was at work: left out until the next")

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
        if self._pace.trouble is not None:
            lasted_min = (began_s - self._pace.failing_since_s) / 60
            self._log.warning("works again, after %d failures in %.0f min", self._pace.failures, lasted_min)
        if line and (self._repeats or kind_of(line) != kind_of(self._said)):
            self._log.info("%s", line)
        self._said = line
        self._pace = self._pace.succeeded(began_s=began_s)
        self._health.succeeded(self.name, at=self._times.now(), line=line)
        self._metrics.succeeded(self.name, at=self._times.now())

    def _fail(self, error: Exception, *, began_s: float) -> None:
        trouble = trouble_of(error)
        self._say(trouble, error)
        self._pace = self._pace.failed(trouble, began_s=began_s)
        self._health.failed(self.name, at=self._times.now(), trouble=trouble.line())
        self._metrics.failed(self.name)

    def _say(self, trouble: Trouble, error: Exception) -> None:
        if self._pace.is_news(trouble):
            self._log.error("%s", trouble.line(), exc_info=error if trouble.defect else None)
        else:
            self._log.debug("again: %s", trouble.line())
