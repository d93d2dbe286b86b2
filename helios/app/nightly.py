"""What is done once a night: read again what came late, learn anew, judge, report, delete what is old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from helios.app.models import nightly, training_history
from helios.app.nightly_pages import NightlyReport, nightly_pages
from helios.app.reading import Reading
from helios.config import Retention, Settings
from helios.errors import HeliosError, NotEnoughHistory
from helios.model import NODES, Snapshot
from helios.ports import Progress, in_silence
from helios.warehouse import Horizon, Warehouse

READ_AGAIN = timedelta(days=3)
"""Slurm's database may learn of an end this much later: it was down, or a node was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a night brought.

    Attributes
    ----------
    did : tuple of str
        Each step in a line, in order.
    troubles : tuple of HeliosError
        Of the steps that failed; the others were done all the same.
    report : NightlyReport, optional
        None: it could not be written.
    """

    did: tuple[str, ...]
    troubles: tuple[HeliosError, ...]
    report: NightlyReport | None

    def line(self) -> str:
        """Return the night in one line.

        Raises
        ------
        HeliosError
            A step failed; what was done is said as well.
        """
        done = "; ".join(self.did)
        if self.troubles:
            failed = "; ".join(trouble.fact for trouble in self.troubles)
            raise HeliosError(
                f"The night is not complete: {failed} (done: {done or 'nothing'})", remedy=self.troubles[0].remedy
            )
        return done


def night(
    *,
    settings: Settings,
    cluster: str,
    now: datetime,
    read: Callable[[timedelta], Reading],
    look: Callable[[], Snapshot],
    progress: Progress = in_silence,
) -> Night:
    """Do each step of the night; one that fails is told and stops no other.

    Parameters
    ----------
    read : callable
        Reads the accounting again from so long before the watermark.
    look : callable
        Gives a snapshot, whose nodes are remembered for the reports.
    """
    url = settings.database.url
    kept: list[NightlyReport] = []

    def report() -> str:
        kept.append(
            nightly_pages(
                url,
                cluster,
                "yesterday",
                Path(settings.report.folder),
                now=now,
                keep=settings.report.keep,
                gpus_per_node=settings.whatif.gpus_per_node,
                default_time_limit_s=settings.whatif.default_time_limit_s,
                energy=settings.energy,
            )
        )
        return f"report {kept[0].page}"

    steps: tuple[Callable[[], str], ...] = (
        lambda: read(READ_AGAIN).line(),
        lambda: _remember_nodes(url, cluster, look()),
        lambda: _learn(url, cluster, settings, now, progress),
        report,
        lambda: forget_what_is_old(url, cluster, settings.retention, now=now),
    )
    did, troubles = [], []
    for step in steps:
        try:
            did.append(step())
        except HeliosError as trouble:
            troubles.append(trouble)
    return Night(did=tuple(filter(None, did)), troubles=tuple(troubles), report=kept[0] if kept else None)


def nodes_of(snapshot: Snapshot) -> pd.DataFrame:
    """Return the nodes of a snapshot as ``NODES``, one row for each of a node's partitions."""
    nodes = snapshot.nodes.assign(partition=snapshot.nodes["partitions"].astype("str").str.split(","))
    return NODES.conform(nodes.explode("partition", ignore_index=True)[NODES.names])


def forget_what_is_old(url: str, cluster: str, retention: Retention, *, now: datetime) -> str:
    """Delete what is older than it is to be kept, and say how many rows went; empty: none."""
    horizon = Horizon(
        audit=now - timedelta(days=retention.audit_days),
        shadow=now - timedelta(days=retention.shadow_days),
        turns=now - timedelta(days=retention.turns_days),
        predictions=now - timedelta(days=retention.predictions_days),
        readings=now - timedelta(days=retention.readings_days),
    )
    with Warehouse.open(url) as warehouse:
        gone = warehouse.forget(cluster, horizon)
    old = ", ".join(f"{rows:,} {what}" for what, rows in gone.items() if rows)
    return f"deleted because they were old: {old}" if old else ""


def _remember_nodes(url: str, cluster: str, snapshot: Snapshot) -> str:
    with Warehouse.open(url) as warehouse:
        warehouse.add_nodes(cluster, nodes_of(snapshot))
    return f"{len(snapshot.nodes):,} nodes"


def _learn(url: str, cluster: str, settings: Settings, now: datetime, progress: Progress) -> str:
    """Train on all that has ended, and say whether the model took charge, why, and what has drifted."""
    model = settings.model
    try:
        outcome, drift = nightly(
            url=url,
            history=training_history(url, cluster, progress=progress),
            seed=model.seed,
            days=model.judged_days,
            now=now,
            keep=model.kept,
            dask=model.dask,
            progress=progress,
        )
    except NotEnoughHistory as reason:
        return f"no model yet, shrinkage predicts: {reason.fact}"
    return f"model {outcome.model_id} {outcome.did}: {outcome.why}; in charge: {outcome.in_charge}; {drift}"
