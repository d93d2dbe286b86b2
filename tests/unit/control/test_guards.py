"""Guards: each refusal is provoked, and leaves a reason for a person."""

import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.actions import JobSetting, Outcome, Result
from helios.changes import INELIGIBLE, Change, Key
from helios.control.guards import GuardResult, apply_guards, cap_changes, keep_one_owner
from helios.control.modes import ServiceMode
from helios.control.observed import PendingJob, pending_jobs
from helios.model import Mode
from helios.testing import NOON, a_pending_job, a_snapshot
from tests.unit.control.table import ACTIVE, canary


def change(job_id: str = "j1", value: float = 0.5, *, partition: str = "gpu") -> Change[float]:
    return Change(
        setting=JobSetting.ORDER,
        target=job_id,
        value=value,
        reason="short",
        action="Reorder",
        partition=partition,
    )


def limit(minutes: float = 20) -> Change[float]:
    return Change(setting=JobSetting.SOFT_LIMIT, target="j1", value=minutes * 60, reason="short", action="SoftLimit")


def jobs_of(*rows: dict[str, Any]) -> dict[str, PendingJob]:
    return pending_jobs(a_snapshot(pending=[a_pending_job(**{"p50_s": 600.0} | row) for row in rows]))


def result(
    *changes: Change[float],
    job: dict[str, Any] | None = None,
    mode: ServiceMode = ACTIVE,
    theirs: frozenset[Key] = frozenset(),
) -> GuardResult[float]:
    jobs = jobs_of({"job_id": "j1"} | (job or {}))
    return apply_guards(changes, jobs=jobs, mode=mode, overridden=theirs, most_of_one_user=1.0)


def refusal(*changes: Change[float], **situation: Any) -> Outcome:
    judged = result(*changes, **situation)
    (outcome,) = judged.refused
    assert outcome.setting is changes[-1].setting
    return outcome


def test_an_ordinary_change_passes() -> None:
    assert result(change(), limit()) == GuardResult(allowed=(change(), limit()), refused=())


def test_a_job_that_is_not_pending_is_refused() -> None:
    outcome = refusal(change("j9"))
    assert (outcome.result, outcome.remark) == (Result.REFUSED, "no such job is pending")


def test_a_job_to_be_left_alone_is_refused_with_the_reason() -> None:
    assert refusal(change(), job={"excluded_reason": "held"}).remark == "held"
    assert refusal(limit(), job={"excluded_reason": "held"}).remark == "held"


def test_what_somebody_else_changed_is_theirs_setting_by_setting() -> None:
    judged = result(change(), limit(), theirs=frozenset({(JobSetting.ORDER, "j1")}))
    assert judged.allowed == (limit(),)
    assert judged.refused[0].remark == "somebody changed it after Helios did: it is theirs"


def test_a_job_outside_the_canary_is_refused() -> None:
    assert refusal(change(), mode=canary("debug")).remark == "outside the canary"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.01, -1.01])
def test_an_urgency_that_is_no_urgency_is_refused(value: float) -> None:
    assert "not between -1 and 1" in refusal(change(value=value)).remark


def test_a_job_of_another_partition_is_refused() -> None:
    assert refusal(change(partition="debug")).remark == "it queues in partition gpu, not debug"


@pytest.mark.parametrize("eligible_at", [None, "2026-01-06T00:00Z"])
@pytest.mark.parametrize("mode", [ACTIVE, ServiceMode(mode=Mode.SHADOW)])
@pytest.mark.parametrize("asked", [change(), limit()])
def test_any_change_of_a_job_that_is_not_yet_eligible_waits(
    eligible_at: str | None, mode: ServiceMode, asked: Change[float]
) -> None:
    outcome = refusal(asked, job={"eligible_at": eligible_at}, mode=mode)
    assert (outcome.result, outcome.remark) == (Result.POSTPONED, INELIGIBLE)


def test_a_job_is_eligible_from_its_moment_on() -> None:
    assert result(change(), job={"eligible_at": NOON}).refused == ()


@pytest.mark.parametrize("time_limit_s", [1200.0, 600.0, math.nan])
def test_a_soft_limit_that_is_not_below_the_time_limit_is_refused(time_limit_s: float) -> None:
    assert refusal(limit(20), job={"time_limit_s": time_limit_s}).remark == "not below its time limit"


@pytest.mark.parametrize(("time_limit_s", "passes"), [(1620.0, False), (1680.0, True), (math.inf, True)])
def test_a_soft_limit_is_compared_as_it_is_written(time_limit_s: float, passes: bool) -> None:
    kept = result(limit(20), job={"time_limit_s": time_limit_s}).allowed  # 27 min, the next that bears the mark
    assert bool(kept) is passes


def test_a_soft_limit_of_an_unlimited_job_passes() -> None:
    assert result(limit(20), job={"time_limit_s": math.inf}).refused == ()


def test_a_soft_limit_below_the_predicted_median_is_refused() -> None:
    assert "below the predicted median" in refusal(limit(9.9)).remark
    assert result(limit(10)).refused == ()


def test_a_soft_limit_without_a_prediction_is_refused() -> None:
    assert "there is no prediction" in refusal(limit(20), job={"p50_s": None}).remark


def test_a_soft_limit_of_the_users_own_is_never_replaced() -> None:
    assert refusal(limit(), job={"user_soft_limit_s": 600.0}).remark == "the user set a --time-min"


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf])
def test_a_soft_limit_that_is_none_is_refused(minutes: float) -> None:
    assert refusal(limit(minutes)).remark.startswith("a soft limit of")


def test_a_job_named_twice_is_believed_once() -> None:
    judged = result(change(value=0.5), change(value=0.1))
    assert judged.allowed == (change(value=0.5),)
    assert judged.refused[0].remark == "the service named this job twice"


def owners(held: dict[Key, str] | None = None, **changes: tuple[Change[float], ...]) -> dict[str, list[str]]:
    allowed, refused = keep_one_owner(changes, held=held or {})
    assert all(outcome.result is Result.REFUSED for outcomes in refused.values() for outcome in outcomes)
    return {name: [change.target for change in kept] for name, kept in allowed.items()}


def test_a_setting_that_two_services_want_goes_to_the_first_configured() -> None:
    assert owners(first=(change(),), second=(change(), change("j2"))) == {"first": ["j1"], "second": ["j2"]}


def test_two_setting_kinds_of_one_job_may_have_two_services() -> None:
    assert owners(first=(change(),), second=(limit(),)) == {"first": ["j1"], "second": ["j1"]}


def test_a_service_that_was_not_asked_keeps_its_setting() -> None:
    held = {(JobSetting.ORDER, "j1"): "first"}
    assert owners(held, first=(), second=(change(),)) == {"first": [], "second": []}


def test_a_service_configured_first_takes_a_setting_over() -> None:
    held = {(JobSetting.ORDER, "j1"): "second"}
    assert owners(held, first=(change(),), second=()) == {"first": ["j1"], "second": []}


def test_what_a_service_holds_that_is_gone_is_free() -> None:
    assert owners({(JobSetting.ORDER, "j1"): "gone"}, first=(change(),)) == {"first": ["j1"]}


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
