"""The service: how many nodes it wants awake, which it names, and what it says to whoever asks why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.model import STEP_S, Snapshot
from helios.ports import Domain
from helios.services.energy_saving import Ces, CesOptions, level_now
from helios.services.registry import build
from helios.testing import NOON, a_demand, a_node, a_pending_job, a_snapshot, check_service, power_settings

DAY = 86_400 // STEP_S
CALM = [4.0] * (23 * DAY)
"""Four busy nodes for over three weeks."""


def nodes(*, busy: int = 4, idle: int = 8, asleep: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """Return nodes n01, n02, ...: first the busy ones, then idle ones, each an hour longer so, then sleeping ones."""
    of = [("ALLOCATED", "awake")] * busy + [("IDLE", "awake")] * idle + [("IDLE", "asleep")] * asleep
    return [
        a_node(
            name=f"n{number:02}",
            state=state,
            power=power,
            gpus_held=8 if state == "ALLOCATED" else 0,
            idle_since=None if state == "ALLOCATED" else NOON - timedelta(hours=number),
            **columns,
        )
        for number, (state, power) in enumerate(of, start=1)
    ]


def seen(
    *, of: Sequence[dict[str, Any]], busy: Sequence[float] = CALM, pending: Sequence[Any] = (), **demand: Any
) -> Snapshot:
    return a_snapshot(
        nodes=list(of),
        pending=list(pending),
        power=power_settings(),
        demand=a_demand({"gpu": busy}, total=float(len(of)), **demand),
    )


def decide(snapshot: Snapshot, **options: Any) -> list[NodeAction]:
    # Pools of tests are small, and the published rule sleeps nothing where use never falls.
    return Ces(CesOptions(**({"spare": 1, "wake_ups_per_day": 1.0} | options))).decide(snapshot)


def slept(actions: Sequence[NodeAction]) -> list[str]:
    return [action.node for action in actions if isinstance(action, PowerDown)]


def woken(actions: Sequence[NodeAction]) -> list[str]:
    return [action.node for action in actions if isinstance(action, PowerUp)]


@pytest.mark.parametrize(
    ("rule", "mechanism"),
    [("helios", "sleep"), ("helios", "keep_awake"), ("published", "sleep"), ("max_3h", "sleep")],
)
def test_it_is_a_service(rule: Any, mechanism: Any) -> None:
    check_service(Ces(CesOptions(rule=rule, mechanism=mechanism)))


def test_it_is_installed_and_acts_on_nodes() -> None:
    service = build("ces", {"risk": 0.02, "wake_ups_per_day": 1.5})
    assert isinstance(service, Ces)
    assert service.domain is Domain.NODES


# How many.


def test_surplus_nodes_sleep_and_a_spare_one_stays() -> None:
    asleep = slept(decide(seen(of=nodes())))
    assert len(asleep) == 7
    assert not woken(decide(seen(of=nodes())))


def test_without_demand_nothing_sleeps() -> None:
    assert not decide(a_snapshot(nodes=nodes(), power=power_settings()))


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (a_snapshot(nodes=nodes(), power=power_settings()), "there is no forecast of its pools"),
        (seen(of=nodes(idle=1)), "4 of 5 nodes of gpu needed, at most 4 within 6 h (9 of 10 times); 1 kept in reserve"),
        (seen(of=nodes(kept_awake=1)), "7 more are awake and may not sleep"),
    ],
    ids=["no forecast", "all needed", "kept awake"],
)
def test_it_says_why_it_asks_for_nothing(snapshot: Snapshot, why: str) -> None:
    service = Ces(CesOptions(spare=1, wake_ups_per_day=1.0))
    assert not list(service.decide(snapshot))
    assert why in service.why_nothing


def test_with_few_weeks_of_demand_the_published_rule_keeps_its_reserve() -> None:
    assert len(slept(decide(seen(of=nodes(), busy=[4.0] * (5 * DAY))))) == 3


def test_a_pool_that_nobody_forecast_is_left_alone() -> None:
    assert not decide(seen(of=nodes(partitions="cpu")))


def test_on_demand_of_long_ago_nothing_sleeps() -> None:
    assert not decide(seen(of=nodes(), at=NOON - timedelta(hours=3)))


def test_an_unexpected_rise_wakes_more_than_what_is_missing() -> None:
    rise = [*CALM[:-1], 10.0]
    actions = decide(seen(of=nodes(busy=10, idle=0, asleep=6), busy=rise))
    assert len(woken(actions)) >= 1
    assert not slept(actions)


def test_queued_jobs_that_wait_for_nodes_are_demand_at_once() -> None:
    of = nodes(busy=4, idle=1, asleep=10)
    waiting = a_pending_job(nodes=5.0, gpus=40, reason="Resources")
    assert len(woken(decide(seen(of=of, pending=[waiting])))) >= 4
    assert not woken(decide(seen(of=of)))


@pytest.mark.parametrize(
    "job",
    [
        {"reason": "QOSMaxJobsPerUserLimit"},
        {"reason": "AssocGrpGRES"},
        {"eligible_at": NOON + timedelta(hours=1)},
        {"partition": "cpu"},
    ],
)
def test_a_job_that_more_nodes_would_not_start_is_no_demand(job: dict[str, Any]) -> None:
    waiting = a_pending_job(**({"nodes": 5.0, "gpus": 40, "reason": "Resources"} | job))
    assert not woken(decide(seen(of=nodes(busy=4, idle=1, asleep=10), pending=[waiting])))


def test_small_jobs_share_the_nodes_they_wait_for() -> None:
    waiting = [a_pending_job(gpus=1, cpus=4.0, reason="Resources") for _ in range(16)]
    few = len(woken(decide(seen(of=nodes(busy=4, idle=0, asleep=12), pending=waiting), rule="max_3h", sigma=0.0)))
    assert few == 5  # four busy and two for sixteen jobs of a GPU each are fewer than the most of 3 h and five


# Which.


def test_the_longest_idle_sleeps_first() -> None:
    assert slept(decide(seen(of=nodes()))) == ["n12", "n11", "n10", "n09", "n08", "n07", "n06"]


@pytest.mark.parametrize(
    "column",
    [
        {"flags": "DRAIN"},
        {"excluded_reason": "reserved"},
        {"kept_awake": 1},
        {"state": "DOWN", "power": None},
        {"cpus_held": 1.0},
    ],
)
def test_a_node_that_says_otherwise_is_not_proposed(column: dict[str, Any]) -> None:
    of = nodes()
    of[11] |= column
    assert "n12" not in slept(decide(seen(of=of)))


@pytest.mark.parametrize("kind", [{"features": "infiniband,big"}, {"gpu_type": "a100", "partitions": "gpu"}])
def test_the_last_awake_node_of_a_kind_stays_awake(kind: dict[str, Any]) -> None:
    of = nodes(busy=0, idle=3, **kind)
    name = "gpu (a100)" if "gpu_type" in kind else "gpu"
    demand = a_demand({name: [0.0] * (23 * DAY)}, total=3.0)
    snapshot = a_snapshot(nodes=of, power=power_settings(), demand=demand)
    assert len(slept(decide(snapshot, spare=0))) == 2


def test_a_rack_is_emptied_before_the_next_is_begun() -> None:
    of = nodes(busy=2, idle=10)
    for number, node in enumerate(of):
        node["rack"] = f"r{number % 2}"
    of[0]["rack"] = of[1]["rack"] = "r1"
    names = slept(decide(seen(of=of, busy=[2.0] * len(CALM))))
    racks = [next(node["rack"] for node in of if node["name"] == name) for name in names]
    assert racks == sorted(racks)
    assert racks[0] == "r0"


def test_sleeping_nodes_of_racks_that_are_awake_wake_first() -> None:
    of = nodes(busy=4, idle=0, asleep=8)
    for number, node in enumerate(of):
        node["rack"] = "warm" if number < 4 or number == 9 else "cold"
    assert woken(decide(seen(of=of, busy=[*CALM[:-1], 5.0])))[0] == "n10"


# The other mechanism, and reasons.


def test_keep_awake_names_all_that_are_not_to_sleep() -> None:
    (action,) = decide(seen(of=nodes()), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert action.nodes == ("n01", "n02", "n03", "n04", "n05")


def test_keep_awake_keeps_all_awake_where_nobody_forecast() -> None:
    (action,) = decide(a_snapshot(nodes=nodes()), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert len(action.nodes) == 12


def test_keep_awake_may_take_out_what_helios_put_in() -> None:
    (action,) = decide(seen(of=nodes(kept_awake=1)), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert len(action.nodes) == 5


def test_the_reason_is_for_an_admin() -> None:
    (first, *_) = decide(seen(of=nodes()))
    assert first.reason == (
        "idle for 12 h; 4 of 12 nodes of gpu needed, at most 4 within 6 h (9 of 10 times); 1 kept in reserve"
        " by the idle timer of 30 min"
    )


def test_history_older_than_the_weeks_of_the_choice_changes_nothing() -> None:
    rng = np.random.default_rng(4)
    busy = (6 + np.cumsum(rng.integers(-1, 2, size=50 * DAY))).clip(0, 12).tolist()
    whole, recent = (a_demand({"gpu": values}, total=12.0) for values in (busy, busy[-40 * DAY :]))
    options = CesOptions(weeks=4, wake_ups_per_day=2.0)
    assert level_now(whole, 0, options) == level_now(recent, 0, options)


def test_the_rule_of_a_pool_is_kept_for_reports() -> None:
    service = Ces(CesOptions())
    service.decide(seen(of=nodes(), busy=[4.0] * (5 * DAY)))
    assert service.choices["gpu"].rule is not None
    assert service.choices["gpu"].rule.name == "published rule"


def test_a_fresh_service_decides_as_one_that_ran_for_days() -> None:
    rng = np.random.default_rng(3)
    busy = (6 + np.cumsum(rng.integers(-1, 2, size=10 * DAY))).clip(0, 12).tolist()
    old = Ces(CesOptions())
    for step in range(9 * DAY, 10 * DAY, 29):
        at = NOON - timedelta(seconds=STEP_S * (10 * DAY - step))
        now = a_snapshot(
            nodes=nodes(), power=power_settings(), taken_at=at, demand=a_demand({"gpu": busy[:step]}, total=12.0, at=at)
        )
        assert old.decide(now) == Ces(CesOptions()).decide(now)


@pytest.mark.parametrize(
    "wrong", [{"risk": 0.0}, {"wake_ups_per_day": -1.0}, {"spare": -1}, {"weeks": 0}, {"h_s": 60}, {"every_s": 0}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CesOptions(**wrong)
