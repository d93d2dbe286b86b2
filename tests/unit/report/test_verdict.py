import numpy as np
import pytest

from helios.report.significance import ResampledUnit, of_one_replay, over_repeats
from helios.report.whatif_text import verdict
from tests.unit.report.replays import a_run, a_what_if, an_oracle, fewest_gpus, qssf

HOUR, DAY = 3600, 86_400


def said(*runs: object) -> str:
    return " ".join(verdict(a_what_if(*runs)))  # type: ignore[arg-type]  # because object stands for any run


def test_a_gain_is_told_with_both_waits_and_the_difference() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10))
    assert "cut the mean wait from 2 h to 1 h (-50 %)" in text
    assert "Compared: QSSF predicted + EASY (limit) with FIFO + EASY (limit), what a Slurm site has today." in text


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
    assert "realise 50 % of that gain" in said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), an_oracle([0] * 10))


def test_predictions_that_do_harm_realise_nothing() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([3 * HOUR] * 10), an_oracle([0] * 10))
    assert "realise none of that gain" in text


def test_predictions_cannot_realise_more_than_all() -> None:
    assert "would do no better: 1 h." in said(a_run([2 * HOUR] * 10), qssf([0] * 10), an_oracle([HOUR] * 10))


def test_an_oracle_that_gains_nothing_is_told() -> None:
    text = said(a_run([HOUR] * 10), qssf([HOUR] * 10), an_oracle([HOUR] * 10))
    assert "Even with true run times this order would gain nothing" in text


def test_every_size_that_pays_is_named() -> None:
    gpus = [1, 4, 16]
    text = said(a_run([60] * 3, gpus=gpus), qssf([HOUR, HOUR, 60], gpus=gpus))
    assert "Middle-sized jobs pay: jobs of 2 to 8 GPUs" in text
    assert "The smallest jobs pay: jobs of 1 GPU" in text
    assert "jobs above 8" not in text


def test_large_jobs_that_gain_are_named_where_nobody_pays() -> None:
    assert "Large jobs gain too" in said(a_run([HOUR] * 2, gpus=[1, 16]), qssf([60] * 2, gpus=[1, 16]))


def test_a_size_that_begins_to_wait_is_told_without_a_ratio() -> None:
    text = said(a_run([0, HOUR], gpus=[16, 1]), qssf([HOUR, 0], gpus=[16, 1]))
    assert "waited 1 h on average instead of 0 s." in text


def test_a_gain_made_by_one_odd_day_is_no_difference() -> None:
    today = a_run([HOUR] * 9 + [20 * HOUR], every_s=DAY)
    text = said(today, qssf([HOUR] * 10, every_s=DAY))
    assert "no difference to the mean wait that chance does not explain: 1 h instead of 2 h 54 min (-66 %)" in text
    assert "Replay a longer window" in text


def test_a_gain_made_on_every_day_is_not_called_chance() -> None:
    assert "chance" not in said(a_run([2 * HOUR] * 10, every_s=DAY), qssf([HOUR] * 10, every_s=DAY))


def test_large_jobs_that_wait_longer_by_chance_are_not_said_to_pay() -> None:
    gpus = [1, 16] * 10
    today = a_run([9 * HOUR, HOUR] * 10, gpus=gpus, every_s=DAY // 2)
    text = said(today, qssf([HOUR, HOUR] * 9 + [HOUR, 9 * HOUR], gpus=gpus, every_s=DAY // 2))
    assert "cut the mean wait" in text
    assert "Large jobs: no difference that chance does not explain; jobs above 8 GPUs would have waited" in text
    assert "pay" not in text


@pytest.mark.parametrize("seed", range(12))
def test_the_verdict_and_the_table_of_differences_never_disagree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus, n = [1, 4, 16] * 20, 60
    waits = rng.exponential(HOUR, n)
    longer = waits * rng.choice([0.5, 1, 1.5]) + rng.normal(0, rng.choice([60, HOUR]), n)
    result = a_what_if(
        a_run(waits.astype(int).tolist(), gpus=gpus, every_s=DAY // 3),
        qssf(longer.clip(0).astype(int).tolist(), gpus=gpus, every_s=DAY // 3),
    )
    found, text = of_one_replay(result).others[0].differences, " ".join(verdict(result))
    mean, large = found["mean_wait_s"], found["mean_wait_large_s"]
    assert mean is not None and large is not None
    assert ("no difference to the mean wait" in text) == mean.is_none
    assert ("Large jobs pay" in text) == (not large.is_none and large.value > 0)


def test_over_repeats_the_verdict_is_theirs() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10, every_s=DAY), qssf([HOUR] * 10, every_s=DAY))
    today, ours = (run.label for run in result.runs)
    figures = [{"mean_wait_s": wait, "max_wait_s": wait, "p99_wait_s": wait} for wait in (5e3, 6e3, 9e3)]
    missing = {"mean_wait_large_s": None}
    differences = over_repeats(
        {today: [each | missing for each in figures], ours: [each | missing for each in reversed(figures)]},
        baseline=today,
        over=ResampledUnit.SEEDS,
        blocks=0,
    )
    text = " ".join(verdict(result, differences))
    assert "no difference to the mean wait." in text
    assert "cut" not in text
    assert "means over 3 repeats" in text


def test_a_sure_difference_of_figures_that_read_alike_is_told_by_itself() -> None:
    text = said(a_run([17 * 60 + 20] * 10, every_s=DAY), qssf([16 * 60 + 40] * 10, every_s=DAY))
    assert "would have cut the mean wait of 17 min by 40 s (-4 %)" in text


def test_a_lead_over_the_control_that_may_be_chance_is_not_claimed() -> None:
    today, ours = a_run([9 * HOUR] * 10, every_s=DAY), qssf([HOUR] * 10, every_s=DAY)
    text = said(today, ours, fewest_gpus([HOUR] * 9 + [8 * HOUR], every_s=DAY))
    assert "needs no model, does as well, chance aside" in text
    assert "earns its keep" not in text


def test_a_control_worse_than_a_loss_earns_prediction_nothing() -> None:
    text = said(a_run([HOUR] * 10), qssf([2 * HOUR] * 10), fewest_gpus([3 * HOUR] * 10))
    assert "does worse still" in text
    assert "its keep" not in text


def test_waits_that_are_a_small_part_of_a_job_s_time_are_called_little_to_gain() -> None:
    text = said(a_run([60] * 10, run_time_s=100 * HOUR), qssf([10] * 10, run_time_s=100 * HOUR))
    assert "There is little to gain" in text


def test_the_best_of_several_replays_is_said_to_be_picked() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), qssf([60] * 10, backfill="none", estimates="predicted"))
    assert "QSSF predicted, the best of 2 such replays, with" in text


def test_replays_without_qssf_are_compared_too() -> None:
    text = said(a_run([2 * HOUR] * 10), fewest_gpus([HOUR] * 10))
    assert text.startswith("Starting the jobs with the fewest GPUs first would have cut the mean wait from 2 h to 1 h")


def test_a_first_replay_that_no_site_has_is_not_called_today_s() -> None:
    assert "today" not in said(fewest_gpus([2 * HOUR] * 10), qssf([HOUR] * 10))


def test_an_oracle_alone_is_called_what_it_is() -> None:
    text = said(a_run([2 * HOUR] * 10), an_oracle([HOUR] * 10))
    assert "QSSF true + EASY (true), which knows the true run times as nobody does, reaches 1 h" in text


def test_without_qssf_the_baseline_alone_is_told() -> None:
    assert said(a_run([2 * HOUR] * 10)) == "FIFO + EASY (limit): the mean wait is 2 h."
