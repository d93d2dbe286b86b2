"""Each figure of the risk against the plainest way to compute it."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.study.export.anonymous import Anonymised
from helios.study.export.cohorts import owners
from helios.study.export.reidentification import Risk, assess_risk
from tests.builders import a_job, jobs_frame
from tests.examples import examples

START = pd.Timestamp("2024-01-01T00:00:00Z")
HOUR_S = 3_600
WEEK = pd.Timedelta(weeks=1)


def a_world(*jobs: tuple[str | None, int, int], ran: tuple[int, ...] = ()) -> pd.DataFrame:
    """Jobs as (user, GPUs, hour of submission), with run times, s."""
    times = ran or (60,) * len(jobs)
    return jobs_frame(
        *(
            a_job(user=user, gpus=gpus, submitted_at=START + pd.Timedelta(hours=hour), run_time_s=float(seconds))
            for (user, gpus, hour), seconds in zip(jobs, times, strict=True)
        )
    )


WORLDS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "eve", None]), st.integers(1, 3), st.integers(0, 4)),
    min_size=1,
    max_size=14,
)


def exported(jobs: pd.DataFrame) -> Anonymised:
    """An export that gives each user a pseudonym."""
    return Anonymised(jobs=jobs, owner=owners(jobs), left_out=0)


def risk_of(jobs: pd.DataFrame, log: pd.DataFrame | None = None, *, weeks: int = 0) -> Risk:
    return assess_risk(exported(jobs), jobs, jobs if log is None else log, round_s=HOUR_S, weeks=weeks)


@settings(deadline=None, max_examples=examples(15))
@given(jobs=WORLDS)
def test_figures_are_those_of_plain_counting(jobs):
    risk = risk_of(a_world(*jobs))
    people = {user for user, _, _ in jobs if user not in {None}}

    def given_back(mine: int) -> bool:
        user, *known = jobs[mine]
        alike = [other for other, job in enumerate(jobs) if list(job[1:]) == known]
        return alike == [mine] or all(jobs[other][0] == user in people for other in alike)

    traced = [given_back(number) for number in range(len(jobs))]
    cells = Counter((gpus, hour) for _, gpus, hour in jobs)
    alone = [cells[gpus, hour] == 1 for _, gpus, hour in jobs]
    assert risk.users == len(people)
    assert risk.unique_jobs == pytest.approx(sum(alone) / len(jobs))
    assert risk.traced.jobs == pytest.approx(sum(traced) / len(jobs))
    found = {jobs[number][0] for number in range(len(jobs)) if traced[number]} & people
    assert risk.traced.users == pytest.approx(len(found) / max(1, len(people)))


@settings(deadline=None, max_examples=examples(15))
@given(jobs=WORLDS, more=WORLDS, weeks=st.integers(-3, 3))
def test_linkage_is_that_of_comparing_every_pair(jobs, more, weeks):
    given = a_world(*jobs, ran=tuple(range(len(jobs))))
    log = pd.concat([given, a_world(*more)], ignore_index=True)
    log["user"] = log["user"].astype("category")
    moved = given.assign(submitted_at=given["submitted_at"] + weeks * WEEK)
    moved = moved.assign(started_at=moved["started_at"] + weeks * WEEK)
    risk = risk_of(moved, log, weeks=weeks)
    assert risk.shift_found
    for linkage, columns in (
        (risk.by_size_and_submission, ["gpus", "submitted_at"]),
        (risk.by_size_and_all_times, ["gpus", "submitted_at", "started_at", "run_time_s"]),
    ):
        ours, theirs = (Counter(zip(*(frame[name] for name in columns), strict=True)) for frame in (given, log))
        linked = [ours[key] == theirs[key] == 1 for key in zip(*(given[name] for name in columns), strict=True)]
        assert linkage.jobs == pytest.approx(sum(linked) / len(jobs))
        people = {user for user, _, _ in jobs if user not in {None}}
        found = {job[0] for job, is_linked in zip(jobs, linked, strict=True) if is_linked} & people
        assert linkage.users == pytest.approx(len(found) / max(1, len(people)))


def test_only_the_step_of_a_submission_counts():
    jobs = a_world(("ann", 1, 0), ("bob", 1, 1))
    dealt = jobs.assign(submitted_at=jobs["submitted_at"] + pd.Timedelta(minutes=7))
    dealt["started_at"] = dealt["submitted_at"] + pd.Timedelta(seconds=5)
    assert risk_of(dealt, jobs) == risk_of(jobs)


def test_a_burst_identifies_its_user_though_no_job_is_alone():
    risk = risk_of(a_world(("ann", 1, 0), ("ann", 1, 0)))
    assert (risk.unique_jobs, risk.traced.jobs) == (0, 1)


def test_jobs_of_two_users_hide_each_other():
    assert risk_of(a_world(("ann", 1, 0), ("bob", 1, 0))).traced.jobs == 0


def test_a_usage_list_names_pseudonyms_of_one_user_each():
    claim = risk_of(a_world(("ann", 1, 0), ("ann", 1, 1), ("ann", 2, 2), ("bob", 1, 0))).by_usage_list
    assert (claim.jobs, claim.users) == (1, 1)


def test_three_known_jobs_give_what_else_their_user_has():
    jobs = a_world(*(("ann", 1, hour) for hour in range(9)), ("bob", 2, 0), ran=(*range(1, 10), 1))
    assert risk_of(jobs).by_known_jobs.jobs == 1


def test_half_a_log_gives_the_users_of_what_follows():
    claim = risk_of(a_world(("ann", 1, 0), ("bob", 2, 1), ("ann", 1, 2), ("bob", 2, 3))).by_half_a_log
    assert (claim.jobs, claim.users) == (0.5, 1)


def test_a_pseudonym_of_three_users_gives_none_of_them():
    jobs = a_world(*((user, 1, hour) for hour in range(9) for user in ("ann", "bob", "eve")), ran=tuple(range(27)))
    one = jobs.assign(user=pd.Series("all", index=jobs.index).astype("category"))
    risk = assess_risk(Anonymised(jobs=one, owner=owners(jobs), left_out=0), jobs, jobs, round_s=24 * HOUR_S, weeks=0)
    assert risk.highest == 0


def test_every_shift_under_which_export_and_log_overlap_is_tried():
    log = a_world(*(("ann", 1, 24 * day) for day in range(15)))
    risk = risk_of(log.assign(submitted_at=log["submitted_at"] - 100 * WEEK), log, weeks=-100)
    assert risk.shift_found and risk.shifts_tried == 5


def test_another_log_does_not_show_the_shift():
    jobs = a_world(("ann", 1, 0), ("bob", 2, 1), ("bob", 1, 200))
    log = a_world(("ann", 3, 0), ("bob", 3, 500))
    assert not risk_of(jobs, log, weeks=7).shift_found


def traced(jobs: pd.DataFrame, hours: int, offset_s: int = 0) -> float:
    steps = {"round_s": hours * HOUR_S, "offset_s": offset_s}
    return assess_risk(exported(jobs), jobs, jobs, weeks=0, **steps).traced.jobs


@pytest.mark.parametrize(("hours", "share"), [(1, 1.0), (2, 0.0), (24, 0.0)])
def test_coarser_times_hide_more(hours, share):
    assert traced(a_world(("ann", 1, 0), ("bob", 1, 1)), hours) == share


def test_days_are_those_of_the_cluster_s_clock():
    jobs = a_world(("ann", 1, 22), ("bob", 1, 25))
    assert traced(jobs, 24) == 1
    assert traced(jobs, 24, offset_s=2 * HOUR_S) == 0
