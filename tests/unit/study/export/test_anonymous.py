"""An anonymous history names nobody, and repeats what repeated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.model import JOBS, in_submission_order, seconds_of
from helios.model.records import split_words
from helios.study.export.anonymous import OTHERS, Coarseness, anonymise, coarsen, shift_weeks, two_digits
from tests.builders import a_job, jobs_frame
from tests.examples import examples

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
BERLIN = "Europe/Berlin"


def anonymous(jobs: pd.DataFrame, key: bytes = KEY, **how: object) -> pd.DataFrame:
    return anonymise(jobs, key, Coarseness(**({"fewest_jobs": 1, "timezone": BERLIN, "round_s": 60} | how))).jobs


def many(count: int, **job: object) -> list[dict[str, object]]:
    return [a_job(**job) for _ in range(count)]


@st.composite
def histories(draw: st.DrawFn) -> pd.DataFrame:
    rows = []
    at = pd.Timestamp("2024-03-30T20:00:00Z")  # across the change of clocks in Berlin
    for number in range(draw(st.integers(1, 12))):
        at += pd.Timedelta(seconds=draw(st.integers(0, 20_000)))
        able, waited, ran = (draw(st.integers(0, 200_000)) for _ in range(3))
        starts = draw(st.booleans())
        rows.append(
            a_job(
                job_id=str(5_000 + number),
                user=draw(st.sampled_from(["ann", "bob", "eve", None])),
                account=draw(st.sampled_from(["lab", "hall", None])),
                name=draw(st.sampled_from(["train_1.sh", "train_2.sh", "eval", "77", None])),
                gpus=draw(st.integers(0, 9)),
                cpus=draw(st.sampled_from([None, 1.0, 4.0, 7.0])),
                submitted_at=at,
                eligible_at=draw(st.sampled_from([None, at + pd.Timedelta(seconds=able)])),
                started_at=at + pd.Timedelta(seconds=able + waited) if starts else None,
                run_time_s=float(ran) if starts else None,
                ended_at=at + pd.Timedelta(seconds=able + waited + ran) if draw(st.booleans()) else None,
            )
        )
    return jobs_frame(*rows)


@settings(deadline=None, max_examples=examples(12))
@given(jobs=histories(), round_s=st.sampled_from([60, 600, 3_600, 86_400]), fewest=st.integers(1, 4))
def test_events_stay_in_order_and_known_ones_known(jobs, round_s, fewest):
    made = anonymous(jobs, round_s=round_s, fewest_jobs=fewest)
    JOBS.check(made)
    before = made["submitted_at"]
    for name in ("eligible_at", "started_at", "ended_at"):
        assert made[name].isna().sum() == jobs[name].isna().sum()
        assert not (made[name] < before).any()
        before = made[name].fillna(before)
    assert made["run_time_s"].isna().sum() == jobs["run_time_s"].isna().sum() and not (made["run_time_s"] < 0).any()
    pd.testing.assert_frame_equal(made, in_submission_order(made))


@settings(deadline=None, max_examples=examples(12))
@given(jobs=histories(), round_s=st.sampled_from([60, 3_600, 86_400]))
def test_lengths_are_the_same_to_two_digits_and_submissions_to_the_step(jobs, round_s):
    made = anonymous(jobs, round_s=round_s)
    ran = [np.sort(frame["run_time_s"].dropna()) for frame in (made, jobs)]
    assert np.allclose(*ran, rtol=0.051, atol=0.5)
    shift = shift_weeks(jobs, KEY, BERLIN) * 7 * 86_400
    submitted, moved = seconds_of(jobs["submitted_at"]), seconds_of(made["submitted_at"]) - shift
    for step_s in {60, round_s}:  # Berlin is a whole hour ahead before the change of clocks
        steps = [np.floor((times + 3_600) / step_s) for times in (submitted, moved)]
        assert sorted(steps[0]) == sorted(steps[1]) or (step_s < round_s and set(steps[0]) == set(steps[1]))


def test_jobs_of_one_burst_stay_together_and_bursts_are_dealt_other_minutes():
    bursts = [many(3, user=f"u{hour}", submitted_at=f"2024-01-01T{hour:02}:30:20Z") for hour in range(20)]
    made = anonymous(jobs_frame(*(job for burst in bursts for job in burst)), round_s=86_400)
    at = made["submitted_at"].value_counts()
    assert (at == 3).all() and sorted(at.index.hour) == list(range(20)) and set(at.index.minute) == {30}
    assert not made["submitted_at"].dt.second.any()


def test_which_burst_gets_which_minute_follows_from_the_key():
    at = [{"user": f"u{hour}", "submitted_at": f"2024-01-01T{hour:02}:00:00Z"} for hour in range(20)]
    jobs = jobs_frame(*(a_job(run_time_s=hour + 1.0, **job) for hour, job in enumerate(at)))
    dealt = [anonymous(jobs, key, round_s=86_400)["run_time_s"].tolist() for key in (KEY, KEY, OTHER_KEY)]
    assert dealt[0] == dealt[1] != dealt[2] and sorted(dealt[2]) == list(range(1, 21)) != dealt[2]


def test_each_size_keeps_its_minutes():
    jobs = jobs_frame(*(a_job(gpus=hour + 1, submitted_at=f"2024-01-01T{hour:02}:00:00Z") for hour in range(20)))
    assert anonymous(jobs, round_s=86_400)["gpus"].tolist() == list(range(1, 21))


def of_users(*users: str, **job: object) -> list[dict[str, object]]:
    return [a_job(user=user, **job) for user in users]


def test_a_user_is_a_cohort_of_three():
    assert anonymous(jobs_frame(*of_users("ann", "bob", "eve")))["user"].nunique() == 1


def test_users_of_two_sizes_have_two_cohorts():
    jobs = [job for gpus in (1, 2) for job in of_users("ann", "bob", "eve", gpus=gpus)]
    assert anonymous(jobs_frame(*jobs)).groupby("gpus")["user"].unique().map(list).map(len).tolist() == [1, 1]
    assert anonymous(jobs_frame(*jobs))["user"].nunique() == 2


@pytest.mark.parametrize("users", [("ann",), ("ann", "bob"), ("ann", "ann", "ann", "bob", "eve")])
def test_users_without_a_cohort_become_others(users):
    assert set(anonymous(jobs_frame(*of_users(*users)))["user"]) == {OTHERS}


def test_an_unknown_user_stays_unknown():
    assert anonymous(jobs_frame(*of_users("ann", "bob", "eve", "eve"), a_job(user=None)))["user"].isna().sum() == 1


def test_jobs_that_give_their_user_are_left_out():
    jobs = jobs_frame(*of_users("ann", "bob"), *many(8, user="eve", gpus=3), *many(2, user="ann", gpus=3))
    made = anonymise(jobs, KEY, Coarseness(fewest_jobs=1, most_given=0.1))
    assert made.left_out == 6 and made.jobs["gpus"].value_counts()[3] == 4
    assert sorted(made.owner[made.jobs["gpus"] == 3]) == [0, 0, 2, 2]


def test_no_job_of_an_unknown_user_is_left_out():
    assert anonymise(jobs_frame(*many(4, user=None)), KEY, Coarseness(most_given=0.0)).left_out == 0


@pytest.mark.parametrize("column", ["name", "partition", "qos", "gpu_type"])
def test_what_three_users_have_keeps_a_word_of_its_own(column):
    jobs = [job for word in ("one", "two") for job in of_users("ann", "bob", "eve", **{column: word})]
    words = anonymous(jobs_frame(*jobs, *many(9, user="ann", **{column: "rare"})))[column].astype("object")
    counts = words.fillna("").value_counts()
    assert sorted(counts) == [3, 3, 9] and counts[OTHERS if column in {"partition", "qos"} else ""] == 9


def test_a_word_for_a_name_is_its_own_stem():
    jobs = [job for word in "abcdefghij" for job in of_users("ann", "bob", "eve", name=f"run_{word}")]
    made = anonymous(jobs_frame(*jobs))
    assert [split_words(name) for name in made["name"]] == made["name"].tolist() and made["name"].nunique() == 10


def test_the_same_key_gives_the_same_and_another_key_another_export():
    jobs = jobs_frame(*of_users("ann", "bob", "eve"))
    pd.testing.assert_frame_equal(anonymous(jobs), anonymous(jobs))
    assert set(anonymous(jobs)["user"]).isdisjoint(anonymous(jobs, OTHER_KEY)["user"])


def test_what_could_name_somebody_is_dropped():
    job = a_job(
        account="lab", group="lab", exit_code="0:0", tres_requested="cpu=1", tres_allocated="cpu=1", node_list="node1"
    )
    made = anonymous(jobs_frame(job))
    dropped = ["account", "group", "exit_code", "tres_requested", "tres_allocated", "node_list"]
    assert made[dropped].isna().all(axis=None)


def test_a_rare_size_is_raised_to_the_next_commoner_one():
    jobs = jobs_frame(*many(3, gpus=2), a_job(gpus=3), *many(3, gpus=4), a_job(gpus=9), *many(3, gpus=0))
    assert coarsen(jobs, Coarseness(fewest_jobs=3))["gpus"].tolist() == [2, 2, 2, 4, 4, 4, 4, 4, 0, 0, 0]


def test_cpus_are_merged_among_jobs_of_as_many_gpus():
    jobs = jobs_frame(*many(3, gpus=1, cpus=4.0), a_job(gpus=1, cpus=3.0), *many(3, gpus=2, cpus=3.0))
    assert coarsen(jobs, Coarseness(fewest_jobs=3))["cpus"].tolist() == [4, 4, 4, 4, 3, 3, 3]


@settings(deadline=None, max_examples=examples(12))
@given(jobs=histories(), fewest=st.integers(1, 4))
def test_every_known_combination_of_sizes_has_enough_jobs(jobs, fewest):
    jobs["cpus"] = jobs["cpus"].fillna(1.0)
    made = coarsen(jobs, Coarseness(fewest_jobs=fewest))
    for with_gpus in (True, False):
        alike = made[(made["gpus"] > 0) == with_gpus]
        counts = alike.groupby(["gpus", "cpus", "nodes"]).size()
        assert counts.empty or counts.min() >= min(fewest, len(alike))


def test_a_request_that_was_the_allocation_stays_it():
    jobs = jobs_frame(*many(2, gpus=4, gpus_requested=4.0), a_job(gpus=3, gpus_requested=3.0))
    made = coarsen(jobs, Coarseness(fewest_jobs=2))
    assert made["gpus"].tolist() == made["gpus_requested"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("column", ["time_limit_s", "memory_mib"])
@pytest.mark.parametrize(("by_kind", "raised"), [(False, 3600.0), (True, 3000.0)])
def test_limits_of_few_are_raised_to_the_next_that_several_share(column, by_kind, raised):
    jobs = of_users("ann", "bob", "eve", **{column: 3600.0}) + of_users("ann", gpus=2, **{column: 3000.0})
    made = anonymous(jobs_frame(*jobs), limits_by_kind=by_kind)
    assert made[column].tolist() == [3600, 3600, 3600, raised]


def test_unlimited_stays():
    jobs = [*of_users("ann", "bob", "eve", time_limit_s=np.inf), a_job(time_limit_s=90_061.0)]
    assert np.isinf(anonymous(jobs_frame(*jobs))["time_limit_s"]).all()


def test_the_sizes_of_a_log_are_merged_as_those_of_the_window():
    window = jobs_frame(*many(2, gpus=4), a_job(gpus=3))
    log = pd.concat([window, jobs_frame(*many(9, gpus=3))], ignore_index=True)
    assert coarsen(JOBS.conform(log), Coarseness(fewest_jobs=2), like=window)["gpus"].tolist() == [4] * 12


def test_ids_count_up_and_runs_of_one_job_share_one():
    first = {"submitted_at": "2024-01-01T00:00:00Z", "job_id": "900"}
    jobs = jobs_frame(a_job(**first), a_job(**first, restart=1), a_job(submitted_at="2024-01-02T00:00:00Z"))
    assert anonymous(jobs)["job_id"].tolist() == ["1", "1", "2"]


def test_tasks_of_one_array_keep_one_array():
    tasks = [a_job(job_id=str(900 + task), array_job_id="900", array_task_id=str(40 + task)) for task in range(3)]
    made = anonymous(jobs_frame(a_job(job_id="899"), *tasks))
    assert made["array_job_id"].astype("object").fillna("").tolist() == ["", "2", "2", "2"]
    assert made["array_task_id"].astype("object").fillna("").tolist() == ["", "0", "1", "2"]


def test_parts_of_one_heterogeneous_job_stay_together():
    parts = [a_job(job_id=str(900 + part), het_job_id="900", het_job_offset=float(part)) for part in range(2)]
    assert anonymous(jobs_frame(*parts))["het_job_id"].tolist() == ["1", "1"]


@pytest.mark.parametrize("timezone", ["UTC", "Asia/Shanghai", BERLIN, "America/New_York", "Asia/Kolkata"])
def test_weekday_and_hour_stay(timezone):
    days = pd.date_range("2023-06-01T13:00:00Z", periods=250, freq="25h")
    jobs = jobs_frame(*(a_job(submitted_at=day) for day in days))
    made = anonymous(jobs, timezone=timezone)
    before, after = (frame["submitted_at"].dt.tz_convert(timezone).dt for frame in (jobs, made))
    alike = (before.hour == after.hour) & (before.day_of_week == after.day_of_week)
    assert alike.mean() > 0.85 and (timezone in {BERLIN, "America/New_York"} or alike.all())


def test_old_times_are_moved_forward_since_none_may_lie_before_1970():
    assert shift_weeks(jobs_frame(a_job(submitted_at="1973-01-01T00:00:00Z")), KEY, "UTC") > 0


@pytest.mark.parametrize(
    ("length", "rounded"), [(0, 0), (1.4, 1), (99, 99), (99.6, 100), (104, 100), (106, 110), (12_345, 12_000)]
)
def test_lengths_have_two_digits(length, rounded):
    assert two_digits(np.array([float(length)])).tolist() == [rounded]


def test_unknown_and_infinite_lengths_stay():
    assert np.array_equal(two_digits(np.array([np.nan, np.inf])), [np.nan, np.inf], equal_nan=True)
