"""The forecaster of one pool: learned once a day, asked at every step, and the walk that judges it on the past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import FrameInvalid
from helios.model import STEP_S
from helios.ports import Progress, in_silence
from helios.predict.demand.features import REACH, matrix
from helios.predict.demand.learning import EVERY, belief, held_back, learn, missed, shares
from helios.predict.demand.naive import outcomes, rises_of
from helios.predict.demand.values import AHEAD, AHEAD_S, DAY, LEVELS, Calendar, Forecasts, JobState
from helios.predict.forest import Forest, grow, plant

Values = NDArray[np.float64]

FEWEST_STEPS = 7 * DAY
HISTORY_STEPS = 180 * DAY
"""Steps that are learned from where the caller does not say; as [demand] history_days."""
_N_AHEAD, _N_LEVELS = len(AHEAD), len(LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandForecaster:
    """What was learned from the history of one pool; make one with :meth:`fit`.

    Attributes
    ----------
    calendar : Calendar
        The site's.
    source : str
        What forecasts, for a person.
    with_jobs : bool
        Whether it has to be told the state of jobs.
    """

    calendar: Calendar
    source: str
    with_jobs: bool
    _forest: Forest | None
    _belief: Values
    _shares: Values
    _rises: Values
    _moves: Values

    @classmethod
    def fit(
        cls,
        busy: Values,
        total: Values,
        *,
        start_s: int,
        calendar: Calendar,
        state: JobState | None = None,
        history_steps: int = HISTORY_STEPS,
    ) -> DemandForecaster:
        """Learn from the history of one pool, up to the last step of ``busy``.

        Parameters
        ----------
        busy, total : float64 arrays of shape (n_steps,)
            Most busy nodes within each step, and nodes in service; oldest first, no gaps.
        start_s : int
            Start of the first step, s since the epoch.
        state : JobState, optional
            Of the same steps; then :meth:`forecast` must be told it too.
        history_steps : int
            Learn from the last so many steps.

        Raises
        ------
        FrameInvalid
            The series differ in length or have gaps.
        """
        _check(busy, total, state)
        rows = np.arange(len(busy))
        known = matrix(busy, total, start_s=start_s, rows=rows, calendar=calendar, state=state)
        past = _Past(busy, total, known, *outcomes(busy))
        return _fitted(past, len(busy), calendar=calendar, with_jobs=state is not None, history_steps=history_steps)

    def forecast(
        self,
        busy: Values,
        total: Values,
        *,
        start_s: int,
        state: JobState | None = None,
        steps: int = 1,
    ) -> Forecasts:
        """Forecast from the end of each of the last ``steps`` steps.

        Parameters
        ----------
        busy, total : float64 arrays of shape (n_steps,)
            As in :meth:`fit`; at least a week before the first step that is asked for, where there is one.
        state : JobState, optional
            Of the same steps.
        """
        _check(busy, total, state)
        if self.with_jobs != (state is not None):
            raise FrameInvalid("a forecaster that learned from jobs must be told of jobs, another must not")
        after = len(busy)
        first = max(after - steps - REACH - DAY, 0)
        seen = slice(first, after)
        known = matrix(
            busy[seen],
            total[seen],
            start_s=start_s + first * STEP_S,
            rows=np.arange(after - steps - first, after - first),
            calendar=self.calendar,
            state=None if state is None else state.rows(first, after),
        )
        return self._answer(known, busy[after - steps :], total[after - steps :])

    def _answer(self, known: NDArray[np.float32], now: Values, total: Values) -> Forecasts:
        point, mean = np.zeros((len(now), _N_AHEAD)), np.zeros((len(now), _N_AHEAD))
        most = np.tile(self._rises, (len(now), 1, 1))
        if self._forest is not None:
            told = grow(self._forest, known).reshape(len(now), _N_AHEAD, 2 + _N_LEVELS)
            point, mean = self._belief[0] * told[:, :, 0], self._belief[1] * told[:, :, 1]
            most = _blended(told[:, :, 2:], self._rises, self._shares) + self._moves
        there = np.maximum(total, now)[:, None]
        return Forecasts(
            ahead_s=AHEAD_S,
            levels=LEVELS,
            point=np.clip(now[:, None] + point, 0.0, there),
            mean=np.clip(now[:, None] + mean, 0.0, there),
            most=_ascending(np.clip(now[:, None, None] + most, 0.0, there[:, None])),
            source=self.source,
        )


def walk_forward(
    busy: Values,
    total: Values,
    *,
    start_s: int,
    from_step: int,
    until_step: int,
    calendar: Calendar,
    state: JobState | None = None,
    refit_every_s: int = 86_400,
    history_steps: int = HISTORY_STEPS,
    progress: Progress = in_silence,
) -> Forecasts:
    """Forecast from the end of each step of a window as it would have been done then, learning anew every day.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        As in :meth:`DemandForecaster.fit`. What lies before the window is history.
    from_step, until_step : int
        The window; ``until_step`` itself is not in it.
    refit_every_s : int
        Time between two fits. Each learns only from the steps before it.

    Returns
    -------
    Forecasts
        Of the steps ``from_step`` to ``until_step`` - 1; row t depends on nothing after the end of its step.

    Raises
    ------
    FrameInvalid
        The series differ in length or have gaps, or the window does not lie within them.
    """
    _check(busy, total, state)
    if not 0 <= from_step < until_step <= len(busy):
        raise FrameInvalid(f"the window from step {from_step} to {until_step} is not within {len(busy)} steps")
    rows = np.arange(until_step)
    known = matrix(busy, total, start_s=start_s, rows=rows, calendar=calendar, state=state)
    past = _Past(busy, total, known, *outcomes(busy[:until_step]))
    refit, told = max(refit_every_s // STEP_S, 1), []
    for step in range(from_step, until_step, refit):
        progress("Forecasting the demand for nodes", (step - from_step) / (until_step - from_step))
        fitted = _fitted(past, step, calendar=calendar, with_jobs=state is not None, history_steps=history_steps)
        ahead = slice(step, min(step + refit, until_step))
        told.append(fitted._answer(known[ahead], busy[ahead], total[ahead]))
    progress("Forecasting the demand for nodes", 1.0)
    return Forecasts(
        ahead_s=AHEAD_S,
        levels=LEVELS,
        point=np.concatenate([one.point for one in told]),
        mean=np.concatenate([one.mean for one in told]),
        most=np.concatenate([one.most for one in told]),
        source=told[-1].source,
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """A series, what was known at each step, and what came."""

    busy: Values
    total: Values
    known: NDArray[np.float32]
    point: Values
    mean: Values
    most: Values


def _fitted(past: _Past, until: int, *, calendar: Calendar, with_jobs: bool, history_steps: int) -> DemandForecaster:
    """Learn from the steps before ``until``; every outcome that was not known by then is left out by the learners."""
    first = max(until - history_steps, 0)
    enough = until - first >= FEWEST_STEPS
    trust, moves = _tried(past, first, until) if enough else (np.zeros((2, _N_AHEAD)), np.zeros((_N_AHEAD, _N_LEVELS)))
    return DemandForecaster(
        calendar=calendar,
        source=_source(until - first, enough=enough, with_jobs=with_jobs),
        with_jobs=with_jobs,
        _forest=plant(_learned(past, first, until)) if enough else None,
        _belief=trust,
        _shares=shares(until - first),
        _rises=_rises(past, first, until),
        _moves=moves,
    )


def _learned(past: _Past, first: int, until: int, *, every: int = EVERY) -> tuple[str, ...]:
    return learn(past.known, past.busy, past.point, past.mean, past.most, first=first + DAY, until=until, every=every)


def _rises(past: _Past, first: int, until: int) -> Values:
    return rises_of(past.most[first:until] - past.busy[first:until, None])


def _tried(past: _Past, first: int, until: int) -> tuple[Values, Values]:
    """Try what would have been learned before the last weeks on these: how far to believe it, by how much it missed."""
    then = until - held_back(until - first)
    trees = plant(_learned(past, first, then, every=2 * EVERY))
    told = grow(trees, past.known[then:until]).reshape(until - then, _N_AHEAD, 2 + _N_LEVELS)
    now, history = past.busy[then:until, None], until - first
    trust = np.stack(
        [
            belief(past.point[then:until] - now, told[:, :, 0], history=history),
            belief(past.mean[then:until] - now, told[:, :, 1], history=history),
        ]
    )
    blended = _blended(told[:, :, 2:], _rises(past, first, then), shares(then - first))
    return trust, missed(past.most[then:until] - now, blended)


def _blended(trees: Values, rises: Values, share: Values) -> Values:
    return share * trees + (1 - share) * rises


def _ascending(most: Values) -> Values:
    """Return quantiles that ascend in level, and in horizon: what is needed within 3 h is needed within 6 h."""
    return np.maximum.accumulate(np.sort(most, axis=2), axis=1)


def _source(history: int, *, enough: bool, with_jobs: bool) -> str:
    days = history / DAY
    if not enough:
        return f"now and the rises of {days:.1f} days: to learn takes {FEWEST_STEPS // DAY} days of history"
    return f"trees on {days:.0f} days of busy nodes{' and jobs' if with_jobs else ''}"


def _check(busy: Values, total: Values, state: JobState | None) -> None:
    if len(busy) != len(total) or (state is not None and len(state.values) != len(busy)):
        raise FrameInvalid("busy nodes, nodes in service and the state of jobs are not of the same steps")
    if not (np.isfinite(busy).all() and np.isfinite(total).all()):
        raise FrameInvalid("a series of nodes has gaps; fill them first (helios.ingest.node_series.resampled)")
