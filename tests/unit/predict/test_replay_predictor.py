from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import BrokenBarrierError
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.ports import RUN_TIME
from helios.predict.causal_stats import NEVER_S
from helios.predict.duration import train
from helios.predict.job_table import JobTable, causal_features
from helios.predict.replay_predictor import MEET_EVERY, ReplayTrainedPredictor, SharedTraining, UserLast
from helios.predict.timeline import RecordedWalk
from tests.examples import examples
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace, traces


def play(predictor, table, *, first=0):
    """Feed the recorded events of jobs from ``first`` on, one submission moment at a time."""
    submitted_s, ended_s = table.submitted_s[first:], table.ended_s[first:]
    ends = np.lexsort((np.arange(len(ended_s)), ended_s))
    ends = ends[ended_s[ends] != NEVER_S]
    told, predictions = 0, []
    for now_s in np.unique(submitted_s):
        until = int(np.searchsorted(ended_s[ends], now_s, side="right"))
        predictor.ended(ends[told:until], ended_s[ends[told:until]])
        told = until
        predictions.append(predictor.submitted(np.flatnonzero(submitted_s == now_s), int(now_s)))
    return np.concatenate(predictions)


def follow(predictor, table, *, moments):
    """Feed the recorded events as ``play`` does, several submission moments at a time and some ends too early."""
    ends = np.lexsort((np.arange(table.n), table.ended_s))
    ends = ends[table.ended_s[ends] != NEVER_S]
    times, told, predictions = np.unique(table.submitted_s), 0, []
    for first in range(0, len(times), moments):
        these = times[first : first + moments]
        jobs = np.flatnonzero((table.submitted_s >= these[0]) & (table.submitted_s <= these[-1]))
        known = ends[told : int(np.searchsorted(table.ended_s[ends], these[-1] + 600, side="right"))]
        predicted, n = predictor.follow(jobs, table.submitted_s[jobs], ended=known, ended_s=table.ended_s[known])
        told += n
        predictions.append(predicted)
    return np.concatenate(predictions)


@pytest.mark.parametrize("moments", [1, 7])
def test_jobs_predicted_later_in_one_go_are_predicted_as_at_their_submissions(moments):
    jobs = a_campaign(1300)
    table = JobTable.from_frame(jobs)
    one, other = ReplayTrainedPredictor(jobs), ReplayTrainedPredictor(jobs)
    np.testing.assert_array_equal(follow(one, table, moments=moments), play(other, table))
    assert one.sources == other.sources and len(one.sources) == 2
    np.testing.assert_array_equal(one.source, other.source)


@settings(max_examples=examples(25), deadline=None)
@given(traces(), st.integers(0, 24))
def test_features_in_a_replay_of_the_record_equal_those_recorded(jobs, cut):
    table = JobTable.from_frame(jobs)
    cut = min(cut, len(jobs) - 1)
    predictor = ReplayTrainedPredictor(jobs.iloc[cut:], history=jobs.iloc[:cut], refit=False)
    play(predictor, table, first=cut)
    np.testing.assert_array_equal(predictor.timeline.state.features, causal_features(table).X)


def test_a_job_that_runs_in_the_replay_teaches_nothing_yet():
    def predicted(run_s):
        predictor = ReplayTrainedPredictor(a_trace({"run": run_s}, {"submit": 5000}), refit=False)
        now_s = int(EPOCH.timestamp())
        predictor.submitted(np.array([0]), now_s)
        return predictor.submitted(np.array([1]), now_s + 5000)

    np.testing.assert_array_equal(predicted(60.0), predicted(4000.0))


def test_a_job_is_learned_at_its_end_in_the_replay():
    jobs = a_trace({"run": 60.0}, {"submit": 5000}, {"submit": 9000})
    predictor = ReplayTrainedPredictor(jobs, refit=False)
    now_s = int(EPOCH.timestamp())
    predictor.submitted(np.array([0]), now_s)
    early = predictor.submitted(np.array([1]), now_s + 5000)
    predictor.ended(np.array([0]), np.array([now_s + 8000]))
    late = predictor.submitted(np.array([2]), now_s + 9000)
    assert abs(late[0, 1] - 60) < abs(early[0, 1] - 60)


def test_a_replay_trains_at_1000_ended_jobs_and_at_the_doubling():
    jobs = a_campaign(2600)
    predictor = ReplayTrainedPredictor(jobs)
    play(predictor, JobTable.from_frame(jobs))
    assert [predictor.sources[0], len(predictor.sources)] == ["shrinkage", 3]
    first_trained = int(np.argmax(predictor.source == 1))
    table = JobTable.from_frame(jobs)
    assert (table.ended_s < table.submitted_s[first_trained]).sum() >= 1000
    assert (table.ended_s < table.submitted_s[first_trained - 1]).sum() < 1000


def test_a_model_predicts_in_the_replay_as_on_recorded_features():
    jobs = a_campaign(700)
    table = JobTable.from_frame(jobs)
    opening = EPOCH + pd.Timedelta(seconds=int(table.submitted_s[500] - EPOCH.timestamp()))
    model = train(jobs.iloc[:500], cluster="lab", until=opening.to_pydatetime())
    predictor = ReplayTrainedPredictor(jobs.iloc[500:], history=jobs.iloc[:500], model=model, refit=False)
    replayed = play(predictor, table, first=500)
    walk = RecordedWalk(table)
    walk.to(int(table.submitted_s[500]))
    walk.set_calibration(model.calibration)
    walk.to(int(table.submitted_s[-1]) + 1, model=model.kernel)
    # In the replay a start is known only at the job's end, so that some samples lack a running job.
    np.testing.assert_allclose(np.log1p(replayed[:, 1]), np.log1p(walk.predicted[500:, 1]), atol=1.5)
    assert np.median(np.abs(np.log1p(replayed[:, 1]) - np.log1p(walk.predicted[500:, 1]))) < 0.05
    assert predictor.sources == ["shrinkage", model.model_id]
    assert set(predictor.source) == {1}


def test_the_future_of_the_replay_changes_no_prediction_even_through_refits():
    jobs = a_campaign(1400)
    table = JobTable.from_frame(jobs)
    other = jobs.copy()
    moment_s = table.submitted_s[1300]
    open_suspended = ~(table.ended_s < moment_s)
    other.loc[open_suspended, "run_time_s"] *= 50
    other.loc[open_suspended, "ended_at"] += pd.Timedelta(days=3)
    known = table.submitted_s <= moment_s
    before = play(ReplayTrainedPredictor(jobs), table)[known]
    after = play(ReplayTrainedPredictor(other), JobTable.from_frame(other))[known]
    np.testing.assert_array_equal(before, after)


def test_quantiles_ascend():
    jobs = a_campaign(300)
    predicted = play(ReplayTrainedPredictor(jobs), JobTable.from_frame(jobs))
    assert (np.diff(predicted[:, :3], axis=1) >= 0).all()


def test_a_history_from_after_the_workload_is_refused():
    with pytest.raises(FrameInvalid, match="submission order"):
        ReplayTrainedPredictor(a_trace({"submit": 0}), history=a_trace({"submit": 9}))


NOTHING_RUNS = {"running": np.array([], dtype=np.int64), "since_s": np.array([], dtype=np.int64)}


def a_queue_of_one_user():
    """Two jobs wait from second 1000 and 1001 on; a third of the same user ended before, a fourth runs."""
    return a_trace({"run": 60.0}, {"submit": 100, "run": 50_000.0}, {"submit": 1000}, {"submit": 1001})


def test_a_job_predicted_again_at_its_own_submission_gets_the_same_answer():
    jobs = a_queue_of_one_user()
    predictor = ReplayTrainedPredictor(jobs, refit=False)
    now_s = int(EPOCH.timestamp())
    for job, second in enumerate((0, 100, 1000)):
        first = predictor.submitted(np.array([job]), now_s + second)
    np.testing.assert_array_equal(predictor.waiting(np.array([2]), now_s + 1000, **NOTHING_RUNS), first)


def test_what_ended_while_a_job_waits_moves_its_prediction():
    predictor = ReplayTrainedPredictor(a_queue_of_one_user(), refit=False)
    now_s = int(EPOCH.timestamp())
    for job, second in enumerate((0, 100, 1000)):
        predictor.submitted(np.array([job]), now_s + second)
    runs = {"running": np.array([0]), "since_s": np.array([now_s + 1940])}
    before = predictor.waiting(np.array([2]), now_s + 2000, **runs)
    predictor.ended(np.array([0]), np.array([now_s + 2000]))
    too_early = predictor.waiting(np.array([2]), now_s + 2000, **runs)
    after = predictor.waiting(np.array([2]), now_s + 2001, **NOTHING_RUNS)
    np.testing.assert_array_equal(too_early, before)
    assert abs(after[0, 1] - 60) < abs(before[0, 1] - 60)


@settings(max_examples=examples(15), deadline=None)
@given(traces(), st.integers(0, 24))
def test_predicting_again_changes_nothing_that_is_learned_or_said_of_later_jobs(jobs, asked):
    table = JobTable.from_frame(jobs)
    asked = min(asked, len(jobs) - 1)
    plain, curious = ReplayTrainedPredictor(jobs, refit=False), ReplayTrainedPredictor(jobs, refit=False)
    play(plain, table)

    submitted = curious.submitted

    def submitted_and_asked_again(rows, now_s):
        answer = submitted(rows, now_s)
        if rows[0] >= asked:
            curious.waiting(np.arange(asked, rows[0] + 1), now_s, **NOTHING_RUNS)
        return answer

    curious.submitted = submitted_and_asked_again
    play(curious, table)
    np.testing.assert_array_equal(curious.timeline.state.features, plain.timeline.state.features)


def test_a_model_is_trained_anew_when_it_has_served_so_long():
    jobs = a_campaign(900)
    table = JobTable.from_frame(jobs)
    opening = EPOCH + pd.Timedelta(seconds=int(table.submitted_s[500] - EPOCH.timestamp()))
    model = train(jobs.iloc[:500], cluster="lab", until=opening.to_pydatetime())
    every_s = int(table.submitted_s[899] - table.submitted_s[500]) // 3
    predictor = ReplayTrainedPredictor(jobs.iloc[500:], history=jobs.iloc[:500], model=model, refit_every_s=every_s)
    play(predictor, table, first=500)
    changed = np.flatnonzero(np.diff(predictor.source)) + 501
    assert len(predictor.sources) == 4
    served = np.diff([table.submitted_s[500], *table.submitted_s[changed]])
    assert (served >= every_s).all()


def test_where_shrinkage_predicts_it_still_does_after_a_new_training():
    jobs = a_campaign(700)
    model = replace(train(jobs.iloc[:400], cluster="lab"), trained=False)
    moment = int(JobTable.from_frame(jobs).submitted_s[-1])
    found = []
    for every_s in (1, None):
        predictor = ReplayTrainedPredictor(jobs.iloc[400:], history=jobs.iloc[:400], model=model, refit_every_s=every_s)
        predictor.submitted(np.array([0]), moment)
        assert len(predictor.sources) == (2 if every_s is None else 3)
        found.append(len(predictor.timeline.model.forest.root))
    assert found == [0, 0]


def test_replays_that_train_together_learn_only_what_has_happened_in_all():
    def models(jobs, unfinished):
        table, shared = JobTable.from_frame(jobs), SharedTraining(2)
        late = SimpleNamespace(submitted_s=table.submitted_s, ended_s=np.where(unfinished, NEVER_S, table.ended_s))
        both = [ReplayTrainedPredictor(jobs, shared=shared) for _ in range(2)]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(play, both, (late, table)))
        return [one.sources for one in both]

    jobs = a_campaign(3 * MEET_EVERY + 50)
    for share, together in ((8, True), (2, False)):
        unfinished = np.arange(len(jobs)) % share == 0
        other = jobs.assign(run_time_s=np.where(unfinished, 7.0, jobs["run_time_s"]))
        late, early = models(jobs, unfinished)
        assert (late == early) is together and len(early) == 2
        assert models(other, unfinished)[0] == late
        assert models(jobs, unfinished & False)[0] != late


def test_a_replay_that_failed_ends_those_that_would_wait_for_it():
    jobs, shared = a_campaign(MEET_EVERY + 50), SharedTraining(2)
    one, _ = (ReplayTrainedPredictor(jobs, shared=shared) for _ in range(2))
    shared.abort()
    with pytest.raises(BrokenBarrierError):
        play(one, JobTable.from_frame(jobs))


def test_running_jobs_that_are_told_of_count():
    rows = [{"submit": n, "run": 60.0 if n < 10 else 90_000.0, "time_limit_s": np.inf} for n in range(20)]
    jobs = a_trace(*rows, {"submit": 50_000, "time_limit_s": np.inf})
    now_s, found = int(EPOCH.timestamp()), []
    for told in (False, True):
        predictor = ReplayTrainedPredictor(jobs, refit=False)
        for job in range(20):
            predictor.submitted(np.array([job]), now_s + job)
        predictor.ended(np.arange(10), now_s + 60 + np.arange(10))
        predictor.submitted(np.array([20]), now_s + 50_000)
        running = np.arange(10, 20) if told else np.array([], dtype=np.int64)
        answer = predictor.waiting(np.array([20]), now_s + 50_000, running=running, since_s=now_s + running)
        found.append(answer[0, RUN_TIME.mean])
    assert found[1] > 2 * found[0]


def test_the_mean_of_all_predicts_a_user_without_an_ended_job():
    jobs = a_trace({"run": 60.0, "user": "a"}, {"submit": 5000, "user": "a"}, {"submit": 5001, "user": "b"})
    predictor = UserLast(jobs.iloc[1:], history=jobs.iloc[:1])
    now_s = int(EPOCH.timestamp())
    known, stranger = (predictor.submitted(np.array([job]), now_s + 5000 + job)[0] for job in (0, 1))
    assert known[:5] == pytest.approx(60.0)
    assert stranger[:5] == pytest.approx(60.0)
    predictor.ended(np.array([0]), np.array([now_s + 5050]))
    later = predictor.submitted(np.array([1]), now_s + 9000)[0]
    assert later[RUN_TIME.p50] == pytest.approx(60.0, rel=0.01)


def test_the_users_last_job_is_repeated():
    jobs = a_trace(
        {"run": 60.0, "user": "a"}, {"submit": 500, "run": 4000.0, "user": "a"}, {"submit": 9000, "user": "a"}
    )
    found = play(UserLast(jobs), JobTable.from_frame(jobs))
    assert found[1, RUN_TIME.p50] == pytest.approx(60.0)
    assert found[2, RUN_TIME.p50] == pytest.approx(4000.0)
