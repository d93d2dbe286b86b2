"""Each figure of the risk against the plainest way to compute it."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.study.export.anonymous import OTHERS
from helios.study.export.reidentification import assess_risk, traced_share
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
    st.tuples(st.sampled_from(["ann", "bob", "eve", OTHERS, None]), st.integers(1, 3), st.integers(0, 4)),
    min_size=1,
    max_size=14,
)


def risk_of(jobs: pd.DataFrame, log: pd.DataFrame | None = None, *, weeks: int = 0):
    return assess_risk(jobs, jobs if log is None else log, round_s=HOUR_S, weeks=weeks)


@settings(deadline=None, max_examples=examples(15))
@given(jobs=WORLDS)
def test_figures_are_those_of_plain_counting(jobs):
    risk = risk_of(a_world(*jobs))
    people = {user for user, _, _ in jobs if user not in {OTHERS, None}}

    def given_back(mine: int) -> bool:
        user, *known = jobs[mine]
        alike = [other for other, job in enumerate(jobs) if list(job[1:]) == known]
        return alike == [mine] or all(jobs[other][0] == user in people for other in alike)

    traced = [given_back(number) for number in range(len(jobs))]
    cells = Counter((gpus, hour) for _, gpus, hour in jobs)
    alone = [cells[gpus, hour] == 1 for _, gpus, hour in jobs]
    assert risk.users == len(people)
    assert risk.unique_jobs == pytest.approx(sum(alone) / len(jobs))
    assert risk.traced_jobs == pytest.approx(sum(traced) / len(jobs))
    found = {jobs[number][0] for number in range(len(jobs)) if traced[number]} & people
    assert risk.traced_users == pytest.approx(len(found) / max(1, len(people)))
    commonest = {
        user: frozenset(
            size
            for size, _ in sorted(
                Counter(gpus for other, gpus, _ in jobs if other == user).items(), key=lambda item: (-item[1], item[0])
            )[:3]
        )
        for user in people
    }
    only = [user for user in people if list(commonest.values()).count(commonest[user]) == 1]
    assert risk.users_unique_in_sizes == pytest.approx(len(only) / max(1, len(people)))


@settings(deadline=None, max_examples=examples(15))
@given(jobs=WORLDS, more=WORLDS, weeks=st.integers(-3, 3))
def test_linkage_is_that_of_comparing_every_pair(jobs, more, weeks):
    exported = a_world(*jobs, ran=tuple(range(len(jobs))))
    log = pd.concat([exported, a_world(*more)], ignore_index=True)
    log["user"] = log["user"].astype("category")
    moved = exported.assign(submitted_at=exported["submitted_at"] + weeks * WEEK)
    moved = moved.assign(started_at=moved["started_at"] + weeks * WEEK)
    risk = risk_of(moved, log, weeks=weeks)
    assert risk.shift_found
    for linkage, columns in (
        (risk.by_size_and_submission, ["gpus", "submitted_at"]),
        (risk.by_size_and_all_times, ["gpus", "submitted_at", "started_at", "run_time_s"]),
    ):
        ours, theirs = (Counter(zip(*(frame[name] for name in columns), strict=True)) for frame in (exported, log))
        linked = [ours[key] == theirs[key] == 1 for key in zip(*(exported[name] for name in columns), strict=True)]
        assert linkage.jobs == pytest.approx(sum(linked) / len(jobs))
        people = {user for user, _, _ in jobs if user not in {OTHERS, None}}
        found = {job[0] for job, is_linked in zip(jobs, linked, strict=True) if is_linked} & people
        assert linkage.users == pytest.approx(len(found) / max(1, len(people)))


def test_only_the_step_of_a_submission_counts():
    exported = a_world(("ann", 1, 0), ("bob", 1, 1))
    dealt = exported.assign(submitted_at=exported["submitted_at"] + pd.Timedelta(minutes=7))
    dealt["started_at"] = dealt["submitted_at"] + pd.Timedelta(seconds=5)
    assert risk_of(dealt, exported) == risk_of(exported)


def test_a_burst_identifies_its_user_though_no_job_is_alone():
    risk = risk_of(a_world(("ann", 1, 0), ("ann", 1, 0)))
    assert (risk.unique_jobs, risk.traced_jobs) == (0, 1)


def test_jobs_of_two_users_hide_each_other():
    assert risk_of(a_world(("ann", 1, 0), ("bob", 1, 0))).traced_jobs == 0


def test_pooled_users_hide_each_other_too():
    assert risk_of(a_world((OTHERS, 1, 0), (OTHERS, 1, 0))).traced_jobs == 0


def test_every_shift_under_which_export_and_log_overlap_is_tried():
    log = a_world(*(("ann", 1, 24 * day) for day in range(15)))
    risk = risk_of(log.assign(submitted_at=log["submitted_at"] - 100 * WEEK), log, weeks=-100)
    assert risk.shift_found and risk.shifts_tried == 5


def test_another_log_does_not_show_the_shift():
    exported = a_world(("ann", 1, 0), ("bob", 2, 1), ("bob", 1, 200))
    log = a_world(("ann", 3, 0), ("bob", 3, 500))
    assert not risk_of(exported, log, weeks=7).shift_found


@pytest.mark.parametrize(("hours", "share"), [(1, 1.0), (2, 0.0), (24, 0.0)])
def test_coarser_times_hide_more(hours, share):
    jobs = a_world(("ann", 1, 0), ("bob", 1, 1))
    assert traced_share(jobs, round_s=hours * HOUR_S, offset_s=0) == share


def test_days_are_those_of_the_cluster_s_clock():
    jobs = a_world(("ann", 1, 22), ("bob", 1, 25))
    assert traced_share(jobs, round_s=24 * HOUR_S, offset_s=0) == 1
    assert traced_share(jobs, round_s=24 * HOUR_S, offset_s=2 * HOUR_S) == 0
