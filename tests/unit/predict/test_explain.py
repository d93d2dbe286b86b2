from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from helios.errors import FrameInvalid
from helios.predict.causal_stats import LEVELS, NEIGHBOUR_PSEUDO_JOBS
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.duration import train
from helios.predict.explain import AFTERWARDS, DISTRIBUTION, EVERY_JOB, NEIGHBOURHOOD, PRIOR, explain_last
from helios.predict.job_table import JobTable, causal_features
from helios.predict.similar_jobs import BASES, narrowest_group
from tests.examples import examples
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace, traces
from tests.unit.predict.walks import quantiles_of

JOBS = a_campaign(700, noise=0.8)


@cache
def a_model():
    return train(JOBS.iloc[:500], cluster="here")


def multiplied(told):
    """Return the run time that all factors make of the first step's."""
    factors = [step.factor for step in told.steps] + list(told.corrections.values())
    return (1 + told.steps[0].run_time_s) * np.prod(factors) - 1


@settings(max_examples=examples(15), deadline=None)
@given(traces())
def test_without_a_model_the_factors_multiply_to_the_prediction(jobs):
    told = explain_last(jobs)
    assert multiplied(told) == pytest.approx(told.quantiles_s[1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("number", [0, 1, 300, 699])
def test_with_a_model_the_factors_multiply_to_the_prediction(number, trained):
    told = explain_last(JOBS.iloc[: number + 1], model=replace(a_model(), trained=trained))
    assert multiplied(told) == pytest.approx(told.quantiles_s[1], rel=1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(traces())
def test_it_explains_what_is_predicted_of_the_job_among_the_whole_trace(jobs):
    number = len(jobs) // 2
    told = explain_last(jobs.iloc[: number + 1])
    rows = causal_features(JobTable.from_frame(jobs)).X
    np.testing.assert_array_equal(list(told.features.values()), rows[number])
    assert told.quantiles_s[1] == pytest.approx(quantiles_of(jobs)[number, 1], rel=1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(traces())
def test_each_step_is_the_mean_that_the_features_name(jobs):
    told = explain_last(jobs)
    for step in told.steps:
        # Of the account the feature is its own mean, before the cluster's draws it.
        if (mean := told.features.get(f"{step.level}_mean")) is not None and step.level != "account":
            assert np.log1p(step.run_time_s) == pytest.approx(mean, abs=1e-5)
    before, weight = np.log1p(told.steps[-3].run_time_s), np.nan_to_num(told.features["neighbour_weight"])
    part = weight / (weight + NEIGHBOUR_PSEUDO_JOBS)
    drawn = before + part * (np.nan_to_num(told.features["neighbour_mean"]) - before)
    assert drawn == pytest.approx(told.features["anchor"], abs=1e-5)


def test_steps_lead_from_a_guess_through_every_level_to_the_neighbours():
    jobs = a_trace(*({"submit": 100 * n, "name": "fit", "account": "physics"} for n in range(3)))
    passed = [name for name in LEVELS if name not in {"partition", "user_any_limit"}]
    assert [step.level for step in explain_last(jobs).steps] == [PRIOR, *passed, NEIGHBOURHOOD, DISTRIBUTION]


def test_a_step_counts_the_jobs_of_its_group_that_had_ended():
    jobs = a_trace(
        {"user": "ada"},
        {"user": "ada", "submit": 10, "gpus": 8},
        {"user": "bob", "submit": 20},
        {"user": "ada", "submit": 30, "run": 9_000.0},
        {"user": "ada", "submit": 1000},
    )
    counted = {step.level: step.jobs for step in explain_last(jobs).steps}
    assert counted["global"] == 3
    assert (counted["user"], counted["user_limit"], counted["user_size"]) == (2, 2, 1)
    assert counted[NEIGHBOURHOOD] == 2


def test_jobs_that_ran_longer_than_everybodys_raise_the_step_of_their_user():
    rows = [{"user": user, "run": run, "submit": n} for n in range(8) for user, run in (("ada", 9000.0), ("bob", 9.0))]
    steps = {step.level: step for step in explain_last(a_trace(*rows, {"user": "ada", "submit": 20_000})).steps}
    assert steps["user"].factor > 2


def test_the_trees_part_names_every_feature_and_without_trees_there_is_none():
    jobs = JOBS.iloc[:600]
    with_trees = explain_last(jobs, model=replace(a_model(), trained=True)).corrections
    assert list(with_trees) == [*PAIR_FEATURES, EVERY_JOB, AFTERWARDS]
    assert any(abs(np.log(factor)) > 0.01 for factor in with_trees.values())
    assert list(explain_last(jobs, model=replace(a_model(), trained=False)).corrections) == [AFTERWARDS]


def test_a_prediction_cut_at_the_time_limit_says_so_last():
    long = [{"run": 7000.0, "submit": 8000 * n} for n in range(6)]
    told = explain_last(a_trace(*long, {"submit": 80_000, "time_limit_s": 60.0}))
    assert told.quantiles_s[1] <= 121.0
    assert told.steps[-1].level == DISTRIBUTION
    assert told.steps[-1].factor < 0.5
    assert multiplied(told) == pytest.approx(told.quantiles_s[1], rel=1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(traces())
def test_what_had_not_ended_before_the_job_changes_nothing(jobs):
    moment = jobs["submitted_at"].iloc[-1]
    open_suspended = ~(JobTable.from_frame(jobs).ended_s < moment.timestamp())
    other = jobs.copy()
    waits = open_suspended & ~(other["started_at"] < moment).to_numpy()
    other.loc[waits, "started_at"] = moment
    other.loc[open_suspended, "ended_at"] = EPOCH + pd.Timedelta(days=1)
    other.loc[open_suspended, "run_time_s"] = 4242.0
    assert str(explain_last(jobs)) == str(explain_last(other))


@settings(max_examples=examples(15), deadline=None)
@given(traces())
def test_its_basis_is_the_narrowest_group_of_which_a_job_had_ended(jobs):
    told = explain_last(jobs)
    basis, last = narrowest_group(JobTable.from_frame(jobs))
    assert told.basis == basis
    assert told.recent == last


@pytest.mark.parametrize(
    ("last", "basis"),
    [
        ({}, "user+size"),
        ({"gpus": 4}, "user"),
        ({"user": "eve", "gpus": 4}, "group"),
        ({"user": "eve", "account": None}, "size"),
        ({"user": "eve", "account": None, "gpus": 4}, "all"),
    ],
)
def test_a_prediction_rests_on_the_jobs_nearest_to_it(last, basis):
    earlier = [{"submit": 10 * n, "run": 100.0 + n, "account": "physics"} for n in range(20)]
    told = explain_last(a_trace(*earlier, {"submit": 5000, "account": "physics"} | last))
    assert told.basis == basis
    assert basis in BASES
    assert (told.recent.jobs, told.recent.last) == (20, 12)
    assert (told.recent.shortest_s, told.recent.longest_s) == (108.0, 119.0)


def test_the_very_first_job_rests_on_nothing():
    told = explain_last(a_trace({}))
    assert told.recent is None
    assert told.resembling == ()
    assert told.steps[0].run_time_s == pytest.approx(1800)


def test_jobs_out_of_order_are_refused():
    with pytest.raises(FrameInvalid, match="submission order"):
        explain_last(a_trace({"submit": 10}, {"submit": 0}))
