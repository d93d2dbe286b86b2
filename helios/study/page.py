"""The drawings, the page and the files of a study."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from helios.errors import UsageError
from helios.private_files import make_folder, write_private
from helios.report.charts import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SOFT,
    Canvas,
    canvas,
    date_axis,
    shorten,
    time_axis,
)
from helios.report.html import PageSection, TableCells
from helios.study.figures.source import FEW_PEOPLE, THE_REST, ClusterComparison, FigureData, Panel, Series
from helios.study.figures.time import WEEKDAYS
from helios.study.text import Statement, Verdict, first_statements
from helios.units import percent

OWN = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, ":"), (PURPLE, "-"), (INK, "--"))
"""Colour and dash of a site's own lines, which differ in brightness, too."""
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (8, 3)),
    (0, (2, 3)),
    (0, (3, 1)),
)
"""Dashes of published clusters, which are all grey."""
STACK = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56b4e9", "#f0e442", "#7a5c00", "#004b75")
STATE_COLOURS = {
    "completed": GREEN,
    "cancelled": ORANGE,
    "failed": RED,
    "by a failed node": "#7f2a00",
    "at the time limit": PURPLE,
    "other": GREY,
    "unknown": PALE,
    "not ended": SOFT,
    THE_REST: PALE,
    FEW_PEOPLE: GREY,
}
MARKERS = ("o", "s", "D")
SHORTEST_S = 1.0
"""Shortest time on a logarithmic axis, s."""
CHARACTERS_PER_INCH = 13.0
LINE_IN, ROW_IN = 2.5, 0.24
"""Heights of a panel of lines, and of a row of a panel of names."""
DAY_H = 24


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}
SOURCES = r"""@inproceedings{helios,
  author = {Hu, Qinghao and Sun, Peng and Yan, Shengen and Wen, Yonggang and Zhang, Tianwei},
  title = {Characterization and Prediction of Deep Learning Workloads in Large-Scale {GPU} Datacenters},
  booktitle = {SC '21},
  year = {2021},
  doi = {10.1145/3458817.3476223},
  note = {Data: HeliosData, CC-BY-4.0; HeliosArtifact, MIT}
}

@inproceedings{acme,
  author = {Hu, Qinghao and others},
  title = {Characterization of Large Language Model Development in the Datacenter},
  booktitle = {NSDI '24},
  year = {2024},
  note = {Data: AcmeTrace, CC-BY-4.0}
}

@inproceedings{philly,
  author = {Jeon, Myeongjae and Venkataraman, Shivaram and Phanishayee, Amar and Qian, Junjie and Xiao, Wencong
            and Yang, Fan},
  title = {Analysis of Large-Scale Multi-Tenant {GPU} Clusters for {DNN} Training Workloads},
  booktitle = {USENIX ATC '19},
  year = {2019},
  note = {Data: philly-traces, CC-BY-4.0}
}
"""


def draw(figure: FigureData, *, narrow: bool = False) -> str | None:
    """Return a figure as SVG, None where there is nothing to draw."""
    drawing = _draw(figure, narrow=narrow)
    return None if drawing is None else drawing.svg


def draw_pdf(figure: FigureData) -> bytes | None:
    """Return a figure as a PDF, or None if it is empty."""
    drawing = _draw(figure, as_pdf=True)
    return None if drawing is None else drawing.pdf


def alternative_text(figure: FigureData) -> str:
    """Return the alternative text of a figure."""
    panels = "; ".join(
        f"{panel.title or panel.y.unit}: {', '.join(line.name for line in panel.series)}"
        + (f", beside {', '.join(line.name for line in panel.beside)}" if panel.beside else "")
        for panel in figure.panels
    )
    return f"{figure.title} Shown: {panels}."


def write_files(folder: Path, statements: Sequence[Statement], figures: Sequence[FigureData]) -> list[Path]:
    """Write statements, figures and sources to a folder, and return the files.

    Each figure is a CSV with a row for each point, and a vector PDF. Files of these names are replaced.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    names = ("number", "name", "value", "unit", "low", "high", "n", "coverage", "verdict", "command", "sentence")
    contents: dict[str, bytes] = {
        "statements.csv": _csv(names, ([getattr(statement, name) for name in names] for statement in statements)),
        "study.tex": _latex(statements),
        "sources.bib": SOURCES.encode(),
    }
    for figure in figures:
        if (pdf := draw_pdf(figure)) is not None:
            header = ("panel", "cluster", "series", "x", "x_unit", "y", "y_unit")
            rows = [
                (panel.title or figure.key, cluster, statement.name, x, panel.x.unit, y, panel.y.unit)
                for panel in figure.panels
                for cluster, series_list in (("here", panel.series), ("published", panel.beside))
                for statement in series_list
                for x, y in zip(statement.x, statement.y, strict=True)
            ]
            contents[f"{figure.key}.csv"] = _csv(header, rows)
            contents[f"{figure.key}.pdf"] = pdf
    try:
        make_folder(folder)
        for name, content in contents.items():
            write_private(folder / name, content)
    except OSError as reason:
        raise UsageError(f"{folder} cannot be written: {reason}", hint="Choose another place: --out FOLDER") from reason
    return [folder / name for name in contents]


def latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def study_sections(
    *,
    statements: Sequence[Statement],
    figures: Sequence[FigureData],
    beside: ClusterComparison | None,
    notes: Sequence[str],
) -> list[PageSection]:
    """Return the sections of a study's page.

    The statements about the most hours come first, then the figures, then all statements.

    Parameters
    ----------
    beside : ClusterComparison, optional
        Published clusters to show, or None.
    """
    sections = [
        PageSection(sentences=_first_sentences(statements)),
        *(_figure_section(figure) for figure in figures if not figure.missing),
        PageSection(
            title="All statements",
            sentences=[
                "Values with 95 % intervals over weeks or days. n: jobs, nodes, users or partitions they rest on. "
                "Coverage: the share that the history says enough about."
            ],
            tables=[_statement_table(statements)],
        ),
    ]
    if beside is not None:
        header = [("Figure", True), *((name, False) for name in beside.header)]
        rows = [(label, *values) for label, values in beside.rows]
        sections.append(
            PageSection(title="Here and there", tables=[TableCells(header=header, rows=rows)], notes=beside.notes)
        )
    unknown = [(statement.title, statement.lacks) for statement in statements if statement.verdict is Verdict.UNKNOWN]
    unknown += [(figure.title, figure.missing) for figure in figures if figure.missing]
    if unknown:
        cells = TableCells(header=[("Not known here", True), ("Why", True)], rows=unknown)
        sections.append(PageSection(title="What this history cannot say", tables=[cells]))
    if notes:
        sections.append(PageSection(title="About the data", sentences=notes))
    return sections


def _draw(figure: FigureData, *, narrow: bool = False, as_pdf: bool = False) -> Canvas | None:
    panels = [panel for panel in figure.panels if any(line.y for line in panel.series)]
    if figure.missing or not panels:
        return None
    width = 3.6 if narrow else 9.4 / len(panels)
    height = max(_height(panel, width) for panel in panels)
    text = alternative_text(figure)
    with canvas(text, height=height, narrow=narrow, columns=len(panels), as_pdf=as_pdf) as drawing:
        published_names = dict.fromkeys(line.name for panel in panels for line in panel.beside)
        dashes = dict(zip(published_names, DASHES * 2, strict=False))
        for axes, panel in zip(drawing.panels, panels, strict=True):
            if panel.kind == "range":
                _draw_ranges(axes, panel, narrow=narrow)
            elif panel.kind == "line":
                _draw_lines(axes, panel, dashes, narrow=narrow)
            else:
                _draw_bars(axes, panel, width=width)
            if panel.title:
                axes.set_title(panel.title)
        _add_legend(drawing, panels, narrow=narrow)
    return drawing


def _height(panel: Panel, width: float) -> float:
    rows = len(_names(panel.series))
    has_names = panel.kind == "range" or (panel.kind != "line" and _is_upright(panel, width))
    return 1.3 + ROW_IN * rows if has_names else LINE_IN + 0.5


def _draw_lines(axes: Axes, panel: Panel, dashes: Mapping[str, Any], *, narrow: bool) -> None:
    for line in panel.beside:
        axes.plot(line.x, _drawable(panel.y.kind, line.y), color=GREY, ls=dashes[line.name], lw=0.9, label=line.name)
    for line, (colour, dash) in zip(panel.series, OWN * 2, strict=False):
        x = np.array(line.x, dtype=np.int64).astype("datetime64[s]") if panel.x.kind == "date" else np.array(line.x)
        is_short = len(x) <= 3
        y = _drawable(panel.y.kind, line.y)
        axes.plot(x, y, color=colour, ls=dash, lw=2, marker="o" if is_short else "", ms=4, label=line.name, zorder=3)
    if panel.y.kind == "duration":
        time_axis(axes, narrow=True, upright=True)
    else:
        lowest = min((min(line.y) for line in (*panel.series, *panel.beside) if line.y), default=0)
        axes.set_ylim(bottom=min(0, lowest), top=101 if _is_share(panel) else None)
        _number_axis(axes, panel.y.kind, upright=True)
    # The ticks of a time axis have units.
    axes.set_ylabel(panel.y.unit.removeprefix("s ") if panel.y.kind == "duration" else panel.y.unit)
    _place_axis(axes, panel, narrow=narrow)


def _is_share(panel: Panel) -> bool:
    """Return whether the curves are percentages that rise to 100 or close."""
    highest = max((max(line.y) for line in panel.series if line.y), default=0)
    return panel.y.kind == "percent" and 50 < highest <= 100


def _place_axis(axes: Axes, panel: Panel, *, narrow: bool) -> None:
    x = [float(value) for line in panel.series for value in line.x]
    if panel.x.kind == "duration":
        axes.set_xlim(max(SHORTEST_S, min(x)), max(*x, 2 * SHORTEST_S))
        time_axis(axes, narrow=True)
        axes.set_xlabel("run time at most")
    elif panel.x.kind == "size":
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(x), max(*x, 2))
        step = 2 if (narrow and max(x) > 64) or max(x) > 512 else 1
        ticks = sorted(set(x))[::step]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"{panel.x.unit} of a job, at most")
    elif panel.x.kind == "date":
        date_axis(axes, narrow=True)
        if len(set(x)) == 1:
            axes.set_xticks([np.datetime64(int(x[0]), "s")])
    elif panel.x.kind == "week hour":
        axes.set_xticks(range(0, 7 * DAY_H, DAY_H), WEEKDAYS, ha="left")
        axes.set_xlim(0, 7 * DAY_H - 1)
    elif panel.x.kind == "hour":
        axes.set_xticks([0, 6, 12, 18, 23])
        axes.set_xlabel(panel.x.unit)
    else:
        axes.set_xlim(min(x), max(*x, min(x) + 1))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(panel.x.unit)


def _number_axis(axes: Axes, kind: str, *, upright: bool) -> None:
    axis = axes.yaxis if upright else axes.xaxis
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.10g} %" if kind == "percent" else f"{value:,.10g}")
    )


def _drawable(kind: str, values: Iterable[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return values as a logarithmic axis can show them."""
    y = np.array(tuple(values), dtype=np.float64)
    return np.maximum(y, SHORTEST_S) if kind == "duration" else y


def _names(lines: Sequence[Series]) -> list[str]:
    """Return the names that the series have values of, in order."""
    return [str(name) for name in dict.fromkeys(name for line in lines for name in line.x)]


def _draw_ranges(axes: Axes, panel: Panel, *, narrow: bool) -> None:
    names = _names(panel.series)
    row_of_name = {name: len(names) - 1 - row for row, name in enumerate(names)}
    values = [
        dict(zip((str(name) for name in line.x), _drawable(panel.y.kind, line.y), strict=True)) for line in panel.series
    ]
    for name in names:
        values_of_name = [points[name] for points in values if name in points]
        axes.plot(
            [min(values_of_name), max(values_of_name)],
            [row_of_name[name]] * 2,
            color=PALE if len(values) == 3 else GREY,
            lw=1.5,
        )
    if len(values) == 5:
        _, low, median, high, _ = values
        for name in (name for name in low if name in high):
            axes.plot(
                [low[name], high[name]], [row_of_name[name]] * 2, color=BLUE, lw=7, alpha=0.45, solid_capstyle="butt"
            )
        axes.scatter(
            list(median.values()), [row_of_name[name] for name in median], color=BLUE, s=26, zorder=3, label="median"
        )
    else:
        for points, line, marker, (colour, _) in zip(values, panel.series, MARKERS, OWN, strict=False):
            rows = [row_of_name[name] for name in points]
            axes.scatter(list(points.values()), rows, color=colour, marker=marker, s=26, zorder=3, label=line.name)
    if panel.y.kind == "duration":
        all_values = [seconds for points in values for seconds in points.values()]
        axes.set_xlim(
            max(SHORTEST_S, min(all_values, default=SHORTEST_S) / 1.3), max(60.0, 1.3 * max(all_values, default=0.0))
        )
        time_axis(axes, narrow=True)
        axes.set_xlabel("wait")
    elif panel.y.kind == "ratio":
        axes.set_xscale("log")
        low_x, high_x = axes.get_xlim()
        powers = [10.0**power for power in range(-3, 7) if low_x <= 10.0**power <= high_x]
        axes.set_xticks(powers, [f"{tick:g} x" for tick in powers])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(panel.y.unit)
    else:
        axes.set_xlim(left=0)
        _number_axis(axes, panel.y.kind, upright=False)
        axes.set_xlabel(panel.y.unit)
    _name_axis(axes, names[::-1], panel.x.unit if narrow or not panel.title else "")


def _name_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    axes.set_yticks(range(len(names)), [shorten(name) for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    if label:
        axes.set_ylabel(label)


def _is_upright(panel: Panel, width: float) -> bool:
    """Return whether names of bars are too long to be below them."""
    names = _names(panel.series)
    return panel.x.unit != "month" and sum(len(shorten(name)) + 1 for name in names) > CHARACTERS_PER_INCH * width


def _draw_bars(axes: Axes, panel: Panel, *, width: float) -> None:
    names, upright, stacked = _names(panel.series), _is_upright(panel, width), panel.kind == "stack"
    positions = np.arange(len(names))[::-1] if upright else np.arange(len(names))
    bottom, thickness = np.zeros(len(names)), 0.74 if stacked else 0.8 / len(panel.series)
    for row, line in enumerate(panel.series):
        value_of_name = dict(zip((str(name) for name in line.x), line.y, strict=True))
        values = np.array([value_of_name.get(name, 0.0) for name in names])
        colour = STATE_COLOURS.get(line.name, STACK[row % len(STACK)])
        shift = 0.0 if stacked else (row - (len(panel.series) - 1) / 2) * thickness * (-1 if upright else 1)
        if upright:
            axes.barh(positions + shift, values, height=0.92 * thickness, left=bottom, color=colour, label=line.name)
        else:
            axes.bar(positions + shift, values, width=0.92 * thickness, bottom=bottom, color=colour, label=line.name)
        bottom = bottom + values if stacked else bottom
    if upright:
        axes.set_yticks(positions, [shorten(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        _number_axis(axes, panel.y.kind, upright=False)
        axes.set_xlabel(panel.y.unit)
        return
    step = max(1, int(np.ceil(sum(len(name) + 1 for name in names) / (CHARACTERS_PER_INCH * width))))
    axes.set_xticks(positions[::step], names[::step])
    axes.tick_params(axis="x", length=0, labelsize="small")
    axes.grid(visible=False, axis="x")
    _number_axis(axes, panel.y.kind, upright=True)
    if panel.x.unit != "month":
        axes.set_xlabel(panel.x.unit)
    axes.set_ylabel(panel.y.unit)


def _add_legend(drawing: Canvas, panels: Sequence[Panel], *, narrow: bool) -> None:
    """Name the series once, the published clusters last."""
    labels: dict[str, Any] = {}
    for axes in drawing.panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    published = {line.name for panel in panels for line in panel.beside}
    order = sorted(labels, key=lambda label: label in published)
    if len(order) < 2 and not published:
        return
    longest = max(len(label) for label in order)
    columns = max(1, min(len(order), int((3.3 if narrow else 9.0) * CHARACTERS_PER_INCH / (longest + 6))))
    drawing.figure.legend(
        [labels[label] for label in order],
        [shorten(label) if narrow else label for label in order],
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.2,
        handletextpad=0.5,
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def _latex(statements: Sequence[Statement]) -> bytes:
    lines_of_table = [
        f"{row.number} & {latex(row.title)} & {latex(row.shown_value)} & {'--' if row.n is None else row.n} \\\\"
        for row in statements
        if row.value is not None
    ]
    lines = [
        r"\begin{tabular}{rlrr}",
        r"\hline",
        r" & Statement & Value (95\,\% interval) & $n$ \\",
        r"\hline",
        *lines_of_table,
        r"\hline",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode()


def _first_sentences(statements: Sequence[Statement]) -> list[str]:
    sentences = []
    for statement in first_statements(statements):
        sentences.append(statement.sentence)
        if statement.command:
            sentences.append(f"Try: {statement.command} (it shows {statement.command_shows})")
    return sentences or ["This history says nothing that could be stated with figures."]


def _figure_section(figure: FigureData) -> PageSection:
    sample = f"n = {figure.n:,} {figure.noun}"
    if figure.coverage is not None:
        sample += f", {percent(figure.coverage)} of {figure.covered}"
    return PageSection(
        title=figure.title,
        sentences=[f"{figure.definition}. {sample}.".replace("..", ".").lstrip(". ")],
        figures=[partial(draw, figure)],
        notes=figure.notes,
    )


def _statement_table(statements: Sequence[Statement]) -> TableCells:
    names = (("Statement", True), ("Value", False), ("n", False), ("Coverage", False), ("Verdict", True))
    rows = [
        (
            f"{statement.number}. {statement.title}",
            statement.shown_value
            + (f" {statement.unit}" if statement.value is not None and statement.unit.endswith("a week") else ""),
            "-" if statement.n is None else f"{statement.n:,}",
            percent(statement.coverage),
            str(statement.verdict),
        )
        for statement in statements
    ]
    return TableCells(header=names, rows=rows)
