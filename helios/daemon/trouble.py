"""What went wrong in a chore, and how long it then waits: pure values, no clock."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, replace

from helios.app.turn_lock import TurnUnderWay
from helios.errors import HeliosError

MOST_WAIT_S = 300.0
"""Longest wait between tries, s. After a repair nobody should wait for Helios longer than for a cup of coffee."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a chore could not be done.

    Attributes
    ----------
    fact, remedy : str
        What happened, and what to try next.
    defect : bool
        Helios did not raise it on purpose: the traceback belongs in the log.
    at_once : bool
        Nothing was tried that waiting would spare: the next run comes at its next time, however often it failed.
    """

    fact: str
    remedy: str = ""
    defect: bool = False
    at_once: bool = False

    @property
    def kind(self) -> str:
        """What makes it another trouble than the last."""
        return kind_of(self.fact)

    def line(self) -> str:
        """Return fact and remedy in one line."""
        parts = [self.fact, self.remedy]
        return " What to do: ".join(" ".join(part.split()) for part in parts if part)


def kind_of(line: str) -> str:
    """Return a line without its figures: a wait of 30.1 s and one of 30.2 s are the same trouble."""
    return re.sub(r"\d[\d.,]*", "#", line)


def trouble_of(error: Exception) -> Trouble:
    """Say what an error means to the operator."""
    if isinstance(error, HeliosError):
        return Trouble(fact=error.fact, remedy=error.remedy, at_once=isinstance(error, TurnUnderWay))
    if isinstance(error, MemoryError):
        return Trouble(
            fact="Memory ran out; nothing was done.",
            remedy="Raise MemoryMax of the unit, or lower history.jobs_for_predictions.",
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return Trouble(
            fact=f"The disk is full ({error.filename or error.strerror}); nothing was done.",
            remedy="Make room; Helios goes on by itself.",
        )
    return Trouble(
        fact=f"{type(error).__name__}: {error}",
        remedy="Helios did not expect this; report it with the traceback.",
        defect=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a chore has fared lately, and from when it may run again.

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
    trouble: Trouble | None = None
    not_before_s: float = float("-inf")
    failing_since_s: float = 0.0

    def succeeded(self, *, began_s: float) -> Pace:
        """Return the pace after a success."""
        return Pace(interval_s=self.interval_s, rest_s=self.rest_s, not_before_s=began_s + self.rest_s)

    def failed(self, trouble: Trouble, *, began_s: float) -> Pace:
        """Return the pace after another failure."""
        failures = self.failures + 1
        wait_s = min(self.interval_s * 2 ** min(failures - 1, 20), max(MOST_WAIT_S, self.interval_s))
        wait_s = self.interval_s if trouble.at_once else wait_s
        return replace(
            self,
            failures=failures,
            trouble=trouble,
            # Half an interval early: a tick that comes a moment before its time is not to be lost.
            not_before_s=began_s + wait_s - self.interval_s / 2,
            failing_since_s=self.failing_since_s if self.failures else began_s,
        )

    def is_news(self, trouble: Trouble) -> bool:
        """Return whether ``trouble`` is another one than the last."""
        return self.trouble is None or self.trouble.kind != trouble.kind
