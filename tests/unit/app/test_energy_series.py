"""The what-if on a series: every policy, nothing from the future, and on a real one CES beside the published rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from helios.predict.demand.types import AHEAD_S, LEVELS, Calendar, Forecasts

from helios.app.energy.whatif import EnergySeriesRequest, energy_on_series
from helios.config import Energy
from helios.errors import NotEnoughHistory
from helios.ingest.node_series import read_series
from helios.model import NodeSeries
from helios.report.energy import EnergyWhatIf, energy_verdict
from helios.services.energy_saving import CesOptions
from tests.traces import TRACES, needs_traces

START = datetime(2026, 1, 5, tzinfo=UTC)
DAYS = 12
POLICIES = [
    "always_on",
    "idle_timer_10min",
    "idle_timer_30min",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "foresight",
    "oracle",
]


def a_request(**overrides: object) -> EnergySeriesRequest:
    """Return a question about two days of a made-up series of minutes: a working day, noise, a quiet weekend."""
    minute = np.arange(DAYS * 1_440)
    day = 8 * np.sin(2 * np.pi * (minute % 1_440) / 1_440) * ((minute // 1_440) % 7 < 5)
    noise = np.repeat(np.random.default_rng(5).integers(0, 4, size=DAYS * 48), 30)
    series = NodeSeries(
        name="made up",
        start_s=int(START.timestamp()),
        step_s=60,
        active=np.floor(16 + day) + noise,
        total=np.full(len(minute), 40.0),
        gaps=np.zeros(len(minute), dtype=np.bool_),
    )
    asked = EnergySeriesRequest(
        series=series,
        window=(START + timedelta(days=DAYS - 3), START + timedelta(days=DAYS - 1)),
        calendar=Calendar(zone=ZoneInfo("UTC")),
    )
    return replace(asked, **overrides)  # type: ignore[arg-type]


def with_series(asked: EnergySeriesRequest, **columns: object) -> EnergySeriesRequest:
    return replace(asked, series=replace(asked.series, **columns))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def answer() -> EnergyWhatIf:
    return energy_on_series(a_request(), energy=Energy())


def test_every_policy_is_there(answer: EnergyWhatIf) -> None:
    assert [result.policy for result in answer.policies] == POLICIES
    assert answer.days == 2.0
    assert answer.total_nodes == 40.0


def test_always_on_is_the_measure(answer: EnergyWhatIf) -> None:
    always_on = answer.policies[0]
    assert (always_on.mean_sleeping_nodes, always_on.wakeups_per_day, always_on.saved_kwh) == (0, 0, 0)
    assert always_on.node_utilization_after == pytest.approx(always_on.node_utilization_before)
    hours = 40 * 0.8 + always_on.node_utilization_before * 40 * 8 * 0.25
    assert always_on.energy_kwh == pytest.approx(hours * 48 * 1.3)
    assert always_on.cost == pytest.approx(0.2 * always_on.energy_kwh)


def test_foresight_is_never_short_and_wakes_no_oftener_than_ces(answer: EnergyWhatIf) -> None:
    foresight, ces = answer.of("foresight"), answer.of("ces")
    assert foresight is not None
    assert ces is not None
    assert foresight.node_hours_short == 0
    assert foresight.wakeups_per_day <= ces.wakeups_per_day
    assert foresight.mean_sleeping_nodes >= ces.mean_sleeping_nodes


def test_the_oracle_saves_most_and_is_never_short(answer: EnergyWhatIf) -> None:
    *others, oracle = answer.policies
    assert oracle.node_hours_short == 0
    for other in others:
        assert oracle.mean_sleeping_nodes > other.mean_sleeping_nodes
        assert oracle.saved_kwh > other.saved_kwh


def test_with_too_few_weeks_ces_follows_the_published_rule(answer: EnergyWhatIf) -> None:
    ces, published = answer.of("ces"), answer.of("ces_published")
    assert ces is not None
    assert published is not None
    assert replace(ces, policy="") == replace(published, policy="")
    assert [(rule.rule, rule.days) for rule in answer.chosen] == [("published rule", 2)]
    assert "CES used the published rule for made up on 2 days: forecasts of 1 whole week are known" in " ".join(
        energy_verdict(answer)
    )
    assert answer.to_json()["chosen"][0]["rule"] == "published rule"


def test_forecasts_made_before_are_used_as_they_are(answer: EnergyWhatIf) -> None:
    asked = a_request()
    steps = DAYS * 144
    nothing = Forecasts(
        ahead_s=AHEAD_S,
        levels=LEVELS,
        point=np.full((steps, 5), np.nan),
        mean=np.full((steps, 5), np.nan),
        most=np.full((steps, 5, 3), np.nan),
        source="nobody",
    )
    found = energy_on_series(replace(asked, forecasts=nothing), energy=Energy())
    assert found.of("max_3h_plus_5") == answer.of("max_3h_plus_5")
    assert found.of("ces") != answer.of("ces")


def test_what_comes_after_the_window_changes_nothing(answer: EnergyWhatIf) -> None:
    asked = a_request()
    active = asked.series.active.copy()
    active[-1_440:] = 40.0
    assert energy_on_series(with_series(asked, active=active), energy=Energy()).to_json() == answer.to_json()


def test_a_level_is_in_force_from_the_step_after_its_decision() -> None:
    asked = a_request(window=(START + timedelta(days=DAYS - 2), START + timedelta(days=DAYS - 1)))
    falls_at = (DAYS - 2) * 1_440 + 360
    active = np.where(np.arange(DAYS * 1_440) < falls_at, 20.0, 10.0)
    found = energy_on_series(with_series(asked, active=active), energy=Energy()).of("max_3h_plus_5")
    # 25 nodes awake for the 36 steps before and 18 after it, then 15; ten nodes take two minutes to fall asleep.
    assert found is not None
    assert found.mean_sleeping_nodes == pytest.approx((54 * 15 + 90 * 25) / 144 - 10 * 2 / 1_440)


def test_a_start_between_two_steps_is_moved_to_the_next(answer: EnergyWhatIf) -> None:
    asked = a_request()
    series = asked.series
    late = with_series(
        asked, start_s=series.start_s + 60, active=series.active[1:], total=series.total[1:], gaps=series.gaps[1:]
    )
    begun = energy_on_series(late, energy=Energy())
    assert begun.window == answer.window
    assert begun.policies[0].energy_kwh == pytest.approx(answer.policies[0].energy_kwh)


@pytest.mark.parametrize("days", [(0.5, 2.0), (9.0, 13.0), (10.0, 9.0)])
def test_a_window_outside_the_series_is_refused_with_what_there_is(days: tuple[float, float]) -> None:
    window = (START + timedelta(days=days[0]), START + timedelta(days=days[1]))
    with pytest.raises(NotEnoughHistory, match="spans 2026-01-05 00:00 UTC"):
        energy_on_series(a_request(window=window), energy=Energy())


def test_steps_that_do_not_divide_ten_minutes_are_refused() -> None:
    with pytest.raises(NotEnoughHistory, match="steps of 900 s"):
        energy_on_series(with_series(a_request(), step_s=900), energy=Energy())


@needs_traces
def test_on_philly_ces_sleeps_like_the_published_rule() -> None:
    series = read_series(TRACES / "philly_nodes_oct-nov2017.csv.gz", timezone="America/Los_Angeles")
    request = EnergySeriesRequest(
        series=series,
        window=(datetime(2017, 11, 24, tzinfo=UTC), datetime(2017, 11, 28, tzinfo=UTC)),
        calendar=Calendar(zone=ZoneInfo("America/Los_Angeles")),
        options=CesOptions(weeks=3),
    )
    found = energy_on_series(request, energy=Energy(), history_days=14)
    ces, published, oracle = found.of("ces"), found.of("ces_published"), found.policies[-1]
    assert ces is not None
    assert published is not None
    assert ces.mean_sleeping_nodes >= published.mean_sleeping_nodes > 0
    assert ces.wakeups_per_day <= published.wakeups_per_day
    assert ces.node_hours_short <= published.node_hours_short
    assert all(oracle.saved_kwh > other.saved_kwh for other in found.policies[:-1])
