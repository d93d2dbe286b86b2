"""Expectations for a live queue, from the history and the model in the warehouse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import pandas as pd

from helios.errors import NoSuchCluster, NotEnoughHistory
from helios.model import JOBS, ModelRecord, Snapshot
from helios.predict.live import predict_queue
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.predict import DurationModel

QUANTILES = ("p10_s", "p50_s", "p90_s")
# A stored prediction is replaced by one that differs by more: else every turn would store the whole queue again.
WORTH_STORING = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What predictions rest on at one moment.

    Attributes
    ----------
    history : DataFrame
        Columns of ``JOBS``; the last ones of the cluster, in submission order.
    model : DurationModel, optional
        None: there is none yet, shrinkage alone predicts.
    trained_at : datetime, optional
        When the model was made.
    timezone : str
        Zone of the cluster's local time.
    edition : tuple
        What of the warehouse it was read from.
    """

    history: pd.DataFrame
    model: DurationModel | None
    trained_at: datetime | None
    timezone: str
    edition: tuple[int, str]


class Outlook:
    """Adds predictions to the pending jobs of a snapshot; reads the warehouse again only when that has changed.

    Parameters
    ----------
    url, cluster : str
        The warehouse, and the cluster there.
    last_jobs : int
        How many jobs of the history predictions look back on.
    """

    def __init__(self, *, url: str, cluster: str, last_jobs: int) -> None:
        self._url, self._cluster, self._last_jobs = url, cluster, last_jobs
        self._known: Knowledge | None = None

    @property
    def knowledge(self) -> Knowledge:
        """What predictions rest on, as the warehouse is now.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read.
        """
        with Warehouse.open(self._url) as warehouse:
            try:
                edition = warehouse.edition(self._cluster)
            except NoSuchCluster:
                edition = (0, "")
            if self._known is None or self._known.edition != edition:
                self._known = self._read(warehouse, edition)
        return self._known

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return ``snapshot`` with the prediction columns of its pending jobs filled in."""
        knowledge = self.knowledge
        predicted = predict_queue(
            snapshot.pending,
            history=knowledge.history,
            model=knowledge.model,
            now=snapshot.taken_at,
            running=snapshot.running,
            timezone=knowledge.timezone,
        )
        return replace(snapshot, pending=snapshot.pending.assign(**predicted))

    def _read(self, warehouse: Warehouse, edition: tuple[int, str]) -> Knowledge:
        if edition == (0, ""):
            return Knowledge(history=JOBS.empty(), model=None, trained_at=None, timezone="UTC", edition=edition)
        try:
            record = warehouse.model(self._cluster)
        except NotEnoughHistory:
            record = None
        return Knowledge(
            history=warehouse.jobs(self._cluster, last=self._last_jobs),
            model=_model_of(record) if record else None,
            trained_at=record.trained_at if record else None,
            timezone=warehouse.timezone(self._cluster) or "UTC",
            edition=edition,
        )


def _model_of(record: ModelRecord) -> DurationModel:
    from helios.predict import from_record  # noqa: PLC0415 - numba takes a while, and a pause or a report predicts nothing

    return from_record(record)


def worth_storing(pending: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs of ``pending`` that have a prediction and whose stored one, if any, differs noticeably.

    Parameters
    ----------
    pending : DataFrame
        Columns of ``QUEUE`` with predictions.
    stored : DataFrame
        What is stored for them: ``job_id``, ``submitted_at`` and ``p50_s``, the newest of a job last.
    """
    predicted = pending[pending["p50_s"].notna()]
    newest = stored.drop_duplicates(["job_id", "submitted_at"], keep="last")[["job_id", "submitted_at", "p50_s"]]
    before = predicted[["job_id", "submitted_at"]].merge(newest, how="left", on=["job_id", "submitted_at"])["p50_s"]
    ratio = (predicted["p50_s"].to_numpy() + 1) / (before.to_numpy() + 1)
    same = (ratio < WORTH_STORING) & (ratio > 1 / WORTH_STORING)  # a job that has none compares as not the same
    worth: pd.DataFrame = predicted[~same]
    return worth
