"""Which order a verdict proposes, what it costs, and how it says so."""

import json
from collections.abc import Sequence

import pytest

from helios.choices import ResampledUnit
from helios.report.verdict import CheckedOrder, Effect, WaitRatio
from tests.unit.report.replays import a_verdict

CLEARLY = (0.50, 0.55, 0.52, 0.48, 0.51)
LEVEL = (0.98, 1.03, 1.00, 0.97, 1.02)
NOISY = (0.3, 1.6, 0.5, 1.1, 0.4)
SLIGHTLY = (0.95, 0.95, 0.95, 0.95, 0.95)
WORSE = (2.0, 2.1, 1.9, 2.2, 2.0)


@pytest.mark.parametrize(
    ("predictions", "size", "best"),
    [
        (CLEARLY, LEVEL, CheckedOrder.PREDICTIONS),
        (CLEARLY, CLEARLY, CheckedOrder.SIZE),
        (WORSE, CLEARLY, CheckedOrder.SIZE),
        (NOISY, NOISY, CheckedOrder.OWN),
        (SLIGHTLY, SLIGHTLY, CheckedOrder.OWN),
        (WORSE, WORSE, CheckedOrder.OWN),
        (CLEARLY, NOISY, CheckedOrder.PREDICTIONS),
    ],
)
def test_predictions_must_beat_the_own_order_and_size_beyond_chance(
    predictions: Sequence[float], size: Sequence[float], best: CheckedOrder
) -> None:
    assert a_verdict(predictions, size).best is best


@pytest.mark.parametrize(
    ("ratio", "effect"),
    [
        (WaitRatio(ratio=0.90, low=0.83, high=0.98), Effect.SMALL),
        (WaitRatio(ratio=0.90, low=0.83, high=1.02), Effect.CHANCE),
        (WaitRatio(ratio=0.60, low=0.55, high=0.65), Effect.SHORTER),
        (WaitRatio(ratio=1.60, low=1.20, high=2.10), Effect.LONGER),
        (WaitRatio(ratio=0.60), Effect.UNKNOWN),
        (WaitRatio(ratio=0.8999, low=0.83, high=0.98), Effect.SMALL),
        (WaitRatio(ratio=0.80, low=0.60, high=0.999), Effect.CHANCE),
    ],
)
def test_small_and_by_chance_are_different_words(ratio: WaitRatio, effect: Effect) -> None:
    assert ratio.effect is effect


def test_the_decision_comes_first_with_its_effect_and_its_price() -> None:
    first = a_verdict(CLEARLY, LEVEL, large=1.3).sentences()[0]
    assert first.startswith(
        "Order by predictions here (qssf, the default): mean wait x 0.51 (0.48 to 0.54) of plain FIFO"
    )
    assert "longest wait x 1.20, jobs of a node and more x 1.30." in first


def test_the_window_and_the_way_of_drawing_are_said() -> None:
    text = " ".join(a_verdict(CLEARLY, LEVEL).sentences())
    assert "Over 5 draws of 1,000 jobs submitted from 2026-09-01 to 2026-09-28" in text
    assert "each user's jobs moved by whole days" in text


def test_sizes_and_the_longest_wait_stand_beside_the_ratio_of_the_mean() -> None:
    ratios = {"below_node": 0.4, "one_node": 1.3, "more_nodes": float("nan")}
    sentence = a_verdict(CLEARLY, LEVEL, by_size=ratios).sentences()[1]
    assert "shorter; below a node x 0.40; one node x 1.30; longest wait x 1.20" in sentence


def test_predictions_level_with_size_are_said_to_be() -> None:
    first = a_verdict(CLEARLY, CLEARLY).sentences()[0]
    assert "Predictions beside size: mean wait x 1.00 (1.00 to 1.00), not told apart from chance." in first


def test_an_order_that_does_harm_is_named() -> None:
    first = a_verdict(WORSE, SLIGHTLY).sentences()[0]
    assert first.startswith("Keep the site's own order and run Helios in shadow mode")
    assert "predictions (qssf) x 2.04 (1.90 to 2.18), longer; size, equally aged x 0.95 (0.95 to 0.95), small." in first


def test_where_nobody_waits_no_order_can_change_anything() -> None:
    verdict = a_verdict((), (), own_mean_s=0.5)
    assert verdict.best is CheckedOrder.OWN
    assert "no order of the queue can change anything" in verdict.sentences()[0]
    assert "orders" not in verdict.to_json()


def test_nothing_is_claimed_of_a_site_that_waits_otherwise() -> None:
    verdict = a_verdict(CLEARLY, LEVEL, own_mean_s=21_600, recorded_s=3.0)
    first, second, *_ = verdict.sentences()
    assert first.startswith("Plain FIFO + EASY is not what this site runs")
    assert "6 h where 3 s was recorded" in first
    assert second.startswith("In this replay an order by predictions is best")
    assert not verdict.to_json()["comparable"]


def test_plain_fifo_is_never_called_the_site_s_own_order() -> None:
    for verdict in (a_verdict(CLEARLY, LEVEL), a_verdict(CLEARLY, CLEARLY), a_verdict(WORSE, WORSE)):
        said = " ".join(verdict.sentences()).replace("Keep the site's own order and run Helios in shadow mode", "")
        assert "own order" not in said
        assert "plain FIFO + EASY" in said


def test_draws_of_another_queue_are_said_to_be_refused() -> None:
    refused = {ResampledUnit.USERS: WaitRatio(ratio=1.47, low=1.0, high=2.17)}
    said = a_verdict(CLEARLY, LEVEL, over=ResampledUnit.WEEKS, refused=refused).sentences()[-1]
    assert "whole weeks drawn anew" in said
    assert "Refused, as another queue: each user's jobs moved by whole days" in said
    assert "plain FIFO + EASY then waits x 1.47 (1.00 to 2.17) of the window's" in said


def test_a_window_that_cannot_be_drawn_tells_nothing_from_chance() -> None:
    verdict = a_verdict(CLEARLY[:1], LEVEL[:1], draws=0)
    assert verdict.best is CheckedOrder.OWN
    assert "x 0.50, a single replay" in verdict.sentences()[0]
    assert "One replay of 1,000 jobs" in verdict.sentences()[-1]


def test_json_holds_no_nan() -> None:
    told = json.loads(json.dumps(a_verdict(CLEARLY, LEVEL).to_json(), allow_nan=False))
    assert told["best"] == "qssf"
    assert told["ratios"]["fewest_gpus"][0] == {"mean": 0.98, "longest": 1.2, "large": None, "by_size": {}}
    mean = told["orders"]["qssf"]["mean"]
    assert mean["low"] < 0.51 < mean["high"] and mean["effect"] == "shorter"
    assert told["orders"]["qssf"]["large"] == {"ratio": None, "low": None, "high": None, "effect": "a single replay"}
