"""Which nodes of a pool sleep and wake."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from helios.services.energy_saving.nodes import NodeCandidate, pool_nodes, to_sleep, to_wake
from helios.testing import NOON, a_node, a_snapshot


def nodes(number: int, **columns: Any) -> list[dict[str, Any]]:
    """Return idle nodes n01, n02, ..., each an hour longer idle."""
    return [
        a_node(**({"name": f"n{place:02}", "idle_since": NOON - timedelta(hours=place)} | columns))
        for place in range(1, number + 1)
    ]


def candidates(rows: list[dict[str, Any]]) -> list[NodeCandidate]:
    return pool_nodes(a_snapshot(nodes=rows))


def slept(rows: list[dict[str, Any]], count: int) -> list[str]:
    of = candidates(rows)
    return [node.name for node in to_sleep(of, count, everywhere=of)]


def woken(rows: list[dict[str, Any]], count: int) -> list[str]:
    of = candidates(rows)
    return [node.name for node in to_wake(of, count, everywhere=of)]


@pytest.mark.parametrize(
    "column",
    [
        {"flags": "DRAIN"},
        {"excluded_reason": "reserved"},
        {"state": "DOWN", "power": None},
        {"cpus_held": 1.0},
    ],
)
def test_a_node_that_is_in_use_or_excluded_is_not_proposed(column: dict[str, Any]) -> None:
    of = nodes(12)
    of[11] |= column
    assert slept(of, 1) == ["n11"]


def test_a_rack_is_emptied_before_the_next_is_begun() -> None:
    of = nodes(12)
    for number, node in enumerate(of):
        node["rack"] = f"r{number % 2}"
    of[1] |= {"state": "ALLOCATED", "gpus_held": 8}
    racks = [next(node["rack"] for node in of if node["name"] == name) for name in slept(of, 9)]
    assert racks == ["r0"] * 6 + ["r1"] * 3


def test_sleeping_nodes_of_racks_that_are_awake_wake_first() -> None:
    of = nodes(12, power="asleep")
    for number, node in enumerate(of):
        node["rack"] = "warm" if number < 4 or number == 9 else "cold"
        node["power"] = "awake" if number < 4 else "asleep"
    assert woken(of, 1) == ["n10"]


def test_of_equal_weight_the_node_longest_without_a_job_wakes_first() -> None:
    of = nodes(4, power="asleep")
    of[3]["weight"] = 2.0
    assert woken(of, 4) == ["n03", "n02", "n01", "n04"]
