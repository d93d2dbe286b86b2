"""Page about a run of a training pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helios.report.html import PageSection, TableCells, render_sections
from helios.training.figures import PlottedPool, PlottedTrial, pool_figures
from helios.training.pool.state import read_runs
from helios.training.report import (
    PoolResult,
    code_in_words,
    memory_in_words,
    order_by_value,
    pool_sentences,
    trial_cells,
)

MOST_ROWS = 1000
"""Trials that a page lists."""


def render_pool(results: Sequence[PoolResult]) -> str:
    """Return the page of a pool."""
    sections = [section for result in results for section in _sections(result)]
    devices = [
        (device.name, device.model, memory_in_words(device.memory_mib), str(device.slots))
        for device in results[0].devices
    ]
    header = [("Device", True), ("Model", True), ("Memory", False), ("Slots", False)]
    sections.append(PageSection(title="Devices", tables=[TableCells(header=header, rows=devices)]))
    folders = ", ".join(result.folder for result in results)
    names = ", ".join(result.name for result in results)
    return render_sections(f"Trials of {names}", f"Results and logs: {folders}", sections)


def _sections(result: PoolResult) -> list[PageSection]:
    """Return what the page has of a sweep."""
    metrics = [*result.objectives] or ["Metric"]
    header = ("Trial", "Parameters", "State", *metrics, "Time", "Memory", "Starts", "Device", "Reason")
    text = {"Parameters", "State", "Device", "Reason"}
    rows = [
        [*trial_cells(result, trial), ", ".join(trial["devices"]), trial.get("reason", "")]
        for trial in order_by_value(result)[:MOST_ROWS]
    ]
    return [
        PageSection(sentences=[*pool_sentences(result), f"{code_in_words(result.made_with)}."]),
        *pool_figures(_plotted(result)),
        PageSection(
            title="Trials",
            tables=[TableCells(header=[(name, name in text) for name in header], rows=rows)],
            notes=[
                *result.notes,
                *([f"{len(result.trials) - MOST_ROWS:,} more trials."] if len(result.trials) > MOST_ROWS else []),
            ],
        ),
    ]


def _plotted(result: PoolResult) -> PlottedPool:
    """Return the trials with their curves from the pool's folder."""
    curves = {run.number: run.curve for run in read_runs(Path(result.folder))}
    trials = [
        PlottedTrial(
            number=trial["number"],
            parameters=trial["parameters"],
            state=str(trial["state"]),
            value=trial["value"],
            curve=curves.get(trial["number"], ()),
        )
        for trial in result.trials
    ]
    return PlottedPool(
        metric=result.metric,
        maximize=next(iter(result.objectives.values()), True),
        trials=trials,
        is_log=result.is_log,
        targets=result.targets,
        front=frozenset(result.front) if len(result.objectives) > 1 else None,
    )
