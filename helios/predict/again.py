"""What is known of jobs that waited when they start: the last moment at which a prediction of theirs is of use.

While a job waits others end, and what they teach is the largest single gain over predicting at submission alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept, part
from helios.predict.features import JobTable, events_of
from helios.predict.history import FEATURES, NEVER_S, describe_again, nothing_known, walk

WAITED_S = 60
"""Below this nothing is learned while waiting that would be worth a second look."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """What was known of each job of a history, and of those that waited again at their start.

    Attributes
    ----------
    at_submission : float32 array of shape (n_jobs, len(FEATURES))
        As :func:`helios.predict.causal_features` gives it.
    waited : int64 array of shape (n_waited,)
        Jobs that started ``WAITED_S`` or more after their submission.
    at_start : float32 array of shape (n_waited, len(FEATURES))
        Of these.
    """

    at_submission: NDArray[np.float32]
    waited: NDArray[np.int64]
    at_start: NDArray[np.float32]

    def latest(self) -> NDArray[np.float32]:
        """Return each job's features as of its start, as of its submission where it did not wait."""
        latest = self.at_submission.copy()
        latest[self.waited] = self.at_start
        return latest


def known_of(table: JobTable, *, groups: NDArray[np.int32] | None = None) -> Known:
    """Walk once through a history; causal as :func:`helios.predict.causal_features` is, each row as of its moment."""
    events, ends = events_of(table, groups=groups), table.ends()
    sane = (table.started_s != NEVER_S) & (table.started_s <= table.ended_s)
    waited = np.flatnonzero(sane & (table.started_s - table.submitted_s >= WAITED_S))
    waited = waited[np.argsort(table.started_s[waited], kind="stable")]
    features = np.empty((table.n, len(FEATURES)), dtype=np.float32)
    at_start = np.empty((len(waited), len(FEATURES)), dtype=np.float32)
    _walk_and_ask(
        nothing_known(events), events, ends, table.ended_s[ends], waited, table.started_s[waited], features, at_start
    )
    return Known(at_submission=features, waited=waited, at_start=at_start)


@kept
def _walk_and_ask(  # noqa: PLR0917 - numba kernels are called by position
    history: Any, events: Any, ends: Any, ends_s: Any, waited: Any, starts_s: Any, features: Any, at_start: Any
) -> None:
    jobs, next_end, asked = np.arange(len(events.submitted_s)), 0, 0
    for job in jobs:
        while asked < len(waited) and starts_s[asked] <= events.submitted_s[job]:
            next_end = _ask(history, events, ends, ends_s, next_end, waited, starts_s, asked, features, at_start)
            asked += 1
        next_end = walk(history, events, jobs[job : job + 1], ends, ends_s, next_end, features)
    while asked < len(waited):
        next_end = _ask(history, events, ends, ends_s, next_end, waited, starts_s, asked, features, at_start)
        asked += 1


@part
def _ask(  # noqa: PLR0917 - as above
    history: Any,
    events: Any,
    ends: Any,
    ends_s: Any,
    next_end: int,
    waited: Any,
    starts_s: Any,
    asked: int,
    features: Any,
    at_start: Any,
) -> int:
    job = waited[asked]
    submitted = features[job].copy()
    next_end = describe_again(
        history, events, waited[asked : asked + 1], starts_s[asked], ends, ends_s, next_end, features
    )
    at_start[asked] = features[job]
    features[job] = submitted
    return next_end
