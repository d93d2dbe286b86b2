"""Each guard, with the reason that a person reads; whatever the door itself would let pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.actions import Result
from helios.config import Power
from helios.control import Failure, clear_failed_wakes
from helios.control.observed import observed_nodes
from helios.control.power_budget import MOST_SPARE, PowerBudget
from helios.model import TIME, Snapshot
from helios.testing import NOON, FakeNodes, a_node, a_snapshot, a_use
from tests.unit.control.nodes_table import (
    FALLING,
    HOUR,
    MINUTE,
    NodeTable,
    canary,
    down,
    keep,
    node_settings,
    some_nodes,
    up,
)


def a_table(*, first: dict[str, Any] | None = None, number: int = 10, fake: Any = None, **power: Any) -> NodeTable:
    """Ten idle nodes behind a door that lets everything pass, looked at twice; the first one as said."""
    nodes = some_nodes(number)
    nodes[0] = a_node(**({"name": "n1", "weight": 10.0} | (first or {})))
    cluster = FakeNodes(nodes=nodes, lax=True, **(fake or {}))
    return NodeTable(cluster=cluster, settings=node_settings(**power)).after_two_looks()


def refused(table: NodeTable, node: str = "n1") -> str:
    """Ask to put one node to sleep; it must not happen, and why."""
    report = table.says(*down(node))
    assert report.slept == ()
    assert table.cluster.power_downs == []
    return table.why_refused(node)


def test_nothing_is_wrong_with_an_ordinary_idle_node() -> None:
    assert a_table().says(*down("n1")).slept == ("n1",)


@pytest.mark.parametrize(
    "flag",
    [
        "COMPLETING",
        "PLANNED",
        "RESERVED",
        "MAINT",
        "MAINTENANCE",
        "DRAIN",
        "DOWN",
        "NOT_RESPONDING",
        "REBOOT_REQUESTED",
    ],
)
def test_a_flagged_node_is_never_put_to_sleep(flag: str) -> None:
    assert f"it is {flag}" in refused(a_table(first={"flags": flag}))


def test_a_node_that_the_cluster_says_to_leave_alone_is() -> None:
    assert "an admin's reservation" in refused(a_table(first={"excluded_reason": "an admin's reservation"}))


@pytest.mark.parametrize("column", [{"cpus_held": 1.0}, {"gpus_held": 1}, {"state": "MIXED"}, {"state": "ALLOCATED"}])
def test_a_busy_node_is_not_powered_down(column: dict[str, Any]) -> None:
    assert "not idle" in refused(a_table(first=column))


def test_a_drained_node_is_not_powered_down() -> None:
    table = a_table()
    table.cluster.drain("n1")
    assert "drained" in refused(table)


def test_a_node_that_is_down_is_not_powered_down() -> None:
    table = a_table()
    table.cluster.take_down("n1")
    assert "down" in refused(table)


def test_a_node_on_the_clusters_keep_awake_list_stays() -> None:
    assert "keep-awake list" in refused(a_table(fake={"keep_awake": "n[1-2]"}))


def test_a_node_that_the_configuration_names_stays() -> None:
    assert "power.never" in refused(a_table(never="login1,n[1-3]"))


def test_a_node_must_be_idle_at_two_looks() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(), lax=True))
    assert "at the look before" in refused(table)
    assert table.says(*down("n1")).slept == ("n1",)


def test_a_job_between_two_looks_far_apart_is_not_overlooked() -> None:
    table = a_table()
    report = table.says(*down("n1"), after=2 * HOUR)
    assert report.slept == ()
    assert "at the look before" in table.why_refused("n1")


def test_a_node_must_be_idle_for_the_time_that_is_set() -> None:
    table = a_table(idle_s=300)
    job = table.cluster.submit()
    (node,) = table.cluster.nodes_of(job)
    table.cluster.end(job)
    table.cycle(after=2 * MINUTE)
    assert "not been idle for 300 s" in refused(table, node)
    assert table.says(*down(node), after=3 * MINUTE).slept == (node,)


def test_without_a_time_from_slurm_observations_say_how_long_nodes_idle() -> None:
    table = a_table(idle_s=300)
    look = table.cluster.snapshot

    def unknown() -> Snapshot:
        seen = look()
        return replace(seen, nodes=seen.nodes.assign(idle_since=pd.Series(pd.NaT, seen.nodes.index, dtype=TIME)))

    table.cluster.snapshot = unknown  # type: ignore[method-assign]
    assert "not been idle" in refused(table)
    assert table.says(*down("n1"), after=5 * MINUTE).slept == ("n1",)


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None"])
def test_nothing_sleeps_in_a_partition_that_a_pending_job_waits_for(reason: str) -> None:
    table = a_table()
    table.cluster.submit(nodes=11, reason=reason, partition="gpu,other")
    assert "a pending job waits" in refused(table)


@pytest.mark.parametrize(
    "job",
    [{"reason": "QOSMaxJobsPerUserLimit"}, {"priority": 0.0}, {"partition": "other"}, {"eligible_at": NOON + 9 * HOUR}],
)
def test_a_job_that_no_node_would_start_keeps_nothing_awake(job: dict[str, Any]) -> None:
    table = a_table()
    table.cluster.submit(**({"nodes": 11} | job))
    assert table.says(*down("n1")).slept == ("n1",)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ({"features": "fat,nvme"}, "feature fat"),
        ({"gpu_type": "h100", "partitions": "gpu"}, "h100"),
        ({"partitions": "debug"}, "pool debug"),
    ],
)
def test_the_last_node_awake_of_its_kind_stays(first: dict[str, Any], kind: str) -> None:
    assert kind in refused(a_table(first=first))


def test_a_drained_node_is_no_stand_in_for_the_last_one() -> None:
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(2), lax=True), settings=node_settings(most_asleep=1.0))
    table.cluster.drain("n2")
    table.after_two_looks()
    assert "last node awake of pool gpu" in refused(table)


def test_of_two_asked_for_at_once_the_last_awake_stays() -> None:
    table = NodeTable(
        cluster=FakeNodes(nodes=some_nodes(2)), settings=node_settings(most_asleep=1.0, most_in_transition=1.0)
    )
    assert table.after_two_looks().says(*down("n1", "n2")).slept == ("n1",)


def test_no_more_nodes_are_on_their_way_than_may_be() -> None:
    table = a_table(most_in_transition=0.3)
    report = table.says(*down("n1", "n2", "n3", "n4", "n5"))
    assert len(report.slept) == 3
    assert report.counts["ces"][Result.POSTPONED] == 2
    assert table.says(*down("n4"), after=timedelta(seconds=10)).slept == ()
    assert table.says(*down("n4"), after=5 * MINUTE).slept == ("n4",)


def test_one_node_may_always_be_on_its_way() -> None:
    table = a_table(most_in_transition=0.01)
    assert table.says(*down("n1", "n2")).slept == ("n1",)


def test_nodes_that_slurm_wakes_by_itself_take_their_place() -> None:
    nodes = [*some_nodes(10), *(a_node(name=f"a{n}", partitions="a") for n in range(2))]
    table = NodeTable(cluster=FakeNodes(nodes=nodes, boot_s=300.0), settings=node_settings(most_in_transition=0.2))
    for node in ("a0", "a1"):
        table.cluster.admin_powers_down(node)
    table.cycle(after=5 * MINUTE)
    table.cluster.submit(nodes=2, partition="a")
    report = table.says(*down("n3"))
    assert report.counts["ces"] == {Result.POSTPONED: 1}
    assert table.says(*down("n3"), after=5 * MINUTE).slept == ("n3",)


def test_a_wake_goes_before_a_sleep_and_takes_its_place() -> None:
    table = a_table(most_in_transition=0.1)
    table.says(*down("n1"))
    table.says(after=2 * HOUR)
    report = table.says(*down("n2"), *up("n1"))
    assert (report.woken, report.slept) == (("n1",), ())
    assert report.counts["ces"][Result.POSTPONED] == 1


def test_no_more_of_a_pool_are_asleep_than_may_be() -> None:
    table = a_table(most_asleep=0.3)
    report = table.says(*down("n1", "n2", "n3", "n4"))
    assert report.slept == ("n1", "n2", "n3")
    assert "no more than 3 of 10 nodes of gpu" in table.why_refused("n4")


def test_a_node_has_a_bounded_number_of_sleeps_a_day() -> None:
    table = a_table(cycles_per_day=2, payback_s=0)
    for _ in range(2):
        table.cycle(after=10 * MINUTE)
        assert table.says(*down("n1")).slept == ("n1",)
        assert table.says(*up("n1"), after=10 * MINUTE).woken == ("n1",)
    table.cycle(after=10 * MINUTE)
    table.says(*down("n1"))
    assert "put it to sleep 2 times in 24 hours" in table.why_refused("n1")
    table.cycle(after=24 * HOUR)
    assert table.says(*down("n1")).slept == ("n1",)


def test_a_cluster_that_cannot_put_nodes_to_sleep_says_why() -> None:
    assert "set SuspendProgram" in refused(a_table(fake={"why_not": "set SuspendProgram"}))


def test_an_old_forecast_puts_nothing_to_sleep() -> None:
    table = a_table()
    table.expectation = lambda snapshot: replace(snapshot, use=a_use(at=snapshot.taken_at - 2 * HOUR))
    assert "not of this hour" in refused(table)


def test_protected_mode_puts_nothing_to_sleep_and_still_wakes_nodes() -> None:
    table = a_table()
    table.says(*down("n1"))
    table.memory = replace(table.memory, protected_at=table.cluster.now)
    report = table.says(*down("n2"), *up("n1"), after=2 * HOUR)
    assert (report.slept, report.woken) == ((), ("n1",))
    assert "protected mode" in table.why_refused("n2")
    assert report.protected


def test_a_quarantined_node_stays_awake_until_it_is_cleared() -> None:
    table = a_table()
    failure = Failure(node="n1", at=NOON, what="did not wake within 600 s")
    table.memory = replace(table.memory, quarantined={"n1": failure})
    assert "nobody has cleared it" in refused(table)
    table.memory = clear_failed_wakes(table.memory, "n1")
    assert table.says(*down("n1")).slept == ("n1",)


def test_only_the_configured_mechanism_puts_nodes_to_sleep() -> None:
    assert "power.mechanism is keep_awake" in refused(a_table(mechanism="keep_awake"))
    table = a_table()
    table.says(keep("n1"))
    assert table.cluster.keep_awake == ""
    assert "power.mechanism is sleep" in table.why_refused("")


def test_a_list_that_cannot_be_changed_here_is_refused() -> None:
    table = a_table(mechanism="keep_awake", fake={"can_keep_awake": False})
    table.says(keep("n1"))
    assert "cannot be changed" in table.why_refused("")


def test_a_falling_node_is_not_called_back() -> None:
    table = a_table(payback_s=0, fake={"suspend_timeout_s": 300.0})
    table.says(*down("n1"))
    report = table.says(*up("n1"))
    assert report.counts["ces"] == {Result.POSTPONED: 1}
    assert table.cluster.power_of("n1") is FALLING


def test_a_node_that_fell_asleep_lately_may_be_woken() -> None:
    table = a_table(payback_s=3600)
    table.says(*down("n1"))
    assert table.says(*up("n1"), after=10 * MINUTE).woken == ("n1",)


def test_a_burst_wakes_its_nodes_and_the_most_spare_ones() -> None:
    names = [f"n{place}" for place in range(1, 81)]
    table = NodeTable(cluster=FakeNodes(nodes=some_nodes(80)), settings=node_settings(most_in_transition=0.1))
    for name in names:
        table.cluster.admin_powers_down(name)
    table.cycle(after=5 * MINUTE)
    table.cluster.submit(nodes=7, partition="not yet placed")
    report = table.says(*up(*names))
    assert len(report.woken) == MOST_SPARE + 7
    assert report.counts["ces"][Result.POSTPONED] == 80 - MOST_SPARE - 7


def test_wakes_of_a_burst_leave_no_room_for_sleeps() -> None:
    table = a_table(most_in_transition=0.3)
    for name in ("n1", "n2", "n3", "n4"):
        table.cluster.admin_powers_down(name)
    table.cycle(after=5 * MINUTE)
    report = table.says(*up("n1", "n2", "n3", "n4"), *down("n5"))
    assert (len(report.woken), report.slept) == (4, ())


def test_a_node_that_slurm_put_to_sleep_may_be_woken() -> None:
    table = a_table()
    table.cluster.admin_powers_down("n1")
    assert table.says(*up("n1"), after=5 * MINUTE).woken == ("n1",)


def test_a_drained_node_is_not_woken() -> None:
    table = a_table(payback_s=0)
    table.says(*down("n1"))
    table.cluster.drain("n1")
    assert table.says(*up("n1"), after=5 * MINUTE).woken == ()


def test_what_does_not_exist_is_refused() -> None:
    table = a_table()
    table.says(*down("nowhere"), *up("never", "nobody"))
    assert {table.why_refused(name) for name in ("nowhere", "never", "nobody")} == {"refused: no such node"}


def test_a_node_named_twice_is_refused_the_second_time() -> None:
    table = a_table()
    assert table.says(*down("n1"), *up("n1")).slept == ("n1",)
    assert "named this node twice" in table.why_refused("n1")


def test_outside_of_the_canary_nothing_is_said_cycle_by_cycle() -> None:
    table = a_table()
    table.says(*down("n1"), mode=canary("other"))
    assert table.lines(target="n1") == []


def test_a_refusal_is_written_down_once() -> None:
    table = a_table(never="n1")
    for _ in range(3):
        table.says(*down("n1"))
    assert len(table.lines(target="n1")) == 1


@pytest.mark.parametrize("number", [1, 3, 9, 10, 30, 101])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 1.0])
def test_room_agrees_with_counting(number: int, share: float) -> None:
    nodes = observed_nodes(a_snapshot(nodes=some_nodes(number)))
    room = PowerBudget(nodes, Power(most_in_transition=share, most_asleep=share))
    slept = sum(not room.to_sleep(node)[1] for node in nodes.values())
    in_full = [n for n in range(number + 1) if n <= max(1, share * number + 1e-9) and n <= share * number + 1e-9]
    assert slept == min(max(in_full), number - 1)
