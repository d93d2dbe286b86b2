"""Page about a run of a training pool."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

from helios.report.charts import BLUE, GREEN, SOFT, canvas
from helios.report.html import PageSection, TableCells, render_sections
from helios.training.report import PoolResult, memory_in_words, order_by_value, pool_sentences, trial_cells

MOST_ROWS = 1000
"""Trials that a page lists."""
MOST_PANELS = 4


def render_pool(result: PoolResult) -> str:
    """Return the page of a pool."""
    metrics = [*result.objectives] or ["Metric"]
    header = ("Trial", "Parameters", "State", *metrics, "Time", "Memory", "Starts", "Device", "Reason")
    text = {"Parameters", "State", "Device", "Reason"}
    rows = [
        [*trial_cells(result, trial), ", ".join(trial["devices"]), trial.get("reason", "")]
        for trial in order_by_value(result)[:MOST_ROWS]
    ]
    devices = [
        (device.name, device.model, memory_in_words(device.memory_mib), str(device.slots)) for device in result.devices
    ]
    sections = [
        PageSection(sentences=pool_sentences(result)),
        PageSection(title=f"What changes {result.metric}", figures=[partial(_metric_figure, result)]),
        PageSection(
            title="Trials",
            tables=[TableCells(header=[(name, name in text) for name in header], rows=rows)],
            notes=[
                *result.notes,
                *([f"{len(result.trials) - MOST_ROWS:,} more trials."] if len(result.trials) > MOST_ROWS else []),
            ],
        ),
        PageSection(
            title="Devices",
            tables=[
                TableCells(
                    header=[("Device", True), ("Model", True), ("Memory", False), ("Slots", False)], rows=devices
                )
            ],
        ),
    ]
    return render_sections(f"Trials of {result.name}", f"Results and logs: {result.folder}", sections)


def _metric_figure(result: PoolResult, *, narrow: bool = False) -> str | None:
    """Draw the metric against each parameter that is a number."""
    points = [trial for trial in result.trials if trial["number"] in result.values]
    values: dict[str, list[Any]] = {}
    for trial in points:
        for name, value in trial["parameters"].items():
            values.setdefault(name, []).append(value)
    names = [
        name
        for name, given in values.items()
        if len({*given}) > 1 and all(isinstance(value, Real) and not isinstance(value, bool) for value in given)
    ][:MOST_PANELS]
    if not names:
        return None
    best = {*result.front}
    with canvas(
        f"{result.metric} of each trial against {', '.join(names)}", height=2.4, narrow=narrow, columns=len(names)
    ) as drawing:
        for name, axes in zip(names, drawing.panels, strict=True):
            shown = [trial for trial in points if name in trial["parameters"]]
            xs = [float(trial["parameters"][name]) for trial in shown]
            ys = [result.values[trial["number"]] for trial in shown]
            axes.scatter(xs, ys, s=14, color=BLUE, edgecolor=SOFT, linewidth=0.5)
            axes.scatter(
                [x for x, trial in zip(xs, shown, strict=True) if trial["number"] in best],
                [y for y, trial in zip(ys, shown, strict=True) if trial["number"] in best],
                s=40,
                color=GREEN,
                label="best",
            )
            if min(xs) > 0 and max(xs) / min(xs) >= 50:
                axes.set_xscale("log")
            axes.set_xlabel(name)
        drawing.panels[0].set_ylabel(result.metric)
        drawing.panels[0].legend()
    return drawing.svg
