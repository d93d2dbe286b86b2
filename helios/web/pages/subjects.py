"""The pages of one user, account, partition and node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from helios.app import reports
from helios.app.clusters import NOT_LIVE
from helios.app.explain import LIKE, NodeUnknown, explain_node
from helios.app.explain_past import LOOK_BACK
from helios.app.series import By
from helios.app.subjects import SubjectAnswer, SubjectUnknown, node_report, subject_report
from helios.errors import HeliosError
from helios.model.nodes import expand_valid
from helios.report.admin.sacct_format import ReportTable, as_json
from helios.report.html import PageSection
from helios.units import as_count, count_in_words, duration_in_words
from helios.warehouse import JobFilter, Warehouse
from helios.web.chart import Chart
from helios.web.page import Page, PageMissing, Reader, Section
from helios.web.pages.history import capacity_of, use_series
from helios.web.pages.queue import running_table
from helios.web.pages.report_page import WINDOW
from helios.web.site import Site
from helios.web.table import DataTable

SHORT = 50
"""Most rows of a table that is not paged. JSON has all."""
MOST_LIMITS = 20
"""Most QOS whose limits are named."""
JOBS = "jobs"


def user_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one user."""
    user = given["user"]
    if not reader.may_see(user):
        raise PageMissing(f"The page of {user} is not yours.", hint="Only your own is shown.")
    query = site.report_query(reader, given)
    found = subject_report(query, "user", user, by=("partition", "account"))
    partitions = found.tables["by_partition"].rows["group"].tolist()
    like, values = _like_the_last(site, user)
    found = replace(
        found,
        sentences=(*found.sentences, *_in_queue(site, user), like, *_limits(site, partitions)),
        values={**found.values, "like_the_last": values},
    )
    return _page(f"User {user}", found, data=JOBS, charts=_charts(replace(query, users=(user,)), "partition"))


def account_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one account.

    It has its users and last jobs for an admin, else its partitions.
    """
    query = site.report_query(reader, given, sums=True)
    by = ("user", "partition") if reader.is_admin else ("partition",)
    found = subject_report(query, "account", given["account"], by=by)
    charts = _charts(query, "partition")
    return _page(f"Account {given['account']}", _for_reader(found, reader), data=f"by_{by[0]}", charts=charts)


def partition_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one partition, with its rules.

    It has its users, nodes and last jobs for an admin, else accounts.
    """
    name = given["partition"]
    query = site.report_query(reader, given, sums=True)
    by = ("user", "account") if reader.is_admin else ("account",)
    known = site.rules()
    rules = None if isinstance(known, str) else next((one for one in known.partitions if one.name == name), None)
    found = subject_report(query, "partition", name, by=by, rules=rules)
    if rules is None:
        problem = known if isinstance(known, str) else "Slurm has no such partition now."
        found = replace(found, notes=(*found.notes, problem))
    charts = _charts(query, "account", has_capacity=reader.sees_sums)
    return _page(f"Partition {name}", _for_reader(found, reader), data=f"by_{by[0]}", charts=charts)


def node_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one node, live and in the history."""
    node, problem = given["node"], ""
    facts, values = tuple[str, ...](), dict[str, Any]()
    sections: list[PageSection] = []
    if site.history() is None:
        now = _running_on(site, node)
        sections, values = ([], {"running": None}) if now is None else ([_short("running", now)], _rows(now))
        try:
            found_live = explain_node(site.operations.node_cycles, node)
            facts, values = found_live.facts, {**values, **found_live.to_json()}
        except NodeUnknown as reason:
            problem = reason.message
        except HeliosError as reason:
            problem = f"Its state now is not known: {reason.message}"
    try:
        found = node_report(site.report_query(reader, given), node)
    except SubjectUnknown:
        if not facts:
            raise
        sections = [PageSection(sentences=facts), *sections]
        return Page(title=f"Node {node}", sections=sections, values=values, form_fields=WINDOW)
    notes = (*found.notes, *([problem] if problem else []))
    page = _page(f"Node {node}", replace(found, sentences=(*facts, *found.sentences), notes=notes), data=JOBS)
    return replace(page, sections=[page.sections[0], *sections, *page.sections[1:]], values={**values, **page.values})


def _running_on(site: Site, node: str) -> ReportTable | None:
    """Return the jobs that run on a node now.

    None where the queue cannot be read.
    """
    live = site.live()
    if isinstance(live, str):
        return None
    names = live.running["node_list"].astype("object").fillna("").astype("str")
    runs_there = {text: node in expand_valid(text) for text in names.unique()}
    table = running_table(live, live.running[names.map(runs_there).to_numpy(dtype=bool)])
    return replace(table, title="Jobs that run on it now", empty="No job runs on it now.")


def _rows(table: ReportTable) -> dict[str, Any]:
    return {"running": as_json(table)["rows"]}


def _charts(query: reports.ReportQuery, by: By, *, has_capacity: bool = False) -> list[Chart]:
    """Return use and waiting of a query's jobs over time, those that are known."""
    with reports.open_context(query) as context:
        (use,) = use_series(context, by)
        capacity, note = capacity_of(context, use.resource) if has_capacity else (None, "")
    charts = (use.use_chart(by=by, capacity=capacity, note=note), use.waiting_chart())
    return [chart for chart in charts if not chart.is_empty]


def _in_queue(site: Site, user: str) -> Iterator[str]:
    """Yield what of a user waits and runs now, on a live cluster."""
    if site.history() is not None:
        return
    if isinstance(live := site.live(), str):
        yield f"What waits and runs now is not known: {live}"
        return
    own = Reader(user=user).visible_part(live)
    waiting = int(own.pending["tasks"].clip(lower=1).sum())
    gpus = as_count(float((own.running["gpus"] * own.running["tasks"].clip(lower=1)).sum()))
    wait = "job waits" if waiting == 1 else "jobs wait"
    yield f"Now {waiting:,} {wait} and {len(own.running):,} run on {count_in_words(gpus, 'GPU')}."


def _like_the_last(site: Site, user: str) -> tuple[str, dict[str, Any] | None]:
    """Return what a job like a user's last one would meet now.

    It is returned as a sentence and as values, None where it is not known.
    """
    if (name := site.history()) is not None:
        return f"When a job like the last one would start now is not known: {name} is {NOT_LIVE}.", None
    if isinstance(live := site.live(), str):
        return f"When a job like the last one would start now is not known: {live}", None
    own = Reader(user=user).visible_part(live)
    with Warehouse.open(site.settings.database.url) as warehouse:
        wanted = JobFilter(since=live.taken_at - LOOK_BACK, until=live.taken_at, only={"user": [user]})
        parts = warehouse.list_jobs(
            site.name(), wanted, columns=["job_id", "submitted_at", *LIKE], sort="-submitted_at", first=0, most=1
        )
        known = [own.pending, own.running, *parts]
    rows = [row for jobs in known for row in jobs.to_dict("records")]
    if not rows:
        return (
            f"No job of the last {LOOK_BACK.days} days is known, so what one like it would meet is not, either.",
            None,
        )
    last = max(rows, key=lambda row: row["submitted_at"])
    start = site.start_of_like(live, pd.Series(last))
    values = {"job_id": str(last["job_id"]), "start": start.to_json()}
    unit, size = ("GPU", last["gpus"]) if last["gpus"] > 0 else ("CPU", last["cpus"])
    limit = f", limit {duration_in_words(last['time_limit_s'])}" if np.isfinite(last["time_limit_s"]) else ""
    request = f"{count_in_words(as_count(size), unit)} in {last['partition']}{limit}"
    asked = f"A job like the last one, {last['job_id']} ({request})"
    if start.problem:
        return f"{asked}: when it would start now is not forecast: {start.problem}.", values
    return f"{asked}, submitted now: {' '.join(start.lines())}", values


def _limits(site: Site, partitions: Collection[str]) -> Iterator[str]:
    """Yield the limits of some partitions and of a user, where known."""
    if isinstance(rules := site.rules(), str):
        return
    longest = [
        f"{one.name} {duration_in_words(one.max_time_s)}"
        for one in rules.partitions
        if one.name in partitions and one.max_time_s is not None
    ]
    if longest:
        yield f"Longest time limits: {', '.join(longest)}."
    for qos in rules.qos[:MOST_LIMITS]:
        limits = ((qos.max_gpus_per_user, "GPU"), (qos.max_jobs_per_user, "job"))
        if words := [count_in_words(most, unit) for most, unit in limits if most is not None]:
            yield f"At once a user may hold in QOS {qos.name}: at most {' and '.join(words)}."


def _for_reader(found: SubjectAnswer, reader: Reader) -> SubjectAnswer:
    """Return the answer without single jobs of others, which a manager may not see."""
    if reader.is_admin or not reader.sees_sums:
        return found
    return replace(found, tables={name: table for name, table in found.tables.items() if name != JOBS})


def _page(title: str, found: SubjectAnswer, *, data: str, charts: Sequence[Chart] = ()) -> Page:
    """Return an answer as a page, with one of its tables paged."""
    sections: list[PageSection] = [PageSection(sentences=found.sentences, notes=found.notes)]
    sections += [Section(charts=charts)] if charts else []
    for name, table in found.tables.items():
        if name == data:
            paged = DataTable(answer=table, key=name)
            sections.append(Section(title=table.title, sentences=_empty(table), data=paged, id=name))
        else:
            sections.append(_short(name, table))
    values = found.to_json()
    return Page(title=title, subtitle=found.title, sections=sections, values=values, form_fields=WINDOW)


def _short(name: str, table: ReportTable) -> Section:
    left_out = len(table.rows) - SHORT
    notes = [f"{left_out:,} more are in JSON."] if left_out > 0 else []
    short = replace(table, rows=table.rows.head(SHORT))
    return Section(title=table.title, sentences=_empty(table), tables=[short], notes=notes, id=name)


def _empty(table: ReportTable) -> list[str]:
    return [table.empty] if table.rows.empty else []
