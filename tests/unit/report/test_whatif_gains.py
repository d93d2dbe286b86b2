from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.report.gains import GroupGain, biggest_users, by_size, by_user, losing_jobs, saved_gpu_hours
from helios.report.whatif import JobNames, Run, WhatIf
from tests.unit.report.replays import a_run, a_what_if, qssf


def named(before: list[int], after: list[int], *, users: str, gpus: list[int] | None = None) -> tuple[Run, WhatIf]:
    """Two replays of jobs whose users are letters; a dot is a user who is not known."""
    letters = sorted(set(users) - {"."})
    codes = np.array([letters.index(user) if user != "." else -1 for user in users])
    runs = [replace(run(waits, gpus=gpus), users=codes) for run, waits in ((a_run, before), (qssf, after))]
    what_they_are = JobNames(
        job_ids=np.array([f"j{place}" for place in range(len(users))], dtype=object),
        partition=np.zeros(len(users), dtype=np.int32),
        users=tuple(letters),
    )
    return runs[1], a_what_if(*runs, named=what_they_are)


def test_users_who_lose_most_come_first_and_the_unknown_are_no_user() -> None:
    run, result = named([100, 100, 100, 0], [700, 50, 400, 9], users="bac.")
    gains = by_user(run, result)
    assert [(gain.name, gain.change_s) for gain in gains] == [("b", 600), ("c", 300), ("a", -50)]
    assert [gain.name for gain in biggest_users(gains)[0]] == ["b", "c"]
    assert [gain.name for gain in biggest_users(gains)[1]] == ["a"]


def test_a_difference_that_nobody_would_notice_is_none() -> None:
    run, result = named([10_000, 0], [10_150, 1], users="ab")
    assert [(gain.loses, gain.gains) for gain in by_user(run, result)] == [(False, False)] * 2


def test_where_users_have_no_names_none_is_told() -> None:
    assert by_user(qssf([1, 2]), a_what_if(a_run([3, 4]), qssf([1, 2]))) == []
    assert losing_jobs(qssf([9, 9]), a_what_if(a_run([3, 4]), qssf([9, 9]))) == []


@pytest.mark.parametrize(
    ("gpus", "name"),
    [(1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (8, "5-8"), (9, "9-16"), (1025, "1,025-2,048")],
)
def test_sizes_are_doubled_from_class_to_class(gpus: int, name: str) -> None:
    run, result = named([5], [5], users="a", gpus=[gpus])
    assert [gain.name for gain in by_size(run, result)] == [name]


def test_the_tail_of_a_size_and_losing_jobs_stand_beside_the_mean() -> None:
    run, result = named([0, 0, 0, 1000], [10, 10, 10, 0], users="aaaa", gpus=[2, 2, 2, 2])
    (gain,) = by_size(run, result)
    assert (gain.before.mean_s, gain.after.mean_s) == (250.0, 7.5)
    assert (gain.before.median_s, gain.after.median_s) == (0.0, 10.0)
    assert gain.longer == 0.75
    assert gain.gpu_hours == pytest.approx(4 * 2 * 600 / 3600)


def test_the_jobs_that_wait_longer_most_are_named_worst_first() -> None:
    run, result = named([0, 50, 0, 7], [30, 10, 900, 7], users="ab.a")
    losers = losing_jobs(run, result)
    assert [(job.job_id, job.user, job.before_s, job.after_s) for job in losers] == [
        ("j2", "", 0, 900),
        ("j0", "a", 0, 30),
    ]
    assert {job.partition for job in losers} == {"gpu"}
    assert [job.run_time_s for job in losers] == [600, 600]


def test_waiting_saved_counts_every_gpu_of_a_job() -> None:
    run, result = named([3600, 0], [0, 7200], users="ab", gpus=[4, 1])
    assert saved_gpu_hours(run, result.baseline).tolist() == [4.0, 2.0]


@given(
    waits=st.lists(
        st.tuples(st.integers(0, 10**5), st.integers(0, 10**5), st.sampled_from("abc."), st.integers(1, 64)), min_size=1
    )
)
def test_groups_add_up_to_the_whole(waits: list[tuple[int, int, str, int]]) -> None:
    before, after, users, gpus = (list(column) for column in zip(*waits, strict=True))
    run, result = named(before, after, users="".join(users), gpus=gpus)

    def total(gains: list[GroupGain]) -> float:
        return sum(gain.jobs * gain.change_s for gain in gains)

    sizes, people = by_size(run, result), by_user(run, result)
    changes = np.array(after) - np.array(before)
    assert sum(gain.jobs for gain in sizes) == len(waits)
    assert total(sizes) == pytest.approx(changes.sum(), abs=1e-3)
    known = np.array([user != "." for user in users])
    assert sum(gain.jobs for gain in people) == known.sum()
    assert total(people) == pytest.approx(changes[known].sum(), abs=1e-3)
    for gain in people:
        mine = np.array([user == gain.name for user in users])
        assert gain.longer == pytest.approx((changes[mine] > 1).mean())
    worst = sorted(changes[changes > 1].tolist(), reverse=True)[:10]
    assert [job.after_s - job.before_s for job in losing_jobs(run, result)] == worst
