"""The kill switch: everything back, verified, with or without lease and database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from helios.actions import Outcome, Result
from helios.changes import Change
from helios.control import CycleReport, release
from helios.testing import FakeCluster
from tests.unit.control.table import SHADOW, Says, Table, active, all_is_well, order, soft_limit


def a_table_where_much_stands(cluster: FakeCluster | None = None) -> Table:
    table = Table(cluster=cluster or FakeCluster())
    table.submit("j1", "j2", "j3")
    table.cycle(active(Says(order(j1=0.5, j2=-0.5), soft_limit("j3", minutes=20))))
    return table


def let_go(table: Table, *, holder: str = "helios-1") -> CycleReport:
    return release(
        cluster=table.cluster, ledger=table.ledger, now=table.cluster.now, holder=holder, reason="alice said so"
    )


def what_stands(table: Table, *job_ids: str) -> list[int]:
    return [table.cluster.site_factor_of(job) + table.cluster.time_min_of(job) for job in job_ids]


def pause(table: Table, why: str = "by alice: maintenance") -> None:
    table.world = lambda now: replace(all_is_well(now), paused=why)


def test_a_release_takes_back_everything_verifies_and_writes_it_down() -> None:
    table = a_table_where_much_stands()
    looks = table.cluster.looks
    report = let_go(table)
    assert what_stands(table, "j1", "j2", "j3") == [0, 0, 0]
    assert (report.acted, report.clean, report.recorded) == (3, True, True)
    assert table.cluster.looks == looks + 1
    assert table.applied() == {}
    last = table.lines(mode="paused")
    assert [line["target"] for line in last] == ["j1", "j2", "j3", "venus"]
    assert last[-1]["outcome"] == "done: looked again, no job carries anything that Helios is known to have set"
    assert last[-1]["reason"] == "alice said so"


def test_a_release_leaves_values_of_users_and_admins() -> None:
    table = a_table_where_much_stands()
    table.submit("j4", user_soft_limit_s=600.0)
    table.cluster.admin_sets_site_factor("j2", 500)
    report = let_go(table)
    assert table.cluster.site_factor_of("j2") == 500
    assert table.cluster.time_min_of("j4") == 10
    assert report.clean


def test_a_release_finds_values_without_a_record() -> None:
    table = Table()
    table.submit("j1", urgency=0.5, soft_limit_s=1020.0)
    assert let_go(table).acted == 1
    assert what_stands(table, "j1") == [0]


def test_a_release_leaves_and_names_what_the_cluster_hides() -> None:
    table = a_table_where_much_stands()
    table.cluster.hold("j1")
    table.cluster.admin_sets_site_factor("j1", 500)
    report = let_go(table)
    assert table.cluster.site_factor_of("j1") == 500
    assert report.remaining == ("j1",)
    assert "Slurm hides whether they still carry what Helios set: j1" in report.notes[0]
    (line,) = table.lines(mode="paused", target="j1")
    assert line["outcome"] == "refused: the cluster hides what stands on it now; Helios had written SiteFactor 5037"


def test_a_release_writes_what_the_cluster_hides_only_on_demand() -> None:
    table = a_table_where_much_stands()
    table.submit("j9")
    for job_id in ("j1", "j9"):
        table.cluster.hold(job_id)
    table.cluster.admin_sets_site_factor("j9", 500)
    release(cluster=table.cluster, ledger=table.ledger, now=table.cluster.now, holder="h", reason="alice", hidden=True)
    assert what_stands(table, "j1", "j9") == [0, 500]


def test_a_pause_reverts_a_hidden_value_as_soon_as_it_shows() -> None:
    table = a_table_where_much_stands()
    table.cluster.hold("j1")
    pause(table)
    assert table.cycle().remaining == ("j1",)
    assert table.cluster.site_factor_of("j1") == 5037
    table.cluster.unhold("j1")
    assert table.cycle().remaining == ()
    assert table.cluster.site_factor_of("j1") == 0


def test_a_release_names_marked_values_without_a_record_and_leaves_them() -> None:
    table = a_table_where_much_stands()
    table.submit("j8", "j9")
    table.cluster.admin_sets_time_min("j8", 17)
    table.cluster.admin_sets_site_factor("j9", 537)
    report = let_go(table)
    assert what_stands(table, "j8", "j9") == [17, 537]
    assert (report.remaining, report.strangers) == ((), ("j8", "j9"))
    assert "2 jobs bear Helios' mark and are in no record: j8, j9; not touched" in report.notes[0]
    assert {line["before"] for line in table.lines(target="j8")} == {"TimeMin 17 min"}


def test_a_release_goes_on_where_the_cluster_postpones() -> None:
    table = a_table_where_much_stands(FakeCluster())
    table.cluster.writes_per_cycle = 1
    report = let_go(table)
    assert report.clean
    assert report.counts == {"helios": {Result.DONE: 3}}


def test_a_release_works_while_another_process_holds_the_lease() -> None:
    table = a_table_where_much_stands()
    report = let_go(table, holder="a person")
    assert what_stands(table, "j1", "j2", "j3") == [0, 0, 0]
    assert report.clean
    assert not report.recorded
    assert any("another Helios holds the lease" in note for note in report.notes)


def test_a_release_gives_the_lease_back() -> None:
    table = a_table_where_much_stands()
    table.cluster.tick(timedelta(hours=1))
    assert let_go(table, holder="a person").recorded
    assert table.ledger.acquire(holder="helios-2", now=table.cluster.now, lasts=timedelta(1)) is not None


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_release_works_when_the_ledger_fails(after: int) -> None:
    table = a_table_where_much_stands()
    table.ledger.fail_next(times=9, after=after)
    report = let_go(table)
    assert what_stands(table, "j1", "j2", "j3") == [0, 0, 0]
    assert report.clean
    assert not report.recorded
    assert any("the audit failed" in note for note in report.notes)


def test_a_release_says_which_jobs_are_left() -> None:
    table = a_table_where_much_stands()
    table.cluster.refuse_writes("j2")
    report = let_go(table)
    assert report.remaining == ("j2",)
    assert not report.clean
    assert table.applied() == {"j2": -0.5}
    assert table.lines(action="Cycle")[-1]["outcome"] == "mismatch: 1 jobs still carry what Helios set: j2"


@pytest.mark.parametrize("answers", [0, 1])
def test_a_release_without_a_cluster_does_not_claim_to_be_clean(answers: int) -> None:
    table = a_table_where_much_stands()
    if answers:
        table.cluster.snapshot = table.cluster._answer  # type: ignore[method-assign, assignment]
        table.cluster.apply = lambda actions: table.cluster.fail_next() or []  # type: ignore[method-assign, assignment, func-returns-value]
    else:
        table.cluster.fail_next(times=9)
    report = let_go(table)
    assert not report.seen
    assert report.remaining is None
    assert not report.clean
    assert "taking everything back was broken off" in report.suspended[1]
    assert len(table.applied()) == 3


def test_a_release_remembers_values_of_admins() -> None:
    table = a_table_where_much_stands()
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 0)
        table.cycle(active(Says(order(j1=0.5))))
    let_go(table)
    assert list(table.ledger.applied_changes()["job_id"]) == ["j1"]


def test_a_pause_reverts_everything_once_and_then_stays_still() -> None:
    table = a_table_where_much_stands()
    pause(table)
    service = Says(order(j1=0.5))
    report = table.cycle(active(service))
    assert what_stands(table, "j1", "j2", "j3") == [0, 0, 0]
    assert report.suspended == ("paused: by alice: maintenance",)
    assert (report.acted, report.clean, service.asked) == (3, True, 0)
    calls, lines = len(table.cluster.applied), len(table.lines())
    table.cycle(active(service))
    assert (len(table.cluster.applied), len(table.lines())) == (calls, lines)


def test_a_pause_takes_back_what_the_hook_goes_on_to_write() -> None:
    table = Table()
    pause(table)
    table.submit("j1", urgency=0.5)
    table.cycle()
    assert table.cluster.site_factor_of("j1") == 0


def test_a_pause_works_without_the_database() -> None:
    table = a_table_where_much_stands()
    pause(table)
    table.ledger.fail_next(times=99)
    report = table.cycle()
    assert what_stands(table, "j1", "j2", "j3") == [0, 0, 0]
    assert report.clean
    assert not report.recorded


def test_a_pause_leaves_a_cluster_to_whoever_holds_the_lease() -> None:
    table = a_table_where_much_stands()
    pause(table)
    table.holder = "helios-2"
    assert table.cycle().suspended == ("another Helios holds the lease of this cluster: standing by",)
    assert table.cluster.urgency_of("j1") > 0


def test_after_a_pause_a_service_begins_anew() -> None:
    table = a_table_where_much_stands()
    pause(table)
    table.cycle()
    table.world = all_is_well
    report = table.cycle(active(Says(order(j1=0.5))))
    assert report.acted == 1
    assert table.applied() == {"j1": 0.5}


def test_a_pause_ends_what_shadows_would_have() -> None:
    table = a_table_where_much_stands()
    table.cycle(active(Says(order(j1=0.5)), mode=SHADOW))
    table.submit("j9", urgency=0.5)
    pause(table)
    table.cycle()
    assert table.applied("shadow") == {}


def test_a_release_does_not_ask_on_where_the_cluster_takes_nothing_back() -> None:
    table = a_table_where_much_stands()
    table.cluster.writes_per_cycle = 0
    calls = len(table.cluster.applied)
    report = let_go(table)
    assert len(table.cluster.applied) == calls + 1
    assert set(report.remaining or ()) == {"j1", "j2", "j3"}


def test_every_job_of_a_release_in_rounds_is_told_as_done_once() -> None:
    table = a_table_where_much_stands()
    table.cluster.writes_per_cycle = 1
    report = let_go(table)
    done = report.decisions[report.decisions["action"] == "Revert"]
    assert dict(zip(done["target"], done["outcome"], strict=True)) == dict.fromkeys(["j1", "j2", "j3"], "done")


def test_a_job_left_with_both_settings_is_named_once() -> None:
    table = Table()
    table.submit("j1", "j2", p50_s=600.0)
    table.cycle(active(Says(order(j1=0.5, j2=-0.5), soft_limit("j1", minutes=20))))
    for job in ("j1", "j2"):
        table.cluster.refuse_writes(job)
    report = let_go(table)
    assert report.remaining == ("j1", "j2")
    assert "2 jobs still carry what Helios set: j1, j2" in report.notes[0]


def test_what_a_pause_cannot_take_back_is_written_down_once() -> None:
    table = a_table_where_much_stands()
    table.cluster.refuse_writes("j1")
    pause(table)
    table.cycle()
    lines = len(table.lines())
    for _ in range(3):
        assert table.cycle().remaining == ("j1",)
    assert len(table.lines()) == lines
    table.cluster.refuse_writes("j1", answer="")
    assert table.cycle().remaining == ()
    assert len(table.lines()) > lines


def test_a_mark_that_no_service_may_change_is_told_and_not_touched() -> None:
    table = Table()
    table.submit("j1", urgency=0.5)
    notes = table.cycle(active(Says(), mode=SHADOW)).notes
    assert notes[0].startswith("1 changes bear Helios' mark")
    assert table.cluster.urgency_of("j1") > 0
    assert table.cycle(active(Says(order()))).notes == ()


def test_a_release_that_is_broken_off_says_what_was_done() -> None:
    table = a_table_where_much_stands()
    table.cluster.writes_per_cycle = 2
    apply = table.cluster.apply

    def once(changes: Sequence[Change[float]]) -> list[Outcome]:
        table.cluster.apply = apply  # type: ignore[method-assign]
        outcomes = apply(changes)
        table.cluster.fail_next()
        return outcomes

    table.cluster.apply = once  # type: ignore[method-assign]
    report = let_go(table)
    assert report.notes[0].startswith("failed: taking everything back was broken off")
    assert report.acted == 2
    assert not report.clean
