"""Replays that predict in compiled code, beside those that stop at each submission."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from helios.app.replay_cluster import replay_cluster_for
from helios.app.whatif import InsidePredictor
from helios.choices import Backfill
from helios.ingest import synthetic_trace
from helios.ports import RUN_TIME
from helios.predict.duration import FEWEST_JOBS
from helios.services.qssf import divide_large_jobs, shortest_service_first
from helios.simulate import ORDERS, Ageing, Replay, WaitBound, replay


def replays(
    order, *, backfill=Backfill.EASY, nodes=20, limit_s=None, describes=True, **options
) -> tuple[list[Replay], list[InsidePredictor]]:
    """Replay a busy day and a half twice, with predictions inside and at each submission, trained on the way.

    Without descriptions it is not trained.
    """
    jobs = synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=2).head(1_500)
    machine = replay_cluster_for(jobs, resource="gpus", nodes={"all": nodes}, gpus_per_node=8, skip_oversized=True)
    found, asked = [], []
    for inside in (True, False):
        predictor = InsidePredictor(machine.jobs, refit=describes, refit_every_s=12 * 3_600)
        predictor._next_fit = 2 * FEWEST_JOBS
        found.append(
            replay(
                machine.workload(),
                machine.shape,
                backfill=backfill,
                order=order,
                predictor=predictor,
                predict_again_s=3_600,
                estimate_s=None if limit_s is None else np.full(len(machine.jobs), limit_s),
                make_runner=predictor.inside if inside else None,
                **options,
            )
        )
        asked.append(predictor)
    return found, asked


@pytest.mark.parametrize(
    ("order", "options"),
    [
        (shortest_service_first, {"ageing": Ageing.constant(7_200.0), "reads": RUN_TIME.truncated_mean}),
        (divide_large_jobs(shortest_service_first, 4.0, node=9), {"guard": WaitBound.constant(9_000)}),
        (ORDERS["sjf"], {"backfill": Backfill.NONE}),
        (ORDERS["fifo"], {"plan_quantile": None}),
    ],
)
def test_predictions_inside_start_every_job_when_those_at_each_submission_do(order, options) -> None:
    (inside, outside), (one, other) = replays(order, **options)
    assert inside.wait_s.max() > 3_600
    assert len(one.sources) > 2
    np.testing.assert_array_equal(inside.started_s, outside.started_s)
    np.testing.assert_array_equal(inside.believed_s, outside.believed_s)
    np.testing.assert_array_equal(inside.estimate_s, outside.estimate_s)
    np.testing.assert_array_equal(one.source, other.source)


@pytest.mark.parametrize(
    ("order", "options"),
    [
        (shortest_service_first, {"ageing": Ageing.constant(7_200.0), "reads": RUN_TIME.truncated_mean}),
        (divide_large_jobs(shortest_service_first, 4.0, node=9), {"guard": WaitBound.constant(9_000)}),
        (ORDERS["sjf"], {"backfill": Backfill.NONE}),
        (shortest_service_first, {"reads": RUN_TIME.p90}),
    ],
)
@pytest.mark.parametrize("describes", [True, False])
def test_jobs_that_start_at_once_need_no_prediction(order, options, describes) -> None:
    (inside, outside), (one, other) = replays(order, nodes=30, limit_s=86_400, describes=describes, **options)
    np.testing.assert_array_equal(inside.started_s, outside.started_s)
    np.testing.assert_array_equal(one.source, other.source)
    predicted = np.isfinite(inside.believed_s)
    np.testing.assert_array_equal(inside.believed_s[predicted], outside.believed_s[predicted])
    assert predicted[inside.wait_s > 0].sum() > 100
    assert predicted.all() == (options.get("reads") == RUN_TIME.p90)


def test_an_order_not_linear_in_run_time_is_asked_at_each_submission() -> None:
    def by_day(*, submitted_s, gpus, run_time_s):
        return np.minimum(run_time_s, 86_400.0) * gpus + 0.0 * submitted_s

    (inside, outside), _ = replays(by_day)
    np.testing.assert_array_equal(inside.started_s, outside.started_s)
