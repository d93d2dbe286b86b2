"""Whoever changes what comes later changes nothing that was learned or said before: the leak that flatters figures."""

import numpy as np
import pandas as pd
import pytest

from helios.model import JOBS, in_submission_order
from helios.predict.bursts import BurstUpdate
from helios.predict.duration import DurationModel, HistoryPredictor, refit, train
from helios.predict.evaluation import calibrated_quantiles
from helios.predict.job_table import JobTable, features_at_start, group_columns
from helios.predict.model_record import describe_provenance, to_record
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace

SEEDS = range(3)


def a_past(n=600, **options):
    """Return jobs of which some wait, some never start, some have no name or user, and many are alike."""
    jobs = a_campaign(n, users=8, noise=1.0, **options)
    rng = np.random.default_rng(n)
    return jobs.assign(
        name=pd.Categorical(rng.choice(["fit1", "fit2", "cook"], n)),
        account=pd.Categorical(rng.choice(["physics", "arts"], n)),
        gpus=rng.choice([1, 2, 16], n).astype(np.int32),
    ).pipe(JOBS.conform)


def with_another_future(jobs, moment, seed):
    """Return ``jobs`` as they were before ``moment``: what had not ended goes on otherwise, and others come."""
    rng = np.random.default_rng(seed)
    here = jobs[jobs["submitted_at"] < moment].reset_index(drop=True)
    n = len(here)
    open_suspended = ~(JobTable.from_frame(here).ended_s < moment.timestamp())
    started = here["submitted_at"] + pd.to_timedelta(rng.integers(0, 10_000, n), unit="s")
    run_s = np.where(rng.random(n) < 0.2, np.nan, np.round(np.exp(rng.uniform(0, 12, n))))
    ended = np.maximum(started + pd.to_timedelta(np.nan_to_num(run_s), unit="s"), moment).where(np.isfinite(run_s))
    state = rng.choice(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], n)
    for column, other in (("started_at", started), ("ended_at", ended), ("run_time_s", run_s), ("state", state)):
        plain = here[column].astype(object)
        here[column] = plain.where(~open_suspended, pd.Series(other).astype(object))
    later = [
        {
            "job_id": f"later{number}",
            "submit": int((moment - EPOCH).total_seconds()) + int(gap),
            "run": float(rng.integers(0, 100_000)),
            "user": str(rng.choice(["u0", "u1", "eve", "adam"])),
            "name": str(rng.choice(["fit1", "aaa", "zzz9"])),
            "partition": str(rng.choice(["another", "batch"])),
            "time_limit_s": float(rng.choice([60.0, 7200.0, np.inf])),
            "gpus": int(rng.choice([0, 1, 64])),
        }
        for number, gap in enumerate(np.sort(rng.integers(0, 500_000, rng.integers(0, 120))))
    ]
    both = [JOBS.conform(here), a_trace(*later)] if later else [JOBS.conform(here)]
    return in_submission_order(JOBS.conform(pd.concat(both, ignore_index=True)))


def record_of(jobs, until):
    table = JobTable.from_frame(jobs)
    model = train(jobs, cluster="lab", until=until)
    features = features_at_start(table).at_submission
    provenance = describe_provenance(model, jobs, table=table, features=features, seed=0)
    return model, to_record(model, trained_at=EPOCH.to_pydatetime(), provenance=provenance)


@pytest.fixture(scope="module")
def past():
    jobs = a_past()
    until = jobs["submitted_at"].iloc[500]
    return jobs, until, *record_of(jobs, until.to_pydatetime())


def test_the_history_is_such_that_a_leak_would_show(past):
    jobs, until, model, _ = past
    table = JobTable.from_frame(jobs)
    submitted = (jobs["submitted_at"] < until).to_numpy()
    assert (submitted & (table.ended_s >= until.timestamp())).sum() > 10
    assert model.backtest is not None
    assert model.calibration is not None
    assert len(features_at_start(table).waited) > 300


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_trained_until_a_moment_is_the_same_to_the_byte_whatever_comes_after_it(past, seed):
    jobs, until, model, record = past
    other, its_record = record_of(with_another_future(jobs, until, seed), until.to_pydatetime())
    assert other.model_id == model.model_id
    assert its_record.artifact == record.artifact


def said_of(jobs, model, moment):
    """Return what is said of each job at its submission and at its start, calibrated, and with siblings; and when."""
    table = JobTable.from_frame(jobs)
    known = features_at_start(table)
    at_s = table.submitted_s.copy()
    at_s[known.waited] = table.started_s[known.waited]
    trained = model if isinstance(model, DurationModel) else None
    first = calibrated_quantiles(trained, table, known.at_submission, model.predict(known.at_submission))
    latest = known.latest()
    again = calibrated_quantiles(trained, table, latest, model.predict(latest), predicted_at_s=at_s)
    siblings = BurstUpdate(group_columns(table)).revised_at_start(again[known.waited], known.waited, table)
    waited = known.waited[table.started_s[known.waited] <= moment.timestamp()]
    names = jobs["job_id"].to_numpy()
    return (
        dict(zip(names, first.tolist(), strict=True)),
        dict(zip(names, again.tolist(), strict=True)),
        dict(zip(names[known.waited], siblings.tolist(), strict=True)),
        set(names[at_s <= moment.timestamp()]) & set(names[table.submitted_s < moment.timestamp()]),
        set(names[waited]),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", ["a model", "shrinkage"])
def test_what_is_said_before_a_moment_is_the_same_whatever_comes_after_it(past, seed, by):
    jobs, _, model, _ = past
    predictor = model if by == "a model" else HistoryPredictor()
    moment = jobs["submitted_at"].iloc[300]
    # What has not started by the moment is another future; so that the same jobs are asked at their start, keep those
    # that had started.
    other = with_another_future(jobs, moment, seed)
    started = jobs.set_index("job_id")["started_at"]
    keeps = other["job_id"].map(started).le(moment).to_numpy()
    other["started_at"] = other["started_at"].where(~keeps, other["job_id"].map(started))
    wrong = (other["ended_at"] < other["started_at"]).to_numpy()
    other.loc[wrong, "ended_at"] = other.loc[wrong, "started_at"]
    one, two = said_of(jobs, predictor, moment), said_of(JOBS.conform(other), predictor, moment)
    before = set(jobs.loc[jobs["submitted_at"] < moment, "job_id"])
    asked = one[3] & set(started[started <= moment].index)
    assert len(asked) > 200
    for name in before:
        np.testing.assert_array_equal(one[0][name], two[0][name])
    for name in asked:
        np.testing.assert_array_equal(one[1][name], two[1][name])
    for name in one[4] & asked:
        np.testing.assert_array_equal(one[2][name], two[2][name])


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_a_model_grown_anew_during_a_judgement_knows_nothing_later(past, seed):
    jobs, _, model, _ = past
    moment = jobs["submitted_at"].iloc[550]

    def grown(history):
        table = JobTable.from_frame(history)
        return refit(model, table, features_at_start(table), until=moment.to_pydatetime(), seed=0)

    assert isinstance(one := grown(jobs), DurationModel)
    assert grown(with_another_future(jobs, moment, seed)).texts == one.texts
    assert one.trust == model.trust


def test_a_sibling_that_starts_later_says_nothing():
    table = JobTable.from_frame(a_trace({"wait": 400, "run": 5000.0}, {"submit": 1, "wait": 200}))
    predicted = np.array([[10.0, 100.0, 1000.0]])
    revised = BurstUpdate(group_columns(table)).revised_at_start(predicted, np.array([1]), table)
    np.testing.assert_array_equal(revised, predicted)
