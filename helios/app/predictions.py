"""Predictions for a live queue, from the warehouse's history and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from helios.errors import ModelUnreadable, NoSuchCluster, NotEnoughHistory
from helios.model import JOBS, Snapshot, in_submission_order
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.nightly_order import PastCheck
    from helios.predict.duration import DurationModel
    from helios.predict.live_predictor import LivePredictor


QUANTILES = ("p10_s", "p50_s", "p90_s")
WORTH_STORING = 1.25
"""Ratio of medians from which a new prediction is stored. Otherwise every cycle would store the whole queue again."""
LATE_RECORDS = timedelta(days=1)
"""Time before the last known end from which ended jobs are read again, because accounting records them later.

Records that are later still are noticed by their number. Then everything is read again.
"""
_MOST_KEPT = 2
"""Multiple of ``last_jobs`` to which the cached history may grow before it is read again."""
OWN_ORDER_EVERY = timedelta(hours=1)
"""Time between computations of the longest wait in the site's own order."""
UNTRUSTED = (
    "Shrinkage predicts meanwhile, and nothing is written. Train a new model (helios model train --promote), go "
    "back to the one before (helios model promote --previous), or choose shrinkage (helios model promote shrinkage)"
)
"""Text about a promoted model that cannot be read, with what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorState:
    """History and model from which predictions are made.

    Attributes
    ----------
    history : DataFrame
        Columns of ``JOBS``; the last jobs of the cluster, in submission order.
    model : DurationModel, optional
        None where there is none yet, and shrinkage alone predicts.
    trained_at : datetime, optional
        When the model was made.
    timezone : str
        Zone of the cluster's local time.
    edition : tuple
        Version of the warehouse's data that it was read from.
    predictor : LivePredictor, optional
        It has learned ``history``, and is reused by later predictions. None where one is made for each prediction.
    problem : str
        Why the promoted model does not predict, for a person. Empty where it does, or there is none.
    """

    history: pd.DataFrame
    model: DurationModel | None
    trained_at: datetime | None
    timezone: str
    edition: tuple[int, str]
    predictor: LivePredictor | None = None
    problem: str = ""

    def predict(self, queue: pd.DataFrame, *, now: datetime, running: pd.DataFrame | None = None) -> pd.DataFrame:
        """Return ``PREDICTIONS`` of jobs as if submitted now.

        See :meth:`helios.predict.live_predictor.LivePredictor.predict`.
        """
        from helios.predict.live_predictor import LivePredictor  # noqa: PLC0415 - it compiles

        predictor = self.predictor or LivePredictor(self.history, model=self.model, timezone=self.timezone)
        return predictor.predict(queue, now=now, running=running)


class OwnOrderWatch:
    """Longest wait under the site's own order, computed once an hour."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._longest_s = math.nan

    def __call__(self, snapshot: Snapshot, history: pd.DataFrame) -> float:
        """Return the longest wait of the weeks before ``snapshot``, s.

        See :func:`helios.app.own_order.longest_own_wait`.
        """
        now = snapshot.taken_at
        if self._at is None or not timedelta(0) <= now - self._at < OWN_ORDER_EVERY:
            from helios.app.own_order import longest_own_wait  # noqa: PLC0415 - it compiles

            self._at, self._longest_s = now, longest_own_wait(snapshot, history)
        return self._longest_s


class LivePredictions:
    """Predictions and the longest wait in the site's order, for snapshots.

    Only new jobs are read from the warehouse.

    Parameters
    ----------
    url, cluster : str
        The warehouse, and the cluster there.
    last_jobs : int
        Number of jobs of the history that predictions use.

    Attributes
    ----------
    of_cluster : mapping
        Facts of the cluster in the last snapshot, by the names in ``SAME_FOR_ALL``; empty before the first.
    """

    def __init__(self, *, url: str, cluster: str, last_jobs: int) -> None:
        self._url, self._cluster, self._last_jobs = url, cluster, last_jobs
        self._state: PredictorState | None = None
        self._own_order = OwnOrderWatch()
        self._checks: Sequence[PastCheck] = ()
        self.of_cluster: Mapping[str, Any] = {}

    @property
    def knowledge(self) -> PredictorState:
        """The history and model in the warehouse now, ready to predict.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read.
        """
        from helios.app.nightly_order import order_checks  # noqa: PLC0415 - statistics, which a pause waits for

        with Warehouse.open(self._url) as warehouse:
            try:
                edition = warehouse.edition(self._cluster)
                self._checks = order_checks(warehouse, self._cluster)
            except NoSuchCluster:
                edition = (0, "")
            if self._state is None or self._state.edition != edition:
                self._state = self._read(warehouse, edition)
        return self._state

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return ``snapshot`` with predictions of total run times.

        See :func:`with_predictions`.
        """
        knowledge, now = self.knowledge, snapshot.taken_at
        from helios.app.nightly_order import size_orders  # noqa: PLC0415 - as above

        predicted = with_predictions(
            snapshot, lambda queue: knowledge.predict(queue, now=now, running=snapshot.running)
        )
        self.of_cluster = {
            "longest_own_wait_s": self._own_order(predicted, knowledge.history),
            "size_orders": size_orders(self._checks, now),
            "nodes": snapshot.nodes,
        }
        return replace(predicted, **self.of_cluster)

    def _read(self, warehouse: Warehouse, edition: tuple[int, str]) -> PredictorState:
        from helios.predict.live_predictor import LivePredictor  # noqa: PLC0415 - it compiles
        from helios.predict.model_record import from_record  # noqa: PLC0415 - LightGBM, which a pause does not need

        if edition == (0, ""):
            return PredictorState(history=JOBS.empty(), model=None, trained_at=None, timezone="UTC", edition=edition)
        try:
            record = warehouse.model(self._cluster)
        except NotEnoughHistory:
            record = None
        model, problem = None, ""
        try:
            model = from_record(record) if record else None
        except ModelUnreadable as reason:  # then shrinkage predicts, and nothing is written by it
            problem = f"{reason.message.rstrip('.')}. {UNTRUSTED}"
        timezone = warehouse.timezone(self._cluster) or "UTC"
        updated = self._update_state(warehouse, timezone)
        if updated is None:
            history = warehouse.jobs(self._cluster, last=self._last_jobs)
            updated = history, LivePredictor(history, timezone=timezone)
        history, predictor = updated
        predictor.model = model
        return PredictorState(
            history=history,
            model=model,
            trained_at=record.known_good_at if record and model else None,
            timezone=timezone,
            edition=edition,
            predictor=predictor,
            problem=problem,
        )

    def _update_state(self, warehouse: Warehouse, timezone: str) -> tuple[pd.DataFrame, LivePredictor] | None:
        """Return history and predictor with the jobs that ended since the last read.

        None where this is impossible or would miss jobs, so that everything must be read again.
        """
        known = self._state
        if known is None or known.predictor is None or known.timezone != timezone:
            return None
        ended = known.history["ended_at"]
        if not ended.notna().any():
            return None
        first = known.history["submitted_at"].iloc[0]
        late = warehouse.jobs(self._cluster, since=first, unended_at=ended.max() - LATE_RECORDS)
        jobs = pd.concat([known.history, late]).drop_duplicates(["job_id", "submitted_at", "restart"], keep="last")
        complete = jobs["ended_at"].count() == warehouse.ended_jobs(self._cluster, since=first)
        if not complete or len(jobs) > _MOST_KEPT * self._last_jobs:
            return None
        known.predictor.learn(late)
        return in_submission_order(JOBS.conform(jobs)), known.predictor


def with_predictions(snapshot: Snapshot, predict: Callable[[pd.DataFrame], pd.DataFrame]) -> Snapshot:
    """Return ``snapshot`` with predictions of total run times.

    The prediction of a running job takes into account how long it has run.

    Parameters
    ----------
    predict : callable
        Returns ``PREDICTIONS`` of the jobs of a ``QUEUE`` frame as if submitted now.
    """
    from helios.predict.remaining_time import remaining_run_time  # noqa: PLC0415 - a pause predicts nothing

    pending, running = (queue.assign(**predict(queue)) for queue in (snapshot.pending, snapshot.running))
    elapsed = (pd.Timestamp(snapshot.taken_at) - running["started_at"]).dt.total_seconds()
    # A running job without a known start is taken to have just started.
    elapsed_s = np.maximum(np.nan_to_num(elapsed.to_numpy(dtype=np.float64)), 0.0)
    remaining_s = remaining_run_time(
        running[list(QUANTILES)].to_numpy(), elapsed_s, limit_s=running["time_limit_s"].to_numpy()
    )
    totals = zip(QUANTILES, (remaining_s + elapsed_s[:, None]).T, strict=True)
    return replace(snapshot, pending=pending, running=running.assign(**dict(totals)))


def job_keys(jobs: pd.DataFrame) -> list[tuple[str, int]]:
    """Return the id and the submission of each job, us since the epoch."""
    submitted = jobs["submitted_at"].to_numpy(dtype="datetime64[us]").astype(np.int64)
    return list(zip(jobs["job_id"], submitted.tolist(), strict=True))


def worth_storing(pending: pd.DataFrame, stored: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """Return the pending jobs whose prediction is new or has clearly changed.

    Parameters
    ----------
    pending : DataFrame
        Columns of ``QUEUE`` with predictions.
    stored : mapping
        Stored median of each job by its key of :func:`job_keys`, s.
    """
    predicted = pending[pending["p50_s"].notna()]
    stored_s = np.array([stored.get(job, math.nan) for job in job_keys(predicted)])
    ratio = (predicted["p50_s"].to_numpy() + 1) / (stored_s + 1)
    is_unchanged = (ratio < WORTH_STORING) & (ratio > 1 / WORTH_STORING)  # False for a job without one
    changed: pd.DataFrame = predicted[~is_unchanged]
    return changed
