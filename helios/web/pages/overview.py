"""The first page, for whoever asks.

What waits and runs, the last week, what Helios did, what the study found, and what needs a person. Each part is kept
for a minute, because the page is asked for every few seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from helios.actions import Result
from helios.app import reports
from helios.app.advise import advise
from helios.app.controller_state import NIGHTLY_LEVELS
from helios.app.doctor import known_problems
from helios.app.energy.ledger import energy_report
from helios.app.nightly_order import order_checks
from helios.dates import local_day
from helios.errors import HeliosError, NotEnoughHistory
from helios.model import Mode, Snapshot
from helios.report.admin.decisions import CYCLE, with_results
from helios.report.admin.sacct_format import FieldKind, as_json, declare_fields
from helios.report.advice_table import advice_by_kind
from helios.report.energy import energy_sentences
from helios.report.html import PageSection, TableCells
from helios.report.stored_study import latest_study
from helios.report.tables import counted
from helios.units import duration, in_number
from helios.warehouse import Warehouse
from helios.web.page import Page, Reader, Role, Section
from helios.web.pages.history import capacity_of, use_series
from helios.web.pages.nodes import FAILED, count_nodes, described_nodes
from helios.web.pages.queue import count_jobs, count_sentence, queue_records, short_queue_table, waiting_jobs
from helios.web.site import Site

WAITING_ROWS = 5
"""Waiting jobs on the first page. The page of the queue and JSON have all."""
STATEMENTS = 3
WINDOWS = {Role.ADMIN: "now-7days", Role.MANAGER: "now-30days", Role.USER: "now-7days"}
"""Begin of the window of the charts."""
CHANGES = timedelta(days=7)
STARTS = declare_fields(("Starts", "starts", FieldKind.TEXT, 30, "When it may start"))
ACCOUNTS = 8
FAILED_NODES = 5
"""Failed nodes that are named."""
COUNTED = (Result.DONE, Result.WOULD)
DESCRIBED = ("name", "state", "label", "reason")
_OPTIONS = re.compile(r" --(?:cluster|from|to) \S+")
"""Options of a command that the page of the study has too."""
Values = dict[str, Any]
Part = tuple[Section, Values]


def overview_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the first page."""
    history = site.history()
    live = site.live() if history is None else None
    lines, values = _head(site, reader, live, history)
    recent = _kept(site, reader, "recent", _recent)
    # Of a history, and to a manager, sums are what there is to say first.
    sums_first = history is not None or reader.role is Role.MANAGER
    lines = [*recent[0].sentences, *lines] if sums_first else [*lines, *recent[0].sentences]
    sections: list[PageSection] = [PageSection(sentences=lines)]
    snapshot = live if isinstance(live, Snapshot) else None
    parts: list[Part] = []
    if reader.is_admin:
        parts.append(_problems(snapshot, _kept(site, reader, "problems", _known_problems)))
    if reader.role is Role.MANAGER:
        parts += [_kept(site, reader, "accounts", _accounts), _kept(site, reader, "energy", _energy)]
    if snapshot is not None and reader.role is not Role.MANAGER:
        parts.append(_waiting(site, snapshot, reader))
    if not reader.sees_sums:
        parts.append(_kept(site, reader, "advice", _advice))
    parts.append((replace(recent[0], sentences=()), recent[1]))
    if reader.is_admin and history is None:
        parts.append(_kept(site, reader, "changes", _changes))
    if reader.sees_sums:
        parts.append(_kept(site, reader, "findings", _findings))
    if snapshot is not None and reader.role is Role.MANAGER and values["pending"]:
        parts.append(_waiting(site, snapshot, reader))
    for section, told in parts:
        sections.append(section)
        values |= told
    return Page(
        title=f"{snapshot.cluster} now" if snapshot is not None else history or "Now",
        subtitle="" if snapshot is None else f"As of {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=sections,
        values=values,
        follows=history is None,
        is_dense=True,
    )


def _kept(site: Site, reader: Reader, name: str, make: Callable[[Site, Reader], Part]) -> Part:
    """Return a part of the page, or why there is none."""

    def made() -> Part:
        try:
            return make(site, reader)
        except HeliosError as reason:
            title = name.capitalize()
            return Section(title=title, sentences=[f"Not known: {reason.message}"], is_half=True), {name: None}

    return site.keep((name, reader), made)


def _head(site: Site, reader: Reader, live: Snapshot | str | None, history: str | None) -> tuple[list[str], Values]:
    """Return what waits and runs now, as sentences and as values."""
    if live is None:
        lines: list[str] = []
        values: Values = {"cluster": history, "queue": [], "history": {}}
        if reader.is_admin:  # of nobody else: the span is that of everybody's jobs
            span = site.keep(("span", history), lambda: _span(site, str(history)))
            values["history"] = span
            lines += [f"{in_number(span['jobs'], 'jobs')} are loaded."] if span else []
        return lines, values
    if isinstance(live, str):
        lines = ["The queue cannot be read now.", live, "The pages of the history do not need it."]
        return lines, {"problem": live}
    values = count_jobs(live, reader)
    line = count_sentence(values, reader)
    if reader.is_admin and len(live.nodes):
        capacity = float(live.nodes["gpus"].sum())
        values["gpus"] = capacity
        line = f"{line[:-1]} of {capacity:,.0f}." if capacity else line
        line = f"{line} {count_nodes(described_nodes(live.nodes))}"
    state, lines = _state(site)
    has_none = reader.role is Role.MANAGER and not values["pending"] + values["running"]
    queue = queue_records(waiting_jobs(live, reader), reader)
    return [*([] if has_none else [line]), *lines], {**values, **state, "queue": queue}


def _state(site: Site) -> tuple[Values, list[str]]:
    """Return what Helios may do now, as values and as sentences."""
    try:
        cycles = site.operations.cycles
        pause, modes = cycles.pause(), cycles.modes()
    except HeliosError as reason:
        return {"modes": None, "paused": None}, [f"What Helios may do is not known: {reason.message}"]
    lines = [f"Helios is paused {pause}."] if pause else []
    if modes:
        lines.append("Services: " + ", ".join(f"{name} is {modes[name].mode.value}" for name in modes) + ".")
    mode_names = {name: mode.mode.value for name, mode in modes.items()}
    return {"modes": mode_names, "paused": str(pause) if pause else None}, lines


def _span(site: Site, cluster: str) -> Values:
    """Return the span of a history."""
    with Warehouse.open(site.settings.database.url) as warehouse:
        known = warehouse.clusters(counts=True).set_index("name").to_dict("index")[cluster]
    if pd.isna(known["first_submitted_at"]):
        return {}
    first, last = (known[f"{end}_submitted_at"].isoformat() for end in ("first", "last"))
    return {"from": first, "to": last, "jobs": int(known["jobs"])}


def _recent(site: Site, reader: Reader) -> Part:
    """Return the last week, or a manager's month, in charts and a sentence."""
    query = site.report_query(reader, {"from": WINDOWS[reader.role]}, sums=True)
    with reports.open_context(query) as context:
        # From a midnight on, since whole days are kept as sums.
        begin, _ = local_day(context.since, timezone=context.timezone)
        (found,) = use_series(context, "", since=begin)
        capacity, _ = capacity_of(context, found.resource) if reader.sees_sums else (None, "")
        since, until = context.format_time(begin), context.format_time(context.until)
        is_live = context.live
        timezone = context.timezone
    quantiles = {"p50_wait_s": "median", "p90_wait_s": "9 of 10 wait less"}
    waits = [replace(line, name=name) for column, name in quantiles.items() for line in found.lines(column)]
    charts = [
        found.use_chart(capacity=capacity),
        found.waiting_chart(),
        found.chart("waits", "Waits", "s", waits),
    ]
    rows = found.frame.rows
    days = rows[rows["p50_wait_s"].notna()].to_dict("records")
    last = days[-1] if days else {"day": None, "p50_wait_s": None, "p90_wait_s": None}
    week = {
        "from": since,
        "to": until,
        "timezone": timezone,
        "jobs": int(rows["submitted"].sum()),
        **{name: float(rows[name].sum(min_count=1)) for name in ("gpu_hours", "cpu_hours")},
        "last_day": None if last["day"] is None else f"{last['day']:%Y-%m-%d}",
        **{name: last[name] for name in ("p50_wait_s", "p90_wait_s")},
    }
    days_shown = f"Since {since[:10]}" if is_live else f"{since[:10]} to {until[:10]}"
    section = Section(
        title="Use and waits",
        sentences=[f"{days_shown}: {_week_sentence(week, found.resource, reader)}"],
        charts=[replace(chart, is_small=True, picks_window=False) for chart in charts if not chart.is_empty],
        more=("All charts", "/history"),
    )
    return section, {"week": week}


def _week_sentence(week: Values, resource: str, reader: Reader) -> str:
    whose = "" if reader.sees_sums else " of yours"
    told = [f"{week['jobs']:,} job{'' if week['jobs'] == 1 else 's'}{whose} submitted"]
    unit = resource[:-1]
    if _is_known(hours := week[f"{unit}_hours"]):
        told.append(f"{hours:,.0f} {unit.upper()} hours held")
    if week["last_day"] is None:
        return ", ".join(told) + "."
    middle, long = (duration(week[name]) for name in ("p50_wait_s", "p90_wait_s"))
    waits = f"Of those of {week['last_day']} that started, half waited at most {middle}, 9 of 10 at most {long}."
    return f"{', '.join(told)}. {waits}"


def _is_known(value: float | None) -> bool:
    return value is not None and not isnan(value)


def _known_problems(site: Site, _: Reader) -> Part:
    """Return what needs a person, as far as no cluster is asked."""
    found = known_problems(site.settings, site.name(), now=site.clock())
    section = Section(
        title="Needs a person",
        sentences=[f"{it.check.capitalize()}: {it.message.rstrip('.')}. {it.hint}" for it in found],
        is_half=True,
    )
    return section, {"problems": [{"check": it.check, "message": it.message, "hint": it.hint} for it in found]}


def _problems(live: Snapshot | None, known: Part) -> Part:
    """Return what needs a person, with the nodes that failed."""
    section, values = known
    failed = [] if live is None else _failed_nodes(live)
    table = TableCells(header=[("Node", True), ("Why", True)], rows=failed[:FAILED_NODES])
    told = {**values, "failed_nodes": [{"node": node, "why": why} for node, why in failed]}
    return replace(
        section,
        sentences=section.sentences or ([] if failed else ["Nothing."]),
        tables=[table],
        notes=[f"{counted(len(failed) - FAILED_NODES, 'more node')}."] if len(failed) > FAILED_NODES else [],
        more=("Nodes", "/nodes") if failed else None,
    ), told


def _failed_nodes(live: Snapshot) -> list[tuple[str, str]]:
    """Return nodes that are down or drained, and why."""
    return [
        (name, state if pd.isna(reason) or not reason else f"{state}, {reason}")
        for name, state, label, reason in described_nodes(live.nodes)[list(DESCRIBED)].itertuples(index=False)
        if label in FAILED
    ]


def _changes(site: Site, _: Reader) -> Part:
    """Return what Helios changed lately, and what it brought."""
    cluster, since = site.name(), site.clock() - CHANGES
    with Warehouse.open(site.settings.database.url) as warehouse:
        rows = with_results(warehouse.decisions(cluster, since=since))
        checks = order_checks(warehouse, cluster)
        text = warehouse.remembered(cluster, NIGHTLY_LEVELS)
    rows = rows[(rows["action"] != CYCLE).to_numpy(dtype=bool, na_value=True)]
    counts: list[Values] = [
        {"service": str(service), **{str(name): int((of["result"] == name).sum()) for name in COUNTED}}
        for service, of in rows.groupby("service", observed=True)
    ]
    lines = [
        f"{count['service']}: {counted(count['done'], 'change')} made"
        + (f", {count['would']:,} only noted in shadow mode." if count["would"] else ".")
        for count in counts
        if count["done"] or count["would"]
    ]
    lines = lines or [_why_nothing(site)]
    brought = []
    if checks:
        brought.append(f"{checks[-1].sentences[0]} (checked {checks[-1].at:%Y-%m-%d})")
    levels = json.loads(text) if text else {}
    if levels.get("asleep_node_h"):
        low, high = (levels.get(f"saved_{end}_kwh", 0.0) for end in ("low", "high"))
        brought.append(f"Nodes asleep saved {levels['saved_kwh']:,.0f} kWh ({low:,.0f} to {high:,.0f}) in 14 days.")
    section = Section(
        title=f"What Helios did in {CHANGES.days} days",
        sentences=[*lines, *brought],
        more=("Decisions", "/decisions"),
        is_half=True,
    )
    return section, {"changes": counts, "brought": brought}


def _why_nothing(site: Site) -> str:
    """Return why Helios changed nothing."""
    try:
        modes = {each.mode for each in site.operations.cycles.modes().values()}
    except HeliosError:
        return "Nothing was changed."
    if modes <= {Mode.OFF}:
        return "Nothing: all services are off." if modes else "Nothing: no service is set up."
    acts = modes & {Mode.CANARY, Mode.ACTIVE}
    return "Nothing was changed." if acts else "Nothing: services only note what they would do (shadow)."


def _findings(site: Site, reader: Reader) -> Part:
    """Return the first findings of the last study, with their commands."""
    kept = latest_study(Path(site.settings.report.folder), site.name())
    found = [] if kept is None else kept.first_statements(STATEMENTS)
    if kept is None:
        lines = ["No study is kept yet: helios study --keep"]
    else:
        lines = [
            one["sentence"].split(". ")[0].rstrip(".")
            + "."
            + (f" Try: {_OPTIONS.sub('', one['command'])}" if one["command"] and reader.is_admin else "")
            for one in found
        ] or ["Nothing that the last study looked at is worth a try."]
    section = Section(
        title="What the last study found" + (f" ({kept.made_at:%Y-%m-%d})" if kept is not None else ""),
        sentences=lines,
        more=("Study", "/study") if reader.is_admin else None,
        is_half=True,
    )
    names = ("name", "title", "sentence", "verdict", "command")
    return section, {"findings": [{name: one[name] for name in names} for one in found]}


def _waiting(site: Site, live: Snapshot, reader: Reader) -> Part:
    """Return the first waiting jobs, own ones with their starts."""
    rows = waiting_jobs(live, reader)
    shown, values, notes = rows.head(WAITING_ROWS), Values(), list[str]()
    table = short_queue_table(shown, reader)
    if len(shown) and not reader.is_admin:
        starts = site.starts(reader, live, shown)
        rows_with = table.rows.assign(starts=[start.in_short() for start in starts])
        shown_names = (*table.shown, STARTS[0].name)
        table = replace(table, rows=rows_with, fields=(*table.fields, *STARTS), shown=shown_names)
        values["starts"] = [
            {"job_id": job_id, **{name: start.to_json()[name] for name in ("p10_at", "p50_at", "p90_at", "problem")}}
            for job_id, start in zip(shown["job_id"], starts, strict=True)
        ]
        if not all(start.problem for start in starts):
            notes = [f"Starts are those of 8 in 10 simulations of the queue, as of {starts[0].taken_at:%H:%M} UTC."]
    is_cut = len(rows) > WAITING_ROWS and not reader.is_admin
    left_out = [f"The first {WAITING_ROWS} of {len(rows):,} are shown."] if is_cut else []
    section = Section(
        title=f"The next of {counted(len(rows), 'waiting job')}" if reader.is_admin else "Your waiting jobs",
        tables=[table] if len(rows) else [],
        sentences=[] if len(rows) else ["Nothing waits."],
        notes=[*left_out, *notes],
        more=("Queue", "/queue"),
        is_half=True,
    )
    return section, values


def _accounts(site: Site, reader: Reader) -> Part:
    """Return hours and waits of the month by account."""
    query = site.report_query(reader, {"from": WINDOWS[Role.MANAGER]}, sums=True)
    answer = reports.usage_report(query, group="account")
    names = ("Account", "Jobs", "GPUHours" if "GPUHours" in answer.shown else "CPUHours", "Share", "P50Wait")
    shown = tuple(name for name in names if name in answer.shown)
    section = Section(
        title="Accounts in 30 days",
        tables=[replace(answer, rows=answer.rows.head(ACCOUNTS), shown=shown)] if len(answer.rows) else [],
        sentences=[] if len(answer.rows) else [answer.empty],
        more=("All accounts", "/accounts"),
        is_half=True,
    )
    return section, {"accounts": as_json(answer)["rows"]}


def _energy(site: Site, reader: Reader) -> Part:
    """Return energy and its price in the month."""
    query = site.report_query(reader, {"from": WINDOWS[Role.MANAGER]}, sums=True)
    try:
        ledger = energy_report(query, energy=site.settings.energy)
    except NotEnoughHistory as reason:
        return Section(title="Energy in 30 days", sentences=[f"Not known: {reason.message}"], is_half=True), {
            "energy": None
        }
    total = ledger.total
    if not any(total[f"{state}_h"] for state in ("busy", "idle", "asleep", "moving", "out")):
        lines = [f"Not known: of no hour of {counted(ledger.nodes, 'node')} is it recorded what they did."]
        return Section(title="Energy in 30 days", sentences=lines, is_half=True), {"energy": None}
    lines = [
        f"{ledger.nodes:,} nodes drew {total['kwh']:,.0f} kWh, which cost {total['cost']:,.0f} {ledger.currency} "
        f"by the model of energy.",
        *energy_sentences(ledger)[:1],
    ]
    section = Section(title="Energy in 30 days", sentences=lines, more=("Energy", "/energy"), is_half=True)
    return section, {"energy": {"kwh": total["kwh"], "cost": total["cost"], "currency": ledger.currency}}


def _advice(site: Site, reader: Reader) -> Part:
    """Return the own advice by kind."""
    found = advise(site.report_query(reader, {"from": "now-4weeks"}))
    kinds = advice_by_kind(found.advice)
    section = Section(
        title="Advice on your jobs",
        sentences=[] if found.advice else [kinds.empty],
        tables=[kinds] if found.advice else [],
        more=("All advice", "/advice"),
        is_half=True,
    )
    return section, {"advice": as_json(kinds)["rows"]}
