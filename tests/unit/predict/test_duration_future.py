"""Whoever changes what comes later changes nothing that was learned or said before: the leak that flatters figures."""

import numpy as np
import pandas as pd
import pytest

from helios.model import JOBS, in_submission_order
from helios.predict.duration import grow_trees, train
from helios.predict.job_table import JobTable, causal_features
from helios.predict.model_record import describe_provenance, to_record
from helios.predict.timeline import RecordedWalk
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace
from tests.unit.predict.walks import walked

SEEDS = range(3)


def a_past(n=600, **options):
    """Return jobs of which some wait, some never start, some have no name or user, and many are alike."""
    jobs = a_campaign(n, users=8, noise=1.0, **options)
    rng = np.random.default_rng(n)
    return jobs.assign(
        name=pd.Categorical(rng.choice(["fit1", "fit2", "cook"], n)),
        account=pd.Categorical(rng.choice(["physics", "arts"], n)),
        gpus=rng.choice([1.0, 2.0, 16.0], n),
    ).pipe(JOBS.conform)


def with_another_future(jobs, moment, seed):
    """Return ``jobs`` as they were before ``moment``: what had not ended goes on otherwise, and others come."""
    rng = np.random.default_rng(seed)
    here = jobs[jobs["submitted_at"] < moment].reset_index(drop=True)
    n = len(here)
    open_suspended = ~(JobTable.from_frame(here).ended_s < moment.timestamp())
    other = here["submitted_at"] + pd.to_timedelta(rng.integers(0, 10_000, n), unit="s")
    started = here["started_at"].where(here["started_at"] < moment, np.maximum(other, moment))
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
    features = causal_features(table).X
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
    assert (table.started_s > table.submitted_s).sum() > 300


@pytest.mark.parametrize("seed", SEEDS)
def test_later_jobs_change_no_byte_of_a_model_trained_before(past, seed):
    jobs, until, model, record = past
    other, its_record = record_of(with_another_future(jobs, until, seed), until.to_pydatetime())
    assert other.model_id == model.model_id
    assert its_record.artifact == record.artifact


def predictions_of(jobs, model):
    """Return the prediction of each job at its submission and, where it waited, at its start, by id."""
    walk, names = walked(jobs, model=model, at_start=True), jobs["job_id"].to_numpy()
    return [dict(zip(names, found.tolist(), strict=True)) for found in (walk.predicted, walk.at_start)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", ["a model", "shrinkage"])
def test_later_jobs_change_no_prediction_made_before(past, seed, by):
    jobs, _, model, _ = past
    moment = jobs["submitted_at"].iloc[300]
    predictor, other = (model if by == "a model" else None), with_another_future(jobs, moment, seed)
    one, two = predictions_of(jobs, predictor), predictions_of(other, predictor)
    before = set(jobs.loc[jobs["submitted_at"] < moment, "job_id"])
    asked = before & set(jobs.loc[jobs["started_at"] < moment, "job_id"])
    assert len(asked) > 200
    for name in before:
        np.testing.assert_array_equal(one[0][name], two[0][name])
    for name in asked:
        np.testing.assert_array_equal(one[1][name], two[1][name])


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_trees_grown_on_the_way_know_nothing_later(past, seed):
    jobs, *_ = past
    moment = jobs["submitted_at"].iloc[550]

    def grown(history):
        walk = RecordedWalk(JobTable.from_frame(history))
        walk.to(int(moment.timestamp()))
        return grow_trees(walk.timeline, moment.to_pydatetime(), seed=0)

    assert grown(with_another_future(jobs, moment, seed)) == grown(jobs)
