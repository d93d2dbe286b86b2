"""Which trials of a device run when, without processes and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.training.pool.attempts import LEAST_SHARE, divide_time
from helios.training.pool.slices import TimeSlices, fill_places

SLICE_S = 0.2
Use = Callable[[int, float], float]


def run(
    shares: Mapping[int, float], *, places: int = 1, seconds: float = 100.0, use: Use = lambda number, now: 1.0
) -> tuple[dict[int, float], dict[int, float]]:
    """What each trial got of all time, and the longest that it waited, s."""
    slices = TimeSlices(SLICE_S)
    slices.set_shares(shares, places)
    got, waited, last = dict.fromkeys(shares, 0.0), dict.fromkeys(shares, 0.0), dict.fromkeys(shares, 0.0)
    for turn in range(round(seconds / SLICE_S)):
        now = turn * SLICE_S
        wanted = {number: SLICE_S * use(number, now) for number in slices.choose(shares)}
        scale = min(1.0, places * SLICE_S / max(1e-9, sum(wanted.values())))
        used = {number: scale * wanted_s for number, wanted_s in wanted.items()}
        slices.charge(SLICE_S, used, wanted)
        for number, used_s in used.items():
            got[number] += used_s / (places * seconds)
            waited[number] = max(waited[number], now - last[number])
            last[number] = now + SLICE_S
    return got, waited


@given(st.lists(st.floats(0.02, 1.0), min_size=2, max_size=12), st.integers(1, 4))
def test_trials_get_their_shares_of_all_places(weights: list[float], places: int) -> None:
    shares = {number: weight / sum(weights) for number, weight in enumerate(weights)}
    got, _ = run(shares, places=places, seconds=200.0)
    parts = fill_places(shares, places)
    assert got == pytest.approx({number: part / places for number, part in parts.items()}, abs=0.015)


@given(st.dictionaries(st.integers(0, 9), st.floats(0.001, 1.0), min_size=1), st.integers(1, 12))
def test_no_place_is_left_free_and_none_is_taken_twice(shares: dict[int, float], places: int) -> None:
    parts = fill_places(shares, places)
    assert parts.keys() == shares.keys()
    assert sum(parts.values()) == pytest.approx(min(places, len(shares)))
    assert max(parts.values()) <= 1.0 + 1e-9


def test_no_trial_waits_much_longer_than_its_share_says() -> None:
    _, waited = run({0: 0.6, 1: 0.3, 2: 0.1})
    assert waited[2] <= 2 * SLICE_S / 0.1


def test_time_that_a_sleeping_trial_leaves_goes_to_the_others() -> None:
    got, _ = run({0: 0.6, 1: 0.3, 2: 0.1}, use=lambda number, now: 0.02 if number == 0 else 1.0)
    assert sum(got.values()) > 0.98
    assert got[1] / got[2] == pytest.approx(3.0, abs=0.2)


def test_a_trial_that_wakes_does_not_take_what_it_has_slept_through() -> None:
    def use(number: int, now: float) -> float:
        return 0.02 if number == 0 and now < 90.0 else 1.0

    before, _ = run({0: 0.5, 1: 0.5}, seconds=90.0, use=use)
    after, _ = run({0: 0.5, 1: 0.5}, seconds=100.0, use=use)
    awake_s = {number: 100.0 * after[number] - 90.0 * before[number] for number in after}
    assert awake_s == pytest.approx({0: 5.0, 1: 5.0}, abs=1.0)


def test_shares_that_change_all_the_time_are_kept() -> None:
    slices, got = TimeSlices(SLICE_S), dict.fromkeys(range(3), 0)
    for _ in range(500):
        slices.set_shares({0: 0.6, 1: 0.3, 2: 0.1}, 1)
        for number in (chosen := slices.choose(range(3))):
            got[number] += 1
        slices.charge(SLICE_S, dict.fromkeys(chosen, SLICE_S), dict.fromkeys(chosen, SLICE_S))
    assert got == pytest.approx({0: 300, 1: 150, 2: 50}, abs=5)


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ({0: None, 1: None}, {}),
        ({0: 0.5}, {0: 1.0}),
        ({0: 0.6, 1: None, 2: None}, {0: 0.6, 1: 0.2, 2: 0.2}),
        ({0: 0.2, 1: 0.2}, {0: 0.5, 1: 0.5}),
        ({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5}),
        ({0: 1.0, 1: None}, {0: 1 / (1 + LEAST_SHARE), 1: LEAST_SHARE / (1 + LEAST_SHARE)}),
    ],
)
def test_trials_without_a_share_divide_what_is_left(given: dict[int, float | None], shares: dict[int, float]) -> None:
    assert divide_time(given) == pytest.approx(shares)
