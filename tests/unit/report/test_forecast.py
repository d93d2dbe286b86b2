"""The report of the nodes needed tomorrow: its keys, its sentences, its tables."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rich.console import Console

from helios.predict.node_demand import AS_NOW, HELIOS, WEEK_AGO, HourScore
from helios.report.forecast import ForecastReport, NeededHour, forecast_sentences, forecast_table

TOMORROW = datetime(2026, 10, 6, tzinfo=UTC)


def a_report(**changes):
    most = [40.0] * 24
    most[3:7] = [22.0, 20.0, 21.0, 23.0]
    hours = [
        NeededHour(begin=TOMORROW + timedelta(hours=hour), expected=high - 5, low=high - 12, high=high)
        for hour, high in enumerate(most)
    ]
    errors = {HELIOS: 4.0, AS_NOW: 6.0, WEEK_AGO: 5.0}
    scores = [
        HourScore(method=method, ahead_h=ahead, error=error, within=0.9 if method == HELIOS else None)
        for ahead in (1, 24, 48)
        for method, error in errors.items()
    ]
    report = ForecastReport(
        kind="cluster",
        name="venus",
        made_at=TOMORROW - timedelta(hours=10),
        nodes=60.0,
        hours=tuple(hours),
        scored_from=TOMORROW - timedelta(days=20),
        scores=tuple(scores),
        notes=("as it was",),
    )
    return replace(report, **changes)


def test_the_quietest_hours_are_named_for_maintenance():
    assert forecast_sentences(a_report())[0] == (
        "Fewest nodes are needed from 03:00 to 07:00: at most 23 of 60 (95% of such hours), so that 37 can be worked "
        "on."
    )


def test_the_score_is_said_beside_the_better_of_those_without_a_model():
    assert forecast_sentences(a_report())[1] == (
        "24 h ahead such forecasts were off by 4.0 nodes on average, less than a week ago (5.0)."
    )


def test_a_forecast_that_is_no_better_says_so():
    scores = tuple(replace(score, error=9.0) for score in a_report().scores if score.method == HELIOS)
    others = tuple(score for score in a_report().scores if score.method != HELIOS)
    assert "no less than a week ago" in forecast_sentences(a_report(scores=scores + others))[1]


def test_the_keys_are_those_that_were_promised():
    told = a_report().to_json()
    keys = ["cluster", "made_at", "nodes", "hours", "range", "scored_from", "scores", "summary", "notes"]
    assert list(told) == keys
    assert told["hours"][0] == {"begin": "2026-10-06T00:00:00+00:00", "expected": 35.0, "low": 28.0, "high": 40.0}


def test_every_hour_and_every_score_has_a_row_at_80_columns():
    console = Console(width=80)
    with console.capture() as captured:
        console.print(forecast_table(a_report()))
    lines = captured.get().splitlines()
    assert sum(line[2:3] == ":" for line in lines) == 24
    assert any(line.split() == ["24", "4.0", "6.0", "5.0", "90", "%"] for line in lines)
