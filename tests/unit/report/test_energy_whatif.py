"""The result of an energy what-if: its keys, its sentences, its tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from helios.report.charts import energy_figure
from helios.report.energy_whatif import (
    ChosenSpare,
    EnergyWhatIf,
    FrontRow,
    PolicyResult,
    WeeklySaving,
    energy_table,
    energy_verdict,
)
from helios.report.html import render_energy_whatif

KEYS = (
    "policy, mean_sleeping_nodes, node_utilization_before, node_utilization_after, node_hours_short, "
    "cycles_per_node_day, energy_kwh, saved_kwh, cost, currency, co2_kg, jobs_delayed, share_of_jobs_delayed, "
    "mean_delay_s, longest_delay_s, submissions_delayed, share_of_submissions_delayed, added_wait_s, "
    "gpu_utilization, share_of_oracle"
)
DELAYS: dict[str, Any] = {
    "jobs_delayed": 100,
    "share_of_jobs_delayed": 0.01,
    "longest_delay_s": 300.0,
    "submissions_delayed": 90,
    "share_of_submissions_delayed": 0.0875,
    "added_wait_s": 20.25,
    "gpu_utilization": 0.896,
    "share_of_oracle": 0.959,
}
NO_DELAYS = DELAYS | {"jobs_delayed": 0, "share_of_jobs_delayed": 0.0, "share_of_submissions_delayed": 0.0}


def a_result(policy: str, **figures: Any) -> PolicyResult:
    values: dict[str, Any] = {
        "mean_sleeping_nodes": 20.0,
        "node_utilization_before": 0.7,
        "node_utilization_after": 0.9,
        "node_hours_short": 0.4,
        "cycles_per_node_day": 0.632,
        "energy_kwh": 9_000.0,
        "saved_kwh": 1_400.0,
        "cost": 180.0,
        "currency": "EUR",
        "co2_kg": 300.0,
    }
    return PolicyResult(policy=policy, **(values | figures))


def an_answer(*policies: PolicyResult) -> EnergyWhatIf:
    """Build an answer of two weeks, with always on first."""
    always_on = a_result("always_on", saved_kwh=0.0, energy_kwh=10_400.0, cost=300.0, co2_kg=350.0)
    if any(policy.jobs_delayed is not None for policy in policies):
        always_on = replace(always_on, **NO_DELAYS)
    return EnergyWhatIf(
        kind="series",
        name="philly [x]",
        window=(datetime(2017, 10, 1, tzinfo=UTC), datetime(2017, 10, 15, tzinfo=UTC)),
        total_nodes=420.0,
        policies=(always_on, *policies),
        notes=("as it was",),
    )


def a_front(*spares: int) -> tuple[FrontRow, ...]:
    rows = []
    for spare in spares:
        result = a_result("ces", saved_kwh=26_320.0 - 744 * spare, **DELAYS)
        price = {} if spare == 0 else {"last_costs_kwh_day": 24.0, "last_spares_day": 0.5}
        rows.append(FrontRow(spare=spare, result=result, **price))
    return tuple(rows)


def shown(answer: EnergyWhatIf, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(energy_table(answer, width=width))
    return captured.get()


def test_the_keys_are_those_that_were_promised_in_their_order() -> None:
    assert ", ".join(a_result("ces").to_json()) == KEYS


def test_what_is_no_number_is_null() -> None:
    told = a_result("ces", node_utilization_after=float("nan")).to_json()
    assert told["node_utilization_after"] is None
    assert told["jobs_delayed"] is None


def test_the_answer_names_what_it_is_about() -> None:
    told = an_answer(a_result("ces")).to_json()
    keys = ["series", "from", "to", "days", "total_nodes", "summary", "policies", "weekly", "front", "spare", "notes"]
    assert list(told) == keys
    assert told["days"] == 14.0
    assert told["summary"] == energy_verdict(an_answer(a_result("ces")))


def test_the_headline_is_the_row_of_the_default_policy() -> None:
    assert energy_verdict(an_answer(a_result("ces")))[0] == (
        "CES saves 100 kWh a day, 13.5 % of what all nodes on draw: 20.0 of 420 nodes are asleep, and a node is woken "
        "0.63 times a day."
    )


def test_more_energy_than_always_on_is_said_as_a_cost() -> None:
    assert energy_verdict(an_answer(a_result("ces", saved_kwh=-1_400.0)))[0].startswith("CES costs 100 kWh a day, ")


@pytest.mark.parametrize(("saved", "said"), [(2_800.0, "100 kWh a day more"), (700.0, "50 kWh a day less")])
def test_what_the_idle_timer_saves_is_said_also_where_it_is_more(saved: float, said: str) -> None:
    timer = a_result("idle_timer_30min", saved_kwh=saved, node_hours_short=59.8, cycles_per_node_day=2.0)
    (line,) = [line for line in energy_verdict(an_answer(a_result("ces"), timer)) if "idle timer" in line]
    assert line == (
        f"Slurm's idle timer of 30 min saves {said}, with 59.8 node hours short and 2.00 wakes of a node a day."
    )


def test_the_timer_beside_jobs_is_said_with_its_delays() -> None:
    answer = an_answer(a_result("ces", **DELAYS), a_result("idle_timer_30min", **DELAYS))
    assert "with 8.75 % of submissions delayed" in " ".join(energy_verdict(answer))


def test_intervals_are_of_the_difference_as_it_is_said() -> None:
    timer = a_result("idle_timer_30min", saved_kwh=2_800.0)
    weekly = (
        WeeklySaving(against="always_on", weeks=4, kwh_day=101.0, low_kwh_day=80.0, high_kwh_day=120.0),
        WeeklySaving(against="idle_timer_30min", weeks=4, kwh_day=-99.0, low_kwh_day=-150.0, high_kwh_day=-51.0),
    )
    said = energy_verdict(replace(an_answer(a_result("ces"), timer), weekly=weekly))
    assert "CES saves 100 kWh a day (95 % of 4 weeks: 80 to 120), 13.5 %" in said[0]
    assert "saves 100 kWh a day more (95 % of 4 weeks: 51 to 150), with" in said[-1]


def test_nothing_saved_has_no_sign() -> None:
    assert " -0" not in shown(an_answer(a_result("max_3h_plus_5", saved_kwh=-1e-9, cost=300.0)), 140)
    assert str(a_result("always_on", saved_kwh=-0.0).to_json()["saved_kwh"]) == "0.0"


def test_delayed_jobs_are_said() -> None:
    assert energy_verdict(an_answer(a_result("ces", **DELAYS)))[-1] == (
        "8.75 % of submissions wait for a node to boot (100 jobs, 1.00 %), 5 min at the most; that adds 20.2 s to the "
        "mean wait."
    )


def test_that_no_job_was_delayed_is_said_in_plain_words() -> None:
    assert energy_verdict(an_answer(a_result("ces", **NO_DELAYS)))[-1] == "No job waits for a node to boot."


def test_a_series_is_said_with_node_hours_short() -> None:
    assert energy_verdict(an_answer(a_result("ces")))[-1] == "0.4 node hours were short in the window."


def test_without_the_default_policy_there_is_no_headline() -> None:
    assert energy_verdict(an_answer(a_result("max_3h_plus_5"))) == []


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_every_policy(width: int) -> None:
    policies = [a_result(name) for name in ("ces_published", "ces", "ces+weights", "oracle")]
    told = shown(an_answer(*policies), width)
    assert all(policy.policy in told for policy in policies)
    assert "as it was" in told and "philly [x]" in told


@pytest.mark.parametrize("width", [80, 100, 150])
@pytest.mark.parametrize("jobs", [False, True])
def test_no_figure_is_cut_however_narrow_the_terminal(width: int, jobs: bool) -> None:
    large: dict[str, Any] = {"mean_sleeping_nodes": 1_104.5, "saved_kwh": 915_509.0, "node_hours_short": 1_128.2}
    delayed = DELAYS | {"added_wait_s": 7_300.0} if jobs else {}
    names = ("idle_timer_30min", "timer_and_floor")
    answer = an_answer(*(a_result(name, **large, **delayed) for name in names))
    rows = {line.split()[0]: line for line in shown(replace(answer, front=a_front(16)), width).splitlines() if line}
    assert "…" not in "".join(rows.values())
    assert all("65,394" in rows[name] and "1104.5" in rows[name] for name in names)
    assert "26,320" not in rows["16"] and "1,030" in rows["16"]


def test_the_figure_is_the_same_every_time() -> None:
    answer = replace(an_answer(a_result("ces", **DELAYS), a_result("oracle", **NO_DELAYS)), front=a_front(0, 1))
    assert energy_figure(answer) == energy_figure(answer)
    assert "ces" in energy_figure(answer)


def test_the_page_speaks_of_jobs_only_where_there_are_some() -> None:
    assert "Delayed" not in render_energy_whatif(an_answer(a_result("ces")))
    assert "Delayed" in render_energy_whatif(an_answer(a_result("ces", **DELAYS)))


def test_money_and_carbon_dioxide_are_shown_only_where_they_are_known() -> None:
    answer = an_answer(a_result("ces"))
    assert "That saves 120 EUR and 50 kg of CO2 in the window." in energy_verdict(answer)
    assert "EUR/day" in render_energy_whatif(answer) and "kg CO2/day" in render_energy_whatif(answer)
    without = answer.without_unknown(price=False, co2=False)
    assert not [sentence for sentence in energy_verdict(without) if "EUR" in sentence or "CO2" in sentence]
    page = render_energy_whatif(without)
    assert "EUR" not in page and "CO2" not in page
    assert without.to_json()["policies"][0]["cost"] is None


def test_each_number_of_spare_nodes_has_a_row_with_its_price() -> None:
    answer = replace(an_answer(a_result("ces", **DELAYS)), front=a_front(0, 1))
    rows = [line.split() for line in shown(answer, 80).splitlines()]
    figures = ["8.75", "%", "1.00", "%", "0.63", "90", "%", "96", "%"]
    assert ["0", "20.0", "1,880", *figures, "-"] in rows
    assert ["1", "20.0", "1,827", *figures, "48"] in rows


def test_a_spare_node_that_spares_no_delay_has_no_price() -> None:
    row = FrontRow(spare=3, result=a_result("ces"), last_costs_kwh_day=24.0, last_spares_day=0.0)
    assert row.price_kwh is None


def test_the_page_shows_spare_nodes_only_where_they_were_replayed() -> None:
    answer = an_answer(a_result("ces", **DELAYS))
    assert "kWh a delay" not in render_energy_whatif(answer)
    assert "kWh a delay" in render_energy_whatif(replace(answer, front=a_front(0, 1)))


def test_the_spare_nodes_of_each_pool_are_said_with_the_reason() -> None:
    gpu = ChosenSpare(pool="gpu", spare=4, memory_s=1_800, reason="4 spare nodes: as a test wants it")
    cpu = replace(gpu, pool="cpu", memory_s=3_600)
    assert energy_verdict(replace(an_answer(a_result("ces")), spare=(gpu, cpu)))[-2:] == [
        "In gpu as many nodes stay awake as were in use in the last 30 min, and 4 spare nodes: as a test wants it.",
        "In cpu as many nodes stay awake as were in use in the last 60 min, and 4 spare nodes: as a test wants it.",
    ]


def test_the_only_pool_is_not_named() -> None:
    chosen = ChosenSpare(pool="all", spare=4, memory_s=1_800, reason="4 spare nodes: as a test wants it")
    assert energy_verdict(replace(an_answer(a_result("ces")), spare=(chosen,)))[-1].startswith("As many nodes stay ")


def test_money_of_spare_nodes_is_shown_only_where_it_is_known() -> None:
    answer = replace(an_answer(a_result("ces", **DELAYS)), front=a_front(0))
    (row,) = [line for line in shown(answer, 120).splitlines() if line.startswith("0 ")]
    assert row.split()[-3:] == ["9", "4", "-"]
    bare = answer.without_unknown(price=False, co2=False)
    assert "EUR/day" not in shown(bare, 120)
    assert answer.to_json()["front"][0]["result"]["cost"] == 180.0
    assert bare.to_json()["front"][0]["result"]["cost"] is None
