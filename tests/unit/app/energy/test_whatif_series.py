"""The what-if on a series: every policy, and nothing from the future."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from helios.app.energy.whatif_series import EnergySeriesRequest, energy_on_series
from helios.config import Energy
from helios.errors import NotEnoughHistory
from helios.ingest.node_series import read_series
from helios.model import NodeSeries
from helios.report.energy_whatif import EnergyWhatIf, energy_verdict
from tests.traces import TRACES, needs_traces

START = datetime(2026, 1, 5, tzinfo=UTC)
DAYS = 12
POLICIES = [
    "always_on",
    "idle_timer_30min",
    "timer_and_spare",
    "max_3h_plus_5",
    "ces_published",
    "ces",
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
        zone=ZoneInfo("UTC"),
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
    assert (always_on.mean_sleeping_nodes, always_on.cycles_per_node_day, always_on.saved_kwh) == (0, 0, 0)
    assert always_on.node_utilization_after == pytest.approx(always_on.node_utilization_before)
    hours = 40 * 0.8 + always_on.node_utilization_before * 40 * 8 * 0.25
    assert always_on.energy_kwh == pytest.approx(hours * 48 * 1.3)
    assert always_on.cost == pytest.approx(0.2 * always_on.energy_kwh)


def test_the_oracle_saves_most_and_is_never_short(answer: EnergyWhatIf) -> None:
    *others, oracle = answer.policies
    assert oracle.node_hours_short == 0
    for other in others:
        assert oracle.mean_sleeping_nodes > other.mean_sleeping_nodes
        assert oracle.saved_kwh > other.saved_kwh


def test_too_few_weeks_take_the_safe_rule_and_say_so(answer: EnergyWhatIf) -> None:
    (chosen,) = answer.spare
    assert (chosen.spare, chosen.memory_s) == (5, 3_600)
    assert "too few to choose" in energy_verdict(answer)[-1]


def test_the_rule_is_chosen_on_the_weeks_before_the_window() -> None:
    asked = a_request()
    weeks = 5 * asked.series.active.tolist()
    longer = with_series(
        asked,
        start_s=asked.series.start_s - 4 * DAYS * 86_400,
        active=np.array(weeks),
        total=np.full(len(weeks), 40.0),
        gaps=np.zeros(len(weeks), dtype=np.bool_),
    )
    (chosen,) = energy_on_series(replace(longer, delayed_submissions=0.2), energy=Energy()).spare
    assert "of submissions would have waited for a boot in the last 8 weeks" in chosen.reason
    (strict,) = energy_on_series(replace(longer, delayed_submissions=0.001), energy=Energy()).spare
    assert strict.spare > chosen.spare


def test_the_rule_is_never_shorter_of_nodes_than_the_timer(answer: EnergyWhatIf) -> None:
    ces, timer = answer.of("ces"), answer.of("idle_timer_30min")
    assert ces is not None
    assert timer is not None
    assert ces.node_hours_short < timer.node_hours_short


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
    # 25 nodes awake for the 36 steps before and 18 after it, then 15; ten nodes take two minutes to fall asleep. The
    # check that follows the last step with 20 is the first that has none of them in its 3 h.
    assert found is not None
    assert found.mean_sleeping_nodes == pytest.approx((54 * 15 + 90 * 25) / 144 - 10 * 2 / 1_440, abs=0.1)


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
def test_on_philly_the_rule_saves_more_than_the_papers() -> None:
    series = read_series(TRACES / "philly_nodes_oct-nov2017.csv.gz", timezone="America/Los_Angeles")
    request = EnergySeriesRequest(
        series=series,
        window=(datetime(2017, 10, 27, tzinfo=UTC), datetime(2017, 10, 31, tzinfo=UTC)),
        zone=ZoneInfo("America/Los_Angeles"),
    )
    found = energy_on_series(request, energy=Energy())
    ces, published, oracle = found.of("ces"), found.of("ces_published"), found.policies[-1]
    assert ces is not None
    assert published is not None
    assert ces.saved_kwh > published.saved_kwh > 0
    assert all(oracle.saved_kwh > other.saved_kwh for other in found.policies[:-1])
