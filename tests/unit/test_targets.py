"""Targets, as they are written and reached."""

from __future__ import annotations

import math

import pytest

from helios.targets import Target, parse_target


@pytest.mark.parametrize("text", ["val_acc>=0.9,0.95", "loss<=0.3", "eval/wer<=25,20", "a>=-2,-1"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_target(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "val_acc", "val_acc>0.9", "val_acc>=", "val_acc>=.9,.9", "loss<=.3,.4", "a>=.9,.8", "a>=1e999", "a>=nan"],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="target"):
        parse_target(text)


def test_a_value_reaches_a_target_in_its_direction() -> None:
    up, down = parse_target("acc>=0.9,0.95"), parse_target("loss<=0.3,0.2")
    assert [up.is_reached(tier, 0.92) for tier in (0, 1)] == [True, False]
    assert [down.is_reached(tier, 0.2) for tier in (0, 1)] == [True, True]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_no_number_reaches_no_target(value: float | None) -> None:
    assert not parse_target("acc>=0.9").is_reached(0, value)
    assert not parse_target("loss<=0.9").is_reached(0, value)


def test_values_that_mean_nothing_are_refused() -> None:
    for wrong in (0.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="weight of a target"):
            Target(metric="acc", first=0.9, weight=wrong)
        with pytest.raises(ValueError, match="deadline of a target"):
            Target(metric="acc", first=0.9, deadline_s=wrong)
    with pytest.raises(ValueError, match="finite"):
        Target(metric="acc", first=math.nan)
