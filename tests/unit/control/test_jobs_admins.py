"""Somebody else's hand: written over at most once for a job and setting, then never again."""

from helios.actions import Result
from helios.testing import FakeCluster
from tests.unit.control.table import MINUTE, Says, Table, active, order, soft_limit


def a_table_where_j1_stands(**columns: object) -> tuple[Table, Says]:
    table = Table()
    table.submit("j1", "j2", **columns)
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    return table, service


def a_table_where_j1_was_set_again() -> tuple[Table, Says]:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    return table, service


def overridden(table: Table) -> list[str]:
    frame = table.ledger.applied_changes()
    return list(frame.loc[frame["overridden"] == 1, "job_id"])


def test_a_value_that_vanished_once_is_set_again_with_a_reason() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    assert table.cluster.urgency_of("j1") > 0
    line = table.lines(action="Reorder")[-1]
    assert line["reason"] == "j1 is short; set again, once: urgency 0 was found instead of what Helios had set"
    assert overridden(table) == []


def test_what_somebody_changes_twice_is_theirs() -> None:
    table, service = a_table_where_j1_stands()
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 0)
        table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
    assert overridden(table) == ["j1"]
    (line,) = table.lines(action="HandsOff")
    assert (line["target"], line["service"]) == ("j1", "helios")
    assert line["reason"] == "somebody changed twice what service qssf had set"


def test_a_marked_value_that_helios_never_wrote_belongs_to_an_admin() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 9037)
    assert table.cycle(active(service)).counts == {"qssf": {Result.REFUSED: 1}}
    assert table.cluster.site_factor_of("j1") == 9037


def test_what_is_theirs_is_never_touched_again_whoever_asks() -> None:
    table, service = a_table_where_j1_stands()
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 9037)
        table.cycle(active(service))
    service.actions = [order(j1=-0.5)]
    assert table.cycle(active(service)).counts == {"qssf": {Result.REFUSED: 1}}
    assert table.cycle(active(Says(order(j1=0.1)), name="other")).counts["other"] == {Result.REFUSED: 1}
    table.cycle()
    assert table.cluster.site_factor_of("j1") == 9037


def test_an_admin_who_takes_his_time_is_believed_the_second_time_too() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    for _ in range(5):
        table.cycle(active(service))
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
    assert overridden(table) == ["j1"]


def test_a_restart_without_memory_does_not_forget_whose_it_is() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    table.memory = Table().memory
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
    assert overridden(table) == ["j1"]


def test_a_new_value_of_the_service_does_not_begin_the_count_anew() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    service.actions = [order(j1=0.9)]
    table.cycle(active(service))
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    assert overridden(table) == ["j1"]


def test_a_soft_limit_that_somebody_clears_twice_is_theirs() -> None:
    table = Table()
    table.submit("j1")
    service = Says(soft_limit("j1", minutes=20))
    table.cycle(active(service))
    for _ in range(2):
        table.cluster.admin_sets_time_min("j1", 0)
        table.cycle(active(service))
    assert table.cluster.time_min_of("j1") == 0
    assert overridden(table) == ["j1"]


def test_one_setting_that_is_theirs_leaves_the_other() -> None:
    table, service = a_table_where_j1_stands()
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 0)
        table.cycle(active(service))
    service.actions = [order(j1=0.5), soft_limit("j1", minutes=20)]
    table.cycle(active(service))
    assert (table.cluster.site_factor_of("j1"), table.cluster.time_min_of("j1")) == (0, 27)


def test_an_urgency_that_cannot_be_read_is_not_taken_for_a_change() -> None:
    table, service = a_table_where_j1_was_set_again()
    table.cluster._jobs["j1"].row["eligible_at"] = None  # a dependency came back
    table.cluster.admin_sets_site_factor("j1", 0)  # as sprio would show it: nothing
    for _ in range(3):
        table.cycle(active(service))
    assert overridden(table) == []
    assert table.lines(action="HandsOff") == []


def test_a_held_job_is_neither_written_nor_judged() -> None:
    table, service = a_table_where_j1_was_set_again()
    table.cluster.hold("j1")
    table.cluster.admin_sets_site_factor("j1", 0)
    writes = table.cluster.writes
    for _ in range(3):
        table.cycle(active(service))
    assert table.cluster.writes == writes
    assert overridden(table) == []


def test_a_foreign_site_factor_excludes_its_job() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 500)
    for _ in range(3):
        table.cycle(active(service))
    table.cycle()
    assert table.cluster.site_factor_of("j1") == 500


def test_a_write_that_was_never_read_back_accuses_nobody() -> None:
    table = Table()
    table.submit("j1")
    table.cluster.swallow_writes(times=3)
    for _ in range(3):
        assert table.cycle(active(Says(order(j1=0.5)))).counts == {"qssf": {Result.MISMATCH: 1}}
    assert overridden(table) == []
    assert table.cycle(active(Says(order(j1=0.5)))).acted == 1


def test_what_is_theirs_is_remembered_while_the_job_runs_and_comes_back() -> None:
    table, service = a_table_where_j1_stands()
    for _ in range(2):
        table.cluster.admin_sets_site_factor("j1", 0)
        table.cycle(active(service))
    table.cluster.start("j1")
    service.actions = [order(j2=0.5)]
    table.cycle(active(service))
    table.cluster.requeue("j1")
    service.actions = [order(j1=0.5)]
    table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0


def test_a_change_that_the_service_gives_up_anyway_is_nobodys_quarrel() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.admin_sets_site_factor("j1", 0)
    service.actions = []
    calls = len(table.cluster.applied)
    table.cycle(active(service))
    assert table.applied() == {}
    assert len(table.cluster.applied) == calls


def test_rounding_is_not_taken_for_a_change() -> None:
    table = Table(cluster=FakeCluster(site_factor_most=10_000))
    jobs = {f"j{number}": -1 + number / 100 for number in range(201)}
    table.submit(*jobs)
    limits = [soft_limit(job, minutes=1 + number * 0.25) for number, job in enumerate(jobs)]
    service = Says(order(**jobs), *limits)
    table.cycle(active(service))
    writes = table.cluster.writes
    report = table.cycle(active(service), after=MINUTE)
    assert table.cluster.writes == writes
    assert set(report.counts["qssf"]) == {Result.UNCHANGED}
    assert table.lines(action="HandsOff") == []


def test_a_new_job_of_the_same_id_belongs_to_no_admin() -> None:
    table, service = a_table_where_j1_was_set_again()
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cycle(active(service))
    assert overridden(table) == ["j1"]
    table.cluster.end("j1")
    table.submit("j1")
    assert table.cycle(active(service)).acted == 1
    assert table.cluster.urgency_of("j1") > 0


def test_a_held_job_keeps_what_nobody_asks_for_until_it_is_released() -> None:
    table, service = a_table_where_j1_stands()
    table.cluster.hold("j1")
    service.actions = []
    calls = len(table.cluster.applied)
    table.cycle(active(service))
    assert len(table.cluster.applied) == calls
    table.cluster.unhold("j1")
    table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
