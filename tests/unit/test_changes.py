"""What actions ask of jobs is taken apart in one way, judged in one order, and told in the words of the cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helios.actions import JobSetting, Outcome, Place, Ranking, Reorder, Result
from helios.changes import (
    INELIGIBLE,
    NO_SOFT_LIMITS,
    TOO_LONG,
    USERS_OWN,
    Change,
    ChangeContext,
    check_change,
    each_job,
    revert_job,
    slurm_value_mapping,
    to_job_changes,
)
from helios.testing import a_snapshot

TERMS = slurm_value_mapping(site_factor=lambda urgency: round(100 * urgency))


def every(*changes: Change[float], set_on: dict[JobSetting, set[str]]) -> list[tuple[str, str]]:
    single = each_job(
        changes, pending=lambda: ["1", "2"], is_set=lambda setting, job_id: job_id in set_on.get(setting, ())
    )
    return [(change.setting.value, change.target) for change in single]


def places(*names: str) -> tuple[Place, ...]:
    return tuple(Place(job_id=name, urgency=0.5, reason=f"why {name}") for name in names)


def a_change(value: float = 0.5, *, setting: JobSetting = JobSetting.ORDER, action: str = "Reorder") -> Change[float]:
    return Change(action=action, setting=setting, target="1", reason="why", value=value)


def a_revert() -> Change[float]:
    return revert_job(JobSetting.ORDER, "1", reason="why")


def a_limit(minutes: float = 11) -> Change[float]:
    return a_change(60 * minutes, setting=JobSetting.SOFT_LIMIT, action="SoftLimit")


def a_ground(**known: Any) -> ChangeContext:
    ground = {"before": 0, "is_set": False, "excluded_reason": "", "soft_limits": True, "time_limit": 0}
    return ChangeContext(mapping=TERMS, **(ground | known))


def refusal(change: Change[float], **known: Any) -> tuple[Result, str]:
    said = check_change(change, a_ground(**known))
    assert isinstance(said, Outcome)
    return said.result, said.remark


def test_an_order_asks_for_the_value_of_each_urgency() -> None:
    order = Reorder(partition="gpu", order=places("2", "1"), reason="why")
    assert [(c.key, TERMS.wanted(c)) for c in to_job_changes([order]).changes] == [
        ((JobSetting.ORDER, "2"), 50),
        ((JobSetting.ORDER, "1"), 50),
    ]


def test_an_order_by_rows_is_told_as_an_order() -> None:
    ranking = Ranking(
        partition="gpu",
        snapshot=a_snapshot(),
        rows=np.zeros(0, dtype=np.int64),
        urgency=np.zeros(0),
        order=lambda: places("1"),
        reason=lambda: "why",
    )
    assert [(c.action, c.target) for c in to_job_changes([ranking]).changes] == [("Reorder", "1")]


def test_a_soft_limit_asks_for_its_marked_minutes() -> None:
    assert TERMS.wanted(a_limit()) == 17


def test_a_revert_of_named_jobs_is_asked_for_whatever_stands_there() -> None:
    reverts = [revert_job(JobSetting.ORDER, job_id, reason="why") for job_id in ("1", "9")]
    assert every(*reverts, set_on={}) == [("order", "1"), ("order", "9")]
    assert {TERMS.wanted(revert) for revert in reverts} == {0}


def test_a_revert_of_all_is_asked_for_where_helios_set_values() -> None:
    reverts = [revert_job(setting, reason="why") for setting in JobSetting]
    set_on = {JobSetting.ORDER: {"2", "9"}, JobSetting.SOFT_LIMIT: {"1"}}
    assert every(*reverts, set_on=set_on) == [("soft_limit", "1"), ("order", "2")]


def test_a_change_is_told_in_slurms_words() -> None:
    said = TERMS.outcome(a_change(), Result.DONE, before=0, after=50)
    assert (said.before, said.after) == ("SiteFactor 0", "SiteFactor 50")
    said = TERMS.outcome(a_limit(), Result.GONE, after=17)
    assert (said.before, said.after) == ("", "TimeMin 17 min")


def test_what_differs_is_to_be_written() -> None:
    assert check_change(a_change(), a_ground()) is None


def test_what_stands_already_is_unchanged() -> None:
    said = check_change(a_change(), a_ground(before=50, is_set=True))
    assert said is not None
    assert (said.result, said.before, said.after) == (Result.UNCHANGED, "SiteFactor 50", "SiteFactor 50")


def test_an_excluded_job_is_refused_even_where_nothing_would_change() -> None:
    assert refusal(a_change(), before=50, excluded_reason="it is held") == (Result.REFUSED, "it is held")


def test_what_cannot_be_read_is_postponed() -> None:
    for change in (a_change(), a_limit()):
        assert refusal(change, hides_site_factor=True) == (Result.POSTPONED, INELIGIBLE)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"soft_limits": False, "before": 5}, NO_SOFT_LIMITS),
        ({"before": 5, "time_limit": 17}, USERS_OWN),
        ({"before": 7, "is_set": True, "time_limit": 17}, TOO_LONG),
    ],
)
def test_a_soft_limit_is_refused_with_the_first_reason(known: dict[str, Any], why: str) -> None:
    assert refusal(a_limit(), **known) == (Result.REFUSED, why)


@pytest.mark.parametrize("known", [{"time_limit": 18}, {"before": 7, "is_set": True}])
def test_a_soft_limit_below_the_time_limit_is_to_be_written(known: dict[str, Any]) -> None:
    assert check_change(a_limit(), a_ground(**known)) is None


def test_values_of_helios_are_reverted_on_excluded_jobs_too() -> None:
    assert (
        check_change(
            revert_job(JobSetting.ORDER, "1", reason="why"),
            a_ground(before=50, is_set=True, excluded_reason="it is held"),
        )
        is None
    )


@pytest.mark.parametrize(
    ("known", "result"),
    [
        ({"before": 12}, Result.UNCHANGED),
        ({"before": 12, "excluded_reason": "an admin set it"}, Result.REFUSED),
        ({"before": 0, "excluded_reason": "it is held"}, Result.UNCHANGED),
    ],
)
def test_what_helios_did_not_set_is_not_taken_back(known: dict[str, Any], result: Result) -> None:
    assert refusal(a_revert(), **known)[0] is result
