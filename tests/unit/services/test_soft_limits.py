"""Soft limits: an upper bound, only where it is worth it, widened and never narrowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Result
from helios.services.soft_limits import STEP_S, SoftLimits
from helios.testing import FakeCluster, a_pending_job, a_snapshot, check_service
from tests.changes import asked
from tests.examples import examples

DAY_S = 86_400.0
run_times_s = st.floats(1, 1e6)


def bound_s(service: SoftLimits | None = None, **job: Any) -> float | None:
    """The soft limit of a job of a day's limit, s; None: it is given none."""
    row = a_pending_job(**({"time_limit_s": DAY_S, "source": "venus-20260101"} | job))
    actions = (service or SoftLimits(SoftLimits.Options())).decide(a_snapshot(pending=[row]))
    return actions[0].run_time.total_seconds() if actions else None


def predicted(p90_s: float) -> dict[str, float]:
    return {"p10_s": p90_s / 9, "p50_s": p90_s / 3, "p90_s": p90_s}


@pytest.mark.parametrize(
    ("p90_s", "expected_s"), [(1, 600), (400, 600), (401, 1200), (3600, 5400), (3601, 6000), (54_000, 81_000)]
)
def test_the_bound_is_the_upper_quantile_with_its_margin_in_whole_steps(p90_s: float, expected_s: float) -> None:
    assert bound_s(**predicted(p90_s)) == expected_s


@settings(max_examples=examples(15))
@given(p90_s=run_times_s, limit_s=st.floats(60, 1e7))
def test_a_bound_is_above_the_prediction_and_well_below_the_limit(p90_s: float, limit_s: float) -> None:
    bound = bound_s(**predicted(p90_s), time_limit_s=limit_s)
    if bound is not None:
        assert 1.5 * p90_s <= bound <= limit_s - 1_800


@pytest.mark.parametrize("limit_s", [2_399.0, np.inf, np.nan, 0.0])
def test_where_nothing_is_saved_nothing_is_set(limit_s: float) -> None:
    assert bound_s(**predicted(60), time_limit_s=limit_s) is None


def test_where_just_enough_is_saved_it_is_set() -> None:
    assert bound_s(**predicted(60), time_limit_s=2_400.0) == 600


@pytest.mark.parametrize(
    "job",
    [
        {"source": "shrinkage"},
        {"source": None},
        {"excluded_reason": "held"},
        {"user_soft_limit_s": 1200.0},
        {"p90_s": None},
        {"p90_s": None, "soft_limit_s": 1620.0},
    ],
    ids=str,
)
def test_a_job_that_may_not_be_given_one_is_left_alone(job: dict[str, Any]) -> None:
    assert bound_s(**(predicted(60) | job)) is None


def test_a_site_says_which_sources_it_does_not_believe() -> None:
    trusting = SoftLimits(SoftLimits.Options(fallbacks=()))
    assert bound_s(trusting, **predicted(60), source="shrinkage") == 600


@settings(max_examples=examples(30))
@given(first_s=run_times_s, second_s=run_times_s)
def test_predicting_again_never_narrows(first_s: float, second_s: float) -> None:
    cluster = FakeCluster()
    job_id = cluster.submit(time_limit_s=1e7)
    service = SoftLimits(SoftLimits.Options())
    minutes = []
    for p90_s in (first_s, second_s):
        seen = cluster.snapshot()
        row = seen.pending.iloc[0].to_dict() | predicted(p90_s) | {"source": "venus-20260101"}
        cluster.apply(asked(service.decide(a_snapshot(pending=[row]))))
        minutes.append(cluster.time_min_of(job_id))
    assert minutes[1] >= minutes[0] > 0
    assert minutes[1] * 60 >= 1.5 * max(first_s, second_s)


@settings(max_examples=examples(30))
@given(p90_s=st.floats(500, 50_000), again=st.floats(0.5, 1.0))
def test_a_shorter_prediction_rewrites_nothing(p90_s: float, again: float) -> None:
    cluster = FakeCluster()
    job_id = cluster.submit(time_limit_s=DAY_S * 7)
    service = SoftLimits(SoftLimits.Options())
    for seconds in (p90_s, p90_s * again):
        row = cluster.snapshot().pending.iloc[0].to_dict() | predicted(seconds) | {"source": "venus-20260101"}
        outcomes = cluster.apply(asked(service.decide(a_snapshot(pending=[row]))))
    assert [(outcome.job_id, outcome.result) for outcome in outcomes] == [(job_id, Result.UNCHANGED)]


def test_a_bound_that_no_longer_helps_is_dropped() -> None:
    assert bound_s(**predicted(80_000), soft_limit_s=7_620.0) is None


def test_reasons_are_for_a_person() -> None:
    row = a_pending_job(time_limit_s=7 * DAY_S, source="m", **predicted(2 * 3600))
    (action,) = SoftLimits(SoftLimits.Options()).decide(a_snapshot(pending=[row]))
    assert action.run_time == timedelta(hours=3)
    assert action.run_time.total_seconds() % STEP_S == 0
    assert action.reason == "9 of 10 such jobs run less than 2 h; the time limit is 7 days"


@pytest.mark.parametrize(
    "wrong", [{"every_s": 0}, {"margin": 0.9}, {"margin": np.inf}, {"least_s": 0.0}, {"worth_s": -1.0}], ids=str
)
def test_options_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SoftLimits.Options(**wrong)


def test_it_asks_for_a_proof_before_it_acts() -> None:
    assert SoftLimits.requires_gain == "soft_limits"


def test_it_is_a_service() -> None:
    check_service(SoftLimits(SoftLimits.Options(fallbacks=(), worth_s=0.0)))
