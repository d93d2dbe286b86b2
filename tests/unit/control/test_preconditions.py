"""Reasons to be still: each is provoked alone, in a whole cycle, and nothing is written."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from helios.config import Control
from helios.control import CircuitBreaker, ControllerState, Preconditions, suspension_reasons
from helios.control.observed import Observation, pending_jobs
from helios.control.preconditions import why_cut_short
from helios.errors import ClusterUnavailable, WarehouseUnavailable
from helios.testing import NOON, a_node, a_pending_job, a_snapshot
from tests.unit.control.table import Says, Table, active, all_is_well, order

RULES = Control(
    oldest_history_s=3600, oldest_model_s=7200, clock_skew_s=30, lease_s=180, mismatches_to_open=1, breaker_s=900
)
WELL = all_is_well(NOON)
SECOND = timedelta(seconds=1)


def reasons(
    world: Preconditions = WELL,
    *,
    pending: list[dict[str, Any]] | None = None,
    nodes: list[dict[str, Any]] | None = None,
    taken_at: datetime = NOON,
    memory: ControllerState | None = None,
) -> list[str]:
    rows = [a_pending_job(p50_s=60.0)] if pending is None else pending
    snapshot = a_snapshot(pending=rows, nodes=nodes, taken_at=taken_at)
    seen = Observation(
        at=taken_at,
        pending=frozenset(snapshot.pending["job_id"]),
        running=frozenset(),
        nodes=frozenset(snapshot.nodes["name"]),
    )
    world = replace(world, cut_short=why_cut_short(seen, memory or ControllerState()))
    return suspension_reasons(
        world, RULES, snapshot=snapshot, jobs=pending_jobs(snapshot), memory=memory or ControllerState(), now=NOON
    )


def test_a_world_in_order_is_no_reason() -> None:
    assert reasons() == []


def test_a_pause_is_a_reason_and_says_whose() -> None:
    assert reasons(replace(WELL, paused="by alice: maintenance")) == ["paused: by alice: maintenance"]


def test_a_history_that_was_never_read_is_a_reason() -> None:
    assert reasons(replace(WELL, history_read_at=None)) == ["the history was never read"]


@pytest.mark.parametrize(("age_s", "suspended"), [(3600, False), (3601, True)])
def test_a_history_read_too_long_ago_is_a_reason(age_s: int, suspended: bool) -> None:
    found = reasons(replace(WELL, history_read_at=NOON - age_s * SECOND))
    assert found == ["the history was read last at 2026-01-05 10:59:59 UTC, more than 3600 s ago"] * suspended


@pytest.mark.parametrize(("age_s", "suspended"), [(7200, False), (7201, True)])
def test_a_model_too_old_is_a_reason(age_s: int, suspended: bool) -> None:
    found = reasons(replace(WELL, model_trained_at=NOON - age_s * SECOND))
    assert found == ["the model was trained at 2026-01-05 09:59:59 UTC, more than 7200 s ago"] * suspended


def test_where_there_is_no_model_none_is_too_old() -> None:
    assert reasons(replace(WELL, model_trained_at=None)) == []


@pytest.mark.parametrize(("skew_s", "suspended"), [(30, False), (-30, False), (30.5, True), (-31, True)])
def test_a_clock_that_differs_is_a_reason(skew_s: float, suspended: bool) -> None:
    found = reasons(replace(WELL, clock_skew_s=skew_s))
    assert found == ["the controller's clock and ours differ by more than 30 s"] * suspended


def test_a_clock_that_could_not_be_compared_is_a_reason() -> None:
    assert reasons(replace(WELL, clock_skew_s=None)) == ["the controller's clock could not be compared with ours"]


def test_no_prediction_for_any_pending_job_is_a_reason() -> None:
    assert reasons(pending=[a_pending_job()]) == ["there is no prediction for any pending job"]
    assert reasons(pending=[a_pending_job(), a_pending_job(p50_s=60.0)]) == []
    assert reasons(pending=[]) == []


@pytest.mark.parametrize(
    ("apart_s", "words"), [(-181, "too long ago"), (-180, ""), (0, ""), (180, ""), (181, "in the future")]
)
def test_a_look_outside_of_the_lease_is_a_reason(apart_s: int, words: str) -> None:
    found = reasons(taken_at=NOON + apart_s * SECOND)
    assert [words in reason for reason in found] == [True] * bool(words)


def test_an_answer_without_nodes_is_a_reason() -> None:
    assert reasons(nodes=[]) == ["the cluster answered without any node"]


def test_jobs_and_nodes_that_vanish_together_are_a_reason() -> None:
    before = ControllerState(pending=10, nodes=2)
    assert reasons(pending=[], memory=before) == [
        "all 10 pending jobs and some of 2 nodes vanished at once: one cycle to settle"
    ]
    assert reasons(pending=[], nodes=[a_node(), a_node(name="node2")], memory=before) == []
    assert reasons(pending=[], memory=ControllerState(pending=9, nodes=2)) == []
    assert reasons(memory=before) == []


def test_another_controller_is_a_reason() -> None:
    memory = ControllerState(controller="ctl0")
    assert reasons(memory=memory) == ["the controller changed from ctl0 to ctl1: one cycle to settle"]
    assert reasons(replace(WELL, controller=None), memory=memory) == []
    assert reasons(memory=ControllerState(controller="ctl1")) == []


def test_an_open_breaker_is_a_reason_until_its_time_is_over() -> None:
    opened = CircuitBreaker().after_a_bad_cycle(now=NOON - 899 * SECOND, settings=RULES)
    assert reasons(memory=ControllerState(breaker=opened)) == [
        "the breaker is open until 2026-01-05 12:00:01 UTC: 1 bad cycles in a row"
    ]
    opened = CircuitBreaker().after_a_bad_cycle(now=NOON - 900 * SECOND, settings=RULES)
    assert reasons(memory=ControllerState(breaker=opened)) == []


def test_every_reason_is_said_not_only_the_first() -> None:
    assert len(reasons(Preconditions(model_problem="no scores"), nodes=[], pending=[a_pending_job()])) == 5


def test_of_a_pause_nothing_else_is_said() -> None:
    assert reasons(Preconditions(paused="by bob", model_problem="no scores"), nodes=[]) == ["paused: by bob"]


def unavailable(snapshot: object) -> Any:
    raise WarehouseUnavailable("no database")


def lose_the_cluster(table: Table) -> None:
    table.cluster.fail_next(times=1)


def lose_the_lease(table: Table) -> None:
    table.ledger.acquire(holder="helios-2", now=table.cluster.now, lasts=timedelta(hours=1))


def lose_the_database(table: Table) -> None:
    table.ledger.fail_next(times=99)


def lose_the_predictions(table: Table) -> None:
    table.expectation = unavailable


def lose_the_ledger(table: Table) -> None:
    table.ledger.fail_next(times=1, after=1)


def lose_the_conditions(table: Table) -> None:
    table.world = unavailable


def set_the_clock_wrong(table: Table) -> None:
    table.world = lambda now: replace(all_is_well(now), clock_skew_s=3600.0)


def stop_the_history(table: Table) -> None:
    table.world = lambda now: replace(all_is_well(now), history_read_at=now - timedelta(days=1))


def fail_over(table: Table) -> None:
    table.world = lambda now: replace(all_is_well(now), controller="ctl2")


def lose_the_nodes(table: Table) -> None:
    table.cluster.nodes = []


MISFORTUNES = [
    lose_the_cluster,
    lose_the_lease,
    lose_the_database,
    lose_the_predictions,
    lose_the_ledger,
    lose_the_conditions,
    set_the_clock_wrong,
    stop_the_history,
    fail_over,
    lose_the_nodes,
]


@pytest.mark.parametrize("misfortune", MISFORTUNES)
def test_a_suspended_cycle_writes_nothing_and_asks_nobody(
    misfortune: Callable[[Table], None],
) -> None:
    table = Table()
    table.submit("j1", "j2")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    stood = table.cluster.site_factor_of("j1")
    service.actions = [order(j2=0.9)]
    table.memory = replace(table.memory, said={})
    table.cluster.tick(timedelta(minutes=4))  # the lease has run out: another may have it
    misfortune(table)
    report = table.cycle(active(service), after=timedelta(0))
    assert report.suspended
    assert report.acted == 0
    assert service.asked == 1
    assert len(table.cluster.applied) == 1
    assert (table.cluster.site_factor_of("j1"), table.cluster.site_factor_of("j2")) == (stood, 0)


def test_stillness_says_what_stands_and_stays() -> None:
    table = Table()
    table.submit("j1", "j2")
    table.cycle(active(Says(order(j1=0.5, j2=0.4))))
    stop_the_history(table)
    report = table.cycle(active(Says()))
    assert report.suspended[-1] == "2 changes of Helios stand on the cluster and stay as they are"


def test_stillness_does_not_count_what_is_seen_to_stand_no_longer() -> None:
    table = Table()
    table.submit("j1", "j2", "j3")
    table.cycle(active(Says(order(j1=0.5, j2=0.4, j3=0.3))))
    table.cluster.admin_sets_site_factor("j1", 0)
    table.cluster.hold("j2")
    stop_the_history(table)
    assert table.cycle(active(Says())).suspended[-1] == (
        "1 changes of Helios stand on the cluster and stay as they are; "
        "of 1 the cluster does not show whether they stand"
    )


def test_stillness_without_a_look_does_not_say_what_stands() -> None:
    table = Table()
    table.submit("j1")
    table.cycle(active(Says(order(j1=0.5))))
    table.cluster.fail_next()
    assert not any("stand" in reason for reason in table.cycle(active(Says())).suspended)


def test_stillness_is_written_down_once_and_again_when_its_reason_changes() -> None:
    table = Table()
    stopped_at = table.cluster.now - timedelta(days=1)
    table.world = lambda now: replace(all_is_well(now), history_read_at=stopped_at)
    for _ in range(3):
        table.cycle()
    assert len(table.lines(outcome="nothing was done")) == 1
    table.world = lambda now: replace(all_is_well(now), history_read_at=stopped_at, model_problem="much")
    table.cycle()
    assert [line["reason"].count(";") for line in table.lines(outcome="nothing was done")] == [0, 1]


def test_an_unrecorded_suspension_is_written_down_as_soon_as_possible() -> None:
    table = Table()
    stopped_at = table.cluster.now - timedelta(days=1)
    table.world = lambda now: replace(all_is_well(now), history_read_at=stopped_at)
    table.ledger.fail_next(times=1, after=2)
    assert not table.cycle().recorded
    table.cycle()
    assert len(table.lines(outcome="nothing was done")) == 1


def test_a_pause_without_anything_to_revert_is_one_audit_line() -> None:
    table = Table()
    table.world = lambda now: replace(all_is_well(now), paused="by alice")
    for _ in range(2):
        table.cycle()
    assert [line["reason"] for line in table.lines(mode="paused")] == ["paused: by alice"]


def test_after_a_failover_one_cycle_is_suspended_and_the_next_acts() -> None:
    table = Table()
    table.submit("j1")
    table.cycle()
    fail_over(table)
    assert table.cycle(active(Says(order(j1=0.5)))).suspended
    assert table.cycle(active(Says(order(j1=0.5)))).acted == 1


def test_an_answer_cut_short_is_not_taken_for_the_new_truth() -> None:
    table = Table()
    table.cluster.nodes = [a_node(), a_node(name="node2")]
    jobs = [f"j{number}" for number in range(12)]
    table.submit(*jobs)
    table.cycle()
    table.cluster.nodes = [a_node()]
    for job in jobs:
        table.cluster.end(job)
    assert table.cycle().suspended
    assert table.cycle().suspended  # not only once
    table.submit("j99")
    assert not table.cycle().suspended


def test_the_reason_names_what_could_not_be_reached() -> None:
    table = Table()
    table.cluster.fail_next(times=1)
    (reason,) = table.cycle().suspended
    assert reason.startswith("the cluster could not be read")
    assert ClusterUnavailable.__name__ not in reason
