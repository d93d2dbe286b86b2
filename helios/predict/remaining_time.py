"""Remaining run time of a running job, from prediction and age.

The run time T has a distribution through the three predicted quantiles, whose log-odds of having ended are piecewise
linear in log T: one line below the median, one from there to p90 (a log-logistic in two pieces, so that every quantile
of T given T > t has a closed form), and beyond p90 a third whose slope is the same for every job. There it is a Pareto
law: the remaining time is proportional to the elapsed time, so that a job far beyond its prediction is expected neither
to end at once nor to run for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    pass

TAIL_SLOPE = 0.8
"""Growth of log T by log-odds beyond p90. Half of the jobs far beyond run for another 2**0.8 - 1 = 0.74 of their time.

Best of .6, .8 and 1 on Venus and Philly, where no limits end jobs. On KTH-SP2 and SDSC-BLUE it makes no difference
(benchmarks/remaining.py evaluates the same logs). A plain log-logistic, which keeps the slope below p90, covers 67 % of
Philly's running jobs, and this one 76 %.
"""
LEAST_SLOPE = 0.01
"""Least slope of the other two lines. Quantiles may coincide (mostly at a time limit), but a line needs a slope."""
LIMIT_GRACE_S = 60.0
"""Longest time that a job outlasts its limit, s. 41 % of SDSC-BLUE's running jobs outlast it, by 27 to 58 s.

Slurm looks for jobs past their limit every 30 s and gives them another 30 s (``KillWait``) to end.
"""
CHANCES = (0.1, 0.5, 0.9)
"""Probabilities of the quantiles, in the order of their columns."""
_SHORTEST_S = 1.0

_LOG_ODDS_P90 = np.log(9.0)
Floats = NDArray[np.float64]


def remaining_run_time(
    quantiles_s: Floats,
    elapsed_s: Floats,
    *,
    limit_s: Floats | None = None,
    chances: Sequence[float | Floats] = CHANCES,
) -> Floats:
    """Return quantiles of running jobs' remaining run time.

    The jobs have run for ``elapsed_s`` and not ended.

    Parameters
    ----------
    quantiles_s : float64 array of shape (n, 3)
        p10, p50, p90 of the whole run time as predicted at submission, s, ascending; below 1 s they count as 1 s. With
        NaN, no prediction, the result is NaN too.
    elapsed_s : float64 array of shape (n,)
        Time run so far, s; a negative one (clocks differ) counts as 0.
    limit_s : float64 array of shape (n,), optional
        Time limits, s; NaN or infinite for none. No time remains beyond ``LIMIT_GRACE_S`` after it.
    chances : sequence of float or float64 arrays of shape (n,)
        Probabilities of the k quantiles; with uniform random numbers the result is drawn from the distribution.

    Returns
    -------
    float64 array of shape (n, k)
        s, ascending in each row and not negative. At 0 s elapsed they are ``quantiles_s``, except that p10 and p90 are
        at least 2 % away from p50. Their sum with ``elapsed_s`` never falls as time passes.
    """
    elapsed_s = np.maximum(np.asarray(elapsed_s, dtype=np.float64), 0.0)
    odds = _Odds(quantiles_s)
    # The log of 0 s elapsed is -inf, as it should be. NaN, no prediction, stays NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_survival = -np.logaddexp(0.0, odds.at(np.log(elapsed_s)))
    total_s = np.stack([odds.run_time(log_survival + np.log1p(-np.asarray(chance))) for chance in chances], axis=-1)
    remaining_s = total_s - elapsed_s[:, None]
    if limit_s is not None:
        left_s = np.maximum(np.where(np.isnan(limit_s), np.inf, limit_s) + LIMIT_GRACE_S - elapsed_s, 0.0)
        remaining_s = np.minimum(remaining_s, left_s[:, None])
    return remaining_s


class _Odds:
    """Log-odds of having ended by a time, for each of n jobs.

    They are three straight lines in log time, and have an inverse.
    """

    def __init__(self, quantiles_s: Floats) -> None:
        low, self._median, high = np.log(np.maximum(quantiles_s, _SHORTEST_S)).T
        self._below = np.maximum((self._median - low) / _LOG_ODDS_P90, LEAST_SLOPE)
        self._above = np.maximum((high - self._median) / _LOG_ODDS_P90, LEAST_SLOPE)

    def at(self, log_time: Floats) -> Floats:
        past = log_time - self._median
        beyond = past - self._above * _LOG_ODDS_P90
        odds = np.where(past < 0, past / self._below, past / self._above)
        return np.asarray(np.where(beyond > 0, _LOG_ODDS_P90 + beyond / TAIL_SLOPE, odds))

    def run_time(self, log_survival: Floats) -> Floats:
        """Return the run times, s, that jobs exceed with a log probability."""
        odds = np.log(-np.expm1(log_survival)) - log_survival
        within = odds * np.where(odds < 0, self._below, self._above)
        beyond = self._above * _LOG_ODDS_P90 + TAIL_SLOPE * (odds - _LOG_ODDS_P90)
        return np.asarray(np.exp(self._median + np.where(odds > _LOG_ODDS_P90, beyond, within)))
