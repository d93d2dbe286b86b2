"""What the energy report says: to a manager in sentences, in a table, in figures, on the nightly page and by mail."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from helios.report.admin.nightly import NightEnergy, as_text, nightly_digest, render_nightly
from helios.report.admin.sacct_format import as_lines, chosen_fields
from helios.report.charts import nodes_over_time, saved_by_day
from helios.report.energy import ALWAYS_ON, EnergyLedger, Saving, energy_answer, energy_sentences, fields_by
from helios.report.html import render_energy
from tests.unit.report.admin.frames import DAY
from tests.unit.report.admin.test_nightly import a_night

DAYS = 7
TIMER = "idle_timer_30min"


def a_saving(against: str, kwh: float, **overrides: Any) -> Saving:
    low_kwh, high_kwh = sorted((0.85 * kwh, 1.15 * kwh))
    saving: dict[str, Any] = {
        "low_kwh": low_kwh,
        "high_kwh": high_kwh,
        "cost": 0.2 * kwh,
        "co2_kg": 0.35 * kwh,
        "wakes": 40,
    }
    return Saving(against=against, kwh=kwh, **saving | overrides)


def a_ledger(*, by: str = "day", timer_kwh: float = 120, **overrides: Any) -> EnergyLedger:
    """A week of ten nodes, two of which slept all the time and one idled."""
    numbers = {field.column: 0.0 for field in fields_by(by) if field.column != "line"}
    row = numbers | {
        "busy_h": 168.0,
        "idle_h": 24.0,
        "asleep_h": 48.0,
        "kwh": 200.0,
        "idle_kwh": 25.0,
        "idle_cost": 5.0,
    }
    lines = [f"{DAY + pd.Timedelta(days=day):%Y-%m-%d}" for day in range(DAYS)]
    rows = pd.DataFrame([{"line": line, **row} for line in lines])
    times = pd.Series(pd.date_range(DAY, periods=24 * DAYS, freq="h"))
    levels = {"busy": 7.0, "idle": 1.0, "asleep": 2.0, "moving": 0.0, "out": 0.0, "unknown": 0.0, "wanted": np.nan}
    ledger: dict[str, Any] = {
        "cluster": "venus",
        "timezone": "UTC",
        "begin": DAY,
        "end": DAY + pd.Timedelta(days=DAYS),
        "by": by,
        "nodes": 10,
        "days": DAYS,
        "currency": "EUR",
        "rows": rows,
        "total": {name: float(rows[name].sum()) for name in numbers} | {"line": "all"},
        "savings": (a_saving(ALWAYS_ON, 412), a_saving(TIMER, timer_kwh), a_saving("idle_timer_10min", -30)),
        "wakes": 12,
        "helios_node_hours": 300.0,
        "helios_kwh": 380.0,
        "helios_cost": 76.0,
        "unseen_kwh": 0.0,
        "unseen_cost": 0.0,
        "levels": pd.DataFrame({"time": times, "ended_at": times + pd.Timedelta(hours=1)} | levels),
        "daily": pd.DataFrame({"time": pd.date_range(DAY, periods=DAYS), ALWAYS_ON: 59.0, TIMER: timer_kwh / DAYS}),
        "band": 0.2,
        "watts": {"node_idle_w": 800.0},
        "notes": ("Wattages are those of [energy].",),
    }
    return EnergyLedger(**ledger | overrides)


def asleep(ledger: EnergyLedger, hours: float, **totals: float) -> EnergyLedger:
    return replace(ledger, total={**ledger.total, "asleep_h": hours, **totals})


def test_a_manager_reads_what_was_saved_how_surely_and_against_what() -> None:
    first, *rest = energy_sentences(a_ledger())
    assert first == (
        "Nodes asleep saved 412 kWh (350 to 474) and 82 EUR in 7 days against leaving them on; 120 kWh of it more "
        "than Slurm's idle timer of 30 min would have."
    )
    assert rest[0] == "Nodes were woken 12 times; with that timer it would have been 40."
    assert rest[1] == "300 of 336 node hours asleep were Helios' doing: 380 kWh, 76 EUR, before what waking them took."
    assert rest[2] == "Idle nodes, 1.0 on average, drew 175 kWh and cost 35 EUR, 12 % of all."


def test_less_than_a_day_is_told_in_hours() -> None:
    assert " in 7 h against " in energy_sentences(a_ledger(end=DAY + pd.Timedelta(hours=7)))[0]


def test_a_timer_that_would_have_saved_more_is_said_to_have() -> None:
    assert "Slurm's idle timer of 30 min would have saved 55 kWh more." in energy_sentences(a_ledger(timer_kwh=-55))[0]


def test_cycles_that_cost_more_than_they_saved_are_called_a_cost() -> None:
    savings = (a_saving(ALWAYS_ON, -20), a_saving(TIMER, 0), a_saving("idle_timer_10min", 0))
    assert energy_sentences(a_ledger(savings=savings))[0].startswith("Nodes asleep cost 20 kWh (17 to 23) and 4.00 EUR")


def test_sleep_that_helios_did_not_ask_for_is_not_claimed() -> None:
    assert "Helios put none of these nodes to sleep" in " ".join(energy_sentences(a_ledger(helios_node_hours=0.0)))


def test_where_nothing_slept_idle_nodes_cost_and_something_can_be_tried() -> None:
    said = " ".join(energy_sentences(asleep(a_ledger(timer_kwh=-300), 0)))
    assert said.startswith("No node is known to have slept in 7 days. Idle nodes, 1.0 on average, drew 175 kWh")
    assert "Slurm's idle timer of 30 min would have saved 300 kWh (255 to 345), 60 EUR." in said
    assert said.endswith("helios whatif energy --cluster venus")


def test_nodes_of_which_nothing_is_known_are_no_idle_nodes() -> None:
    nothing = asleep(a_ledger(unseen_kwh=50.0, unseen_cost=10.0), 0, idle_h=0.0, idle_kwh=0.0, unseen_h=48.0)
    said = " ".join(energy_sentences(nothing))
    assert "Idle nodes" not in said
    assert "Of 48 node hours without a job" in said and "50 kWh (10 EUR)" in said


@pytest.mark.parametrize("by", ["day", "partition", "node"])
def test_the_table_fits_100_columns(by: str) -> None:
    rows = a_ledger(by=by).rows.assign(kwh=123_456.0, busy_h=654_321.0, saved_kwh=-12_345.0)
    total = {name: float(rows[name].sum()) for name in rows if name != "line"} | {"line": "all"}
    answer = energy_answer(replace(a_ledger(by=by, rows=rows), total=total))
    assert max(len(line) for line in as_lines(answer, chosen_fields(answer, None))) <= 100


def test_a_small_clusters_hours_and_kwh_have_a_decimal() -> None:
    small = asleep(a_ledger(), 0.4, busy_h=99.94, kwh=12_345.6)
    last = list(as_lines(energy_answer(small), chosen_fields(energy_answer(small), "busyh,asleeph,kwh")))[-1]
    assert last.split() == ["99.9", "0.4", "12346"]


def words(svg: str | None) -> str:
    assert svg is not None
    ElementTree.fromstring(svg.replace("xlink:", ""))
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


@pytest.mark.parametrize("narrow", [False, True])
def test_figures_name_what_they_show_and_leave_out_what_there_is_not(narrow: bool) -> None:
    ledger = a_ledger()
    shown = words(nodes_over_time(ledger, narrow=narrow))
    assert "asleep" in shown and "idle" in shown
    assert "out of service" not in shown and "wanted awake" not in shown
    assert "30 min would have saved" in words(saved_by_day(ledger, narrow=narrow))


def test_what_helios_wanted_is_drawn_where_it_is_known() -> None:
    assert "wanted awake by Helios" in words(nodes_over_time(a_ledger(levels=a_ledger().levels.assign(wanted=8.0))))


def test_savings_of_a_single_day_or_of_none_are_not_drawn() -> None:
    assert saved_by_day(a_ledger(daily=a_ledger().daily.head(1))) is None
    assert saved_by_day(asleep(a_ledger(), 0)) is None


def test_the_page_has_sentences_figures_table_and_notes_and_fetches_nothing() -> None:
    page = render_energy(a_ledger())
    assert "Nodes asleep saved 412 kWh" in page and "Wattages are those of" in page
    assert page.count("<svg") == 4
    assert "http" not in re.sub(r'"http://www.w3.org/[^"]*"', "", page)


def test_the_nightly_page_and_mail_have_a_section() -> None:
    energy = NightEnergy(day=a_ledger(by="partition"), days=a_ledger())
    digest = nightly_digest(replace(a_night(), energy=energy))
    page, mail = render_nightly(digest), as_text(digest)
    assert page.count("<h2>What nodes asleep saved</h2>") == 1
    assert "Helios&#39; doing" in page and page.count("Nodes asleep saved 412 kWh") == 2
    assert mail.count("Nodes asleep saved 412 kWh") == 2 and "Helios' doing" in mail


def test_a_night_without_nodes_says_nothing_of_them() -> None:
    digest = nightly_digest(a_night())
    assert "nodes asleep" not in render_nightly(digest).lower() + as_text(digest).lower()
