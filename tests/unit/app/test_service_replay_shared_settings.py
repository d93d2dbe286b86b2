"""In a service replay, too, what is no longer named is reverted, and services share settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Action, JobAction, JobSetting, Place, Reorder, Result, Revert, SoftLimit
from helios.app.replay_guards import ReplayGuards
from helios.app.service_replay import ReplayedService, replay_services
from helios.model import Snapshot
from helios.ports import ChangeRequests, Columns
from helios.simulate import SimCluster
from tests.examples import examples
from tests.unit.app.test_service_replay_policies import AT_ONCE, Beside, Noisy, a_cluster, active, both_ways, rows
from tests.unit.simulate.builders import a_workload

FULL = [(0, 100, 8, 1), *((n, 10, 8, 1) for n in range(1, 6))]
"""A job that fills its partition, and five behind it, which wait under the ids 1 to 5."""
NAN = float("nan")


def behind_a_full_partition() -> SimCluster:
    cluster = a_cluster(a_workload(FULL))
    cluster.advance(int(cluster.now_s) + 50)
    return cluster


def order(**urgencies: float) -> Reorder:
    """Return an order of jobs by name, as ``order(j1=0.5)``."""
    ranked = sorted(urgencies.items(), key=lambda of: -of[1])
    places = tuple(Place(job_id=name[1:], urgency=urgency, reason="so") for name, urgency in ranked)
    return Reorder(partition="b", order=places, reason="so")


def limit(job_id: str, seconds: float = 5) -> SoftLimit:
    return SoftLimit(job_id=job_id, run_time=timedelta(seconds=seconds), reason="so")


def stands(cluster: SimCluster, column: str = "urgency") -> dict[str, float]:
    pending = cluster.snapshot().pending
    values = dict(zip(pending["job_id"], pending[column], strict=True))
    return {job_id: value for job_id, value in sorted(values.items()) if value and not np.isnan(value)}


def test_what_is_no_longer_named_is_taken_back_and_the_rest_stays() -> None:
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 1)
    assert guards.act(0, [order(j1=0.5, j2=0.25, j3=-0.5)]) == {Result.DONE: 3}
    assert guards.act(0, [order(j2=0.25, j3=-0.25)]) == {Result.UNCHANGED: 1, Result.DONE: 2}
    assert stands(cluster) == {"2": 0.25, "3": -0.25}
    assert guards.act(0, []) == {Result.DONE: 2}
    assert stands(cluster) == {}
    assert guards.act(0, []) == {}


def test_soft_limits_are_taken_back_by_themselves() -> None:
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 1)
    guards.act(0, [order(j1=0.5), limit("1"), limit("2")])
    assert guards.act(0, [limit("2"), order(j1=0.5)]) == {Result.DONE: 1, Result.UNCHANGED: 2}
    assert (stands(cluster, "soft_limit_s"), stands(cluster)) == ({"2": 5.0}, {"1": 0.5})
    assert guards.act(0, [limit("2", seconds=1e9), order(j1=0.5)])[Result.REFUSED] == 1
    assert stands(cluster, "soft_limit_s") == {}, "a limit that may not be leaves none of before"


def test_jobs_that_have_started_or_are_not_there_yet_are_gone() -> None:
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 1)
    guards.act(0, [order(j1=0.5), limit("1")])
    cluster.advance(int(cluster.now_s) + 51)
    assert cluster.next_event_s() is not None
    assert "1" not in set(cluster.snapshot().pending["job_id"])
    assert guards.act(0, [order(j1=0.75, j99=0.5)]) == {Result.GONE: 2}
    assert guards.act(0, []) == {}


def test_a_restore_is_the_change_that_nothing_of_the_services_own_stands() -> None:
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 2)
    guards.act(0, [order(j1=0.5, j2=0.25), limit("1")])
    guards.act(1, [order(j3=0.75)])
    both = [order(j1=0.5, j2=0.25), limit("1")]
    guards.act(0, [*both, Revert(setting=JobSetting.ORDER, job_ids=("2",), reason="so")])
    assert stands(cluster) == {"1": 0.5, "3": 0.75}
    guards.act(0, [Revert(setting=JobSetting.ORDER, reason="so"), *both])
    assert (stands(cluster), stands(cluster, "soft_limit_s")) == ({"3": 0.75}, {"1": 5.0})
    guards.act(0, [Revert(reason="so"), *both])
    assert (stands(cluster), stands(cluster, "soft_limit_s")) == ({"3": 0.75}, {})


@pytest.mark.parametrize("setting", JobSetting)
def test_the_first_of_two_services_has_a_setting_until_it_lets_go(setting: JobSetting) -> None:
    column = "urgency" if setting is JobSetting.ORDER else "soft_limit_s"
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 2)

    def said(seconds: int) -> Sequence[JobAction]:
        return [order(j1=seconds / 10)] if setting is JobSetting.ORDER else [limit("1", seconds)]

    def applied() -> float:
        return stands(cluster, column).get("1", 0) * (10 if setting is JobSetting.ORDER else 1)

    guards.act(1, said(3))
    assert applied() == 3
    guards.act(0, said(6))
    assert (guards.act(1, said(3)), applied()) == ({Result.REFUSED: 1}, 6)
    guards.act(1, [])
    assert applied() == 6, "what it does not have it cannot give back"
    guards.act(0, [])
    assert applied() == 0
    guards.act(1, said(3))
    assert applied() == 3


def test_of_several_orders_that_name_a_job_the_last_counts() -> None:
    cluster = behind_a_full_partition()
    ReplayGuards(cluster, 1).act(0, [order(j1=0.5, j2=0.25), order(j1=-0.5)])
    assert stands(cluster) == {"1": -0.5, "2": 0.25}


def test_changes_by_position_take_back_where_they_name_no_urgency() -> None:
    cluster = behind_a_full_partition()
    guards = ReplayGuards(cluster, 1)
    guards.change(0, np.array([1, 2, 3]), np.array([0.5, 0.25, NAN]))
    assert guards.change(0, np.array([1, 3]), np.array([NAN, NAN])) == {Result.DONE: 1}
    assert stands(cluster) == {"2": 0.25}


class Toy:
    """A service that answers what a test says, by the seconds since the first job."""

    def __init__(self, answer: Callable[[int], Iterable[Action]], every_s: int = 0) -> None:
        self.answer, self.every = answer, timedelta(seconds=every_s)
        self.seen: list[dict[str, float]] = []

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        pending = snapshot.pending
        self.seen.append(
            {job: value for job, value in zip(pending["job_id"], pending["urgency"], strict=True) if value}
        )
        return self.answer(len(self.seen))


def played(*services: Toy) -> list[ReplayedService]:
    active_services = [active(service, every=service.every) for service in services]
    workload = a_workload(FULL)
    replay_services(a_cluster(workload), active_services, predictor=Noisy(workload))
    return active_services


def once(*actions: Action) -> Callable[[int], Iterable[Action]]:
    return lambda time: actions if time == 1 else ()


def test_in_a_replay_an_order_holds_until_its_service_is_asked_again() -> None:
    often, seldom = Toy(lambda _: ()), Toy(once(order(j5=0.5, j4=0.4, j3=0.3, j2=0.2)), every_s=15)
    played(often, seldom)
    # One is asked at 100 and whenever a job ends, the other one at 100 and 120; jobs 5 and 4 start meanwhile.
    assert often.seen[:4] == [{}, {"4": 0.4, "3": 0.3, "2": 0.2}, {"3": 0.3, "2": 0.2}, {}]


def test_a_service_that_raises_keeps_what_stands_until_it_is_suspended() -> None:
    def answer(time: int) -> Iterable[Action]:
        if time > 1:
            raise ZeroDivisionError
        return [order(j5=0.5, j4=0.4, j3=0.3, j2=0.2, j1=0.1)]

    watching = Toy(lambda _: ())
    (_, place) = played(watching, Toy(answer))
    assert place.suspended
    # It raises at 110, 120 and 130; jobs 5, 4 and 3 start before, and at 130 the last of it is reverted.
    assert watching.seen[1:4] == [
        {"4": 0.4, "3": 0.3, "2": 0.2, "1": 0.1},
        {"3": 0.3, "2": 0.2, "1": 0.1},
        {"2": 0.2, "1": 0.1},
    ]
    assert watching.seen[4:] == [{}] * len(watching.seen[4:]) != []


class Fickle:
    """A jobwise service that names large jobs for some seconds after they come, and small ones from then on."""

    every = AT_ONCE

    def __init__(self, lasts_s: int) -> None:
        self.lasts = timedelta(seconds=lasts_s)

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        submitted, large = jobs("submitted_at"), jobs("gpus") > 3
        change = submitted + np.timedelta64(self.lasts)
        young = np.datetime64(at.replace(tzinfo=None), "us") <= change
        urgency = np.where(young == large, np.where(large, 0.75, -0.25), NAN)
        return ChangeRequests(urgency=urgency, until=np.where(young, change, np.datetime64("NaT", "us")))

    def decide(self, snapshot: Snapshot) -> list[Action]:
        from helios.services.qssf import reorders  # noqa: PLC0415 - as an author's service would

        changes = self.changes(snapshot.pending_values, snapshot.taken_at)
        return [*reorders(snapshot, changes, why=lambda rows: [""] * len(rows), reason=lambda _: "")]


@settings(max_examples=examples(20), deadline=None)
@given(
    rows=rows,
    lasts_s=st.sampled_from([0, 3, 12]),
    every_s=st.sampled_from([0, 7]),
    others=st.lists(st.sampled_from(["before", "behind", "fickle"]), max_size=2, unique=True),
)
def test_a_jobwise_service_that_stops_naming_jobs_replays_as_a_whole_one(
    rows: list[tuple[int, ...]], lasts_s: int, every_s: int, others: list[str]
) -> None:
    def services() -> list[ReplayedService]:
        active_services = [active(Fickle(lasts_s), every=timedelta(seconds=every_s))]
        if "before" in others:
            active_services.insert(0, active(Beside(timedelta(seconds=5)), every=timedelta(seconds=5)))
        if "behind" in others:
            active_services.append(active(Beside(timedelta(seconds=3)), every=timedelta(seconds=3)))
        if "fickle" in others:
            active_services.append(active(Fickle(9), every=timedelta(seconds=2)))
        return active_services

    one_by_one, whole = both_ways(a_workload(rows), services)
    assert one_by_one == whole


def test_that_holds_where_taking_back_matters() -> None:
    crowd: Any = [(n // 2, 5 + n % 7, 1 + n % 8, n % 2) for n in range(40)]
    (kept, *_), _ = both_ways(a_workload(crowd), lambda: [active(Fickle(1_000))])
    (fickle, *_), whole = both_ways(a_workload(crowd), lambda: [active(Fickle(12))])
    assert fickle == whole[0]
    assert fickle != kept
