"""The page of sweeps simulated with changing and with fixed sizes."""

from __future__ import annotations

import re

import pytest

from helios.training.whatif_elastic_page import sizes_figure
from tests.unit.training.test_whatif_elastic_report import a_result


def test_a_figure_names_twelve_trials_and_sums_the_others() -> None:
    svg = sizes_figure(a_result(20))
    assert len(set(re.findall(r">(a-model-of-…:\d+)<", svg))) == 12
    assert ">others<" in svg


@pytest.mark.parametrize(("trials", "unit"), [(1, "minutes"), (4, "hours")])
def test_a_short_pool_is_drawn_in_minutes(trials: int, unit: str) -> None:
    assert f">{unit}<" in sizes_figure(a_result(trials))
