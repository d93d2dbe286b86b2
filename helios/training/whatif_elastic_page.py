"""Page of sweeps simulated with changing and with fixed sizes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
from matplotlib.ticker import MaxNLocator

from helios.report.charts import BLUE, GREEN, ORANGE, PALE, PURPLE, RED, canvas
from helios.report.html import PageSection, TableCells, render_sections
from helios.training.whatif_elastic_report import ElasticWhatIf, payer_cells, rule_cells, short_name
from helios.units import count_in_words

MORE_COLOURS = ["#56B4E9", "#F0E442", "#7f5a3c", "#3b3b98", "#88b04b", "#c0d6e4", "#5b5b5b"]
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, *MORE_COLOURS)
"""Of the trials that are named; the first are Okabe and Ito's."""
OTHERS = "others"
SHORT_S = 7_200.0
"""Time from which on it is drawn in hours, s."""


def render_elastic(result: ElasticWhatIf) -> str:
    """Return the page of a simulation of changing sizes."""
    tables = [
        TableCells(header=[(name, place == 0) for place, name in enumerate(header)], rows=rows)
        for header, rows in (rule_cells(result), payer_cells(result))
        if rows
    ]
    where = count_in_words(result.gpus, "GPU") + (f" of {result.nodes} nodes" if result.nodes > 1 else "")
    subtitle = f"{count_in_words(len(result.trials), 'trial')} on {where}, simulated."
    sections = [
        PageSection(sentences=[result.headline()]),
        PageSection(title="GPUs of each trial over time", figures=[partial(sizes_figure, result)]),
        PageSection(title="Rules", sentences=["Times are since all trials began."], tables=tables, notes=result.notes),
    ]
    return render_sections(f"Elastic sizes of {result.name}", subtitle, sections)


def sizes_figure(result: ElasticWhatIf, *, narrow: bool = False) -> str:
    """Draw how many GPUs each trial had when, beside the best fixed size.

    The trials that had most GPU time are named, all others are summed.
    """
    rules = [result.service, result.best_fixed]
    gpu_s: Counter[int] = Counter()
    for span in result.rules[result.service].spans:
        gpu_s[span.trial] += round(span.gpus * (span.end_s - span.start_s))
    room = len(COLOURS)
    named = sorted(number for number, _ in gpu_s.most_common(room))
    names = [short_name(result.trials[number]) for number in named] + [OTHERS] * (len(result.trials) > room)
    places = {number: place for place, number in enumerate(named)}
    last_s = max(max(result.rules[rule].ends_s) for rule in rules)
    unit_s, unit = (3_600, "hours") if last_s >= SHORT_S else (60, "minutes")
    what = f"GPUs of each trial over time. {result.headline()}"
    with canvas(what, height=3.0, narrow=narrow, columns=2) as drawing:
        for axes, rule in zip(drawing.panels, rules, strict=True):
            spans = result.rules[rule].spans
            edges = np.unique([moment for span in spans for moment in (span.start_s, span.end_s)])
            counts = np.zeros((len(names), len(edges)))
            for span in spans:
                first, last = np.searchsorted(edges, (span.start_s, span.end_s))
                counts[places.get(span.trial, -1), first:last] += span.gpus
            layers = axes.stackplot(edges / unit_s, counts, step="post", colors=[*COLOURS[: len(named)], PALE], lw=0)
            axes.set_title(rule, loc="left")
            axes.set_xlim(0, last_s / unit_s)
            axes.set_ylim(0, result.gpus)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_xlabel(unit)
        drawing.panels[0].set_ylabel("GPUs")
        drawing.figure.legend(layers, names, loc="outside lower center", ncols=3 if narrow else 6, frameon=False)
    return drawing.svg
