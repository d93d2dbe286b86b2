"""What actions ask of jobs is taken apart in one way, judged in one order, and told in the words of the cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from helios.actions import JobSetting, Outcome, Place, PowerUp, Ranking, Reorder, Result, Revert, SoftLimit
from helios.changes import (
    INELIGIBLE,
    NO_SOFT_LIMITS,
    TOO_LONG,
    USERS_OWN,
    ChangeContext,
    SettingChange,
    check_change,
    setting_changes,
    slurm_value_mapping,
)
from helios.testing import a_snapshot

TERMS = slurm_value_mapping(site_factor=lambda urgency: round(100 * urgency))


def asked(action: Any, *, set_on: dict[JobSetting, set[str]] | None = None) -> list[tuple[str, str, str, int]]:
    of_setting = set_on or {}
    changes = setting_changes(
        action, TERMS, pending=lambda: ["1", "2"], is_set=lambda setting, job_id: job_id in of_setting.get(setting, ())
    )
    return [(change.action, change.setting.value, change.job_id, change.wanted) for change in changes]


def places(*names: str) -> tuple[Place, ...]:
    return tuple(Place(job_id=name, urgency=0.5, reason=f"why {name}") for name in names)


def a_change(
    wanted: int = 50, *, setting: JobSetting = JobSetting.ORDER, action: str = "Reorder"
) -> SettingChange[int]:
    return SettingChange(action=action, setting=setting, job_id="1", reason="why", wanted=wanted, terms=TERMS)


def a_ground(**known: Any) -> ChangeContext:
    return ChangeContext(
        **({"before": 0, "is_set": False, "excluded_reason": "", "soft_limits": True, "time_limit": 0} | known)
    )


def refusal(change: SettingChange[int], **known: Any) -> tuple[Result, str]:
    said = check_change(change, a_ground(**known))
    assert isinstance(said, Outcome)
    return said.result, said.remark


def test_an_order_asks_for_the_value_of_each_urgency() -> None:
    order = Reorder(partition="gpu", order=places("2", "1"), reason="why")
    assert asked(order) == [("Reorder", "order", "2", 50), ("Reorder", "order", "1", 50)]


def test_an_order_by_rows_is_told_as_an_order() -> None:
    ranking = Ranking(
        partition="gpu",
        snapshot=a_snapshot(),
        rows=np.zeros(0, dtype=np.int64),
        urgency=np.zeros(0),
        order=lambda: places("1"),
        reason=lambda: "why",
    )
    assert asked(ranking) == [("Reorder", "order", "1", 50)]


def test_a_soft_limit_asks_for_its_marked_minutes() -> None:
    limit = SoftLimit(job_id="1", run_time=timedelta(minutes=11), reason="why")
    assert asked(limit) == [("SoftLimit", "soft_limit", "1", 17)]


def test_a_revert_of_named_jobs_is_asked_for_whatever_stands_there() -> None:
    restore = Revert(job_ids=("1", "9"), setting=JobSetting.ORDER, reason="why")
    assert asked(restore) == [("Revert", "order", "1", 0), ("Revert", "order", "9", 0)]


def test_a_revert_of_all_is_asked_for_where_helios_set_values() -> None:
    restore = Revert(reason="why")
    set_on = {JobSetting.ORDER: {"2", "9"}, JobSetting.SOFT_LIMIT: {"1"}}
    assert asked(restore, set_on=set_on) == [("Revert", "soft_limit", "1", 0), ("Revert", "order", "2", 0)]


def test_what_is_no_action_on_jobs_is_named() -> None:
    with pytest.raises(TypeError, match="PowerUp is not an action"):
        asked(PowerUp(node="n1", reason="why"))


def test_a_change_is_told_in_slurms_words() -> None:
    said = a_change().outcome(Result.DONE, before=0, after=50)
    assert (said.before, said.after) == ("SiteFactor 0", "SiteFactor 50")
    said = a_change(setting=JobSetting.SOFT_LIMIT).outcome(Result.GONE, after=17)
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
    for setting in JobSetting:
        said = refusal(a_change(setting=setting), hides_site_factor=True)
        assert said == (Result.POSTPONED, INELIGIBLE)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"soft_limits": False, "before": 5}, NO_SOFT_LIMITS),
        ({"before": 5, "time_limit": 17}, USERS_OWN),
        ({"before": 7, "is_set": True, "time_limit": 17}, TOO_LONG),
    ],
)
def test_a_soft_limit_is_refused_with_the_first_reason(known: dict[str, Any], why: str) -> None:
    change = a_change(17, setting=JobSetting.SOFT_LIMIT, action="SoftLimit")
    assert refusal(change, **known) == (Result.REFUSED, why)


@pytest.mark.parametrize("known", [{"time_limit": 18}, {"before": 7, "is_set": True}])
def test_a_soft_limit_below_the_time_limit_is_to_be_written(known: dict[str, Any]) -> None:
    assert check_change(a_change(17, setting=JobSetting.SOFT_LIMIT, action="SoftLimit"), a_ground(**known)) is None


def test_values_of_helios_are_reverted_on_excluded_jobs_too() -> None:
    assert (
        check_change(a_change(0, action="Revert"), a_ground(before=50, is_set=True, excluded_reason="it is held"))
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
    assert refusal(a_change(0, action="Revert"), **known)[0] is result
