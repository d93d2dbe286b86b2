"""What of an action is written, what is not, and what is said about it: on a Slurm in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.actions import JobSetting, Outcome, Place, Reorder, Result, Revert, SoftLimit
from helios.changes import CHANGED, HIDDEN, INELIGIBLE
from helios.control.jobs import revert_jobs
from helios.errors import AnswerNotUnderstood, ClusterUnavailable
from helios.slurm.hook_table import PUBLISHED
from helios.slurm.jobs import MOST_IN_BLOCK, OTHERS, SPENT, UNSEEN, SlurmCluster
from helios.slurm.undo_file import JOBS_FILE, JobsUndo, UndoEntry, UndoNotWritten
from helios.testing import check_cluster
from tests.changes import asked
from tests.unit.slurm.slurm import START, MemorySlurm, a_raw_job

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def a_cluster(slurm: MemorySlurm, *, writes_per_cycle: int = 100, undo: JobsUndo | None = None) -> SlurmCluster:
    return SlurmCluster(
        slurm,
        name="venus",
        site_factor_most=10_000,
        writes_per_cycle=writes_per_cycle,
        sprio=slurm.sprio,
        undo=undo,
        clock=lambda: NOON,
    )


def having(*entries: tuple[JobSetting, str, int]) -> JobsUndo:
    undo = JobsUndo()
    undo.add(UndoEntry(setting=setting, job_id=job, submitted=START, value=value) for setting, job, value in entries)
    return undo


def an_order(**urgencies: float) -> Reorder:
    ranked = sorted(urgencies.items(), key=lambda item: -item[1])
    places = tuple(Place(job_id=name.strip("j"), urgency=value, reason="short") for name, value in ranked)
    return Reorder(partition="gpu", order=places, reason="shortest first")


def a_limit(job_id: str, minutes: float = 11) -> SoftLimit:
    return SoftLimit(job_id=job_id, run_time=timedelta(minutes=minutes), reason="p90")


def only(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


def test_it_keeps_the_packaged_promises_of_a_cluster() -> None:
    slurm = MemorySlurm(
        *(a_raw_job(str(number)) for number in range(1, 6)),
        a_raw_job("6", state="RUNNING", started=START),
        a_raw_job("7", priority=0, reason="JobHeldUser"),
    )
    check_cluster(lambda: a_cluster(slurm))


def test_a_snapshot_shows_the_queue_in_slurm_order() -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"), a_raw_job("3", state="RUNNING", started=START))
    slurm.site["2"] = 4037
    snapshot = a_cluster(slurm).snapshot()
    assert (snapshot.taken_at, snapshot.cluster) == (NOON, "venus")
    assert snapshot.pending["job_id"].tolist() == ["2", "1"]
    assert snapshot.running["job_id"].tolist() == ["3"]
    assert snapshot.nodes["name"].tolist() == ["n1", "n2"]


@pytest.mark.parametrize("printed", [0, 15])
def test_a_sprio_without_a_quarter_of_the_jobs_is_not_understood(printed: int) -> None:
    slurm = MemorySlurm(*(a_raw_job(str(number)) for number in range(1, 21)))
    whole = slurm.sprio()
    slurm.sprio = lambda _=(): dict([*whole.items()][:printed])  # type: ignore[method-assign]  # because it is a fake
    with pytest.raises(AnswerNotUnderstood, match=f"{20 - printed} of 20 jobs"):
        a_cluster(slurm).snapshot()


@pytest.mark.parametrize("listed", [0, 12])
def test_a_queue_without_jobs_that_sprio_names_is_not_believed(listed: int) -> None:
    slurm = MemorySlurm(*(a_raw_job(str(number)) for number in range(1, 17)))
    whole = slurm.queue
    slurm.queue = lambda _=(): whole()[:listed]  # type: ignore[method-assign]  # because it is a fake
    cluster = a_cluster(slurm)
    with pytest.raises(AnswerNotUnderstood, match=f"names {16 - listed} pending jobs that squeue did not list"):
        cluster.snapshot()
    assert "squeue did not list" in revert_jobs(cluster, "a stop").failure


def test_a_job_submitted_between_squeue_and_sprio_is_no_cut() -> None:
    slurm = MemorySlurm(*(a_raw_job(str(number)) for number in range(1, 17)))
    whole = slurm.queue
    slurm.queue = lambda _=(): whole()[:15]  # type: ignore[method-assign]  # because it is a fake
    assert len(a_cluster(slurm).snapshot().pending) == 15


def test_a_sprio_may_leave_out_jobs_that_cannot_start() -> None:
    slurm = MemorySlurm(*(a_raw_job(str(number), reason="Dependency") for number in range(1, 21)), a_raw_job("30"))
    slurm.sprio = dict  # type: ignore[method-assign]  # because it is a fake
    assert len(a_cluster(slurm).snapshot().pending) == 21


def test_one_change_carries_both_setting_kinds_of_a_job() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    outcomes = a_cluster(slurm).apply(asked([an_order(j1=0.5), a_limit("1")]))
    assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.DONE]
    assert [(change.site_factor, change.time_min) for change in slurm.changes] == [(5037, 17)]
    assert [outcome.after for outcome in outcomes] == ["SiteFactor 5037", "TimeMin 17 min"]


def test_an_array_is_one_change() -> None:
    slurm = MemorySlurm(a_raw_job("1", array_job_id="1", array_tasks="0-99", tasks=100))
    a_cluster(slurm).apply(asked([an_order(j1=0.5)]))
    assert [change.job_id for change in slurm.changes] == ["1"]


def test_an_array_is_written_before_its_tasks_that_left_it() -> None:
    left = a_raw_job("9", array_job_id="5", array_tasks="3")
    slurm = MemorySlurm(left, a_raw_job("5", array_job_id="5", array_tasks="4-8", tasks=5))
    outcomes = a_cluster(slurm).apply(asked([an_order(j9=0.9, j5=0.1)]))
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    assert (slurm.site["9"], slurm.site["5"]) == (8937, 1037)


def test_what_already_is_so_costs_no_write() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    cluster.apply(asked([an_order(j1=0.5), a_limit("1")]))
    again = cluster.apply(asked([an_order(j1=0.5), a_limit("1")]))
    assert {outcome.result for outcome in again} == {Result.UNCHANGED}
    assert len(slurm.changes) == 1


def test_the_largest_changes_are_written_first_and_the_rest_waits() -> None:
    slurm = MemorySlurm(*(a_raw_job(str(number)) for number in (1, 2, 3)))
    outcomes = a_cluster(slurm, writes_per_cycle=1).apply(asked([an_order(j1=0.2, j2=-0.1, j3=-0.9)]))
    assert [change.job_id for change in slurm.changes] == ["3"]
    assert [(outcome.result, outcome.remark) for outcome in outcomes[:2]] == [(Result.POSTPONED, SPENT)] * 2
    assert outcomes[2].result is Result.DONE


def test_taking_back_comes_before_anything_new() -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"))
    slurm.site["2"] = 137
    undo = having((JobSetting.ORDER, "2", 137))
    outcomes = a_cluster(slurm, writes_per_cycle=1, undo=undo).apply(
        asked([an_order(j1=1.0), Revert(reason="stop", job_ids=("2",))])
    )
    assert slurm.site == {"2": 0}
    assert outcomes[0].result is Result.POSTPONED


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_raw_job("1", het_job_id="1", het_job_offset=0), "heterogeneous"),
        (a_raw_job("1", cron=True), "scrontab"),
        (a_raw_job("1", reservation="course"), "reservation course"),
        (a_raw_job("1", priority=0, reason="JobHeldAdmin"), "held"),
    ],
)
def test_a_job_out_of_bounds_is_refused_with_the_reason(job: dict[str, object], why: str) -> None:
    slurm = MemorySlurm(job)  # type: ignore[arg-type]  # because parametrize forgets the type
    outcomes = a_cluster(slurm).apply(asked([an_order(j1=0.5), a_limit("1")]))
    assert [outcome.result for outcome in outcomes] == [Result.REFUSED, Result.REFUSED]
    assert all(why in outcome.remark for outcome in outcomes)
    assert slurm.changes == []


def test_a_site_factor_of_an_admin_stays() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.site["1"] = 500
    cluster = a_cluster(slurm)
    for action in (an_order(j1=0.5), Revert(reason="stop", job_ids=("1",), setting=JobSetting.ORDER)):
        outcome = only(cluster.apply(asked([action])))
        assert (outcome.result, outcome.before) == (Result.REFUSED, "SiteFactor 500")
    assert cluster.apply(asked([Revert(reason="stop")])) == []
    assert slurm.changes == []


def test_a_direct_priority_is_left_alone() -> None:
    slurm = MemorySlurm(a_raw_job("1", priority=5000))
    slurm.direct.add("1")
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert outcome.result is Result.REFUSED
    assert "set directly, to 5000" in outcome.remark


def test_a_job_that_is_not_eligible_yet_waits_unwritten() -> None:
    slurm = MemorySlurm(a_raw_job("1", eligible=None, reason="Dependency"))
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert (outcome.result, outcome.remark) == (Result.POSTPONED, INELIGIBLE)
    assert slurm.changes == []


@pytest.mark.parametrize(
    ("version", "parameters"), [("22.05.8", "time_min_as_soft_limit"), ("25.11.2", "bf_interval=30"), ("25.11.2", "")]
)
def test_no_time_min_is_written_where_it_would_shorten_the_job(version: str, parameters: str) -> None:
    slurm = MemorySlurm(a_raw_job("1"), version=version, parameters=parameters)
    outcome = only(a_cluster(slurm).apply(asked([a_limit("1")])))
    assert outcome.result is Result.REFUSED
    assert "time_min_as_soft_limit" in outcome.remark
    assert slurm.changes == []


def test_a_users_own_time_min_stays() -> None:
    slurm = MemorySlurm(a_raw_job("1", time_min_s=1800.0))
    cluster = a_cluster(slurm)
    outcome = only(cluster.apply(asked([a_limit("1")])))
    assert (outcome.result, outcome.before) == (Result.REFUSED, "TimeMin 30 min")
    cluster.apply(asked([Revert(reason="stop"), Revert(reason="stop", job_ids=("1",))]))
    assert slurm.jobs["1"]["time_min_s"] == 1800.0


def test_before_soft_limits_even_a_marked_time_min_is_the_users() -> None:
    slurm = MemorySlurm(a_raw_job("1", time_min_s=17 * 60.0), version="22.05.8")
    cluster = a_cluster(slurm)
    cluster.apply(asked([Revert(reason="stop"), Revert(reason="stop", job_ids=("1",))]))
    assert slurm.changes == []
    assert cluster.snapshot().pending["user_soft_limit_s"].tolist() == [17 * 60.0]


def test_a_soft_limit_that_is_not_below_the_hard_one_is_refused() -> None:
    slurm = MemorySlurm(a_raw_job("1", time_limit_s=17 * 60.0))
    assert only(a_cluster(slurm).apply(asked([a_limit("1", 16)]))).remark == "it is not below the time limit"


def test_a_restore_after_a_restart_reverts_recorded_marked_values() -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2", time_min_s=420.0), a_raw_job("3"))
    slurm.site |= {"1": -2537, "3": 25}
    undo = having((JobSetting.ORDER, "1", -2537), (JobSetting.SOFT_LIMIT, "2", 7), (JobSetting.ORDER, "3", 25))
    outcomes = a_cluster(slurm, undo=undo).apply(asked([Revert(reason="stop")]))
    assert {(outcome.job_id, outcome.setting, outcome.result) for outcome in outcomes} == {
        ("1", JobSetting.ORDER, Result.DONE),
        ("2", JobSetting.SOFT_LIMIT, Result.DONE),
    }
    assert (slurm.site["1"], slurm.site["3"], slurm.jobs["2"]["time_min_s"]) == (0, 25, None)


@pytest.mark.parametrize("minutes", [7, 17])
def test_a_users_own_minimum_that_bears_the_mark_is_left_and_named(minutes: int) -> None:
    slurm = MemorySlurm(a_raw_job("1", time_min_s=minutes * 60.0))
    outcome = only(a_cluster(slurm).apply(asked([Revert(reason="stop")])))
    assert (outcome.result, outcome.before) == (Result.REFUSED, f"TimeMin {minutes} min")
    assert "no record says that Helios wrote it" in outcome.remark
    assert slurm.changes == []
    assert only(a_cluster(slurm).apply(asked([a_limit("1", 27)]))).remark == "the user set a --time-min"


@pytest.mark.parametrize(
    "record", [(JobSetting.ORDER, "1", 437), (JobSetting.SOFT_LIMIT, "1", 537), (JobSetting.ORDER, "2", 537)]
)
def test_a_record_of_another_value_setting_or_job_proves_nothing(record: tuple[JobSetting, str, int]) -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.site["1"] = 537
    outcome = only(a_cluster(slurm, undo=having(record)).apply(asked([Revert(reason="stop")])))
    assert (outcome.result, slurm.changes) == (Result.REFUSED, [])


def test_a_later_job_of_the_same_number_is_not_the_recorded_one() -> None:
    slurm = MemorySlurm(a_raw_job("1", submitted=START + 1))
    slurm.site["1"] = 537
    a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 537))).apply(asked([Revert(reason="stop")]))
    assert slurm.changes == []


def test_a_requeued_job_is_the_recorded_one() -> None:
    slurm = MemorySlurm(a_raw_job("1", submitted=START + 1, restart=1))
    slurm.site["1"] = 537
    a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 537))).apply(asked([Revert(reason="stop")]))
    assert slurm.site["1"] == 0


def test_a_task_that_left_its_array_is_proved_by_the_arrays_record() -> None:
    slurm = MemorySlurm(a_raw_job("9", array_job_id="5", array_tasks="3"))
    slurm.site["9"] = 537
    a_cluster(slurm, undo=having((JobSetting.ORDER, "5", 537))).apply(asked([Revert(reason="stop")]))
    assert slurm.site["9"] == 0


def test_the_value_before_the_last_may_come_back_and_is_taken_back() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    for urgency in (0.5, 0.3):
        cluster.apply(asked([an_order(j1=urgency)]))
    slurm.site["1"] = 5037  # as backfill does before 26.05.3
    cluster.apply(asked([Revert(reason="stop")]))
    assert slurm.site["1"] == 0


def test_a_restore_of_one_setting_leaves_the_other() -> None:
    slurm = MemorySlurm(a_raw_job("1", time_min_s=420.0))
    slurm.site["1"] = 137
    undo = having((JobSetting.ORDER, "1", 137), (JobSetting.SOFT_LIMIT, "1", 7))
    a_cluster(slurm, undo=undo).apply(asked([Revert(reason="stop", setting=JobSetting.SOFT_LIMIT)]))
    assert (slurm.site["1"], slurm.jobs["1"]["time_min_s"]) == (137, None)


HIDING = [
    {"priority": 0, "reason": "JobHeldUser"},
    {"eligible": START + 10**6},
    {"reason": "Dependency", "eligible": None},
]


@pytest.mark.parametrize("hiding", HIDING)
def test_what_nobody_can_read_is_never_written_blindly(hiding: dict[str, object]) -> None:
    slurm = MemorySlurm(a_raw_job("1", **hiding), a_raw_job("2", **hiding))
    slurm.site |= {"1": 500, "2": 600}
    cluster = a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 4037)))
    outcome = only(cluster.apply(asked([Revert(reason="stop")])))
    assert (outcome.job_id, outcome.result) == ("1", Result.REFUSED)
    assert outcome.remark == f"{HIDDEN}; Helios had written SiteFactor 4037"
    assert cluster.apply(asked([Revert(reason="stop", job_ids=("1", "2"), setting=JobSetting.ORDER)]))
    assert slurm.changes == []


def test_a_hidden_value_of_helios_is_written_once_on_demand() -> None:
    slurm = MemorySlurm(*(a_raw_job(job, eligible=START + 10**6) for job in "12"))
    slurm.site |= {"1": 4037, "2": 600}
    cluster = a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 4037)))
    outcome = only(cluster.apply(asked([Revert(reason="stop")], unseen=True)))
    assert (outcome.result, outcome.before, outcome.after) == (Result.DONE, "priority 104037", "priority 100000")
    assert "Helios had written SiteFactor 4037" in outcome.remark
    assert slurm.site == {"1": 0, "2": 600}
    assert cluster.apply(asked([Revert(reason="stop")], unseen=True)) == []


def test_a_hidden_value_of_an_admin_is_left_alone() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    cluster.apply(asked([an_order(j1=0.5)]))
    slurm.site["1"] = 500
    cluster.apply(asked([an_order(j1=0.5)]))
    slurm.jobs["1"] |= {"priority": 0, "reason": "JobHeldUser"}
    assert cluster.apply(asked([Revert(reason="stop")], unseen=True)) == []
    assert slurm.site["1"] == 500


def test_what_is_meant_is_on_the_disk_before_it_is_written(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("5", array_job_id="5", array_tasks="0-1", tasks=2))
    seen: list[str] = []
    slurm.between.append(lambda: seen.append((tmp_path / JOBS_FILE).read_text()))
    a_cluster(slurm, undo=JobsUndo(tmp_path)).apply(asked([an_order(j1=0.5, j5=0.4), a_limit("1")]))
    assert set(seen[0].splitlines()) == {
        f"site_factor\t1\t{START}\t5037",
        f"time_min\t1\t{START}\t17",
        f"site_factor\t5\t{START}\t4037",
    }


def test_what_cannot_be_recorded_is_not_written(tmp_path: Path) -> None:
    (tmp_path / JOBS_FILE).mkdir()
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    for _ in range(2):
        with pytest.raises(UndoNotWritten):
            cluster.apply(asked([an_order(j1=0.5)]))
    assert slurm.changes == []


def test_the_database_book_is_a_record_too_and_goes_into_the_file(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2", time_min_s=1020.0))
    slurm.site["1"] = 5037
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    rows = [
        a_applied("1", JobSetting.ORDER, 0.5),
        a_applied("2", JobSetting.SOFT_LIMIT, 660.0),
        a_applied("3", JobSetting.ORDER, 1),
    ]
    cluster.load_applied_changes(pd.DataFrame(rows), keep=True)
    assert cluster.snapshot().pending["urgency"].round(1).tolist() == [0.5, 0]
    assert f"time_min\t2\t{START}\t17\n" in (tmp_path / JOBS_FILE).read_text()
    cluster.apply(asked([Revert(reason="stop")]))
    assert (slurm.site["1"], slurm.jobs["2"]["time_min_s"]) == (0, None)


def test_a_hidden_job_known_only_to_the_ledger_goes_into_the_file(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1", priority=0, reason="JobHeldUser"))
    slurm.site["1"] = 5037
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    cluster.load_applied_changes(pd.DataFrame([a_applied("1", JobSetting.ORDER, 0.5)]), keep=True)
    cluster.snapshot()
    assert (tmp_path / JOBS_FILE).read_text() == f"site_factor\t1\t{START}\t5037\n"


def a_applied(job_id: str, setting: JobSetting, value: float) -> dict[str, object]:
    submitted = pd.Timestamp(START, unit="s", tz="UTC").as_unit("us")
    row = {"setting": setting.value, "job_id": job_id, "submitted_at": submitted, "value": value}
    return row | {"mode": "active", "overridden": 0}


def test_a_task_that_changed_with_its_array_is_told_though_nobody_asked() -> None:
    left = a_raw_job("9", array_job_id="5", array_tasks="3")
    slurm = MemorySlurm(left, a_raw_job("5", array_job_id="5", array_tasks="4-8", tasks=5))
    slurm.site["9"] = 500
    written, unasked = a_cluster(slurm).apply(asked([an_order(j5=0.1)]))
    assert (written.job_id, written.result) == ("5", Result.DONE)
    assert (unasked.job_id, unasked.result) == ("9", Result.MISMATCH)
    assert (unasked.before, unasked.after) == ("SiteFactor 500", "SiteFactor 1037")


def test_a_job_that_started_or_ended_is_gone() -> None:
    slurm = MemorySlurm(a_raw_job("1", state="RUNNING", started=START))
    outcomes = a_cluster(slurm).apply(asked([an_order(j1=0.5, j2=0.1), Revert(reason="stop", job_ids=("1",))]))
    assert {outcome.result for outcome in outcomes} == {Result.GONE}
    assert slurm.changes == []


def test_a_job_that_starts_while_it_is_changed_is_gone() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.between.append(lambda: slurm.jobs["1"].update(state="RUNNING"))
    assert only(a_cluster(slurm).apply(asked([an_order(j1=0.5)]))).result is Result.GONE


def test_what_slurm_refuses_for_one_job_does_not_stop_the_others() -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"))
    slurm.answers["1"] = "Access/permission denied for job 1"
    first, second = a_cluster(slurm).apply(asked([an_order(j1=0.5, j2=0.4)]))
    assert (first.result, first.remark) == (Result.FAILED, "Access/permission denied for job 1")
    assert second.result is Result.DONE


def test_a_lost_answer_of_a_change_that_shows_is_done() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.between.append(lambda: slurm.site.update({"1": 5037}))
    slurm.answers["1"] = "the answer was lost"
    assert only(a_cluster(slurm).apply(asked([an_order(j1=0.5)]))).result is Result.DONE


def test_a_change_that_slurm_accepts_and_does_not_make_is_a_mismatch() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.swallowed.add("1")
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert (outcome.result, outcome.after) == (Result.MISMATCH, "SiteFactor 0")


def test_a_job_held_during_its_change_is_told_as_written() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.between.append(lambda: slurm.jobs["1"].update(priority=0))
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert (outcome.result, outcome.after, outcome.remark) == (Result.DONE, "", UNSEEN)


def test_of_two_changes_for_one_setting_the_last_counts() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    first, second = a_cluster(slurm).apply(asked([an_order(j1=0.5), an_order(j1=-0.5)]))
    assert (first.result, second.result) == (Result.REFUSED, Result.DONE)
    assert slurm.site["1"] == -5037


def test_a_silent_controller_before_the_write_is_an_error() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.down_after = 1
    with pytest.raises(ClusterUnavailable):
        a_cluster(slurm).apply(asked([an_order(j1=0.5)]))
    assert slurm.changes == []


def test_a_controller_silent_after_the_write_is_told_job_by_job() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.down_after = 5  # configuration, queue, sprio, sprio of the block, the write
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert outcome.result is Result.FAILED
    assert "could not be read back" in outcome.remark


def test_a_controller_silent_between_arrays_and_jobs_is_told_by_job() -> None:
    slurm = MemorySlurm(a_raw_job("1", array_job_id="1", array_tasks="0-1", tasks=2), a_raw_job("2"))
    slurm.between.append(lambda: setattr(slurm, "down_after", 0))
    outcomes = a_cluster(slurm).apply(asked([an_order(j1=0.5, j2=0.1)]))
    assert {outcome.result for outcome in outcomes} == {Result.FAILED}
    assert [change.job_id for change in slurm.changes] == ["1"]


def test_closing_the_cluster_closes_the_way_in() -> None:
    slurm = MemorySlurm()
    a_cluster(slurm).close()
    assert slurm.closed


def test_the_task_limit_of_an_array_is_not_written_with_tasks() -> None:
    slurm = MemorySlurm(a_raw_job("5", array_job_id="5", array_tasks="0-9%2", tasks=10))
    assert only(a_cluster(slurm).apply(asked([an_order(j5=0.5)]))).result is Result.DONE
    assert [(change.job_id, change.tasks) for change in slurm.changes] == [("5", "0-9")]


def test_what_could_not_be_read_back_is_told_with_what_was_before() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.site["1"] = 1037
    cluster = a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 1037)))
    slurm.between.append(lambda: setattr(slurm, "down_after", 0))
    outcome = only(cluster.apply(asked([an_order(j1=0.5)])))
    assert (outcome.result, outcome.before, outcome.after) == (Result.FAILED, "SiteFactor 1037", "")


def test_over_the_budget_the_largest_changes_of_each_kind_come_first() -> None:
    slurm = MemorySlurm(*(a_raw_job(job, time_limit_s=6000.0) for job in "1234"), version="25.11.2")
    slurm.settings["SchedulerParameters"] = "time_min_as_soft_limit"
    # Of a limit of 100 minutes: 0.93 and 0.13 of it; of the bound of the SiteFactor: 0.5 and 0.1.
    changes = asked([a_limit("1", minutes=7), a_limit("2", minutes=87), an_order(j3=0.5, j4=0.1)])
    outcomes = a_cluster(slurm, writes_per_cycle=2).apply(changes)
    assert {outcome.job_id for outcome in outcomes if outcome.result is Result.DONE} == {"1", "3"}
    assert {outcome.remark for outcome in outcomes if outcome.result is not Result.DONE} == {SPENT}


def test_a_time_min_set_between_reading_and_writing_stands() -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"))
    slurm.meanwhile.append(lambda: slurm.jobs["1"].update(time_min_s=1800.0))
    limit, order, other = a_cluster(slurm).apply(asked([a_limit("1"), an_order(j1=0.5), a_limit("2")]))
    assert (limit.result, order.result, other.result) == (Result.REFUSED, Result.DONE, Result.DONE)
    assert limit.remark == f"{CHANGED}: TimeMin 30 min was found instead of TimeMin 0 min, and stays"
    assert slurm.jobs["1"]["time_min_s"] == 1800.0


def test_a_site_factor_that_an_admin_reset_meanwhile_is_not_written() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    cluster.apply(asked([an_order(j1=0.5)]))
    slurm.meanwhile.append(lambda: slurm.site.update({"1": 0}))
    assert only(cluster.apply(asked([an_order(j1=0.9)]))).result is Result.REFUSED
    assert slurm.site["1"] == 0


def test_a_task_that_an_admin_split_off_meanwhile_is_not_written() -> None:
    slurm = MemorySlurm(a_raw_job("5", array_job_id="5", array_tasks="0-9", tasks=10))

    def split() -> None:
        slurm.jobs["5"] |= {"array_tasks": "0-2,4-9", "tasks": 9}
        slurm.jobs["9"] = dict(a_raw_job("9", array_job_id="5", array_tasks="3"))

    slurm.meanwhile.append(split)
    a_cluster(slurm).apply(asked([an_order(j5=0.5)]))
    assert [change.tasks for change in slurm.changes] == ["0-2,4-9"]


def test_a_task_that_left_its_array_is_written_alone() -> None:
    left = a_raw_job("9", array_job_id="5", array_tasks="3")
    slurm = MemorySlurm(left, a_raw_job("5", array_job_id="5", array_tasks="4-8", tasks=5))
    outcomes = a_cluster(slurm).apply(asked([an_order(j5=0.5, j9=0.2)]))
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    assert slurm.site == {"5": 5037, "9": 2037}


def test_each_block_of_writes_is_read_again_right_before() -> None:
    slurm = MemorySlurm(*(a_raw_job(str(job)) for job in range(1, 2 * MOST_IN_BLOCK + 1)))
    last = str(2 * MOST_IN_BLOCK)
    slurm.between.append(lambda: slurm.site.update({last: -500}))  # while the first block is written
    order = an_order(**{f"j{job}": 1 - job / 1000 for job in range(1, 2 * MOST_IN_BLOCK + 1)})
    outcomes = {
        outcome.job_id: outcome.result for outcome in a_cluster(slurm, writes_per_cycle=1000).apply(asked([order]))
    }
    assert outcomes.pop(last) is Result.REFUSED
    assert set(outcomes.values()) == {Result.DONE}
    assert slurm.site[last] == -500


def test_a_value_written_at_the_same_moment_is_named() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.between.append(lambda: slurm.site.update({"1": -500}))
    outcome = only(a_cluster(slurm).apply(asked([an_order(j1=0.5)])))
    assert (outcome.result, outcome.after) == (Result.MISMATCH, "SiteFactor -500")
    assert OTHERS in outcome.remark


def test_the_undo_file_takes_back_what_was_meant_and_not_written(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"))
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    cluster.apply(asked([an_order(j1=0.3, j2=0.2)]))
    held = {"priority": 0, "reason": "JobHeldUser"}
    slurm.meanwhile += [lambda: slurm.site.update({"1": -500}), lambda: slurm.jobs["2"].update(held)]
    cluster.apply(asked([an_order(j1=0.9, j2=0.8)]))
    written = (tmp_path / JOBS_FILE).read_text().splitlines()
    assert written[-2:] == [f"site_factor\t1\t{START}\t0", f"site_factor\t2\t{START}\t2037"]


def test_what_fails_to_be_read_again_is_neither_written_nor_called_written() -> None:
    slurm = MemorySlurm(*(a_raw_job(str(job)) for job in range(1, MOST_IN_BLOCK + 2)))
    slurm.between.append(lambda: setattr(slurm, "down_after", 0))
    order = an_order(**{f"j{job}": 1 - job / 1000 for job in range(1, MOST_IN_BLOCK + 2)})
    outcomes = a_cluster(slurm).apply(asked([order]))
    assert {outcome.result for outcome in outcomes} == {Result.FAILED}
    assert len(slurm.changes) == MOST_IN_BLOCK
    assert outcomes[-1].remark == "slurmctld was told not to answer"


@pytest.mark.parametrize("record", [Path(JOBS_FILE), PUBLISHED])
def test_a_value_is_no_strangers_where_a_record_cannot_be_read(tmp_path: Path, record: Path) -> None:
    (tmp_path / record).mkdir(parents=True)
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.site["1"] = 537
    result = revert_jobs(a_cluster(slurm, undo=JobsUndo(tmp_path)), "stop")
    assert (result.remaining, result.strangers, slurm.changes) == (("1",), (), [])
    assert "cannot be read" in result.message


def test_a_value_in_no_record_is_a_strangers(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1", time_min_s=420.0), a_raw_job("2"))
    slurm.site["2"] = 537
    result = revert_jobs(a_cluster(slurm, undo=JobsUndo(tmp_path)), "stop")
    assert (result.remaining, result.strangers, slurm.changes) == ((), ("1", "2"), [])


def test_a_value_set_during_a_full_revert_is_no_value_of_helios() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    cluster.apply(asked([an_order(j1=0.5)]))
    slurm.meanwhile.append(lambda: slurm.site.update({"1": -500}))
    result = revert_jobs(cluster, "stop")
    assert (result.remaining, result.strangers, slurm.site) == ((), (), {"1": -500})
