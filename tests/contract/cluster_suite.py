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
from helios.model import NODE_STATES, QUEUE
from helios.ports import Cluster
from helios.testing import check_cluster

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
    """

    cluster: Cluster
    hold: Callable[[str], None]
    set_site_factor: ByAdmin | None = None
    set_priority: ByAdmin | None = None
    set_time_min: ByAdmin | None = None

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

    def order(self, urgencies: dict[str, float]) -> list[Outcome]:
        """Apply one order; the outcomes in its order."""
        ranked = sorted(urgencies.items(), key=lambda item: -item[1])
        places = tuple(Place(job_id=job_id, urgency=urgency, reason="short") for job_id, urgency in ranked)
        partition = str(self.of(ranked[0][0])["partition"])
        return self.cluster.apply([Reorder(partition=partition, order=places, reason="shortest first")])


def able(hand: ByAdmin | None) -> ByAdmin:
    if hand is None:
        pytest.skip("nobody can do that to this cluster")
    return hand


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
        (outcome,) = world.cluster.apply([SoftLimit(job_id=job_id, run_time=timedelta(days=400), reason="p90")])
        assert outcome.result is Result.REFUSED

    def test_a_neutral_order_of_a_neutral_job_writes_nothing(self, world: World) -> None:
        (outcome,) = world.order({world.free()[0]: 0.0})
        assert outcome.result is Result.UNCHANGED

    def test_a_restore_of_a_job_that_is_not_there_is_gone(self, world: World) -> None:
        outcomes = world.cluster.apply([Revert(reason="stop", job_ids=("999999",))])
        assert {outcome.result for outcome in outcomes} == {Result.GONE}

    def test_an_overridden_site_factor_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_site_factor)(job_id, 500)
        before = world.of(job_id)["priority"]
        (outcome,) = world.order({job_id: 0.9})
        world.cluster.apply([Revert(reason="stop")])
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["priority"] == before
        assert world.of(job_id)["urgency"] == 0

    def test_a_direct_priority_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_priority)(job_id, 4321)
        (outcome,) = world.order({job_id: 0.9})
        world.cluster.apply([Revert(reason="stop")])
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["priority"] == 4321

    def test_a_users_time_min_is_refused_and_survives_a_restore(self, world: World) -> None:
        job_id = world.free()[0]
        able(world.set_time_min)(job_id, 30)
        limit = SoftLimit(job_id=job_id, run_time=timedelta(minutes=11), reason="p90")
        (outcome,) = world.cluster.apply([limit])
        world.cluster.apply([Revert(reason="stop"), Revert(reason="stop", job_ids=(job_id,))])
        assert outcome.result is Result.REFUSED
        assert world.of(job_id)["user_soft_limit_s"] == 1800
