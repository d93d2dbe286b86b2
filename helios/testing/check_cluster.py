"""Conformance checks that any implementation of a cluster can run.

They cover the part of the contract of :class:`helios.ports.Cluster` that can be checked from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from helios.actions import JobSetting, Outcome, Reorder, Result, SoftLimit
from helios.changes import Change, revert_job
from helios.model import PREDICTIONS, Snapshot
from helios.ports import Cluster

TOLERANCE = 0.02
"""Largest difference between a requested urgency and the one that is read back."""

Make = Callable[[], Cluster]


def check_cluster(make: Make) -> None:
    """Check that a cluster keeps the contract of ``Cluster``.

    Parameters
    ----------
    make : callable
        Returns the cluster. It is called once for each check, and may return a new cluster or the same one again. The
        cluster needs at least three pending jobs in one partition that may be changed: eligible, without
        ``excluded_reason``, with an urgency of 0, without a soft limit, and with a finite time limit over half an hour.
        After each check all changes are reverted.

    Raises
    ------
    AssertionError
        The cluster breaks the contract. The message says where, and what was observed.
    """
    for check in (
        _check_snapshot,
        _check_orders,
        _check_idempotence,
        _check_exclusions,
        _check_soft_limits,
        _check_revert_all,
        _check_revert_by_name,
    ):
        cluster = make()
        try:
            check(cluster)
        finally:
            _revert_all(cluster)


def _check_snapshot(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()  # Snapshot itself checks its frames
    ids = [*snapshot.pending["job_id"], *snapshot.running["job_id"]]
    _expect(len(set(ids)) == len(ids), "a snapshot names each job once", ids)
    for name in PREDICTIONS.names:
        _expect(
            bool(snapshot.pending[name].isna().all()), "a snapshot carries no predictions; they are added later", name
        )
    _expect(set(snapshot.pending["state"]) <= {"PENDING"}, "pending jobs are PENDING", set(snapshot.pending["state"]))
    _expect(cluster.apply([]) == [], "no changes, no outcomes", cluster)


def _check_orders(cluster: Cluster) -> None:
    before = cluster.snapshot()
    first, second, _ = _jobs_to_try(before)
    order = _an_order(before, **{first: -0.5, second: 0.8})
    outcomes = cluster.apply(order)
    _expect(
        [outcome.job_id for outcome in outcomes] == [second, first],
        "one outcome for each change, in their order",
        outcomes,
    )
    for outcome in outcomes:
        _expect(outcome.result is Result.DONE, "what may be reordered is", outcome)
        _expect(
            bool(outcome.before and outcome.after and outcome.reason), "what was done says before, after, why", outcome
        )
    after = cluster.snapshot()
    for change in order:
        observed = _value(after, change.target, "urgency")
        _expect(abs(observed - change.value) <= TOLERANCE, f"an urgency of {change.value} reads back", observed)
    _check_priorities(before, after, up=second, down=first)


def _check_idempotence(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    first, second, third = _jobs_to_try(snapshot)
    order = _an_order(snapshot, **{first: 0.31, second: -0.77, third: 0.0})
    cluster.apply(order)
    again = cluster.apply(order)
    _expect(_results(again) == {Result.UNCHANGED}, "what already is so is UNCHANGED", again)


def _check_exclusions(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    (first, *_), unknown_id = _jobs_to_try(snapshot), "999999999"
    outcomes = cluster.apply(_an_order(snapshot, **{unknown_id: 0.9, first: 0.5}))
    by_job = {outcome.job_id: outcome for outcome in outcomes}
    _expect(by_job[unknown_id].result is Result.GONE, "a job that there is not is GONE", by_job[unknown_id])
    _expect(by_job[first].result is Result.DONE, "what fails for one job does not stop the others", by_job[first])
    for job_id in snapshot.running["job_id"].head(3):
        (outcome,) = cluster.apply(_an_order(snapshot, **{job_id: 0.5}))
        _expect(outcome.result is Result.GONE, "a running job is GONE", outcome)
    excluded = snapshot.pending.loc[snapshot.pending["excluded_reason"].notna(), "job_id"]
    for job_id in excluded.head(3):
        (outcome,) = cluster.apply(_an_order(snapshot, **{job_id: 0.5}))
        _expect(
            outcome.result is Result.REFUSED and bool(outcome.remark), "a hands-off job is REFUSED, and why", outcome
        )


def _check_soft_limits(cluster: Cluster) -> None:
    job_id, *_ = _jobs_to_try(cluster.snapshot())
    limit = _a_limit(job_id)
    (outcome,) = cluster.apply([limit])
    if outcome.result is Result.REFUSED:
        _expect(bool(outcome.remark), "a refused soft limit says why", outcome)
        _expect(
            math.isnan(_value(cluster.snapshot(), job_id, "soft_limit_s")), "what is REFUSED is not written", job_id
        )
        return
    _expect(outcome.result is Result.DONE, "a soft limit is DONE or REFUSED", outcome)
    observed_s = _value(cluster.snapshot(), job_id, "soft_limit_s")
    _expect(660 <= observed_s <= 1_260, "a soft limit reads back, at most ten minutes longer", observed_s)
    again = cluster.apply([limit])
    _expect(_results(again) == {Result.UNCHANGED}, "a soft limit that already is so is UNCHANGED", again)


def _check_revert_all(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    cluster.apply(_an_order_and_a_limit(snapshot))
    done = _revert_all(cluster)
    _expect(Result.DONE in _results(done), "a restore reverts what was set, and says so", done)
    after = cluster.snapshot().pending
    _expect(bool((after["urgency"] == 0).all()), "after a restore every urgency is 0", after["urgency"].tolist())
    _expect(
        bool(after["soft_limit_s"].isna().all()), "after a restore no soft limit stands", after["soft_limit_s"].tolist()
    )
    again = _revert_all(cluster)
    # A value that has Helios' mark but is in no record is refused, and named, each time.
    _expect(_results(again) <= {Result.UNCHANGED, Result.REFUSED}, "a second restore writes nothing", again)


def _check_revert_by_name(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    first, second, _ = _jobs_to_try(snapshot)
    cluster.apply(_an_order_and_a_limit(snapshot))
    cluster.apply([revert_job(JobSetting.ORDER, first, reason="contract")])
    after = cluster.snapshot()
    _expect(
        _value(after, first, "urgency") == 0,
        "a restore of one job's order takes it back",
        _value(after, first, "urgency"),
    )
    _expect(_value(after, second, "urgency") != 0, "a restore leaves jobs alone that it does not name", second)


def _revert_all(cluster: Cluster) -> list[Outcome]:
    return cluster.apply([revert_job(setting, reason="contract") for setting in JobSetting])


def _an_order_and_a_limit(snapshot: Snapshot) -> list[Change[float]]:
    first, second, third = _jobs_to_try(snapshot)
    return [*_an_order(snapshot, **{first: 0.6, second: -0.6}), _a_limit(third)]


def _a_limit(job_id: str) -> Change[float]:
    eleven_min_s = 660.0
    return Change(
        setting=JobSetting.SOFT_LIMIT,
        target=job_id,
        value=eleven_min_s,
        reason="contract",
        action=SoftLimit.__name__,
    )


def _jobs_to_try(snapshot: Snapshot) -> tuple[str, str, str]:
    pending = snapshot.pending
    changeable = pending.loc[
        pending["excluded_reason"].isna()
        & (pending["eligible_at"] <= pd.Timestamp(snapshot.taken_at))
        & (pending["urgency"] == 0)
        & pending["soft_limit_s"].isna()
        & pending["user_soft_limit_s"].isna()
        & pending["time_limit_s"].between(1_800, 1e9, inclusive="neither")
    ]
    for _, jobs in changeable.groupby("partition", observed=True):
        if len(jobs) >= 3:
            first, second, third = jobs["job_id"].iloc[:3]
            return first, second, third
    raise AssertionError("the cluster to check needs three pending jobs in one partition that may be changed")


def _an_order(snapshot: Snapshot, **urgencies: float) -> list[Change[float]]:
    first, *_ = _jobs_to_try(snapshot)
    partition = str(snapshot.pending.set_index("job_id")["partition"][first])
    return [
        Change(
            setting=JobSetting.ORDER,
            target=job_id,
            value=urgency,
            reason="contract",
            action=Reorder.__name__,
            partition=partition,
        )
        for job_id, urgency in sorted(urgencies.items(), key=lambda item: -item[1])
    ]


def _check_priorities(before: Snapshot, after: Snapshot, *, up: str, down: str) -> None:
    rose, fell = (_value(after, job, "priority") - _value(before, job, "priority") for job in (up, down))
    if not math.isnan(rose - fell):
        _expect(rose > fell, "a more urgent job gains priority over a less urgent one", (rose, fell))


def _value(snapshot: Snapshot, job_id: str, column: str) -> float:
    return float(snapshot.pending.set_index("job_id")[column][job_id])


def _results(outcomes: Sequence[Outcome]) -> set[Result]:
    return {outcome.result for outcome in outcomes}


def _expect(condition: bool, promise: str, observed: object) -> None:
    if not condition:
        raise AssertionError(f"A cluster promises: {promise}. Seen: {observed!r}")
