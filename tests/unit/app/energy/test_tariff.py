"""Hourly prices and carbon: what a file says, where it says nothing, and what is wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.app.energy.tariff import Tariff, tariff_from
from helios.config import Energy
from helios.errors import FileUnreadable, FormatUnknown

NOON_S = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp())
HEADER = "time,price_per_kwh,co2_g_per_kwh\n"


def a_tariff(folder: Path, *lines: str, header: str = HEADER) -> Tariff:
    path = folder / "hourly.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return tariff_from(Energy(hourly=str(path), price_per_kwh=0.2, co2_g_per_kwh=350))


def cost(tariff: Tariff, *edges_s: int) -> list[list[float]]:
    """Money, and kg, of a kWh in each stretch."""
    return [each.tolist() for each in tariff.cost_of(np.ones(len(edges_s) - 1), edges_s=np.array(edges_s))]


def near(*pairs: tuple[float, float]) -> list[Any]:
    return [pytest.approx(values) for values in zip(*pairs, strict=True)]


def test_without_a_file_the_constants_hold_and_nothing_need_be_said() -> None:
    tariff = tariff_from(Energy(price_per_kwh=0.25, co2_g_per_kwh=400))
    assert cost(tariff, 0, 3600, 7200) == near((0.25, 0.4), (0.25, 0.4))
    assert tariff.notes(0, 7200) == []


def test_each_value_holds_until_the_next_and_the_last_for_ever(tmp_path: Path) -> None:
    tariff = a_tariff(tmp_path, "2026-11-20T12:00Z,0.1,100", "2026-11-20T13:00Z,-0.3,300")
    hour = [NOON_S + 3600 * number for number in range(4)]
    assert cost(tariff, *hour) == near((0.1, 0.1), (-0.3, 0.3), (-0.3, 0.3))
    assert tariff.notes(hour[0], hour[2]) == []
    assert "ends at 2026-11-20 13:00 UTC: the last price and carbon hold" in tariff.notes(hour[0], hour[3])[0]


def test_before_the_first_value_the_constants_hold_aloud(tmp_path: Path) -> None:
    tariff = a_tariff(tmp_path, "2026-11-20T12:00Z,0.1,100")
    assert cost(tariff, NOON_S - 3600, NOON_S, NOON_S + 3600) == near((0.2, 0.35), (0.1, 0.1))
    assert "only from 2026-11-20 12:00 UTC on" in tariff.notes(NOON_S - 1, NOON_S)[0]


def test_a_interval_across_two_prices_costs_their_mean(tmp_path: Path) -> None:
    tariff = a_tariff(tmp_path, "2026-11-20T12:00Z,0.1,100", "2026-11-20T12:45Z,0.5,500")
    assert cost(tariff, NOON_S, NOON_S + 3600) == near((0.2, 0.2))


def test_the_last_price_of_an_hour_counts_in_any_order(tmp_path: Path) -> None:
    tariff = a_tariff(
        tmp_path, "2026-11-20T14:00+01:00,0.3,300", "2026-11-20T12:00,0.9,900", "2026-11-20 12:00,0.1,100"
    )
    assert cost(tariff, NOON_S, NOON_S + 3600, NOON_S + 7200) == near((0.1, 0.1), (0.3, 0.3))


def test_one_of_the_two_columns_may_be_left_out(tmp_path: Path) -> None:
    tariff = a_tariff(tmp_path, "2026-11-20T12:00Z,120", header="time, co2_g_per_kwh\n")
    assert cost(tariff, NOON_S, NOON_S + 3600) == near((0.2, 0.12))


@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        (HEADER, "yesterday,0.1,100", "line 3: time is 'yesterday', no time"),
        (HEADER, "2026-11-20T13:00Z,cheap,100", "line 3: price_per_kwh is 'cheap', no number"),
        (HEADER, "2026-11-20T13:00Z,0.1,", "line 3: co2_g_per_kwh is nan, no number"),
        ("when,price\n", "2026-11-20T13:00Z,0.1", "has the columns when, price"),
        ("", "", "is not a CSV file"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_right_form(tmp_path: Path, header: str, line: str, said: str) -> None:
    lines = ["2026-11-20T12:00Z,0.1,100", line] if header == HEADER else [line]
    with pytest.raises(FormatUnknown, match=said) as refused:
        a_tariff(tmp_path, *lines, header=header)
    assert "time,price_per_kwh,co2_g_per_kwh" in refused.value.hint


def test_a_missing_file_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="cannot be read") as refused:
        tariff_from(Energy(hourly=str(tmp_path / "none.csv")))
    assert "energy.hourly" in refused.value.hint


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-1, 1)), min_size=1, max_size=8, unique_by=lambda row: row[0]))
def test_the_mean_of_a_step_function_is_that_of_its_seconds(steps: list[tuple[int, float]]) -> None:
    since, values = zip(*sorted(steps), strict=True)
    tariff = Tariff(
        since_s=np.array(since),
        price_per_kwh=np.array(values),
        co2_g_per_kwh=np.array(values),
        before=(0.5, 0.5),
        source="f",
    )
    edges = [0, 7, 23, 60]
    by_second = [next((value for at, value in sorted(steps, reverse=True) if at <= s), 0.5) for s in range(60)]
    expected = [np.mean(by_second[first:last]) for first, last in pairwise(edges)]
    assert cost(tariff, *edges)[0] == pytest.approx(expected, abs=1e-9)
