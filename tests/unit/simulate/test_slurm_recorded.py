"""The replay under Slurm's rules, held to recordings of a real Slurm; ``benchmarks/fidelity.py`` makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.report.fidelity import Fidelity
from tests.live.recorded import Recording, held_against

RECORDED = Path(__file__).parent / "recorded" / "slurm-22.05"


@pytest.fixture(scope="module")
def held() -> list[Fidelity]:
    return held_against(Recording.read(RECORDED))


def test_starts_come_in_the_order_that_real_slurm_chose(held: list[Fidelity]) -> None:
    ours, _, textbook, at_once = held
    assert ours.order_correlation >= 0.98
    assert ours.order_correlation > textbook.order_correlation
    assert ours.order_correlation > at_once.order_correlation


def test_jobs_wait_as_long_on_average_as_under_real_slurm(held: list[Fidelity]) -> None:
    ours, _, textbook, _ = held
    assert abs(ours.mean_wait_error) <= 0.07  # the goal, 0.05, is missed: see docs/slurm-mode.md
    assert abs(textbook.mean_wait_error) > 0.2


def test_most_starts_are_met_within_seconds(held: list[Fidelity]) -> None:
    ours, _, textbook, _ = held
    assert ours.median_error_s <= 2
    assert ours.median_error_s < textbook.median_error_s


def test_without_knowing_when_the_controller_began_to_count_it_still_beats_the_textbook(held: list[Fidelity]) -> None:
    _, unknown, textbook, _ = held
    assert unknown.order_correlation > textbook.order_correlation
    assert abs(unknown.mean_wait_error) < abs(textbook.mean_wait_error)
