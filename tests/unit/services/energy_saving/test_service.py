"""The service: how many nodes it wants awake, and what it says to whoever asks why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.errors import ServiceInvalid
from helios.model import NodeForecast, Snapshot
from helios.ports import Domain
from helios.services.energy_saving import Ces, CesOptions
from helios.services.registry import build
from helios.testing import NOON, a_node, a_pending_job, a_snapshot, a_use, check_service, power_settings

WAITING = "Resources"


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


def seen(*, of: Sequence[dict[str, Any]], pending: Sequence[Any] = (), in_use: Any = 4, **use: Any) -> Snapshot:
    """Return a snapshot of nodes of which so many were in use for a week, too short to choose: 5 spare, 60 min."""
    record = a_use({"gpu": in_use}, nodes=len(of), **({"days": 7} | use))
    return a_snapshot(nodes=list(of), pending=list(pending), power=power_settings(), use=record)


def decide(snapshot: Snapshot, **options: Any) -> list[NodeAction]:
    return Ces(CesOptions(**options)).decide(snapshot)


def slept(actions: Sequence[NodeAction]) -> list[str]:
    return [action.node for action in actions if isinstance(action, PowerDown)]


def woken(actions: Sequence[NodeAction]) -> list[str]:
    return [action.node for action in actions if isinstance(action, PowerUp)]


def nothing(snapshot: Snapshot) -> str:
    """Return why the service asks for nothing."""
    service = Ces(CesOptions())
    assert not service.decide(snapshot)
    return service.why_nothing


@pytest.mark.parametrize(("rule", "mechanism"), [("spare", "sleep"), ("spare", "keep_awake"), ("published", "sleep")])
def test_it_is_a_service(rule: Any, mechanism: Any) -> None:
    check_service(Ces(CesOptions(rule=rule, mechanism=mechanism)))


def test_it_is_installed_and_acts_on_nodes() -> None:
    service = build("ces", {"delayed_submissions": 0.003, "cycles_per_node_day": 0.5})
    assert isinstance(service, Ces)
    assert service.domain is Domain.NODES


def test_an_option_that_is_gone_names_those_there_are() -> None:
    with pytest.raises(ServiceInvalid, match="wake_ups_per_day") as raised:
        build("ces", {"wake_ups_per_day": 1.0})
    assert "delayed_submissions: float = 0.01; cycles_per_node_day: float = 1.0" in raised.value.hint


@pytest.mark.parametrize(
    "wrong", [{"delayed_submissions": 0.0}, {"delayed_submissions": 1.0}, {"cycles_per_node_day": 0.0}, {"every_s": 0}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CesOptions(**wrong)


# How many.


def test_nodes_beyond_use_and_reserve_sleep() -> None:
    actions = decide(seen(of=nodes()))
    assert len(slept(actions)) == 3
    assert not woken(actions)


def test_nodes_are_woken_up_to_use_and_reserve() -> None:
    assert len(woken(decide(seen(of=nodes(idle=2, asleep=6))))) == 3


def test_the_most_in_use_of_the_last_hour_stays_awake() -> None:
    rise = [4] * 1_000 + [6] * 10
    assert len(slept(decide(seen(of=nodes(), in_use=[*rise, *[4] * 49])))) == 1
    assert len(slept(decide(seen(of=nodes(), in_use=[*rise, *[4] * 60])))) == 3


def test_three_weeks_of_use_choose_the_reserve() -> None:
    service = Ces(CesOptions())
    calm = seen(of=nodes(), days=28)
    assert len(slept(service.decide(calm))) == 8
    assert service.choices["gpu"].rule.spare == 0
    assert "0.00 % of submissions would have waited" in service.choices["gpu"].reason


def test_a_burst_beyond_the_reserve_wakes_its_nodes_and_the_reserve() -> None:
    of = nodes(busy=0, idle=5, asleep=25)
    burst = a_pending_job(nodes=8.0, gpus=64, reason=WAITING)
    assert len(woken(decide(seen(of=of, in_use=0, pending=[burst])))) == 8
    assert not woken(decide(seen(of=of, in_use=0)))


def test_nodes_that_started_jobs_wait_for_are_in_use() -> None:
    of = nodes(busy=4, idle=5, asleep=10)
    of[9] |= {"power": "waking", "state": "ALLOCATED", "gpus_held": 8}  # a job is being configured on it
    assert len(woken(decide(seen(of=of)))) == 0
    of[10] |= {"power": "asleep", "state": "MIXED", "gpus_held": 4}
    assert len(woken(decide(seen(of=of)))) == 1


@pytest.mark.parametrize(
    "column",
    [{"flags": "DRAIN"}, {"state": "DOWN", "power": None}, {"power": None}, {"flags": "MAINT"}, {"flags": "RESERVED"}],
)
def test_a_node_that_takes_no_jobs_is_no_spare_one(column: dict[str, Any]) -> None:
    of = nodes(busy=4, idle=5, asleep=3)
    of[8] |= column
    assert len(woken(decide(seen(of=of)))) == 1


@pytest.mark.parametrize(
    "job",
    [
        {"reason": "QOSMaxJobsPerUserLimit"},
        {"reason": "AssocGrpGRES"},
        {"eligible_at": NOON + timedelta(hours=1)},
        {"partition": "cpu"},
    ],
)
def test_a_job_that_more_nodes_would_not_start_wakes_none(job: dict[str, Any]) -> None:
    waiting = a_pending_job(**({"nodes": 5.0, "gpus": 40, "reason": WAITING} | job))
    assert not woken(decide(seen(of=nodes(busy=4, idle=5, asleep=10), pending=[waiting])))


def test_small_jobs_share_the_nodes_they_wait_for() -> None:
    waiting = [a_pending_job(gpus=1, cpus=4.0, reason=WAITING) for _ in range(16)]
    assert len(woken(decide(seen(of=nodes(busy=4, idle=0, asleep=12), pending=waiting)))) == 2 + 5


def a_forecast(*, expected: float) -> NodeForecast:
    """Return three days in which use fell from six nodes to four a step ago, and what is expected of each hour."""
    busy = np.array([6.0] * 431 + [4.0])
    return NodeForecast(
        ended_s=int(NOON.timestamp()), busy={"gpu": busy}, expected={"gpu": np.full((432, 10), expected)}
    )


@pytest.mark.parametrize(("expected", "asleep"), [(3.0, 3), (5.0, 1)])
def test_the_rule_of_the_paper_sleeps_where_use_falls(expected: float, asleep: int) -> None:
    snapshot = replace(seen(of=nodes()), forecast=a_forecast(expected=expected))
    actions = decide(snapshot, rule="published")
    assert len(slept(actions)) == asleep
    assert "by the rule of the paper" in actions[0].reason


def test_without_a_forecast_the_rule_of_the_paper_only_wakes() -> None:
    assert not decide(seen(of=nodes()), rule="published")
    assert len(woken(decide(seen(of=nodes(idle=2, asleep=6)), rule="published"))) == 3


# Records that say little.


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (a_snapshot(nodes=nodes(), power=power_settings()), "it is not known which nodes were in use lately"),
        (seen(of=nodes(), at=NOON - timedelta(hours=3)), "it is not known which nodes were in use lately"),
        (seen(of=nodes(partitions="cpu")), "it is not known which nodes were in use lately"),
        (
            seen(of=nodes(idle=5)),
            "4 of 9 nodes of gpu in use, at most 4 in the last 60 min; 5 spare",
        ),
        (seen(of=nodes(kept_awake=1)), "3 more are awake and may not sleep"),
        (seen(of=nodes(busy=0, idle=12, flags="DRAIN"), in_use=0), "no node of gpu is in service"),
        (seen(of=nodes(busy=0, idle=1), in_use=0), "0 of 1 nodes of gpu in use, at most 0 in the last 60 min; 1 spare"),
    ],
    ids=["no record", "an old record", "another pool", "all needed", "kept awake", "all drained", "the only node"],
)
def test_it_says_why_it_asks_for_nothing(snapshot: Snapshot, why: str) -> None:
    assert why in nothing(snapshot)


def test_nodes_are_woken_although_use_is_unknown() -> None:
    assert len(woken(decide(a_snapshot(nodes=nodes(idle=2, asleep=6), power=power_settings())))) == 3


def test_less_than_a_day_of_history_gives_the_safe_rule() -> None:
    service = Ces(CesOptions())
    service.decide(seen(of=nodes(), in_use=[4] * 1_000))
    assert service.choices["gpu"].reason == "5 spare nodes: fewer than 3 weeks are known, too few to choose"


def test_without_a_boot_time_the_longest_one_counts() -> None:
    for energy, said in (({}, True), ({"boot_s": 240.0}, False)):
        service = Ces(CesOptions())
        service.decide(seen(of=nodes(), days=28, **energy))
        assert ("a boot counts as 600 s, Slurm's ResumeTimeout" in service.choices["gpu"].reason) is said


def test_holes_in_the_record_lengthen_the_memory() -> None:
    service = Ces(CesOptions())
    service.decide(seen(of=nodes(), days=28, has_holes=True))
    assert service.choices["gpu"].rule.memory_s == 3_600
    assert "the record has holes" in service.choices["gpu"].reason


def test_nodes_of_partitions_that_overlap_count_once() -> None:
    of = [*nodes(busy=4, idle=4), *nodes(busy=0, idle=8, partitions="gpu,debug")]
    for number, node in enumerate(of):
        node["name"] = f"n{number:02}"
    snapshot = replace(seen(of=of), use=a_use({"gpu": 4, "gpu,debug": 0}, days=7))
    names = slept(decide(snapshot))
    assert len(names) == len(set(names)) == 3


# Which, where it depends on the rule.


def test_the_longest_idle_sleeps_first() -> None:
    assert slept(decide(seen(of=nodes()))) == ["n12", "n11", "n10"]


@pytest.mark.parametrize("kind", [{"features": "infiniband,big"}, {"gpu_type": "a100"}])
def test_the_last_awake_node_of_a_kind_stays_awake(kind: dict[str, Any]) -> None:
    name = "gpu (a100)" if "gpu_type" in kind else "gpu"
    use = a_use({name: 0}, nodes=3)
    snapshot = a_snapshot(nodes=nodes(busy=0, idle=3, **kind), power=power_settings(), use=use)
    assert len(slept(decide(snapshot))) == 2


# The other mechanism, and reasons.


def test_keep_awake_names_all_that_are_not_to_sleep() -> None:
    (action,) = decide(seen(of=nodes()), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert action.nodes == tuple(f"n{number:02}" for number in range(1, 10))


def test_keep_awake_keeps_all_awake_where_use_is_unknown() -> None:
    (action,) = decide(a_snapshot(nodes=nodes()), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert len(action.nodes) == 12


def test_keep_awake_may_take_out_what_helios_put_in() -> None:
    (action,) = decide(seen(of=nodes(kept_awake=1)), mechanism="keep_awake")
    assert isinstance(action, KeepAwake)
    assert len(action.nodes) == 9


def test_the_reason_is_for_an_admin() -> None:
    (first, *_) = decide(seen(of=nodes()))
    assert first.reason == "idle for 12 h; 4 of 12 nodes of gpu in use, at most 4 in the last 60 min; 5 spare"


def test_a_fresh_service_decides_as_one_that_ran_for_days() -> None:
    old, in_use = Ces(CesOptions()), [4 + (minute // 97) % 7 for minute in range(30 * 1_440)]
    for minute in range(25 * 1_440, 30 * 1_440, 307):
        at = NOON - timedelta(minutes=30 * 1_440 - minute)
        record = a_use({"gpu": in_use[:minute]}, nodes=12, at=at)
        now = a_snapshot(nodes=nodes(), power=power_settings(), taken_at=at, use=record)
        assert old.decide(now) == Ces(CesOptions()).decide(now)
