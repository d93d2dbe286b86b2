import pytest

from helios.app.scenarios import Policy, RunTimes, Scenario, default_scenarios, scenarios, with_options
from helios.errors import UsageError
from helios.simulate import Backfill


def test_without_options_the_controls_are_replayed() -> None:
    assert scenarios() == default_scenarios()


def test_what_a_slurm_site_has_today_comes_first() -> None:
    assert default_scenarios()[0] == Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)


def test_the_controls_hold_the_rule_that_needs_no_model_and_both_oracles() -> None:
    policies = {(plan.policy, plan.run_times) for plan in default_scenarios()}
    assert {
        (Policy.FEWEST_GPUS, None),
        (Policy.QSSF, RunTimes.TRUE),
        (Policy.SJF, RunTimes.TRUE),
        (Policy.SRTF, RunTimes.TRUE),
    } <= policies


def test_backfill_alone_narrows_the_controls() -> None:
    assert {plan.backfill for plan in scenarios(backfills=[Backfill.EASY])} == {Backfill.EASY}


def test_one_policy_is_replayed_with_and_without_backfill() -> None:
    assert [plan.backfill for plan in scenarios(policies=[Policy.FIFO])] == [Backfill.NONE, Backfill.EASY]


def test_true_estimates_order_by_true_run_times_too() -> None:
    (plan,) = scenarios(policies=[Policy.QSSF], backfills=[Backfill.EASY], estimates=[RunTimes.TRUE])
    assert (plan.run_times, plan.estimates) == (RunTimes.TRUE, RunTimes.TRUE)


def test_limits_as_estimates_leave_the_order_to_predictions() -> None:
    (plan,) = scenarios(policies=[Policy.QSSF], backfills=[Backfill.EASY], estimates=[RunTimes.LIMIT])
    assert (plan.run_times, plan.estimates) == (RunTimes.PREDICTED, RunTimes.LIMIT)


def test_run_times_win_over_what_estimates_imply() -> None:
    (plan,) = scenarios(
        policies=[Policy.SJF], backfills=[Backfill.EASY], estimates=[RunTimes.TRUE], run_times=RunTimes.PREDICTED
    )
    assert plan.run_times is RunTimes.PREDICTED


def test_a_fixed_estimate_is_published_as_its_seconds() -> None:
    (plan,) = scenarios(policies=[Policy.FIFO], backfills=[Backfill.EASY], estimates=[3600])
    assert plan.published_estimates == "3600"


def test_fifo_without_backfill_uses_no_run_times() -> None:
    (plan,) = scenarios(policies=[Policy.FIFO], backfills=[Backfill.NONE], estimates=[RunTimes.TRUE])
    assert (plan.run_times, plan.estimates, plan.published_estimates) == (None, None, None)


def test_estimates_that_a_strict_queue_ignores_are_replayed_once() -> None:
    assert len(scenarios(policies=[Policy.FIFO], backfills=[Backfill.NONE], estimates=[RunTimes.TRUE, 60])) == 1


def test_srtf_refuses_easy_and_says_what_to_use() -> None:
    with pytest.raises(UsageError, match="skip"):
        scenarios(policies=[Policy.SRTF], backfills=[Backfill.EASY])


def test_an_order_by_time_limits_is_refused() -> None:
    with pytest.raises(UsageError, match="predicted"):
        scenarios(policies=[Policy.SJF], run_times=RunTimes.LIMIT)


def test_a_policy_is_told_its_options_and_no_other_is() -> None:
    told = with_options(scenarios(policies=[Policy.FIFO, Policy.QSSF]), ["qssf.wait_share=0.8", "qssf.patience = 1h"])
    assert {plan.options for plan in told if plan.policy is Policy.QSSF} == {
        (("patience_s", 3_600), ("wait_share", 0.8))
    }
    assert {plan.options for plan in told if plan.policy is Policy.FIFO} == {()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("qssf.share", "NAME.OPTION=VALUE"),
        ("share=0.8", "NAME.OPTION=VALUE"),
        ("service.patience=12h", "Replayed are: fifo, qssf"),
        ("fifo.share=0.8", "Its options: patience"),
        ("qssf.wait_share=much", "Write 0.5"),
    ],
)
def test_what_a_policy_cannot_be_told_is_refused_with_what_it_can(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        with_options(scenarios(policies=[Policy.FIFO, Policy.QSSF]), [text])
    assert says in str(raised.value) + (raised.value.hint or "")


def test_expected_run_times_order_no_queue() -> None:
    with pytest.raises(UsageError, match="predicted or true"):
        Scenario(policy=Policy.QSSF, backfill=Backfill.NONE, run_times=RunTimes.EXPECTED)
