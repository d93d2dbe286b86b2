"""The judge: known figures, the same measure for all, and no opinion on what nobody saw."""

from dataclasses import replace

import numpy as np
import pytest

from helios.predict.demand.forecaster import (
    EMPIRICAL,
    HELIOS,
    PERSISTENCE,
    ForecastVerdict,
    judge,
    outcomes,
    persistence,
    pinball,
    rises,
    smape,
)
from helios.predict.demand.types import AHEAD, AHEAD_S, DAY, LEVELS, Forecasts
from tests.unit.predict.demand.worlds import START_S, a_demand

FIRST = 8 * DAY


def as_now(busy: np.ndarray) -> Forecasts:
    now = persistence(busy)
    return Forecasts(
        ahead_s=AHEAD_S,
        levels=LEVELS,
        point=now[FIRST:],
        mean=now[FIRST:],
        most=np.repeat(now[FIRST:, :, None], len(LEVELS), axis=2),
        source="now",
    )


def judged(busy: np.ndarray, forecasts: Forecasts, gaps: np.ndarray | None = None) -> ForecastVerdict:
    total = np.full(len(busy), 100.0)
    none = np.zeros(len(busy), dtype=np.bool_)
    return judge(busy, total, forecasts, gaps=none if gaps is None else gaps, start_s=START_S, from_step=FIRST)


def score(verdict: ForecastVerdict, method: str, hour: int):
    return next(one for one in verdict.points if (one.method, one.horizon_h) == (method, hour))


def test_a_forecast_of_now_scores_as_persistence_does() -> None:
    busy, _ = a_demand(16)
    verdict = judged(busy, as_now(busy))
    for hour in (1, 3, 6, 24):
        ours, theirs = score(verdict, HELIOS, hour), score(verdict, PERSISTENCE, hour)
        assert (ours.smape, ours.mae, ours.pinball, ours.better) == (theirs.smape, theirs.mae, theirs.pinball, 0.0)


def test_figures_agree_with_a_count_step_by_step() -> None:
    busy, _ = a_demand(12)
    verdict, at = judged(busy, as_now(busy)), AHEAD.index(36)
    rows = range(FIRST, len(busy) - 36)
    errors = [abs(busy[row + 36] - busy[row]) for row in rows]
    relative = [200 * error / (busy[row + 36] + busy[row]) for row, error in zip(rows, errors, strict=True)]
    ours = score(verdict, PERSISTENCE, 6)
    assert (ours.mae, ours.smape) == pytest.approx((np.mean(errors), np.mean(relative)))
    enough = [
        busy[row + 1 : row + 37].max()
        <= min(busy[row] + rises(busy, until=FIRST + (row - FIRST) // DAY * DAY)[at, 1], 100.0)
        for row in rows
    ]
    theirs = next(one for one in verdict.most if (one.method, one.horizon_h, one.level) == (EMPIRICAL, 6, 0.9))
    assert theirs.coverage == pytest.approx(np.mean(enough))


def test_perfect_forecasts_have_no_error() -> None:
    busy, _ = a_demand(12)
    point, mean, most = (np.nan_to_num(values[FIRST:]) for values in outcomes(busy))
    perfect = replace(as_now(busy), point=point, mean=mean, most=np.repeat(most[:, :, None], len(LEVELS), axis=2))
    for one in judged(busy, perfect).points:
        if one.method == HELIOS:
            assert (one.mae, one.smape, one.pinball, one.mae_mean) == (0, 0, 0, 0)


def test_what_touches_a_gap_is_not_judged() -> None:
    busy, _ = a_demand(12)
    gaps = np.zeros(len(busy), dtype=np.bool_)
    gaps[FIRST + 200 : FIRST + 260] = True
    wild = np.where(gaps, 1e6, busy)
    ours, theirs = judged(busy, as_now(busy), gaps), judged(wild, as_now(wild), gaps)
    for hour in (1, 3, 6, 24):
        assert score(ours, PERSISTENCE, hour) == score(theirs, PERSISTENCE, hour)


def test_a_difference_is_sure_only_over_enough_days() -> None:
    busy, _ = a_demand(16)
    assert score(judged(busy, as_now(busy)), HELIOS, 1).sure_by is not None
    short = busy[: FIRST + 2 * DAY]
    assert score(judged(short, as_now(short)), HELIOS, 1).sure_by is None


def test_pinball_weighs_what_is_short_by_the_level() -> None:
    assert pinball(np.array([10.0]), np.array([8.0]), 0.9) == pytest.approx(1.8)
    assert pinball(np.array([8.0]), np.array([10.0]), 0.9) == pytest.approx(0.2)


def test_smape_is_the_papers_and_nothing_of_nothing_is_no_error() -> None:
    assert smape(np.array([3.0, 0.0]), np.array([1.0, 0.0])) == pytest.approx(50.0)
