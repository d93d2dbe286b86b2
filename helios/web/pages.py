"""Content of the pages of the web site.

Sections are for a person, plain values for JSON. Nothing is written, and HTTP is left to ``server.py``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helios.app import reports
from helios.app.advise import advise
from helios.app.clusters import NOT_LIVE, last_weeks
from helios.app.energy.ledger import energy_report
from helios.app.explain import explain_node, node_status
from helios.app.explain_past import ID_USED_BEFORE
from helios.config import Settings
from helios.errors import HeliosError, UsageError
from helios.model import seconds_of
from helios.report.admin.sacct_format import ReportTable, as_json
from helios.report.energy import energy_answer, energy_sentences
from helios.report.html import PageSection, TableCells
from helios.report.stored_study import latest_study
from helios.report.tables import counted
from helios.units import as_count, count_in_words, duration, in_number, write_count
from helios.warehouse import Warehouse
from helios.web.site import Page, PageMissing, Reader, Route, Site

QUEUE_ROWS = 200
"""Most pending jobs on a page. JSON has all."""
LOOKS_BACK = timedelta(days=14)
"""Time before the window in which a user's last run is looked for. All runs of 10^6 jobs would take seconds."""
ADVICE_SHOWN = 20
"""Most pieces of advice on a page. JSON has all."""
REPORT_KINDS = (".html", ".txt")
"""Suffixes of the files in the report folder that are listed."""

WING_PAGES = ("helios.training.web_pages",)
"""Modules of the wings with more routes, as ``ROUTES``."""
WINDOW = ("from", "to")
CHOICE = (*WINDOW, "user", "account", "partition")


def now_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of the queue, or of a history without one."""
    if history := site.history():
        return _history_page(site, reader, history)
    live = site.live()
    if isinstance(live, str):
        lines = ["The queue cannot be read now.", live, "The pages of the history do not need it."]
        return Page(title="Now", sections=[PageSection(sentences=lines)], values={"problem": live})
    state, lines = _state(site)
    shown = reader.visible_part(live)
    pending, running = shown.pending, shown.running
    gpus = as_count(float((running["gpus"] * running["tasks"].clip(lower=1)).sum()))
    tasks = int(pending["tasks"].clip(lower=1).sum())
    wait, run = "job waits" if tasks == 1 else "jobs wait", "runs" if len(running) == 1 else "run"
    whose = "" if reader.is_admin else "Of yours, "
    lines = [f"{whose}{tasks:,} {wait}, {len(running):,} {run} on {counted(gpus, 'GPU')}.", *lines]
    pending = pending.sort_values("priority", ascending=False, kind="stable")
    waited_s = live.taken_at.timestamp() - seconds_of(pending["eligible_at"].fillna(pending["submitted_at"]))
    rows = pending.assign(waited_s=np.maximum(waited_s, 0.0))
    columns = ["job_id", "user", "partition", "gpus", "tasks", "waited_s"]
    if reader.is_admin:  # predictions rest on everybody's jobs; those of own jobs are on the jobs' pages
        columns += ["p10_s", "p50_s", "p90_s"]
    section = PageSection(
        title="Waiting, the next one first" if reader.is_admin else "Your waiting jobs",
        sentences=["Predicted: half of such jobs run shorter; in brackets the middle 8 of 10."]
        if reader.is_admin
        else [],
        tables=[_queue_table(rows[columns].head(QUEUE_ROWS))],
        notes=[f"The first {QUEUE_ROWS} of {len(rows):,} are shown."] if len(rows) > QUEUE_ROWS else [],
    )
    return Page(
        title=f"{live.cluster} now",
        subtitle=f"As of {live.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=[PageSection(sentences=lines), section],
        values={
            "cluster": live.cluster,
            "taken_at": live.taken_at.isoformat(),
            "pending": tasks,
            "running": len(running),
            "gpus_in_use": gpus,
            **state,
            "queue": _records(rows, columns),
        },
    )


def _history_page(site: Site, reader: Reader, cluster: str) -> Page:
    """Return the first page of a history without a live Slurm."""
    with Warehouse.open(site.settings.database.url) as warehouse:
        known = warehouse.clusters(counts=True).set_index("name").to_dict("index")[cluster]
        weeks = last_weeks(warehouse, cluster)
    lines, span = ["There is no Slurm here whose queue could be shown."], dict[str, Any]()
    if reader.is_admin and weeks is not None:  # of nobody else: the span is that of everybody's jobs
        first, last = (known[f"{end}_submitted_at"].isoformat() for end in ("first", "last"))
        span = {"from": first, "to": last, "jobs": int(known["jobs"])}
        window = " to ".join(f"{end:%Y-%m-%d %H:%M}" for end in weeks)
        jobs = in_number(span["jobs"], "jobs")
        lines = [*lines, f"{jobs} are loaded. The other pages show the last weeks of the history, {window} UTC."]
    return Page(
        title=cluster,
        subtitle=f"This is {NOT_LIVE}.",
        sections=[PageSection(sentences=lines)],
        values={"cluster": cluster, "queue": [], "history": span},
    )


def _state(site: Site) -> tuple[dict[str, Any], list[str]]:
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


def _queue_table(rows: pd.DataFrame) -> TableCells:
    names = ("JobID", "User", "Partition", "GPUs", "Waited", *(["Predicted"] if "p50_s" in rows else []))
    cells = [
        (
            str(row["job_id"]),
            "" if pd.isna(row["user"]) else str(row["user"]),
            "" if pd.isna(row["partition"]) else str(row["partition"]),
            write_count(row["gpus"]) + (f" x {int(row['tasks'])}" if row["tasks"] > 1 else ""),
            duration(row["waited_s"]),
            *([_interval(row["p10_s"], row["p50_s"], row["p90_s"])] if "p50_s" in row else []),
        )
        for row in rows.to_dict("records")
    ]
    return TableCells(header=[(name, place < 3) for place, name in enumerate(names)], rows=cells)


def _interval(p10_s: float, p50_s: float, p90_s: float) -> str:
    return "" if np.isnan(p50_s) else f"{duration(p50_s)} ({duration(p10_s)}-{duration(p90_s)})"


def _records(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows as plain values, missing ones as None."""
    chosen = frame[list(names)].astype(object)
    rows = chosen.where(chosen.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def job_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one job."""
    found = site.job(reader, given["job"])
    if not reader.is_admin:
        # They tell how long others' jobs ran, and whose they were.
        remarks = tuple(text for text in found.remarks if not text.startswith(ID_USED_BEFORE))
        found = replace(found, rests_on="", held_by=(), remarks=remarks, target=())
    tables = []
    if len(found.decisions):
        names = ("decided_at", "service", "mode", "action", "after", "outcome", "reason")
        rows = [
            tuple("" if pd.isna(row[name]) else str(row[name])[:200] for name in names)
            for row in found.decisions.to_dict("records")
        ]
        tables = [TableCells(header=[(name.replace("_", " ").capitalize(), True) for name in names], rows=rows[::-1])]
    sections = [
        PageSection(sentences=found.lines()),
        PageSection(title="What Helios decided, the last first", tables=tables),
    ]
    return Page(title=f"Job {found.job_id}", sections=sections, values=found.to_json())


def nodes_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of all nodes."""
    site.refuse_history("Nodes are")
    found = node_status(site.operations.node_cycles)
    lines = [f"Helios is paused {found.paused}."] if found.paused else []
    lines += [f"{found.protected[:1].upper()}{found.protected[1:]}."] if found.protected else []
    lines += [f"Nodes cannot be put to sleep here: {found.cannot}"] if found.cannot else []
    lines += [f"{node} failed to wake: {what}" for node, what in found.quarantined.items()]
    lines += [f"No node is put to sleep: {found.use_unknown}"] if found.use_unknown else []
    values = found.to_json()
    pools = values["pools"]
    header = [(name.replace("_", " ").capitalize(), place == 0) for place, name in enumerate(pools[0])] if pools else []
    rows = [tuple("" if value is None else str(value) for value in pool.values()) for pool in pools]
    sections = [
        PageSection(sentences=lines or [f"Nodes as of {found.taken_at:%Y-%m-%d %H:%M:%S} UTC."]),
        PageSection(title="Pools of nodes", tables=[TableCells(header=header, rows=rows)]),
    ]
    if found.spare is not None:
        sections.append(PageSection(title="Why so many stay awake", sentences=tuple(found.spare.sentences())))
    return Page(title="Nodes", sections=sections, values=values)


def node_page(site: Site, _: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one node."""
    site.refuse_history(f"Node {given['node']} is")
    found = explain_node(site.operations.node_cycles, given["node"])
    return Page(title=f"Node {found.node}", sections=[PageSection(sentences=found.facts)], values=found.to_json())


def _report(name: str, answer: ReportTable, *, form_fields: Sequence[str], sentences: Sequence[str] = ()) -> Page:
    empty = [answer.empty] if answer.rows.empty else []
    section = PageSection(sentences=[*sentences, *empty], tables=[answer], notes=answer.notes)
    return Page(title=name, subtitle=answer.title, sections=[section], values=as_json(answer), form_fields=form_fields)


def usage_page(group: str, site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of use by user, account or partition."""
    answer = reports.usage_report(site.report_query(reader, given), group=group)
    fields = [name for name in CHOICE if reader.is_admin or name != "user"]
    return _report(f"Use by {group}", answer, form_fields=fields)


def user_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one user."""
    user = given["user"]
    if not reader.may_see(user):
        raise PageMissing(f"The page of {user} is not yours.", hint="Only your own is shown.")
    used = reports.usage_report(site.report_query(reader, given), group="partition")
    waiting = reports.queue_report(site.report_query(reader, {"user": user}))
    sections = [
        PageSection(sentences=[used.title, *([used.empty] if used.rows.empty else [])]),
        PageSection(title="Use by partition", tables=[used], notes=used.notes),
        PageSection(
            title="In the queue",
            sentences=[waiting.empty] if waiting.rows.empty else [],
            tables=[waiting],
            notes=waiting.notes,
        ),
    ]
    return Page(
        title=f"User {user}",
        sections=sections,
        values={"use": as_json(used), "queue": as_json(waiting)},
        form_fields=WINDOW,
    )


def queue_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of waiting jobs by partition and user."""
    return _report("Who waits", reports.queue_report(site.report_query(reader, given)), form_fields=CHOICE)


def predictions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the predictions' errors."""
    by = given.get("by") or "day"
    if by not in {"all", "source", "size", "day", "partition"}:
        raise UsageError(f"by={by} is not known.", hint="Choose all, source, size, day or partition.")
    found = reports.prediction_report(site.report_query(reader, given), by=by, looks_back=LOOKS_BACK)
    note = f"The user's last run is looked for in the {LOOKS_BACK.days} days before the window."
    return _report("Accuracy of predictions", replace(found, notes=(*found.notes, note)), form_fields=(*WINDOW, "by"))


def decisions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the audit log."""
    start = {"from": "now-1days"} if not given.get("from") else {}
    results = (given["result"],) if given.get("result") else ()
    answer = reports.decision_report(site.report_query(reader, {**given, **start}), results=results)
    return _report("Decisions", answer, form_fields=(*CHOICE, "result"))


def services_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of services' requests by day."""
    return _report("Services", reports.service_report(site.report_query(reader, given)), form_fields=WINDOW)


def energy_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of node hours and energy."""
    ledger = energy_report(site.report_query(reader, given), energy=site.settings.energy)
    found = _report("Energy", energy_answer(ledger), form_fields=WINDOW, sentences=energy_sentences(ledger))
    return replace(found, values=ledger.to_json())


def report_files(settings: Settings) -> Iterator[Path]:
    """Yield the listed report files, newest first."""
    folder = Path(settings.report.folder)
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix in REPORT_KINDS and path.is_file() and not path.is_symlink()
        ]
    except OSError:
        return
    yield from sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))


def reports_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the list of reports and what-ifs that were written."""
    found = [
        {
            "file": path.name,
            "title": _title(path),
            "written_at": f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M}",
        }
        for path in report_files(site.settings)
    ]
    rows = [(each["file"], each["title"], each["written_at"]) for each in found]
    folder = site.settings.report.folder
    lines = [
        "Written by the nightly analysis, and by commands with --report into the same folder."
        if found
        else "No report has been written: helios nightly writes one each night.",
        f"To have a what-if, a study or another report here: --report {folder}/NAME.html",
    ]
    table = TableCells(header=[("Report", True), ("What", True), ("Written (UTC)", False)], rows=rows)
    return Page(
        title="Reports",
        sections=[PageSection(sentences=lines), PageSection(title="Files", tables=[table])],
        values={"reports": found},
    )


def _title(path: Path) -> str:
    """Return the title of a report, empty where it has none."""
    if path.suffix != ".html":
        return "the same as text" if path.with_suffix(".html").exists() else ""
    try:
        with path.open("rb") as file:
            found = re.search(rb"<title>([^<]{1,200})</title>", file.read(4096))
    except OSError:
        return ""
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""


def study_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of the latest study."""
    cluster = site.name()
    kept = latest_study(Path(site.settings.report.folder), cluster)
    if kept is None:
        lines = [
            "No study has been kept: helios nightly makes one of the last four weeks each night.",
            "To make one now: helios study --keep",
        ]
        return Page(title=f"Study of {cluster}", sections=[PageSection(sentences=lines)], values={"made_at": None})
    sections = [
        PageSection(
            title=one["title"],
            sentences=one["sentences"],
            figures=[partial(_figure_of_width, *drawn) for drawn in one["figures"]],
            tables=[
                TableCells(header=[tuple(name) for name in table["header"]], rows=table["rows"])
                for table in one["tables"]
            ],
            notes=one["notes"],
        )
        for one in kept.sections
    ]
    return Page(
        title=f"Study of {cluster}",
        subtitle=f"Made on {kept.made_at:%Y-%m-%d %H:%M} UTC. {kept.subtitle}",
        sections=sections,
        values={"made_at": kept.made_at.isoformat(), **kept.values},
    )


def _figure_of_width(wide: str, narrow_one: str, *, narrow: bool = False) -> str:
    return narrow_one if narrow else wide


def advice_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of advice for users."""
    found = advise(site.report_query(reader, given))
    sections = [
        PageSection(
            sentences=[
                f"{count_in_words(len(found.advice), 'piece')} of advice on {in_number(found.jobs, 'jobs')}, "
                "that on the most hours first.",
                "What jobs used is not looked at here: helios advise asks Slurm for it.",
            ],
            notes=found.notes,
        ),
        *(
            PageSection(
                title=f"{one.user}: {one.which}" if reader.is_admin else one.which,
                sentences=[one.sentence, *one.lines()[1:]],
            )
            for one in found.advice[:ADVICE_SHOWN]
        ),
    ]
    return Page(
        title="Advice",
        subtitle=""
        if found.live
        else f"{found.cluster}: {NOT_LIVE}, {found.since:%Y-%m-%d} to {found.until:%Y-%m-%d}.",
        sections=sections,
        values=found.to_json(),
        form_fields=(*WINDOW, *(["user"] if reader.is_admin else [])),
    )


ROUTES = (
    Route("/", "The queue now, and what Helios may do", now_page, menu_name="Now", for_users=True),
    Route("/jobs/{job}", "One job: prediction, place, what Helios did", job_page, for_users=True),
    Route("/nodes", "Pools of nodes: asleep, waking, failed", nodes_page, menu_name="Nodes"),
    Route("/nodes/{node}", "One node and what Helios did to it", node_page),
    Route("/queue", "Who waits, by partition and user", queue_page, query=CHOICE, menu_name="Who waits"),
    Route(
        "/partitions",
        "Jobs, hours and waits by partition",
        partial(usage_page, "partition"),
        query=CHOICE,
        menu_name="Partitions",
        for_users=True,
    ),
    Route(
        "/accounts",
        "Jobs, hours and waits by account",
        partial(usage_page, "account"),
        query=CHOICE,
        menu_name="Accounts",
    ),
    Route("/users", "Jobs, hours and waits by user", partial(usage_page, "user"), query=CHOICE, menu_name="Users"),
    Route("/users/{user}", "One user's use and queue", user_page, query=WINDOW, for_users=True),
    Route(
        "/predictions",
        "How far off predicted run times were",
        predictions_page,
        query=(*WINDOW, "by"),
        menu_name="Predictions",
        for_users=True,
    ),
    Route("/decisions", "The audit log", decisions_page, query=(*CHOICE, "result"), menu_name="Decisions"),
    Route(
        "/services",
        "What services asked for, by day",
        services_page,
        query=WINDOW,
        menu_name="Services",
    ),
    Route(
        "/energy",
        "Node hours, energy, and what sleep saved",
        energy_page,
        query=WINDOW,
        menu_name="Energy",
    ),
    Route("/study", "The latest study: statements and figures", study_page, menu_name="Study"),
    Route(
        "/advice",
        "Requests that do not fit what jobs need",
        advice_page,
        query=(*WINDOW, "user"),
        menu_name="Advice",
        for_users=True,
    ),
    *(route for module in WING_PAGES for route in import_module(module).ROUTES),
    Route("/reports", "Reports and what-ifs that were written", reports_page, menu_name="Reports"),
)
