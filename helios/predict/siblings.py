"""What running jobs tell about a job that waits: those submitted with it and alike, seen as far as they have run.

Jobs come in bursts, and the jobs of a burst run alike, more than anything known at submission says. When some of a
burst have run for ten hours, the others will hardly take five minutes, though none has ended and taught it. A run that
has not ended says that the run time is longer than it has lasted (a censored observation; Tobin, "Estimation of
relationships for limited dependent variables", Econometrica 26, 1958).

The model, in log time: a burst has its own typical run time, drawn around the predicted median; its jobs scatter around
that. The posterior is summed on a grid, so nothing has to converge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept, part
from helios.predict.features import JobTable
from helios.predict.history import NEVER_S, REQUEST, USER_SIZE

BURST_GAP_S = 60
"""Longest gap between two submissions of one burst."""
SIBLINGS = 8
"""How many of a burst are looked at, the last submitted before the job; more changed nothing (tried: 16)."""
LOOK_BACK = 400
"""How many submissions are looked through for them, those that still wait included: it bounds the cost of an answer."""
SPREAD = 0.7
"""Standard deviation of log run time within a burst: a factor of two either way."""
LEAST_DOUBT = 2.0
"""Standard deviation of a burst's typical log run time around its prediction, at least: bursts of thousand-fold length
were predicted as short ones, and an interval that is too narrow would not let them be seen as what they are."""
SAY = 0.5
"""How much siblings have to say beside what is predicted without them, in log time. At the start of the last 30 % of
KTH and SDSC-BLUE 0, a half and 1 order .807 / .789, .808 / .794 and .806 / .793; on Philly the share of the oracle's
gain in a replay is .85 with a half and with 1."""
_GRID, _REACH = 41, 4.0
_Z90 = 1.2815515655446004


class Siblings:
    """Knows which jobs came in a burst, and revises predictions by how long those of it have run.

    Parameters
    ----------
    groups : int32 array of shape (n_jobs, len(LEVELS))
        As of :class:`helios.predict.history.Events`.
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
        """Return p10, p50 and p90 of ``jobs`` in the light of their siblings; without any, as they are.

        Parameters
        ----------
        quantiles : array of shape (len(jobs), 3)
            What is predicted of them, s.
        submitted_s, since_s, log_run : arrays of shape (n_jobs,)
            Of all jobs: submission; since when each runs now (NEVER_S: it does not), s since the epoch; log1p of the
            run time of those known to have ended, NaN of all others.
        """
        ended_s = np.where(np.isnan(log_run), NEVER_S, 0)  # whatever has a known run time here has ended by now
        return self._revised(quantiles, jobs, np.full(len(jobs), now_s), submitted_s, since_s, ended_s, log_run)

    def revised_at_start(
        self, quantiles: NDArray[np.float64], jobs: NDArray[np.int64], table: JobTable
    ) -> NDArray[np.float64]:
        """Do as :meth:`revised` does in a recorded history, for each of ``jobs`` as of its own start."""
        log_run = np.log1p(table.run_time_s)
        when = table.submitted_s, table.started_s, table.ended_s
        return self._revised(quantiles, jobs, table.started_s[jobs], *when, log_run)

    def _revised(self, quantiles: NDArray[np.float64], *seen: NDArray[Any]) -> NDArray[np.float64]:
        revised = quantiles.copy()
        everything: tuple[Any, ...] = (revised, *seen, self._in_order, self._place, self._first, self._say)
        _revise(*everything)
        return revised


@kept
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
            if last_s - submitted_s[other] > BURST_GAP_S:
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


@part
def _expect(quantiles: Any, typical: Any, weight: Any) -> None:
    """Lay the grid around the predicted median, with log weights of a normal distribution."""
    low, middle, high = np.log1p(quantiles[0]), np.log1p(quantiles[1]), np.log1p(quantiles[2])
    doubt = max((high - low) / (2.0 * _Z90), LEAST_DOUBT)
    for step in range(len(typical)):
        z = _REACH * (2.0 * step / (len(typical) - 1) - 1.0)
        typical[step], weight[step] = middle + doubt * z, -0.5 * z * z


@part
def _see(typical: Any, weight: Any, log_run: float) -> None:
    """Weigh in a sibling that ended."""
    for step in range(len(typical)):
        weight[step] -= 0.5 * ((log_run - typical[step]) / SPREAD) ** 2


@part
def _see_running(typical: Any, weight: Any, log_lasted: float) -> None:
    """Weigh in a sibling that has run so long and goes on."""
    for step in range(len(typical)):
        z = (log_lasted - typical[step]) / SPREAD
        # Far out the tail of the normal distribution is too small for a float; its expansion there is not.
        weight[step] += math.log(0.5 * math.erfc(z / math.sqrt(2.0))) if z < 8.0 else -0.5 * z * z - math.log(z) - 0.92


@part
def _conclude(quantiles: Any, typical: Any, weight: Any, say: float) -> None:
    """Draw the quantiles towards those of one more run of the burst, read off the weighted grid."""
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
