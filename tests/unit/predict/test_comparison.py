"""Two predictors on the same jobs: figures right, chance told from difference, campaigns not taken for evidence."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.predict.comparison import (
    NEGLIGIBLE,
    TOO_MUCH,
    Comparison,
    PairedDifference,
    Versus,
    _rank_correlations,
    _weighted_medians,
    compare_predictors,
    user_clusters,
)
from helios.predict.job_table import JobTable
from helios.predict.scores import predictor_score
from tests.run_times import in_columns
from tests.unit.predict.traces_of import a_campaign, a_trace


def held(jobs, predictions, *, challenger="new"):
    table = JobTable.from_frame(jobs)
    rows = np.arange(table.n)
    return compare_predictors(predictions, table.run_time_s, challenger=challenger, table=table, rows=rows)


def noisy(jobs, sigma, seed):
    rng = np.random.default_rng(seed)
    return jobs["run_time_s"].to_numpy() * np.exp(sigma * rng.standard_normal(len(jobs)))


@given(
    values=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any),
    clusters=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_the_median_of_a_draw_is_that_of_the_repeated_jobs(values, counts, clusters):
    cluster = np.array(clusters[: len(values)])
    written = np.repeat(values, np.array(counts)[cluster])
    if len(written) == 0:
        return
    (found,) = _weighted_medians(np.array(values, float), cluster, np.array([counts], float))
    assert found in {np.quantile(written, 0.5, method="lower"), np.quantile(written, 0.5, method="higher")}


def test_the_rank_correlation_of_the_whole_is_spearman_s():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 200).astype(float), rng.integers(0, 9, 200).astype(float) + 0.0
    (found,) = _rank_correlations(a, b, np.arange(200) % 7, np.ones((1, 7)))
    assert found == pytest.approx(pd.Series(a).corr(pd.Series(b), method="spearman"))


def test_a_rank_correlation_counts_a_cluster_as_often_as_drawn():
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0])
    (found,) = _rank_correlations(a, b, np.array([0, 0, 1, 1]), np.array([[2.0, 1.0]]))
    twice = [0, 1, 0, 1, 2, 3]
    assert found == pytest.approx(np.corrcoef(a[twice], b[twice])[0, 1])


def test_the_figures_are_those_of_their_definition():
    score = predictor_score(in_columns([[1.0, 9.0, 20.0], [0.0, 3.0, 5.0]]), np.array([9.0, 7.0]))
    assert score.coverage_p10_p90 == 0.5
    assert score.bias_log == pytest.approx((np.log(4) - np.log(8)) / 2)
    assert score.median_abs_log_error == pytest.approx(np.log(2) / 2)
    assert predictor_score(np.array([1.0, 1.0]), np.array([9.0, 7.0])).spearman is None


def test_a_predictor_that_is_better_everywhere_is_better_beyond_chance():
    jobs = a_campaign(1200, users=20)
    against = held(jobs, {"new": noisy(jobs, 0.2, 1), "old": noisy(jobs, 1.5, 2)}).against["old"]
    assert against.better_in == ("log error", "rank correlation")
    assert against.ahead
    assert not against.is_chance


def test_a_predictor_that_is_worse_everywhere_is_worse_beyond_chance():
    jobs = a_campaign(1200, users=20)
    against = held(jobs, {"new": noisy(jobs, 1.5, 2), "old": noisy(jobs, 0.2, 1)}).against["old"]
    assert against.worse_in == ("log error", "rank correlation")
    assert not against.ahead


def test_two_predictors_alike_differ_by_chance_alone():
    jobs = a_campaign(600, users=20)
    against = held(jobs, {"new": noisy(jobs, 0.8, 1), "old": noisy(jobs, 0.8, 2)}).against["old"]
    assert against.is_chance


def test_one_campaign_of_many_jobs_is_no_evidence():
    # A thousand jobs of one user are predicted better, all others alike: without that user nothing is left.
    jobs = a_trace(
        *({"submit": n, "run": 100.0 + n, "user": "big"} for n in range(1000)),
        *({"submit": 1000 + n, "run": 50.0 + n, "user": f"u{n % 25}"} for n in range(1100)),
    )
    truth = jobs["run_time_s"].to_numpy()
    same = noisy(jobs, 0.5, 3)
    better = np.where(jobs["user"] == "big", truth * np.exp(0.3 * (same / truth > 1) - 0.15), same)
    comparison = held(jobs, {"new": better, "old": same})
    assert comparison.drawn == "users"
    alone = held(jobs.assign(user=pd.Categorical([f"j{n}" for n in range(len(jobs))])), {"new": better, "old": same})
    width = {
        name: one.against["old"].error.high - one.against["old"].error.low
        for name, one in (("users", comparison), ("jobs", alone))
    }
    assert width["users"] > 2 * width["jobs"]


def test_where_one_user_has_most_jobs_bursts_are_drawn():
    jobs = a_trace(
        *({"submit": 7 * 3600 * n, "user": "big"} for n in range(20)),
        *({"submit": 600_000, "user": f"u{n}"} for n in range(12)),
    )
    cluster, drawn = user_clusters(JobTable.from_frame(jobs), np.arange(len(jobs)))
    assert drawn == "bursts"
    assert len(set(cluster[:20])) == 20


def test_one_burst_alone_is_no_evidence_however_large_the_difference():
    jobs = a_trace(*({"submit": n, "run": 10.0 + n} for n in range(300)))
    comparison = held(jobs, {"new": noisy(jobs, 0.3, 1), "old": noisy(jobs, 0.1, 2)})
    assert comparison.clusters == 1
    assert comparison.against["old"].error.value > 0
    assert comparison.against["old"].error.is_chance
    assert comparison.against["old"].rank.is_chance


def test_jobs_alike_within_six_hours_are_one_burst():
    jobs = a_trace({"submit": 0}, {"submit": 6 * 3600}, {"submit": 12 * 3600 + 1}, {"submit": 12 * 3600 + 1, "gpus": 8})
    cluster, _ = user_clusters(JobTable.from_frame(jobs), np.arange(4))
    assert cluster[0] == cluster[1]
    assert len(set(cluster)) == 3


def difference(value, half=0.5):
    return PairedDifference(value=value, low=value - half, high=value + half)


@pytest.mark.parametrize(
    ("error", "rank", "worse"),
    [
        (difference(0.05), difference(0.0), ()),
        (difference(0.05, half=0.01), difference(0.0), ("log error",)),
        (difference(NEGLIGIBLE / 2, half=1e-6), difference(0.0), ()),
        (difference(TOO_MUCH * 1.01), difference(0.0), ("log error",)),
        (difference(0.0), difference(-0.05, half=0.01), ("rank correlation",)),
        (difference(0.0), difference(-TOO_MUCH * 1.01), ("rank correlation",)),
        (difference(-0.3, half=0.01), None, ()),
    ],
)
def test_worse_is_beyond_chance_and_not_negligible_or_by_very_much(error, rank, worse):
    assert Versus(error=error, rank=rank).worse_in == worse


def test_a_comparison_comes_back_from_its_json():
    jobs = a_campaign(300, users=12)
    quantiles = np.sort(np.column_stack([noisy(jobs, 0.3, seed) for seed in range(3)]), axis=1)
    comparison = held(jobs, {"new": in_columns(quantiles), "old": noisy(jobs, 0.5, 4), "constant": np.full(300, 60.0)})
    assert comparison.against["constant"].rank is None
    assert Comparison.from_json(json.loads(json.dumps(comparison.to_json(), allow_nan=False))) == comparison


def test_the_same_jobs_are_judged_the_same_every_time():
    jobs = a_campaign(300, users=12)
    predictions = {"new": noisy(jobs, 0.3, 1), "old": noisy(jobs, 0.5, 4)}
    assert held(jobs, predictions) == held(jobs, predictions)
