"""Jobs of a replay as rows of the queue: what no event changes, and what may, as it was at one moment.

A replay is asked for its queue thousands of times, so what no event changes is taken by position from columns that are
made once, and frames are made of whole columns of the declared types: a frame that has to find out what it is given
costs more than all else here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.marks import MARK, STEP
from helios.model import QUEUE, plain_values

BASE_PRIORITY = 100_000.0
"""Priority of a job that nobody moved; what of it Helios changes is the SiteFactor that Slurm would have."""
EXACT_STEPS = 99
"""Steps that a priority is shown in where urgencies are not rounded."""

_TEXT = pd.StringDtype(storage="python", na_value=np.nan)
_NAMES = pd.Index(QUEUE.names, dtype=_TEXT)
"""Shared by all frames: where it stands which column lies is worked out once."""

Jobs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What is expected of each job of a workload; filled in as the timeline goes on.

    Attributes
    ----------
    quantiles_s : float64 array of shape (n_jobs, 3)
        p10, p50, p90 of the run time, s; NaN: not predicted.
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` said so; -1: none.
    sources : list of str
        Model ids and fallbacks, distinct.
    longest_backlog_s : float64 array of shape ()
        The longest backlog so far (:mod:`helios.backlog`), s; NaN: nobody reckons it.
    """

    quantiles_s: NDArray[np.float64]
    source: NDArray[np.int16]
    sources: list[str]
    longest_backlog_s: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))


class Facts:
    """The columns of ``QUEUE`` for all jobs of a replay, of which rows are taken.

    Parameters
    ----------
    queue : DataFrame
        Columns of ``QUEUE``: each job as it is while it waits and nobody has set anything.
    """

    def __init__(self, queue: pd.DataFrame) -> None:
        self._typed = {name: _typed(queue[name]) for name in QUEUE.names}
        self._plain: dict[str, NDArray[Any]] = {}

    def frame(self, jobs: Jobs, own: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of ``jobs``, with these columns of their ``own``."""
        columns = {name: own[name] if name in own else typed.take(jobs) for name, typed in self._typed.items()}
        made = pd.DataFrame(columns, index=pd.RangeIndex(len(jobs)), copy=False)
        made.columns = _NAMES
        return made

    def values(self, name: str, jobs: Jobs) -> NDArray[Any]:
        """Return one column for ``jobs``, as :meth:`helios.model.Snapshot.pending_values` does."""
        if name not in self._plain:
            self._plain[name] = plain_values(pd.Series(self._typed[name]))
        return self._plain[name].take(jobs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Some jobs of a replay at one moment: a frame, or a column of it, when somebody asks.

    What may change while they are kept is as it was at that moment; None: all of it is missing.
    """

    facts: Facts
    jobs: Jobs
    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    steps: int
    hands_off: list[str | None] | None
    held: NDArray[np.bool_] | None
    quantiles_s: NDArray[np.float64] | None
    source: NDArray[np.int16] | None
    sources: tuple[str, ...]
    longest_backlog_s: float

    def frame(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        own = {name: column for name, make in _OWN.items() if (column := make(self)) is not None}
        return self.facts.frame(self.jobs, own)

    def values(self, name: str) -> NDArray[Any]:
        """Return one column, as :meth:`helios.model.Snapshot.pending_values` does."""
        if name == "longest_backlog_s":
            return np.full(len(self.jobs), self.longest_backlog_s)
        column = _OWN[name](self) if name in _OWN else None
        if column is None:
            return self.facts.values(name, self.jobs)
        return plain_values(pd.Series(column)) if isinstance(column, pd.Categorical) else column

    @property
    def priority(self) -> NDArray[np.float64]:
        """The priority that the SiteFactor of its urgency would give each job."""
        steps = np.rint(self.urgency * (self.steps or EXACT_STEPS))
        priority: NDArray[np.float64] = BASE_PRIORITY + steps * STEP + np.sign(self.urgency) * MARK
        return priority if self.held is None else np.where(self.held, 0.0, priority)


def _quantile(column: int) -> Callable[[Rows], Any]:
    return lambda rows: None if rows.quantiles_s is None else rows.quantiles_s[:, column]


_OWN: dict[str, Callable[[Rows], Any]] = {
    "urgency": lambda rows: rows.urgency,
    "soft_limit_s": lambda rows: rows.soft_limit_s,
    "priority": lambda rows: rows.priority,
    "hands_off": lambda rows: None if rows.hands_off is None else pd.Categorical(rows.hands_off),
    "p10_s": _quantile(0),
    "p50_s": _quantile(1),
    "p90_s": _quantile(2),
    "source": lambda rows: None if rows.source is None else coded(rows.source, rows.sources),
}
"""Columns that are not the same for good; one that says None is missing as a whole."""


def _typed(column: pd.Series[Any]) -> Any:
    """Return the array of a column, text as Python's, of which a few are taken far sooner than of Arrow's."""
    if column.dtype == "str":
        return column.astype(_TEXT).array
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def coded(codes: NDArray[Any], words: tuple[str, ...]) -> pd.Categorical:
    """Return ``codes``, each of which stands for one of ``words``; -1: missing."""
    return pd.Categorical.from_codes(codes, dtype=_category(words), validate=False)


@lru_cache(maxsize=64)
def _category(words: tuple[str, ...]) -> Any:
    """Return the type with these words, of which checking that they are distinct is the slow part."""
    return pd.CategoricalDtype(list(words))
