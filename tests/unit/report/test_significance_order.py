"""Which order a check proposes, and how it says so."""

import json
from collections.abc import Sequence

import pytest

from helios.report.order_check import CheckedOrder
from tests.unit.report.replays import a_check

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
    assert a_check(predictions, size).best is best


def test_the_decision_comes_first_with_its_figures() -> None:
    text = " ".join(a_check(CLEARLY, LEVEL).sentences())
    assert text.startswith(
        "Order by predictions here (qssf, the default): it beats the site's own order and beats size"
    )
    assert "mean wait x 0.51 (0.4" in text
    assert "each user's jobs moved by whole days" in text


def test_sizes_and_the_longest_wait_stand_beside_the_ratio_of_the_mean() -> None:
    ratios = {"below_node": 0.4, "one_node": 1.3, "more_nodes": float("nan")}
    sentence = a_check(CLEARLY, LEVEL, by_size=ratios).sentences()[1]
    assert sentence.endswith(" of the site's own order; below a node x 0.40, one node x 1.30; longest wait x 1.20.")


def test_predictions_level_with_size_are_said_to_be() -> None:
    assert "predictions are not ahead of it beyond chance: x 1.00" in a_check(CLEARLY, CLEARLY).sentences()[0]


def test_an_order_that_does_harm_is_named() -> None:
    first = a_check(WORSE, LEVEL).sentences()[0]
    assert "shadow mode" in first
    assert first.endswith("longer beyond chance: predictions.")


def test_where_nobody_waits_no_order_can_change_anything() -> None:
    check = a_check((), (), own_mean_s=0.5)
    assert check.best is CheckedOrder.OWN
    assert "no order of the queue can change anything" in check.sentences()[0]
    assert "mean_wait_ratio" not in check.to_json()


def test_json_holds_no_nan() -> None:
    told = json.loads(json.dumps(a_check(CLEARLY, LEVEL).to_json(), allow_nan=False))
    assert told["best"] == "qssf"
    assert told["ratios"]["fewest_gpus"][0] == {"mean": 0.98, "longest": 1.2, "large": None, "by_size": {}}
    assert told["mean_wait_ratio"]["qssf"]["low"] < 0.51 < told["mean_wait_ratio"]["qssf"]["high"]
