from helios.report.verdict import verdict
from tests.unit.report.replays import a_run, a_what_if, fewest_gpus, qssf

HOUR = 3600


def said(*runs: object) -> str:
    return " ".join(verdict(a_what_if(*runs)))  # type: ignore[arg-type]  # because object stands for any run


def test_a_gain_is_told_with_both_waits_and_the_difference() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10))
    assert "cut the mean wait from 2 h (FIFO + EASY (limit)) to 1 h (-50 %)" in text


def test_a_loss_is_not_called_a_gain() -> None:
    text = said(a_run([HOUR] * 10), qssf([2 * HOUR] * 10))
    assert "lengthened" in text
    assert "cut" not in text


def test_a_difference_too_small_to_mean_anything_is_called_none() -> None:
    assert "no difference" in said(a_run([HOUR] * 10), qssf([HOUR + 30] * 10))


def test_without_waiting_nothing_is_promised() -> None:
    assert "no order of the queue can change" in said(a_run([0] * 10), qssf([0] * 10))


def test_large_jobs_that_pay_are_named() -> None:
    gpus = [1] * 9 + [16]
    text = said(
        a_run([2 * HOUR] * 10, gpus=gpus), a_run([60] * 9 + [4 * HOUR], gpus=gpus, policy="qssf", run_times="predicted")
    )
    assert "Large jobs pay: jobs above 8 GPUs would have waited 4 h on average instead of 2 h (x 2.0)" in text


def test_a_longest_wait_that_grows_is_named() -> None:
    assert "longest wait grows from 2 h to 5 h" in said(a_run([2 * HOUR] * 10), qssf([60] * 9 + [5 * HOUR]))


def test_a_control_without_a_model_that_does_as_well_is_named() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), fewest_gpus([HOUR] * 10))
    assert "needs no model, does as well" in text
    assert "earns its keep" not in text


def test_a_control_that_does_better_is_named() -> None:
    assert "does better" in said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), fewest_gpus([60] * 10))


def test_prediction_that_beats_the_control_is_said_to() -> None:
    assert "earns its keep" in said(a_run([2 * HOUR] * 10), qssf([60] * 10), fewest_gpus([HOUR] * 10))


def test_the_share_of_the_oracle_s_gain_is_told() -> None:
    oracle = qssf([0] * 10, run_times="true", estimates="true")
    assert "realise 50 % of that gain" in said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), oracle)


def test_without_qssf_the_baseline_alone_is_told() -> None:
    assert said(a_run([2 * HOUR] * 10)) == "FIFO + EASY (limit): the mean wait is 2 h."
