import math
from datetime import timedelta
from functools import partial

import pytest

from helios.actions import Result
from helios.app.controller_state import CycleTally, NodeCycleSummary
from helios.daemon.health import Metrics
from helios.model import Mode
from tests.unit.daemon.builders import NOON, HandSet, a_cycle


class Shown:
    def __init__(self) -> None:
        self.hand = HandSet()
        self.metrics = Metrics(times=self.hand.times)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_decisions_are_counted_by_service_mode_and_result() -> None:
    shown = Shown()
    tally = CycleTally(service="qssf", mode=Mode.SHADOW, result=Result.WOULD, jobs=4)
    for _ in range(2):
        shown.metrics.record_cycle(a_cycle(tallies=(tally,), predictions=7))
    assert shown("helios_decisions_total", service="qssf", mode="shadow", result="would") == 8
    assert shown("helios_predictions_total") == 14


@pytest.mark.parametrize(
    ("cycle", "outcome"),
    [(a_cycle(), "quiet"), (a_cycle(acted=1), "acted"), (a_cycle(suspended=("paused",)), "suspended")],
)
def test_each_cycle_counts_once_by_its_outcome(cycle: object, outcome: str) -> None:
    shown = Shown()
    shown.metrics.record_cycle(cycle)  # type: ignore[arg-type]  # because parametrize loses the type
    assert shown("helios_cycles_total", outcome=outcome) == 1
    assert shown("helios_cycle_seconds_count") == 1


def test_ages_grow_between_cycles() -> None:
    shown = Shown()
    shown.metrics.record_cycle(a_cycle(history_read_at=NOON - timedelta(seconds=30), model_trained_at=NOON))
    shown.hand.move(60)
    assert shown("helios_history_age_seconds") == 90
    assert shown("helios_model_age_seconds") == 60


def test_an_age_that_nobody_knows_is_not_a_number() -> None:
    shown = Shown()
    assert math.isnan(shown("helios_history_age_seconds") or 0)
    shown.metrics.record_cycle(a_cycle())
    assert math.isnan(shown("helios_model_age_seconds") or 0)


def test_a_service_has_one_mode_and_one_that_is_gone_has_none() -> None:
    shown = Shown()
    shown.metrics.record_cycle(a_cycle(modes={"qssf": Mode.ACTIVE, "old": Mode.SHADOW}))
    shown.metrics.record_cycle(a_cycle(modes={"qssf": Mode.CANARY}))
    assert shown("helios_service_mode", service="qssf", mode="canary") == 1
    assert shown("helios_service_mode", service="qssf", mode="active") == 0
    assert shown("helios_service_mode", service="old", mode="shadow") is None


@pytest.mark.parametrize("domain", ["jobs", "nodes"])
def test_breaker_lease_and_suspension_are_those_of_the_last_cycle(domain: str) -> None:
    cycle = a_cycle if domain == "jobs" else partial(NodeCycleSummary, seconds=0.1)
    shown, other = Shown(), {"jobs": "nodes", "nodes": "jobs"}[domain]
    shown.metrics.record_cycle(cycle(breaker="open", suspended=("the breaker is open",)))
    assert shown("helios_breaker_state", domain=domain, state="open") == 1
    assert shown("helios_breaker_state", domain=domain, state="closed") == 0
    assert shown("helios_suspended", domain=domain) == shown("helios_lease_held", domain=domain) == 1
    shown.metrics.record_cycle(cycle(lease_held=False))
    assert shown("helios_suspended", domain=domain) == shown("helios_lease_held", domain=domain) == 0
    assert shown("helios_suspended", domain=other) is None


def test_services_of_jobs_and_of_nodes_have_their_modes_side_by_side() -> None:
    shown = Shown()
    shown.metrics.record_cycle(a_cycle(modes={"qssf": Mode.ACTIVE}))
    shown.metrics.record_cycle(NodeCycleSummary(seconds=0.1, modes={"ces": Mode.SHADOW}))
    assert shown("helios_service_mode", service="qssf", mode="active") == 1
    assert shown("helios_service_mode", service="ces", mode="shadow") == 1


def test_two_daemons_in_one_process_do_not_share_figures() -> None:
    first, second = Shown(), Shown()
    first.metrics.record_cycle(a_cycle(predictions=5))
    assert second("helios_predictions_total") == 0


def test_levels_of_the_last_study_are_exported_and_unknown_ones_are_nan() -> None:
    shown = Shown()
    assert math.isnan(shown("helios_gpus_in_use_ratio") or 0)
    shown.metrics.record_levels({"utilization": 0.5, "long_failures": 0.1})
    assert shown("helios_gpus_in_use_ratio") == 0.5
    shown.metrics.record_levels({"long_failures": 0.2, "idle_while_jobs_wait_elsewhere": 2.0})
    assert shown("helios_gpu_idle_elsewhere_seconds") == 7200
    assert math.isnan(shown("helios_gpus_in_use_ratio") or 0)
    assert shown("helios_gpu_time_failed_ratio") == 0.2


def test_errors_of_predicted_use_are_exported() -> None:
    shown = Shown()
    shown.metrics.record_levels({"use_error_at_submission": 7.0, "use_memory_covered_runs_at_submission": 0.94})
    assert shown("helios_use_error_at_submission_ratio") == pytest.approx(0.07)
    assert shown("helios_use_memory_covered_runs_ratio") == 0.94
    assert math.isnan(shown("helios_use_idle_auc_after_start") or 0)


def test_gpus_that_are_held_idle_are_exported_and_unknown_ones_are_nan() -> None:
    shown = Shown()
    shown.metrics.record_levels({"held_gpus_measured": 4, "held_gpus_idle": 2})
    assert (shown("helios_held_gpus_measured"), shown("helios_held_gpus_idle")) == (4, 2)
    shown.metrics.record_levels({})
    assert math.isnan(shown("helios_held_gpus_idle") or 0)


def test_energy_of_the_last_night_is_in_joules() -> None:
    shown = Shown()
    shown.metrics.record_levels({"saved_kwh": 2.0, "saved_co2_kg": 0.5, "asleep_node_h": 3.0})
    assert shown("helios_energy_saved_joules") == 7.2e6
    assert shown("helios_energy_saved_co2_grams") == 500
    assert shown("helios_node_asleep_seconds") == 10_800
    assert math.isnan(shown("helios_energy_used_joules") or 0)
    shown.metrics.record_cycle(NodeCycleSummary(seconds=0.1, nodes={"busy": 3, "asleep": 1}))
    shown.metrics.record_cycle(NodeCycleSummary(seconds=0.1, nodes={"busy": 4}))
    assert shown("helios_nodes", state="busy") == 4
    assert shown("helios_nodes", state="asleep") is None
