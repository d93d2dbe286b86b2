"""What policies are told: how it is written, what becomes of it in a replay."""

from typing import Any

import numpy as np
import pytest

from helios.app.scenarios import (
    AGED,
    BOUND_SHARE,
    CONTROLS,
    LARGE_DIVISOR,
    WAIT_SHARE,
    Policy,
    Scenario,
    default_scenarios,
    read_options,
    scenarios,
    with_options,
)
from helios.choices import RunTimes
from helios.errors import UsageError
from helios.ports import RUN_TIME
from helios.services.qssf import Qssf
from helios.simulate import Backfill, LongestWaits

LONGEST = LongestWaits(at_s=np.array([-(2**60)]), longest_s=np.array([100_000]))


def rules(policy: str, **written: Any) -> dict[str, Any]:
    plan = Scenario(policy=Policy(policy), backfill=Backfill.NONE, options=read_options(policy, written))
    return plan.rules(LONGEST if plan.needs_own_order else None, node=8)


def test_lengths_shares_and_divisors_are_kept_as_numbers() -> None:
    assert read_options("qssf", {"wait_share": 1, "patience": "90min"}) == (("patience_s", 5_400), ("wait_share", 1.0))
    assert read_options("qssf", {"large_divisor": 4, "bound_share": "never"}) == (
        ("bound_share", None),
        ("large_divisor", 4.0),
    )


def test_without_options_only_qssf_ages_and_is_bounded() -> None:
    own = rules("qssf")
    assert own["ageing"].tau_s.tolist() == [WAIT_SHARE * 100_000]
    assert own["guard"].bound_s.tolist() == [BOUND_SHARE * 100_000]
    for other in ("fifo", "service", "mean_service", "fewest_gpus", "sjf"):
        assert (rules(other)["ageing"], rules(other)["guard"]) == (None, None)


def test_each_order_reads_its_column_of_a_prediction() -> None:
    columns = {name: rules(name)["reads"] for name in ("qssf", "service", "mean_service", "sjf")}
    assert columns == {
        "qssf": RUN_TIME.truncated_mean,
        "service": RUN_TIME.p50,
        "mean_service": RUN_TIME.mean,
        "sjf": RUN_TIME.p50,
    }


def test_true_run_times_count_eight_hours_at_most_where_predictions_do() -> None:
    true_s = np.array([60, 10**6])
    plans = {name: Scenario(policy=Policy(name), backfill=Backfill.NONE) for name in ("qssf", "service")}
    assert plans["qssf"].true_run_time_s(true_s).tolist() == [60, 28_800]
    assert plans["service"].true_run_time_s(true_s).tolist() == [60, 10**6]


def test_a_control_ages_and_is_bounded_as_it_is_told() -> None:
    told = rules("fewest_gpus", wait_share=0.25, bound_share=1.0)
    assert (told["ageing"].tau_s.tolist(), told["guard"].bound_s.tolist()) == ([25_000], [100_000])


@pytest.mark.parametrize("policy", ["qssf", "service", "fifo"])
def test_any_order_takes_a_patience_of_its_own(policy: str) -> None:
    assert rules(policy, patience="12h")["guard"].bound_s.tolist() == [43_200]
    assert rules(policy, patience="never")["guard"] is None


def test_default_of_a_replay_is_that_of_the_live_service() -> None:
    live = Qssf.Options()
    assert dict(AGED) == {name: getattr(live, name) for name in ("bound_share", "large_divisor", "wait_share")}


def test_whole_node_jobs_count_less_by_default_in_a_replay() -> None:
    gpus, ran_s = np.array([7, 8, 9], dtype=np.int32), np.full(3, 100.0)
    keys = rules("qssf")["order"](submitted_s=np.zeros(3, dtype=np.int64), gpus=gpus, run_time_s=ran_s)
    assert keys.tolist() == [700.0, 200.0, 225.0]


def test_the_control_by_size_ages_and_is_bounded_as_qssf() -> None:
    size, default = CONTROLS[1], Scenario(policy=Policy.QSSF, backfill=Backfill.EASY)
    assert (size.policy, size.wait_share, size.bound_share) == (
        Policy.FEWEST_GPUS,
        default.wait_share,
        default.bound_share,
    )


@pytest.mark.parametrize(
    ("policy", "written", "said"),
    [
        ("qssf", {"share": 0.9}, "qssf has no option share"),
        ("srtf", {"patience": "1h"}, "srtf has no option patience"),
        ("fifo", {"wait_share": 0.5}, "fifo has no option wait_share"),
        ("qssf", {"wait_share": "much"}, "'much' is not a share"),
        ("qssf", {"wait_share": 0}, "0 is not a share"),
        ("qssf", {"bound_share": float("nan")}, "nan is not a share"),
        ("qssf", {"bound_share": True}, "True is not a share"),
        ("qssf", {"large_divisor": 0.5}, "0.5 is not a number from 1 on"),
        ("qssf", {"patience": 3}, "3 is not a length"),
        ("qssf", {"patience": "1h", "bound_share": 0.9}, "qssf cannot have patience together with bound_share"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_there_is(policy: str, written: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_options(policy, written)
    assert said in str(refused.value)


def test_size_ages_as_qssf_does_however_it_is_asked_for() -> None:
    fifo, size, qssf = scenarios(
        policies=[Policy.FIFO, Policy.FEWEST_GPUS, Policy.QSSF], backfills=[Backfill.EASY], estimates=[RunTimes.LIMIT]
    )
    assert (fifo, size) == CONTROLS
    assert (size.wait_share, size.bound_share) == (qssf.wait_share, qssf.bound_share)
    (never,) = with_options([size], ["fewest_gpus.wait_share=never", "fewest_gpus.bound_share=never"])
    assert not never.needs_own_order
    (patient,) = with_options([size], ["fewest_gpus.patience=12h"])
    assert (patient.wait_share, patient.bound_share) == (WAIT_SHARE, None)
    (again,) = with_options([patient], ["fewest_gpus.bound_share=1"])
    assert dict(again.options) == {"bound_share": 1.0, "large_divisor": LARGE_DIVISOR, "wait_share": WAIT_SHARE}


def test_without_options_scenarios_keep_their_own() -> None:
    assert with_options(default_scenarios(), []) == default_scenarios()
    changed = with_options(default_scenarios(), ["service.wait_share=0.25"])
    assert {plan.options for plan in changed if plan.policy is Policy.SERVICE} == {
        (("bound_share", BOUND_SHARE), ("large_divisor", LARGE_DIVISOR), ("wait_share", 0.25)),
        (("wait_share", 0.25),),
    }
    assert [plan for plan in changed if plan.policy is not Policy.SERVICE] == [
        plan for plan in default_scenarios() if plan.policy is not Policy.SERVICE
    ]
