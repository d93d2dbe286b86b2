"""How a replay is held against what was recorded."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from helios.errors import NotEnoughHistory
from helios.report.tables import Fidelity, fidelity, fidelity_table

ELIGIBLE = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
RECORDED = np.array([10.0, 21.0, 12.0, 43.0, 24.0])


def held(replayed: np.ndarray) -> Fidelity:
    return fidelity("a replay", eligible_s=ELIGIBLE, recorded_s=RECORDED, replayed_s=replayed)


def test_a_replay_that_repeats_the_past_is_perfect() -> None:
    same = held(RECORDED)
    assert (same.order_correlation, same.wait_correlation) == pytest.approx((1.0, 1.0))
    assert (same.median_error_s, same.p95_error_s, same.mean_wait_error) == (0.0, 0.0, 0.0)


def test_errors_are_of_starts_and_waits_count_from_eligibility() -> None:
    late = held(RECORDED + np.array([1.0, -2.0, 3.0, 0.0, 10.0]))
    assert late.median_error_s == 2.0
    assert late.p95_error_s == pytest.approx(8.6)
    assert (late.recorded_wait_s, late.mean_wait_s) == (20.0, 22.4)
    assert late.mean_wait_error == pytest.approx(0.12)


def test_order_is_spearmans_rank_correlation_of_starts() -> None:
    # Ranks 1 3 2 5 4 against 1 2 3 4 5: 1 - 6 * (1 + 1 + 1 + 1) / (5 * 24).
    assert held(ELIGIBLE).order_correlation == pytest.approx(0.8)


def test_equal_starts_share_their_rank() -> None:
    # Ranks 1.5 1.5 3 4.5 4.5 against 1 3 2 5 4, worked out by hand.
    tied = held(np.array([5.0, 5.0, 6.0, 9.0, 9.0]))
    one, other = np.array([1.5, 1.5, 3, 4.5, 4.5]), np.array([1.0, 3, 2, 5, 4])
    expected = ((one - 3) @ (other - 3)) / np.sqrt(((one - 3) @ (one - 3)) * ((other - 3) @ (other - 3)))
    assert tied.order_correlation == pytest.approx(float(expected))


def test_where_nobody_waited_there_is_no_relative_error() -> None:
    none = fidelity("x", eligible_s=ELIGIBLE, recorded_s=ELIGIBLE, replayed_s=RECORDED)
    assert np.isnan(none.mean_wait_error)
    assert np.isnan(none.wait_correlation)
    assert none.to_json()["mean_wait_error"] is None
    assert none.to_json()["mean_wait_s"] == 20.0


def test_too_few_starts_judge_nothing() -> None:
    with pytest.raises(NotEnoughHistory):
        fidelity("x", eligible_s=ELIGIBLE[:2], recorded_s=RECORDED[:2], replayed_s=RECORDED[:2])


def test_the_table_has_a_row_for_each_replay_and_the_record() -> None:
    console = Console(width=100, record=True, file=None)
    with console.capture() as printed:
        console.print(fidelity_table([held(RECORDED), held(ELIGIBLE)]))
    text = printed.get()
    assert "recorded mean wait 20.0 s" in text
    assert "-100.0 %" in text
    assert "0.800" in text
