"""What every cluster promises, as a class of tests: it wants a fixture ``world``, and runs on whatever that brings.

:func:`helios.testing.check_cluster` is the part that needs nothing but the cluster; here others have hands on it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pandas as pd
import pytest

from helios.actions import JobSetting, Outcome, Place, Reorder, Result, Revert, SoftLimit
from helios.changes import CHANGED
from helios.model import NODE_STATES, QUEUE
from helios.ports import Cluster
from helios.testing import check_cluster
from tests.changes import asked

ByAdmin = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster with at least four free pending jobs of one partition, an hour's limit or more, and its people.

    Attributes
    ----------
    hold : callable
        Hold a pending job.
    set_site_factor, set_priority, set_time_min : callable, optional
        Do so past Helios; None: nobody can, here.
    delay : callable, optional
        Have a pending job wait for a time ahead, so that its SiteFactor is hidden; None: nothing is hidden, here.
    meanwhile : callable, optional
        Have something happen between the next reading of the cluster and what is written after it; None: there is no
        time between the two, here.
    """

    cluster: Cluster
    hold: Callable[[str], None]
    set_site_factor: ByAdmin | None = None
    set_priority: ByAdmin | None = None
    set_time_min: ByAdmin | None = None
    delay: Callable[[str], None] | None = None
    meanwhile: Callable[[Callable[[], None]], None] | None = None

    def between(self, happens: Callable[[], None]) -> None:
        if self.meanwhile is None:
            pytest.skip("this cluster reads and writes at once")
        self.meanwhile(happens)

    def delayed(self, job_id: str) -> None:
        if self.delay is None:
            pytest.skip("nothing is hidden here")
        self.delay(job_id)

    def pending(self) -> pd.DataFrame:
        return self.cluster.snapshot().pending

    def free(self) -> list[str]:
        """Return the eligible pending jobs that may be changed and were not yet, first to start first."""
        snapshot = self.cluster.snapshot()
        pending = snapshot.pending
        eligible = pending["eligible_at"] <= pd.Timestamp(snapshot.taken_at)
        return list(pending.loc[pending["excluded_reason"].isna() & eligible & (pending["urgency"] == 0), "job_id"])

    def of(self, job_id: str) -> pd.Series[object]:
        return self.pending().set_index("job_id").loc[job_id]

    def order(self, urgencies: dict[str, float], *, meanwhile: Callable[[], None] | None = None) -> list[Outcome]:
        """Apply one order; the outcomes in its order.

        ``meanwhile`` happens between the reading and what is written after it.
        """
        ranked = sorted(urgencies.items(), key=lambda item: -item[1])
        places = tuple(Place(job_id=job_id, urgency=urgency, reason="short") for job_id, urgency in ranked)
        partition = str(self.of(ranked[0][0])["partition"])
        if meanwhile is not None:
            self.between(meanwhile)
        return self.cluster.apply(asked([Reorder(partition=partition, order=places, reason="shortest first")]))


def able(hand: ByAdmin | None) -> ByAdmin:
    if hand is None:
        pytest.skip("nobody can do that to this cluster")
    return hand


def soft(job_id: str) -> SoftLimit:
    return SoftLimit(job_id=job_id, run_time=timedelta(minutes=11), reason="p90")


def of_job(outcomes: list[Outcome], job_id: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.job_id == job_id]


class ClusterContract:
    """The promises."""

    def test_the_packaged_check_passes(self, world: World) -> None:
        check_cluster(lambda: world.cluster)

    def test_a_snapshot_has_the_declared_columns(self, world: World) -> None:
        snapshot = world.cluster.snapshot()
        for frame in (snapshot.pending, snapshot.running):
            QUEUE.check(frame)
        NODE_STATES.check(snapshot.nodes)
        assert snapshot.taken_at.utcoffset() == timedelta(0)

    def test_the_queue_follows_the_urgencies(self, world: World) -> None:
        jobs = world.free()[:4]
        world.order({job_id: 0.2 * place - 0.3 for place, job_id in enumerate(jobs)})
        queue = [job_id for job_id in world.pending()["job_id"] if job_id in jobs]
        assert queue == list(reversed(jobs))

    def test_an_outcome_carries_its_place_and_what_was_read(self, world: World) -> None:
        job_id = world.free()[0]
        (outcome,) = world.order({job_id: 0.5})
        assert (outcome.action, outcome.setting, outcome.job_id) == ("Reorder", JobSetting.ORDER, job_id)
        assert (outcome.result, outcome.reason) == (Result.DONE, "short")
        assert outcome.before != outcome.after

    def test_a_held_job_is_refused_and_its_neighbour_is_not(self, world: World) -> None:
        held, other = world.free()[:2]
        world.hold(held)
        by_job = {outcome.job_id: outcome for outcome in world.order({held: 0.9, other: 0.5})}
        assert (by_job[held].result, by_job[other].result) == (Result.REFUSED, Result.DONE)
        assert by_job[held].remark
        assert world.of(held)["excluded_reason"]

    def test_a_soft_limit_beyond_the_hard_one_is_refused(self, world: World) -> None:
        job_id = world.free()[0]
        (outcome,) = world.cluster.apply(asked([SoftLimit(job_id=job_id, run_time=timedelta(days=400), reason="p90")]))
        assert outcome.result is Result.REFUSED

    def test_a_neutral_order_of_a_neutral_job_writes_nothing(self, world: World) -> None:
        (outcome,) = world.order({world.free()[0]: 0.0})
        assert outcome.result is Result.UNCHANGED

    def test_a_restore_of_a_job_that_is_not_there_is_gone(self, world: World) -> None:
        outcomes = world.cluster.apply(asked([Revert(reason="stop", job_ids=("999999",))]))
        assert {outcome.result for outcome in outcomes} == {Result.GONE}

    def test_a_site_factor_of_an_admin_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_site_factor)(job_id, 500)
        before = world.of(job_id)["priority"]
        (outcome,) = world.order({job_id: 0.9})
        world.cluster.apply(asked([Revert(reason="stop")]))
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["priority"] == before
        assert world.of(job_id)["urgency"] == 0

    def test_a_direct_priority_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_priority)(job_id, 4321)
        (outcome,) = world.order({job_id: 0.9})
        world.cluster.apply(asked([Revert(reason="stop")]))
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["priority"] == 4321

    def test_a_users_time_min_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_time_min)(job_id, 30)
        limit = SoftLimit(job_id=job_id, run_time=timedelta(minutes=11), reason="p90")
        (outcome,) = world.cluster.apply(asked([limit]))
        world.cluster.apply(asked([Revert(reason="stop"), Revert(reason="stop", job_ids=(job_id,))]))
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["user_soft_limit_s"] == 1800

    def test_a_site_factor_set_between_reading_and_writing_stands(self, world: World) -> None:
        job_id, other = world.free()[:2]
        outcomes = world.order({job_id: 0.9, other: 0.5}, meanwhile=lambda: able(world.set_site_factor)(job_id, -500))
        by_job = {outcome.job_id: outcome for outcome in outcomes}
        assert (by_job[job_id].result, by_job[other].result) == (Result.REFUSED, Result.DONE)
        assert by_job[job_id].remark.startswith(CHANGED)
        assert "-500" in by_job[job_id].remark
        assert "-500" in str(world.of(job_id)["excluded_reason"])

    def test_a_site_factor_set_before_the_revert_is_written_stands(self, world: World) -> None:
        job_id, other = world.free()[:2]
        world.order({job_id: 0.9, other: 0.5})
        world.between(lambda: able(world.set_site_factor)(job_id, -500))
        by_job = {outcome.job_id: outcome for outcome in world.cluster.apply(asked([Revert(reason="stop")]))}
        assert (by_job[job_id].result, by_job[other].result) == (Result.REFUSED, Result.DONE)
        assert "-500" in str(world.of(job_id)["excluded_reason"])
        assert of_job(world.cluster.apply(asked([Revert(reason="stop")])), job_id) == []

    def test_what_was_not_written_is_not_expected_on_a_held_job(self, world: World) -> None:
        job_id = world.free()[0]
        world.order({job_id: 0.9}, meanwhile=lambda: able(world.set_site_factor)(job_id, -500))
        world.hold(job_id)
        assert of_job(world.cluster.apply(asked([Revert(reason="stop")], unseen=True)), job_id) == []

    def test_a_job_held_between_reading_and_writing_is_not_written(self, world: World) -> None:
        job_id = world.free()[0]
        (outcome,) = world.order({job_id: 0.9}, meanwhile=lambda: world.hold(job_id))
        assert outcome.result in {Result.REFUSED, Result.POSTPONED}
        assert of_job(world.cluster.apply(asked([Revert(reason="stop")])), job_id) == []

    def test_nothing_is_written_to_a_job_whose_site_factor_is_hidden(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_site_factor)(job_id, -500)
        world.delayed(job_id)
        place = Reorder(
            partition=str(world.of(job_id)["partition"]),
            order=(Place(job_id=job_id, urgency=0.9, reason="short"),),
            reason="shortest first",
        )
        order, limit = world.cluster.apply(asked([place, soft(job_id)]))
        assert order.result in {Result.POSTPONED, Result.REFUSED}
        assert limit.result in {Result.POSTPONED, Result.REFUSED}
        assert pd.isna(world.of(job_id)["soft_limit_s"])
        assert of_job(world.cluster.apply(asked([Revert(reason="stop")], unseen=True)), job_id) == []

    def test_a_soft_limit_beside_a_hidden_site_factor_is_taken_back(self, world: World) -> None:
        job_id = world.free()[0]
        (limit,) = world.cluster.apply(asked([soft(job_id)]))
        if limit.result is Result.REFUSED:
            pytest.skip("there are no soft limits here")
        world.delayed(job_id)
        (outcome,) = of_job(world.cluster.apply(asked([Revert(reason="stop")])), job_id)
        assert (outcome.setting, outcome.result) == (JobSetting.SOFT_LIMIT, Result.DONE)
        assert pd.isna(world.of(job_id)["soft_limit_s"])
