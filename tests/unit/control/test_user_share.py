"""One user has a bounded share of the jobs put ahead of others'."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.changes import Change
from helios.control.observed import PendingJob
from helios.control.user_share import cap_changes
from helios.testing import NOON
from tests.unit.control.table import change, jobs_of


@cache
def a_queued_job() -> PendingJob:
    (job,) = jobs_of({"job_id": "j1"}).values()
    return job


def queue(**users: int) -> dict[str, PendingJob]:
    """Return jobs of users, all of one age."""
    named = [(f"{user}{number}", user) for user, count in users.items() for number in range(count)]
    return {job_id: replace(a_queued_job(), job_id=job_id, user=user) for job_id, user in named}


def behind(jobs: dict[str, PendingJob], *, user: str = "olga") -> dict[str, PendingJob]:
    """Return jobs that came later than one of ``user``."""
    oldest = replace(a_queued_job(), job_id=f"{user}'s old one", user=user, eligible_us=0)
    return {oldest.job_id: oldest} | jobs


def preferred(changes: list[Change[float]], jobs: dict[str, PendingJob]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in changes:
        if item.value > 0:
            found.setdefault(jobs[item.target].user, []).append(item.target)
    return found


def test_one_user_has_a_bounded_share_of_the_jobs_put_ahead() -> None:
    new = queue(alice=8, bob=2)
    jobs = behind(new)
    kept = cap_changes([change(job, 0.5) for job in new], jobs=jobs, share=0.5)
    assert preferred(kept, jobs) == {"alice": ["alice0", "alice1"], "bob": ["bob0", "bob1"]}


def test_the_least_urgent_are_made_neutral_first_and_say_why() -> None:
    jobs = behind(queue(alice=3, bob=1))
    kept = cap_changes(
        [change("alice0", 0.1), change("alice1", 0.9), change("alice2", 0.2), change("bob0", 0.3)], jobs=jobs, share=0.5
    )
    assert {item.target: item.value for item in kept} == {"alice0": 0.0, "alice1": 0.9, "alice2": 0.0, "bob0": 0.3}
    assert kept[0].reason == (
        "short; neutral: no more than 50% of the jobs put ahead of others' in partition gpu may be alice's"
    )


def test_where_only_one_user_queues_there_is_no_cap() -> None:
    new = queue(alice=8)
    jobs = behind(new, user="alice")
    assert len(preferred(cap_changes([change(job) for job in new], jobs=jobs, share=0.5), jobs)["alice"]) == 8


def test_everybody_keeps_one_so_that_waiting_comes_to_an_end() -> None:
    jobs = behind(queue(alice=5, bob=3))
    kept = cap_changes([change(f"alice{n}", 1.0) for n in range(5)], jobs=jobs, share=0.5)
    assert preferred(kept, jobs) == {"alice": ["alice0"]}


def test_who_has_waited_longest_is_put_ahead_of_nobody() -> None:
    old = queue(alice=5)
    later = {name: replace(job, eligible_us=job.eligible_us + 1) for name, job in queue(bob=3).items()}
    changes = [change(job, 1.0) for job in old] + [change(job, 0.5) for job in later]
    assert cap_changes(changes, jobs=old | later, share=0.5) == changes


@pytest.mark.parametrize("other", [{"excluded_reason": "held"}, {"eligible": False}, {"partition": "big"}])
def test_a_job_that_could_not_be_put_back_is_not_passed(other: dict[str, Any]) -> None:
    new = queue(alice=5)
    jobs = {name: replace(job, **(other if job.user == "olga" else {})) for name, job in behind(new).items()}
    changes = [change(job) for job in new]
    assert cap_changes(changes, jobs=jobs, share=0.5) == changes


def test_who_is_wished_no_less_is_not_passed() -> None:
    jobs = behind(queue(alice=5))
    changes = [change(job, 0.5) for job in jobs]
    assert cap_changes(changes, jobs=jobs, share=0.5) == changes


def test_jobs_that_are_not_preferred_are_not_capped() -> None:
    jobs = queue(alice=5, bob=1)
    changes = [change(job, -0.5) for job in jobs]
    assert cap_changes(changes, jobs=jobs, share=0.1) == changes


def test_each_partition_has_its_own_cap() -> None:
    jobs = jobs_of(
        {"job_id": "a", "user": "alice"},
        {"job_id": "b", "user": "alice"},
        {"job_id": "c", "user": "alice", "partition": "big"},
        {"job_id": "d", "user": "alice", "partition": "big"},
        {"job_id": "e", "user": "bob", "partition": "big", "submitted_at": NOON - timedelta(hours=1)},
    )
    changes = [change("a"), change("b"), change("c", partition="big"), change("d", partition="big")]
    assert [item.value for item in cap_changes(changes, jobs=jobs, share=0.5)] == [0.5, 0.5, 0.5, 0.0]


@given(
    waiting=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from([-0.5, 0.0, 0.3, 0.6, 1.0])), max_size=14
    ),
    share=st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.75, 1.0]),
)
def test_whoever_queues_the_cap_holds_and_touches_nobody_who_passes_nobody(
    waiting: list[tuple[str, int, float]], share: float
) -> None:
    jobs = {
        str(number): replace(a_queued_job(), job_id=str(number), user=user, eligible_us=age)
        for number, (user, age, _) in enumerate(waiting)
    }
    changes = [change(job, value) for job, (*_, value) in zip(jobs, waiting, strict=True)]
    passes = {
        str(number)
        for number, (user, age, value) in enumerate(waiting)
        if value > 0 and any(its < value and older < age and other != user for other, older, its in waiting)
    }
    kept = cap_changes(changes, jobs=jobs, share=share)
    assert all(after == before for after, before in zip(kept, changes, strict=True) if before.target not in passes)
    left = Counter(jobs[item.target].user for item in kept if item.value > 0 and item.target in passes)
    assert all(number <= max(1, share * left.total() + 1e-6) for number in left.values())
    assert set(left) == {jobs[job].user for job in passes}


@given(
    counts=st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 7)), share=st.sampled_from([0.3, 0.5, 0.8])
)
def test_the_cap_takes_away_no_more_than_it_must(counts: tuple[int, int, int], share: float) -> None:
    new = queue(**dict(zip(("alice", "bob", "carol"), counts, strict=True)))
    jobs = behind(new)
    kept = preferred(cap_changes([change(job) for job in new], jobs=jobs, share=share), jobs)

    def holds(chosen: tuple[int, ...]) -> bool:
        return all(number <= max(1, share * sum(chosen) + 1e-9) for number in chosen)

    best = max(sum(chosen) for chosen in product(*(range(count + 1) for count in counts)) if holds(chosen))
    assert sum(map(len, kept.values())) == best
