"""The sections of a study's page, by audience."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helios.metrics.study.figure_data import FigureData
from helios.metrics.study.published import HereAndThere
from helios.report.html import PageSection, TableCells
from helios.report.study_charts import draw
from helios.report.study_text import Statement, Verdict, first_statements
from helios.units import percent


def study_sections(
    *,
    found: Sequence[Statement],
    figures: Sequence[FigureData],
    beside: HereAndThere | None,
    notes: Sequence[str],
) -> list[PageSection]:
    """Return the sections of a study's page.

    The statements with the most hours at stake come first, then the figures, then all statements.

    Parameters
    ----------
    beside : HereAndThere, optional
        Published clusters to show, or None.
    """
    sections = [
        PageSection(sentences=_first(found)),
        *(_figure_section(figure) for figure in figures if not figure.missing),
        PageSection(
            title="All statements",
            sentences=[
                "Values with 95 % intervals over weeks or days. n: jobs, nodes, users or partitions they rest on. "
                "Coverage: the share that the history says enough about."
            ],
            tables=[_statement_table(found)],
        ),
    ]
    if beside is not None:
        header = [("Figure", True), *((name, False) for name in beside.header)]
        rows = [(label, *values) for label, values in beside.rows]
        sections.append(
            PageSection(title="Here and there", tables=[TableCells(header=header, rows=rows)], notes=beside.notes)
        )
    unknown = [(one.title, one.lacks) for one in found if one.verdict is Verdict.UNKNOWN]
    unknown += [(figure.title, figure.missing) for figure in figures if figure.missing]
    if unknown:
        cells = TableCells(header=[("Not known here", True), ("Why", True)], rows=unknown)
        sections.append(PageSection(title="What this history cannot say", tables=[cells]))
    if notes:
        sections.append(PageSection(title="About the data", sentences=notes))
    return sections


def _first(found: Sequence[Statement]) -> list[str]:
    sentences = []
    for statement in first_statements(found):
        sentences.append(statement.sentence)
        if statement.command:
            sentences.append(f"Try: {statement.command}")
    return sentences or ["This history says nothing that could be stated with figures."]


def _figure_section(figure: FigureData) -> PageSection:
    known = f"n = {figure.n:,} {figure.noun}"
    if figure.coverage is not None:
        known += f", {percent(figure.coverage)} of {figure.covered}"
    return PageSection(
        title=figure.title,
        sentences=[f"{figure.definition}. {known}.".replace("..", ".").lstrip(". ")],
        figures=[partial(draw, figure)],
        notes=figure.notes,
    )


def _statement_table(found: Sequence[Statement]) -> TableCells:
    names = (("Statement", True), ("Value", False), ("n", False), ("Coverage", False), ("Verdict", True))
    rows = [
        (
            f"{one.number}. {one.title}",
            one.shown_value + (f" {one.unit}" if one.value is not None and one.unit.endswith("a week") else ""),
            "-" if one.n is None else f"{one.n:,}",
            percent(one.coverage),
            str(one.verdict),
        )
        for one in found
    ]
    return TableCells(header=names, rows=rows)
