"""Page about a run of a training pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Real

from helios.report.charts import BLUE, GREEN, SOFT, canvas
from helios.report.html import PageSection, TableCells, render_sections
from helios.training.report import PoolResult, memory_in_words, order_by_value, pool_sentences, trial_cells

MOST_ROWS = 1000
"""Trials that a page lists."""
MOST_PANELS = 4


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
    ]


def _metric_figure(result: PoolResult, *, narrow: bool = False) -> str | None:
    """Draw the metric against each parameter that is a number."""
    points = [trial for trial in result.trials if trial["number"] in result.values]
    names = [
        name
        for name in (points[0]["parameters"] if points else {})
        if len({trial["parameters"].get(name) for trial in points}) > 1
        and all(
            isinstance(trial["parameters"].get(name), Real) and not isinstance(trial["parameters"].get(name), bool)
            for trial in points
        )
    ][:MOST_PANELS]
    if not names:
        return None
    best = {*result.front}
    with canvas(
        f"{result.metric} of each trial against {', '.join(names)}", height=2.4, narrow=narrow, columns=len(names)
    ) as drawing:
        for name, axes in zip(names, drawing.panels, strict=True):
            xs = [float(trial["parameters"][name]) for trial in points]
            ys = [result.values[trial["number"]] for trial in points]
            axes.scatter(xs, ys, s=14, color=BLUE, edgecolor=SOFT, linewidth=0.5)
            axes.scatter(
                [x for x, trial in zip(xs, points, strict=True) if trial["number"] in best],
                [y for y, trial in zip(ys, points, strict=True) if trial["number"] in best],
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
