from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order
from helios.predict import train
from helios.predict.live import predict_queue
from helios.testing import a_pending_job, a_running_job, frame_of
from tests.builders import a_job, jobs_frame

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def history(*, users: dict[str, float], each: int = 40) -> pd.DataFrame:
    """Each user's jobs have run as long as ``users`` says, one an hour until an hour before NOW."""
    jobs = [
        a_job(job_id=f"{user}{n}", user=user, run_time_s=run_time_s, submitted_at=NOW - timedelta(hours=each + 1 - n))
        for user, run_time_s in users.items()
        for n in range(each)
    ]
    return in_submission_order(jobs_frame(*jobs))


def pending(*jobs: dict[str, Any]) -> pd.DataFrame:
    return frame_of(QUEUE, jobs)


def predict(queue: pd.DataFrame, known: pd.DataFrame, **overrides: Any) -> pd.DataFrame:
    return predict_queue(queue, **({"history": known, "model": None, "now": NOW} | overrides))


def test_a_users_own_jobs_say_how_long_the_next_takes() -> None:
    queue = pending(a_pending_job(user="alice"), a_pending_job(user="bob"))
    found = PREDICTIONS.check(predict(queue, history(users={"alice": 60.0, "bob": 3000.0})))
    assert found["p50_s"].iloc[0] < 200
    assert found["p50_s"].iloc[1] > 1500
    assert set(found["source"]) == {"shrinkage"}


def test_quantiles_ascend_and_rows_keep_their_index() -> None:
    queue = pending(*(a_pending_job(gpus=n) for n in range(1, 6))).set_axis([7, 3, 9, 1, 5])
    found = predict(queue, history(users={"alice": 600.0}))
    assert list(found.index) == [7, 3, 9, 1, 5]
    assert (np.diff(found[["p10_s", "p50_s", "p90_s"]].to_numpy(), axis=1) >= 0).all()


def test_without_any_history_there_still_is_a_prediction() -> None:
    found = predict(pending(a_pending_job()), JOBS.empty())
    assert np.isfinite(found["p50_s"]).all()


def test_an_empty_queue_has_no_predictions() -> None:
    assert predict(QUEUE.empty(), history(users={"alice": 60.0})).empty


def test_what_ends_while_a_job_waits_counts() -> None:
    known = history(users={"alice": 60.0})
    ended_since = history(users={"alice": 3000.0}, each=10).assign(
        submitted_at=pd.Timestamp(NOW), ended_at=pd.Timestamp(NOW) + pd.Timedelta(minutes=50)
    )
    both = in_submission_order(JOBS.conform(pd.concat([known, ended_since])))
    queue = pending(a_pending_job(submitted_at=NOW - timedelta(minutes=5)))
    then = predict(queue, both)["p50_s"].iloc[0]
    later = predict(queue, both, now=NOW + timedelta(hours=2))["p50_s"].iloc[0]
    assert later > 2 * then


def test_nothing_that_ends_later_is_known() -> None:
    known = history(users={"alice": 60.0})
    future = history(users={"alice": 9000.0}).assign(ended_at=pd.Timestamp(NOW) + pd.Timedelta(days=1))
    both = in_submission_order(JOBS.conform(pd.concat([known, future])))
    running = future.assign(ended_at=pd.NaT, run_time_s=np.nan)
    as_it_was = in_submission_order(JOBS.conform(pd.concat([known, JOBS.conform(running)])))
    queue = pending(a_pending_job())
    told = predict(queue, both)
    assert told["p50_s"].iloc[0] < 200
    assert predict(queue, as_it_was)["p50_s"].iloc[0] < 200


def test_running_jobs_may_be_given() -> None:
    running = frame_of(QUEUE, [a_running_job(), a_running_job(user="bob")])
    found = predict(pending(a_pending_job()), history(users={"alice": 60.0}), running=running)
    assert np.isfinite(found["p50_s"]).all()


def test_a_model_says_its_name() -> None:
    known = history(users={"alice": 60.0, "bob": 3000.0}, each=150)
    model = train(known, cluster="venus")
    found = predict(pending(a_pending_job()), known, model=model)
    assert list(found["source"]) == [model.model_id]
