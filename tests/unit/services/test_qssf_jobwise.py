"""A jobwise service: what it wishes for a job hangs on that job and the time, and its orders say what it wishes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Place, Ranking, Reorder
from helios.model import Snapshot
from helios.ports import ChangeRequests, JobwiseService
from helios.services.qssf import Qssf, reorders
from helios.testing import NOON, a_pending_job, a_snapshot
from tests.examples import examples

HOUR_S = 3_600


@st.composite
def pending_jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw jobs that came at odd moments, some held, some without a prediction, some not to start yet."""
    return [
        a_pending_job(
            job_id=str(n),
            gpus=draw(st.integers(0, 16)),
            p50_s=draw(st.sampled_from([np.nan, 0.0, 7.0, 900.5, 5e4, 3e8])),
            submitted_at=NOON - timedelta(seconds=draw(st.integers(0, 3 * HOUR_S))),
        )
        | {
            "eligible_at": pd.Timestamp(NOON) - pd.Timedelta(seconds=draw(st.integers(-HOUR_S, 2 * HOUR_S))),
            "excluded_reason": draw(st.sampled_from([None, None, "held"])),
        }
        for n in range(draw(st.integers(0, 6)))
    ]


services = st.builds(
    lambda levels, order, after_s: Qssf(Qssf.Options(levels=levels, order=order, promote_after_s=after_s)),
    st.sampled_from([0, 1, 9]),
    st.sampled_from(["qssf", "service"]),
    st.sampled_from([0.0, 1.0, 1_800.5, float("inf")]),
)


def wished(service: Qssf, jobs: list[dict[str, Any]], *, later_s: float = 0.0) -> ChangeRequests:
    snapshot = a_snapshot(pending=jobs, taken_at=NOON + timedelta(seconds=later_s))
    snapshot = replace(snapshot, longest_own_wait_s=11_000.0)
    return service.changes(snapshot.pending_values, snapshot.taken_at)


@settings(max_examples=examples(20), deadline=None)
@given(service=services, jobs=pending_jobs())
def test_what_is_wished_for_a_job_hangs_on_no_other(service: Qssf, jobs: list[dict[str, Any]]) -> None:
    together = wished(service, jobs)
    alone = [wished(service, [job]) for job in jobs]
    assert np.array_equal(together.urgency, [one.urgency[0] for one in alone], equal_nan=True)
    assert together.until.view(np.int64).tolist() == [int(one.until.view(np.int64)[0]) for one in alone]


@settings(max_examples=examples(20), deadline=None)
@given(service=services, jobs=pending_jobs(), later_s=st.integers(0, 4 * HOUR_S))
def test_a_change_holds_as_long_as_it_says(service: Qssf, jobs: list[dict[str, Any]], later_s: int) -> None:
    now, later = wished(service, jobs), wished(service, jobs, later_s=later_s)
    at = np.datetime64(int((NOON.timestamp() + later_s) * 1e6), "us")
    holds = np.isnat(now.until) | (at <= now.until)
    assert np.array_equal(now.urgency[holds], later.urgency[holds], equal_nan=True)


@settings(max_examples=examples(15), deadline=None)
@given(service=services, jobs=pending_jobs())
def test_the_orders_name_whom_it_changes_something_for(service: Qssf, jobs: list[dict[str, Any]]) -> None:
    snapshot = replace(a_snapshot(pending=jobs, taken_at=NOON), longest_own_wait_s=11_000.0)
    named = {place.job_id: place.urgency for order in service.decide(snapshot) for place in order.order}
    urgency = wished(service, jobs).urgency
    assert named == {job["job_id"]: value for job, value in zip(jobs, urgency, strict=True) if not np.isnan(value)}


def test_qssf_is_jobwise() -> None:
    assert isinstance(Qssf(Qssf.Options()), JobwiseService)


def test_without_a_grid_no_two_services_are_alike() -> None:
    """Neighbouring numbers of seconds on neighbouring numbers of GPUs keep the order of their products."""
    rng = np.random.default_rng(0)
    p50_s = np.nextafter(10 ** rng.uniform(-1, 7, 300), np.inf)
    gpus = rng.integers(1, 2_000, 300)
    jobs = [
        a_pending_job(job_id=str(n), gpus=int(g), p50_s=float(p))
        for n, (g, p) in enumerate(zip([*gpus, *gpus], [*p50_s, *p50_s * (1 + 1e-9)], strict=True))
    ]
    urgency = wished(Qssf(Qssf.Options(order="service", levels=0, promote_after_s=float("inf"))), jobs).urgency
    service = np.array([job["p50_s"] * job["gpus"] for job in jobs])
    assert np.array_equal(np.unique(urgency, return_inverse=True)[1], np.unique(-service, return_inverse=True)[1])


def a_ranking(snapshot: Snapshot | None = None, urgency: tuple[float, ...] = (0.1, 0.5)) -> Reorder:
    seen = snapshot or a_snapshot(pending=[a_pending_job(job_id="1"), a_pending_job(job_id="2")])
    changes = ChangeRequests(urgency=np.array(urgency), until=np.full(len(urgency), np.datetime64("NaT", "us")))
    (order,) = reorders(
        seen, changes, why=lambda rows: [f"row {row}" for row in rows], reason=lambda rows: f"{len(rows)} jobs"
    )
    return order


def test_an_order_by_rows_is_the_order_that_it_says() -> None:
    partition = a_pending_job().get("partition", "gpu")
    places = (Place(job_id="2", urgency=0.5, reason="row 1"), Place(job_id="1", urgency=0.1, reason="row 0"))
    plain = Reorder(partition=partition, order=places, reason="2 jobs")
    order = a_ranking()
    assert isinstance(order, Ranking)
    assert order == plain
    assert plain == order
    assert hash(order) == hash(plain)
    assert repr(order) == repr(plain)
    assert order != Reorder(partition=partition, order=places, reason="else")


def test_an_order_by_rows_is_kept_and_sent_as_a_plain_one() -> None:
    order = a_ranking()
    assert type(copy.deepcopy(order)) is type(pickle.loads(pickle.dumps(order))) is Reorder
    assert copy.deepcopy(order) == order


def test_an_urgency_beyond_the_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="not between -1 and 1"):
        a_ranking(urgency=(0.1, 1.5))
