"""Urgency and SiteFactor, soft limit and TimeMin: what Helios writes bears its mark, and reads back."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios import ownership


@given(urgency=st.floats(-1, 1), most=st.integers(137, 1_000_000_000))
def test_every_site_factor_has_mark_and_bound_and_reads_back(urgency: float, most: int) -> None:
    written = ownership.site_factor(urgency, most=most)
    assert abs(written) <= most
    assert written == 0 or abs(written) % 100 == 37
    assert abs(ownership.urgency(written, most=most) - urgency) <= 0.5 / ownership.steps(most) + 1e-9


@given(first=st.floats(-1, 1), second=st.floats(-1, 1))
def test_a_more_urgent_job_never_gets_less(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert ownership.site_factor(low, most=10_000) <= ownership.site_factor(high, most=10_000)


@pytest.mark.parametrize("value", [0, 100, 36, 38, -500, 10_000])
def test_a_site_factor_without_the_mark_is_no_urgency(value: int) -> None:
    assert ownership.urgency(value, most=10_000) == 0
    assert not ownership.has_helios_mark(value)


def test_a_site_factor_from_a_wider_bound_reads_as_the_utmost() -> None:
    assert ownership.urgency(-50_037, most=10_000) == -1


@given(seconds=st.floats(0.001, 1e7))
def test_a_time_min_bears_the_mark_and_is_the_next_one_up(seconds: float) -> None:
    minutes = ownership.time_min(timedelta(seconds=seconds))
    assert minutes % 10 == 7
    assert 0 <= minutes * 60 - timedelta(seconds=seconds).total_seconds() <= 600


@given(urgency=st.lists(st.floats(-1, 1), min_size=1), most=st.integers(137, 1_000_000))
def test_many_urgencies_become_the_site_factors_that_each_does(urgency: list[float], most: int) -> None:
    written = ownership.site_factors(np.array(urgency), n_steps=ownership.steps(most))
    assert written.tolist() == [ownership.site_factor(each, most=most) for each in urgency]


@given(value=st.lists(st.integers(-100_000, 100_000), min_size=1), most=st.integers(137, 100_000))
def test_many_site_factors_are_read_as_each_is(value: list[int], most: int) -> None:
    marked = value + [each // 100 * 100 + 37 for each in value if each >= 0]
    assert ownership.have_helios_mark(np.array(marked)).tolist() == [ownership.has_helios_mark(each) for each in marked]
    read = ownership.urgencies(np.array(marked), n_steps=ownership.steps(most))
    assert read.tolist() == pytest.approx([ownership.urgency(each, most=most) for each in marked])


@pytest.mark.parametrize(("seconds", "minutes"), [(1, 1), (60, 1), (61, 2)])
def test_whole_minutes_are_no_shorter_than_what_is_asked_for(seconds: int, minutes: int) -> None:
    assert ownership.whole_minutes(timedelta(seconds=seconds)) == minutes


@pytest.mark.parametrize(("minutes", "ours"), [(7, True), (107, True), (0, False), (70, False), (8, False)])
def test_a_time_min_is_known_by_its_last_digit(minutes: int, ours: bool) -> None:
    assert ownership.has_helios_time_min(minutes) == ours
