"""Calendar, holidays, and pools laid side by side."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from helios.errors import ConfigurationInvalid, FrameInvalid
from helios.predict.demand.types import AHEAD_S, LEVELS, Calendar, DemandJobState, Forecasts, assemble, parse_holidays


def forecasts(n_steps: int, *, source: str = "trees") -> Forecasts:
    shape = (n_steps, len(AHEAD_S))
    return Forecasts(
        ahead_s=AHEAD_S,
        levels=LEVELS,
        point=np.ones(shape),
        mean=np.ones(shape),
        most=np.ones((*shape, len(LEVELS))),
        source=source,
    )


def test_days_and_spans_of_days_are_read() -> None:
    read = parse_holidays("2026-12-25, 2026-12-31..2027-01-02,")
    assert read == {date(2026, 12, 25), date(2026, 12, 31), date(2027, 1, 1), date(2027, 1, 2)}
    assert parse_holidays("") == frozenset()


@pytest.mark.parametrize("text", ["Christmas", "2026-12-25..2026-12-24", "2026-01-01..2030-01-01", "25.12.2026", "..x"])
def test_what_is_no_day_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"2026-12-28\.\.2027-01-03"):
        parse_holidays(text)


def test_the_calendar_is_the_sites_also_across_daylight_saving() -> None:
    calendar = Calendar(zone=ZoneInfo("Europe/Berlin"), holidays=frozenset({date(2026, 3, 30)}))
    moments = [datetime(2026, 3, 28, 11, 30, tzinfo=UTC), datetime(2026, 3, 29, 22, 30, tzinfo=UTC)]
    told = calendar.describe(np.array([int(moment.timestamp()) for moment in moments]))
    assert told[0].tolist() == [12.5, 5, 0, 0]
    assert told[1].tolist() == [0.5, 0, 1, 0]
    assert calendar.describe(np.array([int(moments[1].timestamp()) - 3_600]))[0].tolist() == [23.5, 6, 0, 1]


def test_pools_are_laid_side_by_side_ending_together() -> None:
    pools = {
        "gpu": (np.arange(4.0), np.full(4, 9.0), forecasts(2)),
        "cpu": (np.arange(10.0, 16.0), np.full(6, 20.0), forecasts(6, source="now")),
    }
    demand = assemble(pools, ended_s=1_000)
    assert demand.pools == ("gpu", "cpu")
    assert demand.busy.tolist() == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert np.isnan(demand.point[0, :2]).all() and np.isfinite(demand.point[0, 2:]).all()
    assert np.isfinite(demand.most[1]).all()
    assert demand.source == "trees, now"


def test_no_pool_at_all_is_refused() -> None:
    with pytest.raises(FrameInvalid):
        assemble({}, ended_s=0)


def test_a_job_state_has_a_name_for_each_column() -> None:
    with pytest.raises(FrameInvalid):
        DemandJobState(names=("a",), values=np.zeros((3, 2), dtype=np.float32))
