"""Sections of a nightly report on the study of the last weeks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from helios.app.history import LoadedHistory
from helios.config import Settings
from helios.errors import NotEnoughHistory
from helios.metrics.blocks import FEWEST_BLOCKS
from helios.metrics.statistics import student_t
from helios.study.study import NodeRecords, load_study, read_records, store_study, study
from helios.study.text import Statement, change_sentence
from helios.warehouse import Warehouse

WEEK = timedelta(weeks=1)
WEEKS_COMPARED = 8
STUDIED = timedelta(weeks=4)
"""Window of the study that the web page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyChanges:
    """Statements of the last seven days against the weeks before.

    Attributes
    ----------
    levels : dict of float
        Values of the last seven days, by name of the statement.
    sentences : tuple of str
        One for each statement that changed beyond chance.
    """

    levels: Mapping[str, float]
    sentences: tuple[str, ...]


def weekly_changes(warehouse: Warehouse, cluster: str, *, timezone: str, end: datetime) -> WeeklyChanges:
    """Return which statements changed in the seven days before ``end``."""
    since = end - (WEEKS_COMPARED + 1) * WEEK
    history, records = read_records(warehouse, cluster, timezone=timezone, since=since, until=end)
    return compare_weeks(history, end=end, records=records)


def store_latest(settings: Settings, cluster: str, *, now: datetime) -> str:
    """Store the study of four weeks for the web page, and say where."""
    loaded, records = load_study(url=settings.database.url, cluster=cluster, window=lambda *_: (now - STUDIED, now))
    if loaded.jobs.empty:
        return "no study: no jobs in four weeks"
    result = study(loaded, since=now - STUDIED, until=now, records=records)
    return f"study {store_study(result, Path(settings.report.folder), energy=settings.energy, now=now)}"


def compare_weeks(loaded: LoadedHistory, *, end: datetime, records: NodeRecords | None = None) -> WeeklyChanges:
    """Return which statements changed in the last seven days, beyond chance.

    The value of the last seven days is compared with the prediction interval of the weeks before (Student's t). Its
    level is such that all statements together are wrong in one night of twenty (Bonferroni).

    Parameters
    ----------
    end : datetime
        End of the last seven days.
    """
    weeks: list[tuple[Statement, ...]] = []
    for weeks_back in range(WEEKS_COMPARED + 1):
        until = end - weeks_back * WEEK
        since = until - WEEK
        # The jobs that may have run or been submitted in the week.
        submitted_at, ended_at = loaded.jobs["submitted_at"], loaded.jobs["ended_at"]
        overlap = (submitted_at < until) & ((submitted_at >= since) | ended_at.isna() | (ended_at > since))
        jobs = loaded.jobs[overlap].reset_index(drop=True)
        if jobs.empty:
            break
        week_history = replace(loaded, jobs=jobs)
        try:
            weeks.append(study(week_history, since=since, until=until, records=records).statements)
        except NotEnoughHistory:  # of its jobs nobody knows when they ended
            break
    if not weeks:
        return WeeklyChanges(levels={}, sentences=())
    sentences = []
    for number, statement in enumerate(weeks[0]):
        earlier = [week[number].value for week in weeks[1:]]
        values = np.array([value for value in earlier if value is not None], dtype=np.float64)
        if statement.value is None or len(values) < FEWEST_BLOCKS:
            continue
        error = float(values.std(ddof=1)) * np.sqrt(1 + 1 / len(values))
        margin = student_t(len(values) - 1, upper=1 - 0.05 / (2 * len(weeks[0]))) * error
        if abs(statement.value - float(values.mean())) > margin:
            sentences.append(change_sentence(statement, values))
    levels = {statement.name: statement.value for statement in weeks[0] if statement.value is not None}
    return WeeklyChanges(levels=levels, sentences=tuple(sentences))
