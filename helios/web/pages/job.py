"""The page of one job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from helios.app.clusters import NOT_LIVE
from helios.app.explain_past import ID_USED_BEFORE
from helios.model.nodes import expand_valid
from helios.report.admin.decisions import decision_rows
from helios.report.html import PageSection, TableCells
from helios.report.job import JobExplanation
from helios.report.job_use import SOURCES
from helios.units import count_in_words, duration, write_count
from helios.web.page import Page, Reader, Section
from helios.web.site import Site
from helios.web.table import DataTable

MOST_EVENTS, MOST_NODES, MOST_MADE = 60, 20, 20
"""Events, nodes and predictions on the page. JSON has all."""


def job_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one job."""
    found = site.job(reader, given["job"])
    if not reader.is_admin:
        # They tell how long others' jobs ran, and whose they were.
        remarks = tuple(text for text in found.remarks if not text.startswith(ID_USED_BEFORE))
        found = replace(found, rests_on="", held_by=(), remarks=remarks, target=())
    # The table of its life has each run, and the page says itself that it is a history.
    told = {
        *(list(found.runs.lines())[1:] if found.runs else ()),
        *(text for text in found.remarks if NOT_LIVE in text),
    }
    decided = decision_rows(found.decisions, title="What Helios decided")
    sections = [
        PageSection(sentences=[line for line in found.lines() if line not in told]),
        PageSection(title="The job", tables=[_request(found)]),
        _life(found),
        _predictions(found),
        *([PageSection(title="What it used", tables=[_gpus(found)])] if len(found.gpu_use) else []),
        PageSection(title="Nodes", tables=[_nodes(found)]),
    ]
    if len(decided.rows):
        sections.append(Section(title=decided.title, data=DataTable(answer=decided, key="decisions"), id="decisions"))
    return Page(title=f"Job {found.job_id}", sections=sections, values=found.to_json())


def _request(found: JobExplanation) -> TableCells:
    """Return what it asked for and held, with links."""
    cells = {
        "User": found.user,
        "Account": found.account,
        "Partition": found.partition,
        "State": found.state,
        "GPUs": write_count(found.gpus),
        "CPUs": write_count(found.cpus),
        "Limit": _length(found.time_limit_s),
        "Waited": _length(found.waited_s),
        "Ran": _length(found.run_time_s),
    }
    texts = ("User", "Account", "Partition", "State")
    return TableCells(header=[(name, name in texts) for name in cells], rows=[tuple(cells.values())])


def _life(found: JobExplanation) -> PageSection:
    """Return the events, oldest first."""
    events = found.events()
    left_out = len(events) - MOST_EVENTS
    rows = [(f"{event.at:%Y-%m-%d %H:%M:%S}", event.text) for event in events[-MOST_EVENTS:]]
    notes = [f"{count_in_words(left_out, 'earlier event')} in JSON."] if left_out > 0 else []
    table = TableCells(header=[("When (UTC)", True), ("What happened", True)], rows=rows)
    return PageSection(title="Its life", tables=[table], notes=notes)


def _predictions(found: JobExplanation) -> PageSection:
    """Return the predictions as they were made, the last first."""
    names = ("Made (UTC)", "Half run shorter", "1 of 10 shorter", "1 of 10 longer", "By")
    rows = [
        (
            f"{made['made_at']:%Y-%m-%d %H:%M:%S}",
            *(_length(made[name]) for name in ("p50_s", "p10_s", "p90_s")),
            "" if pd.isna(made["source"]) else str(made["source"]),
        )
        for made in found.predictions.iloc[::-1].head(MOST_MADE).to_dict("records")
    ]
    left_out = len(found.predictions) - MOST_MADE
    notes = [f"{count_in_words(left_out, 'earlier one')} in JSON."] if left_out > 0 else []
    table = TableCells(header=[(name, name in (names[0], names[-1])) for name in names], rows=rows)
    return PageSection(title="Its run time as it was predicted", tables=[table], notes=notes)


def _gpus(found: JobExplanation) -> TableCells:
    """Return what each of its GPUs did, the first of many."""
    header = ("Node", "GPU", "Run", "Measured by", "Busy, %", "Idle at most", "Memory, GiB")
    rows = [
        (
            *(str(row[name]) for name in ("node", "gpu", "restart")),
            SOURCES[row["source"]],
            _number(row["utilization"]),
            _length(row["longest_idle_s"]),
            _number(row["gpu_memory_peak_mib"] / 1024),
        )
        for row in found.gpu_use.head(MOST_NODES).to_dict("records")
    ]
    return TableCells(header=[(name, name in {"Node", "GPU", "Measured by"}) for name in header], rows=rows)


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.1f}"


def _nodes(found: JobExplanation) -> TableCells:
    """Return the nodes of its runs, the first of many."""
    rows: list[Sequence[str]] = []
    runs = [] if found.runs is None else found.runs.runs.to_dict("records")
    for run in runs:
        if pd.notna(run["node_list"]):
            rows += [(node, str(run["number"])) for node in expand_valid(str(run["node_list"]))[:MOST_NODES]]
    return TableCells(header=[("Node", True), ("Run", False)], rows=rows[-MOST_NODES:])


def _length(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown"
    return duration(seconds) if math.isfinite(seconds) else "unlimited"
