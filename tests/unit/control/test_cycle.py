"""One cycle: what reaches the cluster, what is written down, and what is not."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pandas as pd
import pytest

from helios.actions import Outcome, Result, Revert
from helios.changes import Change
from helios.errors import ClusterUnavailable, WarehouseUnavailable
from tests.unit.control.table import (
    MINUTE,
    OFF,
    SHADOW,
    Says,
    Table,
    active,
    all_is_well,
    canary,
    order,
    settings,
    soft_limit,
)


def test_an_active_service_reaches_the_cluster_and_its_change_is_written_down() -> None:
    table = Table()
    table.submit("j1")
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.acted == 1
    assert report.counts == {"qssf": {Result.DONE: 1}}
    assert table.cluster.urgency_of("j1") == pytest.approx(0.5, abs=0.01)
    (line,) = table.lines(target="j1")
    assert (line["service"], line["mode"], line["action"], line["outcome"]) == ("qssf", "active", "Reorder", "done")
    assert (line["reason"], line["before"], line["after"]) == ("j1 is short", "SiteFactor 0", "SiteFactor 5037")
    assert line["model_id"] == "m1"
    assert table.applied() == {"j1": 0.5}


def test_what_is_meant_is_written_down_before_anything_is_done() -> None:
    table = Table()
    table.submit("j1")
    applied_before = []
    record = table.ledger.record

    def watched(**arguments: object) -> None:
        applied_before.append(len(table.cluster.applied))
        record(**arguments)  # type: ignore[arg-type]

    table.ledger.record = watched  # type: ignore[method-assign]
    table.cycle(active(Says(order(j1=0.5))))
    assert applied_before == [0, 0, 1]  # meant, the lease still ours, and what became of it
    assert [line["outcome"] for line in table.lines(action="Cycle")] == ["meant"]


def test_a_quiet_cluster_writes_no_audit_and_makes_no_call() -> None:
    table = Table()
    table.submit("j1", "j2")
    service = Says(order(j1=0.5, j2=-0.5), soft_limit("j1", minutes=20))
    table.cycle(active(service))
    records, writes, calls = table.ledger.records, table.cluster.writes, len(table.cluster.applied)
    report = table.cycle(active(service))
    assert report.counts == {"qssf": {Result.UNCHANGED: 3}}
    assert (table.ledger.records, table.cluster.writes, len(table.cluster.applied)) == (records, writes, calls)
    assert service.asked == 2


def test_a_shadow_that_repeats_itself_is_written_down_once() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5))
    assert table.cycle(active(service, mode=SHADOW)).counts == {"qssf": {Result.WOULD: 1}}
    records = table.ledger.records
    assert table.cycle(active(service, mode=SHADOW)).counts == {"qssf": {Result.UNCHANGED: 1}}
    assert table.ledger.records == records
    assert table.applied("shadow") == {"j1": 0.5}


def test_a_service_is_asked_when_its_time_has_come() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5), every=timedelta(minutes=3))
    for _ in range(7):
        table.cycle(active(service))
    assert service.asked == 3


def test_what_stands_of_a_service_that_is_not_yet_due_stays() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5), every=timedelta(hours=1))
    table.cycle(active(service))
    table.cycle(active(service))
    assert table.cluster.urgency_of("j1") > 0


def test_a_cycle_a_moment_early_still_asks_its_services() -> None:
    table = Table()
    service = Says(every=MINUTE)
    table.cycle(active(service))
    table.cycle(active(service), after=timedelta(seconds=59))
    assert service.asked == 2


def test_a_service_that_is_off_is_not_asked() -> None:
    table = Table()
    service = Says()
    table.cycle(active(service, mode=OFF))
    assert service.asked == 0


@pytest.mark.parametrize("mode", [SHADOW, OFF])
def test_switching_a_service_back_takes_back_exactly_its_changes(mode: object) -> None:
    table = Table()
    table.submit("j1", "j2")
    mine, others = Says(order(j1=0.5)), Says(soft_limit("j2", minutes=20))
    table.cycle(active(mine), active(others, name="soft_limits"))
    table.cycle(active(mine, mode=mode), active(others, name="soft_limits"))  # type: ignore[arg-type]
    assert table.cluster.site_factor_of("j1") == 0
    assert table.cluster.time_min_of("j2") == 27
    assert table.applied() == {"j2": 1200.0}
    (line,) = table.lines(action="Revert")
    assert (line["target"], line["service"], line["reason"]) == ("j1", "helios", "service qssf may not write now")


def test_a_service_that_left_the_configuration_leaves_nothing_behind() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5))))
    table.cycle()
    assert table.cluster.site_factor_of("j1") == 0
    assert table.applied() == {}


def test_a_job_that_its_service_no_longer_names_is_taken_back() -> None:
    table = Table()
    table.submit("j1", "j2")
    service = Says(order(j1=0.5, j2=0.25))
    table.cycle(active(service))
    service.actions = [order(j2=0.25)]
    table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
    assert table.cluster.urgency_of("j2") > 0


def test_a_service_may_ask_to_restore_its_own_jobs_and_no_others() -> None:
    table = Table()
    table.submit("j1", "j2")
    table.cycle(active(Says(order(j1=0.5))), active(Says(soft_limit("j2", minutes=20)), name="other"))
    silent = Says(soft_limit("j2", minutes=20), every=timedelta(hours=1))
    restoring = Says(order(j1=0.5), Revert(reason="not now"))
    table.cycle(active(restoring), active(silent, name="other"))
    assert table.cluster.site_factor_of("j1") == 0
    assert table.cluster.time_min_of("j2") == 27


def test_a_smaller_canary_gives_back_what_is_outside_now() -> None:
    table = Table()
    table.submit("j1")
    table.submit("j2", partition="debug")
    service = Says(order(j1=0.5), order("debug", j2=0.5))
    table.cycle(active(service, mode=canary("gpu", "debug")))
    assert table.cluster.urgency_of("j1") > 0 < table.cluster.urgency_of("j2")
    table.cycle(active(service, mode=canary("debug")))
    assert table.cluster.site_factor_of("j1") == 0
    assert table.cluster.urgency_of("j2") > 0
    assert table.applied("canary") == {"j2": 0.5}


def test_a_value_that_the_hook_wrote_is_adopted_without_a_write() -> None:
    table = Table()
    table.submit("j1", urgency=0.5)
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.counts == {"qssf": {Result.UNCHANGED: 1}}
    assert table.cluster.writes == 0
    assert table.applied() == {"j1": 0.5}


def test_a_value_of_the_hook_that_no_order_names_becomes_neutral() -> None:
    table = Table()
    table.submit("j1", "j2", urgency=0.5)
    table.submit("j3", urgency=0.5, partition="debug")
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.site_factor_of("j2") == 0
    assert table.cluster.urgency_of("j3") > 0  # nobody gave an order for its partition


def test_a_service_takes_over_an_equal_value_without_a_write() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5)), name="first"))
    writes = table.cluster.writes
    second = active(Says(order(j1=0.5)), name="second")
    table.cycle(active(Says(order()), name="first"), second)
    assert table.ledger.applied_changes()["service"].tolist() == ["second"]
    table.cycle(second)
    assert (table.cluster.writes, table.cluster.urgency_of("j1") > 0) == (writes, True)


def test_a_value_of_the_hook_stays_until_its_service_is_asked_again() -> None:
    table = Table()
    table.submit("j1")
    service = active(Says(order(j1=0.5), every=timedelta(hours=1)))
    table.cycle(service)
    table.submit("j2", urgency=0.5)
    assert table.cycle(service).acted == 0
    assert table.cluster.urgency_of("j2") > 0
    table.cycle(service, after=timedelta(hours=1))
    assert table.cluster.site_factor_of("j2") == 0


def test_a_soft_limit_of_the_hook_stays_until_its_service_drops_it() -> None:
    table = Table()
    table.submit("j1")
    table.submit("j2", soft_limit_s=1020.0)
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.time_min_of("j2") == 17
    table.cycle(active(Says(soft_limit("j1", minutes=20))))
    assert table.cluster.time_min_of("j2") == 0


def test_a_hook_value_that_two_services_leave_out_is_reverted_once() -> None:
    table = Table()
    table.submit("j1", "j2", urgency=0.5)
    report = table.cycle(active(Says(order(j1=0.5))), active(Says(order()), name="second"))
    assert [line["target"] for line in table.lines(action="Revert")] == ["j2"]
    assert report.counts["helios"] == {Result.DONE: 1}


def test_with_few_writes_an_order_comes_before_a_soft_limit() -> None:
    table = Table(settings=settings(slurm={"writes_per_cycle": 1}))
    table.submit("j1", "j2", user="alice")
    report = table.cycle(active(Says(soft_limit("j1", minutes=20), order(j2=-0.1))))
    assert report.counts["qssf"] == {Result.DONE: 1, Result.POSTPONED: 1}
    assert (table.cluster.time_min_of("j1"), table.cluster.site_factor_of("j2") < 0) == (0, True)


def test_a_shadow_leaves_the_hooks_values_alone() -> None:
    table = Table()
    table.submit("j1", urgency=0.5)
    table.cycle(active(Says(order()), mode=SHADOW))
    assert table.cluster.urgency_of("j1") > 0


def test_a_started_job_is_forgotten_without_a_call() -> None:
    table = Table()
    table.submit("j1", "j2")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    table.cluster.start("j1")
    service.actions = []
    calls = len(table.cluster.applied)
    table.cycle(active(service))
    assert len(table.cluster.applied) == calls


def test_an_id_that_is_used_again_is_another_job() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    table.cluster.end("j1")
    table.submit("j1")
    service.actions = []
    report = table.cycle(active(service))
    assert report.counts == {}
    assert len(table.cluster.applied) == 1


def test_with_few_writes_the_largest_changes_come_first() -> None:
    table = Table(settings=settings(slurm={"writes_per_cycle": 2}))
    table.submit("j1", "j2", "j3", user="alice")
    service = Says(order(j1=0.9, j2=0.1, j3=-0.8))
    report = table.cycle(active(service))
    assert report.acted == 2
    assert report.counts["qssf"] == {Result.DONE: 2, Result.POSTPONED: 1}
    assert report.notes == ("1 changes wait: the writes of this cycle are spent",)
    assert table.lines(target="j2") == []
    assert table.cluster.site_factor_of("j2") == 0
    assert table.applied() == {"j1": 0.9, "j3": -0.8}
    table.cycle(active(service))
    assert table.cluster.urgency_of("j2") > 0


def test_taking_back_counts_as_a_write_too_and_comes_first() -> None:
    table = Table(settings=settings(slurm={"writes_per_cycle": 2}))
    table.submit("j1", "j2", "j3")
    service = Says(order(j1=0.5, j2=0.5))
    table.cycle(active(service))
    writes = table.cluster.writes
    service.actions = [order(j3=0.5)]
    table.cycle(active(service))
    assert table.cluster.writes == writes + 2
    assert [table.cluster.site_factor_of(job) for job in ("j1", "j2", "j3")] == [0, 0, 0]
    table.cycle(active(service))
    assert table.cluster.urgency_of("j3") > 0


def test_a_refusal_is_written_down_when_it_is_new_not_every_cycle() -> None:
    table = Table()
    table.submit("j1")
    table.cluster.hold("j1")
    for _ in range(3):
        report = table.cycle(active(Says(order(j1=0.5))))
        assert report.counts == {"qssf": {Result.REFUSED: 1}}
    assert [line["outcome"] for line in table.lines(target="j1")] == ["refused: held"]


def test_without_an_audit_nothing_is_done() -> None:
    table = Table()
    table.submit("j1")
    table.ledger.fail_next(times=1, after=2)  # the lease and the book answer, the audit does not
    report = table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.applied == []
    assert report.suspended[0] == "what was meant could not be written down, so it was not done"
    assert not report.recorded
    assert "meant" not in set(table.ledger.decisions["outcome"])
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.urgency_of("j1") > 0  # the service is asked again as soon as the audit is back


def test_jobs_stay_recorded_where_outcomes_could_not_be_written() -> None:
    table = Table()
    table.submit("j1")
    table.ledger.fail_next(times=1, after=4)
    report = table.cycle(active(Says(order(j1=0.5))))
    assert not report.recorded
    assert any("the audit could not be written" in note for note in report.notes)
    assert table.applied() == {"j1": 0.5}
    table.cycle()
    assert table.cluster.site_factor_of("j1") == 0


def test_a_cluster_that_is_lost_while_acting_is_a_bad_cycle() -> None:
    table = Table(settings=settings(mismatches_to_open=1))
    table.submit("j1")

    def unavailable(actions: object) -> list[object]:
        raise ClusterUnavailable("no answer")

    table.cluster.apply = unavailable  # type: ignore[method-assign, assignment]
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.acted == 0
    assert "acting was broken off: no answer" in report.notes
    assert report.memory.breaker.opened_at is not None


def test_a_report_sums_what_was_seen_task_by_task() -> None:
    table = Table()
    table.submit("j1", tasks=10, gpus=2)
    table.submit("j2", gpus=4)
    table.cluster.start("j2")
    report = table.cycle()
    assert (report.pending, report.running, report.gpus_pending, report.gpus_running) == (10, 1, 20, 4)
    assert report.taken_at == table.cluster.now
    assert report.counts_json() == "{}"


def test_a_service_that_changes_its_snapshot_deceives_nobody() -> None:
    table = Table()
    table.submit("j1")
    table.cluster.hold("j1")
    seen = []

    class Rewrites(Says):
        def decide(self, snapshot):  # type: ignore[no-untyped-def]
            snapshot.pending["excluded_reason"] = None
            snapshot.pending.loc[:, "job_id"] = "j9"
            return super().decide(snapshot)

    class Looks(Says):
        def decide(self, snapshot):  # type: ignore[no-untyped-def]
            seen.extend(snapshot.pending[["job_id", "excluded_reason"]].astype(object).to_numpy().tolist())
            return []

    table.cycle(active(Rewrites(order(j1=0.5))), active(Looks(), name="neighbour"))
    assert table.cluster.site_factor_of("j1") == 0
    assert seen == [["j1", "held"]]


def test_a_queue_of_thousands_is_one_cycle() -> None:
    table = Table(settings=settings(slurm={"writes_per_cycle": 20_000}, most_of_one_user=1))
    ids = [f"j{number}" for number in range(2_000)]
    table.submit(*ids)
    report = table.cycle(active(Says(order(**{job: 1 - 2 * i / 2_000 for i, job in enumerate(ids)}))))
    assert report.counts["qssf"].get(Result.DONE, 0) + report.counts["qssf"].get(Result.UNCHANGED, 0) == 2_000
    assert isinstance(report.decisions, pd.DataFrame)


def test_failed_preconditions_stop_every_write() -> None:
    table = Table()
    table.submit("j1")

    def fails(snapshot: object) -> object:
        raise WarehouseUnavailable("no database")

    table.expectation = fails  # type: ignore[assignment]
    report = table.cycle(active(Says(order(j1=0.5))))
    assert "there are no predictions: no database" in report.suspended
    assert table.cluster.applied == []


def test_a_postponed_change_leaves_the_record_as_it_was() -> None:
    table = Table()
    table.submit("j1", "j2")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    table.cluster.writes_per_cycle = 0
    service.actions = [order(j1=0.9, j2=0.9)]
    report = table.cycle(active(service))
    assert report.counts == {"qssf": {Result.POSTPONED: 2}}
    assert table.applied() == {"j1": 0.5}


def test_a_job_that_becomes_neutral_leaves_the_record() -> None:
    table = Table()
    table.submit("j1")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    service.actions = [order(j1=0.0)]
    assert table.cycle(active(service)).acted == 1
    assert table.applied() == {}


def test_a_pause_that_comes_while_a_cycle_thinks_keeps_it_from_writing() -> None:
    table = Table()
    table.submit("j1")
    table.pause_asked = lambda: "by root"
    report = table.cycle(active(Says(order(j1=0.5))))
    assert (table.cluster.writes, report.acted) == (0, 0)
    assert "acting was broken off: paused: by root" in report.notes
    table.pause_asked = lambda: ""
    table.cycle(active(Says(order(j1=0.5))))
    assert table.cluster.urgency_of("j1") > 0


def test_a_lease_lost_between_two_services_ends_the_cycle() -> None:
    table = Table()
    table.submit("j1", "j2")
    first, second = active(Says(order(j1=0.5)), name="a"), active(Says(order(j2=0.5)), name="b")
    apply = table.cluster.apply

    def slow(changes: Sequence[Change[float]]) -> list[Outcome]:
        table.ledger.acquire(holder="helios-2", now=table.cluster.now + timedelta(hours=1), lasts=timedelta(hours=2))
        return apply(changes)

    table.cluster.apply = slow  # type: ignore[method-assign]
    report = table.cycle(first, second)
    assert (table.cluster.urgency_of("j1") > 0, table.cluster.urgency_of("j2")) == (True, 0)
    assert any("token" in note for note in report.notes)


def test_a_value_that_a_kill_switch_reverted_is_not_of_an_admin() -> None:
    table = Table()
    table.submit("j1", "j2")
    service = active(Says(order(j1=0.5, j2=-0.5)))
    table.cycle(service)
    well = table.world
    for _ in range(3):
        for job in ("j1", "j2"):
            table.cluster.admin_sets_site_factor(job, 0)
        table.world = lambda now: replace(all_is_well(now), released="helios-release.sh")
        table.cycle(service)
        assert table.cluster.urgency_of("j1") > 0 > table.cluster.urgency_of("j2")
        table.world = well
        table.cycle(service)
    assert table.lines(action="HandsOff") == []


def test_what_an_admin_set_before_a_kill_switch_stays_his() -> None:
    table = Table()
    table.submit("j1")
    service = active(Says(order(j1=0.5)))
    table.cycle(service)
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 0)
        table.cycle(service)
    table.world = lambda now: replace(all_is_well(now), released="helios-release.sh")
    table.cycle(service)
    assert table.cluster.urgency_of("j1") == 0
