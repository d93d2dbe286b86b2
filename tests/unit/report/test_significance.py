import numpy as np
import pytest

from helios.report.significance import (
    ResampledUnit,
    compare_blocks,
    compare_repeats,
    headline,
    propose_scenario,
    verdict,
)
from tests.unit.report.replays import a_check, a_run, a_what_if, an_oracle, fewest_gpus, qssf

HOUR, DAY = 3600, 86_400
CLEARLY, LEVEL = (0.50, 0.55, 0.52, 0.48, 0.51), (0.98, 1.03, 1.00, 0.97, 1.02)


def said(*runs: object) -> str:
    return " ".join(verdict(a_what_if(*runs)))  # type: ignore[arg-type]  # because object stands for any run


def test_the_check_comes_first_and_the_replay_explains() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), check=a_check(CLEARLY, LEVEL))
    text = verdict(result)
    assert text[: len(headline(result))] == result.check.sentences()
    assert text[0].startswith("Order by predictions here")


def test_a_single_replay_is_said_to_be_no_evidence() -> None:
    assert said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10)).startswith("A single replay is no evidence")


def test_the_replay_is_told_with_both_waits_and_the_difference() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([HOUR] * 10))
    assert "the mean wait under QSSF predicted + EASY (limit) is 1 h instead of 2 h (-50 %)." in text
    assert "Compared with FIFO + EASY (limit), what a Slurm site has today." in text


def test_a_loss_is_told_as_one() -> None:
    assert "is 2 h instead of 1 h (x 2.0)" in said(a_run([HOUR] * 10), qssf([2 * HOUR] * 10))


def test_without_waiting_nothing_is_promised() -> None:
    assert "no order of the queue can change" in said(a_run([0] * 10), qssf([0] * 10))


@pytest.mark.parametrize("size", [8, 16])
def test_large_jobs_that_pay_are_named(size: int) -> None:
    gpus = [1] * 9 + [size]
    text = said(
        a_run([2 * HOUR] * 10, gpus=gpus), a_run([60] * 9 + [4 * HOUR], gpus=gpus, policy="qssf", run_times="predicted")
    )
    assert "Jobs of a node and more pay: 4 h instead of 2 h (x 2.0) on average." in text


def test_sizes_and_the_longest_wait_stand_beside_the_gain() -> None:
    gpus = [1] * 8 + [8, 16]
    text = said(a_run([2 * HOUR] * 10, gpus=gpus), qssf([60] * 8 + [2 * HOUR, 5 * HOUR], gpus=gpus))
    assert (
        "Mean wait by size: below a node 1 min instead of 2 h (-99 %); one node 2 h, as before; "
        "more 5 h instead of 2 h (x 2.5). Longest wait: 5 h instead of 2 h (x 2.5)." in text
    )


def test_what_helios_does_live_is_explained_though_another_replay_waits_shorter() -> None:
    impossible = qssf([60] * 10, estimates="predicted")
    text = said(a_run([2 * HOUR] * 10), qssf([600] * 10, backfill="none"), impossible, qssf([HOUR] * 10))
    assert "under QSSF predicted + EASY (limit) is 1 h" in text


def test_what_no_live_slurm_can_do_is_no_proposal() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10), qssf([60] * 10, estimates="expected"), an_oracle([9] * 10))
    assert propose_scenario(result) is None
    assert [run.is_possible_live for run in result.runs] == [True, False, False]
    assert [len(runs) for runs in (result.feasible, result.impossible, result.oracles)] == [0, 1, 1]


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
    assert "Jobs below a node pay: 1 h instead of 1 min" in text
    assert "Jobs of a node and more" not in text


def test_a_size_that_begins_to_wait_is_told_without_a_ratio() -> None:
    text = said(a_run([0, HOUR], gpus=[16, 1]), qssf([HOUR, 0], gpus=[16, 1]))
    assert "pay: 1 h instead of 0 s on average." in text


def test_a_gain_made_by_one_odd_day_is_no_difference() -> None:
    today = a_run([HOUR] * 9 + [20 * HOUR], every_s=DAY)
    text = said(today, qssf([HOUR] * 10, every_s=DAY))
    assert "is 1 h instead of 2 h 54 min (-66 %)" in text
    assert "The mean wait: no difference that chance does not explain, 95 % interval" in text


def test_a_wait_of_31_times_is_a_difference_though_of_one_day() -> None:
    """A slice of two virtual clusters: 252 s under today's order, 7,797 s under ours, most of it on one day."""
    today = a_run([252] * 20, every_s=DAY // 2)
    other = qssf([252] * 19 + [151_152], every_s=DAY // 2)
    found = compare_blocks(a_what_if(today, other)).others[0].differences["mean_wait_s"]
    assert found is not None and found.ratio == pytest.approx(31, abs=0.2)
    assert not found.is_none
    text = said(today, other)
    assert "is 2 h 10 min instead of 4 min 12 s (x 30.9)" in text
    assert "no difference" not in text


def test_a_gain_made_on_every_day_is_not_called_chance() -> None:
    assert "chance" not in said(a_run([2 * HOUR] * 10, every_s=DAY), qssf([HOUR] * 10, every_s=DAY))


def test_large_jobs_that_wait_longer_by_chance_are_not_said_to_pay() -> None:
    gpus = [1, 16] * 10
    today = a_run([9 * HOUR, HOUR] * 10, gpus=gpus, every_s=DAY // 2)
    text = said(today, qssf([HOUR, HOUR] * 9 + [HOUR, 9 * HOUR], gpus=gpus, every_s=DAY // 2))
    assert "Jobs of a node and more: no difference that chance does not explain; 1 h 48 min instead of 1 h" in text
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
    found, text = compare_blocks(result).others[0].differences, " ".join(verdict(result))
    mean, large = found["mean_wait_s"], found["mean_wait_large_s"]
    assert mean is not None and large is not None
    assert "The mean wait: no difference" not in text or mean.is_none
    assert ("Jobs of a node and more pay" in text) == (not large.is_none and large.value > 0)


def test_over_repeats_the_verdict_is_theirs() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10, every_s=DAY), qssf([HOUR] * 10, every_s=DAY))
    today, ours = (run.label for run in result.runs)
    figures = [{"mean_wait_s": wait, "max_wait_s": wait, "p99_wait_s": wait} for wait in (5e3, 6e3, 9e3)]
    missing = {"mean_wait_large_s": None}
    differences = compare_repeats(
        {today: [each | missing for each in figures], ours: [each | missing for each in reversed(figures)]},
        baseline=today,
        over=ResampledUnit.SEEDS,
        blocks=0,
    )
    assert "Over 3 repeats the mean wait under" in " ".join(verdict(result, differences))


def test_waits_that_are_short_beside_jobs_are_little_to_gain() -> None:
    text = said(a_run([60] * 10, run_time_s=100 * HOUR), qssf([10] * 10, run_time_s=100 * HOUR))
    assert "There is little to gain" in text


def test_the_best_of_several_replays_is_said_to_be_picked() -> None:
    text = said(a_run([2 * HOUR] * 10), qssf([60] * 10, backfill="none"), qssf([HOUR] * 10, options={"wait_share": 1}))
    assert "QSSF predicted, the best of 2 such replays, is" in text


def test_replays_without_qssf_are_compared_too() -> None:
    text = said(a_run([2 * HOUR] * 10), fewest_gpus([HOUR] * 10))
    assert "the mean wait under Fewest GPUs + EASY (limit) is 1 h instead of 2 h" in text


def test_a_first_replay_that_no_site_has_is_not_called_today_s() -> None:
    assert "today" not in said(fewest_gpus([2 * HOUR] * 10), qssf([HOUR] * 10))


def test_an_oracle_alone_is_called_what_it_is() -> None:
    text = said(a_run([2 * HOUR] * 10), an_oracle([HOUR] * 10))
    assert "QSSF true + EASY (true), which knows the true run times as nobody does, reaches 1 h" in text


def test_without_qssf_the_baseline_alone_is_told() -> None:
    assert verdict(a_what_if(a_run([2 * HOUR] * 10)))[1] == "FIFO + EASY (limit): the mean wait is 2 h."
