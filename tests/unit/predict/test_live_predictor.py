from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order
from helios.predict.causal_stats import BURST_GAP_S
from helios.predict.duration import DurationModel, train
from helios.predict.job_table import JobTable
from helios.predict.live_history import _last_burst
from helios.predict.live_predictor import LivePredictor
from helios.predict.timeline import RecordedWalk, empty_calibration
from helios.testing import a_pending_job, a_running_job, frame_of
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.predict.traces_of import a_campaign, a_trace, traces

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
    model = overrides.pop("model", None)
    return LivePredictor(known, model=model).predict(queue, **({"now": NOW} | overrides))


def test_a_users_own_jobs_say_how_long_the_next_takes() -> None:
    queue = pending(a_pending_job(user="alice"), a_pending_job(user="bob"))
    found = PREDICTIONS.check(predict(queue, history(users={"alice": 60.0, "bob": 3000.0})))
    assert found["p50_s"].iloc[0] < 200
    assert found["p50_s"].iloc[1] > 1500
    assert set(found["source"]) == {"shrinkage: user+size"}


def test_quantiles_ascend_and_rows_keep_their_index() -> None:
    queue = pending(*(a_pending_job(gpus=n) for n in range(1, 6))).set_axis([7, 3, 9, 1, 5])
    found = predict(queue, history(users={"alice": 600.0}))
    assert list(found.index) == [7, 3, 9, 1, 5]
    assert (np.diff(found[["p10_s", "p50_s", "p90_s"]].to_numpy(), axis=1) >= 0).all()


def test_without_any_history_there_is_still_a_prediction() -> None:
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


GAPS_S = st.lists(st.integers(0, 600).map(lambda gap: 2 * gap), max_size=700)
SHARED = [name for name in JOBS.names if name in QUEUE.by_name]


def queued(jobs: pd.DataFrame) -> pd.DataFrame:
    """The same jobs as the queue would show them."""
    return QUEUE.conform(jobs[SHARED])


def walked_anew(
    queue: pd.DataFrame,
    known: pd.DataFrame,
    running: pd.DataFrame,
    now: pd.Timestamp,
    *,
    model: DurationModel | None = None,
) -> Any:
    """Features and predictions of a replay that opens now, after the whole history: no vocabulary, memory or copy."""
    unended = JOBS.conform(running[SHARED]).assign(run_time_s=np.nan)
    ended = known[known["ended_at"].notna()]
    before = in_submission_order(JOBS.conform(pd.concat([ended, unended])))
    before = before[(before["submitted_at"] < now).to_numpy()]
    waiting = JOBS.conform(queue[SHARED].reset_index(drop=True)).assign(submitted_at=now)
    waiting = waiting.assign(job_id=[str(10**9 + n) for n in range(len(waiting))])
    table = JobTable.from_frame(in_submission_order(JOBS.conform(pd.concat([before, waiting]))))
    walk, now_s = RecordedWalk(table), int(now.timestamp())
    walk.to(now_s)
    calibration = empty_calibration() if model is None or model.calibration is None else model.calibration
    walk.set_calibration(replace(calibration, outlived=walk.calibration().outlived))
    if model is not None:
        walk.timeline.model = model.kernel
    walk.timeline.state.past.all_sample_state[1] = -1e9  # the sample of all jobs is made anew only after some starts
    found = walk.timeline.submitted(np.arange(walk.timeline.submissions, table.n), now_s)
    return walk.timeline.state.features[-len(queue) :], found


@settings(max_examples=examples(25), deadline=None)
@given(traces(), traces(max_size=6), st.data())
def test_what_was_learned_bit_by_bit_predicts_what_the_whole_history_does(
    jobs: pd.DataFrame, waiting: pd.DataFrame, data: st.DataObject
) -> None:
    # Among jobs that start in one second the last started ones are a matter of chance.
    begun = jobs["started_at"].fillna(jobs["submitted_at"])
    jobs = jobs[~begun.duplicated()].reset_index(drop=True)
    jobs = jobs.assign(job_id=[str(100 + n) for n in range(len(jobs))])
    times = pd.concat([jobs["submitted_at"], jobs["ended_at"].dropna()]).drop_duplicates().sort_values()
    seconds = data.draw(st.lists(st.sampled_from(times.tolist()), min_size=1, max_size=4, unique=True).map(sorted))
    early = np.array(data.draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs))))
    live = LivePredictor(jobs[(jobs["ended_at"] < seconds[0]) | early])
    for second in seconds:
        now = second + pd.Timedelta(seconds=1)
        known = jobs[(jobs["ended_at"] < now) | early]
        live.learn(known.iloc[::-1])
        running = queued(jobs[~jobs.index.isin(known[known["ended_at"].notna()].index)])
        found, features = live._predict(queued(waiting), running, now)
        expected_features, expected = walked_anew(queued(waiting), known, running, now)
        np.testing.assert_array_equal(features, expected_features)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_jobs_of_one_request_are_predicted_as_one_by_one() -> None:
    jobs = a_campaign(900, users=4, noise=0.8)
    now = jobs["submitted_at"].max() + pd.Timedelta(seconds=1)
    jobs = jobs[jobs["ended_at"] < now].reset_index(drop=True)
    model = replace(train(jobs, cluster="venus"), trained=True)
    rng = np.random.default_rng(0)
    asked = [
        {"submit": 0, "user": f"u{rng.integers(4)}", "gpus": int(rng.integers(1, 3)), "ended": False, "run": None}
        for _ in range(300)
    ]
    queue = queued(a_trace(*asked))
    found, features = LivePredictor(jobs, model=model)._predict(queue, None, now)
    expected_features, expected = walked_anew(queue, jobs, queue.head(0), now, model=model)
    assert len(np.unique(found, axis=0)) > 8  # jobs of one request differ, because others were submitted before
    np.testing.assert_array_equal(features, expected_features)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_jobs_with_names_of_their_own_are_predicted_as_one_by_one() -> None:
    jobs = a_campaign(900, users=3, noise=0.8)
    jobs = jobs.assign(name=pd.array([f"{('fit', 'cook')[n % 2]}{n % 300}" for n in range(900)], dtype="str"))
    now = jobs["submitted_at"].max() + pd.Timedelta(seconds=1)
    jobs = jobs[jobs["ended_at"] < now].reset_index(drop=True)
    model = replace(train(jobs, cluster="venus"), trained=True)
    rng = np.random.default_rng(0)

    def some(names: list[str | None]) -> pd.DataFrame:
        chosen = [{"user": f"u{rng.integers(3)}", "gpus": int(rng.integers(1, 3)), "name": name} for name in names]
        return a_trace(*({"submit": 0, "ended": False, "run": None} | row for row in chosen))

    # Known names and stems, names of running jobs, and new words so different that each has a family of its own.
    new = [f"{letter * 9}{n}" for letter in "bcdegh" for n in range(4)]
    waiting = some([*new, *(f"{known}{n}" for known in ("fit", "cook") for n in range(0, 600, 40)), None, *new])
    running = some([*new[::5], *(f"fit{n}" for n in range(290, 310)), None])
    began = now - pd.to_timedelta(600 - np.arange(len(running)), unit="s")
    running = running.assign(submitted_at=began, started_at=began, job_id=[str(10**8 + n) for n in range(len(running))])
    found, features = LivePredictor(jobs, model=model)._predict(queued(waiting), queued(running), now)
    expected_features, expected = walked_anew(queued(waiting), jobs, queued(running), now, model=model)
    np.testing.assert_array_equal(features, expected_features)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(GAPS_S, GAPS_S)
def test_the_last_burst_is_what_no_long_gap_interrupts(some: list[int], others: list[int]) -> None:
    times = [np.cumsum(np.array(gaps, dtype=np.int64)) for gaps in (some, others)]
    expected = 0
    for earlier, later in pairwise([-np.inf, *sorted(np.concatenate(times))]):
        expected = expected + 1 if later - earlier <= BURST_GAP_S else 1
    assert _last_burst(*times) == expected


def test_a_job_that_has_just_ended_is_known_to_the_next_prediction() -> None:
    live, queue = LivePredictor(history(users={"alice": 60.0})), pending(a_pending_job())
    before = live.predict(queue, now=NOW)["mean_s"].iloc[0]
    minute = timedelta(minutes=1)
    one = a_job(job_id="9", run_time_s=86_000.0, submitted_at=NOW - timedelta(days=1), ended_at=NOW - minute)
    assert live.learn(jobs_frame(one)) == 1
    assert live.predict(queue, now=NOW)["mean_s"].iloc[0] > 1.5 * before


def test_told_twice_a_job_counts_once() -> None:
    known, queue = history(users={"alice": 60.0, "bob": 3000.0}), pending(a_pending_job(), a_pending_job(user="bob"))
    live = LivePredictor(known)
    before = live.predict(queue, now=NOW)
    assert live.learn(known.iloc[::2]) == 0
    pd.testing.assert_frame_equal(live.predict(queue, now=NOW), before)
    again = LivePredictor(JOBS.conform(pd.concat([known, known])))
    pd.testing.assert_frame_equal(again.predict(queue, now=NOW), before)


def test_a_requeued_run_of_a_job_is_another_job() -> None:
    live = LivePredictor(history(users={"alice": 60.0}))
    assert live.learn(history(users={"alice": 60.0}).assign(restart=np.int32(1))) == 40


def test_jobs_that_wait_or_run_leave_no_trace() -> None:
    live = LivePredictor(history(users={"alice": 60.0}))
    queue = pending(a_pending_job())
    before = live.predict(queue, now=NOW)
    crowd = pending(*(a_pending_job(job_id=str(n), user=f"u{n % 9}", name=f"n{n}", gpus=n) for n in range(40)))
    live.predict(crowd, now=NOW, running=frame_of(QUEUE, [a_running_job(user=f"u{n}") for n in range(20)]))
    pd.testing.assert_frame_equal(live.predict(queue, now=NOW), before)


def test_what_a_user_has_running_counts() -> None:
    known = history(users={"alice": 60.0, "bob": 90.0}, each=150)
    live = LivePredictor(known, model=train(known, cluster="venus"))
    queue = pending(a_pending_job())
    running = [a_running_job(job_id=str(n), submitted_at=NOW - timedelta(minutes=n + 1)) for n in range(5)]
    alone = live._predict(queue, None, NOW)[1]
    busy = live._predict(queue, frame_of(QUEUE, running), NOW)[1]
    theirs = live._predict(queue, frame_of(QUEUE, [job | {"user": "bob"} for job in running]), NOW)[1]
    assert not np.array_equal(alone, busy, equal_nan=True)
    np.testing.assert_array_equal(alone, theirs)


def test_a_prediction_without_a_model_says_which_past_jobs_it_rests_on() -> None:
    live = LivePredictor(history(users={"alice": 60.0}))
    same, other = a_pending_job(time_limit_s=3600.0), a_pending_job(gpus=7)
    stranger = a_pending_job(user="new", account="other", gpus=9)
    found = live.predict(pending(same | {"cpus": 4.0}, other, stranger), now=NOW)
    assert found["source"].tolist()[1:] == ["shrinkage: user", "shrinkage: all"]
    assert found["source"].iloc[0] == "shrinkage: user+size"


def test_a_frame_that_is_no_queue_is_refused() -> None:
    with pytest.raises(FrameInvalid, match="lacks its column"):
        LivePredictor(JOBS.empty()).predict(pending(a_pending_job()).drop(columns="gpus"), now=NOW)
