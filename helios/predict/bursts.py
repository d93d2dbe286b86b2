"""Bursts of alike jobs from one user.

The jobs of a burst are one experiment many times over, so that n of them should count for about as much as sqrt(n)
other jobs. They can be weighted, or all but about sqrt(n) can be left out. Leaving out trained as well in the
experiments and several times faster: there are fewer rows, and LightGBM's quantile objective sorts every leaf anew in
each round only where rows are weighted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit
from helios.predict.causal_stats import NEVER_S, REQUEST, USER_SIZE
from helios.predict.job_table import JobTable

BURST_GAP_S = 6 * 3600
"""Longest gap within a burst, s."""
STRANGERS_GAP_S = 600
"""Longest gap within a burst of unknown users, s."""
KEPT = 2.0
"""At most this times sqrt(n) jobs of a burst of n are kept. 1, 2 and 4 were tried: docs/experiments.md."""


def without_repeats(
    rows: NDArray[np.int64], *, groups: NDArray[np.int32], submitted_s: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows to learn from, with long bursts thinned.

    The order is kept. The jobs kept of a burst are spread evenly over it. For unknown users the gap is shorter, since
    alike jobs of many unknown users never pause for long.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        Positions of jobs in the other arrays.
    groups : int32 array of shape (n_jobs, n_levels)
        As :func:`helios.predict.job_table.group_columns` makes them.
    submitted_s : int64 array of shape (n_jobs,)
        s since the epoch.
    """
    gap_s = np.where(groups[rows, USER_SIZE] < 0, STRANGERS_GAP_S, BURST_GAP_S)
    burst, place = _burst_and_place(similar_names(groups[rows]), submitted_s[rows], gap_s)
    length = np.bincount(burst)[burst]
    kept = np.minimum(np.ceil(KEPT * np.sqrt(length)), length)
    return np.asarray(rows[(place + 1) * kept // length > place * kept // length])


def similar_names(groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group within which each job can be in a burst.

    It is the user's group of the same size and limit, or for an unknown user that of the same request.
    """
    return np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])


def find_bursts(alike: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each job's burst, numbered from 0 in order of appearance.

    A burst has jobs with the same ``alike``, each submitted within ``BURST_GAP_S`` of the one before.
    """
    burst, _ = _burst_and_place(alike, submitted_s, np.full(len(alike), BURST_GAP_S))
    return np.asarray(pd.factorize(burst)[0], dtype=np.int64)


def _burst_and_place(
    alike: NDArray[np.int32], submitted_s: NDArray[np.int64], gap_s: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each job's burst and its position in it, both from 0.

    Positions are in the order of submission.
    """
    order = np.lexsort((submitted_s, alike))
    another = np.diff(alike[order], prepend=-1) != 0
    apart = np.diff(submitted_s[order], prepend=submitted_s[order[:1]]) > gap_s[order]
    begins = another | apart
    burst, place = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(begins) - 1
    place[order] = np.arange(len(order)) - np.flatnonzero(begins)[burst[order]]
    return burst, place


# Update of a waiting job's prediction by its siblings: alike jobs that were submitted with it and have run for a while.
#
# Jobs come in bursts, and the jobs of a burst run alike, more than anything known at submission says. When some of a
# burst have run for ten hours, the others will hardly take five minutes, even if none has ended yet. A run that has not
# ended shows that its run time is longer than its age (a censored observation; Tobin, "Estimation of relationships for
# limited dependent variables", Econometrica 26, 1958).
#
# The model, in log time: a burst has its own typical run time, drawn around the predicted median; its jobs scatter
# around that. The posterior is summed on a grid, so nothing has to converge.

SIBLING_GAP_S = 60
"""Longest gap between two submissions of one burst."""
SIBLINGS = 8
"""Siblings that are used, the last ones submitted before the job. More (16) made no difference."""
LOOK_BACK = 400
"""Earlier submissions among which siblings are searched, including waiting ones. It bounds the cost of a prediction."""
SPREAD = 0.7
"""Standard deviation of log run time within a burst, a factor of two either way."""
LEAST_DOUBT = 2.0
"""Least standard deviation of a burst's typical log run time around its prediction. Bursts a thousand times as long as
predicted occurred, and with a narrow interval their running jobs could not correct the prediction."""
SAY = 0.5
"""Weight of the siblings' estimate against the prediction without them, in log time. At the start of the last 30 % of
KTH and SDSC-BLUE the rank correlations with 0, 0.5 and 1 are .807 / .789, .808 / .794 and .806 / .793. On Philly the
share of the oracle's gain in a replay is .85 with 0.5 and with 1."""
_GRID, _REACH = 41, 4.0
_Z90 = 1.2815515655446004


class BurstUpdate:
    """Updater of predictions from the running jobs of the same burst.

    Parameters
    ----------
    groups : int32 array of shape (n_jobs, len(LEVELS))
        As of :class:`helios.predict.causal_stats.Events`.
    say : float
        See ``SAY``.
    """

    def __init__(self, groups: NDArray[np.int32], *, say: float = SAY) -> None:
        self._say = say
        alike = np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])
        self._in_order = np.argsort(alike, kind="stable")
        self._place = np.empty(len(alike), dtype=np.int64)
        self._place[self._in_order] = np.arange(len(alike))
        self._first = np.searchsorted(alike[self._in_order], alike)

    def revised(
        self,
        quantiles: NDArray[np.float64],
        jobs: NDArray[np.int64],
        *,
        now_s: int,
        submitted_s: NDArray[np.int64],
        since_s: NDArray[np.int64],
        log_run: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return p10, p50 and p90 of ``jobs``, updated by their siblings.

        Predictions of jobs without siblings are unchanged.

        Parameters
        ----------
        quantiles : array of shape (len(jobs), 3)
            Their predictions, s.
        submitted_s, since_s, log_run : arrays of shape (n_jobs,)
            Submission and current start of all jobs, s since the epoch (``NEVER_S`` for a job that does not run), and
            log1p of the run time of jobs known to have ended, NaN for all others.
        """
        ended_s = np.where(np.isnan(log_run), NEVER_S, 0)  # whatever has a known run time here has ended by now
        return self._revised(quantiles, jobs, np.full(len(jobs), now_s), submitted_s, since_s, ended_s, log_run)

    def revised_at_start(
        self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64], table: JobTable
    ) -> NDArray[np.float64]:
        """Return predictions of ``jobs`` of a recorded history, updated at their starts.

        The update is that of :meth:`revised`, with the state of the other jobs at the start of each.
        """
        log_run = np.log1p(table.run_time_s)
        when = table.submitted_s, table.started_s, table.ended_s
        return self._revised(quantiles, jobs, table.started_s[jobs], *when, log_run)

    def _revised(self, quantiles: NDArray[np.float64], *seen: NDArray[Any]) -> NDArray[np.float64]:
        revised = quantiles.copy()
        everything: tuple[Any, ...] = (revised, *seen, self._in_order, self._place, self._first, self._say)
        _revise(*everything)
        return revised


@cached_jit
def _revise(  # noqa: PLR0917 - numba kernels are called by position
    quantiles: Any,
    jobs: Any,
    at_s: Any,
    submitted_s: Any,
    since_s: Any,
    ended_s: Any,
    log_run: Any,
    in_order: Any,
    place: Any,
    first: Any,
    say: float,
) -> None:
    typical, weight = np.empty(_GRID), np.empty(_GRID)
    for row in range(len(jobs)):
        job, now_s = jobs[row], at_s[row]
        seen, last_s, at = 0, submitted_s[job], place[job]
        _expect(quantiles[row], typical, weight)
        oldest = max(first[job], at - LOOK_BACK)
        while at > oldest and seen < SIBLINGS:
            at -= 1
            other = in_order[at]
            if last_s - submitted_s[other] > SIBLING_GAP_S:
                break
            last_s = submitted_s[other]
            if ended_s[other] < now_s and not np.isnan(log_run[other]):
                _see(typical, weight, log_run[other])
            elif since_s[other] < now_s <= ended_s[other]:
                _see_running(typical, weight, np.log1p(float(now_s - since_s[other])))
            else:
                continue
            seen += 1
        if seen:
            _conclude(quantiles[row], typical, weight, say)


@inline_jit
def _expect(quantiles: Any, typical: Any, weight: Any) -> None:
    """Set the grid around the predicted median, with normal log weights."""
    low, middle, high = np.log1p(quantiles[0]), np.log1p(quantiles[1]), np.log1p(quantiles[2])
    doubt = max((high - low) / (2.0 * _Z90), LEAST_DOUBT)
    for step in range(len(typical)):
        z = _REACH * (2.0 * step / (len(typical) - 1) - 1.0)
        typical[step], weight[step] = middle + doubt * z, -0.5 * z * z


@inline_jit
def _see(typical: Any, weight: Any, log_run: float) -> None:
    """Update the weights with a sibling that has ended."""
    for step in range(len(typical)):
        weight[step] -= 0.5 * ((log_run - typical[step]) / SPREAD) ** 2


@inline_jit
def _see_running(typical: Any, weight: Any, log_lasted: float) -> None:
    """Update the weights with a sibling that is still running."""
    for step in range(len(typical)):
        z = (log_lasted - typical[step]) / SPREAD
        # Far in the tail erfc underflows, but the logarithm of its expansion does not.
        weight[step] += math.log(0.5 * math.erfc(z / math.sqrt(2.0))) if z < 8.0 else -0.5 * z * z - math.log(z) - 0.92


@inline_jit
def _conclude(quantiles: Any, typical: Any, weight: Any, say: float) -> None:
    """Move the quantiles towards those of a further run of the burst.

    The latter are computed from the weighted grid.
    """
    top, total, mean, squares = weight.max(), 0.0, 0.0, 0.0
    for step in range(len(typical)):
        share = math.exp(weight[step] - top)
        total += share
        mean += share * typical[step]
        squares += share * typical[step] ** 2
    mean /= total
    spread = math.sqrt(max(squares / total - mean * mean, 0.0) + SPREAD**2)
    for column in range(3):
        told = mean + (column - 1) * _Z90 * spread
        quantiles[column] = max(np.expm1(say * told + (1.0 - say) * np.log1p(quantiles[column])), 0.0)
