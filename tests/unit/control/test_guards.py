"""Guards: each refusal is provoked, and leaves a reason for a person."""

import math
from typing import Any

import pytest

from helios.actions import JobSetting, Outcome, Result
from helios.changes import INELIGIBLE, Change, Key
from helios.control.guards import GuardResult, apply_guards, keep_one_owner
from helios.control.modes import ServiceMode
from helios.model import Mode
from helios.testing import NOON
from tests.unit.control.table import ACTIVE, canary, change, jobs_of


def limit(minutes: float = 20) -> Change[float]:
    return Change(setting=JobSetting.SOFT_LIMIT, target="j1", value=minutes * 60, reason="short", action="SoftLimit")


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
