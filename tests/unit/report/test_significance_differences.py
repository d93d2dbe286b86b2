"""Intervals of differences: as wide as chance is, and no wider; what they say at 80 columns."""

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import t as student

from helios.metrics.statistics import confidence_interval
from helios.report.significance import CRITERIA, Differences, ResampledUnit, compare_repeats
from helios.report.whatif_tables import differences_table


def a_repeat(mean: float, large: float | None = 5.0) -> dict[str, float | None]:
    return {"mean_wait_s": mean, "p99_wait_s": 10 * mean, "max_wait_s": 100 * mean, "mean_wait_large_s": large}


def written(found: Differences, *, width: int = 80) -> str:
    console = Console(width=width, record=True)
    with console.capture() as said:
        console.print(differences_table(found))
    return said.get()


@pytest.mark.parametrize("blocks", [4, 8, 26])
def test_an_interval_of_few_weeks_covers_as_often_as_promised(blocks: int) -> None:
    """Draw sites of so many weeks, redraw their weeks, and count how often the true mean lies inside."""
    rng = np.random.default_rng(blocks)
    inside = 0
    for _ in range(400):
        weeks = rng.normal(100, 30, size=blocks)
        draws = weeks[rng.integers(0, blocks, size=(30, blocks))].mean(axis=1)
        low, high = confidence_interval(draws, value=float(draws.mean()), independent=blocks)
        inside += low is not None and high is not None and low <= 100 <= high
    assert 0.92 <= inside / 400 <= 0.985


def test_repeats_are_paired() -> None:
    """Weeks differ by hours, the two orders by 2 % in each: of pairs, that is sure."""
    rng = np.random.default_rng(0)
    base = rng.uniform(3_600, 36_000, size=20)
    gain = base * rng.normal(0.02, 0.001, size=20)
    replays = {"today": [a_repeat(wait) for wait in base], "new": [a_repeat(wait) for wait in base - gain]}
    found = (
        compare_repeats(replays, baseline="today", over=ResampledUnit.WEEKS, blocks=10)
        .others[0]
        .differences["mean_wait_s"]
    )
    assert found.value == pytest.approx(-gain.mean())
    assert not found.is_none
    assert found.high - found.low < 0.01 * base.mean()


def test_a_criterion_that_no_repeat_has_is_left_out() -> None:
    replays = {name: [a_repeat(100.0 + i, large=None) for i in range(6)] for name in ("today", "new")}
    found = compare_repeats(replays, baseline="today", over=ResampledUnit.SEEDS, blocks=0)
    assert found.others[0].differences["mean_wait_large_s"] is None
    assert CRITERIA["mean_wait_large_s"] not in written(found)


def test_seeds_are_observations_of_their_own() -> None:
    replays = {"today": [a_repeat(1000.0)] * 10, "new": [a_repeat(1000.0 + i) for i in range(10)]}
    found = (
        compare_repeats(replays, baseline="today", over=ResampledUnit.SEEDS, blocks=0)
        .others[0]
        .differences["mean_wait_s"]
    )
    logs = np.log((1001.0 + np.arange(10)) / 1001)
    half = float(student.ppf(0.975, 9)) * np.sqrt(1.1) * np.std(logs, ddof=1)
    bounds = 1001 * np.expm1(np.log(1005.5 / 1001) + np.array([-half, half]))
    assert (found.low, found.high) == pytest.approx(tuple(bounds))


def test_the_table_fits_80_columns_and_says_no_difference() -> None:
    label = "QSSF predicted + EASY (predicted)"
    draws = np.random.default_rng(0).normal(0, 50_000, size=(2, 20))
    replays = {
        "FIFO + EASY (limit)": [a_repeat(200_000.0 + wait, large=3e5) for wait in draws[0]],
        label: [a_repeat(200_000.0 + wait, large=1e5) for wait in draws[1]],
    }
    text = written(compare_repeats(replays, baseline="FIFO + EASY (limit)", over=ResampledUnit.WEEKS, blocks=8))
    assert max(map(len, text.splitlines())) <= 80
    assert "no difference" in text
    assert "-2d07h" in text
    assert "…" not in text


def test_a_difference_that_nobody_would_notice_is_none() -> None:
    replays = {"today": [a_repeat(100.0)] * 8, "new": [a_repeat(99.5)] * 8}
    found = (
        compare_repeats(replays, baseline="today", over=ResampledUnit.WEEKS, blocks=8)
        .others[0]
        .differences["mean_wait_s"]
    )
    assert found.low is not None and found.high is not None and found.high < 0
    assert found.is_none
