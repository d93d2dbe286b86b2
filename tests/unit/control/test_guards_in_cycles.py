"""The rails an admin demands, one provoked by each test, in whole cycles."""

import json
from datetime import timedelta

import pytest

from helios.actions import Result
from helios.control import ControllerState
from helios.errors import LeaseLost
from helios.testing import FakeCluster, FakeLedger
from tests.unit.control.table import (
    ACTIVE,
    MINUTE,
    OFF,
    SHADOW,
    Says,
    Table,
    active,
    canary,
    order,
    settings,
    soft_limit,
)


def test_modes_are_per_service() -> None:
    table = Table()
    table.submit("j1", "j2")
    report = table.cycle(
        active(Says(order(j1=0.5)), name="shadowed", mode=SHADOW),
        active(Says(soft_limit("j2", minutes=20)), name="acting", mode=ACTIVE),
        active(Says(order(j2=0.5)), name="silent", mode=OFF),
    )
    assert report.counts == {"shadowed": {Result.WOULD: 1}, "acting": {Result.DONE: 1}}
    assert (table.cluster.site_factor_of("j1"), table.cluster.site_factor_of("j2")) == (0, 0)
    assert table.cluster.time_min_of("j2") == 27


def test_a_dry_run_cannot_act() -> None:
    table = Table()
    table.submit("j1", urgency=0.5)
    table.submit("j2", "j3")

    def forbidden(actions: object) -> list[object]:
        raise AssertionError("a shadow wrote")

    table.cluster.apply = forbidden  # type: ignore[method-assign, assignment]
    service = Says(order(j1=-0.5, j2=1.0), soft_limit("j3", minutes=20))
    for _ in range(3):
        table.cycle(active(service, mode=SHADOW))
        service.actions = [order(j2=0.3)]
    assert table.lines(mode="shadow")


def test_a_canary_by_percent_changes_only_its_jobs() -> None:
    table = Table(settings=settings(most_of_one_user=1))
    jobs = {f"j{number}": 0.5 for number in range(100)}
    table.submit(*jobs)
    service = Says(order(**jobs))
    report = table.cycle(active(service, mode=canary(percent=20)))
    touched = {job for job in jobs if table.cluster.site_factor_of(job)}
    assert 5 < len(touched) < 40
    assert set(table.applied("canary")) == touched
    assert report.notes == ()
    assert {line["target"] for line in table.lines(action="Reorder")} == touched
    table.cycle(active(service, mode=canary(percent=20)))
    assert {job for job in jobs if table.cluster.site_factor_of(job)} == touched


def test_a_breaker_opened_by_mismatches_survives_a_restart() -> None:
    table = Table(settings=settings(mismatches_to_open=3, breaker_s=900))
    table.submit("j1")
    table.cluster.swallow_writes(times=99)
    service = Says(order(j1=0.5))
    for _ in range(3):
        assert not table.cycle(active(service)).suspended
    writes = table.cluster.writes
    restarted = Table(cluster=table.cluster, ledger=table.ledger, settings=table.settings, memory=table.memory)
    report = restarted.cycle(active(service))
    assert report.suspended[0].startswith("the breaker is open until")
    assert table.cluster.writes == writes


def test_a_cycle_without_writes_does_not_make_up_for_bad_ones() -> None:
    table = Table(settings=settings(mismatches_to_open=3, breaker_s=900))
    table.submit("j1")
    says = Says(order(j1=0.5))
    table.cluster.swallow_writes(times=99)
    table.cycle(active(says))
    table.cycle(active(says))
    says.actions = []
    quiet = table.cycle(active(says))
    assert (quiet.suspended, quiet.acted) == ((), 0)
    assert table.memory.breaker.bad_in_row == 2
    says.actions = [order(j1=0.5)]
    table.cycle(active(says))
    assert table.cycle(active(says)).suspended[0].startswith("the breaker is open until")


def test_a_job_that_keeps_failing_alike_is_recorded_once() -> None:
    table = Table(settings=settings(mismatches_to_open=99))
    table.submit("j1")
    for answer in ("Access denied", "Access denied", "Access denied", "Job is locked", "", "Access denied"):
        table.cluster.refuse_writes("j1", answer=answer)
        if answer == "":
            table.cluster.admin_sets_site_factor("j1", 0)
        report = table.cycle(active(Says(order(j1=0.5))))
        assert sum(report.counts["qssf"].values()) == 1  # it is counted in every cycle
        if answer == "":
            table.cluster.admin_sets_site_factor("j1", 0)
    outcomes = [line["outcome"] for line in table.lines(action="Reorder")]
    assert outcomes == ["failed: Access denied", "failed: Job is locked", "done", "failed: Access denied"]


def test_a_breaker_tries_once_after_its_time_and_opens_again() -> None:
    table = Table(settings=settings(mismatches_to_open=2, breaker_s=600))
    table.submit("j1")
    table.cluster.swallow_writes(times=3)
    service = Says(order(j1=0.5))
    for _ in range(2):
        table.cycle(active(service))
    assert not table.cycle(active(service), after=timedelta(seconds=600)).suspended
    assert table.cycle(active(service)).suspended
    assert not table.cycle(active(service), after=timedelta(seconds=600)).suspended
    assert table.cluster.urgency_of("j1") > 0
    assert table.memory.breaker.bad_in_row == 0


def test_a_failed_write_counts_as_bad() -> None:
    table = Table(settings=settings(mismatches_to_open=1))
    table.submit("j1")
    table.cluster.refuse_writes("j1")
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cycle(active(Says(order(j1=0.5)))).suspended[0].startswith("the breaker is open")


def test_one_budget_bounds_the_writes_of_all_services_in_a_cycle() -> None:
    table = Table(settings=settings(slurm={"writes_per_cycle": 3}))
    table.submit("j1", "j2", "j3", "j4")
    limits = [soft_limit(job, minutes=20) for job in ("j1", "j2")]
    table.cycle(active(Says(order(j1=0.5, j2=0.4))), active(Says(*limits), name="soft_limits"))
    assert table.cluster.writes == 3


def test_one_user_has_a_bounded_share_of_the_boosts() -> None:
    table = Table(settings=settings(most_of_one_user=0.5))
    table.submit("j5", user="bob")
    table.cluster.tick(MINUTE)
    table.submit("j1", "j2", "j3", "j4", user="alice")
    table.cycle(active(Says(order(j1=0.9, j2=0.8, j3=0.7, j4=0.6, j5=0.1))))
    boosted = [job for job in ("j1", "j2", "j3", "j4", "j5") if table.cluster.urgency_of(job) > 0]
    assert boosted == ["j1", "j5"]


def test_a_boost_is_bounded() -> None:
    table = Table(cluster=FakeCluster(site_factor_most=1_000), settings=settings(slurm={"site_factor_most": 1_000}))
    table.submit("j1", "j2")
    table.cycle(active(Says(order(j1=1.0, j2=-1.0))))
    assert (table.cluster.site_factor_of("j1"), table.cluster.site_factor_of("j2")) == (937, -937)


def test_a_job_that_nobody_names_is_neutral() -> None:
    table = Table()
    table.submit("j1", "j2")
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.site_factor_of("j2") == 0


def test_a_second_writer_stands_by() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5))))
    second = Table(cluster=table.cluster, ledger=table.ledger, holder="helios-2")
    report = second.cycle(active(Says(order(j1=-0.5))))
    assert report.suspended == ("another Helios holds the lease of this cluster: standing by",)
    assert not report.leads
    assert report.recorded  # there was nothing to write down
    assert report.notes == ()
    assert report.memory == ControllerState()  # what it remembers is not what counts
    assert table.cluster.urgency_of("j1") > 0


def test_a_second_writer_takes_over_an_expired_lease() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5))))
    second = Table(cluster=table.cluster, ledger=table.ledger, holder="helios-2")
    assert second.cycle(active(Says(order(j1=-0.5))), after=timedelta(seconds=181)).acted == 1


def test_a_writer_that_slept_over_its_lease_is_fenced_off() -> None:
    table = Table()
    table.submit("j1")

    def overtaken(snapshot: object) -> object:
        table.cluster.tick(timedelta(seconds=181))
        assert table.ledger.acquire(holder="helios-2", now=table.cluster.now, lasts=timedelta(minutes=3)) == 2
        table.cluster.tick(timedelta(seconds=-181))
        return Table.expectation(snapshot)  # type: ignore[arg-type]

    table.expectation = overtaken  # type: ignore[assignment]
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.suspended[0] == "what was meant could not be written down, so it was not done"
    assert table.cluster.applied == []
    assert LeaseLost.__name__ not in "".join(report.suspended)


def test_an_audit_line_has_actor_reason_values_model_and_result() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5))))
    (line,) = table.lines(target="j1")
    assert {name: line[name] for name in ("service", "mode", "action", "reason", "before", "after", "model_id")} == {
        "service": "qssf",
        "mode": "active",
        "action": "Reorder",
        "reason": "j1 is short",
        "before": "SiteFactor 0",
        "after": "SiteFactor 5037",
        "model_id": "m1",
    }
    assert line["outcome"] == "done"


def test_the_audit_only_grows() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    before = table.lines()
    service.actions = []
    table.cycle(active(service))
    assert table.lines()[: len(before)] == before
    assert len(table.lines()) > len(before)


@pytest.mark.parametrize("column", ["held", "reservation r1", "scrontab job", "component of a heterogeneous job"])
def test_excluded_jobs_are_left_alone(column: str) -> None:
    table = Table()
    table.submit("j1", excluded_reason=column)
    report = table.cycle(active(Says(order(j1=0.5), soft_limit("j1", minutes=20))))
    assert report.counts == {"qssf": {Result.REFUSED: 2}}
    assert table.cluster.applied == []
    assert table.lines(target="j1")[0]["outcome"] == f"refused: {column}"


def test_a_priority_that_an_admin_set_is_left_alone() -> None:
    table = Table()
    table.submit("j1")
    table.cluster.admin_sets_priority("j1", 7)
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.site_factor_of("j1") == 0


def test_two_services_never_change_one_setting() -> None:
    table = Table()
    table.submit("j1")
    first, second = Says(order(j1=0.5)), Says(order(j1=-0.5))
    report = table.cycle(active(first), active(second, name="second"))
    assert report.counts == {"qssf": {Result.DONE: 1}, "second": {Result.REFUSED: 1}}
    assert table.cluster.urgency_of("j1") > 0
    assert (
        table.lines(service="second", target="j1")[0]["outcome"] == "refused: service qssf has this setting of the job"
    )


def test_a_report_and_its_memory_are_plain_text() -> None:
    table = Table(ledger=FakeLedger())
    table.submit("j1")
    report = table.cycle(active(Says(order(j1=0.5))))
    assert json.loads(report.counts_json()) == {"qssf": {"done": 1}}
    assert json.loads(report.memory.to_json())["controller"] == "ctl1"
