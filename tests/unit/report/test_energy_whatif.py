"""The result of an energy what-if: its interval, its keys, its sentences."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from helios.metrics.statistics import poisson_interval
from helios.report.charts import energy_figure
from helios.report.energy import ChosenSpare, EnergyWhatIf, FrontRow, PolicyResult, energy_table, energy_verdict
from helios.report.html import render_energy_whatif

KEYS = (
    "policy, mean_sleeping_nodes, node_utilization_before, node_utilization_after, wakeups_per_day, sleeps_per_day, "
    "short_node_events_per_day, jobs_delayed, mean_delay_s, energy_kwh, wakeups_per_day_interval, nodes_per_wakeup, "
    "node_hours_short, share_of_jobs_delayed, longest_delay_s, cost, currency, co2_kg, saved_kwh, "
    "submissions_delayed, share_of_submissions_delayed, added_wait_s, cycles_per_node_day, gpu_utilization, "
    "share_of_oracle"
)


def a_result(policy: str, **figures: Any) -> PolicyResult:
    values: dict[str, Any] = {
        "mean_sleeping_nodes": 20.0,
        "node_utilization_before": 0.7,
        "node_utilization_after": 0.9,
        "wakeups_per_day": 0.5,
        "sleeps_per_day": 1.0,
        "short_node_events_per_day": 0.2,
        "energy_kwh": 900.0,
        "wakeups_per_day_interval": (0.2, 1.0),
        "nodes_per_wakeup": 3.0,
        "node_hours_short": 0.4,
        "cost": 180.0,
        "currency": "EUR",
        "co2_kg": 300.0,
        "saved_kwh": 100.0,
    }
    return PolicyResult(policy=policy, **(values | figures))


def an_answer(*policies: PolicyResult) -> EnergyWhatIf:
    return EnergyWhatIf(
        kind="series",
        name="philly [x]",
        window=(datetime(2017, 11, 1, tzinfo=UTC), datetime(2017, 11, 15, tzinfo=UTC)),
        total_nodes=420.0,
        policies=policies,
        notes=("as it was",),
    )


@pytest.mark.parametrize(
    ("events", "low", "high"), [(0, 0.0, 3.689), (1, 0.0253, 5.572), (7, 2.814, 14.423), (28, 18.606, 40.468)]
)
def test_the_interval_is_the_exact_one_of_the_tables(events: int, low: float, high: float) -> None:
    assert poisson_interval(events, 1.0) == pytest.approx((low, high), abs=1e-3)
    assert poisson_interval(events, 14.0) == pytest.approx((low / 14, high / 14), abs=1e-3)


def test_the_keys_are_those_that_were_promised_in_their_order() -> None:
    assert ", ".join(a_result("ces").to_json()) == KEYS


def test_what_is_no_number_is_null() -> None:
    told = a_result("ces", node_utilization_after=float("nan"), nodes_per_wakeup=None).to_json()
    assert told["node_utilization_after"] is None
    assert told["nodes_per_wakeup"] is None
    assert told["jobs_delayed"] is None


def test_the_answer_names_what_it_is_about() -> None:
    told = an_answer(a_result("ces")).to_json()
    assert list(told) == [
        "series",
        "from",
        "to",
        "days",
        "total_nodes",
        "policies",
        "chosen",
        "front",
        "spare",
        "notes",
    ]
    assert told["days"] == 14.0


def test_a_gain_on_one_axis_only_is_said_with_a_but() -> None:
    more = an_answer(a_result("ces", wakeups_per_day=0.6), a_result("ces_published", mean_sleeping_nodes=15.0))
    assert "5.0 nodes more asleep but 0.10 wake-ups a day more than the rule as published" in energy_verdict(more)[1]
    both = an_answer(a_result("ces", wakeups_per_day=0.4), a_result("ces_published", mean_sleeping_nodes=15.0))
    assert "5.0 nodes more asleep and 0.10 wake-ups a day fewer" in energy_verdict(both)[1]


def test_what_the_idle_timer_saves_is_said_also_where_it_is_more() -> None:
    timer = a_result("idle_timer_30min", saved_kwh=140.0, wakeups_per_day=35.4, node_hours_short=59.8)
    (said,) = [line for line in energy_verdict(an_answer(a_result("ces"), timer)) if "idle timer" in line]
    assert "would save 40 kWh more, for 35.4 wake-ups a day and 59.8 node hours short instead of 0.4." in said
    jobs = a_result("idle_timer_30min", saved_kwh=90.0, wakeups_per_day=9.0, jobs_delayed=1_200)
    (said,) = [
        line for line in energy_verdict(an_answer(a_result("ces", jobs_delayed=3), jobs)) if "idle timer" in line
    ]
    assert "would save 10 kWh less, for 9.0 wake-ups a day and 1,200 jobs delayed instead of 3." in said


def test_nothing_saved_has_no_sign() -> None:
    same = a_result("always_on", saved_kwh=-1e-9, energy_kwh=900.0)
    console = Console(width=140)
    with console.capture() as captured:
        console.print(energy_table(an_answer(same), width=140))
    assert "-0.0" not in captured.get()
    assert str(a_result("always_on", saved_kwh=-0.0).to_json()["saved_kwh"]) == "0.0"


def test_delayed_jobs_are_said() -> None:
    found = an_answer(a_result("ces", jobs_delayed=3, share_of_jobs_delayed=0.0004, longest_delay_s=300.0))
    assert "3 jobs (0.040 %) waited for a node to boot, 5 min at the most." in energy_verdict(found)[-1]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_every_policy(width: int) -> None:
    policies = [a_result(name) for name in ("always_on", "ces_published", "ces", "ces+node_fill_order", "oracle")]
    console = Console(width=width, record=True, file=None)
    with console.capture() as captured:
        console.print(energy_table(an_answer(*policies), width=width))
    assert all(policy.policy in captured.get() for policy in policies)
    assert "as it was" in captured.get()


def test_that_no_job_was_delayed_is_said_in_plain_words() -> None:
    found = an_answer(a_result("ces", jobs_delayed=0, share_of_jobs_delayed=0.0, longest_delay_s=0.0))
    assert energy_verdict(found)[-1] == "No job waited for a node to boot."


def test_the_page_speaks_of_jobs_only_where_there_are_some() -> None:
    assert "Jobs delayed" not in render_energy_whatif(an_answer(a_result("ces")))
    assert "Jobs delayed" in render_energy_whatif(an_answer(a_result("ces", jobs_delayed=3, share_of_jobs_delayed=0.1)))


@pytest.mark.parametrize("width", [80, 100, 150, 160])
@pytest.mark.parametrize("jobs", [False, True])
def test_no_figure_is_cut_however_narrow_the_terminal(width: int, jobs: bool) -> None:
    delayed = {"jobs_delayed": 14_211, "longest_delay_s": 7_300.0, "share_of_jobs_delayed": 0.01} if jobs else {}
    large: dict[str, Any] = {
        "energy_kwh": 915_509.0,
        "mean_sleeping_nodes": 104.5,
        "wakeups_per_day": 76.6,
        "cost": 183_102.0,
    }
    large |= {"wakeups_per_day_interval": (73.53, 79.83), "node_hours_short": 1_128.2}
    found = an_answer(*(a_result(name, **large, **delayed) for name in ("idle_timer_10min", "always_on")))
    console = Console(width=width)
    with console.capture() as captured:
        console.print(energy_table(found, width=width))
    assert "…" not in captured.get()


def test_the_figure_is_the_same_every_time() -> None:
    answer = an_answer(a_result("always_on", wakeups_per_day=0.0), a_result("ces"), a_result("oracle"))
    assert energy_figure(answer) == energy_figure(answer)
    assert "ces" in energy_figure(answer)


def test_money_and_carbon_dioxide_are_shown_only_where_they_are_known() -> None:
    answer = an_answer(a_result("always_on", cost=300.0, co2_kg=350.0), a_result("ces"))
    assert "That saves 120 EUR and 50 kg of CO2." in energy_verdict(answer)
    assert "180 EUR" in render_energy_whatif(answer) and "CO2 kg" in render_energy_whatif(answer)
    without = answer.without_unknown(price=False, co2=False)
    assert not [sentence for sentence in energy_verdict(without) if "EUR" in sentence or "CO2" in sentence]
    page = render_energy_whatif(without)
    assert "EUR" not in page and "CO2" not in page
    assert without.to_json()["policies"][0]["cost"] is None


def a_front(*spares: int) -> tuple[FrontRow, ...]:
    rows = []
    for spare in spares:
        result = a_result(
            "spare_nodes",
            saved_kwh=26_320.0 - 744 * spare,
            jobs_delayed=100,
            share_of_jobs_delayed=0.01,
            share_of_submissions_delayed=0.0875,
            added_wait_s=20.25,
            cycles_per_node_day=0.632,
            gpu_utilization=0.896,
            share_of_oracle=0.959,
        )
        price = {} if spare == 0 else {"last_costs_kwh_day": 24.0, "last_spares_day": 0.5}
        rows.append(FrontRow(spare=spare, result=result, **price))
    return tuple(rows)


def shown(answer: EnergyWhatIf, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(energy_table(answer, width=width))
    return captured.get()


def test_each_number_of_spare_nodes_has_a_row_with_its_price() -> None:
    answer = replace(an_answer(a_result("always_on")), front=a_front(0, 1))
    rows = [line.split() for line in shown(answer, 80).splitlines()]
    assert ["0", "20.0", "26,320", "8.75", "%", "1.00", "%", "20.2", "0.63", "90", "%", "96", "%", "-"] in rows
    assert ["1", "20.0", "25,576", "8.75", "%", "1.00", "%", "20.2", "0.63", "90", "%", "96", "%", "48"] in rows


def test_the_page_shows_spare_nodes_only_where_they_were_replayed() -> None:
    answer = an_answer(a_result("always_on"))
    assert "Spare nodes" not in render_energy_whatif(answer)
    assert "Spare nodes" in render_energy_whatif(replace(answer, front=a_front(0, 1)))


def test_the_spare_nodes_of_each_pool_are_said_with_the_reason() -> None:
    chosen = ChosenSpare(pool="gpu", spare=4, memory_s=1_800, reason="4 spare nodes: as a test wants it")
    answer = replace(an_answer(a_result("always_on")), spare=(chosen,))
    assert energy_verdict(answer) == [
        "spare_nodes keeps in gpu as many nodes awake as were in use in the last 30 min, and 4 spare nodes: as a test "
        "wants it."
    ]


def test_money_of_spare_nodes_is_shown_only_where_it_is_known() -> None:
    answer = replace(an_answer(a_result("always_on", cost=300.0)), front=a_front(0))
    assert "Saved EUR" in shown(answer, 120) and " 120\n" in shown(answer, 120)
    assert "Saved EUR" in render_energy_whatif(answer)
    assert "Saved EUR" not in shown(answer.without_unknown(price=False, co2=False), 120)
    assert answer.to_json()["front"][0]["result"]["cost"] == 180.0
    assert answer.without_unknown(price=False, co2=False).to_json()["front"][0]["result"]["cost"] is None
