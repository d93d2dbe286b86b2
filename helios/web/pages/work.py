"""The pages of predictions, decisions, services and energy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd

from helios.app import reports
from helios.app.energy.ledger import energy_report
from helios.app.start_estimates import start_accuracy
from helios.errors import NotEnoughHistory, UsageError
from helios.model.frames import plain
from helios.report.energy import ALWAYS_ON, EnergyLedger, energy_answer, energy_sentences
from helios.report.html import PageSection
from helios.report.job_use import JUDGED_USE
from helios.warehouse import Warehouse
from helios.web.chart import Chart, Line
from helios.web.page import Page, Reader, Section
from helios.web.pages.report_page import CHOICE, WINDOW, report_page
from helios.web.site import Site

LOOKS_BACK = timedelta(days=14)
"""Time before the window in which a user's last run is looked for. All runs of 10^6 jobs would take seconds."""

BY = ("all", "source", "size", "day", "partition")
"""What errors of predictions are grouped by."""
NODE_LAYERS = {
    "busy": "with a job",
    "idle": "idle",
    "moving": "falling asleep or waking",
    "asleep": "asleep",
    "out": "out of service",
    "unknown": "unknown",
}
"""Names of what nodes do, by their column."""


def predictions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the predictions' errors."""
    by = given.get("by") or "day"
    if by not in BY:
        raise UsageError(f"by={by} is not known.", hint=f"Choose {', '.join(BY[:-1])} or {BY[-1]}.")
    found = reports.prediction_report(site.report_query(reader, given), by=by, looks_back=LOOKS_BACK)
    note = f"The user's last run is looked for in the {LOOKS_BACK.days} days before the window."
    shown = tuple(name for name in found.shown if name != "By")  # it is the same in all rows
    found = replace(found, notes=(*found.notes, note), shown=shown)
    page = report_page("Accuracy of predictions", found, form_fields=(*WINDOW, "by"))
    page = _with_charts(page, prediction_charts(found.rows, found.timezone) if by == "day" else [])
    with Warehouse.open(site.settings.database.url) as warehouse:
        user = None if reader.is_admin else reader.user
        starts = start_accuracy(warehouse, site.name(), now=site.clock(), user=user)
        text = warehouse.remembered(site.name(), JUDGED_USE)
    judged = json.loads(text) if text and reader.is_admin else []  # it is of everybody's jobs
    sections = [Section(title="Estimated starts", sentences=[starts.sentence()])]
    if judged:
        sections.append(Section(title="Predictions of use, in the last nightly report", sentences=judged))
    values = {**page.values, "starts": plain(starts), "use": judged}
    return replace(page, sections=[*page.sections, *sections], values=values)


def prediction_charts(days: pd.DataFrame, timezone: str) -> list[Chart]:
    """Return predicted and true run times by day, and how far apart they were.

    Days without a job that was predicted and has ended are gaps.
    """
    if days.empty:
        return []
    dates = pd.DatetimeIndex(days["group"])
    every = pd.date_range(dates.min(), dates.max() + pd.Timedelta(days=1)).tz_localize(
        timezone, nonexistent="shift_forward", ambiguous=False
    )
    times = [int(day.timestamp()) for day in every]
    of_day = days.set_index(dates).reindex(every[:-1].tz_localize(None).normalize())

    def line(name: str, column: str) -> Line:
        values = of_day[column].astype("float64").tolist()
        return Line(name=name, values=[None if np.isnan(value) else round(value, 3) for value in values])

    common: dict[str, Any] = {"times": times[:-1], "end": times[-1], "timezone": timezone}
    return [
        Chart(
            name="run_times",
            title="Predicted and true run time, median",
            unit="s",
            lines=[line("Predicted", "p50_s"), line("True", "run_time_s")],
            note="Of jobs that have ended, by the day they were submitted.",
            **common,
        ),
        Chart(
            name="off_by",
            title="Factor between predicted and true run time, median",
            unit="x",
            lines=[line("Prediction", "off_by"), line("The user's last run", "naive_off_by")],
            note="1 is exact.",
            **common,
        ),
    ]


def _with_charts(page: Page, charts: Sequence[Chart]) -> Page:
    """Return a page of a report with charts before its table."""
    drawn = [chart for chart in charts if not chart.is_empty]
    if not drawn:
        return page
    (table,) = page.sections
    head = PageSection(sentences=table.sentences)
    return replace(page, sections=[head, Section(charts=drawn), replace(table, sentences=())])


def decisions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the audit log."""
    start = {"from": "now-1days"} if not given.get("from") else {}
    results = (given["result"],) if given.get("result") else ()
    answer = reports.decision_report(site.report_query(reader, {**given, **start}), results=results)
    newest_first = replace(answer, rows=answer.rows.iloc[::-1])
    return report_page("Decisions", newest_first, form_fields=(*CHOICE, "result"))


def services_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of services' requests by day."""
    return report_page("Services", reports.service_report(site.report_query(reader, given)), form_fields=WINDOW)


def energy_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of node hours and energy."""
    query = site.report_query(reader, given)
    try:
        ledger = energy_report(query, energy=site.settings.energy)
    except NotEnoughHistory:
        return _page_without_nodes(query)
    found = report_page("Energy", energy_answer(ledger), form_fields=WINDOW, sentences=energy_sentences(ledger))
    return _with_charts(replace(found, values=ledger.to_json()), energy_charts(ledger))


def _page_without_nodes(query: reports.ReportQuery) -> Page:
    """Return the page of energy of a window in which no node is known."""
    with reports.open_context(query) as context:
        title, cluster = context.title("energy"), context.cluster
    lines = [
        f"Energy is not known: no node of {cluster} is known in this window, since no job of it says where it ran, and "
        "no state of a node was recorded.",
        "A history that never names nodes has no energy in any window.",
    ]
    values: dict[str, Any] = {"title": title, "cluster": cluster, "rows": [], "total": None, "problem": lines[0]}
    sections = [PageSection(sentences=lines)]
    return Page(title="Energy", subtitle=title, sections=sections, values=values, form_fields=WINDOW)


def energy_charts(ledger: EnergyLedger) -> list[Chart]:
    """Return what nodes did over time, and what they drew and saved by day."""
    levels, days = ledger.levels, ledger.rows
    hours = [int(time.timestamp()) for time in levels["time"]]
    lines = [Line(name=name, values=_plain(levels[column])) for column, name in NODE_LAYERS.items()]
    lines = [line for line in lines if any(line.values)]
    if levels["wanted"].notna().any():
        lines.append(Line(name="wanted awake", values=_plain(levels["wanted"]), is_bound=True))
    common: dict[str, Any] = {"timezone": ledger.timezone, "picks_window": True}
    by_day: dict[str, Any] = {
        "times": [int(time.timestamp()) for time in ledger.daily["time"]],
        "end": int(ledger.end.timestamp()),
        "kind": "bars",
        "unit": "kWh",
        **common,
    }
    charts = [
        Chart(
            name="node_states",
            title="Nodes by what they did",
            unit="nodes",
            kind="stack",
            times=hours,
            end=int(levels["ended_at"].iloc[-1].timestamp()),
            lines=lines,
            **common,
        ),
        Chart(
            name="drawn",
            title="Energy by day",
            lines=[
                Line(name="nodes with a job", values=_plain(days["kwh"] - days["idle_kwh"])),
                Line(name="idle nodes", values=_plain(days["idle_kwh"])),
            ],
            note="By the model of energy. Hours of which nothing is known are not in it.",
            **by_day,
        ),
    ]
    if ledger.slept:
        saved = Line(name="saved", values=_plain(ledger.daily[ALWAYS_ON]))
        charts.append(Chart(name="saved", title="Saved by sleep against all nodes on", lines=[saved], **by_day))
    return charts


def _plain(values: pd.Series[Any]) -> list[float | None]:
    return [None if pd.isna(value) else round(float(value), 3) for value in values]
