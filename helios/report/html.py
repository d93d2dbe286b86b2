"""Reports as self-contained HTML pages.

Figures are embedded, nothing is fetched, and a page fits a phone and a sheet of paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from helios.model import SIZE_CLASSES, SIZE_NAMES
from helios.report import charts
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, chosen_fields, write_values
from helios.report.charts import energy_figure, nodes_over_time, saved_by_day
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences
from helios.report.energy_whatif import EnergyWhatIf, energy_verdict, front_rows, front_title, policy_rows
from helios.report.gains import GroupGain, biggest_users, by_size, by_user, losing_jobs
from helios.report.history import Description
from helios.report.tables import CONTROL_NAMES, describe_missing
from helios.report.whatif import WhatIf
from helios.report.whatif_tables import best_figures
from helios.units import change, duration, format_signed, percent

_PAGES = Environment(
    loader=PackageLoader("helios.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _format_time(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


_PAGES.filters.update(
    duration=duration, percent=percent, describe_missing=describe_missing, longer=format_signed, moment=_format_time
)


def render_whatif(
    result: WhatIf,
    *,
    description: Description | None = None,
    evaluation: Mapping[str, Any] | None = None,
    next_steps: Sequence[str] = (),
) -> str:
    """Return the page of a what-if.

    Parameters
    ----------
    description : Description, optional
        Description of the replayed history, shown below the comparison.
    evaluation : mapping, optional
        JSON of an evaluation of the predictions.
    next_steps : sequence of str
        Commands for the reader to type next.
    """
    chosen = None if result.has_no_waits else result.proposal
    users = by_user(chosen, result) if chosen is not None else []
    losing = losing_jobs(chosen, result) if chosen is not None else []
    return _PAGES.get_template("whatif.html.j2").render(
        title=f"What if? {result.cluster}",
        result=result,
        sentences=result.headline(),
        change=change,
        best=best_figures([result.baseline, *result.feasible]),
        sizes=SIZE_CLASSES,
        size_names=SIZE_NAMES,
        unit=result.unit,
        chosen=chosen,
        by_size=by_size(chosen, result) if chosen is not None else [],
        users=users,
        named_users=biggest_users(users),
        losing_jobs=losing,
        figures=_figures(result, users),
        description=description,
        history=_history(description),
        evaluation=evaluation,
        control_names=CONTROL_NAMES,
        errors=inline(charts.error_profile, evaluation) if evaluation else None,
        next_steps=list(next_steps),
    )


def render_description(description: Description) -> str:
    """Return the page of a history."""
    return _PAGES.get_template("description.html.j2").render(
        title=f"The history of {description.cluster}", description=description, history=_history(description)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCells:
    """A table as text.

    ``header`` has the head of each column, and whether it is left-aligned text.
    """

    header: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A part of a page.

    The first section of a page is the summary and has no title. Sections without content are left out.

    Attributes
    ----------
    figures : sequence of callable
        Each draws a figure for :func:`inline`.
    tables : sequence of ReportTable or TableCells
    """

    title: str = ""
    sentences: Sequence[str] = ()
    figures: Sequence[Callable[..., str | None]] = ()
    tables: Sequence[ReportTable | TableCells] = ()
    notes: Sequence[str] = ()


def render_sections(
    title: str, subtitle: str, sections: Sequence[PageSection], *, alarming: bool = False, footer: str = ""
) -> str:
    """Return a page of sentences, figures and tables."""
    filled = filled_sections(sections)
    return _PAGES.get_template("sections.html.j2").render(
        title=title, subtitle=subtitle, sections=filled, alarming=alarming, footer=footer
    )


def filled_sections(
    sections: Sequence[PageSection], *, has_more: Callable[[PageSection], bool] = lambda _: False
) -> list[tuple[PageSection, list[Markup], list[TableCells]]]:
    """Return the sections with content, with figures drawn and tables as text.

    ``has_more``: whether a section has content that is shown in another way.
    """
    filled = []
    for section in sections:
        figures = [figure for draw in section.figures if (figure := inline(draw))]
        tables = [table if isinstance(table, TableCells) else to_cells(table) for table in section.tables]
        tables = [table for table in tables if table.rows]
        if section.sentences or figures or tables or has_more(section):
            filled.append((section, figures, tables))
    return filled


def to_cells(answer: ReportTable) -> TableCells:
    """Return the cells of a table, without empty columns."""
    return write_cells(answer, filled_fields(answer))


def filled_fields(answer: ReportTable) -> list[Field]:
    """Return the default fields of a table that have a value."""
    return [field for field in chosen_fields(answer, None) if answer.rows[field.column].notna().any()]


def write_cells(answer: ReportTable, fields: Sequence[Field]) -> TableCells:
    """Return the cells of some fields of a table."""
    columns = [
        [write_cell(value, field, timezone=answer.timezone) for value in answer.rows[field.column].tolist()]
        for field in fields
    ]
    header = [(field.name, field.kind is FieldKind.TEXT) for field in fields]
    return TableCells(header=header, rows=list(zip(*columns, strict=True)))


def write_cell(value: Any, field: Field, *, timezone: str) -> str:
    """Return one value as a page shows it, empty where it is missing."""
    if pd.isna(value):
        return ""
    if field.kind is FieldKind.LENGTH:
        return duration(value) if math.isfinite(value) else "unlimited"
    if field.kind in {FieldKind.COUNT, FieldKind.DECIMAL}:
        return f"{value:,.{0 if field.kind is FieldKind.COUNT else 1}f}"
    text = write_values(value, field.kind, timezone=timezone)
    return text.replace("T", " ") if field.kind is FieldKind.MOMENT else text


def render_energy(ledger: EnergyLedger) -> str:
    """Return the page of an energy ledger."""
    answer = energy_answer(ledger)
    sections = [
        PageSection(sentences=energy_sentences(ledger)),
        PageSection(title="What the nodes did", figures=[partial(nodes_over_time, ledger)]),
        PageSection(title="What sleep saved", figures=[partial(saved_by_day, ledger)]),
        PageSection(title="Node hours, energy and money", tables=[answer], notes=ledger.notes),
    ]
    return render_sections(answer.title, f"Times on the cluster's own clock ({ledger.timezone}).", sections)


def render_energy_whatif(result: EnergyWhatIf) -> str:
    """Return the page of an energy what-if."""
    names, rows = policy_rows(result)
    first, end = result.window
    if result.has_jobs:
        meaning = (
            "Asleep: nodes not powered, on average. kWh/day: saved against all nodes on. Delayed: share of the minutes "
            "with submissions in which a job was submitted that waited for a boot. Wait: delay by boots, averaged over "
            "all jobs. Cycles: how often a node was woken a day. GPUs: in use, of those of powered nodes."
        )
    else:
        meaning = (
            "Asleep: nodes not powered, on average. kWh/day: saved against all nodes on. Short: node hours by which "
            "fewer were awake than were needed. Cycles: how often a node was woken a day. In use: of the powered nodes."
        )
    sections = [
        PageSection(sentences=energy_verdict(result)),
        PageSection(
            title="Every policy",
            sentences=[meaning],
            figures=[partial(energy_figure, result)],
            tables=[TableCells(header=[("Policy", True), *((name, False) for name in names)], rows=rows)],
            notes=result.notes,
        ),
    ]
    if result.front:
        columns, rows = front_rows(result)
        front = PageSection(
            title="Spare nodes",
            sentences=[
                f"{front_title(result)[:-1]}. kWh a delay: what the last spare node costs for each delay it spares."
            ],
            tables=[TableCells(header=[(name, False) for name in ("Spare", *columns)], rows=rows)],
        )
        sections.insert(1, front)
    subtitle = (
        f"{result.total_nodes:,.0f} nodes, {first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} ({end:%Z}), "
        f"{result.days:.1f} days."
    )
    return render_sections(f"Nodes asleep: {result.name}", subtitle, sections)


def inline(draw: Callable[..., str | None], *arguments: Any) -> Markup | None:
    """Draw a figure in a wide and a narrow form.

    The page shows the one that fits the screen.

    None where there is nothing to draw. The figure is marked as safe, because the drawing library escapes its texts.
    """
    wide, narrow = draw(*arguments), draw(*arguments, narrow=True)
    if wide is None or narrow is None:
        return None
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(Markup(wide), Markup(narrow))


def _figures(result: WhatIf, users: Sequence[GroupGain]) -> dict[str, Markup | None]:
    draws: dict[str, Callable[..., str | None]] = {
        "over_time": charts.over_time,
        "who_gains": charts.who_gains,
        "mean_and_longest": charts.mean_and_longest,
        "waits": charts.waits,
        "cumulative_gain": charts.cumulative_gain,
        "by_partition": charts.by_partition,
    }
    drawn = ("over_time",) if result.has_no_waits else tuple(draws)
    figures = {name: inline(draw, result) if name in drawn else None for name, draw in draws.items()}
    return figures | {"users": inline(partial(charts.users, reference=result.reference), users)}


def _history(description: Description | None) -> dict[str, Markup | None]:
    if description is None:
        return {}
    return {
        "Jobs by size": inline(charts.sizes, description),
        "How long jobs run": inline(charts.run_times, description) if description.run_time_cdf else None,
        "When jobs are submitted": inline(charts.day_and_week, description),
        "Busiest users": inline(charts.busiest_users, description) if description.busiest_users else None,
    }
