"""Verdicts and sentences of statements, for findings of any value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.blocks import Estimate, Finding, Question
from helios.study.proposals import Source
from helios.study.sentences import number_text
from helios.study.text import THRESHOLDS, Statement, Verdict, statements
from tests.examples import examples
from tests.unit.study.worlds import a_history, job

HISTORY = a_history(job(0, 0, 3600), end=86_400)
PARTS: dict[str, Any] = {
    "service_hours_per_week": 10_000.0,
    **dict.fromkeys(("median_run_time_s", "wait_p50_s", "mean_wait_s", "longest_wait_s"), 60.0),
    "most_in_an_hour": 3,
}


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    """A finding whose value may be anywhere, and close to its bounds."""
    question = draw(st.sampled_from(Question))
    thresholds = THRESHOLDS.get(question)
    scale = PARTS["service_hours_per_week"] if question < 4 else 1.0
    near = [] if thresholds is None else [scale * thresholds.nothing, scale * thresholds.some]
    value = draw(st.sampled_from([0.0, *near]) | st.floats(0, 3 * scale))
    margin = draw(st.sampled_from([0.0, 0.01, 0.5]) | st.floats(0, 2)) * (value or scale)
    estimate = Estimate(value=value, low=value - margin, high=value + margin).bounded()
    if draw(st.booleans()) and draw(st.booleans()):
        estimate = Estimate(value=value)
    bound = draw(st.sampled_from([{}, {"upper_bound": True}, {"lower_bound": True}]))
    # What is printed beside the number must not move the verdict.
    beside = {name: draw(st.floats(0, 1)) for name in ("share_of_service", "short_p90", "median_by_jobs")}
    return Finding(question=question, estimate=estimate, n=5, parts=PARTS | beside | bound)


def told(finding: Finding) -> Statement:
    return statements([finding], HISTORY, size=None, source=Source())[0]


def numbers_in(text: str) -> list[float]:
    """The numbers of a printed value, in its unit."""
    found = [float(number.replace(",", "")) for number in re.findall(r"[\d,]*\.?\d+(?:e[+-]?\d+)?", text)]
    return [number / 100 for number in found] if "%" in text else found


@settings(max_examples=examples(300))
@given(findings())
def test_a_verdict_follows_from_the_number_that_is_printed(finding: Finding) -> None:
    statement = told(finding)
    if finding.question not in THRESHOLDS:
        assert statement.verdict is Verdict.LEVEL
        return
    printed = numbers_in(statement.shown_value)
    nothing, some = (
        numbers_in(number_text(bound, statement.unit))[0] for bound in (statement.nothing_up_to, statement.some_above)
    )
    if statement.verdict is Verdict.TRY:
        assert len(printed) == 3 and printed[1] >= some and not finding.parts.get("upper_bound")
    elif statement.verdict is Verdict.NOTHING:
        assert len(printed) == 3 and printed[2] <= nothing and not finding.parts.get("lower_bound")
    elif statement.verdict is Verdict.UNCLEAR:
        assert max(printed) >= nothing


@settings(max_examples=examples(100))
@given(findings())
def test_the_sentence_has_the_number_that_is_judged(finding: Finding) -> None:
    statement = told(finding)
    assert statement.shown_value in statement.sentence


@settings(max_examples=examples(100))
@given(findings())
def test_a_verdict_can_be_read_off_the_json(finding: Finding) -> None:
    read = json.loads(json.dumps(told(finding).to_json()))
    if read["verdict"] == Verdict.TRY:
        assert read["low"] > read["some_above"]
    if read["verdict"] == Verdict.NOTHING:
        assert read["high"] <= read["nothing_up_to"]


@pytest.mark.parametrize(
    ("question", "value", "low", "high", "parts"),
    [
        (Question.LONG_TIME_LIMITS, 1.05, 1.0, 1.1, {"median_by_jobs": 4.0}),
        (Question.WHO_WAITS, 0.0, 0.0, 0.0, {"short_p90": 0.9}),
        (Question.REPETITION, 0.94, 0.0, 1.0, {"rank_correlation": 0.6}),
    ],
)
def test_what_is_beside_a_number_is_no_reason_to_try(
    question: Question, value: float, low: float, high: float, parts: dict[str, float]
) -> None:
    estimate = Estimate(value=value, low=low, high=high)
    assert told(Finding(question=question, estimate=estimate, parts=PARTS | parts)).verdict is not Verdict.TRY
