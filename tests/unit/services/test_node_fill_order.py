"""What stays awake anyway is filled first, what should sleep last, and nothing is shuffled without cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import FillFirst
from helios.services.node_fill_order import NodeFillOrder
from helios.testing import NOON, a_node, a_running_job, a_snapshot, check_service
from tests.examples import examples

HOUR = timedelta(hours=1)


def a_busy_node(name: str, **columns: Any) -> dict[str, Any]:
    return a_node(**({"name": name, "state": "MIXED", "gpus_held": 4, "power": "awake"} | columns))


def an_idle_node(name: str, *, idle: timedelta = timedelta(minutes=5), **columns: Any) -> dict[str, Any]:
    return a_node(name=name, power="awake", idle_since=NOON - idle, **columns)


def running(node: str, *, since: timedelta = HOUR, **columns: Any) -> dict[str, Any]:
    return a_running_job(node_list=node, submitted_at=NOON - since, **({"time_limit_s": 7 * 86_400.0} | columns))


def tiers(nodes: Sequence[Any], jobs: Sequence[Any] = (), **options: Any) -> tuple[tuple[str, ...], ...]:
    decided = NodeFillOrder(NodeFillOrder.Options(**options)).decide(a_snapshot(nodes=list(nodes), running=list(jobs)))
    (action,) = decided
    assert isinstance(action, FillFirst)
    assert action.reason
    return action.tiers


def test_it_is_a_service() -> None:
    check_service(NodeFillOrder)


def test_long_busy_then_soon_free_then_idle_then_asleep() -> None:
    nodes = [
        a_node(name="dark", power="asleep"),
        an_idle_node("idle"),
        a_busy_node("soon"),
        a_busy_node("long"),
        an_idle_node("tired", idle=3 * HOUR),
    ]
    jobs = [running("long", p50_s=20 * 3_600.0), running("soon", p50_s=3_700.0)]
    assert tiers(nodes, jobs) == (("long",), ("soon",), ("idle",), ("dark", "tired"))


def test_each_node_is_told_its_own_reason() -> None:
    nodes = [a_node(name="dark", power="asleep"), an_idle_node("idle"), a_busy_node("soon"), a_busy_node("long")]
    jobs = [running("long", p50_s=20 * 3_600.0), running("soon", p50_s=3_700.0)]
    (action,) = NodeFillOrder(NodeFillOrder.Options()).decide(a_snapshot(nodes=nodes, running=jobs))
    why = {node: action.why_in(place) for place, tier in enumerate(action.tiers) for node in tier}
    assert why == {
        "long": "busy for another 2 h or more: first",
        "soon": "free within 2 h or nearly empty: last of the busy ones, to drain",
        "idle": "idle: after the busy ones",
        "dark": "asleep, or idle for over 60 min: last",
    }


@settings(max_examples=examples(30))
@given(hours=st.lists(st.floats(0.1, 2_000), min_size=1, max_size=8), count=st.integers(3, 16))
def test_the_time_that_a_reason_names_is_true(hours: list[float], count: int) -> None:
    nodes = [a_busy_node(f"n{number}", gpus_held=8) for number in range(len(hours))]
    jobs = [running(f"n{n}", p50_s=3_600.0 * (1 + left), time_limit_s=1e9) for n, left in enumerate(hours)]
    order = NodeFillOrder(NodeFillOrder.Options(tiers=count))
    (action,) = order.decide(a_snapshot(nodes=nodes, running=jobs))
    left_s = {f"n{n}": 3_600.0 * left for n, left in enumerate(hours)}
    for place, tier in enumerate(action.tiers):
        if "free within 2 h" in action.why_in(place):
            assert max(left_s[node] for node in tier) < 7_200 + 1e-3
        elif "busy for another 2 h" in action.why_in(place):
            assert min(left_s[node] for node in tier) >= 7_200 - 1e-3


def test_a_nearly_empty_node_drains_unless_its_job_runs_long() -> None:
    nodes = [a_busy_node("empty", gpus_held=1), a_busy_node("long", gpus_held=1), a_busy_node("full", gpus_held=8)]
    jobs = [running("empty", p50_s=4 * 3_600.0), running("full", p50_s=4 * 3_600.0), running("long", p50_s=4e5)]
    assert tiers(nodes, jobs) == (("full", "long"), ("empty",))


def test_a_job_on_several_nodes_counts_on_each() -> None:
    nodes = [a_busy_node(f"n{number}") for number in (1, 2, 3)]
    jobs = [running("n[1-2]", p50_s=30 * 3_600.0), running("n3", p50_s=3_700.0)]
    assert tiers(nodes, jobs) == (("n1", "n2"), ("n3",))


def test_the_time_limit_bounds_what_is_left() -> None:
    nodes = [a_busy_node("a"), a_busy_node("b")]
    jobs = [running("a", p50_s=1e6, time_limit_s=4_000.0), running("b", p50_s=1e6)]
    assert tiers(nodes, jobs) == (("b",), ("a",))


def test_without_predictions_what_has_run_long_is_taken_to_run_on() -> None:
    nodes = [a_busy_node("new"), a_busy_node("old")]
    jobs = [running("new", since=timedelta(minutes=3)), running("old", since=30 * HOUR)]
    assert tiers(nodes, jobs) == (("old",), ("new",))


@pytest.mark.parametrize("column", [{"excluded_reason": "drained"}, {"power": None}])
def test_a_node_that_is_down_or_in_other_hands_is_not_named(column: dict[str, Any]) -> None:
    named = tiers([an_idle_node("a"), an_idle_node("b") | column])
    assert named == (("a",),)


def test_nothing_is_said_where_no_node_may_be_named() -> None:
    assert not NodeFillOrder(NodeFillOrder.Options()).decide(a_snapshot(nodes=[a_node(power=None)]))


def test_nothing_changes_when_a_minute_passes() -> None:
    nodes = [a_busy_node("a"), an_idle_node("b"), a_node(name="c", power="asleep")]
    before = [running("a", p50_s=9 * 3_600.0)]
    after = [running("a", p50_s=9 * 3_600.0, since=HOUR + timedelta(minutes=1))]
    assert tiers(nodes, before) == tiers(nodes, after)


@settings(max_examples=examples(15))
@given(
    held=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    hours=st.floats(0, 1e4),
    count=st.integers(3, 16),
)
def test_no_more_tiers_than_asked_and_every_node_once(held: list[int], hours: float, count: int) -> None:
    nodes = [a_busy_node(f"n{number}", gpus_held=gpus) for number, gpus in enumerate(held)]
    jobs = [running(f"n{number}", p50_s=hours * 3_600.0) for number, gpus in enumerate(held) if gpus]
    found = tiers(nodes, jobs, tiers=count)
    assert len(found) <= count
    assert sorted(name for tier in found for name in tier) == sorted(node["name"] for node in nodes)


@pytest.mark.parametrize("wrong", [{"tiers": 2}, {"every_s": 0}, {"soon_s": 0.0}, {"idle_s": -1.0}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NodeFillOrder.Options(**wrong)
